"""The command line: one file per command, without numpy or numba, so that ``--help`` answers at once."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from woodlot import __version__
from woodlot.cli.coordinator import coordinator
from woodlot.cli.demo import demo
from woodlot.cli.identity import identity
from woodlot.cli.party import party
from woodlot.exceptions import WoodlotError

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C ended, as shells have it."""


class _Commands(TyperGroup):
    """Tells the user of an error in one line: what went wrong is in the message, not in a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except WoodlotError as error:
            typer.echo(f"woodlot: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None


app = typer.Typer(
    name="woodlot",
    cls=_Commands,
    no_args_is_help=True,
    add_completion=False,
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


for command in (demo, coordinator, party):
    app.command()(command)
app.add_typer(identity)
