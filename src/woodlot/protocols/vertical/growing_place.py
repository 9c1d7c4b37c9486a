"""Where a party grows its trees: on the CPU, or on a graphics card.

The forest is the same to the bit on both, so that nothing of this shows in a message but how many trees fit.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.exceptions import DeviceError, LocalProtocolError
from woodlot.protocols.vertical.forest_messages import GrowthStart
from woodlot.protocols.vertical.start import rules_of
from woodlot.trees.arrays.array_grow import ArrayGrower, trees_on_card
from woodlot.trees.arrays.array_module import choose
from woodlot.trees.arrays.array_table import ArrayTable, encode_here
from woodlot.trees.common_grow import CommonGrower, CommonTrees
from woodlot.trees.encoding import Coding, EncodedTable, encode
from woodlot.trees.grow import Grower
from woodlot.trees.room import WorkingMemory
from woodlot.trees.sampling import Bootstrap

logger = logging.getLogger(__name__)
T = TypeVar("T")


class GrowingPlace:
    """The codes of a party's table, and the growers that work on them.

    Parameters
    ----------
    table : Table
        The party's columns.
    device : {"cpu", "cuda", "auto"}
        Where to grow. "cuda" fails where there is no card; "auto" falls back to the CPU, also in the middle of a
        training, and says so in the log.
    n_jobs : int
        Threads.
    room : WorkingMemory, optional
        Where codes are kept, and what may be in memory.
    common : CommonTrees, optional
        The trees in flight, where all parties of the training grow them in this process on the CPU.
    """

    def __init__(
        self, table: Table, device: str, n_jobs: int, room: WorkingMemory | None, common: CommonTrees | None = None
    ) -> None:
        self._table = table
        self._device = device
        self._room = room
        self._common = common if device == "cpu" else None
        self._n_jobs = self._encoding = n_jobs
        self._max_bins: int | None = None
        self._codes: EncodedTable | None = None
        self._on_card: ArrayTable | None = None

    def encode(self, max_bins: int | None) -> tuple[int, int]:
        """Make the codes; returns how many threads and how many trees there is then room for."""
        self._max_bins, self._codes, self._on_card = max_bins, None, None
        room, n_rows = self._room, self._table.n_rows
        growing, together = self._n_jobs, 0
        if room is not None:
            self._encoding = room.threads_to_encode(n_rows, self._n_jobs)
            growing = room.threads_to_grow(n_rows, self._n_jobs)
            together = room.trees_together(n_rows, growing)
        arrays = choose(self._device, n_rows, logger.warning) if self._table.columns else None
        if arrays is not None:
            try:
                with arrays.guard():
                    table = encode_here(arrays, self._table, max_bins, self._encoding)
                    fit = trees_on_card(arrays, n_rows, int(table.fine.nbytes + table.lowest.nbytes))
            except DeviceError as error:
                self._fall_back(error)
            else:
                self._on_card = table
                return growing, min(together, fit) if together else fit
        self._codes = self._encoded()
        return growing, together

    def _encoded(self) -> EncodedTable:
        room = self._room
        if room is None:
            return encode(self._table, max_bins=self._max_bins, n_jobs=self._n_jobs)
        return encode(self._table, max_bins=self._max_bins, n_jobs=self._encoding, spool=room.spool)

    def _fall_back(self, error: DeviceError) -> None:
        """Use the CPU from now on if that is allowed."""
        if self._device != "auto":
            raise error
        logger.warning("device=auto: training goes on on the CPU. %s", error)
        self._on_card = None
        self._device = "cpu"

    @property
    def is_encoded(self) -> bool:
        """Whether there are codes to grow trees on."""
        return self._codes is not None or self._on_card is not None

    @property
    def codings(self) -> tuple[Coding, ...]:
        """What the codes mean, as prediction must know it."""
        table = self._codes if self._on_card is None else self._on_card
        return () if table is None else table.codings

    def plant(
        self,
        feature_keys: NDArray[np.uint64],
        labels: NDArray[Any],
        start: GrowthStart,
        sampling: Bootstrap,
        trees: Sequence[int],
        n_jobs: int,
    ) -> Grower:
        """Begin trees."""
        rest = (feature_keys, labels, start.n_classes, rules_of(start), sampling, start.order_seed)
        if self._on_card is not None:
            try:
                return ArrayGrower(self._on_card, *rest, trees, n_jobs)
            except DeviceError as error:
                self._fall_back(error)
        if self._common is not None:
            return CommonGrower(self._common, self._cpu_codes(), *rest, trees, n_jobs)
        return Grower(self._cpu_codes(), *rest, trees, n_jobs)

    def _cpu_codes(self) -> EncodedTable:
        if self._codes is None:
            self._codes = self._encoded()
        return self._codes

    def turn(self) -> AbstractContextManager[None]:
        """Wait until no other party of this process uses the card; on the CPU they work side by side."""
        return nullcontext() if self._on_card is None else self._on_card.arrays.guard()

    def carry_out(self, grower: Grower, step: Callable[[Grower], T]) -> tuple[Grower, T]:
        """Do a step of growing. If the card fails, the trees go on on the CPU from where they were.

        Returns the grower to use from now on, and what the step gives.
        """
        try:
            return grower, step(grower)
        except DeviceError as error:
            if not isinstance(grower, ArrayGrower):
                raise LocalProtocolError("a grower on the CPU has asked for a card") from error
            self._fall_back(error)
            moved = grower.brought_to_cpu(self._cpu_codes())
            return moved, step(moved)

    def let_values_go(self) -> None:
        """Give back the memory of values that thresholds were read from."""
        if self._room is not None and self._codes is not None:
            self._room.spool.let_go(self._codes.lowest, self._codes.highest)
