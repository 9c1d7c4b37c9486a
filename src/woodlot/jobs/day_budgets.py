"""What a party has done on which day: rows predicted and explained, trainings and evaluations of each label."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from sqlite3 import Connection
from types import TracebackType
from typing import Literal, Self

from woodlot.data.whole_files import state_folder
from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.foundation.database import Database, Schema
from woodlot.jobs.policy import UNLIMITED, Limit

BUDGET_FILE = "predictions.sqlite"
"""Name of the record of predictions in a party's state folder."""

PREDICTIONS = Schema(
    name="the record of predictions",
    application=b"WPRE",
    tables=(
        """
        CREATE TABLE spent (
            job TEXT NOT NULL, day TEXT NOT NULL, user TEXT NOT NULL, rows INTEGER NOT NULL, at TEXT NOT NULL,
            PRIMARY KEY (job, day)) STRICT
        """,
        "CREATE INDEX spent_by_day ON spent (day, rows)",
        "CREATE TABLE batches (job TEXT PRIMARY KEY, batch INTEGER NOT NULL, digest BLOB NOT NULL) STRICT",
        """
        CREATE TABLE trainings (
            job TEXT NOT NULL, label TEXT NOT NULL, day TEXT NOT NULL, user TEXT NOT NULL, at TEXT NOT NULL,
            PRIMARY KEY (job, label)) STRICT
        """,
        "CREATE INDEX trainings_by_day ON trainings (day, label)",
    ),
    migrations=(
        (
            """
            CREATE TABLE evaluations (
                job TEXT NOT NULL, label TEXT NOT NULL, day TEXT NOT NULL, user TEXT NOT NULL, at TEXT NOT NULL,
                PRIMARY KEY (job, label)) STRICT
            """,
            "CREATE INDEX evaluations_by_day ON evaluations (day, label)",
        ),
        (
            """
            CREATE TABLE explained (
                job TEXT NOT NULL, day TEXT NOT NULL, user TEXT NOT NULL, rows INTEGER NOT NULL, at TEXT NOT NULL,
                PRIMARY KEY (job, day)) STRICT
            """,
            "CREATE INDEX explained_by_day ON explained (day, rows)",
        ),
    ),
    damaged="Without a copy, move away this file alone after the end of the day (UTC): today's rows would count as 0.",
    unusable="nothing may be predicted, and no label learnt from",
)
"""The database of `PredictionBudget`."""


class PredictionBudget:
    """How many rows a party has predicted on which day, and how often its labels were learnt from, kept on disk.

    A day ends at midnight UTC. It never comes back: where the clock has been set back, the last day that was seen
    goes on.

    Parameters
    ----------
    state : Path
        The party's state folder.
    limit, trainings, evaluations, explanations : int or "unlimited"
        ``Policy.predictions_per_day``, ``trainings_per_day``, ``evaluations_per_day`` and ``explanations_per_day``.
        What is unlimited is still counted, so that a limit can be set later.

    """

    def __init__(
        self,
        state: Path,
        limit: Limit,
        trainings: Limit = UNLIMITED,
        evaluations: Limit = UNLIMITED,
        explanations: Limit = UNLIMITED,
    ) -> None:
        self._limit, self._trainings, self._evaluations = limit, trainings, evaluations
        self._explanations = explanations
        state_folder(state)
        self._db = Database(state / BUDGET_FILE, PREDICTIONS)

    def spend(self, job: str, user: str, rows: int, now: datetime) -> None:
        """Take rows from the budget of the day, or refuse and take nothing.

        A job that comes again pays only for rows that it has not paid for.

        Parameters
        ----------
        job : str
            The job that predicts.
        user : str
            Who ordered it.
        rows : int
            All rows that the job predicts.
        now : datetime
            The present, with a time zone.

        Raises
        ------
        PolicyError
            The budget does not allow it; the message says how many rows are left and until when.
        JournalError
            The record cannot be written, so that nothing may be predicted.

        """
        with self._transaction(rows, now) as db:
            self._spend(db, job, user, rows, now.astimezone(UTC))

    def spend_explanation(self, job: str, user: str, rows: int, now: datetime) -> None:
        """Take rows from the day's budgets of explanations and predictions, or refuse and take nothing; as `spend`."""
        with self._transaction(rows, now) as db:
            self._spend(db, job, user, rows, now.astimezone(UTC), "explained")
            self._spend(db, job, user, rows, now.astimezone(UTC))

    def spend_batch(self, job: str, batch: int, digest: bytes, user: str, rows: int, now: datetime) -> None:
        """Take the rows of one of a job's batches from the budget of the day, or refuse and take nothing.

        A batch that comes again, before any other, is paid for already.

        Parameters
        ----------
        job, user, rows, now
            As for `spend`, but the rows of this batch alone.
        batch : int
            Its number; batches come in the order of their numbers.
        digest : bytes
            Tells it from every other.

        Raises
        ------
        RemoteProtocolError
            If a later batch, or another one of this number, has come before.
        PolicyError, JournalError
            As for `spend`.

        """
        with self._transaction(rows, now) as db:
            last = db.execute("SELECT batch, digest FROM batches WHERE job = ?", (job,)).fetchone()
            if last == (batch, digest):
                return
            if last is not None and batch <= last[0]:
                raise RemoteProtocolError(f"Unexpected batch {batch}; there was a batch {last[0]} already")
            (paid,) = db.execute("SELECT coalesce(sum(rows), 0) FROM spent WHERE job = ?", (job,)).fetchone()
            self._spend(db, job, user, paid + rows, now.astimezone(UTC))
            db.execute("INSERT OR REPLACE INTO batches VALUES (?, ?, ?)", (job, batch, digest))

    def spend_training(self, job: str, label: str, user: str, now: datetime) -> None:
        """Take one training from the day's budget of a label, or refuse and take nothing.

        A job that comes again has paid.

        Parameters
        ----------
        job, user, now
            As for `spend`.
        label : str
            What is learnt from: the table and the column.

        Raises
        ------
        PolicyError
            The budget does not allow it; the message says until when.
        JournalError
            As for `spend`.

        """
        with self._transaction(0, now) as db:
            day = self._day(db, now.astimezone(UTC))
            if self._left(db, "trainings", self._trainings, job, label, day) == 0:
                raise PolicyError(
                    f"this party lets a label be learnt from {self._trainings:,} times per day (trainings_per_day), "
                    f"and this one has been; the next training is possible from {_next(day):%Y-%m-%d %H:%M} UTC"
                )
            row = (job, label, day, user, now.astimezone(UTC).isoformat())
            db.execute("INSERT OR IGNORE INTO trainings VALUES (?, ?, ?, ?, ?)", row)

    def check_evaluation(self, job: str, label: str, now: datetime) -> None:
        """Refuse an evaluation that the day's budget of a label does not allow; nothing is taken."""
        with self._transaction(0, now) as db:
            self._check_evaluation(db, job, label, self._day(db, now.astimezone(UTC)))

    def spend_evaluation(self, job: str, label: str, user: str, now: datetime) -> None:
        """Take one evaluation from the day's budget of a label, or refuse and take nothing; as `spend_training`."""
        with self._transaction(0, now) as db:
            now = now.astimezone(UTC)
            day = self._day(db, now)
            self._check_evaluation(db, job, label, day)
            row = (job, label, day, user, now.isoformat())
            db.execute("INSERT OR IGNORE INTO evaluations VALUES (?, ?, ?, ?, ?)", row)

    def _check_evaluation(self, db: Connection, job: str, label: str, day: str) -> None:
        if self._left(db, "evaluations", self._evaluations, job, label, day) == 0:
            raise PolicyError(
                f"this party lets a label be evaluated with {self._evaluations:,} times per day (evaluations_per_day), "
                f"and this one has been; the next evaluation is possible from {_next(day):%Y-%m-%d %H:%M} UTC"
            )

    @staticmethod
    def _left(db: Connection, table: str, limit: Limit, job: str, label: str, day: str) -> float:
        """How often a label may be used on a day; a job that has paid may always."""
        if (
            limit == UNLIMITED
            or db.execute(
                f"SELECT 1 FROM {table} WHERE job = ? AND label = ?",  # noqa: S608 - one of two names
                (job, label),
            ).fetchone()
        ):
            return float("inf")
        (used,) = db.execute(
            f"SELECT count(*) FROM {table} WHERE day = ? AND label = ?",  # noqa: S608 - one of two names
            (day, label),
        ).fetchone()
        return max(0, limit - int(used))

    def end(self, job: str) -> None:
        """Forget which batches a job has paid for: none will come any more. What was spent stays."""
        with self._transaction(0, datetime.now(UTC)) as db:
            db.execute("DELETE FROM batches WHERE job = ?", (job,))

    @contextmanager
    def _transaction(self, rows: int, now: datetime) -> Iterator[Connection]:
        """Everything that is done in it, or nothing."""
        if rows < 0 or now.tzinfo is None:
            raise ValueError("rows must not be negative, and now needs a time zone")
        with self._db.transaction() as db:
            yield db

    def _spend(
        self,
        db: Connection,
        job: str,
        user: str,
        rows: int,
        now: datetime,
        table: Literal["spent", "explained"] = "spent",
    ) -> None:
        limit = self._limit if table == "spent" else self._explanations
        day = self._day(db, now)
        paid, known = db.execute(
            f"SELECT coalesce(sum(rows), 0), count(*) FROM {table} WHERE job = ?",  # noqa: S608 - one of two names
            (job,),
        ).fetchone()
        due = rows - paid
        if known and due <= 0:
            return
        (used,) = db.execute(
            f"SELECT coalesce(sum(rows), 0) FROM {table} WHERE day = ?",  # noqa: S608 - one of two names
            (day,),
        ).fetchone()
        if limit != UNLIMITED and used + due > limit:
            does = "predicts" if table == "spent" else "explains"
            setting = "predictions_per_day" if table == "spent" else "explanations_per_day"
            raise PolicyError(
                f"this party {does} {limit:,} rows per day ({setting}); "
                f"{max(0, limit - used):,} are left until {_next(day):%Y-%m-%d %H:%M} UTC"
            )
        db.execute(
            f"INSERT INTO {table} VALUES (:job, :day, :user, :due, :at) ON CONFLICT (job, day) DO UPDATE "  # noqa: S608
            "SET rows = rows + :due, at = :at",
            {"job": job, "user": user, "day": day, "due": due, "at": now.isoformat()},
        )

    @staticmethod
    def _day(db: Connection, now: datetime) -> str:
        """The day that is paid for: the present one, or the last one that was seen where that is later."""
        days = db.execute(
            "SELECT max(day) FROM spent UNION ALL SELECT max(day) FROM trainings "
            "UNION ALL SELECT max(day) FROM evaluations UNION ALL SELECT max(day) FROM explained"
        ).fetchall()
        return max(now.date().isoformat(), *(day or "" for (day,) in days))

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _next(day: str) -> datetime:
    """When a day is over."""
    return datetime.combine(date.fromisoformat(day) + timedelta(days=1), time(), UTC)
