"""Secure sums: CPU time and bytes of one client for one sum, by the number of clients, with and without a quorum.

    python benchmarks/sums.py [--numbers 100000] [--clients 5 20 50 100] [--sums 16] [--out FILE]

Every line is a session of so many sums in one thread, with a shared secret and without identities, which
cost the same in all lines. CPU time of clients is that of their handlers alone; what is done once in 16 sums is divided
by 16, the set-up is in a column of its own. In the last lines a tenth of the clients drops out of the second sum. All
sums are compared with the true ones.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from woodlot.exceptions import DataError
from woodlot.protocols.core.message import Disclosure, Message, Refusal, Role, Round
from woodlot.protocols.sums import SumClient, open_sums, sum_round
from woodlot.protocols.sums.sum_messages import SETTING_UP, SumOrder
from woodlot.runtime.codec import encode


class AddNumbers(Message):
    """Asks for a vector."""

    discloses: ClassVar = Disclosure(Role.coordinator, Role.party, "that numbers are wanted: a benchmark", "clear")
    order: SumOrder
    which: int


class Client:
    """A client that has the same numbers for every sum, and counts its seconds and bytes."""

    def __init__(self, name: str, numbers: np.ndarray, quorum: int | None, leaves: bool) -> None:
        self.sums = SumClient(
            name,
            job="benchmark",
            entropy=lambda purpose: hashlib.sha256(f"{name} {purpose}".encode()).digest(),
            shared_secret=bytes(range(32)),
            quorum=quorum,
        )
        self.numbers, self.leaves = numbers, leaves
        self.setting_up = self.summing = 0.0
        self.sent = 0

    def handle(self, message: Message) -> Message:
        start = time.thread_time()
        if isinstance(message, AddNumbers):
            if self.leaves and message.which == 1:
                raise DataError("gone")
            reply: Message = self.sums.answer(message.order, self.numbers, bytes([message.which]))
        else:
            reply = self.sums.handle(message)
        spent = time.thread_time() - start
        if isinstance(message, SETTING_UP):
            self.setting_up += spent
        else:
            self.summing += spent
            self.sent += len(encode(reply))
        return reply


def protocol(
    names: tuple[str, ...], n_sums: int, length: int, quorum: int | None
) -> Generator[Round, dict[str, Message], list[Any]]:
    """So many sums; returns whose each is, and the sum."""
    session = yield from open_sums(names, spare_after=1.0, quorum=quorum)
    found = []
    for which in range(n_sums):
        sums = yield from sum_round(
            session, "add", lambda order, which=which: AddNumbers(order=order, which=which), length=length
        )
        found.append((session.summed, sums))
    return found


def measure(n_clients: int, length: int, n_sums: int, quorum: int | None, gone: int = 0) -> str:
    """One line of the table; the clients are asked one after the other in this thread."""
    names = tuple(f"client {i:03d}" for i in range(n_clients))
    rng = np.random.default_rng(0)
    clients = {name: Client(name, rng.integers(0, 1000, length), quorum, i < gone) for i, name in enumerate(names)}
    steps = protocol(names, n_sums, length, quorum)
    step, rounds = next(steps), 0
    spent = 0.0
    while True:
        replies: dict[str, Message] = {}
        for name, message in step.requests.items():
            try:
                replies[name] = clients[name].handle(message)
            except DataError as error:
                replies[name] = Refusal.from_exception(error)
        rounds += 1
        start = time.thread_time()
        try:
            step = steps.send(replies)
        except StopIteration as done:
            found = done.value
            spent += time.thread_time() - start
            break
        spent += time.thread_time() - start
    for whose, sums in found:
        if not np.array_equal(sums, sum(clients[name].numbers for name in whose)):
            raise AssertionError("a sum is not that of the clients' numbers")
    staying = [client for client in clients.values() if not client.leaves]
    of_client = 1000 * sum(c.summing for c in staying) / len(staying) / n_sums
    set_up = 1000 * sum(c.setting_up for c in staying) / len(staying)
    sent = sum(c.sent for c in staying) / len(staying) / n_sums
    needed = "all" if quorum is None else str(quorum)
    return (
        f"| {n_clients} | {needed} | {gone} | {of_client:.1f} | {set_up:.1f} | {1000 * spent / n_sums:.1f} "
        f"| {sent / 1e3:,.0f} | {rounds / n_sums:.2f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--numbers", type=int, default=100_000)
    parser.add_argument("--clients", type=int, nargs="+", default=[5, 20, 50, 100])
    parser.add_argument("--sums", type=int, default=16)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [
        f"{options.numbers:,} numbers of 64 bits, {options.sums} sums.",
        "",
        "| clients | quorum | drop out | CPU ms of a client, a sum | a set-up | CPU ms of the coordinator, a sum "
        "| kB from a client, a sum | rounds, a sum |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for n in options.clients:
        quorum = 2 * n // 3 + 1
        for needed, gone in ((None, 0), (quorum, 0), (quorum, max(1, n // 10))):
            lines.append(measure(n, options.numbers, options.sums, needed, gone))
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
