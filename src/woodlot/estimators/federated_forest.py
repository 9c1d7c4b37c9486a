"""Federated Forest as scikit-learn estimators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.validation import check_is_fitted

from woodlot.data.labels import check_classes, check_targets
from woodlot.estimators.base import FederatedForest, Method, UncertainPredictionWarning
from woodlot.estimators.input_tables import ClassWeights, class_array, name_class_weights
from woodlot.estimators.parameters import is_real, require
from woodlot.federation import GrownForest
from woodlot.protocols.core.target import Target
from woodlot.protocols.vertical.forest_messages import Wire
from woodlot.trees.predict import Vote

__all__ = ["FederatedForestClassifier", "FederatedForestRegressor", "UncertainPredictionWarning"]


class FederatedForestClassifier(ClassifierMixin, FederatedForest):  # type: ignore[misc]
    """Federated Forest for classification.

    A random forest over columns that are held by different organisations. It is bit for bit the forest that grows on
    all columns in one place.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    parties : int or mapping, default=2
        How the columns of X are divided: a number of simulated parties, or a mapping of party name to columns. The
        forest does not depend on it. Not used on a federation.
    criterion : {"gini", "entropy", "log_loss"}, default="gini"
        Measure of the quality of a split.
    max_depth, min_samples_split, min_samples_leaf, min_weight_fraction_leaf, max_leaf_nodes, min_impurity_decrease
        When to stop splitting, as in scikit-learn.
    ccp_alpha : float, default=0.0
        Minimal cost-complexity pruning, as in scikit-learn: branches whose splits gain no more than this on average
        become leaves. Of a regression the leader then learns the scale of the targets, as with
        ``min_impurity_decrease``.
    max_features : int, float, {"sqrt", "log2"} or None, default="sqrt"
        Features tried at each node (or for each tree, see ``feature_sampling``).
    bootstrap, max_samples
        Rows drawn for each tree, as in scikit-learn: weighted rows are drawn in proportion to their weight.
    bootstrap_by : {"draw", "row"}, default="draw"
        "draw": each tree draws as many rows as ``max_samples`` says, with replacement, as in scikit-learn. "row": each
        row is drawn by itself, a number of times that has a Poisson distribution, by a hash of the seed, the tree and
        the row's id (of all it holds, where rows have no ids). Then neither the order of rows nor rows that are not
        there change a draw, which is what makes `forget` fast. In one process, with ``protection="open"`` and
        ``max_samples`` None or a share.
    class_weight : mapping, {"balanced", "balanced_subsample"} or None
        Weights of the classes.
    oob_score : bool, default=False
        Score the forest on the rows that its trees have not seen. Classes count by their share of all rows, so that
        ``class_weight``, which makes trees draw more of some classes, does not shift the score. It is NaN, with a
        warning, where every row of some class is in the sample of every tree.
    feature_sampling : {"node", "tree"}, default="node"
        Draw the features to try at every node, or once per tree as in the Federated Forest paper.
    protection : {"open", "hidden"}, default="open"
        What parties learn while trees grow. "open", the paper's exchange: which rows go left and right at every node,
        and the labels under a code that hides their names only. "hidden": no message tells it. The label
        holder and another party hold every column in two secret shares; a dealer gives them random numbers; it rests on
        no two of these three working together. Counts of rows by bin stay visible
        (docs/decisions/0022-hidden-training.md). Leaves then have at least 20 rows, ``max_bins`` is 32 and ``min_cell``
        "auto" by default; with these limits the forest is that of "open".
    max_bins : int or None, default=None
        None keeps every distinct value (exact), with hidden training it is 32; a number bins each numeric column by
        quantiles.
    min_cell : int, "auto" or None, default=None
        Bins as coarse as a node is small: in a node of m rows a column has at most ``m // min_cell`` cells, of which
        one is for missing values where the column has any. Neighbouring bins, and categories that are neighbours by
        name, are merged. Nodes of fewer than ``2 * min_cell`` rows are leaves. "auto" is 150,
        or a sixth of the rows of a table of fewer than 900, and 20 at least. None is "auto" with
        ``protection="hidden"`` and 0, for no such rule, otherwise. It needs ``max_bins``.
    voting : {"soft", "majority"}, default="soft"
        Mean of the trees' probabilities, or one vote per tree.
    memory_limit : int or None, default=None
        Bytes that a party may use for the trees that are growing (default 2 GiB); the forest does not depend on it.
    device : {"cpu", "cuda", "auto"}, default="cpu"
        Where parties in this process grow trees; the forest is the same on all. "cuda" needs a graphics card and the
        extra ``gpu``; "auto" uses the card for large tables if there is one, and the CPU otherwise. Parties elsewhere
        have a setting of their own.
    n_jobs : int or None, default=None
        Threads.
    random_state : int, RandomState or None
        The same number gives the same forest. It does not depend on parties, threads or drivers.
    verbose : int, default=0
        1 shows progress.

    Attributes
    ----------
    classes_ : array
        The classes.
    feature_importances_, importance_owners_ : array
        Mean decrease of impurity, and whose feature it is.
    oob_score_, oob_decision_function_, oob_curve_
        With ``oob_score=True``; ``oob_curve_`` has the score (``score``) of the first 1, 2, 3, 4, 6, 8, 12, ... trees
        and of all (``n_trees``), which tells whether more trees would help. A connected federation tells the scores
        and no ``oob_decision_function_``: those are predictions, and parties name who may receive them.
    disclosure_ : Disclosures
        Who saw what during training.
    cost_ : Cost
        Rounds, bytes and seconds of the training.
    prediction_disclosure_, prediction_cost_
        The same of the last prediction that parties took part in.
    forest_ : GrownForest
        The forest in its parts, by who holds them.
    estimators_ : list
        The trees as scikit-learn's, where the complete model is known.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = wl.FederatedForestClassifier(n_estimators=10, parties=2, random_state=0).fit(X[::2], y[::2])
    >>> model.predict(X[1::50]).tolist()
    [0, 1, 2]

    The forest does not depend on who holds which column:

    >>> other = wl.FederatedForestClassifier(n_estimators=10, parties=4, random_state=0).fit(X[::2], y[::2])
    >>> (other.predict_proba(X) == model.predict_proba(X)).all().item()
    True

    On a federation, name the column of the labels:

    >>> import pandas as pd
    >>> bank = pd.DataFrame({"income": [20, 60, 30, 70] * 5, "late": ["yes", "no"] * 10})
    >>> shop = pd.DataFrame({"visits": [1, 4, 2, 5] * 5})
    >>> fed = wl.Federation.local({"bank": bank, "shop": shop})
    >>> model = wl.FederatedForestClassifier(n_estimators=5, random_state=0).fit(fed, y="bank.late")
    >>> model.predict(fed)[:4].tolist()
    ['yes', 'no', 'yes', 'no']
    """

    _task = "classes"

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        parties: int | Mapping[str, Sequence[Any]] = 2,
        criterion: str = "gini",
        max_depth: int | None = None,
        min_samples_split: int | float = 2,
        min_samples_leaf: int | float = 1,
        min_weight_fraction_leaf: float = 0.0,
        max_features: int | float | str | None = "sqrt",
        max_leaf_nodes: int | None = None,
        min_impurity_decrease: float = 0.0,
        ccp_alpha: float = 0.0,
        bootstrap: bool = True,
        oob_score: bool = False,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        class_weight: Any = None,
        max_samples: int | float | None = None,
        bootstrap_by: str = "draw",
        feature_sampling: str = "node",
        protection: str = "open",
        max_bins: int | None = None,
        min_cell: int | Literal["auto"] | None = None,
        voting: str = "soft",
        memory_limit: int | None = None,
        device: str = "cpu",
    ) -> None:
        self.n_estimators = n_estimators
        self.parties = parties
        self.criterion = criterion
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.min_weight_fraction_leaf = min_weight_fraction_leaf
        self.max_features = max_features
        self.max_leaf_nodes = max_leaf_nodes
        self.min_impurity_decrease = min_impurity_decrease
        self.ccp_alpha = ccp_alpha
        self.bootstrap = bootstrap
        self.oob_score = oob_score
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.class_weight = class_weight
        self.max_samples = max_samples
        self.bootstrap_by = bootstrap_by
        self.feature_sampling = feature_sampling
        self.protection = protection
        self.max_bins = max_bins
        self.min_cell = min_cell
        self.voting = voting
        self.memory_limit = memory_limit
        self.device = device

    def _make_target(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> Target:
        y = check_classes(y)
        target = Target.of_classes(y, weights)
        self.classes_: NDArray[Any] = class_array(target.classes, y.dtype)
        return target

    def _class_weights(self, target: Target | None) -> ClassWeights:
        return name_class_weights(self.class_weight, None if target is None else target.classes)

    @property
    def _vote(self) -> Vote:
        return "majority" if self.voting == "majority" else "soft"

    def _set_forest(self, forest: GrownForest) -> None:
        super()._set_forest(forest)
        if not hasattr(self, "classes_"):  # the labels were seen by their holder only
            self.classes_ = class_array(forest.coordinator.classes)
        self.n_classes_ = len(self.classes_)
        if forest.oob_outputs is not None:
            self.oob_decision_function_ = forest.oob_outputs

    @overload
    def predict_proba(
        self,
        X: Any,
        *,
        method: Method | None = ...,
        wire: Wire = ...,
        sealed: bool = ...,
        return_uncertain: Literal[False] = ...,
    ) -> NDArray[np.float64]: ...

    @overload
    def predict_proba(
        self,
        X: Any,
        *,
        method: Method | None = ...,
        wire: Wire = ...,
        sealed: bool = ...,
        return_uncertain: Literal[True],
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]: ...

    def predict_proba(
        self,
        X: Any,
        *,
        method: Method | None = None,
        wire: Wire = "decisions",
        sealed: bool = False,
        return_uncertain: bool = False,
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Class probabilities: the mean of the trees' (or their share of votes).

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            Rows to predict; a federation's in the order of its ``ids``.
        method : {"local", "one-round", "classical"}, optional
            How: with all parts in this process (default on a table), in one round over the parties (default on a
            federation), or node by node.
        wire : {"decisions", "leaves", "ranks"}
            What parties send in the one round; "ranks" is for coordinators they trust.
        sealed : bool, default=False
            Predict under seal: the coordinator learns the leaf of each row in each tree, hence the outcomes on the way
            to it, and no others. Needs every party that splits nodes and every row; costs 8 bytes per party, row and
            leaf of the forest.
        return_uncertain : bool, default=False
            Also return which rows followed both branches somewhere, because a party or its row was missing.

        Returns
        -------
        array of shape (n_rows, n_classes), or (array, bool array of shape (n_rows,))
        """
        outputs, uncertain = self._outputs(X, method, wire, sealed)
        return (outputs, uncertain) if return_uncertain else outputs

    @overload
    def predict(
        self,
        X: Any,
        *,
        method: Method | None = ...,
        wire: Wire = ...,
        sealed: bool = ...,
        return_uncertain: Literal[False] = ...,
    ) -> NDArray[Any]: ...

    @overload
    def predict(
        self,
        X: Any,
        *,
        method: Method | None = ...,
        wire: Wire = ...,
        sealed: bool = ...,
        return_uncertain: Literal[True],
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]: ...

    def predict(
        self,
        X: Any,
        *,
        method: Method | None = None,
        wire: Wire = "decisions",
        sealed: bool = False,
        return_uncertain: bool = False,
    ) -> NDArray[Any] | tuple[NDArray[Any], NDArray[np.bool_]]:
        """The most probable class of each row; parameters as for ``predict_proba``."""
        outputs, uncertain = self._outputs(X, method, wire, sealed)
        labels = self.classes_[outputs.argmax(axis=1)]
        return (labels, uncertain) if return_uncertain else labels

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, sealed: bool = False) -> float:
        """Accuracy of the predictions.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            Rows to predict.
        y : array-like or str
            Their labels; on a federation where they are, by default where those of the training were.
        sample_weight : array-like or str, optional
            Weight of each row; on a federation ``"party.column"``.
        sealed : bool, default=False
            Predict under seal, as for ``predict``.

        Returns
        -------
        float
        """
        return self._score(X, y, sample_weight, "sealed" if sealed else None)

    def _score_outputs(self, outputs: NDArray[np.float64], y: Any, sample_weight: Any = None) -> float:
        return float(accuracy_score(y, self.classes_[outputs.argmax(axis=1)], sample_weight=sample_weight))


class FederatedForestRegressor(RegressorMixin, FederatedForest):  # type: ignore[misc]
    """Federated Forest for regression.

    Parameters and attributes as for `FederatedForestClassifier`, except ``criterion`` ("squared_error") and
    ``max_features`` (default 1.0), and without ``class_weight``, ``voting`` and ``classes_``. With ``oob_score=True``,
    ``predict_interval`` gives prediction intervals and ``oob_prediction_`` the out-of-bag answers (not on a connected
    federation).

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = wl.FederatedForestRegressor(n_estimators=30, oob_score=True, random_state=0).fit(X, y)
    >>> model.predict_interval(X[:3], coverage=0.9).shape
    (3, 2)
    """

    _task = "targets"

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        parties: int | Mapping[str, Sequence[Any]] = 2,
        criterion: str = "squared_error",
        max_depth: int | None = None,
        min_samples_split: int | float = 2,
        min_samples_leaf: int | float = 1,
        min_weight_fraction_leaf: float = 0.0,
        max_features: int | float | str | None = 1.0,
        max_leaf_nodes: int | None = None,
        min_impurity_decrease: float = 0.0,
        ccp_alpha: float = 0.0,
        bootstrap: bool = True,
        oob_score: bool = False,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        max_samples: int | float | None = None,
        bootstrap_by: str = "draw",
        feature_sampling: str = "node",
        protection: str = "open",
        max_bins: int | None = None,
        min_cell: int | Literal["auto"] | None = None,
        memory_limit: int | None = None,
        device: str = "cpu",
    ) -> None:
        self.n_estimators = n_estimators
        self.parties = parties
        self.criterion = criterion
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.min_weight_fraction_leaf = min_weight_fraction_leaf
        self.max_features = max_features
        self.max_leaf_nodes = max_leaf_nodes
        self.min_impurity_decrease = min_impurity_decrease
        self.ccp_alpha = ccp_alpha
        self.bootstrap = bootstrap
        self.oob_score = oob_score
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.max_samples = max_samples
        self.bootstrap_by = bootstrap_by
        self.feature_sampling = feature_sampling
        self.protection = protection
        self.max_bins = max_bins
        self.min_cell = min_cell
        self.memory_limit = memory_limit
        self.device = device

    def _make_target(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> Target:
        return Target.of_values(check_targets(y), weights)

    def _set_forest(self, forest: GrownForest) -> None:
        super()._set_forest(forest)
        if forest.oob_outputs is not None:
            self.oob_prediction_ = forest.oob_outputs[:, 0]

    @overload
    def predict(
        self,
        X: Any,
        *,
        method: Method | None = ...,
        wire: Wire = ...,
        sealed: bool = ...,
        return_uncertain: Literal[False] = ...,
    ) -> NDArray[np.float64]: ...

    @overload
    def predict(
        self,
        X: Any,
        *,
        method: Method | None = ...,
        wire: Wire = ...,
        sealed: bool = ...,
        return_uncertain: Literal[True],
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]: ...

    def predict(
        self,
        X: Any,
        *,
        method: Method | None = None,
        wire: Wire = "decisions",
        sealed: bool = False,
        return_uncertain: bool = False,
    ) -> NDArray[np.float64] | tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Mean of the trees' answers for each row; parameters as for the classifier's ``predict_proba``."""
        outputs, uncertain = self._outputs(X, method, wire, sealed)
        return (outputs[:, 0], uncertain) if return_uncertain else outputs[:, 0]

    def predict_interval(
        self,
        X: Any,
        *,
        coverage: float = 0.9,
        method: Method | None = None,
        wire: Wire = "decisions",
        sealed: bool = False,
    ) -> NDArray[np.float64]:
        """Prediction intervals from the quantiles of the out-of-bag residuals: (lower, upper) of each row.

        A new target falls inside with about the given probability, on average over rows like the training's.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            Rows to predict.
        coverage : float, default=0.9
            Probability that a target falls into its interval.
        method, wire, sealed
            As for ``predict``.

        Returns
        -------
        array of shape (n_rows, 2)
        """
        check_is_fitted(self, "forest_")
        require(is_real(coverage) and 0 < coverage < 1, "coverage", coverage, "a number between 0 and 1")
        residuals = self.forest_.residuals
        if len(residuals) == 0:
            raise ValueError("prediction intervals come from out-of-bag residuals; fit with oob_score=True")
        grid = np.linspace(0, 1, len(residuals))
        low, high = np.interp([(1 - coverage) / 2, (1 + coverage) / 2], grid, residuals)
        middle = self._outputs(X, method, wire, sealed)[0][:, 0]
        return np.column_stack([middle + low, middle + high])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None, *, sealed: bool = False) -> float:
        """R2 of the predictions.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            Rows to predict.
        y : array-like or str
            Their labels; on a federation where they are, by default where those of the training were.
        sample_weight : array-like or str, optional
            Weight of each row; on a federation ``"party.column"``.
        sealed : bool, default=False
            Predict under seal, as for ``predict``.

        Returns
        -------
        float
        """
        return self._score(X, y, sample_weight, "sealed" if sealed else None)

    def _score_outputs(self, outputs: NDArray[np.float64], y: Any, sample_weight: Any = None) -> float:
        return float(r2_score(y, outputs[:, 0], sample_weight=sample_weight))
