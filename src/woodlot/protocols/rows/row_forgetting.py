"""A forest over rows becomes the one without some rows: its clients grow it again, and as little of it as they can.

What grows is what a training on the other rows would grow. In local forests a tree depends on the rows of the client
that has grown it, and on the columns, categories and classes of all clients. Where these stay the same, only the
clients that had the rows grow their trees again. In the other forests every node is of all clients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np

from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest, categories_of
from woodlot.protocols.rows.collaborative import CollaborativePlan
from woodlot.protocols.rows.extra_plan import ExtraTreesPlan
from woodlot.protocols.rows.local_forests import FilledTrees, LocalPlan, grow_shares, shares_of
from woodlot.protocols.rows.lossless import LosslessPlan
from woodlot.protocols.rows.methods import HorizontalPlan, protocol_of
from woodlot.protocols.rows.schema import Rounds, agree_on_schema
from woodlot.trees.alone import WholeTrees
from woodlot.trees.forest import take_leaves

P = TypeVar("P", bound=HorizontalPlan)
NOISY = (
    "this forest was grown under differential privacy: growing it without the rows draws new noise and spends privacy "
    "budget again, so it is not the same forest without them. Train it again without the rows"
)


class GrownAgain(NamedTuple):
    """A forest without some rows.

    Attributes
    ----------
    forest, part
        The whole model.
    kept : tuple of int
        Trees that stand as they were.
    """

    forest: CoordinatorForest
    part: PartyForest
    kept: tuple[int, ...]


def check_forgets(plan: HorizontalPlan) -> None:
    """Refuse a plan with noise: the forest would be another one each time, and would be paid for again."""
    noisy = isinstance(plan, CollaborativePlan) and plan.dp_leaf_epsilon is not None
    noisy |= isinstance(plan, ExtraTreesPlan) and plan.ranges == "private-quantiles"
    if plan.protects or noisy:
        raise DataError(NOISY)


def plan_of_all(plan: P) -> P:
    """The plan of a training, by which no client is spared: a forest forgets with all of its clients, or waits."""
    return msgspec.structs.replace(plan, spare_after=None, quorum=None) if isinstance(plan, LosslessPlan) else plan


def grow_without_rows(
    plan: HorizontalPlan,
    clients: Sequence[str],
    forest: CoordinatorForest,
    part: PartyForest,
    gone: Mapping[str, int],
) -> Rounds:
    """Coordinator: grow a forest again on the rows that are left; returns a `GrownAgain`.

    Parameters
    ----------
    plan, clients
        As in the training.
    forest, part
        The whole model before; it is not changed.
    gone : mapping of str to int
        How many of its rows each client has lost.
    """
    if not isinstance(plan, LocalPlan):
        whole, splits = yield from protocol_of(plan, clients)
        return GrownAgain(whole, splits, ())
    schema = yield from agree_on_schema(clients, plan.task, plan.max_bins)
    growing = [client for client in clients if schema.n_rows[client] > 0]
    before = [client for client in clients if schema.n_rows[client] + gone[client] > 0]
    stays = (part.names, categories_of(part.codings), forest.classes) == (
        schema.names, schema.categories, schema.classes,
    )  # fmt: skip
    kept = {}
    if stays and growing == before and forest.structure.n_trees == plan.n_estimators:
        shares = shares_of(plan, growing)
        kept = {client: (share, _taken(forest, part, share)) for client, share in shares.items() if not gone[client]}
    trees = {client: trees for client, (_, trees) in kept.items()}
    whole, splits = yield from grow_shares(plan, clients, schema, trees)
    return GrownAgain(whole, splits, tuple(tree for share, _ in kept.values() for tree in share))


def _taken(forest: CoordinatorForest, part: PartyForest, trees: range) -> FilledTrees:
    """Some trees of a whole model."""
    structure = forest.structure
    low, high = (int(structure.offset[tree]) for tree in (trees.start, trees.stop))
    node = np.flatnonzero(structure.right < 0)
    leaves = take_leaves(forest.leaves, np.flatnonzero((node >= low) & (node < high)))
    taken = WholeTrees(structure, part.splits).take(trees.start, trees.stop)
    return FilledTrees(taken, leaves, forest.gain[low:high])
