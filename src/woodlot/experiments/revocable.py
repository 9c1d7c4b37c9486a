"""What the experiments on RevFRF's cost share: rows of Adult Income, one column per participant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import woodlot as wl
from woodlot.experiments.data import DataSource
from woodlot.experiments.forests import TEST_SHARE, Split, filled, split

SAMPLES = 5_000
"""The paper's, for its tables of costs."""


def bits_of(encryption: str) -> str:
    """The length of the keys in words."""
    return "1024 bits (the paper's)" if encryption == "paper" else f"{encryption} bits"


def participants(rows: Split) -> dict[str, list[str]]:
    """One column each."""
    return {f"p{column}": [f"x{column}"] for column in range(rows.train.shape[1])}


def rows_of(data: DataSource, name: str, seed: int, samples: int) -> Split:
    """So many rows to learn from; classes as they are."""
    return filled(split(data.load(name), seed, most_rows=round(samples / (1 - TEST_SHARE))))


def table(X: Any, columns: Sequence[str]) -> pa.Table:
    """Named columns, which keep their names when others go."""
    return pa.table({name: X[:, int(name[1:])] for name in columns})


def grow(rows: Split, encryption: str, trees: int, depth: int, seed: int, columns: Sequence[str]) -> Any:
    """A revocable forest over the participants of these columns."""
    parties = {party: own for party, own in participants(rows).items() if own[0] in columns}
    model = wl.RevocableForestClassifier(
        trees,
        parties=parties,
        encryption=int(encryption) if encryption.isdigit() else encryption,
        max_depth=depth,
        random_state=seed,
        n_jobs=1,
    )
    return model.fit(table(rows.train, columns), rows.y_train)


def splits_of(model: Any) -> int:
    """Nodes with a split, which are those that are encrypted."""
    return int((model.forest_.coordinator.owner >= 0).sum())


def building_seconds(model: Any) -> float:
    """Time of growing and encrypting, without the making of keys, which is done once."""
    return float(sum(seconds for phase, seconds in model.cost_.seconds.items() if phase != "keys"))
