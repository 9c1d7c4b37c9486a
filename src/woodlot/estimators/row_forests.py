"""Horizontal forests as scikit-learn estimators: same columns, different rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from woodlot.estimators.estimator_settings import from_json
from woodlot.estimators.federated_extra_trees import (
    FederatedExtraTreesClassifier,
    FederatedExtraTreesRegressor,
    declared_of,
)
from woodlot.estimators.horizontal_forest import HorizontalForestClassifier, HorizontalForestRegressor
from woodlot.estimators.input_tables import class_array
from woodlot.estimators.kept_receipts import restore_receipts
from woodlot.estimators.origin import Origin
from woodlot.estimators.private_forest import PrivateForestClassifier, PrivateForestRegressor
from woodlot.estimators.whole import (
    PRIVATE_LEAF,
    WeightedForest,
    WholeForest,
    WholeForestClassifier,
    WholeForestRegressor,
    growth_fields,
)
from woodlot.exceptions import DataError
from woodlot.federation import GrownForest
from woodlot.privacy.claims import PrivacyClaim
from woodlot.protocols.rows.collaborative import CollaborativePlan
from woodlot.protocols.rows.local_forests import LocalPlan
from woodlot.protocols.vertical.files import StoredForest
from woodlot.runtime.audit import Cost, DisclosureRow, Disclosures


class _LocalMethod(WeightedForest):
    def _plan(self, seed: int) -> LocalPlan:
        return LocalPlan(**growth_fields(self.get_params(deep=False), self._task, seed))


class _CollaborativeMethod(WholeForest):
    def _check_parameters(self) -> None:
        super()._check_parameters()
        self._plan(seed=0)  # it refuses what does not go together

    def _plan(self, seed: int) -> CollaborativePlan:
        p = self.get_params(deep=False)
        epsilon = p.get("dp_leaf_epsilon")
        return CollaborativePlan(
            **growth_fields(p, self._task, seed),
            min_leaf_rows=int(p["min_leaf_rows"] or (1 if epsilon is not None else p["min_samples_leaf"])),
            leaf_average=p["leaf_average"],
            sums=p["sums"],
            allow_two=bool(p["allow_two"]),
            dp_leaf_epsilon=None if epsilon is None else float(epsilon),
            grid=grid_of(p["grid"]),
        )


def grid_of(declared: Any) -> dict[str, tuple[float, float]] | None:
    """The ranges that a user has declared for a grid, checked."""
    if declared is None:
        return None
    try:
        knots, categories = declared_of(declared)
    except DataError as error:
        raise DataError(f"grid: {error}") from None
    wrong = [*categories, *(name for name, ends in knots.items() if len(ends) != 2)]
    if wrong:
        raise DataError(f"the grid needs (low, high) for each column of numbers, not what is declared for {wrong}")
    return {name: (ends[0], ends[-1]) for name, ends in knots.items()}


class LocalForestsClassifier(_LocalMethod, WholeForestClassifier):
    """Forests that clients grow alone, put together; the slides' non-collaborative federated forest (NCFF).

    Each client with rows grows an equal share of the trees on its own rows alone and hands them over with their
    leaves. The baseline of the collaborative forest.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees over all clients.
    parties : int or array-like, default=3
        How the rows of X are divided: a number of simulated clients with about equal shares, or the client of each
        row. Not used on a federation.
    criterion : {"entropy", "gini", "log_loss"}, default="entropy"
        Measure of the quality of a split.
    max_depth, min_samples_split
        When to stop splitting, as in scikit-learn; counts are of the growing client's rows.
    min_samples_leaf : int, default=5
        Rows that a client must have on both sides of a split. With 1, as in the slides, leaves tell the labels of
        single rows.
    max_features : int, float, {"sqrt", "log2"} or None, default="sqrt"
        Features tried at each node.
    bootstrap, max_samples
        Rows that a client draws for each tree, of its own; as in scikit-learn.
    max_bins : int or None, default=None
        None keeps every distinct value (exact); a number bins each numeric column by the client's own quantiles.
    n_jobs : int or None, default=None
        Threads; the forest does not depend on them.
    random_state : int, RandomState or None
        The same number, clients and rows give the same forest.
    verbose : int, default=0
        1 shows progress.

    Attributes
    ----------
    classes_ : array
        The classes of all clients together.
    feature_importances_ : array
        Mean decrease of impurity.
    disclosure_ : Disclosures
        Who saw what during training.
    cost_ : Cost
        Rounds, bytes and seconds of the training.
    forest_ : GrownForest
        The forest; whole, so that ``combine()``, ``to_sklearn()`` and ``estimators_`` are always there.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = wl.LocalForestsClassifier(n_estimators=12, parties=3, random_state=0).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.8
    True
    """

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        parties: Any = 3,
        criterion: str = "entropy",
        max_depth: int | None = None,
        min_samples_split: int = 2,
        min_samples_leaf: int = PRIVATE_LEAF,
        max_features: int | float | str | None = "sqrt",
        bootstrap: bool = True,
        max_samples: int | float | None = None,
        max_bins: int | None = None,
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
        self.bootstrap = bootstrap
        self.max_samples = max_samples
        self.max_bins = max_bins
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


class LocalForestsRegressor(_LocalMethod, WholeForestRegressor):
    """Forests that clients grow alone, put together, for regression.

    Parameters and attributes as for `LocalForestsClassifier`, except ``criterion`` ("squared_error") and
    ``max_features`` (default 1.0), and without ``classes_``.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = wl.LocalForestsRegressor(n_estimators=12, parties=3, random_state=0).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.3
    True
    """

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
        bootstrap: bool = True,
        max_samples: int | float | None = None,
        max_bins: int | None = None,
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
        self.bootstrap = bootstrap
        self.max_samples = max_samples
        self.max_bins = max_bins
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


class CollaborativeForestClassifier(_CollaborativeMethod, WholeForestClassifier):
    """The collaborative forest: every tree grows at every client, and all clients fill its leaves.

    The trees go round the clients. Each grows them on at their leaves, on a bootstrap of its own rows, until its rows
    there are of one class. Leaves are empty meanwhile. Then every client tells what all its rows leave in each leaf;
    the coordinator sees the sum over the clients only.

    Thresholds travel: each lies halfway between two values of the client that found it, and the coordinator and all
    clients see it.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    parties : int or array-like, default=3
        How the rows of X are divided: a number of simulated clients with about equal shares, or the client of each
        row. Not used on a federation.
    criterion : {"entropy", "gini", "log_loss"}, default="entropy"
        Measure of the quality of a split.
    max_depth, min_samples_split
        When to stop splitting, as in scikit-learn; counts are of the growing client's rows.
    min_samples_leaf : int, default=5
        Rows that the growing client must have on both sides of a split. With 1, as in the slides, trees
        grow until their leaves are pure.
    max_features : int, float, {"sqrt", "log2"} or None, default="sqrt"
        Features tried at each node.
    bootstrap, max_samples
        Rows that a client draws for each tree, of its own; as in scikit-learn.
    max_bins : int or None, default=None
        None keeps every distinct value (exact); a number bins each numeric column by the client's own quantiles.
    leaf_average : {"plain", "rows"}, default="plain"
        Whether a client's class shares in a leaf count the same as any other client's that reports the leaf, as in the
        slides, or by its rows there. "plain" is better where most clients have several classes but not all; a client
        with one class only never finds a split, and with "plain" its class then weighs too much: use "rows".
    min_leaf_rows : int or None, default=None
        What fewer rows of a client have left in a leaf it merges with the neighbouring leaves', up to the first node
        where enough come together. None: as ``min_samples_leaf``. A leaf that no client reports answers as its deepest
        ancestor at or below which any does. Where no client has as many rows, the forest learns nothing and
        warns of it.
    sums : {"secure", "plain"}, default="secure"
        Secure sums hide each client's numbers from the coordinator and need three clients; plain ones show them.
    allow_two : bool, default=False
        Allow secure sums over two clients, each of whom learns the other's numbers from the model.
    dp_leaf_epsilon : float, optional
        Every client adds integer Laplace noise to its counts in the leaves, which costs a row this epsilon for every
        tree; the total is in ``privacy_``. It needs ``leaf_average="rows"`` and takes the place of ``min_leaf_rows``.
        The splits are not protected.
    grid : mapping, optional
        Public ranges of all columns of numbers, such as ``{"age": (0, 120)}``: thresholds are then points of a grid of
        1,024 cells in them, and not halfway between two values of a client.
    n_jobs : int or None, default=None
        Threads; the forest does not depend on them.
    random_state : int, RandomState or None
        The same number, clients and rows give the same forest.
    verbose : int, default=0
        1 shows progress.

    Attributes
    ----------
    classes_ : array
        The classes of all clients together.
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
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = wl.CollaborativeForestClassifier(n_estimators=10, parties=3, random_state=0).fit(X[::2], y[::2])
    >>> model.predict(X[1::50]).tolist()
    [0, 1, 2]

    Clients that hold different rows in this process:

    >>> import pandas as pd
    >>> rows = pd.DataFrame(X, columns=["a", "b", "c", "d"]).assign(species=y)
    >>> fed = wl.Federation.local({"north": rows[::3], "south": rows[1::3], "west": rows[2::3]}, layout="rows")
    >>> model = wl.CollaborativeForestClassifier(n_estimators=10, random_state=0).fit(fed, y="species")
    >>> model.predict(X[1::50]).tolist()
    [0, 1, 2]
    """

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        parties: Any = 3,
        criterion: str = "entropy",
        max_depth: int | None = None,
        min_samples_split: int = 2,
        min_samples_leaf: int = PRIVATE_LEAF,
        max_features: int | float | str | None = "sqrt",
        bootstrap: bool = True,
        max_samples: int | float | None = None,
        max_bins: int | None = None,
        leaf_average: str = "plain",
        min_leaf_rows: int | None = None,
        sums: str = "secure",
        allow_two: bool = False,
        dp_leaf_epsilon: float | None = None,
        grid: Mapping[Any, Any] | None = None,
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
        self.bootstrap = bootstrap
        self.max_samples = max_samples
        self.max_bins = max_bins
        self.leaf_average = leaf_average
        self.min_leaf_rows = min_leaf_rows
        self.sums = sums
        self.allow_two = allow_two
        self.dp_leaf_epsilon = dp_leaf_epsilon
        self.grid = grid
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


class CollaborativeForestRegressor(_CollaborativeMethod, WholeForestRegressor):
    """The collaborative forest for regression: leaves hold means of targets.

    Parameters and attributes as for `CollaborativeForestClassifier`, except ``criterion`` ("squared_error") and
    ``max_features`` (default 1.0), and without ``classes_`` and ``dp_leaf_epsilon``. Clients tell the power of two
    above their largest target, so that sums can be exact.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = wl.CollaborativeForestRegressor(n_estimators=10, random_state=0).fit(X[::2], y[::2])
    >>> model.score(X[1::2], y[1::2]) > 0.3
    True
    """

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
        bootstrap: bool = True,
        max_samples: int | float | None = None,
        max_bins: int | None = None,
        leaf_average: str = "plain",
        min_leaf_rows: int | None = None,
        sums: str = "secure",
        allow_two: bool = False,
        grid: Mapping[Any, Any] | None = None,
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
        self.bootstrap = bootstrap
        self.max_samples = max_samples
        self.max_bins = max_bins
        self.leaf_average = leaf_average
        self.min_leaf_rows = min_leaf_rows
        self.sums = sums
        self.allow_two = allow_two
        self.grid = grid
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


HORIZONTAL: dict[str, type[WholeForest]] = {
    cls.__name__: cls
    for cls in (
        LocalForestsClassifier,
        LocalForestsRegressor,
        CollaborativeForestClassifier,
        CollaborativeForestRegressor,
        FederatedExtraTreesClassifier,
        FederatedExtraTreesRegressor,
        HorizontalForestClassifier,
        HorizontalForestRegressor,
        PrivateForestClassifier,
        PrivateForestRegressor,
    )
}
"""The estimators of whole forests that files can hold."""

W = TypeVar("W", bound=WholeForest)


def restore_whole(kind: type[W], stored: StoredForest) -> W:
    """The fitted model that a file describes."""
    notes, origin = stored.extra, stored.extra["origin"]
    model = kind(**from_json(notes["params"]))
    model._origin = Origin(tuple(origin["names"]), None, origin["label"], origin["criterion"])
    model.n_features_in_ = len(stored.coordinator.feature_keys)
    if notes["named"]:
        model.feature_names_in_ = np.array(model._origin.names, dtype=object)
    if isinstance(model, WholeForestClassifier):
        model.classes_ = class_array(stored.coordinator.classes, notes["class_type"])
    model.disclosure_ = Disclosures(tuple(DisclosureRow(**row) for row in notes["disclosure"]))
    model.cost_ = Cost(**notes["cost"])
    model.privacy_ = PrivacyClaim.from_dict(notes["privacy"])
    model._restore(notes)
    restore_receipts(model, notes)
    epoch = int(notes.get("epoch", 0))
    score = None if notes.get("oob_score") is None else float(notes["oob_score"])
    model._set_forest(GrownForest(stored.coordinator, stored.parts, stored.parts, epoch=epoch, oob_score=score))
    return model
