"""A party's journal is lost: what it has spent of privacy and which orders it has taken are not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from woodlot.exceptions import JournalError, PolicyError
from woodlot.privacy.accounting import Spend
from woodlot.privacy.budget import Budget, BudgetRecord, Charge, Use
from woodlot.protocols.core.message import Message, Unanswered
from woodlot.runtime import codec
from woodlot.runtime.journal import Entry, Journal
from woodlot.runtime.pending_charges import PendingCharges
from woodlot.runtime.second_copy import SECOND_COPY, SecondCopy
from woodlot.runtime.sessions import Sessions

from .carriers import JOB
from .samples import Answer, Question
from .test_pending_charges import refusal

OTHER, NEXT = JOB[::-1], "ab" * 16


class Counting:
    """Every answer but 0 costs 0.4 of 1; the answer that lasts is the same for all jobs."""

    def __init__(self, pending_charges: PendingCharges, job: str) -> None:
        self._pending_charges, self._job = pending_charges, job
        self._client_budget = pending_charges.client_budget("bank", "loans", Budget(1.0))

    def handle(self, message: Message) -> Message:
        assert isinstance(message, Question)
        self._pending_charges.note_use("bank", "loans", "train", ("labels",))
        if message.number:
            release = "lasting" if message.number == 9 else f"{self._job} {message.number}"
            terms = {"mechanism": "noise", "spend": Spend(0.4), "answer": b"drawn"}
            self._client_budget.charge(Charge(unit="rows", release=release, **terms))  # type: ignore[arg-type]
        return Answer(number=message.number)


class Home:
    """A party in a state folder."""

    def __init__(self, folder: Path) -> None:
        self.stack = ExitStack()
        self.journal = self.stack.enter_context(Journal(folder / "journal.sqlite", durable=True))
        self.copy = self.stack.enter_context(SecondCopy(folder / SECOND_COPY))
        self.restored = self.copy.reconcile(self.journal)
        self.sessions = Sessions("bank", self.open, journal=self.journal, copy=self.copy)

    def open(self, job: str) -> Counting:
        return Counting(self.sessions.pending_charges(job), job)

    def ask(self, job: str, request: int, number: int) -> Message:
        return codec.decode(self.sessions.answer(job, request, codec.encode(Question(number=number))))

    def spent(self) -> float:
        return self.journal.consult(lambda db: BudgetRecord(db).spent("bank", "loans", unit="rows"))

    def charges(self) -> list[Charge]:
        return self.journal.consult(lambda db: BudgetRecord(db).charges("bank", "loans"))


@contextmanager
def home(folder: Path) -> Iterator[Home]:
    made = Home(folder)
    with made.stack:
        yield made


def lose(folder: Path, name: str) -> None:
    for path in folder.glob(f"{name}*"):
        path.unlink()


def test_a_lost_journal_forgets_neither_spent_epsilon_nor_orders(tmp_path: Path) -> None:
    with home(tmp_path) as bank:
        assert bank.restored == 0
        assert isinstance(bank.ask(JOB, 1, 1), Answer)
        assert isinstance(bank.ask(JOB, 2, 9), Answer)
        assert isinstance(bank.ask(OTHER, 1, 0), Answer)  # taken, and nothing spent
        assert bank.spent() == pytest.approx(0.8)
    lose(tmp_path, "journal.sqlite")
    for again in range(2):  # the second time the journal is not new any more
        with home(tmp_path) as bank:
            assert bank.restored == (0 if again else 2)
            bank.journal.verify()
            assert bank.spent() == pytest.approx(0.8)
            assert [charge.answer for charge in bank.charges()] == [None, b"drawn"]  # only what may be asked for again
            assert bank.journal.consult(lambda db: BudgetRecord(db).uses("bank", "loans")) == [
                Use(job=JOB, kind="train", units=("labels",)), Use(job=OTHER, kind="train", units=("labels",)),
            ]  # fmt: skip
            for job in (JOB, OTHER):
                told = bank.ask(job, 1, 1)
                assert isinstance(told, Unanswered)
                assert "the job has ended here" in told.reason
            sent = bank.sessions.answer(f"{again}" * 32, 1, codec.encode(Question(number=1)))
            assert isinstance(refusal(sent), PolicyError)
            assert "privacy budget" in str(refusal(sent))


def test_a_lost_copy_is_made_again(tmp_path: Path) -> None:
    with home(tmp_path) as bank:
        bank.ask(JOB, 1, 1)
    lose(tmp_path, SECOND_COPY)
    with home(tmp_path) as bank:
        assert bank.restored == 0
        assert isinstance(bank.ask(JOB, 2, 0), Answer)  # the job goes on
    lose(tmp_path, "journal.sqlite")
    with home(tmp_path) as bank:
        assert bank.restored == 1
        assert bank.spent() == pytest.approx(0.4)


def test_a_crash_between_the_copy_and_the_journal_lets_the_job_go_on(tmp_path: Path) -> None:
    """The copy has an order that the journal has not: it was never answered, and is asked for again."""
    with home(tmp_path) as bank:
        bank.ask(OTHER, 1, 0)
        bank.copy.note(JOB)
    with home(tmp_path) as bank:
        assert bank.restored == 0
        assert isinstance(bank.ask(JOB, 1, 1), Answer)


def test_nothing_is_answered_that_the_copy_does_not_have(tmp_path: Path) -> None:
    with home(tmp_path) as bank:
        bank.copy.close()
        told = bank.ask(JOB, 1, 1)
        assert isinstance(told, Unanswered)
        assert bank.journal.jobs() == []
        assert bank.spent() == 0


def test_a_release_that_was_refused_and_comes_with_other_terms_is_paid_for(tmp_path: Path) -> None:
    """The copy has the refused one: it may have more than the journal, and must not stand in the way."""
    with home(tmp_path) as bank:
        for epsilon in (0.3, 0.2):
            with bank.copy._db.transaction() as db:
                pending_charges = bank.sessions.pending_charges(JOB)
                pending_charges.client_budget("bank", "loans", None).charge(
                    Charge(unit="rows", release="lasting", mechanism="noise", spend=Spend(epsilon))
                )
                pending_charges.copy(db)
                pending_charges.clear()
        with bank.copy._db.transaction() as db:
            assert BudgetRecord(db).spent("bank", "loans", unit="rows") == pytest.approx(0.5)


def test_a_damaged_journal_says_what_may_be_moved_away_and_what_is_kept(tmp_path: Path) -> None:
    with home(tmp_path) as bank:
        bank.ask(JOB, 1, 1)
    path = tmp_path / "journal.sqlite"
    path.write_bytes(path.read_bytes()[:4096] + b"\xa5" * 8192)
    with pytest.raises(JournalError) as caught, Journal(path, durable=True) as journal:
        journal.job("x").append([Entry("a", "b", 1, "Answer", 0, bytes(32), None)])
    said = str(caught.value)
    assert "move away this file with its -wal and -shm, and nothing else" in said
    assert f"takes over from {SECOND_COPY} which orders it has taken and what it has spent of privacy" in said
