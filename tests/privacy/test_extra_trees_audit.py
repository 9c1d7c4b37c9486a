"""An attack on the whole way of a label through federated extra-trees, by a coordinator that asks what it likes.

Rows have numbers in one column, and the roots of many trees are asked for all thresholds between them: differences of
two sums are the randomised bit of a single row. It is asked again in other jobs.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import pandas as pd
import pytest
from audits import audited_epsilon

from woodlot.data.tables import read_table
from woodlot.privacy.client_budget import LocalBudget
from woodlot.privacy.settings import LocalDP
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows import extra_messages as msg
from woodlot.protocols.rows import row_messages
from woodlot.protocols.rows.extra_client import ExtraTreesClient
from woodlot.protocols.rows.extra_plan import ExtraTreesPlan
from woodlot.protocols.rows.row_client import Holdings
from woodlot.protocols.sums import sum_messages

ROWS, BLOCKS, REPORTS = 100, 40, 4
PRIVACY = LocalDP(pr=0.6)
FRAME = pd.DataFrame({"number": np.arange(ROWS, dtype=float)})
NOTHING = np.empty(0, np.uint8)
PLAN = ExtraTreesPlan(
    task="classes",
    n_estimators=ROWS,
    criterion="gini",
    max_depth=None,
    min_samples_split=2,
    min_samples_leaf=1,
    max_features=None,
    bootstrap=False,
    max_samples=None,
    max_bins=None,
    seed=0,
    knots={"number": (0.0, float(ROWS))},
    classes=("no", "yes"),
    privacy=PRIVACY,
    sums="plain",
)
ORDER = sum_messages.SumOrder(round=0, clients=("a",), length=2 * ROWS, bound=ROWS)
ASK = msg.CountSplits(
    step=0,
    fate=NOTHING,
    is_open=np.ones(ROWS, np.uint8),
    split_feature=np.empty(0, np.int32),
    split_threshold=np.empty(0),
    split_missing_left=NOTHING,
    split_sets=NOTHING,
    width=1,
    first=0,
    feature=np.zeros(ROWS, np.int32),
    threshold=np.arange(ROWS) + 0.5,
    missing_left=np.zeros(ROWS, np.uint8),
    sets=NOTHING,
    fraction_bits=0,
    order=ORDER,
)


def bits(secret: bytes, label: int, block: int) -> np.ndarray:
    """What one job tells of each row's label."""
    numbers = np.full(ROWS, label)
    own = Holdings(
        name="a",
        table=read_table(FRAME),
        target=Target(("no", "yes"), numbers, np.empty(0)),
        entropy=lambda purpose: secret,
        lasting=lambda purpose: secret,
        client_budget=LocalBudget("a"),
        row_ids=lambda: [(block * ROWS + row).to_bytes(8, "big") for row in range(ROWS)],
    )
    client = ExtraTreesClient(own, PLAN)
    client.handle(msg.DescribeColumns(task="classes", hide_rows=False))
    schema: dict[str, Any] = {"names": ("number",), "categories": (None,), "magnitude": 0, "max_bins": None}
    client.handle(row_messages.UseSchema(classes=("no", "yes"), **schema))
    client.handle(sum_messages.OpenSums(clients=("a",), mode="plain"))
    client.handle(sum_messages.StartSums(introductions={"a": sum_messages.SumIntroduction()}))
    told = client.handle(ASK)
    assert isinstance(told, sum_messages.PlainVector)
    sums = told.values[:-2].astype(np.int64).reshape(ROWS, 2)
    assert sums[:, 0].tolist() == list(range(1, ROWS + 1))
    return np.diff(sums[:, 1], prepend=0)


def attack(memoised: bool) -> float:
    """What several jobs together prove of the labels' epsilon."""
    scores = []
    for label in (1, 0):
        blocks = []
        for block in range(BLOCKS):
            secret = secrets.token_bytes(32)
            jobs = [bits(secret if memoised else secrets.token_bytes(32), label, block) for _ in range(REPORTS)]
            assert not memoised or all((one == jobs[0]).all() for one in jobs)
            blocks.append(np.sum(jobs, axis=0))
        scores.append(np.concatenate(blocks))
    return audited_epsilon(*scores, alpha=1e-6)


@pytest.mark.slow
def test_many_jobs_tell_no_more_of_a_label_than_is_claimed() -> None:
    claimed = PRIVACY.total_epsilon(("no", "yes"))
    assert 0.6 * claimed <= attack(memoised=True) <= claimed


@pytest.mark.slow
def test_with_labels_that_are_randomised_anew_they_do() -> None:
    assert attack(memoised=False) > 1.3 * PRIVACY.total_epsilon(("no", "yes"))
