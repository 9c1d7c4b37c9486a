"""A client of the lossless forest: counts its rows where it is asked to, and sends them down the trees.

The rows themselves are in `RowBlock`s: one here, or several on a cluster of the client's, whose numbers are added. All
that leaves the client are vectors of sums.

States are those of `HorizontalClient`. Within *ready*::

    CountValues   quantiles of columns; at most so many prefixes per column as quantiles take; of all clients' values,
                  also where others of their sums can spare some
    CountClasses  rows of each class, where the plan has class weights
    CountWeights  the same with their weights, where the plan has weights of rows; of all clients, as CountValues
    DrawRows      once, or DrawByClass, or DrawByWeight: begins the trees
    CountCells    level ``_level`` once more (other nodes or features), or level ``_level + 1``
    ScoreLeftOut  one forest, where the plan has an out-of-bag score

A drawing has a number (``_tried``), and blocks keep the one in use beside it (``_drawn``). DrawRows whose sum is
refused leaves an unused drawing in the blocks, and the next one takes its place; the trees go on with the drawing that
``_drawing`` names. Apart from that a refused message changes nothing. ``_values_asked`` and ``_cells_asked`` count by
round of the sums, so that a repeated round is not counted twice.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.exceptions import ConfigError, RemoteProtocolError
from woodlot.protocols.core.blocks import Blocks, OwnBlock
from woodlot.protocols.core.handling import takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows import row_messages as msg
from woodlot.protocols.rows.lossless import lossless_messages
from woodlot.protocols.rows.lossless.left_out import leaves_of, numbers_of
from woodlot.protocols.rows.lossless.lossless_plan import MAX_BINS, MOST_BINS, LosslessPlan, true_weights
from woodlot.protocols.rows.lossless.row_block import RowBlock, RowSplits
from woodlot.protocols.rows.row_client import HorizontalClient, RowClientState
from woodlot.protocols.rows.whole_forest import trees_of
from woodlot.protocols.sums import SumClient, sum_messages
from woodlot.trees.quantiles import DIGIT_BITS, VALUE_BITS
from woodlot.trees.sampling import derive_seed


class LosslessClient(HorizontalClient):
    """A client whose rows are counted.

    Parameters
    ----------
    name, table, target, secret, plan, n_jobs
        As for `HorizontalClient`. The secret, if any, is the same at every client: the rows that a tree draws follow
        from it, and the forest is that of the pooled rows only if all draw alike.
    sums : SumClient
        Its part of the sums.
    blocks : Blocks, optional
        `RowBlock`s that have these rows elsewhere; by default they are counted here.
    device : {"cpu", "cuda", "auto"}
        Where they are counted here; the numbers do not depend on it.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        target: Target,
        *,
        sums: SumClient,
        secret: bytes = b"",
        plan: LosslessPlan | None = None,
        n_jobs: int = 1,
        blocks: Blocks | None = None,
        device: str = "cpu",
    ) -> None:
        super().__init__(name, table, target, secret=secret, plan=plan, n_jobs=n_jobs)
        self._sums = sums
        self._declared = {} if plan is None else plan.declared()
        self._keeps_past = blocks is not None
        self._blocks = (
            OwnBlock(RowBlock(table, target, n_jobs, device=device), table.n_rows) if blocks is None else blocks
        )
        self._drawing = 0
        self._tried = 0
        self._drawn: tuple[int, lossless_messages.DrawRows, int] | None = None  # the drawing in use
        self._level = -1
        self._past: list[RowSplits] = []
        self._values_asked: dict[int, _AskedValues] = {}
        self._cells_asked: dict[int, NDArray[np.int64]] = {}  # features of nodes, as one number each
        self._scored: bytes | None = None  # digest of the forest that was scored out of bag

    def _on_UseSchema(self, message: msg.UseSchema) -> msg.SchemaInUse:
        self._blocks.set_up("use_schema", message, self._task)
        self._schema = message
        return msg.SchemaInUse()

    @takes(*sum_messages.SETTING_UP, *sum_messages.RECOVERING, when=RowClientState.ready)
    def _on_sums(self, message: Message) -> Message:
        return self._sums.handle(message)

    def _answer(
        self,
        message: lossless_messages.CountValues
        | lossless_messages.CountClasses
        | lossless_messages.CountWeights
        | lossless_messages.DrawRows
        | lossless_messages.CountCells
        | lossless_messages.ScoreLeftOut,
        numbers: NDArray[np.int64],
        *,
        whole: bool = False,
    ) -> Message:
        if len(numbers) != message.order.length:
            raise RemoteProtocolError("a sum was ordered of another length than that of the numbers asked for")
        return self._sums.answer(message.order, numbers, self.digest_of(message), whole=whole)

    def _added(self, method: str, *arguments: Any, once_more: tuple[Any, ...] = ()) -> NDArray[np.int64]:
        """The numbers of all blocks, added; those that were lost meanwhile are asked again, with what they missed."""
        n_blocks = len(self._blocks.bounds) - 1
        answers, lost = self._blocks.ask(method, dict.fromkeys(range(n_blocks), arguments))
        while lost:
            told, lost = self._blocks.ask(method, dict.fromkeys(sorted(lost), arguments + once_more))
            answers |= told
        numbers = answers[0]
        for k in range(1, n_blocks):
            numbers = numbers + answers[k]
        return np.asarray(numbers, np.int64)

    # --- bins ---

    @takes(lossless_messages.CountValues, when=RowClientState.ready)
    def _on_CountValues(self, message: lossless_messages.CountValues) -> Message:
        columns = np.unique(message.column).tolist()
        if (
            len(message.column) != len(message.prefix)
            or message.known_bits not in DIGIT_BITS
            or any(not self._is_numeric(f) for f in columns)
            or (message.prefix & np.uint32((1 << (VALUE_BITS - message.known_bits)) - 1)).any()
        ):
            raise RemoteProtocolError("CountValues asks for values that no column has")
        if any(self.schema.names[f] in self._declared for f in columns):
            raise RemoteProtocolError("CountValues asks for values of a column whose bins were declared")
        asked = self._check_values(message)
        self._sums.check(message.order, whole=True)  # before any column is sorted for it
        reply = self._answer(message, self._added("count_values", message), whole=True)
        self._values_asked[message.order.round] = asked
        return reply

    def _check_values(self, message: lossless_messages.CountValues) -> _AskedValues:
        """Quantiles take a few prefixes of a column, of each length: more of them would be a list of all values."""
        n = len(self.schema.names)
        counts = np.bincount(message.column, minlength=n)
        asked = _AskedValues(message.known_bits, counts)
        if isinstance(self.plan, LosslessPlan):
            for number, before in self._values_asked.items():
                if number != message.order.round and before.known_bits == asked.known_bits:
                    counts = counts + before.counts
            if int(counts.max(initial=0)) > 2 * (self.plan.max_bins or MAX_BINS):
                raise RemoteProtocolError("CountValues asks for more than the quantiles of a column take")
        return asked

    def _is_numeric(self, f: int) -> bool:
        return f < len(self.schema.names) and self.schema.categories[f] is None

    # --- drawing ---

    @takes(lossless_messages.CountClasses, when=RowClientState.ready)
    def _on_CountClasses(self, message: lossless_messages.CountClasses) -> Message:
        if self._task != "classes" or (isinstance(self.plan, LosslessPlan) and not self.plan.is_weighted):
            raise RemoteProtocolError("Unexpected CountClasses; expected where class weights were ordered")
        self._sums.check(message.order)
        return self._answer(message, self._added("count_classes"))

    @takes(lossless_messages.CountWeights, when=RowClientState.ready)
    def _on_CountWeights(self, message: lossless_messages.CountWeights) -> Message:
        ordered = self.plan.row_weights is True if isinstance(self.plan, LosslessPlan) else True
        if not ordered or self.target.weights is None:
            raise RemoteProtocolError("Unexpected CountWeights; expected where weights of rows were ordered")
        self._sums.check(message.order, whole=True)  # it can be asked again in another number of bits
        return self._answer(message, self._added("count_weights", message.fraction_bits), whole=True)

    @takes(
        lossless_messages.DrawRows,
        lossless_messages.DrawByClass,
        lossless_messages.DrawByWeight,
        when=RowClientState.ready,
    )
    def _on_DrawRows(self, message: lossless_messages.DrawRows) -> Message:
        n_columns = len(self.schema.names)
        if len(message.n_edges) != n_columns or (self._task == "targets") != (message.target_bits > 0):
            raise RemoteProtocolError("DrawRows is not about this client's columns and labels")
        if isinstance(self.plan, LosslessPlan):
            settings = self.plan.settings(n_columns)
            self.check_ordered(message, n_estimators=message.n_trees, with_rows=message.with_rows)
            if message.seed != settings.bootstrap_seed or not self._is_ordered(self.plan, message):
                raise RemoteProtocolError("DrawRows is not what was ordered: rows would be drawn in another way")
            if self._drawing:
                raise RemoteProtocolError("Unexpected DrawRows; rows are drawn once")
        self._check_edges(message)
        self._sums.check(message.order)
        # A drawing of its own each time: if the sum is refused, the trees before go on as they were.
        self._tried += 1
        seed = derive_seed(message.seed, "rows", secret=self._secret)
        drawn = self._blocks.set_up("draw", self._tried, message, seed, self._drawn)
        totals = np.sum([np.frombuffer(each, np.int64) for each in drawn], axis=0)
        reply = self._answer(message, totals)
        self._drawing, self._level, self._past = self._tried, -1, []
        self._drawn = (self._tried, message, seed)
        return reply

    def _is_ordered(self, plan: LosslessPlan, message: lossless_messages.DrawRows) -> bool:
        """Whether rows are drawn as the plan says, by what the message says of all clients' rows."""
        if isinstance(message, lossless_messages.DrawByWeight):
            return plan.row_weights is True and self._is_weighted_by(plan, message)
        if plan.row_weights is True:
            return False
        if not isinstance(message, lossless_messages.DrawByClass):
            return not plan.is_weighted and plan.is_drawn_by(message.thresholds)
        classes = self.schema.classes
        if not plan.is_weighted or len(message.class_rows) != len(classes) or int(message.class_rows.min()) < 0:
            return False
        try:
            lists = plan.class_thresholds(message.class_rows.tolist(), classes)
        except ConfigError:
            return False
        return len(lists) == len(message.lists()) and all(map(np.array_equal, lists, message.lists()))

    def _is_weighted_by(self, plan: LosslessPlan, message: lossless_messages.DrawByWeight) -> bool:
        """Whether rows of each class are drawn as often as the plan says, by what all clients' rows weigh."""
        rows, sums = message.class_rows.tolist(), true_weights(message.class_sums, message.fraction_bits)
        if (
            len(rows) != max(1, len(self.schema.classes))
            or min(rows) < 0
            or min(sums) < 0
            or plan.bootstrap != (len(message.rates) > 0)
        ):
            return False
        if not plan.bootstrap:
            return True
        try:
            return bool(plan.class_rates(rows, sums, self.schema.classes) == message.rates.tolist())
        except ConfigError:
            return False

    def _check_edges(self, message: lossless_messages.DrawRows) -> None:
        stops = np.cumsum(message.n_edges.astype(np.int64))
        for f, name in enumerate(self.schema.names):
            if self._is_numeric(f):
                edges = message.edges[stops[f] - int(message.n_edges[f]) : stops[f]]
                if not (np.diff(edges) > 0).all() or not np.array_equal(edges, self._declared.get(name, edges)):
                    raise RemoteProtocolError("the edges of bins do not ascend, or are not those that were declared")
                most = (self.plan.max_bins or MAX_BINS) if isinstance(self.plan, LosslessPlan) else MOST_BINS
                if len(edges) >= most and name not in self._declared:
                    raise RemoteProtocolError(f"column {name!r} is to have more bins than were ordered")

    # --- growing ---

    @takes(lossless_messages.CountCells, when=RowClientState.ready)
    def _on_CountCells(self, message: lossless_messages.CountCells) -> Message:
        if not self._drawing:
            raise RemoteProtocolError("Unexpected CountCells; expected after DrawRows")
        if message.level not in (self._level, self._level + 1):  # the same again: other nodes or features
            raise RemoteProtocolError(f"Unexpected level {message.level} after level {self._level}")
        asked = self._check_cells(message)
        self._sums.check(message.order)
        numbers = self._added("count", self._drawing, self._level, message, once_more=(tuple(self._past),))
        reply = self._answer(message, numbers)
        if message.level > self._level:
            self._level, self._cells_asked = message.level, {}
            if self._keeps_past:
                self._past.append(RowSplits.of(message))
        self._cells_asked[message.order.round] = asked
        return reply

    def _check_cells(self, message: lossless_messages.CountCells) -> NDArray[np.int64]:
        """A feature is counted once at a node, and no node is deeper than was ordered."""
        if len(message.nodes) != len(message.n_pairs) or int(message.n_pairs.sum()) != len(message.pair_feature):
            raise RemoteProtocolError("CountCells does not say which features are counted at which nodes")
        node = np.repeat(message.nodes.astype(np.int64), message.n_pairs)
        pairs = node * len(self.schema.names) + message.pair_feature
        if isinstance(self.plan, LosslessPlan):
            if message.level >= self.plan.settings(len(self.schema.names)).max_depth:
                raise RemoteProtocolError("CountCells asks about nodes that are as deep as max_depth allows: leaves")
            before = [
                pairs
                for number, pairs in self._cells_asked.items()
                if message.level == self._level and number != message.order.round
            ]
            if not _all_differ(np.concatenate([pairs, *before])):
                raise RemoteProtocolError("CountCells asks about a feature of a node again")
        return pairs

    # --- scoring ---

    @takes(lossless_messages.ScoreLeftOut, when=RowClientState.ready)
    def _on_ScoreLeftOut(self, message: lossless_messages.ScoreLeftOut) -> Message:
        if self._drawn is None or (isinstance(self.plan, LosslessPlan) and not self.plan.scores_left_out):
            raise RemoteProtocolError("Unexpected ScoreLeftOut; expected after DrawRows, where it was ordered")
        drawn = self._drawn[1]
        n_outputs = max(1, len(self.schema.classes)) if self._task == "classes" else 1
        trees = trees_of(message, self.schema.categories, "the coordinator")
        if (message.first_tree, trees.structure.n_trees) != (0, drawn.n_trees):
            raise RemoteProtocolError("ScoreLeftOut is for all trees that have drawn rows")
        if int(message.every_row.max(initial=0)) >= drawn.n_trees or message.order.length != self._n_scored():
            raise RemoteProtocolError("ScoreLeftOut names trees that there are not, or another number of sums")
        if (self._task == "targets") != (message.fraction_bits > 0):
            raise RemoteProtocolError("ScoreLeftOut is about labels of the other kind")
        leaves_of(message, trees.structure, n_outputs)
        digest = self.digest_of(message)
        if self._scored not in (None, digest):
            raise RemoteProtocolError("ScoreLeftOut is answered once in a job, and this is another one")
        self._sums.check(message.order)
        reply = self._answer(message, self._added("score_left_out", drawn, self._drawn[2], message))
        self._scored = digest
        return reply

    def _n_scored(self) -> int:
        weighted = self._drawn is not None and isinstance(self._drawn[1], lossless_messages.WEIGHTED)
        return numbers_of(self._task, len(self.schema.classes) if weighted else 1)


class _AskedValues(NamedTuple):
    """What was asked of values: bits of the prefixes, and how many of them of each column."""

    known_bits: int
    counts: NDArray[np.int64]


def _all_differ(numbers: NDArray[np.int64]) -> bool:
    """Whether no number stands there twice. Honest messages ask about neighbouring nodes, so that no sort is needed."""
    if len(numbers) == 0:
        return True
    lowest = int(numbers.min())
    span = int(numbers.max()) - lowest + 1
    if span > _MOST_PLACES * len(numbers):  # whoever asks about nodes far apart gets no large array made
        return len(np.unique(numbers)) == len(numbers)
    seen = np.zeros(span, np.bool_)
    seen[numbers - lowest] = True
    return int(np.count_nonzero(seen)) == len(numbers)


_MOST_PLACES = 64
