"""Charges for privacy at a party: written with the reply they are for, never without it and never twice."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from woodlot.exceptions import JournalError, LocalProtocolError, PolicyError, RemoteProtocolError
from woodlot.privacy.accounting import Spend
from woodlot.privacy.budget import Budget, BudgetRecord, Charge, Use
from woodlot.privacy.client_budget import ClientBudget
from woodlot.protocols.core.message import Message, Refusal
from woodlot.runtime import codec
from woodlot.runtime.journal import Journal
from woodlot.runtime.pending_charges import PendingCharges
from woodlot.runtime.sessions import Sessions

from .carriers import JOB
from .samples import Answer, Question

OTHER = JOB[::-1]


class Noisy:
    """Answers with a number drawn at random, which costs 0.4; 0 asks what was drawn before."""

    def __init__(self, client_budget: ClientBudget, job: str) -> None:
        self._client_budget = client_budget
        self._job = job
        self.total = 0

    def handle(self, message: Message) -> Message:
        assert isinstance(message, Question)
        if message.number == 0:
            return Answer(number=self.total)
        drawn = secrets.token_bytes(4)
        kept = self._client_budget.charge(
            Charge(
                unit="rows", release=f"{self._job} {message.number}", mechanism="noise", spend=Spend(0.4), answer=drawn
            )
        )
        assert kept.answer is not None
        self.total += int.from_bytes(kept.answer, "big")
        return Answer(number=self.total)


class House:
    """A party with a budget of 1 for its only table."""

    def __init__(self, path: Path) -> None:
        self.journal = Journal(path, durable=True)
        self.sessions = Sessions("bank", self.open, journal=self.journal)

    def open(self, job: str) -> Noisy:
        return Noisy(self.sessions.pending_charges(job).client_budget("bank", "loans", Budget(1.0)), job)

    def ask(self, number: int, job: str = JOB, request: int | None = None) -> bytes:
        asked = codec.encode(Question(number=number))
        return self.sessions.answer(job, number if request is None else request, asked)

    def restart(self) -> None:
        self.sessions = Sessions("bank", self.open, journal=self.journal)

    def charges(self) -> list[Charge]:
        return self.journal.job(JOB).consult(lambda db: BudgetRecord(db).charges("bank", "loans"))


def refusal(reply: bytes) -> Exception:
    message = codec.decode(reply)
    assert isinstance(message, Refusal)
    return message.to_exception("bank")


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path / "journal")
    yield house
    house.journal.close()


def test_a_replay_gives_the_same_noise_and_pays_nothing(house: House) -> None:
    first = [house.ask(1), house.ask(2)]
    assert [charge.job for charge in house.charges()] == [JOB, JOB]
    house.restart()
    assert [house.ask(1), house.ask(2)] == first  # from the journal
    assert house.ask(0, request=3) == first[1]  # from a handler that has lived through both again
    assert len(house.charges()) == 2


def test_what_exceeds_the_budget_is_refused_and_changes_nothing(house: House) -> None:
    house.ask(1)
    second = house.ask(2)
    refused = house.ask(3)
    assert isinstance(refusal(refused), PolicyError)
    assert "privacy budget" in str(refusal(refused))
    assert len(house.charges()) == 2
    assert house.ask(0, request=4) == second
    house.restart()
    assert house.ask(3) == refused
    assert house.ask(0, request=5) == second


def test_without_a_record_of_the_reply_there_is_no_charge(house: House, monkeypatch: Any) -> None:
    house.ask(1)
    real = BudgetRecord.charge

    def full(*args: Any) -> Charge:
        real(*args)
        raise JournalError("the disk is full")

    with monkeypatch.context() as patch:  # the last thing before the end of the transaction
        patch.setattr(BudgetRecord, "charge", full)
        assert "journal" in str(refusal(house.ask(2)))
    assert len(house.charges()) == 1
    assert house.journal.job(JOB).last("bank", "coordinator") == 1
    assert isinstance(codec.decode(house.ask(2)), Answer)
    assert len(house.charges()) == 2


def test_a_job_that_was_overtaken_is_refused_and_goes_on_from_what_is_recorded(house: House, monkeypatch: Any) -> None:
    before = house.ask(1)
    real = BudgetRecord.check
    calls = []

    def overtaken(self: BudgetRecord, *args: Any, **options: Any) -> None:
        calls.append(1)
        real(self, *args, **options)
        if len(calls) == 1:  # between the look at the budget and the record, another job takes what is left
            monkeypatch.setattr(BudgetRecord, "check", real)
            house.ask(1, job=OTHER)

    monkeypatch.setattr(BudgetRecord, "check", overtaken)
    assert "privacy budget" in str(refusal(house.ask(2)))
    assert [charge.job for charge in house.charges()] == [JOB, OTHER]
    assert house.ask(0, request=3) == before


class Forgetful(Noisy):
    """Draws one number, pays for it, keeps it in mind, and does not pay again; -1 is refused when it is drawn."""

    drawn: int | None = None

    def handle(self, message: Message) -> Message:
        assert isinstance(message, Question)
        if self.drawn is None:
            paid = Charge(
                unit="rows",
                release=f"{self._job} all",
                mechanism="noise",
                spend=Spend(0.4),
                answer=secrets.token_bytes(4),
            )
            self.drawn = int.from_bytes(self._client_budget.charge(paid).answer or b"", "big")
        if message.number < 0:
            raise RemoteProtocolError("this cannot be answered")
        self.total += 1
        return Answer(number=self.drawn)


def test_what_a_handler_keeps_of_a_charge_that_was_dropped_goes_with_it(tmp_path: Path) -> None:
    """Otherwise the next request would be answered from what nobody has paid for."""
    opened: list[Forgetful] = []

    class Trusting(House):
        def open(self, job: str) -> Noisy:
            opened.append(
                Forgetful(self.sessions.pending_charges(job).client_budget("bank", "loans", Budget(1.0)), job)
            )
            return opened[-1]

    house = Trusting(tmp_path / "journal")
    refused = house.ask(-1, request=1)
    assert "cannot be answered" in str(refusal(refused))
    assert house.charges() == []
    told = codec.decode(house.ask(2))
    assert isinstance(told, Answer)
    assert [charge.answer for charge in house.charges()] == [told.number.to_bytes(4, "big")]
    assert len(opened) == 2
    refusal(house.ask(-1, request=3))  # nothing new was to be paid: the handler stays
    assert codec.decode(house.ask(4)).number == told.number  # type: ignore[attr-defined]
    assert (len(opened), opened[-1].total) == (2, 2)
    assert house.ask(-1, request=1) == refused
    house.journal.close()


def test_the_end_of_a_job_drops_its_answers_and_keeps_its_charges(house: House) -> None:
    house.ask(1)
    house.ask(1, job=OTHER)
    house.sessions.end(JOB)
    assert [(charge.job, charge.answer is None) for charge in house.charges()] == [(JOB, True), (OTHER, False)]


def test_what_a_job_has_paid_is_not_asked_for_twice(house: House) -> None:
    whole = Charge(unit="rows", release="all of it", mechanism="noise", spend=Spend(0.4, 2))
    client_budget = house.sessions.pending_charges(JOB).client_budget("bank", "loans", Budget(1.0))
    client_budget.check(whole)
    house.ask(1)
    client_budget.check(whole)  # as after a restart
    with pytest.raises(PolicyError, match="privacy budget"):
        house.sessions.pending_charges(OTHER).client_budget("bank", "loans", Budget(1.0)).check(whole)
    with pytest.raises(LocalProtocolError, match="other terms"):
        client_budget.charge(Charge(unit="rows", release=f"{JOB} 1", mechanism="another", spend=Spend(0.4)))


class Planned(Noisy):
    """Looks first whether all that it is going to cost, twice 0.4, is left."""

    def handle(self, message: Message) -> Message:
        if self.total == 0:
            self._client_budget.check(
                Charge(unit="rows", release=f"{self._job} all", mechanism="noise", spend=Spend(0.4, 2))
            )
        return super().handle(message)


def test_what_others_have_spent_since_does_not_keep_a_job_from_being_rebuilt(house: House) -> None:
    def open_job(job: str) -> Noisy:
        kind = Planned if job == JOB else Noisy
        return kind(house.sessions.pending_charges(job).client_budget("bank", "loans", Budget(1.0)), job)

    def restart() -> None:
        house.sessions = Sessions("bank", open_job, journal=house.journal)

    restart()
    first = house.ask(1)
    house.ask(1, job=OTHER)  # 0.4 of 1: what the first job has planned would not fit beside it any more
    restart()
    assert house.ask(0, request=2) == first
    assert "privacy budget" in str(refusal(house.ask(3)))  # what is not paid for yet is held to the budget as ever
    assert "privacy budget" in str(refusal(house.ask(1, job="f" * 32)))
    assert len(house.charges()) == 2


def test_one_message_may_release_the_same_twice(house: House) -> None:
    client_budget = house.sessions.pending_charges(JOB).client_budget("bank", "loans", Budget(1.0))
    first = client_budget.charge(Charge(unit="rows", release="r", mechanism="noise", spend=Spend(0.6), answer=b"first"))
    again = client_budget.charge(
        Charge(unit="rows", release="r", mechanism="noise", spend=Spend(0.6), answer=b"second")
    )
    assert (first.answer, again.answer) == (b"first", b"first")
    with pytest.raises(PolicyError, match="privacy budget"):  # what waits counts as spent
        client_budget.charge(Charge(unit="rows", release="s", mechanism="noise", spend=Spend(0.6)))
    with pytest.raises(LocalProtocolError, match="other terms"):
        client_budget.charge(Charge(unit="rows", release="r", mechanism="noise", spend=Spend(0.5)))


def test_a_party_without_a_journal_cannot_pay() -> None:
    with pytest.raises(LocalProtocolError, match="journal"):
        Sessions("bank", lambda job: Noisy(None, job)).pending_charges(JOB).client_budget("bank", "loans", None)  # type: ignore[arg-type]


class Learning(Noisy):
    """Learns from another table without differential privacy, and may refuse to."""

    def __init__(self, house: House, job: str) -> None:
        super().__init__(house.sessions.pending_charges(job).client_budget("bank", "loans", Budget(1.0)), job)
        self._pending_charges = house.sessions.pending_charges(job)

    def handle(self, message: Message) -> Message:
        assert isinstance(message, Question)
        self._pending_charges.note_use("bank", "cards", "train", ("labels", "rows"))
        if message.number == 13:
            raise RemoteProtocolError("not this one")
        return Answer(number=message.number)


def test_a_use_without_privacy_is_recorded_with_the_reply_and_once(house: House) -> None:
    def uses() -> list[Use]:
        return house.journal.job(JOB).consult(lambda db: BudgetRecord(db).uses("bank", "cards"))

    house.open = lambda job: Learning(house, job)  # type: ignore[method-assign]
    house.restart()
    assert "not this one" in str(refusal(house.ask(13, request=1)))
    assert uses() == []  # nothing was told
    for number in (2, 3):
        house.ask(number)
        house.restart()
    house.ask(4)
    assert uses() == [Use(job=JOB, kind="train", units=("labels", "rows"))]
    assert house.charges() == []


def test_the_same_release_with_other_noise_is_refused(tmp_path: Path) -> None:
    """Two jobs that both find nothing and draw: the second to be recorded must not tell another number."""
    with Journal(tmp_path / "journal.sqlite", durable=False) as journal:
        pending = {job: PendingCharges(journal.job(job)) for job in (JOB, OTHER)}
        for number, pending_charges in enumerate(pending.values()):
            paid = Charge(
                unit="rows", release="all", mechanism="noise", spend=Spend(0.4), answer=number.to_bytes(4, "big")
            )
            pending_charges.client_budget("bank", "loans", Budget(1.0)).charge(paid)
        journal.job(OTHER).append([], pending[OTHER].write)
        with pytest.raises(PolicyError, match="with other noise"):
            journal.job(JOB).append([], pending[JOB].write)
        told = journal.job(JOB).consult(lambda db: BudgetRecord(db).charges("bank", "loans"))
        assert [charge.job for charge in told] == [OTHER]
