"""Level 2 of revocation: a new epoch, in which nothing of the old one opens.

The paper refreshes the leaver's splits with random exponents. That gives no backward security: the strong key opens
them as before, and so does the leaver's key any copy. Here the modulus itself is replaced: the helper erases its share
of the old strong key, the parties that stay draw new keys and encrypt their splits again, and everybody refuses the old
epoch. What the coordinator and the leaver have kept is then half of a decryption whose other half is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Generator

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
from woodlot.protocols.revocable.split_list import HASH_BYTES, NO_SPLITS, SplitList, hash_lines, sort_hashes

PHASE = "encrypting splits"


def encrypt_splits(
    forest: CoordinatorForest,
    keys: CoordinatorKeys,
    former: EncryptedSplits | None = None,
    origin: NDArray[np.int64] | None = None,
    *,
    fingerprint: str,
    leavers: Collection[str] = (),
) -> Generator[Round, dict[str, Message], EncryptedSplits]:
    """At the coordinator: have every provider encrypt its splits of a forest, and the helper register them.

    Parties without splits are asked as well: the helper wants everybody's word on what there is.

    Parameters
    ----------
    forest : CoordinatorForest
        Whose splits they are.
    keys : CoordinatorKeys
        Of the present epoch.
    former, origin : optional
        Splits of the forest before a revocation, of the same epoch, and for each node the one that it was there, -1
        for a new one: only the new ones are encrypted.
    fingerprint : str
        Of the forest, as its parties know it.
    leavers : collection of str
        Parties that still have a key and are about to leave: they are not asked.

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
    names = [forest.parties[owner] for owner in forest.owner[inner].tolist()]
    staying = [name for name in keys.parties if name not in leavers]
    gone = [name for name in dict.fromkeys(names) if name not in staying]
    if gone:
        raise PolicyError(f"the forest has splits of {named(gone)}, who has no key in epoch {keys.epoch}")
    providers = tuple(dict.fromkeys([*names, *staying]))
    width = 2 * keys.group.element_bytes
    data = np.zeros((len(inner), width), np.uint8)
    feature, tag = np.zeros(len(inner), np.int32), np.zeros((len(inner), TAG_BYTES), np.uint8)
    hashes = np.zeros((len(inner), HASH_BYTES), np.uint8)
    if former is not None and origin is not None:
        if former.epoch != keys.epoch:
            raise EpochError(f"the former splits are of epoch {former.epoch}, and the keys are of epoch {keys.epoch}")
        before = np.searchsorted(former.node, origin[inner[stays]])
        data[stays], feature[stays], tag[stays] = former.data[before], former.feature[before], former.tag[before]
        hashes[stays] = hash_lines(data[stays, : width // 2])
    ask: dict[str, Message] = {}
    mine = {name: np.array([owner == name for owner in names], bool) for name in providers}
    for name in providers:
        kept = np.flatnonzero(mine[name] & stays)
        kept = kept[sort_hashes(hashes[kept])]
        ask[name] = msg.EncryptSplits(
            epoch=keys.epoch, forest=fingerprint, total=len(inner), node=inner[mine[name] & ~stays], kept=hashes[kept],
            kept_feature=feature[kept],
        )  # fmt: skip
    if not len(inner):  # nothing is ever compared
        return EncryptedSplits(
            epoch=keys.epoch, node=inner, data=data, feature=feature, tag=tag, forest=fingerprint, listed=NO_SPLITS
        )
    replies = yield Round(PHASE, ask)
    proofs, statements = {}, {}
    for name in providers:
        reply, at = reply_of(replies[name], msg.SplitsEncrypted, name), mine[name] & ~stays
        count = int(at.sum())
        if (reply.splits.shape, reply.tags.shape, len(reply.feature)) != ((count, width), (count, TAG_BYTES), count):
            raise RemoteProtocolError(f"{name} did not send {count} splits of epoch {keys.epoch}, each with its proof")
        try:
            keys.group.read_pairs(reply.splits)
        except CiphertextError as error:
            raise CiphertextError(f"{name}: {error}") from None
        data[at], feature[at], tag[at] = reply.splits, reply.feature, reply.tags
        statements[name] = reply.statement
        if count:
            proofs[name] = reply.proof
    hashes[~stays] = hash_lines(data[~stays, : width // 2])
    listed = SplitList.of(names, feature, hashes)
    splits = EncryptedSplits(
        epoch=keys.epoch, node=inner, data=data, feature=feature, tag=tag, forest=fingerprint, listed=listed
    )
    at = np.flatnonzero(~stays)
    at = at[sort_hashes(hashes[at])]
    fresh = SplitList.of([names[number] for number in at], feature[at], hashes[at])
    register = msg.RegisterSplits(
        epoch=keys.epoch,
        forest=fingerprint,
        **(NO_SPLITS if former is None else former.listed).fields(),
        stays=_staying(former, listed),
        splits=data[at, : width // 2],
        names=fresh.owners,
        fresh_owner=fresh.owner,
        fresh_feature=fresh.feature,
        proofs=proofs,
        statements=statements,
    )
    replies = yield Round(PHASE, {keys.helper: register})
    reply_of(replies[keys.helper], msg.SplitsRegistered, keys.helper)
    return splits


def _staying(former: EncryptedSplits | None, listed: SplitList) -> NDArray[np.uint8]:
    """Which of the splits before are among those of now."""
    if former is None:
        return np.zeros(0, np.uint8)
    return np.array([line in listed.places for line in former.listed.lines], np.uint8)


def rotate(
    forest: CoordinatorForest,
    keys: CoordinatorKeys,
    *,
    fingerprint: str,
    leaver: str | None = None,
    bits: int = DEFAULT_BITS,
    setting: Setting = "standard",
) -> Generator[Round, dict[str, Message], tuple[CoordinatorKeys, EncryptedSplits]]:
    """At the coordinator: begin the next epoch without `leaver`, and have all splits encrypted again.

    Parameters and what is returned as for `prepare_rotation`; then the epoch is committed.
    """
    fresh, splits = yield from prepare_rotation(
        forest, keys, fingerprint=fingerprint, leaver=leaver, bits=bits, setting=setting
    )
    yield from commit_epoch(fresh)
    return fresh, splits


def prepare_rotation(
    forest: CoordinatorForest,
    keys: CoordinatorKeys,
    *,
    fingerprint: str,
    leaver: str | None = None,
    epoch: int | None = None,
    bits: int = DEFAULT_BITS,
    setting: Setting = "standard",
) -> Generator[Round, dict[str, Message], tuple[CoordinatorKeys, EncryptedSplits]]:
    """At the coordinator: prepare the next epoch without `leaver`, with all splits encrypted again.

    The old epoch goes on, and the old forest can be used, until the new one is committed.

    Parameters
    ----------
    forest : CoordinatorForest
        As it is after the leaver's nodes have been regrown.
    keys : CoordinatorKeys
        Of the epoch that ends.
    fingerprint : str
        Of the forest, as its parties know it.
    leaver : str, optional
        Who is no longer a member.
    epoch : int, optional
        Its number, by default the next; one that was given up is prepared again under another number.
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
    return fresh, (yield from encrypt_splits(forest, fresh, fingerprint=fingerprint))
