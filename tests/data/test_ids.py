from __future__ import annotations

import decimal
import unicodedata
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodlot.data.ids import canonical_ids
from woodlot.exceptions import DataError

SOMEONE = "K-4711-Xaver"


@pytest.mark.parametrize(
    "column",
    [
        [5, 0, 120],
        np.array([5, 0, 120], np.int8),
        np.array([5, 0, 120], np.uint16),
        np.array([5, 0, 120], ">i4"),
        pa.array([5, 0, 120], pa.uint64()),
        pa.chunked_array([[5], [0, 120]], pa.int32()),
        pa.array([5, 0, 120], pa.int16()).dictionary_encode(),
        pa.array([decimal.Decimal(5), decimal.Decimal(0), decimal.Decimal(120)], pa.decimal128(20, 0)),
        pd.Series([5, 0, 120], dtype="Int64"),
        pl.Series([5, 0, 120]),
    ],
    ids=lambda column: f"{type(column).__name__} {getattr(column, 'dtype', getattr(column, 'type', ''))}",
)
def test_whole_numbers_of_any_width_are_alike(column: Any) -> None:
    ids = canonical_ids(column)
    assert ids.kind == "whole numbers"
    assert ids.values == [b"i" + value.to_bytes(9, "big", signed=True) for value in (5, 0, 120)]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), unique=True, min_size=1))
def test_every_number_has_its_own_bytes(numbers: list[int]) -> None:
    assert canonical_ids(numbers).values == [b"i" + number.to_bytes(9, "big", signed=True) for number in numbers]


def test_numbers_beyond_2_63() -> None:
    top = canonical_ids(np.array([2**64 - 1, 7], np.uint64)).values
    assert canonical_ids(pl.Series([2**64 - 1, 7], dtype=pl.UInt64)).values == top
    assert top == [b"i" + (2**64 - 1).to_bytes(9, "big", signed=True), *canonical_ids([7]).values]
    assert canonical_ids([-1]).values != top[:1]


@pytest.mark.parametrize(
    "column",
    [
        ["007", " 7", "Jürg"],
        np.array(["007", " 7", "Jürg"]),
        np.array(["007", " 7", "Jürg"], object),
        np.array(["007", " 7", "Jürg"], np.dtypes.StringDType()),
        pa.array(["007", " 7", "Jürg"], pa.large_string()),
        pa.array(["007", " 7", "Jürg"], pa.string_view()),
        pa.chunked_array([["007"], [" 7", "Jürg"]]),
        pd.Series(["007", " 7", "Jürg"]),
        pd.Series(["007", " 7", "Jürg"], dtype="category"),
        pl.Series(["007", " 7", "Jürg"]),
    ],
    ids=lambda column: f"{type(column).__name__} {getattr(column, 'dtype', getattr(column, 'type', ''))}",
)
def test_text_is_not_trimmed_nor_read_as_a_number(column: Any) -> None:
    ids = canonical_ids(column)
    assert ids.kind == "text"
    assert ids.values == [b"t007", b"t 7", b"tJ\xc3\xbcrg"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=1))
def test_text_is_normalised_to_nfc(texts: list[str]) -> None:
    normal = list(dict.fromkeys(unicodedata.normalize("NFC", text) for text in texts))
    decomposed = [unicodedata.normalize("NFD", text) for text in normal]
    assert canonical_ids(normal).values == canonical_ids(decomposed).values
    assert [value.decode() for value in canonical_ids(normal).values] == ["t" + text for text in normal]


def test_numbers_and_text_never_have_the_same_bytes() -> None:
    number = canonical_ids([12]).values[0]
    assert canonical_ids(["12"]).values[0] != number
    assert canonical_ids([number[1:].decode("latin-1")]).values[0] != number


@pytest.mark.parametrize("column", [[], np.empty(0), pa.array([], pa.string()), pa.array([], pa.null()), pd.Series([])])
def test_a_column_without_rows_is_of_no_kind(column: Any) -> None:
    ids = canonical_ids(column)
    assert (ids.kind, ids.values, len(ids)) == ("nothing", [], 0)


def test_the_digest_tells_order_kind_and_ends_apart() -> None:
    tables = [["a", "b"], ["b", "a"], ["ab"], ["a", "bc"], ["ab", "c"], [1, 2], [1], []]
    digests = {canonical_ids(table).digest() for table in tables}
    assert len(digests) == len(tables)
    assert canonical_ids(["a", "b"]).digest() in digests


@pytest.mark.parametrize(
    ("column", "words"),
    [
        ([SOMEONE, None, "b", None], "2 rows without an id"),
        ([SOMEONE, "", "b"], "1 rows without an id"),
        (pd.Series([SOMEONE, np.nan, "b"]), "1 rows without an id"),
        (pd.Series([3, None, None, None], dtype="Int64"), "3 rows without an id"),
        (pd.Series([1.0, np.nan]), "1 rows without an id"),
        ([None, None], "2 rows without an id"),
        (np.ma.array([1, 2, 3], mask=[0, 1, 0]), "1 rows without an id"),
        ([SOMEONE, "b", SOMEONE, "c", "c", "c"], "2 ids more than once, in 5 of 6 rows"),
        ([3, 4, 3], "1 ids more than once, in 2 of 3 rows"),
        (["é", "e\u0301"], "1 ids more than once"),
        ([1.0, 2.0], "all whole: convert them to integers"),
        (np.array([1.0, 2.5], np.float32), "not whole, and rounding"),
        (pa.array([decimal.Decimal("1.50")]), "not whole, and rounding"),
        (pa.array([decimal.Decimal(10) ** 30]), "more than 64 bits; make the ids text"),
        ([2**70], "more than 64 bits; make the ids text"),
        ([True, False], "truth values"),
        (np.array(["2024-01-31"], "M8[D]"), "dates or times .*ISO 8601"),
        ([SOMEONE.encode()], "type binary; ids are whole numbers or text"),
        ([SOMEONE, 4711], "give all ids the same type"),
        ([4711, True], "give all ids the same type"),
        (["\ud800"], "give all ids the same type"),
        ([{"id": SOMEONE}], "type struct"),
        (pa.array([SOMEONE.encode() + b"\xff"]).view(pa.string()), "not UTF-8"),
    ],
)
def test_refused(column: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        canonical_ids(column, "the id column of bank")
    assert str(caught.value).startswith("the id column of bank ")
    assert "4711" not in str(caught.value)
