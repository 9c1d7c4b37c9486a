"""What a party has on disk, read only: the pages show nothing that the party does not know."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.dashboard.views import MODELS_AT_HAND, NO_TREES, TREES_AT_HAND, StateView
from woodlot.data.sources import LoadedTable
from woodlot.exceptions import DataError, ModelFileError
from woodlot.identity.identity import Identity
from woodlot.jobs.party_store import LEADER, read_alignment
from woodlot.protocols.core.forest_parts import PartyForest
from woodlot.protocols.core.part_files import HEADER, STUMBLES, format_of
from woodlot.protocols.linear.linear_files import FORMAT as LINEAR_FORMAT
from woodlot.protocols.linear.linear_files import load_own_linear
from woodlot.protocols.linear.linear_model import PartyLinear
from woodlot.protocols.vertical.files import StoredTrees, load_own_part
from woodlot.service.config import PartyConfig
from woodlot.service.privacy_accounts import privacy_accounts

_LABELS_GIVEN = {"EncodedLabels", "LabelsSent"}
_LABELS_RECEIVED = {"StartForest"}
_SIDES_RECEIVED = {"GrowLevel", "RegrowLevel", "ExpandLeaves"}


class PartyView(StateView):
    """What a party knows.

    Parameters
    ----------
    config : PartyConfig
        Names its state folder and its tables.

    """

    def __init__(self, config: PartyConfig) -> None:
        self.identity = Identity.load(config.identity)
        super().__init__(self.identity.name, config.state)
        self.config = config
        self.policy = config.policy
        self.tables = config.tables
        self._part = functools.lru_cache(maxsize=MODELS_AT_HAND)(self._read_part)
        self._trees = functools.lru_cache(maxsize=MODELS_AT_HAND)(self._open_trees)
        self._tree = functools.lru_cache(maxsize=TREES_AT_HAND)(self._read_tree)
        self._table = functools.lru_cache(maxsize=MODELS_AT_HAND)(self._read_table)

    @property
    def expires(self) -> datetime:
        """When its certificate expires."""
        return self.identity.expires

    def policy_lines(self) -> dict[str, str]:
        """The party's own rules, as its configuration has them."""
        return {name: _written(value) for name, value in msgspec.to_builtins(self.policy).items()}

    def accounts(self) -> list[dict[str, Any]]:
        """What it has spent of its privacy, by table."""
        return [] if self.journal() is None else privacy_accounts(self.config)

    def sight(self, model: str) -> str:
        """What the party was told of the training rows while a model grew, by its own record.

        Returns
        -------
        {"holder", "labels", "sides", ""}
            It has the labels itself; it received them under a code; it received the sides of rows only; or nothing of
            that is recorded.
        """
        messages = list(self.disclosures(model))
        if any(row.sender == self.name and row.kind in _LABELS_GIVEN for row in messages):
            return "holder"
        kinds = {row.kind for row in messages if row.receiver == self.name}
        if kinds & _LABELS_RECEIVED:
            return "labels"
        return "sides" if kinds & _SIDES_RECEIVED else ""

    def models(self) -> list[str]:
        """The models that the party has a part of."""
        return sorted(path.parent.name for path in (self.folder / "models").glob(f"[!.]*/{HEADER}"))

    def keeper(self, model: str) -> str:
        """Who keeps the answers of a model: the party that has led its training, or the coordinator."""
        mark = self.folder / "models" / model / LEADER
        return mark.read_text() if mark.is_file() else "the coordinator"

    def part(self, model: str) -> PartyForest:
        """The party's part of a forest."""
        part = self._any_part(model)
        if isinstance(part, PartyLinear):
            raise DataError(NO_TREES)
        return part

    def weights(self, model: str) -> list[dict[str, Any]] | None:
        """The party's own weights by column, and by category where a column has some; None of a forest."""
        part = self._any_part(model)
        if not isinstance(part, PartyLinear):
            return None
        columns = part.columns
        names = [
            name if category is None else f"{name} = {category}"
            for name, categories in zip(columns.names, columns.categories, strict=True)
            for category in (categories if categories is not None else (None,))
        ]
        return [{"name": name, "weights": own.tolist()} for name, own in zip(names, part.weights, strict=True)]

    def n_trees(self, model: str) -> int:
        """How many trees a forest has."""
        return self._trees(*self._place(model)).n_trees

    def tree(self, model: str, tree: int) -> PartyForest:
        """The party's part of one tree of a forest, as a forest of its own."""
        return self._tree(*self._place(model), tree)

    def _read_tree(self, folder: Path, stamp: int, tree: int) -> PartyForest:
        return self._trees(folder, stamp).partys(tree)

    def _open_trees(self, folder: Path, stamp: int) -> StoredTrees:
        if format_of(folder) == LINEAR_FORMAT:
            raise DataError(NO_TREES)
        return StoredTrees(folder)

    def _any_part(self, model: str) -> PartyForest | PartyLinear:
        return self._part(*self._place(model))

    def _place(self, model: str) -> tuple[Path, int]:
        """Where its part of a model is, and since when."""
        folder = self.folder / "models" / Path(model).name
        try:
            return folder, (folder / HEADER).stat().st_mtime_ns
        except OSError:
            raise DataError(f"{self.name} has no part of model {model!r}") from None

    def _read_part(self, folder: Path, stamp: int) -> PartyForest | PartyLinear:
        try:
            forest = json.loads((folder / HEADER).read_bytes())["forest"]
        except (OSError, *STUMBLES) as error:
            raise ModelFileError(f"{folder} cannot be read as part of a model: {error}") from None
        if format_of(folder) == LINEAR_FORMAT:
            return load_own_linear(folder, self.name, forest)
        return load_own_part(folder, self.name, forest)

    def importances(self, model: str) -> list[dict[str, Any]]:
        """How often each of its own columns splits, by its true name: gains are known to the coordinator only."""
        part = self.part(model)
        counts = np.bincount(part.splits.feature, minlength=len(part.names))
        named = [{"name": n, "party": self.name, "value": int(c)} for n, c in zip(part.names, counts, strict=True)]
        return sorted(named, key=lambda feature: -feature["value"])

    def loaded(self, table: str) -> LoadedTable:
        """One of its tables."""
        if table not in self.tables:
            raise DataError(f"{self.name} has no table {table!r}; it has {sorted(self.tables)}")
        return self._table(table)

    def _read_table(self, table: str) -> LoadedTable:
        return self.tables[table].read()

    def alignment(self, job: str) -> tuple[str, NDArray[np.int64]]:
        """The table that a job has aligned, and the party's own row of each common row."""
        try:
            facts, rows = read_alignment(self.folder, job)
        except DataError:
            raise DataError(f"{self.name} keeps no alignment {job!r}") from None
        return facts.table, rows

    def answers(self) -> list[Path]:
        """Answers that were delivered here."""
        found = (self.folder / "answers").glob("[!.]*.parquet")
        return sorted(found, key=lambda path: -path.stat().st_mtime)

    def confusion(self, job: str, table: str, label: str) -> dict[str, Any]:
        """Delivered answers against the party's own labels: counts by class, or pairs of numbers."""
        import pyarrow.parquet as pq

        path = self.folder / "answers" / f"{Path(job).name}.parquet"
        if not path.is_file():
            raise DataError(f"no answers of job {job!r} were delivered to {self.name}")
        loaded = self.loaded(table)
        answers = pq.read_table(path)
        if label not in loaded.columns:
            raise DataError(f"table {table!r} has no column {label!r}")
        if loaded.id not in answers.column_names:
            raise DataError(f"the answers have no ids of table {table!r}; choose the table that was predicted")
        truth = dict(zip(loaded.ids.to_pylist(), loaded.values(label).tolist(), strict=True))
        pairs = [
            (truth[key], said)
            for key, said in zip(answers[loaded.id].to_pylist(), answers["prediction"].to_pylist(), strict=True)
            if key in truth
        ]
        if not pairs:
            raise DataError(f"no id of the answers is in table {table!r}; choose the table that was predicted")
        return _compare(pairs, is_classes=any(name.startswith("probability_") for name in answers.column_names))


def _compare(pairs: Sequence[tuple[Any, Any]], is_classes: bool) -> dict[str, Any]:
    if not is_classes:
        points = [[float(t), float(s)] for t, s in pairs]
        return {"kind": "residuals", "points": points[:2000], "n_rows": len(points)}
    classes = sorted({str(t) for t, _ in pairs} | {str(s) for _, s in pairs})
    place = {name: i for i, name in enumerate(classes)}
    counts = [[0] * len(classes) for _ in classes]
    for truth, said in pairs:
        counts[place[str(truth)]][place[str(said)]] += 1
    right = sum(counts[i][i] for i in range(len(classes)))
    return {
        "kind": "classes", "classes": classes, "counts": counts, "n_rows": len(pairs), "score": right / len(pairs)
    }  # fmt: skip


def _written(value: Any) -> str:
    """A setting as it stands in a file, without quotation marks and brackets."""
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "true" if value else "false"
    return "not set" if value is None else str(value)
