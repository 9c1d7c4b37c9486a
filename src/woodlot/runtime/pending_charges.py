"""What a job at a party pays for privacy, or learns without: written to the journal with the reply.

While a message is handled its charges wait here. Then they are written together with the reply, or not at all: a
crash before leaves neither, a crash after leaves both. A replayed message finds its charges in the file; it pays
nothing, and is given the answers that were drawn the first time. Nor is it judged again by what is left of a budget,
which other jobs have paid from meanwhile: it was let through, and what it led to is paid for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from sqlite3 import Connection
from typing import NamedTuple

from woodlot.exceptions import LocalProtocolError, PolicyError
from woodlot.privacy.accounting import Unit
from woodlot.privacy.budget import Budget, BudgetRecord, Budgets, Charge, Use
from woodlot.runtime.journal import JobJournal


class DatasetBudget(NamedTuple):
    """Whose budget it is, for which data, and how large."""

    client: str
    dataset: str
    budget: Budget | Budgets | None


class PendingCharges:
    """The charges of one job that are not written yet.

    Parameters
    ----------
    journal : JobJournal or None
        Where they are written; a session without one cannot pay.

    Attributes
    ----------
    replays : bool
        Whether what is handled now was answered before.

    """

    def __init__(self, journal: JobJournal | None) -> None:
        self.replays = False
        self._journal = journal
        self._waiting: dict[tuple[DatasetBudget, str], Charge] = {}
        self._uses: dict[tuple[str, str], Use] = {}

    def client_budget(self, client: str, dataset: str, budget: Budget | Budgets | None) -> JournaledBudget:
        """Return what a client pays with."""
        if self._journal is None:
            raise LocalProtocolError("a party without a journal cannot keep account of its privacy")
        return JournaledBudget(self, self._journal, DatasetBudget(client, dataset, budget))

    def note_use(self, client: str, dataset: str, kind: str, units: tuple[Unit, ...]) -> None:
        """Record, with the reply, that the job learns from a data set without differential privacy.

        Parameters
        ----------
        client, dataset : str
            Whose data, and which.
        kind : str
            What was ordered.
        units : tuple of {"labels", "rows"}
            Of what no epsilon bounds what is told.

        """
        if self._journal is not None and units and not self.replays:  # replayed, it is recorded
            self._uses[client, dataset] = Use(job=self._journal.name, kind=kind, units=units)

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """For as long as a handler is asked again what it has answered."""
        before, self.replays = self.replays, True
        try:
            yield
        finally:
            self.replays = before

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits to be written."""
        return not self._waiting and not self._uses

    def add(self, account: DatasetBudget, charge: Charge) -> None:
        """Take a charge."""
        self._waiting[account, charge.release] = charge

    def find(self, account: DatasetBudget, release: str) -> Charge | None:
        """Return the charge of this name that waits, if one does."""
        return self._waiting.get((account, release))

    def waiting(self, account: DatasetBudget) -> list[Charge]:
        """Return the charges to an account that are not written yet."""
        return [charge for (whose, _), charge in self._waiting.items() if whose == account]

    def write(self, connection: Connection) -> None:
        """Write all charges and uses, in a transaction of the journal's.

        Raises
        ------
        PolicyError
            Another job has spent what was left meanwhile, or has released the same with another answer.

        """
        record = BudgetRecord(connection)
        for (account, _), charge in self._waiting.items():
            if record.charge(*account, charge).answer != charge.answer:
                raise PolicyError("another job has just released the same, with other noise; repeat this job")
        for (client, dataset), use in self._uses.items():
            record.note_use(client, dataset, use)

    def copy(self, connection: Connection) -> None:
        """Write all charges and uses to a second record, before `write`; answers of the job's own are left out."""
        record = BudgetRecord(connection)
        for ((client, dataset, _), _), charge in self._waiting.items():
            own = charge.job != "" and charge.release.startswith(charge.job)
            copied = replace(charge, answer=None if own else charge.answer)
            before = record.find(client, dataset, charge.release)
            if before is not None and (before.mechanism, before.spend) != (charge.mechanism, charge.spend):
                # One that was refused afterwards, for want of budget, has the name: keep both, to count too much.
                terms = f"{charge.mechanism} {charge.spend.epsilon:g} {charge.spend.count}"
                copied = replace(copied, release=f"{charge.release} as {terms}")
            record.charge(client, dataset, None, copied)
        for (client, dataset), use in self._uses.items():
            record.note_use(client, dataset, use)

    def forget_answers(self, connection: Connection) -> None:
        """Drop the answers of this job alone, in the transaction that records its end."""
        if self._journal is not None:
            BudgetRecord(connection).forget_answers(self._journal.name)

    def clear(self) -> None:
        """Drop what waits: it is written, or its message is not answered."""
        self._waiting.clear()
        self._uses.clear()


class JournaledBudget:
    """A `woodlot.privacy.client_budget.ClientBudget` whose charges are written with the reply they are for."""

    def __init__(self, pending_charges: PendingCharges, journal: JobJournal, account: DatasetBudget) -> None:
        self._pending_charges = pending_charges
        self._journal = journal
        self._account = account

    def charge(self, charge: Charge) -> Charge:
        """Pay for a release; see `woodlot.privacy.client_budget.ClientBudget`."""
        charge = replace(charge, job=self._journal.name)
        before = self._earlier(charge)
        if before is not None:
            return before
        due = self._pending_charges.waiting(self._account)
        self._journal.consult(lambda db: BudgetRecord(db).check(*self._account, *due, charge))
        self._pending_charges.add(self._account, charge)
        return charge

    def check(self, *charges: Charge) -> None:
        """Refuse what would exceed the budget; see `woodlot.privacy.client_budget.ClientBudget`."""
        if self._pending_charges.replays:
            return
        job = self._journal.name
        due = [c for c in charges if (known := self._earlier(c)) is None or known.job == job]
        self._journal.consult(lambda db: BudgetRecord(db).check(*self._account, *due, without_job=job))

    def _earlier(self, charge: Charge) -> Charge | None:
        """The same release, as it is recorded or waits to be."""
        client, dataset, _ = self._account
        waiting = self._pending_charges.find(self._account, charge.release)
        if waiting is None:
            return self._journal.consult(lambda db: BudgetRecord(db).earlier(client, dataset, charge))
        if (waiting.unit, waiting.mechanism, waiting.spend) != (charge.unit, charge.mechanism, charge.spend):
            raise LocalProtocolError(f"release {charge.release} was charged before, with other terms")
        return waiting
