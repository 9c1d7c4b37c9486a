"""The record of what each client has spent of its privacy, kept on disk for ever.

There are two accounts for each data set: what was released of the labels of rows, and what was released of whole rows.
They are different promises, so they are recorded, shown and limited apart; no function here adds them.

Beside the charges stand the *uses*: jobs that learnt from the data set without differential privacy. No epsilon bounds
what they told, so a statement about the charges must come with them.

A release is charged before it is sent, in the transaction that stores what is sent:

==============================  =================================================================================
a crash before the transaction  nothing was spent, and nothing was sent
a crash after it                it is spent, and the stored answer is sent again; nothing is drawn or charged again
==============================  =================================================================================

`BudgetRecord` works in a transaction of somebody else's, such as that of a party's journal; `BudgetFile` is a file of
its own. A protocol knows neither: it is given a `ClientBudget`, see `woodlot.privacy.client_budget`. No decision
depends on a clock.
Epsilons are recorded in whole units of 1e-12, rounded up, and added exactly. Since ten charges of 0.1 shall fit into a
budget of 1, a budget may be exceeded by a billionth part of it, and by no more.

Whoever can write to the file can make it forget. It protects the client from mistakes and from others, not from
itself; a lost file is a lost budget, so back it up with the client's secret.
"""

from __future__ import annotations

import math
import sqlite3
import weakref
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Self

from woodlot.exceptions import LocalProtocolError, PolicyError
from woodlot.foundation.database import Database, Schema
from woodlot.privacy.accounting import UNITS, Spend, Unit, check_delta, check_epsilon, least_delta, total_epsilon
from woodlot.privacy.exact import float_up

UNIT = 10**12
"""Units of an epsilon of 1."""

_SLACK = Fraction(1, 10**9)
_LARGEST = 2**62

_TABLE = """
CREATE TABLE IF NOT EXISTS budget_charges (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    client TEXT NOT NULL,
    dataset TEXT NOT NULL,
    unit TEXT NOT NULL CHECK (unit IN ('labels', 'rows')),
    release TEXT NOT NULL,
    job TEXT NOT NULL,
    mechanism TEXT NOT NULL,
    epsilon INTEGER NOT NULL CHECK (epsilon > 0),
    count INTEGER NOT NULL CHECK (count >= 0),
    answer BLOB,
    UNIQUE (client, dataset, release)
) STRICT
"""

_DELTAS_TABLE = """
CREATE TABLE IF NOT EXISTS budget_deltas (
    client TEXT NOT NULL,
    dataset TEXT NOT NULL,
    release TEXT NOT NULL,
    delta REAL NOT NULL CHECK (delta > 0),
    UNIQUE (client, dataset, release)
) STRICT
"""
"""Of the charges that have a delta of their own; records of earlier versions have no such table."""

_USES_TABLE = """
CREATE TABLE IF NOT EXISTS budget_uses (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    client TEXT NOT NULL,
    dataset TEXT NOT NULL,
    job TEXT NOT NULL,
    kind TEXT NOT NULL,
    units TEXT NOT NULL,
    UNIQUE (client, dataset, job)
) STRICT
"""

BUDGET_SCHEMA = Schema(
    name="the privacy budget",
    application=b"WBUD",
    tables=(_TABLE, _DELTAS_TABLE, _USES_TABLE),
    damaged="Do not begin a new one for the same data: what was spent would be forgotten.",
    unusable="nothing may be released",
)
"""The database of `BudgetFile`."""


@dataclass(frozen=True)
class Budget:
    """How much a client lets be spent on one account of a data set, in all.

    Attributes
    ----------
    epsilon : float
        The total.
    delta : float
        With 0 the epsilons of all releases are added; else they are composed, and the total holds but for a chance
        of delta. See `total_epsilon`.

    """

    epsilon: float
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        check_delta(self.delta)


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """A budget for each of the two accounts of a data set; None: any amount, which is recorded all the same.

    Attributes
    ----------
    labels, rows : Budget or None
        What may be spent on the labels of rows, and on whole rows.

    """

    labels: Budget | None = None
    rows: Budget | None = None

    def of(self, unit: Unit) -> Budget | None:
        """Return the budget of one account."""
        return self.labels if unit == "labels" else self.rows


@dataclass(frozen=True, kw_only=True)
class Use:
    """A job that learnt from a data set without differential privacy, in whole or in part.

    Attributes
    ----------
    job : str
        The job.
    kind : str
        What was ordered, such as "train".
    units : tuple of {"labels", "rows"}
        Of what no epsilon bounds what it told.

    """

    job: str
    kind: str
    units: tuple[Unit, ...]


@dataclass(frozen=True, kw_only=True)
class Charge:
    """One release.

    Attributes
    ----------
    unit : {"labels", "rows"}
        The account: what the epsilon is for.
    release : str
        Names what is released: the same question has the same name, another question another.
    mechanism : str
        In words, for whoever reads the record.
    spend : Spend
        What it costs.
    job : str
        For whoever reads the record.
    answer : bytes or None
        What is sent, noise and all, where the message itself is not stored.

    """

    unit: Unit
    release: str
    mechanism: str
    spend: Spend
    job: str = ""
    answer: bytes | None = None


class BudgetRecord:
    """The charges in an open database, which may hold other tables.

    Parameters
    ----------
    connection : sqlite3.Connection
        Its owner begins and ends the transactions, and has set ``synchronous = FULL``.

    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection

    def charge(self, client: str, dataset: str, budget: Budget | Budgets | None, charge: Charge) -> Charge:
        """Charge a release, or refuse it and change nothing. Nothing may be sent before the transaction has ended.

        Parameters
        ----------
        client, dataset : str
            Whose budget it is, and for which data.
        budget : Budget, Budgets or None
            What may be spent in all; one `Budget` is that of each account. None: any amount, which is recorded all the
            same.
        charge : Charge
            The release.

        Returns
        -------
        Charge
            What is recorded. Where the release was charged before, this is the earlier record, with the answer
            that was drawn then: send that one.

        Raises
        ------
        PolicyError
            The budget would be exceeded.
        LocalProtocolError
            A release of this name was charged with other terms, or no transaction is open.

        """
        if not self._db.in_transaction:
            raise LocalProtocolError("a charge belongs in the transaction that stores what is released: begin it first")
        before = self.earlier(client, dataset, charge)
        if before is not None:
            return before
        self.check(client, dataset, budget, charge)
        epsilon, count = _units(charge.spend), charge.spend.count
        self._db.execute(_TABLE)
        self._db.execute(
            "INSERT INTO budget_charges (client, dataset, unit, release, job, mechanism, epsilon, count, answer) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (client, dataset, charge.unit, charge.release, charge.job, charge.mechanism, epsilon, count, charge.answer),
        )
        if charge.spend.delta:
            self._db.execute(_DELTAS_TABLE)
            self._db.execute(
                "INSERT INTO budget_deltas (client, dataset, release, delta) VALUES (?, ?, ?, ?)",
                (client, dataset, charge.release, charge.spend.delta),
            )
        return charge

    def note_use(self, client: str, dataset: str, use: Use) -> None:
        """Record that a job learns from a data set without differential privacy; again, it changes nothing."""
        if not self._db.in_transaction:
            raise LocalProtocolError("a use belongs in the transaction that stores what is told: begin it first")
        self._db.execute(_USES_TABLE)
        self._db.execute(
            "INSERT OR IGNORE INTO budget_uses (client, dataset, job, kind, units) VALUES (?, ?, ?, ?, ?)",
            (client, dataset, use.job, use.kind, " ".join(use.units)),
        )

    def uses(self, client: str, dataset: str) -> list[Use]:
        """Return the jobs that learnt from a data set without differential privacy, in order."""
        if not self._exists("budget_uses"):
            return []
        rows = self._db.execute(
            "SELECT job, kind, units FROM budget_uses WHERE client = ? AND dataset = ? ORDER BY position",
            (client, dataset),
        )
        return [
            Use(job=job, kind=kind, units=tuple(u for u in UNITS if u in units.split())) for job, kind, units in rows
        ]

    def earlier(self, client: str, dataset: str, charge: Charge) -> Charge | None:
        """Return the record of the same release, if there is one; with other terms it is refused."""
        epsilon, count = _units(charge.spend), charge.spend.count
        if epsilon * count > _LARGEST:
            raise PolicyError(f"an epsilon of {charge.spend.epsilon:g} is too large to be charged: it protects nobody")
        before = self.find(client, dataset, charge.release)
        terms = (charge.unit, charge.mechanism, _recorded(epsilon, count, charge.spend.delta))
        if before is not None and (before.unit, before.mechanism, before.spend) != terms:
            raise LocalProtocolError(f"release {charge.release} was charged before, with other terms")
        return before

    def forget_answers(self, job: str) -> None:
        """Drop the answers of releases whose names begin with the job's: when it has ended, nobody asks again."""
        if self._exists():
            self._db.execute("UPDATE budget_charges SET answer = NULL WHERE instr(release, ?) = 1", (job,))

    def check(
        self,
        client: str,
        dataset: str,
        budget: Budget | Budgets | None,
        *charges: Charge,
        without_job: str | None = None,
    ) -> None:
        """Refuse what would exceed the budget of an account, and record nothing.

        For a job that knows its costs beforehand.

        Parameters
        ----------
        client, dataset, budget
            As for `charge`.
        *charges : Charge
            What is to be released.
        without_job : str, optional
            Do not count what this job was charged: it is among the charges.

        Raises
        ------
        PolicyError
            The message says what is spent and what would be.

        """
        for unit in UNITS:
            due = [charge.spend for charge in charges if charge.unit == unit]
            limit = budget.of(unit) if isinstance(budget, Budgets) else budget
            if due and limit is not None:
                self._check_account(client, dataset, unit, limit, due, without_job)

    def _check_account(
        self, client: str, dataset: str, unit: Unit, budget: Budget, spends: list[Spend], without_job: str | None
    ) -> None:
        spent = self.spends(client, dataset, unit, without_job)
        after = [*spent, *(_recorded(_units(spend), spend.count, spend.delta) for spend in spends)]
        limit = Fraction(budget.epsilon) * (1 + _SLACK)
        plain = sum((Fraction(spend.epsilon) * spend.count for spend in after), Fraction(0))
        own, spent_delta = least_delta(after), least_delta(spent)
        if own > budget.delta * (1 + _SLACK):
            raise PolicyError(
                f"the privacy budget does not allow it: it has a delta of {budget.delta:g} for the {unit} of this data "
                f"set, of which {spent_delta:g} is spent, and it would become {own:g}; the request is refused. Ask for "
                "a smaller delta, or let the client's operator set delta in the section [privacy]"
            )
        if plain <= limit:  # composed it is never more
            return
        total = total_epsilon(after, budget.delta)
        if budget.delta == 0 or Fraction(total) > limit:
            have = total_epsilon(spent, budget.delta)
            raise PolicyError(
                f"the privacy budget does not allow it: of epsilon {budget.epsilon:g} for the {unit} of this data set "
                f"{have:.6g} is spent, and it would become {total:.6g}; the request is refused. "
                "Ask for less, or let the client's operator raise the budget"
            )

    def find(self, client: str, dataset: str, release: str) -> Charge | None:
        """Return the record of a release, if there is one."""
        if not self._exists():
            return None
        row = self._db.execute(
            "SELECT unit, release, mechanism, epsilon, count, job, answer FROM budget_charges "
            "WHERE client = ? AND dataset = ? AND release = ?",
            (client, dataset, release),
        ).fetchone()
        return None if row is None else _charge(self._deltas(client, dataset).get(release, 0.0), *row)

    def charges(self, client: str, dataset: str) -> list[Charge]:
        """Return all records in order."""
        if not self._exists():
            return []
        rows = self._db.execute(
            "SELECT unit, release, mechanism, epsilon, count, job, answer FROM budget_charges "
            "WHERE client = ? AND dataset = ? ORDER BY position",
            (client, dataset),
        )
        deltas = self._deltas(client, dataset)
        return [_charge(deltas.get(row[1], 0.0), *row) for row in rows]

    def spends(self, client: str, dataset: str, unit: Unit, without_job: str | None = None) -> list[Spend]:
        """Return all costs of one account, those of equal epsilon and delta together; not those of one job."""
        if not self._exists():
            return []
        rows = self._db.execute(
            "SELECT release, epsilon, count FROM budget_charges "
            "WHERE client = ? AND dataset = ? AND unit = ? AND job IS NOT ?",
            (client, dataset, unit, without_job),
        )
        deltas, counts = self._deltas(client, dataset), defaultdict[tuple[int, float], int](int)
        for release, epsilon, count in rows:
            counts[epsilon, deltas.get(release, 0.0)] += count
        return [_recorded(epsilon, count, delta) for (epsilon, delta), count in sorted(counts.items())]

    def spent(self, client: str, dataset: str, unit: Unit, delta: float = 0.0) -> float:
        """Return the epsilon that is spent from one account, for a delta; at least for that of `spent_delta`."""
        spends = self.spends(client, dataset, unit)
        return total_epsilon(spends, max(delta, least_delta(spends)))

    def spent_delta(self, client: str, dataset: str, unit: Unit) -> float:
        """Return the delta that the releases of one account have of their own."""
        return least_delta(self.spends(client, dataset, unit))

    def _deltas(self, client: str, dataset: str) -> dict[str, float]:
        """The deltas of the charges that have one, by release."""
        if not self._exists("budget_deltas"):
            return {}
        rows = self._db.execute(
            "SELECT release, delta FROM budget_deltas WHERE client = ? AND dataset = ?", (client, dataset)
        )
        return dict(rows.fetchall())

    def accounts(self) -> list[tuple[str, str]]:
        """Return all clients and data sets that have charges or uses."""
        tables = [table for table in ("budget_charges", "budget_uses") if self._exists(table)]
        found: set[tuple[str, str]] = set()
        for table in tables:
            found.update(self._db.execute(f"SELECT DISTINCT client, dataset FROM {table}"))  # noqa: S608 - a fixed name
        return sorted(found)

    def copy_to(self, other: BudgetRecord) -> None:
        """Add to another record what only this one has; without answers that only their own job asks for again."""
        for table in (_TABLE, _DELTAS_TABLE, _USES_TABLE):
            other._db.execute(table)
        if self._exists():
            charges = self._db.execute(
                "SELECT client, dataset, unit, release, job, mechanism, epsilon, count, "
                "CASE WHEN job != '' AND instr(release, job) = 1 THEN NULL ELSE answer END "
                "FROM budget_charges ORDER BY position"
            )
            other._db.executemany(
                "INSERT OR IGNORE INTO budget_charges "
                "(client, dataset, unit, release, job, mechanism, epsilon, count, answer) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                charges,
            )
        if self._exists("budget_deltas"):
            deltas = self._db.execute("SELECT client, dataset, release, delta FROM budget_deltas")
            other._db.executemany(
                "INSERT OR IGNORE INTO budget_deltas (client, dataset, release, delta) VALUES (?, ?, ?, ?)", deltas
            )
        if self._exists("budget_uses"):
            uses = self._db.execute("SELECT client, dataset, job, kind, units FROM budget_uses ORDER BY position")
            other._db.executemany(
                "INSERT OR IGNORE INTO budget_uses (client, dataset, job, kind, units) VALUES (?, ?, ?, ?, ?)", uses
            )

    def _exists(self, table: str = "budget_charges") -> bool:
        return self._db.execute("SELECT 1 FROM sqlite_schema WHERE name = ?", (table,)).fetchone() is not None


class BudgetFile:
    """A record of charges in a file of its own, readable by its owner only. Threads and processes may share it.

    Parameters
    ----------
    path : path-like
        The file; it is made when it does not exist.

    Raises
    ------
    JournalError
        If the file cannot be used.

    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._db = Database(self.path, BUDGET_SCHEMA)

    @classmethod
    def in_memory(cls) -> Self:
        """Return a record that nothing is left of when this process ends."""
        file = cls.__new__(cls)
        file.path = Path(":memory:")
        file._db = Database.in_memory(BUDGET_SCHEMA)
        weakref.finalize(file, file._db.close)  # nobody closes what lives as long as it is used
        return file

    @contextmanager
    def transaction(self) -> Iterator[BudgetRecord]:
        """What is charged in it is recorded as a whole, or not at all; when it has ended it may be sent."""
        with self._db.transaction() as db:
            yield BudgetRecord(db)

    def close(self) -> None:
        """Close the file. Closing twice does nothing."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _charge(
    delta: float, unit: Unit, release: str, mechanism: str, epsilon: int, count: int, job: str, answer: bytes | None
) -> Charge:
    spend = _recorded(epsilon, count, delta)
    return Charge(unit=unit, release=release, mechanism=mechanism, spend=spend, job=job, answer=answer)


def _units(spend: Spend) -> int:
    return math.ceil(Fraction(spend.epsilon) * UNIT)


def _recorded(units: int, count: int, delta: float) -> Spend:
    """A cost as it is recorded: a little more than was charged."""
    return Spend(float_up(Fraction(units, UNIT)), count, delta)
