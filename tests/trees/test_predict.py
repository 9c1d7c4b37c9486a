from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numba import njit
from random_forests import RandomForest, naive_answer, naive_weights, random_forest
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

from woodlot.trees import ranks
from woodlot.trees.forest import Leaves, Splits, Structure
from woodlot.trees.kernels import _bits
from woodlot.trees.kernels.ranks import MISSING
from woodlot.trees.kernels.walk import walk_numbers
from woodlot.trees.predict import Predictor, outputs_from_leaves
from woodlot.trees.ranks import Ranker, in_order, round_down

words = st.integers(0, 2**64 - 1)


def predictor(forest: RandomForest) -> Predictor:
    return Predictor(forest.structure, forest.splits, forest.leaves)


def naive_leaves(forest: RandomForest) -> np.ndarray:
    everyone = [True] * forest.n_parties
    leaf = [[next(iter(t)) for t in naive_weights(forest, row, everyone)] for row in range(forest.n_rows)]
    return np.array(leaf, np.int32).reshape(forest.n_rows, forest.structure.n_trees)


@given(
    seed=st.integers(0, 2**32),
    n_rows=st.sampled_from([0, 1, 63, 64, 65, 150]),
    n_trees=st.integers(1, 20),
    categories=st.booleans(),
    missing=st.sampled_from([0.0, 0.3]),
)
@settings(max_examples=40, deadline=None)
def test_every_row_reaches_the_leaf_of_the_naive_walk(
    seed: int, n_rows: int, n_trees: int, categories: bool, missing: float
) -> None:
    forest = random_forest(seed, n_rows, n_trees, categories=categories, missing=missing)
    leaf = predictor(forest).apply(forest.columns, n_rows)
    assert leaf.dtype == np.int32
    np.testing.assert_array_equal(leaf, naive_leaves(forest))


@given(
    sets=st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=6),
    sides=st.integers(0, 63),
    codes=st.lists(st.integers(-1, 90), min_size=1, max_size=70),
)
@settings(max_examples=60, deadline=None)
def test_categories_that_a_set_does_not_cover_go_where_missing_values_go(
    sets: list[bytes], sides: int, codes: list[int]
) -> None:
    """One question per tree, beside a question on numbers; sets of one column have different lengths."""
    n = len(sets)
    structure = Structure(np.arange(n + 2, dtype=np.int64) * 3, np.tile(np.array([2, -1, -1], np.int32), n + 1))
    structure.right[0::3] += 3 * np.arange(n + 1, dtype=np.int32)
    missing_left = np.array([*(bool(sides >> k & 1) for k in range(n)), False])
    splits = Splits(
        node=np.arange(n + 1, dtype=np.int32) * 3,
        feature=np.array([*[1] * n, 0], np.int32),
        threshold=np.array([*[np.nan] * n, 0.5]),
        missing_left=missing_left,
        set_start=np.append(np.cumsum([0, *map(len, sets)]), sum(map(len, sets))).astype(np.int64),
        sets=np.frombuffer(b"".join(sets), np.uint8).copy(),
    )
    leaves = Leaves(np.ones(2 * n + 2), np.arange(2 * n + 3), np.zeros(2 * n + 2, np.int32), np.ones(2 * n + 2), 1)
    columns = [np.arange(len(codes), dtype=np.float32), np.array(codes, np.int32)]
    found = Predictor(structure, splits, leaves).apply(columns, len(codes))
    for tree, (own, otherwise) in enumerate(zip(sets, missing_left[:n].tolist(), strict=True)):
        for row, code in enumerate(codes):
            covered = 0 <= code < 8 * len(own)
            left = bool(own[code // 8] >> code % 8 & 1) if covered else otherwise
            assert found[row, tree] == 2 * tree + (not left)
    np.testing.assert_array_equal(found[:, n], 2 * n + (columns[0] > 0.5))


@pytest.mark.parametrize("vote", ["soft", "majority"])
@pytest.mark.parametrize("n_outputs", [1, 2, 4, 5, 12])
def test_outputs_are_sums_in_tree_order(vote: str, n_outputs: int) -> None:
    forest = random_forest(n_outputs, n_trees=40, n_outputs=n_outputs)
    expected = np.array(
        [naive_answer(forest.leaves, [{int(leaf): 1.0} for leaf in row], vote) for row in naive_leaves(forest)]
    )
    outputs = predictor(forest).predict_outputs(forest.columns, forest.n_rows, vote)
    np.testing.assert_array_equal(outputs, expected)
    np.testing.assert_array_equal(outputs_from_leaves(naive_leaves(forest), forest.leaves, vote), expected)


def test_outputs_do_not_depend_on_blocks_and_threads() -> None:
    forest = random_forest(3, n_rows=20_000, n_trees=30)
    one = predictor(forest).predict_outputs(forest.columns, forest.n_rows)
    many = predictor(forest).predict_outputs(forest.columns, forest.n_rows, n_jobs=4)
    alone = [
        predictor(forest).predict_outputs([column[row : row + 1] for column in forest.columns], 1)[0]
        for row in (0, 63, 64, 19_999)
    ]
    assert one.tobytes() == many.tobytes()
    assert one[[0, 63, 64, 19_999]].tobytes() == np.array(alone).tobytes()


def from_scikit_learn(model: RandomForestClassifier) -> tuple[Structure, Splits, Leaves]:
    trees = [estimator.tree_ for estimator in model.estimators_]
    offset = np.append(0, np.cumsum([tree.node_count for tree in trees])).astype(np.int64)
    right = np.concatenate(
        [np.where(t.children_right < 0, -1, t.children_right + o) for t, o in zip(trees, offset[:-1], strict=True)]
    ).astype(np.int32)
    inner, leaf = right >= 0, right < 0
    value = np.concatenate([tree.value[:, 0, :] for tree in trees])[leaf]
    splits = Splits(
        node=np.flatnonzero(inner).astype(np.int32),
        feature=np.concatenate([tree.feature for tree in trees])[inner].astype(np.int32),
        threshold=np.concatenate([tree.threshold for tree in trees])[inner],
        missing_left=np.concatenate([tree.missing_go_to_left for tree in trees])[inner].astype(np.bool_),
        set_start=np.zeros(inner.sum() + 1, np.int64),
        sets=np.zeros(0, np.uint8),
    )
    leaves = Leaves(
        weight=np.concatenate([tree.weighted_n_node_samples for tree in trees])[leaf],
        start=np.append(0, np.cumsum((value > 0).sum(1))).astype(np.int64),
        output=np.nonzero(value)[1].astype(np.int32),
        value=value[value > 0],
        n_outputs=value.shape[1],
    )
    return Structure(offset, right), splits, leaves


@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_scikit_learn_forest(missing: float) -> None:
    X, y = make_classification(600, 8, n_informative=6, n_classes=3, random_state=0)
    X = X.astype(np.float32)
    X[np.random.default_rng(0).random(X.shape) < missing] = np.nan
    model = RandomForestClassifier(20, random_state=0).fit(X, y)
    structure, splits, leaves = from_scikit_learn(model)
    ours = Predictor(structure, splits, leaves)
    columns = list(X.T)
    expected = structure.leaf[model.apply(X) + structure.offset[:-1]]
    np.testing.assert_array_equal(ours.apply(columns, len(X)), expected)
    np.testing.assert_allclose(ours.predict_outputs(columns, len(X)), model.predict_proba(X), atol=1e-12)


def one_question_per_tree(thresholds: np.ndarray, feature: np.ndarray) -> tuple[Structure, Splits, Leaves]:
    n = len(thresholds)
    structure = Structure(
        np.arange(0, 3 * n + 1, 3, dtype=np.int64),
        np.ravel([[i + 2, -1, -1] for i in range(0, 3 * n, 3)]).astype(np.int32),
    )
    splits = Splits(
        node=np.arange(0, 3 * n, 3, dtype=np.int32),
        feature=feature.astype(np.int32),
        threshold=thresholds,
        missing_left=np.arange(n) % 2 == 0,
        set_start=np.zeros(n + 1, np.int64),
        sets=np.zeros(0, np.uint8),
    )
    leaves = Leaves(np.ones(2 * n), np.arange(2 * n + 1), np.zeros(2 * n, np.int32), np.arange(2 * n, dtype=float), 1)
    return structure, splits, leaves


def test_column_with_more_thresholds_than_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "MAX_THRESHOLDS", 7)
    rng = np.random.default_rng(0)
    thresholds = rng.permutation(50) / 4
    structure, splits, leaves = one_question_per_tree(thresholds, np.arange(50) % 2)
    columns = [rng.integers(-2, 55, 200).astype(np.float32) / 4 for _ in range(2)]
    for column in columns:
        column[rng.random(200) < 0.2] = np.nan
    assert Ranker.of(splits).questions.n_slots == 8
    leaf = Predictor(structure, splits, leaves).apply(columns, 200)
    for tree in range(50):
        value = columns[tree % 2]
        left = np.where(np.isnan(value), tree % 2 == 0, value <= thresholds[tree])
        np.testing.assert_array_equal(leaf[:, tree], 2 * tree + ~left)


def test_as_many_thresholds_in_a_slot_as_fit() -> None:
    thresholds = np.arange(ranks.MAX_THRESHOLDS + 1, dtype=np.float64)
    _, splits, _ = one_question_per_tree(thresholds, np.zeros(len(thresholds), np.int32))
    ranker = Ranker.of(splits)
    assert ranker.questions.n_slots == 2
    values = np.array([-1, 0, 0.5, 65_533, 65_534, 65_535, np.nan], np.float32)
    first = ranker.slot_codes([values], 0, slice(0, 7))
    second = ranker.slot_codes([values], 1, slice(0, 7))
    np.testing.assert_array_equal(first, [0, 0, 1, 65_533, 65_534, 65_534, MISSING])
    np.testing.assert_array_equal(second, [0, 0, 0, 0, 0, 1, MISSING])


@pytest.mark.slow
def test_more_categories_than_sixteen_bits() -> None:
    n = 70_000
    structure, splits, leaves = one_question_per_tree(np.full(2, np.nan), np.zeros(2, np.int32))
    rng = np.random.default_rng(0)
    sets = rng.integers(0, 256, 2 * (n // 8), dtype=np.uint8)
    splits = Splits(splits.node, splits.feature, splits.threshold, splits.missing_left,
                    np.array([0, n // 8, 2 * (n // 8)]), sets)  # fmt: skip
    codes = np.array([0, 65_534, 65_535, 65_536, n - 1, n, n + 1, -1], np.int32)
    leaf = Predictor(structure, splits, leaves).apply([codes], len(codes))
    for tree in range(2):
        member = np.unpackbits(sets[tree * (n // 8) : (tree + 1) * (n // 8)], bitorder="little")
        left = [bool(member[c]) if 0 <= c < n else tree == 0 for c in codes]
        np.testing.assert_array_equal(leaf[:, tree], 2 * tree + 1 - np.array(left))


@given(
    values=st.lists(st.floats(width=32), max_size=30),
    thresholds=st.lists(st.floats(allow_nan=False), min_size=1, max_size=30),
)
@settings(max_examples=100, deadline=None)
def test_codes_count_the_thresholds_below(values: list[float], thresholds: list[float]) -> None:
    _, splits, _ = one_question_per_tree(np.array(thresholds), np.zeros(len(thresholds), np.int32))
    ranker = Ranker.of(splits)
    column = np.array(values, np.float32)
    codes = ranker.slot_codes([column], 0, slice(0, len(column)))
    for value, code in zip(column, codes, strict=True):
        if np.isnan(value):
            assert code == MISSING
        else:
            assert code == np.count_nonzero(ranker.thresholds < value)
            for question in range(len(thresholds)):
                word = int(ranker.questions.word[question])
                cut = (word & 0xFFFF) - (word >> 16 & 1)
                assert (code < cut) == (float(value) <= thresholds[question])


@given(threshold=st.floats(allow_nan=False))
@example(threshold=-3.4028234664e38)
def test_round_down(threshold: float) -> None:
    down = round_down(np.array([threshold]))[0]
    assert float(down) <= threshold
    with np.errstate(over="ignore"):
        assert down == np.inf or float(np.nextafter(down, np.float32(np.inf))) > threshold


@njit
def _machine(word: np.uint64, mask: np.uint64) -> tuple[np.uint64, np.uint64, int, int]:
    lowest = _bits.lowest_one(mask) if mask else -1
    return _bits.gather_bits(word, mask), _bits.scatter_bits(word, mask), _bits.count_ones(word), lowest


@given(word=words, mask=words | words.map(lambda w: w & (w >> 1) & (w >> 2)))
@settings(max_examples=300, deadline=None)
def test_bit_operations(word: int, mask: int) -> None:
    places = [i for i in range(64) if mask >> i & 1]
    gathered = sum((word >> place & 1) << i for i, place in enumerate(places))
    scattered = sum((word >> i & 1) << place for i, place in enumerate(places))
    expected = (gathered, scattered, word.bit_count(), places[0] if places else -1)
    assert _machine(np.uint64(word), np.uint64(mask)) == expected
    with np.errstate(over="ignore"):
        assert int(_bits.gather_bits_portable(np.uint64(word), np.uint64(mask))) == gathered
        assert int(_bits.scatter_bits_portable(np.uint64(word), np.uint64(mask))) == scattered


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
@pytest.mark.parametrize(("shift", "cut"), [(0, 1), (0, 500), (1, 2), (1, 501), (1, 65_535)])
def test_compare_64_codes(dtype: type, shift: int, cut: int) -> None:
    at_least = njit(lambda codes, start, shift, cut: _bits.at_least(codes, start, shift, cut))
    codes = np.random.default_rng(0).choice([0, 1, 2, 499, 500, 65_533, 65_534, MISSING], 200).astype(dtype)
    word = int(at_least(codes, 70, shift, cut))
    right = (codes[70:134].astype(int) + shift) % 65_536 >= cut
    assert [bool(word >> i & 1) for i in range(64)] == right.tolist()


def test_read_only_arrays_need_no_other_machine_code() -> None:
    forest = random_forest(5, categories=False)
    expected = predictor(forest).apply(forest.columns, forest.n_rows)
    compiled = len(walk_numbers.signatures)  # type: ignore[attr-defined]
    arrays = [*vars(forest.structure).values(), *vars(forest.splits).values(), *forest.columns]
    for array in arrays:
        array.setflags(write=False)
    np.testing.assert_array_equal(predictor(forest).apply(forest.columns, forest.n_rows), expected)
    assert len(walk_numbers.signatures) == compiled  # type: ignore[attr-defined]


def test_wrong_input_is_refused() -> None:
    forest = random_forest(8, categories=True)
    model = predictor(forest)
    with pytest.raises(ValueError, match="the table has 0 columns"):
        model.apply([], forest.n_rows)
    with pytest.raises(ValueError, match="has shape"):
        model.apply(forest.columns, forest.n_rows + 1)
    with pytest.raises(TypeError, match="must be"):
        model.apply([column.astype(np.float64) for column in forest.columns], forest.n_rows)
    with pytest.raises(ValueError, match="vote must be"):
        model.predict_outputs(forest.columns, forest.n_rows, vote="median")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="all inner nodes"):
        Predictor(forest.structure, forest.party_splits(0), forest.leaves)
    with pytest.raises(ValueError, match="no such leaf"):
        outputs_from_leaves(np.array([[forest.structure.n_leaves]], np.int32), forest.leaves)


def test_thresholds_are_sorted_as_numbers() -> None:
    """Of both signs, the smallest there are, and infinite; the two zeros are one threshold."""
    values = np.array([-np.inf, -3e38, -1.5, -1e-45, -0.0, 0.0, 1e-45, 1.5, 3e38, np.inf], np.float32)
    order = in_order(values)
    assert order[4] == order[5]
    assert np.array_equal(np.diff(order.astype(np.int64)) > 0, np.diff(values) > 0)
