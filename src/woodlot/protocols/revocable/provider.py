"""A party's side of keys and encrypted predictions: it encrypts its splits, and has the last word on their use.

States of the keys are those of `EpochMember`; TakeGroup is this role's message. What else is kept belongs to the
present epoch and is forgotten with it::

    _admitted   request -> its ticket         a request is checked and admitted by the gate at its first step, once
    _opened     request -> comparisons        how many were opened; a request has a limit
    _answered   (request, block, step)        a step is opened once

OpenAnswers checks ticket, step, seal, count and columns before it admits or counts anything. A refused message is not
counted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.dtpkc import WeakKey
from woodlot.crypto.encoding import DEFAULT_DIGITS, Encoding, encode
from woodlot.crypto.knowledge import prove_known
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import derive, secret_bytes
from woodlot.protocols.core.handling import takes
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.epoch_keys import TAG, TAG_BYTES, EpochKeys, bytes_number, number_bytes, tag_of
from woodlot.protocols.revocable.helper import open_shares
from woodlot.protocols.revocable.revocable_keys import PURPOSE, EpochMember
from woodlot.protocols.revocable.revocable_model import most_on_paths
from woodlot.protocols.revocable.split_list import (
    HASH_BYTES,
    hash_lines,
    known_purpose,
    made_facts,
    made_key,
    own_facts,
    sort_hashes,
)
from woodlot.protocols.revocable.tickets import RequestGate
from woodlot.trees.forest import Splits, Structure


class Provider(EpochMember):
    """A party's side. Parameters as for `EpochMember`, and

    Parameters
    ----------
    splits : callable
        Returns the party's own splits of the forest in use.
    gate : RequestGate, optional
        Whose requests are answered; everybody's without.
    columns : callable, optional
        Returns, for each of the party's columns, the column of the request that it is to be compared with, or -1.
        Without, the helper's word that each has one of its own is enough.
    structure : callable, optional
        Returns the structure of the forest in use: then no more comparisons are opened than paths have with the party's
        splits, and not as many as it has splits for each row; and the helper is told how many splits there are in all.
        Without, or where it is None since the party has no part of the forest, that number is the coordinator's word.
    fingerprint : callable, optional
        Returns the fingerprint of the forest in use: splits are encrypted for no other. Without, or where it is None
        since the party has no part of the forest, it is the coordinator's word.
    encoding, digits
        How splits become integers; see `woodlot.crypto.encoding`. All parties and requesters must have the same.

    """

    def __init__(
        self,
        name: str,
        *,
        splits: Callable[[], Splits],
        gate: RequestGate | None = None,
        columns: Callable[[], NDArray[np.int32]] | None = None,
        structure: Callable[[], Structure | None] | None = None,
        fingerprint: Callable[[], str | None] | None = None,
        encoding: Encoding = "exact",
        digits: int = DEFAULT_DIGITS,
        **member: Any,
    ) -> None:
        super().__init__(name, **member)
        self.gate = RequestGate() if gate is None else gate
        self._splits = splits
        self._columns = columns
        self._structure = structure
        self._fingerprint = fingerprint
        self._encoding: Encoding = encoding
        self._digits = digits
        self._weak: WeakKey | None = None
        self._weak_of: EpochKeys | None = None
        self._admitted: dict[bytes, msg.Ticket] = {}
        self._opened: dict[bytes, int] = {}  # how many comparisons of each request
        self._answered: set[tuple[bytes, int, int]] = set()

    @takes(msg.TakeGroup)
    def _on_TakeGroup(self, message: msg.TakeGroup) -> msg.KeyDrawn:
        opening, _, _ = self._agreed(message.group.epoch)
        if self.name in (opening.helper, opening.key_service):
            raise RemoteProtocolError("helper and key service have no weak key")
        group = self._checked_group(message.group, message.tag)
        secret = secret_bytes(self._entropy, f"{PURPOSE} {message.group.epoch}")
        exponent = group.draw(SecretStream.derived(secret, TAG, "weak key", group.fingerprint))
        weak = WeakKey(group, exponent)
        keys = self._new_keys(message.group, number_bytes(exponent))
        public = number_bytes(weak.public.h)
        tag = tag_of(keys.key_with(opening.helper, "public key"), self.name, public)
        self._stage(keys)
        return msg.KeyDrawn(public=public, tag=tag)

    def _forget(self) -> None:
        self._admitted.clear()
        self._opened.clear()
        self._answered.clear()

    def _key(self, keys: EpochKeys) -> WeakKey:
        # by the key, not by its epoch: an epoch that is prepared twice may have two
        if self._weak is None or self._weak_of is not keys:
            self._weak, self._weak_of = WeakKey(keys.read_group(), bytes_number(keys.secret)), keys
        return self._weak

    @takes(msg.EncryptSplits)
    def _on_EncryptSplits(self, message: msg.EncryptSplits) -> msg.SplitsEncrypted:
        staged = self._staged is not None and self._staged.epoch == message.epoch
        keys = self._staged_keys(message.epoch) if staged else self._present(message.epoch)
        at = self._places(message.node)
        self._check_forest(message)
        codes = codes_of(self._splits().threshold[at], self._encoding, self._digits).tolist()
        feature = self._splits().feature[at].astype(np.int32)
        key, secret = self._key(keys), derive(TAG, keys.secret, "splits")
        # the exponent follows from what is encrypted, and where: it never serves two numbers
        drawn = [
            key.group.draw(SecretStream.derived(secret, self._job, message.forest, node, code))
            for node, code in zip(message.node.tolist(), codes, strict=True)
        ]
        found = [key.public.encrypt_with(code, exponent) for code, exponent in zip(codes, drawn, strict=True)]
        lines = key.group.write_pairs(found)
        c1 = lines[:, : key.group.element_bytes]
        tags = b"".join(
            tag_of(made_key(keys), *made_facts(keys, number, line.tobytes()))
            for number, line in zip(feature.tolist(), c1, strict=True)
        )
        hashes = hash_lines(c1)
        order = sort_hashes(hashes).tolist()
        proof = b""
        if order:
            purpose = known_purpose(self.name, keys.epoch, message.forest, feature[order])
            proof = prove_known(
                key.group,
                [found[number].c1 for number in order],
                [codes[number] for number in order],
                [key.base_exponent(drawn[number]) for number in order],
                purpose,
                SecretStream.derived(secret, "known", purpose, hashes[order].tobytes()),
                keyed=True,
            )
        statement = self._statement(keys, message, np.concatenate([message.kept_feature, feature]), hashes)
        self._note_forest(keys, message.forest, staged)
        return msg.SplitsEncrypted(
            splits=lines,
            feature=feature,
            tags=np.frombuffer(tags, np.uint8).reshape(len(found), TAG_BYTES),
            proof=proof,
            statement=statement,
        )

    def _check_forest(self, message: msg.EncryptSplits) -> None:
        """Refuse splits of another forest than the one in use, of a part of it, or under another number of splits."""
        fingerprint = None if self._fingerprint is None else self._fingerprint()
        if fingerprint is not None and message.forest != fingerprint:
            raise RemoteProtocolError("splits are to be encrypted for another forest than the one in use here")
        structure = None if self._structure is None else self._structure()
        if structure is not None and message.total != int((structure.right >= 0).sum()):
            raise RemoteProtocolError(f"the forest in use here has another number of splits than {message.total}")
        if message.kept.shape != (len(message.kept_feature), HASH_BYTES):
            raise RemoteProtocolError("there is not one column for each split that stays")
        own = len(self._splits().node)
        if len(message.node) + len(message.kept) != own or (np.diff(message.node) <= 0).any():
            raise RemoteProtocolError(f"all {own} splits of this party are encrypted, or stay, each once")

    def _statement(
        self, keys: EpochKeys, message: msg.EncryptSplits, feature: NDArray[np.int32], fresh: NDArray[np.uint8]
    ) -> bytes:
        """This party's word to the helper: which splits are its own, and how many there are in all."""
        hashes = np.concatenate([message.kept, fresh])
        order = sort_hashes(hashes)
        facts = own_facts(keys.epoch, message.forest, message.total, feature[order], hashes[order])
        return tag_of(keys.key_with(keys.helper, "splits"), *facts)

    def _note_forest(self, keys: EpochKeys, forest: str, staged: bool) -> None:
        """Note for which forest these keys are: its rows are tested with no others."""
        if forest in keys.forests:
            return
        noted = msgspec.structs.replace(keys, forests=(*keys.forests, forest))
        self._weak_of = noted  # the same key
        if staged:
            self._stage(noted)
        else:
            self._replace(noted)

    def _places(self, node: NDArray[np.int32]) -> NDArray[np.int64]:
        """Where nodes stand among the party's own splits."""
        own = self._splits().node
        at = np.searchsorted(own, node)
        if (at == len(own)).any() or (own[at] != node).any():
            raise RemoteProtocolError("this party has no split at one of the nodes")
        return at

    @takes(msg.OpenAnswers)
    def _on_OpenAnswers(self, message: msg.OpenAnswers) -> msg.AnswersOpened:
        ticket = message.ticket
        keys = self._present(ticket.epoch)
        admitted = self._admitted.get(ticket.request)
        if admitted is None:
            self.gate.check(ticket)
        elif admitted != ticket:
            raise RemoteProtocolError("another request of this name is being answered here")
        place = (ticket.request, message.block, message.step)
        if place in self._answered:
            raise RemoteProtocolError("this step has been answered")
        shares = open_shares(keys, ticket, message.block, message.step, message.answer)
        opened, most = self._opened.get(ticket.request, 0), ticket.rows * self._most_of_a_row()
        if not 0 < shares.count <= most - opened:
            raise PolicyError(
                f"{opened + shares.count} comparisons with this party's splits are asked for, and {ticket.rows} rows "
                f"have at most {most} with them"
            )
        self._check_columns(shares.columns)
        if admitted is None:
            self.gate.admit(ticket)
            self._admitted[ticket.request] = ticket
        self._opened[ticket.request] = opened + shares.count
        self._answered.add(place)
        return msg.AnswersOpened(bits=shares.bits)

    def _most_of_a_row(self) -> int:
        """How many comparisons with this party's splits a row has at most."""
        nodes, structure = self._splits().node, None if self._structure is None else self._structure()
        return len(nodes) if structure is None else most_on_paths(structure, nodes)

    def _check_columns(self, compared: dict[int, int]) -> None:
        """Refuse values of another column than the split's: they are not what the requester has asked about."""
        if self._columns is None:
            return
        columns = self._columns()
        for feature, column in compared.items():
            if not 0 <= feature < len(columns) or columns[feature] != column:
                raise RemoteProtocolError(
                    f"column {column} of the request was compared with splits of another column of this party"
                )


def codes_of(thresholds: NDArray[np.float64], encoding: Encoding, digits: int) -> NDArray[np.int64]:
    """A party's splits as integers."""
    if np.isnan(thresholds).any():
        raise RemoteProtocolError("a split on categories has no threshold that could be compared encrypted")
    return encode(thresholds, encoding=encoding, digits=digits)
