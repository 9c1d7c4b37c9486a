"""Integer Laplace noise: its distribution, its epsilon, and what is handed back."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from woodlot.privacy.accounting import plain_epsilon
from woodlot.privacy.noise import CountNoise


def test_released_is_counts_and_noise_and_nothing_repeats() -> None:
    counts = np.arange(200, dtype=np.int32).reshape(20, 10)
    noise = CountNoise(0.5)
    one, other = noise.release(counts), noise.release(counts)
    for drawn in (one, other):
        assert drawn.released.dtype == np.int64
        assert (drawn.released - drawn.noise == counts).all()
    assert (one.noise != other.noise).any()


def test_noise_is_geometric_on_both_sides() -> None:
    noise = CountNoise(1.0).release(np.zeros(20_000, np.int64)).noise
    values = np.arange(-6, 7)
    chances = np.exp(-np.abs(values)) * math.tanh(0.5)
    seen = np.array([(noise == value).sum() for value in values])
    rest = 1 - chances.sum()
    expected = np.append(chances, rest) * 20_000
    assert stats.chisquare(np.append(seen, 20_000 - seen.sum()), expected).pvalue > 1e-6


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 9.0])
def test_deviation_is_that_of_the_distribution(epsilon: float) -> None:
    values = np.arange(-2_000, 2_001)
    chances = np.exp(-np.abs(values) * epsilon)
    chances /= chances.sum()
    assert CountNoise(epsilon).deviation == pytest.approx(math.sqrt((chances * values**2).sum()), rel=1e-6)


@pytest.mark.parametrize(
    ("neighbours", "max_weight", "scale"), [("add-remove", 1, 10), ("replace", 1, 20), ("add-remove", 3, 30)]
)
def test_scale_follows_the_sensitivity(neighbours: str, max_weight: int, scale: float) -> None:
    noise = CountNoise(0.1, neighbours=neighbours, max_weight=max_weight)  # type: ignore[arg-type]
    assert noise.scale == pytest.approx(scale)
    assert noise.epsilon == pytest.approx(0.1)
    assert plain_epsilon([noise.spend(7)]) == pytest.approx(0.7)
    assert noise.spend(7).count == (14 if neighbours == "replace" else 7)


@given(st.floats(1e-6, 100))
@settings(max_examples=50, deadline=None)
def test_epsilon_is_not_exceeded(epsilon: float) -> None:
    assert epsilon * (1 - 1e-9) < CountNoise(epsilon).epsilon <= epsilon


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, 1e-15, "1"])
def test_bad_epsilons_are_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        CountNoise(epsilon)


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="neighbours"):
        CountNoise(1.0, neighbours="rows")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_weight"):
        CountNoise(1.0, max_weight=0)
    with pytest.raises(ValueError, match="whole numbers"):
        CountNoise(1.0).release(np.zeros(3))
    with pytest.raises(ValueError, match="exceed"):
        CountNoise(1.0).release(np.array([2**60]))
    assert CountNoise(1.0).release(np.zeros((0, 4), int)).released.shape == (0, 4)
