"""RevFRF at the coordinator: construction (FLE-Expan and FOS-Find, Protocols 1 and 2) and regrowing (Protocol 3).

One level of every tree costs one round, however many trees and nodes there are::

    coordinator -> participants   what has won above, sides of the rows, which features are candidates where
    participants -> coordinator   split vectors: one bin per row for each candidate feature at each open node

The coordinator (CS) alone has the labels and knows which rows were drawn how often; it judges every candidate. A
participant learns which of its candidates won and keeps the thresholds. The coordinator never sees one in clear: the
splits are encrypted under their providers' keys when the trees stand (`rotate.encrypt_splits`).

The coordinator keeps the rows of every node. So a revocation begins at the nodes that change, and nothing above them or
beside them costs a round: at level 1 the nodes of the leaver, at level 3 those whose search could end otherwise without
it (see `vertical.regrow`; here nobody goes on searching behind the candidates).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.forest_plan import check_summaries
from woodlot.protocols.core.leavers import Level, check_leavers
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.core.target import Target
from woodlot.protocols.revocable import growth_messages as msg
from woodlot.protocols.revocable.growth import RevocableGrowth
from woodlot.protocols.revocable.outcome import Outcome
from woodlot.protocols.revocable.revocable_model import Rebuilding
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.trees.forest import Leaves, Structure
from woodlot.trees.kernels.rows import preorder


@dataclass(frozen=True, eq=False)
class Constructed:
    """A forest, what is needed to grow its nodes again, and what became of a former one's nodes.

    Attributes
    ----------
    removed, regrown : int64 array
        Nodes of each tree that were destroyed, and that were made in their place.
    searched : int
        Nodes that were searched for a split.
    origin : int64 array
        For each node the one of the former forest that it still is, -1 for a new one.
    """

    forest: CoordinatorForest
    rebuilding: Rebuilding
    removed: NDArray[np.int64]
    regrown: NDArray[np.int64]
    searched: int
    origin: NDArray[np.int64]


def construct(
    plan: RevocablePlan, parties: tuple[str, ...], target: Target, n_jobs: int = 1
) -> Generator[Round, dict[str, Message], Constructed]:
    """Grow a revocable forest over the participants' columns.

    Parameters
    ----------
    plan : RevocablePlan
        What to grow.
    parties : tuple of str
        The participants.
    target : Target
        The coordinator's labels.
    n_jobs : int
        Threads.
    """
    n_rows, keys, owner = yield from _open(plan, parties, regrows=False)
    growth = RevocableGrowth(plan, parties, keys, owner, target, n_rows, n_jobs)
    growth.plant()
    return (yield from _grown(growth))


def regrow(
    plan: RevocablePlan,
    former: CoordinatorForest,
    rebuilding: Rebuilding,
    leavers: Sequence[str],
    level: Level,
    target: Target,
    n_jobs: int = 1,
    patched: bool = False,
) -> Generator[Round, dict[str, Message], Constructed]:
    """Take participants out of a forest; the former one is not changed, and the leavers are not asked anything.

    Parameters
    ----------
    plan : RevocablePlan
        What the former forest was grown by.
    former, rebuilding
        The forest, and the rows of its nodes.
    leavers : sequence of str
        Who leaves, together.
    level : {1, 3}
        Their nodes only, or exact.
    target : Target
        The coordinator's labels.
    n_jobs : int
        Threads.
    patched : bool
        Whether the last revocation from the former forest was not exact: then level 3 searches every node.
    """
    check_leavers(former.parties, None, leavers)
    parties = tuple(p for p in former.parties if p not in leavers)
    n_rows, keys, owner = yield from _open(plan, parties, regrows=True)
    stays = ~np.isin(former.feature_party, [former.parties.index(leaver) for leaver in leavers])
    if n_rows != former.n_rows or not np.array_equal(keys, former.feature_keys[stays]):
        raise DataError("the participants' rows or columns are not those that the forest was grown on")
    growth = RevocableGrowth(plan, parties, keys, owner, target, n_rows, n_jobs)
    growth.take_over(former, rebuilding, stays, level, patched)
    return (yield from _grown(growth))


def _open(
    plan: RevocablePlan, parties: tuple[str, ...], regrows: bool
) -> Generator[Round, dict[str, Message], tuple[int, NDArray[np.uint64], NDArray[np.int64]]]:
    """Rows, codes of all features, and whose they are."""
    ask = msg.OpenConstruction(rho=plan.rho, zeta=plan.zeta, regrows=regrows)
    replies = yield Round("prepare", dict.fromkeys(parties, ask))
    summaries = [reply_of(replies[p], msg.ParticipantSummary, p) for p in parties]
    n_rows = check_summaries({p: s.n_rows for p, s in zip(parties, summaries, strict=True)})
    keys = np.concatenate([np.empty(0, np.uint64), *(s.feature_keys for s in summaries)])
    if len(keys) == 0:
        raise DataError("no participant has a column to learn from")
    if len(np.unique(keys)) != len(keys):
        raise DataError("two columns have the same code; rename one of the columns with equal names")
    return n_rows, keys, np.repeat(np.arange(len(parties)), [len(s.feature_keys) for s in summaries])


def _grown(growth: RevocableGrowth) -> Generator[Round, dict[str, Message], Constructed]:
    outcome = yield from growth.grow()
    return (yield from _finish(growth, outcome))


def _finish(growth: RevocableGrowth, outcome: Outcome) -> Generator[Round, dict[str, Message], Constructed]:
    n_former = len(growth.former)
    position = np.full(len(growth.left), -1, np.int64)
    offset = np.zeros(growth.n_trees + 1, np.int64)
    right = np.full(len(growth.left), -1, np.int32)
    preorder(growth.left, growth.n_trees, position, offset, right)
    structure = Structure(offset, right[: int(offset[-1])].copy())
    standing = np.flatnonzero(position >= 0)
    feature = np.full(structure.n_nodes, -1, np.int32)
    feature[position[standing]] = growth.feature[standing]
    gain = np.zeros(structure.n_nodes)
    gain[position[standing]] = growth.gain[standing]
    owner = np.where(feature >= 0, growth.owner[feature], -1).astype(np.int16)
    leaf = standing[growth.left[standing] < 0]
    leaf = leaf[np.argsort(position[leaf])]
    leaves = _leaves(growth, leaf)
    forest = CoordinatorForest(
        structure=structure,
        owner=owner,
        feature=feature,
        gain=gain,
        leaves=leaves,
        parties=growth.parties,
        feature_keys=growth.keys,
        feature_party=growth.owner,
        classes=growth.target.classes,
        sampling=growth.sampling,
        n_rows=growth.n_rows,
    )
    unchanged = np.zeros(len(growth.left), bool)
    unchanged[:n_former] = (position[:n_former] >= 0) & ~growth.changed[:n_former]
    yield from _tell(growth, structure, position, unchanged, outcome, n_former)
    rebuilding = Rebuilding(growth.rows, np.concatenate([growth.start[leaf], growth.end[leaf[-1:]]]))
    survivors = np.bincount(_tree_of(growth, position[unchanged], offset), minlength=growth.n_trees)
    former_sizes = np.zeros(growth.n_trees, np.int64)
    if growth.former_forest is not None:
        former_sizes = np.diff(growth.former_forest.structure.offset)
    origin = np.full(structure.n_nodes, -1, np.int64)
    origin[position[unchanged]] = growth.former[unchanged[:n_former]]
    return Constructed(
        forest, rebuilding, former_sizes - survivors, np.diff(offset) - survivors, growth.n_searched, origin
    )


def _tree_of(growth: RevocableGrowth, position: NDArray[np.int64], offset: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(offset, position, side="right") - 1


def _tell(
    growth: RevocableGrowth,
    structure: Structure,
    position: NDArray[np.int64],
    unchanged: NDArray[np.bool_],
    outcome: Outcome,
    n_former: int,
) -> Generator[Round, dict[str, Message], None]:
    """Say where each participant's splits stand now: those of the former forest, and those won again."""
    moved_to = np.where(unchanged[:n_former], position[:n_former], -1)
    requests: dict[str, Message] = {}
    for i, p in enumerate(growth.parties):
        if not (growth.owner == i).any():
            continue
        moved = np.empty(0, np.int32)
        if growth.former_forest is not None:
            number = growth.former_forest.parties.index(p)
            by_node = np.full(growth.former_forest.structure.n_nodes, -1, np.int64)
            by_node[growth.former] = moved_to
            moved = by_node[growth.former_forest.owner == number].astype(np.int32)
        won = np.concatenate([np.empty(0, np.int64), *growth.won[p]])
        requests[p] = msg.FinishConstruction(
            offset=structure.offset, right=structure.right, moved=moved, node=position[won].astype(np.int32),
            **outcome.told(p),
        )  # fmt: skip
    replies = yield Round("grow", requests, Progress(1, 1, "splits stored"))
    for p, reply in replies.items():
        reply_of(reply, msg.ConstructionDone, p)


def _leaves(growth: RevocableGrowth, leaf: NDArray[np.int64]) -> Leaves:
    """What the leaves answer: shares of the classes, or the mean target."""
    sizes = growth.end[leaf] - growth.start[leaf]
    number = np.repeat(np.arange(len(leaf)), sizes)
    at = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes - growth.start[leaf], sizes)
    rows, weights = growth.rows[at], growth.weights[at].astype(np.float64)
    mass = np.bincount(number, weights, minlength=len(leaf)).astype(np.float64)
    if not growth.n_classes:
        value = np.bincount(number, weights * growth.target.values[rows], minlength=len(leaf)) / mass
        index = np.arange(len(leaf) + 1)
        return Leaves(mass, index, np.zeros(len(leaf), np.int32), value, 1)
    table = np.bincount(
        number * growth.n_classes + growth.labels[rows], weights, minlength=len(leaf) * growth.n_classes
    ).reshape(len(leaf), growth.n_classes)
    which, output = np.nonzero(table)
    entries = np.bincount(which, minlength=len(leaf))
    start = np.concatenate([[0], np.cumsum(entries)]).astype(np.int64)
    return Leaves(mass, start, output.astype(np.int32), table[which, output] / mass[which], growth.n_classes)
