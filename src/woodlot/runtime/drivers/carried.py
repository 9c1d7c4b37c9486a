"""The driver for parties that are elsewhere: it numbers the requests, and a carrier takes them there and back."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import NamedTuple, Protocol, Self, cast

from woodlot.exceptions import (
    ApprovalPendingError,
    JournalError,
    LocalProtocolError,
    PartyAwayError,
    RemoteProtocolError,
)
from woodlot.protocols.core.message import ApprovalPending, Away, Message, Refusal, Role, Sparing, Unanswered
from woodlot.runtime.audit import Ledger
from woodlot.runtime.codec import DEFAULT_LIMIT, MAX_HEADER, decode, encode
from woodlot.runtime.drivers import check_names, encode_requests, raise_refusals
from woodlot.runtime.journal import Entry, JobJournal

LONGEST_BRIEF = MAX_HEADER + 1024
"""Bytes of the longest message without arrays."""


class Numbered(NamedTuple):
    """An encoded request and its number among the requests of this job to this party, from 1."""

    number: int
    data: bytes
    longest_reply: int | None = None
    """Bytes of the longest reply, where that is known to be less than any message may have."""


class Travel(NamedTuple):
    """What the way to the parties and back took in one round.

    Parameters
    ----------
    network_seconds : float
        Of the time until the last reply was there, what its party did not work on it.
    wire_bytes : int
        Bytes of all frames both ways, compressed where they were; what TLS and TCP add is not counted.

    """

    network_seconds: float
    wire_bytes: int


class Reply(NamedTuple):
    """One reply: seconds from the start of its round until it was there, those its party worked, bytes both ways."""

    seconds: float
    worked: float
    wire_bytes: int


def travel_of(replies: Collection[Reply]) -> Travel:
    """What the way took, given all replies of a round. What a party says of its time is never more than there was."""
    last = max(replies, key=lambda reply: reply.seconds, default=Reply(0.0, 0.0, 0))
    return Travel(max(0.0, last.seconds - last.worked), sum(reply.wire_bytes for reply in replies))


class Carrier(Protocol):
    """Takes the encoded requests of one job to the parties and brings their replies."""

    def carry(
        self,
        requests: Mapping[str, Numbered],
        on_reply: Callable[[str, bytes], None],
        *,
        wait_seconds: float | None = None,
    ) -> Travel | None:
        """Send all requests at once and return when all are answered.

        Calls ``on_reply(party, data)`` in the caller's thread for each reply as it arrives. A request that is
        carried again gets the same reply.

        Parameters
        ----------
        requests : mapping of str to Numbered
            The request for each party.
        on_reply : callable
            Takes the replies.
        wait_seconds : float, optional
            How long a party may be away, where that is shorter than the carrier's own limit.

        Returns
        -------
        Travel or None
            What the way took, if the carrier knows.

        Raises
        ------
        PartyAwayError
            When a party stays away too long; it names all that do.

        """
        ...

    def close(self) -> None:
        """Carry no more; a `carry` that waits in another thread ends with a `LocalProtocolError`."""
        ...


class CarriedDriver:
    """Carries the rounds of one job to parties that are elsewhere.

    With a journal, every reply is recorded as it arrives, before the protocol sees it. When the same protocol
    is run again on the same journal, what is recorded is not asked for again, and the run goes on where it was.

    A round that could not be carried to its end (a party stayed away or is `Unanswered`, the journal cannot be
    written, an interrupt) stops the driver: it raises the same error at every further round, so that nothing is
    recorded that a resumed run would not repeat. A refusal is a reply like any other and stops nothing.

    A round that can spare parties (see `Sparing`) goes on without those that stay away or are `Unanswered`. That
    they did not answer is recorded in the place of their replies, before the protocol sees it, and survives a loss
    of power, for nobody could be asked for it: so a resumed run does without them too, whoever is back by then.
    They are not asked again, since they have missed a request.

    Parameters
    ----------
    carrier : Carrier
        Carries this job; the driver closes it.
    parties : sequence of str
        The names of the parties that can be asked.
    ledger : Ledger, optional
        Records every message, also those that the journal has, as if the run had never been interrupted.
    journal : JobJournal, optional
        The records of this job. They are verified first.
    limit : int
        The largest message that is sent or accepted, in bytes.

    Raises
    ------
    JournalError
        If the journal is not what was written.

    """

    parties: tuple[str, ...]
    ledger: Ledger | None

    def __init__(
        self,
        carrier: Carrier,
        parties: Sequence[str],
        *,
        ledger: Ledger | None = None,
        journal: JobJournal | None = None,
        limit: int = DEFAULT_LIMIT,
    ) -> None:
        check_names(parties)
        self.parties = tuple(parties)
        self.ledger = ledger
        self._carrier = carrier
        self._journal = journal
        self._limit = limit
        self._numbers = dict.fromkeys(self.parties, 0)
        self._recorded = dict.fromkeys(self.parties, 0)
        if journal is not None:
            journal.verify()
            self._recorded = {party: journal.last(party, Role.coordinator) for party in self.parties}
        self._left: set[str] = set()
        self._stopped: BaseException | None = None
        self._closed = False
        self._turn = threading.Lock()

    def ask(self, requests: Mapping[str, Message], *, sparing: Sparing | None = None) -> dict[str, Message]:
        """Send one request to each named party and return their replies; see `Driver`."""
        sent = encode_requests(self.parties, requests, limit=self._limit)
        with self._turn:
            if self._closed:
                raise LocalProtocolError("this driver is closed")
            if self._stopped is not None:
                raise self._stopped
            for party in requests:
                if party in self._left:
                    raise LocalProtocolError(f"party {party!r} has not answered before: this run goes on without it")
            try:
                replies = self._exchange(requests, sent, sparing)
            except BaseException as error:
                self._stopped = error
                raise
        for reply in replies.values():
            if isinstance(reply, RemoteProtocolError):
                raise reply
        good = cast(dict[str, Message], replies)
        if sparing is None:
            raise_refusals(self.parties, good)
        return good

    def _exchange(
        self, requests: Mapping[str, Message], sent: Mapping[str, bytes], sparing: Sparing | None
    ) -> dict[str, Message | RemoteProtocolError]:
        """Carry one round; a reply that cannot be read is its sender's failure, and stands here as that."""
        arrived: dict[str, Message | RemoteProtocolError] = {}
        sizes: dict[str, int] = {}
        waiting: dict[str, Numbered] = {}

        def receive(party: str, data: bytes) -> None:
            sizes[party] = len(data)
            try:
                arrived[party] = decode(data, limit=self._limit)
            except RemoteProtocolError as error:
                arrived[party] = RemoteProtocolError(f"party {party!r}: {error}")

        def on_reply(party: str, data: bytes) -> None:
            if party not in waiting or party in arrived:
                raise RemoteProtocolError(f"a reply of party {party!r}, which was not asked")
            receive(party, data)
            if isinstance(arrived[party], Away):
                arrived[party] = RemoteProtocolError(f"party {party!r}: Away is not for a party to send")
            if isinstance(arrived[party], ApprovalPending) and waiting[party].number != 1:
                arrived[party] = RemoteProtocolError(f"party {party!r} waits for approval of a job that it has taken")
            if not isinstance(arrived[party], Unanswered):
                self._write(party, requests[party], waiting[party], arrived[party], data)

        for party, data in sent.items():
            self._numbers[party] += 1
            longest = LONGEST_BRIEF if requests[party].brief_reply else None
            request = Numbered(self._numbers[party], data, longest)
            self._account(Role.coordinator, party, requests[party], len(data))
            known = self._read(party, request)
            if known is None:
                waiting[party] = request
            else:
                receive(party, known)
        away = self._carry(waiting, on_reply, sparing)
        for party in () if away is None else away.parties:
            receive(party, encode(Away.noted()))
        replies = {party: arrived[party] for party in requests}
        missed = {party: reply for party in self.parties if isinstance(reply := replies.get(party), Unanswered)}
        self._check_approved(replies)
        n_answered = sum(isinstance(reply, Message) and not isinstance(reply, Refusal) for reply in replies.values())
        for party, reply in missed.items():
            if sparing is None or (party in waiting and n_answered < sparing.least):
                raise away or reply.to_exception(party)
        for party, reply in missed.items():
            if party in waiting:  # else it is recorded already
                self._write(party, requests[party], waiting[party], reply, encode(reply))
            self._left.add(party)
        for party, answer in replies.items():
            if isinstance(answer, Message):
                self._account(party, Role.coordinator, answer, sizes[party])
        return replies

    def _check_approved(self, replies: Mapping[str, Message | RemoteProtocolError]) -> None:
        """End a round in which owners have yet to decide, with what others refuse, if they do: then it is decided."""
        waits = tuple(party for party in self.parties if isinstance(replies.get(party), ApprovalPending))
        if waits:
            decided = {
                party: reply
                for party, reply in replies.items()
                if isinstance(reply, Message) and not isinstance(reply, Unanswered)
            }
            raise_refusals(self.parties, decided)
            raise ApprovalPendingError(f"waiting for the approval of {', '.join(waits)}", waits)

    def _carry(
        self, waiting: Mapping[str, Numbered], on_reply: Callable[[str, bytes], None], sparing: Sparing | None
    ) -> PartyAwayError | None:
        """Carry requests until all are answered, or all but those of the parties that the error names."""
        if sparing is None:
            if waiting:
                self._note(self._carrier.carry(waiting, on_reply))
            return None
        open_requests = dict(waiting)
        away: tuple[str, ...] = ()
        latest: PartyAwayError | None = None

        def on_one(party: str, data: bytes) -> None:
            on_reply(party, data)
            del open_requests[party]

        while open_requests:
            try:
                self._note(self._carrier.carry(dict(open_requests), on_one, wait_seconds=sparing.seconds))
                break
            except PartyAwayError as error:
                if not error.parties or not open_requests.keys() >= set(error.parties):
                    raise
                away, latest = away + error.parties, error
                for party in error.parties:
                    del open_requests[party]
        return None if latest is None else PartyAwayError(str(latest), away)

    def _read(self, party: str, request: Numbered) -> bytes | None:
        """The reply that the journal has, if any."""
        if self._journal is None or request.number > self._recorded[party]:
            return None
        asked = self._journal.lookup(Role.coordinator, party, request.number)
        answered = self._journal.lookup(party, Role.coordinator, request.number)
        if asked is None or answered is None:  # what could not be read was not recorded
            return None
        if asked.digest != hashlib.sha256(request.data).digest():
            raise JournalError(
                f"the run does not repeat itself: request {request.number} to party {party!r} is not the one in the "
                "journal. Resume it with the version, the settings and the seed that it was begun with"
            )
        return self._journal.body(answered)

    def _write(
        self, party: str, message: Message, request: Numbered, reply: Message | RemoteProtocolError, data: bytes
    ) -> None:
        if self._journal is None or isinstance(reply, RemoteProtocolError):
            return
        number, sent, _ = request
        kind, digest = type(message).__name__, hashlib.sha256(sent).digest()
        # Of the request the digest is enough: the protocol makes it again.
        asked = Entry(Role.coordinator.value, party, number, kind, len(sent), digest, None)
        keep = not message.repeatable
        answered = Entry.of(party, Role.coordinator, number, type(reply).__name__, data, keep=keep)
        # A reply that is lost is asked for again; a party that is back would answer what others have done without.
        self._journal.append([asked, answered], lasting=isinstance(reply, Unanswered))

    def _note(self, travel: Travel | None) -> None:
        if self.ledger is not None and travel is not None:
            self.ledger.add_travel(*travel)

    def _account(self, sender: str, receiver: str, message: Message, n_bytes: int) -> None:
        if self.ledger is not None:
            self.ledger.record(sender, receiver, message, n_bytes)

    def close(self) -> None:
        """Take no more rounds, and close the carrier."""
        if not self._closed:
            self._closed = True
            self._carrier.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
