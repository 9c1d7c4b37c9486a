"""Local forests (the slides' non-collaborative federated forest): each client grows its share of the trees alone.

::

    round 1, 2   every client             the common schema
    round 3      every client with rows   its share of the trees, with their leaves
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.bits import smallest_unsigned
from woodlot.protocols.core.handling import takes
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.rows import row_messages as msg
from woodlot.protocols.rows.row_client import GrowthPlan, HorizontalClient, RowClientState
from woodlot.protocols.rows.schema import CommonSchema, Rounds, agree_on_schema
from woodlot.protocols.rows.whole_forest import fields_of, trees_of, whole_forest
from woodlot.trees.alone import LeafEntries, WholeTrees, grow_alone, join_trees, take_structure
from woodlot.trees.fill import fill_leaves
from woodlot.trees.forest import Leaves, Structure, join_leaves

CELLS_AT_ONCE = 1 << 22
"""Numbers in one tally of leaves: trees are filled a few at a time."""


class LocalPlan(GrowthPlan, frozen=True, tag="local"):
    """Each client grows its share of the trees alone.

    Attributes
    ----------
    row_weights : bool, unset by default
        Whether clients have weights of rows.
    """

    row_weights: bool | msgspec.UnsetType = msgspec.UNSET


class FilledTrees(NamedTuple):
    """Trees of one client, their leaves, and the gain of each node."""

    trees: WholeTrees
    leaves: Leaves
    gain: NDArray[np.float64]


def local_forests(plan: LocalPlan, clients: Sequence[str]) -> Rounds:
    """Coordinator: have every client grow its share alone; returns the parts of the whole model.

    The trees are dealt as evenly as can be to the clients that have rows, in the order of the clients.
    """
    schema = yield from agree_on_schema(clients, plan.task, plan.max_bins)
    return (yield from grow_shares(plan, clients, schema, {}))


def shares_of(plan: LocalPlan, growing: Sequence[str]) -> dict[str, range]:
    """The trees of each of the clients that have rows; a client without any is left out."""
    dealt = zip(growing, deal_trees(plan.n_estimators, len(growing)), strict=True)
    return {client: share for client, share in dealt if len(share)}


def grow_shares(
    plan: LocalPlan, clients: Sequence[str], schema: CommonSchema, kept: Mapping[str, FilledTrees]
) -> Rounds:
    """Coordinator: have every client grow its share alone, but those whose trees are ``kept``; returns the model."""
    settings = plan.settings(len(schema.names))
    shares = shares_of(plan, [client for client in clients if schema.n_rows[client] > 0])
    requests: dict[str, Message] = {
        client: msg.GrowAlone(settings=settings, first_tree=share.start, n_trees=len(share))
        for client, share in shares.items()
        if client not in kept
    }
    replies = yield Round("grow", requests, Progress(0, plan.n_estimators, "each client alone"))
    grown, makers = [], []
    for client, share in shares.items():
        if client in kept:
            filled = kept[client]
        else:
            reply = reply_of(replies[client], msg.LocalTrees, client)
            part = trees_of(reply, schema.categories, client)
            if part.structure.n_trees != len(share):
                raise RemoteProtocolError(f"{client} sent {part.structure.n_trees} trees instead of {len(share)}")
            filled = FilledTrees(part, *_fill(part.structure, reply, schema, plan.criterion, client))
        grown.append(filled)
        makers.append(np.full(filled.trees.structure.n_nodes, clients.index(client), np.int16))
    trees, leaves = join_trees([own.trees for own in grown]), join_leaves([own.leaves for own in grown])
    return whole_forest(trees, leaves, np.concatenate([own.gain for own in grown]), schema, np.concatenate(makers))


def deal_trees(n_trees: int, n_subsets: int) -> list[range]:
    """Neighbouring trees in subsets as even as can be."""
    bounds = [n_trees * i // n_subsets for i in range(n_subsets + 1)]
    return [range(a, b) for a, b in pairwise(bounds)]


def tree_chunks(structure: Structure, width: int) -> list[range]:
    """Neighbouring trees, as many as their tally of so many numbers per node allows."""
    chunks, first = [], 0
    for stop in range(1, structure.n_trees + 1):
        ahead = structure.offset[min(stop + 1, structure.n_trees)] - structure.offset[first]
        if stop == structure.n_trees or ahead * width > CELLS_AT_ONCE:
            chunks.append(range(first, stop))
            first = stop
    return chunks


def _fill(
    structure: Structure, reply: msg.LocalTrees, schema: CommonSchema, criterion: str, client: str
) -> tuple[Leaves, NDArray[np.float64]]:
    """The leaves as the client has filled them, checked."""
    entries, output = reply.entries.astype(np.int64), reply.output.astype(np.int64)
    weight, n_outputs = reply.weight.astype(np.float64), schema.n_outputs
    regression = not schema.classes
    if (
        len(entries) != structure.n_leaves
        or (entries == 0).any()
        or not int(entries.sum()) == len(output) == len(weight)
        or len(reply.total) != (len(output) if regression else 0)
        or (output >= n_outputs).any()
        or (weight <= 0).any()
        or not np.isfinite(reply.total).all()
    ):
        raise RemoteProtocolError(f"{client} sent leaves that do not fit its trees")
    node = np.repeat(np.flatnonzero(structure.right < 0), entries)
    filled, gains = [], []
    for trees in tree_chunks(structure, n_outputs):
        low, high = (int(structure.offset[t]) for t in (trees.start, trees.stop))
        some = slice(*np.searchsorted(node, [low, high]).tolist())
        sums = np.zeros((high - low, n_outputs))
        np.add.at(sums, (node[some] - low, output[some]), (reply.total if regression else weight)[some])
        rows: NDArray[np.float64] = np.zeros(high - low)
        np.add.at(rows, node[some] - low, weight[some])
        part = take_structure(structure, trees.start, trees.stop)
        leaves, gain = fill_leaves(part, rows, rows, sums, criterion)
        filled.append(leaves)
        gains.append(gain)
    return join_leaves(filled), np.concatenate(gains)


class LocalClient(HorizontalClient):
    """A client that grows its share of the trees alone.

    States are those of `HorizontalClient`; in *ready* it takes GrowAlone. It grows one share (``_share``): the same
    request again gives the same trees, any other is refused. The order does not say how large a share may be: the trees
    are divided among the clients that have rows.
    """

    _share: range | None = None

    @takes(msg.GrowAlone, when=RowClientState.ready)
    def _on_GrowAlone(self, message: msg.GrowAlone) -> msg.LocalTrees:
        field, growth = self.growth(message.settings)
        if field.n_rows == 0:
            raise RemoteProtocolError("GrowAlone must ask a client with rows")
        trees = range(message.first_tree, message.first_tree + message.n_trees)
        self.check_trees(message, trees)
        if self._share not in (None, trees):
            raise RemoteProtocolError("GrowAlone asks for another share of the trees than before")
        grown, totals = grow_alone(field, growth, trees, None if field.n_classes else self.target.values)
        self._share = trees
        self.note_trees(message, trees)
        return msg.LocalTrees(**fields_of(grown, message.first_tree), **_leaf_fields(grown.structure, totals))


def _leaf_fields(structure: Structure, totals: LeafEntries) -> dict[str, Any]:
    """Entries in the order of leaves and classes."""
    order = np.lexsort((totals.output, totals.node))
    per_node = np.bincount(totals.node, minlength=structure.n_nodes)
    return {
        "entries": smallest_unsigned(per_node[structure.right < 0]),
        "output": smallest_unsigned(totals.output[order]),
        "weight": smallest_unsigned(totals.weight[order]),
        "total": totals.total[order] if len(totals.total) else totals.total,
    }
