"""The label holder's secret code for its labels, and back.

Classes are permuted; targets are shifted, scaled and perhaps turned round, and rounded to fixed point, so that sums
over rows are exact integers. What the code still tells is written in docs/protocol/vertical.md.

No permutation of classes changes a forest, so each job has its own. A map of targets decides how they are rounded, and
where two splits are equally good that may decide between them: so its key is the targets themselves, which nobody else
has, and the same targets and seed give the same forest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.privacy.derivation import open_stream
from woodlot.protocols.core.bits import smallest_unsigned

TARGET_BITS = 52
"""|sum of weight * target| stays below 2**53: exact in float64."""


_MOST_SCALE = 2.0**450


@dataclass(frozen=True, eq=False, repr=False)
class ClassCode:
    """Permutation of class numbers: ``coded[k]`` stands for class k."""

    coded: NDArray[np.int64]

    @classmethod
    def draw(cls, n_classes: int, key: bytes) -> ClassCode:
        numbers = np.frombuffer(open_stream(key)(8 * n_classes), "<u8")
        return cls(np.argsort(numbers, kind="stable"))

    def encode(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        return smallest_unsigned(self.coded[numbers])

    def decode(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.argsort(self.coded)[codes]


@dataclass(frozen=True, repr=False)
class TargetCode:
    """Affine map of targets to fixed point: ``(y - centre) * scale``, scale perhaps negative."""

    centre: float
    scale: float

    @classmethod
    def draw(cls, y: NDArray[np.float64], total_weight: float, key: bytes) -> TargetCode:
        chances = np.frombuffer(hashlib.blake2b(key, digest_size=24, person=b"woodlot-target").digest(), "<u8")
        shift, stretch = (float(chance) / 2.0**64 for chance in chances[:2])  # both from 0 to 1
        shift, stretch, turned = shift - 0.5, 0.5 + stretch / 2, bool(chances[2] & 1)
        low, high = float(y.min()), float(y.max())
        if low == high:
            return cls(low, 1.0)
        # halves first: the span of two huge targets of opposite sign must not overflow
        centre = (low / 2 + high / 2) + shift * (high / 2 - low / 2)
        reach = max(high - centre, centre - low)
        bits = np.floor(TARGET_BITS - np.log2(max(total_weight, 2.0)) - np.log2(reach))
        scale = float(stretch * 2.0 ** np.clip(bits, -1000, 1000))
        return cls(float(centre), -scale if turned else scale)

    @property
    def unit(self) -> float:
        """What the square of a target's unit is in this code; squares of other scales would not be floats."""
        scale = min(max(abs(self.scale), 1 / _MOST_SCALE), _MOST_SCALE)
        return scale**2

    def encode(self, y: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.rint((y - self.centre) * self.scale).astype(np.int64)


def target_key(y: NDArray[np.float64], seed: int, secret: bytes) -> bytes:
    """Key of a map of targets: the holder's secret and the targets themselves, for one seed."""
    own = hashlib.blake2b(np.ascontiguousarray(y).tobytes(), key=secret[:64], person=b"woodlot-target")
    own.update(str(seed).encode())
    return own.digest()
