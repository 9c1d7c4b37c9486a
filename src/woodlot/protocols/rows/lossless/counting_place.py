"""Where a client counts its rows: on the CPU, or on a graphics card. The numbers are the same."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DeviceError
from woodlot.trees.arrays.array_cells import CellCounter
from woodlot.trees.arrays.array_module import choose
from woodlot.trees.cells import Cells

logger = logging.getLogger(__name__)


class CountingPlace:
    """Counts cells, and keeps on the card what does not change from one count to the next.

    Parameters
    ----------
    device : {"cpu", "cuda", "auto"}
        Where to count. "cuda" fails where there is no card; "auto" falls back to the CPU and says so in the log.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._table: tuple[NDArray[Any], CellCounter] | None = None
        self._level: tuple[object, tuple[Any, Any]] | None = None

    def count(
        self,
        cells: Cells,
        codes: NDArray[Any],
        n_codes: NDArray[np.int64],
        labels: NDArray[Any],
        targets: NDArray[np.int64] | None,
        n_classes: int,
        rows: NDArray[np.uint32],
        weights: NDArray[Any],
        start: NDArray[np.int64],
        end: NDArray[np.int64],
        n_jobs: int,
        *,
        level: object,
    ) -> NDArray[np.int64]:
        """As ``Cells.count``; ``level`` is the same object as long as the rows of each node are the same."""
        if self._device != "cpu":
            try:
                counter = self._counter(codes, n_codes, labels, targets)
                if counter is not None:
                    if self._level is None or self._level[0] is not level:
                        self._level = None  # before the next rows come: they need its memory
                        self._level = level, counter.put_rows(rows, weights)
                    return counter.count(cells, self._level[1], start, end)
            except DeviceError as error:
                if self._device != "auto":
                    raise
                logger.warning("device=auto: counting goes on on the CPU. %s", error)
                self._device, self._table, self._level = "cpu", None, None
        return cells.count(codes, n_codes, labels, targets, n_classes, rows, weights, start, end, n_jobs)

    def _counter(
        self,
        codes: NDArray[Any],
        n_codes: NDArray[np.int64],
        labels: NDArray[Any],
        targets: NDArray[np.int64] | None,
    ) -> CellCounter | None:
        if self._table is None or self._table[0] is not codes:
            self._table = self._level = None
            arrays = choose(self._device, len(labels), logger.warning)
            if arrays is None:
                self._device = "cpu"
                return None
            self._table = codes, CellCounter(arrays, codes, n_codes, labels, targets)
        return self._table[1]
