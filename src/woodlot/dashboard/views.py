"""What each role has on disk, read only: the pages show nothing that the role does not know.

A view reads the state folder of one service, also while the service runs. The coordinator's view and a party's view
(`party_view.py`) never share anything: what a page shows "as bank sees it" comes from bank's folder alone.
"""

from __future__ import annotations

import functools
import json
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from sqlite3 import Connection
from typing import Any, TypeVar

import msgspec
from cryptography import x509

from woodlot.data.row_rules import RowRule
from woodlot.exceptions import DataError, JournalError, ReceiptError, WoodlotError
from woodlot.identity.erasure import ErasureReceipt
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import Receipt, WrittenReceipt
from woodlot.jobs import every_message  # noqa: F401 - every message must be known, or its disclosure would not be
from woodlot.jobs.job_messages import JobFacts, ModelFacts
from woodlot.jobs.job_store import Alarm, JobStore
from woodlot.jobs.kind import outcome_of
from woodlot.jobs.order_seal import read_order
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest
from woodlot.protocols.vertical.files import StoredTrees
from woodlot.protocols.vertical.sight import feature_names
from woodlot.runtime.audit import DisclosureRow, Disclosures
from woodlot.runtime.journal import Journal, Record
from woodlot.service.config import CoordinatorConfig
from woodlot.service.coordinator import HOUSEKEEPING_SECONDS

W = TypeVar("W", bound=WrittenReceipt)

COORDINATOR = "coordinator"
JOURNAL = "journal.sqlite"
MAX_JOBS = 200
"""Jobs in one list."""
MODELS_AT_HAND = 4
"""Forests that stay in memory between two looks at them."""
TREES_AT_HAND = 32
"""Trees of large forests, each read alone, that stay in memory between two looks at them."""
NO_TREES = "this is a linear model, which has no trees: its weights stay with the parties"
_PRESENT_SECONDS = 3 * HOUSEKEEPING_SECONDS


@dataclass(frozen=True)
class RoundRow:
    """One round of a job, from its first request to its last reply."""

    number: int
    started: float
    seconds: float
    bytes_by_party: dict[str, int]
    kinds: tuple[str, ...]


@dataclass(frozen=True)
class Flow:
    """Messages of one kind that one role has sent another, within some time."""

    sender: str
    receiver: str
    kind: str
    count: int
    bytes: int


@dataclass(frozen=True)
class PartyRow:
    """What the coordinator knows of a party: numbers only."""

    name: str
    since: float | None
    seen: float | None
    expires: datetime
    n_columns: int | None
    n_rows: int | None
    alarm: Alarm | None


class StateView:
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

    def rounds(self, job: str) -> list[RoundRow]:
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
            rounds.append(RoundRow(number, started / 1e9, (max(r.time for r in records) - started) / 1e9, sizes, kinds))
        return rounds

    def flows(self, jobs: Sequence[str], since: float) -> list[Flow]:
        """What has travelled in some jobs since a moment, by sender, receiver and kind."""
        journal = self.journal()
        return [] if journal is None else [flow for job in jobs for flow in journal.consult(_recent(job, since))]

    def latest_jobs(self, limit: int) -> list[str]:
        """The jobs that have begun last, by the role's record."""
        journal = self.journal()
        return [] if journal is None else journal.jobs()[-limit:]

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


def _recent(job: str, since: float) -> Callable[[Connection], list[Flow]]:
    """Reads the messages of a job since a moment; the mark of its end, which no one has sent, is none."""

    def read(connection: Connection) -> list[Flow]:
        rows = connection.execute(
            "SELECT sender, receiver, kind, COUNT(*), SUM(n_bytes) FROM records "
            "WHERE job = ? AND time >= ? AND sender != '' GROUP BY sender, receiver, kind",
            (job, int(since * 1e9)),
        )
        return [Flow(*row) for row in rows]

    return read


class CoordinatorView(StateView):
    """What the coordinator knows.

    Parameters
    ----------
    config : CoordinatorConfig
        Names its state folder.

    """

    def __init__(self, config: CoordinatorConfig) -> None:
        self._open(COORDINATOR, config.state, config.state, Identity.load(config.identity))

    def _open(self, name: str, state: Path, kept: Path, identity: Identity) -> None:
        super().__init__(name, state)
        self.identity = identity
        self.store = JobStore(kept)
        self._forest = functools.lru_cache(maxsize=MODELS_AT_HAND)(self._read_forest)
        self._trees = functools.lru_cache(maxsize=MODELS_AT_HAND)(self._open_trees)
        self._tree = functools.lru_cache(maxsize=TREES_AT_HAND)(self._read_tree)

    def running(self) -> bool:
        """Whether the coordinator's process was there a moment ago."""
        return datetime.now(UTC).timestamp() - self.store.presence()[0] < _PRESENT_SECONDS

    def parties(self) -> list[PartyRow]:
        """All parties that ever joined."""
        _, connected = self.store.presence()
        running = self.running()
        models, jobs = self.store.models(), self.store.latest(MAX_JOBS)
        lines, alarms, seen = [], self.store.alarms(), self.store.last_seen()
        for name, certificate in self.store.parties().items():
            rows = next((job.rows[name] for job in jobs if name in job.rows), None)
            model = next((m for m in models if name in m.parties), None)
            columns = None if model is None else self._n_columns(model.model, name)
            since = connected.get(name) if running else None
            expires = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
            lines.append(PartyRow(name, since, seen.get(name), expires, columns, rows, alarms.get(name)))
        return lines

    def _n_columns(self, model: str, party: str) -> int | None:
        try:
            if self.is_linear(model):
                return self.store.linear(model).coordinator.n_columns.get(party)
            facts, owners = self.model(model), self._stored_trees(model)[0].feature_party()
        except WoodlotError:
            return None
        # of a forest over rows every party has all columns
        return len(owners) if facts.layout == "rows" else int((owners == facts.parties.index(party)).sum())

    def jobs(self) -> list[JobFacts]:
        """The jobs of all users, newest first."""
        return self.store.latest(MAX_JOBS)

    def job(self, job: str) -> JobFacts:
        """How a job stands."""
        stored = self.store.job(job)
        if stored is None:
            raise DataError(f"there is no job {job!r} here")
        facts = stored.facts
        if facts.state == "queued":  # for whom it waits is not on the disk, but who is there
            connected = self.store.presence()[1]
            away = tuple(party for party in facts.parties if party not in connected)
            facts = msgspec.structs.replace(facts, waiting_for=away)
        return facts

    def scored(self, model: str) -> list[JobFacts]:
        """Predictions of a model by all its parties that a label holder has scored, newest first."""
        jobs = [job for job in self.jobs() if outcome_of(job.kind) in ("answers", "own answers") and job.model == model]
        return [job for job in jobs if job.score is not None and not self._changed(job.job)]

    def held_out(self, model: str, job: str) -> bool:
        """Whether the rules of a prediction's rows and of the training's show that they have none in common."""
        used, learnt = self._row_rules(job), self._row_rules(model)
        return any(not one.meets(other) for one in used for other in learnt if one.seed == other.seed)

    def _row_rules(self, job: str) -> list[RowRule]:
        stored = self.store.job(job)
        order = None if stored is None else read_order(stored.order)
        return [RowRule(part.seed, part.start, part.stop) for part in getattr(order, "subsets", ())]

    def _changed(self, job: str) -> bool:
        """Whether parties were left out of a prediction, or a column shuffled, to see what they are worth."""
        stored = self.store.job(job)
        order = None if stored is None else read_order(stored.order)
        return bool(getattr(order, "absent", ())) or getattr(order, "shuffled", None) is not None

    def models(self) -> list[ModelFacts]:
        """All models, newest first."""
        return self.store.models()

    def model(self, model: str) -> ModelFacts:
        """What is known of a model."""
        return self.store.model_facts(model)

    def is_linear(self, model: str) -> bool:
        """Whether a model is a linear one, and no forest."""
        leader = self.model(model).leader
        if not self.keeps(self.model(model)):
            raise DataError(f"{leader!r} keeps this model; the coordinator has no part of it")
        return self.store.is_linear(model)

    def keeps(self, facts: ModelFacts) -> bool:
        """Whether structure and answers of a model are here, and not with the party that leads its jobs."""
        return not facts.leader

    def forest(self, model: str) -> CoordinatorForest:
        """The coordinator's part of a forest."""
        if self.is_linear(model):
            raise DataError(NO_TREES)
        return self._forest(model, self.model(model).forest)

    def _read_forest(self, model: str, fingerprint: str) -> CoordinatorForest:
        return self.store.forest(model).coordinator

    def n_trees(self, model: str) -> int:
        """How many trees a forest has."""
        return self._stored_trees(model)[0].n_trees

    def tree(self, model: str, tree: int) -> tuple[CoordinatorForest, dict[str, PartyForest]]:
        """One tree of a forest, as a forest of its own; and what of it parties have shared with the coordinator."""
        self._stored_trees(model)
        return self._tree(model, self.model(model).forest, tree)

    def _read_tree(self, model: str, fingerprint: str, tree: int) -> tuple[CoordinatorForest, dict[str, PartyForest]]:
        own, shared = self._trees(model, fingerprint)
        return own.coordinators(tree), {party: trees.partys(tree) for party, trees in shared.items()}

    def _stored_trees(self, model: str) -> tuple[StoredTrees, dict[str, StoredTrees]]:
        if self.is_linear(model):
            raise DataError(NO_TREES)
        return self._trees(model, self.model(model).forest)

    def _open_trees(self, model: str, fingerprint: str) -> tuple[StoredTrees, dict[str, StoredTrees]]:
        own = self.store.stored_trees(model)
        return own, own.shared()

    def receipts(self) -> dict[str, Receipt]:
        """Receipts of revocations by job, newest first; one that cannot be read is left out."""
        return self._receipts_of("receipt", Receipt)

    def erasures(self) -> dict[str, ErasureReceipt]:
        """Receipts of forgotten rows by job, newest first; one that cannot be read is left out."""
        return self._receipts_of("erasure", ErasureReceipt)

    def _receipts_of(self, outcome: str, kind: type[W]) -> dict[str, W]:
        found = {}
        for job in (job for job in self.jobs() if outcome_of(job.kind) == outcome):
            text = self.store.receipt(job.job)
            if text is not None:
                with suppress(ReceiptError):
                    found[job.job] = kind.parse(text.encode())
        return found

    def receipt(self, job: str) -> tuple[Receipt | ErasureReceipt, str]:
        """A receipt, and what is wrong with it; nothing if it holds."""
        text = self.store.receipt(job)
        if text is None:
            raise DataError(f"job {job!r} has no receipt: no party and no rows have left by it, or not yet")
        kind = ErasureReceipt if outcome_of(self.job(job).kind) == "erasure" else Receipt
        receipt = kind.parse(text.encode())
        try:
            receipt.verify(self.identity.authority)
        except ReceiptError as error:
            return receipt, str(error)
        return receipt, ""

    def importances(self, model: str) -> list[dict[str, Any]]:
        """Importance of each feature: by its name where its party has shared it, else by its code."""
        forest, shared = self.forest(model), self._stored_trees(model)[1]
        names = feature_names(forest, {party: trees.names for party, trees in shared.items()})
        named = [
            {"name": name, "party": forest.parties[int(party)], "value": float(value)}
            for name, party, value in zip(names, forest.feature_party, forest.importances(), strict=True)
        ]
        return sorted(named, key=lambda feature: -feature["value"])


def estimator_settings(text: str) -> dict[str, Any]:
    """Kind and parameters of an estimator, as far as they are there: a user has written this, and it is not checked."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    known = found if isinstance(found, dict) else {}
    params = known.get("params")
    return {"estimator": known.get("estimator", "unknown"), "params": params if isinstance(params, dict) else {}}


def order_of(view: CoordinatorView, job: str) -> Any:
    """What was ordered, where it is still kept."""
    stored = view.store.job(job)
    try:
        return None if stored is None else read_order(stored.order)
    except WoodlotError:
        return None
