"""Sealed prediction: the coordinator learns each row's leaf in each tree, and nothing else of the parties' splits.

For every row and leaf a party has the number 0 where its own splits allow the leaf, and else a uniform number of 64
bits. The parties' numbers are added under the pairwise masks of the secure sums. All parties allow exactly one leaf of
a tree: there the sum is 0, and everywhere else it is uniform::

    rounds 1, 2   every party that splits nodes   agree on masks, as for secure sums; not where one party splits all
    then          the same parties                numbers of a block of rows and leaves; one block where all fit in

See docs/protocol/sealed.md.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.agreement import Entropy, derive, secret_bytes
from woodlot.protocols.core.forest_parts import CoordinatorForest, splitting_parties
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.sums import SumClient, open_sums
from woodlot.protocols.sums.keystreams import keystream
from woodlot.protocols.sums.masks import PlainMasker
from woodlot.protocols.vertical import sealed_messages as msg
from woodlot.trees.kernels.seal import clear_possible, find_zeros
from woodlot.trees.predict import Vote, outputs_from_leaves

TAG = "woodlot sealed prediction 1"
"""The protocol and its version; in the key of every random number."""

MIN_BLOCK_ROWS = 64
"""A block has so many rows, or all there are; the leaves of a wider forest go into several blocks."""


def predict_sealed(
    forest: CoordinatorForest,
    present: Sequence[str],
    n_rows: int,
    vote: Vote,
    shuffled: tuple[int, int] | None = None,
) -> Generator[Round, dict[str, Message], tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """Return the outputs, the same as of a plain prediction, and which rows are uncertain: none.

    Parameters
    ----------
    forest : CoordinatorForest
        The coordinator's part.
    present : sequence of str
        Parties that can be asked: all that split nodes must be among them.
    n_rows : int
        Rows to predict.
    vote : {"soft", "majority"}
        What a tree answers.
    shuffled : (feature, seed), optional
        Permutation importance: the feature whose values its party shuffles among the rows first.

    """
    leaf = yield from find_leaves(forest, present, n_rows, shuffled)
    return outputs_from_leaves(leaf, forest.leaves, vote), np.zeros(n_rows, bool)


def find_leaves(
    forest: CoordinatorForest, present: Sequence[str], n_rows: int, shuffled: tuple[int, int] | None = None
) -> Generator[Round, dict[str, Message], NDArray[np.int32]]:
    """The leaf of every row in every tree, and nothing else, from the parties' sealed answers.

    Raises
    ------
    DataError
        If a party that splits nodes is absent: both branches cannot be followed under seal.
    RemoteProtocolError
        If the answers are not those of the parties of one forest.

    """
    asked = tuple(sorted(splitting_parties(forest)))
    absent = [party for party in asked if party not in present]
    if absent:
        raise DataError(
            f"a sealed prediction needs every party that splits nodes, and {absent} are absent; "
            "bring them back, or predict with sealed=False"
        )
    structure = forest.structure
    n_leaves = structure.n_leaves
    tree_of = np.repeat(np.arange(structure.n_trees, dtype=np.int32), leaves_per_tree(forest))
    leaf = np.full((n_rows, structure.n_trees), -1, np.int32)
    if not asked:  # trees of one leaf each
        leaf[:] = np.arange(n_leaves, dtype=np.int32)
        return leaf
    if len(asked) > 1:
        yield from open_sums(asked, allow_two=True)
    feature, seed = (None, 0) if shuffled is None else (forest.place_of(shuffled[0]), shuffled[1])
    blocks = list(blocks_of(n_rows, n_leaves))
    for number, (rows, leaves) in enumerate(blocks):
        requests: dict[str, Message] = {
            party: msg.AskSealed(
                round=number,
                clients=asked,
                first_row=rows.start,
                n_rows=len(rows),
                first_leaf=leaves.start,
                n_leaves=len(leaves),
                shuffled=feature[1] if feature is not None and feature[0] == party else None,
                seed=seed if feature is not None and feature[0] == party else 0,
            )
            for party in asked
        }
        replies = yield Round("predict", requests, Progress(number, len(blocks), "sealed answers"))
        total = np.zeros(len(rows) * len(leaves), np.uint64)
        for party in asked:
            reply = reply_of(replies[party], msg.SealedLeaves, party)
            if reply.round != number or reply.values.shape != total.shape:
                raise RemoteProtocolError(f"{party} did not send the block that was asked for")
            total += reply.values
        part = leaf[rows.start : rows.stop]
        if not find_zeros(total.reshape(len(rows), len(leaves)), leaves.start, tree_of, part):
            raise RemoteProtocolError(_CONTRADICTION)
        if leaves.stop == n_leaves and (part < 0).any():
            raise RemoteProtocolError(_CONTRADICTION)
    return leaf


_CONTRADICTION = (
    "the sealed answers do not lead to one leaf per tree: the parties were told different things, have different "
    "secrets or versions, or a block was changed on its way"
)


def leaves_per_tree(forest: CoordinatorForest) -> NDArray[np.int64]:
    """How many leaves each tree has; leaves are numbered tree after tree."""
    before = np.append(0, np.cumsum(forest.structure.right < 0))
    return np.diff(before[forest.structure.offset])


def blocks_of(n_rows: int, n_leaves: int, limit: int = msg.MAX_ENTRIES) -> Iterator[tuple[range, range]]:
    """Rows and leaves of each block, all leaves of some rows before the next rows."""
    wide = max(1, min(n_leaves, limit // min(MIN_BLOCK_ROWS, n_rows)))
    tall = min(n_rows, limit // wide)
    if MIN_BLOCK_ROWS < tall < n_rows:  # whole words of rows
        tall -= tall % MIN_BLOCK_ROWS
    for first_row in range(0, n_rows, tall):
        for first_leaf in range(0, n_leaves, wide):
            yield (
                range(first_row, min(first_row + tall, n_rows)),
                range(first_leaf, min(first_leaf + wide, n_leaves)),
            )


class Sealer:
    """One party's secrets for the sealed predictions of one job.

    Parameters
    ----------
    name : str
        The party.
    sums : SumClient
        Its masks, agreed on with the others in this job.
    entropy : callable
        From a purpose to secret bytes, always the same for this party and job, so that a party that is restarted
        repeats its answers byte for byte.
    data_digest : bytes
        Of the table and the model that the answers come from: other data have other random numbers.

    """

    def __init__(self, name: str, sums: SumClient, *, entropy: Entropy, data_digest: bytes = b"") -> None:
        self.name = name
        self.sums = sums
        self._secret = derive(TAG, secret_bytes(entropy, f"{TAG} numbers"), data_digest)
        self._alone = PlainMasker(name, (name,))

    def seal(self, ask: msg.AskSealed, possible: NDArray[np.uint64], splits_all: bool) -> msg.SealedLeaves:
        """At the party: its numbers for a block, masked; the same block again gives the same bytes.

        Parameters
        ----------
        ask : AskSealed
            The block.
        possible : uint64 array of shape (ceil(n_rows / 64), n_leaves)
            Bit r of word (b, l): row 64 b + r of the block can reach leaf l of the block.
        splits_all : bool
            Whether this party splits every node. Only then may its numbers go without masks.

        Raises
        ------
        RemoteProtocolError
            If the round was used for another block, or the parties are not those that masks were agreed with.

        """
        if self.name not in ask.clients:
            raise RemoteProtocolError(f"this party, {self.name!r}, is not among those whose answers are added")
        if len(ask.clients) == 1 and not splits_all:
            raise RemoteProtocolError(
                "the answers of one party alone are not sealed where others split nodes as well; name all of them"
            )
        block = (ask.first_row, ask.n_rows, ask.first_leaf, ask.n_leaves)
        asked = (ask.round, ask.clients, *block, ask.shuffled, ask.seed)
        numbers = keystream(derive(TAG, self._secret, *asked), ask.n_rows * ask.n_leaves)
        clear_possible(possible, numbers.reshape(ask.n_rows, ask.n_leaves))
        # were parties asked about different rows, a leaf that all of them allow would tell more than where a row ends
        about = msgspec.msgpack.encode(block)
        masker = self._alone if len(ask.clients) == 1 else self.sums
        return msg.SealedLeaves(round=ask.round, values=masker.mask(ask.round, numbers, ask.clients, about))
