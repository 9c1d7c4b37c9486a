"""The budget that a client of a protocol charges for what it releases under differential privacy.

In process this is a `LocalBudget`. At a party of a real federation it is a `JournaledBudget` of
`woodlot.runtime.pending_charges`: its charges are written in the transaction that records the reply.
"""

from __future__ import annotations

from typing import Protocol

from woodlot.privacy.accounting import Spend, Unit
from woodlot.privacy.budget import Budget, BudgetFile, Budgets, Charge


class ClientBudget(Protocol):
    """Charged by a client of a protocol before it answers with something differentially private.

    A release has a name, the same whenever the same is asked: by a repeated message, after a restart, and for what is
    derived from a lasting secret also in another job. It is paid for once. What was drawn at random must be in
    ``answer``, since it cannot be drawn again; what is derived need not be::

        noisy, _ = noise.release(counts)
        kept = client_budget.charge(
            Charge(unit="rows", release=f"{job} counts {round}", ..., spend=Spend(0.1), answer=noisy.tobytes())
        )
        return CountsMessage(np.frombuffer(kept.answer, np.int64))

    A release whose name begins with the job's is of that job alone: its answer is dropped when the job has ended.
    """

    def charge(self, charge: Charge) -> Charge:
        """Pay for a release; what is to be sent follows from the charge that is returned, not from the one given.

        Raises
        ------
        PolicyError
            The budget would be exceeded. Nothing was recorded; the client must not answer.

        """
        ...

    def check(self, *charges: Charge) -> None:
        """Refuse with a `PolicyError` what would exceed the budget, and record nothing.

        For a job that knows its costs beforehand: it gives all of them, also those that it has paid already. Those that
        were charged before, and whatever the job itself was charged already, are not counted twice. A job that is
        rebuilt after a restart was let through before: it is not refused here for what others have spent since.
        """
        ...


class LocalBudget:
    """A client's budget in this process.

    Parameters
    ----------
    client, dataset : str
        Whose it is, and for which data.
    budget : Budget or Budgets, optional
        What may be spent in all on labels, and on rows: one `Budget` is that of each. Without it, anything, and it is
        only added up.
    file : BudgetFile, optional
        Where it is recorded for ever; without it, in memory, for as long as this object lives.

    """

    def __init__(
        self,
        client: str,
        dataset: str = "",
        budget: Budget | Budgets | None = None,
        file: BudgetFile | None = None,
    ) -> None:
        self.client = client
        self.dataset = dataset
        self.budget = budget
        self._file = BudgetFile.in_memory() if file is None else file

    def charge(self, charge: Charge) -> Charge:
        """Pay for a release; see `ClientBudget`."""
        with self._file.transaction() as record:
            return record.charge(self.client, self.dataset, self.budget, charge)

    def check(self, *charges: Charge) -> None:
        """Refuse what would exceed the budget; see `ClientBudget`."""
        with self._file.transaction() as record:
            due = [charge for charge in charges if record.earlier(self.client, self.dataset, charge) is None]
            record.check(self.client, self.dataset, self.budget, *due)

    def forget_answers(self, job: str) -> None:
        """Drop the answers of a job that has ended; its charges stay."""
        with self._file.transaction() as record:
            record.forget_answers(job)

    def spends(self, unit: Unit) -> list[Spend]:
        """Return all that was paid from one account."""
        with self._file.transaction() as record:
            return record.spends(self.client, self.dataset, unit)
