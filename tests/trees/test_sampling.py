"""Seeds, weights, bootstrap, and the order of candidates: what may be random, and what must never depend on what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from woodlot.trees.kernels.hashing import candidate_limits, child_keys, choose_offers, nth_place, place
from woodlot.trees.kernels.search import list_candidates, next_candidates
from woodlot.trees.sampling import (
    WEIGHT_BITS,
    Bootstrap,
    derive_seed,
    draw_rows,
    feature_key,
    integer_weights,
    tree_keys,
)

LAST = np.uint64(2**64 - 1)


# --- seeds and keys ---


def test_seeds_are_told_apart_by_purpose_and_number() -> None:
    seeds = {
        derive_seed(seed, purpose, *numbers)
        for seed in (0, 1, 2**31)
        for purpose in ("tree", "bootstrap", "labels", "order")
        for numbers in ((), (0,), (1,), (0, 1), (1, 0), (10,))
    }
    assert len(seeds) == 3 * 4 * 6
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_seeds_and_keys_never_change() -> None:
    """Saved models and revocation rely on them: another number here is another forest for every user."""
    assert derive_seed(7, "bootstrap", 3) == 4412397775940403633
    assert feature_key("income", "bank") == 4263078012114105494
    assert feature_key("income", "bank", b"secret") == 4335004315941678872
    assert tree_keys(1, range(2)).tolist() == [10753270690161923644, 5335809917520525420]


def test_keys_of_columns() -> None:
    keys = [feature_key(c, p, s) for c in "ab" for p in ("", "x", "y") for s in (b"", b"1", b"2")]
    assert len(set(keys)) == len(keys)
    assert feature_key("b", "a") != feature_key("a", "b")
    assert feature_key("age", "bank") == feature_key("bank.age")  # a federation's columns are those of the joined table


def test_a_tree_has_its_key_whatever_grows_beside_it() -> None:
    together = tree_keys(5, range(10))
    np.testing.assert_array_equal(tree_keys(5, range(3, 6)), together[3:6])
    assert len(set(together.tolist())) == 10


# --- weights ---


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30))
@settings(derandomize=True, deadline=None)
def test_whole_weights_stay(weights: list[int]) -> None:
    values, factor = integer_weights(np.array(weights, np.float64))
    assert factor == 1.0
    assert values.tolist() == weights


@given(
    st.lists(
        st.one_of(st.just(0.0), st.floats(1e-9, 1e9), st.integers(0, 5).map(float)), min_size=1, max_size=30
    ).filter(any)
)
@settings(derandomize=True, deadline=None)
def test_weights_become_integers(weights: list[float]) -> None:
    given_weights = np.array(weights)
    values, factor = integer_weights(given_weights)
    assert values.dtype == np.int64
    assert values.sum() < 2**WEIGHT_BITS
    assert ((values > 0) == (given_weights > 0)).all()
    assert np.log2(factor) == np.floor(np.log2(factor))
    np.testing.assert_allclose(values / factor, given_weights, atol=1.0 / factor)
    if factor != 1.0:  # as fine as 31 bits allow
        assert given_weights.sum() * factor * 4 > 2**WEIGHT_BITS - 2 * len(weights)


def test_weights_too_large_for_whole_numbers() -> None:
    values, factor = integer_weights(np.array([2.0**40, 2.0**39]))
    assert factor < 1
    assert values[0] == 2 * values[1]
    assert values.sum() < 2**WEIGHT_BITS


# --- bootstrap ---


def test_every_row_once_without_a_seed() -> None:
    assert Bootstrap(None, 5, None).counts(3, 5).tolist() == [1] * 5
    weights = np.array([0, 3, 1])
    assert Bootstrap(None, 3, weights).counts(0, 3).tolist() == [0, 3, 1]
    assert Bootstrap(None, 3, weights).tree_weight(3) == 4
    assert Bootstrap(None, 3, None).tree_weight(3) == 3
    assert Bootstrap(1, 2, weights).tree_weight(3) == 2


@pytest.mark.parametrize("n_draws", [1, 50, 1000])
def test_draws_are_uniform(n_draws: int) -> None:
    n_rows, n_trees = 50, 2000
    sampling = Bootstrap(99, n_draws, None)
    counts = np.array([sampling.counts(t, n_rows) for t in range(n_trees)])
    assert (counts.sum(axis=1) == n_draws).all()
    assert chisquare(counts.sum(axis=0)).pvalue > 1e-4
    # pairs of rows are drawn independently: the variance over trees is the binomial one
    share = 1 / n_rows
    assert counts.var() == pytest.approx(n_draws * share * (1 - share), rel=0.1)
    again = Bootstrap(99, n_draws, None).counts(7, n_rows)
    np.testing.assert_array_equal(again, counts[7])
    assert (Bootstrap(100, n_draws, None).counts(7, n_rows) != counts[7]).any() or n_draws == 1


def test_weighted_rows_are_drawn_in_proportion() -> None:
    weights = np.array([0, 1, 2, 3, 0, 10, 2**30])
    sampling = Bootstrap(1, 5000, weights[:6])
    counts = sum(sampling.counts(t, 6).astype(np.int64) for t in range(20))
    assert counts[0] == counts[4] == 0
    expected = weights[[1, 2, 3, 5]] / 16 * 100_000
    assert chisquare(counts[[1, 2, 3, 5]], expected).pvalue > 1e-4
    heavy = Bootstrap(1, 5000, weights).counts(0, 7)
    assert heavy[6] > 4990


def test_balanced_trees() -> None:
    rng = np.random.default_rng(0)
    labels = rng.choice(3, 500, p=[0.7, 0.25, 0.05]).astype(np.uint8)
    sampling = Bootstrap(3, 500, None, balance=True)
    for tree in range(5):
        counts, weights = sampling.counts(tree, 500), sampling.tree_weights(tree, labels, 3)
        assert ((weights > 0) == (counts > 0)).all()
        per_class = np.bincount(labels, weights=weights)
        np.testing.assert_allclose(per_class, per_class.mean(), rtol=1e-5)
        assert weights.sum() < 2**WEIGHT_BITS
        assert int(weights.sum()) == pytest.approx(sampling.tree_weight(500), rel=1e-5)
    np.testing.assert_array_equal(
        sampling.tree_weights(0, labels, 0), sampling.counts(0, 500)
    )  # a regression has no classes to balance


@pytest.mark.parametrize("n_jobs", [1, 2])
@pytest.mark.parametrize("heavy", [False, True])
def test_rows_of_a_tree_do_not_depend_on_its_neighbours(heavy: bool, n_jobs: int) -> None:
    n = 300
    labels = np.zeros(n, np.uint8)
    sampling = Bootstrap(5, 100_000 if heavy else n, None)
    rows, weights, start = draw_rows(sampling, range(2, 9), labels, 2, n_jobs)
    assert weights.dtype == (np.uint32 if heavy else np.uint8)
    for k, tree in enumerate(range(2, 9)):
        part = slice(start[k], start[k + 1])
        counts = sampling.counts(tree, n)
        np.testing.assert_array_equal(rows[part], np.flatnonzero(counts))
        np.testing.assert_array_equal(weights[part], counts[counts > 0])


# --- candidates ---


def naive_order(node_key: np.uint64, feature_keys: np.ndarray) -> list[int]:
    return sorted(range(len(feature_keys)), key=lambda f: int(place(node_key, feature_keys[f])))


def random_keys(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(0, 2**64, n, dtype=np.uint64)


def test_removing_a_feature_leaves_the_order_of_the_others() -> None:
    rng = np.random.default_rng(1)
    keys = np.array([feature_key(f"c{i}") for i in range(30)], np.uint64)
    for node_key in random_keys(rng, 20):
        order = naive_order(node_key, keys)
        gone = int(rng.integers(30))
        left = np.delete(np.arange(30), gone)
        assert left[naive_order(node_key, keys[left])].tolist() == [f for f in order if f != gone]


def test_every_order_is_equally_likely() -> None:
    keys = np.array([feature_key(str(i)) for i in range(4)], np.uint64)
    roots = tree_keys(0, range(1200))
    children = np.empty(2400, np.uint64)
    child_keys(roots, children)
    assert len(set(children.tolist()) | set(roots.tolist())) == 3600
    counts: dict[tuple[int, ...], int] = {}
    for key in np.concatenate([roots, children]):
        order = tuple(naive_order(key, keys))
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 24
    assert chisquare(list(counts.values())).pvalue > 1e-4


@given(seed=st.integers(0, 2**32), p=st.sampled_from([1, 2, 3, 17, 100, 700]), data=st.data())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_nth_place(seed: int, p: int, data: st.DataObject) -> None:
    places = random_keys(np.random.default_rng(seed), p)
    m = data.draw(st.integers(1, p))
    assert nth_place(places, m, np.empty(4096, np.int32), np.empty(p, np.uint64)) == np.sort(places)[m - 1]


@given(
    seed=st.integers(0, 2**32),
    p=st.sampled_from([1, 2, 9, 40]),
    n_parties=st.integers(1, 4),
    whole_tree=st.booleans(),
)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_candidates(seed: int, p: int, n_parties: int, whole_tree: bool) -> None:
    """The parties' own lists together are the first m of all features, whoever holds them."""
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, p + 1))
    keys, owners = random_keys(rng, p), rng.integers(0, n_parties, p)
    order_key = random_keys(rng, 5)
    select_key = np.repeat(random_keys(rng, 1), 5) if whole_tree else order_key
    sizes, by_node, in_order = rng.integers(2, 300, 5), 200, 100
    limits, counts = np.empty(5, np.uint64), np.zeros((n_parties, 5), np.uint32)
    wanted = rng.random(5) < 0.8
    candidate_limits(select_key, wanted * m, keys, owners, limits, counts)
    listed: list[set[int]] = [set() for _ in range(5)]
    for party in range(n_parties):
        own = np.flatnonzero(owners == party)
        pairs = [np.zeros(5 * p + 5, kind) for kind in (np.int64, np.int64, np.uint64)]
        spare = [np.zeros_like(a) for a in pairs]
        n_pairs = list_candidates(
            select_key, order_key, counts[party], sizes, keys[own], by_node, in_order, *pairs, *spare
        )
        assert n_pairs == counts[party].sum()
        node, feature, at = (a[:n_pairs] for a in pairs)
        for q in range(n_pairs):
            listed[node[q]].add(int(own[feature[q]]))
            assert at[q] == place(order_key[node[q]], keys[own[feature[q]]])
        # small nodes first, the smallest in their own order, which a search that stops early relies on
        small = sizes[node] <= by_node
        assert (np.diff(small.astype(int)) <= 0).all()
        for k in np.unique(node[small]):
            assert (np.diff(np.flatnonzero(node == k)) == 1).all()
            assert sizes[k] > in_order or (np.diff(at[node == k].astype(object)) > 0).all()
        assert (np.diff(feature[~small]) >= 0).all()
    assert all(limits[k] == 0 and not listed[k] for k in np.flatnonzero(~wanted))
    for k in np.flatnonzero(wanted):
        assert listed[k] == set(naive_order(select_key[k], keys)[:m])
        assert limits[k] == (LAST if m == p else place(select_key[k], keys[naive_order(select_key[k], keys)[m - 1]]))


def test_the_search_goes_on_in_order() -> None:
    rng = np.random.default_rng(2)
    keys, node_keys = random_keys(rng, 12), random_keys(rng, 6)
    tried = np.array([0, 3, 11, 5, 1, 7])
    failed = np.array([1, 2, 5])
    pairs = [np.zeros(6, kind) for kind in (np.int64, np.int64, np.uint64)]
    next_candidates(node_keys, failed, tried, keys, *pairs)
    for k, node in enumerate(failed):
        assert pairs[0][k] == node
        assert pairs[1][k] == naive_order(node_keys[node], keys)[tried[node]]
        assert pairs[2][k] == place(node_keys[node], keys[pairs[1][k]])


@given(seed=st.integers(0, 2**32), n_parties=st.integers(1, 5), whole_tree=st.booleans())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_the_winner(seed: int, n_parties: int, whole_tree: bool) -> None:
    """Candidates before others; the best score of candidates, the first of equals; of others simply the first."""
    rng = np.random.default_rng(seed)
    p, n = 3 * n_parties, 8
    keys, order_key = random_keys(rng, p), random_keys(rng, n)
    select_key = np.repeat(random_keys(rng, 1), n) if whole_tree else order_key
    limits = np.array([np.sort([place(k, f) for f in keys])[rng.integers(p)] for k in select_key], np.uint64)
    features = rng.integers(0, 3, (n_parties, n)) + 3 * np.arange(n_parties)[:, None]
    features[rng.random(features.shape) < 0.3] = -1
    scores = rng.integers(0, 3, features.shape).astype(np.float64)
    offered = np.where(features < 0, 0, features % 3 + 1).astype(np.uint32)
    winner, feature, score = np.empty(n, np.int16), np.empty(n, np.int32), np.empty(n)
    first = 3 * np.arange(n_parties)
    choose_offers(select_key, order_key, limits, scores, offered, first, keys, winner, feature, score)
    for k in range(n):

        def rank(party: int, k: int = k) -> tuple[bool, float, int]:
            f = features[party, k]
            beyond = place(select_key[k], keys[f]) > limits[k]
            return bool(beyond), 0.0 if beyond else -scores[party, k], int(place(order_key[k], keys[f]))

        able = [party for party in range(n_parties) if features[party, k] >= 0]
        assert winner[k] == (min(able, key=rank) if able else -1)
        assert feature[k] == (features[winner[k], k] if able else -1)
        np.testing.assert_equal(score[k], scores[winner[k], k] if able else np.nan)
