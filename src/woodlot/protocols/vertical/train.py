"""Federated Forest, training: Algorithms 2 and 6 of the paper at the coordinator, for all trees at once.

One level of every tree costs two rounds, however many trees and nodes there are::

    round 1   coordinator -> every party   splits of the level above, number of candidates at each new node
              every party -> coordinator   score of its best candidate at each open node
    round 2   coordinator -> winners       at which nodes their split was the best of all
              winners -> coordinator       one bit per row: left or right

The coordinator sees scores, codes of features, and sides; never a value, a threshold or a row's label in clear.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.bits import as_words, from_words, pack, smallest_unsigned, unpack
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.forest_plan import ForestPlan, check_summaries
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.vertical.forest_messages import (
    ApplySplits,
    EncodedLabels,
    FinishTrees,
    GrowLevel,
    HolderOffers,
    LeafTotals,
    Offers,
    OpenTraining,
    Partition,
    PlantTrees,
    StartForest,
    TableSummary,
)
from woodlot.protocols.vertical.start import EPSILON, gain_unit, rules_of, sampling_of, share_message, start_message
from woodlot.trees.best_first import best_first
from woodlot.trees.cost_complexity import splits_to_prune
from woodlot.trees.forest import Leaves, Structure, join_leaves, join_structures
from woodlot.trees.kernels.hashing import candidate_limits, choose_offers
from woodlot.trees.kernels.rows import route_bits
from woodlot.trees.parallel import run_chunks
from woodlot.trees.sampling import DrawsByRow, tree_keys
from woodlot.trees.skeleton import Skeleton

Rounds = Generator[Round, dict[str, Message], Any]
CHUNK_NODES = 4096


def train(
    plan: ForestPlan, parties: tuple[str, ...], holder: str, n_jobs: int = 1, by_row: DrawsByRow | None = None
) -> Rounds:
    """Grow a forest over the parties' columns; returns the coordinator's part of it.

    Parameters
    ----------
    plan : ForestPlan
        What to grow.
    parties : tuple of str
        Everybody who takes part.
    holder : str
        The party that has the labels.
    n_jobs : int
        Threads of the coordinator.
    by_row : DrawsByRow, optional
        How each row is drawn, where the parties draw rows one by one; they have it too.

    """
    ready = yield from prepare(plan, parties, holder)
    grown = []
    for batch in plan.batches(ready.n_rows, ready.together):
        trees = Batch(plan, ready, holder, n_jobs)
        part = yield from trees.grow(batch)
        grown.append(part)
    return CoordinatorForest(
        structure=join_structures([part.structure for part in grown]),
        owner=np.concatenate([part.owner for part in grown]),
        feature=np.concatenate([part.feature for part in grown]),
        gain=np.concatenate([part.gain for part in grown]),
        leaves=join_leaves([part.leaves for part in grown]),
        parties=parties,
        feature_keys=ready.features.keys,
        feature_party=ready.features.party,
        classes=ready.answer.classes,
        sampling=sampling_of(ready.start, by_row),
        n_rows=ready.n_rows,
        sharing=ready.sharing,
    )


def prepare(
    plan: ForestPlan, parties: tuple[str, ...], holder: str
) -> Generator[Round, dict[str, Message], PreparedTraining]:
    """Ask what the parties bring, get the encoded labels, and start everybody who has anything to do."""
    summaries = {
        p: reply_of(r, TableSummary, p)
        for p, r in (yield Round("prepare", {p: OpenTraining(max_bins=plan.max_bins) for p in parties})).items()
    }
    n_rows = check_summaries({p: s.n_rows for p, s in summaries.items()})
    features = Features.of(parties, summaries)
    active = tuple(p for p in parties if p == holder or len(summaries[p].feature_keys))
    answer = reply_of((yield Round("prepare", {holder: share_message(plan)}))[holder], EncodedLabels, holder)
    start = start_message(plan, n_rows, answer)
    yield Round("prepare", dict.fromkeys(active, start))
    sharing = frozenset(p for p, summary in summaries.items() if summary.shares_model)
    together = min((s.trees_together for s in summaries.values() if s.trees_together > 0), default=None)
    return PreparedTraining(n_rows, features, answer, start, active, sharing, together)


@dataclass(frozen=True, eq=False)
class PreparedTraining:
    """A training that is ready to begin: what the parties bring, and what they were told."""

    n_rows: int
    features: Features
    answer: EncodedLabels
    start: StartForest
    active: tuple[str, ...]
    sharing: frozenset[str]
    together: int | None
    """How many trees fit the parties' memories at the same time; None: any number."""


@dataclass(frozen=True, eq=False)
class Features:
    """All features of all parties under their codes: numbered party after party."""

    keys: NDArray[np.uint64]
    party: NDArray[np.int64]
    first: dict[str, int]

    @classmethod
    def of(cls, parties: tuple[str, ...], summaries: dict[str, TableSummary]) -> Features:
        counts = [len(summaries[p].feature_keys) for p in parties]
        keys = np.concatenate([np.empty(0, np.uint64), *(summaries[p].feature_keys for p in parties)])
        if len(np.unique(keys)) != len(keys):
            raise DataError("two columns have the same code; rename one of the columns with equal names")
        if len(keys) == 0:
            raise DataError("no party has a column to learn from")
        first = np.concatenate([[0], np.cumsum(counts)])
        return cls(keys, np.repeat(np.arange(len(parties)), counts), dict(zip(parties, map(int, first), strict=False)))


@dataclass(frozen=True, eq=False)
class FinishedTrees:
    """The coordinator's part of some finished trees."""

    structure: Structure
    owner: NDArray[np.int16]
    feature: NDArray[np.int32]
    gain: NDArray[np.float64]
    leaves: Leaves


class Batch:
    """Trees that grow together, at the coordinator."""

    def __init__(
        self,
        plan: ForestPlan,
        ready: PreparedTraining,
        holder: str,
        n_jobs: int,
    ) -> None:
        start, features, answer, n_rows = ready.start, ready.features, ready.answer, ready.n_rows
        self.plan = plan
        self.start = start
        self.features = features
        self.parties = ready.active
        self.holder = holder
        self.n_jobs = n_jobs
        self.n_candidates = plan.n_candidates(len(features.keys))
        sampling = sampling_of(start)
        self.gain_unit = gain_unit(start, n_rows, answer.unit)
        self.weight_unit = sampling.weight_unit(n_rows, answer.weight_factor)
        self.number = {p: i for i, p in enumerate(features.first)}

    def grow(self, trees: Sequence[int]) -> Generator[Round, dict[str, Message], FinishedTrees]:
        """Grow the trees to their end."""
        skeleton = self.skeleton = Skeleton(tree_keys(self.start.order_seed, trees))
        self.gains: list[NDArray[np.float64]] = []
        self.owners: list[NDArray[np.int16]] = []
        self.split_features: list[NDArray[np.int32]] = []
        limits, counts = self._candidates(self._searched())
        requests = {p: self._plant(trees, counts[p]) for p in self.parties}
        replies = yield Round("grow", requests, self._progress(trees, 0, 1))
        sizes = reply_of(replies[self.holder], HolderOffers, self.holder).sizes.astype(np.int64)
        if len(sizes) != len(trees):
            raise RemoteProtocolError(f"{self.holder} sent {len(sizes)} sizes for {len(trees)} trees")
        total_rows = int(sizes.sum())
        last = (_NO_BITS, dict.fromkeys(self.parties, _NO_BITS))
        while True:
            is_open = self._open_nodes(replies, len(skeleton.frontier))
            kept = skeleton.keep_open(is_open)
            limits, sizes = limits[kept], sizes[kept]
            self._keep(kept)
            winner, feature, gain = self._winners(replies, limits)
            is_split = winner >= 0
            if not is_split.any():
                break
            others, left = yield from self._partitions(trees, winner, gain, sizes, total_rows)
            self._record(is_split, winner, feature, gain)
            skeleton.split(is_split)
            self._descend(is_split, winner, feature)
            sizes = np.column_stack([left, sizes[is_split] - left]).ravel()
            if skeleton.depth >= self.start.max_depth:
                last = (pack(is_split), others)
                break
            searched = self._searched() & (sizes >= self.start.min_samples_split)
            if rules_of(self.start).splits_two_rows_by_order:
                searched &= sizes != 2  # the first feature in order wins, candidate or not
            limits, counts = self._candidates(searched)
            bits = pack(is_split)
            requests = {p: self._next_level(bits, others[p], counts[p]) for p in self.parties}
            progress = self._progress(trees, total_rows - int(sizes.sum()), total_rows)
            replies = yield Round("grow", requests, progress)
        return (yield from self._finish(trees, *last))

    # --- what growing from nothing and growing again after a revocation do each in their way ---

    def _plant(self, trees: Sequence[int], candidates: NDArray[Any]) -> Message:
        return PlantTrees(first_tree=trees[0], n_trees=len(trees), candidates=candidates)

    def _next_level(self, is_split: NDArray[np.uint8], flags: NDArray[np.uint8], candidates: NDArray[Any]) -> Message:
        return GrowLevel(is_split=is_split, flags=flags, candidates=candidates)

    def _searched(self) -> NDArray[np.bool_]:
        """Which of the new nodes are searched, as far as their size allows."""
        return np.ones(len(self.skeleton.frontier), bool)

    def _keep(self, kept: NDArray[np.int64]) -> None:
        """These of the new nodes are open."""

    def _descend(self, is_split: NDArray[np.bool_], winner: NDArray[np.int16], feature: NDArray[np.int32]) -> None:
        """The open nodes have been split: the new nodes are their children."""

    def _n_new_leaves(self, structure: Structure, position: NDArray[np.int64]) -> int:
        """How many leaves the holder must tell the answers of."""
        return structure.n_leaves

    # --- one level ---

    def _candidates(self, wanted: NDArray[np.bool_]) -> tuple[NDArray[np.uint64], dict[str, NDArray[Any]]]:
        """Place of the last candidate at each new node, and how many of them each party has."""
        keys = self.skeleton.root_key if self.plan.feature_sampling == "tree" else self.skeleton.key
        limits = np.empty(len(keys), np.uint64)
        counts = np.zeros((len(self.number), len(keys)), np.uint32)

        def work(first: int) -> None:
            part = slice(first, first + CHUNK_NODES)
            candidate_limits(
                keys[part],
                wanted[part] * self.n_candidates,
                self.features.keys,
                self.features.party,
                limits[part],
                counts[:, part],
            )

        run_chunks(work, range(0, len(keys), CHUNK_NODES), self.n_jobs)
        return limits, {p: smallest_unsigned(counts[self.number[p]]) for p in self.parties}

    def _open_nodes(self, replies: dict[str, Message], n_new: int) -> NDArray[np.bool_]:
        offers = reply_of(replies[self.holder], HolderOffers, self.holder)
        is_open = unpack(offers.is_open, n_new, f"open nodes of {self.holder}").astype(bool)
        if len(offers.whole) != int(is_open.sum()):
            raise RemoteProtocolError(
                f"{self.holder} sent {len(offers.whole)} scores for {int(is_open.sum())} open nodes"
            )
        return is_open

    def _winners(
        self, replies: dict[str, Message], limits: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int16], NDArray[np.int32], NDArray[np.float64]]:
        """Number of the winning party at every open node (-1: none), its feature, and the gain."""
        n_open = len(limits)
        scores = np.full((len(self.number), n_open), -np.inf)
        offered = np.zeros((len(self.number), n_open), np.uint32)
        for p in self.parties:
            offers = reply_of(replies[p], HolderOffers, p) if p == self.holder else reply_of(replies[p], Offers, p)
            i, n_own = self.number[p], int((self.features.party == self.number[p]).sum())
            if n_own == 0:
                continue
            if len(offers.score) != n_open or len(offers.feature) != n_open:
                raise RemoteProtocolError(f"{p} sent {len(offers.score)} offers for {n_open} open nodes")
            if n_open and int(offers.feature.max()) > n_own:
                raise RemoteProtocolError(f"{p} offered a feature that it does not have")
            scores[i] = offers.score
            offered[i] = offers.feature
        winner = np.empty(n_open, np.int16)
        feature = np.empty(n_open, np.int32)
        gain = np.empty(n_open)
        select = self.skeleton.root_key if self.plan.feature_sampling == "tree" else self.skeleton.key
        first = np.fromiter(self.features.first.values(), np.int64)
        choose_offers(
            select, self.skeleton.key, limits, scores, offered, first, self.features.keys, winner, feature, gain
        )
        late = np.isneginf(gain)
        if late.any() and not self.start.late_scores:
            raise RemoteProtocolError(f"{_any_of(self.number, winner[late])} offered splits without their scores")
        self._whole = reply_of(replies[self.holder], HolderOffers, self.holder).whole
        gain[:] = np.where(late, np.nan, (gain - self._whole) * self.gain_unit)
        winner[gain + EPSILON < self.plan.min_impurity_decrease] = -1
        if self.plan.max_leaf_nodes is not None:
            known = self._known_gains()
            known[self.skeleton.frontier] = np.where(winner >= 0, gain, np.nan)
            chosen = best_first(self.skeleton.n_trees, self.skeleton.left, known, self.plan.max_leaf_nodes)
            winner[~chosen[self.skeleton.frontier]] = -1
        return winner, feature, gain

    def _partitions(
        self,
        trees: Sequence[int],
        winner: NDArray[np.int16],
        gain: NDArray[np.float64],
        sizes: NDArray[np.int64],
        total_rows: int,
    ) -> Generator[Round, dict[str, Message], tuple[dict[str, NDArray[np.uint8]], NDArray[np.int64]]]:
        """Have the winners split their nodes.

        Returns, for each party, the packed bits of the splits that are not its own (its own it knows), and how many
        rows of each split node go left. Gains that were not known yet are put into ``gain``.
        """
        won = {p: winner == self.number[p] for p in self.parties}
        replies = yield Round(
            "grow",
            {p: ApplySplits(won=pack(won[p])) for p in self.parties if won[p].any()},
            self._progress(trees, total_rows - int(sizes.sum()), total_rows),
        )
        is_split = winner >= 0
        split_winner, split_sizes = winner[is_split], sizes[is_split]
        words = [np.zeros(0, np.uint64)] * len(self.number)
        for p, reply in replies.items():
            told, n_bits = reply_of(reply, Partition, p), int(sizes[won[p]].sum())
            words[self.number[p]] = as_words(told.flags, n_bits, f"partition of {p}")
            late, scores = won[p] & np.isnan(gain), _NO_SCORES if told.late is None else told.late
            if len(scores) != int(late.sum()) or not np.isfinite(scores).all():
                raise RemoteProtocolError(f"{p} sent {len(scores)} scores for {int(late.sum())} splits without one")
            gain[late] = (scores - self._whole[late]) * self.gain_unit
        starts = np.cumsum([0, *(len(w) for w in words[:-1])])
        routed = np.zeros((len(self.number), int(split_sizes.sum()) // 64 + 2), np.uint64)
        routed_bits = np.zeros(len(self.number), np.int64)
        left = np.empty(len(split_winner), np.int64)
        route_bits(np.concatenate(words), starts, split_winner, split_sizes, routed, routed_bits, left)
        others = {p: from_words(routed[self.number[p]], int(routed_bits[self.number[p]])) for p in self.parties}
        return others, left

    def _record(
        self,
        is_split: NDArray[np.bool_],
        winner: NDArray[np.int16],
        feature: NDArray[np.int32],
        gain: NDArray[np.float64],
    ) -> None:
        self.gains.append(gain[is_split])
        self.owners.append(winner[is_split])
        self.split_features.append(feature[is_split])

    def _known_gains(self) -> NDArray[np.float64]:
        """Gain of every node made so far, NaN where it is not split."""
        gains = np.full(self.skeleton.n_nodes, np.nan)
        gains[self.skeleton.split_nodes] = np.concatenate([np.empty(0), *self.gains])
        return gains

    def _finish(
        self, trees: Sequence[int], is_split: NDArray[np.uint8], flags: dict[str, NDArray[np.uint8]]
    ) -> Generator[Round, dict[str, Message], FinishedTrees]:
        """Tell everybody the last splits, prune as the plan says, and ask the holder what the leaves hold."""
        split_nodes = self.skeleton.split_nodes
        pruned = splits_to_prune(self.skeleton, self._known_gains(), self.plan.max_leaf_nodes, self.plan.pruning)
        structure, position = self.skeleton.finish(pruned)
        requests: dict[str, Message] = {
            p: FinishTrees(is_split=is_split, flags=flags[p], pruned=pruned.astype(np.uint32)) for p in self.parties
        }
        replies = yield Round("grow", requests, self._progress(trees, 1, 1))
        totals = reply_of(replies[self.holder], LeafTotals, self.holder)
        at = position[split_nodes]
        standing = np.flatnonzero((at >= 0) & (structure.right[at] >= 0))  # not below a pruned node, nor pruned itself
        at = at[standing]

        def place(parts: list[NDArray[Any]], fill: float, kind: Any) -> NDArray[Any]:
            placed = np.full(structure.n_nodes, fill, kind)
            placed[at] = np.concatenate([np.empty(0, kind), *parts])[standing]
            return placed

        n_leaves = self._n_new_leaves(structure, position)
        return FinishedTrees(
            structure=structure,
            owner=place(self.owners, -1, np.int16),
            feature=place(self.split_features, -1, np.int32),
            gain=place(self.gains, 0.0, np.float64),
            leaves=_leaves_from(totals, n_leaves, max(1, self.start.n_classes), self.weight_unit, self.holder),
        )

    def _progress(self, trees: Sequence[int], settled: int, of: int) -> Progress:
        """Trees done, counting those in flight by their level or by the share of their rows that are in leaves."""
        share = settled / max(of, 1)
        if self.plan.max_depth is not None:
            share = max(share, self.skeleton.depth / self.plan.max_depth)
        done = trees[0] + len(trees) * share
        note = f"level {self.skeleton.depth}, {len(self.skeleton.frontier):,} nodes"
        return Progress(done=int(done), total=self.plan.n_estimators, note=note)


_NO_BITS = np.empty(0, np.uint8)
_NO_SCORES = np.empty(0)


def _any_of(number: dict[str, int], winners: NDArray[np.int16]) -> str:
    """The name of one of these parties."""
    return next(party for party, i in number.items() if i == winners[0])


def _leaves_from(totals: LeafTotals, n_leaves: int, n_outputs: int, weight_unit: float, holder: str) -> Leaves:
    """The leaves' answers, as checked parts of the model; weights in the units of the rows' own weights."""
    entries = totals.entries.astype(np.int64)
    start = np.concatenate([[0], np.cumsum(entries)]).astype(np.int64)
    output = totals.label.astype(np.int32)
    weight = totals.weight.astype(np.float64)
    n = int(start[-1])
    regression = len(totals.value) > 0
    if len(entries) != n_leaves or (entries == 0).any() or len(output) != n or len(weight) != n:
        raise RemoteProtocolError(f"{holder} sent totals that do not fit the {n_leaves} leaves")
    if (output >= n_outputs).any() or (weight <= 0).any() or (regression and len(totals.value) != n):
        raise RemoteProtocolError(f"{holder} sent leaf totals out of range")
    leaf_weight = np.add.reduceat(weight, start[:-1])
    value = np.array(totals.value, np.float64) if regression else weight / np.repeat(leaf_weight, entries)
    return Leaves(
        weight=leaf_weight / weight_unit,
        start=start,
        output=output,
        value=value,
        n_outputs=n_outputs,
    )
