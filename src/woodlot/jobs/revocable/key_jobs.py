"""What the coordinator does in jobs about keys: it has epochs begun, and walks encrypted requests down forests."""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.dtpkc import Setting, StrongShare, check_bits
from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import ConfigError, DataError, EpochError, JournalError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.key_store import forest_of_model
from woodlot.jobs.orders import KeysOrder, MemberOrder, PredictEncryptedOrder, PredictOrder
from woodlot.protocols.core.forest_parts import CoordinatorForest, active_parties, splitting_parties
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.revocable.epoch_keys import bytes_number, number_bytes, public_group, read_group
from woodlot.protocols.revocable.key_messages import (
    ForestInUse,
    GroupProof,
    KeysOfModel,
    PublicGroup,
    Ticket,
    UseForest,
)
from woodlot.protocols.revocable.revocable_keys import (
    CoordinatorKeys,
    commit_epoch,
    key_fingerprint,
    prepare_epoch,
    read_key,
)
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable, EncryptedSplits
from woodlot.protocols.revocable.revocable_predict import EncryptedRequest, predict_encrypted
from woodlot.protocols.revocable.rotate import encrypt_splits
from woodlot.protocols.revocable.split_list import HASH_BYTES, SplitList
from woodlot.protocols.vertical.files import forest_id_of

if TYPE_CHECKING:
    from woodlot.jobs.kind import CoordinatorHost, Kept


class _StoredEpoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the coordinator has of a model's epoch, as it lies on disk. It is secret."""

    group: PublicGroup
    setting: Setting
    share: bytes
    public: dict[str, bytes]
    helper: str
    key_service: str
    node: bytes
    splits: bytes
    feature: bytes
    tag: bytes
    forest: str
    owners: tuple[str, ...]
    listed: tuple[bytes, bytes, bytes]
    registered: bytes
    keyring: str = ""
    proof: GroupProof | None = None


@dataclass(frozen=True, eq=False)
class Epoch:
    """What the coordinator has of a model's epoch."""

    keys: CoordinatorKeys
    splits: EncryptedSplits

    def fingerprint(self, party: str) -> str:
        """SHA-256 of a party's public key, empty without one."""
        key = self.keys.public.get(party)
        return "" if key is None else key_fingerprint(key)


def _read(store: JobStore, model: str) -> _StoredEpoch:
    successor = store.model_facts(model).replaced_by
    if successor:
        raise DataError(f"model {model} was replaced by {successor} when a party left it; use that one")
    data = store.keys(model)
    if data is None:
        raise DataError(f"model {model} has no keys; order them first")
    try:
        return from_msgpack(data, _StoredEpoch)
    except ValueError:  # whose words may quote what is secret
        raise JournalError(
            f"the keys of model {model} are not as they were written; restore the state folder"
        ) from None


def load_epoch(store: JobStore, model: str) -> Epoch:
    """Keys and encrypted splits of a model."""
    stored = _read(store, model)
    group = read_group(stored.group, stored.setting)
    keys = CoordinatorKeys(
        group=group,
        share=StrongShare(group, bytes_number(stored.share)),
        parties=tuple(stored.public),
        public={name: read_key(group, h) for name, h in stored.public.items()},
        helper=stored.helper,
        key_service=stored.key_service,
        proof=stored.proof,
    )
    node = np.frombuffer(stored.node, np.int32)
    owner, column, hashes = stored.listed
    splits = EncryptedSplits(
        epoch=group.epoch,
        node=node,
        data=np.frombuffer(stored.splits, np.uint8).reshape(len(node), -1),
        feature=np.frombuffer(stored.feature, np.int32),
        tag=np.frombuffer(stored.tag, np.uint8).reshape(len(node), -1),
        forest=stored.forest,
        listed=SplitList(
            stored.owners,
            np.frombuffer(owner, np.uint16),
            np.frombuffer(column, np.int32),
            np.frombuffer(hashes, np.uint8).reshape(len(node), HASH_BYTES),
        ),
    )
    return Epoch(keys, splits)


def told_keys(store: JobStore, model: str) -> KeysOfModel:
    """What users are told of a model's keys: nothing secret."""
    stored = _read(store, model)
    return KeysOfModel(
        group=stored.group,
        setting=stored.setting,
        parties=tuple(stored.public),
        helper=stored.helper,
        key_service=stored.key_service,
        keys=stored.keyring or model,
        splits=stored.registered,
        proof=stored.proof,
    )


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


def check_keys(store: JobStore, order: KeysOrder) -> None:
    """Refuse keys for what is no forest over columns, or that miss some of its parties."""
    facts = store.model_facts(order.model)
    if store.keys(order.model) is not None and order.keyring != told_keys(store, order.model).keys:
        raise DataError("the order names other keys than the model's; ask for them again")
    if facts.layout != "columns":
        raise DataError("keys are for forests over columns of different parties; this one is whole")
    try:
        check_bits(order.bits, order.setting)
    except ConfigError as error:
        raise DataError(str(error)) from None
    providers = splitting_parties(store.forest(order.model).coordinator)
    missing = [party for party in providers if party not in order.parties]
    if missing:
        raise DataError(f"the forest has splits of {', '.join(missing)}, who must be among the parties")


def keys_job(
    order: KeysOrder, opening: msg.OpenJob, host: CoordinatorHost
) -> Generator[Round, dict[str, Message], Epoch]:
    """Begin the next epoch, and have the splits encrypted."""
    store = host.store
    forest = store.forest(order.model).coordinator
    epoch = store.claim_epoch(order.keyring, order.job)
    yield from _open(order, opening)
    keys = yield from prepare_epoch(
        tuple(party for party in order.parties if party not in (order.helper, order.key_service)),
        helper=order.helper,
        key_service=order.key_service,
        epoch=epoch,
        bits=order.bits,
        setting=order.setting,
    )
    facts = store.model_facts(order.model)
    having = active_parties(forest, None if facts.revocable else facts.holder)
    yield from _use(forest, [party for party in having if party in keys.parties])
    splits = yield from encrypt_splits(forest, keys, fingerprint=forest_of_model(order.model, forest_id_of(forest)))
    yield from commit_epoch(keys)
    return Epoch(keys, splits)


def keep_keys(kept: Kept, outcome: Epoch) -> dict[str, Any]:
    """Store keys and splits; those of the epoch before are gone."""
    keep_epoch(kept.store, kept.order.model, kept.order.keyring, outcome)
    return {"model": kept.order.model}


def keep_epoch(store: JobStore, model: str, keyring: str, epoch: Epoch) -> None:
    """Store what the coordinator has of an epoch."""
    keys, splits = epoch.keys, epoch.splits
    stored = _StoredEpoch(
        group=public_group(keys.group),
        setting=keys.group.setting,
        share=number_bytes(keys.share.exponent),
        public={name: number_bytes(key.h) for name, key in keys.public.items()},
        helper=keys.helper,
        key_service=keys.key_service,
        node=splits.node.tobytes(),
        splits=splits.data.tobytes(),
        feature=splits.feature.tobytes(),
        tag=splits.tag.tobytes(),
        forest=splits.forest,
        owners=splits.listed.owners,
        listed=(splits.listed.owner.tobytes(), splits.listed.feature.tobytes(), splits.listed.hashes.tobytes()),
        registered=splits.registered,
        keyring=keyring,
        proof=keys.proof,
    )
    store.keep_keys(model, msgspec.msgpack.encode(stored))


# --- predictions ---


def check_prediction(store: JobStore, order: PredictEncryptedOrder) -> None:
    """Refuse requests of another epoch or size."""
    told = told_keys(store, order.model)
    if order.epoch != told.group.epoch:
        raise EpochError(
            f"the request is of epoch {order.epoch}, and the model's keys are of epoch {told.group.epoch}: "
            "encrypt it anew"
        )
    if order.splits != told.splits:
        raise EpochError("the request is signed for other splits than those of the model; encrypt it anew")
    if (order.helper, order.key_service, order.keyring) != (told.helper, told.key_service, told.keys):
        raise DataError(
            f"helper and key service of this model are {told.helper} and {told.key_service}, its keys {told.keys}"
        )
    size = read_group(told.group, told.setting).element_bytes
    if len(order.values) != order.rows * order.columns * size:
        raise DataError(f"the request is not of {order.rows} rows and {order.columns} columns")


def check_test(store: JobStore, order: PredictOrder) -> None:
    """Refuse an order to predict by encrypted splits of a model without any, or for what that way cannot do."""
    told_keys(store, order.model)
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
