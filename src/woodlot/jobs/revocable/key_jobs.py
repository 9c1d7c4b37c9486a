"""What the coordinator does in jobs about keys: it has epochs begun, and walks encrypted requests down forests."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.dtpkc import check_bits
from woodlot.exceptions import ConfigError, DataError, EpochError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.key_store import forest_of_model
from woodlot.jobs.orders import PredictOrder
from woodlot.jobs.revocable.revocable_orders import KeysOrder, MemberOrder, PredictEncryptedOrder, RevocableOrder
from woodlot.jobs.revocable.stored_epochs import (
    Epoch,
    SharedEpoch,
    keep_epoch,
    load_encrypted,
    load_epoch,
    told_keys,
)
from woodlot.protocols.core.forest_parts import CoordinatorForest, active_parties, splitting_parties
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.revocable.epoch_keys import read_group
from woodlot.protocols.revocable.key_messages import ForestInUse, Ticket, UseForest
from woodlot.protocols.revocable.revocable_keys import commit_epoch, prepare_epoch
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable
from woodlot.protocols.revocable.revocable_predict import EncryptedRequest, predict_encrypted
from woodlot.protocols.revocable.rotate import encrypt_splits
from woodlot.protocols.revocable.share_messages import SharesOfModel
from woodlot.protocols.revocable.share_predict import (
    commit_shares,
    predict_shared,
    prepare_shares,
    sealed_bytes,
    share_splits,
)
from woodlot.protocols.vertical.files import forest_id_of

if TYPE_CHECKING:
    from woodlot.jobs.kind import CoordinatorHost, Kept


def _open(order: MemberOrder, opening: msg.OpenJob) -> Generator[Round, dict[str, Message], None]:
    replies = yield Round("open", dict.fromkeys(order.parties, opening))
    for party in order.parties:
        reply_of(replies[party], msg.JobOpened, party)


def _use(
    forest: CoordinatorForest, providers: Sequence[str]
) -> Generator[Round, dict[str, Message], dict[str, NDArray[np.int32]]]:
    """Have providers take up their parts; returns the places of their features in the request."""
    use = UseForest(forest=forest_id_of(forest))
    replies = (yield Round("open", dict.fromkeys(providers, use))) if providers else {}
    return {name: reply_of(replies[name], ForestInUse, name).place for name in providers}


# --- keys ---


def check_scheme(store: JobStore, order: MemberOrder | RevocableOrder, model: str) -> None:
    """Refuse another scheme than that of the model's keys: its members have nothing of the other."""
    told = told_keys(store, model)
    if isinstance(told, SharesOfModel) != order.is_shared:
        has, asked = ("shares", "paper") if isinstance(told, SharesOfModel) else ("paper", "shares")
        raise DataError(f"this model has scheme={has!r} and the order says {asked!r}; order with {has!r}")


def check_modulus(order: KeysOrder | RevocableOrder) -> None:
    """Refuse a modulus that is not made."""
    try:
        check_bits(order.bits, order.setting)
    except ConfigError as error:
        raise DataError(str(error)) from None


def check_keys(store: JobStore, order: KeysOrder) -> None:
    """Refuse keys for a model that is not a forest over columns, or that miss some of its parties."""
    facts = store.model_facts(order.model)
    if store.keys(order.model) is not None:
        if order.keyring != told_keys(store, order.model).keys:
            raise DataError("the order names other keys than the model's; ask for them again")
        check_scheme(store, order, order.model)
    elif order.keyring != order.model:
        raise DataError("the order names the keys of another model, and this one has none; leave keys out")
    if facts.layout != "columns":
        raise DataError("keys are for forests over columns of different parties; this one is whole")
    check_modulus(order)
    providers = splitting_parties(store.forest(order.model).coordinator)
    missing = [party for party in providers if party not in order.parties]
    if missing:
        raise DataError(f"the forest has splits of {', '.join(missing)}, who must be among the parties")


def keys_job(
    order: KeysOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], Epoch | SharedEpoch]:
    """Begin the next epoch, and have the splits encrypted or shared."""
    store = host.store
    forest = store.forest(order.model).coordinator
    epoch = store.claim_epoch(order.keyring, order.job)
    yield from _open(order, opening)
    facts = store.model_facts(order.model)
    parties = tuple(party for party in order.parties if party not in (order.helper, order.key_service))
    having = active_parties(forest, None if facts.revocable else facts.holder)
    using = [party for party in having if party in parties]
    return (yield from begin_epoch(order, forest, epoch, parties, order.model, using))


def begin_epoch(
    order: KeysOrder | RevocableOrder,
    forest: CoordinatorForest,
    epoch: int,
    parties: Sequence[str],
    model: str,
    using: Sequence[str] = (),
) -> Generator[Round, dict[str, Message], Epoch | SharedEpoch]:
    """New keys, and all splits of a model under them; what was before counts until every member is ready.

    Parameters
    ----------
    order : KeysOrder or RevocableOrder
        By which scheme, with which helper and key service.
    forest : CoordinatorForest
        Whose splits they are.
    epoch : int
        Its number.
    parties : sequence of str
        Who provides splits.
    model : str
        The name of the model.
    using : sequence of str
        Who has to take up its part of the forest first.

    """
    members: dict[str, Any] = {"helper": str(order.helper), "key_service": str(order.key_service), "epoch": epoch}
    fingerprint = forest_of_model(model, forest_id_of(forest))
    if order.is_shared:
        shared = yield from prepare_shares(tuple(parties), **members)
        yield from _use(forest, using)
        places = yield from share_splits(forest, shared, fingerprint=fingerprint)
        yield from commit_shares(shared)
        return SharedEpoch(shared, places)
    keys = yield from prepare_epoch(tuple(parties), **members, bits=order.bits, setting=order.setting)
    yield from _use(forest, using)
    splits = yield from encrypt_splits(forest, keys, fingerprint=fingerprint)
    yield from commit_epoch(keys)
    return Epoch(keys, splits)


def keep_keys(kept: Kept, outcome: Epoch | SharedEpoch) -> dict[str, Any]:
    """Store keys and splits; those of the epoch before are gone."""
    keep_epoch(kept.store, kept.order.model, kept.order.keyring, outcome)
    return {"model": kept.order.model}


# --- predictions ---


def check_prediction(store: JobStore, order: PredictEncryptedOrder) -> None:
    """Refuse requests of another scheme, epoch or size."""
    told = told_keys(store, order.model)
    check_scheme(store, order, order.model)
    epoch = told.epoch if isinstance(told, SharesOfModel) else told.group.epoch
    if order.epoch != epoch:
        raise EpochError(
            f"the request is of epoch {order.epoch}, and the model's keys are of epoch {epoch}: encrypt it again"
        )
    if order.splits != told.splits:
        raise EpochError("the request is signed for other splits than those of the model; encrypt it again")
    if (order.helper, order.key_service, order.keyring) != (told.helper, told.key_service, told.keys):
        raise DataError(
            f"helper and key service of this model are {told.helper} and {told.key_service}, its keys {told.keys}"
        )
    if isinstance(told, SharesOfModel):
        right = sealed_bytes(order.rows * order.columns) == len(order.values) and not order.proof
    else:
        size = read_group(told.group, told.setting).element_bytes
        right = len(order.values) == order.rows * order.columns * size
    if not right:
        raise DataError(f"the request is not of {order.rows} rows and {order.columns} columns")


def check_test(store: JobStore, order: PredictOrder) -> None:
    """Refuse an order to predict by encrypted splits of a model without any, or for what that way cannot do."""
    load_encrypted(store, order.model)
    if order.shuffled is not None or order.absent:
        raise DataError("By encrypted splits no feature is shuffled and no party left out; predict in one round.")


def predict_encrypted_job(
    order: PredictEncryptedOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], NDArray[np.float64]]:
    """Walk the request down the forest."""
    store = host.store
    forest, epoch = store.forest(order.model).coordinator, load_epoch(store, order.model)
    stored = store.job(order.job)
    if stored is None:
        raise RemoteProtocolError("the job is not recorded")
    yield from _open(order, opening)
    places = yield from _use(forest, splitting_parties(forest))
    columns = np.full(len(forest.feature_keys), -1)
    for name, place in places.items():
        own = forest.feature_party == forest.parties.index(name)
        if len(place) != own.sum():
            raise RemoteProtocolError(f"{name} told of {len(place)} columns where it has {int(own.sum())}")
        columns[own] = place
    ticket = Ticket(
        requester=stored.facts.user,
        request=bytes.fromhex(order.job),
        epoch=order.epoch,
        rows=order.rows,
        features=order.columns,
        digest=hashlib.sha256(order.values).digest(),
        splits=order.splits,
    )
    if isinstance(epoch, SharedEpoch):
        return (
            yield from predict_shared(
                forest, epoch.splits, epoch.keys, ticket, order.values, columns=columns, vote=order.vote
            )
        )
    lines = np.frombuffer(order.values, np.uint8).reshape(order.rows * order.columns, -1)
    outputs = yield from predict_encrypted(
        CoordinatorRevocable(forest, epoch.splits),
        epoch.keys,
        EncryptedRequest(ticket, lines, order.proof),
        columns=columns,
        vote=order.vote,
        threads=host.n_jobs,
    )
    return outputs


def keep_prediction(kept: Kept, outputs: NDArray[np.float64]) -> dict[str, Any]:
    """Store the answers for the user."""
    kept.store.keep_answers(kept.order.job, outputs, np.zeros(len(outputs), bool), kept.account)
    return {"model": kept.order.model, "n_rows": len(outputs)}
