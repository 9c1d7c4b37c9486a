"""Rows of a client of the lossless forest: all of them, or a block of them on a machine of the client's cluster.

It keeps the rows that each tree has drawn of it, partitioned by the open nodes, and counts them. All that it tells are
vectors of numbers, and those of several blocks are added.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn, NumericColumn
from woodlot.data.sources import TableSource
from woodlot.data.spool import Spool
from woodlot.data.tables import Table
from woodlot.data.values import natural_type
from woodlot.exceptions import DataError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.core import bits
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows.lossless import lossless_messages
from woodlot.protocols.rows.lossless.counting_place import CountingPlace
from woodlot.protocols.rows.lossless.left_out import class_numbers, leaves_of, left_out_answers, target_numbers
from woodlot.protocols.rows.lossless.lossless_plan import fixed_targets
from woodlot.protocols.rows.row_labels import row_weights, target_of
from woodlot.protocols.rows.row_messages import Task, UseSchema
from woodlot.protocols.rows.schema import map_classes, map_table
from woodlot.protocols.rows.whole_forest import trees_of
from woodlot.trees.cells import Cells
from woodlot.trees.drawing import MAX_RATE, draw_trees, draw_weighted, kept_rows, row_keys
from woodlot.trees.kernels.cells import send_down
from woodlot.trees.quantiles import Bins, count_digits, ordered_form
from woodlot.trees.sampling import feature_key


class RowSplits(NamedTuple):
    """The splits of one level, of `CountCells`, without what else that asks for."""

    level: int
    split: NDArray[np.uint8]
    feature: NDArray[Any]
    cut: NDArray[Any]
    missing_left: NDArray[np.uint8]
    set_length: NDArray[Any]
    sets: NDArray[np.uint8]
    is_open: NDArray[np.uint8]
    every_row: NDArray[np.uint32]

    @classmethod
    def of(cls, message: lossless_messages.CountCells) -> RowSplits:
        """Copies, so that the rest of the message can go."""
        arrays = (np.array(getattr(message, name)) for name in cls._fields[1:])
        return cls(message.level, *arrays)


@dataclass(frozen=True, eq=False)
class _Drawn:
    """The rows of all trees in flight, and the open nodes of one level.

    Levels share their rows: what a split does is to order the rows within a node, which neither the node's numbers nor
    those of the level before can tell.
    """

    codes: NDArray[Any]
    n_codes: NDArray[np.int64]
    targets: NDArray[np.int64] | None
    with_rows: bool
    target_bits: int
    rows: NDArray[np.uint32]
    weights: NDArray[Any]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    level: int = -1


class RowBlock:
    """Some rows of a client.

    Parameters
    ----------
    table : Table
        Their columns, without the labels.
    target : Target
        Their labels; classes may be more than occur here.
    n_jobs : int
        Threads.
    digest : str
        Of the table that they were read from, by which it is noticed if that has changed.
    device : {"cpu", "cuda", "auto"}
        Where rows are counted; the numbers do not depend on it.

    """

    def __init__(self, table: Table, target: Target, n_jobs: int, digest: str = "", device: str = "cpu") -> None:
        self._table = table
        self._target = target
        self._n_jobs = n_jobs
        self._digest = digest
        self._counting = CountingPlace(device)
        self._schema: UseSchema | None = None
        self._mapped = table
        self._labels: NDArray[Any] = np.zeros(0, np.uint8)
        self._task: Task = "classes"
        self._ordered: dict[int, NDArray[np.uint32]] = {}
        self._grown: dict[int, tuple[_Drawn, ...]] = {}  # by drawing, the last two levels

    def use_schema(self, schema: UseSchema, task: Task) -> str:
        """Take the common columns, categories and classes; returns the digest of the table."""
        mapped = map_table(self._table, schema)
        labels: NDArray[Any] = np.zeros(mapped.n_rows, np.uint8)
        if task == "classes":
            labels = bits.smallest_unsigned(map_classes(self._target, schema.classes))
        self._mapped, self._labels, self._schema, self._task = mapped, labels, schema, task
        return self._digest

    # --- bins ---

    def count_values(self, message: lossless_messages.CountValues) -> NDArray[np.int64]:
        """How many values have each of the asked leading bits, by their next eight; before them what is missing."""
        columns = message.column.astype(np.int64)
        counts = [
            count_digits(self._ordered_column(f), message.prefix[columns == f], message.known_bits)
            for f in np.unique(columns).tolist()
        ]
        places = np.argsort(columns, kind="stable")
        numbers = np.concatenate(counts) if counts else np.empty((0, 0), np.int64)
        ordered = np.empty_like(numbers)
        ordered[places] = numbers
        missing = [_missing(column) for column in self._mapped.columns] if message.with_missing else []
        return np.concatenate([np.array(missing, np.int64), ordered.ravel()])

    def _ordered_column(self, f: int) -> NDArray[np.uint32]:
        if f not in self._ordered:
            column = self._mapped.columns[f]
            values = column.values if isinstance(column, NumericColumn) else np.empty(0, np.float32)
            self._ordered[f] = np.sort(ordered_form(values[~np.isnan(values)]))
        return self._ordered[f]

    # --- drawing ---

    def draw(
        self,
        number: int,
        message: lossless_messages.DrawRows,
        seed: int,
        former: tuple[int, lossless_messages.DrawRows, int] | None = None,
    ) -> bytes:
        """Draw the rows of all trees, as drawing `number` of the client; returns what each tree has drawn (int64).

        The drawing in use, `former`, is kept until the first level of this one is counted: this one may be refused. A
        block that was built again draws it again.
        """
        kept: dict[int, tuple[_Drawn, ...]] = {}
        if former is not None:
            kept[former[0]] = self._grown.get(former[0]) or (self._draw(*former[1:]),)
        drawn = self._draw(message, seed)
        self._ordered.clear()
        self._grown = kept | {number: (drawn,)}
        totals = self._root_totals(drawn, message.n_trees)
        if isinstance(message, lossless_messages.DrawByWeight):
            totals = np.append(totals, self._n_too_heavy(message))
        return totals.tobytes()

    def _draw(self, message: lossless_messages.DrawRows, seed: int) -> _Drawn:
        codes, n_codes = self._encode(message)
        targets = None
        if self._task == "targets":
            targets = fixed_targets(self._target.values, self._in_use.magnitude, message.target_bits)
        rows, weights, bounds = self._drawn_rows(message, seed)
        return _Drawn(
            codes, n_codes, targets, message.with_rows, message.target_bits,
            rows, weights, bounds[:-1].copy(), bounds[1:].copy(),
        )  # fmt: skip

    def count_classes(self) -> NDArray[np.int64]:
        """Rows of each class."""
        return np.bincount(self._labels, minlength=self._n_classes).astype(np.int64)

    def count_weights(self, fraction_bits: int) -> NDArray[np.int64]:
        """Rows of each class, and the sums of their weights in fixed point."""
        fixed = np.rint(np.ldexp(self._weights, fraction_bits))
        sums = np.bincount(self._labels, weights=fixed, minlength=self._n_classes)
        return np.concatenate([self.count_classes(), sums.astype(np.int64)])

    @property
    def _weights(self) -> NDArray[np.float64]:
        if self._target.weights is None:
            raise LocalProtocolError("a block of rows has no weights")
        return self._target.weights

    @property
    def _everything(self) -> NDArray[np.uint32]:
        """The rows of a tree for which nobody has drawn any: all that weigh something."""
        weights = self._target.weights
        rows = np.arange(self._mapped.n_rows) if weights is None else np.flatnonzero(weights > 0)
        return rows.astype(np.uint32)

    def _weighted_rows(
        self, message: lossless_messages.DrawByWeight, seed: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.int64]]:
        if not len(message.rates):
            copies = self._weights.astype(np.uint8)
            return kept_rows(lambda _: copies, message.n_trees, self._n_jobs)
        rates = np.minimum(self._rates(message), MAX_RATE)  # see `_n_too_heavy`
        return draw_weighted(self._keys(), rates, seed, message.n_trees, self._n_jobs)

    def _rates(self, message: lossless_messages.DrawByWeight) -> NDArray[np.float64]:
        """How often each row is drawn on average."""
        rates: NDArray[np.float64] = message.rates[self._labels.astype(np.int64)] * self._weights
        return rates

    def _n_too_heavy(self, message: lossless_messages.DrawByWeight) -> int:
        """Rows that would be drawn more often than is possible.

        They are added up over all clients. Were they refused here, whoever asks with one rate after another would learn
        the largest weight of each class of this client.
        """
        return int((self._rates(message) > MAX_RATE).sum()) if len(message.rates) else 0

    def _drawn_rows(
        self, message: lossless_messages.DrawRows, seed: int
    ) -> tuple[NDArray[np.uint32], NDArray[np.uint8], NDArray[np.int64]]:
        """Rows and weights of all trees, and where each tree begins."""
        if isinstance(message, lossless_messages.DrawByWeight):
            return self._weighted_rows(message, seed)
        if isinstance(message, lossless_messages.DrawByClass):
            return draw_trees(self._keys(), message.lists(), seed, message.n_trees, self._n_jobs, self._labels)
        return draw_trees(self._keys(), [message.thresholds.copy()], seed, message.n_trees, self._n_jobs)

    def _columns(self) -> list[NDArray[Any]]:
        return [c.values if isinstance(c, NumericColumn) else c.codes for c in self._mapped.columns]

    def _keys(self) -> NDArray[np.uint64]:
        """What rows are drawn by."""
        labels = self._target.values if self._task == "targets" else self._labels
        return row_keys(self._columns(), [feature_key(name) for name in self._in_use.names], labels)

    @property
    def _in_use(self) -> UseSchema:
        if self._schema is None:
            raise LocalProtocolError("a block of rows draws none before it has a schema")
        return self._schema

    @property
    def _n_classes(self) -> int:
        return max(1, len(self._in_use.classes)) if self._task == "classes" else 1

    def _encode(self, message: lossless_messages.DrawRows) -> tuple[NDArray[Any], NDArray[np.int64]]:
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
                bins = Bins(edges, edges)
                n_codes[f] = bins.n_codes
                coded.append(bins.encode(column.values))
        dtype = np.min_scalar_type(int(n_codes.max(initial=0)))
        return np.array(coded, dtype).reshape(len(coded), self._mapped.n_rows), n_codes

    def _root_totals(self, drawn: _Drawn, n_trees: int) -> NDArray[np.int64]:
        """What each tree has drawn, and last what all rows are: weights of classes, rows, and the sum of targets."""
        n_classes = self._n_classes
        totals = np.zeros((n_trees + 1, n_classes + 2), np.int64)
        everything = self._everything
        parts = [(drawn.rows[a:b], drawn.weights[a:b]) for a, b in zip(drawn.start, drawn.end, strict=True)]
        parts.append((everything, np.ones(len(everything), np.uint8)))
        for tree, (rows, weights) in enumerate(parts):
            counted = np.bincount(self._labels[rows], weights=weights, minlength=n_classes)
            totals[tree, :n_classes] = counted.astype(np.int64)
            totals[tree, n_classes] = len(rows)
            if drawn.targets is not None:
                totals[tree, -1] = int((drawn.targets[rows] * weights.astype(np.int64)).sum())
        return totals.ravel()

    # --- growing ---

    def count(
        self, number: int, level: int, message: lossless_messages.CountCells, past: Sequence[RowSplits] = ()
    ) -> NDArray[np.int64]:
        """Carry out the splits of a level, unless that has been done, and count the cells that are asked for.

        Parameters
        ----------
        number : int
            Of the drawing, as the client counts them.
        level : int
            The level that the client has answered last. What this block has done beyond it was in vain.
        message : CountCells
            The splits, and the cells.
        past : sequence of RowSplits
            The levels so far, for a block that has been built again.
        """
        if number not in self._grown:
            raise LocalProtocolError("a block of rows counts none before it has drawn them")
        known = self._grown[number]
        for splits in past:
            known = (self._grow(splits, known[-1]),)
        drawn = next((each for each in known if each.level == level), None)
        if drawn is None:
            raise LocalProtocolError(f"a block of rows is at level {known[-1].level}, and not at {level}")
        grown = drawn if message.level == level else self._grow(RowSplits.of(message), drawn)
        numbers = self._count(message, grown)
        self._grown = {number: (drawn, grown)}
        return numbers

    def _grow(self, splits: RowSplits, drawn: _Drawn) -> _Drawn:
        return self._every_row(splits, drawn) if splits.level == 0 else self._split(splits, drawn)

    def _every_row(self, splits: RowSplits, drawn: _Drawn) -> _Drawn:
        """The roots: those of trees that nobody has drawn a row for take every row once; then the open ones stay."""
        trees, everything = splits.every_row.astype(np.int64), self._everything
        if len(trees) and (int(trees.max()) >= len(drawn.start) or len(np.unique(trees)) < len(trees)):
            raise RemoteProtocolError("there is no such tree")
        rows, weights, start, end = drawn.rows, drawn.weights, drawn.start.copy(), drawn.end.copy()
        if len(trees):
            start[trees] = len(rows) + len(everything) * np.arange(len(trees))
            end[trees] = start[trees] + len(everything)
            rows = np.concatenate([rows, np.tile(everything, len(trees))])
            weights = np.concatenate([weights, np.ones(len(everything) * len(trees), weights.dtype)])
        kept = np.flatnonzero(bits.unpack(splits.is_open, len(start), "open roots"))
        return replace(drawn, rows=rows, weights=weights, start=start[kept], end=end[kept], level=drawn.level + 1)

    def _split(self, splits: RowSplits, drawn: _Drawn) -> _Drawn:
        """Carry out the splits of the open nodes; the open ones of their children are the next open nodes."""
        nodes = np.flatnonzero(bits.unpack(splits.split, len(drawn.start), "split nodes"))
        feature = splits.feature.astype(np.int64)
        lengths = splits.set_length.astype(np.int64)
        missing_left = bits.unpack(splits.missing_left, len(nodes), "sides of missing values")
        if not len(nodes) == len(feature) == len(splits.cut) == len(lengths) or int(lengths.sum()) != len(splits.sets):
            raise RemoteProtocolError("the splits of a level do not go together")
        if int(feature.max(initial=0)) >= len(drawn.n_codes):
            raise RemoteProtocolError("a split is on no column")
        categorical = np.array([isinstance(c, CategoryColumn) for c in self._mapped.columns])
        if not np.array_equal(lengths, np.where(categorical[feature], drawn.n_codes[feature] // 8 + 1, 0)):
            raise RemoteProtocolError("a split leaves out a category")
        kept = np.flatnonzero(bits.unpack(splits.is_open, 2 * len(nodes), "open children"))
        start, end = drawn.start[nodes], drawn.end[nodes]
        room = int((end - start).max(initial=0))
        middle = np.empty(len(nodes), np.int64)
        send_down(
            drawn.codes, drawn.n_codes, drawn.rows, drawn.weights, start, end, feature, splits.cut.astype(np.int64),
            missing_left, np.concatenate([[0], np.cumsum(lengths)]), splits.sets, np.empty(room, np.uint32),
            np.empty(room, drawn.weights.dtype), middle,
        )  # fmt: skip
        first, last = np.column_stack([start, middle]).ravel(), np.column_stack([middle, end]).ravel()
        return replace(drawn, start=first[kept], end=last[kept], level=drawn.level + 1)

    def _count(self, message: lossless_messages.CountCells, drawn: _Drawn) -> NDArray[np.int64]:
        nodes = message.nodes.astype(np.int64)
        cells = Cells(
            message.width, message.n_classes, message.classes, message.n_pairs, message.pair_feature, message.first,
            message.codes, bits.unpack(message.missing, len(message.pair_feature), "missing values"), drawn.with_rows,
            drawn.target_bits, message.word_bits,
        )  # fmt: skip
        try:
            cells.check(self._n_classes, drawn.n_codes)
            if len(nodes) != len(cells.width) or int(nodes.max(initial=-1)) >= len(drawn.start):
                raise ValueError("there are no such nodes")
            if cells.length != message.order.length:
                raise ValueError("a sum was ordered of another length than that of the numbers asked for")
            return self._counting.count(
                cells, drawn.codes, drawn.n_codes, self._labels, drawn.targets, self._n_classes, drawn.rows,
                drawn.weights, drawn.start[nodes], drawn.end[nodes], self._n_jobs, level=drawn,
            )  # fmt: skip
        except ValueError as error:
            raise RemoteProtocolError(f"CountCells: {error}") from None

    # --- scoring ---

    def score_left_out(
        self, draw: lossless_messages.DrawRows, seed: int, message: lossless_messages.ScoreLeftOut
    ) -> NDArray[np.int64]:
        """Numbers of `left_out.numbers_of`, of rows that are answered by the trees that have not drawn them."""
        trees = trees_of(message, self._in_use.categories, "the coordinator")
        leaves = leaves_of(message, trees.structure, self._n_classes)
        rows, _, bounds = self._drawn_rows(draw, seed)
        everything = self._everything
        seen_all = set(message.every_row.tolist())
        answers, known = left_out_answers(
            trees, leaves, self._columns(), self._mapped.n_rows,
            lambda t: everything if t in seen_all else rows[bounds[t] : bounds[t + 1]], self._n_jobs,
        )  # fmt: skip
        if self._task == "classes":
            n_groups = self._n_classes if isinstance(draw, lossless_messages.WEIGHTED) else 1
            return np.array(class_numbers(answers, known, self._labels.astype(np.int64), n_groups), np.int64)
        values, magnitude = self._target.values, self._in_use.magnitude
        return np.array(target_numbers(answers, known, values, magnitude, message.fraction_bits), np.int64)


def read_rows(
    source: TableSource,
    columns: Sequence[str],
    label: str,
    weight: str | None,
    task: Task,
    copies: bool,
    start: int,
    stop: int,
    n_jobs: int,
) -> RowBlock:
    """A block of a party's rows, read on a machine of its cluster; the columns lie on that machine's disk.

    Parameters
    ----------
    source : TableSource
        The party's table, which this machine must be able to read.
    columns : sequence of str
        To learn from.
    label : str
        The column of labels.
    weight : str or None
        The column of weights.
    task : {"classes", "targets"}
        What labels are.
    copies : bool
        Whether weights are numbers of copies; see `row_weights`.
    start, stop : int
        Which rows.
    n_jobs : int
        Threads.
    """
    spool = Spool(Path(tempfile.gettempdir()))
    loaded = source.part([*columns, label, *([] if weight is None else [weight])]).read(spool)
    if loaded.n_rows < stop:
        raise DataError("the table has fewer rows than when the job began")
    rows = np.arange(start, stop)
    whole = target_of(natural_type(loaded.values(label)), task)
    weights = None if weight is None else row_weights(loaded.values(weight), loaded.n_rows, copies=copies)[start:stop]
    target = Target(whole.classes, whole.numbers[start:stop].copy(), whole.values[start:stop].copy(), weights)
    return RowBlock(loaded.stored(columns, rows, spool), target, n_jobs, loaded.digest)


def _missing(column: CategoryColumn | NumericColumn) -> int:
    missing = np.isnan(column.values) if isinstance(column, NumericColumn) else column.codes < 0
    return int(np.count_nonzero(missing))
