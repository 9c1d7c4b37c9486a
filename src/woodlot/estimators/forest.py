"""Federated Forest as scikit-learn estimators: they validate, and delegate to a federation."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from woodlot.data.tables import Table, read_table
from woodlot.estimators.checks import check_class_weight, check_parameters, check_weights, require
from woodlot.estimators.complete import CompleteForest
from woodlot.estimators.dealing import deal_columns
from woodlot.estimators.progress import progress_bar
from woodlot.exceptions import DataError, ModelFileError
from woodlot.federation import Federation, GrownForest
from woodlot.protocols.messages.vertical import Wire
from woodlot.protocols.vertical.files import load_party, save_parts
from woodlot.protocols.vertical.plan import DEFAULT_MEMORY, ForestPlan
from woodlot.protocols.vertical.predict import predict_in_one_round, predict_node_by_node
from woodlot.protocols.vertical.target import Target
from woodlot.runtime.audit import Cost, Disclosures, Ledger
from woodlot.trees.parallel import effective_jobs

Method = Literal["local", "one-round", "classical"]


class UncertainPredictionWarning(UserWarning):
    """Some rows followed both branches somewhere, because a party or its row was missing."""


class _FederatedForest(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share."""

    _criteria: tuple[str, ...]

    # --- fitting ---

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Grow the forest.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            One table, whose columns are dealt to simulated ``parties``; or a federation of parties.
        y : array-like or str
            Labels; on a federation, where they are: ``"party.column"``.
        sample_weight : array-like or str, optional
            Weight of each row; on a federation, a column of the label holder: ``"party.column"``.

        Returns
        -------
        self
        """
        check_parameters(self.get_params(deep=False), self._criteria)
        if isinstance(X, Federation):
            return self._fit_federation(X, y, sample_weight)
        return self._fit_table(X, y, sample_weight)

    def _fit_table(self, X: Any, y: Any, sample_weight: Any) -> Self:
        if y is None:
            # scikit-learn's own words for a missing y
            validate_data(self, X, y, reset=False)
        table, y = self._validate(X, y)
        weights = check_weights(sample_weight, X, table.n_rows)
        target = self._make_target(y, weights)
        dealing = deal_columns(table, self.parties)  # type: ignore[attr-defined]
        federation = Federation.dealt(table, dealing)
        holder = next(iter(dealing))
        self._grow(federation, holder, target, {})
        self._names = table.names
        self._dealing: dict[str, list[str]] | None = dealing
        self._complete: CompleteForest | None = None
        return self

    def _validate(self, X: Any, y: Any) -> tuple[Table, NDArray[Any]]:
        """scikit-learn's checks for plain arrays; our own reader for tables, which may hold categories."""
        numeric_y = self._estimator_kind == "regressor"  # type: ignore[attr-defined]
        if _is_frame(X):
            validate_data(self, X, skip_check_array=True)
            table = read_table(X)
            if table.n_rows == 0:
                raise DataError("Found array with 0 sample(s) while a minimum of 1 is required: X has no rows")
            if not table.names:
                raise DataError("Found array with 0 feature(s) while a minimum of 1 is required: X has no columns")
            y = validate_data(self, y=y, y_numeric=numeric_y, multi_output=False)
            if len(y) != table.n_rows:
                raise ValueError(
                    f"Found input variables with inconsistent numbers of samples: {[table.n_rows, len(y)]}"
                )
            return table, y
        X, y = validate_data(
            self, X, y, dtype=np.float32, ensure_all_finite="allow-nan", y_numeric=numeric_y, multi_output=False
        )
        return read_table(X), y

    def _fit_federation(self, federation: Federation, y: Any, sample_weight: Any) -> Self:
        if not isinstance(y, str):
            raise DataError("on a federation y names the labels: 'party.column', such as y='bank.default'")
        holder, column = federation.locate(y)
        hidden = {column}
        weights = None
        if sample_weight is not None:
            weight_party, weight_column = federation.locate(sample_weight)
            if weight_party != holder:
                raise DataError(f"weights must be at the label holder {holder}, not at {weight_party}")
            weights = check_weights(federation.labels(sample_weight).astype(np.float64), None, federation.n_rows)
            hidden.add(weight_column)
        target = self._make_target(self._clean_labels(federation.labels(y)), weights)
        self._grow(federation, holder, target, {holder: sorted(hidden)})
        self.n_features_in_ = len(self.forest_.coordinator.feature_keys)
        self._dealing = None
        self._names = ()
        self._label = y
        self._complete = None
        return self

    def _grow(
        self, federation: Federation, holder: str, target: Target, hidden: Mapping[str, Sequence[str]]
    ) -> None:
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))  # type: ignore[attr-defined]
        plan = self._plan(seed)
        with progress_bar(self.verbose, "growing trees") as show:  # type: ignore[attr-defined]
            forest, ledger = federation.fit(
                plan,
                holder,
                target,
                not_features=hidden,
                n_jobs=effective_jobs(self.n_jobs),  # type: ignore[attr-defined]
                on_progress=show,
            )
        self._set_fitted(forest, ledger)

    def _set_fitted(self, forest: GrownForest, ledger: Ledger | None) -> None:
        self.forest_ = forest
        if ledger is not None:
            self.disclosure_: Disclosures = ledger.disclosure()
            self.cost_: Cost = ledger.cost()
        if forest.oob_score is not None:
            self.oob_score_ = forest.oob_score

    def _plan(self, seed: int) -> ForestPlan:
        p = self.get_params(deep=False)
        return ForestPlan(
            task="classes" if self._estimator_kind == "classifier" else "targets",  # type: ignore[attr-defined]
            n_estimators=int(p["n_estimators"]),
            entropy=p["criterion"] in ("entropy", "log_loss"),
            max_depth=None if p["max_depth"] is None else int(p["max_depth"]),
            min_samples_split=_number(p["min_samples_split"]),
            min_samples_leaf=_number(p["min_samples_leaf"]),
            min_weight_fraction_leaf=float(p["min_weight_fraction_leaf"]),
            max_features=p["max_features"]
            if p["max_features"] is None or isinstance(p["max_features"], str)
            else _number(p["max_features"]),
            max_leaf_nodes=None if p["max_leaf_nodes"] is None else int(p["max_leaf_nodes"]),
            min_impurity_decrease=float(p["min_impurity_decrease"]),
            bootstrap=bool(p["bootstrap"]),
            max_samples=None if p["max_samples"] is None else _number(p["max_samples"]),
            class_weight=_class_weight(p.get("class_weight")),
            feature_sampling=p["feature_sampling"],
            max_bins=None if p["max_bins"] is None else int(p["max_bins"]),
            out_of_bag=bool(p["oob_score"]),
            seed=seed,
            memory_limit=int(p["memory_limit"] or DEFAULT_MEMORY),
        )

    # --- predicting ---

    def _outputs(
        self, X: Any, method: Method | None, wire: Wire, shuffled: tuple[int, int] | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Mean answers of the trees, and which rows are uncertain."""
        check_is_fitted(self, "forest_")
        require(method in (None, "local", "one-round", "classical"), "method", method, "'one-round' or 'classical'")
        require(wire in ("decisions", "leaves", "ranks"), "wire", wire, "'decisions', 'leaves' or 'ranks'")
        n_jobs = effective_jobs(self.n_jobs)  # type: ignore[attr-defined]
        vote = self.voting  # type: ignore[attr-defined]
        forest = self.forest_.coordinator
        if isinstance(X, Federation):
            if method == "local":
                raise ValueError("method='local' needs all columns in one table; use 'one-round' on a federation")
            federation, chosen = X, method or "one-round"
        else:
            table = self._validate_for_prediction(X)
            chosen = method or "local"
            if chosen == "local":
                return self.combine().outputs(table, vote, n_jobs), np.zeros(table.n_rows, bool)
            if self._dealing is None:
                raise ValueError("this model was grown on a federation; predict on a federation, or combine() its parts")
            federation = Federation.dealt(table, self._dealing)
        present = [p for p in federation.parties if p in self.forest_.parts]
        if chosen == "classical":
            protocol = predict_node_by_node(forest, present, federation.n_rows, vote)
        else:
            protocol = predict_in_one_round(forest, present, federation.n_rows, wire, vote, n_jobs, shuffled)
        (outputs, uncertain), ledger = federation.ask(protocol, self.forest_.parts, n_jobs=n_jobs)
        self.prediction_cost_ = ledger.cost()
        if uncertain.any():
            warnings.warn(
                f"{int(uncertain.sum())} of {len(uncertain)} rows were predicted without all parties: they followed both "
                "branches where the answer was missing",
                UncertainPredictionWarning,
                stacklevel=3,
            )
        return outputs, uncertain

    def _validate_for_prediction(self, X: Any) -> Table:
        if self._dealing is None:
            return read_table(X)
        if _is_frame(X):
            validate_data(self, X, reset=False, skip_check_array=True)
            return read_table(X)
        X = validate_data(self, X, reset=False, dtype=np.float32, ensure_all_finite="allow-nan")
        table = read_table(X)
        # a plain array for a model fitted on named columns: scikit-learn has warned, positions count
        return Table(self._names, table.columns, table.n_rows)

    def apply(self, X: Any) -> NDArray[np.int32]:
        """Leaf of every row in every tree, numbered from 0 in each tree's preorder of nodes."""
        complete = self.combine()
        leaf = complete.apply(self._validate_for_prediction(X), effective_jobs(self.n_jobs))  # type: ignore[attr-defined]
        structure = self.forest_.coordinator.structure
        node = np.flatnonzero(structure.right < 0)[leaf]
        return np.asarray(node - structure.offset[:-1], dtype=np.int32)

    def permutation_importance(
        self, X: Any, y: Any = None, *, n_repeats: int = 5, random_state: int | None = None
    ) -> Bunch:
        """How much the score falls when a feature's values are shuffled among the rows, by its own party.

        Returns
        -------
        Bunch
            ``importances`` of shape (n_features, n_repeats), their ``importances_mean`` and ``importances_std``;
            features in the order of ``feature_importances_``.
        """
        check_is_fitted(self, "forest_")
        if not isinstance(X, Federation):
            dealing = self._dealing
            if dealing is None:
                raise ValueError("this model was grown on a federation; give a federation")
            labels = y
            federation = Federation.dealt(self._validate_for_prediction(X), dealing)
        else:
            federation, labels = X, X.labels(y or self._label)
        rng = check_random_state(random_state)
        baseline = self._score_outputs(self._outputs(federation, "one-round", "decisions")[0], labels)
        n_features = len(self.forest_.coordinator.feature_keys)
        falls = np.empty((n_features, n_repeats))
        for feature in range(n_features):
            for repeat in range(n_repeats):
                seed = int(rng.randint(np.iinfo(np.int32).max))
                outputs, _ = self._outputs(federation, "one-round", "decisions", (feature, seed))
                falls[feature, repeat] = baseline - self._score_outputs(outputs, labels)
        falls = falls[self._feature_order()]
        return Bunch(importances=falls, importances_mean=falls.mean(axis=1), importances_std=falls.std(axis=1))

    def _feature_order(self) -> NDArray[np.int64]:
        """Position among all parties' features of each column of X; the parties' own order on a federation."""
        if self._dealing is None:
            return np.arange(len(self.forest_.coordinator.feature_keys))
        dealt = [name for columns in self._dealing.values() for name in columns]
        position = {name: i for i, name in enumerate(dealt)}
        return np.array([position[name] for name in self._names], np.int64)

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Mean decrease of impurity, one per column of X; on a federation party after party, as ``importance_owners_``."""
        check_is_fitted(self, "forest_")
        return self.forest_.coordinator.importances()[self._feature_order()]

    @property
    def importance_owners_(self) -> NDArray[np.str_]:
        """The party behind each entry of ``feature_importances_``."""
        check_is_fitted(self, "forest_")
        forest = self.forest_.coordinator
        return np.array(forest.parties)[forest.feature_party][self._feature_order()]

    @property
    def estimators_(self) -> list[Any]:
        """The trees as scikit-learn's, where all parts are at hand."""
        if "forest_" not in vars(self):
            raise AttributeError("estimators_")
        trees: list[Any] = self.combine().to_sklearn().estimators_
        return trees

    # --- the parts ---

    def combine(self, folders: Sequence[str | os.PathLike[str]] | None = None) -> CompleteForest:
        """The complete model, from the parts at hand and those in ``folders`` that the parties hand over.

        Parameters
        ----------
        folders : sequence of paths, optional
            Party folders that ``save`` has written.
        """
        check_is_fitted(self, "forest_")
        parts = dict(self.forest_.parts)
        for folder in folders or ():
            name, part = load_party(folder, self.forest_.coordinator)
            parts[name] = part
        if folders or self._complete is None:
            complete = CompleteForest(self.forest_.coordinator, parts, self._names or None)
            if folders:
                return complete
            self._complete = complete
        return self._complete

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model: one folder for the coordinator and one for each party, none with anything of another."""
        check_is_fitted(self, "forest_")
        if not all(isinstance(v, str | int | float | bool | None | dict | list | tuple) for v in self.get_params().values()):
            raise ModelFileError("only models whose parameters are plain values can be saved; use an int random_state")
        extra = {
            "estimator": type(self).__name__,
            "params": self.get_params(deep=False),
            "names": list(self._names),
            "named": hasattr(self, "feature_names_in_"),
            "dealing": self._dealing,
            "label": getattr(self, "_label", None),
            "residuals": self.forest_.residuals.tolist(),
            "oob_score": self.forest_.oob_score,
        }
        save_parts(folder, self.forest_.coordinator, self.forest_.parts, extra)

    def _restore(self, forest: GrownForest, extra: Mapping[str, Any]) -> None:
        self._set_fitted(forest, None)
        self._names = tuple(extra["names"])
        self._dealing = extra["dealing"]
        self._complete = None
        self._label = extra["label"]
        self.n_features_in_ = len(forest.coordinator.feature_keys)
        if extra["named"]:
            self.feature_names_in_ = np.array(self._names, dtype=object)

    def _score_outputs(self, outputs: NDArray[np.float64], y: Any) -> float:
        raise TypeError("a forest scores as a classifier or a regressor")

    def _make_target(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> Target:
        raise TypeError("a forest learns as a classifier or a regressor")

    def _clean_labels(self, y: NDArray[Any]) -> NDArray[Any]:
        return y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class FederatedForestClassifier(ClassifierMixin, _FederatedForest):  # type: ignore[misc]
    """Federated Forest for classification.

    A random forest over columns that lie at different organisations, equal to the bit to the forest grown on all
    columns in one place.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    parties : int or mapping, default=2
        To whom the columns of X are dealt: a number of simulated parties, or party name -> columns. The forest does not
        depend on it. Not used on a federation.
    criterion : {"gini", "entropy", "log_loss"}, default="gini"
        What a split improves.
    max_depth, min_samples_split, min_samples_leaf, min_weight_fraction_leaf, max_leaf_nodes, min_impurity_decrease
        When a node is not split further, as in scikit-learn.
    max_features : int, float, {"sqrt", "log2"} or None, default="sqrt"
        Features tried at each node (or for each tree, see ``feature_sampling``).
    bootstrap, max_samples
        Rows drawn for each tree, as in scikit-learn: weighted rows are drawn in proportion to their weight.
    class_weight : mapping, {"balanced", "balanced_subsample"} or None
        Weights of the classes.
    oob_score : bool, default=False
        Score the forest on the rows that its trees have not seen.
    feature_sampling : {"node", "tree"}, default="node"
        Draw the features to try anew at every node, or once per tree as in the Federated Forest paper.
    labels : {"shared"}, default="shared"
        How the label holder lets the others learn: encoded labels go to every party, as in the paper.
    max_bins : int or None, default=None
        None keeps every distinct value (exact); a number bins each numeric column by quantiles.
    voting : {"soft", "majority"}, default="soft"
        Mean of the trees' probabilities, or one vote per tree.
    memory_limit : int or None, default=None
        Bytes that a party may use for the trees in flight (default 2 GiB); the forest does not depend on it.
    n_jobs : int or None, default=None
        Threads.
    random_state : int, RandomState or None
        The same number gives the same forest, whatever the parties, threads and drivers.
    verbose : int, default=0
        1 shows progress.

    Attributes
    ----------
    classes_ : array
        The classes.
    feature_importances_, importance_owners_ : array
        Mean decrease of impurity, and whose feature it is.
    oob_score_, oob_decision_function_
        With ``oob_score=True``.
    disclosure_ : Disclosures
        Who saw what during training.
    cost_ : Cost
        Rounds, bytes and seconds of the training.
    """

    _estimator_kind = "classifier"
    _criteria = ("gini", "entropy", "log_loss")

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
        bootstrap: bool = True,
        oob_score: bool = False,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        class_weight: Any = None,
        max_samples: int | float | None = None,
        feature_sampling: str = "node",
        labels: str = "shared",
        max_bins: int | None = None,
        voting: str = "soft",
        memory_limit: int | None = None,
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
        self.bootstrap = bootstrap
        self.oob_score = oob_score
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.class_weight = class_weight
        self.max_samples = max_samples
        self.feature_sampling = feature_sampling
        self.labels = labels
        self.max_bins = max_bins
        self.voting = voting
        self.memory_limit = memory_limit

    def _make_target(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> Target:
        check_class_weight(self.class_weight)
        check_classification_targets(y)
        return Target.of_classes(y, weights)

    def _set_fitted(self, forest: GrownForest, ledger: Ledger | None) -> None:
        super()._set_fitted(forest, ledger)
        self.classes_: NDArray[Any] = np.array(forest.coordinator.classes)
        self.n_classes_ = len(self.classes_)
        if forest.oob_outputs is not None:
            self.oob_decision_function_ = forest.oob_outputs

    def predict_proba(
        self, X: Any, *, method: Method | None = None, wire: Wire = "decisions"
    ) -> NDArray[np.float64]:
        """Class probabilities: the mean of the trees' (or their share of votes).

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            Rows to predict.
        method : {"local", "one-round", "classical"}, optional
            How: with all parts in this process (default on a table), in one round over the parties (default on a
            federation), or node by node.
        wire : {"decisions", "leaves", "ranks"}
            What parties send in the one round; "ranks" is for coordinators they trust.
        """
        return self._outputs(X, method, wire)[0]

    def predict(self, X: Any, *, method: Method | None = None, wire: Wire = "decisions") -> NDArray[Any]:
        """The most probable class of each row; parameters as for ``predict_proba``."""
        outputs = self._outputs(X, method, wire)[0]
        return self.classes_[outputs.argmax(axis=1)]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy. On a federation ``y`` names the labels, by default those of the training."""
        if isinstance(X, Federation):
            y = X.labels(y or self._label)
        return float(accuracy_score(y, self.predict(X), sample_weight=sample_weight))

    def _score_outputs(self, outputs: NDArray[np.float64], y: Any) -> float:
        return float(accuracy_score(y, self.classes_[outputs.argmax(axis=1)]))


class FederatedForestRegressor(RegressorMixin, _FederatedForest):  # type: ignore[misc]
    """Federated Forest for regression.

    Parameters and attributes as for :class:`FederatedForestClassifier`, except ``criterion`` ("squared_error"),
    ``max_features`` (default 1.0), and neither ``class_weight`` nor ``classes_``. With ``oob_score=True``,
    ``predict_interval`` gives prediction intervals and ``oob_prediction_`` the out-of-bag answers.
    """

    _estimator_kind = "regressor"
    _criteria = ("squared_error",)

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
        bootstrap: bool = True,
        oob_score: bool = False,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
        max_samples: int | float | None = None,
        feature_sampling: str = "node",
        labels: str = "shared",
        max_bins: int | None = None,
        voting: str = "soft",
        memory_limit: int | None = None,
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
        self.bootstrap = bootstrap
        self.oob_score = oob_score
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
        self.max_samples = max_samples
        self.feature_sampling = feature_sampling
        self.labels = labels
        self.max_bins = max_bins
        self.voting = voting
        self.memory_limit = memory_limit

    def _make_target(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> Target:
        return Target.of_values(np.asarray(y, np.float64), weights)

    def _clean_labels(self, y: NDArray[Any]) -> NDArray[Any]:
        try:
            values = y.astype(np.float64)
        except (TypeError, ValueError):
            raise DataError("targets of a regression must be numbers; use FederatedForestClassifier for classes") from None
        if not np.isfinite(values).all():
            raise DataError("Input y contains infinity or a value too large for dtype('float64').")
        return values

    def _set_fitted(self, forest: GrownForest, ledger: Ledger | None) -> None:
        super()._set_fitted(forest, ledger)
        if forest.oob_outputs is not None:
            self.oob_prediction_ = forest.oob_outputs[:, 0]

    def predict(self, X: Any, *, method: Method | None = None, wire: Wire = "decisions") -> NDArray[np.float64]:
        """Mean of the trees' answers for each row; parameters as for the classifier's ``predict_proba``."""
        return self._outputs(X, method, wire)[0][:, 0]

    def predict_interval(
        self, X: Any, *, coverage: float = 0.9, method: Method | None = None, wire: Wire = "decisions"
    ) -> NDArray[np.float64]:
        """Prediction intervals from the quantiles of the out-of-bag residuals: (lower, upper) of each row.

        A new target falls inside with about the given probability, on average over rows like the training's.
        """
        check_is_fitted(self, "forest_")
        require(0 < coverage < 1, "coverage", coverage, "a number between 0 and 1")
        residuals = self.forest_.residuals
        if len(residuals) == 0:
            raise ValueError("prediction intervals come from out-of-bag residuals; fit with oob_score=True")
        grid = np.linspace(0, 1, len(residuals))
        low, high = np.interp([(1 - coverage) / 2, (1 + coverage) / 2], grid, residuals)
        middle = self.predict(X, method=method, wire=wire)
        return np.column_stack([middle + low, middle + high])

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R2. On a federation ``y`` names the targets, by default those of the training."""
        if isinstance(X, Federation):
            y = X.labels(y or self._label)
        return float(r2_score(y, self.predict(X), sample_weight=sample_weight))

    def _score_outputs(self, outputs: NDArray[np.float64], y: Any) -> float:
        return float(r2_score(y, outputs[:, 0]))


def _is_frame(X: Any) -> bool:
    """A table with named columns, as against an array."""
    return hasattr(X, "__arrow_c_stream__") or hasattr(X, "column_names") or hasattr(X, "iloc")


def _number(value: Any) -> int | float:
    return int(value) if isinstance(value, int | np.integer) else float(value)


def _class_weight(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return tuple((str(k), float(v)) for k, v in value.items())
