"""Rounds do not depend on the number of trees, and bytes are those of docs/protocol/vertical.md."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import make_classification, make_regression

from woodlot import FederatedForestClassifier, FederatedForestRegressor, Federation

HEADER = 70
"""Bytes of a message besides its arrays, on average."""
Forest = FederatedForestClassifier | FederatedForestRegressor


def make(n: int, p: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    if n_classes == 0:
        X, y = make_regression(n, p, noise=10.0, random_state=0)
    else:
        X, y = make_classification(
            n, p, n_informative=p - 1, n_redundant=0, n_classes=n_classes, flip_y=0.2, random_state=0
        )
    return X.astype(np.float32), y


def depths(right: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Depth of every node of a forest in preorder."""
    depth = np.zeros(len(right), np.int64)
    for i in np.flatnonzero(right >= 0):
        depth[i + 1] = depth[right[i]] = depth[i] + 1
    return depth


def predicted_bytes(model: Forest, X: np.ndarray, weights: np.ndarray | None, batch: int) -> tuple[float, int]:
    """``B + 70 bytes per message``, and the number of rounds, from the forest: the symbols of the document."""
    forest = model.forest_.coordinator
    structure, leaves = forest.structure, forest.leaves
    n, T = len(X), structure.n_trees
    columns = np.bincount(forest.feature_party, minlength=len(forest.parties))
    M, m, f, a = len(forest.parties), int(1 + (columns[1:] > 0).sum()), int(columns.sum()), int((columns > 0).sum())
    c = 8 if not forest.classes else 1 if len(forest.classes) <= 256 else 2
    w = 0 if weights is None else next(b for b in (1, 2, 4) if weights.max() < 256**b)
    k = g = 1
    depth = depths(structure.right, structure.offset)
    limit = model.max_depth
    inner = structure.right >= 0
    N = int((depth < limit).sum()) if limit else structure.n_nodes
    O = int(inner.sum())  # nearly every open node is split
    A = a * O
    L, E = structure.n_leaves, len(leaves.output)

    leaf_depth = depth[~inner]
    leaf = model.combine().apply(X)
    R = 0
    for tree in range(T):
        drawn = forest.sampling.counts(tree, n) > 0
        R += int(leaf_depth[leaf[drawn, tree]].sum())
    heaviest = (leaves.value * np.repeat(leaves.weight, np.diff(leaves.start))).max() if forest.classes else None
    heaviest = leaves.weight.max() if heaviest is None else heaviest
    v = next(b for b in (1, 2, 4) if heaviest < 256**b)

    payload = 8 * f + (m + 1) * (c + w) * n
    payload += m * k * N + (a * (8 + g) + 8) * O + N / 8 + 4 * T
    payload += (m * O + A) / 8 + m * R / 8
    payload += L + E * (1 + v) + (0 if forest.classes else 8 * E)

    messages, rounds = 2 * M + 2 + 2 * m, 3
    tree = np.repeat(np.arange(T), np.diff(structure.offset))
    for first in range(0, T, batch):
        inside = (tree >= first) & (tree < first + batch)
        D = int(depth[inside].max())
        at_limit = limit is not None and limit == D
        messages += 2 * m * (D + 1 if at_limit else D + 2)
        messages += 2 * len(set(zip(depth[inside & inner], forest.owner[inside & inner], strict=True)))
        rounds += 2 * D + 1 if at_limit else 2 * D + 2
    assert O > 10
    return payload + HEADER * messages, rounds


def dealing(*counts: int) -> dict[str, list[int]]:
    """So many columns for each party, one after the other."""
    ends = np.cumsum(counts)
    return {f"p{i}": list(range(end - count, end)) for i, (count, end) in enumerate(zip(counts, ends, strict=True))}


CASES: dict[str, tuple[int, tuple[int, ...], int, int, dict[str, Any]]] = {
    # rows, columns of each party, classes, trees in a batch, parameters
    "depth 6": (3000, (6, 4), 2, 20, {"max_depth": 6, "n_estimators": 20}),
    "unlimited": (2000, (6, 4), 2, 10, {"n_estimators": 10}),
    "batches": (2000, (6, 4), 2, 4, {"max_depth": 6, "n_estimators": 12}),
    "ten classes, a party without columns": (2000, (3, 0, 4), 10, 10, {"n_estimators": 10}),
    "regression": (2000, (3, 3, 4), 0, 10, {"max_depth": 8, "n_estimators": 10}),
    "the label holder has no columns": (1500, (0, 5), 2, 10, {"max_depth": 4, "n_estimators": 10}),
    "weights": (1500, (4, 4), 2, 10, {"bootstrap": False, "n_estimators": 10, "max_features": 2}),
    "five parties": (1500, (2, 2, 2, 2, 2), 3, 15, {"n_estimators": 15, "max_depth": 7}),
}


@pytest.mark.parametrize("case", CASES)
def test_bytes_and_rounds_of_a_training(case: str) -> None:
    n, counts, n_classes, batch, params = CASES[case]
    X, y = make(n, sum(counts), n_classes)
    weights = np.random.default_rng(0).integers(1, 900, n) if case == "weights" else None
    kind = FederatedForestRegressor if n_classes == 0 else FederatedForestClassifier
    model = kind(random_state=0, parties=dealing(*counts), memory_limit=batch * n * 8, **params)
    model.fit(X, y, sample_weight=weights)
    expected, rounds = predicted_bytes(model, X, weights, batch)
    measured = model.cost_.bytes_sent + model.cost_.bytes_received
    assert model.cost_.rounds == rounds
    assert measured == pytest.approx(expected, rel=0.1)
    assert sum(model.cost_.bytes_by_party.values()) == measured


def test_rounds_do_not_depend_on_the_number_of_trees() -> None:
    X, y = make(1000, 8, 2)
    rounds = set()
    for n_trees in (1, 10, 60):
        model = FederatedForestClassifier(n_trees, random_state=0, max_depth=5, bootstrap=False).fit(X, y)
        assert depths(*structure_of(model)).max() == 5
        rounds.add(model.cost_.rounds)
    assert rounds == {2 * 5 + 4}


def structure_of(model: Forest) -> tuple[np.ndarray, np.ndarray]:
    structure = model.forest_.coordinator.structure
    return structure.right, structure.offset


@pytest.mark.parametrize("n_parties", [1, 3, 6])
@pytest.mark.parametrize(
    "params",
    [{}, {"max_depth": 3}, {"max_leaf_nodes": 20}, {"feature_sampling": "tree"}, {"min_impurity_decrease": 0.01}],
    ids=str,
)
def test_at_most_two_rounds_per_level_and_five(params: dict[str, Any], n_parties: int) -> None:
    X, y = make(400, 6, 2)
    model = FederatedForestClassifier(25, random_state=0, parties=n_parties, **params).fit(X, y)
    grown = int(depths(*structure_of(model)).max())
    # levels that max_leaf_nodes has pruned away have been grown all the same
    levels = sum(row.count for row in model.disclosure_ if row.kind == "GrowLevel" and row.receiver == "party-1")
    assert model.cost_.rounds <= 2 * max(grown, levels) + 5
    if "max_leaf_nodes" not in params:
        assert levels <= grown


def test_out_of_bag_costs_two_rounds() -> None:
    X, y = make(400, 6, 2)
    plain = FederatedForestClassifier(30, random_state=0).fit(X, y).cost_.rounds
    assert FederatedForestClassifier(30, random_state=0, oob_score=True).fit(X, y).cost_.rounds == plain + 2


# --- prediction ---


def test_bytes_and_rounds_of_a_prediction() -> None:
    n, n_parties = 1000, 2
    X, y = make(n, 10, 3)
    model = FederatedForestClassifier(20, random_state=0, parties=n_parties).fit(X, y)
    forest = model.forest_.coordinator
    received = {}
    for wire in ("decisions", "leaves", "ranks"):
        model.predict(X, method="one-round", wire=wire)
        assert model.prediction_cost_.rounds == 1
        received[wire] = model.prediction_cost_.bytes_received
        assert model.prediction_cost_.bytes_sent < 100 * n_parties
    expected = n_parties * 8 * -(-n // 64) * forest.structure.n_leaves
    assert received["leaves"] == pytest.approx(expected, abs=75 * n_parties)
    assert received["decisions"] * 8 <= received["leaves"]
    ranks = 0
    for part in model.forest_.parts.values():
        thresholds = [len(np.unique(part.splits.threshold[part.splits.feature == c])) for c in range(len(part.names))]
        used = sum(t > 0 for t in thresholds)
        ranks += 19 * len(part.splits.node) + 8 + 4 * used
        ranks += n * sum(1 if t <= 254 else 2 for t in thresholds if t > 0)
    assert received["ranks"] == pytest.approx(ranks, rel=0.1)

    model.predict(X, method="classical")
    path = depths(*structure_of(model))[forest.structure.right < 0][model.combine().apply(X)]
    questions = int(path.sum())
    cost = model.prediction_cost_
    assert cost.rounds == path.max()
    assert cost.bytes_sent == pytest.approx(8 * questions, rel=0.1)
    assert cost.bytes_received == pytest.approx(questions / 8, rel=0.1, abs=75 * n_parties * cost.rounds)


def test_a_party_that_lacks_rows_tells_so_in_a_bit_per_row() -> None:
    import pandas as pd

    X, y = make(800, 6, 2)
    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(6)]).assign(row=np.arange(800))
    tables = {"a": frame[["row", "c0", "c1", "c2"]].assign(y=y), "b": frame[["row", "c3", "c4", "c5"]]}
    model = FederatedForestClassifier(5, random_state=0, max_depth=3)
    model.fit(Federation.local(tables, id="row"), "a.y")
    model.predict(Federation.local(tables, id="row", join="outer"))
    whole = model.prediction_cost_.bytes_by_party
    fewer = {"a": tables["a"], "b": tables["b"].iloc[::2]}
    with pytest.warns(UserWarning, match="without all parties"):
        model.predict(Federation.local(fewer, id="row", join="outer"))
    some = model.prediction_cost_.bytes_by_party
    assert some["a"] == whole["a"]
    assert some["b"] <= whole["b"] + 800 // 8 + 16
