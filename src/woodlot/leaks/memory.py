"""Labels from a model's answers for its own training rows: what any user gets who may predict them."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from woodlot.estimators.federated_forest import FederatedForestClassifier, FederatedForestRegressor
from woodlot.estimators.horizontal_forest import HorizontalForestClassifier, HorizontalForestRegressor
from woodlot.federation import Federation
from woodlot.leaks.case import LABEL, Case, Finding
from woodlot.leaks.label_attacks import rank_correlation

USER = "user"
CLIENT = "any client or user"


def memory_attacks(case: Case, params: dict[str, Any], *, columns: bool, rows: bool) -> list[Finding]:
    """Train on half of the rows, and compare answers for these with answers for the other half.

    Parameters
    ----------
    columns, rows : bool
        Whether a forest over columns is grown, and a forest over rows.

    """
    half = np.random.default_rng(2).permutation(case.n_rows) < case.n_rows // 2
    classes, found = case.task == "classes", list[Finding]()
    if columns:
        forest = (FederatedForestClassifier if classes else FederatedForestRegressor)(**params)
        start = time.perf_counter()
        forest.fit(case.subset(half).federation(), y=f"{case.holder}.{LABEL}")
        answers = [forest.predict(case.subset(chosen).federation()) for chosen in (half, ~half)]
        found.append(_memory(case, half, USER, "vertical", answers, start))
    if rows:
        taken = ("n_estimators", "max_depth", "min_samples_split", "min_samples_leaf", "max_features", "random_state")
        horizontal = {k: v for k, v in params.items() if k in taken}
        whole = (HorizontalForestClassifier if classes else HorizontalForestRegressor)(**horizontal)
        start = time.perf_counter()
        whole.fit(_by_rows(case, half), y=LABEL)
        answers = [whole.predict(_table(case, chosen)) for chosen in (half, ~half)]
        found.append(_memory(case, half, CLIENT, "horizontal, lossless", answers, start))
    return found


def _memory(
    case: Case, half: NDArray[np.bool_], role: str, setting: str, answers: list[NDArray[Any]], start: float
) -> Finding:
    """Answers for the training rows beside answers for the others."""
    value, baseline = (_marked(case, chosen, told) for chosen, told in zip((half, ~half), answers, strict=True))
    measure = "labels read" if case.task == "classes" else "rank correlation with the targets"
    return Finding(
        role,
        setting,
        "labels",
        "answers for training rows",
        measure,
        value,
        baseline,
        "answers for other rows",
        "a forest remembers its training rows: who may predict them reads their labels, whatever hid these in training",
        time.perf_counter() - start,
    )


def _marked(case: Case, chosen: NDArray[np.bool_], answers: NDArray[Any]) -> float:
    truth = case.labels[chosen]
    return float((answers == truth).mean()) if case.task == "classes" else rank_correlation(answers, truth)


def _table(case: Case, chosen: NDArray[np.bool_]) -> pa.Table:
    return pa.table({name: v for own in case.subset(chosen).columns.values() for name, v in own.items()})


def _by_rows(case: Case, chosen: NDArray[np.bool_]) -> Federation:
    table = _table(case, chosen).append_column(LABEL, pa.array(case.labels[chosen]))
    third = table.num_rows // 3
    parts = (table.slice(0, third), table.slice(third, third), table.slice(2 * third))
    clients = {f"client-{k + 1}": part for k, part in enumerate(parts)}
    return Federation.local(clients, layout="rows")
