"""The label holder's part in an evaluation: its policy first, then metrics of answers beside its labels."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from woodlot.data.labels import check_classes, check_targets
from woodlot.data.values import natural_type
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.jobs.columns.row_selection import seen_points
from woodlot.jobs.evaluate.evaluate_messages import AnswersRated, RateAnswers
from woodlot.jobs.evaluate.report_seal import ReportSeal
from woodlot.jobs.home import TakenOrder, private_errors
from woodlot.jobs.ordered import Once
from woodlot.jobs.orders import EvaluateLinearOrder, EvaluateOrder
from woodlot.metrics.class_numbers import ClassNumbers
from woodlot.metrics.resampling import Resampling
from woodlot.metrics.summaries import summarise
from woodlot.metrics.target_numbers import TargetNumbers

logger = logging.getLogger(__name__)

Evaluation = EvaluateOrder | EvaluateLinearOrder


class Rating:
    """Rates the answers of one evaluation.

    What can be refused is refused when it is made, before any party has been asked for anything.

    Parameters
    ----------
    taken : TakenOrder
        What was ordered.
    rows : array of int or None
        Own row of each row to evaluate, where they are known already.

    """

    def __init__(self, taken: TakenOrder[Evaluation], rows: NDArray[np.int64] | None) -> None:
        self._taken = taken
        self._once = Once()
        self._holds = taken.order.score_at == taken.home.identity.name
        if not self._holds:
            return
        self._seal = ReportSeal(taken.part.key, taken.job, taken.home.identity.name)
        plan = taken.order.bootstrap
        try:
            self._resampling = Resampling(plan.n, plan.confidence, plan.seed)
        except ValueError as error:
            raise DataError(str(error)) from None
        if taken.part.label is None:
            raise DataError("the order names no column of labels")
        taken.home.store.check_evaluation(taken.job, self._label, datetime.now(UTC))
        if rows is not None:
            self._check_rows(rows)

    @property
    def _label(self) -> str:
        """What evaluations are counted by: the table and the column."""
        return f"{self._taken.loaded.name}.{self._taken.part.label}"

    def _check_rows(self, rows: NDArray[np.int64]) -> None:
        self._taken.home.policy.check_evaluation(len(rows))
        if (rows < 0).any():
            raise DataError(f"{int((rows < 0).sum())} rows have no label here; use join='inner'")

    def rate(self, message: RateAnswers, rows: NDArray[np.int64]) -> AnswersRated:
        """Compare answers with the labels; the same ones as often as they come, and no others."""
        taken, outputs = self._taken, message.outputs
        if not self._holds:
            raise RemoteProtocolError("the order does not give the answers to this party")
        self._once.check(message)
        if outputs.shape != (len(rows), max(1, len(message.classes))) or not np.isfinite(outputs).all():
            raise RemoteProtocolError("the answers are not those of a model for the rows of this job")
        self._check_rows(rows)
        seen = taken.home.store.count_seen(taken.order.model, seen_points(taken, rows))
        summary = summarise(self._beside_labels(message, rows), self._resampling, seen, taken.home.policy.round_counts)
        report = self._seal.seal(summary)
        now = datetime.now(UTC)
        taken.home.store.spend_evaluation(taken.job, self._label, taken.user, now)
        # a report tells of labels: its rows count also where no part of the model was asked for here
        taken.home.store.spend_predictions(taken.job, taken.user, len(rows), now)
        self._once.note(message)
        if seen:
            logger.warning(
                "job %s evaluates on rows of the training: %d of %d", taken.job, seen, len(rows),
                extra={"job": taken.job, "user": taken.user},
            )  # fmt: skip
        return AnswersRated(report=np.frombuffer(report, np.uint8))

    def _beside_labels(self, message: RateAnswers, rows: NDArray[np.int64]) -> ClassNumbers | TargetNumbers:
        with private_errors(self._taken.job, "its labels cannot be used"):
            labels = natural_type(self._taken.loaded.values(str(self._taken.part.label))[rows])
            if not message.classes:
                return TargetNumbers(check_targets(labels), message.outputs[:, 0])
            labels = check_classes(labels)
        with private_errors(self._taken.job, "some of its rows have classes that the model was not trained with"):
            return ClassNumbers(labels, message.outputs, np.array(message.classes, object))
