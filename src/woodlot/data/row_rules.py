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
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

CIRCLE = 2**64
"""How many points there are."""
LOCAL_KEY = b"woodlot: rows of one process"
"""The key where all rows are in one process, and there is no one to hide the points from."""
_POINT_BYTES = 8


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
    """

    seed: int
    start: int
    stop: int

    @property
    def width(self) -> int:
        """How many points there are in the interval."""
        return self.stop - self.start if self.start < self.stop else CIRCLE - self.start + self.stop

    def part(self, begin: float, end: float) -> RowRule:
        """A part of the interval, from one share of it to another."""
        return _between(self.seed, *(self.start + _share(self.width, share) for share in (begin, end)))

    def rest(self, part: RowRule) -> RowRule:
        """The interval without a part of it at its beginning, or the whole circle without any part of it."""
        return _between(self.seed, part.stop, part.start if self.width == CIRCLE else self.stop)

    def other(self) -> RowRule:
        """The rest of the circle."""
        return _between(self.seed, self.stop, self.start)

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


def whole_circle(seed: int) -> RowRule:
    """All rows, to be divided."""
    return RowRule(seed, 0, CIRCLE)


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


def _between(seed: int, first: int, last: int) -> RowRule:
    return RowRule(seed, first % CIRCLE, last % CIRCLE or CIRCLE)


def _share(width: int, share: float) -> int:
    # Exact at both ends; a float has 53 bits, which is finer than any number of rows.
    return width if share >= 1 else int(share * 2**53) * width // 2**53
