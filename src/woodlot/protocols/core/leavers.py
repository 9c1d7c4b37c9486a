"""Who may leave a forest, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from woodlot.exceptions import DataError

Level = Literal[1, 3]

HIDDEN_STAYS = (
    "this forest was grown with protection='hidden', and growing a part of it again would tell which row goes where. "
    "Train a new model without the party that leaves, and predict with that one"
)
"""Why no party leaves a forest that was grown hidden, and what to do."""


def check_leavers(parties: Sequence[str], holder: str | None, leavers: Sequence[str]) -> None:
    """Refuse that these leave together."""
    staying = list(parties)
    for leaver in leavers:
        check_leaver(staying, holder, leaver)
        staying.remove(leaver)
    if len(staying) == len(parties):
        raise DataError(f"name who leaves; the parties are {list(parties)}")


def check_leaver(parties: Sequence[str], holder: str | None, leaver: str) -> None:
    """Refuse a revocation that cannot be."""
    if leaver not in parties:
        raise DataError(
            f"{leaver!r} is not a party of this forest, or has been revoked before; its parties are {list(parties)}"
        )
    if len(parties) == 1:
        raise DataError(f"{leaver!r} is the last party of this forest: nothing would be left; give up the whole model")
    if leaver == holder:
        raise DataError(f"{leaver!r} holds the labels: without them there is no forest; give up the whole model")
