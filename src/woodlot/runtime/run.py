"""Runs a protocol: takes its rounds, has a driver carry them, and gives it the replies."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Generator
from typing import TypeVar, cast

from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers import Driver

R = TypeVar("R")


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
    advance: Callable[[], Round] = functools.partial(next, protocol)
    phase: str | None = None
    since = time.perf_counter()
    try:
        while True:
            try:
                step = advance()
            except StopIteration as end:
                return cast(R, end.value)
            finally:
                if phase is not None:  # the time before the first round counts for the first round
                    now = time.perf_counter()
                    ledger.add_seconds(phase, now - since)
                    since = now
            is_new, phase = step.phase != phase, step.phase
            try:
                if on_phase is not None and is_new:
                    on_phase(phase)
                if on_progress is not None and step.progress is not None:
                    on_progress(step.progress)
                if step.requests:
                    ledger.count_round()
                replies = driver.ask(step.requests, sparing=step.sparing)
            except BaseException as error:  # noqa: BLE001 - raised again, inside the protocol
                advance = functools.partial(protocol.throw, error)
            else:
                advance = functools.partial(protocol.send, replies)
    finally:
        protocol.close()
