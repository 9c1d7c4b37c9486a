"""Integer Laplace noise: its distribution, its epsilon, and what is handed back."""

from __future__ import annotations

import itertools
import math
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from woodlot.privacy import laplace
from woodlot.privacy._libraries import opendp
from woodlot.privacy.accounting import plain_epsilon
from woodlot.privacy.laplace import bit_chances, draw_laplace
from woodlot.privacy.noise import CountNoise


def test_released_is_counts_and_noise_and_nothing_repeats() -> None:
    counts = np.arange(200, dtype=np.int32).reshape(20, 10)
    noise = CountNoise(0.5)
    one, other = noise.release(counts), noise.release(counts)
    for drawn in (one, other):
        assert drawn.released.dtype == np.int64
        assert (drawn.released - drawn.noise == counts).all()
    assert (one.noise != other.noise).any()


@pytest.mark.parametrize("scale", [0.3, 1.0, 40.0])
def test_noise_is_geometric_on_both_sides(scale: float) -> None:
    n, most = 200_000, math.ceil(6 * scale)
    noise = draw_laplace(scale, bytes(range(32)), n)
    values = np.arange(-most, most + 1)
    chances = np.exp(-np.abs(values) / scale) * math.tanh(0.5 / scale)
    seen = np.bincount(np.clip(noise, -most - 1, most + 1) + most + 1, minlength=2 * most + 3)
    expected = np.concatenate([[(1 - chances.sum()) / 2], chances, [(1 - chances.sum()) / 2]]) * n
    assert stats.chisquare(seen, expected).pvalue > 1e-9


@given(st.floats(0.01, 2.0**40), st.integers(0, 2**48))
def test_chances_of_bits_make_those_of_geometric_numbers(scale: float, number: int) -> None:
    """The product over the bits of k, in exact numbers, is a^k times that of 0: to 200 bits, wherever it is not 0."""
    chances = bit_chances(scale)
    number %= 1 << len(chances)
    whole = Fraction(1)
    for place, chance in enumerate(chances):
        if number >> place & 1:
            whole *= Fraction(chance, 2**256 - chance)
    context = Context(prec=120)
    exponent = context.divide(Decimal(number), Decimal(scale))
    if exponent > 30:
        assert float(whole) < 1e-12
    else:
        ratio = context.multiply(Decimal(whole.numerator) / Decimal(whole.denominator), context.exp(exponent))
        assert abs(ratio - 1) < Decimal(2) ** -80


@pytest.mark.parametrize("scale", [0.4, 2.0, 3.7])
def test_no_number_is_more_likely_than_epsilon_allows(scale: float) -> None:
    """The exact distribution of what is drawn, from the chances of its bits, against that with a count one higher."""
    one = np.ones(1, object)
    for place, chance in enumerate(bit_chances(scale)):
        bit = np.zeros((1 << place) + 1, object)
        bit[0], bit[-1] = 2**256 - chance, chance
        one = np.convolve(one, bit)
    middle = math.ceil(30 * scale)
    some = one[: 3 * middle]  # beyond it are less than exp(-90) of all
    low = np.array([sum(some[k + j] * some[j] for j in range(2 * middle)) for k in range(middle)], object)
    ratios = [Fraction(int(a), int(b)) for a, b in itertools.pairwise(low)]
    assert all(float(ratio) <= math.exp(1 / scale) * (1 + 1e-12) for ratio in ratios)
    assert float(ratios[0]) == pytest.approx(math.exp(1 / scale))


@pytest.mark.parametrize("scale", [0.5, 10.0, 1000.0])
def test_opendp_says_the_same_of_epsilon(scale: float) -> None:
    domains, metrics = opendp("domains"), opendp("metrics")
    space = domains.vector_domain(domains.atom_domain(T="i64")), metrics.l1_distance(T="i64")
    said = float(opendp("measurements").make_laplace(*space, scale=scale).map(1))
    assert CountNoise(1 / scale).epsilon == pytest.approx(said, rel=1e-12)


def test_words_that_equal_a_chance_are_decided_by_those_that_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = bit_chances(1.0)[0]
    first, rest = chance >> 192, chance & (2**192 - 1)
    for tail, bit in ((rest - 1, 1), (rest, 0)):
        parts = iter([first.to_bytes(8, "little"), tail.to_bytes(24, "little")])
        monkeypatch.setattr(laplace, "open_stream", lambda _, p=parts: lambda n: next(p, b"\xff" * n))
        assert draw_laplace(1.0, b"", 1).tolist() == [bit]


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
