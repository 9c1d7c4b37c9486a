"""The coordinator's jobs and what became of them, on disk: a restart finds everything as it was."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.archives import read_arrays
from woodlot.data.decoding import from_json
from woodlot.data.whole_files import replace_folder, state_folder
from woodlot.exceptions import DataError, JournalError
from woodlot.foundation.database import ERASABLE, Database, Schema
from woodlot.jobs.drift.drift_references import AnswersReference
from woodlot.jobs.job_messages import JobFacts, ModelFacts, ModelPart
from woodlot.jobs.kind import known
from woodlot.jobs.lasting_secret import CHECK_FILE, LastingSecret
from woodlot.jobs.model_names import meant
from woodlot.jobs.orders import JOB_ID
from woodlot.protocols.core.part_files import format_of
from woodlot.protocols.linear.linear_files import FORMAT as LINEAR_FORMAT
from woodlot.protocols.linear.linear_files import StoredLinear, load_linear, save_linear
from woodlot.protocols.revocable.revocable_model import Rebuilding
from woodlot.protocols.vertical.files import StoredForest, StoredTrees, load_parts, save_parts
from woodlot.protocols.vertical.out_of_bag import OutOfBagResult

T = TypeVar("T")

logger = logging.getLogger(__name__)

UNFINISHED = ("queued", "running")
ENDED = ("done", "failed", "cancelled")
"""States that a job never leaves. "stopped" is neither: it can be resumed."""

ALARM_DAYS = 7
"""For how long it is shown that two processes have used a party's key at once."""

_SECRET_REMEDY = (
    f"move away this file and {CHECK_FILE}: a new secret is made, and jobs that this coordinator was dealing for must "
    "be ordered again"
)

_SIZE = "length(order_data) + length(signature) + length(certificate) + length(facts)"

SCHEMA = Schema(
    name="the record of jobs",
    application=b"WJOB",
    tables=(
        f"""
        CREATE TABLE jobs (
            job TEXT PRIMARY KEY, user TEXT NOT NULL, state TEXT NOT NULL, created REAL NOT NULL,
            signature BLOB NOT NULL, certificate BLOB NOT NULL, facts BLOB NOT NULL, untold TEXT NOT NULL,
            padding {ERASABLE}, order_data BLOB NOT NULL) STRICT
        """,
        "CREATE INDEX jobs_by_user ON jobs (user, created)",
        f"CREATE INDEX sizes_by_user ON jobs (user, created, {_SIZE})",
        "CREATE INDEX jobs_by_state ON jobs (state)",
        "CREATE INDEX jobs_by_time ON jobs (created)",
        "CREATE INDEX jobs_untold ON jobs (state, job, untold) WHERE untold != '[]'",
        "CREATE TABLE parties (name TEXT PRIMARY KEY, certificate BLOB NOT NULL) STRICT",
        """
        CREATE TABLE seconds (
            party TEXT PRIMARY KEY, times INTEGER NOT NULL, at REAL NOT NULL, former TEXT NOT NULL,
            newer TEXT NOT NULL) STRICT
        """,
        """
        CREATE TABLE epochs (
            keyring TEXT NOT NULL, epoch INTEGER NOT NULL, job TEXT NOT NULL UNIQUE,
            PRIMARY KEY (keyring, epoch)) STRICT
        """,
        """
        CREATE TABLE presence (
            only INTEGER PRIMARY KEY CHECK (only = 0), at REAL NOT NULL, connected TEXT NOT NULL) STRICT
        """,
    ),
    migrations=(("CREATE TABLE last_seen (party TEXT PRIMARY KEY, at REAL NOT NULL) STRICT, WITHOUT ROWID",),),
    damaged="Without a copy, move away this file alone: models, receipts and answers stay, the list of jobs is lost.",
)


class Alarm(NamedTuple):
    """That two processes have used a party's key at once: how often, last when, and from where."""

    times: int
    at: float
    former: str
    newer: str

    def __str__(self) -> str:
        return f"two processes have used its key at once ({self.former} and {self.newer})"


class StoredJob(NamedTuple):
    """A job as it was ordered, how it stands, and which parties do not know yet that it has ended."""

    order: bytes
    signature: bytes
    certificate: bytes
    facts: JobFacts
    untold: tuple[str, ...]

    def is_of(self, order: bytes) -> bool:
        """Whether this is what was ordered; of an order that nobody needs any more only the digest is kept."""
        return self.order in (order, _digest(order))


class JobStore:
    """The coordinator's state folder, without the journal.

    ::

        state/
          jobs.sqlite          orders, states and outcomes; certificates of parties
          models/JOB/          the coordinator's part of each model, and facts.json
          receipts/JOB/        receipts of revocations
          answers/JOB.npz      answers of predictions
          keys/MODEL/          shares of strong keys, and encrypted splits
          rebuilding/MODEL/    of revocable forests: the rows of every node
          secret, secret.check of a coordinator that has dealt: what it deals follows from it

    Parameters
    ----------
    folder : Path
        Made if it is not there; only its owner may enter.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        state_folder(folder)
        self._db = Database(folder / "jobs.sqlite", SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @cached_property
    def secret(self) -> LastingSecret:
        """The coordinator's secret, made when it is needed first: only a coordinator that deals has one."""
        try:
            return LastingSecret(self.folder, "coordinator", _SECRET_REMEDY)
        except OSError as error:
            raise JournalError(
                f"the secret in the state folder {self.folder} cannot be read or made: {error}; let this user write "
                "there"
            ) from None

    # --- jobs ---

    def add(self, order: bytes, signature: bytes, certificate: bytes, facts: JobFacts) -> None:
        """Record a new job."""
        with self._db.connection() as db:
            db.execute(
                "INSERT INTO jobs (job, user, state, created, signature, certificate, facts, untold, order_data) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    facts.job, facts.user, facts.state, facts.created, signature, certificate,
                    msgspec.json.encode(facts), json.dumps(facts.parties), order,
                ),
            )  # fmt: skip

    def update(self, facts: JobFacts) -> None:
        """Record how a job stands; if it has ended and its order is needed no more, a digest takes its place."""
        dropped = False
        with self._db.transaction() as db:
            db.execute(
                "UPDATE jobs SET state = ?, facts = ? WHERE job = ?",
                (facts.state, msgspec.json.encode(facts), facts.job),
            )
            if facts.state in ENDED and not _needs_order(facts):
                row = db.execute("SELECT order_data FROM jobs WHERE job = ?", (facts.job,)).fetchone()
                if row is not None and not row[0].startswith(_DROPPED):
                    db.execute(
                        "UPDATE jobs SET order_data = ?, padding = x'' WHERE job = ?", (_digest(row[0]), facts.job)
                    )
                    dropped = True
        if dropped:
            self._db.erase()

    def job(self, job: str) -> StoredJob | None:
        """A job, None if it is unknown."""
        with self._db.connection() as db:
            row = db.execute(
                "SELECT order_data, signature, certificate, facts, untold FROM jobs WHERE job = ?", (job,)
            ).fetchone()
        if row is None:
            return None
        order, signature, certificate, facts, untold = row
        return StoredJob(order, signature, certificate, _facts(job, facts), _names(job, untold))

    def of_user(self, user: str, limit: int, below: tuple[float, str] | None = None) -> list[JobFacts]:
        """The user's jobs, newest first: all, or those below one (when it was ordered, and its id)."""
        created, job = below or (sys.float_info.max, "")
        with self._db.connection() as db:
            rows = db.execute(
                "SELECT job, facts FROM jobs WHERE user = ? AND created <= ? AND (created < ? OR job < ?) "
                "ORDER BY created DESC, job DESC LIMIT ?",
                (user, created, created, job, limit),
            ).fetchall()
        return [_facts(*row) for row in rows]

    def bytes_of_user(self, user: str, since: float) -> int:
        """What the user's jobs since then take up here, in bytes."""
        with self._db.connection() as db:
            row = db.execute(
                f"SELECT sum({_SIZE}) FROM jobs WHERE user = ? AND created >= ?",  # noqa: S608 - no user's words
                (user, since),
            ).fetchone()
        return row[0] or 0

    def latest(self, limit: int) -> list[JobFacts]:
        """The jobs of all users, newest first."""
        with self._db.connection() as db:
            rows = db.execute("SELECT job, facts FROM jobs ORDER BY created DESC LIMIT ?", (limit,)).fetchall()
        return [_facts(*row) for row in rows]

    def unfinished(self) -> list[str]:
        """Jobs that were queued or running, the oldest first."""
        with self._db.connection() as db:
            rows = db.execute("SELECT job FROM jobs WHERE state IN (?, ?) ORDER BY created", UNFINISHED).fetchall()
        return [job for (job,) in rows]

    def open_jobs_of(self, model: str) -> list[JobFacts]:
        """Jobs with a model that have not ended, or can be resumed."""
        with self._db.connection() as db:
            states = (*UNFINISHED, "stopped")
            rows = db.execute("SELECT job, facts FROM jobs WHERE state IN (?, ?, ?)", states).fetchall()
        return [facts for row in rows if (facts := _facts(*row)).model == model]

    def ended_untold(self) -> list[tuple[str, tuple[str, ...]]]:
        """Jobs that have ended, with the parties that have not been told so."""
        with self._db.connection() as db:
            rows = db.execute(
                "SELECT job, untold FROM jobs WHERE state IN (?, ?, ?) AND untold != '[]'", ENDED
            ).fetchall()
        return [(job, _names(job, untold)) for job, untold in rows]

    def told(self, job: str, party: str) -> None:
        """Record that a party has been told of a job's end."""
        self._change_untold(job, lambda untold: [name for name in untold if name != party])

    def note_untold(self, job: str, party: str) -> None:
        """Record that somebody beside the parties of a job has to be told of its end."""
        self._change_untold(job, lambda untold: untold if party in untold else (*untold, party))

    def _change_untold(self, job: str, change: Callable[[tuple[str, ...]], Collection[str]]) -> None:
        with self._db.transaction() as db:
            row = db.execute("SELECT untold FROM jobs WHERE job = ?", (job,)).fetchone()
            if row is not None:
                untold = change(_names(job, row[0]))
                db.execute("UPDATE jobs SET untold = ? WHERE job = ?", (json.dumps(untold), job))

    # --- parties ---

    def remember_party(self, name: str, certificate: bytes) -> None:
        """Keep the certificate that a party came with last."""
        with self._db.connection() as db:
            db.execute(
                "INSERT INTO parties VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET certificate = excluded.certificate",
                (name, certificate),
            )

    def parties(self) -> dict[str, bytes]:
        """Certificates of all parties that were ever connected."""
        with self._db.connection() as db:
            return dict(db.execute("SELECT name, certificate FROM parties ORDER BY name").fetchall())

    def note_second(self, party: str, former: str, newer: str) -> None:
        """Record that another process has connected as a party that was connected, and where both dial from."""
        with self._db.connection() as db:
            db.execute(
                "INSERT INTO seconds VALUES (:party, 1, :at, :former, :newer) ON CONFLICT (party) DO UPDATE SET "
                "times = times + 1, at = excluded.at, former = excluded.former, newer = excluded.newer",
                {"party": party, "at": time.time(), "former": former, "newer": newer},
            )

    def alarms(self) -> dict[str, Alarm]:
        """By party, what `note_second` has recorded within the last `ALARM_DAYS`."""
        with self._db.connection() as db:
            since = time.time() - ALARM_DAYS * 86_400
            found = db.execute("SELECT party, times, at, former, newer FROM seconds WHERE at > ?", (since,)).fetchall()
        return {party: Alarm(*rest) for party, *rest in found}

    def note_presence(self, connected: Mapping[str, float]) -> None:
        """Record that the coordinator runs, and which parties are connected, since when: for who looks from outside."""
        now = time.time()
        with self._db.transaction() as db:
            db.execute(
                "INSERT INTO presence VALUES (0, ?, ?) "
                "ON CONFLICT (only) DO UPDATE SET at = excluded.at, connected = excluded.connected",
                (now, json.dumps(dict(connected))),
            )
            db.executemany("INSERT OR REPLACE INTO last_seen VALUES (?, ?)", [(party, now) for party in connected])

    def presence(self) -> tuple[float, dict[str, float]]:
        """When the coordinator was last seen running, and which parties were connected then, since when."""
        with self._db.connection() as db:
            row = db.execute("SELECT at, connected FROM presence").fetchone()
        return (0.0, {}) if row is None else (row[0], _recorded("connected parties", row[1], dict[str, float]))

    def last_seen(self) -> dict[str, float]:
        """By party, when `note_presence` has last found it connected."""
        with self._db.connection() as db:
            return dict(db.execute("SELECT party, at FROM last_seen").fetchall())

    # --- models ---

    def keep_model(
        self,
        facts: ModelFacts,
        forest: StoredForest | StoredLinear,
        oob: OutOfBagResult | None = None,
    ) -> None:
        """Store the coordinator's part of a model; what an interrupted run has left there is replaced."""

        def fill(folder: Path) -> None:
            if isinstance(forest, StoredLinear):
                save_linear(folder / "forest", forest)
            else:
                save_parts(folder / "forest", forest)
            found = oob or OutOfBagResult()
            # the answers themselves are predictions, and to get these is a right of its own (`receive`)
            np.savez(folder / "out_of_bag.npz", residuals=found.residuals)
            if found.outputs is not None and facts.leader:  # tenths of them, to compare answers for new rows with
                (folder / _ANSWERED).write_bytes(msgspec.json.encode(AnswersReference.of(found.outputs)))
            (folder / "facts.json").write_bytes(msgspec.json.encode(facts))

        self._replace(self._model(facts.model), fill)

    def keep_led_model(self, facts: ModelFacts) -> None:
        """Store that a model exists which its leader keeps; what an interrupted run has left there is replaced."""
        self._keep_facts(facts)

    def _keep_facts(self, facts: ModelFacts) -> None:
        def fill(folder: Path) -> None:
            (folder / "facts.json").write_bytes(msgspec.json.encode(facts))

        self._replace(self._model(facts.model), fill)

    def retire_model(self, model: str, successor: str) -> None:
        """Replace a model that a party has left: its parts are erased, and what is known of it names its successor."""
        facts = msgspec.structs.replace(self.model_facts(model), replaced_by=successor, disclosure="[]", cost="{}")
        for kind in ("keys", "rebuilding"):  # first: once the model names its successor nobody comes back to erase
            self._erase(self.folder / kind / model)
        self._keep_facts(facts)

    def has_keys(self, model: str) -> bool:
        """Whether other members have keys or shares of a model."""
        return (self.folder / "keys" / model).exists()

    def delete_model(self, model: str) -> None:
        """Erase all that is kept of a model; its job stays in the list of jobs."""
        if JOB_ID.fullmatch(model):
            for kind in ("models", "rebuilding"):
                self._erase(self.folder / kind / model)

    def keep_receipt(self, job: str, text: str) -> None:
        """Store the receipt of a revocation."""

        def fill(folder: Path) -> None:
            (folder / "receipt.json").write_text(text, encoding="utf-8")

        self._replace(self.folder / "receipts" / job, fill)

    def receipt(self, job: str) -> str | None:
        """The receipt of a revocation, None if there is none."""
        path = self.folder / "receipts" / job / "receipt.json"
        if not JOB_ID.fullmatch(job) or not path.is_file():
            return None
        with _as_written(path):
            return path.read_text(encoding="utf-8")

    def models(self) -> list[ModelFacts]:
        """All models that are in use, newest first; without those that cannot be read, which the log names."""
        facts = []
        for path in sorted((self.folder / "models").glob("[!.]*/facts.json")):
            try:
                facts.append(_model_facts(path))
            except JournalError as error:  # the other models are as good as ever
                logger.warning("a model is left out: %s", error)
        in_use = [model for model in facts if not model.replaced_by]
        return sorted(in_use, key=lambda model: (model.created, model.model), reverse=True)

    def find_model(self, name: str, user: str) -> ModelFacts:
        """The model that a user means; see `model_names.meant`."""
        successor = ""
        if JOB_ID.fullmatch(name):  # no other need be looked at
            facts = self.model_facts(name)
            successor = facts.replaced_by
            if not successor:
                return facts
        found = meant(name, user, self.models())
        if found is None and successor:
            raise DataError(
                f"model {name} was replaced by {successor} when a party left it, or rows were forgotten; use that one"
            )
        if found is None:
            raise _no_model(name)
        return found

    def model_facts(self, model: str) -> ModelFacts:
        """What is known of a model."""
        path = self._model(model) / "facts.json"
        if not JOB_ID.fullmatch(model) or not path.is_file():  # nor is a path that leads elsewhere a model
            raise _no_model(model)
        return _model_facts(path)

    def forest(self, model: str) -> StoredForest:
        """The coordinator's part of a model."""
        return load_parts(self._forest_folder(model))

    def stored_trees(self, model: str) -> StoredTrees:
        """The trees of the coordinator's part of a model, to be read one by one."""
        return StoredTrees(self._forest_folder(model))

    def _forest_folder(self, model: str) -> Path:
        successor = self.model_facts(model).replaced_by
        if successor:
            raise DataError(f"model {model} was replaced by {successor} when a party left it; use that one")
        return self._model(model) / "forest" / "coordinator"

    def is_linear(self, model: str) -> bool:
        """Whether a model is a linear one, and no forest."""
        self.model_facts(model)
        return format_of(self._model(model) / "forest" / "coordinator") == LINEAR_FORMAT

    def linear(self, model: str) -> StoredLinear:
        """The coordinator's part of a linear model."""
        self.model_facts(model)
        return load_linear(self._model(model) / "forest" / "coordinator")

    def model_files(self, model: str) -> tuple[dict[str, bytes], NDArray[np.float64]]:
        """The files of the coordinator's part, and quantiles of the out-of-bag residuals."""
        root = self._model(model) / "forest" / "coordinator"
        files = {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}
        (residuals,) = _stored(self._model(model) / "out_of_bag.npz", "residuals")
        return files, residuals

    def answers_reference(self, model: str) -> AnswersReference | None:
        """What answers for new rows are compared with; None of a model without out-of-bag answers."""
        path = self._model(model) / _ANSWERED
        if not path.is_file():
            return None
        with _as_written(path):
            return from_json(path.read_bytes(), AnswersReference)

    def model_part(self, model: str) -> ModelPart:
        """The coordinator's part of a model with all that is known of it, as its user gets it."""
        files, residuals = self.model_files(model)
        return ModelPart(
            facts=self.model_facts(model),
            files={name: np.frombuffer(data, np.uint8) for name, data in files.items()},
            residuals=residuals,
        )

    def _model(self, model: str) -> Path:
        return self.folder / "models" / model

    # --- keys of revocable forests ---

    def keep_keys(self, model: str, data: bytes) -> None:
        """Store what the coordinator has of a model's epoch; what it had before is gone."""

        def fill(folder: Path) -> None:
            (folder / "epoch.msgpack").write_bytes(data)

        self._replace(self.folder / "keys" / model, fill)

    def keys(self, model: str) -> bytes | None:
        """What `keep_keys` stored, None if nothing."""
        path = self.folder / "keys" / model / "epoch.msgpack"
        return path.read_bytes() if JOB_ID.fullmatch(model) and path.is_file() else None

    def claim_epoch(self, keyring: str, job: str) -> int:
        """The number of the epoch that a job begins: always the same for this job, and above all that were ever tried.

        So an epoch that was begun at some members only, by a job that was given up, is in nobody's way.
        """
        with self._db.transaction() as db:
            db.execute(
                "INSERT OR IGNORE INTO epochs "
                "SELECT :keyring, coalesce(max(epoch), 0) + 1, :job FROM epochs WHERE keyring = :keyring",
                {"keyring": keyring, "job": job},
            )
            return int(db.execute("SELECT epoch FROM epochs WHERE job = ?", (job,)).fetchone()[0])

    def keep_rebuilding(self, model: str, rebuilding: Rebuilding) -> None:
        """Store what the coordinator needs to grow nodes of a revocable forest again."""

        def fill(folder: Path) -> None:
            np.savez(folder / "rows.npz", rows=rebuilding.rows, start=rebuilding.start)

        self._replace(self.folder / "rebuilding" / model, fill)

    def rebuilding(self, model: str) -> Rebuilding:
        """What `keep_rebuilding` stored."""
        path = self.folder / "rebuilding" / model / "rows.npz"
        if not path.is_file():
            raise DataError(f"the rows of the nodes of model {model} are not recorded here; train it again")
        return Rebuilding(*_stored(path, "rows", "start"))

    # --- answers ---

    def keep_answers(self, job: str, outputs: NDArray[np.float64], uncertain: NDArray[np.bool_], notes: Any) -> None:
        """Store the answers of a prediction for its user."""

        def fill(folder: Path) -> None:
            np.savez(folder / "answers.npz", outputs=outputs, uncertain=uncertain)
            (folder / "notes.json").write_text(json.dumps(notes))

        self._replace(self.folder / "answers" / job, fill)

    def answers(self, job: str) -> tuple[NDArray[np.float64], NDArray[np.bool_], Any]:
        """The answers of a prediction."""
        folder = self.folder / "answers" / job
        if not folder.is_dir():
            raise DataError(f"job {job} has no answers here")
        outputs, uncertain = _stored(folder / "answers.npz", "outputs", "uncertain")
        with _as_written(folder / "notes.json") as path:
            return outputs, uncertain, json.loads(path.read_text())

    def erase_answers_of(self, model: str) -> None:
        """Erase the answers and explanations that a model has given; their jobs stay in the list of jobs."""
        with self._db.connection() as db:
            rows = db.execute("SELECT job, facts FROM jobs").fetchall()
        for job in (facts.job for row in rows if (facts := _facts(*row)).model == model):
            for kind in ("answers", "explanations"):
                self._erase(self.folder / kind / job)

    def _replace(self, target: Path, fill: Callable[[Path], None]) -> None:
        """Write a folder at once or not at all."""
        try:
            replace_folder(target, fill)
        except OSError as error:
            raise JournalError(f"{target} cannot be written ({error}); make room on the disk") from error

    def _erase(self, folder: Path) -> None:
        try:
            if folder.exists():
                shutil.rmtree(folder)
        except OSError as error:
            raise JournalError(f"{folder} cannot be erased ({error}); let this user write there") from error


@contextmanager
def _as_written(path: Path) -> Iterator[Path]:
    """Turn what is wrong with a file that this store has written into an error that says what to do."""
    try:
        yield path
    except (OSError, ValueError, KeyError, RecursionError) as error:
        raise JournalError(f"{path} is not as it was written ({error}); restore the state folder") from None


def _stored(path: Path, *names: str) -> list[NDArray[Any]]:
    """Arrays that this store has written."""
    with _as_written(path):
        arrays = read_arrays(path)
        return [arrays[name] for name in names]


def _model_facts(path: Path) -> ModelFacts:
    with _as_written(path):
        return from_json(path.read_bytes(), ModelFacts)


def _no_model(name: str) -> DataError:
    return DataError(f"there is no model {name!r} here; `woodlot models list` shows those there are")


_ANSWERED = "answered.json"
_DROPPED = b"sha256:"


def _digest(order: bytes) -> bytes:
    """What is kept in the place of an order: no order begins so."""
    return _DROPPED + hashlib.sha256(order).hexdigest().encode()


def _needs_order(facts: JobFacts) -> bool:
    """Whether the order of a job that has ended may still be looked at."""
    kept = known()[facts.kind].keeps_order if facts.kind in known() else ""
    return kept == "ended" or (kept == "done" and facts.state == "done")


def _facts(job: str, data: bytes) -> JobFacts:
    return _recorded(f"job {job}", data, JobFacts)


def _names(job: str, text: str) -> tuple[str, ...]:
    return _recorded(f"job {job}", text, tuple[str, ...])


def _recorded(what: str, data: str | bytes, kind: type[T]) -> T:
    try:
        return from_json(data.encode() if isinstance(data, str) else data, kind)
    except (ValueError, TypeError, RecursionError) as error:  # not UTF-8, or no text at all, in a damaged file
        raise JournalError(
            f"the record of {what} cannot be read ({error}); use the version of Woodlot that has written it, or "
            "restore the state folder"
        ) from None
