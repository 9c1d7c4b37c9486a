"""Online scoring at a party: its part of the model and its table are read once, and asked for a few rows at a time.

What is held may not outlive what allowed it. Every batch is refused once the user's certificate or the policy does not
allow it any more, once a party has left the model, or once the table is another.
"""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.ids import canonical_ids
from woodlot.exceptions import DataError, IdentityError, PolicyError, RemoteProtocolError
from woodlot.jobs.home import TakenOrder, private_errors
from woodlot.jobs.orders import ScoreOrder
from woodlot.jobs.scores.score_seal import IdSeal
from woodlot.privacy.accounting import UNITS
from woodlot.protocols.core.bits import pack
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical import score_messages as msg
from woodlot.protocols.vertical.answers import match_columns
from woodlot.protocols.vertical.forest_messages import Decisions
from woodlot.runtime.codec import encode
from woodlot.trees import wire

MAX_AGE_SECONDS = 3600.0
"""How long a table is used that was read once: of a query nobody can tell whether it would give another one by now."""


class ScoringState(StrEnum):
    """Where a scoring stands."""

    ordered = "ordered"
    open = "open"


class ScoreWork(MessageHandler):
    """What a party does for an order to score."""

    n_aligned = None
    uncovered = UNITS
    state: ScoringState
    _ready: _Ready  # once the scoring is open

    def __init__(self, taken: TakenOrder[ScoreOrder]) -> None:
        home = taken.home
        home.policy.check_wire_form("decisions")
        home.policy.check_single_rows()
        self._home, self._job, self._order, self._user = home, taken.job, taken.order, taken.user
        self._certificate = taken.certificate
        self._source = home.tables[taken.part.table]
        self._stamp = taken.loaded.stamp
        self._loaded = taken.loaded
        self._seal = IdSeal(taken.part.key, taken.job, home.identity.name)
        self._since = time.monotonic()
        self._batch_rows = 0
        self.state = ScoringState.ordered

    @takes(msg.OpenScoring, when=ScoringState.ordered, then=ScoringState.open)
    def _on_OpenScoring(self, message: msg.OpenScoring) -> msg.ScoringReady:
        loaded, room = self._loaded, self._home.room
        if message.model != self._order.model:
            raise RemoteProtocolError("the order is for another model")
        part = self._home.store.model(message.model, message.forest)
        with private_errors(self._job, "its table does not have the columns or ids that the model was trained with"):
            every = np.arange(loaded.n_rows)
            table = (
                loaded.table().select(loaded.features)
                if room is None
                else loaded.stored([name for name in part.names if name in loaded.features], every, room.spool)
            )
            columns = match_columns(part.names, part.codings, table)
            ids = canonical_ids(loaded.ids)
        self._ready = _Ready(
            kind=ids.kind,
            row={value: row for row, value in enumerate(ids.values)},
            columns=columns,
            predictor=wire.PartyPredictor(part.structure, part.splits),
        )
        del self._loaded  # what is needed has been taken from it
        return msg.ScoringReady()

    @takes(msg.ScoreBatch, when=ScoringState.open)
    def _on_ScoreBatch(self, message: msg.ScoreBatch) -> Decisions:
        ready = self._ready
        self._check_allowed()
        rows = np.concatenate([self._rows(ready, *asked) for asked in self._requests(message)])
        known = rows >= 0
        digest = hashlib.sha256(encode(message)).digest()
        store, now = self._home.store, datetime.now(UTC)
        store.spend_batch(self._job, message.batch, digest, self._user, int(known.sum()), now)
        columns = [column[np.where(known, rows, 0)] for column in ready.columns]
        everywhere = bool(known.all())
        self._batch_rows = len(rows)
        reply = ready.predictor.answer("decisions", columns, len(rows), None if everywhere else known, 1)
        if not isinstance(reply, wire.DecisionBits):
            raise RemoteProtocolError("a scoring is answered with decisions")
        return Decisions(stream=reply.stream, lengths=reply.lengths, known=None if everywhere else pack(known))

    def most_bytes(self, reply: Message) -> int:
        """As long as its answer to a batch could be for so many rows; see `Work`."""
        return self._ready.predictor.most_bytes(self._batch_rows) + self._batch_rows if self._batch_rows else 0

    def _check_allowed(self) -> None:
        """Refuse what was allowed when the scoring was opened, and is no more."""
        home = self._home
        try:
            home.trust.admit(self._certificate, role="user")
            home.trust.check_fresh()
        except IdentityError as error:
            raise PolicyError(f"the order is not valid any more: {error}") from None
        home.policy.check_order(self._order.kind, self._user)
        home.store.check_model(self._order.model)
        if time.monotonic() - self._since > MAX_AGE_SECONDS:
            raise DataError("the scoring is too old; close it, and open another")
        if self._stamp != self._source.stamp():
            raise DataError("its table has changed since the scoring was opened; close it, and open another")

    def _requests(self, message: msg.ScoreBatch) -> list[tuple[list[bytes], int]]:
        opened = [self._seal.open(number, data) for number, data in zip(message.numbers, message.sealed, strict=True)]
        return list(zip(opened, message.n_rows, strict=True))

    def _rows(self, ready: _Ready, ids: list[bytes], n_rows: int) -> NDArray[np.int64]:
        """Own row of each id, -1 where there is none."""
        if len(ids) != n_rows:
            raise RemoteProtocolError(f"the coordinator speaks of {n_rows} rows, and the user of {len(ids)}")
        kind = b"i" if ready.kind == "whole numbers" else b"t"
        if not all(value.startswith(kind) for value in ids):
            raise DataError(f"its ids are {ready.kind}; give ids of that kind")
        return np.array([ready.row.get(value, -1) for value in ids], np.int64)


@dataclass(frozen=True, eq=False)
class _Ready:
    """What is held while a scoring is open: where each id is, and the columns under the codes of the training."""

    kind: str
    row: dict[bytes, int]
    columns: list[NDArray[Any]]
    predictor: wire.PartyPredictor
