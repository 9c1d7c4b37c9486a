from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_forests import RandomForest, naive_answer, naive_goes_left, naive_weights, random_forest

from woodlot.exceptions import RemoteProtocolError
from woodlot.trees import wire as wire_module
from woodlot.trees.collect import Collector
from woodlot.trees.kernels.reach import encode_decisions
from woodlot.trees.predict import Predictor
from woodlot.trees.wire import DecisionBits, LeafBits, PartyPredictor, RankCodes, Reply, Wire, row_words

WIRES: list[Wire] = ["decisions", "leaves", "ranks"]


def collector(forest: RandomForest) -> Collector:
    return Collector(forest.structure, forest.owner, forest.leaves, forest.n_parties)


def answer(forest: RandomForest, wire: Wire, party: int, known: np.ndarray | None = None, n_jobs: int = 1) -> Any:
    predictor = PartyPredictor(forest.structure, forest.party_splits(party))
    return predictor.answer(wire, forest.party_columns(party), forest.n_rows, known, n_jobs)


def answers(forest: RandomForest, wire: Wire) -> list[Reply | None]:
    return [answer(forest, wire, party) for party in range(forest.n_parties)]


def local(forest: RandomForest, vote: Any = "soft") -> np.ndarray:
    predictor = Predictor(forest.structure, forest.splits, forest.leaves)
    return predictor.predict_outputs(forest.columns, forest.n_rows, vote)


def naive_reply_bits(forest: RandomForest, party: int, known: np.ndarray) -> list[int]:
    """The bits of ``DecisionBits`` for up to 64 rows, straight from the definition."""
    structure, owner, splits = forest.structure, forest.owner, forest.party_splits(party)
    question_of = {int(node): i for i, node in enumerate(splits.node)}
    columns = forest.party_columns(party)
    bits: list[int] = []

    def visit(node: int, rows: list[int]) -> None:
        right = int(structure.right[node])
        if right < 0:
            return
        if owner[node] != party:
            visit(node + 1, rows)
            visit(right, rows)
            return
        left = {row: naive_goes_left(splits, question_of[node], columns, row) for row in rows}
        bits.extend(int(not left[row]) for row in rows)
        visit(node + 1, [row for row in rows if left[row]])
        visit(right, [row for row in rows if not left[row]])

    for root in structure.offset[:-1]:
        visit(int(root), np.flatnonzero(known).tolist())
    return bits


@given(seed=st.integers(0, 2**32), n_rows=st.integers(1, 64), some=st.booleans())
@settings(max_examples=30, deadline=None)
def test_decisions_are_the_bits_of_reachable_owned_nodes(seed: int, n_rows: int, some: bool) -> None:
    forest = random_forest(seed, n_rows)
    known = np.random.default_rng(seed).random(n_rows) < (0.5 if some else 1.0)
    for party in range(forest.n_parties):
        expected = naive_reply_bits(forest, party, known)
        reply = answer(forest, "decisions", party, known)
        bits = np.unpackbits(reply.stream.astype("<u8").view(np.uint8), bitorder="little")
        assert reply.lengths.tolist() == [-(-len(expected) // 64)]
        assert bits[: len(expected)].tolist() == expected
        assert not bits[len(expected) :].any()


@given(seed=st.integers(0, 2**32), n_rows=st.sampled_from([1, 64, 70]))
@settings(max_examples=8, deadline=None)
@pytest.mark.slow
def test_reachable_leaves_are_those_of_a_party_that_knows_only_itself(seed: int, n_rows: int) -> None:
    forest = random_forest(seed, n_rows, n_trees=3)
    known = np.random.default_rng(seed).random(n_rows) < 0.7
    for party in range(forest.n_parties):
        words = answer(forest, "leaves", party, known).words
        bits = np.unpackbits(words.astype("<u8").view(np.uint8).reshape(*words.shape, 8), axis=2, bitorder="little")
        for row in range(64 * len(words)):
            only_me = [p == party and row < n_rows and bool(known[row]) for p in range(forest.n_parties)]
            trees = naive_weights(forest, row, only_me) if row < n_rows else []
            assert set(np.flatnonzero(bits[row // 64, :, row % 64])) == {leaf for t in trees for leaf in t}


@given(
    seed=st.integers(0, 2**32),
    n_rows=st.sampled_from([0, 1, 63, 64, 65, 150]),
    n_trees=st.integers(1, 12),
    n_parties=st.integers(1, 6),
    categories=st.booleans(),
    vote=st.sampled_from(["soft", "majority"]),
)
@settings(max_examples=40, deadline=None)
def test_all_forms_give_the_floats_of_local_prediction(
    seed: int, n_rows: int, n_trees: int, n_parties: int, categories: bool, vote: Any
) -> None:
    forest = random_forest(seed, n_rows, n_trees, n_parties, categories=categories)
    expected = local(forest, vote)
    everybody = [None] * n_parties
    for wire in WIRES:
        outputs, uncertain = collector(forest).outputs(answers(forest, wire), everybody, n_rows, vote)
        assert outputs.tobytes() == expected.tobytes()
        assert not uncertain.any()
    leaf = Predictor(forest.structure, forest.splits, forest.leaves).apply(forest.columns, n_rows)
    replies: Any = answers(forest, "decisions")
    np.testing.assert_array_equal(collector(forest).leaves_from_decisions(replies, everybody, n_rows), leaf)


@given(
    seed=st.integers(0, 2**32),
    n_rows=st.sampled_from([1, 64, 90]),
    n_parties=st.integers(1, 5),
    n_outputs=st.sampled_from([1, 3, 6]),
    vote=st.sampled_from(["soft", "majority"]),
    data=st.data(),
)
@settings(max_examples=15, deadline=None)
def test_absent_parties_and_rows_are_weighted(
    seed: int, n_rows: int, n_parties: int, n_outputs: int, vote: Any, data: st.DataObject
) -> None:
    forest = random_forest(seed, n_rows, n_trees=4, n_parties=n_parties, n_outputs=n_outputs)
    states = data.draw(st.lists(st.sampled_from(["here", "absent", "some"]), min_size=n_parties, max_size=n_parties))
    rng = np.random.default_rng(seed)
    masks = [rng.random(n_rows) < 0.6 if state == "some" else None for state in states]
    has = np.array(
        [
            np.zeros(n_rows, np.bool_) if state == "absent" else np.ones(n_rows, np.bool_) if mask is None else mask
            for state, mask in zip(states, masks, strict=True)
        ]
    )
    trees = [naive_weights(forest, row, has[:, row].tolist()) for row in range(n_rows)]
    expected = np.array([naive_answer(forest.leaves, row, vote) for row in trees])
    split = np.array([any(len(tree) > 1 for tree in row) for row in trees])
    for wire in WIRES:
        replies = [
            None if state == "absent" else answer(forest, wire, party, masks[party])
            for party, state in enumerate(states)
        ]
        outputs, uncertain = collector(forest).outputs(replies, masks, n_rows, vote)
        assert outputs.tobytes() == expected.tobytes()
        np.testing.assert_array_equal(uncertain, split)
        if wire == "decisions":
            leaf = collector(forest).leaves_from_decisions(replies, masks, n_rows)
            plain = [[next(iter(tree)) if len(tree) == 1 else -1 for tree in row] for row in trees]
            np.testing.assert_array_equal(leaf, plain)


def test_rows_that_a_party_lacks_do_not_leave_it() -> None:
    forest = random_forest(1, n_rows=200, n_parties=2)
    known = np.arange(200) % 3 > 0
    changed = replace(forest, columns=[c.copy() for c in forest.columns])
    for column in changed.columns:
        column[~known] = column[~known][::-1] + 1
    for wire in WIRES:
        before, after = answer(forest, wire, 0, known), answer(changed, wire, 0, known)
        for name, value in vars(before).items():
            for a, b in zip(np.atleast_1d(value), np.atleast_1d(vars(after)[name]), strict=True):
                np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("wire", WIRES)
def test_many_chunks_on_many_threads(wire: Wire) -> None:
    forest = random_forest(2, n_rows=5_000, n_trees=10, n_parties=3)
    known = [None, np.random.default_rng(0).random(5_000) < 0.9, None]
    one = [answer(forest, wire, party, known[party]) for party in range(3)]
    many = [answer(forest, wire, party, known[party], n_jobs=4) for party in range(3)]
    outputs, uncertain = collector(forest).outputs(one, known, 5_000)
    again, _ = collector(forest).outputs(many, known, 5_000, n_jobs=4)
    assert outputs.tobytes() == again.tobytes()
    assert uncertain.any()
    assert outputs[~uncertain].tobytes() == local(forest)[~uncertain].tobytes()


def test_encoder_asks_for_more_room(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []

    def counted(*args: Any) -> bool:
        calls.append(encode_decisions(*args))
        return calls[-1]

    monkeypatch.setattr(wire_module, "encode_decisions", counted)
    for seed in range(20):
        forest = random_forest(seed, n_rows=300, n_trees=1, n_parties=6)
        outputs, _ = collector(forest).outputs(answers(forest, "decisions"), [None] * 6, 300)
        assert outputs.tobytes() == local(forest).tobytes()
    assert calls.count(False) > 0


def test_decisions_are_much_smaller_than_leaves() -> None:
    sizes = {"decisions": 0, "leaves": 0}
    for seed in range(200, 240):
        forest = random_forest(seed, n_rows=256, n_trees=1, n_parties=2, categories=False)
        if forest.structure.n_nodes > 300:
            for party in range(2):
                sizes["decisions"] += answer(forest, "decisions", party).stream.nbytes
                sizes["leaves"] += answer(forest, "leaves", party).words.nbytes
    assert 0 < sizes["decisions"] < sizes["leaves"] / 5


def test_row_words() -> None:
    mask = np.arange(70) % 3 == 0
    words = row_words(70, mask)
    assert [bool(int(words[i // 64]) >> (i % 64) & 1) for i in range(128)] == mask.tolist() + [False] * 58
    with pytest.raises(ValueError, match="70 booleans"):
        row_words(70, mask[1:])


# ------------------------------------------------------------------------------------------- hostile replies


@pytest.fixture
def forest() -> RandomForest:
    seed = next(
        s
        for s in range(100)
        if np.unique(random_forest(s, 130, 6, 2).owner).tolist() == [-1, 0, 1]
        and len(np.unique(random_forest(s, 130, 6, 2).party_splits(0).categorical)) == 2
    )
    return random_forest(seed, 130, 6, 2)


def refuse(forest: RandomForest, reply: Any, wire: Wire, match: str = "") -> None:
    honest: Any = answer(forest, wire, 1)
    with pytest.raises(RemoteProtocolError, match=match):
        collector(forest).outputs([reply, honest], [None, None], forest.n_rows)


def test_wrong_decisions_are_refused(forest: RandomForest) -> None:
    good: DecisionBits = answer(forest, "decisions", 0)
    short = replace(good, stream=good.stream[:-1], lengths=good.lengths - np.uint32(1))
    long = replace(good, stream=np.append(good.stream, np.uint64(0)), lengths=good.lengths + np.uint32(1))
    refuse(forest, short, "decisions", "Party 0")
    assert int(good.stream[-1]) >> 63 == 0
    padding = good.stream.copy()
    padding[-1] |= np.uint64(1 << 63)
    refuse(forest, replace(good, stream=padding), "decisions", "Party 0")
    refuse(forest, long, "decisions", "Party 0")
    refuse(forest, replace(good, stream=good.stream[:0], lengths=good.lengths * 0), "decisions", "Party 0")
    refuse(forest, replace(good, stream=good.stream[:-1]), "decisions", "announced")
    refuse(forest, replace(good, lengths=np.append(good.lengths, np.uint32(0))), "decisions", "lengths")
    refuse(forest, replace(good, stream=good.stream.astype(np.int64)), "decisions", "stream")
    refuse(forest, replace(good, stream=good.stream[:, np.newaxis]), "decisions", "stream")


@given(seed=st.integers(0, 2**32), scale=st.sampled_from([0.3, 1.0, 1.5]))
@settings(max_examples=60, deadline=None)
def test_random_decisions_are_answered_or_refused(seed: int, scale: float) -> None:
    forest = random_forest(seed, 70, 5, 2)
    rng = np.random.default_rng(seed)
    replies = []
    for reply in answers(forest, "decisions"):
        length = int(len(reply.stream) * scale)  # type: ignore[union-attr]
        stream = rng.integers(0, 2**64, length, dtype=np.uint64)
        replies.append(DecisionBits(stream, np.array([length], np.uint32)))
    try:
        outputs, _ = collector(forest).outputs(replies, [None, None], 70)
    except RemoteProtocolError:
        return
    assert np.isfinite(outputs).all()


def test_wrong_leaves_are_refused(forest: RandomForest) -> None:
    good: LeafBits = answer(forest, "leaves", 0)
    refuse(forest, LeafBits(good.words[:-1]), "leaves", "Party 0")
    refuse(forest, LeafBits(good.words[:, 1:]), "leaves", "Party 0")
    refuse(forest, LeafBits(good.words.view(np.int64)), "leaves", "Party 0")
    refuse(forest, LeafBits(np.zeros_like(good.words)), "leaves", "contradict")
    refuse(forest, LeafBits(~np.zeros_like(good.words)), "leaves", "contradict")
    lost_row = good.words & ~np.uint64(1 << 5)
    refuse(forest, LeafBits(lost_row), "leaves", "contradict")


def test_half_a_branch_of_an_absent_party_is_refused(forest: RandomForest) -> None:
    words = answer(forest, "leaves", 0).words.copy()
    nobody = [None, np.zeros(forest.n_rows, np.bool_)]
    collector(forest).outputs([LeafBits(words), None], nobody, forest.n_rows)
    block, leaf = next((b, leaf) for b, leaf in zip(*np.nonzero(words), strict=True))
    words[block, leaf] &= words[block, leaf] - np.uint64(1)
    with pytest.raises(RemoteProtocolError, match="contradict"):
        collector(forest).outputs([LeafBits(words), None], nobody, forest.n_rows)


def test_wrong_ranks_are_refused(forest: RandomForest) -> None:
    good: RankCodes = answer(forest, "ranks", 0)
    numeric = good.slot < len(good.n_thresholds)
    assert numeric.any()
    assert not numeric.all()
    set_start = good.set_start.copy()
    set_start[1:] += 1
    widest = np.where(np.arange(len(good.slot)) == np.flatnonzero(~numeric)[0], 10_000, 0)
    bad: list[dict[str, Any]] = [
        {"node": good.node[::-1].copy()},
        {"node": good.node + np.int32(1)},
        {"node": good.node[1:]},
        {"slot": good.slot + np.int32(len(good.codes))},
        {"slot": good.slot - np.int32(1)},
        {"cut": good.cut * np.uint16(0)},
        {"cut": np.where(numeric, good.cut + 60_000, good.cut).astype(np.uint16)},
        {"missing_left": good.missing_left.astype(np.uint8)},
        {"set_start": set_start},
        {"set_start": good.set_start[::-1].copy()},
        {"set_start": good.set_start + np.append(0, np.cumsum(widest))},
        {"sets": good.sets[1:]},
        {"n_thresholds": good.n_thresholds * 0},
        {"n_codes": good.n_codes * 0},
        {"n_codes": good.n_codes + 2**33},
        {"codes": good.codes[1:]},
        {"codes": tuple(c[1:] for c in good.codes)},
        {"codes": tuple(c.astype(np.uint64) for c in good.codes)},
        {"codes": tuple(np.full_like(c, 254) for c in good.codes)},
    ]
    for change in bad:
        refuse(forest, replace(good, **change), "ranks", "[Pp]arty 0")


def test_mixed_forms_are_refused(forest: RandomForest) -> None:
    refuse(forest, answer(forest, "leaves", 0), "decisions", "different forms")


def test_caller_mistakes_are_refused(forest: RandomForest) -> None:
    replies = answers(forest, "decisions")
    with pytest.raises(ValueError, match="one reply and one mask"):
        collector(forest).outputs(replies[:1], [None], forest.n_rows)
    with pytest.raises(ValueError, match="booleans"):
        collector(forest).outputs(replies, [None, np.ones(3, np.bool_)], forest.n_rows)
    with pytest.raises(ValueError, match="belong to one of the parties"):
        Collector(forest.structure, forest.owner, forest.leaves, 1)
    with pytest.raises(ValueError, match="wire must be"):
        answer(forest, "nodes", 0)  # type: ignore[arg-type]
    leaf_as_question = replace(forest.party_splits(0), node=forest.party_splits(0).node + np.int32(1))
    with pytest.raises(ValueError, match="inner node"):
        PartyPredictor(forest.structure, leaf_as_question)


def test_chunks_are_whole_blocks() -> None:
    assert wire_module.CHUNK_ROWS % 64 == 0
