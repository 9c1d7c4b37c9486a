"""The command line: one file per command, without numpy or numba, so that ``--help`` answers at once."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from woodlot import __version__
from woodlot.cli._client import INTERRUPTED, one_line
from woodlot.cli._examples import PANEL_OF, epilog
from woodlot.cli._text import spelled_out
from woodlot.cli.align import align
from woodlot.cli.approvals import approvals
from woodlot.cli.audit import audit
from woodlot.cli.backup import backup
from woodlot.cli.bench import bench
from woodlot.cli.budget import budget
from woodlot.cli.card import card
from woodlot.cli.catalog import catalog
from woodlot.cli.check import check
from woodlot.cli.coordinator import coordinator
from woodlot.cli.dashboard import dashboard
from woodlot.cli.demo import demo
from woodlot.cli.drift import drift
from woodlot.cli.evaluate import evaluate
from woodlot.cli.explain import explain
from woodlot.cli.forget import forget
from woodlot.cli.identity import identity
from woodlot.cli.jobs import jobs
from woodlot.cli.join import join
from woodlot.cli.leak_test import leak_test
from woodlot.cli.models import models
from woodlot.cli.mpi import mpi
from woodlot.cli.new import new
from woodlot.cli.order import order
from woodlot.cli.parties import parties
from woodlot.cli.party import party
from woodlot.cli.plan import plan
from woodlot.cli.predict import predict
from woodlot.cli.provision import provision
from woodlot.cli.report import report
from woodlot.cli.restore import restore
from woodlot.cli.revoke import revoke
from woodlot.cli.schema import schema
from woodlot.cli.score import score
from woodlot.cli.search import search
from woodlot.cli.train import train
from woodlot.cli.warm_up import warm_up
from woodlot.exceptions import ConfigError, MissingExtraError, WoodlotError


class _Commands(TyperGroup):
    """Woodlot's commands and those that other packages add.

    It tells the user of an error in one line: what went wrong is in the message, not in a traceback.
    """

    def list_commands(self, ctx: Any) -> list[str]:
        own = super().list_commands(ctx)
        from woodlot.cli import _added

        return [*own, *(name for name in _added.names() if name not in own)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if (own := super().get_command(ctx, cmd_name)) is not None:
            return own
        from woodlot.cli import _added

        try:
            return _added.find(cmd_name)
        except MissingExtraError:
            if ctx.resilient_parsing:  # a shell completes the line: there is no place for an error
                return None
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except WoodlotError as error:
            lines = str(error).splitlines() if isinstance(error, ConfigError) else [one_line(error)]
            typer.echo(f"woodlot: {chr(10).join(map(spelled_out, lines))}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="woodlot",
    cls=_Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["--help", "-h"]},
    pretty_exceptions_show_locals=False,  # a traceback with locals would print rows of tables
    rich_markup_mode="markdown",
    epilog="Start with `woodlot demo`.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"woodlot {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Random forests across organisations that cannot pool their data."""


for command in (
    demo,
    schema,
    new,
    provision,
    join,
    coordinator,
    party,
    check,
    plan,
    bench,
    catalog,
    train,
    search,
    evaluate,
    explain,
    drift,
    card,
    predict,
    score,
    revoke,
    forget,
    align,
    parties,
    audit,
    report,
    dashboard,
    backup,
    restore,
    mpi,
    order,
    leak_test,
    warm_up,
):
    name = command.__name__.replace("_", "-")
    app.command(rich_help_panel=PANEL_OF[name], epilog=epilog(name))(command)
for group in (
    identity,
    jobs,
    models,
    budget,
    approvals,
):
    name = str(group.info.name)
    for sub in group.registered_commands:
        sub.epilog = epilog(f"{name} {sub.name or getattr(sub.callback, '__name__', '')}")
    app.add_typer(group, rich_help_panel=PANEL_OF[name], epilog=epilog(name, str(group.info.epilog or "")))
