"""A party of the vertical forest: Algorithms 1, 3, 5 and 7 of the paper, one handler per message.

The party holds a table, and the label holder the labels too. Its state says which messages it takes; any other is
refused and changes nothing. Values, thresholds, names and labels in clear never enter a reply.

States and messages::

    idle, opened, trained  OpenTraining   -> opened    the table is encoded; what was grown before is dropped
    opened                 ShareLabels    -> opened    label holder: fixes the code of the labels, weights and draws
    opened                 StartForest    -> started   the label holder checks that the labels are those it shared
    started, trained       PlantTrees     -> growing   a batch of trees begins; a forest may come in several batches
    growing                ApplySplits    -> applied   only where this party has won nodes of the level
    growing, applied       GrowLevel      -> growing   all splits of the level, this party's and the others'
    growing, applied       FinishTrees    -> trained   the last level of the batch
    trained                predictions, explanations, sealed sums, RevealSplits, OutOfBagAnswers  -> trained

A party that is made with a forest begins as *trained*: it predicts. One level is one cycle *growing* (offers are made),
*applied* (own splits are carried out), *growing*. In *applied* the party's rows are split where it has won, and nowhere
else; GrowLevel must name these nodes among the split ones.

A handler checks the whole message first, then changes the state, then answers. So a refused message leaves the party as
it was, and the right message can still come: ``tests/states`` sends messages of every kind in every state, and compares
all attributes before and after. Replies follow from the messages, the table and the secrets alone. A party that was
killed is made again and hears the same messages from the journal; it then sends the same bytes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.privacy.derivation import SECRET_BYTES, derive_key
from woodlot.protocols.core.bits import check_packed, pack, smallest_unsigned, unpack
from woodlot.protocols.core.forest_parts import PartyForest, join_forests
from woodlot.protocols.core.forest_plan import n_draws
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.core.target_codes import ClassCode, TargetCode, target_key
from woodlot.protocols.sums.sum_messages import OpenSums, StartSums
from woodlot.protocols.vertical import explain_messages as explained
from woodlot.protocols.vertical import forest_messages as msg
from woodlot.protocols.vertical.answers import PartyAnswers
from woodlot.protocols.vertical.growing_place import GrowingPlace
from woodlot.protocols.vertical.out_of_bag import curve_sizes, first_sizes
from woodlot.protocols.vertical.sealed import Sealer
from woodlot.protocols.vertical.sealed_messages import AskSealed, SealedLeaves
from woodlot.protocols.vertical.spread import SpreadColumns
from woodlot.protocols.vertical.start import EPSILON, check_start, gain_unit, sampling_of
from woodlot.trees.common_grow import CommonTrees
from woodlot.trees.encoding import MAX_COARSE, MIN_BINS, CategoryCoding, Coding
from woodlot.trees.forest import Structure
from woodlot.trees.grow import Grower
from woodlot.trees.room import WorkingMemory
from woodlot.trees.rules import SplitSides
from woodlot.trees.sampling import WEIGHT_BITS, Bootstrap, DrawsByRow, feature_key


class TrainingState(StrEnum):
    """Where a party stands in a training."""

    idle = "idle"
    opened = "opened"
    started = "started"
    growing = "growing"
    applied = "applied"
    trained = "trained"


LEVEL = (TrainingState.growing, TrainingState.applied)
"""While a level of trees is open."""


class VerticalParty(MessageHandler):
    """One party and its table, for one job.

    Parameters
    ----------
    name : str
        The party's name, part of the code of its columns.
    table : Table
        Its columns, rows in the common order of all parties.
    target : Target, optional
        The labels and weights, at the label holder.
    forest : PartyForest, optional
        Its part of a forest grown before, to predict with.
    sampling : Bootstrap, optional
        How its rows were drawn, where they are to be scored out of bag.
    known : bool array, optional
        Which of the rows to predict the party has; None for all.
    key_by_party : bool
        Whether the party's name enters the codes of its columns: no, where one table was dealt to simulated parties.
    secret : bytes
        Keeps the codes of its columns from being guessed; the same secret gives the same forest.
    job_secret : bytes, optional
        32 bytes for this job alone, from which everything follows that must not be guessed and is no part of the
        forest: with the same ones a job that is repeated gives the same bytes. By default they are drawn.
    shares_model : bool
        Policy: the coordinator may keep the complete model.
    sealer : Sealer, optional
        Its secrets for sealed predictions; without them it gives none.
    sealed_only : bool
        Policy: predictions are answered under seal only.
    explains : {"none", "party", "columns", "values"}
        Policy: what explanations may show.
    min_leaf : int
        Policy: the fewest rows of a leaf, and so of a tree.
    n_jobs : int
        Threads.
    room : WorkingMemory, optional
        Where codes are kept, and what may be in memory; by default all of it.
    spread : SpreadColumns, optional
        The same columns in blocks on other machines, which then do all that training asks of them.
    device : {"cpu", "cuda", "auto"}
        Where trees grow; the forest does not depend on it.
    by_row : DrawsByRow, optional
        How each row is drawn, where that does not depend on the other rows.
    common : CommonTrees, optional
        The trees in flight, where all parties of the training are in this process; not for a `RegrowingParty`.
    """

    state: TrainingState
    grown_in: ClassVar[frozenset[TrainingState]] = frozenset({TrainingState.trained})
    """In which states `grown_forest` is all of the party's part."""

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        target: Target | None = None,
        forest: PartyForest | None = None,
        sampling: Bootstrap | None = None,
        known: NDArray[np.bool_] | None = None,
        key_by_party: bool = True,
        secret: bytes = b"",
        job_secret: bytes | None = None,
        shares_model: bool = False,
        sealer: Sealer | None = None,
        sealed_only: bool = False,
        explains: explained.Explains = "none",
        min_leaf: int = 1,
        n_jobs: int = 1,
        room: WorkingMemory | None = None,
        spread: SpreadColumns | None = None,
        device: str = "cpu",
        by_row: DrawsByRow | None = None,
        common: CommonTrees | None = None,
    ) -> None:
        self.name = name
        self.table = table
        self.target = target
        self.forest = forest
        self.known = known
        self._sampling = sampling
        self.shares_model = shares_model
        self._secret = secret
        self._sealer = sealer
        self._sealed_only = sealed_only
        self._explains: explained.Explains = explains
        self._min_leaf = min_leaf
        self._job_secret = secrets.token_bytes(SECRET_BYTES) if job_secret is None else job_secret
        self.n_jobs = n_jobs
        self._spread = spread
        self._place = GrowingPlace(table, "cpu" if by_row is not None else device, n_jobs, room, common)
        self._by_row = by_row
        owner = name if key_by_party else ""
        self.feature_keys = np.array([feature_key(column, owner, secret) for column in table.names], np.uint64)
        self.state = TrainingState.idle if forest is None else TrainingState.trained
        self._label_code: ClassCode | TargetCode | None = None
        self._shared_weights: NDArray[np.int64] | None = None  # at the label holder, with the labels
        self._shared_draws = 0
        self._binned = False
        self._gains: NDArray[np.float64] | None = None
        self._start: msg.GrowthStart | None = None
        self._labels: NDArray[Any] = np.empty(0, np.uint8)
        self._grower: Grower | None = None
        self._parts: list[PartyForest] = []
        self._searched: NDArray[np.bool_] | None = None  # at which open nodes to look for splits: at all
        # at once, so that what does not fit is told here, with the columns' names, and never in a refusal on the wire
        self._answers = None if forest is None else self._match(forest)

    def _match(self, forest: PartyForest) -> PartyAnswers:
        try:
            return PartyAnswers(forest, self.table, self.known, self.n_jobs)
        except DataError as error:
            raise DataError(f"{self.name}: {error}") from None

    def handle(self, message: Message) -> Message:
        """Answer a message; see `MessageHandler`."""
        if isinstance(message, msg.FinishTrees):  # hardly the card's work: parties of one process do it side by side
            return super().handle(message)
        with self._place.turn():
            return super().handle(message)

    # --- before the first tree ---

    @takes(
        msg.OpenTraining,
        when=(TrainingState.idle, TrainingState.opened, TrainingState.trained),
        then=TrainingState.opened,
    )
    def _on_OpenTraining(self, message: msg.OpenTraining) -> msg.TableSummary:
        if message.max_bins is not None and not MIN_BINS <= message.max_bins <= MAX_COARSE:
            raise RemoteProtocolError(f"OpenTraining asks for {message.max_bins} bins")
        n_jobs, together = self._encode(message.max_bins)
        self.n_jobs = n_jobs
        self._binned = message.max_bins is not None
        self.forest, self._parts, self._answers = None, [], None
        return msg.TableSummary(
            n_rows=self.table.n_rows,
            feature_keys=self.feature_keys,
            shares_model=self.shares_model,
            trees_together=together,
        )

    def _encode(self, max_bins: int | None) -> tuple[int, int]:
        """Make the codes; returns how many threads and how many trees there is then room for."""
        if self._spread is not None:
            self._spread.encode(max_bins)
            return self.n_jobs, 0
        return self._place.encode(max_bins)

    @takes(msg.ShareLabels, when=TrainingState.opened)
    def _on_ShareLabels(self, message: msg.ShareLabels) -> msg.EncodedLabels:
        target = self._labels_asked(message.task)
        if not all(0 <= weight < float("inf") for _, weight in message.class_weight):
            raise DataError("class_weight must have finite weights, none negative")
        weights, factor = target.integer_weights(message.balanced, message.class_weight)
        draws = self._draws(message, weights, factor)  # the last that may be refused
        coded, unit = self._coded(target, weights, message.seed)
        self._shared_weights, self._shared_draws = weights, draws
        return msg.EncodedLabels(
            labels=coded if target.classes else None,
            targets=None if target.classes else coded,
            weights=None if weights is None else smallest_unsigned(weights),
            weight_factor=factor,
            classes=target.classes,
            unit=unit if message.reveal_unit else 1.0,
        )

    def _draws(self, message: msg.ShareLabels, weights: NDArray[np.int64] | None, factor: float) -> int:
        """How many rows each tree draws."""
        try:
            draws = n_draws(message.max_samples if message.bootstrap else None, self.table.n_rows, weights, factor)
        except (DataError, ValueError, OverflowError):  # the coordinator sends a number that was not ordered
            draws = 0
        if not 0 < draws < 2**WEIGHT_BITS:
            raise RemoteProtocolError(f"{type(message).__name__} asks for a number of draws out of range")
        return draws

    def _labels_asked(self, task: str) -> Target:
        target = self._holder_target()
        if (task == "classes") != bool(target.classes):
            raise RemoteProtocolError("labels of the other kind are asked for")
        return target

    def _coded(self, target: Target, weights: NDArray[np.int64] | None, seed: int) -> tuple[NDArray[Any], float]:
        """The labels under their code, and what the square of a target's unit is in it."""
        if target.classes:
            code = ClassCode.draw(len(target.classes), derive_key(self._job_secret, "classes"))
            self._label_code = code
            return code.encode(target.numbers), 1.0
        total = float(self.table.n_rows if weights is None else weights.sum())
        # where rows can be forgotten, one row less must not change the code of all others
        key = target_key(target.values if self._by_row is None else _NO_VALUES, seed, self._secret)
        affine = TargetCode.draw(target.values, max(total, float(self.table.n_rows)), key)
        self._label_code = affine
        return affine.encode(target.values), affine.unit

    def _holder_target(self) -> Target:
        if self.target is None:
            raise DataError("this party has no labels; name the party and column that has them")
        return self.target

    @takes(msg.StartForest, when=TrainingState.opened, then=TrainingState.started)
    def _on_StartForest(self, message: msg.StartForest) -> msg.Ready:
        labels = check_start(message, self.table.n_rows)
        if message.min_cell and not self._binned:
            raise RemoteProtocolError("StartForest asks for coarser bins of columns that are not in bins")
        self._check_own_labels(message.n_classes, labels)
        self._check_own_weights(message)
        self._start = message
        self._labels = np.array(labels)  # a copy of its own: kernels know no read-only arrays
        if self._spread is not None:
            self._spread.begin(message)
        return msg.Ready()

    def _check_own_labels(self, n_classes: int, labels: NDArray[Any]) -> None:
        """Label holder: under any other code than its own the leaves would answer nonsense."""
        code, target = self._label_code, self.target
        if target is None:
            return
        own: NDArray[Any] | None = None
        if code is not None and n_classes == len(target.classes):
            own = code.encode(target.numbers) if isinstance(code, ClassCode) else code.encode(target.values)
        if own is None or not np.array_equal(own, labels):
            raise RemoteProtocolError("StartForest carries other labels than those that this party has shared")

    def _check_own_weights(self, message: msg.GrowthStart) -> None:
        """Label holder: with weights 1, 2, 4, 8 and so on, a leaf's total would be a list of rows."""
        own, told, what = self._shared_weights, message.weights, type(message).__name__
        if self.target is None:
            return
        same = told is None if own is None else told is not None and np.array_equal(own, told)
        if not same:
            raise RemoteProtocolError(f"{what} carries other weights of the rows than those that this party has shared")
        if message.n_draws != self._shared_draws:
            raise RemoteProtocolError(f"{what} draws another number of rows than max_samples is of these weights")

    # --- growing ---

    @takes(msg.PlantTrees, when=(TrainingState.started, TrainingState.trained), then=TrainingState.growing)
    def _on_PlantTrees(self, message: msg.PlantTrees) -> Message:
        if message.first_tree < 0 or message.n_trees < 1 or len(message.candidates) != message.n_trees:
            raise RemoteProtocolError("PlantTrees must carry one number of candidates per tree")
        grower = self._plant(range(message.first_tree, message.first_tree + message.n_trees))
        return self._offers(message.candidates, grower.root_sizes)

    def _plant(self, trees: Sequence[int]) -> Grower:
        if self._spread is not None and isinstance(self._start, msg.StartForest):
            return self._take_root(self._spread.plant(self.feature_keys, self._labels, self._start, trees, self.n_jobs))
        if not self._place.is_encoded or self._start is None:
            raise RemoteProtocolError("no tree is planted before a training has started")
        return self._take_root(
            self._place.plant(
                self.feature_keys, self._labels, self._start, sampling_of(self._start, self._by_row), trees, self.n_jobs
            )
        )

    def _carry_out(self, step: Callable[[Grower], T]) -> T:
        """Do a step of growing, on the CPU from then on if a card fails."""
        self._grower, given = self._place.carry_out(self._growing(), step)
        return given

    def _take_root(self, grower: G) -> G:
        """Grow these trees from now on, unless they draw so few rows that even their roots are too small as leaves."""
        if (fewest := int(grower.root_sizes.min())) < self._min_leaf:
            raise PolicyError(
                f"a tree of this plan draws {fewest} rows, and this party's policy asks for leaves of at least "
                f"{self._min_leaf}: raise max_samples"
            )
        self._grower = grower
        return grower

    def _own_candidates(self, candidates: NDArray[Any], is_open: NDArray[np.bool_]) -> NDArray[np.int64]:
        """How many of this party's features are candidates at each open node; it may have more than fit the message."""
        return np.minimum(candidates[is_open].astype(np.int64), len(self.feature_keys))

    def _offers(self, candidates: NDArray[Any], sizes: NDArray[np.int64]) -> Message:
        """The best splits of this party at the nodes that are open now."""
        is_open = self._growing().is_open
        own, searched = self._own_candidates(candidates, is_open), self._searched
        if searched is None and isinstance(self._start, msg.StartForest) and self._start.late_scores:
            is_holder = self.target is not None
            offers = self._carry_out(lambda grower: grower.find_candidates(own, all_whole=is_holder))
        else:
            offers = self._carry_out(lambda grower: grower.find(own, searched))
        score, feature = offers.score, smallest_unsigned(offers.feature + 1)
        # of targets only the label holder knows the unit of gains
        rule = self._start is not None and self._start.n_classes > 0 and self._start.min_impurity_decrease > 0
        self._gains = score - offers.whole if rule else None
        if len(self.feature_keys) == 0:
            score, feature = score[:0], feature[:0]
        if self.target is None:
            return msg.Offers(score=score, feature=feature)
        return msg.HolderOffers(
            score=score,
            feature=feature,
            is_open=pack(is_open),
            whole=offers.whole,
            sizes=sizes.astype(np.uint32),
        )

    @takes(msg.ApplySplits, when=TrainingState.growing, then=TrainingState.applied)
    def _on_ApplySplits(self, message: msg.ApplySplits) -> msg.Partition:
        grower = self._growing()
        won = unpack(message.won, len(grower.start), "ApplySplits").astype(bool)
        if not grower.can_apply(won):
            raise RemoteProtocolError("ApplySplits names a node where this party made no offer")
        self._check_gains(won)
        flags = self._carry_out(lambda grower: grower.apply_packed(won))
        self._place.let_values_go()  # each threshold has brought a page of them with it
        late = self._growing().late_scores
        return msg.Partition(flags=flags, late=late if len(late) else None)

    def _check_gains(self, won: NDArray[np.bool_]) -> None:
        """Refuse to split where this party's best split gains too little: the node is a leaf."""
        start, gains = self._start, self._gains
        if start is None or gains is None:
            return
        decrease = gains[won] * gain_unit(start, self.table.n_rows, 1.0)
        if (decrease + EPSILON < start.min_impurity_decrease).any():
            raise RemoteProtocolError(
                f"ApplySplits names a node whose split gains less than min_impurity_decrease="
                f"{start.min_impurity_decrease}"
            )

    def _growing(self) -> Grower:
        if self._grower is None:
            raise RemoteProtocolError("no trees are growing here")
        return self._grower

    @takes(msg.GrowLevel, when=LEVEL, then=TrainingState.growing)
    def _on_GrowLevel(self, message: msg.GrowLevel) -> Message:
        is_split, n_flags, _ = self._level(message)
        if len(message.candidates) != 2 * int(is_split.sum()):
            raise RemoteProtocolError("GrowLevel must carry one number of candidates per new node")
        self._carry_out(lambda grower: grower.split_packed(is_split, message.flags, n_flags))
        return self._offers(message.candidates, _NO_SIZES)

    def _level(self, message: Level) -> tuple[NDArray[np.bool_], int, SplitSides]:
        """Which open nodes are split, how many flags of the others' splits there are, and the sides of all.

        Another party's split is known by its flags alone, and these come through the coordinator, who could have made
        them up. Whatever they are, no leaf gets smaller than the rules say.
        """
        grower = self._growing()
        is_split = unpack(message.is_split, len(grower.start), "split nodes").astype(bool)
        if not grower.has_won_only(is_split):
            raise RemoteProtocolError("a split that this party has carried out is missing from the level")
        n_flags = grower.rows_of_others(is_split)
        check_packed(message.flags, n_flags, "sides of the others' splits")
        sides = self._carry_out(lambda grower: grower.sides(is_split, message.flags))
        if not grower.rules.allow(sides):
            raise RemoteProtocolError(
                f"{type(message).__name__} carries a split of another party that leaves {int(sides.rows.min())} rows "
                f"on one side; the plan asks for min_samples_leaf={grower.rules.min_samples_leaf} and a weight of at "
                f"least {grower.rules.min_weight}. The coordinator, or that party, does not follow the plan"
            )
        return is_split, n_flags, sides

    @takes(msg.FinishTrees, when=LEVEL, then=TrainingState.trained)
    def _on_FinishTrees(self, message: msg.FinishTrees) -> Message:
        level = self._level(message) if len(message.is_split) else None
        grower = self._growing()
        if level is None and (self.state == TrainingState.applied or len(message.flags)):
            raise RemoteProtocolError("FinishTrees must carry the level that is being split")
        is_split = np.zeros(len(grower.start), bool) if level is None else level[0]
        pruned = self._pruned(grower, is_split, message.pruned.astype(np.int64))
        if level is not None:  # everything is checked: a refusal must leave the trees as they were
            n_flags = level[1]
            self._carry_out(lambda grower: grower.split_packed(is_split, message.flags, n_flags))
            grower = self._growing()
        structure, splits, position = grower.finish(pruned)
        codings = self._codings()
        self._finished(grower, PartyForest(structure, splits, self.table.names, codings), position)
        reply: Message = msg.TreesDone() if self.target is None else self._leaf_totals(structure, position)
        self._grower, self._answers, self.forest = None, None, None
        return reply

    def _pruned(self, grower: Grower, is_split: NDArray[np.bool_], pruned: NDArray[np.int64]) -> NDArray[np.int64]:
        """Splits to undo: none without ``max_leaf_nodes`` or ``ccp_alpha``, and with them as many as it takes.

        A party does not know the gains of others' splits. It does not check what ``ccp_alpha`` prunes: a leaf that
        was a branch tells less, and of more rows.
        """
        limit = None if self._start is None else self._start.max_leaf_nodes
        may = limit is not None or (self._start is not None and self._start.ccp_alpha is not None)
        skeleton = grower.skeleton
        split_nodes = np.concatenate([skeleton.split_nodes, skeleton.frontier[is_split]])
        if (np.diff(pruned) <= 0).any() or not np.isin(pruned, split_nodes).all() or (len(pruned) and not may):
            raise RemoteProtocolError("FinishTrees prunes what is not a split, or prunes where no rule asks for it")
        if limit is not None and (n_leaves := int(skeleton.leaves_if(is_split, pruned).max())) > limit:
            raise RemoteProtocolError(
                f"FinishTrees leaves a tree {n_leaves} leaves, where this training keeps max_leaf_nodes={limit}"
            )
        return pruned

    def _codings(self) -> tuple[Coding, ...]:
        if self._spread is not None:
            return self._spread.codings
        return self._place.codings

    def _finished(self, grower: Grower, part: PartyForest, position: NDArray[np.int64]) -> None:
        """Some trees are grown."""
        self._parts.append(part)

    def _leaf_totals(self, structure: Structure, position: NDArray[np.int64]) -> msg.LeafTotals:
        """Label holder: what the leaves answer, in the true classes and targets, ordered by leaf and class."""
        grower, target = self._growing(), self._holder_target()
        number, start, end = grower.leaves()
        if structure.n_nodes < len(position):  # leaves that were pruned away count for the node that stands there now
            number = grower.skeleton.surviving_ancestor(position)[number]
        leaf = structure.leaf[position[number]]
        if len(leaf) == structure.n_leaves:  # each has its place
            order = np.empty(len(leaf), np.int64)
            order[leaf] = np.arange(len(leaf))
        else:
            order = np.argsort(leaf, kind="stable")  # stable: sums of targets have one order
        leaf, start, end = leaf[order], start[order], end[order]
        first = np.flatnonzero(np.diff(leaf, prepend=-1))
        entries: NDArray[Any] = np.ones(len(first), np.uint8)
        label: NDArray[Any] = np.zeros(len(first), np.uint8)
        if self._start is not None and self._start.n_classes == 0:
            weight, total = self._carry_out(lambda grower: grower.target_sums(target.values, start, end))
            weight, total = np.add.reduceat(weight, first), np.add.reduceat(total, first)
            value = total / weight
        else:
            entries, label, weight = self._carry_out(lambda grower: grower.class_entries(target.numbers, start, end))
            value = np.empty(0)
            if len(first) < len(leaf):
                n_labels = int(label.max(initial=0)) + 1
                key, which = np.unique(
                    np.repeat(leaf.astype(np.int64), entries) * n_labels + label, return_inverse=True
                )
                weight = np.bincount(which, weight).astype(np.int64)
                entries, label = np.bincount(key // n_labels), key % n_labels
        return msg.LeafTotals(
            entries=smallest_unsigned(entries),
            label=smallest_unsigned(label),
            weight=smallest_unsigned(weight),
            value=value,
        )

    # --- after the last tree ---

    @takes(msg.RevealSplits, when=TrainingState.trained)
    def _on_RevealSplits(self, message: msg.RevealSplits) -> msg.SplitTable:
        forest = self.grown_forest()
        if not self.shares_model:
            raise PolicyError("this party's policy keeps its splits to itself")
        return msg.SplitTable(
            node=forest.splits.node.astype(np.uint32),
            feature=forest.splits.feature.astype(np.uint32),
            threshold=forest.splits.threshold,
            missing_left=forest.splits.missing_left.astype(np.uint8),
            set_start=forest.splits.set_start,
            sets=forest.splits.sets,
            names=forest.names,
            categories=tuple(c.categories if isinstance(c, CategoryCoding) else None for c in forest.codings),
        )

    def grown_forest(self) -> PartyForest:
        """This party's part of the forest."""
        if self.forest is None:
            self.forest = join_forests(self._parts)
        return self.forest

    @takes(msg.OutOfBagAnswers, when=TrainingState.trained)
    def _on_OutOfBagAnswers(self, message: msg.OutOfBagAnswers) -> msg.OutOfBagScores:
        target, n_sizes = self._holder_target(), len(message.sizes)
        shape = (n_sizes, self.table.n_rows)
        said, other = (message.classes, message.targets) if target.classes else (message.targets, message.classes)
        if n_sizes == 0 or said is None or other is not None or len(said) != shape[0] * shape[1]:
            raise RemoteProtocolError("OutOfBagAnswers must carry one answer of the right kind per size and row")
        n_trees = self.grown_forest().structure.n_trees
        sampling = self._sampling if self._start is None else sampling_of(self._start, self._by_row)
        if sampling is None or sampling.seed is None or message.sizes.tolist() != list(curve_sizes(n_trees)):
            raise RemoteProtocolError("OutOfBagAnswers is about other trees, or other draws, than those of the forest")
        since = first_sizes(sampling, n_trees, self.table.n_rows)
        if not np.array_equal(message.since, since):  # a row that alone counts at one size would have its label told
            raise RemoteProtocolError("OutOfBagAnswers counts a row other than by the trees that have not drawn it")
        answers = said.astype(np.float64).reshape(shape)
        if not target.can_be_answers(answers[since <= np.arange(n_sizes)[:, None]]):
            raise RemoteProtocolError("OutOfBagAnswers must carry answers that a forest of these labels can give")
        scores, residuals = target.summary(answers, since, self._min_leaf)
        return msg.OutOfBagScores(scores=np.array(scores), residuals=residuals)

    @takes(msg.AskDecisions, when=TrainingState.trained)
    def _on_AskDecisions(self, message: msg.AskDecisions) -> Message:
        if message.seed < 0:
            raise RemoteProtocolError("AskDecisions must carry a seed that is not negative")
        self._check_plain()
        return self._predictor().decide(message)

    @takes(msg.AskNodes, when=TrainingState.trained)
    def _on_AskNodes(self, message: msg.AskNodes) -> msg.Sides:
        self._check_plain()
        return self._predictor().sides(message)

    def _check_plain(self) -> None:
        if self._sealed_only:
            raise PolicyError("this party's policy is to answer under seal only: predict with sealed=True")

    # --- explanations ---

    @takes(explained.AskExplained, when=TrainingState.trained)
    def _on_AskExplained(self, message: explained.AskExplained) -> explained.ExplainedColumns:
        self._check_explains("party")
        names = self.grown_forest().names if self._explains in ("columns", "values") else None
        return explained.ExplainedColumns(names=names, tells_values=self._explains == "values")

    @takes(explained.AskAllSides, when=TrainingState.trained)
    def _on_AskAllSides(self, message: explained.AskAllSides) -> explained.AllSides:
        self._check_explains("party")
        return self._predictor().all_sides(message)

    @takes(explained.AskRowValues, when=TrainingState.trained)
    def _on_AskRowValues(self, message: explained.AskRowValues) -> explained.RowValues:
        self._check_explains("values")
        return self._predictor().row_values(message)

    def _check_explains(self, least: explained.Explains) -> None:
        if self._sealed_only:
            raise PolicyError(
                "this party's policy is to answer under seal only, and an explanation needs its sides in clear"
            )
        if explained.EXPLAINS.index(self._explains) < explained.EXPLAINS.index(least):
            raise PolicyError(
                f"this party's policy lets explanations show {self._explains!r}, and {least!r} is asked for; "
                "its owner can raise it"
            )

    @takes(OpenSums, StartSums, when=TrainingState.trained)
    def _set_up_sums(self, message: Message) -> Message:
        return self._sealing().sums.handle(message)

    @takes(AskSealed, when=TrainingState.trained)
    def _on_AskSealed(self, message: AskSealed) -> SealedLeaves:
        return self._predictor().seal(message, self._sealing())

    def _sealing(self) -> Sealer:
        if self._sealer is None:
            raise RemoteProtocolError("this prediction is not a sealed one")
        return self._sealer

    def most_bytes(self, reply: Message) -> int:
        """Bytes of arrays that such an answer has at most for as many rows; 0 where that is not known."""
        return 0 if self._answers is None else self._answers.most_bytes(reply)

    def _predictor(self) -> PartyAnswers:
        if self._answers is None:
            self._answers = self._match(self.grown_forest())
        return self._answers


Level: TypeAlias = msg.GrowLevel | msg.RegrowLevel | msg.FinishTrees
"""What carries the splits of a level."""
G = TypeVar("G", bound=Grower)
T = TypeVar("T")

_NO_SIZES = np.empty(0, np.int64)
_NO_VALUES = np.empty(0)
