"""Clients that have numbers and nothing else, and a protocol that adds them up."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from alignments import OPERATOR, entropy_of

from woodlot.exceptions import DataError
from woodlot.protocols.core.message import Disclosure, Message, Role, Round
from woodlot.protocols.sums import (
    SumClient,
    SumSession,
    open_sums,
    sum_round,
)
from woodlot.protocols.sums import sum_messages as msg
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run

NAMES = ("ash", "beech", "cedar", "elm", "fir", "gum", "hazel")
TOLD = Disclosure(Role.coordinator, Role.party, "that numbers are wanted: it is a test", "clear")


class AddUp(Message):
    """Asks for some of a client's vectors."""

    discloses: ClassVar = TOLD
    order: msg.SumOrder
    which: int = 0


class Client:
    """A party whose only work is to have vectors."""

    def __init__(self, name: str, vectors: Sequence[Any], **options: Any) -> None:
        if options.get("mode") != "plain":
            options = {"signer": OPERATOR.admit(name), **options}
        self.sums = SumClient(name, **{"job": "j", "entropy": entropy_of(name, "j"), **options})
        self.vectors = [np.asarray(vector) for vector in vectors]

    def handle(self, message: Message) -> Message:
        if isinstance(message, AddUp):
            return self.sums.answer(message.order, self.vectors[message.which], bytes([message.which]))
        return self.sums.handle(message)


class Dropping:
    """A client that is gone from the n-th message of some kind on."""

    def __init__(self, handler: Any, kind: type[Message], at: int, error: Exception | None = None) -> None:
        self.handler, self.kind, self.at, self.seen, self.gone = handler, kind, at, 0, False
        self.error = DataError("gone") if error is None else error

    def handle(self, message: Message) -> Message:
        self.seen += isinstance(message, self.kind)
        self.gone |= isinstance(message, self.kind) and self.seen >= self.at
        if self.gone:
            raise self.error
        return self.handler.handle(message)


def clients_of(vectors: Mapping[str, Sequence[Any]], **options: Any) -> dict[str, Client]:
    return {name: Client(name, own, **options) for name, own in vectors.items()}


Sums = Generator[Round, dict[str, Message], list[Any]]


def add_up(
    names: Iterable[str], lengths: Sequence[int], bound: int | None = None, session: list[SumSession] | None = None,
    whose: bool = False, **options: Any,
) -> Sums:  # fmt: skip
    """A protocol: one sum after the other; with `whose`, each beside those whose numbers are in it."""
    opened = yield from open_sums(tuple(names), **options)
    if session is not None:
        session.append(opened)
    found = []
    for which, length in enumerate(lengths):
        request = _asking(which)
        sums = yield from sum_round(opened, "add", request, length=length, bound=bound)
        found.append((opened.summed, sums) if whose else sums)
    return found


def _asking(which: int) -> Callable[[msg.SumOrder], Message]:
    return lambda order: AddUp(order=order, which=which)


def total(
    parties: Mapping[str, Any], lengths: Sequence[int], ledger: Ledger | None = None, **options: Any
) -> list[Any]:
    book = Ledger() if ledger is None else ledger
    with InProcessDriver(parties, ledger=book) as driver:
        return run(add_up(parties, lengths, **options), driver, ledger=book)


def vectors_of(n_clients: int, length: int, seed: int = 0, low: int = -1000, high: int = 1000) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    return {name: [rng.integers(low, high, length)] for name in NAMES[:n_clients]}


def changing(kind: type[Message], change: Callable[[Any], Message]) -> Callable[[Message], Message]:
    return lambda message: change(message) if isinstance(message, kind) else message
