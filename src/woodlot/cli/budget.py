"""``woodlot budget``: what a party has spent of its privacy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from woodlot.cli._client import AsJson, print_json, reporting

budget = typer.Typer(name="budget", no_args_is_help=True, help="What a party has spent of its privacy.")

_TITLES = {"labels": "labels of rows", "rows": "whole rows"}


@budget.callback()
def group() -> None:
    """What a party has spent of its privacy."""


@budget.command()
def show(
    config: Annotated[Path, typer.Argument(metavar="PARTY.TOML", help="The party's configuration.")],
    releases: Annotated[bool, typer.Option("--releases", help="List every release.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what each table was used for: charged releases, their epsilon, and jobs without differential privacy.

    Labels and rows have an account each. An epsilon covers the charged releases of its account only. Run it where the
    party runs; it only reads the party's record.
    """
    with reporting(as_json):
        from woodlot.service.config import PartyConfig
        from woodlot.service.privacy_accounts import privacy_accounts

        accounts = privacy_accounts(PartyConfig.load(config))
    if as_json:
        print_json({"tables": accounts})
    else:
        _print(accounts, releases=releases)


def _print(tables: list[dict[str, Any]], *, releases: bool) -> None:
    from woodlot.cli import _show

    console = _show.stdout()
    for table in tables:
        console.print(f"\n[bold]{table['table']}[/bold]")
        for account in table["accounts"]:
            console.print(f"\n{_TITLES[account['unit']]}\n")
            console.print(_show.facts_grid(_facts(account)))
            if releases and account["releases"]:
                rows = [
                    (one["job"][:8], one["mechanism"], f"{one['epsilon']:.6g}", f"{one['count']:,}", one["release"])
                    for one in account["releases"]
                ]
                headings = ("job", "mechanism", ">epsilon", ">times", "release")
                console.print()
                console.print(_show.table(headings, rows, wrapped=("mechanism", "release")))
        if releases and table["uses"]:
            used = [(use["job"][:8], use["kind"], ", ".join(use["units"])) for use in table["uses"]]
            console.print("\nwithout differential privacy\n")
            console.print(_show.table(("job", "order", "not protected"), used))


def _facts(account: dict[str, Any]) -> dict[str, str]:
    limit, delta = account["budget"], account["delta"]
    return {
        "spent": f"epsilon {account['epsilon']:.6g}" + (f", delta {delta:g}" if delta else ""),
        "budget": "none: no release is refused" if limit is None else f"epsilon {limit:g}",
        # composed epsilons do not add: what one more release would cost depends on its kind
        "left": "" if limit is None or delta else f"epsilon {max(0.0, limit - account['epsilon']):.6g}",
        "releases": f"{len(account['releases']):,}",
        "meaning": account["meaning"],
        "not covered": account["uncovered"],
    }
