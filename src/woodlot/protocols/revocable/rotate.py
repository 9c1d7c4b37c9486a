"""Level 2 of revocation: a new epoch, in which nothing of the old one opens.

The paper refreshes the leaver's splits with random exponents. That gives no backward security: the strong key opens
them as before, and so does the leaver's key any copy. Here the modulus itself is replaced: the helper erases its share
of the old strong key, the parties that stay draw new keys and encrypt their splits anew, and everybody refuses the old
epoch. What the coordinator and the leaver have kept is then half of a decryption whose other half is gone.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.dtpkc import DEFAULT_BITS, Setting
from woodlot.exceptions import CiphertextError, EpochError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import named
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.epoch_keys import TAG_BYTES
from woodlot.protocols.revocable.revocable_keys import CoordinatorKeys, commit_epoch, prepare_epoch
from woodlot.protocols.revocable.revocable_model import EncryptedSplits

PHASE = "encrypting splits"


def encrypt_splits(
    forest: CoordinatorForest,
    keys: CoordinatorKeys,
    former: EncryptedSplits | None = None,
    origin: NDArray[np.int64] | None = None,
) -> Generator[Round, dict[str, Message], EncryptedSplits]:
    """At the coordinator: have every provider encrypt its splits of a forest under its key.

    Parameters
    ----------
    forest : CoordinatorForest
        Whose splits they are.
    keys : CoordinatorKeys
        Of the present epoch.
    former, origin : optional
        Splits of the forest before a revocation, of the same epoch, and for each node the one that it was there, -1
        for a new one: only the new ones are encrypted.

    Raises
    ------
    EpochError
        If the former splits are of another epoch.
    PolicyError
        If a node is of somebody who has no key.
    RemoteProtocolError
        If a provider sends another number of splits, or what is none.

    """
    inner = np.flatnonzero(forest.structure.right >= 0).astype(np.int32)
    stays = np.zeros(len(inner), bool) if former is None or origin is None else origin[inner] >= 0
    asked = inner[~stays]
    owners = np.unique(forest.owner[asked])
    providers = {forest.parties[owner]: asked[forest.owner[asked] == owner] for owner in owners}
    gone = [name for name in providers if name not in keys.parties]
    if gone:
        raise PolicyError(f"the forest has splits of {named(gone)}, who has no key in epoch {keys.epoch}")
    width = 2 * keys.group.element_bytes
    data = np.zeros((len(inner), width), np.uint8)
    feature, tag = np.zeros(len(inner), np.int32), np.zeros((len(inner), TAG_BYTES), np.uint8)
    if former is not None and origin is not None:
        if former.epoch != keys.epoch:
            raise EpochError(f"the former splits are of epoch {former.epoch}, and the keys are of epoch {keys.epoch}")
        before = np.searchsorted(former.node, origin[inner[stays]])
        data[stays], feature[stays], tag[stays] = former.data[before], former.feature[before], former.tag[before]
    ask: dict[str, Message] = {name: msg.EncryptSplits(epoch=keys.epoch, node=node) for name, node in providers.items()}
    replies = (yield Round(PHASE, ask)) if ask else {}
    for name, node in providers.items():
        reply = reply_of(replies[name], msg.SplitsEncrypted, name)
        count = len(node)
        if (reply.splits.shape, reply.tags.shape, len(reply.feature)) != ((count, width), (count, TAG_BYTES), count):
            raise RemoteProtocolError(f"{name} did not send {count} splits of epoch {keys.epoch}, each with its proof")
        try:
            keys.group.read_pairs(reply.splits)
        except CiphertextError as error:
            raise CiphertextError(f"{name}: {error}") from None
        at = np.searchsorted(inner, node)
        data[at], feature[at], tag[at] = reply.splits, reply.feature, reply.tags
    return EncryptedSplits(epoch=keys.epoch, node=inner, data=data, feature=feature, tag=tag)


def rotate(
    forest: CoordinatorForest,
    keys: CoordinatorKeys,
    *,
    leaver: str | None = None,
    bits: int = DEFAULT_BITS,
    setting: Setting = "standard",
) -> Generator[Round, dict[str, Message], tuple[CoordinatorKeys, EncryptedSplits]]:
    """At the coordinator: begin the next epoch without `leaver`, and have all splits encrypted anew.

    Parameters and what is returned as for `prepare_rotation`; then the epoch is committed.
    """
    fresh, splits = yield from prepare_rotation(forest, keys, leaver=leaver, bits=bits, setting=setting)
    yield from commit_epoch(fresh)
    return fresh, splits


def prepare_rotation(
    forest: CoordinatorForest,
    keys: CoordinatorKeys,
    *,
    leaver: str | None = None,
    epoch: int | None = None,
    bits: int = DEFAULT_BITS,
    setting: Setting = "standard",
) -> Generator[Round, dict[str, Message], tuple[CoordinatorKeys, EncryptedSplits]]:
    """At the coordinator: prepare the next epoch without `leaver`, with all splits encrypted anew.

    The old epoch goes on, and the old forest can be used, until the new one is committed.

    Parameters
    ----------
    forest : CoordinatorForest
        As it is after the leaver's nodes have been regrown.
    keys : CoordinatorKeys
        Of the epoch that ends.
    leaver : str, optional
        Who is no longer a member.
    epoch : int, optional
        Its number, by default the next; one that was given up is prepared anew under another number.
    bits, setting
        As for `begin_epoch`.

    Returns
    -------
    keys : CoordinatorKeys
        Of the new epoch.
    splits : EncryptedSplits
        Of the forest, under the new keys.

    """
    staying = tuple(name for name in keys.parties if name != leaver)
    fresh = yield from prepare_epoch(
        staying,
        helper=keys.helper,
        key_service=keys.key_service,
        epoch=keys.epoch + 1 if epoch is None else epoch,
        bits=bits,
        setting=setting,
    )
    return fresh, (yield from encrypt_splits(forest, fresh))
