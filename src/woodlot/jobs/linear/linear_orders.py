"""Orders about linear models."""

from __future__ import annotations

from typing import ClassVar

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs.orders import AlignedOrder, AnsweredOrder, BootstrapPlan, check_evaluation
from woodlot.protocols.linear.linear_model import LinearPlan


class TrainLinearOrder(AlignedOrder, frozen=True, kw_only=True, tag="train-linear"):
    """Fit a linear model.

    Attributes
    ----------
    plan : LinearPlan
        What to fit.
    holder, settings, name
        As for `TrainOrder`.

    """

    naming: ClassVar[tuple[str, ...]] = ("holder",)
    every_row: ClassVar[bool] = True

    holder: str
    plan: LinearPlan
    settings: str
    name: str = ""

    def check(self) -> None:
        """As every order; and where residuals are hidden, who deals is not who leads."""
        super().check()
        if self.plan.protection == "hidden" and self.leader is None:
            raise RemoteProtocolError(
                "with protection='hidden' the label holder leads, and the coordinator is the dealer; order with "
                "lead='holder'"
            )


class PredictLinearOrder(AnsweredOrder, frozen=True, kw_only=True, tag="predict-linear"):
    """Predict with a linear model that was fitted before; see `AnsweredOrder`."""


class EvaluateLinearOrder(PredictLinearOrder, frozen=True, kw_only=True, tag="evaluate-linear"):
    """As `EvaluateOrder`, of a linear model."""

    give_answers: bool = False
    bootstrap: BootstrapPlan = BootstrapPlan()

    def check(self) -> None:
        """As every order; and answers go to the label holder alone."""
        super().check()
        check_evaluation(self)
