"""Federated extra-trees: the coordinator draws questions, the clients count, and all trees grow a level per round.

::

    round 1, 2   every client   the common schema (of labels under differential privacy, nothing)
    round 3, 4   every client   agreement on keys for secure sums
    (a round)    every client   private quantiles of its columns, where thresholds are to follow the data
    (a round)    every client   how many values lie outside of what was declared
    (a round)    every client   rows by class, or the sum of targets
    a level:
      (a round)  every client   proposals of thresholds, where these were ordered
      a round    every client   what each candidate sends left, for all open nodes of all trees
    (a round)    every client   what is in the leaves, where counts have noise of their own

A level has one round more for each 2^24 numbers of its answer. A node that no candidate can split is asked again with
other columns, beside the nodes of later levels. Stopping uses what has been released and nothing else: the depth, and
sums over all clients, of which counts of classes are estimates under differential privacy. Under GlobalDP a node is a
leaf where its rows, or a second class in it, cannot be told from noise.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.privacy.noise import CountNoise
from woodlot.privacy.settings import GlobalDP
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.rows import extra_messages as msg
from woodlot.protocols.rows.extra_plan import ExtraTreesPlan, agree, count_outside, find_axes
from woodlot.protocols.rows.extra_tally import Raw, Reading, Tally, tally_of
from woodlot.protocols.rows.local_forests import tree_chunks
from woodlot.protocols.rows.schema import NO_MAGNITUDE, CommonSchema, Rounds
from woodlot.protocols.rows.whole_forest import fields_of, whole_forest
from woodlot.protocols.sums import SumSession, open_sums, sum_messages, sum_round
from woodlot.trees.alone import WholeTrees
from woodlot.trees.extra import LEAF, SPLITS, Axes, Drawn, GrowingTrees
from woodlot.trees.fill import fill_leaves
from woodlot.trees.kernels import extra as kernels
from woodlot.trees.kernels.extra import Questions
from woodlot.trees.sampling import derive_seed

CELLS_AT_ONCE = 1 << 24
"""Numbers in one answer: what a level has more of is asked in another round."""
_READ_AT_ONCE = 1 << 20
_SPARE_BITS = 8
_CRITERIA = {"gini": kernels.GINI, "entropy": kernels.ENTROPY, "squared_error": kernels.SQUARED_ERROR}


def extra_trees(plan: ExtraTreesPlan, clients: Sequence[str]) -> Rounds:
    """Coordinator: grow the forest; returns the parts of the whole model.

    Parameters
    ----------
    plan : ExtraTreesPlan
        What to grow.
    clients : sequence of str
        Everybody who takes part.
    """
    schema = yield from agree(plan, clients)
    session = yield from open_sums(clients, mode=plan.sums, allow_two=plan.allow_two)
    axes = yield from find_axes(plan, clients, schema)
    outside = yield from count_outside(plan, session, schema)
    growth = _Growth(plan, schema, session, axes)
    leaves_only = isinstance(plan.privacy, GlobalDP) and plan.privacy.leaves_only
    trees, rows, amounts = growth.by_chance() if leaves_only else (yield from growth.grow())
    if growth.tally.asks_leaves:
        rows, amounts = yield from growth.ask_leaves(trees)
    leaves, gain = fill_leaves(trees.structure, rows, rows, amounts, plan.criterion)
    forest, part = whole_forest(trees, leaves, gain, schema)
    return replace(forest, outside=outside), part


# --- growing ---

SEEN = 2.0
"""Standard deviations of the noise above which a number is taken for more than noise."""

Grown = tuple[WholeTrees, NDArray[np.float64], NDArray[np.float64]]


class _Growth:
    """Coordinator: the growing trees, and what has been released of their open nodes."""

    def __init__(self, plan: ExtraTreesPlan, schema: CommonSchema, session: SumSession, axes: Axes) -> None:
        self.plan = plan
        self.schema = schema
        self.session = session
        self.tally: Tally = tally_of(plan.privacy, schema.classes)
        self._noise = _noise_of_a_count(plan, schema, len(session.clients))
        seed = derive_seed(plan.seed, "order")
        self.trees = GrowingTrees(axes, plan.n_estimators, seed, keeps_facts=plan.ranges != "proposals")
        self.width = plan.width(len(schema.names))
        self.fraction_bits = _fraction_bits(schema)
        self.bound = schema.count_bound() if schema.classes and self.tally.rows_are_exact else None
        self.step = 0
        self._most_levels = plan.settings(len(schema.names)).max_depth
        self._total: Raw = np.empty((0, 0), np.int64)
        self._leaves: list[tuple[NDArray[np.int64], Raw]] = []
        self._fate: dict[str, Any] = _no_fate()

    def grow(self) -> Generator[Round, dict[str, Message], Grown]:
        """Level by level, until no node is open; returns the trees and what is in their leaves."""
        self._total = yield from self._count_rows()
        drawn = self._close(self._may_split())
        while len(self.trees.nodes):
            if self.plan.ranges == "proposals":
                drawn = yield from self._propose(drawn)
            best, left, right = yield from self._count(drawn)
            # an attempt costs as much as a level: under GlobalDP it takes the place of one
            may_wait = self.tally.rows_are_exact or (self._is_quiet and self.step + 1 < self._most_levels)
            nodes, total = self.trees.nodes, self._total
            fate, questions = self.trees.decide(drawn, best, may_wait)
            self._leaves.append((nodes[fate == LEAF], total[fate == LEAF]))
            copies = np.repeat(np.arange(len(fate)), np.choose(fate, [0, 1, 2]))
            is_child = fate[copies] == SPLITS
            self._total = total[copies]
            both = np.stack([left[fate == SPLITS], right[fate == SPLITS]], axis=1)
            self._total[is_child] = both.reshape(-1, both.shape[-1])
            self.step += 1
            is_open = ~is_child | self._may_split()
            self._fate = {
                "fate": fate,
                "split_feature": questions.feature,
                "split_threshold": questions.threshold,
                "split_missing_left": questions.missing_left,
                "split_sets": questions.sets,
            }
            drawn = self._close(is_open)
        return self._finish()

    def _count_rows(self) -> Generator[Round, dict[str, Message], Raw]:
        """Numbers of the roots, which have all rows; with noise they are not asked."""
        n_trees, cells = self.plan.n_estimators, self.tally.node_cells
        if not self.tally.rows_are_exact:
            return np.zeros((n_trees, cells), np.int64)
        sums = yield from sum_round(
            self.session,
            "grow",
            lambda order: msg.CountRows(order=order, fraction_bits=self.fraction_bits),
            length=cells,
            bound=self.bound,
        )
        return np.tile(sums, (n_trees, 1))

    def _may_split(self) -> NDArray[np.bool_]:
        """Which open nodes are large, high and mixed enough, by what has been released of them."""
        plan, depth = self.plan, self.trees.depth
        may: NDArray[np.bool_] = depth < self._most_levels
        if not self.tally.rows_are_exact:
            may &= self.step < self._most_levels
        known = depth > 0 if not self.tally.rows_are_exact else np.ones(len(depth), np.bool_)
        n, amounts = self.tally.amounts(self._total)
        seen = 0.0
        if self._noise:
            # Counts below 0 stand for 0 elsewhere. Here that would make rows out of noise, of which an empty node has
            # as much as any other: trees would grow to their full depth everywhere.
            n, seen = self._total.sum(axis=1).astype(np.float64), SEEN * self._noise
            may &= ~known | (n > self._seen_rows)
        may &= ~known | ((n >= plan.min_samples_split) & (n >= 2 * plan.min_samples_leaf))
        if self.schema.classes:
            may &= ~known | ((amounts > seen).sum(axis=1) > 1)
        return may

    @property
    def _seen_rows(self) -> float:
        """The most rows that cannot be told from the noise on a sum over classes; 0 without noise."""
        return SEEN * self._noise * math.sqrt(self.tally.node_cells)

    @property
    def _is_quiet(self) -> bool:
        """Whether there is noise, and less of it than the fewest rows of a leaf."""
        return not self.tally.rows_are_exact and self._seen_rows <= self.plan.min_samples_leaf

    def _close(self, is_open: NDArray[np.bool_]) -> Drawn:
        """Make leaves of the others, and draw candidates; a node that has none is a leaf too."""
        trees, before = self.trees, self.trees.nodes
        kept = trees.close(is_open)
        drawn = trees.draw(self.width)
        some = np.flatnonzero(drawn.any_at)
        if len(some) < len(kept):
            trees.close(drawn.any_at)
            drawn = drawn.take(some)
        open_now = np.zeros(len(before), np.bool_)
        open_now[kept[some]] = True
        self._leaves.append((before[~open_now], self._total[~open_now]))
        self._total = self._total[open_now]
        self._fate["is_open"] = open_now.astype(np.uint8)
        return drawn

    def _propose(self, drawn: Drawn) -> Generator[Round, dict[str, Message], Drawn]:
        """Let thresholds be drawn between what clients propose; a candidate that nobody proposes for is none."""
        request = msg.ProposeThresholds(
            step=self.step, width=self.width, feature=drawn.questions.feature, **self._take_fate()
        )
        replies = yield Round("grow", dict.fromkeys(self.session.clients, request))
        proposals = [reply_of(reply, msg.ThresholdsProposed, c).threshold for c, reply in replies.items()]
        if any(len(some) != len(drawn.questions.feature) for some in proposals):
            raise RemoteProtocolError("a client proposed thresholds for other candidates than it was asked about")
        return drawn.between(np.fmin.reduce(proposals), np.fmax.reduce(proposals))

    def _count(self, drawn: Drawn) -> Generator[Round, dict[str, Message], tuple[NDArray[np.int64], Raw, Raw]]:
        """Ask what all candidates do, and choose: the best of each node, and the numbers of its two sides."""
        n, tally = len(self.trees.nodes), self.tally
        best: NDArray[np.int64] = np.empty(n, np.int64)
        left, right = np.empty((2, n, tally.node_cells), np.int64)
        n_left, n_right = np.empty((2, n, self.width))
        for nodes in _parts(n, self.width * tally.cells, CELLS_AT_ONCE):
            sums = yield from self._ask(drawn.part(nodes), nodes)
            for some in _parts(len(nodes), self.width * tally.cells, _READ_AT_ONCE):
                at = slice(nodes.start + some.start, nodes.start + some.stop)
                reading = tally.read(sums[some.start : some.stop], self._total[at])
                feature = drawn.questions.feature[at.start * self.width : at.stop * self.width]
                best[at] = self._choose(reading, feature)
                row, chosen = np.arange(len(some)), np.maximum(best[at], 0)
                left[at], right[at] = reading.left[row, chosen], reading.right[row, chosen]
                n_left[at], n_right[at] = reading.n_left, reading.n_right
        if tally.rows_are_exact:
            self.trees.learn_empty(drawn, n_left, n_right)
        return best, left, right

    def _choose(self, reading: Reading, feature: NDArray[np.int32]) -> NDArray[np.int64]:
        """The best candidate of each node, -1 where there is none.

        Under GlobalDP, where another attempt costs as much as a level, one with a small side is better than none, as
        long as small sides are more than noise.
        """
        least, best = self.plan.min_samples_leaf, np.empty(len(reading.n_left), np.int64)
        for rows in (least, 1) if self._is_quiet else (least,):
            found = np.empty_like(best)
            kernels.choose_questions(
                reading.amounts_left,
                reading.amounts_right,
                reading.n_left,
                reading.n_right,
                feature,
                _CRITERIA[self.plan.criterion],
                rows,
                found,
            )
            best = found if rows == least else np.where(best < 0, found, best)
        return best

    def _ask(self, questions: Questions, nodes: range) -> Generator[Round, dict[str, Message], Raw]:
        fate, step = self._take_fate(), self.step

        def request(order: sum_messages.SumOrder) -> Message:
            return msg.CountSplits(
                step=step,
                width=self.width,
                first=nodes.start,
                feature=questions.feature,
                threshold=questions.threshold,
                missing_left=questions.missing_left,
                sets=questions.sets,
                fraction_bits=self.fraction_bits,
                order=order,
                **fate,
            )

        n_trees = self.plan.n_estimators
        growing = len(np.unique(self.trees.tree))
        sums = yield from sum_round(
            self.session,
            "grow",
            request,
            length=len(nodes) * self.width * self.tally.cells,
            bound=self.bound,
            progress=Progress(n_trees - growing, n_trees, f"level {self.step + 1}"),
        )
        return sums.reshape(len(nodes), self.width, self.tally.cells)

    def _take_fate(self) -> dict[str, Any]:
        """What has become of the level before: told once."""
        fate, self._fate = self._fate, _no_fate()
        return fate

    def by_chance(self) -> Grown:
        """Complete trees from the declared ranges alone: nobody is asked anything."""
        trees = self.trees
        while len(trees.nodes) and int(trees.depth[0]) < (self.plan.max_depth or 0):
            drawn = trees.draw(self.width)
            some = drawn.any_at
            trees.close(some)
            drawn = drawn.take(np.flatnonzero(some))
            trees.decide(drawn, np.zeros(len(trees.nodes), np.int64), False)
        whole, _ = trees.finish()
        nothing = np.zeros(whole.structure.n_nodes)
        return whole, nothing, np.zeros((len(nothing), self.schema.n_outputs))

    def _finish(self) -> Grown:
        """The whole trees, and rows and amounts of their leaves."""
        whole, position = self.trees.finish()
        nodes = np.concatenate([nodes for nodes, _ in self._leaves])
        n, amounts = self.tally.amounts(np.concatenate([raw for _, raw in self._leaves]))
        return self._placed(whole, position[nodes], n, amounts)

    def _placed(
        self, whole: WholeTrees, at: NDArray[np.int64], n: NDArray[np.float64], amounts: NDArray[np.float64]
    ) -> Grown:
        rows = np.zeros(whole.structure.n_nodes)
        placed = np.zeros((len(rows), self.schema.n_outputs))
        rows[at], placed[at] = n, amounts
        if not self.schema.classes:
            magnitude = 0 if self.schema.magnitude == NO_MAGNITUDE else self.schema.magnitude
            placed = np.ldexp(placed, magnitude - self.fraction_bits)
        return whole, rows, placed

    def ask_leaves(
        self, whole: WholeTrees
    ) -> Generator[Round, dict[str, Message], tuple[NDArray[np.float64], NDArray[np.float64]]]:
        """Ask for the numbers of all leaves, some trees at a time."""
        cells, found = self.tally.node_cells, []
        for some in tree_chunks(whole.structure, cells):
            part = whole.take(some.start, some.stop)
            first = some.start

            def request(order: sum_messages.SumOrder, part: WholeTrees = part, first: int = first) -> Message:
                return msg.CountLeaves(**fields_of(part, first), order=order)

            n_leaves = part.structure.n_leaves
            progress = Progress(self.plan.n_estimators, self.plan.n_estimators, "leaves")
            sums = yield from sum_round(
                self.session, "leaves", request, length=n_leaves * cells, bound=self.bound, progress=progress
            )
            found.append(sums.reshape(n_leaves, cells))
        n, amounts = self.tally.amounts(np.concatenate(found))
        _, rows, placed = self._placed(whole, np.flatnonzero(whole.structure.right < 0), n, amounts)
        return rows, placed


def _no_fate() -> dict[str, Any]:
    nothing = np.empty(0, np.uint8)
    return {
        "fate": nothing,
        "is_open": nothing,
        "split_feature": np.empty(0, np.int32),
        "split_threshold": np.empty(0),
        "split_missing_left": nothing,
        "split_sets": nothing,
    }


def _noise_of_a_count(plan: ExtraTreesPlan, schema: CommonSchema, n_clients: int) -> float:
    """Standard deviation of the noise of all clients on one count; 0 without noise."""
    if not isinstance(plan.privacy, GlobalDP):
        return 0.0
    epsilon = plan.privacy.epsilon_of_a_query(plan.queries(len(schema.names)))
    return CountNoise(epsilon, neighbours=plan.privacy.neighbours).deviation * math.sqrt(n_clients)


def _fraction_bits(schema: CommonSchema) -> int:
    """As many bits as leave every sum of targets exact as a float, whoever has which rows."""
    return 0 if schema.classes else min(52, 61 - _SPARE_BITS - max(1, schema.total_rows).bit_length())


def _parts(n_nodes: int, numbers: int, at_once: int) -> list[range]:
    """Neighbouring nodes, as many as fit into one answer."""
    together = max(1, at_once // numbers)
    return [range(at, min(at + together, n_nodes)) for at in range(0, n_nodes, together)]
