"""A client of private forests: it adds up gradients and a share of the noise, and nothing else of its rows leaves it.

States are those of `HorizontalClient`; DescribeColumns takes the place of DescribeRows. Within *ready*, each once and
in this order::

    OpenSums, StartSums     who adds noise: the share of each follows from their number
    CountTotals
    TakeTrees
    SumGradients            tree by tree; each brings the answers of the tree before

The whole training is charged with the first answer, and again with every later one, which costs nothing. What is sent
never depends on the coordinator in how much a row can change it: gradients are clipped here. The noise of an answer is
derived from a secret of this client and this job, the question, and all that was asked before it. So an answer that is
asked for again after a crash is the same, and another question has other noise.
"""

from __future__ import annotations

import hashlib
import logging

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import NumericColumn
from woodlot.data.tables import Table
from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.privacy.budget import Charge
from woodlot.privacy.derivation import derive_key, pack
from woodlot.privacy.gaussian import draw_share
from woodlot.protocols.core.agreement import secret_bytes
from woodlot.protocols.core.handling import takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows import extra_messages, row_messages
from woodlot.protocols.rows.extra_columns import fit_column, kind_by_type
from woodlot.protocols.rows.private import private_messages as msg
from woodlot.protocols.rows.private.gradients import histogram, in_steps, residuals, sum_by_leaf, sum_totals
from woodlot.protocols.rows.private.private_plan import PrivatePlan, Terms
from woodlot.protocols.rows.releases import digest_of, needed, release_name
from woodlot.protocols.rows.row_client import Holdings, HorizontalClient, RowClientState
from woodlot.protocols.rows.row_labels import UNLISTED, listed_numbers
from woodlot.protocols.rows.whole_forest import trees_of
from woodlot.protocols.sums import sum_messages
from woodlot.protocols.sums.sum_messages import SumOrder
from woodlot.trees.alone import WholeTrees, prediction_column

logger = logging.getLogger(__name__)

MECHANISM = "shares of Gaussian noise on sums of gradients"
LARGEST_ANSWER = 8.0
"""The largest answer of a leaf, and score to start from, that a client takes."""
_PURPOSE = "private forest noise"


class PrivateClient(HorizontalClient):
    """One client and its rows, for one job.

    Parameters
    ----------
    own : Holdings
        What it brings.
    plan : PrivatePlan
        What was ordered; anything else is refused.
    """

    def __init__(self, own: Holdings, plan: PrivatePlan) -> None:
        table, labels, targets = _usable_rows(own, plan)
        target = Target(plan.classes or (), labels, targets)
        super().__init__(own.name, table, target, plan=plan, n_jobs=own.n_jobs)
        self._own = own
        self._ordered = plan
        self._labels = labels if plan.task == "classes" else None
        self._targets = targets
        self._sums = own.sum_client("secure", plan.allow_two, plan.needed)
        self._columns: Table | None = None
        self._numeric: dict[str, tuple[float, float]] = {}  # columns that have a histogram, and their ranges
        self._known_terms: Terms | None = None
        self._trees: WholeTrees | None = None
        self._scores: NDArray[np.float64] = np.empty((0, 0))
        self._leaf: NDArray[np.int64] = np.empty(0, np.int64)  # of each row, in the tree before
        self._counted = False
        self._n_done = 0  # trees
        self._asked = b""

    # --- columns ---

    def _on_DescribeRows(self, message: row_messages.DescribeRows) -> row_messages.RowsDescribed:
        raise RemoteProtocolError("DescribeRows asks about rows, which are under differential privacy here")

    @takes(extra_messages.DescribeColumns, when=RowClientState.idle, then=RowClientState.described)
    def _on_DescribeColumns(self, message: extra_messages.DescribeColumns) -> extra_messages.ColumnsDescribed:
        if message.task != self._ordered.task or not message.hide_rows:
            raise RemoteProtocolError("DescribeColumns is not what was ordered")
        return extra_messages.ColumnsDescribed(
            n_rows=0,
            names=self.table.names,
            kinds=tuple(kind_by_type(column) for column in self.table.columns),
            categories=((),) * len(self.table.names),
        )

    def _on_UseSchema(self, message: row_messages.UseSchema) -> row_messages.SchemaInUse:
        plan = self._ordered
        if set(message.names) != set(self.table.names) or message.classes != (plan.classes or ()):
            raise RemoteProtocolError("the schema has other columns or classes than this client and the order")
        known = plan.known_categories
        for name, categories in zip(message.names, message.categories, strict=True):
            if (None if categories is None else tuple(sorted(known.get(name, ())))) != categories:
                raise RemoteProtocolError("the schema has other categories than were declared")
        columns = tuple(
            fit_column(self.table.column(name), categories, plan.knots.get(name))[0]
            for name, categories in zip(message.names, message.categories, strict=True)
        )
        self._columns = Table(message.names, columns, self.table.n_rows)
        if plan.private_knots:
            self._numeric = histogram_columns(plan, message.names, message.categories)
        self._schema = message
        return row_messages.SchemaInUse()

    # --- sums ---

    @takes(sum_messages.OpenSums, when=RowClientState.ready)
    def _on_OpenSums(self, message: sum_messages.OpenSums) -> Message:
        try:
            terms = Terms(self._ordered, len(self._numeric), len(message.clients))
        except ValueError as error:
            raise PolicyError(str(error)) from None
        reply = self._sums.handle(message)
        self._known_terms = terms
        return reply

    @takes(sum_messages.StartSums, *sum_messages.RECOVERING, when=RowClientState.ready)
    def _on_sums(self, message: Message) -> Message:
        return self._sums.handle(message)

    @property
    def _terms(self) -> Terms:
        if self._known_terms is None:
            raise RemoteProtocolError("sums are not opened, so it is not known how many clients add noise")
        return self._known_terms

    @takes(msg.CountTotals, when=RowClientState.ready)
    def _on_CountTotals(self, message: msg.CountTotals) -> Message:
        if self._counted:
            raise RemoteProtocolError("Unexpected CountTotals; totals are told once")
        table, terms = self._table, self._terms
        columns = [table.column(name) for name in self._numeric]
        counted = [
            histogram(column, ends)
            for column, ends in zip(columns, self._numeric.values(), strict=True)
            if isinstance(column, NumericColumn)
        ]
        n_classes = len(self._ordered.classes or ())
        totals = sum_totals(self._labels, self._targets, n_classes, counted, terms)
        reply = self._told(message, message.order, totals)
        self._counted = True
        return reply

    @takes(msg.TakeTrees, when=RowClientState.ready)
    def _on_TakeTrees(self, message: msg.TakeTrees) -> msg.TreesTaken:
        if not self._counted or self._trees is not None:
            raise RemoteProtocolError("Unexpected TakeTrees; trees are taken once, after the totals")
        trees = trees_of(message, self.schema.categories, "the coordinator")
        if (message.first_tree, trees.structure.n_trees) != (0, self._ordered.n_estimators):
            raise RemoteProtocolError("TakeTrees is not what was ordered: another number of trees")
        if len(message.start) != self._ordered.n_scores or np.abs(message.start).max() > LARGEST_ANSWER:
            raise RemoteProtocolError("TakeTrees has no score to start from, or too large a one")
        self._sums.note(self.digest_of(message))
        self._trees = trees
        self._scores = np.tile(message.start, (self.table.n_rows, 1))
        self._note(message)
        return msg.TreesTaken()

    @takes(msg.SumGradients, when=RowClientState.ready)
    def _on_SumGradients(self, message: msg.SumGradients) -> Message:
        if self._trees is None or message.tree != self._n_done or message.tree >= self._ordered.n_estimators:
            raise RemoteProtocolError(f"Unexpected tree {message.tree}; expected tree {self._n_done}, once it is taken")
        scores = self._scores + self._answers(message)
        tree = self._trees.take(message.tree, message.tree + 1)
        used = set(tree.splits.feature.tolist())
        columns = [
            prediction_column(column) if f in used else np.empty(0, np.float32)
            for f, column in enumerate(self._table.columns)
        ]
        end = tree.leaves_of(columns, self.table.n_rows, self.n_jobs)[:, 0]
        leaf = tree.structure.leaf[end].astype(np.int64)
        gradients = in_steps(residuals(scores, self._labels, self._targets), self._terms)
        sums = sum_by_leaf(leaf, tree.structure.n_leaves, gradients, self._terms)
        reply = self._told(message, message.order, sums.ravel())
        self._scores, self._leaf, self._n_done = scores, leaf, self._n_done + 1
        return reply

    def _answers(self, message: msg.SumGradients) -> NDArray[np.float64]:
        """What the tree before answers for each row."""
        answers, n_scores = message.answers, self._ordered.n_scores
        n_leaves = 0
        if self._n_done and self._trees is not None:
            n_leaves = self._trees.take(self._n_done - 1, self._n_done).structure.n_leaves
        if answers.shape != (n_leaves, n_scores) or np.abs(answers).max(initial=0.0) > LARGEST_ANSWER:
            raise RemoteProtocolError("SumGradients has other answers than the leaves of the tree before can have")
        return answers[self._leaf] if n_leaves else np.zeros((self.table.n_rows, n_scores))

    # --- privacy ---

    @property
    def _table(self) -> Table:
        if self._columns is None:
            raise RemoteProtocolError("no schema is in use here")
        return self._columns

    def _told(self, message: Message, order: SumOrder, numbers: NDArray[np.int64]) -> Message:
        """Numbers with this client's share of the noise, paid for and masked."""
        if order.length != len(numbers):
            raise RemoteProtocolError(f"{order.length} numbers are ordered, and the request asks for {len(numbers)}")
        self._sums.check(order, fresh=True)
        needed(self._own.client_budget).charge(self._charge)
        secret, digest = secret_bytes(self._own.entropy, _PURPOSE), digest_of(message)
        own = self._own.name.encode(), self._own.dataset.encode(), self._own.data_digest
        key = derive_key(secret, _PURPOSE, *own, self._asked, digest)
        reply = self._sums.answer(order, numbers + draw_share(key, len(numbers)), self.digest_of(message))
        self._note(message)
        return reply

    @property
    def _charge(self) -> Charge:
        own, plan = self._own, self._ordered
        return Charge(
            unit="rows",
            release=release_name(own.job, "private forest", own.dataset.encode()),
            mechanism=f"{MECHANISM} of {plan.n_estimators} trees, against {plan.colluding} colluding clients",
            spend=plan.spend,
            job=own.job,
        )

    def _note(self, message: Message) -> None:
        """Remember what was asked: the noise of later answers is derived from it."""
        self._asked = hashlib.sha256(pack(self._asked, digest_of(message))).digest()


def histogram_columns(
    plan: PrivatePlan, names: tuple[str, ...], categories: tuple[tuple[str, ...] | None, ...]
) -> dict[str, tuple[float, float]]:
    """The columns of numbers that have more than one value by what was declared, and their ranges."""
    ends = {name: plan.knots.get(name, (0.0,)) for name, found in zip(names, categories, strict=True) if found is None}
    return {name: (some[0], some[-1]) for name, some in ends.items() if some[0] < some[-1]}


def _usable_rows(own: Holdings, plan: PrivatePlan) -> tuple[Table, NDArray[np.int64], NDArray[np.float64]]:
    """Rows whose label is in the public list, or is a number; labels by number, targets from -1 to 1.

    That a row has no such label is a fact about one row and must not stop the job. It takes no part: without it the
    table is a neighbour of the one with it.
    """
    target, none = own.target, np.empty(0)
    if plan.task == "classes":
        place = np.append(listed_numbers(target.classes, plan.classes or ()), UNLISTED)
        labels = place[target.numbers]
        usable = labels != UNLISTED
        targets = none
    else:
        low, high = plan.target_range or (0.0, 1.0)
        labels = np.empty(0, np.int64)
        usable = ~np.isnan(target.values)
        targets = np.clip((target.values - low) / (high - low) * 2 - 1, -1.0, 1.0)
    kept = np.flatnonzero(usable)
    if len(kept) == len(usable):
        return own.table, labels, targets
    logger.warning(
        "%d rows of %s have a label that is missing or not declared; they take no part",
        len(usable) - len(kept),
        own.name,
    )
    return own.table.take(kept), labels[kept] if len(labels) else labels, targets[kept] if len(targets) else targets
