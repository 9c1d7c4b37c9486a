"""A party in jobs about keys: it encrypts or shares its splits, and opens or allows encrypted predictions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.dtpkc import Setting
from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.jobs.home import AskedOrder, PartyHome
from woodlot.jobs.key_store import KEYS_FOLDER, KeyStore, forest_of_model
from woodlot.jobs.revocable.revocable_orders import KeysOrder, MemberOrder, PredictEncryptedOrder, RevocableOrder
from woodlot.privacy.accounting import UNITS
from woodlot.protocols.core.forest_parts import PartyForest
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable import share_messages as shares
from woodlot.protocols.revocable.epoch_keys import EpochKeys, bit_length
from woodlot.protocols.revocable.participant import NO_SPLITS
from woodlot.protocols.revocable.provider import Provider
from woodlot.protocols.revocable.share_provider import ShareProvider
from woodlot.protocols.revocable.tickets import RequestGate
from woodlot.trees.forest import Splits, Structure

BEGINS_EPOCH = (msg.OpenEpoch, msg.MeetMembers, msg.TakeGroup, shares.PrepareShares, msg.CommitEpoch)
"""What a new epoch begins with at a party, under both schemes."""

HIDES_SPLITS = (msg.EncryptSplits, shares.ShareSplits)
"""What hides a party's splits."""


def check_ticket(ticket: msg.Ticket, order: MemberOrder | RevocableOrder, user: str) -> None:
    """Refuse a request that is not the one that a user has ordered: the order is signed, so the ticket need not be."""
    if not isinstance(order, PredictEncryptedOrder):
        raise RemoteProtocolError("the order does not ask for a prediction")
    ordered = (user, bytes.fromhex(order.job), order.epoch, order.rows, order.columns, order.splits)
    told = (ticket.requester, ticket.request, ticket.epoch, ticket.rows, ticket.features, ticket.splits)
    if told != ordered or ticket.digest != hashlib.sha256(order.values).digest():
        raise RemoteProtocolError("the request is not the one that was ordered")


class _OrderGate(RequestGate):
    """Lets the request of an order pass, if the party's budget of predictions allows it."""

    def __init__(self, home: PartyHome, order: MemberOrder, user: str) -> None:
        super().__init__()
        self._home, self._order, self._user = home, order, user

    def check(self, ticket: msg.Ticket) -> None:
        """Refuse another request than was ordered."""
        check_ticket(ticket, self._order, self._user)

    def admit(self, ticket: msg.Ticket) -> None:
        """Pay for the rows, once, however often they are asked for; what is refused otherwise has cost nothing."""
        self._home.store.spend_predictions(self._order.job, self._user, ticket.rows, datetime.now(UTC))
        super().admit(ticket)


def make_provider(
    home: PartyHome,
    order: MemberOrder | RevocableOrder,
    splits: Callable[[], Splits],
    gate: RequestGate | None = None,
    columns: Callable[[], NDArray[np.int32]] | None = None,
    *,
    structure: Callable[[], Structure | None],
    fingerprint: Callable[[], str | None],
) -> Provider | ShareProvider:
    """This party as a provider of splits, with the keys that it has of the order's model."""
    name, job, keyring = home.identity.name, order.job, order.keyring
    if name in (order.helper, order.key_service):
        raise PolicyError("this is a party, and neither a helper nor a key service")
    setting: Setting = "standard"
    if isinstance(order, KeysOrder | RevocableOrder):
        setting = order.setting
        home.policy.check_keys(setting)
    store = KeyStore(home.store.folder / KEYS_FOLDER)
    keys, ended = store.load(keyring, job)
    check_kept_scheme(keys, order)
    provider: dict[str, Any] = {
        "splits": splits,
        "gate": gate,
        "structure": structure,
        "fingerprint": fingerprint,
        "job": job,
        "entropy": lambda purpose: store.secret_for(keyring, job, purpose),
        "keys": keys,
        "ended": ended,
        "signer": home.signer(job),
        "setting": setting,
        "keep": lambda fresh: store.keep(keyring, job, fresh),
        "check_present": lambda keys: None if home.replays(job) else store.check_present(keyring, keys),
    }
    if order.is_shared:
        return ShareProvider(name, columns=_no_columns if columns is None else columns, **provider)
    return Provider(name, columns=columns, **provider)


def _no_columns() -> NDArray[np.int32]:
    raise RemoteProtocolError("the order does not ask for a prediction")


def check_kept_scheme(keys: EpochKeys | None, order: MemberOrder | RevocableOrder) -> None:
    """Refuse an order of another scheme than the keys that a member has: a model keeps its scheme.

    A helper that went over to encrypted splits would keep the shares that it has.
    """
    if keys is not None and (keys.group is None) != order.is_shared:
        has = "shares" if keys.group is None else "paper"
        raise PolicyError(f"this member keeps the keys of the model under scheme={has!r}, and the order says otherwise")


class ProviderWork(MessageHandler):
    """What a party does for an order about keys, or to predict encrypted."""

    n_aligned = None
    uncovered = UNITS

    def __init__(self, asked: AskedOrder[MemberOrder]) -> None:
        home, order, user = asked.home, asked.order, asked.user
        self._home, self._order, self._part = home, order, asked.part
        self._forest: PartyForest | None = None
        self._fingerprint = ""
        home.policy.check_members(order.helper, order.key_service)
        gate = _OrderGate(home, order, user)
        self._provider = make_provider(
            home,
            order,
            self._splits,
            gate,
            self._columns,
            structure=lambda: None if self._has_none() else self._in_use().structure,
            fingerprint=lambda: None if self._has_none() else self._fingerprint,
        )

    def _has_none(self) -> bool:
        """Whether this party has no part of the forest, as one that has labels only."""
        return self._forest is None and self._home.store.has_no_part(self._order.model)

    def _in_use(self) -> PartyForest:
        if self._forest is None:
            raise RemoteProtocolError("no forest is in use in this job")
        return self._forest

    def _splits(self) -> Splits:
        return NO_SPLITS if self._has_none() else self._in_use().splits

    def _columns(self) -> NDArray[np.int32]:
        """For each of the party's columns, the column of the request that the user has signed as that one, or -1."""
        wanted = {column: place for place, column in enumerate(self._part.columns) if column}
        return np.array([wanted.get(name, -1) for name in self._in_use().names], np.int32)

    @takes(*{**Provider.handlers, **ShareProvider.handlers})
    def _ask_provider(self, message: Message) -> Message:
        opening = isinstance(message, BEGINS_EPOCH + HIDES_SPLITS)
        if opening != isinstance(self._order, KeysOrder):
            raise RemoteProtocolError(f"the order does not ask for {type(message).__name__}")
        check_epoch(message, self._order)
        return self._provider.handle(message)

    @takes(msg.UseForest)
    def _on_UseForest(self, message: msg.UseForest) -> msg.ForestInUse:
        self._forest = self._home.store.model(self._order.model, message.forest)
        self._fingerprint = forest_of_model(self._order.model, message.forest)
        return msg.ForestInUse(place=self._columns())


def check_epoch(message: Message, order: MemberOrder | RevocableOrder) -> None:
    """Refuse an epoch of other members, or of another modulus, than the user has ordered."""
    match message:
        case msg.OpenEpoch(members=members, helper=helper, key_service=key_service):
            same = (members, helper, key_service) == (tuple(sorted(order.parties)), order.helper, order.key_service)
        case msg.MakeGroup(bits=bits, setting=setting):
            same = isinstance(order, KeysOrder | RevocableOrder) and (bits, setting) == (order.bits, order.setting)
        case msg.TakeGroup(group=group) | msg.TakeShare(group=group):
            same = isinstance(order, KeysOrder | RevocableOrder) and bit_length(group) == order.bits
        case _:
            return
    if not same:
        raise RemoteProtocolError("the epoch is not the one that was ordered")
