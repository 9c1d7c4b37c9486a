"""Orders to parties with the same columns and rows of their own."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from woodlot.jobs.orders import BootstrapPlan, JobId, Order, RowSubsets, WholeForestId, check_left, subsets_of
from woodlot.jobs.orders import RowSubset as RowSubset
from woodlot.protocols.rows.methods import HorizontalPlan


class TrainRowsOrder(Order, frozen=True, kw_only=True, tag="train-rows"):
    """Grow a whole forest over the rows of parties that have the same columns.

    Attributes
    ----------
    plan : HorizontalPlan
        What to grow, and by which method. A party does this and nothing else.
    settings, name
        As for `TrainOrder`.
    subset : tuple of RowSubset, unset by default
        Which rows are used: those in all of these. Every party finds its own, by a key of its own.

    """

    plan: HorizontalPlan
    settings: str
    name: str = ""
    subset: RowSubsets = msgspec.UNSET

    @property
    def subsets(self) -> tuple[RowSubset, ...]:
        """Which rows are used; empty: all."""
        return subsets_of(self.subset)


class RevokeRowsOrder(TrainRowsOrder, frozen=True, kw_only=True, tag="revoke-rows"):
    """Take a party out of a forest over rows: the others grow it again, by the plan of its training.

    Attributes
    ----------
    model : str
        The job that has grown it.
    leaver : str
        Who leaves.
    level : {3}
        Exact.

    """

    model: JobId
    leaver: str
    level: Literal[3] = 3

    def check(self) -> None:
        """Refuse what cannot be; see `Order`."""
        super().check()
        check_left(self.leaver, self.parties)


class PredictRowsOrder(Order, frozen=True, kw_only=True, tag="predict-rows"):
    """Have every party predict its own rows with a whole forest, and keep the answers.

    A party whose `Part` names a label tells how good they are.

    Attributes
    ----------
    model : str
        The job that has grown it.
    forest : str
        Its fingerprint (`whole_forest_id`): a party refuses any other forest that the coordinator brings.
    score_epsilon : float or None
        The score is told with noise of this epsilon, which every party charges to its account of rows; None: exactly.

    """

    model: JobId
    forest: WholeForestId = ""
    score_epsilon: Annotated[float, msgspec.Meta(gt=0)] | None = None


class EvaluateRowsOrder(Order, frozen=True, kw_only=True, tag="evaluate-rows"):
    """Have every party rate a whole forest on its own rows; the user learns sums over all of them.

    Each party's `Part` names its label, and has a key of its own: what it adds to the sums is hidden by it from
    everybody but the user, and where the party tells figures of its own, they are sealed with it.

    Attributes
    ----------
    model : str
        The job that has grown it.
    forest : str
        Its fingerprint (`whole_forest_id`): a party refuses any other forest that the coordinator brings.
    subset : tuple of RowSubset, unset by default
        Which rows; see `TrainRowsOrder`.
    bootstrap : BootstrapPlan
        For what parties tell of their own.
    allow_two : bool
        Whether sums may be over two parties, each of whom could learn the other's numbers from the report.

    """

    model: JobId
    forest: WholeForestId = ""
    subset: RowSubsets = msgspec.UNSET
    bootstrap: BootstrapPlan = BootstrapPlan()
    allow_two: bool = False

    @property
    def subsets(self) -> tuple[RowSubset, ...]:
        """Which rows are used; empty: all."""
        return subsets_of(self.subset)
