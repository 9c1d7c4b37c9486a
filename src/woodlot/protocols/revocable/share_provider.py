"""A party under ``scheme="shares"``: it splits its thresholds, and allows requests or refuses them.

States of the keys are those of `EpochMember`; PrepareShares makes them. What else is kept belongs to the present epoch
and is forgotten with it::

    _admitted   request -> its ticket         a request is checked and admitted by the gate once

A refused message is not counted. Everything random follows from the party's own secret and from what it is used for:
the same splits are shared in the same way again, and other splits in another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.crypto import split_compare
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.agreement import derive
from woodlot.protocols.core.handling import takes
from woodlot.protocols.revocable import key_messages as keys_msg
from woodlot.protocols.revocable import share_messages as msg
from woodlot.protocols.revocable.epoch_keys import TAG, seal
from woodlot.protocols.revocable.revocable_model import most_on_paths
from woodlot.protocols.revocable.share_holders import Leave, ShareMember, leave_key
from woodlot.protocols.revocable.share_keeping import HeldShares, seal_held
from woodlot.protocols.revocable.tickets import RequestGate
from woodlot.trees.forest import Splits, Structure


class ShareProvider(ShareMember):
    """A party's side. Parameters as for `EpochMember`, and

    Parameters
    ----------
    splits : callable
        Returns the party's own splits of the forest in use.
    columns : callable
        Returns, for each of the party's columns, the column of the request that it is to be compared with, or -1.
    gate : RequestGate, optional
        Whose requests are answered; everybody's without.
    structure : callable, optional
        Returns the structure of the forest in use: then a row has no more comparisons than paths have with the party's
        splits, and the number of all splits is compared. Without, or where it is None since the party has no part of
        the forest, that number is the coordinator's word.
    fingerprint : callable, optional
        Returns the fingerprint of the forest in use: splits are shared for no other. Without, or where it is None, it
        is the coordinator's word.

    """

    def __init__(
        self,
        name: str,
        *,
        splits: Callable[[], Splits],
        columns: Callable[[], NDArray[np.int32]],
        gate: RequestGate | None = None,
        structure: Callable[[], Structure | None] | None = None,
        fingerprint: Callable[[], str | None] | None = None,
        **member: Any,
    ) -> None:
        super().__init__(name, **member)
        self.gate = RequestGate() if gate is None else gate
        self._splits = splits
        self._columns = columns
        self._structure = structure
        self._fingerprint = fingerprint
        self._admitted: dict[bytes, keys_msg.Ticket] = {}

    def _forget(self) -> None:
        self._admitted.clear()

    @takes(msg.ShareSplits)
    def _on_ShareSplits(self, message: msg.ShareSplits) -> msg.SplitsShared:
        staged = self._staged is not None and self._staged.epoch == message.epoch
        keys = self._staged_keys(message.epoch) if staged else self._present(message.epoch)
        self._check_forest(message)
        own = self._splits()
        try:
            codes = split_compare.threshold_codes(own.threshold)
        except DataError as error:
            raise RemoteProtocolError(str(error)) from None
        content = hashlib.sha256(own.node.tobytes() + own.feature.tobytes() + codes.tobytes()).digest()
        secret = derive(TAG, keys.secret, "shared splits", self._job, message.forest, content)
        # the order hides nodes from helper and key service; the seed, which the key service has, must not tell it
        draws = np.frombuffer(SecretStream.derived(secret, "order").bytes(8 * len(codes)), "<u8")
        order = np.argsort(draws, kind="stable")
        seed = derive(TAG, secret, "seed")
        dealt = split_compare.dealer_shares(SecretStream(seed), len(codes))
        data = split_compare.write_shares(split_compare.helper_shares(codes[order], dealt))
        feature = own.feature[order].astype(np.int32).tobytes()
        commit = derive(TAG, seed, "commit", self.name, message.forest, hashlib.sha256(feature + data).digest())
        common: dict[str, Any] = {
            "forest": message.forest, "total": message.total, "count": len(codes), "commit": commit
        }  # fmt: skip
        place = np.empty(len(order), np.uint32)
        place[order] = np.arange(len(order), dtype=np.uint32)
        return msg.SplitsShared(
            helper=seal_held(keys, keys.helper, HeldShares(**common, feature=feature, data=data)),
            service=seal_held(keys, keys.key_service, HeldShares(**common, feature=b"", data=seed)),
            place=place,
            commit=commit,
        )

    def _check_forest(self, message: msg.ShareSplits) -> None:
        """Refuse another forest than the one in use, a part of it, or another number of splits."""
        fingerprint = None if self._fingerprint is None else self._fingerprint()
        if fingerprint is not None and message.forest != fingerprint:
            raise RemoteProtocolError("splits are to be shared for another forest than the one in use here")
        structure = None if self._structure is None else self._structure()
        if structure is not None and message.total != int((structure.right >= 0).sum()):
            raise RemoteProtocolError(f"the forest in use here has another number of splits than {message.total}")
        if not np.array_equal(message.node, self._splits().node):
            raise RemoteProtocolError("all splits of this party are shared, and no others")

    @takes(msg.AdmitRequest)
    def _on_AdmitRequest(self, message: msg.AdmitRequest) -> msg.RequestAdmitted:
        ticket = message.ticket
        keys = self._present(ticket.epoch)
        columns = {own: column for own, column in enumerate(self._columns().tolist()) if column >= 0}
        leave = Leave(most=self._most_of_a_row(), columns=columns)
        sealed = seal(leave_key(keys, keys.helper, ticket), msgspec.msgpack.encode(leave))
        admitted = self._admitted.get(ticket.request)
        if admitted is None:
            self.gate.check(ticket)
            self.gate.admit(ticket)
            self._admitted[ticket.request] = ticket
        elif admitted != ticket:
            raise RemoteProtocolError("another request of this name is being answered here")
        return msg.RequestAdmitted(leave=sealed)

    def _most_of_a_row(self) -> int:
        """How many comparisons with this party's splits a row has at most."""
        nodes, structure = self._splits().node, None if self._structure is None else self._structure()
        return len(nodes) if structure is None else most_on_paths(structure, nodes)
