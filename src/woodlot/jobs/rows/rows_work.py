"""Jobs between parties with different rows of the same columns: train a whole forest, and predict with it."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.data.values import natural_type
from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.jobs import row_job_messages as msg
from woodlot.jobs.forget.forget_orders import ForgetRowsOrder
from woodlot.jobs.home import TakenOrder, private_errors, score_of
from woodlot.jobs.label_query import LabelQuery
from woodlot.jobs.ordered import Once
from woodlot.jobs.rows.brought_forest import brought_forest, check_named
from woodlot.jobs.rows.own_rows import every_row, keep_seen, own_ids, own_rows
from woodlot.jobs.rows.row_records import RowTrainingRecord
from woodlot.jobs.rows.rows_orders import PredictRowsOrder, RevokeRowsOrder, TrainRowsOrder
from woodlot.privacy.accounting import UNITS
from woodlot.protocols.core.blocks import Blocks
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows.lossless.row_block import read_rows
from woodlot.protocols.rows.methods import HorizontalPlan, check_division, client_of, counts_copies, weighs_rows
from woodlot.protocols.rows.releases import digest_of, release_name, score_noise, tell_noisy
from woodlot.protocols.rows.row_client import Holdings
from woodlot.protocols.rows.row_labels import listed_numbers, row_weights, target_of
from woodlot.protocols.sums.sum_messages import OpenSums
from woodlot.protocols.vertical.answers import match_columns
from woodlot.runtime.cluster import ClusterBlocks
from woodlot.trees.predict import Predictor

logger = logging.getLogger(__name__)

GrowingOrder = TakenOrder[TrainRowsOrder] | TakenOrder[ForgetRowsOrder]
"""Orders by which a forest over rows grows."""


class GrowRowsWork:
    """A party's part in growing a forest over rows: the client of whatever method was ordered.

    The client is given the plan that the user has signed, and refuses to do anything else. Its keys for secure sums
    are signed with the party's identity; what it releases under differential privacy it pays for in the transaction
    that records its answer.

    Parameters
    ----------
    taken : TakenOrder
        The order, and the table.
    plan : HorizontalPlan
        What is grown.
    rows : int64 array or None
        Own rows that are used, in their order; None: all.
    features : sequence of str
        The columns that are learnt from.
    digest : bytes
        Of the rows that numbers come from.
    """

    n_aligned = None

    def __init__(
        self,
        taken: GrowingOrder,
        plan: HorizontalPlan,
        rows: NDArray[np.int64] | None,
        features: Sequence[str],
        digest: bytes,
    ) -> None:
        home, order, part, loaded = taken.home, taken.order, taken.part, taken.loaded
        store, name = home.store, home.identity.name
        home.policy.check_rows(loaded.n_rows if rows is None else len(rows), "rows")

        def row_ids() -> list[bytes]:
            ids = own_ids(taken)
            return ids if rows is None else [ids[row] for row in rows.tolist()]

        with private_errors(taken.job, "its labels or its table cannot be used"):
            if part.label is None:
                raise DataError("the order names no column of labels")
            labels = loaded.values(part.label)
            own = Holdings(
                name=name,
                table=_table(taken, features, rows),
                target=_target(taken, plan, labels, rows),
                entropy=lambda purpose: store.secret_for(taken.job, purpose),
                lasting=lambda purpose: store.secret_for("rows", purpose),
                bootstrap_secret=store.secret_for("rows", "bootstrap"),
                client_budget=home.pending_charges(taken.job).client_budget(name, loaded.name, home.privacy.budgets),
                dataset=f"{loaded.name}.{part.label}",  # another label is another release, of the same budget
                row_ids=row_ids,
                data_digest=digest,
                job=taken.job,
                signer=home.signer(taken.job),
                shared_secret=home.shared_secret,
                allow_two=home.policy.allow_two,
                n_jobs=home.n_jobs,
                device=home.device,
                blocks=_blocks(taken, plan, features, rows),
            )
            self._client = client_of(plan, own)
            taken.pay_training()  # last of what can refuse here
        self._taken, self._plan, self._rows, self._features, self._noted = taken, plan, rows, features, False
        self._parties = order.parties
        self.uncovered = tuple(unit for unit in UNITS if unit not in plan.protects)

    def handle(self, message: Message) -> Message:
        """Answer one message."""
        if isinstance(message, OpenSums) and set(message.clients) != set(self._parties):
            raise RemoteProtocolError("sums are over all parties of the order, and over nobody else")
        reply = self._client.handle(message)
        if not self._noted:
            keep_seen(self._taken, self._rows)
            if isinstance(self._taken.order, RevokeRowsOrder):
                self._taken.home.store.keep_former(self._taken.job, self._taken.order.model)
            if "forget" in self._taken.home.policy.protocols:  # to know its rows again when some are deleted
                self._keep_training()
            self._noted = True
        return reply

    def _keep_training(self) -> None:
        """Keep by what, and on which rows, the forest is grown."""
        taken, store = self._taken, self._taken.home.store
        ids = own_ids(taken)
        store.keep_trained_on(taken.job, [ids[row] for row in every_row(taken, self._rows).tolist()])
        record = RowTrainingRecord(
            parties=self._parties, table=taken.loaded.name, label=taken.part.label or "", weight=taken.part.weight,
            features=tuple(self._features), plan=self._plan, forgot=self._has_forgotten(),
            before=taken.order.model if isinstance(taken.order, RevokeRowsOrder) else "",
        )  # fmt: skip
        store.keep_row_training(taken.job, record)

    def _has_forgotten(self) -> bool:
        """Whether rows that may still be in the table were forgotten: they are not to come back."""
        return False


class TrainRowsWork(GrowRowsWork):
    """What a party does for an order to grow a forest over rows, or to grow it again when a party has left."""

    def __init__(self, taken: TakenOrder[TrainRowsOrder]) -> None:
        plan = taken.order.plan
        check_row_plan(taken, plan)
        check_division(plan, by_class=any(part.by_class is True for part in taken.order.subsets))
        before = taken.home.store.row_training(taken.order.model) if isinstance(taken.order, RevokeRowsOrder) else None
        self._forgot = before is not None and before.forgot
        rows, digest = own_rows(taken), _digest(taken)
        if isinstance(taken.order, RevokeRowsOrder) and self._forgot:
            rows = _never_forgotten(taken, taken.order.model, every_row(taken, rows))
            digest = selected_digest(taken, rows)
        super().__init__(taken, plan, rows, taken.features, digest)

    def _has_forgotten(self) -> bool:
        return self._forgot


def _never_forgotten(taken: TakenOrder[TrainRowsOrder], model: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those of some rows that a model is of: rows that it has forgotten may still be in the table."""
    store, ids = taken.home.store, own_ids(taken)
    points = store.trained_on(model)
    if points is None:
        raise DataError("which rows this model is of is not recorded; train it again")
    return rows[np.isin(store.trained_points([ids[row] for row in rows.tolist()]), points)]


def selected_digest(taken: GrowingOrder, rows: NDArray[np.int64]) -> bytes:
    """Of some rows of the table."""
    return hashlib.sha256(bytes.fromhex(taken.loaded.digest) + rows.astype("<i8").tobytes()).digest()


def _target(taken: GrowingOrder, plan: HorizontalPlan, labels: NDArray[Any], rows: NDArray[np.int64] | None) -> Target:
    """The labels of the rows, and their weights."""
    weight = taken.part.weight
    own = natural_type(labels if rows is None else labels[rows])
    target = target_of(own, plan.task, plan.public_classes, plan.public_range)
    if weight is None:
        return target
    weights = taken.loaded.values(weight)
    weights = weights if rows is None else weights[rows]
    return replace(target, weights=row_weights(natural_type(weights), len(weights), copies=counts_copies(plan)))


def _digest(taken: TakenOrder[TrainRowsOrder]) -> bytes:
    """Of the rows that numbers come from."""
    digest, subsets = bytes.fromhex(taken.loaded.digest), taken.order.subsets
    return digest if not subsets else hashlib.sha256(digest + msgspec.msgpack.encode(subsets)).digest()


def _table(taken: GrowingOrder, columns: Sequence[str], rows: NDArray[np.int64] | None) -> Table:
    """The columns to learn from; on disk where they are counted on a cluster, or may not fit."""
    loaded, room = taken.loaded, taken.home.room
    if room is not None:
        return loaded.stored(columns, np.arange(loaded.n_rows) if rows is None else rows, room.spool)
    table = loaded.table().select(columns)
    return table if rows is None else table.take(rows)


def _blocks(
    taken: GrowingOrder, plan: HorizontalPlan, columns: Sequence[str], rows: NDArray[np.int64] | None
) -> Callable[[], Blocks] | None:
    """Spreads the rows over the party's cluster, if it has one: each block reads its own from the source."""
    connect, source, part = taken.home.cluster, taken.home.tables[taken.part.table], taken.part
    if connect is None:
        return None
    if rows is not None:
        raise PolicyError(
            "this party's rows are on a cluster, where a part of them cannot be selected: train on all rows, or let "
            "the party take the setting cluster out for this job"
        )

    def block(of: range) -> tuple[Any, ...]:
        return source, tuple(columns), part.label, part.weight, plan.task, counts_copies(plan), of.start, of.stop

    return lambda: ClusterBlocks(connect(), read_rows, taken.loaded.n_rows, block)


def check_row_plan(taken: GrowingOrder, plan: HorizontalPlan) -> None:
    """Refuse what the party's policy forbids, before anything is told."""
    policy = taken.home.policy
    if weighs_rows(plan) != (taken.part.weight is not None):
        raise DataError("the order names weights of rows that its plan does not have, or none where it has them")
    policy.check_method(plan.method)
    policy.check_trees(plan.n_estimators)
    policy.check_leaf(plan.fewest_rows)
    policy.check_sums(plain=plan.shows_numbers, two=plan.allows_two and len(taken.order.parties) == 2)
    taken.home.privacy.check_training(plan.protects)


class PredictRowsWork(MessageHandler):
    """What a party does for an order to predict its own rows: it is brought the forest, and keeps the answers."""

    n_aligned = None

    def __init__(self, taken: TakenOrder[PredictRowsOrder]) -> None:
        privacy, order = taken.home.privacy, taken.order
        check_named(order)
        scored = taken.part.label is not None
        if scored:
            privacy.check_score(order.score_epsilon)
        taken.home.policy.check_rows(taken.loaded.n_rows, "rows")
        self.uncovered = privacy.uncovered_by_prediction(scored=scored, score_epsilon=order.score_epsilon)
        self._taken = taken
        self._rows = np.arange(taken.loaded.n_rows)
        self._query = LabelQuery(taken) if scored and order.score_epsilon is None else None
        if self._query is not None:
            self._query.check_day()
            self._told(self._query)
        self._asked = Once()

    def _told(self, query: LabelQuery) -> NDArray[np.bool_]:
        """Which rows an exact score can be of: with reports, it must not tell of a few rows by the difference."""
        with private_errors(self._taken.job, "its ids cannot be used"):
            query.points(self._rows)
        return query.check_rows(self._rows)

    @takes(msg.PredictRows)
    def _on_PredictRows(self, message: msg.PredictRows) -> msg.RowsPredicted:
        taken, home = self._taken, self._taken.home
        self._asked.check(message)
        forest, part = brought_forest(taken.order, message)
        table = taken.loaded
        with private_errors(taken.job, "its table does not have the columns that the model was trained with"):
            columns = match_columns(part.names, part.codings, table.table().select(table.features))
        predictor = Predictor(forest.structure, part.splits, forest.leaves)
        outputs = predictor.predict_outputs(columns, table.n_rows, "soft", home.n_jobs)
        score, counts = None, None
        if taken.part.label is not None:
            labels = table.values(taken.part.label)
            if taken.order.score_epsilon is not None:
                counts = self._noisy_counts(message, labels, outputs, forest.classes, taken.order.score_epsilon)
        known = None if self._query is None else self._told(self._query)
        if known is not None:
            with private_errors(taken.job, "its labels cannot be used"):
                score = score_of(natural_type(labels[known]), outputs[known], forest.classes)
        # last of what can refuse: an order that comes to nothing costs nothing
        self._spend(table.n_rows)
        if self._query is not None and known is not None:
            self._query.pay(self._rows[known])
        home.store.keep_answers(taken.job, table, self._rows, outputs, forest.classes, taken.order.model)
        self._asked.note(message)
        told = table.n_rows if self.uncovered else None
        return msg.RowsPredicted(n_rows=told, score=score, counts=counts)

    def _spend(self, n_rows: int) -> None:
        """Take the rows from the budget of the day; how many are left is not told where their number is not."""
        taken = self._taken
        try:
            taken.home.store.spend_predictions(taken.job, taken.user, n_rows, datetime.now(UTC))
        except PolicyError as error:
            if self.uncovered:
                raise
            logger.warning("job %s: %s", taken.job, error, extra={"job": taken.job, "user": taken.user})
            raise PolicyError(
                "this party predicts no more rows today (predictions_per_day in its policy); ask again tomorrow"
            ) from None

    def _noisy_counts(
        self,
        message: msg.PredictRows,
        labels: NDArray[Any],
        outputs: NDArray[np.float64],
        classes: Sequence[Any],
        epsilon: float,
    ) -> NDArray[np.int64]:
        """How many answers are right and how many wrong, with noise: drawn once for this job, and paid for.

        A label that is missing or of no class makes its answer wrong: to refuse it would tell of its row.
        """
        taken, home = self._taken, self._taken.home
        if not classes:
            raise DataError("a score with noise is for classes only: nothing bounds what one row changes in an R2")
        said = outputs.argmax(axis=1)
        right = int((listed_numbers(labels.tolist(), tuple(classes)) == said).sum())
        dataset = f"{taken.loaded.name}.{taken.part.label}"
        return tell_noisy(
            np.array([right, len(said) - right], np.int64),
            score_noise(epsilon),
            home.pending_charges(taken.job).client_budget(home.identity.name, taken.loaded.name, home.privacy.budgets),
            release=release_name(taken.job, "score", dataset.encode(), digest_of(message)),
            job=taken.job,
            queries=1,
            mechanism="integer Laplace noise on the numbers of right and wrong answers",
        )
