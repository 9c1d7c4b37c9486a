"""The lossless horizontal forest as scikit-learn estimators."""

from __future__ import annotations

from typing import Any

import msgspec

from woodlot.estimators.input_tables import name_class_weights
from woodlot.estimators.sparing import SparingForest, sparing_fields
from woodlot.estimators.whole import (
    PRIVATE_LEAF,
    WeightedForest,
    WholeForestClassifier,
    WholeForestRegressor,
    growth_fields,
)
from woodlot.federation.grown import GrownForest
from woodlot.protocols.rows.lossless import MAX_BINS, LosslessPlan


class _LosslessMethod(SparingForest, WeightedForest):
    bins: Any
    oob_score: bool

    def _plan(self, seed: int) -> LosslessPlan:
        p = self.get_params(deep=False)
        declared = {} if p["bins"] is None else p["bins"]
        return LosslessPlan(
            **growth_fields(p, self._task, seed),
            bins=tuple((str(name), tuple(float(edge) for edge in edges)) for name, edges in declared.items()),
            sums=p["sums"],
            allow_two=bool(p["allow_two"]),
            **sparing_fields(p),
            oob_score=True if p["oob_score"] else msgspec.UNSET,
            class_weight=_class_weight(p.get("class_weight")),
        )

    def _check_parameters(self) -> None:
        super()._check_parameters()
        params = self.get_params(deep=False)
        if params.get("class_weight") is not None and not params["bootstrap"]:
            raise ValueError("class_weight says how often rows are drawn; it needs bootstrap=True")

    def _set_forest(self, forest: GrownForest) -> None:
        super()._set_forest(forest)
        if self.oob_score:
            self.oob_score_ = float("nan") if forest.oob_score is None else forest.oob_score

    def _notes(self) -> dict[str, Any]:
        score = self.forest_.oob_score
        return super()._notes() | ({} if score is None else {"oob_score": repr(float(score))})


def _class_weight(given: Any) -> Any:
    """Class weights as plans have them: by the names of the classes."""
    named = name_class_weights(given, None)
    return msgspec.UNSET if named is None else named


class HorizontalForestClassifier(_LosslessMethod, WholeForestClassifier):
    """The forest of all clients' rows together, grown without bringing them together.

    Clients count their rows at every open node, by bins and classes; the coordinator sees the sums over all clients
    only, and finds the best splits in them. The forest is the one that would grow on the pooled rows, bit for bit, for
    any number of clients and any distribution of the rows.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    parties : int or array-like, default=3
        How the rows of X are divided: a number of simulated clients with about equal shares, or the client of each
        row. Not used on a federation. The forest does not depend on it.
    criterion : {"gini", "entropy", "log_loss"}, default="gini"
        Measure of the quality of a split.
    max_depth, min_samples_split
        When to stop splitting, as in scikit-learn; counts are of all clients' rows.
    min_samples_leaf : int, default=5
        Rows on both sides of a split. With 1, the coordinator sees sums of single rows, and leaves tell their labels.
    max_features : int, float, {"sqrt", "log2"} or None, default="sqrt"
        Features tried at each node.
    bootstrap : bool, default=True
        Whether each tree draws rows: each row a number of times that is Poisson distributed, so that no client needs
        to know how many rows the others have. Equal rows are drawn alike. A tree that draws none takes every row once.
    max_samples : int, float or None, default=None
        How many rows a tree draws on average: a number, or a share of all. None: as many as there are.
    oob_score : bool, default=False
        Whether the finished forest is scored on rows that trees have not drawn. Clients are brought the forest, and the
        coordinator reads how many answers are right over all clients. Equal rows are drawn alike, so copies of a row do
        not spoil the score. Under class weights each class counts by its share of all rows, and the score is NaN where
        under 95 % of the rows of a class have a tree that has not drawn them.
    class_weight : mapping, {"balanced"} or None, default=None
        How much more often rows of a class are drawn than others, by its name; classes that are not named have the
        weight 1. "balanced": inversely to the number of rows of all clients, which are then told these numbers. Needs
        ``bootstrap=True``.
    max_bins : int, default=255
        Columns of more distinct values are cut at so many quantiles of all clients' values; any other column has a bin
        for each value, and its splits are exact.
    bins : mapping of str to array-like, optional
        Edges of the bins of some columns, ascending, by their names. The protocol asks for no values of these columns.
        Rows beyond the edges are in the outermost bins.
    sums : {"secure", "plain"}, default="secure"
        Secure sums hide each client's numbers from the coordinator and need three clients; plain ones show them.
    allow_two : bool, default=False
        Allow secure sums over two clients, each of whom learns the other's numbers from the model.
    spare_after : float or None, default=None
        Go on without a client that refuses, or is away for so many seconds. What is counted from then on is counted
        without its rows; ``left_`` names it. None: the training stops, and between organisations it goes on when the
        client is back. Each sum then takes one round more, and another one when a client drops out.
    quorum : int, float or None, default=None
        How many clients must be left for that: a number, or more than a share of them. At least more than half, and
        three. None: more than two thirds.
    n_jobs : int or None, default=None
        Threads of the clients; the forest does not depend on them.
    device : {"cpu", "cuda", "auto"}, default="cpu"
        Where clients in this process count their rows, and where a complete table is predicted: "cuda" is a graphics
        card, "auto" one if there is any and the table is large. The forest does not depend on it. On a federation
        between organisations each party's own setting counts. Needs the extra ``gpu``.
    random_state : int, RandomState or None
        The same number and rows give the same forest.
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
    oob_score_ : float
        With ``oob_score=True``: accuracy of each row's answer by the trees that have not drawn it; NaN where every row
        was drawn by every tree.
    left_ : tuple of str
        Clients that dropped out, where the training could go on without them.
    left_at_ : dict of str to int
        In how many levels of the trees, which grow together, each of these took part from beginning to end.
    forest_ : GrownForest
        The forest; whole, so that ``combine()``, ``to_sklearn()`` and ``estimators_`` are always there.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> model = wl.HorizontalForestClassifier(n_estimators=10, parties=3, random_state=0).fit(X[::2], y[::2])
    >>> model.predict(X[1::50]).tolist()
    [0, 1, 2]

    The forest does not depend on who holds which row:

    >>> other = wl.HorizontalForestClassifier(n_estimators=10, parties=5, random_state=0).fit(X[::2], y[::2])
    >>> (other.predict_proba(X) == model.predict_proba(X)).all().item()
    True
    """

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        parties: Any = 3,
        criterion: str = "gini",
        max_depth: int | None = None,
        min_samples_split: int = 2,
        min_samples_leaf: int = PRIVATE_LEAF,
        max_features: int | float | str | None = "sqrt",
        bootstrap: bool = True,
        max_samples: int | float | None = None,
        oob_score: bool = False,
        class_weight: Any = None,
        max_bins: int = MAX_BINS,
        bins: Any = None,
        sums: str = "secure",
        allow_two: bool = False,
        spare_after: float | None = None,
        quorum: int | float | None = None,
        n_jobs: int | None = None,
        device: str = "cpu",
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
        self.oob_score = oob_score
        self.class_weight = class_weight
        self.max_bins = max_bins
        self.bins = bins
        self.sums = sums
        self.allow_two = allow_two
        self.spare_after = spare_after
        self.quorum = quorum
        self.n_jobs = n_jobs
        self.device = device
        self.random_state = random_state
        self.verbose = verbose


class HorizontalForestRegressor(_LosslessMethod, WholeForestRegressor):
    """The forest of all clients' rows together, for regression.

    Parameters and attributes as for `HorizontalForestClassifier`, except ``criterion`` ("squared_error") and
    ``max_features`` (default 1.0), and without ``classes_`` and ``class_weight``. Targets are added in fixed point: a
    leaf's answer is exact to about 2^-30 of the largest target for a million rows, and better for fewer. A node that
    none of its candidates improves is a leaf.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = wl.HorizontalForestRegressor(n_estimators=10, random_state=0).fit(X[::2], y[::2])
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
        oob_score: bool = False,
        max_bins: int = MAX_BINS,
        bins: Any = None,
        sums: str = "secure",
        allow_two: bool = False,
        spare_after: float | None = None,
        quorum: int | float | None = None,
        n_jobs: int | None = None,
        device: str = "cpu",
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
        self.oob_score = oob_score
        self.max_bins = max_bins
        self.bins = bins
        self.sums = sums
        self.allow_two = allow_two
        self.spare_after = spare_after
        self.quorum = quorum
        self.n_jobs = n_jobs
        self.device = device
        self.random_state = random_state
        self.verbose = verbose
