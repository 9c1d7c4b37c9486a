"""A client of the lossless forest: counts its rows where it is asked to, and sends them down the trees.

It keeps the rows that each tree has drawn of it, partitioned by the open nodes. All that leaves it are vectors of sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn, NumericColumn
from woodlot.data.tables import Table
from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.horizontal.client import HorizontalClient, State
from woodlot.protocols.horizontal.lossless.plan import LosslessPlan, fixed_targets
from woodlot.protocols.horizontal.schema import map_classes, map_table
from woodlot.protocols.messages import horizontal as msg
from woodlot.protocols.messages import lossless, secure_sum
from woodlot.protocols.messages.base import Message
from woodlot.protocols.secure_sum import SumClient
from woodlot.protocols.vertical import bits
from woodlot.protocols.vertical.target import Target
from woodlot.trees.cells import Cells
from woodlot.trees.drawing import draw_trees, row_keys
from woodlot.trees.kernels.cells import send_down
from woodlot.trees.quantiles import DIGIT_BITS, DIGITS, VALUE_BITS, Bins, count_digits, ordered_form
from woodlot.trees.sampling import derive_seed, feature_key


@dataclass
class _Drawn:
    """The rows of all trees in flight, and the open nodes."""

    codes: NDArray[Any]
    n_codes: NDArray[np.int64]
    labels: NDArray[Any]
    targets: NDArray[np.int64] | None
    with_rows: bool
    target_bits: int
    rows: NDArray[np.uint32]
    weights: NDArray[Any]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    level: int = -1


class LosslessClient(HorizontalClient):
    """A client whose rows are counted.

    Parameters
    ----------
    name, table, target, secret, plan, n_jobs
        As for `HorizontalClient`. The secret, if any, is the same at every client: the rows that a tree draws follow
        from it, and the forest is that of the pooled rows only if all draw alike.
    sums : SumClient
        Its part of the sums.
    """

    takes: ClassVar[Mapping[type[Message], State]] = {
        secure_sum.OpenSums: State.ready,
        secure_sum.StartSums: State.ready,
        lossless.CountValues: State.ready,
        lossless.DrawRows: State.ready,
        lossless.CountCells: State.ready,
    }

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
    ) -> None:
        super().__init__(name, table, target, secret=secret, plan=plan, n_jobs=n_jobs)
        self._sums = sums
        self._declared = {} if plan is None else plan.declared()
        self._mapped = table
        self._labels: NDArray[Any] = np.zeros(0, np.uint8)
        self._ordered: dict[int, NDArray[np.uint32]] = {}
        self._drawn: _Drawn | None = None

    def _on_UseSchema(self, message: msg.UseSchema) -> msg.SchemaInUse:
        mapped = map_table(self.table, message)
        labels: NDArray[Any] = np.zeros(mapped.n_rows, np.uint8)
        if self._task == "classes":
            labels = bits.smallest_unsigned(map_classes(self.target, message.classes))
        self._mapped, self._labels, self._schema = mapped, labels, message
        self.state = State.ready
        return msg.SchemaInUse()

    def _on_OpenSums(self, message: secure_sum.OpenSums) -> Message:
        return self._sums.handle(message)

    def _on_StartSums(self, message: secure_sum.StartSums) -> Message:
        return self._sums.handle(message)

    # --- bins ---

    def _on_CountValues(self, message: lossless.CountValues) -> Message:
        columns = message.column.astype(np.int64)
        if (
            len(columns) != len(message.prefix)
            or message.known_bits not in range(0, VALUE_BITS, DIGIT_BITS)
            or any(not self._is_numeric(f) for f in np.unique(columns).tolist())
            or (message.prefix & np.uint32((1 << (VALUE_BITS - message.known_bits)) - 1)).any()
        ):
            raise RemoteProtocolError("CountValues asks for values that no column has")
        if any(self.schema.names[f] in self._declared for f in np.unique(columns).tolist()):
            raise RemoteProtocolError("CountValues asks for values of a column whose bins were declared")
        counts = np.empty((len(columns), DIGITS), np.int64)
        for f in np.unique(columns).tolist():
            here = np.flatnonzero(columns == f)
            counts[here] = count_digits(self._ordered_column(f), message.prefix[here], message.known_bits)
        missing = [_missing(column) for column in self._mapped.columns] if message.with_missing else []
        return self._answer(message.order, np.concatenate([np.array(missing, np.int64), counts.ravel()]))

    def _is_numeric(self, f: int) -> bool:
        return f < len(self._mapped.columns) and isinstance(self._mapped.columns[f], NumericColumn)

    def _ordered_column(self, f: int) -> NDArray[np.uint32]:
        if f not in self._ordered:
            column = self._mapped.columns[f]
            values = column.values if isinstance(column, NumericColumn) else np.empty(0, np.float32)
            self._ordered[f] = np.sort(ordered_form(values[~np.isnan(values)]))
        return self._ordered[f]

    def _answer(self, order: secure_sum.SumOrder, numbers: NDArray[np.int64]) -> Message:
        if len(numbers) != order.length:
            raise RemoteProtocolError("a sum was ordered of another length than that of the numbers asked for")
        return self._sums.answer(order, numbers)

    # --- drawing ---

    def _on_DrawRows(self, message: lossless.DrawRows) -> Message:
        if len(message.n_edges) != len(self._mapped.columns) or (self._task == "targets") != (message.target_bits > 0):
            raise RemoteProtocolError("DrawRows is not about this client's columns and labels")
        if isinstance(self.plan, LosslessPlan):
            settings = self.plan.settings(len(self._mapped.columns))
            self.check_ordered(message, n_estimators=message.n_trees, with_rows=message.with_rows)
            if message.seed != settings.bootstrap_seed or self.plan.bootstrap != (len(message.thresholds) > 0):
                raise RemoteProtocolError("DrawRows is not what was ordered: rows would be drawn in another way")
        drawn = self._draw(message, *self._encode(message))
        reply = self._answer(message.order, _root_totals(drawn, self._n_classes, message.n_trees))
        self._ordered.clear()
        self._drawn = drawn
        return reply

    @property
    def _n_classes(self) -> int:
        return max(1, len(self.schema.classes)) if self._task == "classes" else 1

    def _encode(self, message: lossless.DrawRows) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The codes of all columns, and how many codes of values each has."""
        stops = np.cumsum(message.n_edges.astype(np.int64))
        n_codes = np.empty(len(stops), np.int64)
        coded: list[NDArray[Any]] = []
        for f, column in enumerate(self._mapped.columns):
            if isinstance(column, CategoryColumn):
                n_codes[f] = len(column.categories)
                coded.append(np.where(column.codes < 0, n_codes[f], column.codes))
            else:
                edges = message.edges[stops[f] - int(message.n_edges[f]) : stops[f]]
                declared = self._declared.get(self.schema.names[f], edges)
                if not (np.diff(edges) > 0).all() or not np.array_equal(edges, declared):
                    raise RemoteProtocolError("the edges of bins do not ascend, or are not those that were declared")
                bins = Bins(edges, edges)
                n_codes[f] = bins.n_codes
                coded.append(bins.encode(column.values))
        dtype = np.min_scalar_type(int(n_codes.max(initial=0)))
        return np.array(coded, dtype).reshape(len(coded), self._mapped.n_rows), n_codes

    def _draw(self, message: lossless.DrawRows, codes: NDArray[Any], n_codes: NDArray[np.int64]) -> _Drawn:
        targets = None
        if self._task == "targets":
            targets = fixed_targets(self.target.values, self.schema.magnitude, message.target_bits)
        columns = [c.values if isinstance(c, NumericColumn) else c.codes for c in self._mapped.columns]
        labels = self.target.values if self._task == "targets" else self._labels
        keys = row_keys(columns, [feature_key(name) for name in self.schema.names], labels)
        seed = derive_seed(message.seed, "rows", secret=self._secret)
        rows, weights, bounds = draw_trees(keys, message.thresholds.copy(), seed, message.n_trees, self.n_jobs)
        return _Drawn(
            codes,
            n_codes,
            self._labels,
            targets,
            message.with_rows,
            message.target_bits,
            rows,
            weights,
            bounds[:-1].copy(),
            bounds[1:].copy(),
        )

    # --- growing ---

    def _on_CountCells(self, message: lossless.CountCells) -> Message:
        drawn = self._drawn
        if drawn is None:
            raise RemoteProtocolError("CountCells is not due before rows are drawn")
        if message.level == drawn.level:  # the same level again: other nodes, other features, or other clients
            return self._count(message, drawn, drawn.start, drawn.end)
        if message.level != drawn.level + 1:
            raise RemoteProtocolError(f"level {message.level} is not due after level {drawn.level}")
        grown = self._every_row(message, drawn) if message.level == 0 else self._split(message, drawn)
        reply = self._count(message, grown, grown.start, grown.end)
        self._drawn = grown
        return reply

    def _every_row(self, message: lossless.CountCells, drawn: _Drawn) -> _Drawn:
        """The roots: those of trees that nobody has drawn a row for take every row once; then the open ones stay."""
        trees, n_rows = message.every_row.astype(np.int64), self._mapped.n_rows
        if len(trees) and (int(trees.max()) >= len(drawn.start) or len(np.unique(trees)) < len(trees)):
            raise RemoteProtocolError("there is no such tree")
        start, end = drawn.start.copy(), drawn.end.copy()
        start[trees] = len(drawn.rows) + n_rows * np.arange(len(trees))
        end[trees] = start[trees] + n_rows
        rows = np.concatenate([drawn.rows, np.tile(np.arange(n_rows, dtype=np.uint32), len(trees))])
        weights = np.concatenate([drawn.weights, np.ones(n_rows * len(trees), drawn.weights.dtype)])
        kept = np.flatnonzero(bits.unpack(message.is_open, len(start), "open roots"))
        return _moved(drawn, rows, weights, start[kept], end[kept])

    def _split(self, message: lossless.CountCells, drawn: _Drawn) -> _Drawn:
        """Carry out the splits of the open nodes; the open ones of their children are the next open nodes."""
        nodes = np.flatnonzero(bits.unpack(message.split, len(drawn.start), "split nodes"))
        feature = message.feature.astype(np.int64)
        lengths = message.set_length.astype(np.int64)
        missing_left = bits.unpack(message.missing_left, len(nodes), "sides of missing values")
        if not len(nodes) == len(feature) == len(message.cut) == len(lengths) or int(lengths.sum()) != len(
            message.sets
        ):
            raise RemoteProtocolError("the splits of a level do not go together")
        if int(feature.max(initial=0)) >= len(drawn.n_codes):
            raise RemoteProtocolError("a split is on no column")
        categorical = np.array([isinstance(c, CategoryColumn) for c in self._mapped.columns])
        if not np.array_equal(lengths, np.where(categorical[feature], drawn.n_codes[feature] // 8 + 1, 0)):
            raise RemoteProtocolError("a split leaves out a category")
        start, end = drawn.start[nodes], drawn.end[nodes]
        rows, weights = drawn.rows.copy(), drawn.weights.copy()
        room = int((end - start).max(initial=0))
        middle = np.empty(len(nodes), np.int64)
        send_down(
            drawn.codes, drawn.n_codes, rows, weights, start, end, feature, message.cut.astype(np.int64), missing_left,
            np.concatenate([[0], np.cumsum(lengths)]), message.sets.copy(), np.empty(room, np.uint32),
            np.empty(room, weights.dtype), middle,
        )  # fmt: skip
        kept = np.flatnonzero(bits.unpack(message.is_open, 2 * len(nodes), "open children"))
        first, last = np.column_stack([start, middle]).ravel(), np.column_stack([middle, end]).ravel()
        return _moved(drawn, rows, weights, first[kept], last[kept])

    def _count(
        self, message: lossless.CountCells, drawn: _Drawn, start: NDArray[np.int64], end: NDArray[np.int64]
    ) -> Message:
        nodes = message.nodes.astype(np.int64)
        cells = Cells(
            message.width, message.n_classes, message.classes, message.n_pairs, message.pair_feature, message.first,
            message.codes, bits.unpack(message.missing, len(message.pair_feature), "missing values"), drawn.with_rows,
            drawn.target_bits, message.word_bits,
        )  # fmt: skip
        try:
            cells.check(self._n_classes, drawn.n_codes)
            if len(nodes) != len(cells.width) or int(nodes.max(initial=-1)) >= len(start):
                raise ValueError("there are no such nodes")
            if cells.length != message.order.length:
                raise ValueError("a sum was ordered of another length than that of the numbers asked for")
            numbers = cells.count(
                drawn.codes, drawn.n_codes, drawn.labels, drawn.targets, self._n_classes, drawn.rows, drawn.weights,
                start[nodes], end[nodes], self.n_jobs,
            )  # fmt: skip
        except ValueError as error:
            raise RemoteProtocolError(f"CountCells: {error}") from None
        return self._answer(message.order, numbers)


def _moved(
    drawn: _Drawn, rows: NDArray[np.uint32], weights: NDArray[Any], start: NDArray[np.int64], end: NDArray[np.int64]
) -> _Drawn:
    return _Drawn(
        drawn.codes, drawn.n_codes, drawn.labels, drawn.targets, drawn.with_rows, drawn.target_bits,
        rows, weights, start, end, drawn.level + 1,
    )  # fmt: skip


def _missing(column: CategoryColumn | NumericColumn) -> int:
    missing = np.isnan(column.values) if isinstance(column, NumericColumn) else column.codes < 0
    return int(np.count_nonzero(missing))


def _root_totals(drawn: _Drawn, n_classes: int, n_trees: int) -> NDArray[np.int64]:
    """What each tree has drawn, and last what all rows are: weights of the classes, rows, and the sum of targets."""
    totals = np.zeros((n_trees + 1, n_classes + 2), np.int64)
    everything = np.arange(len(drawn.labels), dtype=np.uint32)
    parts = [(drawn.rows[a:b], drawn.weights[a:b]) for a, b in zip(drawn.start, drawn.end, strict=True)]
    parts.append((everything, np.ones(len(everything), np.uint8)))
    for tree, (rows, weights) in enumerate(parts):
        counted = np.bincount(drawn.labels[rows], weights=weights, minlength=n_classes)
        totals[tree, :n_classes] = counted.astype(np.int64)
        totals[tree, n_classes] = len(rows)
        if drawn.targets is not None:
            totals[tree, -1] = int((drawn.targets[rows] * weights.astype(np.int64)).sum())
    return totals.ravel()
