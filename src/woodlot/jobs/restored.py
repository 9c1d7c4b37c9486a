"""What a service must not do again after its state folder was put back from a backup.

Orders that were taken between the backup and its restoration are forgotten. If one of them came again, with other
questions under the same job name, answers would be masked twice by the same numbers, and their difference would tell
what the masks have hidden. So a restored folder has a file that says

- when it was restored: orders that may have been signed before are refused;
- which jobs it knows of: the secrets of all other jobs follow from a new random number, too. An order that is signed
  later, under the name of a forgotten job, gets other masks.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import msgspec

from woodlot.data.decoding import from_json
from woodlot.data.whole_files import write_whole
from woodlot.exceptions import JournalError, PolicyError
from woodlot.identity.receipts import CLOCK_SECONDS
from woodlot.jobs.orders import JOB_ID, Order

RESTORED = "restored.json"
"""Name of the file in a state folder; not there where the folder was never restored."""


class Restoration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One time that a state folder was put back.

    Attributes
    ----------
    made, at : float
        When the backup was made, and when it was restored, in seconds since 1970.
    nonce : str
        32 random bytes in hexadecimal digits, drawn at the restoration.
    jobs : tuple of str
        The jobs that the backup knows of.

    """

    made: float
    at: float
    nonce: str
    jobs: tuple[str, ...]


class Restored:
    """All times that a state folder was put back from a backup.

    Parameters
    ----------
    folder : Path
        The state folder.

    """

    def __init__(self, folder: Path) -> None:
        path = folder / RESTORED
        try:
            self._times = from_json(path.read_bytes(), tuple[Restoration, ...]) if path.exists() else ()
        except (OSError, ValueError) as error:
            raise JournalError(
                f"{path} cannot be read ({error}); restore the state folder again: without this file orders of "
                "the time before could be carried out twice"
            ) from None
        self._known = [frozenset(time.jobs) for time in self._times]

    def check(self, order: Order) -> None:
        """Refuse an order that may have been carried out before the last restoration."""
        since = self._times[-1].at + CLOCK_SECONDS if self._times else 0.0
        if order.created < since:
            when = datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            raise PolicyError(
                f"its records were restored from a backup, and orders that were signed before {when} are refused: they "
                "may have been carried out already. Order it again after that time"
            )

    def scope(self, scope: str) -> str:
        """What the secrets of a job are derived for; others stay as they are, for models depend on them."""
        if JOB_ID.fullmatch(scope):
            for time, known in zip(reversed(self._times), reversed(self._known), strict=True):
                if scope not in known:
                    return f"{scope} {time.nonce}"
        return scope

    def add(self, folder: Path, restoration: Restoration) -> None:
        """Write one more time into a state folder."""
        data = msgspec.json.encode((*self._times, restoration))
        write_whole(folder / RESTORED, lambda file: file.write(data))
