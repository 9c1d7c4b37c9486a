"""The bound on what removing rows does to scores: random nodes try to break it."""

from __future__ import annotations

import numpy as np
import pytest

from woodlot.trees.kernels.bounds import entropy_rise, error_rise, gini_rise, group_rise

FEW, MANY = 3_000, 100_000


def _phi(x: np.ndarray) -> np.ndarray:
    return x * np.log2(np.maximum(x, 1))


def _gini(counts: np.ndarray) -> float:
    return float((counts.astype(float) ** 2).sum() / counts.sum())


def _entropy(counts: np.ndarray) -> float:
    return float(_phi(counts.astype(float)).sum() - _phi(np.array(counts.sum(), float)))


def _sides(rng: np.random.Generator) -> np.ndarray:
    """Class weights of two sides; often small, lopsided or pure, where the bound is tight."""
    n_classes = int(rng.integers(2, 6))
    sides = rng.integers(0, rng.choice([2, 5, 50, 5000], size=(2, 1)) + 1, size=(2, n_classes))
    return np.where(rng.random((2, n_classes)) < rng.choice([0.0, 0.5]), 0, sides)


def _try_classes(n: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    closest, tried = 0.0, 0
    while tried < n:
        sides = _sides(rng)
        side, k = int(rng.integers(2)), int(rng.integers(sides.shape[1]))
        if sides[side, k] == 0:
            continue
        w = int(rng.integers(1, min(4, sides[side, k]) + 1))
        after = sides.copy()
        after[side, k] -= w
        if (after.sum(axis=1) == 0).any() or (sides.sum(axis=1) == 0).any():
            continue
        tried += 1
        rise = sum(map(_gini, after)) - sum(map(_gini, sides))
        assert rise <= gini_rise(w) + 1e-9
        assert -rise <= w + 1e-9  # so the difference of two scores moves by at most twice the weight
        closest = max(closest, rise / w)
        rise = sum(map(_entropy, after)) - sum(map(_entropy, sides))
        most = entropy_rise(int(sides.sum()), w)
        assert -1e-6 <= rise <= most + 1e-6
    return closest


def _try_groups(n: int, seed: int) -> float:
    """Groups of neighbouring cuts: the bound is made of what is on the left of the first and of the last one only."""
    rng = np.random.default_rng(seed)
    closest, tried = -np.inf, 0
    while tried < n:
        n_classes, size = int(rng.integers(2, 5)), int(rng.choice([4, 8, 30, 300]))
        labels = rng.choice(n_classes, size, p=rng.dirichlet(np.full(n_classes, 0.7)))
        weight = rng.integers(1, 4, size)
        counts = np.zeros((size, n_classes), int)
        counts[np.arange(size), labels] = weight
        left = np.cumsum(counts, axis=0)
        first, last = np.sort(rng.integers(0, size - 1, 2))
        row = int(rng.integers(size))
        lost, w = int(labels[row]), int(weight[row])
        after = left - (np.arange(size) >= row)[:, None] * counts[row]
        totals = left[-1] - counts[row]
        cuts = np.arange(first, last + 1)
        cuts = cuts[(after[cuts].sum(axis=1) > 0) & (totals.sum() > after[cuts].sum(axis=1))]
        if len(cuts) == 0:
            continue
        tried += 1
        sides: list[tuple[np.ndarray, np.ndarray]] = []
        if row <= last:
            sides.append((after[first], after[last]))
        if row > first:
            sides.append((totals - after[last], totals - after[first]))
        for entropy, score in ((False, _gini), (True, _entropy)):
            most = max(group_rise(lost, low, high, w, entropy) for low, high in sides)
            whole = left[-1]
            for cut in cuts:
                now = score(after[cut]) + score(totals - after[cut])
                rise = now - score(left[cut]) - score(whole - left[cut])
                assert rise <= most + 1e-6
                closest = max(closest, float(rise - most)) if not entropy else closest
    return closest


def _try_targets(n: int, seed: int) -> float:
    rng = np.random.default_rng(seed)
    closest = 0.0
    for _ in range(n):
        sizes = rng.integers(1, rng.choice([2, 4, 30]) + 1, 2)
        y = np.rint(rng.normal(size=int(sizes.sum())) * 10 ** rng.uniform(0, 4)) + rng.integers(-1000, 1000)
        weight = rng.integers(1, 5, len(y))
        left = np.arange(len(y)) < sizes[0]
        row = int(rng.integers(len(y)))
        if sizes[0 if left[row] else 1] == 1:
            continue
        kept = np.arange(len(y)) != row

        def gain(rows: np.ndarray, y: np.ndarray = y, weight: np.ndarray = weight, left: np.ndarray = left) -> float:
            parts = [rows & left, rows & ~left]
            score = sum(float((weight[p] * y[p]).sum()) ** 2 / weight[p].sum() for p in parts)
            return score - float((weight[rows] * y[rows]).sum()) ** 2 / weight[rows].sum()

        far = float(np.abs(y - y[row]).max())
        w, W = int(weight[row]), int(weight.sum())
        centred = float((weight * (y - y[row])).sum())
        most = error_rise(w, far) - (centred**2 / (W - w) - centred**2 / W)
        rise = gain(kept) - gain(np.ones(len(y), bool))
        assert rise <= most + 1e-6 * max(1.0, far**2 * W)
        closest = max(closest, (rise + 1e-12) / (error_rise(w, far) + 1e-9))
    return closest


def test_no_node_breaks_the_bound() -> None:
    assert _try_classes(FEW, 0) > 0.6  # some come close: the bound is not idle
    assert _try_targets(FEW, 0) > 0.1
    assert _try_groups(FEW // 20, 0) > -0.01


@pytest.mark.slow
def test_a_hundred_thousand_nodes_do_not_break_it() -> None:
    _try_classes(MANY, 1)
    _try_targets(MANY, 1)


@pytest.mark.slow
def test_ten_thousand_groups_of_cuts_do_not_break_theirs() -> None:
    _try_groups(10_000, 1)
