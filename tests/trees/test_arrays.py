"""The array program against the kernels: the same offers, sides, splits and leaves, to the bit.

NumPy runs it here. ``make test-gpu`` runs the same tests on a graphics card (WOODLOT_TEST_DEVICE=cuda).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from array_cases import FREE, GrowCase, arrays_here, check_finished, grow_both, random_case, random_column, same
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.exceptions import DeviceError
from woodlot.trees.arrays import array_search
from woodlot.trees.arrays.array_grow import ArrayGrower
from woodlot.trees.arrays.array_pairs import list_pairs
from woodlot.trees.arrays.array_table import encode_here
from woodlot.trees.grow import Grower
from woodlot.trees.kernels.search import next_candidates
from woodlot.trees.sampling import Bootstrap


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=40, deadline=None, derandomize=True)
@pytest.mark.slow
def test_anything_together(seed: int) -> None:
    case = random_case(seed)
    grow_both(case, *case.growers(arrays_here()))


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=600, deadline=None, derandomize=True)
def test_anything_together_at_length(seed: int) -> None:
    case = random_case(seed)
    grow_both(case, *case.growers(arrays_here()))


def case_of(kinds: list[str], n: int, n_classes: int, **options: object) -> GrowCase:
    rng = np.random.default_rng([n, n_classes, len(kinds)])
    columns = [random_column(kind, n, rng) for kind in kinds]
    signal = np.nan_to_num(np.asarray(getattr(columns[0], "values", np.zeros(n)))) + rng.normal(size=n)
    order = np.argsort(np.argsort(signal))
    labels = order * n_classes // n if n_classes else np.rint(signal * 2**20).astype(np.int64)
    return replace(GrowCase(columns, labels, n_classes, max_features=2, others=0.1), **options)


MIXED = ["continuous", "ties", "missing", "missing ties", "categories", "constant"]


@pytest.mark.parametrize("n_classes", [0, 2, 3, 100])
@pytest.mark.parametrize("entropy", [False, True])
def test_deep_trees(n_classes: int, entropy: bool) -> None:
    """A thousand rows and every kind of column, down to the last row."""
    if entropy and n_classes == 0:
        pytest.skip("regression has no entropy")
    case = case_of(MIXED, 1000, n_classes, rules=replace(FREE, entropy=entropy), n_trees=2)
    assert grow_both(case, *case.growers(arrays_here())) > 100


@pytest.mark.parametrize("n_classes", [0, 2, 7])
def test_batches_do_not_show(n_classes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes that are searched in many small parts give the same offers."""
    monkeypatch.setattr(array_search, "KEYS_ON_HOST", 300)
    monkeypatch.setattr(array_search, "KEYS_AT_ONCE", 300)
    case = case_of(MIXED, 300, n_classes)
    one, other = case.growers(arrays_here())
    assert len(other._array_search.batches(other.end - other.start, np.full(len(other.start), 2))) > 1
    assert grow_both(case, one, other) > 20


def test_logarithms_without_a_table() -> None:
    """Weights too large for a table of x*log2(x): the CPU computes the logarithms that the scores need."""
    weights = np.random.default_rng(0).integers(1, 2**20, 150)
    sampling = Bootstrap(None, 150, weights)
    for n_classes in (2, 4):
        case = case_of(["ties", "missing"], 150, n_classes, rules=replace(FREE, entropy=True), bootstrap=sampling)
        one, other = case.growers(arrays_here())
        assert other._array_search._xlogx_table is None
        assert grow_both(case, one, other) > 10


def test_weights_of_all_splits_are_looked_at() -> None:
    """With a minimal weight both sides of others' splits are weighed."""
    case = case_of(["continuous", "ties"], 200, 2, rules=replace(FREE, min_weight=3), others=0.5)
    grow_both(case, *case.growers(arrays_here()))


@pytest.mark.parametrize("p", [1, 5, 40])
def test_candidates_by_place(p: int) -> None:
    """The features from a place on, in the order of each node, as the kernels list them one by one."""
    arrays, rng = arrays_here(), np.random.default_rng(p)
    keys, features = rng.integers(0, 2**63, 30).astype(np.uint64), rng.integers(0, 2**63, p).astype(np.uint64)
    low = rng.integers(0, p, 30)
    high = np.minimum(low + rng.integers(0, 4, 30), p)
    of_node, first = (np.append(0, np.cumsum(sizes)) for sizes in (high - low, np.arange(1, 31)))
    first_key = np.append(0, np.cumsum((high - low) * np.arange(1, 31)))
    own_keys, here = arrays.put(keys), [arrays.put(a) for a in (low, of_node, features, first, first_key)]
    size = int(of_node[-1]), int(high.max())
    listed = list_pairs(arrays, own_keys, own_keys, here[0], here[1], size, here[2], (here[3], here[4]))
    node, feature, place, pair_first = (arrays.get(a) for a in listed)
    same(pair_first, np.append(0, np.cumsum(node + 1)))
    for k in range(30):
        own, expected = sorted(zip(place[node == k].tolist(), feature[node == k].tolist(), strict=True)), []
        for rank in range(int(low[k]), int(high[k])):
            pair = np.empty(1, np.int32), np.empty(1, np.int32), np.empty(1, np.uint64)
            next_candidates(keys[k : k + 1], np.array([0]), np.array([rank]), features, *pair)
            expected.append((int(pair[2][0]), int(pair[1][0])))
        assert own == sorted(expected)


@pytest.mark.parametrize("max_bins", [None, 2, 9, 40, 255, 256])
def test_encoding(max_bins: int | None) -> None:
    """Ranks or bins, values and thresholds are those of the CPU's encoding."""
    rng = np.random.default_rng(3)
    kinds = ["continuous", "ties", "zeros", "missing", "all missing", "constant", "categories", "ties", "heavy"]
    case = GrowCase([random_column(kind, 400, rng) for kind in kinds], np.zeros(400, np.int64), 2, max_bins=max_bins)
    arrays, expected = arrays_here(), case.encoded()
    table = encode_here(arrays, case.table, max_bins, 1)
    same(arrays.get(table.fine), expected.fine)
    same(arrays.get(table.lowest), expected.lowest)
    same(arrays.get(table.highest), expected.highest)
    for name in ("n_codes", "has_missing", "categorical", "first_value"):
        same(getattr(table, name), getattr(expected, name))
    feature = np.array([0, 1, 3, 6], np.int32)
    low, high = np.array([0, 0, 0, -1]), np.array([1, 1, -1, -1])
    own = (arrays.put(a) for a in (np.array([1, 0, 2, 3]), feature, low, high))
    same(arrays.get(table.thresholds(*own)), expected.thresholds(feature, low, high)[[1, 0, 2, 3]])


class FailingGrower(ArrayGrower):
    """A card that breaks at a given step."""

    steps_left = 0

    def _break(self) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise DeviceError("the card fell off the bus")

    def find(self, *args: object) -> object:  # type: ignore[override]
        self._break()
        return super().find(*args)  # type: ignore[arg-type]

    def apply_packed(self, won: np.ndarray) -> np.ndarray:
        self._break()
        return super().apply_packed(won)

    def _still_open(self) -> np.ndarray:
        if hasattr(self, "is_open"):  # not while the trees are planted
            self._break()
        return super()._still_open()


@pytest.mark.parametrize("steps", range(9))
def test_a_card_that_fails_in_the_middle(steps: int) -> None:
    """Whichever step fails, the trees go on on the CPU from where they were, and end the same."""
    case = case_of(MIXED, 150, 3, others=0.0)
    one = Grower(case.encoded(), *case.arguments())
    other: Grower = FailingGrower(encode_here(arrays_here(), case.table, None, 1), *case.arguments())
    other.steps_left = steps  # type: ignore[attr-defined]

    def carried_out(step: str, *args: object) -> object:
        nonlocal other
        try:
            return getattr(other, step)(*args)
        except DeviceError:
            assert isinstance(other, ArrayGrower)
            other = other.brought_to_cpu(case.encoded())
            return getattr(other, step)(*args)

    for _ in range(4):
        counts = np.full(len(one.start), 2)
        found = one.find(counts)
        same(found.score, carried_out("find", counts).score)  # type: ignore[attr-defined]
        won = found.feature >= 0
        same(one.apply_packed(won), carried_out("apply_packed", won))
        none = np.empty(0, np.uint8)
        one.split_packed(won, none, 0)
        carried_out("split_packed", won, none, 0)
        same(one.is_open, other.is_open)
    assert not isinstance(other, ArrayGrower)
    check_finished(case, one, other)
