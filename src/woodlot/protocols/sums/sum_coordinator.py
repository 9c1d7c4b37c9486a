"""Secure sums at the coordinator: the set-up, and the rounds whose replies are vectors to be added.

::

    round 1   every client   introduces itself: a fresh key, signed
    round 2   every client   verifies all introductions
    then, as often as needed
      round   every client   the numbers that a request asks for, masked

Where clients can be spared (a quorum is enough) there are more rounds; see `recovery` for the masks::

    before every 16 sums
      round   every client   deals shares of its secrets
      round   every client   takes those of its neighbours
    after the vectors of a sum
      round   who has survived   confirms the list of survivors, if somebody is missing or clients are many
      round   who has survived   shares of what takes the remaining masks off the sum

A protocol that needs sums takes these rounds as its own::

    session = yield from open_sums(clients)
    counts = yield from sum_round(session, "grow", lambda order: CountRows(order=order, ...), length=n, bound=rows)
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import ConfigError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.core.agreement import check_configured, named
from woodlot.protocols.core.message import Message, Progress, Refusal, Round, Sparing
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.sums import sum_messages as msg
from woodlot.protocols.sums.keystreams import Vector
from woodlot.protocols.sums.masks import MaskTerms
from woodlot.protocols.sums.neighbours import drawn_by
from woodlot.protocols.sums.recovery import ROUNDS, Circle, open_envelope
from woodlot.protocols.sums.shamir import combine
from woodlot.protocols.sums.sum_client import minimum_clients, quorum_of
from woodlot.protocols.sums.vectors import CHECKS, unpack

PHASE = "agree"
"""The phase of the set-up."""


@dataclass(frozen=True, eq=False)
class _Dealt:
    """The envelopes of the clients that have dealt shares for some rounds."""

    first: int
    clients: tuple[str, ...]
    envelopes: dict[str, tuple[bytes, ...]]


@dataclass
class SumSession:
    """The sums of one job, as the coordinator knows them.

    Attributes
    ----------
    clients : tuple of str
        Whose numbers are added now, in ascending order.
    mode : {"secure", "plain"}
        Whether the numbers of single clients are masked.
    quorum : int
        How many clients a sum has at least.
    spare_after : float or None
        The seconds after which a round goes on without a client that is away; None if it needs all.
    circle : Circle or None
        Who shares masks with whom, where clients of secure sums can be spared.
    transcript : bytes
        Hash of what all clients were told at the start.
    summed : tuple of str
        Whose numbers are in the latest sum; some of them may have dropped out since.
    left : dict of str to str
        The clients that have dropped out, and why.
    next_round : int
        The number of the next round.

    """

    clients: tuple[str, ...]
    mode: msg.Mode
    quorum: int
    spare_after: float | None = None
    circle: Circle | None = None
    transcript: bytes = b""
    summed: tuple[str, ...] = ()
    left: dict[str, str] = field(default_factory=dict)
    next_round: int = 0
    dealt: _Dealt | None = None

    def order(self, length: int, bound: int | None) -> msg.SumOrder:
        """Return the order of a new round with the present clients."""
        largest = ((1 << (msg.MAX_BITS - 1)) - 1) // len(self.clients)
        try:
            order = msg.SumOrder(
                round=self.next_round, clients=self.clients, length=length, bound=largest if bound is None else bound
            )
        except ValueError as error:
            raise LocalProtocolError(f"there is no such sum: {error}") from None
        self.next_round += 1
        return order


def open_sums(
    clients: Sequence[str],
    *,
    mode: msg.Mode = "secure",
    allow_two: bool = False,
    spare_after: float | None = None,
    quorum: int | float | None = None,
) -> Generator[Round, dict[str, Message], SumSession]:
    """Agree on keys with the clients; their sums can be asked for after it.

    Parameters
    ----------
    clients : sequence of str
        Three or more; their order does not matter.
    mode : {"secure", "plain"}
        "plain" adds numbers that everybody on the way can read, for debugging; any number of clients.
    allow_two : bool
        Allow sums over two clients, from which each learns the other's numbers. Every client must allow it too.
    spare_after : float, optional
        Go on without a client that refuses, or is away for so many seconds, as long as the quorum is left.
        Otherwise the run stops, and can be resumed when the client is back.
    quorum : int, float or None
        How many clients a sum needs, as for `quorum_of`; by default all.

    Returns
    -------
    SumSession

    Raises
    ------
    ConfigError
        If there are too few clients, or the quorum is not possible.
    RemoteProtocolError
        If the clients were told different things.

    """
    names = tuple(sorted(clients))
    minimum = minimum_clients(mode, allow_two)
    if len(names) < minimum:
        raise ConfigError(
            f"secure sums need {minimum} clients or more, and there are {len(names)}: with fewer, clients learn each "
            "other's numbers from the sum. Set allow_two=True to allow two, or sums='plain' to do without secrecy"
        )
    needed = quorum_of(quorum, len(names), minimum)
    opening = msg.OpenSums(clients=names, mode=mode, quorum=needed)
    replies = yield Round(PHASE, dict.fromkeys(names, opening), Progress(0, 2, "introductions"))
    introductions = {name: reply_of(replies[name], msg.SumsIntroduced, name).introduction for name in names}
    check_configured({name: introduction.configured for name, introduction in introductions.items()})
    start = msg.StartSums(introductions=introductions)
    replies = yield Round(PHASE, dict.fromkeys(names, start), Progress(1, 2, "agreement on keys"))
    transcripts = {reply_of(replies[name], msg.SumsStarted, name).transcript for name in names}
    if len(transcripts) != 1:
        raise RemoteProtocolError("the clients were not told the same: is it the same job for all of them?")
    circle = None
    if mode == "secure" and needed is not None:
        circle = Circle(names, drawn_by({name: introductions[name].picks for name in names}), needed)
    waits = spare_after if needed is not None else None
    return SumSession(names, mode, needed or len(names), waits, circle, transcripts.pop())


def ask_clients(
    session: SumSession,
    phase: str,
    message: Message | Mapping[str, Message],
    progress: Progress | None = None,
    *,
    whole: bool = False,
) -> Generator[Round, dict[str, Message], dict[str, Message]]:
    """Send a message to all present clients, or each its own, and return the replies of those who stay.

    Those who refuse or are away leave the session, where it can spare them and is not asked as a `whole`.

    Raises
    ------
    WoodlotError
        What the first of them refused with, where too few clients would be left.

    """
    sparing = None if whole or session.spare_after is None else Sparing(session.spare_after, session.quorum)
    requests = dict.fromkeys(session.clients, message) if isinstance(message, Message) else dict(message)
    replies = yield Round(phase, requests, progress, sparing)
    lost = {name: reply for name, reply in replies.items() if isinstance(reply, Refusal)}
    staying = tuple(name for name in session.clients if name not in lost)
    if len(staying) < session.quorum:
        first = next(iter(lost))
        kind = type(lost[first].to_exception(first))
        reasons = {**session.left, **{name: reply.reason for name, reply in lost.items()}}
        raise kind(
            f"{len(staying)} of {len(session.clients)} clients are left, and sums need {session.quorum}: "
            + "; ".join(f"{name!r}: {reason}" for name, reason in reasons.items())
        )
    session.left.update({name: reply.reason for name, reply in lost.items()})
    session.clients = staying
    return {name: replies[name] for name in staying}


def sum_round(
    session: SumSession,
    phase: str,
    request: Callable[[msg.SumOrder], Message],
    *,
    length: int,
    bound: int | None = None,
    progress: Progress | None = None,
    whole: bool = False,
) -> Generator[Round, dict[str, Message], NDArray[np.int64]]:
    """Ask all present clients the same, and return the sum of their answers.

    Where clients drop out the sum is that of those whose answers have arrived (`SumSession.summed`); no question is
    asked twice.

    Parameters
    ----------
    session : SumSession
        From `open_sums`.
    phase : str
        The part of the protocol that the round counts for.
    request : callable
        From the order to the request that has it.
    length : int
        How many numbers each client sends.
    bound : int, optional
        The largest absolute value of one client's number. It is checked on the sum alone, for a client that refused
        its numbers would tell of them; where it is small the numbers travel in half the bytes. It is told to all
        clients, so it must be a public one. Where noise may go beyond any bound, give none.
    progress : Progress, optional
        How far the protocol has come.
    whole : bool
        Spare nobody in this sum, as where the session has no quorum: for what clients answer together or not at all
        (`SumClient.answer`).

    Returns
    -------
    int64 array

    Raises
    ------
    RemoteProtocolError
        If a reply is not a vector as ordered, or the sum cannot be that of the clients.

    """
    if session.circle is not None and (session.dealt is None or session.next_round >= session.dealt.first + ROUNDS):
        session.dealt = yield from _deal(session, session.circle, phase, progress, whole=whole)
    order = session.order(length, bound)
    replies = yield from ask_clients(session, phase, request(order), progress, whole=whole)
    session.summed = survivors = session.clients
    total = _added(order, session.mode, replies)
    if session.circle is not None:
        yield from _unmask(session, session.circle, phase, progress, order, survivors, total, whole=whole)
    return unpack(order, total, len(survivors))


def sum_of(order: msg.SumOrder, mode: msg.Mode, replies: Mapping[str, Message]) -> NDArray[np.int64]:
    """Add the vectors of one round that needs all its clients.

    Raises
    ------
    RemoteProtocolError
        As for `sum_round`.

    """
    if tuple(sorted(replies)) != order.clients:
        raise LocalProtocolError(f"a sum over {named(order.clients)} needs a vector of each")
    return unpack(order, _added(order, mode, replies), len(replies))


def _added(order: msg.SumOrder, mode: msg.Mode, replies: Mapping[str, Message]) -> Vector:
    kind: type[msg.SumVector] = msg.PlainVector if mode == "plain" else msg.MaskedVector
    dtype = np.dtype(f"<u{order.bits // 8}")
    total = np.zeros(order.length + CHECKS, dtype)
    for name, reply in replies.items():
        vector = reply_of(reply, kind, name)
        if vector.round != order.round or vector.values.dtype != dtype or vector.values.shape != total.shape:
            raise RemoteProtocolError(f"{name} did not send the vector that was ordered")
        total += vector.values
    return total


# --- where clients can be spared ---


def _deal(
    session: SumSession, circle: Circle, phase: str, progress: Progress | None, *, whole: bool
) -> Generator[Round, dict[str, Message], _Dealt]:
    """Have the present clients deal shares for the next rounds, and bring each those of its neighbours."""
    first, dealers = session.next_round, session.clients
    replies = yield from ask_clients(
        session, phase, msg.PrepareSums(first=first, clients=dealers), progress, whole=whole
    )
    present = session.clients
    sealed: dict[str, dict[str, bytes]] = {name: {} for name in present}
    envelopes = {}
    for name in present:
        prepared = reply_of(replies[name], msg.SumsPrepared, name)
        peers = [peer for peer in circle.holders(name, dealers) if peer != name]
        if prepared.first != first or len(prepared.envelopes) != ROUNDS or sorted(prepared.shares) != peers:
            raise RemoteProtocolError(f"{name} did not deal the shares that were asked for")
        envelopes[name] = prepared.envelopes
        for peer, share in prepared.shares.items():
            if peer in sealed:
                sealed[peer][name] = share
    taking = {name: msg.TakeShares(first=first, clients=present, shares=sealed[name]) for name in present}
    yield from ask_clients(session, phase, taking, progress, whole=whole)
    return _Dealt(first, dealers, envelopes)


def _unmask(
    session: SumSession,
    circle: Circle,
    phase: str,
    progress: Progress | None,
    order: msg.SumOrder,
    survivors: tuple[str, ...],
    total: Vector,
    *,
    whole: bool,
) -> Generator[Round, dict[str, Message], None]:
    """Take off the sum what is left of masks: the survivors' own, and those that they share with the others."""
    echoes: dict[str, dict[str, bytes]] = {name: {} for name in survivors}
    if circle.is_echoed(survivors, order.clients):
        naming = msg.NameSurvivors(round=order.round, survivors=survivors)
        replies = yield from ask_clients(session, phase, naming, progress, whole=whole)
        for name, reply in replies.items():
            for peer, echo in reply_of(reply, msg.SurvivorsEchoed, name).echoes.items():
                if peer in echoes:
                    echoes[peer][name] = echo
    asking = {name: msg.Unmask(round=order.round, survivors=survivors, echoes=echoes[name]) for name in session.clients}
    replies = yield from ask_clients(session, phase, asking, progress, whole=whole)
    told = {name: reply_of(reply, msg.SharesTold, name) for name, reply in replies.items()}
    if len({reply.asked for reply in told.values()}) != 1 or any(r.round != order.round for r in told.values()):
        raise RemoteProtocolError("the clients were not asked the same, so their numbers have no sum")
    terms = MaskTerms(session.transcript, order.round, order.clients, next(iter(told.values())).asked)
    dealt = session.dealt
    if dealt is None:
        raise LocalProtocolError("no shares were dealt for this round")
    scratch = np.empty_like(total)
    for name in order.clients:
        secret = _reconstructed(circle, name, told)
        if name in survivors:
            terms.add(total, scratch, secret, name, name, sign=-1)
            continue
        peers = circle.peers(name, dealt.clients)
        keys = open_envelope(secret, dealt.envelopes[name][order.round - dealt.first], peers)
        for peer in circle.peers(name, survivors):
            terms.add(total, scratch, keys[peer], peer, name, sign=-1)


def _reconstructed(circle: Circle, name: str, told: Mapping[str, msg.SharesTold]) -> bytes:
    """The secret of a client that enough of its holders have told shares of."""
    needed = circle.threshold(name)
    shares = {circle.place(holder): reply.shares[name] for holder, reply in told.items() if name in reply.shares}
    if len(shares) < needed:
        raise RemoteProtocolError(
            f"{len(shares)} clients are left that hold shares of {name!r}, and {needed} are needed; start the job "
            "again without the clients that have left"
        )
    return combine(dict(list(shares.items())[:needed]))
