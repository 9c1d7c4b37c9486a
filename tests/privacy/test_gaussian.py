"""Shares of Gaussian noise: drawn as they should be, and worth what is said, by other ways of counting."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from woodlot.privacy._libraries import pld
from woodlot.privacy.gaussian import (
    MARGIN,
    SHARE,
    SharedNoise,
    draw_gaussian,
    draw_share,
    gaussian_delta,
    gaussian_epsilon,
    gaussian_table,
    mu_for,
    resolve,
)

KEY = bytes(range(32))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-6, 1e-3])
def test_the_mu_of_an_epsilon_is_that_of_a_numerical_accountant(epsilon: float, delta: float) -> None:
    """Privacy loss distributions of dp-accounting, of 100 mechanisms one after the other."""
    mu = mu_for(epsilon, delta)
    assert gaussian_delta(mu, epsilon) <= delta
    assert gaussian_epsilon(mu, delta) == pytest.approx(epsilon, rel=1e-9)
    one = pld().from_gaussian_mechanism(
        10 / (mu / (1 + MARGIN)), value_discretization_interval=1e-4, use_connect_dots=True
    )
    counted = float(one.self_compose(100).get_epsilon_for_delta(delta))
    assert 0.99 * epsilon < counted <= epsilon * (1 + 1e-3)


def test_a_delta_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="delta must be above 0"):
        mu_for(1.0, 0.0)


@pytest.mark.parametrize("n_shares", [1, 2, 3])
def test_whole_numbers_lose_no_more_than_the_margin(n_shares: int) -> None:
    """The exact delta of sums of discrete shares, far coarser than those that are drawn, for shifts along an axis."""
    share, shift, epsilon = 64**2, 40, 1.0
    k = np.arange(-12 * 64, 12 * 64 + 1)
    weights = np.exp(-(k**2) / (2 * share))
    one = weights / weights.sum()
    whole = one
    for _ in range(n_shares - 1):
        whole = np.convolve(whole, one)
    padded = np.concatenate([np.zeros(shift), whole]), np.concatenate([whole, np.zeros(shift)])
    delta = float(np.maximum(padded[0] - math.exp(epsilon) * padded[1], 0).sum())
    mu = shift / math.sqrt(n_shares * share)
    assert delta <= gaussian_delta(mu * (1 + MARGIN), epsilon)
    assert delta == pytest.approx(gaussian_delta(mu, epsilon), rel=0.01)


@given(st.integers(1, 400))
def test_the_table_has_the_probabilities_of_a_discrete_gaussian(variance: int) -> None:
    _, exact = gaussian_table(variance)
    ends = np.array([float(Fraction(end, 2**256)) for end in exact])
    k = np.arange(1, 20 * math.isqrt(variance) + 40)
    weights = np.exp(-(k**2) / (2 * variance))
    whole = 1 + 2 * weights.sum()
    expected = np.cumsum(np.concatenate([[1.0], 2 * weights])) / whole
    shown = min(len(ends), len(expected))
    np.testing.assert_allclose(ends[:shown], expected[:shown], rtol=1e-12)
    assert list(exact) == sorted(exact)


def test_draws_follow_the_table() -> None:
    """The key is fixed, so the draws are: this cannot fail by chance."""
    drawn = draw_gaussian(25, KEY, 200_000)
    k = np.arange(-15, 16)
    weights = np.exp(-(k**2) / 50)
    seen = np.array([(drawn == value).sum() for value in k])
    expected = weights / weights.sum() * seen.sum()
    assert stats.chisquare(seen, expected).pvalue > 0.01
    assert seen.sum() > 0.99 * len(drawn)


def test_a_share_is_as_wide_as_it_says_and_always_the_same() -> None:
    drawn = draw_share(KEY, 100_000)
    assert drawn.std() == pytest.approx(math.sqrt(SHARE), rel=0.01)
    np.testing.assert_array_equal(drawn, draw_share(KEY, 100_000))
    other = draw_share(bytes(32), 100_000)
    assert abs(np.corrcoef(drawn, other)[0, 1]) < 0.01
    assert stats.kstest(drawn / math.sqrt(SHARE), "norm").pvalue > 0.01


def test_a_word_that_equals_a_bound_is_decided_by_the_bits_behind_it() -> None:
    bounds, exact = gaussian_table(25)
    for k in (0, 3, len(exact) - 1):
        assert int(bounds[k]) == exact[k] >> 192
        assert resolve(exact, exact[k] - 1) == k
        assert resolve(exact, exact[k]) == k + 1


@given(st.integers(2, 50), st.data())
def test_who_knows_the_shares_that_may_be_told_learns_no_more_than_the_mu(n_clients: int, data: st.DataObject) -> None:
    colluding = data.draw(st.integers(0, n_clients - 1))
    noise = SharedNoise(n_clients, colluding)
    length = noise.longest(0.2)
    assert noise.mu_against(colluding, length) == pytest.approx(0.2 / (1 + MARGIN))
    assert [noise.mu_against(known, length) for known in range(n_clients)] == sorted(
        noise.mu_against(known, length) for known in range(n_clients)
    )
    assert noise.mu_against(n_clients, length) == math.inf


def test_some_client_must_not_collude() -> None:
    with pytest.raises(ValueError, match="colluding=3 of 3 clients leaves none"):
        SharedNoise(3, 3)
