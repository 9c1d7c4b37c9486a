"""Helper and key service under ``scheme="shares"``: each has half of every split and of every value.

Neither half tells its holder anything. Each holder answers with its side of comparisons (`crypto.split_compare`), and
the coordinator learns from both sides whether a value is larger than a split. The coordinator has no share. It chooses
what is compared, and the helper bounds that. Helper, key service and coordinator must be run by three organisations:
any two of them together can read what is compared, and helper and key service together can read everything.

States of the keys are those of `EpochMember`; PrepareShares is the message that makes them. Besides::

    RegisterAtHelper, RegisterAtService    keys.registered is replaced, the book has this forest and no other
    RevokeAtHelper, RevokeAtService        the leaver's lines are deleted from the book, its key from the keys
    TakeValues (helper)                    _request is replaced, its name enters _taken for good
    CompareAtHelper, CompareAtService      both sides of one comparison always are the same; nothing is used up

The words of a comparison follow from the shares and from a key that depends on all that is asked. The same question
has the same answer, also after a restart, and another question has another key: no randomness serves two answers. What
is counted are comparisons of each row with splits of each owner, repeated ones too. A refused message changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.crypto import split_compare
from woodlot.crypto.split_compare import Numbers
from woodlot.crypto.streams import KEY_BYTES, SecretStream
from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import CiphertextError, EpochError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import derive, secret_bytes
from woodlot.protocols.core.handling import takes
from woodlot.protocols.revocable import key_messages as keys_msg
from woodlot.protocols.revocable import share_messages as msg
from woodlot.protocols.revocable.epoch_keys import TAG, EpochKeys, unseal
from woodlot.protocols.revocable.revocable_keys import PURPOSE, EpochMember
from woodlot.protocols.revocable.share_keeping import (
    MAX_COMPARISONS,
    MAX_VALUES,
    HeldShares,
    MemoryBook,
    RequestPart,
    ShareBook,
    asking_facts,
    compared_digest,
    key_commit,
    line_of,
    open_held,
    registration_of,
)
from woodlot.protocols.revocable.split_list import MAX_SPLITS
from woodlot.protocols.revocable.tickets import request_facts


class ShareMember(EpochMember):
    """A member under ``scheme="shares"``: it has a secret with each other member, and no modulus."""

    @takes(msg.PrepareShares)
    def _on_PrepareShares(self, message: msg.PrepareShares) -> msg.SharesPrepared:
        _, _, transcript = self._agreed(message.epoch)
        own = secret_bytes(self._entropy, f"{PURPOSE} {message.epoch}")
        secret = derive(TAG, own, "member of shares", transcript)
        self._stage(self._agreed_keys(message.epoch, None, secret, transcript))
        return msg.SharesPrepared()


class Leave(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An owner's leave for one request.

    Attributes
    ----------
    most : int
        How many comparisons a row has with the owner's splits at most.
    columns : dict of int to int
        For each of the owner's columns, the column of the request.

    """

    most: int
    columns: dict[int, int]


def leave_key(keys: EpochKeys, peer: str, ticket: keys_msg.Ticket) -> bytes:
    """What an owner's leave for a request is sealed with."""
    return keys.key_with(peer, "leave", *request_facts(ticket))


class _Share:
    """A holder's half of one owner's splits, ready to be used."""

    def __init__(self, held: HeldShares, shares: Numbers) -> None:
        self.count = held.count
        self.feature = held.features()
        self.shares = shares


class ShareHolder(ShareMember):
    """What helper and key service have in common. Parameters as for `EpochMember`, and

    Parameters
    ----------
    asked : callable
        Returns what the requester of the present request has told this holder alone.
    book : ShareBook, optional
        Where the shares are kept; in this process without.
    most_splits : int, optional
        How many splits a forest may have, as it was ordered.
    model : str, optional
        The model of the order: shares are registered and compared for a forest of that name only. Anything without.
    replaces : bool
        Whether a forest that is registered may be replaced, once: as in a revocation within an epoch.
    leavers : callable, optional
        Returns who leaves: they are not asked, and have no splits in what is registered.

    """

    def __init__(
        self,
        name: str,
        *,
        asked: Callable[[], RequestPart],
        book: ShareBook | None = None,
        most_splits: int = MAX_SPLITS,
        model: str = "",
        replaces: bool = False,
        leavers: Callable[[], Collection[str]] = tuple,
        **member: Any,
    ) -> None:
        super().__init__(name, **member)
        self._asked = asked
        self.book: ShareBook = MemoryBook() if book is None else book
        self._most_splits = most_splits
        self._model = model
        self._replaces = replaces
        self._leavers = leavers
        self._halves: dict[str, _Share] | None = None  # of the registered forest

    def _read_half(self, held: HeldShares) -> _Share:
        """An owner's half; what is none is refused. For roles."""
        raise NotImplementedError

    # --- splits ---

    def _register(self, message: msg.RegisterAt) -> dict[str, bytes]:
        """Keep the shares of a forest, in place of those of the forest before; returns a hash of each owner's."""
        staged = self._staged is not None and self._staged.epoch == message.epoch
        keys = self._staged_keys(message.epoch) if staged else self._present(message.epoch)
        members = {keys.helper, keys.key_service}
        owners = sorted(set(keys.peers) - members - set(keys.revoked) - set(self._leavers()))
        if sorted(message.boxes) != owners:
            odd = sorted(set(message.boxes) ^ set(owners))
            raise PolicyError(
                f"{odd[0]!r} has left or has not sent its shares; every party of epoch {keys.epoch} that stays vouches "
                "for its splits, also for having none"
            )
        held = {name: open_held(keys, self.name, name, message.forest, message.boxes[name]) for name in owners}
        for one in held.values():
            self._read_half(one)
        totals = {one.total for one in held.values()}
        if totals != {sum(one.count for one in held.values())}:
            told = ", ".join(f"{name} {one.count} of {one.total}" for name, one in sorted(held.items()))
            raise RemoteProtocolError(
                f"the parties vouch for another number of splits in all than they have sent ({told}); one of them has "
                "sealed other splits than the forest has"
            )
        registration = registration_of(
            keys.epoch, message.forest, {name: (one.count, one.commit) for name, one in held.items()}
        )
        if registration != keys.registered:
            self._check_new(keys, message.forest, totals.pop())
            self.book.keep(registration, held)
            noted = msgspec.structs.replace(keys, registered=registration, forests=(*keys.forests, message.forest))
            if staged:
                self._stage(noted)
            else:
                self._replace(noted)
        if not staged:  # also when repeated: it may have been killed in between
            self.book.keep_only(registration)
            self._forget()
        return {name: line_of(keys.epoch, message.forest, name, one.count, one.commit) for name, one in held.items()}

    def _check_new(self, keys: EpochKeys, forest: str, total: int) -> None:
        """Refuse a forest that may not be registered, or not any more."""
        if not self._is_of_model(forest):
            raise PolicyError("these are splits of a forest of another model than was ordered; they are not registered")
        changed_here = bool(self._model) and bool(keys.forests) and self._is_of_model(keys.forests[-1])
        if keys.registered and (not self._replaces or changed_here or forest in keys.forests):
            raise PolicyError(
                f"the splits of a forest are registered in epoch {keys.epoch}; none can be added or replaced. Order "
                "new keys for the model"
            )
        if total > self._most_splits:
            raise PolicyError(
                f"{total} splits are told, and the forest that was ordered has at most {self._most_splits}"
            )

    def _is_of_model(self, forest: str) -> bool:
        """Whether a forest is of the model that was ordered."""
        return not self._model or forest.startswith(f"{self._model} ")

    def _on_CommitEpoch(self, message: keys_msg.CommitEpoch) -> keys_msg.EpochCommitted:
        reply = super()._on_CommitEpoch(message)
        # Once more it erases what a crash has left. Keys of a job that another has followed erase nothing.
        self.book.keep_only(self._present(message.epoch).registered)
        return reply

    def _check_complete(self, keys: EpochKeys) -> None:
        if keys.registered and not self.book.load(keys.registered):
            raise EpochError("the shares of this epoch were deleted when another epoch began; order new keys")

    def _forget(self) -> None:
        self._halves = None

    def _strike_out(self, message: keys_msg.RevokeKey) -> None:
        """Delete a party's shares, and what this member has in common with it."""
        keys, party = self._present(message.epoch), message.party
        if party in (keys.helper, keys.key_service) or (party not in keys.peers and party not in keys.revoked):
            raise RemoteProtocolError(f"{party!r} is no party of epoch {keys.epoch}")
        if party not in keys.revoked:  # first, so that no other job keeps shares of it from here on
            peers = {name: key for name, key in keys.peers.items() if name != party}
            self._replace(msgspec.structs.replace(keys, peers=peers, revoked=(*keys.revoked, party)))
        self.book.strike_out(party)  # also when repeated: it may have been killed in between
        self._forget()

    # --- predictions ---

    def _request_keys(self, ticket: keys_msg.Ticket) -> EpochKeys:
        """The keys, if the request is for the forest that is registered here and its requester has not left."""
        keys = self._present(ticket.epoch)
        if ticket.requester in keys.revoked:
            raise PolicyError(f"{ticket.requester!r} has left; its requests are not answered")
        if not keys.registered or ticket.splits != keys.registered or not self._is_of_model(keys.forests[-1]):
            raise EpochError(
                "the request is signed for other splits than the parties have registered here; ask for the keys of the "
                "model again, and encrypt it again"
            )
        if ticket.rows * ticket.features > MAX_VALUES:
            raise RemoteProtocolError(f"a request has at most {MAX_VALUES:,} values")
        return keys

    def _part(self) -> RequestPart:
        part = self._asked()
        if len(part.key) != KEY_BYTES:
            raise RemoteProtocolError("the requester has told this member no key for its values")
        return part

    def _side(
        self, keys: EpochKeys, peer: str, message: msg.CompareRows, values: Numbers, told: tuple[bytes, bytes]
    ) -> tuple[Numbers, Numbers, SecretStream]:
        """This holder's shares of both sides of each comparison, and what it has in common with the other holder.

        ``told`` are the words on the keys that the requester has told helper and key service. With the ticket they say
        which values are compared: the same key never serves other values.
        """
        ticket, count = message.ticket, len(message.owner)
        if not 0 < count <= MAX_COMPARISONS:
            raise RemoteProtocolError(f"1 to {MAX_COMPARISONS} comparisons are made at a time")
        if int(message.row.max()) >= ticket.rows or int(message.column.max()) >= ticket.features:
            raise RemoteProtocolError("a comparison is of no row or column of the request")
        halves = self._registered(keys)
        thresholds = np.empty(count, np.uint64)
        for number, name in enumerate(message.owners):
            if name not in halves:
                raise PolicyError(f"{name!r} has no splits in epoch {keys.epoch}, or has left: they cannot be used")
            at = message.owner == number
            place = message.place[at]
            if len(place) and int(place.max()) >= halves[name].count:
                raise RemoteProtocolError(f"{name!r} has registered no such split")
            thresholds[at] = halves[name].shares[place]
        at = message.row.astype(np.int64) * ticket.features + message.column
        common = SecretStream(
            keys.key_with(peer, "shared comparisons", *request_facts(ticket), *told, compared_digest(message))
        )
        return thresholds, values[at], common

    def _registered(self, keys: EpochKeys) -> dict[str, _Share]:
        if self._halves is None:
            held = self.book.load(keys.registered)
            self._halves = {name: self._read_half(one) for name, one in held.items() if name not in keys.revoked}
        return self._halves


@dataclass(eq=False)
class _SharedRequest:
    """A request at the helper, and how many comparisons it has had."""

    ticket: keys_msg.Ticket
    values: Numbers
    part: RequestPart
    leaves: dict[str, Leave]
    counts: NDArray[np.int64]  # of each row, with splits of each owner in the order of `leaves`


class ShareHelper(ShareHolder):
    """The helper's side: it bounds what is compared. Parameters as for `ShareHolder`."""

    def __init__(self, name: str, **holder: Any) -> None:
        super().__init__(name, **holder)
        self._request: _SharedRequest | None = None
        self._taken: set[tuple[int, bytes]] = set()  # epochs and names of all requests

    def _read_half(self, held: HeldShares) -> _Share:
        if len(held.feature) != 4 * held.count or (held.count and int(held.features().min()) < 0):
            raise RemoteProtocolError("there is not one column for each split")
        return _Share(held, split_compare.read_shares(held.data, held.count))

    def _forget(self) -> None:
        super()._forget()
        self._request = None

    @takes(msg.RegisterAtHelper)
    def _on_RegisterAtHelper(self, message: msg.RegisterAtHelper) -> msg.RegisteredAtHelper:
        return msg.RegisteredAtHelper(lines=self._register(message))

    @takes(keys_msg.RevokeAtHelper)
    def _on_RevokeAtHelper(self, message: keys_msg.RevokeAtHelper) -> keys_msg.RevokedAtHelper:
        self._strike_out(message)
        return keys_msg.RevokedAtHelper()

    @takes(msg.TakeValues)
    def _on_TakeValues(self, message: msg.TakeValues) -> msg.ValuesTaken:
        ticket = message.ticket
        keys, part = self._request_keys(ticket), self._part()
        if (ticket.epoch, ticket.request) in self._taken:
            raise RemoteProtocolError("this request has been taken; it is answered once")
        if hashlib.sha256(message.values).digest() != ticket.digest:
            raise CiphertextError("the values are not those that the requester's ticket is for")
        wrong = "the values are not those that the requester has sealed for this request; they may have been changed"
        data = unseal(part.key, message.values, "values", *asking_facts(ticket), wrong=wrong)
        values = split_compare.read_shares(data, ticket.rows * ticket.features)
        if len(part.owners) != ticket.features:
            raise RemoteProtocolError(
                f"the requester has named the owners of {len(part.owners)} columns, and the request has "
                f"{ticket.features}"
            )
        halves = self._registered(keys)
        strangers = sorted(set(part.owners) - set(halves))
        if strangers:
            raise PolicyError(
                f"{strangers[0]!r} has no shares in epoch {keys.epoch}, and columns of the request are named as its own"
            )
        leaves = {}
        for name in sorted(message.leaves):
            if name not in halves:
                raise PolicyError(f"{name!r} has no splits in epoch {keys.epoch}, or has left: they cannot be used")
            wrong = f"{name!r} has not allowed this request to be compared with its splits"
            leaves[name] = from_msgpack(unseal(leave_key(keys, name, ticket), message.leaves[name], wrong=wrong), Leave)
        counts = np.zeros((ticket.rows, len(leaves)), np.int64)
        self._taken.add((ticket.epoch, ticket.request))
        self._request = _SharedRequest(ticket, values, part, leaves, counts)  # that before is over
        return msg.ValuesTaken()

    @takes(msg.CompareAtHelper)
    def _on_CompareAtHelper(self, message: msg.CompareAtHelper) -> msg.HelperCompared:
        keys, request = self._request_keys(message.ticket), self._request
        if request is None or request.ticket != message.ticket:
            raise RemoteProtocolError("no such request is being answered here")
        told = key_commit(request.part.key), request.part.other
        side = self._side(keys, keys.key_service, message, request.values, told)
        self._check_columns(request, message)
        counts = self._check_counts(request, message)
        words, tops = split_compare.helper_side(*side)
        request.counts = counts
        return msg.HelperCompared(words=words, tops=tops)

    def _check_columns(self, request: _SharedRequest, message: msg.CompareRows) -> None:
        """Refuse a split of one column that would be compared with another column of the request or of a party."""
        halves = self._halves or {}
        for number, name in enumerate(message.owners):
            at = message.owner == number
            feature = halves[name].feature[message.place[at]]
            pairs = np.unique(np.stack([feature.astype(np.int64), message.column[at].astype(np.int64)]), axis=1)
            leave = request.leaves.get(name)
            if leave is None:
                raise PolicyError(f"{name!r} has not allowed this request to be compared with its splits")
            for own, column in pairs.T.tolist():
                if request.part.owners[column] != name:
                    raise PolicyError(
                        f"column {column} of the request is not one of {name!r}; a party's splits are compared only "
                        "with columns that the requester has named as that party's"
                    )
                if leave.columns.get(own) != column:
                    raise RemoteProtocolError(
                        f"column {column} of the request is to be compared with splits of another column of {name!r}"
                    )

    @staticmethod
    def _check_counts(request: _SharedRequest, message: msg.CompareRows) -> NDArray[np.int64]:
        """How many comparisons each row has had with each owner's splits, if that is not too many."""
        names = list(request.leaves)
        which = np.array([names.index(name) for name in message.owners], np.int64)[message.owner]
        counts = request.counts.copy()
        np.add.at(counts, (message.row, which), 1)
        most = np.array([request.leaves[name].most for name in names], np.int64)
        over = np.argwhere(counts > most)
        if len(over):
            row, number = over[0].tolist()
            raise PolicyError(
                f"{counts[row, number]} comparisons of row {row} with splits of {names[number]!r} are asked for, and a "
                f"row has at most {most[number]} with them"
            )
        return counts


class ShareService(ShareHolder):
    """The key service's side: its shares follow from seeds. Parameters as for `ShareHolder`."""

    def __init__(self, name: str, **holder: Any) -> None:
        super().__init__(name, **holder)
        self._values: tuple[keys_msg.Ticket, bytes, Numbers] | None = None  # with the key that they follow from

    def _read_half(self, held: HeldShares) -> _Share:
        if len(held.data) != KEY_BYTES or held.feature or held.count > MAX_SPLITS:
            raise RemoteProtocolError(f"the key service is told a seed of {KEY_BYTES} bytes and no columns")
        return _Share(held, split_compare.dealer_shares(SecretStream(held.data), held.count))

    def _forget(self) -> None:
        super()._forget()
        self._values = None

    @takes(msg.RegisterAtService)
    def _on_RegisterAtService(self, message: msg.RegisterAtService) -> msg.RegisteredAtService:
        return msg.RegisteredAtService(lines=self._register(message))

    @takes(keys_msg.RevokeAtService)
    def _on_RevokeAtService(self, message: keys_msg.RevokeAtService) -> keys_msg.RevokedAtService:
        self._strike_out(message)
        return keys_msg.RevokedAtService()

    @takes(msg.CompareAtService)
    def _on_CompareAtService(self, message: msg.CompareAtService) -> msg.ServiceCompared:
        ticket = message.ticket
        keys, part = self._request_keys(ticket), self._part()
        if self._values is None or self._values[:2] != (ticket, part.key):
            self._values = ticket, part.key, service_values(part.key, ticket)
        side = self._side(keys, keys.helper, message, self._values[2], (part.other, key_commit(part.key)))
        words, tops = split_compare.dealer_side(*side)
        return msg.ServiceCompared(words=words, tops=tops)


def service_values(key: bytes, ticket: keys_msg.Ticket) -> Numbers:
    """The key service's shares of the values of a request: of any other request they are others."""
    stream = SecretStream.derived(key, TAG, "shared values", *asking_facts(ticket))
    return split_compare.dealer_shares(stream, ticket.rows * ticket.features)
