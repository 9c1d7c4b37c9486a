"""FRF-Predict at the coordinator: rows that nobody can read go down trees that nobody can read.

All trees and rows advance one level per step, and a step is three exchanges, so the exchanges depend on the depth of
the forest and not on the number of its trees::

    coordinator -> helper       which row is compared with which split                  (helper.py)
    helper -> coordinator       packed differences, masked and raised to secret factors  (packed.py)
    coordinator -> helper       its half of their decryption
    helper -> coordinator       words, of which the coordinator makes its shares         (dealer.py)
                                its own shares of the results, sealed to the providers
    coordinator -> providers    these
    providers -> coordinator    the shares

x <= s goes left, as in training.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from woodlot.crypto import dealer, packed
from woodlot.crypto.dtpkc import Group, conceal_with
from woodlot.crypto.encoding import DEFAULT_DIGITS, Encoding, encode
from woodlot.crypto.knowledge import prove_known
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import CiphertextError, DataError, EpochError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import Signer, named
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.key_service import MAX_COMPARISONS
from woodlot.protocols.revocable.revocable_keys import CoordinatorKeys
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable, depths
from woodlot.protocols.revocable.tickets import REQUEST_PURPOSE, proof_purpose, ticket_bytes
from woodlot.trees.predict import Vote, outputs_from_leaves

PHASE = "encrypted prediction"

BLOCK_COMPARISONS = 20_000
"""How many comparisons a step has at most: of more rows, blocks go down one after the other."""


@dataclass(frozen=True, eq=False)
class EncryptedRequest:
    """Rows that only coordinator and helper together could open.

    Attributes
    ----------
    ticket : Ticket
        Who asks, and how large it is; signed where the requester has an identity.
    values : uint8 array
        One line of bytes per value, row after row.
    proof : bytes
        That the requester knows the values: nobody can ask about another's, or about a split.

    """

    ticket: msg.Ticket
    values: NDArray[np.uint8]
    proof: bytes


def encrypt_request(
    rows: ArrayLike,
    group: Group,
    *,
    requester: str,
    splits: bytes,
    request: bytes | None = None,
    stream: SecretStream | None = None,
    signer: Signer | None = None,
    encoding: Encoding = "exact",
    digits: int = DEFAULT_DIGITS,
) -> EncryptedRequest:
    """At the requester: encrypt rows.

    Parameters
    ----------
    rows : array of shape (n_rows, n_features)
        The values, columns in the order of the forest's features.
    group : Group
        Of the present epoch.
    requester : str
        The name under which the parties know who asks.
    splits : bytes
        The hash of the splits that the request may be compared with (`EncryptedSplits.registered`).
    request : bytes, optional
        The request's name, 16 bytes that were never used; drawn without.
    stream : SecretStream, optional
        Source of randomness; the operating system's without.
    signer : Signer, optional
        The requester's identity.
    encoding, digits
        How numbers become integers; as the parties have it.

    Raises
    ------
    DataError
        If a value is missing or infinite, or there are no rows.

    """
    values = np.asarray(rows, np.float64)
    if values.ndim != 2 or values.size == 0:
        raise DataError(f"a request has rows and columns; this one has the shape {values.shape}")
    bad = np.argwhere(~np.isfinite(values))
    if len(bad):
        row, column = (int(place) for place in bad[0])
        raise DataError(f"row {row}, column {column} of the request is not a finite number; fill it or leave it out")
    stream = stream or SecretStream.fresh()
    codes = encode(values.ravel(), encoding=encoding, digits=digits).tolist()
    exponents = [group.draw(stream) for _ in codes]
    elements = [conceal_with(group, code, drawn) for code, drawn in zip(codes, exponents, strict=True)]
    lines = group.write(elements)
    ticket = msg.Ticket(
        requester=requester,
        request=stream.bytes(msg.REQUEST_BYTES) if request is None else request,
        epoch=group.epoch,
        rows=values.shape[0],
        features=values.shape[1],
        digest=hashlib.sha256(lines.tobytes()).digest(),
        splits=splits,
        certificate=b"" if signer is None else signer.certificate,
    )
    if signer is not None:
        ticket = msgspec.structs.replace(ticket, signature=signer.sign(REQUEST_PURPOSE, ticket_bytes(ticket)))
    return EncryptedRequest(
        ticket, lines, prove_known(group, elements, codes, exponents, proof_purpose(ticket), stream)
    )


def check_request(
    forest: CoordinatorRevocable,
    keys: CoordinatorKeys,
    request: EncryptedRequest,
    columns: NDArray[np.int64] | None = None,
) -> None:
    """Refuse a request that is not for this forest, before anybody is asked.

    Raises
    ------
    EpochError
        If forest or request are of another epoch than the keys, or the request is for other splits.
    DataError
        If the request has another number of features.
    PolicyError
        If the forest has nodes of somebody who has no key any more.
    CiphertextError
        If the values are not those of the ticket.

    """
    ticket, features = request.ticket, len(forest.forest.feature_keys)
    check_forest(forest, keys)
    if ticket.epoch != keys.epoch:
        raise EpochError(f"the request is of epoch {ticket.epoch}, and the keys are of epoch {keys.epoch}")
    if ticket.splits != forest.splits.registered:
        raise EpochError("the request is signed for other splits than those of the forest; encrypt it again")
    if columns is None and ticket.features != features:
        raise DataError(f"the request has {ticket.features} features, and the forest {features}")
    if columns is not None:
        used = np.unique(forest.forest.feature[forest.forest.feature >= 0])
        absent = used[(columns[used] < 0) | (columns[used] >= ticket.features)]
        if len(absent):
            raise DataError(f"the request lacks {len(absent)} of the {len(used)} features that the forest splits")
    if (
        len(request.values) != ticket.rows * ticket.features
        or hashlib.sha256(request.values.tobytes()).digest() != ticket.digest
    ):
        raise CiphertextError("the values are not those that the requester's ticket is for")


def check_forest(forest: CoordinatorRevocable, keys: CoordinatorKeys) -> None:
    """Refuse a forest of another epoch than the keys, or with splits of a party that has no key any more."""
    if forest.epoch != keys.epoch:
        raise EpochError(f"the forest is of epoch {forest.epoch}, and the keys are of epoch {keys.epoch}")
    owners = np.unique(forest.forest.owner[forest.forest.owner >= 0])
    gone = [forest.forest.parties[owner] for owner in owners if forest.forest.parties[owner] not in keys.parties]
    if gone:
        raise PolicyError(f"the forest has splits of {named(gone)}, whose key has been revoked")


def predict_encrypted(
    forest: CoordinatorRevocable,
    keys: CoordinatorKeys,
    request: EncryptedRequest,
    *,
    columns: NDArray[np.int64] | None = None,
    vote: Vote = "soft",
    threads: int = 1,
) -> Generator[Round, dict[str, Message], NDArray[np.float64]]:
    """At the coordinator: the forest's outputs for the rows of a request.

    Parameters
    ----------
    forest : CoordinatorRevocable
        With encrypted splits of the present epoch.
    keys : CoordinatorKeys
        Of the present epoch.
    request : EncryptedRequest
        From a requester.
    columns : int64 array, optional
        For each feature of the forest its column in the request, -1 where it has none; the same order without.
    vote : {"soft", "hard"}
        Whether trees give shares or a vote.
    threads : int
        For the decryptions.

    Returns
    -------
    float64 array of shape (n_rows, n_outputs)

    Raises
    ------
    EpochError, DataError, PolicyError, CiphertextError
        As for `check_request`, and what members refuse with.

    """
    leaf = yield from walk_encrypted(forest, keys, request, columns=columns, threads=threads)
    return outputs_from_leaves(leaf, forest.forest.leaves, vote)


def walk_encrypted(
    forest: CoordinatorRevocable,
    keys: CoordinatorKeys,
    request: EncryptedRequest,
    *,
    columns: NDArray[np.int64] | None = None,
    threads: int = 1,
) -> Generator[Round, dict[str, Message], NDArray[np.int32]]:
    """The leaf of each row in each tree; see `predict_encrypted`."""
    check_request(forest, keys, request, columns)
    if columns is None:
        columns = np.arange(request.ticket.features)
    walk = _Walk(forest, keys, request, columns, threads)
    n_rows = request.ticket.rows
    most = min(BLOCK_COMPARISONS, MAX_COMPARISONS // max(1, walk.steps))  # of one step, and dealt for all steps
    size = max(1, most // max(1, forest.forest.structure.n_trees))
    found = []
    for block, start in enumerate(range(0, n_rows, size)):
        rows = np.arange(start, min(start + size, n_rows))
        found.append((yield from walk.block(block, rows)))
    return np.concatenate(found)


def _bits(data: bytes, count: int, party: str) -> NDArray[np.uint8]:
    """The bits that a party sent, if they are so many."""
    if len(data) != -(-count // 8):
        raise RemoteProtocolError(f"{party} sent another number of bits than {count}")
    return np.unpackbits(np.frombuffer(data, np.uint8), count=count, bitorder="little")


class _Walk:
    """One request's way down the forest."""

    def __init__(
        self,
        forest: CoordinatorRevocable,
        keys: CoordinatorKeys,
        request: EncryptedRequest,
        columns: NDArray[np.int64],
        threads: int,
    ) -> None:
        self._forest = forest
        self._keys = keys
        self._ticket = request.ticket
        self._values, self._proof = request.values, request.proof
        self._columns = columns
        self._threads = threads
        self._told: dict[int, int] = {}  # nodes, by the numbers under which the helper has their splits
        structure = forest.forest.structure
        depth = depths(structure)
        tree = np.repeat(np.arange(structure.n_trees), np.diff(structure.offset))
        self._tree_depth = np.zeros(structure.n_trees, np.int64)
        np.maximum.at(self._tree_depth, tree, depth)
        self.steps = int(self._tree_depth.max(initial=0))
        self._owners = len(np.unique(forest.forest.owner[forest.forest.owner >= 0]))

    def block(self, block: int, rows: NDArray[np.int64]) -> Generator[Round, dict[str, Message], NDArray[np.int32]]:
        """Some rows, from the roots to the leaves."""
        structure, steps = self._forest.forest.structure, self.steps
        at = np.tile(structure.offset[:-1], (len(rows), 1))
        if steps:
            sizes = tuple(int((self._tree_depth > step).sum()) * len(rows) for step in range(steps))
            service, helper = self._keys.key_service, self._keys.helper
            ask: dict[str, Message] = {
                service: msg.DealComparisons(ticket=self._ticket, block=block, sizes=sizes, owners=self._owners)
            }
            if block == 0:
                ask[helper] = msg.TakeRequest(
                    ticket=self._ticket,
                    values=self._values,
                    proof=self._proof,
                    **self._forest.splits.listed.fields(),
                )
            replies = yield Round(PHASE, ask, Progress(0, steps, "randomness"))
            if helper in ask:
                reply_of(replies[helper], msg.RequestTaken, helper)
            reply = reply_of(replies[service], msg.ComparisonsDealt, service)
            dealt = self._dealt(reply, sizes, service)
        for step in range(steps):
            row, tree = np.nonzero(structure.right[at] >= 0)
            if len(row) == 0:
                break
            node = at[row, tree]
            own, progress = dealt[step], Progress(step, steps, f"level {step}")
            larger = yield from self._compare(block, step, rows[row], node, own, progress)
            at[row, tree] = np.where(larger, structure.right[node], node + 1)
        return structure.leaf[at]

    def _dealt(self, reply: msg.ComparisonsDealt, sizes: Sequence[int], service: str) -> list[_Own]:
        """What the key service has dealt for each step."""
        group = self._keys.group
        packs = [packed.pack_sizes(group, size, self._owners) for size in sizes]
        lines, masks = np.cumsum([0, *map(sum, packs)]), np.cumsum([0, *map(len, packs)])
        shapes = (reply.words.shape, reply.masks.shape, len(reply.proofs))
        if shapes != ((lines[-1], dealer.LINE_BYTES), (masks[-1], group.element_bytes), len(sizes)):
            raise RemoteProtocolError(f"{service} did not deal for {sum(sizes)} comparisons")
        tops = _bits(reply.tops, int(lines[-1]), service)
        return [
            _Own(
                dealer.Dealt(reply.words[lines[step] : lines[step + 1]], tops[lines[step] : lines[step + 1]]),
                size,
                reply.masks[masks[step] : masks[step + 1]],
                reply.proofs[step].tobytes(),
            )
            for step, size in enumerate(sizes)
        ]

    def _compare(
        self,
        block: int,
        step: int,
        row: NDArray[np.int64],
        node: NDArray[np.int64],
        own: _Own,
        progress: Progress,
    ) -> Generator[Round, dict[str, Message], NDArray[np.bool_]]:
        """Whether the row's value is larger than the node's split, for all at once."""
        forest, keys = self._forest.forest, self._keys
        group, helper = keys.group, keys.helper
        place: dict[str, Any] = {"ticket": self._ticket, "block": block, "step": step}
        asked = msg.OpenDifferences(
            **place,
            **self._fresh_splits(node),
            row=row.astype(np.uint32),
            split=np.array([self._told[at] for at in node.tolist()], np.uint32),
            size=own.size,
            owners=self._owners,
            masks=own.masks,
            proof=own.proof,
        )
        replies = yield Round(PHASE, {helper: asked}, progress)
        blinded = group.read(reply_of(replies[helper], msg.DifferencesBlinded, helper).blinded)
        halves = group.write(keys.share.power(blinded, threads=self._threads))
        replies = yield Round(PHASE, {helper: msg.FinishComparisons(**place, halves=halves)})
        finished = reply_of(replies[helper], msg.ComparisonsFinished, helper)

        owners, provider = np.unique(forest.owner[node], return_inverse=True)
        providers = tuple(forest.parties[owner] for owner in owners)
        if set(finished.answers) != set(providers):
            raise RemoteProtocolError(f"{helper} did not answer for {named(providers)}")
        replies = yield Round(
            PHASE, {name: msg.OpenAnswers(**place, answer=finished.answers[name]) for name in providers}
        )
        sizes = packed.pack_sizes(group, own.size, self._owners)
        _, lines = packed.arrange(group, forest.owner[node].tolist(), sizes)
        result = dealer.decide(own.dealt.take(lines), finished.words)
        for number, name in enumerate(providers):
            mine = provider == number
            result[mine] ^= _bits(reply_of(replies[name], msg.AnswersOpened, name).bits, int(mine.sum()), name)
        return result.astype(bool)

    def _fresh_splits(self, node: NDArray[np.int64]) -> dict[str, Any]:
        """What the helper is told of splits that no row came by before; they are numbered from here on.

        They stand in the order in which rows come by. That of the nodes would say which child is the left one.
        """
        forest, splits = self._forest.forest, self._forest.splits
        fresh = np.array([at for at in dict.fromkeys(node.tolist()) if at not in self._told], np.int32)
        self._told.update(zip(fresh.tolist(), range(len(self._told), len(self._told) + len(fresh)), strict=True))
        at = np.searchsorted(splits.node, fresh)
        return {
            "splits": splits.data[at, : self._keys.group.element_bytes],
            "column": self._columns[forest.feature[fresh]].astype(np.uint32),
        }


class _Own(NamedTuple):
    """What was dealt for one step."""

    dealt: dealer.Dealt
    size: int
    masks: NDArray[np.uint8]
    proof: bytes
