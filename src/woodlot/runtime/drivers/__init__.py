"""What a driver is, and the few steps that every driver takes.

A driver runs at the coordinator and moves messages; it knows nothing of what they mean. Whatever it runs on,
it passes the tests of ``tests/runtime/driver_contract.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Protocol, Self

from woodlot.exceptions import LocalProtocolError, RemoteProtocolError
from woodlot.protocols.core.message import Message, Refusal, Role, Sparing
from woodlot.runtime.codec import DEFAULT_LIMIT, decode, encode


class Handler(Protocol):
    """A party: a table, a state, and an answer to every message."""

    def handle(self, message: Message) -> Message:
        """Answer one message, or raise and leave the state as it was."""
        ...


class Driver(Protocol):
    """Carries the rounds of a protocol to the parties and back.

    A round is one request to each of some parties, all sent at once; it ends when all of them have answered.

    - Replies have the keys of the requests, in the order of the requests.
    - An unknown party, or a request that cannot be encoded, is a `LocalProtocolError` before anything is
      sent.
    - A party that refuses does not disturb the others: when all have answered, the refusal of the first such
      party in the order of `parties` is raised (see `Refusal.to_exception`), and the driver takes the next
      round.
    - Unless the round can spare parties: then a refusal is that party's reply, and nothing is raised for it.
    - What is received was decoded from bytes: it shares no memory with what was sent, and its arrays are
      read-only.
    - Requests to one party are answered one at a time, in the order in which they were sent.
    - A closed driver refuses every round with a `LocalProtocolError`. Closing twice does nothing.

    Attributes
    ----------
    parties : tuple of str
        The names of the parties that can be asked.

    """

    parties: tuple[str, ...]

    def ask(self, requests: Mapping[str, Message], *, sparing: Sparing | None = None) -> dict[str, Message]:
        """Send one request to each named party and return their replies.

        Parameters
        ----------
        requests : mapping of str to Message
            The request for each party; parties that are not named are not asked.
        sparing : Sparing, optional
            Whether and how the round goes on without some of the parties.

        Returns
        -------
        dict of str to Message
            The reply of each party that was asked.

        """
        ...

    def close(self) -> None:
        """Take no more rounds and give back threads, connections and memory."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def check_names(parties: Collection[str]) -> None:
    """Refuse a set of parties that a ledger could not tell apart from the coordinator, or that is empty."""
    if not parties:
        raise LocalProtocolError("a driver needs at least one party")
    if Role.coordinator in parties:
        raise LocalProtocolError(f"no party can be named {Role.coordinator.value!r}: the coordinator is")


def encode_requests(
    parties: Collection[str], requests: Mapping[str, Message], *, limit: int = DEFAULT_LIMIT
) -> dict[str, bytes]:
    """Encode a whole round, so that a fault in any request is met before the first one is sent."""
    unknown = [party for party in requests if party not in parties]
    if unknown:
        raise LocalProtocolError(f"unknown party {unknown[0]!r}; the parties are {', '.join(parties)}")
    return {party: encode(message, limit=limit) for party, message in requests.items()}


def answer(
    handler: Handler, request: bytes | memoryview, *, limit: int = DEFAULT_LIMIT
) -> tuple[bytes, Exception | None]:
    """Answer one encoded request at a party.

    Returns
    -------
    reply : bytes
        What the handler answers, or the refusal that tells why it did not.
    error : Exception or None
        What the handler raised. It stays with the party: its words may quote the party's data.

    """
    try:
        message = decode(request, limit=limit)
    except RemoteProtocolError as error:
        return encode(Refusal.from_exception(error)), error
    _, reply, failure = respond(handler, message, limit=limit)
    return reply, failure


def respond(
    handler: Handler, message: Message, *, limit: int = DEFAULT_LIMIT
) -> tuple[Message, bytes, Exception | None]:
    """Answer one decoded request at a party, as `answer` does; return the reply also before it was encoded."""
    try:
        reply = handler.handle(message)
        return reply, encode(reply, limit=limit), None
    except Exception as error:  # noqa: BLE001 - whatever a handler raises, the coordinator must get an answer
        refusal = Refusal.from_exception(error)
        return refusal, encode(refusal), error


def raise_refusals(
    parties: Collection[str],
    replies: Mapping[str, Message],
    causes: Mapping[str, Exception | None] | None = None,
) -> None:
    """Raise the first refusal among the replies, in the order of `parties`; the others are notes on it."""
    refusals = {party: reply for party in parties if isinstance(reply := replies.get(party), Refusal)}
    if not refusals:
        return
    first, *others = (refusal.to_exception(party) for party, refusal in refusals.items())
    for other in others:
        first.add_note(f"also refused: {other}")
    raise first from (causes or {}).get(next(iter(refusals)))
