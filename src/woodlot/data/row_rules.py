"""Subsets of rows as rules: an interval of a keyed hash of the row's id.

Every id has a point on a circle of 2**64 points: a hash under a key and a seed. A rule is a seed and an interval of the
circle. It does not depend on the other rows, so a row stays on its side when rows are added or taken away, and it is as
short for a million rows as for ten. Parties that know the key and the rule find the same rows without a list of them.

::

    split(test_size=0.25)   0 [---- test ----)[------------------- train -------------------) 2**64
    fold 1 of 4             0 ----------------)[---- test ----)[---- train, past the end and ...
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

CIRCLE = 2**64
"""How many points there are."""
LOCAL_KEY = b"woodlot: rows of one process"
"""The key where all rows are in one process, and there is no one to hide the points from."""
_POINT_BYTES = 8
_BY_CLASS = b" by class"


@dataclass(frozen=True)
class RowRule:
    """The rows whose points lie in an interval.

    Attributes
    ----------
    seed : int
        Decides the points.
    start, stop : int
        The first point, and the first one beyond; where the stop is not after the start, the interval goes past the end
        of the circle and on from 0.
    by : str
        The column of labels whose classes are divided one by one, see `stratified`; empty: rows are divided together.
    """

    seed: int
    start: int
    stop: int
    by: str = ""

    @property
    def width(self) -> int:
        """How many points there are in the interval."""
        return self.stop - self.start if self.start < self.stop else CIRCLE - self.start + self.stop

    def part(self, begin: float, end: float) -> RowRule:
        """A part of the interval, from one share of it to another."""
        return self._between(*(self.start + _share(self.width, share) for share in (begin, end)))

    def rest(self, part: RowRule) -> RowRule:
        """The interval without a part of it at its beginning, or the whole circle without any part of it."""
        return self._between(part.stop, part.start if self.width == CIRCLE else self.stop)

    def other(self) -> RowRule:
        """The rest of the circle."""
        return self._between(self.stop, self.start)

    def _between(self, first: int, last: int) -> RowRule:
        return replace(self, start=first % CIRCLE, stop=last % CIRCLE or CIRCLE)

    def meets(self, another: RowRule) -> bool:
        """Whether a point can lie in both intervals, which must be of one seed."""
        if CIRCLE in (self.width, another.width):
            return True
        return (another.start - self.start) % CIRCLE < self.width or (
            self.start - another.start
        ) % CIRCLE < another.width

    def chosen(self, points: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Which points lie in the interval."""
        after = points >= np.uint64(self.start)
        before = np.ones(len(points), np.bool_) if self.stop == CIRCLE else points < np.uint64(self.stop)
        return after & before if self.start < self.stop else after | before


def whole_circle(seed: int, by: str = "") -> RowRule:
    """All rows, to be divided."""
    return RowRule(seed, 0, CIRCLE, by)


def row_points(ids: Sequence[bytes], seed: int, key: bytes = LOCAL_KEY) -> NDArray[np.uint64]:
    """The point of each row.

    Parameters
    ----------
    ids : sequence of bytes
        Ids in their canonical form (`woodlot.data.ids`).
    seed : int
        Decides the points.
    key : bytes
        Who does not have it cannot tell the point of an id.
    """
    seeded = hashlib.blake2b(str(seed).encode(), key=key, digest_size=32, person=b"woodlot rows").digest()
    fresh = hashlib.blake2b(key=seeded, digest_size=_POINT_BYTES)

    def point(value: bytes) -> bytes:
        hashed = fresh.copy()
        hashed.update(value)
        return hashed.digest()

    return np.frombuffer(b"".join(map(point, ids)), ">u8").astype(np.uint64)


def class_points(ids: Sequence[bytes], seed: int, labels: NDArray[Any], key: bytes = LOCAL_KEY) -> NDArray[np.uint64]:
    """As `row_points`, with each class spread evenly over the circle; independent of the points of the same seed."""
    return stratified(row_points(ids, seed, key + _BY_CLASS), labels)


def stratified(points: NDArray[np.uint64], labels: NDArray[Any]) -> NDArray[np.uint64]:
    """Points that divide each class as they divide all rows: each class is spread evenly over the circle.

    A row keeps its place among those of its class, by the points that are given, and its new point is there: of n rows
    of a class the k-th lies in the k-th of n equal parts of the circle. A part of the circle then has its share of each
    class, but for less than one row at either end. Points depend on the other rows of the class: a row near the
    edge of a part can change sides when rows are added.
    """
    _, numbers, counts = np.unique(labels.astype(str), return_inverse=True, return_counts=True)
    order = np.lexsort((points, numbers))
    place = np.empty(len(points), np.uint64)
    place[order] = np.arange(len(points)) - np.repeat(np.cumsum(counts) - counts, counts)
    width = np.array([CIRCLE // int(n) - 1 for n in counts], np.uint64)[numbers]
    return np.asarray(place * width + points // counts.astype(np.uint64)[numbers], np.uint64)


def _share(width: int, share: float) -> int:
    # Exact at both ends; a float has 53 bits, which is finer than any number of rows.
    return width if share >= 1 else int(share * 2**53) * width // 2**53
