"""What the coordinator has of a model's epoch, under both schemes: how it is stored, and what users are told of it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from woodlot.crypto.dtpkc import Setting, StrongShare
from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import DataError, JournalError
from woodlot.jobs.job_store import JobStore
from woodlot.protocols.revocable.epoch_keys import bytes_number, number_bytes, public_group, read_group
from woodlot.protocols.revocable.key_messages import GroupProof, KeysOfModel, PublicGroup
from woodlot.protocols.revocable.revocable_keys import CoordinatorKeys, key_fingerprint, read_key
from woodlot.protocols.revocable.revocable_model import EncryptedSplits
from woodlot.protocols.revocable.share_messages import SharesOfModel
from woodlot.protocols.revocable.share_predict import NO_TEST_OF_SHARES, SharedSplits, ShareEpoch, shares_fingerprint
from woodlot.protocols.revocable.split_list import HASH_BYTES, SplitList


class _StoredEpoch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the coordinator has of an epoch of the paper's scheme, as it lies on disk. It is secret."""

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


class _StoredShares(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the coordinator has of an epoch of shares, as it lies on disk: nothing secret."""

    scheme: str
    epoch: int
    parties: tuple[str, ...]
    helper: str
    key_service: str
    node: bytes
    place: bytes
    forest: str
    commits: dict[str, tuple[int, bytes]]
    keyring: str


class _Scheme(msgspec.Struct, frozen=True):
    """By which scheme an epoch was stored: those of the paper's do not say."""

    scheme: str = "paper"


@dataclass(frozen=True, eq=False)
class Epoch:
    """What the coordinator has of a model's epoch under the paper's scheme."""

    keys: CoordinatorKeys
    splits: EncryptedSplits

    def fingerprint(self, party: str) -> str:
        """SHA-256 of a party's public key, empty without one."""
        key = self.keys.public.get(party)
        return "" if key is None else key_fingerprint(key)


@dataclass(frozen=True, eq=False)
class SharedEpoch:
    """What the coordinator has of a model's epoch of shares."""

    keys: ShareEpoch
    splits: SharedSplits

    def fingerprint(self, party: str) -> str:
        """A party's word on its shares, as receipts name what was deleted; empty without any."""
        shared = self.splits.commits.get(party)
        return "" if shared is None else shares_fingerprint(shared[1])


def _read(store: JobStore, model: str) -> _StoredEpoch | _StoredShares:
    successor = store.model_facts(model).replaced_by
    if successor:
        raise DataError(f"model {model} was replaced by {successor} when a party left it; use that one")
    data = store.keys(model)
    if data is None:
        raise DataError(f"model {model} has no keys; order them first")
    try:
        shared = from_msgpack(data, _Scheme).scheme == "shares"
        return from_msgpack(data, _StoredShares) if shared else from_msgpack(data, _StoredEpoch)
    except ValueError:  # whose words may quote what is secret
        raise JournalError(
            f"the keys of model {model} are not as they were written; restore the state folder"
        ) from None


def load_epoch(store: JobStore, model: str) -> Epoch | SharedEpoch:
    """What the coordinator has of a model's epoch."""
    stored = _read(store, model)
    return _shared_epoch(stored) if isinstance(stored, _StoredShares) else _encrypted_epoch(stored)


def load_encrypted(store: JobStore, model: str) -> Epoch:
    """Keys and encrypted splits of a model; refuses one whose splits are shared."""
    epoch = load_epoch(store, model)
    if isinstance(epoch, SharedEpoch):
        raise DataError(NO_TEST_OF_SHARES)
    return epoch


def _shared_epoch(stored: _StoredShares) -> SharedEpoch:
    splits = SharedSplits(
        stored.epoch,
        np.frombuffer(stored.node, np.int32),
        np.frombuffer(stored.place, np.uint32),
        stored.forest,
        stored.commits,
    )
    return SharedEpoch(ShareEpoch(stored.epoch, stored.parties, stored.helper, stored.key_service), splits)


def _encrypted_epoch(stored: _StoredEpoch) -> Epoch:
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


def told_keys(store: JobStore, model: str) -> KeysOfModel | SharesOfModel:
    """What users are told of a model's keys: nothing secret."""
    stored = _read(store, model)
    if isinstance(stored, _StoredShares):
        return SharesOfModel(
            epoch=stored.epoch,
            parties=stored.parties,
            helper=stored.helper,
            key_service=stored.key_service,
            keys=stored.keyring,
            splits=_shared_epoch(stored).splits.registered,
        )
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


def keep_epoch(store: JobStore, model: str, keyring: str, epoch: Epoch | SharedEpoch) -> None:
    """Store what the coordinator has of an epoch."""
    stored: msgspec.Struct
    if isinstance(epoch, SharedEpoch):
        shared = epoch.splits
        stored = _StoredShares(
            scheme="shares",
            epoch=epoch.keys.epoch,
            parties=epoch.keys.parties,
            helper=epoch.keys.helper,
            key_service=epoch.keys.key_service,
            node=shared.node.tobytes(),
            place=shared.place.tobytes(),
            forest=shared.forest,
            commits=shared.commits,
            keyring=keyring,
        )
        store.keep_keys(model, msgspec.msgpack.encode(stored))
        return
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
