"""What the experiments on Federated Extra-Trees share: the four forests, and how they are judged."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.metrics import f1_score

import woodlot as wl
from woodlot_lab.experiment import Row
from woodlot_lab.forests import Split

TREES = DEPTH = 20
"""The paper's, where it varies something else; it does not say what its Table 2 has."""
FEWEST_PROPOSAL_ROWS = 2
"""The paper's clients propose a threshold from any two rows; Woodlot's from ten rows on."""
PRIVATE_EPSILON = 1.0
"""Of a whole training of a private forest, which stands beside the paper's noise."""
CLIENTS = 2
QUERY_EPSILON = 1.0
"""Of one noisy count; the paper prints none."""
ET, FET, PROPOSALS, LDP, GDP = "ET", "FET", "FET, the paper's proposals", "FET-LDP", "FET-GDP"
PRIVATE = "private forest (Woodlot's)"

_MAKERS: dict[str, Callable[..., Any]] = {
    FET: lambda **p: wl.FederatedExtraTreesClassifier(min_samples_leaf=1, **p),
    PROPOSALS: lambda **p: wl.FederatedExtraTreesClassifier(
        min_samples_leaf=1, ranges="proposals", min_proposal_rows=FEWEST_PROPOSAL_ROWS, **p
    ),
    LDP: lambda **p: wl.FederatedExtraTreesClassifier(privacy=wl.LocalDP.preset("ldp-paper"), **p),
    GDP: lambda **p: wl.FederatedExtraTreesClassifier(privacy=wl.GlobalDP(query_epsilon=QUERY_EPSILON), **p),
}


def grow(rows: Split, method: str, seed: int, *, clients: int = CLIENTS, trees: int = TREES, depth: int = DEPTH) -> Any:
    """One of the paper's forests."""
    if method == ET:
        model: Any = ExtraTreesClassifier(trees, max_depth=depth, random_state=seed, n_jobs=1)
        return model.fit(rows.train, rows.y_train)
    if method == PRIVATE:  # number and depth of its trees are chosen by epsilon
        return private_forest(rows, PRIVATE_EPSILON, clients, seed)
    model = _MAKERS[method](
        n_estimators=trees, max_depth=depth, parties=clients, random_state=seed, n_jobs=1,
        # with one or two clients sums hide nothing from each other; that is the paper's smallest setting
        sums="secure" if clients > 2 else "plain",
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # what proposals tell is the paper's choice
        return model.fit(rows.train, rows.y_train)


def private_forest(rows: Split, epsilon: float, clients: int, seed: int) -> Any:
    """Woodlot's forest under differential privacy of rows, with its defaults."""
    kind = wl.PrivateForestClassifier if rows.classes else wl.PrivateForestRegressor
    model = kind(epsilon, parties=clients, allow_two=clients == 2, random_state=seed, n_jobs=1)
    return model.fit(rows.train, rows.y_train)


def judged(model: Any, rows: Split) -> Row:
    """Accuracy, the paper's F1 (of the first class of two, micro for more), and the true total epsilon."""
    predicted = model.predict(rows.test)
    binary = len(np.unique(rows.y_train)) == 2
    f1 = f1_score(rows.y_test, predicted, **({"pos_label": 0} if binary else {"average": "micro"}))
    found: Row = {"accuracy": float((predicted == rows.y_test).mean()), "f1": float(f1)}
    claim = getattr(model, "privacy_", None)
    if claim is not None and claim.epsilon is not None:
        found |= {"epsilon": float(claim.epsilon), "delta": float(claim.delta), "unit": claim.unit}
    return found
