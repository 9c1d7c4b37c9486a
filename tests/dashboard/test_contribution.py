"""Shapley values over parties."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodlot.dashboard.actions import shapley_values

NAMES = ("bank", "shop", "telco", "power")


@st.composite
def games(draw: st.DrawFn) -> tuple[tuple[str, ...], dict[frozenset[str], float]]:
    parties = NAMES[: draw(st.integers(1, 4))]
    sets = [frozenset(c) for size in range(len(parties) + 1) for c in itertools.combinations(parties, size)]
    return parties, {s: draw(st.floats(0, 1)) for s in sets}


@given(games())
def test_shares_add_up_and_equal_the_mean_over_all_orders(
    game: tuple[tuple[str, ...], dict[frozenset[str], float]],
) -> None:
    parties, worth = game
    shares = shapley_values(parties, worth.__getitem__)
    assert sum(shares.values()) == pytest.approx(worth[frozenset(parties)] - worth[frozenset()])
    orders = list(itertools.permutations(parties))
    for party in parties:
        gains = [
            worth[frozenset(order[: order.index(party) + 1])] - worth[frozenset(order[: order.index(party)])]
            for order in orders
        ]
        assert shares[party] == pytest.approx(float(np.mean(gains)))
