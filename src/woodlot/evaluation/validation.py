"""Cross-validation and search on a federation: scikit-learn's loops, on folds that are rules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import model_selection
from sklearn.base import is_classifier
from sklearn.metrics import check_scoring

from woodlot.data.wording import quoted
from woodlot.evaluation.class_metrics import HIGHER_IS_BETTER
from woodlot.evaluation.evaluated import rated, rows_of
from woodlot.evaluation.folds_elsewhere import fold_splits, metric_scorer, several_jobs
from woodlot.evaluation.target_metrics import TARGET_METRICS
from woodlot.exceptions import DataError
from woodlot.federation.interface import AnyFederation, as_federation
from woodlot.federation.label_columns import LabelColumn
from woodlot.metrics.class_numbers import RANKED

Splits = list[tuple[NDArray[np.int64], NDArray[np.int64]]]


class _Scorer:
    """Scores a fitted model by several metrics: those of reports, and scikit-learn's by their names."""

    def __init__(self, model: Any, names: Sequence[str]) -> None:
        known = HIGHER_IS_BETTER if is_classifier(model) else TARGET_METRICS
        self._own = [name for name in names if name in known]
        others = [name for name in names if name not in known]
        try:
            self._others = check_scoring(model, others) if others else None
        except ValueError as error:
            raise ValueError(f"{error} A report's own metrics are {list(known)}.") from None

    def __call__(self, model: Any, X: Any, y: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        if self._own:
            rows = rows_of(model, y, rated(model, X))
            undefined = {name: why for name, why in rows.undefined().items() if name in self._own}
            for name, why in undefined.items():
                raise DataError(f"{name} of a fold is not defined: {why}; take fewer folds, or another seed")
            scores = rows.scores()
            found = {name: scores[name] for name in self._own}
        return found if self._others is None else found | self._others(model, X, y)


def cross_validate(
    model: Any,
    federation: Any,
    y: Any = None,
    *,
    cv: Any = 5,
    scoring: Any = None,
    seed: int = 0,
    stratify: bool = False,
    n_jobs: int | None = None,
    return_train_score: bool = False,
    return_estimator: bool = False,
    return_indices: bool = False,
    features: Any = None,
    exclude: Any = None,
) -> dict[str, Any]:
    """Fit and score a model on folds of a federation's rows.

    The parties are not aligned again: each fold is a selection of rows that they have in common.

    Parameters
    ----------
    model : estimator
        What is fitted; it is not changed.
    federation : Federation
        Rows in this process, or of `woodlot.connect`. There each fold is a rule in the orders: k folds cost k trainings
        and k evaluations, and one alignment.
    y : str or array
        Where the labels are, ``"party.column"`` (or ``"column"``, where clients have different rows); or
        ``fed["party.column"]``.
    cv : int, splitter or iterable of (train, test), default=5
        A number of folds, by a hash of the rows' ids: a row stays in its fold when others are added. Or one of
        scikit-learn's splitters, or row numbers, where the rows are in this process.
    scoring : str, sequence of str or None
        Metrics of a report, such as ``"roc_auc"``, ``"log_loss"`` (as it is: lower is better) and ``"rmse"``, and
        scikit-learn's scorers by their names, such as ``"neg_log_loss"``. None: accuracy or R2.
    seed : int, default=0
        Another seed gives other folds.
    stratify : bool, default=False
        Whether each fold has its share of each class. Rows can then change folds when others are added. Between
        organisations for parties with different rows, each of which divides its own.
    n_jobs : int or None
        Processes that fit folds at the same time; between organisations, folds that are at work at the same time, by
        default 2: while one waits for the network another computes.
    return_train_score, return_estimator, return_indices : bool
        As in scikit-learn.
    features, exclude : optional
        What to learn from, as for the model's ``fit``.

    Returns
    -------
    dict of str to array
        scikit-learn's: ``test_score`` or ``test_<metric>``, ``fit_time``, ``score_time``, one value per fold.

    Examples
    --------
    >>> import pandas as pd
    >>> import woodlot as wl
    >>> bank = pd.DataFrame({"id": range(60), "income": [20, 60, 30, 70] * 15, "late": ["yes", "no"] * 30})
    >>> shop = pd.DataFrame({"id": range(60), "visits": [5, 2, 4] * 20})
    >>> fed = wl.Federation.local({"bank": bank, "shop": shop}, id="id")
    >>> model = wl.FederatedForestClassifier(n_estimators=5, random_state=0)
    >>> found = wl.cross_validate(model, fed, y="bank.late", cv=3, scoring=("roc_auc", "log_loss"))
    >>> found["test_roc_auc"].tolist()
    [1.0, 1.0, 1.0]
    """
    names = _names(scoring)
    elsewhere = as_federation(federation)
    if elsewhere is not None and elsewhere.rates_elsewhere:
        names = names or [_usual(model)]
        scored = metric_scorer(model, names)
        folds = _folds_elsewhere(elsewhere, y, cv, seed, stratify, _chosen(features, exclude))
        with several_jobs(n_jobs):
            found = model_selection.cross_validate(
                model,
                folds,
                cv=fold_splits(cv),
                scoring=scored,
                return_train_score=return_train_score,
                return_estimator=return_estimator,
                return_indices=return_indices,
                error_score="raise",
            )
        return _called(found, scoring, names)
    rows, labels, splits = _prepared(model, federation, y, cv, seed, stratify, names or ())
    found = model_selection.cross_validate(
        model,
        rows,
        labels,
        cv=splits,
        scoring=None if names is None else _Scorer(model, names),
        n_jobs=n_jobs,
        return_train_score=return_train_score,
        return_estimator=return_estimator,
        return_indices=return_indices,
        error_score="raise",
        params=_chosen(features, exclude),
    )
    return _called(found, scoring, names or [])


def _called(found: dict[str, Any], scoring: Any, names: Sequence[str]) -> dict[str, Any]:
    """Scores under scikit-learn's names: a single one is called score."""
    if scoring is None or isinstance(scoring, str):
        for part in ("test", "train"):
            for name in names:
                if f"{part}_{name}" in found:
                    found[f"{part}_score"] = found.pop(f"{part}_{name}")
    return found


def search(
    model: Any,
    grid: Any,
    federation: Any,
    y: Any = None,
    *,
    cv: Any = 5,
    scoring: str | None = None,
    n_iter: int | None = None,
    seed: int = 0,
    stratify: bool = False,
    n_jobs: int | None = None,
    refit: bool = True,
    features: Any = None,
    exclude: Any = None,
) -> Any:
    """Find the best parameters of a model by cross-validation on a federation.

    Parameters
    ----------
    model : estimator
        What is fitted; it is not changed.
    grid : mapping of str to sequence, or list of them
        Values of parameters to try; with ``n_iter`` also distributions, as in scikit-learn.
    federation, y, cv
        As for `cross_validate`.
    scoring : str, optional
        One metric, of which more is better. None: accuracy or R2.
    n_iter : int, optional
        Try so many combinations, drawn at random; by default all.
    seed : int, default=0
        Decides the folds, and the combinations that are drawn.
    stratify : bool, default=False
        As for `cross_validate`.
    n_jobs : int or None
        As for `cross_validate`.
    refit : bool, default=True
        Fit the best parameters on all rows in the end.
    features, exclude : optional
        What to learn from, as for the model's ``fit``.

    Returns
    -------
    GridSearchCV or RandomizedSearchCV
        scikit-learn's, fitted: ``best_params_``, ``best_score_``, ``best_estimator_``, ``cv_results_``.

    Examples
    --------
    >>> import pandas as pd
    >>> import woodlot as wl
    >>> bank = pd.DataFrame({"id": range(60), "income": [20, 60, 30, 70] * 15, "late": ["yes", "no"] * 30})
    >>> shop = pd.DataFrame({"id": range(60), "visits": [5, 2, 4] * 20})
    >>> fed = wl.Federation.local({"bank": bank, "shop": shop}, id="id")
    >>> model = wl.FederatedForestClassifier(n_estimators=5, random_state=0)
    >>> found = wl.search(model, {"min_samples_leaf": [1, 40]}, fed, y="bank.late", cv=3)
    >>> found.best_params_
    {'min_samples_leaf': 1}
    """
    if scoring is not None and not isinstance(scoring, str):
        raise ValueError(f"scoring must be the name of one metric, by which the best is chosen, not {scoring!r}")
    own = HIGHER_IS_BETTER if is_classifier(model) else TARGET_METRICS
    if scoring in own and own[scoring] is not True:
        raise ValueError(
            f"a search takes the largest score, and of {scoring!r} less is better; use scikit-learn's negative one, "
            f"such as {'neg_log_loss' if is_classifier(model) else 'neg_root_mean_squared_error'!r}"
        )
    elsewhere = as_federation(federation)
    if elsewhere is not None and elsewhere.rates_elsewhere:
        scored = metric_scorer(model, [scoring or _usual(model)])
        folds = _folds_elsewhere(elsewhere, y, cv, seed, stratify, _chosen(features, exclude))
        options = {
            "cv": fold_splits(cv),
            "scoring": lambda *fold: next(iter(scored(*fold).values())),
            "refit": refit,
            "error_score": "raise",
        }
        with several_jobs(n_jobs):
            return _searched(model, grid, n_iter, seed, options).fit(folds)
    rows, labels, splits = _prepared(model, federation, y, cv, seed, stratify, () if scoring is None else (scoring,))
    scorer = None if scoring is None else _OneScore(model, scoring)
    options = {"cv": splits, "scoring": scorer, "n_jobs": n_jobs, "refit": refit, "error_score": "raise"}
    return _searched(model, grid, n_iter, seed, options).fit(rows, labels, **_chosen(features, exclude))


def _searched(model: Any, grid: Any, n_iter: int | None, seed: int, options: Mapping[str, Any]) -> Any:
    if n_iter is None:
        return model_selection.GridSearchCV(model, grid, **options)
    return model_selection.RandomizedSearchCV(model, grid, n_iter=n_iter, random_state=seed, **options)


def _usual(model: Any) -> str:
    return "accuracy" if is_classifier(model) else "r2"


def _folds_elsewhere(
    federation: AnyFederation, y: Any, cv: Any, seed: int, stratify: bool, choice: Mapping[str, Any]
) -> AnyFederation:
    """The folds of rows that stay with their parties; what can be checked is checked before the first fit."""
    if y is None:
        raise DataError("say where the labels are: y='party.column'")
    if not isinstance(y, str):
        raise DataError("on a connected federation y names the labels, which only their party sees: y='party.column'")
    if not isinstance(cv, Integral) or isinstance(cv, bool):
        raise DataError(
            "on a connected federation cv is a number of folds: splitters and row numbers need the rows, which stay "
            "with their parties"
        )
    if cv < 2:
        raise ValueError(f"cv must be at least 2 folds, not {cv}")
    return federation.in_folds(y, int(cv), seed, stratify=stratify, **choice)


def _chosen(features: Any, exclude: Any) -> dict[str, Any]:
    given = {"features": features, "exclude": exclude}
    return {name: value for name, value in given.items() if value is not None}


class _OneScore:
    """One metric as scikit-learn calls a scorer."""

    def __init__(self, model: Any, name: str) -> None:
        self._name, self._scorer = name, _Scorer(model, [name])

    def __call__(self, model: Any, X: Any, y: Any) -> float:
        return self._scorer(model, X, y)[self._name]


def _names(scoring: Any) -> list[str] | None:
    if scoring is None:
        return None
    names = [scoring] if isinstance(scoring, str) else list(scoring) if isinstance(scoring, Iterable) else []
    if not names or isinstance(scoring, Mapping) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"scoring must be the name of a metric, or several of them, not {scoring!r}")
    return names


def _prepared(
    model: Any, X: Any, y: Any, cv: Any, seed: int, stratify: bool, names: Sequence[str]
) -> tuple[AnyFederation, Any, Splits]:
    """The rows, labels that know their column, and the folds: everything is checked before the first fit."""
    federation = as_federation(X)
    if federation is None:
        raise DataError("give a federation; for one table use scikit-learn's cross_validate and GridSearchCV")
    if y is None:
        raise DataError("say where the labels are: y='party.column'")
    labels = federation.scored_labels(y)
    if not isinstance(y, str):
        labels = y if isinstance(y, LabelColumn) else labels
    if isinstance(cv, Integral):
        if cv < 2:
            raise ValueError(f"cv must be at least 2 folds, not {cv}")
        folds = federation.fold_numbers(int(cv), seed, labels if stratify else None)
        splits = [(np.flatnonzero(folds != k), np.flatnonzero(folds == k)) for k in range(int(cv))]
    elif stratify:
        raise ValueError("stratify is for a number of folds; give cv a number, or leave stratify out")
    else:
        splits = list(model_selection.check_cv(cv, labels, classifier=is_classifier(model)).split(federation, labels))
    _refuse_bad_folds(splits, np.asarray(labels), is_classifier(model), names)
    return federation, labels, splits


def _refuse_bad_folds(splits: Splits, y: NDArray[Any], classes: bool, names: Sequence[str]) -> None:
    """Refuse folds without rows, that a class is missing from, or that a metric is not defined for."""
    everything = set(y.tolist()) if classes else set()
    for number, (train, test) in enumerate(splits):
        if min(len(train), len(test)) == 0:
            raise DataError(f"fold {number + 1} of {len(splits)} has no rows; take fewer folds, or another seed")
        absent = sorted(map(str, everything - set(y[train].tolist())))
        if absent:
            raise DataError(
                f"the rows that fold {number + 1} of {len(splits)} is fitted on have none of class {quoted(absent)}; "
                "take fewer folds, another seed, or stratify=True"
            )
        lacking, ranked = everything - set(y[test].tolist()), [name for name in names if name in RANKED]
        if lacking and ranked:
            raise DataError(
                f"{ranked[0]} of a fold is not defined: no row of fold {number + 1} of {len(splits)} is of class "
                f"{quoted(sorted(map(str, lacking)))}; take fewer folds, another seed, or stratify=True"
            )
