"""Federated logistic and linear regression (F-LR) as scikit-learn estimators."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_expit, log_softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.validation import check_is_fitted

from woodlot.data.labels import check_classes, check_targets
from woodlot.estimators.base import UncertainPredictionWarning
from woodlot.estimators.callbacks import fit_progress
from woodlot.estimators.estimator_settings import settings_of
from woodlot.estimators.fitting import ColumnsModel
from woodlot.estimators.input_tables import check_table_again, class_array, name_class_weights
from woodlot.estimators.parameters import check_parameters
from woodlot.exceptions import DataError
from woodlot.federation import AnyFederation, Labels, as_federation
from woodlot.protocols.core.forest_plan import Protection
from woodlot.protocols.core.target import Target
from woodlot.protocols.linear.linear_files import StoredLinear, save_linear
from woodlot.protocols.linear.linear_model import FittedLinear, LinearPlan, Matrix, Task
from woodlot.runtime.audit import Cost, Disclosures

__all__ = ["FederatedLinearRegression", "FederatedLogisticRegression"]


class FederatedLinear(ColumnsModel):
    """A linear model over columns that lie at different parties."""

    _task: Task
    fit_intercept: bool
    standardize: bool
    max_iter: int
    tol: float
    protection: Protection
    verbose: int

    # --- fitting ---

    def make_plan(self) -> LinearPlan:
        """What is to be fitted, of labels that only their holder sees; all parameters are checked."""
        check_parameters(self)
        return self._plan(None)

    def _learn(self, federation: AnyFederation, labels: Labels) -> None:
        plan = self._plan(labels.target)
        with fit_progress(self, "descending") as show:
            fitted, account = federation.fit_linear(plan, labels, settings=partial(settings_of, self), on_progress=show)
        self.disclosure_: Disclosures = account.disclosure
        self.cost_: Cost = account.cost
        self._set_fitted(fitted)
        if not fitted.coordinator.converged:
            warnings.warn(
                f"the descent has not converged after max_iter={self.max_iter} steps; raise max_iter, or tol",
                ConvergenceWarning,
                stacklevel=4,
            )

    def _set_fitted(self, fitted: FittedLinear) -> None:
        self.linear_ = fitted
        self.n_iter_ = fitted.coordinator.n_iter
        if self._origin.dealing is None:
            self.n_features_in_ = sum(fitted.coordinator.n_columns.values())

    # --- predicting ---

    def _scores(self, X: Any, stacklevel: int = 3) -> tuple[Matrix, NDArray[np.bool_]]:
        """One score per row, or per row and class, and which rows are uncertain; for methods that the user calls."""
        check_is_fitted(self, "linear_")
        federation = as_federation(X)
        if federation is not None:
            (scores, uncertain), account = federation.predict_linear(self.linear_)
            self.prediction_cost_: Cost = account.cost
            self.prediction_disclosure_: Disclosures = account.disclosure
        elif self._origin.dealing is None:
            raise ValueError("this model was fitted on a federation; give a federation to predict")
        else:  # all parts are in this process
            table = check_table_again(self, X, self._origin.names)
            model = self.linear_.coordinator
            shares = [self.linear_.parts[party].scores(table) for party in model.asked]
            scores = model.decide(sum(shares, np.zeros((table.n_rows, len(model.intercept)))))
            uncertain = np.zeros(table.n_rows, np.bool_)
        if uncertain.any():
            warnings.warn(
                f"{int(uncertain.sum())} of {len(uncertain)} rows were predicted without all parties: a party's "
                "average row stands in where its own was missing",
                UncertainPredictionWarning,
                stacklevel=stacklevel,
            )
        return scores, uncertain

    def _score(self, X: Any, y: Any, sample_weight: Any) -> float:
        check_is_fitted(self, "linear_")

        def here(labels: Any, weights: Any) -> float:
            return self._score_outputs(self._scores(X, stacklevel=6)[0], labels, weights)

        federation = as_federation(X)
        if federation is None:
            score = here(y, sample_weight)
        else:
            score = federation.score_linear(self.linear_, self._origin.label_column(y), sample_weight, here)
        self._seen.warn(X, "score held-out rows")
        return score

    # --- what is known about the model ---

    @property
    def coef_(self) -> NDArray[np.float64]:
        """Weights in the columns' own units, as scikit-learn has them; only where one hand holds all parts."""
        check_is_fitted(self, "linear_")
        model, origin = self.linear_.coordinator, self._origin
        if origin.dealing is None:
            raise AttributeError("coef_: the weights stay with the parties")
        by_name: dict[str, NDArray[np.float64]] = {}
        for party in model.asked:
            part = self.linear_.parts[party]
            if any(names is not None for names in part.columns.categories):
                raise AttributeError("coef_: categories have one weight each; see linear_.parts")
            own = part.weights / part.columns.scale[:, None] * model.unit
            by_name |= dict(zip(part.columns.names, own, strict=True))
        coef = np.array([by_name[name] for name in origin.names]).T
        return coef if self._task == "classes" else coef[0]

    @property
    def intercept_(self) -> NDArray[np.float64] | float:
        """Intercepts in the columns' own units; only where one hand holds all parts."""
        check_is_fitted(self, "linear_")
        model = self.linear_.coordinator
        if self._origin.dealing is None:
            raise AttributeError("intercept_: the weights stay with the parties")
        shift = np.zeros(len(model.intercept))
        for party in model.asked:
            part = self.linear_.parts[party]
            shift += (part.columns.centre / part.columns.scale) @ part.weights * model.unit
        intercept = model.intercept - shift
        return intercept if self._task == "classes" else float(intercept[0])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model: one folder for the coordinator and one for each party, none with anything of another.

        Parameters
        ----------
        folder : path
            Where; must not exist yet, or be empty.
        """
        check_is_fitted(self, "linear_")
        from woodlot.estimators.loading import linear_notes_of

        save_linear(folder, StoredLinear(self.linear_.coordinator, self.linear_.parts, linear_notes_of(self)))

    def forget(self, ids: Any, **options: Any) -> NoReturn:
        """Refuse: every weight is of all rows, and what they were fitted on is not kept; fit again without the rows.

        Parameters
        ----------
        ids : array-like
            Ids of the rows.
        **options
            As for forests.

        Examples
        --------
        >>> import woodlot as wl
        >>> model = wl.FederatedLinearRegression(parties=1).fit([[0.0], [1.0], [2.0]], [0.0, 1.0, 2.0])
        >>> model.forget([1])
        Traceback (most recent call last):
        ...
        woodlot.exceptions.DataError: linear models forget no rows: delete the rows, and fit the model again without ...
        """
        raise DataError(
            "linear models forget no rows: delete the rows, and fit the model again without them (between "
            "organisations: woodlot train, then woodlot models delete the former model)"
        )

    # --- what each does in its way ---

    @abstractmethod
    def _plan(self, target: Target | None) -> LinearPlan:
        """What is to be fitted; the labels' classes are known where the target is."""

    @abstractmethod
    def _score_outputs(self, scores: Matrix, y: Any, sample_weight: Any) -> float:
        """Accuracy or R2 of the predictions that these scores stand for."""

    def _plan_with(self, strength: float, balanced: bool, class_weight: tuple[tuple[str, float], ...]) -> LinearPlan:
        return LinearPlan(
            task=self._task,
            strength=float(strength),
            fit_intercept=bool(self.fit_intercept),
            standardize=bool(self.standardize),
            balanced=balanced,
            class_weight=class_weight,
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            protection=self.protection,
        )

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class FederatedLogisticRegression(ClassifierMixin, FederatedLinear):  # type: ignore[misc]
    """Logistic regression over columns that are held by different organisations (F-LR).

    It is multinomial from three classes on. Every party keeps its columns and its weights; partial scores and
    residuals travel. The result is that of scikit-learn's ``LogisticRegression`` on all columns in one place, each
    scaled to unit variance.

    Parameters
    ----------
    parties : int or mapping, default=2
        How the columns of X are divided: a number of simulated parties, or a mapping of party name to columns. The
        model does not depend on it. Not used on a federation.
    C : float, default=1.0
        Inverse of the strength of the L2 penalty; ``numpy.inf`` for none.
    fit_intercept : bool, default=True
        Whether scores have a constant.
    standardize : bool, default=True
        Whether every party scales its columns to unit variance first: the penalty then treats all columns alike.
    class_weight : mapping, "balanced" or None
        Weights of the classes.
    max_iter : int, default=200
        Steps at most.
    tol : float, default=1e-6
        The descent has converged when no slope of the mean loss is larger. The default brings probabilities within
        about 0.001 of the optimum; each further tenth takes about ten steps more.
    protection : {"open", "hidden"}, default="open"
        "open": the other parties, and who runs the job, see what is left of every row's label at each step, from which
        they read every label. "hidden": residuals stay with the label holder and columns with their parties; parties
        learn the slopes of their own weights, and the label holder the sum of the others' scores. The same optimum. It
        rests on no two of the label holder, the dealer (the coordinator) and another party working together.
    verbose : int, default=0
        1 shows progress.

    Attributes
    ----------
    classes_ : array
        The classes.
    coef_, intercept_ : array
        As in scikit-learn; only where X was a table, else the weights stay with the parties.
    n_iter_ : int
        Steps that were made.
    disclosure_, cost_ : Disclosures, Cost
        Who saw what during training, and rounds, bytes and seconds; ``prediction_disclosure_`` and
        ``prediction_cost_`` of the last prediction on a federation.
    linear_ : FittedLinear
        The model in its parts, by who holds them.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = wl.FederatedLogisticRegression(parties=2).fit(X[::2], y[::2])
    >>> model.predict(X[1::50]).tolist()
    [0, 1, 2]
    """

    _task = "classes"

    def __init__(
        self,
        *,
        parties: int | Mapping[str, Sequence[Any]] = 2,
        C: float = 1.0,
        fit_intercept: bool = True,
        standardize: bool = True,
        class_weight: Any = None,
        max_iter: int = 200,
        tol: float = 1e-6,
        protection: Protection = "open",
        verbose: int = 0,
    ) -> None:
        self.parties = parties
        self.C = C
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.class_weight = class_weight
        self.max_iter = max_iter
        self.tol = tol
        self.protection = protection
        self.verbose = verbose

    def _plan(self, target: Target | None) -> LinearPlan:
        named = name_class_weights(self.class_weight, None if target is None else target.classes)
        weights = named if isinstance(named, tuple) else ()
        return self._plan_with(1.0 / self.C, named == "balanced", weights)

    def _make_target(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> Target:
        y = check_classes(y)
        target = Target.of_classes(y, weights)
        self.classes_: NDArray[Any] = class_array(target.classes, y.dtype)
        return target

    def _set_fitted(self, fitted: FittedLinear) -> None:
        super()._set_fitted(fitted)
        if not hasattr(self, "classes_"):  # the labels were seen by their holder only
            self.classes_ = class_array(fitted.coordinator.classes)

    def decision_function(self, X: Any) -> NDArray[np.float64]:
        """Scores: of two classes the log-odds of the second, else one per class.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            Rows to predict; a federation's in the order of its ``ids``.

        Returns
        -------
        array of shape (n_rows,) or (n_rows, n_classes)
        """
        scores = self._scores(X)[0]
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Probability of every class; X as for ``decision_function``."""
        check_is_fitted(self, "linear_")
        return self.linear_.coordinator.probabilities(self._scores(X)[0])

    def predict_log_proba(self, X: Any) -> NDArray[np.float64]:
        """Logarithm of the probability of every class; X as for ``decision_function``."""
        scores = self._scores(X)[0]
        if scores.shape[1] == 1:
            return np.asarray(log_expit(np.column_stack([-scores, scores])))
        return np.asarray(log_softmax(scores, axis=1))

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row; X as for ``decision_function``."""
        return self._classes_of(self._scores(X)[0])

    def _classes_of(self, scores: Matrix) -> NDArray[Any]:
        best = (scores[:, 0] > 0).astype(int) if scores.shape[1] == 1 else scores.argmax(axis=1)
        chosen: NDArray[Any] = self.classes_[best]
        return chosen

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Accuracy of the predictions.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            Rows to predict.
        y : array-like or str
            Their labels; on a federation where they are, by default where those of the training were.
        sample_weight : array-like or str, optional
            Weight of each row; on a federation ``"party.column"``.

        Returns
        -------
        float
        """
        return self._score(X, y, sample_weight)

    def _score_outputs(self, scores: Matrix, y: Any, sample_weight: Any) -> float:
        return float(accuracy_score(y, self._classes_of(scores), sample_weight=sample_weight))


class FederatedLinearRegression(RegressorMixin, FederatedLinear):  # type: ignore[misc]
    """Least squares over columns that are held by different organisations (F-LR).

    The result is that of scikit-learn's ``LinearRegression`` on all columns in one place, with ``alpha`` that of
    ``Ridge`` on columns of unit variance.

    Parameters
    ----------
    alpha : float, default=0.0
        Strength of the L2 penalty.
    parties, fit_intercept, standardize, max_iter, tol, protection, verbose
        As for `FederatedLogisticRegression`; slopes are those of targets of unit variance.

    Attributes
    ----------
    coef_, intercept_, n_iter_, disclosure_, cost_, linear_
        As for `FederatedLogisticRegression`.

    Examples
    --------
    >>> import numpy as np
    >>> import woodlot as wl
    >>> X = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 1.0], [3.0, 5.0]])
    >>> model = wl.FederatedLinearRegression(parties=2).fit(X, 1 + 2 * X[:, 0] - 3 * X[:, 1])
    >>> np.round(model.coef_, 4).tolist(), round(model.intercept_, 4)
    ([2.0, -3.0], 1.0)
    """

    _task = "targets"

    def __init__(
        self,
        *,
        parties: int | Mapping[str, Sequence[Any]] = 2,
        alpha: float = 0.0,
        fit_intercept: bool = True,
        standardize: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-8,
        protection: Protection = "open",
        verbose: int = 0,
    ) -> None:
        self.parties = parties
        self.alpha = alpha
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.max_iter = max_iter
        self.tol = tol
        self.protection = protection
        self.verbose = verbose

    def _plan(self, target: Target | None) -> LinearPlan:
        return self._plan_with(self.alpha, False, ())

    def _make_target(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> Target:
        return Target.of_values(check_targets(y), weights)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Target of each row.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            Rows to predict; a federation's in the order of its ``ids``.

        Returns
        -------
        array of shape (n_rows,)
        """
        return self._scores(X)[0][:, 0]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R2 of the predictions; parameters as for the classifier's ``score``."""
        return self._score(X, y, sample_weight)

    def _score_outputs(self, scores: Matrix, y: Any, sample_weight: Any) -> float:
        return float(r2_score(y, scores[:, 0], sample_weight=sample_weight))
