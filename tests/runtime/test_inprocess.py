from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator, Mapping

import pytest

from woodlot.exceptions import DataError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.core.message import Message
from woodlot.runtime import codec
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers import Driver, Handler
from woodlot.runtime.drivers.inprocess import InProcessDriver

from .driver_contract import PATIENCE, DriverContract, MakeDriver, Party, number_of, raising
from .samples import Answer, Question

BEFORE: set[threading.Thread] = set()
"""Those of drivers that other tests still hold."""


@pytest.fixture(autouse=True)
def note_threads() -> None:
    BEFORE.clear()
    BEFORE.update(threading.enumerate())


def party_threads() -> list[threading.Thread]:
    """Threads of parties that have come since the test began."""
    return [thread for thread in threading.enumerate() if thread.name.startswith("woodlot-") and thread not in BEFORE]


@pytest.fixture
def make_driver() -> Iterator[MakeDriver]:
    drivers: list[Driver] = []

    def make(handlers: Mapping[str, Handler]) -> Driver:
        drivers.append(InProcessDriver(handlers))
        return drivers[-1]

    yield make
    for driver in drivers:
        driver.close()
    assert party_threads() == []


class TestInProcessDriver(DriverContract):
    pass


@pytest.mark.parametrize("error", [KeyError("row 7"), DataError("no such column")])
@pytest.mark.parametrize("names", ["a", "ab"])
def test_the_original_error_is_the_cause(make_driver: MakeDriver, error: Exception, names: str) -> None:
    driver = make_driver({name: Party(name, raising(error) if name == "a" else None) for name in names})
    with pytest.raises((RemoteProtocolError, DataError)) as caught:
        driver.ask({name: Question() for name in names})
    assert caught.value.__cause__ is error


def test_no_word_of_an_internal_error_is_on_the_wire(make_driver: MakeDriver) -> None:
    driver = make_driver({"a": Party("a", raising(ValueError("salary 93517")))})
    heard: list[bytes] = []
    codec.listeners.append(heard.append)
    try:
        with pytest.raises(RemoteProtocolError):
            driver.ask({"a": Question()})
    finally:
        codec.listeners.remove(heard.append)
    assert len(heard) == 2
    assert not any(b"93517" in data for data in heard)


@pytest.mark.parametrize("names", ["a", "ab"])
def test_an_exit_inside_a_party_reaches_the_caller(make_driver: MakeDriver, names: str) -> None:
    driver = make_driver({name: Party(name, raising(SystemExit(3)) if name == "a" else None) for name in names})
    with pytest.raises(SystemExit):
        driver.ask({name: Question() for name in names})
    with pytest.raises(SystemExit):
        driver.ask({name: Question() for name in names})


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises, even in a run that was started in the background, where shells have it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_leaves_no_thread_and_no_stale_reply(make_driver: MakeDriver) -> None:
    at_work, release = threading.Barrier(3), threading.Event()

    def respond(message: Question) -> Message:
        if message.number == 0:
            at_work.wait(PATIENCE)
            release.wait(PATIENCE)
        return Answer(number=message.number)

    def interrupt() -> None:
        at_work.wait(PATIENCE)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    driver = make_driver({name: Party(name, respond) for name in "ab"})
    interrupter = threading.Thread(target=interrupt)
    interrupter.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        driver.ask({name: Question(number=0) for name in "ab"})
    assert time.monotonic() - started < PATIENCE / 2
    interrupter.join()
    release.set()
    replies = driver.ask({name: Question(number=1) for name in "ab"})
    assert list(map(number_of, replies.values())) == [1, 1]
    driver.close()
    assert party_threads() == []


def test_threads_start_when_needed_and_stay() -> None:
    seen: set[int] = set()

    def respond(message: Question) -> Message:
        seen.add(threading.get_ident())
        return Answer()

    with InProcessDriver({name: Party(name, respond) for name in "ab"}) as driver:
        assert party_threads() == []
        for _ in range(5):
            driver.ask({name: Question() for name in "ab"})
        assert len(seen) == 2
        assert all(thread.daemon for thread in party_threads())
    assert party_threads() == []


def test_a_dropped_driver_ends_its_threads() -> None:
    driver = InProcessDriver({name: Party(name) for name in "ab"})
    driver.ask({name: Question() for name in "ab"})
    threads = party_threads()
    assert len(threads) == 2
    del driver
    gc.collect()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_rounds_from_several_threads_do_not_mix(make_driver: MakeDriver) -> None:
    driver = make_driver({name: Party(name) for name in "ab"})
    wrong: list[int] = []

    def ask_often(first: int) -> None:
        for number in range(first, first + 100):
            replies = driver.ask({name: Question(number=number) for name in "ab"})
            wrong.extend(number for reply in replies.values() if number_of(reply) != number)

    callers = [threading.Thread(target=ask_often, args=(1_000 * i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert wrong == []


def test_the_ledger_counts_every_message_and_byte() -> None:
    heard: list[bytes] = []
    ledger = Ledger()
    handlers = {"a": Party("a"), "b": Party("b", raising(DataError("no")))}
    codec.listeners.append(heard.append)
    try:
        with InProcessDriver(handlers, ledger=ledger) as driver, pytest.raises(DataError):
            driver.ask({"a": Question(), "b": Question()})
    finally:
        codec.listeners.remove(heard.append)
    rows = [(row.sender, row.receiver, row.kind, row.count) for row in ledger.disclosure()]
    assert rows == [
        ("coordinator", "a", "Question", 1),
        ("coordinator", "b", "Question", 1),
        ("a", "coordinator", "Answer", 1),
        ("b", "coordinator", "Refusal", 1),
    ]
    assert ledger.bytes_total == sum(map(len, heard)) > 0


@pytest.mark.parametrize("handlers", [{}, {"coordinator": Party("coordinator")}])
def test_names_that_cannot_be(handlers: dict[str, Handler]) -> None:
    with pytest.raises(LocalProtocolError):
        InProcessDriver(handlers)


def test_parties_in_one_thread() -> None:
    """Not side by side, all parties answer from one thread, each to its own request."""
    seen: list[str] = []

    class Noting(Party):
        def handle(self, message: Message) -> Message:
            seen.append(threading.current_thread().name)
            return super().handle(message)

    with InProcessDriver({name: Noting(name) for name in "abc"}, side_by_side=False) as driver:
        replies = driver.ask({name: Question(number=k) for k, name in enumerate("abc")})
        assert [number_of(replies[name]) for name in "abc"] == [0, 1, 2]
        assert len(set(seen)) == 1
    assert party_threads() == []
