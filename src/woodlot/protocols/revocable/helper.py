"""The helper (CC): holds the other share of the strong key, and decides what is opened with it.

It compares values of a request, which the requester has signed, with splits that their providers have vouched for and
registered before, each pair once and a party's splits with columns of that party only. It makes the differences itself.
What it opens is under masks of the key service's, what it answers is sealed to the providers. Helper and coordinator
must be run by different organisations: together their shares open everything.

States of the keys are those of `EpochMember`; TakeShare is this role's message, and KnowKeys must come before
CommitEpoch. Splits are registered once for a forest and epoch; those of the next forest of the epoch, when a party has
left, take their place. Requests are answered one at a time::

    RegisterSplits      keys.registered is replaced                              the same again changes nothing
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
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.crypto import dealer, packed
from woodlot.crypto._libraries import gmp
from woodlot.crypto.dtpkc import Group, StrongShare
from woodlot.crypto.knowledge import check_known
from woodlot.crypto.streams import SecretStream
from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import CiphertextError, EpochError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import derive
from woodlot.protocols.core.handling import takes
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.epoch_keys import (
    TAG,
    EpochKeys,
    bytes_number,
    check_tag,
    seal,
    unseal,
)
from woodlot.protocols.revocable.key_service import MAX_COMPARISONS, comparison_stream, mask_facts, share_key
from woodlot.protocols.revocable.revocable_keys import EpochMember, read_key
from woodlot.protocols.revocable.split_list import (
    MAX_SPLITS,
    SplitList,
    hash_lines,
    known_purpose,
    own_facts,
    read_list,
    sort_hashes,
)
from woodlot.protocols.revocable.tickets import RequestGate, proof_purpose, request_facts

_Place = tuple[int, int]  # block, step


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
    hashed: bytes
    inverted: Any


class _OpenPlace(NamedTuple):
    """A step that is blinded and not opened yet."""

    blinded: packed.BlindedPacks
    compared: list[_Split]
    lines: NDArray[np.int64]  # where each comparison stands among the slots that were dealt
    dealt: int


@dataclass(eq=False)
class _Request:
    """A request, and what has been compared of it."""

    ticket: msg.Ticket
    values: list[Any]
    listed: SplitList  # with what it may be compared
    owners: Sequence[str]  # of its columns
    splits: list[_Split] = field(default_factory=list)
    told: set[bytes] = field(default_factory=set)  # hashes of their ciphertexts
    columns: dict[tuple[str, int], int] = field(default_factory=dict)  # the request's column of each provider's
    block: int = 0
    floor: int = -1  # the highest row of earlier blocks
    pairs: set[tuple[int, int]] = field(default_factory=set)  # row and split of the present block
    used: set[_Place] = field(default_factory=set)
    open: dict[_Place, _OpenPlace] = field(default_factory=dict)


class Helper(EpochMember):
    """The helper's side. Parameters as for `EpochMember`, and

    Parameters
    ----------
    owners : callable
        Returns whose each column of the present request is, as the requester has signed it: a party's splits are
        compared with its own columns only.
    most_splits : int, optional
        How many splits a forest may have, as it was ordered.
    model : str, optional
        The model of the order: splits are registered and compared for a forest of that name only. Anything without.
    replaces : bool
        Whether splits that are registered may be replaced, once: as in a revocation within an epoch.
    leavers : callable, optional
        Returns who leaves: they are not asked, and have no splits in what is registered.
    gate : RequestGate, optional
        Whose requests are answered; everybody's without.
    threads : int
        For the decryptions.

    """

    def __init__(
        self,
        name: str,
        *,
        owners: Callable[[], Sequence[str]],
        most_splits: int = MAX_SPLITS,
        model: str = "",
        replaces: bool = False,
        leavers: Callable[[], Collection[str]] = tuple,
        gate: RequestGate | None = None,
        threads: int = 1,
        **member: Any,
    ) -> None:
        super().__init__(name, **member)
        self._owners = owners
        self._most_splits = most_splits
        self._model = model
        self._replaces = replaces
        self._leavers = leavers
        self.gate = RequestGate() if gate is None else gate
        self._threads = threads
        self._share: StrongShare | None = None
        self._request: _Request | None = None
        self._taken: set[bytes] = set()  # names of all requests

    # --- keys ---

    @takes(msg.TakeShare)
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

    @takes(msg.KnowKeys)
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

    @takes(msg.RegisterSplits)
    def _on_RegisterSplits(self, message: msg.RegisterSplits) -> msg.SplitsRegistered:
        staged = self._staged is not None and self._staged.epoch == message.epoch
        keys = self._staged_keys(message.epoch) if staged else self._present(message.epoch)
        before, listed = read_list(message), _list_after(message)
        digest = listed.digest(keys.epoch, message.forest)
        if digest == keys.registered:
            return msg.SplitsRegistered()
        if not self._is_of_model(message.forest):
            raise PolicyError("these are splits of a forest of another model than was ordered; they are not registered")
        if keys.registered and not self._may_replace(keys, message.forest, before):
            raise PolicyError(
                f"the splits of this forest are registered in epoch {keys.epoch}, or it does not come from the one "
                "before; none can be added or replaced. Order new keys for the model"
            )
        if not keys.registered and len(before.owner):
            raise RemoteProtocolError(f"no splits were registered before in epoch {keys.epoch}")
        if len(listed.owner) > self._most_splits:
            raise PolicyError(
                f"{len(listed.owner)} splits are told, and the forest that was ordered has at most {self._most_splits}"
            )
        _check_vouched(keys, message, listed, self._leavers())
        noted = msgspec.structs.replace(keys, registered=digest, forests=(*keys.forests, message.forest))
        if staged:
            self._stage(noted)
        else:
            self._replace(noted)
        return msg.SplitsRegistered()

    def _is_of_model(self, forest: str) -> bool:
        """Whether a forest is of the model that was ordered."""
        return not self._model or forest.startswith(f"{self._model} ")

    def _may_replace(self, keys: EpochKeys, forest: str, before: SplitList) -> bool:
        """Whether splits of a forest may take the place of those that are registered, which were not changed here."""
        changed_here = bool(self._model) and self._is_of_model(keys.forests[-1])
        return (
            self._replaces
            and not changed_here
            and forest not in keys.forests
            and before.digest(keys.epoch, keys.forests[-1]) == keys.registered
        )

    @takes(msg.RevokeAtHelper)
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
        return self._share or StrongShare(keys.read_group(), bytes_number(keys.secret))

    @takes(msg.TakeRequest)
    def _on_TakeRequest(self, message: msg.TakeRequest) -> msg.RequestTaken:
        ticket = message.ticket
        keys = self._present(ticket.epoch)
        if ticket.requester in keys.revoked:
            raise PolicyError(f"the key of {ticket.requester!r} has been revoked")
        if ticket.request in self._taken:
            raise RemoteProtocolError("this request has been taken; a row is compared with a split once")
        lines, share = message.values, self._strong(keys)
        if (
            lines.shape != (ticket.rows * ticket.features, share.group.element_bytes)
            or hashlib.sha256(lines.tobytes()).digest() != ticket.digest
        ):
            raise CiphertextError("the values are not those that the requester's ticket is for")
        listed, owners = self._registered(keys, message), tuple(self._owners())
        if len(owners) != ticket.features:
            raise RemoteProtocolError(
                f"the requester has named the owners of {len(owners)} columns, and the request has {ticket.features}"
            )
        strangers = sorted(set(owners) - set(keys.public))
        if strangers:
            raise PolicyError(
                f"{strangers[0]!r} has no key in epoch {keys.epoch}, and columns of the request are named as its own"
            )
        self.gate.check(ticket)
        values = share.group.read(lines)
        # another's values, or splits, could be sent as one's own, shifted by any number
        check_known(share.group, values, proof_purpose(ticket), message.proof)
        self.gate.admit(ticket)
        self._taken.add(ticket.request)
        self._share = share  # kept for the steps of the request; a refused one leaves nothing behind
        self._request = _Request(ticket, values, listed, owners)  # one at a time: that before is over
        return msg.RequestTaken()

    def _registered(self, keys: EpochKeys, message: msg.TakeRequest) -> SplitList:
        """The splits that a request may be compared with: the requester has signed these, and they were told before."""
        if not keys.registered or message.ticket.splits != keys.registered:
            raise EpochError(
                "the request is signed for other splits than the parties have registered here; ask for the keys of the "
                "model again, and encrypt it again"
            )
        if not self._is_of_model(keys.forests[-1]):
            raise EpochError(
                "the request is for another model than the one whose splits are registered under these keys; ask for "
                "the keys of the model again"
            )
        listed = read_list(message)
        if listed.digest(keys.epoch, keys.forests[-1]) != keys.registered:
            raise RemoteProtocolError("these are not the splits that the parties have registered here")
        return listed

    def _asked(self, ticket: msg.Ticket) -> tuple[EpochKeys, _Request]:
        """The request that a step is of."""
        keys, request = self._present(ticket.epoch), self._request
        if request is None or request.ticket != ticket:
            raise RemoteProtocolError("no such request is being answered here")
        return keys, request

    @takes(msg.OpenDifferences)
    def _on_OpenDifferences(self, message: msg.OpenDifferences) -> msg.DifferencesBlinded:
        keys, request = self._asked(message.ticket)
        place, group = (message.block, message.step), self._strong(keys).group
        if place in request.used:
            raise RemoteProtocolError("this step has been answered; its randomness is good for one use")
        if not 0 < len(message.row) <= MAX_COMPARISONS:
            raise RemoteProtocolError(f"a step has 1 to {MAX_COMPARISONS} comparisons")
        fresh, columns = _fresh_splits(group, keys, request, message)
        splits = request.splits + fresh
        pairs = self._check_pairs(request, message, len(splits))
        data = message.masks.tobytes()
        check_tag(
            keys.key_with(keys.key_service, "masks"),
            message.proof,
            "these are not the masks that the key service has made for this step",
            *mask_facts(message.ticket, message.block, message.step, message.size, message.owners, data),
        )
        compared = [splits[number] for number in message.split.tolist()]
        # a split may be longer than its slot: it reaches into no comparison with another party's
        sizes = packed.pack_sizes(group, message.size, message.owners)
        packs, lines = packed.arrange(group, [split.owner for split in compared], sizes)
        at = [
            row * request.ticket.features + split.column
            for row, split in zip(message.row.tolist(), compared, strict=True)
        ]
        # the factors follow from all that they are used for: they never serve two packs
        told = b"".join(split.hashed for split in compared) + np.array(at, np.uint64).tobytes()
        digest = hashlib.sha256(data + message.row.tobytes() + message.split.tobytes() + told).digest()
        stream = SecretStream.derived(
            derive(TAG, keys.secret, "factors"), *request_facts(message.ticket), *place, digest
        )
        values = [request.values[number] for number in at]
        inverted, masks = [split.inverted for split in compared], group.read(message.masks[: len(packs)])
        blinded = packed.blind(group, values, inverted, masks, packs, stream)

        request.splits, request.columns = splits, columns
        request.told |= {split.hashed for split in fresh}
        if message.block != request.block:
            request.block, request.floor = message.block, max(row for row, _ in request.pairs) if request.pairs else -1
            request.pairs = set()
        request.pairs |= pairs
        request.used.add(place)
        request.open[place] = _OpenPlace(blinded, compared, lines, sum(sizes))
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

    @takes(msg.FinishComparisons)
    def _on_FinishComparisons(self, message: msg.FinishComparisons) -> msg.ComparisonsFinished:
        ticket = message.ticket
        keys, request = self._asked(ticket)
        block, step = place = (message.block, message.step)
        if place not in request.open:
            raise RemoteProtocolError("no comparisons of this step are open here")
        opening, share = request.open[place], self._strong(keys)
        compared, lines = opening.compared, opening.lines
        halves = share.group.read(message.halves)
        dealt = [0] * opening.dealt  # what the slots are that stay empty is told to nobody
        for line, number in zip(
            lines.tolist(), packed.open_blinded(share, opening.blinded, halves, threads=self._threads), strict=True
        ):
            dealt[line] = number
        words, bits = dealer.answer(dealt, comparison_stream(keys, keys.key_service, ticket, block, step))
        words, bits = words[lines], bits[lines]
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


def _list_after(message: msg.RegisterSplits) -> SplitList:
    """The list with those of before that stay, and those that are new."""
    before, stays = read_list(message), message.stays.astype(bool)
    count = len(message.splits)
    if len(stays) != len(before.owner) or {len(message.fresh_owner), len(message.fresh_feature)} != {count}:
        raise RemoteProtocolError("there is not one owner and column for each split, or not one word on each before")
    if count and int(message.fresh_owner.max()) >= len(message.names):
        raise RemoteProtocolError("a split is of no owner that is named")
    fresh = [message.names[number] for number in message.fresh_owner.tolist()]
    return SplitList.of(
        [name for name, stay in zip(before.names(), stays, strict=True) if stay] + fresh,
        np.concatenate([before.feature[stays], message.fresh_feature]),
        np.concatenate([before.hashes[stays], hash_lines(message.splits)]),
    )


def _check_vouched(keys: EpochKeys, message: msg.RegisterSplits, listed: SplitList, leavers: Collection[str]) -> None:
    """Refuse splits unless each party vouches for its own, and for their number in all, and knows those that are new.

    A party without splits vouches for that: else a list could leave parties out, and others would have their number.

    Raises
    ------
    PolicyError
        If an owner has left.
    CiphertextError
        If an owner does not know what is in one of them: it may be somebody else's, or made of it.
    RemoteProtocolError
        If a party has not vouched for them.

    """
    group = keys.read_group()
    elements, hashes = group.read(message.splits), hash_lines(message.splits)
    fresh = np.array([message.names[number] for number in message.fresh_owner.tolist()], object)
    staying = sorted(set(keys.public) - set(leavers))
    for owner in listed.owners:
        if owner not in staying:
            raise PolicyError(f"{owner!r} has no key in epoch {keys.epoch}: its splits cannot be used")
    for owner in staying:
        own = np.array([name == owner for name in listed.names()], bool)
        facts = own_facts(keys.epoch, message.forest, len(own), listed.feature[own], listed.hashes[own])
        check_tag(
            keys.key_with(owner, "splits"),
            message.statements.get(owner, b""),
            f"{owner!r} has not vouched for these splits as its own, and for {len(own)} in all",
            *facts,
        )
        at = np.flatnonzero(fresh == owner)
        at = at[sort_hashes(hashes[at])]
        if len(at):
            purpose = known_purpose(owner, keys.epoch, message.forest, message.fresh_feature[at])
            try:
                check_known(
                    group, [elements[k] for k in at], purpose, message.proofs.get(owner, b""), keyed=True
                )  # fmt: skip
            except CiphertextError as error:
                raise CiphertextError(f"splits of {owner!r} are not registered: {error}") from None


def _fresh_splits(
    group: Group, keys: EpochKeys, request: _Request, message: msg.OpenDifferences
) -> tuple[list[_Split], dict[tuple[str, int], int]]:
    """Splits of which the request had none before, and the request's column of every provider's column; all checked.

    Raises
    ------
    PolicyError
        If the owner of one has left, or it would be compared with another party's column.
    RemoteProtocolError
        If one was not registered, was told before, or would be compared with another column of its owner.

    """
    columns, listed = dict(request.columns), request.listed
    if len(message.column) != len(message.splits):
        raise RemoteProtocolError("there is not one column for each split")
    found: list[_Split] = []
    told = set(request.told)
    for element, line, column in zip(
        group.read(message.splits), hash_lines(message.splits), message.column.tolist(), strict=True
    ):
        hashed = line.tobytes()
        place = listed.places.get(hashed)
        if place is None:
            raise PolicyError(
                "this is no split that a party has registered before the request was signed; the helper compares with "
                "nothing else"
            )
        owner, feature = listed.owners[int(listed.owner[place])], int(listed.feature[place])
        if owner not in keys.public:
            raise PolicyError(f"{owner!r} has no key in epoch {keys.epoch}: its splits cannot be used")
        if hashed in told:
            raise RemoteProtocolError("a split is told once in a request")
        if column >= len(request.owners):
            raise RemoteProtocolError("a split is compared with no column of the request")
        if request.owners[column] != owner:
            raise PolicyError(
                f"column {column} of the request is not one of {owner!r}; the helper compares a party's splits only "
                "with columns that the requester has named as that party's"
            )
        if columns.setdefault((owner, feature), column) != column:
            raise RemoteProtocolError("a column of a party is compared with one column of the request, and no other")
        told.add(hashed)
        found.append(_Split(owner, feature, column, hashed, gmp().invert(element, group.N2)))
    if len(set(columns.values())) != len(columns):
        raise RemoteProtocolError("two columns of the parties would be compared with one column of the request")
    return found, columns
