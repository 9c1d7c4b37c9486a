"""Forests over rows whose training goes on without a client that drops out."""

from __future__ import annotations

import numbers
import warnings
from typing import Any

from woodlot.estimators.whole import WholeForest
from woodlot.federation.grown import GrownForest
from woodlot.protocols.rows.methods import HorizontalPlan
from woodlot.runtime.audit import Account


class SparingForest(WholeForest):
    """What these forests have in common: who dropped out, and when."""

    @property
    def left_(self) -> tuple[str, ...]:
        """Clients that dropped out of the training, which went on without them."""
        left: tuple[str, ...] = self.forest_.coordinator.left
        return left

    @property
    def left_at_(self) -> dict[str, int]:
        """How much of the forest each of these took part in: trees of a private forest, levels of a lossless one."""
        return dict(self.forest_.coordinator.left_at)

    def _keep(self, plan: HorizontalPlan, forest: GrownForest, account: Account) -> None:
        super()._keep(plan, forest, account)
        if self.left_:
            warnings.warn(
                f"the training went on without {', '.join(self.left_)}: the forest has their rows in part, or not at "
                "all. See left_ and left_at_",
                UserWarning,
                stacklevel=6,
            )


def sparing_fields(params: dict[str, Any]) -> dict[str, Any]:
    """``spare_after`` and ``quorum`` as plans have them."""
    after, quorum = params["spare_after"], params["quorum"]
    if quorum is not None:
        quorum = int(quorum) if isinstance(quorum, numbers.Integral) else float(quorum)
    return {"spare_after": None if after is None else float(after), "quorum": quorum}
