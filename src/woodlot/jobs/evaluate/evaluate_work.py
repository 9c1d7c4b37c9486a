"""A party in an evaluation: it answers as in a prediction; the label holder asks its policy, then rates the answers."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.labels import check_classes, check_targets
from woodlot.data.values import natural_type
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_work import ColumnsWork
from woodlot.jobs.evaluate.evaluate_messages import AnswersRated, RateAnswers
from woodlot.jobs.evaluate.report_seal import ReportSeal
from woodlot.jobs.home import TakenOrder, private_errors
from woodlot.jobs.label_query import LabelQuery
from woodlot.jobs.linear.linear_orders import EvaluateLinearOrder
from woodlot.jobs.linear.linear_work import LinearWork
from woodlot.jobs.ordered import Once
from woodlot.jobs.orders import EvaluateOrder
from woodlot.metrics.class_numbers import ClassNumbers
from woodlot.metrics.resampling import Resampling
from woodlot.metrics.summaries import summarise
from woodlot.metrics.target_numbers import TargetNumbers
from woodlot.protocols.core.handling import takes

logger = logging.getLogger(__name__)

Evaluation = EvaluateOrder | EvaluateLinearOrder
_ROUNDING = 1e-6
"""How far probabilities of a row may add up to something else than 1."""


class Rating:
    """Rates the answers of one evaluation.

    What can be refused is refused when it is made, before any party has been asked for anything.

    Parameters
    ----------
    taken : TakenOrder
        What was ordered.
    query : LabelQuery or None
        What is checked here before labels are looked at; None: this party is not the label holder.

    """

    def __init__(self, taken: TakenOrder[Evaluation], query: LabelQuery | None) -> None:
        self._taken, self._query = taken, query
        self._once = Once()
        if query is None:
            return
        self._seal = ReportSeal(taken.part.key, taken.job, taken.home.identity.name)
        plan = taken.order.bootstrap
        try:
            self._resampling = Resampling(plan.n, plan.confidence, plan.seed)
        except ValueError as error:
            raise DataError(str(error)) from None

    def rate(self, message: RateAnswers, rows: NDArray[np.int64]) -> AnswersRated:
        """Compare answers with the labels; the same ones as often as they come, and no others."""
        taken, query, outputs = self._taken, self._query, message.outputs
        if query is None:
            raise RemoteProtocolError("the order does not give the answers to this party")
        self._once.check(message)
        if outputs.shape != (len(rows), max(1, len(message.classes))) or not np.isfinite(outputs).all():
            raise RemoteProtocolError("the answers are not those of a model for the rows of this job")
        if message.classes and not _are_probabilities(outputs):
            raise RemoteProtocolError("the answers are not probabilities of classes")
        told = query.check_rows(rows)
        rows, outputs = rows[told], outputs[told]
        seen = taken.home.store.count_seen(taken.order.model, query.points(rows))
        drawn = replace(self._resampling, seed=query.seed(rows, self._resampling.seed))
        summary = summarise(
            self._beside_labels(message.classes, outputs, rows), drawn, seen, taken.home.policy.round_counts
        )
        report = self._seal.seal(summary)
        query.pay(rows)
        self._once.note(message)
        if seen:
            logger.warning(
                "job %s evaluates on rows of the training: %d of %d", taken.job, seen, len(rows),
                extra={"job": taken.job, "user": taken.user},
            )  # fmt: skip
        return AnswersRated(report=np.frombuffer(report, np.uint8))

    def _beside_labels(
        self, classes: Sequence[Any], outputs: NDArray[np.float64], rows: NDArray[np.int64]
    ) -> ClassNumbers | TargetNumbers:
        job = self._taken.job
        with private_errors(job, "its labels cannot be used"):
            labels = natural_type(self._taken.loaded.values(str(self._taken.part.label))[rows])
            if not classes:
                return TargetNumbers(check_targets(labels), outputs[:, 0])
            labels = check_classes(labels)
        with private_errors(job, "some of its rows have classes that the model was not trained with"):
            return ClassNumbers(labels, outputs, np.array(classes, object))


def _are_probabilities(outputs: NDArray[np.float64]) -> bool:
    """Whether these are such; others would weigh rows so that a rounded sum tells the label of one."""
    return bool((outputs >= 0).all() and (np.abs(outputs.sum(axis=1) - 1) <= _ROUNDING).all())


class EvaluateWork(ColumnsWork, refuses=(msg.TakeAnswers,)):
    """What a party does for an order to evaluate a forest; a score is in the report and nowhere else."""

    def __init__(self, taken: TakenOrder[EvaluateOrder]) -> None:
        super().__init__(taken)
        self._rating = Rating(taken, self._query)

    @takes(RateAnswers)
    def _on_RateAnswers(self, message: RateAnswers) -> AnswersRated:
        return self._rating.rate(message, self._common_rows())


class EvaluateLinearWork(LinearWork, refuses=(msg.TakeAnswers,)):
    """The same for a linear model."""

    def __init__(self, taken: TakenOrder[EvaluateLinearOrder]) -> None:
        super().__init__(taken)
        self._rating = Rating(taken, self._query)

    @takes(RateAnswers)
    def _on_RateAnswers(self, message: RateAnswers) -> AnswersRated:
        return self._rating.rate(message, self._common_rows())
