"""The label holder's secret code for its labels, and back.

Classes are permuted; targets are shifted, scaled and perhaps turned round, and rounded to fixed point, so that sums
over rows are exact integers. None of it changes which split is best. What the code still tells is written in
docs/protocol/vertical.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.protocols.vertical.bits import smallest_unsigned

TARGET_BITS = 52
"""|sum of weight * target| stays below 2**53: exact in float64."""


@dataclass(frozen=True, eq=False)
class ClassCode:
    """Permutation of class numbers: ``coded[k]`` stands for class k."""

    coded: NDArray[np.int64]

    @classmethod
    def draw(cls, n_classes: int, seed: int) -> ClassCode:
        return cls(np.random.default_rng(seed).permutation(n_classes))

    def encode(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        return smallest_unsigned(self.coded[numbers])

    def decode(self, codes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.argsort(self.coded)[codes]


@dataclass(frozen=True)
class TargetCode:
    """Affine map of targets to fixed point: ``(y - centre) * scale``, scale perhaps negative."""

    centre: float
    scale: float

    @classmethod
    def draw(cls, y: NDArray[np.float64], total_weight: float, seed: int) -> TargetCode:
        rng = np.random.default_rng(seed)
        shift, stretch, turned = rng.uniform(-0.5, 0.5), rng.uniform(0.5, 1.0), rng.integers(2)
        low, high = float(y.min()), float(y.max())
        if low == high:
            return cls(low, 1.0)
        # halves first: the span of two huge targets of opposite sign must not overflow
        centre = (low / 2 + high / 2) + shift * (high / 2 - low / 2)
        reach = max(high - centre, centre - low)
        bits = np.floor(TARGET_BITS - np.log2(max(total_weight, 2.0)) - np.log2(reach))
        scale = float(stretch * 2.0 ** np.clip(bits, -1000, 1000))
        return cls(float(centre), -scale if turned else scale)

    def encode(self, y: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.rint((y - self.centre) * self.scale).astype(np.int64)
