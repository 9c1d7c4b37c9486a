"""The helper (CC): holds the other share of the strong key, and decides what is opened with it.

It compares values of a request, which the requester has signed, with splits that their providers have vouched for, each
pair once, and makes the differences itself. What it opens is under masks of the key service's, what it answers is
sealed to the providers. Helper and coordinator must be run by different organisations: together their shares open
everything.

States of the keys are those of `EpochMember`; TakeShare is this role's message, and KnowKeys must come before
CommitEpoch. Requests are answered one at a time::

    TakeRequest         _request is replaced, its name enters _taken for good    a request cannot be sent twice
    OpenDifferences     for each (block, step) once: splits and pairs are added, ``open`` has what was blinded
    FinishComparisons   for each step in ``open`` once: it is answered and forgotten

``pairs`` has the rows and splits of the present block only. Rows of a block come after those of all blocks before
(``floor``), so that no pair is compared twice without a list of all pairs. A step is checked whole, splits and pairs
and masks, before the request changes; after a refusal the step can be sent again. Randomness follows from the keys and
from what it is used for, so that a repeated job repeats its bytes and no mask serves two different steps.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from woodlot.crypto import dealer, packed
from woodlot.crypto._libraries import gmp
from woodlot.crypto.dtpkc import Group, StrongShare
from woodlot.crypto.knowledge import check_known
from woodlot.crypto.streams import SecretStream
from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import CiphertextError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import derive
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.epoch_keys import (
    TAG,
    TAG_BYTES,
    EpochKeys,
    bytes_number,
    check_tag,
    seal,
    unseal,
)
from woodlot.protocols.revocable.key_service import MAX_COMPARISONS, comparison_stream, mask_facts, share_key
from woodlot.protocols.revocable.revocable_keys import EpochMember, read_key
from woodlot.protocols.revocable.tickets import RequestGate, proof_purpose, request_facts

_Place = tuple[int, int]  # block, step


def split_facts(keys: EpochKeys, feature: int, c1: bytes) -> tuple[object, ...]:
    """What a provider's tag of a split is over: the ciphertext, and the number of its column among the provider's."""
    return keys.epoch, feature, c1


class Shares(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a provider is told of one step: the helper's shares of its comparisons, and what was compared.

    Attributes
    ----------
    count : int
        How many comparisons there were with the provider's splits.
    columns : dict of int to int
        For each of its columns that was compared, the column of the request.
    bits : bytes
        The shares.

    """

    count: int
    columns: dict[int, int]
    bits: bytes


def _answer_key(keys: EpochKeys, peer: str, ticket: msg.Ticket, block: int, step: int) -> bytes:
    return keys.key_with(peer, "answers", *request_facts(ticket), block, step)


def open_shares(keys: EpochKeys, ticket: msg.Ticket, block: int, step: int, sealed: bytes) -> Shares:
    """At a provider: what the helper has sealed to it, of this request and step.

    Raises
    ------
    RemoteProtocolError
        If it is something else: a provider opens results of comparisons and nothing else.

    """
    wrong = "these are not results of the helper's comparisons for this request; this party opens nothing else"
    data = unseal(_answer_key(keys, keys.helper, ticket, block, step), sealed, wrong=wrong)
    return from_msgpack(data, Shares)


class _Split(NamedTuple):
    """A split that a request is compared with."""

    owner: str
    feature: int
    column: int
    inverted: Any


@dataclass(eq=False)
class _Request:
    """A request, and what has been compared of it."""

    ticket: msg.Ticket
    values: list[Any]
    splits: list[_Split] = field(default_factory=list)
    told: set[bytes] = field(default_factory=set)  # their ciphertexts
    columns: dict[tuple[str, int], int] = field(default_factory=dict)  # the request's column of each provider's
    block: int = 0
    floor: int = -1  # the highest row of earlier blocks
    pairs: set[tuple[int, int]] = field(default_factory=set)  # row and split of the present block
    used: set[_Place] = field(default_factory=set)
    open: dict[_Place, tuple[packed.BlindedPacks, list[_Split]]] = field(default_factory=dict)


class Helper(EpochMember):
    """The helper's side. Parameters as for `EpochMember`, and

    Parameters
    ----------
    gate : RequestGate, optional
        Whose requests are answered; everybody's without.
    threads : int
        For the decryptions.

    """

    takes: ClassVar[frozenset[type[Message]]] = EpochMember.takes | {
        msg.TakeShare,
        msg.KnowKeys,
        msg.RevokeAtHelper,
        msg.TakeRequest,
        msg.OpenDifferences,
        msg.FinishComparisons,
    }

    def __init__(self, name: str, *, gate: RequestGate | None = None, threads: int = 1, **member: Any) -> None:
        super().__init__(name, **member)
        self.gate = RequestGate() if gate is None else gate
        self._threads = threads
        self._share: StrongShare | None = None
        self._request: _Request | None = None
        self._taken: set[bytes] = set()  # names of all requests

    # --- keys ---

    def _on_TakeShare(self, message: msg.TakeShare) -> msg.ShareTaken:
        opening, peers, _ = self._agreed(message.group.epoch)
        if opening.helper != self.name:
            raise RemoteProtocolError(f"the helper of this epoch is {opening.helper!r}")
        group = self._checked_group(message.group, message.tag)
        share = unseal(share_key(peers[opening.key_service], group), message.sealed)
        self._stage(self._new_keys(message.group, share))
        return msg.ShareTaken()

    def _check_complete(self, keys: EpochKeys) -> None:
        if not keys.public:
            raise RemoteProtocolError("the helper does not know the parties' keys yet")

    def _forget(self) -> None:
        self._share = None
        self._request = None

    def _on_KnowKeys(self, message: msg.KnowKeys) -> msg.KeysKnown:
        keys = self._staged_keys(message.epoch)
        parties = set(keys.peers) - {keys.key_service}
        if keys.public or set(message.keys) != parties or set(message.tags) != parties:
            raise RemoteProtocolError("these are not the keys of the parties of this epoch, or they are known")
        group = keys.read_group()
        for name, public in message.keys.items():
            check_tag(
                keys.key_with(name, "public key"),
                message.tags[name],
                f"the public key under the name of {name!r} is not its own; it may have been changed on the way",
                name,
                public,
            )
            read_key(group, public)
        self._stage(msgspec.structs.replace(keys, public=dict(message.keys)))
        return msg.KeysKnown()

    def _on_RevokeAtHelper(self, message: msg.RevokeAtHelper) -> msg.RevokedAtHelper:
        keys, party = self._present(message.epoch), message.party
        if party not in keys.public and party not in keys.revoked:
            raise RemoteProtocolError(f"{party!r} is no party of epoch {keys.epoch}")
        if party in keys.public:
            self._replace(
                msgspec.structs.replace(
                    keys,
                    public={name: key for name, key in keys.public.items() if name != party},
                    peers={name: key for name, key in keys.peers.items() if name != party},
                    revoked=(*keys.revoked, party),
                )
            )
        return msg.RevokedAtHelper()

    # --- predictions ---

    def _strong(self, keys: EpochKeys) -> StrongShare:
        if self._share is None:
            self._share = StrongShare(keys.read_group(), bytes_number(keys.secret))
        return self._share

    def _on_TakeRequest(self, message: msg.TakeRequest) -> msg.RequestTaken:
        ticket = message.ticket
        keys = self._present(ticket.epoch)
        if ticket.requester in keys.revoked:
            raise PolicyError(f"the key of {ticket.requester!r} has been revoked")
        if ticket.request in self._taken:
            raise RemoteProtocolError("this request has been taken; a row is compared with a split once")
        lines = message.values
        if (
            lines.shape != (ticket.rows * ticket.features, self._strong(keys).group.element_bytes)
            or hashlib.sha256(lines.tobytes()).digest() != ticket.digest
        ):
            raise CiphertextError("the values are not those that the requester's ticket is for")
        self.gate.check(ticket)
        values = self._strong(keys).group.read(lines)
        # another's values, or splits, could be sent as one's own, shifted by any number
        check_known(self._strong(keys).group, values, proof_purpose(ticket), message.proof)
        self.gate.admit(ticket)
        self._taken.add(ticket.request)
        self._request = _Request(ticket, values)  # one at a time: that before is over
        return msg.RequestTaken()

    def _asked(self, ticket: msg.Ticket) -> tuple[EpochKeys, _Request]:
        """The request that a step is of."""
        keys, request = self._present(ticket.epoch), self._request
        if request is None or request.ticket != ticket:
            raise RemoteProtocolError("no such request is being answered here")
        return keys, request

    def _on_OpenDifferences(self, message: msg.OpenDifferences) -> msg.DifferencesBlinded:
        keys, request = self._asked(message.ticket)
        place, group = (message.block, message.step), self._strong(keys).group
        if place in request.used:
            raise RemoteProtocolError("this step has been answered; its randomness is good for one use")
        if not 0 < len(message.row) <= MAX_COMPARISONS:
            raise RemoteProtocolError(f"a step has 1 to {MAX_COMPARISONS} comparisons")
        fresh, columns = _fresh_splits(keys, group, request, message)
        splits = request.splits + fresh
        pairs = self._check_pairs(request, message, len(splits))
        data = message.masks.tobytes()
        check_tag(
            keys.key_with(keys.key_service, "masks"),
            message.proof,
            "these are not the masks that the key service has made for this step",
            *mask_facts(message.ticket, message.block, message.step, data),
        )
        masks = group.read(message.masks)[: packed.packs(group, len(message.row))]
        if len(masks) != packed.packs(group, len(message.row)):
            raise RemoteProtocolError(f"there are fewer masks than {len(message.row)} comparisons need")
        compared = [splits[number] for number in message.split.tolist()]
        at = [
            row * request.ticket.features + split.column
            for row, split in zip(message.row.tolist(), compared, strict=True)
        ]
        # the factors follow from all that they are used for: they never serve two packs
        digest = hashlib.sha256(data + message.row.tobytes() + message.split.tobytes()).digest()
        stream = SecretStream.derived(
            derive(TAG, keys.secret, "factors"), *request_facts(message.ticket), *place, digest
        )
        values = [request.values[number] for number in at]
        blinded = packed.blind(group, values, [split.inverted for split in compared], masks, stream)

        request.splits, request.columns = splits, columns
        request.told |= {line.tobytes() for line in message.splits}
        if message.block != request.block:
            request.block, request.floor = message.block, max(row for row, _ in request.pairs) if request.pairs else -1
            request.pairs = set()
        request.pairs |= pairs
        request.used.add(place)
        request.open[place] = (blinded, compared)
        return msg.DifferencesBlinded(blinded=group.write(blinded.c1))

    @staticmethod
    def _check_pairs(request: _Request, message: msg.OpenDifferences, n_splits: int) -> set[tuple[int, int]]:
        """The rows and splits of a step, if they are there and none is compared a second time."""
        rows, numbers = message.row.tolist(), message.split.tolist()
        if len(rows) != len(numbers):
            raise RemoteProtocolError("there is not one row and one split for each comparison")
        if max(rows) >= request.ticket.rows or max(numbers) >= n_splits:
            raise RemoteProtocolError("a comparison is of no row of the request, or of no split that was told")
        pairs = set(zip(rows, numbers, strict=True))
        again = len(pairs) != len(rows)
        if message.block == request.block:
            again = again or not pairs.isdisjoint(request.pairs) or min(rows) <= request.floor
        else:  # rows of a block come after those of all blocks before, so that nothing of these has to be kept
            before = max((row for row, _ in request.pairs), default=request.floor)
            again = again or message.block < request.block or min(rows) <= before
        if again:
            raise PolicyError(
                "a row is compared with a split once in a request; this step asks for a comparison a second time"
            )
        return pairs

    def _on_FinishComparisons(self, message: msg.FinishComparisons) -> msg.ComparisonsFinished:
        ticket = message.ticket
        keys, request = self._asked(ticket)
        block, step = place = (message.block, message.step)
        if place not in request.open:
            raise RemoteProtocolError("no comparisons of this step are open here")
        blinded, compared = request.open[place]
        share = self._strong(keys)
        halves = share.group.read(message.halves)
        opened = packed.open_blinded(share, blinded, halves, len(compared), threads=self._threads)
        words, bits = dealer.answer(opened, comparison_stream(keys, keys.key_service, ticket, block, step))
        answers = {}
        for name in sorted({split.owner for split in compared}):
            mine = [number for number, split in enumerate(compared) if split.owner == name]
            shares = Shares(
                count=len(mine),
                columns={split.feature: split.column for split in compared if split.owner == name},
                bits=np.packbits(bits[mine], bitorder="little").tobytes(),
            )
            answers[name] = seal(_answer_key(keys, name, ticket, block, step), msgspec.msgpack.encode(shares))
        del request.open[place]
        return msg.ComparisonsFinished(words=words, answers=answers)


def _fresh_splits(
    keys: EpochKeys, group: Group, request: _Request, message: msg.OpenDifferences
) -> tuple[list[_Split], dict[tuple[str, int], int]]:
    """Splits of which the request had none before, and the request's column of every provider's column; all checked.

    Raises
    ------
    PolicyError
        If the owner of one has left.
    RemoteProtocolError
        If its owner has not vouched for one, it was told before, or it would be compared with another column.

    """
    count, columns = len(message.splits), dict(request.columns)
    lengths = {len(message.feature), len(message.column), len(message.owner), len(message.tags)}
    if lengths != {count} or message.tags.shape[1:] != (TAG_BYTES,):
        raise RemoteProtocolError("there is not one owner, column and proof for each split")
    if count and int(message.owner.max()) >= len(message.owners):
        raise RemoteProtocolError("a split is of no owner that is named")
    found: list[_Split] = []
    told = set(request.told)
    for line, element, feature, column, number, tag in zip(
        message.splits,
        group.read(message.splits),
        message.feature.tolist(),
        message.column.tolist(),
        message.owner.tolist(),
        message.tags,
        strict=True,
    ):
        owner, c1 = message.owners[number], line.tobytes()
        if owner not in keys.public:
            raise PolicyError(f"{owner!r} has no key in epoch {keys.epoch}: its splits cannot be used")
        check_tag(
            keys.key_with(owner, "splits"),
            tag.tobytes(),
            f"this is no split that {owner!r} has given; the helper compares with nothing else",
            *split_facts(keys, feature, c1),
        )
        if c1 in told:
            raise RemoteProtocolError("a split is told once in a request")
        if column >= request.ticket.features or columns.setdefault((owner, feature), column) != column:
            raise RemoteProtocolError("a column of a party is compared with one column of the request, and no other")
        told.add(c1)
        found.append(_Split(owner, feature, column, gmp().invert(element, group.N2)))
    if len(set(columns.values())) != len(columns):
        raise RemoteProtocolError("two columns of the parties would be compared with one column of the request")
    return found, columns
