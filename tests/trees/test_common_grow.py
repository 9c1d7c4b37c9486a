"""Parties that share rows and tell scores late, against parties that each do everything: the same trees to the bit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from array_cases import FREE, GrowCase, random_case, random_column, same
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.data.tables import Table
from woodlot.exceptions import RemoteProtocolError
from woodlot.trees.common_grow import CommonGrower, CommonTrees
from woodlot.trees.encoding import encode
from woodlot.trees.forest import Splits, Structure
from woodlot.trees.grow import Grower
from woodlot.trees.kernels.hashing import candidate_limits, choose_offers

N_PARTIES = 3


@dataclass
class Grown:
    structure: Structure
    splits: list[Splits]
    scores: list[np.ndarray]
    leaves: tuple[np.ndarray, ...]
    n_late: int


def growers_of(case: GrowCase, common: CommonTrees | None) -> tuple[list[Grower], np.ndarray]:
    """One for each party, and the party of each column: dealt in turn, in whole stretches."""
    party = np.arange(len(case.columns)) * N_PARTIES // len(case.columns)
    growers: list[Grower] = []
    for p in range(N_PARTIES):
        own = np.flatnonzero(party == p)
        table = Table(tuple(f"c{f}" for f in own), tuple(case.columns[f] for f in own), len(case.labels))
        codes = encode(table, max_bins=case.max_bins, n_jobs=1)
        rest = (case.keys[own], *case.arguments()[1:])
        growers.append(Grower(codes, *rest) if common is None else CommonGrower(common, codes, *rest))
    return growers, party


def grow(case: GrowCase, common: CommonTrees | None, *, late: bool) -> Grown:
    """Grow trees of several parties to their end, as a coordinator has them do."""
    growers, party = growers_of(case, common)
    first = np.searchsorted(party, np.arange(N_PARTIES))
    scores_of_splits, n_late = [], 0
    while len(growers[0].start):
        skeleton, n = growers[0].skeleton, len(growers[0].start)
        select = skeleton.root_key if case.rules.whole_tree else skeleton.key
        limits, counts = np.empty(n, np.uint64), np.zeros((N_PARTIES, n), np.uint32)
        wanted = np.full(n, case.max_features or len(case.columns), np.int64)
        if case.rules.splits_two_rows_by_order:
            wanted[growers[0].end - growers[0].start == 2] = 0
        candidate_limits(select, wanted, case.keys, party, limits, counts)
        scores, offered = np.full((N_PARTIES, n), -np.inf), np.zeros((N_PARTIES, n), np.uint32)
        for p, grower in enumerate(growers):
            offers = grower.find_candidates(counts[p], all_whole=p == 0) if late else grower.find(counts[p])
            scores[p], offered[p] = offers.score, offers.feature + 1
        winner, feature, score = np.empty(n, np.int16), np.empty(n, np.int32), np.empty(n)
        choose_offers(select, skeleton.key, limits, scores, offered, first, case.keys, winner, feature, score)
        flags = np.zeros(int((growers[0].end - growers[0].start).sum()), np.uint8)
        by = np.repeat(winner, growers[0].end - growers[0].start)
        for p, grower in enumerate(growers):
            assert grower.can_apply(winner == p)
            flags[by == p] = grower.apply(winner == p)
            without = (winner == p) & np.isneginf(score)
            n_late += int(without.sum())
            score[without] = grower.late_scores
        scores_of_splits.append(score[winner >= 0])
        for p, grower in enumerate(growers):
            others = flags[(by >= 0) & (by != p)]
            assert grower.rows_of_others(winner >= 0) == len(others)
            bits = np.packbits(others, bitorder="little")
            assert case.rules.allow(grower.sides(winner >= 0, bits))
            grower.split_packed(winner >= 0, bits, len(others))
    none = np.empty(0, np.int64)
    finished = [grower.finish(none) for grower in growers]
    return Grown(finished[0][0], [splits for _, splits, _ in finished], scores_of_splits, growers[0].leaves(), n_late)


def check_same(one: Grown, other: Grown) -> None:
    same(one.structure.offset, other.structure.offset)
    same(one.structure.right, other.structure.right)
    for mine, theirs in zip(one.splits, other.splits, strict=True):
        for name in ("node", "feature", "threshold", "missing_left", "set_start", "sets"):
            same(getattr(mine, name), getattr(theirs, name))
    for parts in (zip(one.scores, other.scores, strict=True), zip(one.leaves, other.leaves, strict=True)):
        for mine, theirs in parts:
            same(mine, theirs)


def check_case(case: GrowCase) -> int:
    """Compare all ways; returns how many scores came late."""
    alone = grow(case, None, late=False)
    check_same(alone, grow(case, CommonTrees(), late=False))
    if not case.rules.splits_two_rows_by_order:
        return 0
    check_same(alone, grow(case, None, late=True))
    together = grow(case, CommonTrees(), late=True)
    check_same(alone, together)
    return together.n_late


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=8, deadline=None, derandomize=True)
def test_anything_together(seed: int) -> None:
    check_case(random_case(seed))


@pytest.mark.slow
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_anything_together_at_length(seed: int) -> None:
    check_case(random_case(seed))


def few_codes(n_classes: int, **options: object) -> GrowCase:
    """Columns that are often the same in all rows of a node, so that candidates fail."""
    rng = np.random.default_rng(n_classes)
    columns = [random_column(kind, 120, rng) for kind in ("ties", "constant", "categories", "missing ties", "zeros")]
    labels = rng.integers(0, n_classes, 120) if n_classes else rng.integers(-99, 99, 120)
    return replace(GrowCase(columns, labels, n_classes, max_features=1), **options)


@pytest.mark.parametrize("n_classes", [0, 2, 5, 300])
def test_scores_come_late_where_no_candidate_splits(n_classes: int) -> None:
    assert check_case(few_codes(n_classes)) > 10


def test_entropy_and_heavy_rows() -> None:
    assert check_case(few_codes(3, rules=replace(FREE, entropy=True))) > 10
    check_case(few_codes(2, rules=replace(FREE, min_weight=3)))


def test_rows_are_kept_once() -> None:
    growers, _ = growers_of(few_codes(2), CommonTrees())
    assert all(grower.rows is growers[0].rows and grower.weights is growers[0].weights for grower in growers)


def test_trees_planted_again_have_rows_of_their_own() -> None:
    common = CommonTrees()
    first = grow(few_codes(2), common, late=True)
    check_same(first, grow(few_codes(2), common, late=True))


def test_parties_told_different_splits_are_refused() -> None:
    (one, other, _), _ = growers_of(few_codes(2), CommonTrees())
    found = one.find(np.full(len(one.start), 2))
    won = found.feature >= 0
    assert won.sum() > 1
    one.apply(won)
    one.split_packed(won, np.empty(0, np.uint8), 0)
    fewer = won.copy()
    fewer[np.flatnonzero(won)[0]] = False
    with pytest.raises(RemoteProtocolError, match="different splits"):
        other.split_packed(fewer, np.empty(0, np.uint8), 0)
    other.split_packed(won, np.empty(0, np.uint8), 0)
    assert other.skeleton is one.skeleton
