"""The driver for notebooks, tests and simulations: every party is an object in this process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import NamedTuple, Self, TypeAlias

from woodlot.exceptions import LocalProtocolError
from woodlot.protocols.core.message import Message, Role, Sparing
from woodlot.runtime.audit import Ledger
from woodlot.runtime.codec import decode
from woodlot.runtime.drivers import Handler, answer, check_names, encode_requests, raise_refusals

WAKE_SECONDS = 0.2


class InProcessDriver:
    """Runs every party in a thread of its own, or all of them in one.

    Messages still pass through the codec, so that nothing mutable, un-serialisable or unaccounted is shared.
    What a handler raised is the ``__cause__`` of what `ask` raises.

    An interrupt (``KeyboardInterrupt``) leaves `ask` at once and the driver usable: a party that is at work
    ends its present request, whose reply is dropped, before it takes another.

    Parameters
    ----------
    handlers : mapping of str to Handler
        The parties by name; their order is the order of `parties`.
    ledger : Ledger, optional
        Records every message. It may be replaced between rounds.
    side_by_side : bool
        False where parties would only wait for each other, as for a graphics card: they then answer one after the
        other in one thread, and no time goes into changing over between threads.

    """

    parties: tuple[str, ...]
    ledger: Ledger | None

    def __init__(
        self, handlers: Mapping[str, Handler], *, ledger: Ledger | None = None, side_by_side: bool = True
    ) -> None:
        check_names(handlers)
        self.parties = tuple(handlers)
        self.ledger = ledger
        if side_by_side:
            self._workers = {party: _Worker(party, {party: handler}) for party, handler in handlers.items()}
        else:
            self._workers = dict.fromkeys(handlers, _Worker("parties", handlers))
        self._closed = False
        self._gate = threading.Lock()  # held while a round is handed out, so that close() comes before or after it
        # A driver that is dropped unclosed must not leave its threads waiting for ever.
        self._stop = weakref.finalize(self, _stop_all, tuple(dict.fromkeys(self._workers.values())))

    def ask(self, requests: Mapping[str, Message], *, sparing: Sparing | None = None) -> dict[str, Message]:
        """Send one request to each named party and return their replies; see `Driver`. Here, no party is away."""
        sent = encode_requests(self.parties, requests)
        # A queue of this round's own: what an interrupted round has left behind never mixes with it.
        done: SimpleQueue[_Outcome] = SimpleQueue()
        with self._gate:
            if self._closed:
                raise LocalProtocolError("this driver is closed")
            for party, data in sent.items():
                self._record(Role.coordinator, party, requests[party], len(data))
                self._workers[party].submit(party, data, done.put)
        outcomes = {outcome.party: outcome for outcome in (_wait_for(done) for _ in sent)}
        for outcome in outcomes.values():
            if outcome.escaped is not None:
                raise outcome.escaped
        replies: dict[str, Message] = {}
        for party in requests:
            replies[party] = decode(outcomes[party].reply)
            self._record(party, Role.coordinator, replies[party], len(outcomes[party].reply))
        if sparing is None:
            raise_refusals(self.parties, replies, {party: outcome.error for party, outcome in outcomes.items()})
        return replies

    def _record(self, sender: str, receiver: str, message: Message, n_bytes: int) -> None:
        if self.ledger is not None:
            self.ledger.record(sender, receiver, message, n_bytes)

    def close(self) -> None:
        """Take no more rounds; return when every party has ended the request that it is at work on."""
        with self._gate:
            self._closed = True
        self._stop()
        for worker in self._workers.values():
            worker.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _wait_for(done: SimpleQueue[_Outcome]) -> _Outcome:
    """The next outcome. Waits in short turns: an interrupt that arrives just before a wait is noticed after it."""
    while True:
        try:
            return done.get(timeout=WAKE_SECONDS)
        except Empty:
            continue


class _Outcome(NamedTuple):
    party: str
    reply: bytes = b""
    error: Exception | None = None
    escaped: BaseException | None = None
    """What no refusal stands for, such as SystemExit: it is for the process, not for the coordinator."""


_Job: TypeAlias = tuple[str, bytes, Callable[[_Outcome], None]]


class _Worker:
    """Some parties, the thread in which they work once they are needed, and the requests that wait for them."""

    def __init__(self, name: str, handlers: Mapping[str, Handler]) -> None:
        self._name = name
        self._handlers = handlers
        self._thread: threading.Thread | None = None
        self._waiting: SimpleQueue[_Job | None] = SimpleQueue()

    def submit(self, party: str, request: bytes, deliver: Callable[[_Outcome], None]) -> None:
        if self._thread is None or not self._thread.is_alive():  # a forked child inherits no threads
            self._thread = threading.Thread(target=self._serve, name=f"woodlot-{self._name}", daemon=True)
            self._thread.start()
        self._waiting.put((party, request, deliver))

    def _serve(self) -> None:
        while (job := self._waiting.get()) is not None:
            party, request, deliver = job
            try:
                outcome = _Outcome(party, *answer(self._handlers[party], request))
            except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits for it
                outcome = _Outcome(party, escaped=error)
            deliver(outcome)
            del job, request, deliver, outcome  # an idle thread must not keep a large message alive

    def stop(self) -> None:
        self._waiting.put(None)

    def join(self) -> None:
        if self._thread is not None:
            self._thread.join()


def _stop_all(workers: tuple[_Worker, ...]) -> None:
    for worker in workers:
        worker.stop()
