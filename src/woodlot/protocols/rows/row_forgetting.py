"""Which forests over rows can become the ones without some rows: those that grow the same each time."""

from __future__ import annotations

from woodlot.exceptions import DataError
from woodlot.protocols.rows.collaborative import CollaborativePlan
from woodlot.protocols.rows.extra_plan import ExtraTreesPlan
from woodlot.protocols.rows.methods import HorizontalPlan


def check_forgets(plan: HorizontalPlan) -> None:
    """Refuse a plan with noise: the forest would be another one each time, and would be paid for again."""
    noisy = isinstance(plan, CollaborativePlan) and plan.dp_leaf_epsilon is not None
    noisy |= isinstance(plan, ExtraTreesPlan) and plan.ranges == "private-quantiles"
    if plan.protects or noisy:
        raise DataError(
            "this forest was grown under differential privacy: growing it without the rows draws new noise and spends "
            "privacy budget again, so it is not the same forest without them. Train it again without the rows"
        )
