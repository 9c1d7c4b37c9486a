"""Rows are split by rules: a hash of their ids says on which side each is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import woodlot as wl
from companies import ALL, BANK, SHOP, federation
from woodlot.data.row_rules import CIRCLE, RowRule, row_points, whole_circle
from woodlot.exceptions import DataError

POINTS = np.array([0, 1, CIRCLE // 4, CIRCLE // 2 - 1, CIRCLE // 2, CIRCLE - 1], np.uint64)


def people(first: int, last: int) -> wl.Federation:
    """Rows with these ids, at two parties in different orders."""
    ids = np.arange(first, last)
    bank = pd.DataFrame({"id": ids, "age": ids % 60, "late": np.where(ids % 3 == 0, "yes", "no")})
    return wl.Federation.local({"bank": bank, "shop": pd.DataFrame({"id": ids[::-1], "visits": ids % 7})}, id="id")


@given(start=st.integers(0, CIRCLE - 1), stop=st.integers(1, CIRCLE), share=st.floats(0.01, 0.99))
def test_a_part_and_the_rest_are_the_whole(start: int, stop: int, share: float) -> None:
    rule = RowRule(3, start, stop)
    part = rule.part(0, share)
    rest = rule.rest(part)
    if rule.width < 1000:
        return  # too narrow to be divided
    chosen = [r.chosen(POINTS) for r in (rule, part, rest)]
    np.testing.assert_array_equal(chosen[0], chosen[1] | chosen[2])
    assert not (chosen[1] & chosen[2]).any()
    assert part.width + rest.width == rule.width
    assert abs(part.width / rule.width - share) < 1e-2


@given(st.integers(2, 20), st.integers(0, 5))
def test_folds_are_a_partition(n_folds: int, seed: int) -> None:
    circle = whole_circle(seed)
    parts = [circle.part(k / n_folds, (k + 1) / n_folds) for k in range(n_folds)]
    assert sum(part.chosen(POINTS).astype(int) for part in parts).tolist() == [1] * len(POINTS)  # type: ignore[union-attr]
    for part in parts:
        np.testing.assert_array_equal(circle.rest(part).chosen(POINTS), ~part.chosen(POINTS))


def test_points_need_the_key_and_the_seed() -> None:
    ids = [bytes([k]) for k in range(200)]
    points = row_points(ids, 0)
    np.testing.assert_array_equal(points, row_points(ids, 0))
    assert not np.isin(points, row_points(ids, 1)).any()
    assert not np.isin(points, row_points(ids, 0, key=b"that the parties share")).any()
    assert 0.4 < (points < CIRCLE // 2).mean() < 0.6


def test_rows_stay_where_they_are_when_others_are_added() -> None:
    few, many = people(0, 300), people(-200, 600)
    for part, larger in zip(few.split(0.25, seed=4), many.split(0.25, seed=4), strict=True):
        assert set(part.ids.tolist()) == set(larger.ids.tolist()) & set(few.ids.tolist())
    train, test = many.split(0.25, seed=4)
    assert abs(len(test) / 800 - 0.25) < 0.05
    assert sorted([*train.ids, *test.ids]) == sorted(many.ids)
    assert set(test.ids) != set(many.split(0.25, seed=5)[1].ids)


def test_ids_of_another_width_or_party_order_are_the_same_ids() -> None:
    fed = people(0, 100)
    other = wl.Federation.local(
        {
            "shop": pd.DataFrame({"id": np.arange(100, dtype=np.int16), "visits": 1.0}),
            "bank": fed.members["bank"].source,
        },
        id="id",
    )
    assert set(fed.split()[1].ids.tolist()) == set(other.split()[1].ids.tolist())


def test_a_part_is_divided_again_with_the_same_seed() -> None:
    train, test = people(0, 1000).split(0.2, seed=0)
    fit, validate = train.split(0.25, seed=0)
    assert abs(len(validate) / len(train) - 0.25) < 0.05
    assert sorted([*fit.ids, *validate.ids]) == sorted(train.ids)
    assert not set(validate.ids) & set(test.ids)
    again = fit[::2].split(0.5, seed=0)
    assert min(map(len, again)) > 100


def test_clients_split_their_rows_where_they_are() -> None:
    rows = ALL.drop(columns=["amount", "weight"])
    fed = wl.Federation.local({"north": rows[:70], "south": rows[70:]}, id="id", layout="rows")
    train, test = fed.split(0.3, seed=1)
    alone = wl.Federation.local({"south": rows[70:]}, id="id", layout="rows").split(0.3, seed=1)[1]
    assert [len(part.members["south"].table.names) for part in (train, test)] == [5, 5]
    assert test.members["south"].table.n_rows == len(alone)
    assert len(train) + len(test) == 120
    assert train["default"].tolist() + test["default"].tolist() != fed["default"].tolist()
    model = wl.LocalForestsClassifier(5, random_state=0).fit(train, y="default")
    assert len(model.predict(test)) == len(test)


def test_rows_without_ids_are_known_by_their_place() -> None:
    fed = wl.Federation.local({"bank": ALL[BANK[1:]], "shop": ALL[SHOP[1:]]})
    train, test = fed.split(seed=2)
    longer = pd.concat([ALL, ALL]).reset_index(drop=True)
    again = wl.Federation.local({"bank": longer[BANK[1:]], "shop": longer[SHOP[1:]]}).split(seed=2)[1]
    assert again.lineage.positions[: len(test)].tolist() == test.lineage.positions.tolist()
    inner = train.split(0.5, seed=9)
    assert sorted(np.concatenate([p.lineage.positions for p in inner])) == sorted(train.lineage.positions)


def test_folds_are_about_equal() -> None:
    folds = people(0, 2000).fold_numbers(5, seed=0)
    counts = np.bincount(folds)
    assert len(counts) == 5
    assert (np.abs(counts - 400) < 80).all()


BAD: list[tuple[dict[str, Any], str]] = [
    ({"test_size": 0}, "test_size must be a share between 0 and 1"),
    ({"test_size": 1.0}, "test_size must be a share"),
    ({"test_size": 30}, "test_size must be a share"),
    ({"test_size": "0.5"}, "test_size must be a share"),
    ({"seed": -1}, "seed must be a whole number"),
    ({"seed": 0.5}, "seed must be a whole number"),
    ({"test_size": 1e-9}, "leaves none to test on; take another seed"),
    ({"test_size": 1 - 1e-9}, "leaves none to train on"),
]


@pytest.mark.parametrize(("options", "words"), BAD)
def test_bad_splits(options: dict[str, Any], words: str) -> None:
    with pytest.raises((ValueError, DataError), match=words):
        federation().split(**options)
