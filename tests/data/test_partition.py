"""Dealing rows to clients: every row once, by seed, and skewed as told."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from woodlot.data.partition import deal_alpha_chunks, deal_evenly, most_classes
from woodlot.exceptions import DataError

Deal = Callable[[NDArray[np.int64], int, int], NDArray[np.int64]]
WAYS: dict[str, Deal] = {
    "alpha": lambda labels, clients, seed: deal_alpha_chunks(labels, clients, 4, seed),
    "even": lambda labels, clients, seed: deal_evenly(len(labels), clients, seed),
}


@pytest.mark.parametrize("way", WAYS)
@given(st.integers(40, 400), st.integers(1, 8), st.integers(2, 10), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_every_row_has_one_client_by_seed_alone(way: str, n: int, clients: int, classes: int, seed: int) -> None:
    labels = np.random.default_rng(n).integers(0, classes, n)
    dealt = WAYS[way](labels, clients, seed)
    assert dealt.shape == (n,)
    assert set(dealt.tolist()) == set(range(clients))  # all are clients, and each has a row
    assert (WAYS[way](labels, clients, seed) == dealt).all()
    if clients > 1:
        assert any((WAYS[way](labels, clients, seed + other) != dealt).any() for other in (1, 2, 3))


@pytest.mark.parametrize(("classes", "alpha", "most"), [(10, 2, 2), (26, 1, 3)], ids=["pendigits", "letter"])
def test_alpha_chunks_of_the_slides(classes: int, alpha: int, most: int) -> None:
    labels = np.random.default_rng(0).integers(0, classes, 5000).astype(str)
    dealt = deal_alpha_chunks(labels, 10, alpha, seed=7)
    held = [len(set(labels[dealt == client])) for client in range(10)]
    assert most_classes(classes, 10, alpha) == most
    assert max(held) == most
    assert min(held) == classes * alpha // 10
    assert sum(held) == classes * alpha  # no client has two chunks of a class
    for name in set(labels):
        assert len(set(dealt[labels == name])) == alpha


@given(st.integers(2, 30), st.integers(1, 6), st.integers(1, 12), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_alpha_chunks_never_give_a_client_too_many_classes(classes: int, alpha: int, clients: int, seed: int) -> None:
    labels = np.repeat(np.arange(classes), 8)
    if classes * alpha < clients:
        with pytest.raises(DataError, match="larger alpha"):
            deal_alpha_chunks(labels, clients, alpha, seed)
        return
    dealt = deal_alpha_chunks(labels, clients, alpha, seed)
    held = [len(set(labels[dealt == client])) for client in range(clients)]
    assert max(held) <= most_classes(classes, clients, alpha)
    if alpha <= clients:
        assert sum(held) == classes * alpha
    _, sizes = np.unique(labels * 100 + dealt, return_counts=True)
    assert sizes.min() >= 8 // alpha


def test_even_dealing_is_even() -> None:
    assert sorted(np.bincount(deal_evenly(103, 10, 0))) == [10] * 7 + [11] * 3


def test_bad_input_is_refused() -> None:
    labels = np.arange(20) % 2
    with pytest.raises(DataError, match="20 rows are too few for 30 clients"):
        deal_evenly(20, 30, 0)
    with pytest.raises(ValueError, match="alpha"):
        deal_alpha_chunks(labels, 2, 0, 0)
    with pytest.raises(ValueError, match="n_clients"):
        deal_evenly(20, 0, 0)
    with pytest.raises(ValueError, match="one column"):
        deal_alpha_chunks(labels.reshape(10, 2), 2, 1, 0)
