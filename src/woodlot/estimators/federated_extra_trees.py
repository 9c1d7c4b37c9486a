"""Federated extra-trees as scikit-learn estimators."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import NumericColumn
from woodlot.data.tables import Table
from woodlot.estimators.input_tables import class_array
from woodlot.estimators.parameters import is_real
from woodlot.estimators.whole import (
    PRIVATE_LEAF,
    WholeForest,
    WholeForestClassifier,
    WholeForestRegressor,
    growth_fields,
)
from woodlot.exceptions import DataError
from woodlot.federation import AnyFederation, GrownForest
from woodlot.privacy.counts import noise_of_a_count
from woodlot.privacy.settings import GlobalDP, LocalDP
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows.extra_plan import MIN_PROPOSAL_ROWS, ExtraTreesPlan
from woodlot.protocols.rows.methods import HorizontalPlan
from woodlot.runtime.audit import Account

SIMULATED = "anything from who knows random_state or has had X: fit(X, y) is a simulation"

Knots = dict[str, tuple[float, ...]]
KnownCategories = dict[str, tuple[str, ...]]


class _ExtraTrees(WholeForest):
    """What classifier and regressor share."""

    ranges: str
    declared: Any
    classes: Any
    privacy: Any
    quantile_epsilon: float
    min_proposal_rows: int
    sums: str
    allow_two: bool

    def _check_parameters(self) -> None:
        super()._check_parameters()
        declared_of(self.declared)

    def _growth_parameters(self) -> dict[str, Any]:
        params: dict[str, Any] = self.get_params(deep=False)
        return params | {"bootstrap": False, "max_samples": None, "max_bins": None}

    def _plan(self, seed: int) -> ExtraTreesPlan:
        knots, categories = declared_of(self.declared)
        return self._plan_with(seed, knots, categories, self._public_classes())

    def _plan_with(
        self, seed: int, knots: Knots, categories: KnownCategories, classes: tuple[Any, ...] | None
    ) -> ExtraTreesPlan:
        if self.ranges == "proposals":
            warnings.warn(
                "ranges='proposals' lets clients propose thresholds from their own values, which tells the range of "
                f"their rows in every node with {self.min_proposal_rows} rows or more; declare ranges instead",
                UserWarning,
                stacklevel=6,
            )
        params = self._growth_parameters()
        if params["min_samples_leaf"] is None:
            params["min_samples_leaf"] = _usual_leaf(self.privacy, classes)
        return ExtraTreesPlan(
            **growth_fields(params, self._task, seed),
            ranges=self.ranges,  # type: ignore[arg-type]
            knots=knots,
            known_categories=categories,
            classes=classes,
            privacy=self.privacy,
            quantile_epsilon=float(self.quantile_epsilon),
            min_proposal_rows=int(self.min_proposal_rows),
            sums=self.sums,  # type: ignore[arg-type]
            allow_two=bool(self.allow_two),
        )

    def _public_classes(self) -> tuple[Any, ...] | None:
        if self.classes is None:
            return None
        return Target.of_classes(np.asarray(self.classes)).classes

    def _grow(
        self,
        federation: AnyFederation,
        targets: Mapping[str, Target],
        label: str | None,
        seed: int,
        weight: str | None = None,
    ) -> None:
        knots, categories = declared_of(self.declared)
        classes = self._public_classes()
        if label is None:  # one table at hand: what is not declared is what all of it has
            knots, categories = completed_by_tables(knots, categories, federation.tables_here())
            if classes is None and self.privacy is not None:
                classes = tuple(sorted({c for target in targets.values() for c in target.classes}))
        self._grow_plan(self._plan_with(seed, knots, categories, classes), federation, targets, label)
        if label is None and self.privacy is not None:
            self.privacy_ = replace(self.privacy_, not_protected=(*self.privacy_.not_protected, SIMULATED))

    def _keep(self, plan: HorizontalPlan, forest: GrownForest, account: Account) -> None:
        super()._keep(plan, forest, account)
        self.clipped_: dict[str, int] = forest.coordinator.outside
        if self.clipped_:
            shown = ", ".join(f"{count} of {name!r}" for name, count in self.clipped_.items())
            warnings.warn(
                f"some values are not within what was declared, and count at its ends or as missing: {shown}",
                UserWarning,
                stacklevel=6,
            )

    def _notes(self) -> dict[str, Any]:
        return super()._notes() | {"clipped": self.clipped_}

    def _restore(self, notes: Mapping[str, Any]) -> None:
        self.clipped_ = dict(notes["clipped"])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = isinstance(self.privacy, GlobalDP) or self.ranges == "private-quantiles"
        return tags


class FederatedExtraTreesClassifier(_ExtraTrees, WholeForestClassifier):
    """Federated extra-trees (FET): thresholds are drawn at random, and clients only count what they do to their rows.

    At every node some columns are tried, each at one random threshold, and the best is taken. The coordinator needs
    nothing of the rows but counts by class, of all clients together. All trees grow at once, one round per level. The
    forest does not depend on who has which rows.

    With ``privacy=LocalDP(...)`` labels leave their client only as sums of randomised bits; with
    ``privacy=GlobalDP(...)`` counts have noise. ``privacy_`` says what that is worth.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    parties : int or array-like, default=3
        How the rows of X are divided: a number of simulated clients with about equal shares, or the client of each
        row. Not used on a federation.
    criterion : {"gini", "entropy", "log_loss"}, default="gini"
        Measure of the quality of a split.
    max_depth, min_samples_split
        When to stop splitting, as in scikit-learn; counts are of all clients together, as released.
    min_samples_leaf : int or None, default=None
        Rows of all clients together on both sides of a split. With 1, as in the paper, leaves tell the labels of
        single rows. None: 5; under LocalDP more, the smaller epsilon is and the more classes there are, so that the
        rows of a leaf are more than the noise on their labels.
    max_features : int, float, {"sqrt", "log2"} or None, default="sqrt"
        Columns tried at each node.
    ranges : {"declared", "proposals", "private-quantiles"}, default="declared"
        Where thresholds come from: from public ranges; from proposals of the clients, as in the paper, which tell
        values of rows; or from public ranges that are stretched where private quantiles say that the rows are.
    declared : mapping, optional
        What is public of each column: ``(low, high)``, or more points that thresholds shall lie between equally often,
        for numbers; a list of texts for categories. Values outside count as the nearest end, unknown categories as
        missing; ``clipped_`` says how many. In ``fit(X, y)``, which is a simulation, what is not declared is found in
        all of X. On a federation every column of numbers needs a range.
    classes : sequence, optional
        The public list of classes. Needed on a federation where privacy is asked for; in ``fit(X, y)`` the classes
        of y stand for it. Under ``privacy`` a row whose label is not in the list takes no part (GlobalDP), or is told
        as a class at random (LocalDP): an error would tell of one row. The client's own log says how many there are.
    privacy : LocalDP, GlobalDP or None, default=None
        What to protect, and how much.
    quantile_epsilon : float, default=1.0
        What the private quantiles of all columns cost a row together, where they are used.
    min_proposal_rows : int, default=10
        A client proposes thresholds only in nodes where it has as many rows.
    sums : {"secure", "plain"}, default="secure"
        Secure sums hide each client's numbers from the coordinator and need three clients; plain ones show them.
    allow_two : bool, default=False
        Allow secure sums over two clients, each of whom learns the other's numbers from the model.
    n_jobs : int or None, default=None
        Threads; the forest does not depend on them.
    random_state : int, RandomState or None
        The same number and rows give the same forest, except for noise on counts, which is always fresh. In
        ``fit(X, y)`` the clients' secrets follow from it too: a simulation gives no protection.
    verbose : int, default=0
        1 shows progress.

    Attributes
    ----------
    classes_ : array
        The classes: the public list, or those of all clients together.
    privacy_ : PrivacyClaim
        Epsilon, delta, whose secret is kept, and what is not protected.
    clipped_ : dict of str to int
        How many values of which columns lay outside of what was declared. Not counted under GlobalDP.
    feature_importances_ : array
        Mean decrease of impurity by what the leaves answer.
    disclosure_ : Disclosures
        Who saw what during training.
    cost_ : Cost
        Rounds, bytes and seconds of the training.
    forest_ : GrownForest
        The forest; whole, so that ``combine()``, ``to_sklearn()`` and ``estimators_`` are always there.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = wl.FederatedExtraTreesClassifier(20, privacy=wl.LocalDP(epsilon=2.0), random_state=0).fit(X, y)
    >>> model.privacy_.in_words
    'the label of one row, by this training alone: an attacker who is 50% sure becomes at most 89% sure'
    """

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        parties: Any = 3,
        criterion: str = "gini",
        max_depth: int | None = None,
        min_samples_split: int = 2,
        min_samples_leaf: int | None = None,
        max_features: int | float | str | None = "sqrt",
        ranges: str = "declared",
        declared: Mapping[Any, Any] | None = None,
        classes: Any = None,
        privacy: LocalDP | GlobalDP | None = None,
        quantile_epsilon: float = 1.0,
        min_proposal_rows: int = MIN_PROPOSAL_ROWS,
        sums: str = "secure",
        allow_two: bool = False,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_estimators = n_estimators
        self.parties = parties
        self.criterion = criterion
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.max_features = max_features
        self.ranges = ranges
        self.declared = declared
        self.classes = classes
        self.privacy = privacy
        self.quantile_epsilon = quantile_epsilon
        self.min_proposal_rows = min_proposal_rows
        self.sums = sums
        self.allow_two = allow_two
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def _check_labels(self, y: NDArray[Any]) -> NDArray[Any]:
        y = super()._check_labels(y)
        public = self._public_classes()
        if public is not None:
            unknown = sorted(set(self.classes_.tolist()) - set(public))
            if unknown:
                raise DataError(f"y has classes that are not in the public list: {unknown}; add them to classes")
            self.classes_ = class_array(public)
        return y


class FederatedExtraTreesRegressor(_ExtraTrees, WholeForestRegressor):
    """Federated extra-trees for regression: clients tell sums of targets, in fixed point.

    Parameters and attributes as for `FederatedExtraTreesClassifier`, except ``criterion`` ("squared_error"),
    ``min_samples_leaf`` (default 5) and ``max_features`` (default 1.0), without ``classes`` and ``classes_``, and
    ``privacy`` must be None, as in the paper: randomised response is for labels. Clients tell the power of two above
    their largest target, so that sums are exact.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = wl.FederatedExtraTreesRegressor(n_estimators=10, random_state=0).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.3
    True
    """

    classes = None

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        parties: Any = 3,
        criterion: str = "squared_error",
        max_depth: int | None = None,
        min_samples_split: int = 2,
        min_samples_leaf: int = PRIVATE_LEAF,
        max_features: int | float | str | None = 1.0,
        ranges: str = "declared",
        declared: Mapping[Any, Any] | None = None,
        privacy: None = None,
        quantile_epsilon: float = 1.0,
        min_proposal_rows: int = MIN_PROPOSAL_ROWS,
        sums: str = "secure",
        allow_two: bool = False,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_estimators = n_estimators
        self.parties = parties
        self.criterion = criterion
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.max_features = max_features
        self.ranges = ranges
        self.declared = declared
        self.privacy = privacy
        self.quantile_epsilon = quantile_epsilon
        self.min_proposal_rows = min_proposal_rows
        self.sums = sums
        self.allow_two = allow_two
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


def _usual_leaf(privacy: LocalDP | GlobalDP | None, classes: tuple[Any, ...] | None) -> int:
    """Rows of a leaf where the user does not say.

    Of k classes the largest of the errors in the counts of a leaf is about the root of 2 ln(k) v n, with n rows and a
    variance of v for each. From 2 ln(k) v rows on a class that most rows have is larger than that.
    """
    if not isinstance(privacy, LocalDP) or not classes:
        return PRIVATE_LEAF
    return max(PRIVATE_LEAF, math.ceil(2 * math.log(len(classes)) * noise_of_a_count(privacy.response(classes))))


# --- ranges ---


def declared_of(declared: Any) -> tuple[Knots, KnownCategories]:
    """What a user has declared, by kind of column, checked.

    Raises
    ------
    DataError
        Names the column and what is to be declared for it.
    """
    knots: Knots = {}
    categories: KnownCategories = {}
    if declared is None:
        return knots, categories
    for column, given in declared.items():
        name = str(column)
        points = list(given) if not isinstance(given, str) and hasattr(given, "__iter__") else []
        if points and all(isinstance(point, str) for point in points):
            categories[name] = tuple(sorted(set(points)))
        elif len(points) >= 2 and all(is_real(point) and np.isfinite(point) for point in points):
            knots[name] = tuple(float(point) for point in points)
            if list(knots[name]) != sorted(set(knots[name])):
                raise DataError(f"the range declared for {name!r} must ascend: (low, high), not {given!r}")
        else:
            raise DataError(
                f"what is declared for {name!r} must be (low, high), or a list of texts for categories, not {given!r}"
            )
    return knots, categories


def pooled_ranges(tables: Iterable[Table]) -> tuple[Knots, KnownCategories]:
    """The ends of every column of numbers and the categories of the others, over all simulated clients."""
    ends: dict[str, list[float]] = {}
    texts: dict[str, set[str]] = {}
    for table in tables:
        for name, column in zip(table.names, table.columns, strict=True):
            known = ends.setdefault(name, [])  # a column of nothing is no other than one of numbers
            if isinstance(column, NumericColumn):
                values = column.values[~np.isnan(column.values)]
                known += [float(values.min()), float(values.max())] if len(values) else []
            elif column.categories:
                texts.setdefault(name, set()).update(column.categories)
    knots: Knots = {
        name: (min(some, default=0.0), max(some, default=0.0)) for name, some in ends.items() if name not in texts
    }
    return knots, {name: tuple(sorted(some)) for name, some in texts.items()}


def completed_by_tables(
    knots: Knots, categories: KnownCategories, tables: Iterable[Table]
) -> tuple[Knots, KnownCategories]:
    """What was declared, and for every other column what the tables of all simulated clients have."""
    ranges, texts = pooled_ranges(tables)
    return (
        {**{name: ends for name, ends in ranges.items() if name not in categories}, **knots},
        {**{name: some for name, some in texts.items() if name not in knots}, **categories},
    )
