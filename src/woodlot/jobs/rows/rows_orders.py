"""Orders to parties with the same columns that speak of a part of their rows."""

from __future__ import annotations

import msgspec

from woodlot.jobs.orders import BootstrapPlan, JobId, Order, RowSubsets, subsets_of
from woodlot.jobs.orders import RowSubset as RowSubset


class EvaluateRowsOrder(Order, frozen=True, kw_only=True, tag="evaluate-rows"):
    """Have every party rate a whole forest on its own rows; the user learns sums over all of them.

    Each party's `Part` names its label, and has a key of its own: what it adds to the sums is hidden by it from
    everybody but the user, and where the party tells figures of its own, they are sealed with it.

    Attributes
    ----------
    model : str
        The job that has grown it.
    subset : tuple of RowSubset, unset by default
        Which rows; see `TrainRowsOrder`.
    bootstrap : BootstrapPlan
        For what parties tell of their own.
    allow_two : bool
        Whether sums may be over two parties, each of whom could learn the other's numbers from the report.

    """

    model: JobId
    subset: RowSubsets = msgspec.UNSET
    bootstrap: BootstrapPlan = BootstrapPlan()
    allow_two: bool = False

    @property
    def subsets(self) -> tuple[RowSubset, ...]:
        """Which rows are used; empty: all."""
        return subsets_of(self.subset)
