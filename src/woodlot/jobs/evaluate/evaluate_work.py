"""A party in an evaluation: it answers as in a prediction, and the label holder rates the answers."""

from __future__ import annotations

from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_work import ColumnsWork
from woodlot.jobs.evaluate.evaluate_messages import AnswersRated, RateAnswers
from woodlot.jobs.evaluate.rating import Rating
from woodlot.jobs.home import TakenOrder
from woodlot.jobs.linear.linear_orders import EvaluateLinearOrder
from woodlot.jobs.linear.linear_work import LinearWork
from woodlot.jobs.orders import EvaluateOrder
from woodlot.protocols.core.handling import takes


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
