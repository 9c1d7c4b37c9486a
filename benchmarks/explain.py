"""Explanations: Shapley values of a federated forest, beside shap's TreeExplainer on the same trees.

    python benchmarks/explain.py [--rows 1000] [--trees 100] [--depth 10]

Times are CPU seconds of one thread, after a first call that compiles. Without shap (``pip install shap``) its column is
left out. The federated time has everything: both parties' answers through the codec, and the leader's work.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import make_classification

import woodlot as wl

N_TRAIN, N_COLUMNS = 5000, 20


def cpu(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    found = call()
    return time.process_time() - start, found


def made_up(n_classes: int) -> tuple[dict[str, pd.DataFrame], pd.DataFrame]:
    """Two parties with ten columns each, the first with labels too, and all columns in one table."""
    X, y = make_classification(N_TRAIN, N_COLUMNS, n_informative=10, n_classes=max(n_classes, 2), random_state=0)
    table = pd.DataFrame(X.astype(np.float32), columns=[f"c{k}" for k in range(N_COLUMNS)])
    table.iloc[::7, 3] = np.nan
    label = y if n_classes else X[:, 0] * X[:, 1] + y
    half = N_COLUMNS // 2
    return {"bank": table.iloc[:, :half].assign(label=label), "shop": table.iloc[:, half:]}, table


def measure(n_classes: int, rows: int, trees: int, depth: int) -> dict[str, str]:
    tables, table = made_up(n_classes)
    fed = wl.Federation.local(tables, explains="columns", shares_model=True)
    kind = wl.FederatedForestClassifier if n_classes else wl.FederatedForestRegressor
    model = kind(n_estimators=trees, max_depth=depth, random_state=0, n_jobs=1).fit(fed, y="bank.label")
    some, joined = fed[:rows], table[:rows]
    model.explain(some[:64])
    model.explain(joined[:64])
    federated, found = cpu(lambda: model.explain(some))
    local, alone = cpu(lambda: model.explain(joined))
    result = {
        "task": f"{n_classes} classes" if n_classes else "regression",
        "nodes": f"{model.forest_.coordinator.structure.n_nodes:,}",
        "federated, s": f"{federated:.2f}",
        "one table, s": f"{local:.2f}",
        "MB from parties": f"{sum(row.bytes for row in model.prediction_disclosure_) / 1e6:.1f}",
    }
    np.testing.assert_allclose(found.values, alone.values, atol=1e-9)
    if importlib.util.find_spec("shap") is not None:
        import shap

        explainer = shap.TreeExplainer(model.combine().to_sklearn(), feature_perturbation="tree_path_dependent")
        values = joined.to_numpy()
        theirs, expected = cpu(lambda: explainer.shap_values(values, check_additivity=False))
        result["shap, s"] = f"{theirs:.2f}"
        result["largest difference"] = f"{np.abs(found.values - expected).max():.1e}"
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--depth", type=int, default=10)
    args = parser.parse_args()
    lines = [measure(n, args.rows, args.trees, args.depth) for n in (2, 5, 0)]
    print("| " + " | ".join(lines[0]) + " |")
    print("|" + "---|" * len(lines[0]))
    for line in lines:
        print("| " + " | ".join(line.values()) + " |")


if __name__ == "__main__":
    main()
