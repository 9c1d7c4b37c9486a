"""What the experiments on RevFRF's cost share: rows of Adult Income, one column per participant."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

import woodlot as wl
from woodlot.crypto.dtpkc import SETTING_BITS, Setting
from woodlot.crypto.master import MasterKey
from woodlot.federation.local_revocable import Encryption
from woodlot_lab.data import DataSource
from woodlot_lab.forests import TEST_SHARE, Split, filled, split

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


def timed_keys(encryption: str) -> tuple[Encryption, list[float]]:
    """Keys of this length, and a list that will have the CPU seconds of their making, which is done once."""
    seconds: list[float] = []

    def make(*given: Any, **settings: Any) -> MasterKey:
        start = time.process_time()
        key = MasterKey.generate(*given, **settings)
        seconds.append(time.process_time() - start)
        return key

    setting: Setting = "paper" if encryption == "paper" else "standard"
    return Encryption(SETTING_BITS["paper"] if setting == "paper" else int(encryption), setting, make), seconds


def grow(rows: Split, encryption: str | Encryption, trees: int, depth: int, seed: int, columns: Sequence[str]) -> Any:
    """A revocable forest over the participants of these columns."""
    parties = {party: own for party, own in participants(rows).items() if own[0] in columns}
    model = wl.RevocableForestClassifier(
        trees,
        parties=parties,
        scheme="paper",
        encryption=int(encryption) if isinstance(encryption, str) and encryption.isdigit() else encryption,
        max_depth=depth,
        random_state=seed,
        n_jobs=1,
    )
    return model.fit(table(rows.train, columns), rows.y_train)


def splits_of(model: Any) -> int:
    """Nodes with a split, which are those that are encrypted."""
    return int((model.forest_.coordinator.owner >= 0).sum())
