"""FRF-Predict at coordinator and requester under ``scheme="shares"``: rows and trees that nobody of them can read.

The coordinator has no share of anything. All trees and rows advance one level per exchange::

    coordinator -> parties                       may this request be compared with your splits?     (share_provider.py)
    coordinator -> helper                        the request, and the parties' leave                (share_holders.py)
    for each level
        coordinator -> helper, key service       which row with which split
        helper, key service -> coordinator       one side each; both together tell which way every row goes

x <= s goes left, as in training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from woodlot.crypto import split_compare
from woodlot.crypto.streams import KEY_BYTES, SecretStream
from woodlot.exceptions import CiphertextError, DataError, EpochError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import Signer, named
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.revocable import key_messages as keys_msg
from woodlot.protocols.revocable import share_messages as msg
from woodlot.protocols.revocable.epoch_keys import SEAL_BYTES, seal
from woodlot.protocols.revocable.revocable_keys import PHASE as KEYS
from woodlot.protocols.revocable.revocable_keys import meet_members
from woodlot.protocols.revocable.share_holders import service_values
from woodlot.protocols.revocable.share_keeping import RequestPart, asking_facts, key_commit, line_of, registration_of
from woodlot.protocols.revocable.tickets import REQUEST_PURPOSE, ticket_bytes
from woodlot.trees.predict import Vote, outputs_from_leaves

PHASE = "encrypted prediction"
SHARING = "sharing splits"

NO_TEST_OF_SHARES = (
    "With shares the coordinator keeps no encrypted splits that could be tested; score without encrypted_splits, or "
    "fit the forest with scheme='paper'"
)

BLOCK_COMPARISONS = 20_000
"""How many comparisons a level has at most: of more rows, blocks go down one after the other."""


@dataclass(frozen=True, eq=False)
class ShareEpoch:
    """What the coordinator has of an epoch: nothing secret.

    Attributes
    ----------
    epoch : int
        Its number.
    parties : tuple of str
        Who provides splits; those who have left are struck out.
    helper, key_service : str
        Who they are.

    """

    epoch: int
    parties: tuple[str, ...]
    helper: str
    key_service: str


@dataclass(frozen=True, eq=False)
class SharedSplits:
    """What the coordinator has of the splits of a forest: where their shares stand at helper and key service.

    Attributes
    ----------
    epoch : int
        Of the keys.
    node : int32 array
        Every inner node of the forest, ascending.
    place : uint32 array
        Where the split of each node stands among its owner's.
    forest : str
        Fingerprint of the forest.
    commits : dict of str to (int, bytes)
        For each party, how many splits it has shared and its word on them.

    """

    epoch: int
    node: NDArray[np.int32]
    place: NDArray[np.uint32]
    forest: str
    commits: dict[str, tuple[int, bytes]]

    @property
    def registered(self) -> bytes:
        """The hash of what is registered at helper and key service, which requesters sign."""
        return registration_of(self.epoch, self.forest, self.commits)


def shares_fingerprint(commit: bytes) -> str:
    """How receipts name the shares of a party, once they are deleted: by its word on them."""
    return f"shares {commit.hex()}"


# --- keys and splits ---


def prepare_shares(
    parties: Sequence[str], *, helper: str, key_service: str, epoch: int = 1
) -> Generator[Round, dict[str, Message], ShareEpoch]:
    """At the coordinator: have all members agree on keys for a new epoch; the one before goes on until it is committed.

    Raises
    ------
    PolicyError, RemoteProtocolError
        As for `meet_members`.

    """
    members = yield from meet_members(parties, helper=helper, key_service=key_service, epoch=epoch, steps=3)
    prepare = msg.PrepareShares(epoch=epoch)
    replies = yield Round(KEYS, dict.fromkeys(members, prepare), Progress(2, 3, "keys of all members"))
    for name in members:
        reply_of(replies[name], msg.SharesPrepared, name)
    return ShareEpoch(epoch, tuple(parties), helper, key_service)


def share_splits(
    forest: CoordinatorForest, keys: ShareEpoch, *, fingerprint: str, leavers: Collection[str] = ()
) -> Generator[Round, dict[str, Message], SharedSplits]:
    """At the coordinator: have every party split its thresholds between helper and key service, and both register them.

    Parameters
    ----------
    forest : CoordinatorForest
        Whose splits they are.
    keys : ShareEpoch
        Of the present epoch, or of the one that is being prepared.
    fingerprint : str
        Of the forest, as its parties know it.
    leavers : collection of str
        Parties that are about to leave: they are not asked.

    Raises
    ------
    PolicyError
        If a node is of somebody who has no key.
    RemoteProtocolError
        If a party shares another number of splits.

    """
    inner = np.flatnonzero(forest.structure.right >= 0).astype(np.int32)
    staying = [name for name in keys.parties if name not in leavers]
    owners = [forest.parties[number] for number in np.unique(forest.owner[inner]).tolist()]
    gone = [name for name in owners if name not in staying]
    if gone:
        raise PolicyError(f"the forest has splits of {named(gone)}, who has no key in epoch {keys.epoch}")
    nodes = {name: inner[forest.owner[inner] == _number(forest, name)] for name in staying}
    ask: dict[str, Message] = {
        name: msg.ShareSplits(epoch=keys.epoch, forest=fingerprint, total=len(inner), node=nodes[name])
        for name in staying
    }
    replies = yield Round(SHARING, ask)
    shared = {name: reply_of(replies[name], msg.SplitsShared, name) for name in staying}
    place, commits = np.zeros(len(inner), np.uint32), {}
    for name, reply in shared.items():
        at = np.searchsorted(inner, nodes[name])
        if not np.array_equal(np.sort(reply.place), np.arange(len(at), dtype=np.uint32)):
            raise RemoteProtocolError(f"{name} did not share {len(at)} splits, each once")
        place[at] = reply.place
        commits[name] = (len(at), reply.commit)
    common: dict[str, Any] = {"epoch": keys.epoch, "forest": fingerprint}
    register: dict[str, Message] = {
        keys.helper: msg.RegisterAtHelper(**common, boxes={name: reply.helper for name, reply in shared.items()}),
        keys.key_service: msg.RegisterAtService(
            **common, boxes={name: reply.service for name, reply in shared.items()}
        ),
    }
    replies = yield Round(SHARING, register)
    helper = reply_of(replies[keys.helper], msg.RegisteredAtHelper, keys.helper)
    service = reply_of(replies[keys.key_service], msg.RegisteredAtService, keys.key_service)
    lines = {name: line_of(keys.epoch, fingerprint, name, *commits[name]) for name in staying}
    _check_registered(lines, {keys.helper: helper.lines, keys.key_service: service.lines})
    return SharedSplits(keys.epoch, inner, place, fingerprint, commits)


def _check_registered(lines: dict[str, bytes], told: dict[str, dict[str, bytes]]) -> None:
    """Refuse splits that helper and key service do not have alike, and as their owner has said; name the owner.

    Requests would find out, too, but not whose splits they are.
    """
    for holder, registered in told.items():
        if set(registered) != set(lines):
            raise RemoteProtocolError(f"{holder} has not registered the splits of all parties, or those of others")
    for owner, line in lines.items():
        if odd := [holder for holder, registered in told.items() if registered[owner] != line]:
            raise RemoteProtocolError(
                f"{owner} has sealed other splits to {' and '.join(odd)} than it has told of, or that is not what was "
                f"registered there. No request could be answered: have {owner} mended or leave, and order new keys"
            )


def _number(forest: CoordinatorForest, name: str) -> int:
    """The number of a party among those of a forest; -2 of one that it does not know, which has no node."""
    return forest.parties.index(name) if name in forest.parties else -2


def commit_shares(keys: ShareEpoch) -> Generator[Round, dict[str, Message], None]:
    """At the coordinator: have every member use the keys of a prepared epoch, and erase those before.

    It may be repeated: who has done so already does nothing.
    """
    members = (*keys.parties, keys.key_service, keys.helper)
    replies = yield Round(KEYS, dict.fromkeys(members, keys_msg.CommitEpoch(epoch=keys.epoch)))
    for name in members:
        reply_of(replies[name], keys_msg.EpochCommitted, name)


def delete_shares(keys: ShareEpoch, party: str) -> Generator[Round, dict[str, Message], ShareEpoch]:
    """At the coordinator: have helper and key service delete a party's shares, within the epoch.

    From then on no row can be compared with its splits, whatever copies the coordinator has kept: it never had a share.
    """
    if party not in keys.parties:
        raise PolicyError(f"{party!r} has no shares that could be deleted; the parties are {named(keys.parties)}")
    requests: dict[str, Message] = {
        keys.key_service: keys_msg.RevokeAtService(epoch=keys.epoch, party=party),
        keys.helper: keys_msg.RevokeAtHelper(epoch=keys.epoch, party=party),
    }
    replies = yield Round(KEYS, requests)
    reply_of(replies[keys.key_service], keys_msg.RevokedAtService, keys.key_service)
    reply_of(replies[keys.helper], keys_msg.RevokedAtHelper, keys.helper)
    return replace(keys, parties=tuple(name for name in keys.parties if name != party))


# --- requests ---


@dataclass(frozen=True, eq=False)
class SharedRequest:
    """A request: what the coordinator carries, and what only helper and key service are told.

    Attributes
    ----------
    ticket : Ticket
        Who asks, and how much.
    values : bytes
        The helper's shares, sealed.
    helper, service : RequestPart
        What each is told alone.

    """

    ticket: keys_msg.Ticket
    values: bytes
    helper: RequestPart
    service: RequestPart

    def __repr__(self) -> str:
        return "SharedRequest(secret)"


def share_request(
    rows: ArrayLike,
    *,
    epoch: int,
    requester: str,
    splits: bytes,
    owners: Sequence[str],
    request: bytes | None = None,
    stream: SecretStream | None = None,
    signer: Signer | None = None,
) -> SharedRequest:
    """At the requester: split rows between helper and key service.

    Parameters
    ----------
    rows : array of shape (n_rows, n_features)
        The values, which are compared as float32.
    epoch : int
        The present one.
    requester : str
        The name under which the parties know who asks.
    splits : bytes
        The hash of the splits that the request may be compared with (`SharedSplits.registered`).
    owners : sequence of str
        Whose each column is.
    request : bytes, optional
        The request's name, 16 bytes that were never used; drawn without.
    stream : SecretStream, optional
        Source of randomness; the operating system's without.
    signer : Signer, optional
        The requester's identity.

    Raises
    ------
    DataError
        If a value is missing or infinite, or there are no rows.

    """
    values = np.asarray(rows, np.float64)
    if values.ndim != 2 or values.size == 0:
        raise DataError(f"a request has rows and columns; this one has the shape {values.shape}")
    with np.errstate(over="ignore", under="ignore"):
        bad = np.argwhere(~np.isfinite(values.astype(np.float32)))
    if len(bad):
        row, column = (int(place) for place in bad[0])
        raise DataError(f"row {row}, column {column} of the request is not a finite number; fill it or leave it out")
    stream = stream or SecretStream.fresh()
    ticket = keys_msg.Ticket(
        requester=requester,
        request=stream.bytes(keys_msg.REQUEST_BYTES) if request is None else request,
        epoch=epoch,
        rows=values.shape[0],
        features=values.shape[1],
        digest=b"",
        splits=splits,
        certificate=b"" if signer is None else signer.certificate,
    )
    of_service, of_helper = stream.bytes(KEY_BYTES), stream.bytes(KEY_BYTES)
    service = RequestPart(key=of_service, other=key_commit(of_helper))
    helper = RequestPart(key=of_helper, owners=tuple(owners), other=key_commit(of_service))
    shares = split_compare.helper_shares(split_compare.value_codes(values.ravel()), service_values(service.key, ticket))
    sealed = seal(helper.key, split_compare.write_shares(shares), "values", *asking_facts(ticket))
    ticket = msgspec.structs.replace(ticket, digest=hashlib.sha256(sealed).digest())
    if signer is not None:
        ticket = msgspec.structs.replace(ticket, signature=signer.sign(REQUEST_PURPOSE, ticket_bytes(ticket)))
    return SharedRequest(ticket, sealed, helper, service)


def sealed_bytes(n_values: int) -> int:
    """Bytes of the helper's shares of so many values, sealed."""
    return split_compare.SHARE_BYTES * n_values + SEAL_BYTES


# --- predictions ---


def predict_shared(
    forest: CoordinatorForest,
    splits: SharedSplits,
    keys: ShareEpoch,
    ticket: keys_msg.Ticket,
    values: bytes,
    *,
    columns: NDArray[np.int64] | None = None,
    vote: Vote = "soft",
) -> Generator[Round, dict[str, Message], NDArray[np.float64]]:
    """At the coordinator: the forest's outputs for the rows of a request.

    Parameters
    ----------
    forest : CoordinatorForest
        Structure, owners, and answers of the leaves.
    splits : SharedSplits
        Where the shares of its splits stand.
    keys : ShareEpoch
        Of the present epoch.
    ticket, values
        The request, without what only helper and key service are told.
    columns : int64 array, optional
        For each feature of the forest its column in the request, -1 where it has none; the same order without.
    vote : {"soft", "hard"}
        Whether trees give shares or a vote.

    Returns
    -------
    float64 array of shape (n_rows, n_outputs)

    Raises
    ------
    EpochError, DataError, PolicyError, CiphertextError
        If the request is not for this forest; and what members refuse with.

    """
    leaf = yield from walk_shared(forest, splits, keys, ticket, values, columns=columns)
    return outputs_from_leaves(leaf, forest.leaves, vote)


def walk_shared(
    forest: CoordinatorForest,
    splits: SharedSplits,
    keys: ShareEpoch,
    ticket: keys_msg.Ticket,
    values: bytes,
    *,
    columns: NDArray[np.int64] | None = None,
) -> Generator[Round, dict[str, Message], NDArray[np.int32]]:
    """The leaf of each row in each tree; see `predict_shared`."""
    _check_request(forest, splits, keys, ticket, values, columns)
    owners = [forest.parties[number] for number in np.unique(forest.owner[forest.owner >= 0]).tolist()]
    if columns is None:
        columns = np.arange(ticket.features)
    structure = forest.structure
    if owners:
        replies = yield Round(PHASE, dict.fromkeys(owners, msg.AdmitRequest(ticket=ticket)))
        leaves = {name: reply_of(replies[name], msg.RequestAdmitted, name).leave for name in owners}
        take = msg.TakeValues(ticket=ticket, values=values, leaves=leaves)
        replies = yield Round(PHASE, {keys.helper: take})
        reply_of(replies[keys.helper], msg.ValuesTaken, keys.helper)
    size = max(1, BLOCK_COMPARISONS // max(1, structure.n_trees))
    found = []
    for start in range(0, ticket.rows, size):
        rows = np.arange(start, min(start + size, ticket.rows))
        at = np.tile(structure.offset[:-1], (len(rows), 1))
        level = 0
        while True:
            row, tree = np.nonzero(structure.right[at] >= 0)
            if len(row) == 0:
                break
            node = at[row, tree]
            progress = Progress(start, ticket.rows, f"level {level}")
            larger = yield from _compare(forest, splits, keys, ticket, rows[row], node, columns, progress)
            at[row, tree] = np.where(larger, structure.right[node], node + 1)
            level += 1
        found.append(structure.leaf[at])
    return np.concatenate(found)


def _compare(
    forest: CoordinatorForest,
    splits: SharedSplits,
    keys: ShareEpoch,
    ticket: keys_msg.Ticket,
    row: NDArray[np.int64],
    node: NDArray[np.int64],
    columns: NDArray[np.int64],
    progress: Progress,
) -> Generator[Round, dict[str, Message], NDArray[np.bool_]]:
    """Whether the row's value is larger than the node's split, for all at once."""
    number = forest.owner[node]
    names = sorted(forest.parties[at] for at in np.unique(number).tolist())
    position = np.zeros(len(forest.parties), np.uint16)
    position[[forest.parties.index(name) for name in names]] = np.arange(len(names))
    owner, place = position[number], splits.place[np.searchsorted(splits.node, node)]
    order = np.lexsort((row, place, owner))  # it says nothing of trees
    fields: dict[str, Any] = {
        "ticket": ticket,
        "owners": tuple(names),
        "owner": owner[order],
        "place": place[order],
        "row": row[order].astype(np.uint32),
        "column": columns[forest.feature[node[order]]].astype(np.uint32),
    }
    helper, service = keys.helper, keys.key_service
    asked: dict[str, Message] = {helper: msg.CompareAtHelper(**fields), service: msg.CompareAtService(**fields)}
    replies = yield Round(PHASE, asked, progress)
    first = reply_of(replies[helper], msg.HelperCompared, helper)
    second = reply_of(replies[service], msg.ServiceCompared, service)
    for name, words, tops in ((helper, first.words, first.tops), (service, second.words, second.tops)):
        if (words.shape, len(tops)) != ((len(order), split_compare.LINE_BYTES), len(order)):
            raise RemoteProtocolError(f"{name} did not answer {len(order)} comparisons")
    larger = np.empty(len(order), bool)
    larger[order] = split_compare.is_larger((first.words, first.tops), (second.words, second.tops))
    return larger


def _check_request(
    forest: CoordinatorForest,
    splits: SharedSplits,
    keys: ShareEpoch,
    ticket: keys_msg.Ticket,
    values: bytes,
    columns: NDArray[np.int64] | None,
) -> None:
    """Refuse a request that is not for this forest, before anybody is asked."""
    if splits.epoch != keys.epoch or ticket.epoch != keys.epoch:
        raise EpochError(
            f"the request is of epoch {ticket.epoch}, the forest of epoch {splits.epoch}, and the keys are of epoch "
            f"{keys.epoch}"
        )
    if ticket.splits != splits.registered:
        raise EpochError("the request is signed for other splits than those of the forest; encrypt it again")
    features = len(forest.feature_keys)
    if columns is None and ticket.features != features:
        raise DataError(f"the request has {ticket.features} features, and the forest {features}")
    if columns is not None:
        used = np.unique(forest.feature[forest.feature >= 0])
        absent = used[(columns[used] < 0) | (columns[used] >= ticket.features)]
        if len(absent):
            raise DataError(f"the request lacks {len(absent)} of the {len(used)} features that the forest splits")
    owners = np.unique(forest.owner[forest.owner >= 0])
    gone = [forest.parties[owner] for owner in owners if forest.parties[owner] not in keys.parties]
    if gone:
        raise PolicyError(f"the forest has splits of {named(gone)}, whose shares have been deleted")
    if hashlib.sha256(values).digest() != ticket.digest:
        raise CiphertextError("the values are not those that the requester's ticket is for")
