"""What a private forest may claim, and what it may not."""

from __future__ import annotations

from woodlot.privacy.claims import PrivacyClaim
from woodlot.protocols.rows.private.private_plan import PrivatePlan


def private_claim(plan: PrivatePlan, n_features: int, unit: str, *not_protected: str) -> PrivacyClaim:
    """The claim of a plan.

    Parameters
    ----------
    plan : PrivatePlan
        What was ordered.
    n_features : int
        Columns.
    unit : str
        Whose secret is kept.
    *not_protected : str
        What holds of every guarantee for rows.
    """
    against = "the coordinator, users of the model and everybody else"
    if plan.colluding == 1:
        against += ", and any one client"
    elif plan.colluding:
        against += f", and up to {plan.colluding} clients together"
    return PrivacyClaim(
        mechanism=f"Gaussian noise on the totals of {n_features} columns and on the sums of {plan.n_estimators} trees, "
        f"of which every client adds a share{_spared(plan)}; it holds against {against}",
        unit=unit,
        epsilon=plan.epsilon,
        delta=plan.delta,
        not_protected=(
            f"rows from more than {plan.colluding} clients who tell each other their noise: against so many there is "
            "less of it, and against all others of a client none but its own share",
            "the declared ranges, categories and classes: they must be public knowledge, not come from the rows",
            *not_protected,
            "that a client takes part, and names and kinds of its columns",
        ),
    )


def _spared(plan: PrivatePlan) -> str:
    """Whose noise is enough, where clients may drop out."""
    if plan.needed is None:
        return ""
    least = f"{plan.needed}" if isinstance(plan.needed, int) else f"more than {plan.needed:.0%}"
    return f", and those of {least} of them are enough"
