"""What a job at a party pays for privacy: written to the journal in the transaction that records the reply.

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
from woodlot.privacy.budget import Budget, Charge, Ledger
from woodlot.runtime.journal import JobJournal


class Account(NamedTuple):
    """Whose budget it is, for which data, and how large."""

    client: str
    dataset: str
    budget: Budget | None


class Till:
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
        self._waiting: dict[tuple[Account, str], Charge] = {}

    def purse(self, client: str, dataset: str, budget: Budget | None) -> TillPurse:
        """Return what a client pays with."""
        if self._journal is None:
            raise LocalProtocolError("a party without a journal cannot keep account of its privacy")
        return TillPurse(self, self._journal, Account(client, dataset, budget))

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
        return not self._waiting

    def add(self, account: Account, charge: Charge) -> None:
        """Take a charge."""
        self._waiting[account, charge.release] = charge

    def find(self, account: Account, release: str) -> Charge | None:
        """Return the charge of this name that waits, if one does."""
        return self._waiting.get((account, release))

    def waiting(self, account: Account) -> list[Charge]:
        """Return the charges to an account that are not written yet."""
        return [charge for (whose, _), charge in self._waiting.items() if whose == account]

    def write(self, connection: Connection) -> None:
        """Write all charges, in a transaction of the journal's.

        Raises
        ------
        PolicyError
            Another job has spent what was left meanwhile, or has released the same with another answer.

        """
        ledger = Ledger(connection)
        for (account, _), charge in self._waiting.items():
            if ledger.charge(*account, charge).answer != charge.answer:
                raise PolicyError("another job has just released the same, with other noise; repeat this job")

    def forget_answers(self, connection: Connection) -> None:
        """Drop the answers of this job alone, in the transaction that records its end."""
        if self._journal is not None:
            Ledger(connection).forget_answers(self._journal.name)

    def clear(self) -> None:
        """Drop what waits: it is written, or its message is not answered."""
        self._waiting.clear()


class TillPurse:
    """A `woodlot.privacy.purse.Purse` whose charges are written with the reply they are for."""

    def __init__(self, till: Till, journal: JobJournal, account: Account) -> None:
        self._till = till
        self._journal = journal
        self._account = account

    def charge(self, charge: Charge) -> Charge:
        """Pay for a release; see `woodlot.privacy.purse.Purse`."""
        charge = replace(charge, job=self._journal.name)
        before = self._earlier(charge)
        if before is not None:
            return before
        due = [waiting.spend for waiting in self._till.waiting(self._account)]
        self._journal.consult(lambda db: Ledger(db).check(*self._account, *due, charge.spend))
        self._till.add(self._account, charge)
        return charge

    def check(self, *charges: Charge) -> None:
        """Refuse what would exceed the budget; see `woodlot.privacy.purse.Purse`."""
        if self._till.replays:
            return
        job = self._journal.name
        due = [c.spend for c in charges if (known := self._earlier(c)) is None or known.job == job]
        self._journal.consult(lambda db: Ledger(db).check(*self._account, *due, without_job=job))

    def _earlier(self, charge: Charge) -> Charge | None:
        """The same release, as it is recorded or waits to be."""
        client, dataset, _ = self._account
        waiting = self._till.find(self._account, charge.release)
        if waiting is None:
            return self._journal.consult(lambda db: Ledger(db).earlier(client, dataset, charge))
        if (waiting.mechanism, waiting.spend) != (charge.mechanism, charge.spend):
            raise LocalProtocolError(f"release {charge.release} was charged before, with other terms")
        return waiting
