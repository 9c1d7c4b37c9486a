"""Some columns of a party that is spread over several machines: what runs on each of them.

A block reads its columns from the party's own source, keeps their codes in memory between the rounds, and grows the
same trees as the party: it is told the rows' sides where another block or party has split a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.data.sources import TableSource
from woodlot.exceptions import DataError, LocalProtocolError
from woodlot.protocols.core.bits import pack
from woodlot.protocols.core.forest_parts import categories_of
from woodlot.protocols.vertical.forest_messages import StartForest
from woodlot.protocols.vertical.start import check_start, rules_of, sampling_of
from woodlot.trees.encoding import EncodedTable, encode
from woodlot.trees.grow import Grower


class LevelPartition(NamedTuple):
    """The splits of one level: which open nodes, and one flag per row of those that the receiver has not split itself.

    Both are packed, with the number of flags.
    """

    is_split: NDArray[np.uint8]
    flags: NDArray[np.uint8]
    n_flags: int


class Applied(NamedTuple):
    """Splits that a block has won: packed sides of the rows, and what stays with the party."""

    flags: NDArray[np.uint8]
    threshold: NDArray[np.float64]
    missing_left: NDArray[np.bool_]
    set_length: NDArray[np.int64]
    sets: NDArray[np.uint8]


class ColumnBlock:
    """The columns of one block.

    Parameters
    ----------
    source : TableSource
        The party's table, which this machine must be able to read.
    columns : sequence of str
        Those of this block.
    rows : int64 array
        Own row of each common row.
    feature_keys : uint64 array
        Code of each column.
    n_jobs : int
        Threads.

    """

    def __init__(
        self,
        source: TableSource,
        columns: Sequence[str],
        rows: NDArray[np.int64],
        feature_keys: NDArray[np.uint64],
        n_jobs: int,
    ) -> None:
        loaded = source.part(columns).read()
        if int(rows.max(initial=-1)) >= loaded.n_rows:
            raise DataError("the table has fewer rows than when the job began")
        self.digest = loaded.digest
        self._table = loaded.table().select(columns).take(rows)
        self._feature_keys = np.array(feature_keys)
        self._n_jobs = n_jobs
        self._codes: EncodedTable | None = None
        self._start: StartForest | None = None
        self._labels: NDArray[Any] = np.empty(0, np.uint8)
        self._grower: Grower | None = None

    def encode(self, max_bins: int | None) -> tuple[str, tuple[tuple[str, ...] | None, ...]]:
        """Make the codes; returns the digest of the columns, and the categories of those that have any."""
        self._codes = encode(self._table, max_bins=max_bins, n_jobs=self._n_jobs)
        return self.digest, categories_of(self._codes.codings)

    def begin(self, start: StartForest) -> None:
        """Take the labels, rules and seeds of a training."""
        self._labels = np.array(check_start(start, self._table.n_rows))  # kernels know no read-only arrays
        self._start = start

    def plant(self, trees: Sequence[int], levels: Sequence[LevelPartition]) -> None:
        """Begin trees; those that have grown before are brought to where they were, level by level."""
        if self._codes is None or self._start is None:
            raise LocalProtocolError("a block grows no trees before it has codes and labels")
        self._grower = Grower(
            self._codes,
            self._feature_keys,
            self._labels,
            self._start.n_classes,
            rules_of(self._start),
            sampling_of(self._start),
            self._start.order_seed,
            trees,
            self._n_jobs,
        )
        for level in levels:
            self._split(level)

    def _growing(self) -> Grower:
        if self._grower is None:
            raise LocalProtocolError("no trees grow in this block")
        return self._grower

    def _split(self, level: LevelPartition) -> None:
        grower = self._growing()
        is_split = np.unpackbits(level.is_split, count=len(grower.start), bitorder="little").astype(bool)
        grower.split(is_split, np.unpackbits(level.flags, count=level.n_flags, bitorder="little"))

    def find(
        self, level: LevelPartition | None, counts: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
        """Split a level, if any; then score and feature of the best split of this block at every open node."""
        if level is not None:
            self._split(level)
        offers = self._growing().find(counts)
        return offers.score, offers.feature

    def apply(self, won: NDArray[np.bool_]) -> Applied:
        """Carry out the splits that this block has won."""
        grower = self._growing()
        flags = grower.apply(won)
        made = grower.last_won()
        return Applied(pack(flags), made.threshold, made.missing_left, made.set_length, made.sets)
