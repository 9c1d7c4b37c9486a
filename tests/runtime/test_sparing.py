"""Rounds that go on without some of their parties, in every driver; and sums that do so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.exceptions import DataError, JournalError, LocalProtocolError, PartyAwayError, RemoteProtocolError
from woodlot.protocols.core.message import Away, Disclosure, Message, Refusal, Role, Round, Sparing, Unanswered
from woodlot.protocols.sums import SumClient, SumSession, open_sums, sum_round
from woodlot.protocols.sums.sum_messages import MaskedVector, SumOrder
from woodlot.runtime import codec
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers import Driver
from woodlot.runtime.drivers.carried import CarriedDriver, Numbered
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.journal import Journal
from woodlot.runtime.run import run
from woodlot.runtime.sessions import Sessions

from .carriers import JOB, MEMORY
from .driver_contract import Party, number_of, raising
from .grpc_world import World, new_job
from .samples import Answer, Question

SPARING = Sparing(seconds=5.0, least=1)


class Shaky:
    """A carrier for sessions in this process; some parties are away, from some request on."""

    def __init__(self, answer: Mapping[str, Callable[[int, bytes], bytes]], away: Mapping[str, int]) -> None:
        self.answer = answer
        self.away = away
        self.waited: list[float | None] = []
        self.carried: list[tuple[str, int]] = []

    def carry(
        self,
        requests: Mapping[str, Numbered],
        on_reply: Callable[[str, bytes], None],
        *,
        wait_seconds: float | None = None,
    ) -> None:
        self.waited.append(wait_seconds)
        for party, request in requests.items():
            if request.number < self.away.get(party, 1 << 30):
                self.carried.append((party, request.number))
                on_reply(party, self.answer[party](*request[:2]))
            else:  # one at a time, as they run out of time
                raise PartyAwayError(f"party {party!r} was not connected", (party,))

    def close(self) -> None:
        pass


def fine(name: str) -> Callable[[int, bytes], bytes]:
    return lambda number, data: codec.encode(Answer(number=number, party=name))


def shaky(away: Mapping[str, int], names: str = "abcd") -> Shaky:
    return Shaky({name: fine(name) for name in names}, away)


def ask_all(driver: Driver, names: str = "abcd", sparing: Sparing | None = SPARING) -> dict[str, Message]:
    return driver.ask({name: Question() for name in names}, sparing=sparing)


def kinds(replies: Mapping[str, Message]) -> dict[str, type[Message]]:
    return {name: type(reply) for name, reply in replies.items()}


# --- refusals ---


def test_in_one_process_a_refusal_is_a_reply() -> None:
    parties = {"a": Party("a"), "b": Party("b", raising(DataError("empty"))), "c": Party("c")}
    with InProcessDriver(parties) as driver:
        replies = ask_all(driver, "cba")
        assert kinds(replies) == {"c": Answer, "b": Refusal, "a": Answer}
        assert list(replies) == ["c", "b", "a"]
        with pytest.raises(DataError, match="party 'b': empty"):
            ask_all(driver, "abc", None)


def test_a_refusal_is_a_reply_and_its_party_stays(tmp_path: Path) -> None:
    def refuse_first(number: int, data: bytes) -> bytes:
        return codec.encode(Refusal(kind="data", reason="empty")) if number == 1 else fine("b")(number, data)

    carrier = Shaky({"a": fine("a"), "b": refuse_first}, {})
    with (
        Journal(tmp_path / "j", durable=False) as journal,
        CarriedDriver(carrier, ["a", "b"], journal=journal.job(JOB)) as driver,
    ):
        assert kinds(ask_all(driver, "ab")) == {"a": Answer, "b": Refusal}
        assert number_of(ask_all(driver, "ab")["b"]) == 2
    assert carrier.waited == [5.0, 5.0]


def test_the_run_hands_the_option_on() -> None:
    def protocol() -> Generator[Round, dict[str, Message], dict[str, type[Message]]]:
        replies = yield Round("ask", {"a": Question(), "b": Question()}, sparing=SPARING)
        return kinds(replies)

    with CarriedDriver(shaky({"b": 1}), ["a", "b"]) as driver:
        assert run(protocol(), driver, ledger=Ledger()) == {"a": Answer, "b": Away}


# --- parties that are away ---


@pytest.mark.parametrize("journalled", [False, True])
def test_the_round_ends_without_those_who_are_away(tmp_path: Path, journalled: bool) -> None:
    carrier = shaky({"b": 2, "c": 2})
    with Journal(tmp_path / "j", durable=False) as journal:
        ledger = Ledger()
        records = journal.job(JOB) if journalled else None
        with CarriedDriver(carrier, list("abcd"), ledger=ledger, journal=records) as driver:
            ask_all(driver)
            replies = ask_all(driver)
            assert kinds(replies) == {"a": Answer, "b": Away, "c": Away, "d": Answer}
            for sparing in (None, SPARING):
                with pytest.raises(LocalProtocolError, match="party 'b' has not answered before"):
                    ask_all(driver, "ab", sparing)
            assert number_of(ask_all(driver, "ad", None)["a"]) == 3
        if journalled:
            assert sorted(journal.job(JOB).disclosures(), key=str) == sorted(ledger.disclosure(), key=str)
            journal.verify()
    assert carrier.carried == [(name, n) for n, names in ((1, "abcd"), (2, "ad"), (3, "ad")) for name in names]


def test_a_resumed_run_does_without_them_too(tmp_path: Path) -> None:
    with Journal(tmp_path / "j", durable=False) as journal:
        told = []
        for carrier in (shaky({"b": 1}), shaky({})):  # the second time, b is there again
            ledger = Ledger()
            with CarriedDriver(carrier, list("abc"), ledger=ledger, journal=journal.job(JOB)) as driver:
                assert kinds(ask_all(driver, "abc")) == {"a": Answer, "b": Away, "c": Answer}
                with pytest.raises(LocalProtocolError, match="goes on without it"):
                    ask_all(driver, "abc")
                if carrier.away:
                    assert number_of(ask_all(driver, "ac")["a"]) == 2
                else:
                    assert [number_of(reply) for reply in ask_all(driver, "ac").values()] == [2, 2]
                    assert carrier.carried == []
                    assert number_of(ask_all(driver, "ac", None)["c"]) == 3
            told.append([(r.sender, r.number, r.kind) for r in journal.job(JOB).records() if r.sender == "b"])
        assert told == [[("b", 1, "Away")]] * 2


def test_too_many_away_stop_the_run_and_it_can_be_resumed(tmp_path: Path) -> None:
    sparing = Sparing(5.0, 3)
    with Journal(tmp_path / "j", durable=False) as journal:
        with CarriedDriver(shaky({"b": 1, "c": 1}), list("abcd"), journal=journal.job(JOB)) as driver:
            for _ in range(2):
                with pytest.raises(PartyAwayError, match="party 'c' was not connected") as caught:
                    ask_all(driver, sparing=sparing)
                assert caught.value.parties == ("b", "c")
        assert {r.sender for r in journal.job(JOB).records()} == {"coordinator", "a", "d"}
        carrier = shaky({"b": 1})
        with CarriedDriver(carrier, list("abcd"), journal=journal.job(JOB)) as driver:
            assert kinds(ask_all(driver, sparing=sparing)) == {"a": Answer, "b": Away, "c": Answer, "d": Answer}
        assert carrier.carried == [("c", 1)]


@pytest.mark.parametrize(("least", "stops"), [(2, False), (3, True)])
def test_what_is_unanswered_counts_as_away(tmp_path: Path, least: int, stops: bool) -> None:
    full = codec.encode(Unanswered(kind="internal", reason="disk full"))
    carrier = Shaky({"a": fine("a"), "b": lambda number, data: full, "c": fine("c")}, {})
    with Journal(tmp_path / "j", durable=False) as journal:
        with CarriedDriver(carrier, list("abc"), journal=journal.job(JOB)) as driver:
            if stops:
                with pytest.raises(JournalError, match="party 'b': disk full"):
                    ask_all(driver, "abc", Sparing(5.0, least))
            else:
                assert kinds(ask_all(driver, "abc", Sparing(5.0, least)))["b"] is Unanswered
        with CarriedDriver(shaky({}), list("abc"), journal=journal.job(JOB)) as driver:
            assert kinds(ask_all(driver, "abc", Sparing(5.0, least)))["b"] is (Answer if stops else Unanswered)


def test_no_party_says_of_itself_that_it_is_away(tmp_path: Path) -> None:
    away = codec.encode(Away.noted())
    carrier = Shaky({"a": fine("a"), "b": lambda number, data: away}, {})
    with (
        Journal(tmp_path / "j", durable=False) as journal,
        CarriedDriver(carrier, ["a", "b"], journal=journal.job(JOB)) as driver,
    ):
        for sparing in (SPARING, None):
            with pytest.raises(RemoteProtocolError, match="party 'b': Away is not for a party to send"):
                ask_all(driver, "ab", sparing)
        assert {r.sender for r in journal.job(JOB).records()} == {"coordinator", "a"}


@pytest.mark.parametrize(
    "error", [PartyAwayError("somebody"), PartyAwayError("a stranger", ("z",)), KeyboardInterrupt()]
)
def test_other_errors_stop_the_run(error: BaseException) -> None:
    class Broken(Shaky):
        def carry(self, *args: Any, **options: Any) -> None:
            raise error

    with CarriedDriver(Broken({}, {}), ["a"]) as driver:
        for _ in range(2):
            with pytest.raises(type(error)) as caught:
                ask_all(driver, "a")
            assert caught.value is error


# --- over the network ---


def test_over_the_network(tmp_path: Path) -> None:
    world = World(tmp_path)
    try:
        hub = world.hub()
        lines = {name: world.party(name, lambda job, number, data: fine("x")(number, data)) for name in "abc"}
        carrier = hub.carrier(new_job(), wait_seconds=60.0)
        with CarriedDriver(carrier, list("abc")) as driver:
            ask_all(driver, "abc")
            lines["b"].stop()
            replies = ask_all(driver, "abc", Sparing(0.5, 2))
            assert kinds(replies) == {"a": Answer, "b": Away, "c": Answer}
            assert [number_of(reply) for reply in ask_all(driver, "ac", None).values()] == [3, 3]
    finally:
        world.close()


# --- secure sums over journals, with clients and coordinators that crash ---

SECRET = bytes(range(32))
NAMES = ("ash", "beech", "cedar", "elm", "fir")


class CountUp(Message):
    """Asks for a vector."""

    discloses: ClassVar = Disclosure(Role.coordinator, Role.party, "that numbers are wanted: it is a test", "clear")
    order: SumOrder
    which: int


class Crash(BaseException):
    """Stands for kill -9."""


def numbers(name: str, which: int) -> Any:
    return np.frombuffer(hashlib.sha256(f"{name} {which}".encode()).digest(), np.int8)


class Client:
    def __init__(self, name: str) -> None:
        self._sums = SumClient(
            name,
            job=JOB,
            entropy=lambda purpose: hashlib.sha256(f"{name} {purpose}".encode()).digest(),
            shared_secret=SECRET,
            quorum=3,
        )
        self._name = name

    def handle(self, message: Message) -> Message:
        if isinstance(message, CountUp):
            return self._sums.answer(message.order, numbers(self._name, message.which), bytes([message.which]))
        return self._sums.handle(message)


class Federation:
    """Clients with journals; a client that has left is away for good, unless it comes back for a resumed run."""

    def __init__(self, folder: Path, away: Mapping[str, int], crashes: set[int]) -> None:
        self.folder, self.away, self.crashes, self.events = folder, dict(away), crashes, 0
        self.journals = {name: Journal(folder / name, durable=False) for name in (*NAMES, "coordinator")}
        self.sessions = {name: self.start(name) for name in NAMES}
        self.sent: set[tuple[str, int, bytes]] = set()

    def start(self, name: str) -> Sessions:
        return Sessions(name, lambda job: Client(name), journal=self.journals[name])

    def answer(self, name: str, number: int, data: bytes) -> bytes:
        self.events += 1
        if self.events in self.crashes:
            self.sessions[name] = self.start(name)  # the client is restarted
        if -self.events in self.crashes:
            raise Crash
        reply = self.sessions[name].answer(JOB, number, data)
        self.sent.add((name, number, reply))
        return reply

    def run(self) -> tuple[list[Any], SumSession]:
        while True:
            carrier = Shaky({name: self._asker(name) for name in NAMES}, self.away)
            records = self.journals["coordinator"].job(JOB)
            try:
                with CarriedDriver(carrier, NAMES, journal=records) as driver:
                    return run(self.protocol(), driver, ledger=Ledger())
            except Crash:
                self.away = {}  # by the time of the restart, all are back

    def _asker(self, name: str) -> Callable[[int, bytes], bytes]:
        return lambda number, data: self.answer(name, number, data)

    @staticmethod
    def protocol() -> Generator[Round, dict[str, Message], tuple[list[Any], SumSession]]:
        session = yield from open_sums(NAMES, spare_after=1.0, quorum=3)
        found = []
        for which in range(3):
            request = Federation.asking(which)
            sums = yield from sum_round(session, "add", request, length=32, bound=128)
            assert sums.tolist() == sum(numbers(n, which).astype(int) for n in session.summed).tolist()
            found.append((session.summed, sums.tolist()))
        return found, session

    @staticmethod
    def asking(which: int) -> Callable[[SumOrder], Message]:
        return lambda order: CountUp(order=order, which=which)

    def close(self) -> None:
        for journal in self.journals.values():
            journal.close()


@settings(deadline=None, max_examples=40)
@given(
    st.dictionaries(st.sampled_from(NAMES), st.integers(3, 13), max_size=2),
    st.sets(st.integers(-60, 60).filter(bool), max_size=3),
)
def test_sums_go_on_through_drop_outs_and_crashes(away: dict[str, int], crashes: set[int]) -> None:
    with TemporaryDirectory(dir=MEMORY) as folder:
        federation = Federation(Path(folder), away, crashes)
        try:
            found, session = federation.run()
            assert len(found) == 3
            assert set(session.left) <= set(away)
            assert set(session.clients) | set(session.left) == set(NAMES)
            if not any(crash < 0 for crash in crashes):  # 10 requests, and one more for a sum that somebody misses
                assert set(session.left) >= {name for name, number in away.items() if number <= 10}
            # a request gets the same bytes however often it is asked, and no masked word is sent twice
            assert len({(name, number) for name, number, _ in federation.sent}) == len(federation.sent)
            sent = [m for *_, data in federation.sent if isinstance(m := codec.decode(data), MaskedVector)]
            words = np.concatenate([m.values.view("<u4") for m in sent])
            assert len(words) >= 3 * 3 * 34
            assert len(words) - len(np.unique(words)) <= 2  # of 32 bits each, a few are alike by chance
            again, _ = federation.run()  # all from the journal
            assert again == found
        finally:
            federation.close()


def test_a_drop_out_in_the_middle_is_the_same_after_a_restart_of_everybody(tmp_path: Path) -> None:
    federation = Federation(tmp_path, {"cedar": 7}, set())
    try:
        found, session = federation.run()
        assert [clients for clients, _ in found] == [
            NAMES,
            ("ash", "beech", "elm", "fir"),
            ("ash", "beech", "elm", "fir"),
        ]
        assert session.left == {"cedar": "it was away"}
        federation.sessions = {name: federation.start(name) for name in NAMES}
        federation.away = {}
        assert federation.run()[0] == found
        kinds_of = [r.kind for r in federation.journals["coordinator"].job(JOB).sent("cedar", "coordinator")]
        assert kinds_of == [
            "SumsIntroduced", "SumsStarted", "SumsPrepared", "SharesTaken", "MaskedVector", "SharesTold", "Away"
        ]  # fmt: skip
    finally:
        federation.close()


class Disk:
    """What a loss of power leaves of a journal: its files after the last commit that has waited for the disk."""

    def __init__(self, journal: Journal) -> None:
        self._path = journal.path
        self._files: dict[Path, bytes] = {}
        self._waits = self._committed = False
        assert journal._database is not None
        with journal._database.connection() as writer:
            writer.set_trace_callback(self._notice)

    def _notice(self, statement: str) -> None:
        if self._committed:
            self._files = {path: path.read_bytes() for path in self._paths()}
        if statement.startswith("PRAGMA synchronous ="):
            self._waits = statement.endswith("FULL")
        self._committed = statement == "COMMIT" and self._waits

    def _paths(self) -> list[Path]:
        return [path for path in (self._path, Path(f"{self._path}-wal")) if path.exists()]

    def lose_power(self) -> Journal:
        for path in self._paths():
            path.unlink()
        for path, data in self._files.items():
            path.write_bytes(data)
            path.chmod(0o600)
        return Journal(self._path, durable=False)


@pytest.mark.parametrize("since", [7, 8])
def test_a_loss_of_power_does_not_take_that_a_client_was_away(tmp_path: Path, since: int) -> None:
    """The others have gone on without it, and what they were asked cannot be asked otherwise."""
    federation = Federation(tmp_path, {"cedar": since}, set())
    try:
        disk = Disk(federation.journals["coordinator"])
        found, session = federation.run()
        assert session.left == {"cedar": "it was away"}
        n_records = len(federation.journals["coordinator"].job(JOB).records())
        federation.journals["coordinator"].close()
        federation.journals["coordinator"] = disk.lose_power()
        assert len(federation.journals["coordinator"].job(JOB).records()) < n_records  # the last replies are gone
        federation.away = {}
        assert federation.run()[0] == found
    finally:
        federation.close()
