"""One-round prediction, the coordinator's side: from the parties' replies to the forest's answers.

The coordinator knows the shape of the trees, who owns which node, and what the leaves answer. Where a party
is absent, or lacks a row, the row follows both branches at that party's nodes, weighted by the training
weights, and the row is reported as uncertain. All forms of reply give the same floats, and for certain rows
those of ``predict``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.trees.checks import check_decisions, check_leaves, check_ranks
from woodlot.trees.forest import Leaves, Structure
from woodlot.trees.kernels.reach import Tests, decode_decisions, decode_leaves, decode_ranks
from woodlot.trees.kernels.settle import TreesShape, measure_trees
from woodlot.trees.kernels.walk import MAX_SLOTS, LeafAnswers, add_answers
from woodlot.trees.parallel import effective_jobs, run_chunks
from woodlot.trees.predict import Vote, Walker, answers_of
from woodlot.trees.ranks import Codes, RankedQuestions, fill_slot, pack_words, writable
from woodlot.trees.wire import (
    DecisionBits,
    LeafBits,
    RankCodes,
    Reply,
    blocks_of,
    chunks_of,
    row_words,
    view_trees,
)

Known = Sequence[NDArray[np.bool_] | None]
"""Per party the rows that it has; None: all."""


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Some rows on their way to an answer: the arguments that all decoding kernels share."""

    number: int
    rows: slice
    shape: TreesShape
    answers: LeafAnswers
    known: NDArray[np.uint64]
    valid: NDArray[np.uint64]
    leaf: NDArray[np.int32]
    out: NDArray[np.float64]
    uncertain: NDArray[np.bool_] | None
    """None where every party knows every row: the kernels' code for doubts is then not even compiled."""


class Collector:
    """The coordinator's part in one-round prediction, prepared once for any number of rounds.

    Parameters
    ----------
    structure : Structure
        The shape of the trees.
    owner : array of int16
        Which party owns each node, -1 at leaves.
    leaves : Leaves
        What the leaves answer.
    n_parties : int
        Replies and masks come as sequences of this length.

    """

    def __init__(self, structure: Structure, owner: NDArray[np.int16], leaves: Leaves, n_parties: int) -> None:
        if n_parties < 1:
            raise ValueError("There must be at least one party.")
        inner = structure.right >= 0
        if owner.shape != inner.shape or (owner[inner] < 0).any() or (owner[inner] >= n_parties).any():
            raise ValueError("Every inner node must belong to one of the parties.")
        self._structure = structure
        self._leaves = leaves
        self._owned = [inner & (owner == party) for party in range(n_parties)]
        self._views = view_trees(structure, self._owned)[0]
        right, leaf = writable(structure.right), writable(structure.leaf)
        share_left = np.ones(structure.n_nodes)
        share_right = np.zeros(structure.n_nodes)
        depth = measure_trees(right, leaf, writable(leaves.weight), share_left, share_right)
        jump = np.where(inner, structure.right - np.arange(structure.n_nodes), 0)
        self._shape = TreesShape(
            offset=writable(structure.offset),
            jump=jump.astype(np.int32),
            leaf=leaf,
            owner=writable(owner.astype(np.int16, copy=False)),
            share_left=share_left,
            share_right=share_right,
            max_nodes=int(np.diff(structure.offset).max(initial=1)),
            max_depth=int(depth),
        )

    def outputs(
        self,
        replies: Sequence[Reply | None],
        known: Known,
        n_rows: int,
        vote: Vote = "soft",
        n_jobs: int | None = None,
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Mean answer of the trees for every row.

        Parameters
        ----------
        replies : sequence of replies or None
            One per party, all of the same form; None for a party that did not answer.
        known : sequence of bool arrays or None
            Per party the rows that it has; None: all.
        n_rows : int
            Number of rows that were asked about.
        vote : {"soft", "majority"}
            Whether a tree answers with its leaf's values or gives one vote to the largest of them.
        n_jobs : int or None
            Threads, as in scikit-learn.

        Returns
        -------
        outputs : array of float64, shape (n_rows, n_outputs)
        uncertain : array of bool, shape (n_rows,)
            Rows that followed both branches somewhere.

        """
        answers = answers_of(self._leaves, vote)
        known_words = self._known_words(replies, known, n_rows)
        decode = self._decoder(replies, known_words, n_rows)
        out = np.zeros((n_rows, self._leaves.n_outputs))
        uncertain = np.zeros(n_rows, np.bool_)
        self._run(decode, answers, known_words, out, uncertain, None, n_jobs)
        out /= self._structure.n_trees
        return out, uncertain

    def leaves_from_decisions(
        self,
        replies: Sequence[DecisionBits | None],
        known: Known,
        n_rows: int,
        n_jobs: int | None = None,
    ) -> NDArray[np.int32]:
        """Leaf of every row in every tree, -1 where the row followed both branches.

        Parameters
        ----------
        replies : sequence of DecisionBits or None
            One per party; None for a party that did not answer.
        known : sequence of bool arrays or None
            Per party the rows that it has; None: all.
        n_rows : int
            Number of rows that were asked about.
        n_jobs : int or None
            Threads, as in scikit-learn.

        Returns
        -------
        array of int32, shape (n_rows, n_trees)

        """
        silent = np.zeros(len(self._leaves.weight) + 1, np.int64)
        answers = LeafAnswers(silent, np.zeros(0, np.int32), np.zeros(0), self._leaves.top, np.zeros((0, 0)), False)
        known_words = self._known_words(replies, known, n_rows)
        decode = self._decoder(replies, known_words, n_rows)
        leaf = np.empty((n_rows, self._structure.n_trees), np.int32)
        self._run(decode, answers, known_words, np.zeros((n_rows, 0)), np.zeros(n_rows, np.bool_), leaf, n_jobs)
        return leaf

    def _known_words(self, replies: Sequence[Reply | None], known: Known, n_rows: int) -> NDArray[np.uint64]:
        """Per party one bit per row; a party that owns no node knows all that it is asked."""
        if len(replies) != len(self._owned) or len(known) != len(self._owned):
            raise ValueError(f"There must be one reply and one mask for each of {len(self._owned)} parties.")
        words = np.empty((len(self._owned), len(row_words(n_rows, None))), np.uint64)
        for party, (reply, mask) in enumerate(zip(replies, known, strict=True)):
            words[party] = row_words(n_rows, mask)
            if not self._owned[party].any():
                words[party] = row_words(n_rows, None)
            elif reply is None:
                words[party] = 0
        return words

    def _run(
        self,
        decode: Callable[[_Chunk], None],
        answers: LeafAnswers,
        known: NDArray[np.uint64],
        out: NDArray[np.float64],
        uncertain: NDArray[np.bool_],
        leaf: NDArray[np.int32] | None,
        n_jobs: int | None,
    ) -> None:
        chunks = chunks_of(len(out))
        valid = row_words(len(out), None)
        everything_known = bool((known == valid).all())

        def one(number: int) -> None:
            rows = chunks[number]
            blocks = blocks_of(rows)
            found = np.empty((self._structure.n_trees, rows.stop - rows.start), np.int32)
            chunk = _Chunk(
                number=number,
                rows=rows,
                shape=self._shape,
                answers=answers,
                known=np.ascontiguousarray(known[:, blocks]),
                valid=valid[blocks],
                leaf=found,
                out=out[rows],
                uncertain=None if everything_known else uncertain[rows],
            )
            decode(chunk)
            if leaf is not None:
                leaf[rows] = found.T

        run_chunks(one, range(len(chunks)), effective_jobs(n_jobs))

    def _decoder(
        self, replies: Sequence[Reply | None], known: NDArray[np.uint64], n_rows: int
    ) -> Callable[[_Chunk], None]:
        """Check the replies and prepare what turns them into answers."""
        present = [reply for reply in replies if reply is not None]
        if all(isinstance(reply, DecisionBits) for reply in present):
            return self._decisions_decoder(replies, n_rows)  # type: ignore[arg-type]
        if all(isinstance(reply, LeafBits) for reply in present):
            return self._leaves_decoder(replies, known, n_rows)  # type: ignore[arg-type]
        if all(isinstance(reply, RankCodes) for reply in present):
            return self._ranks_decoder(replies, n_rows)  # type: ignore[arg-type]
        raise RemoteProtocolError("The parties answered in different forms.")

    def _decisions_decoder(self, replies: Sequence[DecisionBits | None], n_rows: int) -> Callable[[_Chunk], None]:
        starts = [check_decisions(reply, n_rows, party) for party, reply in enumerate(replies)]

        def decode(chunk: _Chunk) -> None:
            parts = [np.zeros(0, np.uint64)]
            for reply, start in zip(replies, starts, strict=True):
                if reply is not None:
                    parts.append(reply.stream[start[chunk.number] : start[chunk.number + 1]])
            lengths = [int(start[chunk.number + 1] - start[chunk.number]) for start in starts]
            bounds = np.append(0, np.cumsum(lengths)).astype(np.int64)
            wrong = decode_decisions(
                chunk.shape,
                chunk.answers,
                self._views,
                np.concatenate(parts),
                bounds[:-1].copy(),
                bounds[1:].copy(),
                chunk.known,
                chunk.valid,
                chunk.leaf,
                chunk.out,
                chunk.uncertain,
            )
            if wrong >= 0:
                raise RemoteProtocolError(f"Party {wrong} sent decisions of the wrong length.")

        return decode

    def _leaves_decoder(
        self, replies: Sequence[LeafBits | None], known: NDArray[np.uint64], n_rows: int
    ) -> Callable[[_Chunk], None]:
        n_leaves = len(self._leaves.weight)
        for party, reply in enumerate(replies):
            check_leaves(reply, n_rows, n_leaves, party)

        def decode(chunk: _Chunk) -> None:
            reachable = np.full((len(chunk.valid), n_leaves), ~np.uint64(0))
            for party, reply in enumerate(replies):
                if reply is not None:
                    # what a party says about rows that it does not have counts for nothing
                    reachable &= reply.words[blocks_of(chunk.rows)] | ~chunk.known[party, :, np.newaxis]
            if not decode_leaves(
                chunk.shape,
                chunk.answers,
                reachable,
                chunk.known,
                chunk.valid,
                chunk.leaf,
                chunk.out,
                chunk.uncertain,
            ):
                raise RemoteProtocolError("The parties' reachable leaves contradict each other.")

        return decode

    def _ranks_decoder(self, replies: Sequence[RankCodes | None], n_rows: int) -> Callable[[_Chunk], None]:
        present: list[RankCodes] = []
        for party, reply in enumerate(replies):
            if reply is not None:
                check_ranks(reply, n_rows, np.flatnonzero(self._owned[party]), party)
                present.append(reply)
        questions, slots = merge_questions(present)
        first = np.searchsorted(questions.node, self._structure.offset).astype(np.int64)
        tests = Tests(questions.word, questions.set_start, questions.sets, questions.n_numeric)
        walker = Walker(self._structure, questions)

        def block_codes(rows: slice) -> Codes:
            codes = questions.new_blocks(rows.stop - rows.start)
            for reply, targets in zip(present, slots, strict=True):
                for source, target in enumerate(targets.tolist()):
                    wide = widen(reply.codes[source][rows], source < len(reply.n_thresholds))
                    fill_slot(codes, target, wide)
            return codes.reshape(-1)

        def decode(chunk: _Chunk) -> None:
            codes = block_codes(chunk.rows)
            if (chunk.known == chunk.valid).all():
                for trees, leaf in walker.leaves(codes, chunk.rows.stop - chunk.rows.start):
                    add_answers(chunk.answers, leaf, chunk.out)
                    chunk.leaf[trees] = leaf[:, : chunk.leaf.shape[1]]
                return
            decode_ranks(
                chunk.shape,
                chunk.answers,
                questions.node,
                first,
                tests,
                codes,
                questions.n_slots,
                chunk.known,
                chunk.valid,
                chunk.leaf,
                chunk.out,
                chunk.uncertain,
            )

        return decode


def widen(codes: NDArray[Any], is_numeric: bool) -> Codes:
    """Codes as the kernels take them: missing numbers have the code 0xFFFF whatever the type on the wire."""
    if codes.dtype != np.uint8:
        return codes
    wide = codes.astype(np.uint16)
    if is_numeric:
        wide[codes == 0xFF] = 0xFFFF
    return wide


def merge_questions(replies: Sequence[RankCodes]) -> tuple[RankedQuestions, list[NDArray[np.int64]]]:
    """All parties' questions in one table, and for each party the places of its slots there."""
    n_numeric = sum(len(reply.n_thresholds) for reply in replies)
    if n_numeric + sum(len(reply.n_codes) for reply in replies) > MAX_SLOTS:
        raise RemoteProtocolError(f"The parties' questions are on more than {MAX_SLOTS} columns.")
    places: list[NDArray[np.int64]] = []
    numeric, categorical = 0, n_numeric
    for reply in replies:
        n, c = len(reply.n_thresholds), len(reply.n_codes)
        places.append(np.append(numeric + np.arange(n), categorical + np.arange(c)).astype(np.int64))
        numeric, categorical = numeric + n, categorical + c

    none = np.zeros(0, np.int64)
    node = np.concatenate([none, *(reply.node for reply in replies)])
    slot = np.concatenate([none, *(place[reply.slot] for place, reply in zip(places, replies, strict=True))])
    cut = np.concatenate([none, *(reply.cut.astype(np.int64) for reply in replies)])
    missing_left = np.concatenate([none.astype(np.bool_), *(reply.missing_left for reply in replies)])
    lengths = np.concatenate([none, *(np.diff(reply.set_start) for reply in replies)])
    sets = np.concatenate([none.astype(np.uint8), *(reply.sets for reply in replies)])

    order = np.argsort(node)
    start = (np.cumsum(lengths) - lengths)[order]
    new_start = np.append(0, np.cumsum(lengths[order]))
    moved = np.repeat(start - new_start[:-1], lengths[order]) + np.arange(len(sets))
    questions = RankedQuestions(
        node=node[order].astype(np.int32),
        word=pack_words(slot, cut, missing_left, n_numeric)[order],
        set_start=new_start.astype(np.int64),
        sets=sets[moved],
        n_numeric=n_numeric,
        n_codes=np.concatenate([none, *(reply.n_codes for reply in replies)]),
    )
    return questions, places
