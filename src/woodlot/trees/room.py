"""How much of a training fits into a party's memory: threads, and trees that grow together."""

from __future__ import annotations

from dataclasses import dataclass

from woodlot.data.spool import Spool
from woodlot.exceptions import DataError
from woodlot.trees.encoding import ENCODING_BYTES

SEARCH_BYTES = 48
"""Upper estimate of what a thread needs per row while it looks for splits: keys to sort, gathered labels, rows that go
right."""
LABEL_BYTES = 32
"""Upper estimate per row of labels and weights: as they came, as the kernels take them, and their holder's own."""
PROCESS_BYTES = 300 * 10**6
"""What a party's process takes with its libraries and compiled kernels. A constant, not what the system tells: a job
that is repeated after a restart must give the same answers."""
TREE_BYTES = 10
"""Upper estimate per row and tree: row number, weight, and the flags of a level as they travel and unpacked."""


@dataclass(frozen=True)
class WorkingMemory:
    """Where a party keeps what it works on.

    Attributes
    ----------
    spool : Spool
        For codes and values.
    limit : int or None
        Bytes of memory that the process may use for a training, the process itself included; None: any number.

    """

    spool: Spool
    limit: int | None = None

    def threads_to_encode(self, n_rows: int, n_jobs: int) -> int:
        """As many threads as there is memory for.

        Raises
        ------
        DataError
            There is none for a single one.

        """
        if self.limit is None:
            return n_jobs
        return self._threads(n_rows, n_jobs, ENCODING_BYTES, 0, "to encode a column of")

    def threads_to_grow(self, n_rows: int, n_jobs: int) -> int:
        """As many threads as there is memory for beside one tree; DataError as for `threads_to_encode`."""
        if self.limit is None:
            return n_jobs
        return self._threads(n_rows, n_jobs, SEARCH_BYTES, (LABEL_BYTES + TREE_BYTES) * n_rows, "to grow a tree on")

    def trees_together(self, n_rows: int, n_jobs: int) -> int:
        """How many trees may grow at the same time on so many threads; 0: any number."""
        if self.limit is None:
            return 0
        free = self.limit - PROCESS_BYTES - (LABEL_BYTES + n_jobs * SEARCH_BYTES) * n_rows
        return max(1, free // max(TREE_BYTES * n_rows, 1))

    def _threads(self, n_rows: int, n_jobs: int, per_row: int, besides: int, what: str) -> int:
        free = (self.limit or 0) - PROCESS_BYTES - besides
        if free < per_row * n_rows:
            needed = PROCESS_BYTES + besides + per_row * n_rows
            raise DataError(
                f"memory = {_megabytes(self.limit or 0)} is too little {what} {n_rows:,} rows: set memory to at least "
                f"{_megabytes(needed)} in the party's configuration"
            )
        return max(1, min(n_jobs, free // max(per_row * n_rows, 1)))


def _megabytes(size: int) -> str:
    return f'"{-(-size // 10**6)} MB"'
