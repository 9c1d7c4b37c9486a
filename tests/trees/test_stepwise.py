from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_forests import RandomForest, naive_goes_left, random_forest

from woodlot.exceptions import LocalProtocolError, RemoteProtocolError
from woodlot.trees.predict import Predictor
from woodlot.trees.stepwise import NodeByNode, answer_questions


def ask(forest: RandomForest, party: int, rows: np.ndarray, nodes: np.ndarray) -> np.ndarray:
    columns = forest.party_columns(party)
    return answer_questions(forest.structure, forest.party_splits(party), columns, rows, nodes)


@given(seed=st.integers(0, 2**32), n_rows=st.sampled_from([0, 1, 90]), n_parties=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_rows_arrive_where_local_prediction_says(seed: int, n_rows: int, n_parties: int) -> None:
    forest = random_forest(seed, n_rows, n_parties=n_parties)
    walk = NodeByNode(forest.structure, forest.owner, n_rows)
    rounds = 0
    while questions := walk.questions():
        walk.step({party: ask(forest, party, *question) for party, question in questions.items()})
        rounds += 1
    leaf = Predictor(forest.structure, forest.splits, forest.leaves).apply(forest.columns, n_rows)
    np.testing.assert_array_equal(walk.leaves(), leaf)
    assert rounds <= 60


@given(seed=st.integers(0, 2**32))
@settings(max_examples=25, deadline=None)
def test_answers_are_those_of_the_naive_question(seed: int) -> None:
    forest = random_forest(seed, n_parties=1, missing=0.3)
    rng = np.random.default_rng(seed)
    question = rng.integers(0, len(forest.splits.node), 100 if len(forest.splits.node) else 0)
    rows = rng.integers(0, forest.n_rows, len(question)).astype(np.int32)
    bits = ask(forest, 0, rows, forest.splits.node[question])
    right = np.unpackbits(bits, count=len(question), bitorder="little")
    for q, row, bit in zip(question, rows, right, strict=True):
        assert bool(bit) != naive_goes_left(forest.splits, q, forest.columns, row)


def test_questions_that_are_not_for_this_party_are_refused() -> None:
    forest = next(f for s in range(50) if (f := random_forest(s, 10, 5, 2)) and set(f.owner) == {-1, 0, 1})
    mine, other = (np.flatnonzero(forest.owner == p)[:1].astype(np.int32) for p in (0, 1))
    row = np.zeros(1, np.int32)
    assert len(ask(forest, 0, row, mine)) == 1
    for rows, nodes in (
        (row, other),
        (row, np.array([-1], np.int32)),
        (row, np.array([forest.structure.n_nodes], np.int32)),
        (row - 1, mine),
        (row + 10, mine),
        (np.zeros(2, np.int32), mine),
    ):
        with pytest.raises(RemoteProtocolError):
            ask(forest, 0, rows, nodes)


def test_wrong_steps_are_refused_and_change_nothing() -> None:
    forest = next(f for s in range(50) if (f := random_forest(s, 10, 5, 2)) and set(f.owner) == {-1, 0, 1})
    walk = NodeByNode(forest.structure, forest.owner, 10)
    questions = walk.questions()
    good = {party: ask(forest, party, *question) for party, question in questions.items()}
    party = next(iter(good))
    with pytest.raises(LocalProtocolError):
        walk.leaves()
    with pytest.raises(LocalProtocolError):
        walk.step({p: bits for p, bits in good.items() if p != party})
    with pytest.raises(RemoteProtocolError):
        walk.step({**good, party: good[party][:-1]})
    with pytest.raises(RemoteProtocolError):
        walk.step({**good, party: good[party].astype(np.int64)})
    again = walk.questions()
    assert all(np.array_equal(again[p], questions[p]) for p in questions)
