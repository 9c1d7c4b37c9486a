"""Runs a protocol: takes its rounds, has a driver carry them, and gives it the replies."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Generic, TypeVar, cast

from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers import Driver

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class Ended(Generic[R]):
    """A protocol has come to its end, with this outcome."""

    outcome: R


class Stepper(Generic[R]):
    """A protocol that goes on step by step, for who moves its messages: `run`, or a party that leads.

    Parameters
    ----------
    protocol : generator
        Yields rounds, receives for each the replies by party, and returns its result.
    ledger : Ledger
        Told of the seconds from the time each round is yielded until the next one is.

    """

    def __init__(self, protocol: Generator[Round, dict[str, Message], R], ledger: Ledger) -> None:
        self._protocol = protocol
        self._ledger = ledger
        self._phase: str | None = None
        self._since = time.perf_counter()

    def begin(self) -> Round | Ended[R]:
        """Take the first round."""
        return self._advance(functools.partial(next, self._protocol))

    def go_on(self, replies: dict[str, Message]) -> Round | Ended[R]:
        """Give the protocol the replies to its round, and take the next one."""
        return self._advance(functools.partial(self._protocol.send, replies))

    def fail(self, error: BaseException) -> Round | Ended[R]:
        """Raise an error inside the protocol, where it yielded its round; what it does not catch is raised here."""
        return self._advance(functools.partial(self._protocol.throw, error))

    def _advance(self, advance: Callable[[], Round]) -> Round | Ended[R]:
        try:
            step = advance()
        except StopIteration as end:
            return Ended(cast(R, end.value))
        finally:
            if self._phase is not None:  # the time before the first round counts for the first round
                now = time.perf_counter()
                self._ledger.add_seconds(self._phase, now - self._since)
                self._since = now
        self._phase = step.phase
        return step

    def close(self) -> None:
        """Close the protocol."""
        self._protocol.close()


def run(
    protocol: Generator[Round, dict[str, Message], R],
    driver: Driver,
    *,
    ledger: Ledger,
    on_progress: Callable[[Progress], None] | None = None,
    on_phase: Callable[[str], None] | None = None,
) -> R:
    """Run a protocol to its end at the coordinator.

    Whatever fails while a round is carried is raised inside the protocol, where it yielded that round. So a
    protocol cleans up as any function does, even by further rounds in a ``finally``; and what it does not
    catch is raised here. The protocol is closed in every case.

    Parameters
    ----------
    protocol : generator
        Yields rounds, receives for each the replies by party, and returns its result.
    driver : Driver
        Carries the rounds.
    ledger : Ledger
        Told of each round, and of the seconds from the time it is yielded until the next one is.
    on_progress : callable, optional
        Called with the progress of each round that has any, before the round is carried.
    on_phase : callable, optional
        Called with the name of each phase, before its first round is carried.

    Returns
    -------
    object
        What the protocol returns.

    """
    stepper = Stepper(protocol, ledger)
    phase: str | None = None
    try:
        step = stepper.begin()
        while isinstance(step, Round):
            is_new, phase = step.phase != phase, step.phase
            try:
                if on_phase is not None and is_new:
                    on_phase(phase)
                if on_progress is not None and step.progress is not None:
                    on_progress(replace(step.progress, phase=phase))
                if step.requests:
                    ledger.count_round()
                replies = driver.ask(step.requests, sparing=step.sparing)
            except BaseException as error:  # noqa: BLE001 - raised again, inside the protocol
                step = stepper.fail(error)
            else:
                step = stepper.go_on(replies)
        return step.outcome
    finally:
        stepper.close()
