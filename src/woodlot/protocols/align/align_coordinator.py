"""Alignment at the coordinator: the rounds, and for the keyed hash the matching of tokens.

::

    round 1   every party   introduces itself: kind of ids, number of rows, a fresh key, signed
    round 2   leader        draws the secret of the job, sealed for each of the others
    round 3   the others    take it, and check that it is the leader's
    keyed hash
      round 4   every party   one token per id, ascending
      round 5   every party   is told which of its rows are common
    private set intersection
      round 4   leader        its blinded ids, sealed for each of the others
      round 5   the others    the answers, and their own blinded ids, sealed for the leader
      round 6   leader        finds what is common, and answers each of the others
      round 7   the others    find what is common

The coordinator has no key, sees no id, and in private set intersection only carries what it cannot read.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from woodlot.exceptions import DataError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.align import align_messages as msg
from woodlot.protocols.align.align_keys import check_kinds
from woodlot.protocols.align.tokens import are_ascending, match_tokens
from woodlot.protocols.core.agreement import check_configured
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of

PHASE = "align"
_ROUNDS = {"keyed-hash": 5, "psi": 7}


@dataclass(frozen=True)
class Alignment:
    """What an alignment has found.

    Attributes
    ----------
    n_rows : int
        Rows of the result, the same and in the same order at every party.
    rows : dict of str to int
        Rows in the table of each party.
    common : dict of str to int
        Of these, the ones that are in the result.

    """

    n_rows: int
    rows: dict[str, int]
    common: dict[str, int]

    @property
    def lost(self) -> dict[str, int]:
        """Rows of each party that are not in the result."""
        return {name: count - self.common[name] for name, count in self.rows.items()}

    def describe(self) -> str:
        """The result in one line, with what each party has lost by it."""
        parts = [f"{name!r} loses {lost:,} of {self.rows[name]:,}" for name, lost in self.lost.items()]
        return f"{self.n_rows:,} common rows; {', '.join(parts)}"


Rounds = Generator[Round, dict[str, Message], Alignment]
M = TypeVar("M", bound=Message)


def align(parties: Sequence[str], *, method: msg.Method, join: msg.Join = "inner") -> Rounds:
    """Find the rows that the parties have in common; afterwards each party knows its own (`AlignParty.rows`).

    Parameters
    ----------
    parties : sequence of str
        Two or more. The first one is the leader: see docs/protocol/align.md for what it learns.
    method : {"keyed-hash", "psi"}
        Hashes under a secret of the parties, or private set intersection.
    join : {"inner", "outer"}
        The rows that every party has, or all rows (keyed hash only).

    Returns
    -------
    Alignment

    Raises
    ------
    DataError
        If ids are of different types, secrets differ, or there is no common row.

    """
    names = tuple(parties)
    if method not in _ROUNDS or join not in ("inner", "outer"):
        raise LocalProtocolError(f"there is no alignment with method={method!r} and join={join!r}")
    total = _ROUNDS[method]
    opening = msg.OpenAlignment(parties=names, method=method, join=join)
    replies = yield Round(PHASE, dict.fromkeys(names, opening), Progress(0, total, "introductions"))
    introduced = _replies(replies, names, msg.Introduced)
    introductions = {name: reply.introduction for name, reply in introduced.items()}
    rows = {name: reply.n_rows for name, reply in introduced.items()}
    for name, count in rows.items():
        if count < 0:
            raise RemoteProtocolError(f"{name} tells of {count} rows")
    check_kinds({name: introduction.id_kind for name, introduction in introductions.items()})
    check_configured({name: introduction.configured for name, introduction in introductions.items()})
    if join == "inner" and not all(rows.values()):
        raise nothing_common(rows)

    leader, others = names[0], names[1:]
    draw = msg.DrawSecret(introductions=introductions)
    replies = yield Round(PHASE, {leader: draw}, Progress(1, total, "agreement on a secret"))
    secret = reply_of(replies[leader], msg.SealedSecret, leader)
    if not introductions[leader].configured:
        _check_sealed(secret.sealed, others, leader)
    requests: dict[str, Message] = {
        name: msg.TakeSecret(
            introductions=introductions, confirmation=secret.confirmation, sealed=secret.sealed.get(name)
        )
        for name in others
    }
    replies = yield Round(PHASE, requests, Progress(2, total, "agreement on a secret"))
    _replies(replies, others, msg.SecretTaken)

    if method == "keyed-hash":
        return (yield from _match(names, rows, join))
    return (yield from _intersect(names, rows))


def _match(names: tuple[str, ...], rows: dict[str, int], join: msg.Join) -> Rounds:
    """Keyed hash: compare the tokens of all parties."""
    total = _ROUNDS["keyed-hash"]
    replies = yield Round(PHASE, dict.fromkeys(names, msg.SendTokens()), Progress(3, total, "tokens"))
    tokens = {name: reply.tokens for name, reply in _replies(replies, names, msg.IdTokens).items()}
    for name, own in tokens.items():
        if not are_ascending(own) or len(own) != rows[name]:
            raise RemoteProtocolError(f"{name} did not send one token per row, each larger than the one before")
    n_rows, bits = match_tokens(list(tokens.values()), join)
    if n_rows == 0:
        raise nothing_common(rows)
    requests: dict[str, Message] = {
        name: msg.CommonRows(n_rows=n_rows, bits=own) for name, own in zip(names, bits, strict=True)
    }
    replies = yield Round(PHASE, requests, Progress(4, total, "common rows"))
    _check_taken(replies, names, n_rows)
    return Alignment(n_rows, rows, dict(rows) if join == "outer" else dict.fromkeys(names, n_rows))


def _intersect(names: tuple[str, ...], rows: dict[str, int]) -> Rounds:
    """Private set intersection: carry what is sealed between the leader and the others."""
    total, (leader, *others) = _ROUNDS["psi"], names
    replies = yield Round(PHASE, {leader: msg.SendRequests()}, Progress(3, total, "blinded ids of the leader"))
    asked = reply_of(replies[leader], msg.SealedRequests, leader)
    _check_sealed(asked.sealed, others, leader)
    requests: dict[str, Message] = {name: msg.AnswerRequest(sealed=asked.sealed[name]) for name in others}
    replies = yield Round(PHASE, requests, Progress(4, total, "answers of the others"))
    answers = {name: reply.sealed for name, reply in _replies(replies, others, msg.SealedAnswer).items()}
    replies = yield Round(PHASE, {leader: msg.FindCommon(sealed=answers)}, Progress(5, total, "common ids"))
    found = reply_of(replies[leader], msg.SealedCommon, leader)
    if found.n_rows == 0:
        raise nothing_common(rows)
    if not 0 < found.n_rows <= min(rows.values()):
        raise RemoteProtocolError(f"{leader} has found {found.n_rows} common rows, more than there can be")
    _check_sealed(found.sealed, others, leader)
    requests = {name: msg.TakeIntersection(sealed=found.sealed[name]) for name in others}
    replies = yield Round(PHASE, requests, Progress(6, total, "common ids"))
    _check_taken(replies, others, found.n_rows)
    return Alignment(found.n_rows, rows, dict.fromkeys(names, found.n_rows))


def nothing_common(rows: Mapping[str, int]) -> DataError:
    """The error of an alignment without a common row."""
    counts = ", ".join(f"{count:,} at {name!r}" for name, count in rows.items())
    return DataError(
        f"no id is at every party; there are {counts}. Check that the tables are the right ones and that all parties "
        "write ids in the same way (upper and lower case, blanks, leading zeros)"
    )


def _replies(replies: Mapping[str, Message], names: Sequence[str], kind: type[M]) -> dict[str, M]:
    return {name: reply_of(replies[name], kind, name) for name in names}


def _check_sealed(sealed: Mapping[str, object], others: Sequence[str], leader: str) -> None:
    if set(sealed) != set(others):
        raise RemoteProtocolError(f"{leader} did not seal one message for each of the other parties")


def _check_taken(replies: Mapping[str, Message], names: Sequence[str], n_rows: int) -> None:
    for name, reply in _replies(replies, names, msg.RowsTaken).items():
        if reply.n_rows != n_rows:
            raise RemoteProtocolError(f"{name} has found {reply.n_rows} common rows where there are {n_rows}")
