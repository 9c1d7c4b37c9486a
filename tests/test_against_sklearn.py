"""Against scikit-learn, through public names only: the same trees where there is one best split, and ties elsewhere.

A fully grown scikit-learn tree breaks ties at random, so whole trees cannot be compared on data with ties. There every
inner node is taken by itself: our best split of its rows is scikit-learn's, or exactly as good.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
    make_friedman1,
    make_regression,
)
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.model_selection import train_test_split
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from woodlot import FederatedForestClassifier, FederatedForestRegressor

Theirs = DecisionTreeClassifier | DecisionTreeRegressor


def one_tree(y: np.ndarray, **params: Any) -> FederatedForestClassifier | FederatedForestRegressor:
    kind = FederatedForestClassifier if y.dtype.kind in "iu" else FederatedForestRegressor
    return kind(1, bootstrap=False, max_features=None, parties=2, random_state=0, **params)


# --- node by node, where there are ties ---


def score(target: np.ndarray, weights: np.ndarray, criterion: str) -> Any:
    """Weighted purity of one child: exact for gini and squared error, in extended precision for entropy."""
    if criterion == "squared_error":
        total = sum((int(w) * Fraction(float(t)) for w, t in zip(weights, target, strict=True)), Fraction(0))
        return total**2 / int(weights.sum())
    counts = np.bincount(target, weights=weights).astype(np.int64)
    if criterion == "gini":
        return Fraction(sum(int(c) ** 2 for c in counts), int(counts.sum()))
    inside = counts[counts > 0].astype(np.longdouble)
    return (inside * np.log2(inside)).sum() - inside.sum() * np.log2(inside.sum())


def split_score(left: np.ndarray, y: np.ndarray, w: np.ndarray, criterion: str) -> Any:
    return score(y[left], w[left], criterion) + score(y[~left], w[~left], criterion)


def compare_nodes(X: np.ndarray, y: np.ndarray, w: np.ndarray, criterion: str, **params: Any) -> dict[str, int]:
    """Walk a scikit-learn tree: at every inner node, our best split of the node's rows against its own."""
    D = DecisionTreeClassifier if y.dtype.kind in "iu" else DecisionTreeRegressor
    theirs = D(criterion=criterion, random_state=0, **params).fit(X, y, sample_weight=w)
    tree = theirs.tree_
    path = theirs.decision_path(X).tocsc()
    found = {"same": 0, "tie": 0, "other": 0}
    for node in np.flatnonzero(tree.children_left >= 0):
        rows = path.indices[path.indptr[node] : path.indptr[node + 1]]
        rows = np.sort(rows[w[rows] > 0])
        ours = one_tree(y, criterion=criterion, max_depth=1)
        ours.fit(X[rows], y[rows], sample_weight=w[rows].astype(float))
        splits = ours.combine().splits
        feature, threshold = int(splits.feature[0]), float(splits.threshold[0])
        if feature == tree.feature[node] and threshold == tree.threshold[node]:
            found["same"] += 1
            continue
        a = X[rows, tree.feature[node]] <= tree.threshold[node]
        b = X[rows, feature] <= threshold
        their_score, our_score = (split_score(side, y[rows], w[rows], criterion) for side in (a, b))
        if criterion == "entropy":
            tie = abs(our_score - their_score) <= 1e-9 * abs(their_score)
        elif criterion == "squared_error":
            # fixed-point targets: equal to the rounding of the targets themselves, never worse
            tie = abs(our_score - their_score) <= Fraction(1, 2**44) * abs(their_score)
        else:
            tie = our_score == their_score
        found["tie" if tie else "other"] += 1
    return found


def integers(n: int) -> np.ndarray:
    return np.ones(n, np.int64)


def drawn(n: int) -> np.ndarray:
    """A given bootstrap, as counts."""
    return np.bincount(np.random.default_rng(0).integers(0, n, n), minlength=n)


def classes(load: Any) -> tuple[np.ndarray, np.ndarray]:
    X, y = load(return_X_y=True)
    return X.astype(np.float32), y


def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = classes(load_digits)
    return X[:400], y[:400]


def made() -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(1500, 8, n_informative=5, flip_y=0.2, n_classes=3, random_state=0)
    return np.round(X, 3).astype(np.float32), y


CLASSIFICATION = {
    "iris": lambda: classes(load_iris),
    "wine": lambda: classes(load_wine),
    "cancer": lambda: classes(load_breast_cancer),
    "digits": digits,
    "made": made,
}


@pytest.mark.parametrize("criterion", ["gini", "entropy"])
@pytest.mark.parametrize("weights", [integers, drawn], ids=["all rows", "bootstrap"])
@pytest.mark.parametrize("data", CLASSIFICATION)
@pytest.mark.slow
def test_every_node_of_a_classification_tree(data: str, weights: Any, criterion: str) -> None:
    X, y = CLASSIFICATION[data]()
    found = compare_nodes(X, y, weights(len(y)), criterion, max_leaf_nodes=60)
    assert found["other"] == 0, found
    assert found["same"] > 0


def friedman() -> tuple[np.ndarray, np.ndarray]:
    X, y = make_friedman1(400, random_state=0)
    return X.astype(np.float32), y


def rounded() -> tuple[np.ndarray, np.ndarray]:
    X, y = make_regression(600, 6, noise=20, random_state=0)
    return np.round(X, 1).astype(np.float32), np.round(y / 20)


REGRESSION = {
    "diabetes": lambda: (load_diabetes().data.astype(np.float32), load_diabetes().target),
    "friedman": friedman,
    "rounded": rounded,
}


@pytest.mark.parametrize("weights", [integers, drawn], ids=["all rows", "bootstrap"])
@pytest.mark.parametrize("data", REGRESSION)
@pytest.mark.slow
def test_every_node_of_a_regression_tree(data: str, weights: Any) -> None:
    X, y = REGRESSION[data]()
    found = compare_nodes(X, y, weights(len(y)), "squared_error", max_leaf_nodes=60)
    assert found["other"] == 0, found
    assert found["same"] > 0


def test_the_comparison_finds_a_worse_split() -> None:
    """What is no tie is told as such: scikit-learn under another rule splits elsewhere."""
    X, y = classes(load_breast_cancer)
    theirs = DecisionTreeClassifier(max_depth=1, min_samples_leaf=200, random_state=0).fit(X, y).tree_
    side = X[:, theirs.feature[0]] <= theirs.threshold[0]
    ours = one_tree(y, max_depth=1).fit(X, y).combine().splits
    best = X[:, ours.feature[0]] <= ours.threshold[0]
    w = integers(len(y))
    assert split_score(best, y, w, "gini") > split_score(side, y, w, "gini")


# --- whole trees, where there is one best split ---


def no_ties(n: int = 400, p: int = 6, missing: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct values and continuous targets: two splits are hardly ever equally good."""
    rng = np.random.default_rng(seed)
    X = rng.permuted(np.tile(np.arange(n, dtype=np.float32), (p, 1)), axis=1).T.copy()
    y = np.sin(X[:, 0] / 60) * 3 + (X[:, 1] > n / 2) * X[:, 2] / n + rng.normal(size=n)
    X[rng.random((n, p)) < missing] = np.nan
    return X, y, rng.integers(1, 5, n).astype(float)


def in_preorder(tree: Any) -> np.ndarray:
    """Nodes of a scikit-learn tree, left before right: best-first growth numbers them otherwise."""
    order, waiting = [], [0]
    while waiting:
        node = waiting.pop()
        order.append(node)
        if tree.children_left[node] >= 0:
            waiting += [tree.children_right[node], tree.children_left[node]]
    return np.array(order)


def assert_same_tree(ours: Any, theirs: Theirs) -> None:
    """Node for node: shape, features, thresholds, sides of missing values, weights, and values."""
    a, b = ours.estimators_[0].tree_, theirs.tree_
    assert a.node_count == b.node_count
    order = in_preorder(b)
    np.testing.assert_array_equal(in_preorder(a), np.arange(a.node_count))
    np.testing.assert_array_equal(a.feature, b.feature[order])  # -2 at leaves: in preorder this is the shape too
    np.testing.assert_array_equal(a.threshold, b.threshold[order])
    inner = a.children_left >= 0
    np.testing.assert_array_equal(a.missing_go_to_left[inner], b.missing_go_to_left[order][inner])
    np.testing.assert_allclose(a.weighted_n_node_samples, b.weighted_n_node_samples[order], rtol=1e-6)
    np.testing.assert_allclose(a.value, b.value[order], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.feature_importances_, theirs.feature_importances_, rtol=1e-7, atol=1e-12)


# leaves of some size: in a node of few rows two columns often part them alike, which is a tie
RULES: dict[str, dict[str, Any]] = {
    "depth": {"max_depth": 4, "min_samples_leaf": 10},
    "samples per leaf": {"min_samples_leaf": 12},
    "share of samples per leaf": {"min_samples_leaf": 0.05},
    "samples to split": {"min_samples_split": 60, "min_samples_leaf": 10},
    "share of samples to split": {"min_samples_split": 0.2, "min_samples_leaf": 10},
    "weight per leaf": {"min_weight_fraction_leaf": 0.04},
    "decrease": {"min_impurity_decrease": 0.01, "min_samples_leaf": 10},
    "leaves": {"max_leaf_nodes": 9, "min_samples_leaf": 10},
    "two leaves": {"max_leaf_nodes": 2},
    "leaves and decrease": {"max_leaf_nodes": 20, "min_impurity_decrease": 0.005, "min_samples_leaf": 10},
    "leaves and depth": {"max_leaf_nodes": 12, "max_depth": 5, "min_samples_leaf": 10},
    "cost": {"ccp_alpha": 0.008, "min_samples_leaf": 10},
    "cost and leaves": {"ccp_alpha": 0.008, "max_leaf_nodes": 20, "min_samples_leaf": 10},
}


@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.slow), True], ids=["plain", "weighted"])
@pytest.mark.parametrize("missing", [0.0, 0.15], ids=["complete", "missing"])
@pytest.mark.parametrize("rules", RULES)
def test_whole_regression_trees(rules: str, missing: float, weighted: bool) -> None:
    for seed in range(3):
        X, y, w = no_ties(missing=missing, seed=seed)
        weights = w if weighted else None
        theirs = DecisionTreeRegressor(random_state=0, **RULES[rules]).fit(X, y, sample_weight=weights)
        assert theirs.tree_.node_count > 2
        assert_same_tree(one_tree(y, **RULES[rules]).fit(X, y, sample_weight=weights), theirs)


@pytest.mark.parametrize("criterion", ["gini", pytest.param("entropy", marks=pytest.mark.slow)])
@pytest.mark.parametrize("missing", [0.0, 0.15], ids=["complete", "missing"])
@pytest.mark.parametrize("rules", RULES)
def test_whole_classification_trees(rules: str, missing: float, criterion: str) -> None:
    """Real weights: exact ties would need equal sums of them."""
    params = RULES[rules]
    for seed in range(3):
        X, y, _ = no_ties(n=600, missing=missing, seed=seed)
        classes_of = np.digitize(y, np.quantile(y, [0.3, 0.6]))
        weights = np.random.default_rng(seed).permutation(np.arange(600)) * 997.0 + 400_000
        theirs = DecisionTreeClassifier(criterion=criterion, random_state=0, **params)
        theirs.fit(X, classes_of, sample_weight=weights)
        assert theirs.tree_.node_count > 2
        ours = one_tree(classes_of, criterion=criterion, **params).fit(X, classes_of, sample_weight=weights)
        assert_same_tree(ours, theirs)


def test_missing_values_are_really_learnt() -> None:
    X, y, _ = no_ties(missing=0.15)
    sides = one_tree(y, max_depth=6).fit(X, y).combine().splits.missing_left
    assert 0 < sides.sum() < len(sides)


def test_fully_grown_trees_fit_alike() -> None:
    """To the last leaf: nodes of two rows are ties, but what the leaves know of the training rows is not."""
    X, y, _ = no_ties()
    theirs = DecisionTreeRegressor(random_state=0).fit(X, y)
    ours = one_tree(y).fit(X, y)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=1e-12)
    assert ours.estimators_[0].tree_.node_count == theirs.tree_.node_count


# --- forests, where both draw at random ---


@pytest.mark.slow
@pytest.mark.parametrize(
    ("load", "params"),
    [(load_wine, {}), (load_breast_cancer, {}), (load_digits, {"max_depth": 8}), (load_iris, {"criterion": "entropy"})],
    ids=["wine", "cancer", "digits", "iris"],
)
def test_classification_forests_are_as_accurate(load: Any, params: dict[str, Any]) -> None:
    X, y = load(return_X_y=True)
    X, y = X[:1000], y[:1000]
    ours, theirs = [], []
    for seed in range(6):
        train, test, y_train, y_test = train_test_split(X, y, random_state=seed, test_size=0.3, stratify=y)
        a = FederatedForestClassifier(60, random_state=seed, **params).fit(train, y_train)
        b = RandomForestClassifier(60, random_state=seed, **params).fit(train, y_train)
        ours.append(a.score(test, y_test))
        theirs.append(b.score(test, y_test))
    assert_within_noise(ours, theirs)


def test_regression_forests_are_as_accurate() -> None:
    X, y = load_diabetes(return_X_y=True)
    ours, theirs = [], []
    for seed in range(6):
        train, test, y_train, y_test = train_test_split(X, y, random_state=seed, test_size=0.3)
        a = FederatedForestRegressor(60, random_state=seed, max_features=0.4).fit(train, y_train)
        b = RandomForestRegressor(60, random_state=seed, max_features=0.4).fit(train, y_train)
        ours.append(a.score(test, y_test))
        theirs.append(b.score(test, y_test))
    assert_within_noise(ours, theirs)


def assert_within_noise(ours: list[float], theirs: list[float]) -> None:
    """Paired by split and seed: the mean difference within four of its standard errors, and under two points."""
    difference = np.array(ours) - np.array(theirs)
    error = max(difference.std(ddof=1) / np.sqrt(len(difference)), 0.002)
    assert abs(difference.mean()) <= min(4 * error, 0.02), (ours, theirs)


def test_fewer_trees_or_candidates_would_be_noticed() -> None:
    """The bound can fail: a forest that always tries one feature only is told apart on digits."""
    X, y = load_digits(return_X_y=True)
    X, y = X[:1000], y[:1000]
    ours, theirs = [], []
    for seed in range(4):
        train, test, y_train, y_test = train_test_split(X, y, random_state=seed, test_size=0.3, stratify=y)
        weak = FederatedForestClassifier(60, random_state=seed, max_depth=4, max_features=1).fit(train, y_train)
        ours.append(weak.score(test, y_test))
        theirs.append(
            RandomForestClassifier(60, random_state=seed, max_depth=8).fit(train, y_train).score(test, y_test)
        )
    with pytest.raises(AssertionError):
        assert_within_noise(ours, theirs)


@pytest.mark.parametrize("classification", [True, False])
def test_ties_are_broken_evenly(classification: bool) -> None:
    """Twenty copies of one column: each wins about as many nodes as the others."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=300)
    X = np.repeat(x[:, None], 20, axis=1)
    noisy = x + rng.normal(size=300)
    y = (noisy > 0).astype(int) if classification else noisy
    kind = FederatedForestClassifier if classification else FederatedForestRegressor
    for params in ({"max_features": None}, {"max_features": 4}, {"max_features": 4, "feature_sampling": "tree"}):
        model = kind(40, random_state=1, parties=3, **params).fit(X, y)
        splits = model.combine().splits.feature
        shares = np.bincount(splits, minlength=20)
        assert shares.sum() > 1000
        if params.get("feature_sampling") == "tree":  # 4 of the 20 per tree: not independent from node to node
            assert (shares > 0).all()
        else:
            assert chisquare(shares).pvalue > 1e-3


def test_candidates_are_drawn_evenly() -> None:
    """One candidate per node: every feature, of whatever party, is tried equally often."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 12))
    y = rng.integers(0, 2, 200)
    dealing = {"a": list("0"), "b": [str(i) for i in range(1, 12)]}
    model = FederatedForestClassifier(60, random_state=2, max_features=1, parties=dealing).fit(X, y)
    splits = np.bincount(model.combine().splits.feature, minlength=12)
    assert chisquare(splits).pvalue > 1e-3
