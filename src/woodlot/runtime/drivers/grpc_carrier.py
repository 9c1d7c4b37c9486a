"""The requests that parties have yet to answer, and the carrier that waits for them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import NamedTuple

from woodlot.exceptions import LocalProtocolError, PartyAwayError, RemoteProtocolError
from woodlot.runtime.drivers.carried import Numbered, Reply, Travel, travel_of
from woodlot.runtime.drivers.grpc_wire import BROKEN, Tasks, Writer
from woodlot.runtime.frames import FrameKind, Label, Parcel, job_bytes
from woodlot.runtime.peers import Peer

WAKE_SECONDS = 0.1
"""How soon a caller that waits notices that it has been cancelled, or that a party has gone."""

_MAX_FAILURE = 100  # characters of a failure that a party names


class Cancelled(LocalProtocolError):  # noqa: N818 - nothing has gone wrong
    """The caller's own side has called the work off."""


def away_too_long(late: tuple[str, ...], seconds: float, limit: float) -> PartyAwayError:
    """The error when parties were away for longer than a job waits; the first of them for so many seconds."""
    return PartyAwayError(
        f"party {late[0]!r} was not connected for {seconds:.1f} s, and the limit is {limit:g} s; start its agent, then "
        "resume the job",
        late,
    )


class PartyLink:
    """One open connection of a party. All of it runs in the event loop."""

    def __init__(
        self, peer: Peer, writer: Writer, on_replaced: Callable[[], None], *, instance: str = "", address: str = ""
    ) -> None:
        self.peer = peer
        self.instance = instance
        self.address = address
        self.on_replaced = on_replaced
        self.since = time.time()
        self.tasks = Tasks()
        self._writer = writer
        self._asked: Counter[tuple[str, int]] = Counter()
        self._longest: dict[tuple[str, int], int] = {}
        self._leaving: set[Label] = set()

    def ask(self, one: CarriedRequest) -> None:
        """Send a request; one that is still on its way out is not sent twice."""
        label = one.label
        if label not in self._leaving:
            self._leaving.add(label)
            self._asked[label.job, label.number] += 1
            if one.longest_reply is not None:
                self._longest[label.job, label.number] = one.longest_reply
            self.tasks.start(self._send(one))

    async def _send(self, one: CarriedRequest) -> None:
        try:
            await self._writer.send(one.label, one.data, on_frame=one.count)
        except BROKEN:
            pass  # whoever reads this connection meets its end and says so
        finally:
            self._leaving.discard(one.label)

    def check_reply(self, label: Label) -> None:
        """Refuse what was not asked for on this connection."""
        if label.kind not in (FrameKind.reply, FrameKind.failure) or not self._asked[label.job, label.number]:
            raise RemoteProtocolError(f"unexpected {label.kind.name}: nothing was asked for it")

    def check_length(self, label: Label, n_bytes: int) -> None:
        """Refuse a reply that is longer than any to its request."""
        longest = self._longest.get((label.job, label.number))
        if longest is not None and n_bytes > longest:
            raise RemoteProtocolError(
                f"a reply of {n_bytes:,} bytes, where at most {longest:,} are due: it was not received"
            )

    def note_reply(self, label: Label) -> None:
        """Expect this reply no more. Its request has left, even if that has not been noted yet."""
        self._leaving.discard(label._replace(kind=FrameKind.request))
        self._longest.pop((label.job, label.number), None)
        self._asked[label.job, label.number] -= 1
        self._asked += Counter()  # drops what is at zero


class Second(NamedTuple):
    """A second process has connected as a party while the first was connected, and has taken its place."""

    party: str
    former: str
    """The address that the first one dials from."""
    newer: str


class _CarriedReply(NamedTuple):
    party: str
    parcel: Parcel | None = None
    error: LocalProtocolError | RemoteProtocolError | None = None
    at: float = 0.0
    """When it was there, by `time.perf_counter`."""
    n_sent: int = 0
    free: Callable[[], None] | None = None
    """To be called, in the event loop, when the reply is held no longer."""


@dataclass(eq=False)
class CarriedRequest:
    """One request, where its outcome goes, and how many bytes of it have left so far."""

    party: str
    label: Label
    data: bytes
    deliver: Callable[[_CarriedReply], None]
    longest_reply: int | None = None
    n_sent: int = 0

    def count(self, n_bytes: int) -> None:
        """Count bytes that leave; those of a request that is sent again count again."""
        self.n_sent += n_bytes


class Outbox:
    """What the parties have yet to answer, and their connections. Only the event loop changes it."""

    def __init__(self, on_second: Callable[[Second], None] | None = None) -> None:
        self.links: dict[str, PartyLink] = {}
        self._on_second = on_second
        self._carried: defaultdict[str, dict[Label, CarriedRequest]] = defaultdict(dict)

    def post(self, carried: list[CarriedRequest]) -> None:
        """Send requests now, or when their parties are there."""
        for one in carried:
            if one.label in self._carried[one.party]:
                what = f"request {one.label.number} of job {one.label.job}"
                one.deliver(_CarriedReply(one.party, error=LocalProtocolError(f"{what} is already on its way")))
                continue
            self._carried[one.party][one.label] = one
            link = self.links.get(one.party)
            if link is not None:
                link.ask(one)

    def withdraw(self, carried: list[CarriedRequest]) -> None:
        """Forget requests; their replies, if any come, are dropped."""
        for one in carried:
            if self._carried[one.party].get(one.label) is one:
                del self._carried[one.party][one.label]

    def connect(self, link: PartyLink) -> None:
        """Ask a party that has come, or come back, for everything that it owes."""
        former = self.links.get(link.peer.name)
        self.links[link.peer.name] = link
        if former is not None:
            former.on_replaced()
            # One process that dials again, since its line broke, is the same instance.
            if former.instance != link.instance and self._on_second is not None:
                self._on_second(Second(link.peer.name, former.address, link.address))
        for one in self._carried[link.peer.name].values():
            link.ask(one)

    def disconnect(self, link: PartyLink) -> None:
        """Note that a connection is gone, unless another has taken its place."""
        if self.links.get(link.peer.name) is link:
            del self.links[link.peer.name]

    def refuse(self, link: PartyLink, label: Label, error: RemoteProtocolError) -> None:
        """Tell whoever waits for a reply that it is not received."""
        one = self._carried[link.peer.name].pop(label._replace(kind=FrameKind.request), None)
        if one is not None:
            said = RemoteProtocolError(f"party {link.peer.name!r} sent {error}")
            one.deliver(_CarriedReply(link.peer.name, error=said))

    def arrive(self, link: PartyLink, parcel: Parcel, free: Callable[[], None] | None = None) -> None:
        """Hand a reply to whoever waits for it, who calls ``free`` when it is held no longer."""
        link.note_reply(parcel.label)
        asked = parcel.label._replace(kind=FrameKind.request)
        one = self._carried[link.peer.name].pop(asked, None)
        if one is not None:
            one.deliver(_CarriedReply(link.peer.name, parcel, at=time.perf_counter(), n_sent=one.n_sent, free=free))
        elif free is not None:
            free()


class HubCarrier:
    """Takes the requests of one job through a hub; see `Carrier`.

    Parameters
    ----------
    job : str
        The job's name, 32 hexadecimal digits.
    outbox : Outbox
        The hub's.
    loop : AbstractEventLoop
        In which the outbox lives.
    closed : threading.Event
        Set when the hub closes.
    message_limit : int
        The longest request, in bytes.
    wait_seconds : float
        For how long, all in all, one round waits for a party that is not connected.
    on_waiting : callable, optional
        Called in the caller's thread with the names of the parties that are missing whenever they change, and
        with none when all are there again.
    cancelled : threading.Event, optional
        Ends every wait when set.

    """

    def __init__(
        self,
        job: str,
        outbox: Outbox,
        loop: asyncio.AbstractEventLoop,
        closed: threading.Event,
        *,
        message_limit: int,
        wait_seconds: float,
        on_waiting: Callable[[tuple[str, ...]], None] | None,
        cancelled: threading.Event | None,
    ) -> None:
        job_bytes(job)
        self._job = job
        self._outbox = outbox
        self._loop = loop
        self._hub_closed = closed
        self._message_limit = message_limit
        self._wait_seconds = wait_seconds
        self._on_waiting = on_waiting
        self._cancelled = cancelled or threading.Event()
        self._closed = threading.Event()
        self._held: list[Callable[[], None]] = []  # frees the replies of the last round

    def carry(
        self,
        requests: Mapping[str, Numbered],
        on_reply: Callable[[str, bytes], None],
        *,
        wait_seconds: float | None = None,
    ) -> Travel:
        """Send all requests at once and return when all are answered; see `Carrier`."""
        self._check_open()
        self._free()
        since = time.perf_counter()
        for party, request in requests.items():
            if len(request.data) > self._message_limit:
                raise LocalProtocolError(
                    f"the request to party {party!r} has {len(request.data):,} bytes; the message limit is "
                    f"{self._message_limit:,} (raise it on both sides)"
                )
        # A queue of this round's own: what an interrupted round has left behind never mixes with it.
        done: SimpleQueue[_CarriedReply] = SimpleQueue()
        carried = [
            CarriedRequest(
                party,
                Label(FrameKind.request, self._job, request.number),
                request.data,
                done.put,
                request.longest_reply,
            )
            for party, request in requests.items()
        ]
        self._loop.call_soon_threadsafe(self._outbox.post, carried)
        try:
            limit = self._wait_seconds if wait_seconds is None else min(wait_seconds, self._wait_seconds)
            outcomes = self._collect(list(requests), done, on_reply, limit)
        finally:
            self._loop.call_soon_threadsafe(self._end_round, carried, done)
        return travel_of(
            [
                Reply(outcome.at - since, outcome.parcel.worked, outcome.n_sent + outcome.parcel.n_wire)
                for outcome in outcomes
                if outcome.parcel is not None
            ]
        )

    def _collect(
        self, parties: list[str], done: SimpleQueue[_CarriedReply], on_reply: Callable[[str, bytes], None], limit: float
    ) -> list[_CarriedReply]:
        outcomes: list[_CarriedReply] = []
        away = dict.fromkeys(parties, 0.0)
        told: tuple[str, ...] = ()
        looked = time.monotonic()
        while away:
            try:
                outcome = done.get(timeout=WAKE_SECONDS)
            except Empty:
                pass
            else:
                del away[outcome.party]
                if outcome.free is not None:
                    self._held.append(outcome.free)
                on_reply(outcome.party, _open(outcome))
                outcomes.append(outcome)
            self._check_open()
            missing = tuple(party for party in away if party not in self._outbox.links)
            now = time.monotonic()
            for party in missing:
                away[party] += now - looked
            looked = now
            if missing != told:
                told = missing
                if self._on_waiting is not None:
                    self._on_waiting(missing)
            late = tuple(party for party in missing if away[party] >= limit)
            if late:
                raise away_too_long(late, away[late[0]], limit)
        return outcomes

    def _end_round(self, carried: list[CarriedRequest], done: SimpleQueue[_CarriedReply]) -> None:
        """Forget the requests of a round, and replies that nobody has waited for; in the event loop."""
        self._outbox.withdraw(carried)
        while not done.empty():
            left = done.get_nowait().free
            if left is not None:
                left()

    def _free(self) -> None:
        """Hold the replies of the last round no longer: the job has gone on, or is over."""
        for free in self._held:
            self._loop.call_soon_threadsafe(free)
        self._held.clear()

    def _check_open(self) -> None:
        if self._cancelled.is_set():
            raise Cancelled(f"job {self._job} was cancelled")
        if self._closed.is_set() or self._hub_closed.is_set():
            raise LocalProtocolError("this carrier is closed")

    def close(self) -> None:
        """Carry no more; a `carry` that waits in another thread ends with a `LocalProtocolError`."""
        self._closed.set()
        self._free()


def _open(outcome: _CarriedReply) -> bytes:
    if outcome.error is not None:
        raise outcome.error
    if outcome.parcel is None:
        raise LocalProtocolError(f"no reply of party {outcome.party!r}")
    if outcome.parcel.label.kind is FrameKind.failure:
        what = outcome.parcel.data[:_MAX_FAILURE].decode("ascii", "replace")
        raise RemoteProtocolError(f"party {outcome.party!r} failed: {what}; its log has the reason")
    return outcome.parcel.data
