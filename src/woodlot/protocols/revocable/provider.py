"""A party's side of keys and encrypted predictions: it encrypts its splits, and has the last word on their use."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.dtpkc import Ciphertext, WeakKey
from woodlot.crypto.encoding import DEFAULT_DIGITS, Encoding, encode
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import CiphertextError, IdentityError, PolicyError, RemoteProtocolError
from woodlot.protocols.agreement import Signer, derive, secret_bytes
from woodlot.protocols.messages import revocable_keys as msg
from woodlot.protocols.messages.base import Message
from woodlot.protocols.revocable.epoch_keys import TAG, EpochKeys, bytes_number, check_tag, number_bytes, tag_of
from woodlot.protocols.revocable.helper import answer_facts, answer_room
from woodlot.protocols.revocable.keys import PURPOSE, Member
from woodlot.trees.forest import Splits

REQUEST_PURPOSE = "prediction request"
"""What a requester's identity signs tickets for."""


def ticket_bytes(ticket: msg.Ticket) -> bytes:
    """What a requester signs."""
    return msgspec.msgpack.encode((TAG, msgspec.structs.replace(ticket, signature=b"")))


@dataclass(eq=False)
class RequestGate:
    """Whose requests a party answers, how many rows of each, and a log of them.

    Whoever knows the values of a request and sees its paths can search for a split: some 64 rows find one. So a party
    should know its requesters and limit them.

    Attributes
    ----------
    requesters : collection of str or None
        Whom it answers; None for everybody.
    rows_per_requester : int or None
        How many rows of one requester it answers in all.
    signer : Signer or None
        Verifies the requesters' signatures; None where there are no identities.
    log : list of Ticket
        The requests that it has answered.

    """

    requesters: Collection[str] | None = None
    rows_per_requester: int | None = None
    signer: Signer | None = None
    log: list[msg.Ticket] = field(default_factory=list)

    def check(self, ticket: msg.Ticket) -> None:
        """Refuse a request, or let it pass; nothing is changed.

        Raises
        ------
        PolicyError
            If the requester is not one of those, has used up its rows, or has not signed.

        """
        if self.requesters is not None and ticket.requester not in self.requesters:
            raise PolicyError(f"this party does not answer requests of {ticket.requester!r}")
        known = [old for old in self.log if old.requester == ticket.requester]
        asked = sum(old.rows for old in known)
        if self.rows_per_requester is not None and asked + ticket.rows > self.rows_per_requester:
            raise PolicyError(
                f"{ticket.requester!r} has asked about {asked} rows, and this party answers {self.rows_per_requester} "
                "of a requester"
            )
        if self.signer is not None:
            try:
                self.signer.verify(
                    ticket.requester, ticket.certificate, REQUEST_PURPOSE, ticket_bytes(ticket), ticket.signature
                )
            except IdentityError as error:
                raise PolicyError(f"the request is not signed by {ticket.requester!r}: {error}") from None

    def admit(self, ticket: msg.Ticket) -> None:
        """Note a request that has passed."""
        self.log.append(ticket)


class Provider(Member):
    """A party's side. Parameters as for `Member`, and

    Parameters
    ----------
    splits : callable
        Returns the party's own splits of the forest in use.
    rows : float64 array of shape (n_rows, n_columns), optional
        The party's part of rows to be tested, its columns in the order that its splits count them.
    gate : RequestGate, optional
        Whose requests are answered; everybody's without.
    encoding, digits
        How splits become integers; see `woodlot.crypto.encoding`. All parties and requesters must have the same.
    threads : int
        For the decryptions.

    """

    takes: ClassVar[frozenset[type[Message]]] = Member.takes | {
        msg.TakeGroup,
        msg.EncryptSplits,
        msg.OpenAnswers,
        msg.TestRows,
    }

    def __init__(
        self,
        name: str,
        *,
        splits: Callable[[], Splits],
        rows: NDArray[np.float64] | None = None,
        gate: RequestGate | None = None,
        encoding: Encoding = "exact",
        digits: int = DEFAULT_DIGITS,
        threads: int = 1,
        **member: Any,
    ) -> None:
        super().__init__(name, **member)
        self.gate = RequestGate() if gate is None else gate
        self._splits = splits
        self._rows = rows
        self._encoding: Encoding = encoding
        self._digits = digits
        self._threads = threads
        self._weak: WeakKey | None = None
        self._weak_of: EpochKeys | None = None
        self._admitted: dict[bytes, msg.Ticket] = {}
        self._answered: set[tuple[bytes, int, int]] = set()

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
        self._answered.clear()

    def _key(self, keys: EpochKeys) -> WeakKey:
        # by the key, not by its epoch: an epoch that is prepared twice may have two
        if self._weak is None or self._weak_of is not keys:
            self._weak, self._weak_of = WeakKey(keys.read_group(), bytes_number(keys.secret)), keys
        return self._weak

    def _on_EncryptSplits(self, message: msg.EncryptSplits) -> msg.SplitsEncrypted:
        if self._staged is not None and self._staged.epoch == message.epoch:
            keys = self._staged
        else:
            keys = self._present(message.epoch)
        codes = self._codes(self._places(message.node))
        key, secret = self._key(keys), derive(TAG, keys.secret, "splits")
        found: list[Ciphertext] = []
        for node, code in zip(message.node.tolist(), codes.tolist(), strict=True):
            # the exponent follows from what is encrypted, and where: it never serves two numbers
            stream = SecretStream.derived(secret, self._job, node, code)
            found.append(key.public.encrypt(code, stream))
        return msg.SplitsEncrypted(splits=key.group.write_pairs(found))

    def _places(self, node: NDArray[np.int32]) -> NDArray[np.int64]:
        """Where nodes stand among the party's own splits."""
        own = self._splits().node
        at = np.searchsorted(own, node)
        if (at == len(own)).any() or (own[at] != node).any():
            raise RemoteProtocolError("this party has no split at one of the nodes")
        return at

    def _codes(self, at: NDArray[np.int64]) -> NDArray[np.int64]:
        """The party's splits as integers."""
        thresholds = self._splits().threshold[at]
        if np.isnan(thresholds).any():
            raise RemoteProtocolError("a split on categories has no threshold that could be compared encrypted")
        return encode(thresholds, encoding=self._encoding, digits=self._digits)

    def _on_TestRows(self, message: msg.TestRows) -> msg.RowsTested:
        keys, rows = self._present(message.epoch), self._rows
        if rows is None:
            raise PolicyError("this party has no rows to be tested")
        which, row, at = message.which, message.row, self._places(message.node)
        if len(message.splits) != len(at) or len(which) != len(row):
            raise RemoteProtocolError("there is not one split for each node, and one node for each row")
        if len(which) and (int(which.max()) >= len(at) or int(row.max()) >= len(rows)):
            raise RemoteProtocolError("a question is about no row or no node that is there")
        key, codes = self._key(keys), self._codes(at)
        # a split that is not the party's own would tell its values one by one
        if key.decrypt(key.group.read_pairs(message.splits), threads=self._threads) != codes.tolist():
            raise CiphertextError("what the coordinator has kept is not the split that this party gave for the node")
        column = self._splits().feature[at]
        values = encode(rows[row, column[which]], encoding=self._encoding, digits=self._digits)
        return msg.RowsTested(bits=np.packbits(values <= codes[which], bitorder="little").tobytes())

    def _on_OpenAnswers(self, message: msg.OpenAnswers) -> msg.AnswersOpened:
        ticket, answer = message.ticket, message.answer
        keys = self._present(ticket.epoch)
        admitted = self._admitted.get(ticket.request)
        if admitted is None:
            self.gate.check(ticket)
        elif admitted != ticket:
            raise RemoteProtocolError("another request of this name is being answered here")
        place = (ticket.request, message.block, message.step)
        if place in self._answered:
            raise RemoteProtocolError("this step has been answered")
        if not 0 < answer.count <= ticket.rows * len(self._splits().node):
            raise RemoteProtocolError("these are more comparisons than so many rows have with this party's splits")
        check_tag(
            keys.key_with(keys.helper, "answers"),
            answer.tag,
            "these are not results of the helper's comparisons for this request; this party opens nothing else",
            *answer_facts(ticket, message.block, message.step, answer.count, answer.data),
        )
        bits = self._open(keys, answer)
        if admitted is None:
            self.gate.admit(ticket)
            self._admitted[ticket.request] = ticket
        self._answered.add(place)
        return msg.AnswersOpened(bits=np.packbits(bits, bitorder="little").tobytes())

    def _open(self, keys: EpochKeys, answer: msg.Answer) -> NDArray[np.uint8]:
        key = self._key(keys)
        size = 2 * key.group.element_bytes
        room = answer_room(key.group)
        if len(answer.data) != size * -(-answer.count // room):
            raise CiphertextError("the answer has another length than its bits need")
        lines = np.frombuffer(answer.data, np.uint8).reshape(-1, size)
        whole = 0
        for place, number in enumerate(key.decrypt(key.group.read_pairs(lines), threads=self._threads)):
            if not 0 <= number < 1 << min(room, answer.count - place * room):
                raise CiphertextError("an answer holds more than its bits")
            whole |= number << place * room
        data = np.frombuffer(whole.to_bytes(-(-answer.count // 8), "little"), np.uint8)
        return np.unpackbits(data, count=answer.count, bitorder="little")
