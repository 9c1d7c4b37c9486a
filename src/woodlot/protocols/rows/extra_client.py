"""A client of federated extra-trees: it counts what questions do to its rows, and nothing else of them leaves it.

What is differentially private is charged before it is told. Permanent randomised response is derived from the client's
lasting secret, so that every training tells the same of a label; noise on counts is drawn, kept with its charge, and
repeated when the same is asked again.

States are those of `HorizontalClient`; DescribeColumns may take the place of DescribeRows, and does where classes or
rows are private. Within *ready*::

    TellQuantiles                       before anything was asked (``_asked`` is empty)
    CountOutside, CountRows             any time; refused under GlobalDP
    ProposeThresholds, CountSplits      level ``_step`` goes on, or level ``_step + 1`` begins
    CountLeaves                         each tree once where there is privacy

The first message of a level says what has become of the nodes of the level before (leaf, waits, split); further ones of
the same level say nothing of it. ``_frontier`` has the open nodes, ``_counted`` how many of them were counted: nodes
are asked about in order, each once. A new frontier is computed first and kept only when the message has been answered
(``_commit``). Rows move inside their nodes meanwhile, which the old frontier does not notice. ``_asked`` is a digest of
all answered messages; names of private releases contain it, so that the same question at another time is another
release.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn
from woodlot.data.tables import Table
from woodlot.exceptions import DataError, LocalProtocolError, RemoteProtocolError
from woodlot.privacy.accounting import Spend
from woodlot.privacy.budget import Charge
from woodlot.privacy.client_budget import ClientBudget
from woodlot.privacy.derivation import derive_key, open_stream, pack
from woodlot.privacy.noise import CountNoise
from woodlot.privacy.quantiles import private_quantiles, quantiles_spend
from woodlot.privacy.randomised_response import RandomisedResponse
from woodlot.privacy.settings import GlobalDP, LocalDP
from woodlot.protocols.core.agreement import secret_bytes
from woodlot.protocols.core.handling import takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows import extra_messages as msg
from woodlot.protocols.rows import row_messages
from woodlot.protocols.rows.extra_columns import fit_column, kind_by_type, spread
from woodlot.protocols.rows.extra_plan import QUANTILES, ExtraTreesPlan
from woodlot.protocols.rows.extra_tally import Tally, tally_of
from woodlot.protocols.rows.releases import digest_of, needed, noise_charge, release_name, tell_noisy
from woodlot.protocols.rows.row_client import Holdings, HorizontalClient, RowClientState
from woodlot.protocols.rows.row_labels import UNLISTED, listed_numbers
from woodlot.protocols.rows.schema import NO_MAGNITUDE, column_kind, map_classes
from woodlot.protocols.rows.whole_forest import trees_of
from woodlot.protocols.sums import sum_messages, to_fixed
from woodlot.trees.alone import prediction_column
from woodlot.trees.extra import ATTEMPTS, SPLITS, Frontier, NodeRows, make_questions, set_sizes, value_matrix
from woodlot.trees.kernels import extra as kernels
from woodlot.trees.kernels.extra import Questions

logger = logging.getLogger(__name__)

LABELS_PURPOSE = "extra-trees labels"
_MOST_BITS = 52


class ExtraTreesClient(HorizontalClient):
    """One client and its rows, for one job.

    Parameters
    ----------
    own : Holdings
        What it brings.
    plan : ExtraTreesPlan
        What was ordered; anything else is refused.
    """

    def __init__(self, own: Holdings, plan: ExtraTreesPlan) -> None:
        own = _with_listed_labels(own, plan)
        super().__init__(own.name, own.table, own.target, secret=own.bootstrap_secret, plan=plan, n_jobs=own.n_jobs)
        self._own = own
        self._ordered = plan
        self._sums = own.sum_client(plan.sums, plan.allow_two)
        self._outside: NDArray[np.int64] = np.empty(0, np.int64)
        self._values: NDArray[np.float32] = np.empty((0, 0), np.float32)
        self._labels: NDArray[Any] = np.empty(0, np.int64)
        self._tokens: tuple[NDArray[np.int64], NDArray[np.int32]] | None = None
        self._node_rows: NodeRows | None = None
        self._frontier: Frontier | None = None
        self._step = -1
        self._asked = b""
        self._counted = 0  # nodes of the present level
        self._proposed = -1  # the last level that thresholds were proposed for

    # --- columns and classes ---

    def _on_DescribeRows(self, message: row_messages.DescribeRows) -> row_messages.RowsDescribed:
        if self._ordered.privacy is not None:
            raise RemoteProtocolError("DescribeRows asks for classes, which are under differential privacy here")
        return super()._on_DescribeRows(message)

    @takes(msg.DescribeColumns, when=RowClientState.idle, then=RowClientState.described)
    def _on_DescribeColumns(self, message: msg.DescribeColumns) -> msg.ColumnsDescribed:
        hides = isinstance(self._ordered.privacy, GlobalDP)
        if message.task != self._ordered.task or message.hide_rows != hides:
            raise RemoteProtocolError("DescribeColumns is not what was ordered")
        columns = self.table.columns
        self._task = message.task
        return msg.ColumnsDescribed(
            n_rows=0 if hides else self.table.n_rows,
            names=self.table.names,
            kinds=tuple(kind_by_type(c) if hides else column_kind(c) for c in columns),
            categories=tuple(() if hides or not isinstance(c, CategoryColumn) else c.categories for c in columns),
        )

    def _on_UseSchema(self, message: row_messages.UseSchema) -> row_messages.SchemaInUse:
        if set(message.names) != set(self.table.names):
            raise RemoteProtocolError("the schema has other columns than this client")
        if self._ordered.classes is not None and message.classes != self._ordered.classes:
            raise RemoteProtocolError("the schema has other classes than were ordered")
        private = self._ordered.privacy is not None  # unlisted labels are taken care of, and must not be noticed
        if not private and self._ordered.classes is not None and not set(self.target.classes) <= set(message.classes):
            raise DataError(
                "this client has labels that are not in the public list of classes; add their classes for all "
                "clients, or drop the rows"
            )
        pairs = [
            fit_column(self.table.column(name), categories, self._ordered.knots.get(name))
            for name, categories in zip(message.names, message.categories, strict=True)
        ]
        table = Table(message.names, tuple(column for column, _ in pairs), self.table.n_rows)
        labels: NDArray[Any] = np.zeros(0, np.int64)
        if self._task == "classes":
            labels = self.target.numbers if private else map_classes(self.target, message.classes)
            labels = labels.astype(np.int32)
        self._tally: Tally = tally_of(self._ordered.privacy, message.classes)  # the last that may be refused
        self._outside = np.array([outside for _, outside in pairs], np.int64)
        self._values = value_matrix(table)
        self._columns = table.columns
        self._labels = labels
        self._schema = message
        self._sizes = set_sizes(message.categories)
        self._width = self._ordered.width(len(message.names))
        return row_messages.SchemaInUse()

    @takes(sum_messages.OpenSums, sum_messages.StartSums, when=RowClientState.ready)
    def _set_up_sums(self, message: Message) -> Message:
        return self._sums.handle(message)

    # --- ranges ---

    @takes(msg.TellQuantiles, when=RowClientState.ready)
    def _on_TellQuantiles(self, message: msg.TellQuantiles) -> msg.QuantilesTold:
        plan = self._ordered
        if plan.ranges != "private-quantiles" or self._asked != b"":
            raise RemoteProtocolError("quantiles were not ordered, or are told before anything is counted")
        numeric, terms = self._numeric(), self._quantile_terms()
        if not numeric:
            return msg.QuantilesTold(values=np.empty((0, len(QUANTILES))))
        self._client_budget.check(*self._costs())
        drawn = [
            private_quantiles(self._values[f], QUANTILES, lower=min(ends), upper=max(ends), **terms).values
            for f, ends in numeric.items()
        ]
        kept = self._client_budget.charge(replace(self._quantiles_charge(), answer=np.stack(drawn).tobytes()))
        values = np.frombuffer(kept.answer or b"").reshape(len(numeric), len(QUANTILES))
        return msg.QuantilesTold(values=values)

    def _numeric(self) -> dict[int, tuple[float, ...]]:
        """The columns whose quantiles are told, and their declared ranges."""
        ranges = [self._ordered.knots.get(name, ()) for name in self.schema.names]
        return {f: ends for f, ends in enumerate(ranges) if len(set(ends)) > 1 and self._sizes[f] == 0}

    def _quantile_terms(self) -> dict[str, Any]:
        privacy, n = self._ordered.privacy, max(1, len(self._numeric()))
        neighbours = privacy.neighbours if isinstance(privacy, GlobalDP) else "add-remove"
        return {"epsilon": self._ordered.quantile_epsilon / n, "neighbours": neighbours}

    @takes(msg.CountOutside, when=RowClientState.ready)
    def _on_CountOutside(self, message: msg.CountOutside) -> Message:
        if isinstance(self._ordered.privacy, GlobalDP):
            raise RemoteProtocolError("CountOutside asks about rows, which are under differential privacy here")
        self._check_order(message.order, len(self._outside))
        return self._sums.answer(message.order, self._outside, self.digest_of(message))

    @takes(msg.ProposeThresholds, when=RowClientState.ready)
    def _on_ProposeThresholds(self, message: msg.ProposeThresholds) -> msg.ThresholdsProposed:
        plan = self._ordered
        if plan.ranges != "proposals":
            raise RemoteProtocolError("proposals of thresholds were not ordered")
        n_open = self._check_level(message)
        if message.step == self._proposed:
            raise RemoteProtocolError("ProposeThresholds asks about a level again")
        if len(message.feature) != n_open * message.width:
            raise RemoteProtocolError("ProposeThresholds does not fit the open nodes")
        if len(message.feature) and not -1 <= int(message.feature.min()) <= int(message.feature.max()) < len(
            self._sizes
        ):
            raise RemoteProtocolError("ProposeThresholds asks for a column that does not exist")
        frontier = self._next_frontier(message)
        low, high = self._rows.ranges(frontier, message.feature, message.width)
        few = np.repeat(frontier.end - frontier.start < plan.min_proposal_rows, message.width)
        # of one row, or of rows that are all alike, any proposal would be their value
        hidden = few | ~(low < high) | (self._sizes[message.feature] > 0)
        proposed = np.where(hidden, np.nan, low + (high - low) * self._shares(message.step, len(low)))
        self._commit(message, frontier)
        self._proposed = message.step
        self._sums.note(self.digest_of(message))  # it says what has become of the nodes that later sums are of
        return msg.ThresholdsProposed(threshold=proposed)

    def _shares(self, step: int, n: int) -> NDArray[np.float64]:
        """Numbers from 0 to 1 that only this client can derive, where it has a secret."""
        text = pack(b"proposals", self.name.encode(), self._ordered.seed.to_bytes(16, "big"), step.to_bytes(8, "big"))
        key = hashlib.blake2b(text, key=self._own.bootstrap_secret[:64], digest_size=32).digest()
        words = np.frombuffer(open_stream(key)(8 * n), "<u8")
        return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53

    # --- counting ---

    @takes(msg.CountRows, when=RowClientState.ready)
    def _on_CountRows(self, message: msg.CountRows) -> Message:
        if not self._tally.rows_are_exact:
            raise RemoteProtocolError("CountRows asks about rows, which are under differential privacy here")
        self._check_order(message.order, self._tally.node_cells)
        everything = np.zeros(self.table.n_rows, np.int64)
        counts = self._count_at(everything, 1, message.fraction_bits)
        query = pack(b"rows", message.fraction_bits.to_bytes(2, "big", signed=True))
        return self._sums.answer(message.order, self._told(counts, query).ravel(), self.digest_of(message))

    @takes(msg.CountSplits, when=RowClientState.ready)
    def _on_CountSplits(self, message: msg.CountSplits) -> Message:
        n_open = self._check_level(message)
        width, cells = message.width, self._tally.cells
        if width != self._width or len(message.feature) % width:
            raise RemoteProtocolError("CountSplits asks for other candidates than were ordered")
        nodes = len(message.feature) // width
        if not 0 <= message.first <= message.first + nodes <= n_open or nodes == 0:
            raise RemoteProtocolError("CountSplits asks about nodes that are not open")
        self._check_once(message)
        questions = self._questions(message.feature, message.threshold, message.missing_left, message.sets)
        self._check_order(message.order, nodes * width * cells)
        frontier = self._next_frontier(message)
        part = frontier.take(slice(message.first, message.first + nodes))
        counts = self._count_splits(part, questions, width, message.fraction_bits)
        # Nodes of one tree and level have different rows: a tree that an earlier message of the level was about has
        # been charged for all of them.
        queries = width * len(np.setdiff1d(part.tree, frontier.tree[: message.first]))
        told = self._told(counts.reshape(-1, counts.shape[-1]), digest_of(message), queries)
        reply = self._sums.answer(message.order, told.ravel(), self.digest_of(message))
        self._commit(message, frontier)
        self._counted = message.first + nodes
        return reply

    def _check_once(self, message: msg.CountSplits) -> None:
        """A node is asked about once: what more is told of it would cost more, or tell more, than was ordered."""
        privacy, plan = self._ordered.privacy, self._ordered
        beyond = False
        if isinstance(privacy, GlobalDP):
            beyond = message.step >= (0 if privacy.leaves_only else plan.max_depth or 0)
        if beyond or message.first != (self._counted if message.step == self._step else 0):
            raise RemoteProtocolError("CountSplits asks for more than was ordered, or about a node again")

    @takes(msg.CountLeaves, when=RowClientState.ready)
    def _on_CountLeaves(self, message: msg.CountLeaves) -> Message:
        if not self._tally.asks_leaves:
            raise RemoteProtocolError("CountLeaves asks for more than was ordered")
        trees = trees_of(message, self.schema.categories, "the coordinator")
        structure = trees.structure
        numbers = range(message.first_tree, message.first_tree + structure.n_trees)
        self.check_trees(message, numbers, once=self._ordered.privacy is not None)
        self._check_order(message.order, structure.n_leaves * self._tally.node_cells)
        columns = [prediction_column(column) for column in self._columns]
        ends = trees.leaves_of(columns, self.table.n_rows, self.n_jobs)
        counts = np.zeros((structure.n_leaves, self._tally.node_cells), np.int64)
        first = np.concatenate([[0], np.cumsum(structure.right < 0)])[structure.offset]
        for tree, (low, high) in enumerate(pairwise(first.tolist())):
            counts[low:high] = self._count_at(structure.leaf[ends[:, tree]] - low, high - low, 0)
        told = self._told(counts, digest_of(message), structure.n_trees)
        reply = self._sums.answer(message.order, told.ravel(), self.digest_of(message))
        self._note(message)
        self.note_trees(message, numbers)
        return reply

    def _count_splits(self, part: Frontier, questions: Questions, width: int, fraction_bits: int) -> NDArray[np.int64]:
        """What each candidate sends left and, where both sides have noise of their own, right."""
        rows, tally = self._rows, self._tally
        if self._task == "targets":
            return rows.count(part, questions, width, 2, kernels.count_targets, self._targets(fraction_bits))
        if isinstance(self._ordered.privacy, LocalDP):
            left = rows.count(part, questions, width, tally.node_cells, kernels.count_tokens, *self._label_tokens())
        else:
            left = rows.count(part, questions, width, tally.node_cells, kernels.count_classes, self._labels)
        if not tally.asks_leaves:
            return left
        node, inside = spread(part.start, part.end - part.start)
        total = self._count_at(node, len(part), 0, rows.rows[inside])
        return np.concatenate([left, total[:, None] - left], axis=-1)

    def _count_at(
        self, place: NDArray[Any], n_places: int, fraction_bits: int, rows: NDArray[Any] | None = None
    ) -> NDArray[np.int64]:
        """The numbers of some nodes, from the node of each row."""
        rows = np.arange(self.table.n_rows) if rows is None else rows
        place, cells = place.astype(np.int64), self._tally.node_cells
        if self._task == "targets":
            counts = np.zeros((n_places, cells), np.int64)
            np.add.at(counts, place, np.column_stack([np.ones_like(place), self._targets(fraction_bits)[rows]]))
            return counts
        cell = place * cells
        if isinstance(self._ordered.privacy, LocalDP):
            start, tokens = self._label_tokens()
            of, token = spread(start[rows], np.diff(start)[rows])
            cell = np.concatenate([cell, cell[of] + 1 + tokens[token]])
        else:
            cell = cell + self._labels[rows]
        return np.bincount(cell, minlength=n_places * cells).reshape(n_places, cells)

    def _targets(self, fraction_bits: int) -> NDArray[np.int64]:
        if not 0 <= fraction_bits <= _MOST_BITS:
            raise RemoteProtocolError(f"{fraction_bits} bits after the point were asked for")
        magnitude = self.schema.magnitude
        return to_fixed(np.ldexp(self.target.values, 0 if magnitude == NO_MAGNITUDE else -magnitude), fraction_bits)

    # --- privacy ---

    @property
    def _client_budget(self) -> ClientBudget:
        return needed(self._own.client_budget)

    def _release(self, what: str, question: bytes) -> str:
        """The name of a release that is drawn: of these labels, after all that was asked before."""
        return release_name(self._own.job, what, self._own.dataset.encode(), self._asked, question)

    def _told(self, counts: NDArray[np.int64], query: bytes, queries: int = 1) -> NDArray[np.int64]:
        """What may be told of some counts, paid for."""
        privacy = self._ordered.privacy
        if isinstance(privacy, LocalDP):
            return self._told_bits(privacy, counts, query)
        if not isinstance(privacy, GlobalDP):
            return counts
        noise, _ = self._noise(privacy)
        if self._asked == b"":
            self._client_budget.check(*self._costs())
        release = self._release("counts", query)
        return tell_noisy(counts, noise, self._client_budget, release=release, job=self._own.job, queries=queries)

    def _noise(self, privacy: GlobalDP) -> tuple[CountNoise, Spend]:
        """Of one query, and what all that are planned cost."""
        planned = self._ordered.queries(len(self.schema.names))
        noise = CountNoise(privacy.epsilon_of_a_query(planned), neighbours=privacy.neighbours)
        return noise, noise.spend(planned)

    def _costs(self) -> list[Charge]:
        """All that the plan costs, to be refused as a whole: rather than to run out of budget in the middle."""
        costs, privacy, job = [], self._ordered.privacy, self._own.job
        if self._ordered.ranges == "private-quantiles" and self._numeric():
            costs.append(self._quantiles_charge())
        if isinstance(privacy, LocalDP):
            costs.append(self._label_charge)
        elif isinstance(privacy, GlobalDP):
            costs.append(noise_charge(f"{job} counts", self._noise(privacy)[1], job))
        return costs

    def _quantiles_charge(self) -> Charge:
        n, one = len(self._numeric()), quantiles_spend(QUANTILES, **self._quantile_terms())
        return Charge(
            unit="rows",
            release=self._release("quantiles", b""),
            mechanism=f"private quantiles of {n} columns",
            spend=Spend(one.epsilon, one.count * n),
            job=self._own.job,
        )

    def _told_bits(self, privacy: LocalDP, counts: NDArray[np.int64], query: bytes) -> NDArray[np.int64]:
        """Sums of permanent bits; with an instant response, randomised again for each question."""
        if not privacy.is_instant:
            return counts
        response = self._response
        secret, dataset, h = self._label_secret(), self._own.dataset, response.code.length
        sides = [counts[:, : 1 + h], counts[:, 1 + h :]] if counts.shape[1] > 1 + h else [counts]
        told = [
            response.instant(secret, dataset, pack(query, bytes([side])), some[:, 1:], some[:, 0])
            for side, some in enumerate(sides)
        ]
        return np.concatenate([counts[:, :1], *told], axis=1)

    @cached_property
    def _response(self) -> RandomisedResponse:
        privacy = self._ordered.privacy
        if not isinstance(privacy, LocalDP):
            raise LocalProtocolError("labels are randomised under LocalDP only")
        return privacy.response(self.schema.classes)

    def _label_secret(self) -> bytes:
        return secret_bytes(self._own.lasting, LABELS_PURPOSE)

    def _label_tokens(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        """The permanent bits of all rows, paid for once and for ever: which bits of each row are 1.

        They are charged whenever they are used, which costs nothing the second time: the charge of a message that was
        refused afterwards is dropped, and the next message must not rely on it.
        """
        if self._tokens is None:
            self._tokens = self._draw_tokens()
        self._client_budget.charge(self._label_charge)
        return self._tokens

    def _draw_tokens(self) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
        if self._own.row_ids is None:
            raise DataError("LocalDP needs an id for every row, which stays the same for ever: name the column of ids")
        response, secret = self._response, self._label_secret()
        ids, labels = self._own.row_ids(), self._labels.astype(np.int64)
        for row in np.flatnonzero(labels == UNLISTED).tolist():
            # Any class will do, as long as it follows from nothing but the row's id: what is told of the row is then
            # as deniable as for every other, and the same at every training.
            drawn = derive_key(secret, "unlisted label", self._own.dataset.encode(), ids[row])
            labels[row] = int.from_bytes(drawn[:8], "big") % len(self.schema.classes)
        bits = response.permanent(secret, self._own.dataset, ids, labels)
        start = np.concatenate([[0], np.cumsum(bits.sum(axis=1, dtype=np.int64))]).astype(np.int64)
        return start, np.nonzero(bits)[1].astype(np.int32)

    @cached_property
    def _label_charge(self) -> Charge:
        response = self._response
        return Charge(
            unit="labels",
            release=response.release(self._label_secret(), self._own.dataset),
            mechanism=f"permanent randomised response, {response.code.kind}",
            spend=Spend(response.epsilon()),
            job=self._own.job,
        )

    # --- the open nodes ---

    @property
    def _rows(self) -> NodeRows:
        if self._node_rows is None:
            self._node_rows = NodeRows(self._values, self._ordered.n_estimators, self.n_jobs)
        return self._node_rows

    def _check_level(self, message: msg.LevelMessage) -> int:
        """How many nodes are open at the level that a message is about, if it fits what came before."""
        told = len(message.fate) + len(message.is_open) + len(message.split_feature)
        if message.width != self._width:
            raise RemoteProtocolError("a level has other candidates than were ordered")
        if self._frontier is not None and message.step == self._step:
            if told:
                raise RemoteProtocolError("what has become of a level was told before")
            return len(self._frontier)
        if message.step != self._step + 1:
            raise RemoteProtocolError(f"Unexpected level {message.step}; expected level {self._step + 1}")
        if self._frontier is None:
            if len(message.fate) or len(message.split_feature):
                raise RemoteProtocolError("the first level splits nothing")
            n_after = self._ordered.n_estimators
        else:
            fate = message.fate
            if len(fate) != len(self._frontier) or (len(fate) and int(fate.max()) > SPLITS):
                raise RemoteProtocolError("a level does not say what has become of each open node")
            self._split_questions(message)
            if len(message.split_feature) != int((fate == SPLITS).sum()) or (message.split_feature < 0).any():
                raise RemoteProtocolError("a level has not one question for each split")
            n_after = int(fate.sum(dtype=np.int64))  # a node that waits stays one, and one that is split becomes two
        if len(message.is_open) != n_after:
            raise RemoteProtocolError("a level does not say which nodes are open")
        return int(message.is_open.astype(np.bool_).sum())

    def _split_questions(self, message: msg.LevelMessage) -> Questions:
        return self._questions(
            message.split_feature, message.split_threshold, message.split_missing_left, message.split_sets
        )

    def _next_frontier(self, message: msg.LevelMessage) -> Frontier:
        """The open nodes that a checked message is about; kept only when it has been answered."""
        if self._frontier is None:
            after = self._rows.roots
        elif message.step == self._step:
            return self._frontier
        else:
            after = self._rows.advance(self._frontier, message.fate, self._split_questions(message))
        after = after.take(message.is_open.astype(np.bool_))
        if (after.depth >= self._ordered.settings(len(self.schema.names)).max_depth).any():
            raise RemoteProtocolError("a level opens a node that is as deep as max_depth allows: it is a leaf")
        if (after.waited >= ATTEMPTS).any():
            raise RemoteProtocolError("a level lets a node wait again that has been asked about often enough")
        return after

    def _commit(self, message: msg.LevelMessage, frontier: Frontier) -> None:
        if message.step != self._step:
            self._frontier, self._step, self._counted = frontier, message.step, 0
        self._note(message)

    def _note(self, message: Message) -> None:
        """Remember what was asked: what is drawn for later questions is named by it."""
        self._asked = hashlib.sha256(pack(self._asked, digest_of(message))).digest()

    def _questions(
        self,
        feature: NDArray[np.int32],
        threshold: NDArray[np.float64],
        missing_left: NDArray[np.uint8],
        sets: NDArray[np.uint8],
    ) -> Questions:
        try:
            return make_questions(feature, threshold, missing_left, sets, self._sizes)
        except ValueError as error:
            raise RemoteProtocolError(f"the coordinator sent questions that are not sound: {error}") from None

    def _check_order(self, order: sum_messages.SumOrder, length: int) -> None:
        """Refuse an order that cannot be answered, before anything is moved, drawn or paid for."""
        if order.length != length:
            raise RemoteProtocolError(f"{order.length} numbers are ordered, and the request asks for {length}")
        self._sums.check(order, fresh=self._ordered.privacy is not None)


def _with_listed_labels(own: Holdings, plan: ExtraTreesPlan) -> Holdings:
    """What a client brings, with labels as places in the public list of classes, where there is privacy.

    That a label is not in the list is a fact about one row, so it must not stop the job. Under GlobalDP the row takes
    no part: without it the table is a neighbour of the one with it. Under LocalDP it must be counted, since the number
    of rows is told, and is given a class by its id (`ExtraTreesClient._draw_tokens`).
    """
    public = plan.public_classes
    if public is None:
        return own
    target = own.target
    place = np.append(listed_numbers(target.classes, public), UNLISTED)  # the last is for what has no number
    numbers = place[target.numbers]
    unlisted = int((numbers == UNLISTED).sum())
    table, row_ids = own.table, own.row_ids
    if unlisted and isinstance(plan.privacy, GlobalDP):
        kept = np.flatnonzero(numbers != UNLISTED)
        table, numbers = table.take(kept), numbers[kept]
        row_ids = None  # nothing is derived from them here
    if unlisted:
        logger.warning(
            "%d rows of %s have a label that is missing or not in the public list of classes; they %s",
            unlisted,
            own.name,
            "take no part" if isinstance(plan.privacy, GlobalDP) else "are told as a class at random",
        )
    return replace(own, table=table, row_ids=row_ids, target=Target(public, numbers, np.empty(0)))
