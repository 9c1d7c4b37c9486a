"""Text that looks like numbers, or is different in every row, is warned about; what is meant as categories is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import woodlot as wl
from woodlot.data.doubtful import DoubtfulTextWarning
from woodlot.data.tables import read_table

N = 40
ROWS = pd.DataFrame(
    {
        "age": [str(20 + i % 9) for i in range(N)],
        "name": [f"person {i}" for i in range(N)],
        "colour": ["red", "green"] * (N // 2),
    }
)
MAKERS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "pandas": lambda frame: frame,
    "pandas strings": lambda frame: frame.convert_dtypes(),
    "polars": pl.DataFrame,
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_text_that_looks_like_numbers(make: Callable[[pd.DataFrame], Any]) -> None:
    for texts in (ROWS["age"], ["1.5", "-2", "3e5"] * 13 + [None]):
        frame = pd.DataFrame({"age": texts})
        with pytest.warns(DoubtfulTextWarning, match=r"Column 'age' of X holds text that looks.*to_numeric\(table"):
            read_table(make(frame))


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_text_that_is_different_in_every_row(make: Callable[[pd.DataFrame], Any]) -> None:
    with pytest.warns(
        DoubtfulTextWarning, match=r"Column 'name' of the table of bank holds a different text.*id="
    ) as w:
        read_table(make(ROWS[["name"]]), what="the table of bank")
    assert "person" not in str(w[0].message)  # it may be an id
    with pytest.warns(DoubtfulTextWarning, match="a different text in every row"):
        read_table(make(pd.DataFrame({"name": [None, *ROWS["name"]]})))


def test_a_plain_array_of_text() -> None:
    with pytest.warns(DoubtfulTextWarning, match="Column '0' of X holds a different text in every row"):
        read_table(ROWS[["name"]].to_numpy())


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_what_is_meant_as_categories_is_not_doubted(make: Callable[[pd.DataFrame], Any]) -> None:
    few = ROWS[:19][["name"]]
    binary = pd.DataFrame({"flag": ["0", "1"] * 20})
    mixed = pd.DataFrame({"size": ["1", "2", "large"] * 10})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for frame in (ROWS[["colour"]], few, binary, mixed):
            read_table(make(frame))
        read_table(ROWS.astype("category"))
        read_table(pa.table({"age": pa.array(ROWS["age"].tolist()).dictionary_encode()}))
        read_table(make(ROWS[["name", "colour"]]), skip="name")


def test_a_fit_names_the_column_and_the_table() -> None:
    labels = pd.DataFrame({"y": np.arange(N) % 2})
    here = {"bank": labels, "shop": ROWS[["age", "colour"]]}
    with pytest.warns(DoubtfulTextWarning, match="Column 'age' of the table of shop holds text that looks like"):
        fed = wl.Federation.local(here)
    assert fed.columns("shop") == ("age", "colour")
