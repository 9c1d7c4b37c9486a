from __future__ import annotations

import inspect
import time
from collections.abc import Generator, Iterator

import pytest

from woodlot.exceptions import DataError
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run

from .driver_contract import Party, number_of
from .samples import Answer, Question

Steps = Generator[Round, dict[str, Message], int]


def respond(message: Question) -> Message:
    if message.number < 0:
        raise DataError("negative")
    if message.number == 100:
        time.sleep(0.05)
    return Answer(number=message.number + 1)


@pytest.fixture
def driver() -> Iterator[InProcessDriver]:
    with InProcessDriver({name: Party(name, respond) for name in "ab"}) as driver:
        yield driver


def asked(driver: InProcessDriver, protocol: Steps, **options: object) -> int:
    try:
        return run(protocol, driver, ledger=Ledger(), **options)  # type: ignore[arg-type]
    finally:
        assert inspect.getgeneratorstate(protocol) == inspect.GEN_CLOSED


def test_replies_reach_the_protocol_and_its_result_is_returned(driver: InProcessDriver) -> None:
    def protocol() -> Steps:
        replies = yield Round("one", {"b": Question(number=1), "a": Question(number=2)})
        assert list(replies) == ["b", "a"]
        replies = yield Round("two", {"a": Question(number=number_of(replies["a"]))})
        return number_of(replies["a"])

    assert asked(driver, protocol()) == 4


def test_a_protocol_without_rounds(driver: InProcessDriver) -> None:
    def protocol() -> Steps:
        return 7
        yield

    ledger = Ledger()
    assert run(protocol(), driver, ledger=ledger) == 7
    assert ledger.cost().rounds == 0


def test_rounds_and_seconds_are_counted_by_phase(driver: InProcessDriver) -> None:
    def protocol() -> Steps:
        time.sleep(0.03)
        yield Round("ask", {"a": Question(number=100)})
        yield Round("nobody", {})
        time.sleep(0.02)
        yield Round("ask", {"a": Question(number=0), "b": Question(number=0)})
        time.sleep(0.04)
        return 0

    ledger = Ledger()
    started = time.perf_counter()
    run(protocol(), driver, ledger=ledger)
    elapsed = time.perf_counter() - started
    cost = ledger.cost()
    assert cost.rounds == ledger.rounds == 2
    assert list(cost.seconds) == ["ask", "nobody"]
    assert cost.seconds["ask"] >= 0.03 + 0.05 + 0.04
    assert cost.seconds["nobody"] >= 0.02
    assert cost.total_seconds == pytest.approx(sum(cost.seconds.values()))
    assert cost.total_seconds <= elapsed


def test_progress_is_told_before_each_round(driver: InProcessDriver) -> None:
    events: list[object] = []

    def protocol() -> Steps:
        for done in range(2):
            yield Round("grow", {"a": Question()}, Progress(done, 2, "level"))
            events.append("answered")
        yield Round("end", {"a": Question()})
        return 0

    asked(driver, protocol(), on_progress=events.append)
    assert events == [Progress(0, 2, "level", "grow"), "answered", Progress(1, 2, "level", "grow"), "answered"]
    assert asked(driver, protocol()) == 0


def test_an_error_is_raised_inside_the_protocol(driver: InProcessDriver) -> None:
    cleaned: list[str] = []

    def protocol() -> Steps:
        try:
            yield Round("ask", {"a": Question(number=-1)})
        finally:
            replies = yield Round("forget", {"a": Question(number=1), "b": Question(number=1)})
            cleaned.extend(replies)
        return 0

    ledger = Ledger()
    with pytest.raises(DataError, match="party 'a': negative"):
        run(protocol(), driver, ledger=ledger)
    assert cleaned == ["a", "b"]
    assert ledger.rounds == 2
    assert set(ledger.cost().seconds) == {"ask", "forget"}


def test_a_protocol_may_deal_with_an_error(driver: InProcessDriver) -> None:
    def protocol() -> Steps:
        try:
            yield Round("ask", {"a": Question(number=-1)})
        except DataError:
            replies = yield Round("ask", {"b": Question(number=4)})
            return number_of(replies["b"])
        return 0

    assert asked(driver, protocol()) == 5


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_whatever_interrupts_a_round_reaches_the_protocol_and_the_caller(
    driver: InProcessDriver, error: type[BaseException]
) -> None:
    seen: list[type[BaseException]] = []

    def protocol() -> Steps:
        try:
            yield Round("ask", {"a": Question()}, Progress(0, 1, ""))
        except BaseException as raised:
            seen.append(type(raised))
            raise
        return 0

    def stop(progress: Progress) -> None:
        raise error

    with pytest.raises(error):
        asked(driver, protocol(), on_progress=stop)
    assert seen == [error]


@pytest.mark.parametrize("rounds", [0, 1])
def test_an_error_of_the_protocol_itself(driver: InProcessDriver, rounds: int) -> None:
    def protocol() -> Steps:
        for _ in range(rounds):
            yield Round("ask", {"a": Question()})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asked(driver, protocol())


def test_a_protocol_that_yields_something_else_is_closed(driver: InProcessDriver) -> None:
    def protocol() -> Steps:
        yield {"a": Question()}  # type: ignore[misc]
        return 0

    with pytest.raises(AttributeError, match="phase"):
        asked(driver, protocol())
