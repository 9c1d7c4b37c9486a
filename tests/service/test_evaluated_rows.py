"""Which rows a label was evaluated on: no combination of evaluations tells of a few rows alone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.exceptions import JournalError, PolicyError
from woodlot.jobs.evaluated_rows import EvaluatedRows, divide

LEAST = 5
ROWS = 40
parts = st.builds(
    lambda start, width: np.arange(start, min(ROWS, start + width), dtype=np.uint64),
    st.integers(0, ROWS - LEAST), st.integers(LEAST, ROWS),
)  # fmt: skip
scattered = st.sets(st.integers(0, ROWS - 1), min_size=LEAST).map(lambda rows: np.array(sorted(rows), np.uint64))


def points(*ranges: tuple[int, int]) -> np.ndarray:
    return np.concatenate([np.arange(a, b, dtype=np.uint64) for a, b in ranges])


@settings(deadline=None)
@given(st.lists(st.one_of(parts, scattered), max_size=12))
def test_every_cell_is_large_and_every_evaluation_is_of_whole_cells(asked: list[np.ndarray]) -> None:
    state = [np.empty(0, np.uint64), np.empty(0, np.uint32)]
    told: list[np.ndarray] = []
    for rows in asked:
        try:
            *state, kept = divide(*state, rows, LEAST)
        except PolicyError:
            continue
        assert kept.sum() >= LEAST
        rows = rows[kept]
        told.append(rows)
        again = divide(*state, rows, 10**9)  # the same rows may always be evaluated again, and change nothing
        assert again[2].all()
        np.testing.assert_array_equal(again[0], state[0])
        assert len(np.unique(again[1])) == len(np.unique(state[1]))
    known, cells = state
    assert (np.bincount(cells) >= LEAST).all()
    assert (np.diff(known.astype(np.int64)) > 0).all()
    for rows in told:
        inside = np.isin(known, rows)
        assert inside.sum() == len(rows)
        assert all(inside[cells == cell].all() or not inside[cells == cell].any() for cell in np.unique(cells))
    for one in told:
        for other in told:
            left = len(np.setdiff1d(one, other))
            assert left == 0 or left >= LEAST


@pytest.fixture
def record(tmp_path: Path) -> EvaluatedRows:
    with closing(EvaluatedRows(tmp_path)) as made:
        made.take("customers.late", points((0, 25)), 10)
        yield made


@pytest.mark.parametrize(
    ("allowed", "rows"),
    {
        "the same": points((0, 25)),
        "the complement": points((25, 100)),
        "everything": points((0, 100)),
        "the next fold": points((25, 50)),
        "another seed": points((10, 60)),
    }.items(),
)
def test_hold_outs_folds_and_complements_are_evaluated(record: EvaluatedRows, allowed: str, rows: np.ndarray) -> None:
    record.check("customers.late", rows, 10)
    record.take("customers.late", rows, 10)


@pytest.mark.parametrize(
    ("refused", "rows"),
    {
        "what would divide too small a cell": points((6, 25)),
        "a few rows of it": points((0, 9)),
    }.items(),
)
def test_what_would_tell_of_a_few_rows_is_refused(record: EvaluatedRows, refused: str, rows: np.ndarray) -> None:
    least = 13  # two cells of 13 rows do not fit into 25
    for ask in (record.check, record.take):
        with pytest.raises(PolicyError, match="fewer than 13 rows by the difference"):
            ask("customers.late", rows, least)
    record.take("customers.late", points((0, 25)), least)  # nothing was recorded
    record.take("customers.amount", points((6, 25)), least)  # each label has its own record


@pytest.mark.parametrize(
    ("asked", "rows", "told"),
    [
        ("one row more", points((0, 26)), points((0, 25))),
        ("a few of the former beside many others", points((20, 60)), points((25, 60))),
        ("a table that grows day by day", points((0, 34)), points((0, 25))),
        ("until it has grown enough", points((0, 35)), points((0, 35))),
        ("one row has left: others keep it company", points((0, 24)), points((9, 24))),
        ("and the lowest ones do", points((1, 25)), points((10, 25))),
        ("one row for another", points((1, 26)), points((10, 25))),
    ],
)
def test_a_few_rows_are_left_out(record: EvaluatedRows, asked: str, rows: np.ndarray, told: np.ndarray) -> None:
    kept = rows[record.check("customers.late", rows, 10)]
    np.testing.assert_array_equal(kept, told, err_msg=asked)
    if len(kept) < len(rows):
        with pytest.raises(PolicyError, match="fewer than 10 rows"):
            record.take("customers.late", rows, 10)
    record.take("customers.late", kept, 10)
    again = rows[record.check("customers.late", rows, 10)]
    np.testing.assert_array_equal(again, told, err_msg="a job that comes again")


def test_a_few_new_rows_alone_are_refused(record: EvaluatedRows) -> None:
    with pytest.raises(PolicyError, match="fewer than 10 rows"):
        record.check("customers.late", points((25, 30)), 10)


def test_three_evaluations_are_combined_too(tmp_path: Path) -> None:
    """Each two differ in many rows, and all together in one: A + B - C."""
    with closing(EvaluatedRows(tmp_path)) as record:
        record.take("t.y", points((0, 50)), 10)
        record.take("t.y", points((50, 100)), 10)
        rows = points((0, 99))
        with pytest.raises(PolicyError):
            record.take("t.y", rows, 10)
        np.testing.assert_array_equal(rows[record.check("t.y", rows, 10)], points((0, 50), (59, 99)))


@settings(deadline=None)
@given(st.lists(st.sets(st.integers(0, ROWS - 1), max_size=4), min_size=1, max_size=10), st.integers(0, 3))
def test_a_table_that_loses_rows_is_evaluated_as_long_as_enough_are_left(lost: list[set[int]], added: int) -> None:
    """Whatever rows leave between reports, no sum of reports is of fewer than so many of them, and others."""
    table = set(range(ROWS))
    state = [np.empty(0, np.uint64), np.empty(0, np.uint32)]
    told: list[np.ndarray] = []
    for k, leaving in enumerate(lost):
        table = (table - leaving) | set(range(ROWS + k * added, ROWS + (k + 1) * added))
        rows = np.array(sorted(table), np.uint64)
        try:
            *state, kept = divide(*state, rows, LEAST)
        except PolicyError:
            largest = max(sum(state[1] == cell) for cell in np.unique(state[1]))
            assert largest < 2 * LEAST, "a cell of so many rows can give a few of them up"
            break
        told.append(rows[kept])
        assert (np.bincount(state[1]) >= LEAST).all()
    universe = np.unique(np.concatenate(told))
    members = np.array([np.isin(universe, rows) for rows in told])
    _, sizes = np.unique(members, axis=1, return_counts=True)
    assert (sizes >= LEAST).all()  # rows that no two reports tell apart: a sum of reports is over whole sets of them


def test_the_record_outlives_a_restart(tmp_path: Path) -> None:
    with closing(EvaluatedRows(tmp_path)) as record:
        record.take("t.y", points((0, 50)), 10)
    with closing(EvaluatedRows(tmp_path)) as record, pytest.raises(PolicyError, match=r"evaluated\.sqlite"):
        record.take("t.y", points((1, 50)), 30)


def test_a_record_that_is_damaged_lets_nothing_be_evaluated(tmp_path: Path) -> None:
    with closing(EvaluatedRows(tmp_path)) as record:
        record.take("t.y", points((0, 50)), 10)
        with record._db.transaction() as db:
            db.execute("UPDATE cells SET cells = x'00'")
        with pytest.raises(JournalError, match="damaged"):
            record.check("t.y", points((0, 50)), 10)


@pytest.mark.parametrize(
    ("then", "rows", "allowed"),
    [
        ("the same rows", points((0, 60)), True),
        ("without one", points((1, 60)), False),
        ("with a new one", points((0, 61)), False),
        ("with many new ones", points((0, 70)), True),
        ("one for another", points((1, 61)), False),
        ("without many", points((10, 60)), True),
        ("a fold", points((30, 60)), True),
        ("other rows", points((60, 80)), True),
        ("a few other rows", points((60, 69)), False),
    ],
)
def test_hidden_trainings_are_on_all_of_their_rows_or_refused(
    tmp_path: Path, then: str, rows: np.ndarray, allowed: bool
) -> None:
    with closing(EvaluatedRows(tmp_path)) as record:
        record.take_whole("customers", points((0, 60)), 10)
        record.take_whole("others", points((5, 60)), 10)  # each table has its own record
        if allowed:
            record.take_whole("customers", rows, 10)
        else:
            with pytest.raises(PolicyError, match="counts of fewer than 10 rows by the difference"):
                record.take_whole("customers", rows, 10)
        record.take_whole("customers", points((0, 60)), 10**9)  # a job that comes again, however much is asked for
