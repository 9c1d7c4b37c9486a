"""A private training on a part by class is refused by the party, whatever the software of its user says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from party_bench import ROWS, clinics, rows_order

from woodlot.exceptions import DataError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.rows.rows_orders import RowSubset
from woodlot.privacy.settings import LocalDP
from woodlot.protocols.rows.collaborative import CollaborativePlan
from woodlot.protocols.rows.extra_plan import ExtraTreesPlan
from woodlot.protocols.rows.private import PrivatePlan

HALF = 2**63
CLASSES: Any = {"classes": ("no", "yes")}
PLANS = {
    "private": PrivatePlan(**ROWS, **CLASSES, epsilon=1.0, delta=1e-6, allow_two=True),
    "labels": ExtraTreesPlan(**ROWS, **CLASSES, privacy=LocalDP(epsilon=2.0), allow_two=True),
    "leaves": CollaborativePlan(**ROWS, dp_leaf_epsilon=1.0, leaf_average="rows", allow_two=True),
    "no epsilon": CollaborativePlan(**ROWS, allow_two=True),
}


@pytest.mark.parametrize("plan", PLANS)
def test_private_trainings_on_parts_by_class_are_refused(tmp_path: Path, plan: str) -> None:
    with clinics(tmp_path) as bench:
        bench.change_policy("bank", allow_two=True)
        for by_class in (True, msgspec.UNSET):
            part = RowSubset(0, 0, HALF, by_class)
            order = msgspec.structs.replace(rows_order(bench, PLANS[plan]), subset=(part,))
            job = bench.job("bank", order.job)
            if by_class is True and plan != "no epsilon":
                with pytest.raises(DataError, match="divided by class are not learnt from with differential privacy"):
                    job.handle(bench.opening(order))
            else:
                assert isinstance(job.handle(bench.opening(order)), msg.JobOpened)
