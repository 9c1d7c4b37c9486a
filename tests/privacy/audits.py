"""What an attack proves of an epsilon."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta


def audited_epsilon(with_label: NDArray[np.int64], without: NDArray[np.int64], alpha: float = 0.01) -> float:
    """What epsilon must at least be, from a number that is larger where the label is there."""
    half = len(with_label) // 2

    def bound(right: int, wrong: int, n: int) -> float:
        low = beta.ppf(alpha / 2, right, n - right + 1) if right else 0.0
        high = beta.ppf(1 - alpha / 2, wrong + 1, n - wrong) if wrong < n else 1.0
        return math.log(low / high) if low else 0.0

    def judged(limit: int, part: slice) -> float:
        right, wrong = int((with_label[part] >= limit).sum()), int((without[part] >= limit).sum())
        return bound(right, wrong, len(with_label[part]))

    best = max(range(int(without.min()), int(with_label.max()) + 1), key=lambda limit: judged(limit, slice(half)))
    return judged(best, slice(half, None))
