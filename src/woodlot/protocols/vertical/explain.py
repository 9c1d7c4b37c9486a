"""An explanation at the leader: parties tell sides, the leader divides the answers among the columns.

1. Every party that has columns of the forest says what it lets an explanation show.
2. Some rows at a time, every party that splits nodes tells their sides at all of its nodes.
3. The leader, who has the shape of the trees, the weights and answers of the leaves and the coded column of each node,
   computes the Shapley values. Columns of a party that keeps their names to itself are added up.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.bits import unpack
from woodlot.protocols.core.forest_parts import CoordinatorForest, splitting_parties
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.vertical import explain_messages as msg
from woodlot.trees.predict import Vote
from woodlot.trees.ranks import n_blocks
from woodlot.trees.shapley import ForestShapley
from woodlot.trees.wire import row_words


class ExplainedFeature(NamedTuple):
    """What a part of an answer is due to: a column, or all columns of a party."""

    party: str
    column: str | None
    """Its name, where the party lets it be told; None stands for all of the party's columns together."""


@dataclass(frozen=True, eq=False)
class ExplainedRows:
    """Answers for some rows, divided among parties and columns."""

    features: tuple[ExplainedFeature, ...]
    values: NDArray[np.float64]
    """By row, feature and output."""
    base: NDArray[np.float64]
    """What the forest answers without any column, by output."""
    outputs: NDArray[np.float64]
    """What it answers, by row and output."""
    uncertain: NDArray[np.bool_]
    """Rows that a party lacks, or that were explained without one."""
    texts: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """By number of the feature the rows' values in words, where the party tells them."""


def explain_forest(
    forest: CoordinatorForest, present: Sequence[str], n_rows: int, *, vote: Vote, n_jobs: int
) -> Generator[Round, dict[str, Message], ExplainedRows]:
    """Divide the answers for the rows among parties and columns.

    Parameters
    ----------
    forest : CoordinatorForest
        The leader's part.
    present : sequence of str
        Parties that can be asked. At nodes of others rows take both branches, and these parties get no part.
    n_rows : int
        How many rows there are.
    vote : {"soft", "majority"}
        How the trees' answers become the forest's.
    n_jobs : int
        Threads.
    """
    if n_rows < 1:
        raise DataError("there are no rows to explain; give at least one")
    asked = [p for i, p in enumerate(forest.parties) if p in present and (forest.feature_party == i).any()]
    told: dict[str, msg.ExplainedColumns] = {}
    if asked:
        replies = yield Round("explain", {p: msg.AskExplained() for p in asked})
        told = {p: reply_of(reply, msg.ExplainedColumns, p) for p, reply in replies.items()}
    features, place = _places(forest, told)
    shapley = ForestShapley(
        forest.structure, forest.leaves, forest.feature, forest.owner, place, len(forest.parties), vote
    )
    splitting = [p for p in splitting_parties(forest) if p in present]
    telling = [p for p in asked if told[p].tells_values]
    found, texts = [], {p: [list[str]() for _ in told[p].names or ()] for p in telling}
    step = 64 * max(1, msg.MAX_WORDS // max(1, int((forest.owner >= 0).sum())))
    for first in range(0, n_rows, step):
        n = min(step, n_rows - first)
        progress = Progress(first, n_rows, "explaining rows")
        sides = np.zeros((n_blocks(n), forest.structure.n_nodes), np.uint64)
        known = np.zeros((len(forest.parties), n_blocks(n)), np.uint64)
        requests: dict[str, Message] = {p: msg.AskAllSides(first_row=first, n_rows=n) for p in splitting}
        replies = (yield Round("explain", requests, progress)) if requests else {}
        for party, reply in replies.items():
            _read_sides(forest, party, reply_of(reply, msg.AllSides, party), n, sides, known)
        for rows in _in_messages(range(first, first + n), [len(columns) for columns in texts.values()]):
            asked_values = msg.AskRowValues(first_row=rows.start, n_rows=len(rows))
            replies = yield Round("explain", dict.fromkeys(telling, asked_values))
            for party, reply in replies.items():
                _read_texts(texts[party], party, reply_of(reply, msg.RowValues, party), len(rows))
        part = shapley.explain(sides, known, n, n_jobs)
        if vote == "majority" and part.uncertain.any():
            raise DataError(
                "with voting='majority' a row that a party lacks cannot be explained, for its trees vote after both "
                "branches were weighted; explain rows that all parties have, or fit with voting='soft'"
            )
        found.append(part)
    numbers = {feature: k for k, feature in enumerate(features)}
    return ExplainedRows(
        features,
        np.concatenate([part.values for part in found]),
        shapley.base,
        np.concatenate([part.outputs for part in found]),
        np.concatenate([part.uncertain for part in found]),
        {
            numbers[ExplainedFeature(party, name)]: tuple(column)
            for party in telling
            for name, column in zip(told[party].names or (), texts[party], strict=True)
        },
    )


def _places(
    forest: CoordinatorForest, told: dict[str, msg.ExplainedColumns]
) -> tuple[tuple[ExplainedFeature, ...], NDArray[np.int64]]:
    """What the result is divided among, and to which of these each coded column belongs."""
    features: list[ExplainedFeature] = []
    place = np.zeros(len(forest.feature_party), np.int64)
    for number, party in enumerate(forest.parties):
        own = np.flatnonzero(forest.feature_party == number)
        names = told[party].names if party in told else None
        if names is not None and not len(names) == len(set(names)) == len(own):
            raise RemoteProtocolError(f"{party} names {len(names)} columns, and has trained with {len(own)}")
        if names is None and len(own):
            place[own] = len(features)
            features.append(ExplainedFeature(party, None))
        elif names is not None:
            place[own] = len(features) + np.arange(len(own))
            features += [ExplainedFeature(party, name) for name in names]
    return tuple(features), place


def _in_messages(rows: range, n_columns: Sequence[int]) -> Iterator[range]:
    """The rows, so many at a time that the words of their values fit into a message; none where nobody tells values."""
    step = max(1, msg.MAX_TEXTS // max((1, *n_columns)))
    for start in rows[::step] if n_columns else ():
        yield range(start, min(start + step, rows.stop))


def _read_sides(
    forest: CoordinatorForest,
    party: str,
    reply: msg.AllSides,
    n_rows: int,
    sides: NDArray[np.uint64],
    known: NDArray[np.uint64],
) -> None:
    number = forest.parties.index(party)
    nodes, blocks = np.flatnonzero(forest.owner == number), n_blocks(n_rows)
    if len(reply.words) != blocks * len(nodes):
        raise RemoteProtocolError(f"{party} sent {len(reply.words)} words of sides for {len(nodes)} nodes")
    has = None if reply.known is None else unpack(reply.known, n_rows, f"rows of {party}").astype(bool)
    rows = row_words(n_rows, has)
    words = reply.words.reshape(blocks, len(nodes))
    if (words & ~rows[:, None]).any():
        raise RemoteProtocolError(f"{party} sent sides of rows that it does not have")
    sides[:, nodes] = words
    known[number] = rows


def _read_texts(columns: list[list[str]], party: str, reply: msg.RowValues, n_rows: int) -> None:
    if len(reply.texts) != len(columns) * n_rows:
        raise RemoteProtocolError(f"{party} sent {len(reply.texts)} values for {n_rows} rows of {len(columns)} columns")
    for k, column in enumerate(columns):
        column += reply.texts[k * n_rows : (k + 1) * n_rows]
