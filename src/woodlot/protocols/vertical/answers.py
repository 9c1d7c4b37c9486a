"""Prediction at a party: its columns matched to those of the training, and its answers in each wire form."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn, NumericColumn
from woodlot.data.tables import Table
from woodlot.exceptions import DataError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.core.bits import pack
from woodlot.protocols.core.forest_parts import PartyForest
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical import explain_messages as explained
from woodlot.protocols.vertical import forest_messages as msg
from woodlot.protocols.vertical.sealed import Sealer
from woodlot.protocols.vertical.sealed_messages import AskSealed, SealedLeaves
from woodlot.trees import wire
from woodlot.trees.encoding import CategoryCoding, Coding, UnseenWarning, match_codes
from woodlot.trees.shapley import SideTeller
from woodlot.trees.stepwise import Paths, answer_questions


def match_columns(names: Sequence[str], codings: Sequence[Coding], table: Table) -> list[NDArray[Any]]:
    """The table's columns in the order, and the codes, of the training's.

    Unseen categories count as missing, with a warning; a column that is absent or of another kind is an error.
    """
    absent = table.absent(names)
    if absent:
        raise DataError(f"columns of the training are missing: {absent}; give the table the columns it was fitted with")
    return [_match(name, coding, table) for name, coding in zip(names, codings, strict=True)]


def _match(name: str, coding: Coding, table: Table) -> NDArray[Any]:
    column = table.column(name)
    if isinstance(coding, CategoryCoding):
        if isinstance(column, NumericColumn):
            if np.isnan(column.values).all():  # a column of nothing but nulls has no kind of its own
                return np.full(len(column.values), len(coding.categories), np.int32)
            raise DataError(
                f"column {name!r} was categorical in training and is numeric now; give it as text or category"
            )
        codes, unseen = match_codes(coding, column)
        if unseen:
            warnings.warn(UnseenWarning(name, unseen), stacklevel=2)
        return codes
    if isinstance(column, CategoryColumn):
        if (column.codes < 0).all():
            return np.full(len(column.codes), np.nan, np.float32)
        raise DataError(f"column {name!r} was numeric in training and is categorical now; convert it to numbers")
    return column.values


class PartyAnswers:
    """A party's answers for the rows of one table."""

    def __init__(self, forest: PartyForest, table: Table, known: NDArray[np.bool_] | None, n_jobs: int) -> None:
        self._forest = forest
        self._columns = match_columns(forest.names, forest.codings, table)
        self._n_rows = table.n_rows
        self._known = known
        self._n_jobs = n_jobs
        self._predictor = wire.PartyPredictor(forest.structure, forest.splits)
        self._paths: Paths | None = None
        self._possible: tuple[object, wire.Reply | None] = (None, None)

    def decide(self, message: msg.AskDecisions) -> Message:
        """One round for the whole forest."""
        columns = self._shuffled(message.shuffled, message.seed)
        reply = self._predictor.answer(message.wire, columns, self._n_rows, self._known, self._n_jobs)
        known = None if self._known is None else pack(self._known)
        if isinstance(reply, wire.DecisionBits):
            return msg.Decisions(stream=reply.stream, lengths=reply.lengths, known=known)
        if isinstance(reply, wire.LeafBits):
            return msg.ReachableLeaves(words=reply.words.ravel(), known=known)
        return msg.Ranks(
            node=reply.node,
            slot=reply.slot,
            cut=reply.cut,
            missing_left=reply.missing_left.astype(np.uint8),
            set_start=reply.set_start,
            sets=reply.sets,
            n_thresholds=reply.n_thresholds,
            n_codes=reply.n_codes,
            codes=reply.codes,
            known=known,
        )

    def most_bytes(self, reply: Message) -> int:
        """Bytes of arrays that an answer of the same form to as many rows has at most, whatever the rows are."""
        known = -(-self._n_rows // 8)
        if isinstance(reply, msg.Decisions):
            return self._predictor.most_bytes(self._n_rows) + known
        if isinstance(reply, msg.ReachableLeaves):
            return reply.words.nbytes + known
        if isinstance(reply, msg.Ranks):
            own: tuple[NDArray[Any], ...] = (
                reply.node,
                reply.slot,
                reply.cut,
                reply.missing_left,
                reply.set_start,
                reply.sets,
            )
            arrays: tuple[NDArray[Any], ...] = (*own, reply.n_thresholds, reply.n_codes, *reply.codes)
            return sum(array.nbytes + 8 for array in arrays) + known
        if isinstance(reply, explained.AllSides):
            return reply.words.nbytes + known
        if isinstance(reply, explained.RowValues):
            codings = self._forest.codings
            return sum(_longest(coding) for coding in codings) * (len(reply.texts) // max(1, len(codings)))
        return 0

    def _shuffled(self, feature: int | None, seed: int) -> list[NDArray[Any]]:
        """The columns, one of them with its values shuffled among the rows."""
        columns = list(self._columns)
        if feature is not None:
            if not 0 <= feature < len(columns):
                raise RemoteProtocolError("there is no such feature to shuffle")
            columns[feature] = columns[feature][np.random.default_rng(seed).permutation(self._n_rows)]
        return columns

    def seal(self, message: AskSealed, sealer: Sealer) -> SealedLeaves:
        """A block of a sealed prediction."""
        if self._known is not None and not self._known.all():
            raise DataError(
                "a sealed prediction needs every row at every party, for both branches cannot be followed under "
                "seal; use join='inner', or predict with sealed=False"
            )
        structure = self._forest.structure
        rows = slice(message.first_row, message.first_row + message.n_rows)
        leaves = slice(message.first_leaf, message.first_leaf + message.n_leaves)
        if rows.stop > self._n_rows or leaves.stop > structure.n_leaves:
            raise RemoteProtocolError("AskSealed names rows or leaves that do not exist")
        asked = (message.first_row, message.n_rows, message.shuffled, message.seed)
        possible = self._possible[1]
        if self._possible[0] != asked:  # the other blocks of leaves of the same rows need not start again
            columns = [column[rows] for column in self._shuffled(message.shuffled, message.seed)]
            possible = self._predictor.answer("leaves", columns, message.n_rows, None, self._n_jobs)
        if not isinstance(possible, wire.LeafBits):
            raise LocalProtocolError("sealed answers are made from possible leaves")
        splits_all = len(self._forest.splits.node) == int((structure.right >= 0).sum())
        sealed = sealer.seal(message, np.ascontiguousarray(possible.words[:, leaves]), splits_all)
        self._possible = (asked, possible)
        return sealed

    def sides(self, message: msg.AskNodes) -> msg.Sides:
        """The classical method: one node per row and tree."""
        if self._known is not None and not self._known.all():
            raise DataError("the classical method needs every row at every party; use method='one-round'")
        structure, splits = self._forest.structure, self._forest.splits
        paths = Paths(structure, self._n_rows) if self._paths is None else self._paths
        bits = answer_questions(structure, splits, self._columns, message.rows, message.nodes)
        paths.follow(message.rows, message.nodes, bits)
        self._paths = paths
        return msg.Sides(bits=bits)

    # --- explanations ---

    def all_sides(self, message: explained.AskAllSides) -> explained.AllSides:
        """The sides of some rows at all own nodes."""
        rows = self._rows_of(message.first_row, message.n_rows)
        if -(-message.n_rows // 64) * len(self._forest.splits.node) > explained.MAX_WORDS and message.n_rows > 64:
            raise RemoteProtocolError(
                f"AskAllSides asks for more than {explained.MAX_WORDS:,} words; ask for fewer rows"
            )
        words = self._all_nodes.answer(self._columns, self._known, self._n_rows, rows)
        known = None if self._known is None else pack(self._known[rows])
        return explained.AllSides(words=words.ravel(), known=known)

    @cached_property
    def _all_nodes(self) -> SideTeller:
        return SideTeller(self._forest.splits)

    def row_values(self, message: explained.AskRowValues) -> explained.RowValues:
        """The values of some rows, in words."""
        rows = self._rows_of(message.first_row, message.n_rows)
        texts: list[str] = []
        for column, coding in zip(self._columns, self._forest.codings, strict=True):
            texts += values_in_words(column[rows], coding)
        return explained.RowValues(texts=tuple(texts))

    def _rows_of(self, first: int, n_rows: int) -> slice:
        if first + n_rows > self._n_rows:
            raise RemoteProtocolError("an explanation is asked for rows that do not exist")
        return slice(first, first + n_rows)


def _longest(coding: Coding) -> int:
    """Bytes of the longest value of a column in words, as a message holds it."""
    words = (*coding.categories, "missing") if isinstance(coding, CategoryCoding) else ("-1.23457e-308",)
    return max(len(word.encode()) for word in words) + 5  # with what says how long it is


def values_in_words(values: NDArray[Any], coding: Coding) -> list[str]:
    """Values of a column as people read them, "missing" where there is none."""
    if isinstance(coding, CategoryCoding):
        names = (*coding.categories, "missing")
        return [names[min(code, len(coding.categories))] for code in values.view(np.uint32).tolist()]
    return ["missing" if np.isnan(value) else f"{value:.6g}" for value in values.tolist()]
