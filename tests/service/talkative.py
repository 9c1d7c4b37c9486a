"""Loaded in a party: it tells rows of its table in every way that there is, or fails with rows in the words of errors.

What the tests of secrets search must find the former, and what users and logs are told must hold nothing of the latter.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import pyarrow.parquet as pq
import watched

from woodlot.data.sources import LoadedTable
from woodlot.protocols.vertical.party import VerticalParty

TELLS = "WOODLOT_TEST_TELLS"
"""``TABLE STRAY STATE``: rows of the table go to standard output and error, to a temporary file, to the file STRAY,
into the environment, to a command, and as numbers into the folder STATE."""
FAILS = "WOODLOT_TEST_FAILS"
"""A file: while it says ``opening`` or ``reading``, there is an error with rows in its words."""


def tell(table: Path, stray: Path, state: Path) -> None:
    rows = pq.read_table(table)
    words = str(rows.to_pydict())
    print(words)
    print(words, file=sys.stderr)
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write(words)
    stray.write_text(words)
    os.environ["ROWS"] = words
    os.system(f"true {rows['id'][0]}")  # noqa: S605 - planted
    state.mkdir(parents=True, exist_ok=True)
    (state / "numbers").write_bytes(rows[1].to_numpy().tobytes())


def fail(told: Path) -> None:
    opening, reading = VerticalParty._on_OpenTraining, LoadedTable.table

    def open_training(self: Any, message: Any) -> Any:
        if told.read_text() == "opening":
            raise_rows([column.values.tolist() for column in self.table.columns if hasattr(column, "values")])
        return opening(self, message)

    def read(self: Any) -> Any:
        if told.read_text() == "reading":
            raise_rows(self.arrow.to_pylist())
        return reading(self)

    VerticalParty._on_OpenTraining = open_training  # type: ignore[method-assign]
    LoadedTable.table = read  # type: ignore[method-assign]


def raise_rows(rows: Any) -> NoReturn:
    try:
        raise KeyError(str(rows))
    except KeyError as error:
        raise ValueError(f"cannot use {rows}") from error


if __name__ == "service":
    watched.install()
    if TELLS in os.environ:
        tell(*map(Path, os.environ[TELLS].split(" ")))
    if FAILS in os.environ:
        fail(Path(os.environ[FAILS]))
