"""Open training with ``lead="holder"``: the coordinator relays sealed frames, the label holder has what it had.

The messages are those of a training that the coordinator leads: the same generator makes them, wherever it runs. What
goes between the leader and another party is sealed, so the coordinator sees its length; what goes between the leader
and the label holder stays inside one process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from woodlot.estimators.federated_forest import FederatedForestClassifier, FederatedForestRegressor
from woodlot.leaks.case import LABEL, Case, Finding, Tape, not_attacked
from woodlot.leaks.hidden_attacks import findings_of_lengths, plan_of_forest
from woodlot.leaks.length_attacks import lengths_of_frames, order_by_draws
from woodlot.leaks.role_views import View, coordinator_view
from woodlot.leaks.value_attacks import columns_at_coordinator
from woodlot.protocols.core.part_files import COORDINATOR

LED = "open, lead=holder"


def led_findings(case: Case, params: dict[str, Any], say: Callable[[str], None]) -> list[Finding]:
    """Train open, and attack it as if the label holder had led it.

    Parameters
    ----------
    case : Case
        The data.
    params : dict
        Parameters of the forest.
    say : callable
        Told what is being done.

    """
    say("training, lead=holder")
    tape, federation = Tape(), case.federation()
    federation.observer = tape.record
    params = {k: v for k, v in params.items() if k != "protection"}
    kind = FederatedForestClassifier if case.task == "classes" else FederatedForestRegressor
    model = kind(**params).fit(federation, y=f"{case.holder}.{LABEL}")
    say("attacking, lead=holder")
    start = time.perf_counter()
    plan = plan_of_forest(model.forest_.plan)
    sampling = plan.sampling(case.n_rows, None, 1.0)
    draws = np.stack([sampling.counts(t, case.n_rows).astype(np.int64) for t in range(plan.n_estimators)])
    order = order_by_draws(lengths_of_frames(tape.messages, case.holder), draws)
    view = coordinator_view(tape.seen_by(COORDINATOR), case.holder, case.parties)
    words = "when frames come, and how long parties take, is not recorded in one process"
    return [
        *findings_of_lengths(case, COORDINATOR, LED, order, start, labels=True, values=True),
        not_attacked(COORDINATOR, LED, "labels", "times of frames", words),
        _at_leader(case, view),
    ]


def _at_leader(case: Case, view: View) -> Finding:
    start, victim = time.perf_counter(), case.passive
    columns = columns_at_coordinator(view.splits, victim, case.matrix(victim))
    attack = "order from all partitions"
    if not columns:
        return not_attacked(case.holder, LED, "values", attack, f"no column of {victim} has five distinct values")
    best = max(columns, key=lambda one: one.correlation)
    return Finding(
        case.holder,
        LED,
        "values",
        attack,
        "mean rank correlation",
        float(np.mean([one.correlation for one in columns])),
        0.0,
        "no order",
        "as leader it has what a coordinator has: all splits by one coded column put its rows in order. "
        f"{len(columns)} columns; {list(case.columns[victim])[best.column]} is known best ({best.correlation:.3f})",
        time.perf_counter() - start,
    )
