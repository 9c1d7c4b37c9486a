"""Federated Forest, prediction at the coordinator: Algorithm 4 and 8 in one round, and the classical method."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.bits import unpack
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.vertical import forest_messages as msg
from woodlot.trees import wire
from woodlot.trees.collect import Collector
from woodlot.trees.predict import Vote, outputs_from_leaves
from woodlot.trees.stepwise import NodeByNode

Prediction = tuple[NDArray[np.float64], NDArray[np.bool_]]


def predict_in_one_round(
    forest: CoordinatorForest,
    present: Sequence[str],
    n_rows: int,
    form: msg.Wire,
    vote: Vote,
    n_jobs: int,
    shuffled: tuple[int, int] | None = None,
) -> Generator[Round, dict[str, Message], Prediction]:
    """Every party that splits nodes answers once; returns the outputs, and which rows are uncertain.

    Parameters
    ----------
    present : sequence of str
        Parties that can be asked. Rows follow both branches at the nodes of the others.
    form : {"decisions", "leaves", "ranks"}
        What the parties send.
    shuffled : (feature, seed), optional
        Permutation importance: the feature whose values its party shuffles among the rows first.

    """
    replies, known = yield from gather_replies(forest, present, n_rows, form, shuffled)
    collector = Collector(forest.structure, forest.owner, forest.leaves, len(forest.parties))
    return collector.outputs(replies, known, n_rows, vote, n_jobs)


def gather_replies(
    forest: CoordinatorForest, present: Sequence[str], n_rows: int, form: msg.Wire, shuffled: tuple[int, int] | None
) -> Generator[Round, dict[str, Message], tuple[list[wire.Reply | None], list[NDArray[np.bool_] | None]]]:
    """Ask every party that is present and splits nodes; returns the answers, and which rows each has (None: all)."""
    needed = [p for i, p in enumerate(forest.parties) if p in present and (forest.owner == i).any()]
    requests: dict[str, Message] = {}
    for p in needed:
        slot, seed = None, 0
        if shuffled is not None and forest.place_of(shuffled[0])[0] == p:
            slot, seed = forest.place_of(shuffled[0])[1], shuffled[1]
        requests[p] = msg.AskDecisions(wire=form, shuffled=slot, seed=seed)
    answers = (yield Round("predict", requests)) if requests else {}
    return read_answers(answers, forest, n_rows)


def read_answers(
    answers: Mapping[str, Message], forest: CoordinatorForest, n_rows: int
) -> tuple[list[wire.Reply | None], list[NDArray[np.bool_] | None]]:
    """What the parties of a forest have answered, None for those that have not; and which rows each has, None: all."""
    replies: list[wire.Reply | None] = []
    known: list[NDArray[np.bool_] | None] = []
    for p in forest.parties:
        if p in answers:
            reply, rows = _from_wire(answers[p], forest, n_rows, p)
            replies.append(reply)
            known.append(rows)
        else:
            replies.append(None)
            known.append(None)
    return replies, known


def _from_wire(
    answer: Message, forest: CoordinatorForest, n_rows: int, party: str
) -> tuple[wire.Reply, NDArray[np.bool_] | None]:
    if isinstance(answer, msg.Decisions):
        reply: wire.Reply = wire.DecisionBits(answer.stream, answer.lengths)
    elif isinstance(answer, msg.ReachableLeaves):
        n_leaves = forest.structure.n_leaves
        if len(answer.words) != (n_rows + 63) // 64 * n_leaves:
            raise RemoteProtocolError(f"{party} sent {len(answer.words)} words of reachable leaves")
        reply = wire.LeafBits(answer.words.reshape(-1, n_leaves))
    elif isinstance(answer, msg.Ranks):
        reply = wire.RankCodes(
            node=answer.node,
            slot=answer.slot,
            cut=answer.cut,
            missing_left=answer.missing_left.astype(bool),
            set_start=answer.set_start,
            sets=answer.sets,
            n_thresholds=answer.n_thresholds,
            n_codes=answer.n_codes,
            codes=answer.codes,
        )
    else:
        raise RemoteProtocolError(f"{party} answered a prediction with {type(answer).__name__}")
    known = None if answer.known is None else unpack(answer.known, n_rows, f"rows of {party}").astype(bool)
    return reply, known


def predict_node_by_node(
    forest: CoordinatorForest, present: Sequence[str], n_rows: int, vote: Vote
) -> Generator[Round, dict[str, Message], Prediction]:
    """The classical method: one round per level, and every party learns which rows reach its nodes."""
    absent = {p for i, p in enumerate(forest.parties) if p not in present and (forest.owner == i).any()}
    if absent:
        raise DataError(f"the classical method needs every party; {sorted(absent)} are absent: use method='one-round'")
    walk = NodeByNode(forest.structure, forest.owner, n_rows)
    while questions := walk.questions():
        requests: dict[str, Message] = {
            forest.parties[i]: msg.AskNodes(rows=rows, nodes=nodes) for i, (rows, nodes) in questions.items()
        }
        replies = yield Round("predict", requests)
        walk.step({i: reply_of(replies[forest.parties[i]], msg.Sides, forest.parties[i]).bits for i in questions})
    return outputs_from_leaves(walk.leaves(), forest.leaves, vote), np.zeros(n_rows, bool)
