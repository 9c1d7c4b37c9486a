"""Jobs between parties with different rows of the same columns: train a whole forest, and predict with it."""

from __future__ import annotations

import hashlib
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.data.values import natural_type
from woodlot.exceptions import DataError, ModelFileError, PolicyError, RemoteProtocolError
from woodlot.jobs import row_job_messages as msg
from woodlot.jobs.home import TakenOrder, private_errors, score_of
from woodlot.jobs.label_query import LabelQuery
from woodlot.jobs.ordered import Once
from woodlot.jobs.rows.own_rows import keep_seen, own_ids, own_rows
from woodlot.jobs.rows.rows_orders import PredictRowsOrder, TrainRowsOrder
from woodlot.privacy.accounting import UNITS
from woodlot.protocols.core.blocks import Blocks
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows.lossless.row_block import read_rows
from woodlot.protocols.rows.methods import check_division, client_of, counts_copies, weighs_rows
from woodlot.protocols.rows.releases import digest_of, release_name, score_noise, tell_noisy
from woodlot.protocols.rows.row_client import Holdings
from woodlot.protocols.rows.row_labels import listed_numbers, row_weights, target_of
from woodlot.protocols.rows.whole_forest import HOLDER
from woodlot.protocols.sums.sum_messages import OpenSums
from woodlot.protocols.vertical.answers import match_columns
from woodlot.protocols.vertical.files import load_parts, write_files
from woodlot.runtime.cluster import ClusterBlocks
from woodlot.trees.predict import Predictor

logger = logging.getLogger(__name__)


class TrainRowsWork:
    """What a party does for an order to grow a forest over rows: the client of whatever method is ordered.

    The client is given the plan that the user has signed, and refuses to do anything else. Its keys for secure sums
    are signed with the party's identity; what it releases under differential privacy it pays for in the transaction
    that records its answer.
    """

    n_aligned = None

    def __init__(self, taken: TakenOrder[TrainRowsOrder]) -> None:
        _check_plan(taken)
        home, order, part, loaded = taken.home, taken.order, taken.part, taken.loaded
        store, name = home.store, home.identity.name
        rows = own_rows(taken)
        home.policy.check_rows(loaded.n_rows if rows is None else len(rows), "rows")

        def row_ids() -> list[bytes]:
            ids = own_ids(taken)
            return ids if rows is None else [ids[row] for row in rows.tolist()]

        with private_errors(taken.job, "its labels or its table cannot be used"):
            if part.label is None:
                raise DataError("the order names no column of labels")
            columns, labels = taken.features, loaded.values(part.label)
            own = Holdings(
                name=name,
                table=_table(taken, columns, rows),
                target=_target(taken, labels, rows),
                entropy=lambda purpose: store.secret_for(taken.job, purpose),
                lasting=lambda purpose: store.secret_for("rows", purpose),
                bootstrap_secret=store.secret_for("rows", "bootstrap"),
                client_budget=home.pending_charges(taken.job).client_budget(name, loaded.name, home.privacy.budgets),
                dataset=f"{loaded.name}.{part.label}",  # another label is another release, of the same budget
                row_ids=row_ids,
                data_digest=_digest(taken),
                job=taken.job,
                signer=home.signer(taken.job),
                shared_secret=home.shared_secret,
                allow_two=home.policy.allow_two,
                n_jobs=home.n_jobs,
                device=home.device,
                blocks=_blocks(taken, columns, part.label, part.weight),
            )
            self._client = client_of(order.plan, own)
            taken.pay_training()  # last of what can refuse here
        self._taken, self._rows, self._noted = taken, rows, False
        self._parties = order.parties
        self.uncovered = tuple(unit for unit in UNITS if unit not in order.plan.protects)

    def handle(self, message: Message) -> Message:
        """Answer one message."""
        if isinstance(message, OpenSums) and set(message.clients) != set(self._parties):
            raise RemoteProtocolError("sums are over all parties of the order, and over nobody else")
        reply = self._client.handle(message)
        if not self._noted:
            keep_seen(self._taken, self._rows)
            self._noted = True
        return reply


def _target(taken: TakenOrder[TrainRowsOrder], labels: NDArray[Any], rows: NDArray[np.int64] | None) -> Target:
    """The labels of the rows, and their weights."""
    plan, weight = taken.order.plan, taken.part.weight
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


def _table(taken: TakenOrder[TrainRowsOrder], columns: Sequence[str], rows: NDArray[np.int64] | None) -> Table:
    """The columns to learn from; on disk where they are counted on a cluster, or may not fit."""
    loaded, room = taken.loaded, taken.home.room
    if room is not None:
        return loaded.stored(columns, np.arange(loaded.n_rows) if rows is None else rows, room.spool)
    table = loaded.table().select(columns)
    return table if rows is None else table.take(rows)


def _blocks(
    taken: TakenOrder[TrainRowsOrder], columns: Sequence[str], label: str, weight: str | None
) -> Callable[[], Blocks] | None:
    """Spreads the rows over the party's cluster, if it has one: each block reads its own from the source."""
    connect, source, plan = taken.home.cluster, taken.home.tables[taken.part.table], taken.order.plan
    if connect is None:
        return None
    if taken.order.subsets:
        raise PolicyError(
            "this party's rows are on a cluster, where a part of them cannot be selected: train on all rows, or let "
            "the party take the setting cluster out for this job"
        )

    def block(of: range) -> tuple[Any, ...]:
        return source, tuple(columns), label, weight, plan.task, counts_copies(plan), of.start, of.stop

    return lambda: ClusterBlocks(connect(), read_rows, taken.loaded.n_rows, block)


def _check_plan(taken: TakenOrder[TrainRowsOrder]) -> None:
    """Refuse what the party's policy forbids, before anything is told."""
    policy, plan = taken.home.policy, taken.order.plan
    if weighs_rows(plan) != (taken.part.weight is not None):
        raise DataError("the order names weights of rows that its plan does not have, or none where it has them")
    check_division(plan, by_class=any(part.by_class is True for part in taken.order.subsets))
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
        if message.model != taken.order.model:
            raise RemoteProtocolError("the order is for another model")
        self._asked.check(message)  # any forest could be sent, and its score tells of the labels
        forest, part = read_forest(message.files)
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
        home.store.keep_answers(taken.job, table, self._rows, outputs, forest.classes)
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


def read_forest(files: Mapping[str, NDArray[np.uint8]]) -> tuple[CoordinatorForest, PartyForest]:
    """A whole forest, of the files that the coordinator has sent."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            write_files(Path(scratch), {name: data.tobytes() for name, data in files.items()})
            stored = load_parts(scratch)
            return stored.coordinator, stored.shared[HOLDER]
        except (ModelFileError, KeyError):
            raise RemoteProtocolError("what the coordinator has sent is no whole forest") from None
