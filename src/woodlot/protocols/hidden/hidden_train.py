"""A hidden training at its leader: the label holder, who is the first of the two servers.

No message tells which row goes where. The leader and the second server hold every column in two shares; rows are
shuffled inside their nodes by a dealt order that neither of them knows, and then only bins are opened::

    histograms   leader -> server   which columns are tried at which node          leader -> dealer   sizes
                 server -> leader   its shares of their bins, and of the labels, under a mask
                 leader -> server   both shares in the leader's order, under a mask
                 server -> leader   its shares of the bins in both orders: the leader opens them
                 leader -> server   the opened bins; both add up their shares by bin
                 server -> leader   its sums: the leader has the histogram and finds the split
    splits       the same for whole rows, of which only the bins of the column that splits are opened

Then both regroup the rows by child, and go on. Other parties are needed at the beginning and at the end only. The
forest is the one of the open training with the same bins and limits. ``docs/decisions/0022-hidden-training.md`` has
the assumptions: no two of leader, second server and dealer work together.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.agreement import Entropy, derive, secret_bytes
from woodlot.protocols.core.bits import pack, smallest_unsigned
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest
from woodlot.protocols.core.forest_plan import HIDDEN_WEIGHTS, ForestPlan, check_summaries
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.core.target import Target
from woodlot.protocols.core.target_codes import TargetCode, target_key
from woodlot.protocols.hidden import hidden_messages as msg
from woodlot.protocols.hidden.hidden_columns import OwnColumns
from woodlot.protocols.hidden.hidden_dealer import label_masks
from woodlot.protocols.hidden.hidden_keys import TAG
from woodlot.protocols.hidden.hidden_trees import (
    ForestSplits,
    HiddenGrowth,
    HiddenTrees,
    OpenedSums,
    SharedColumns,
    join_splits,
    read_sums,
)
from woodlot.protocols.hidden.shared_rows import (
    CodeSizes,
    RecordLayout,
    Segments,
    SharedRows,
    Words,
    add_pairs,
    code_bits,
    from_wire,
    pair_codes,
    plant_rows,
    regrouped,
    split_codes,
    spread_values,
    to_wire,
    value_shares,
)
from woodlot.protocols.hidden.told_so_far import BothTold
from woodlot.trees.forest import Leaves, Structure, join_leaves, join_structures
from woodlot.trees.sampling import Bootstrap, derive_seed, tree_keys

Rounds = Generator[Round, dict[str, Message], Any]
RECORDS_AT_ONCE = 1 << 22
"""Records that go into one message, at most, unless a single node has more."""
BATCH_BYTES = 1 << 28
"""What the trees of a batch may take at a server, with what is on the way; a single tree may take more."""


@dataclass(frozen=True, eq=False)
class HiddenForest:
    """A forest grown by a hidden training: the leader's part, and its part as a party."""

    forest: CoordinatorForest
    own: PartyForest


class HiddenLeader:
    """The label holder: its columns, its labels, and its secrets.

    Parameters
    ----------
    name : str
        The party.
    table : Table
        Its columns, without the labels.
    target : Target
        Its labels and weights.
    entropy : Entropy
        Its secrets: the same for the same job.
    secret : bytes
        Its lasting secret: the codes of its columns, and of its targets, follow from it.
    key_by_party, shares_model, n_jobs
        As for `HiddenParty`.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        target: Target,
        *,
        entropy: Entropy,
        key_by_party: bool = True,
        secret: bytes = b"",
        shares_model: bool = False,
        n_jobs: int = 1,
    ) -> None:
        self.name = name
        self.columns = OwnColumns(name, table, key_by_party=key_by_party, secret=secret, n_jobs=n_jobs)
        self.target = target
        self.shares_model = shares_model
        self.secret = secret
        self.seed = derive(TAG, secret_bytes(entropy, "for the second server"))
        self.salt = derive(TAG, secret_bytes(entropy, "for the dealer"))


def train_hidden(plan: ForestPlan, parties: tuple[str, ...], leader: HiddenLeader, server: str, dealer: str) -> Rounds:
    """Grow a forest on secret shares; returns a `HiddenForest`.

    Parameters
    ----------
    plan : ForestPlan
        What to grow.
    parties : tuple of str
        Everybody who has columns, the leader among them.
    leader : HiddenLeader
        The label holder, in whose process this runs.
    server, dealer : str
        The party that is the second server, and the dealer.
    """
    check_plan(plan, leader.target)
    training = yield from _prepare(plan, parties, leader, server, dealer)
    batches = [_HiddenBatch(training, trees) for trees in plan.batches(training.n_rows, training.together)]
    for batch in batches:
        yield from batch.grow()
    structure = join_structures([batch.structure for batch in batches])
    starts = np.cumsum([0, *(batch.structure.n_nodes for batch in batches)]).tolist()
    splits = join_splits([batch.splits for batch in batches], starts[:-1])
    yield from training.hand_out(structure, splits)
    forest = CoordinatorForest(
        structure=structure,
        owner=_placed(structure, splits, training.owner[splits.feature], -1, np.int16),
        feature=_placed(structure, splits, splits.feature, -1, np.int32),
        gain=_placed(structure, splits, splits.gain, 0.0, np.float64),
        leaves=join_leaves([batch.leaves for batch in batches]),
        parties=parties,
        feature_keys=training.columns.keys,
        feature_party=training.owner,
        classes=leader.target.classes,
        sampling=None,
        n_rows=training.n_rows,
        sharing=training.sharing,
    )
    return HiddenForest(forest, leader.columns.keep(training.told(leader.name, structure, splits)))


def check_plan(plan: ForestPlan, target: Target) -> None:
    """Refuse what a hidden training cannot do, with what to do instead."""
    plan.check_hidden()
    if plan.bootstrap and target.weights is not None and not (target.weights == 1.0).all():
        raise DataError(HIDDEN_WEIGHTS)


def _placed(structure: Structure, splits: ForestSplits, values: NDArray[Any], fill: float, kind: Any) -> NDArray[Any]:
    out = np.full(structure.n_nodes, fill, kind)
    out[splits.node] = values
    return out


def _prepare(
    plan: ForestPlan, parties: tuple[str, ...], leader: HiddenLeader, server: str, dealer: str
) -> Generator[Round, dict[str, Message], _HiddenTraining]:
    """Gather the columns in shares, and start the second server and the dealer."""
    others = tuple(p for p in parties if p != leader.name)
    opening = msg.OpenHidden(
        parties=(*others, dealer),
        holder=leader.name,
        server=server,
        dealer=dealer,
        max_bins=plan.max_bins or 0,
        min_leaf=plan.smallest_leaf(leader.columns.table.n_rows),
        min_cell=plan.cell(leader.columns.table.n_rows),
    )
    both = BothTold()
    both.ask_dealer(opening)
    replies = yield Round("prepare", dict.fromkeys(opening.parties, opening))
    summaries = {p: reply_of(replies[p], msg.HiddenSummary, p) for p in others}
    introductions = {p: summary.introduction for p, summary in summaries.items()}
    introductions[dealer] = reply_of(replies[dealer], msg.DealerKey, dealer).introduction
    own = leader.columns.encode(opening.max_bins)
    n_rows = check_summaries({leader.name: own.n_rows, **{p: s.n_rows for p, s in summaries.items()}})
    parts = [
        (leader.columns.feature_keys, own.n_codes, own.has_missing, own.categorical)
        if p == leader.name
        else _told_of_columns(p, summaries[p])
        for p in parties
    ]
    keys, all_codes, has_missing, categorical = (np.concatenate(column) for column in zip(*parts, strict=True))
    if len(np.unique(keys)) != len(keys):
        raise DataError("two columns have the same code; rename one of the columns with equal names")
    if len(keys) == 0:
        raise DataError("no party has a column to learn from")
    counts = np.array([len(part[0]) for part in parts])
    labels = HiddenLabels.of(plan, leader, n_rows)
    n_candidates = plan.n_candidates(len(keys))
    sizes = CodeSizes(all_codes, has_missing)
    layout = RecordLayout(
        n_classes=len(leader.target.classes),
        width=labels.heaviest.bit_length(),
        bits=code_bits(sizes),
        n_columns=n_candidates if plan.feature_sampling == "tree" else len(keys),
    )
    ask = msg.ShareColumns(introductions=introductions, bits=layout.bits)
    lengths = {"n_rows": n_rows, "n_classes": layout.n_classes, "width": layout.width, "bits": layout.bits}
    start = msg.StartDealer(
        introductions=introductions, n_columns=layout.n_columns, n_draws=labels.n_draws, salt=leader.salt, **lengths
    )
    both.ask_dealer(start)
    replies = yield Round("prepare", {**dict.fromkeys(others, ask), dealer: start})
    secret = reply_of(replies[dealer], msg.DealerReady, dealer).secret
    shares = [
        leader.columns.masked(leader.seed, layout.bits)
        if p == leader.name
        else _columns_of(reply_of(replies[p], msg.ColumnShares, p), int(n), n_rows, layout.bits, p)
        for p, n in zip(parties, counts.tolist(), strict=True)
    ]
    masked = labels.mask(secret, leader.salt)
    serve = msg.StartServer(
        owners=parties,
        columns_of=counts.astype(np.uint32),
        n_codes=all_codes.astype(np.uint32),
        has_missing=has_missing,
        n_columns=layout.n_columns,
        seed=leader.seed,
        masked=masked,
        **lengths,
    )
    both.start_server(serve, leader.seed)
    replies = yield Round("prepare", {server: serve})
    reply_of(replies[server], msg.HiddenReady, server)
    sharing = {p for p, summary in summaries.items() if summary.shares_model}
    return _HiddenTraining(
        plan=plan,
        parties=parties,
        leader=leader,
        server=server,
        dealer=dealer,
        layout=layout,
        secret=secret,
        codes=np.concatenate(shares),
        columns=SharedColumns(keys, sizes, categorical),
        owner=np.repeat(np.arange(len(parties)), counts),
        labels=labels,
        growth=HiddenGrowth.of(plan, labels.sampling, n_rows, n_candidates, labels.unit(plan)),
        masked=masked,
        own_values=labels.own_values(layout, leader.seed),
        n_rows=n_rows,
        sharing=frozenset(sharing | ({leader.name} if leader.shares_model else set())),
        both=both,
    )


def _told_of_columns(party: str, summary: msg.HiddenSummary) -> tuple[NDArray[Any], ...]:
    """Keys, numbers of codes, and flags of a party's columns."""
    told = summary.feature_keys, summary.n_codes.astype(np.int64), summary.has_missing, summary.categorical
    if len({len(column) for column in told}) != 1:
        raise RemoteProtocolError(f"{party} does not say the same number of columns everywhere")
    if max(int(flags.max(initial=0)) for flags in told[2:]) > 1:
        raise RemoteProtocolError(f"{party} sent flags of columns that are neither 0 nor 1")
    return told


def _columns_of(reply: msg.ColumnShares, n: int, n_rows: int, bits: int, party: str) -> NDArray[Any]:
    codes = reply.codes if bits <= 8 else reply.wide_codes
    if codes is None or len(codes) != n * n_rows or (len(codes) and int(codes.max()) >> bits):
        raise RemoteProtocolError(f"{party} did not send one share of every value")
    return codes.reshape(n, n_rows)


@dataclass(frozen=True, eq=False, repr=False)
class HiddenLabels:
    """The labels as numbers of the records, and how rows are drawn."""

    target: Target
    numbers: NDArray[np.int64]
    """Class of each row, or its target in fixed point."""
    weights: NDArray[np.int64] | None
    factor: float
    code: TargetCode | None
    sampling: Bootstrap

    @classmethod
    def of(cls, plan: ForestPlan, leader: HiddenLeader, n_rows: int) -> HiddenLabels:
        target = leader.target
        if (plan.task == "classes") != bool(target.classes):
            raise DataError("labels of the other kind are asked for")
        weight_of = plan.class_weight if isinstance(plan.class_weight, tuple) else ()
        weights, factor = target.integer_weights(plan.class_weight == "balanced", weight_of)
        sampling = plan.sampling(n_rows, weights, factor)
        if target.classes:
            return cls(target, target.numbers, weights, factor, None, sampling)
        total = float(n_rows if weights is None else weights.sum())
        key = target_key(target.values, derive_seed(plan.seed, "labels"), leader.secret)
        code = TargetCode.draw(target.values, max(total, float(n_rows)), key)
        return cls(target, code.encode(target.values), weights, factor, code, sampling)

    @property
    def n_draws(self) -> int | None:
        """Rows that a tree draws; None where it has all."""
        return None if self.sampling.seed is None else self.sampling.n_draws

    @property
    def heaviest(self) -> int:
        """No count or weight of a tree is larger."""
        return max(self.sampling.tree_weight(len(self.numbers)), len(self.numbers))

    def mask(self, secret: bytes, salt: bytes) -> NDArray[Any] | None:
        """The labels less the dealer's masks, where rows are drawn."""
        if self.n_draws is None:
            return None
        masks, n_classes = label_masks(secret, salt, len(self.numbers)), len(self.target.classes)
        if n_classes:
            drawn = (masks % np.uint64(n_classes)).astype(np.int64)
            return ((self.numbers - drawn) % n_classes).astype(np.min_scalar_type(n_classes - 1))
        return self.numbers.astype(np.uint64) - masks

    def own_values(self, layout: RecordLayout, seed: bytes) -> Words:
        """The leader's share of the rows' values where every tree has every row, times its weight."""
        n_rows = len(self.numbers)
        clear = np.zeros((n_rows, layout.dealt_fields), np.uint64)
        clear[:, 1] = 1 if self.weights is None else self.weights
        clear[:, 0] = clear[:, 1] > 0
        return spread_values(layout, clear, self.numbers) - value_shares(seed, layout, n_rows)

    @property
    def weight_unit(self) -> float:
        """What a row of weight 1 weighs in a tree."""
        return self.sampling.weight_unit(len(self.numbers), self.factor)

    def leaf_values(self, sums: NDArray[np.int64], weights: NDArray[np.int64]) -> NDArray[np.float64]:
        """Mean targets of leaves, from sums in fixed point."""
        means = sums.astype(np.float64) / weights.astype(np.float64)
        return means if self.code is None else means / self.code.scale + self.code.centre

    def unit(self, plan: ForestPlan) -> float:
        """What the square of a target's unit is in fixed point, where a rule needs it."""
        return 1.0 if self.code is None or not plan.measures_gains else self.code.unit


@dataclass(frozen=True, eq=False, repr=False)
class _HiddenTraining:
    """Everything that the leader has when the first tree begins."""

    plan: ForestPlan
    parties: tuple[str, ...]
    leader: HiddenLeader
    server: str
    dealer: str
    layout: RecordLayout
    secret: bytes
    codes: NDArray[Any]
    columns: SharedColumns
    owner: NDArray[np.int64]
    labels: HiddenLabels
    growth: HiddenGrowth
    masked: NDArray[Any] | None
    own_values: Words
    """Its share of the rows' values, where nothing is drawn."""
    n_rows: int
    sharing: frozenset[str]
    both: BothTold
    steps: Iterator[int] = field(default_factory=itertools.count)

    @property
    def together(self) -> int:
        """How many trees grow at the same time: as many as fit the memory limit and a message."""
        layout = self.layout
        of_tree = 3 * 8 * self.n_rows * max(layout.n_words, layout.dealt_fields)
        return max(1, min(self.plan.memory_limit, BATCH_BYTES) // of_tree)

    def next_step(self) -> int:
        """The number of the next shuffle."""
        return next(self.steps)

    def told(self, party: str, structure: Structure, splits: ForestSplits) -> msg.KeepSplits:
        """What a party is told of the forest."""
        number = self.parties.index(party)
        mine = np.flatnonzero(self.owner[splits.feature] == number)
        mine = mine[np.argsort(splits.node[mine], kind="stable")]
        sets = [splits.sets[k] for k in mine.tolist()]
        return msg.KeepSplits(
            offset=structure.offset.astype(np.uint32),
            right=np.maximum(structure.right, 0).astype(np.uint32),
            node=splits.node[mine].astype(np.uint32),
            feature=(splits.feature[mine] - np.searchsorted(self.owner, number)).astype(np.uint32),
            low=smallest_unsigned(splits.low[mine]),
            high=smallest_unsigned(splits.high[mine] + 1),
            missing_left=splits.missing_left[mine],
            set_length=smallest_unsigned(np.array([len(some) for some in sets], np.int64)),
            sets=np.concatenate([np.empty(0, np.uint8), *sets]),
        )

    def hand_out(self, structure: Structure, splits: ForestSplits) -> Generator[Round, dict[str, Message], None]:
        """Tell every other party its splits."""
        others = [p for p in self.parties if p != self.leader.name]
        replies = yield Round("grow", {p: self.told(p, structure, splits) for p in others})
        for p in others:
            reply_of(replies[p], msg.SplitsKept, p)


class _HiddenBatch:
    """Trees that grow together, at the leader."""

    def __init__(self, training: _HiddenTraining, trees: range) -> None:
        self._t = training
        self._trees = trees
        self._left, self._is_open = _NO_BITS, _NO_BITS  # what the second server has yet to be told of the nodes
        self._rows: SharedRows
        self.structure: Structure
        self.leaves: Leaves
        self.splits: ForestSplits

    def grow(self) -> Generator[Round, dict[str, Message], None]:
        """Grow the trees to their end."""
        t = self._t
        keys = tree_keys(derive_seed(t.plan.seed, "order"), self._trees)
        slots = t.columns.slots(keys, t.layout.n_columns)
        rows, totals = yield from self._plant(slots)
        trees = HiddenTrees(t.growth, t.columns, keys, slots, totals)
        self._is_open = pack(trees.opened)
        self._rows = SharedRows(t.layout, rows.of_nodes(trees.opened), rows.size[trees.opened])
        while trees.n_open:
            while (asked := trees.ask()) is not None:
                yield from self._search(trees, *asked)
            goes_on = trees.split()
            if trees.n_open:
                yield from self._divide(trees, goes_on)
        self.structure, self.leaves, self.splits = trees.finish(t.labels)

    def _progress(self, trees: HiddenTrees) -> Progress:
        done = self._trees[0] + trees.n_finished
        return Progress(done, self._t.plan.n_estimators, f"level {trees.depth}, {trees.n_open:,} nodes")

    def _plant(self, slots: NDArray[np.int64]) -> Generator[Round, dict[str, Message], tuple[SharedRows, OpenedSums]]:
        """Begin the trees at both servers; returns their rows, and what they have drawn."""
        t, first, n_trees = self._t, self._trees[0], len(self._trees)
        plant = msg.PlantHidden(first_tree=first, n_trees=n_trees, columns=smallest_unsigned(slots.ravel()), bound=b"")
        requests: dict[str, Message] = {t.server: plant}
        if t.masked is None:
            t.both.tell_server(plant)
        else:
            deal = msg.DealDraws(first_tree=first, n_trees=n_trees, bound=b"")
            requests[t.server], requests[t.dealer], _ = t.both.ask_both(plant, deal)
        replies = yield Round("grow", requests, Progress(first, t.plan.n_estimators, "drawing rows"))
        layout, masked = t.layout, t.masked
        if masked is None:
            values = np.broadcast_to(t.own_values, (n_trees, *t.own_values.shape))
        else:
            words = reply_of(replies[t.dealer], msg.DealtDraws, t.dealer).words
            if len(words) != n_trees * t.n_rows * layout.dealt_fields:
                raise RemoteProtocolError(f"{t.dealer} dealt draws of another number of rows")
            dealt = words.reshape(n_trees, t.n_rows, layout.dealt_fields)
            values = np.stack([spread_values(layout, np.array(tree), masked) for tree in dealt])
        rows = plant_rows(layout, t.codes, values, slots)
        told = reply_of(replies[t.server], msg.ServerTotals, t.server).sums
        sums = from_wire(told, n_trees, layout.used[: layout.first_column], t.server)
        return rows, read_sums(layout, rows.totals(), sums, t.server)

    def _search(
        self, trees: HiddenTrees, nodes: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> Generator[Round, dict[str, Message], None]:
        """Have the candidates of some nodes counted, and find the best splits."""
        records = np.cumsum(self._rows.size[nodes] * slots.shape[1])
        first = 0
        while first < len(nodes):
            before = int(records[first - 1]) if first else 0
            upto = max(first + 1, int(np.searchsorted(records, before + RECORDS_AT_ONCE, side="right")))
            yield from self._count(trees, nodes[first:upto], slots[first:upto])
            first = upto

    def _count(
        self, trees: HiddenTrees, nodes: NDArray[np.int64], slots: NDArray[np.int64]
    ) -> Generator[Round, dict[str, Message], None]:
        t, layout = self._t, self._t.layout
        node, slot = np.repeat(nodes, slots.shape[1]), slots.ravel()
        shift = trees.shifts(node, slot)
        ask = msg.AskPairs(
            left=self._left,
            is_open=self._is_open,
            node=smallest_unsigned(node),
            slot=smallest_unsigned(slot),
            shift=shift.astype(np.uint8),
            bound=b"",
        )
        self._left, self._is_open = _NO_BITS, _NO_BITS
        size, own = self._rows.size[node], self._rows.pairs(node, slot, shift)
        masked, records, theirs = yield from self._shuffle(ask, size, own, trees, whole_rows=False)
        sizes = t.columns.sizes.take(trees.features(node, slot))
        bins, n_cells = sizes.cells_of(pair_codes(layout, records) ^ theirs, size, shift, t.server), sizes.cells(shift)
        opened = msg.OpenBins(codes=bins)
        t.both.tell_server(opened)
        replies = yield Round("grow", {t.server: opened}, self._progress(trees))
        added = reply_of(replies[t.server], msg.ServerSums, t.server).sums
        sums = from_wire(added, int(n_cells.sum()), layout.used[: layout.pair_words], t.server)
        cells = read_sums(layout, add_pairs(layout, records, bins, size, n_cells), sums, t.server)
        trees.take(nodes, slots, cells, self._squares(nodes, masked))

    def _squares(self, nodes: NDArray[np.int64], reply: msg.MaskedRecords) -> NDArray[np.uint64]:
        """OpenedSums of squared targets of some nodes; none for classes."""
        t = self._t
        if t.layout.n_classes:
            return np.empty(0, np.uint64)
        if len(reply.squares) != len(self._rows.size):
            raise RemoteProtocolError(f"{t.server} sent the spread of another number of nodes")
        return (self._rows.totals()[:, -1] + reply.squares)[nodes]

    def _divide(self, trees: HiddenTrees, goes_on: NDArray[np.bool_]) -> Generator[Round, dict[str, Message], None]:
        """Send the rows of some nodes down to their children."""
        t, rows = self._t, self._rows
        sides, is_open = trees.sides, trees.opened_sides
        ask = msg.AskRows(goes_on=pack(goes_on), slot=smallest_unsigned(sides.slot), bound=b"")
        size = rows.size[goes_on]
        _, records, theirs = yield from self._shuffle(ask, size, rows.of_nodes(goes_on), trees, whole_rows=True)
        codes = split_codes(t.layout, records, size, sides.slot, sides.shift) ^ theirs
        cells = t.columns.sizes.take(sides.feature).cells_of(codes, size, sides.shift, t.server)
        left = sides.goes_left[np.repeat(np.arange(len(size)), size), cells]
        self._rows = regrouped(t.layout, records, size, left, is_open)
        self._left, self._is_open = pack(left), pack(is_open)

    def _shuffle(
        self,
        ask: msg.AskPairs | msg.AskRows,
        size: NDArray[np.int64],
        own: Words,
        trees: HiddenTrees,
        *,
        whole_rows: bool,
    ) -> Generator[Round, dict[str, Message], tuple[msg.MaskedRecords, Words, NDArray[Any]]]:
        """Shuffle records in both orders.

        Returns the second server's first reply, this server's new shares, and the other's shares of what is opened.
        """
        t = self._t
        xor, used = t.layout.of_records(whole_rows=whole_rows)
        deal = msg.DealShuffle(sizes=size.astype(np.uint32), whole_rows=whole_rows, bound=b"")
        ask, deal, bound = t.both.ask_both(ask, deal)
        segments = Segments(t.next_step(), size, xor, bound)
        replies = yield Round("grow", {t.server: ask, t.dealer: deal}, self._progress(trees))
        masked = reply_of(replies[t.server], msg.MaskedRecords, t.server)
        dealt = reply_of(replies[t.dealer], msg.DealtShuffle, t.dealer)
        first = from_wire(dealt.first, segments.n, used, t.dealer)
        passed = segments.carry_first(t.secret, own, from_wire(masked.records, segments.n, used, t.server), first)
        onwards, second, _ = t.both.ask_both(
            msg.PassRecords(records=to_wire(passed, used), bound=b""), msg.DealSecond(bound=b"")
        )
        replies = yield Round("grow", {t.server: onwards, t.dealer: second}, self._progress(trees))
        theirs = reply_of(replies[t.server], msg.CodeShares, t.server).codes
        if len(theirs) != segments.n:
            raise RemoteProtocolError(f"{t.server} sent {len(theirs)} shares of bins for {segments.n} records")
        other = reply_of(replies[t.dealer], msg.DealtSecond, t.dealer).second
        return masked, from_wire(other, segments.n, used, t.dealer), theirs


_NO_BITS = np.empty(0, np.uint8)
