"""A party of the alignment: its ids, its keys, and one handler per message.

The first party is the leader: it draws the secret of the job, and in private set intersection it is the one who finds
out what is common. The state says which messages are due; any other is refused and changes nothing.

States and messages::

    idle         OpenAlignment       -> opened         all
    opened       DrawSecret          -> keyed          leader: draws and seals the secret
    opened       TakeSecret          -> keyed          others

    keyed        SendTokens          -> tokens_sent    keyed hash: all
    tokens_sent  CommonRows          -> aligned        all

    keyed        SendRequests        -> requested      private set intersection: leader
    keyed        AnswerRequest       -> answered       others
    requested    FindCommon          -> aligned        leader; *requested* stays where nothing is common
    answered     TakeIntersection    -> aligned        others

Every state is left once, and there is no way back: an alignment is one job. A message of the other method, or for the
other role, is refused in every state. In *keyed* the rows are in the order of their tokens (``_order``), which is
common to all and says nothing of the order in any table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.ids import canonical_ids
from woodlot.exceptions import LocalProtocolError, RemoteProtocolError
from woodlot.protocols.align import align_messages as msg
from woodlot.protocols.align import psi
from woodlot.protocols.align.align_keys import JobKeys, KeyAgreement
from woodlot.protocols.align.tokens import are_ascending, make_tokens
from woodlot.protocols.core.agreement import KEY_BYTES, Entropy, Signer
from woodlot.protocols.core.bits import unpack
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message

_CURVE_MATERIAL = 48


class AlignState(StrEnum):
    """Where a party stands in an alignment."""

    idle = "idle"
    opened = "opened"
    keyed = "keyed"
    tokens_sent = "waiting for the common rows"
    requested = "waiting for answers"
    answered = "waiting for the intersection"
    aligned = "aligned"


_LEADER_ONLY = (msg.DrawSecret, msg.SendRequests, msg.FindCommon)
_OTHERS_ONLY = (msg.TakeSecret, msg.AnswerRequest, msg.TakeIntersection)
_KEYED_HASH_ONLY = (msg.SendTokens, msg.CommonRows)
_PSI_ONLY = (msg.SendRequests, msg.AnswerRequest, msg.FindCommon, msg.TakeIntersection)


class AlignParty(MessageHandler):
    """One party and its ids, for one alignment.

    Parameters
    ----------
    name : str
        The party's name.
    ids : pyarrow, numpy, pandas or polars column, or list
        One id per row: whole numbers or text, none missing, none twice.
    entropy : callable
        From a purpose to secret bytes, always the same for this party and job. A party that is restarted so repeats
        its messages byte for byte.
    lasting : callable, optional
        As ``entropy``, but the same in all jobs of this party: then the common order of rows (inner join) is the same
        in every job over the same tables.
    shared_secret : bytes, optional
        From the configuration, the same at every party; at least 16 random bytes. Without it the parties agree on a
        secret for this job.
    signer : Signer, optional
        The party's identity. Needed unless there is a shared secret.
    job : str
        The job's name, which all parties must have been told alike: it is signed.

    Raises
    ------
    DataError
        If the ids cannot be used. It tells counts and types, never an id.
    ConfigError
        If there is neither a shared secret nor an identity, or the secret is too short.

    """

    state: AlignState

    def __init__(
        self,
        name: str,
        ids: Any,
        *,
        entropy: Entropy,
        lasting: Entropy | None = None,
        shared_secret: bytes | None = None,
        signer: Signer | None = None,
        job: str = "",
    ) -> None:
        self.name = name
        self.state = AlignState.idle
        self._ids = canonical_ids(ids, f"the id column of party {name!r}")
        self._agreement = KeyAgreement(
            name,
            job=job,
            id_kind=self._ids.kind,
            entropy=entropy,
            lasting=lasting or entropy,
            table_digest=self._ids.digest(),
            shared_secret=shared_secret,
            signer=signer,
        )
        self._shared_secret = shared_secret
        self._opening: msg.OpenAlignment | None = None
        self._introduction: msg.Introduction | None = None
        self._keys: JobKeys | None = None
        self._order: NDArray[np.int64] = np.empty(0, np.int64)
        self._tokens: NDArray[np.uint8] = np.empty((0, 0), np.uint8)
        self._order_key = b""
        self._row_key = b""
        self._rows: NDArray[np.int64] | None = None

    @property
    def rows(self) -> NDArray[np.int64]:
        """Own row number of each common row, in the common order; -1 where this party has none (outer join)."""
        if self._rows is None:
            raise LocalProtocolError(f"party {self.name!r} is not aligned yet: it is {self.state}")
        return self._rows

    @property
    def row_key(self) -> bytes:
        """The key under which ids are hashed to select rows; see `woodlot.data.row_rules`."""
        if not self._row_key:
            raise LocalProtocolError(f"party {self.name!r} has no keys yet: it is {self.state}")
        return self._row_key

    def handle(self, message: Message) -> Message:
        """Answer one message; one that is not expected of this role, or in this state, is refused."""
        if self._opening is not None:
            self._check_role(type(message), self._opening)
        return super().handle(message)

    def _check_role(self, kind: type[Message], opening: msg.OpenAlignment) -> None:
        is_leader = opening.parties[0] == self.name
        if kind in (_OTHERS_ONLY if is_leader else _LEADER_ONLY):
            raise RemoteProtocolError(f"{kind.__name__} is for {'the others' if is_leader else 'the leader'}")
        if kind in (_KEYED_HASH_ONLY if opening.method == "psi" else _PSI_ONLY):
            raise RemoteProtocolError(f"{kind.__name__} is no part of method {opening.method!r}")

    # --- agreeing on a secret ---

    @takes(msg.OpenAlignment, when=AlignState.idle, then=AlignState.opened)
    def _on_OpenAlignment(self, message: msg.OpenAlignment) -> msg.Introduced:
        if self.name not in message.parties:
            raise RemoteProtocolError(f"this party, {self.name!r}, is not among those of the alignment")
        if message.method == "psi":
            psi.load()
        introduction = self._agreement.introduce(message)
        self._opening, self._introduction = message, introduction
        return msg.Introduced(introduction=introduction, n_rows=len(self._ids))

    def _accept(self, introductions: dict[str, msg.Introduction]) -> JobKeys:
        if self._opening is None or self._introduction is None:
            raise RemoteProtocolError("no alignment is open here")
        return self._agreement.accept(self._opening, self._introduction, introductions)

    @takes(msg.DrawSecret, when=AlignState.opened, then=AlignState.keyed)
    def _on_DrawSecret(self, message: msg.DrawSecret) -> msg.SealedSecret:
        keys = self._accept(message.introductions)
        secret, sealed = self._shared_secret, {}
        if secret is None:
            parties = sorted((keys.leader, *keys.exchanged))
            secret, row_key = self._agreement.lasting_bytes("secret", *parties), self._agreement.row_key(parties)
            sealed = {name: keys.seal(name, "secret", secret + row_key) for name in keys.exchanged}
        else:
            row_key = keys.row_key(secret)
        reply = msg.SealedSecret(confirmation=keys.confirmation(secret), sealed=sealed)
        self._take(keys, secret, row_key)
        return reply

    @takes(msg.TakeSecret, when=AlignState.opened, then=AlignState.keyed)
    def _on_TakeSecret(self, message: msg.TakeSecret) -> msg.SecretTaken:
        keys = self._accept(message.introductions)
        if self._shared_secret is not None and message.sealed is None:
            secret = self._shared_secret
            row_key = keys.row_key(secret)
        elif self._shared_secret is None and message.sealed is not None:
            opened = keys.unseal(keys.leader, "secret", message.sealed)
            if len(opened) != 2 * KEY_BYTES:
                raise RemoteProtocolError(f"party {keys.leader!r} sealed a secret of {len(opened)} bytes")
            secret, row_key = opened[:KEY_BYTES], opened[KEY_BYTES:]
        else:
            raise RemoteProtocolError("TakeSecret must carry a secret exactly where none is configured")
        keys.check(secret, message.confirmation)
        self._take(keys, secret, row_key)
        return msg.SecretTaken()

    def _take(self, keys: JobKeys, secret: bytes, row_key: bytes) -> None:
        """Bring the ids into the order of their tokens: common to all, and independent of the order in the table."""
        tokens, order = make_tokens(keys.matching_key(secret), self._ids.values)
        if not are_ascending(tokens):
            raise LocalProtocolError("two ids have the same token; run the alignment as a new job")
        self._keys, self._tokens, self._order = keys, tokens, order
        self._order_key, self._row_key = keys.order_key(secret), row_key

    # --- keyed hash ---

    @takes(msg.SendTokens, when=AlignState.keyed, then=AlignState.tokens_sent)
    def _on_SendTokens(self, message: msg.SendTokens) -> msg.IdTokens:
        return msg.IdTokens(tokens=self._tokens)

    @takes(msg.CommonRows, when=AlignState.tokens_sent, then=AlignState.aligned)
    def _on_CommonRows(self, message: msg.CommonRows) -> msg.RowsTaken:
        is_inner = self._opening is not None and self._opening.join == "inner"
        bits = unpack(message.bits, self._bits_due(message.n_rows, is_inner), "CommonRows").astype(bool)
        if int(bits.sum()) != (message.n_rows if is_inner else len(self._ids)):
            raise RemoteProtocolError("CommonRows does not mark as many rows as there are")
        if is_inner:
            rows = self._order[bits]
        else:
            rows = np.full(message.n_rows, -1, np.int64)
            rows[bits] = self._order
        return self._finish(rows)

    def _bits_due(self, n_rows: int, is_inner: bool) -> int:
        least, most = (1, len(self._ids)) if is_inner else (max(1, len(self._ids)), None)
        if n_rows < least or (most is not None and n_rows > most):
            raise RemoteProtocolError(f"CommonRows tells of {n_rows} rows, of which this party has {len(self._ids)}")
        return len(self._ids) if is_inner else n_rows

    def _finish(self, rows: NDArray[np.int64]) -> msg.RowsTaken:
        if self._opening is not None and self._opening.join == "inner":
            # the same order in every job over the same rows, so that the same seed gives the same forest
            _, order = make_tokens(self._order_key, [self._ids.values[row] for row in rows.tolist()])
            rows = rows[order]
        self._rows = rows
        return msg.RowsTaken(n_rows=len(rows))

    # --- private set intersection ---

    def _job_keys(self) -> JobKeys:
        if self._keys is None:
            raise RemoteProtocolError("there are no keys yet")
        return self._keys

    def _curve_key(self, role: str) -> bytes:
        """A key for each role: one key for both would let others compare what is only alike."""
        return psi.key_from(
            self._agreement.own_bytes(f"psi {role}", self._job_keys().transcript, length=_CURVE_MATERIAL)
        )

    def _ordered_ids(self) -> list[bytes]:
        return [self._ids.values[row] for row in self._order.tolist()]

    @takes(msg.SendRequests, when=AlignState.keyed, then=AlignState.requested)
    def _on_SendRequests(self, message: msg.SendRequests) -> msg.SealedRequests:
        keys = self._job_keys()
        points = psi.request(self._curve_key("client"), self._ordered_ids()).tobytes()
        sealed = {name: _array(keys.seal(name, "request", points)) for name in keys.exchanged}
        return msg.SealedRequests(sealed=sealed)

    @takes(msg.AnswerRequest, when=AlignState.keyed, then=AlignState.answered)
    def _on_AnswerRequest(self, message: msg.AnswerRequest) -> msg.SealedAnswer:
        keys = self._job_keys()
        what = f"the request of party {keys.leader!r}"
        asked = psi.read_points(keys.unseal(keys.leader, "request", message.sealed.tobytes()), what=what)
        psi.check_distinct(asked, ascending=False, what=what)
        ids, server_key = self._ordered_ids(), self._curve_key("server")
        parts = psi.setup(server_key, ids), psi.respond(server_key, asked), psi.request(self._curve_key("client"), ids)
        sealed = keys.seal(keys.leader, "answer", b"".join(part.tobytes() for part in parts))
        return msg.SealedAnswer(sealed=_array(sealed))

    @takes(msg.FindCommon, when=AlignState.requested)
    def _on_FindCommon(self, message: msg.FindCommon) -> msg.SealedCommon:
        keys = self._job_keys()
        if message.sealed.keys() != keys.exchanged.keys():
            raise RemoteProtocolError("FindCommon must carry one answer of each other party")
        client_key, asked = self._curve_key("client"), {}
        is_common = np.ones(len(self._ids), np.bool_)
        for name, sealed in message.sealed.items():
            setup, response, asked[name] = self._read_answer(keys, name, sealed.tobytes())
            is_there = np.zeros(len(self._ids), np.bool_)
            is_there[psi.intersect(client_key, setup, response)] = True
            is_common &= is_there
        if not is_common.any():
            return msg.SealedCommon(n_rows=0, sealed={})
        ids, server_key = self._ordered_ids(), self._curve_key("server")
        setup = psi.setup(server_key, [ids[at] for at in np.flatnonzero(is_common).tolist()])
        replies = {
            name: _array(keys.seal(name, "intersection", setup.tobytes() + psi.respond(server_key, points).tobytes()))
            for name, points in asked.items()
        }
        done = self._finish(self._order[is_common])
        self.state = AlignState.aligned
        return msg.SealedCommon(n_rows=done.n_rows, sealed=replies)

    def _read_answer(self, keys: JobKeys, name: str, sealed: bytes) -> tuple[psi.Points, psi.Points, psi.Points]:
        """Another party's setup, its response to this one's request, and its own request."""
        what, n = f"the answer of party {name!r}", len(self._ids)
        points = psi.read_points(keys.unseal(name, "answer", sealed), what=what)
        theirs, rest = divmod(len(points) - n, 2)
        if theirs < 0 or rest:
            raise RemoteProtocolError(f"{what} has {len(points)} points, which do not answer a request of {n}")
        setup, response, request = points[:theirs], points[theirs : theirs + n], points[theirs + n :]
        psi.check_distinct(setup, ascending=True, what=what)
        psi.check_distinct(request, ascending=False, what=what)
        return setup, response, request

    @takes(msg.TakeIntersection, when=AlignState.answered, then=AlignState.aligned)
    def _on_TakeIntersection(self, message: msg.TakeIntersection) -> msg.RowsTaken:
        keys = self._job_keys()
        what, n = f"the intersection of party {keys.leader!r}", len(self._ids)
        points = psi.read_points(keys.unseal(keys.leader, "intersection", message.sealed.tobytes()), what=what)
        n_common = len(points) - n
        if not 1 <= n_common <= n:
            raise RemoteProtocolError(f"{what} has {len(points)} points, which do not answer a request of {n}")
        found = psi.intersect(self._curve_key("client"), points[:n_common], points[n_common:])
        if len(found) != n_common:
            raise RemoteProtocolError(f"{what} has {n_common} rows, of which {len(found)} are here")
        return self._finish(self._order[found])


def _array(data: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(data, np.uint8)
