"""What a forest that was grown by a plan may claim about privacy: the totals of all that it made clients release."""

from __future__ import annotations

from woodlot.privacy.accounting import Spend, plain_epsilon, total_epsilon
from woodlot.privacy.claims import PrivacyClaim, no_privacy
from woodlot.privacy.noise import CountNoise
from woodlot.privacy.settings import GlobalDP, LocalDP
from woodlot.protocols.rows.collaborative import CollaborativePlan
from woodlot.protocols.rows.extra_plan import ExtraTreesPlan
from woodlot.protocols.rows.private.private_claims import private_claim
from woodlot.protocols.rows.private.private_plan import PrivatePlan
from woodlot.protocols.rows.row_client import GrowthPlan

ROW_UNIT = "one row of a client"
LABEL_UNIT = "the label of one row"
_ON_GRID = "which thresholds of the public grid were chosen"
_SEVERAL = "a person with several rows: epsilon is multiplied by their number"


def claim_of(plan: GrowthPlan, n_features: int) -> PrivacyClaim:
    """The claim of a plan on so many columns."""
    if isinstance(plan, CollaborativePlan) and plan.dp_leaf_epsilon is not None:
        spends = [CountNoise(plan.dp_leaf_epsilon).spend(plan.n_estimators)]
        return PrivacyClaim(
            mechanism="integer Laplace noise on the counts of the leaves, once for every tree",
            unit=f"{ROW_UNIT}, in the counts of the leaves alone",
            epsilon=plain_epsilon(spends),
            plain_epsilon=plain_epsilon(spends),
            not_protected=(
                "what the splits tell: they are chosen by looking at the rows, without noise",
                "thresholds, halfway between two values of a client" if plan.grid is None else _ON_GRID,
                "how many rows a client has, and which classes",
                _SEVERAL,
            ),
        )
    if isinstance(plan, PrivatePlan):
        return private_claim(plan, n_features, f"{ROW_UNIT}, with its label", _SEVERAL)
    if not isinstance(plan, ExtraTreesPlan):
        return no_privacy("labels and values of rows: thresholds and leaves are made of them")
    ranges = _ranges(plan)
    if isinstance(plan.privacy, LocalDP):
        epsilon = plan.privacy.total_epsilon(plan.classes or ())
        return PrivacyClaim(
            mechanism="LocalDP: randomised response of labels, permanent and the same at every training",
            unit=LABEL_UNIT,
            epsilon=epsilon,
            plain_epsilon=epsilon,
            not_protected=(
                "the columns of a row, that it is there, and how many rows are in a node",
                *ranges,
                _SEVERAL,
                "labels that were told before under another secret, code or strength: their epsilons add",
            ),
        )
    if isinstance(plan.privacy, GlobalDP):
        privacy, queries = plan.privacy, plan.queries(n_features)
        noise = CountNoise(privacy.epsilon_of_a_query(queries), neighbours=privacy.neighbours)
        spends = [noise.spend(queries)]
        if plan.ranges == "private-quantiles":
            spends.append(Spend(plan.quantile_epsilon))
            ranges = ()
        composed, plain = total_epsilon(spends, privacy.delta), plain_epsilon(spends)
        better = composed < plain
        what = "leaves of trees that do not look at the data" if privacy.leaves_only else "every candidate and leaf"
        return PrivacyClaim(
            mechanism=f"GlobalDP: integer Laplace noise on the counts of {what}; a row is counted in {queries} queries "
            f"of epsilon {noise.epsilon:.4g}",
            unit=ROW_UNIT,
            epsilon=composed if better else plain,
            delta=privacy.delta if better else 0.0,
            plain_epsilon=plain,
            not_protected=(*ranges, _SEVERAL, *_told_of_rows(privacy)),
        )
    return no_privacy(
        "labels and values of rows: counts of all clients together, thresholds and leaves are made of them", *ranges
    )


def _told_of_rows(privacy: GlobalDP) -> tuple[str, ...]:
    return () if privacy.neighbours == "add-remove" else ("how many rows a client has",)


def _ranges(plan: ExtraTreesPlan) -> tuple[str, ...]:
    if plan.ranges == "proposals":
        return ("values of columns: clients propose thresholds between their smallest and largest value in a node",)
    if plan.ranges == "private-quantiles":
        return (f"quantiles of columns, beyond an epsilon of {plan.quantile_epsilon:g} for one row's values",)
    return ("the declared ranges: they must be public knowledge, not come from the rows",)
