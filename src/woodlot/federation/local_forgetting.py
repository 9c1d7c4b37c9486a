"""Forgetting rows of a forest over columns whose parties are all in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn
from woodlot.data.ids import canonical_ids
from woodlot.data.tables import Table
from woodlot.exceptions import DataError
from woodlot.federation.drawn_rows import take_target
from woodlot.federation.grown import GrownForest, Labels
from woodlot.federation.local import Federation
from woodlot.protocols.core.bits import smallest_unsigned
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest, splitting_parties
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.target import Target
from woodlot.protocols.core.target_codes import TargetCode, target_key
from woodlot.protocols.vertical.completion import complete_forest
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.branch_growing import Ground
from woodlot.trees.encoding import encode
from woodlot.trees.forest import Leaves, Splits, gather_sets, join_splits
from woodlot.trees.forgetting import ForestMemory, Forgotten, RememberedTrees, TooMuchError
from woodlot.trees.rules import entropy_scale
from woodlot.trees.sampling import Bootstrap, derive_seed


@dataclass(frozen=True, eq=False)
class Remaining:
    """What is left of a training after rows were forgotten; its tables are made when they are needed.

    Attributes
    ----------
    whole : Federation
        What the forest was first grown on.
    all_labels : Labels
        Their labels.
    kept : int64 array
        The rows that are left.
    """

    whole: Federation
    all_labels: Labels
    kept: NDArray[np.int64]

    @cached_property
    def federation(self) -> Federation:
        """The tables without the rows."""
        return self.whole if len(self.kept) == self.whole.n_rows else self.whole.take(self.kept)

    @cached_property
    def labels(self) -> Labels:
        """The labels without those of the rows."""
        return replace(self.all_labels, target=take_target(_target(self.all_labels), self.kept))


@dataclass(frozen=True, eq=False)
class RowsForgotten:
    """What became of a forest.

    Attributes
    ----------
    forest : GrownForest
        The forest without the rows.
    memory : LocalMemory
        To forget more with; another than before where the forest was grown again.
    done : Forgotten or None
        What was searched and grown; None where all was grown again, ...
    reason : str
        ... and why.
    """

    forest: GrownForest
    memory: LocalMemory
    done: Forgotten | None
    reason: str


class LocalMemory:
    """What it takes to forget rows of a forest: its training, and where every row ended.

    Parameters
    ----------
    federation : Federation
        What the forest was grown on.
    labels : Labels
        Its labels, in the order of the federation's rows.
    plan : ForestPlan
        What it was grown by.
    """

    def __init__(self, federation: Federation, labels: Labels, plan: ForestPlan) -> None:
        self.plan = plan
        self.remaining = Remaining(federation, labels, np.arange(federation.n_rows))
        self._target = _target(labels)
        self._memory: ForestMemory | None = None
        self._fixed: tuple[Any, ...] = ()

    # --- which rows ---

    @cached_property
    def _row_of(self) -> dict[Any, list[int]]:
        """Rows of each id."""
        rows: dict[Any, list[int]] = {}
        for row, id in enumerate(self.remaining.whole._hashed_ids()):
            rows.setdefault(id, []).append(row)
        return rows

    @cached_property
    def _row_at(self) -> NDArray[np.int64]:
        """The row of each place in what was given to ``fit``; -1 where a place has none."""
        federation = self.remaining.whole
        if federation.drawn is None:
            return np.arange(federation.n_rows)
        place = federation.drawn.place
        rows = np.full(int(place.max()) + 1, -1, np.int64)
        rows[place] = np.arange(len(place))
        return rows

    def _rows_at(self, numbers: NDArray[np.integer[Any]]) -> list[list[int]]:
        inside = (numbers >= 0) & (numbers < len(self._row_at))
        rows = np.where(inside, self._row_at[np.where(inside, numbers, 0)], -1)
        return [[row] if row >= 0 else [] for row in rows.tolist()]

    def find(self, ids: Any) -> tuple[NDArray[np.int64], list[bytes], int]:
        """The rows of some ids, the ids in canonical form, and how many of them the forest does not know."""
        if self._memory is None and len(self.remaining.kept) < self.remaining.whole.n_rows:
            rest = self.remaining
            self.__init__(rest.federation, rest.labels, self.plan)  # type: ignore[misc]
            for made in ("_row_of", "_row_at"):
                self.__dict__.pop(made, None)
        wanted = canonical_ids(ids, "ids").values
        if self.remaining.whole.ids is None:
            numbers = np.asarray(ids)
            if numbers.dtype.kind not in "iu":
                raise DataError(
                    "the rows of this forest have no ids; give row numbers of the table that it was fitted on"
                )
            known = self._rows_at(numbers)
        else:
            known = [self._row_of.get(id, []) for id in wanted]
        present = np.zeros(self.remaining.whole.n_rows, np.bool_)
        present[self.remaining.kept] = True
        found = [[row for row in of_id if present[row]] for of_id in known]
        rows = np.array([row for some in found for row in some], np.int64)
        return rows, wanted, sum(not some for some in found)

    # --- forgetting ---

    def forget(self, forest: GrownForest, rows: NDArray[np.int64], n_jobs: int) -> RowsForgotten:
        """The forest without some rows; the given one is not changed."""
        if len(rows) == 0:
            return RowsForgotten(forest, self, Forgotten.nothing(forest.coordinator.structure.n_trees), "")
        before = self.remaining
        gone = np.zeros(before.whole.n_rows, np.bool_)
        gone[rows] = True
        kept = before.kept[~gone[before.kept]]
        if len(kept) == 0:
            raise DataError("a forest without any row is none; these are all its rows: delete the model instead")
        remaining = Remaining(before.whole, before.all_labels, kept)
        try:
            return self._forget_fast(forest, remaining, rows, n_jobs)
        except TooMuchError as error:
            return self._grow_again(remaining, str(error), n_jobs)

    def _forget_fast(
        self, forest: GrownForest, remaining: Remaining, rows: NDArray[np.int64], n_jobs: int
    ) -> RowsForgotten:
        unsupported = _unsupported(self.plan, remaining.whole)
        if unsupported:
            raise TooMuchError(unsupported)
        if self._memory is None:
            self._memory, self._fixed = self._remember(forest)
        memory = self._memory
        fixed = self._what_is_fixed(remaining.kept)
        if fixed[:-1] != self._fixed[:-1]:
            self._memory = None
            raise TooMuchError("one of the rows decides how all others are weighed, coded or split")
        self._check_occurring(rows)
        bootstrap = self._sampling(remaining.kept)
        try:
            done = memory.forget(rows, bootstrap)
            grown = self._assemble(forest, memory.grown(bootstrap), bootstrap, len(remaining.kept))
        except BaseException:
            self._memory = None  # half of it may be done: made again when it is needed
            raise
        self.remaining = remaining
        if self.plan.out_of_bag is not None:
            grown = self._score(grown, n_jobs)
        return RowsForgotten(grown, self, done, "")

    def _grow_again(self, remaining: Remaining, reason: str, n_jobs: int) -> RowsForgotten:
        federation, labels = remaining.federation, remaining.labels
        if federation.drawn is not None:  # weights, and with them draws, may be others without the rows
            place = federation.drawn.place
            federation, labels = federation.drawn_by_row(self.plan, labels)
            if federation.drawn is not None:
                federation.drawn = replace(federation.drawn, place=place[federation.drawn.place])
        forest, _ = federation.fit_forest(self.plan, labels, settings=dict, n_jobs=n_jobs)
        return RowsForgotten(forest, LocalMemory(federation, labels, self.plan), None, reason)

    # --- what the rows are ---

    def _weights(self, kept: NDArray[np.int64]) -> tuple[NDArray[np.int64] | None, float]:
        named = self.plan.class_weight
        if self._target.weights is None and named is None:
            return None, 1.0
        target = take_target(self._target, kept)
        return target.integer_weights(named == "balanced", named if isinstance(named, tuple) else ())

    def _sampling(self, kept: NDArray[np.int64]) -> Bootstrap:
        weights, factor = self._weights(kept)
        drawn = self.remaining.whole.drawn
        draws = None if drawn is None or not self.plan.bootstrap else drawn.draws.take(kept)
        return replace(self.plan.sampling(len(kept), weights, factor), by_row=draws)

    def _what_is_fixed(self, kept: NDArray[np.int64]) -> tuple[Any, ...]:
        """What every node depends on: where it is another without the rows, all must grow again. Last, the code."""
        plan, n_rows = self.plan, len(kept)
        sampling = self._sampling(kept)
        growth = {k: v for k, v in plan.growth(n_rows, sampling).items() if k != "n_draws"}
        weights, factor = self._weights(kept)
        whole = self._weights(np.arange(len(self._labels_of_all)))[0]
        same = whole is None if weights is None else whole is not None and np.array_equal(whole[kept], weights)
        scale = entropy_scale(sampling, n_rows) if plan.entropy else 1
        code = None if self._target.classes else self._code(kept, weights)
        return growth, factor, same, scale, None if code is None else (code.centre, code.scale), code

    @property
    def _labels_of_all(self) -> NDArray[Any]:
        return self._target.numbers if self._target.classes else self._target.values

    def _code(self, kept: NDArray[np.int64], weights: NDArray[np.int64] | None) -> TargetCode:
        """As `VerticalParty` has it."""
        total = float(len(kept) if weights is None else weights.sum())
        key = target_key(np.empty(0), derive_seed(self.plan.seed, "labels"), b"")
        return TargetCode.draw(self._target.values[kept], max(total, float(len(kept))), key)

    def _check_occurring(self, rows: NDArray[np.int64]) -> None:
        """Refuse to lose the last row of a class or of a category; count the others."""
        for codes, counts in self._occurring:
            lost = np.bincount(codes[rows][codes[rows] >= 0], minlength=len(counts))
            if ((counts == lost) & (lost > 0)).any():
                self._memory = None
                raise TooMuchError("a class or a category is in no row any more")
        for codes, counts in self._occurring:
            counts -= np.bincount(codes[rows][codes[rows] >= 0], minlength=len(counts))

    def _remember(self, forest: GrownForest) -> tuple[ForestMemory, tuple[Any, ...]]:
        """Send all rows that are left down the forest."""
        federation, labels, kept = self.remaining.whole, self.remaining.all_labels, self.remaining.kept
        target, coordinator = self._target, forest.coordinator
        tables = {p: federation.learnt_from(p, labels) for p in coordinator.parties}
        joined = _joined(tables, federation.n_rows)
        fixed = self._what_is_fixed(kept)
        sampling = self._sampling(kept)
        code: TargetCode | None = fixed[-1]
        numbers = smallest_unsigned(target.numbers) if code is None else code.encode(target.values)
        ground = Ground(
            table=encode(joined, max_bins=self.plan.max_bins, n_jobs=1),
            feature_keys=coordinator.feature_keys,
            labels=numbers,
            values=target.values,
            n_classes=len(target.classes),
            rules=self.plan.rules(federation.n_rows, sampling.tree_weight(federation.n_rows)),
            n_candidates=self.plan.n_candidates(len(coordinator.feature_keys)),
            order_seed=derive_seed(self.plan.seed, "order"),
        )
        self._occurring: list[tuple[NDArray[Any], NDArray[Any]]] = [
            (column.codes, np.bincount(column.codes[column.codes >= 0], minlength=len(column.categories)))
            for column in joined.columns
            if isinstance(column, CategoryColumn)
        ]
        if target.classes:
            self._occurring.append((target.numbers, np.bincount(target.numbers)))
        unit = sampling.weight_unit(federation.n_rows, self._weights(kept)[1])
        return ForestMemory(ground, _whole(forest), sampling, unit), fixed

    # --- the forest in its parts ---

    def _assemble(self, former: GrownForest, grown: RememberedTrees, sampling: Bootstrap, n_rows: int) -> GrownForest:
        old = former.coordinator
        owner = np.append(old.feature_party, -1).astype(np.int16)[grown.feature]
        coordinator = replace(
            old, structure=grown.structure, owner=owner, feature=grown.feature, gain=grown.gain, leaves=grown.leaves,
            sampling=sampling, n_rows=n_rows,
        )  # fmt: skip
        s = grown.splits
        party = old.feature_party[s.feature]
        parts = {}
        for name, part in former.parts.items():
            number = old.parties.index(name)
            own = np.flatnonzero(party == number)
            set_start, sets = gather_sets(s.set_start, s.sets, own)
            splits = Splits(
                node=s.node[own],
                feature=(s.feature[own] - np.searchsorted(old.feature_party, number)).astype(np.int32),
                threshold=s.threshold[own],
                missing_left=s.missing_left[own],
                set_start=set_start,
                sets=sets,
            )
            parts[name] = PartyForest(grown.structure, splits, part.names, part.codings)
        if not self.remaining.whole.key_by_party:
            return GrownForest(coordinator, parts, parts, plan=former.plan, epoch=former.epoch)
        splitting = splitting_parties(coordinator)
        unwilling = tuple(p for p in splitting if p not in coordinator.sharing)
        shared = {} if unwilling else {p: parts[p] for p in splitting}
        return GrownForest(coordinator, parts, shared, unwilling, plan=former.plan, epoch=former.epoch)

    def _score(self, forest: GrownForest, n_jobs: int) -> GrownForest:
        """Out-of-bag scores of the forest, as after a training."""
        federation, labels = self.remaining.federation, self.remaining.labels
        sampling = forest.coordinator.sampling
        handlers = {
            name: VerticalParty(
                name, federation.learnt_from(name, labels), forest=part, sampling=sampling,
                target=labels.target if name == labels.holder else None, key_by_party=federation.key_by_party,
            )
            for name, part in forest.parts.items()
        }  # fmt: skip
        ledger = Ledger()
        with InProcessDriver(handlers, ledger=ledger) as driver:
            protocol = complete_forest(self.plan, forest.coordinator, labels.holder, n_jobs, reveal=False)
            oob = run(protocol, driver, ledger=ledger).oob
        return replace(
            forest, oob_outputs=oob.outputs, oob_score=oob.score, residuals=oob.residuals, oob_curve=oob.curve
        )


def _unsupported(plan: ForestPlan, federation: Federation) -> str:
    """Why a forest must be grown again for every row less, if it must."""
    if federation.drawn is None:
        return "bootstrap_by='draw' draws every tree's rows by how many rows there are"
    if plan.class_weight == "balanced":
        return "class_weight='balanced' weighs each row by all others"
    if plan.max_leaf_nodes is not None:
        return "max_leaf_nodes lets the nodes of a tree compete"
    if plan.min_impurity_decrease > 0:
        return "min_impurity_decrease counts gains by the number of rows"
    if plan.pruning > 0:
        return "ccp_alpha weighs the branches of a tree by all that is below them"
    if plan.min_cell:
        return "min_cell makes bins as coarse as a node is small"
    return ""


def _target(labels: Labels) -> Target:
    if labels.target is None:
        raise DataError("forgetting needs the labels of the training in this process")
    return labels.target


def _joined(tables: Mapping[str, Table], n_rows: int) -> Table:
    """All columns side by side, in the order of the forest's features."""
    names = tuple(f"{party}.{name}" for party, table in tables.items() for name in table.names)
    return Table(names, tuple(column for table in tables.values() for column in table.columns), n_rows)


def _whole(forest: GrownForest) -> RememberedTrees:
    """The forest with the questions of all parties."""
    coordinator: CoordinatorForest = forest.coordinator
    parts = []
    for number, party in enumerate(coordinator.parties):
        if party in forest.parts:
            splits = forest.parts[party].splits
            first = int(np.searchsorted(coordinator.feature_party, number))
            parts.append(replace(splits, feature=(splits.feature + first).astype(np.int32)))
    joined = join_splits(parts, [0] * len(parts))
    if len(joined.node) != int((coordinator.owner >= 0).sum()):
        raise DataError("the parts of some parties are not here; forgetting needs all of them")
    leaves: Leaves = coordinator.leaves
    return RememberedTrees(coordinator.structure, joined, coordinator.feature, coordinator.gain, leaves)
