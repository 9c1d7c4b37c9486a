from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.exceptions import DataError, JournalError, LocalProtocolError, PartyAwayError, RemoteProtocolError
from woodlot.protocols.core.message import Message, Unanswered
from woodlot.runtime import codec
from woodlot.runtime.audit import Disclosures, Ledger
from woodlot.runtime.drivers import Driver, Handler
from woodlot.runtime.drivers.carried import CarriedDriver, Numbered, Reply, Travel, travel_of
from woodlot.runtime.drivers.thread_carrier import ThreadCarrier
from woodlot.runtime.journal import Journal
from woodlot.runtime.sessions import Sessions

from .carriers import JOB, MEMORY
from .driver_contract import DriverContract, MakeDriver, number_of
from .samples import Answer, Question


def opener(handler: Handler) -> Callable[[str], Handler]:
    return lambda job: handler


class TestCarriedDriver(DriverContract):
    @pytest.fixture(params=[False, True], ids=["without journal", "with journals"])
    def make_driver(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MakeDriver]:
        opened: list[Driver | Journal] = []

        def journal(name: str) -> Journal | None:
            if not request.param:
                return None
            opened.append(Journal(tmp_path / name, durable=False))
            return opened[-1]  # type: ignore[return-value]

        def make(handlers: Mapping[str, Handler]) -> Driver:
            answers = {n: Sessions(n, opener(h), journal=journal(n)).answer for n, h in handlers.items()}
            own = journal("coordinator")
            carrier = ThreadCarrier(JOB, answers)
            opened.append(CarriedDriver(carrier, list(handlers), journal=None if own is None else own.job(JOB)))
            return opened[-1]  # type: ignore[return-value]

        yield make
        for thing in reversed(opened):
            thing.close()


# --- carriers that do what no carrier should ---


class Scripted:
    """Gives each party's reply from a function of the request."""

    def __init__(self, reply: Callable[[str, Numbered], bytes]) -> None:
        self.reply = reply
        self.carried: list[tuple[str, int]] = []
        self.closed = 0

    def carry(self, requests: Mapping[str, Numbered], on_reply: Callable[[str, bytes], None]) -> None:
        for party, request in requests.items():
            self.carried.append((party, request.number))
            on_reply(party, self.reply(party, request))

    def close(self) -> None:
        self.closed += 1


def fine(party: str, request: Numbered) -> bytes:
    return codec.encode(Answer(number=request.number, party=party))


def test_requests_are_numbered_for_each_party() -> None:
    carrier = Scripted(fine)
    with CarriedDriver(carrier, ["a", "b"]) as driver:
        for names in ("a", "ab", "b", "a"):
            driver.ask({name: Question() for name in names})
    assert carrier.carried == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("a", 3)]
    assert carrier.closed == 1


def test_the_network_took_what_the_party_that_was_last_did_not_work() -> None:
    quick, slow, liar = Reply(1.0, 0.25, 10), Reply(3.0, 2.5, 200), Reply(3.5, 9.0, 1)
    assert travel_of([]) == Travel(0.0, 0)
    assert travel_of([slow, quick]) == Travel(0.5, 210)
    assert travel_of([quick, slow, liar]) == Travel(0.0, 211)


def test_what_the_way_took_is_in_the_cost() -> None:
    class Timed(Scripted):
        def carry(self, requests: Mapping[str, Numbered], on_reply: Callable[[str, bytes], None]) -> Travel:
            super().carry(requests, on_reply)
            return Travel(0.5, 1000)

    ledger = Ledger()
    with CarriedDriver(Timed(fine), ["a", "b"], ledger=ledger) as driver:
        driver.ask({"a": Question(), "b": Question()})
        driver.ask({"a": Question()})
        driver.ask({})
    assert (ledger.cost().network_seconds, ledger.cost().wire_bytes) == (1.0, 2000)


@pytest.mark.parametrize("parties", [[], ["coordinator"]])
def test_names_that_cannot_be(parties: list[str]) -> None:
    with pytest.raises(LocalProtocolError):
        CarriedDriver(Scripted(fine), parties)


def test_a_reply_that_is_no_message_is_its_senders_failure(tmp_path: Path) -> None:
    carrier = Scripted(lambda party, request: b"noise" if (party, request.number) == ("a", 1) else fine(party, request))
    ledger = Ledger()
    with Journal(tmp_path / "j", durable=False) as journal:
        with CarriedDriver(carrier, ["a", "b"], journal=journal.job(JOB), ledger=ledger) as driver:
            with pytest.raises(RemoteProtocolError, match="party 'a': message too short"):
                driver.ask({"a": Question(), "b": Question()})
            assert number_of(driver.ask({"a": Question()})["a"]) == 2
        kept = [(r.sender, r.number, r.kind) for r in journal.job(JOB).records() if r.sender != "coordinator"]
    assert kept == [("b", 1, "Answer"), ("a", 2, "Answer")]
    assert [row.count for row in ledger.disclosure()] == [2, 1, 1, 1]


def test_a_reply_above_the_limit_is_refused_and_a_request_is_not_sent() -> None:
    data = np.zeros(5_000, np.uint8)
    carrier = Scripted(lambda party, request: codec.encode(Answer(data=data)))
    with CarriedDriver(carrier, ["a"], limit=4_000) as driver:
        with pytest.raises(LocalProtocolError, match="too large"):
            driver.ask({"a": Question(data=data)})
        assert carrier.carried == []
        with pytest.raises(RemoteProtocolError, match="party 'a': message too large"):
            driver.ask({"a": Question()})


def test_a_reply_of_a_party_that_was_not_asked_stops_the_run() -> None:
    class Wrong(Scripted):
        def carry(self, requests: Mapping[str, Numbered], on_reply: Callable[[str, bytes], None]) -> None:
            on_reply("b", b"")

    with (
        CarriedDriver(Wrong(fine), ["a", "b"]) as driver,
        pytest.raises(RemoteProtocolError, match="'b', which was not asked"),
    ):
        driver.ask({"a": Question()})


@pytest.mark.parametrize(
    "error", [PartyAwayError("waiting for b since 9 s"), KeyboardInterrupt(), JournalError("full")]
)
def test_a_round_that_fails_stops_the_driver_and_can_be_resumed(tmp_path: Path, error: BaseException) -> None:
    def reply(party: str, request: Numbered) -> bytes:
        if party == "b" and carrier is first:
            raise error
        return fine(party, request)

    with Journal(tmp_path / "j", durable=False) as journal:
        carrier = first = Scripted(reply)
        with CarriedDriver(first, ["a", "b"], journal=journal.job(JOB)) as driver:
            for _ in range(2):  # also what a protocol would ask to clean up
                with pytest.raises(type(error)) as caught:
                    driver.ask({"a": Question(number=7), "b": Question(number=8)})
                assert caught.value is error
        carrier = Scripted(reply)
        with CarriedDriver(carrier, ["a", "b"], journal=journal.job(JOB)) as driver:
            replies = driver.ask({"a": Question(number=7), "b": Question(number=8)})
    assert first.carried == [("a", 1), ("b", 1)]
    assert carrier.carried == [("b", 1)]
    assert list(map(number_of, replies.values())) == [1, 1]


@pytest.mark.parametrize(
    ("kind", "expected"), [("internal", JournalError), ("data", DataError), ("protocol", LocalProtocolError)]
)
def test_what_a_party_leaves_unanswered_is_no_part_of_the_run(
    tmp_path: Path, kind: str, expected: type[Exception]
) -> None:
    def reply(party: str, request: Numbered) -> bytes:
        if party == "a" and carrier is first:
            return codec.encode(Unanswered(kind=kind, reason="disk full"))  # type: ignore[arg-type]
        return fine(party, request)

    with Journal(tmp_path / "j", durable=False) as journal:
        carrier = first = Scripted(reply)
        with CarriedDriver(carrier, ["a", "b"], journal=journal.job(JOB)) as driver:
            for _ in range(2):
                with pytest.raises(expected, match="party 'a': disk full"):
                    driver.ask({"a": Question(), "b": Question()})
        carrier = Scripted(reply)
        with CarriedDriver(carrier, ["a", "b"], journal=journal.job(JOB)) as driver:
            driver.ask({"a": Question(), "b": Question()})
    assert carrier.carried == [("a", 1)]


def test_a_run_that_does_not_repeat_itself_is_met(tmp_path: Path) -> None:
    carrier = Scripted(fine)
    with Journal(tmp_path / "j", durable=False) as journal:
        with CarriedDriver(carrier, ["a"], journal=journal.job(JOB)) as driver:
            driver.ask({"a": Question(number=1)})
        with CarriedDriver(carrier, ["a"], journal=journal.job(JOB)) as driver:
            with pytest.raises(JournalError, match="does not repeat itself: request 1 to party 'a'"):
                driver.ask({"a": Question(number=2)})
            with pytest.raises(JournalError, match="does not repeat itself"):
                driver.ask({"a": Question(number=1)})
        journal.job(JOB).drop_bodies()
        with CarriedDriver(carrier, ["a"], journal=journal.job(JOB)) as driver, pytest.raises(JournalError):
            driver.ask({"a": Question(number=1)})
    assert len(carrier.carried) == 1


def test_a_closed_driver_closes_its_carrier_while_a_round_waits() -> None:
    class Waiting(Scripted):
        gone = threading.Event()

        def carry(self, requests: Mapping[str, Numbered], on_reply: Callable[[str, bytes], None]) -> None:
            self.gone.wait(300)
            raise LocalProtocolError("closed")

        def close(self) -> None:
            self.gone.set()

    driver = CarriedDriver(Waiting(fine), ["a"])
    closer = threading.Timer(0.05, driver.close)
    closer.start()
    started = time.monotonic()
    with pytest.raises(LocalProtocolError, match="closed"):
        driver.ask({"a": Question()})
    assert time.monotonic() - started < 150  # half of what the party would stay
    closer.join()


# --- crash and replay ---


class Crash(BaseException):
    """Stands for kill -9 of the process in which it is raised."""


class Summing:
    """A party whose every answer depends on all that it was asked; it refuses some, and may crash in its work."""

    def __init__(self, name: str, crash: Callable[[], bool]) -> None:
        self._state = hashlib.sha256(name.encode())
        self._crash = crash

    def handle(self, message: Message) -> Message:
        assert isinstance(message, Question)
        if message.number % 5 == 3:
            raise DataError(f"not {message.number}")
        self._state.update(codec.encode(message))
        if self._crash():
            raise Crash
        return Answer(number=message.number, data=np.frombuffer(self._state.digest(), np.uint8))


FAULTS = ("coordinator before", "coordinator after", "party before", "party inside", "party after")


class World:
    """Two parties and a coordinator with their journals, and the faults that strike them one after the other."""

    def __init__(self, folder: Path, faults: Mapping[int, str]) -> None:
        self.folder = folder
        self.faults = dict(faults)
        self.carried = 0
        self.inside = False
        self.journals: dict[str, Journal] = {}
        self.sessions: dict[str, Sessions] = {}
        for name in ("coordinator", "a", "b"):
            self.restart(name)

    def restart(self, name: str) -> None:
        if name in self.journals:
            self.journals[name].close()
        self.journals[name] = Journal(self.folder / name, durable=False)
        if name != "coordinator":
            self.sessions[name] = Sessions(
                name, lambda job: Summing(name, self.strike_inside), journal=self.journals[name]
            )

    def strike_inside(self) -> bool:
        struck, self.inside = self.inside, False
        return struck

    def carry(self, requests: Mapping[str, Numbered], on_reply: Callable[[str, bytes], None]) -> None:
        for party, request in requests.items():
            self.carried += 1
            fault = self.faults.pop(self.carried, None)
            if fault == "coordinator before":
                raise Crash
            if fault == "party before":
                self.restart(party)
            self.inside = fault == "party inside"
            try:
                reply = self.sessions[party].answer(JOB, *request[:2])
            except Crash:
                self.restart(party)
                reply = self.sessions[party].answer(JOB, *request[:2])
            if fault == "party after":
                self.restart(party)
                reply = self.sessions[party].answer(JOB, *request[:2])
            on_reply(party, reply)
            if fault == "coordinator after":
                raise Crash

    def close(self) -> None:
        pass

    def run(self, rounds: list[tuple[str, int]]) -> tuple[list[object], Disclosures]:
        while True:
            ledger = Ledger()
            try:
                with CarriedDriver(
                    self, ["a", "b"], ledger=ledger, journal=self.journals["coordinator"].job(JOB)
                ) as driver:
                    return self.protocol(driver, rounds), ledger.disclosure()
            except Crash:
                self.restart("coordinator")

    @staticmethod
    def protocol(driver: Driver, rounds: list[tuple[str, int]]) -> list[object]:
        seen: list[object] = []
        for names, number in rounds:
            try:
                replies = driver.ask({name: Question(number=number + len(seen)) for name in names})
                seen.append({name: codec.encode(reply) for name, reply in replies.items()})
            except DataError as error:
                seen.append((str(error), getattr(error, "__notes__", None)))
        return seen

    def written(self) -> list[object]:
        for journal in self.journals.values():
            journal.verify()
        return [
            [(r.sender, r.receiver, r.number, r.kind, r.digest) for r in journal.job(JOB).records()]
            for journal in self.journals.values()
        ]

    def end(self) -> None:
        for journal in self.journals.values():
            journal.close()


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", "ab", "ba"]), st.integers(0, 9)), min_size=1, max_size=6),
    st.dictionaries(st.integers(1, 12), st.sampled_from(FAULTS), max_size=4),
)
def test_a_run_with_crashes_is_the_run_without(rounds: list[tuple[str, int]], faults: dict[int, str]) -> None:
    with TemporaryDirectory(dir=MEMORY) as first, TemporaryDirectory(dir=MEMORY) as second:
        whole, broken = World(Path(first), {}), World(Path(second), faults)
        try:
            expected, told = whole.run(rounds)
            seen, told_again = broken.run(rounds)
            assert seen == expected
            assert told_again == told
            assert broken.written() == whole.written()
            kept = whole.journals["coordinator"].job(JOB).disclosures()
            assert sorted(kept, key=str) == sorted(told, key=str)
        finally:
            whole.end()
            broken.end()


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_at_every_request(tmp_path: Path, fault: str) -> None:
    rounds = [("ab", 1), ("b", 1), ("ab", 1), ("ba", 0)]
    (tmp_path / "whole").mkdir()
    whole = World(tmp_path / "whole", {})
    expected = whole.run(rounds)
    written, requests = whole.written(), whole.carried
    whole.end()
    assert requests == 7
    for place in range(1, requests + 1):
        (tmp_path / str(place)).mkdir()
        broken = World(tmp_path / str(place), {place: fault})
        assert broken.run(rounds) == expected
        assert broken.faults == {}
        assert broken.written() == written
        broken.end()
