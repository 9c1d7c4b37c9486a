"""``woodlot approvals``: orders that wait until the owner of a party's data allows them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import SHORT, AsJson, plain, print_json, refuse_options_before, reporting
from woodlot.cli._confirm import confirmed

if TYPE_CHECKING:
    from woodlot.jobs.approvals import Approval, Approvals

approvals = typer.Typer(
    name="approvals",
    invoke_without_command=True,
    help="List orders that wait for your approval; allow or refuse one.",
)

ConfigOption = Annotated[
    Path, typer.Option("--config", metavar="FILE", help="The configuration of the party, helper or key service.")
]
Entry = Annotated[str, typer.Argument(metavar="ID", help="The order's id, as it is listed.")]


@approvals.callback()
def listed(
    ctx: typer.Context,
    config: ConfigOption = Path("party.toml"),
    every: Annotated[bool, typer.Option("--all", help="List also orders that were decided about.")] = False,
    as_json: AsJson = False,
) -> None:
    """List orders that wait for your approval; allow or refuse one.

    Each is shown with what its job may tell whom. Run it where the service runs.
    """
    if ctx.invoked_subcommand is not None:
        refuse_options_before(ctx, "woodlot approvals allow ID --config party.toml")
        return
    with reporting(as_json), _record(config) as record:
        entries = record.listed(every=every)
    if as_json:
        print_json({"approvals": [plain(entry) for entry in entries]})
    elif not entries:
        typer.echo("No order waits for approval.")
    else:
        for entry in entries:
            _print(entry)


@approvals.command()
def allow(
    entry: Entry,
    config: ConfigOption = Path("party.toml"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a job begin. The approval is for this signed order only."""
    with reporting(as_json), _record(config) as record:
        if not yes:
            found = [one for one in record.listed(every=True) if one.id == entry]
            for one in found:
                _print(one)
            if found:
                confirmed("Allow this job?")
        decided = record.decide(entry, allow=True)
    _say(decided, as_json=as_json)


@approvals.command()
def refuse(
    entry: Entry,
    config: ConfigOption = Path("party.toml"),
    reason: Annotated[str, typer.Option(metavar="TEXT", help="Told to the user and to the coordinator.")] = "",
    as_json: AsJson = False,
) -> None:
    """Refuse a job; its user is told the reason."""
    with reporting(as_json), _record(config) as record:
        decided = record.decide(entry, allow=False, reason=reason)
    _say(decided, as_json=as_json)


def _record(config: Path) -> Approvals:
    """The record of the service that a configuration is of; only a party has tables."""
    from woodlot.jobs.approvals import Approvals
    from woodlot.service.config import MemberConfig, PartyConfig
    from woodlot.service.settings import read_toml

    kind: Any = PartyConfig if "tables" in read_toml(config) else MemberConfig
    settings = kind.load(config)
    return Approvals(settings.state, settings.policy.approval_days)


def _say(entry: Approval, *, as_json: bool) -> None:
    if as_json:
        print_json(plain(entry))
    else:
        typer.echo(f"Order {entry.id} of {entry.user} is {entry.state} (job {entry.job[:SHORT]}).")


def _print(entry: Approval) -> None:
    from woodlot.cli import _show

    about = entry.about
    console = _show.stdout()
    console.print(f"\n[bold]{entry.id}[/bold]  {about.kind}, ordered by {entry.user}: {entry.state}\n", highlight=False)
    console.print(
        _show.facts_grid(
            {
                "job": entry.job,
                "ordered": _show.moment(about.created),
                "came": _show.moment(entry.asked),
                "decided": "" if entry.decided is None else _show.moment(entry.decided),
                "why": entry.reason,
                **about.facts(),
                "signed order": entry.order,
            }
        )
    )
    rows = [(line.stake, line.sender, line.receiver, line.form, line.reveals) for line in about.tells]
    console.print("\nIt may tell, and nothing else of anybody's data:\n")
    console.print(_show.table(("at stake", "from", "to", "form", "what is learnt"), rows, wrapped=("what is learnt",)))
