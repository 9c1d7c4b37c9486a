"""``woodlot check``: what is right and wrong with a party's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from woodlot.cli._client import AsJson, print_json, reporting

if TYPE_CHECKING:
    from woodlot.service.party_check import CheckedItem

_MARKS = {"right": "ok", "warning": "warning", "wrong": "WRONG"}


def check(
    config: Annotated[Path, typer.Argument(metavar="PARTY.TOML", help="The party's configuration.")],
    as_json: AsJson = False,
) -> None:
    """Check a party's configuration: its tables, policy, certificates and the way to the coordinator.

    A party does the same checks at every start, except for the coordinator. Exits with 1 if anything is wrong.

    Example: `woodlot check party.toml`
    """
    with reporting(as_json):
        from woodlot.service.config import PartyConfig
        from woodlot.service.party_check import check_coordinator, check_party

        settings = PartyConfig.load(config)
        found = [*check_party(settings), check_coordinator(settings)]
    wrong = [one for one in found if one.state == "wrong"]
    if as_json:
        import msgspec

        print_json({"ok": not wrong, "findings": msgspec.to_builtins(found)})
    else:
        _print(found)
    if wrong:
        raise typer.Exit(1)


def _print(found: list[CheckedItem]) -> None:
    from woodlot.cli import _show

    console = _show.stdout()
    console.print(_show.table(("", "what", "found"), [(_MARKS[one.state], one.what, one.told) for one in found],
                              wrapped=("found",)))  # fmt: skip
    wrong = sum(one.state == "wrong" for one in found)
    console.print()
    console.print(
        f"{wrong} of {len(found)} checks failed: the party does not start." if wrong else "The party can start."
    )
