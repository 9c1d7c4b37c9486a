"""Secure sums at the coordinator: the set-up, and the rounds whose replies are vectors to be added.

::

    round 1   every client   introduces itself: a fresh key, signed
    round 2   every client   verifies all introductions
    then, as often as needed
      round     every client   the numbers that a request asks for, masked
      repeated  the others     where a client has dropped out: under a new round number, with new masks

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
from woodlot.protocols.sums.sum_client import minimum_clients
from woodlot.protocols.sums.vectors import CHECKS, unpack

PHASE = "agree"
"""The phase of the set-up."""


@dataclass
class SumSession:
    """The sums of one job, as the coordinator knows them.

    Attributes
    ----------
    clients : tuple of str
        Whose numbers are added now, in ascending order.
    mode : {"secure", "plain"}
        Whether the numbers of single clients are masked.
    minimum : int
        How many clients a sum has at least.
    spare_after : float or None
        The seconds after which a round goes on without a client that is away; None if it needs all.
    left : dict of str to str
        The clients that have dropped out, and why.
    next_round : int
        The number of the next round.

    """

    clients: tuple[str, ...]
    mode: msg.Mode
    minimum: int
    spare_after: float | None = None
    left: dict[str, str] = field(default_factory=dict)
    next_round: int = 0

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
    clients: Sequence[str], *, mode: msg.Mode = "secure", allow_two: bool = False, spare_after: float | None = None
) -> Generator[Round, dict[str, Message], SumSession]:
    """Have the clients agree on keys.

    Parameters
    ----------
    clients : sequence of str
        Three or more; their order does not matter.
    mode : {"secure", "plain"}
        "plain" adds numbers that everybody on the way can read, for debugging; any number of clients.
    allow_two : bool
        Allow sums over two clients, from which each learns the other's numbers. Every client must allow it too.
    spare_after : float, optional
        Go on without a client that refuses, or is away for so many seconds, as long as enough clients are left.
        Otherwise the run stops, and can be resumed when the client is back.

    Returns
    -------
    SumSession

    Raises
    ------
    ConfigError
        If there are too few clients.
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
    opening = msg.OpenSums(clients=names, mode=mode)
    replies = yield Round(PHASE, dict.fromkeys(names, opening), Progress(0, 2, "introductions"))
    introductions = {name: reply_of(replies[name], msg.SumsIntroduced, name).introduction for name in names}
    check_configured({name: introduction.configured for name, introduction in introductions.items()})
    start = msg.StartSums(introductions=introductions)
    replies = yield Round(PHASE, dict.fromkeys(names, start), Progress(1, 2, "agreement on keys"))
    transcripts = {reply_of(replies[name], msg.SumsStarted, name).transcript for name in names}
    if len(transcripts) != 1:
        raise RemoteProtocolError("the clients were not told the same: is it the same job for all of them?")
    return SumSession(names, mode, minimum, spare_after)


def ask_clients(
    session: SumSession, phase: str, message: Message, progress: Progress | None = None
) -> Generator[Round, dict[str, Message], dict[str, Message]]:
    """Send a message to all present clients and return the replies of those who stay.

    Those who refuse or are away leave the session, where it can spare them.

    Raises
    ------
    WoodlotError
        What the first of them refused with, where too few clients would be left.

    """
    sparing = None if session.spare_after is None else Sparing(session.spare_after, session.minimum)
    replies = yield Round(phase, dict.fromkeys(session.clients, message), progress, sparing)
    lost = {name: reply for name, reply in replies.items() if isinstance(reply, Refusal)}
    staying = tuple(name for name in session.clients if name not in lost)
    if len(staying) < session.minimum:
        first = next(iter(lost))
        kind = type(lost[first].to_exception(first))
        reasons = {**session.left, **{name: reply.reason for name, reply in lost.items()}}
        raise kind(
            f"{len(staying)} of {len(session.clients)} clients are left, and sums need {session.minimum}: "
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
) -> Generator[Round, dict[str, Message], NDArray[np.int64]]:
    """Ask all present clients the same, and return the sum of their answers.

    Where clients drop out the others are asked again, under a new round; `session.clients` then tells whose sum it is.

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

    Returns
    -------
    int64 array

    Raises
    ------
    RemoteProtocolError
        If a reply is not a vector as ordered, or the sum cannot be that of the clients.

    """
    while True:
        order = session.order(length, bound)
        replies = yield from ask_clients(session, phase, request(order), progress)
        if session.clients == order.clients:
            return sum_of(order, session.mode, replies)


def sum_of(order: msg.SumOrder, mode: msg.Mode, replies: Mapping[str, Message]) -> NDArray[np.int64]:
    """Add the vectors of one round.

    Raises
    ------
    RemoteProtocolError
        As for `sum_round`.

    """
    if tuple(sorted(replies)) != order.clients:
        raise LocalProtocolError(f"a sum over {named(order.clients)} needs a vector of each")
    kind: type[msg.SumVector] = msg.PlainVector if mode == "plain" else msg.MaskedVector
    dtype = np.dtype(f"<u{order.bits // 8}")
    total = np.zeros(order.length + CHECKS, dtype)
    for name, reply in replies.items():
        vector = reply_of(reply, kind, name)
        if vector.round != order.round or vector.values.dtype != dtype or vector.values.shape != total.shape:
            raise RemoteProtocolError(f"{name} did not send the vector that was ordered")
        total += vector.values
    return unpack(order, total)
