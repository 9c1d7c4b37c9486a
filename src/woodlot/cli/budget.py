"""``woodlot budget``: what a party has spent of its privacy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._client import AsJson, print_json, reporting

if TYPE_CHECKING:
    from sqlite3 import Connection

    from woodlot.privacy.budget import Charge

budget = typer.Typer(name="budget", no_args_is_help=True, help="What a party has spent of its privacy.")


@budget.callback()
def group() -> None:
    """What a party has spent of its privacy."""


@budget.command()
def show(
    config: Annotated[Path, typer.Argument(metavar="PARTY.TOML", help="The party's configuration.")],
    releases: Annotated[bool, typer.Option("--releases", help="List every release.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what was released under differential privacy, by table, and what is left.

    Run it where the party runs, beside it if you like: its record is only read.
    """
    with reporting(as_json):
        accounts = _accounts(config)
    if as_json:
        print_json({"tables": accounts})
    else:
        _print(accounts, releases=releases)


def _accounts(path: Path) -> list[dict[str, Any]]:
    """One entry for each table that is configured or has ever been released from."""
    from contextlib import closing

    from woodlot.exceptions import ConfigError
    from woodlot.privacy.accounting import in_plain_words
    from woodlot.privacy.budget import Ledger
    from woodlot.runtime.journal import Journal
    from woodlot.service.config import PartyConfig
    from woodlot.service.identity import Identity
    from woodlot.service.party import JOURNAL

    settings = PartyConfig.load(path)
    party, file = Identity.load(settings.identity).name, settings.state / JOURNAL
    if not file.exists():
        raise ConfigError(f"{settings.state} has no {JOURNAL} yet: the party has never run with this configuration")
    delta = settings.privacy.delta

    def read(db: Connection) -> tuple[dict[str, list[Charge]], dict[str, float]]:
        ledger = Ledger(db)
        charged = [dataset for client, dataset in ledger.accounts() if client == party]
        tables = [*settings.tables, *(table for table in charged if table not in settings.tables)]
        return (
            {table: ledger.charges(party, table) for table in tables},
            {table: ledger.spent(party, table, delta) for table in tables},
        )

    with closing(Journal.read(file)) as journal:
        charges, spent = journal.consult(read)
    return [
        {
            "party": party,
            "table": table,
            "epsilon": spent[table],
            "delta": delta,
            "budget": settings.privacy.epsilon,
            "meaning": in_plain_words(spent[table], delta),
            "releases": [
                {
                    "release": charge.release,
                    "job": charge.job,
                    "mechanism": charge.mechanism,
                    "epsilon": charge.spend.epsilon,
                    "count": charge.spend.count,
                }
                for charge in charges[table]
            ],
        }
        for table in charges
    ]


def _print(accounts: list[dict[str, Any]], *, releases: bool) -> None:
    from woodlot.cli import _show

    console = _show.stdout()
    for account in accounts:
        limit, delta = account["budget"], account["delta"]
        console.print(f"\n[bold]{account['table']}[/bold]\n")
        console.print(
            _show.facts_grid(
                {
                    "spent": f"epsilon {account['epsilon']:.6g}" + (f", delta {delta:g}" if delta else ""),
                    "budget": "none: nothing is refused" if limit is None else f"epsilon {limit:g}",
                    "releases": f"{len(account['releases']):,}",
                    "meaning": account["meaning"],
                }
            )
        )
        if releases and account["releases"]:
            rows = [
                (one["job"][:8], one["mechanism"], f"{one['epsilon']:.6g}", f"{one['count']:,}", one["release"])
                for one in account["releases"]
            ]
            headings = ("job", "mechanism", ">epsilon", ">times", "release")
            console.print()
            console.print(_show.table(headings, rows, wrapped=("mechanism", "release")))
