"""Who may leave a forest, and what becomes of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from woodlot.exceptions import DataError

Level = Literal[1, 3]

HIDDEN_LEVEL = (
    "this forest was grown with protection='hidden', and growing only a part of it again would tell which rows are in "
    "that part. Use level 3: the parties that stay grow the whole forest again, on secret shares"
)
"""Why a party leaves a forest that was grown hidden at level 3 only."""

HIDDEN_ALONE = (
    "this forest was grown with protection='hidden', which needs a second server, and the label holder alone would be "
    "left. Give up the model; the label holder can train one on its own columns"
)
"""Why the last party beside the label holder does not leave a forest that was grown hidden."""


def usual_level(*, hidden: bool) -> Level:
    """The level at which a party leaves where none is named."""
    return 3 if hidden else 1


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


def check_hidden_leaver(parties: Sequence[str], holder: str | None, leaver: str, level: int) -> None:
    """Refuse what cannot be of a forest that was grown hidden."""
    check_leaver(parties, holder, leaver)
    if level != 3:
        raise DataError(HIDDEN_LEVEL)
    if len(parties) < 3:
        raise DataError(HIDDEN_ALONE)
