"""What each role has on disk, read only: the pages show nothing that the role does not know.

A view reads the state folder of one service, also while the service runs. The coordinator's view and a party's view
never share anything: what a page shows "as bank sees it" comes from bank's folder alone.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from cryptography import x509
from numpy.typing import NDArray

from woodlot.data.sources import LoadedTable
from woodlot.exceptions import DataError, JournalError, ModelFileError, ReceiptError, WoodlotError
from woodlot.protocols import messages  # noqa: F401 - every message must be known, or its disclosure would not be
from woodlot.protocols.linear.files import FORMAT as LINEAR_FORMAT
from woodlot.protocols.linear.files import load_own_linear
from woodlot.protocols.linear.model import PartyLinear
from woodlot.protocols.messages.jobs import JobFacts, ModelFacts
from woodlot.protocols.part_files import HEADER, format_of
from woodlot.protocols.vertical.files import load_own_part
from woodlot.protocols.vertical.model import CoordinatorForest, PartyForest
from woodlot.runtime.audit import DisclosureRow, Disclosures
from woodlot.runtime.journal import Journal, Record
from woodlot.service.config import CoordinatorConfig, PartyConfig
from woodlot.service.coordinator import HOUSEKEEPING_SECONDS
from woodlot.service.identity import Identity
from woodlot.service.job_store import JobStore
from woodlot.service.privacy_accounts import privacy_accounts
from woodlot.service.receipts import Receipt

COORDINATOR = "coordinator"
JOURNAL = "journal.sqlite"
MAX_JOBS = 200
"""Jobs in one list."""
MODELS_AT_HAND = 4
"""Forests that stay in memory between two looks at them."""
NO_TREES = "this is a linear model, which has no trees: its weights stay with the parties"
_PRESENT_SECONDS = 3 * HOUSEKEEPING_SECONDS


@dataclass(frozen=True)
class Round:
    """One round of a job, from its first request to its last reply."""

    number: int
    started: float
    seconds: float
    bytes_by_party: dict[str, int]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class PartyLine:
    """What the coordinator knows of a party: numbers only."""

    name: str
    since: float | None
    expires: datetime
    n_columns: int | None
    n_rows: int | None


class _StateView:
    """What the views of both roles have in common: the journal of the role's jobs."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder
        self._lock = threading.Lock()
        self._journal: Journal | None = None

    def journal(self) -> Journal | None:
        """The role's journal, None as long as its service has never run."""
        with self._lock:
            if self._journal is None and (self.folder / JOURNAL).is_file():
                self._journal = Journal.read(self.folder / JOURNAL)
            return self._journal

    def disclosures(self, job: str) -> Disclosures:
        """Who sent what to whom in a job, by this role's own record."""
        journal = self.journal()
        return Disclosures() if journal is None else journal.job(job).disclosures()

    def records(self, job: str) -> list[Record]:
        """The record of a job, message by message."""
        journal = self.journal()
        return [] if journal is None else list(journal.job(job).records())

    def check(self, job: str) -> str:
        """What is wrong with the record of a job; empty if it is whole."""
        journal = self.journal()
        try:
            if journal is not None:
                journal.job(job).verify()
        except JournalError as error:
            return str(error)
        return ""

    def rounds(self, job: str) -> list[Round]:
        """Time and bytes of each round; requests of one number, and their replies, are one round."""
        by_number: dict[int, list[Record]] = {}
        for record in self.records(job):
            if record.sender:  # the mark of a job's end is no message
                by_number.setdefault(record.number, []).append(record)
        rounds = []
        for number, records in sorted(by_number.items()):
            started = min(r.time for r in records)
            sizes: dict[str, int] = {}
            for r in records:
                party = r.receiver if r.sender == COORDINATOR else r.sender
                sizes[party] = sizes.get(party, 0) + r.n_bytes
            kinds = tuple(dict.fromkeys(r.kind for r in records if r.sender == COORDINATOR))
            rounds.append(Round(number, started / 1e9, (max(r.time for r in records) - started) / 1e9, sizes, kinds))
        return rounds

    def all_disclosures(self) -> Disclosures:
        """All that was ever sent, by this role's own record, added up over the jobs."""
        journal = self.journal()
        totals: dict[tuple[str, str, str], DisclosureRow] = {}
        for job in [] if journal is None else journal.jobs():
            for row in self.disclosures(job):
                key = (row.sender, row.receiver, row.kind)
                before = totals.get(key)
                if before is not None:
                    row = DisclosureRow(*key, before.count + row.count, before.bytes + row.bytes, row.form, row.reveals)
                totals[key] = row
        return Disclosures(tuple(totals.values()))


class CoordinatorView(_StateView):
    """What the coordinator knows.

    Parameters
    ----------
    config : CoordinatorConfig
        Names its state folder.

    """

    def __init__(self, config: CoordinatorConfig) -> None:
        super().__init__(COORDINATOR, config.state)
        self.identity = Identity.load(config.identity)
        self.store = JobStore(config.state)
        self._forest = functools.lru_cache(maxsize=MODELS_AT_HAND)(self._read_forest)

    def running(self) -> bool:
        """Whether the coordinator's process was there a moment ago."""
        return datetime.now(UTC).timestamp() - self.store.presence()[0] < _PRESENT_SECONDS

    def parties(self) -> list[PartyLine]:
        """All parties that ever joined."""
        _, connected = self.store.presence()
        running = self.running()
        models, jobs = self.store.models(), self.store.latest(MAX_JOBS)
        lines = []
        for name, certificate in self.store.parties().items():
            rows = next((job.rows[name] for job in jobs if name in job.rows), None)
            model = next((m for m in models if name in m.parties), None)
            columns = None if model is None else self._n_columns(model.model, name)
            since = connected.get(name) if running else None
            expires = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
            lines.append(PartyLine(name, since, expires, columns, rows))
        return lines

    def _n_columns(self, model: str, party: str) -> int | None:
        try:
            if self.is_linear(model):
                return self.store.linear(model).coordinator.n_columns.get(party)
            forest = self.forest(model)
        except WoodlotError:
            return None
        if party not in forest.parties:  # a forest over rows: every party has all columns
            return len(forest.feature_keys)
        return int((forest.feature_party == forest.parties.index(party)).sum())

    def jobs(self) -> list[JobFacts]:
        """The jobs of all users, the youngest first."""
        return self.store.latest(MAX_JOBS)

    def job(self, job: str) -> JobFacts:
        """How a job stands."""
        stored = self.store.job(job)
        if stored is None:
            raise DataError(f"there is no job {job!r} here")
        return stored.facts

    def models(self) -> list[ModelFacts]:
        """All models, the youngest first."""
        return self.store.models()

    def model(self, model: str) -> ModelFacts:
        """What is known of a model."""
        return self.store.model_facts(model)

    def is_linear(self, model: str) -> bool:
        """Whether a model is a linear one, and no forest."""
        return self.store.is_linear(model)

    def forest(self, model: str) -> CoordinatorForest:
        """The coordinator's part of a forest."""
        if self.is_linear(model):
            raise DataError(NO_TREES)
        return self._forest(model, self.model(model).forest)

    def _read_forest(self, model: str, fingerprint: str) -> CoordinatorForest:
        return self.store.forest(model).coordinator

    def receipts(self) -> dict[str, Receipt]:
        """Receipts of revocations by job, the youngest first; one that cannot be read is left out."""
        found = {}
        for job in (job for job in self.jobs() if job.kind.startswith("revoke")):
            text = self.store.receipt(job.job)
            if text is not None:
                with suppress(ReceiptError):
                    found[job.job] = Receipt.parse(text.encode())
        return found

    def receipt(self, job: str) -> tuple[Receipt, str]:
        """A receipt, and what is wrong with it; nothing if it holds."""
        text = self.store.receipt(job)
        if text is None:
            raise DataError(f"job {job!r} has no receipt: no party has left by it, or not yet")
        receipt = Receipt.parse(text.encode())
        try:
            receipt.verify(self.identity.authority)
        except ReceiptError as error:
            return receipt, str(error)
        return receipt, ""

    def importances(self, model: str) -> list[dict[str, Any]]:
        """Importance of each feature, under the code by which the coordinator knows it."""
        forest = self.forest(model)
        values = forest.importances()
        named = [
            {"name": f"{int(key):016x}"[:8], "party": forest.parties[int(party)], "value": float(value)}
            for key, party, value in zip(forest.feature_keys, forest.feature_party, values, strict=True)
        ]
        return sorted(named, key=lambda feature: -feature["value"])


class PartyView(_StateView):
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
        self._table = functools.lru_cache(maxsize=MODELS_AT_HAND)(self._read_table)

    @property
    def expires(self) -> datetime:
        """When its certificate expires."""
        return self.identity.expires

    def policy_lines(self) -> dict[str, str]:
        """The party's own rules, as its configuration has them."""
        plain = msgspec.to_builtins(self.policy)
        return {
            name: ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            for name, value in plain.items()
        }

    def accounts(self) -> list[dict[str, Any]]:
        """What it has spent of its privacy, by table."""
        return [] if self.journal() is None else privacy_accounts(self.config)

    def models(self) -> list[str]:
        """The models that the party has a part of."""
        return sorted(path.parent.name for path in (self.folder / "models").glob(f"[!.]*/{HEADER}"))

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

    def _any_part(self, model: str) -> PartyForest | PartyLinear:
        folder = self.folder / "models" / Path(model).name
        try:
            stamp = (folder / HEADER).stat().st_mtime_ns
        except OSError:
            raise DataError(f"{self.name} has no part of model {model!r}") from None
        return self._part(folder, stamp)

    def _read_part(self, folder: Path, stamp: int) -> PartyForest | PartyLinear:
        try:
            forest = json.loads((folder / HEADER).read_bytes())["forest"]
        except (OSError, ValueError, KeyError) as error:
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
        folder = self.folder / "alignments" / Path(job).name
        try:
            facts = json.loads((folder / "facts.json").read_bytes())
            rows: NDArray[np.int64] = np.load(folder / "rows.npy", allow_pickle=False)
        except (OSError, ValueError):
            raise DataError(f"{self.name} keeps no alignment {job!r}") from None
        return facts["table"], rows

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
