"""Versions of the protocol between services: two neighbouring ones work together, so that nobody upgrades at once.

Who dials tells which versions it speaks, in the metadata of its stream, and the coordinator tells its own; both then
use the newest that both speak. Who tells none is from before versions were told, and speaks version 1.

======== ==========================================================================================================
version  what is new
======== ==========================================================================================================
1        everything until versions were told
2        a party may answer `ApprovalPending` to the opening of a job, and users are told who has yet to approve
======== ==========================================================================================================

A message that an older version does not know must not be sent to it: who sends it looks at the version that was agreed
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from woodlot.exceptions import RemoteProtocolError

PROTOCOL: Final = "woodlot-protocol"
"""Metadata of a stream: the versions that the sender speaks, such as ``2,1``."""

VERSIONS: Final = (2, 1)
"""What this Woodlot speaks: its own version, and the one before."""

APPROVALS: Final = 2
"""Since this version a job can wait for the approval of a party's owner."""

_UNSAID = (1,)
_MOST = 16  # versions that a peer may name


def told(versions: Sequence[int] = VERSIONS) -> str:
    """Versions as metadata has them."""
    return ",".join(map(str, versions))


def agreed(said: str | None, versions: Sequence[int], *, other: str, own: str) -> int:
    """The newest version that both sides speak.

    Parameters
    ----------
    said : str or None
        What the other side has told; None: nothing.
    versions : sequence of int
        What this side speaks.
    other, own : str
        What the error calls the two sides.

    Raises
    ------
    RemoteProtocolError
        If there is none, or what was told is not a list of versions; the message names the versions of both.

    """
    theirs: Sequence[int] = _UNSAID
    if said is not None:
        parts = said.split(",", _MOST)
        if len(parts) > _MOST or not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
            raise RemoteProtocolError("what was told as versions of the protocol is not a list of numbers")
        theirs = [int(part) for part in parts]
    common = set(theirs) & set(versions)
    if not common:
        older = other if max(theirs) < max(versions) else own
        raise RemoteProtocolError(
            f"no common version of the protocol: {other} speaks {_listed(theirs)}, {own} {_listed(versions)}; upgrade "
            f"{older}, one version at a time"
        )
    return max(common)


def _listed(versions: Sequence[int]) -> str:
    return " and ".join(map(str, sorted(versions, reverse=True)))
