"""Private forests: random trees, boosted on sums with noise.

::

    round 1, 2    every client   the declared columns, categories and classes
    round 3, 4    every client   agreement on keys for secure sums; from here on clients can be spared
    a round       every client   rows by class, or rows and the sum of targets; histograms of the columns: with noise
    a round       every client   is brought all trees
    then, for each tree
      a round     every client   gradients and rows in each of its leaves, with noise

Questions are drawn at random, from the declared ranges or where the histograms say that rows are. A tree's answers are
the means of the gradients in its leaves. They follow from noisy sums by `answers_of`: a node's answer differs from that
of its parent by no more than can be told from noise, so that trees may be deep. All that happens here is done with
numbers that have their noise already, and so costs nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import ConfigError
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.rows.declared_schema import Declared, describe_columns, use_declared
from woodlot.protocols.rows.private import private_messages as msg
from woodlot.protocols.rows.private.gradients import edges_of
from woodlot.protocols.rows.private.private_client import histogram_columns
from woodlot.protocols.rows.private.private_plan import CELLS, PrivatePlan, Terms
from woodlot.protocols.rows.private.smoothing import Answers, answers_of
from woodlot.protocols.rows.schema import CommonSchema, Rounds
from woodlot.protocols.rows.whole_forest import fields_of, whole_forest
from woodlot.protocols.sums import SumSession, ask_clients, open_sums, sum_round
from woodlot.protocols.sums.sum_messages import SumOrder
from woodlot.trees.alone import WholeTrees, join_trees
from woodlot.trees.extra import Axes, GrowingTrees
from woodlot.trees.fill import EMPTY_WEIGHT
from woodlot.trees.forest import Leaves
from woodlot.trees.sampling import derive_seed

PHASE = "boost"
QUANTILES = 16
"""Steps of a column's axis, each with about as many rows."""
SEEN = 2.0
"""Standard deviations of the noise above which a cell of a histogram is taken for more than noise."""
_FEWEST_ROWS = 2.0


def private_forest(plan: PrivatePlan, clients: Sequence[str]) -> Rounds:
    """Coordinator: grow the forest; returns the parts of the whole model.

    Parameters
    ----------
    plan : PrivatePlan
        What to grow.
    clients : sequence of str
        Everybody who takes part.
    """
    schema = yield from describe_columns(clients, plan.task, hide_rows=True)
    declared = Declared(plan.knots, plan.known_categories)
    schema = yield from use_declared(clients, schema, declared, plan.classes or (), plan.max_bins)
    ranges = histogram_columns(plan, schema.names, schema.categories) if plan.private_knots else {}
    try:
        terms = Terms(plan, len(ranges), len(clients))
    except ValueError as error:
        raise ConfigError(str(error)) from None
    session = yield from open_sums(clients, allow_two=plan.allow_two, spare_after=plan.spare_after, quorum=plan.needed)
    n_counts = len(schema.classes) or 2
    totals = yield from sum_round(
        session,
        PHASE,
        lambda order: msg.CountTotals(order=order),
        length=n_counts + CELLS * len(ranges),
        progress=Progress(0, plan.n_estimators, "totals"),
    )
    noise = terms.deviation(len(session.summed))
    start, n_rows = _start(plan, totals[:n_counts] / terms.total_steps, noise / terms.total_steps)
    knots = _knots(ranges, totals[n_counts:].reshape(-1, CELLS) / terms.cell_steps, noise / terms.cell_steps)
    trees = draw_trees(plan, schema, knots, plan.depth(n_rows))
    taken = msg.TakeTrees(**fields_of(trees, 0), start=start)
    replies = yield from ask_clients(session, PHASE, taken)
    for client, reply in replies.items():
        reply_of(reply, msg.TreesTaken, client)
    boosted, left_at = yield from _boost(plan, session, trees, terms)
    gain = np.concatenate([b.gain for b in boosted])
    forest, part = whole_forest(trees, _leaves(plan, schema, start, boosted), gain, schema)
    return replace(forest, left=tuple(sorted(left_at)), left_at=left_at), part


def _boost(
    plan: PrivatePlan, session: SumSession, trees: WholeTrees, terms: Terms
) -> Generator[Round, dict[str, Message], tuple[list[Answers], dict[str, int]]]:
    """Ask for the gradients of one tree after the other, each with the answers of the one before.

    Returns also the clients that dropped out, and in how many trees each was.
    """
    boosted: list[Answers] = []
    left_at = dict.fromkeys(session.left, 0)
    width = plan.n_scores + 1
    for number in range(plan.n_estimators):
        structure = trees.take(number, number + 1).structure
        told = boosted[-1].leaf if boosted else np.empty((0, plan.n_scores))
        sums = yield from sum_round(
            session,
            PHASE,
            partial(_gradients_of, number, told),
            length=structure.n_leaves * width,
            progress=Progress(number, plan.n_estimators, f"tree {number + 1}/{plan.n_estimators}"),
        )
        boosted.append(answers_of(structure, sums.reshape(-1, width), terms, len(session.summed)))
        # who drops out while masks are taken off is in this sum, and in none after it
        left_at |= {name: number + (name in session.summed) for name in session.left if name not in left_at}
    return boosted, left_at


def _gradients_of(tree: int, answers: NDArray[np.float64], order: SumOrder) -> Message:
    return msg.SumGradients(tree=tree, answers=answers, order=order)


# --- what follows from the totals ---


def _start(plan: PrivatePlan, counts: NDArray[np.float64], noise: float) -> tuple[NDArray[np.float64], float]:
    """The score that every row starts from, and about how many rows there are."""
    if plan.task == "targets":
        n_rows = max(_FEWEST_ROWS, float(counts[0]))
        return np.clip(counts[1:] / (n_rows + noise), -1.0, 1.0), n_rows
    rows = np.maximum(counts, 0.0) + max(1.0, noise / 4)
    shares = rows / rows.sum()
    n_rows = max(_FEWEST_ROWS, float(counts.sum()))
    if plan.n_scores == 1:
        return np.array([math.log(shares[1] / shares[0])]), n_rows
    scores = np.log(shares)
    return np.maximum(scores - scores.mean(), -4.0), n_rows


def _knots(
    ranges: dict[str, tuple[float, float]], cells: NDArray[np.float64], noise: float
) -> dict[str, NDArray[np.float64]]:
    """Where thresholds of each column are drawn: between quantiles of its histogram, as far as it can be seen."""
    knots = {}
    for (name, ends), rows in zip(ranges.items(), cells, strict=True):
        seen = np.where(rows > SEEN * noise, rows, 0.0)
        edges = edges_of(ends)
        if seen.sum() > 0:
            below = np.concatenate([[0.0], np.cumsum(seen)]) / seen.sum()
            rising = below + np.linspace(0.0, 1e-6, len(below))
            inner = np.interp(np.linspace(0, 1, QUANTILES + 1), rising, edges)
            knots[name] = np.unique([ends[0], *inner, ends[1]])
    return knots


def draw_trees(
    plan: PrivatePlan, schema: CommonSchema, knots: dict[str, NDArray[np.float64]], depth: int
) -> WholeTrees:
    """Complete trees of random questions; each on some of the columns, if so ordered."""
    seed = derive_seed(plan.seed, "order")
    declared = [np.unique(plan.knots.get(name, (0.0,))) for name in schema.names]
    axes = Axes(
        schema.names,
        tuple(
            knots.get(name, ends) if found is None else np.empty(0)
            for name, ends, found in zip(schema.names, declared, schema.categories, strict=True)
        ),
        schema.categories,
    )
    if plan.columns_per_tree is None or plan.columns_per_tree >= len(schema.names):
        return _complete(GrowingTrees(axes, plan.n_estimators, seed), depth)
    asked = np.flatnonzero(axes.tops != 0)
    orders = _column_orders(asked, plan.columns_per_tree, plan.n_estimators, seed)
    return join_trees(
        [
            _complete(GrowingTrees(_only(axes, columns), 1, derive_seed(plan.seed, f"tree {number}")), depth)
            for number, columns in enumerate(orders)
        ]
    )


def _column_orders(asked: NDArray[np.int64], width: int, n_trees: int, seed: int) -> list[NDArray[np.int64]]:
    """The columns of each tree: all of them in turn, in an order that is drawn again when it is used up."""
    chance = np.random.Generator(np.random.Philox(seed))
    order: NDArray[np.int64] = np.empty(0, np.int64)
    found = []
    for _ in range(n_trees):
        if len(order) < width:
            order = np.concatenate([order, chance.permutation(asked)])
        found.append(order[:width])
        order = order[width:]
    return found


def _only(axes: Axes, columns: NDArray[np.int64]) -> Axes:
    """Axes on which only some columns can be asked."""
    chosen = set(columns.tolist())
    return Axes(
        axes.names,
        tuple(knots if f in chosen else np.empty(0) for f, knots in enumerate(axes.knots)),
        tuple(None if some is None else some if f in chosen else () for f, some in enumerate(axes.categories)),
    )


def _complete(growing: GrowingTrees, depth: int) -> WholeTrees:
    """Split every node that can be, down to a depth."""
    while len(growing.nodes) and int(growing.depth[0]) < depth:
        drawn = growing.draw(1)
        some = drawn.any_at
        growing.close(some)
        drawn = drawn.take(np.flatnonzero(some))
        growing.decide(drawn, np.zeros(len(growing.nodes), np.int64), False)
    return growing.finish()[0]


# --- the model ---


def _leaves(plan: PrivatePlan, schema: CommonSchema, start: NDArray[np.float64], boosted: Sequence[Answers]) -> Leaves:
    """Leaves whose mean over the trees is the score: of two classes half of it for one, half against the other."""
    scores = np.concatenate([start + len(boosted) * answers.leaf for answers in boosted])
    weight = np.maximum(np.concatenate([answers.rows for answers in boosted]), EMPTY_WEIGHT)
    if plan.task == "targets":
        low, high = plan.target_range or (0.0, 1.0)
        value = low + (high - low) * (scores + 1) / 2
        return Leaves(weight, np.arange(len(value) + 1), np.zeros(len(value), np.int32), value[:, 0], 1)
    if plan.n_scores == 1:
        scores = np.column_stack([-scores / 2, scores / 2])
    n, k = scores.shape
    output = np.tile(np.arange(k, dtype=np.int32), n)
    return Leaves(weight, np.arange(n + 1) * k, output, scores.ravel(), len(schema.classes), "softmax")
