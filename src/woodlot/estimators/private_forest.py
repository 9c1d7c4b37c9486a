"""Private forests as scikit-learn estimators: differential privacy of rows that leaves the forest useful."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.estimators.federated_extra_trees import SIMULATED, Knots, KnownCategories, completed_by_tables, declared_of
from woodlot.estimators.input_tables import class_array
from woodlot.estimators.sparing import SparingForest, sparing_fields
from woodlot.estimators.whole import WholeForestClassifier, WholeForestRegressor, growth_fields
from woodlot.exceptions import DataError
from woodlot.federation import AnyFederation
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows.private import PrivatePlan

EPSILON, DELTA = 1.0, 1e-6
TREES_OF_TWO, TREES_OF_SEVERAL, TREES_OF_TARGETS = 100, 150, 60
"""Trees by default: of two classes, of several, and of targets."""
COLUMNS_PER_TREE = 2
"""Columns that a tree asks about by default, with one score: of few columns each leaf has many rows."""
LEARNING_RATE, TARGET_RATE = 0.3, 0.2
FOUND = "what is not declared: in fit(X, y) ranges, categories and classes are then found in the table"


class _Private(SparingForest):
    """What classifier and regressor share."""

    declared: Any
    colluding: int
    criterion: str

    def _check_parameters(self) -> None:
        super()._check_parameters()
        declared_of(self.declared)

    def _plan(self, seed: int) -> PrivatePlan:
        knots, categories = declared_of(self.declared)
        return self._plan_with(seed, knots, categories, self._public_labels())

    def _plan_with(
        self, seed: int, knots: Knots, categories: KnownCategories, labels: Mapping[str, Any]
    ) -> PrivatePlan:
        p = self.get_params(deep=False)
        one_score = len(labels.get("classes") or ()) <= 2
        ranges = p["ranges"] if p["ranges"] != "auto" else ("private-quantiles" if one_score else "declared")
        width = p["max_features"]
        if width is None and one_score:
            width = COLUMNS_PER_TREE
        growth = {
            "n_estimators": p["n_estimators"] or self._default_trees(one_score),
            "criterion": "entropy" if self._task == "classes" else "squared_error",
            "max_depth": p["max_depth"],
            "min_samples_split": 2,
            "min_samples_leaf": 1,
            "max_features": None,
            "bootstrap": False,
            "max_samples": None,
            "max_bins": None,
        }
        return PrivatePlan(
            **growth_fields(growth, self._task, seed),
            epsilon=float(p["epsilon"]),
            delta=float(p["delta"]),
            colluding=int(p["colluding"]),
            knots=knots,
            known_categories=categories,
            learning_rate=float(p["learning_rate"]),
            private_knots=ranges == "private-quantiles",
            columns_per_tree=None if width is None else int(width),
            allow_two=bool(p["allow_two"]),
            **sparing_fields(p),
            **labels,
        )

    def _default_trees(self, one_score: bool) -> int:
        if self._task == "targets":
            return TREES_OF_TARGETS
        return TREES_OF_TWO if one_score else TREES_OF_SEVERAL

    @abstractmethod
    def _public_labels(self) -> dict[str, Any]:
        """What was declared of the labels, by the names of the plan's fields."""

    @abstractmethod
    def _labels_here(self, targets: Mapping[str, Target]) -> dict[str, Any]:
        """What all labels of a simulation have, where nothing was declared."""

    def _grow(
        self,
        federation: AnyFederation,
        targets: Mapping[str, Target],
        label: str | None,
        seed: int,
        weight: str | None = None,
    ) -> None:
        knots, categories = declared_of(self.declared)
        labels = self._public_labels()
        if label is None:  # one table at hand: what is not declared is what all of it has
            knots, categories = completed_by_tables(knots, categories, federation.tables_here())
            if None in labels.values():
                labels = self._labels_here(targets)
        plan = self._plan_with(seed, knots, categories, labels)
        if label is None and self.random_state is not None:
            federation.repeat_draws(seed)
        self._grow_plan(plan, federation, targets, label)
        if label is None:
            told = FOUND if self.random_state is None else SIMULATED
            self.privacy_ = replace(self.privacy_, not_protected=(*self.privacy_.not_protected, told))


class PrivateForestClassifier(_Private, WholeForestClassifier):
    """A forest under differential privacy of rows: boosted random trees, grown on sums with noise.

    Questions are drawn at random from public ranges. For each tree in turn all clients add up, leaf by leaf, how wrong
    the trees before are on their rows; the sums have Gaussian noise, of which every client adds a share before its
    numbers are masked. What is published is (epsilon, delta)-differentially private for each row, its label included.
    The whole cost is known before: it is ``epsilon``, and is spent in full and once.

    Parameters
    ----------
    epsilon : float, default=1.0
        What the training may cost a row. At 1 an attacker who is 50% sure that a row is there, or what is in it,
        becomes at most 74% sure.
    delta : float, default=1e-6
        The chance that more is lost. Choose it well below one divided by the number of rows.
    n_estimators : int or None, default=None
        Number of trees. None: 100 for two classes, 150 for more. More trees have more noise each; the cost does not
        depend on it.
    parties : int or array-like, default=3
        How the rows of X are divided: a number of simulated clients with about equal shares, or the client of each
        row. Not used on a federation.
    max_depth : int or None, default=None
        Levels of the trees, at most 12. None: by epsilon and a noisy number of rows.
    max_features : int or None, default=None
        Columns that a tree asks about. None: 2 for two classes, all for more.
    learning_rate : float, default=0.3
        How far each tree goes.
    ranges : {"auto", "declared", "private-quantiles"}, default="auto"
        Where thresholds are drawn: evenly in the declared ranges; or where histograms with noise say that rows are,
        which costs 5% of the budget (in squares of mu). "auto": the latter for two classes, the former for more.
    declared : mapping, optional
        What is public of each column: ``(low, high)`` for numbers, a list of texts for categories. Values outside count
        as the nearest end, unknown categories as missing. In ``fit(X, y)``, which is a simulation, what is not declared
        is found in all of X. On a federation every column needs it.
    classes : sequence, optional
        The public list of classes. Needed on a federation; in ``fit(X, y)`` the classes of y stand for it. A row whose
        label is not in the list takes no part.
    colluding : int, default=1
        How many clients may tell their noise to others, and the guarantee still holds against them together. A client
        knows its own noise; with 0 the guarantee is against the coordinator and users of the model only, and weaker
        against any client. More clients that may collude mean more noise: n / (n - colluding) times its variance.
    allow_two : bool, default=False
        Allow secure sums over two clients.
    spare_after : float or None, default=None
        Go on without a client that refuses, or is away for so many seconds, with the next tree. ``left_at_`` says
        in how many trees each was. The guarantee is for the noise of the fewest clients that the quorum allows, so
        there is more noise: (quorum - colluding) clients' noise counts, not (n - colluding). None: the training stops,
        and between organisations it goes on when the client is back.
    quorum : int, float or None, default=None
        How many clients must be left for that: a number, or more than a share of them. At least more than half, and
        three. None: more than two thirds.
    n_jobs : int or None, default=None
        Threads of the clients.
    random_state : int, RandomState or None
        Which questions are drawn. In ``fit(X, y)`` with a random_state the noise follows from it too, and protects
        nobody; with None, and on a federation, the noise is always fresh.
    verbose : int, default=0
        1 shows progress.

    Attributes
    ----------
    classes_ : array
        The public list of classes.
    privacy_ : PrivacyClaim
        Epsilon, delta, whose secret is kept against whom, and what is not protected.
    feature_importances_ : array
        How much the splits on each column change answers, by what was told with noise.
    disclosure_ : Disclosures
        Who saw what during training.
    cost_ : Cost
        Rounds, bytes and seconds of the training.
    left_ : tuple of str
        Clients that dropped out, where the training could go on without them.
    left_at_ : dict of str to int
        In how many trees, from the first on, each of these took part.
    forest_ : GrownForest
        The forest; whole. Its trees add scores (log-odds): ``to_onnx()`` and ``to_treelite()`` export it,
        scikit-learn's forests cannot express it. ``explain`` divides scores, not probabilities.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = wl.PrivateForestClassifier(epsilon=4.0, n_estimators=20, random_state=0).fit(X, y)
    >>> model.privacy_.epsilon, model.privacy_.delta
    (4.0, 1e-06)
    >>> model.score(X, y) > 0.7
    True
    """

    criterion = "log_loss"

    def __init__(
        self,
        epsilon: float = EPSILON,
        *,
        delta: float = DELTA,
        n_estimators: int | None = None,
        parties: Any = 3,
        max_depth: int | None = None,
        max_features: int | None = None,
        learning_rate: float = LEARNING_RATE,
        ranges: str = "auto",
        declared: Mapping[Any, Any] | None = None,
        classes: Any = None,
        colluding: int = 1,
        allow_two: bool = False,
        spare_after: float | None = None,
        quorum: int | float | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.n_estimators = n_estimators
        self.parties = parties
        self.max_depth = max_depth
        self.max_features = max_features
        self.learning_rate = learning_rate
        self.ranges = ranges
        self.declared = declared
        self.classes = classes
        self.colluding = colluding
        self.allow_two = allow_two
        self.spare_after = spare_after
        self.quorum = quorum
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def _public_labels(self) -> dict[str, Any]:
        classes = None if self.classes is None else Target.of_classes(np.asarray(self.classes)).classes
        return {"classes": classes}

    def _labels_here(self, targets: Mapping[str, Target]) -> dict[str, Any]:
        return {"classes": tuple(sorted({c for target in targets.values() for c in target.classes}))}

    def _check_labels(self, y: NDArray[Any]) -> NDArray[Any]:
        y = super()._check_labels(y)
        public = self._public_labels()["classes"]
        if public is not None:
            unknown = sorted(set(self.classes_.tolist()) - set(public))
            if unknown:
                raise DataError(f"y has classes that are not in the public list: {unknown}; add them to classes")
            self.classes_ = class_array(public)
        elif len(self.classes_) < 2:
            raise DataError("y has one class only; a classifier needs two classes or more")
        return y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on the small tables of scikit-learn's checks, noise is most of it
        return tags


class PrivateForestRegressor(_Private, WholeForestRegressor):
    """A forest for regression under differential privacy of rows.

    Parameters and attributes as for `PrivateForestClassifier`, without ``classes`` and ``classes_``, with
    ``target_range``, and with 60 trees and a learning rate of 0.2 by default. Targets are clipped to their range, and
    what a row adds to a tree to an eighth of it, so heavy tails are learnt poorly.

    Parameters
    ----------
    target_range : (float, float), optional
        The public range of targets: those outside count as the nearest end. The narrower it is, the less noise there is
        in the answers. Needed on a federation; in ``fit(X, y)`` the smallest and the largest of y stand for it.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = wl.PrivateForestRegressor(epsilon=8.0, n_estimators=20, target_range=(0, 350), random_state=0).fit(X, y)
    >>> model.score(X, y) > 0
    True
    """

    criterion = "squared_error"

    def __init__(
        self,
        epsilon: float = EPSILON,
        *,
        delta: float = DELTA,
        n_estimators: int | None = None,
        parties: Any = 3,
        max_depth: int | None = None,
        max_features: int | None = None,
        learning_rate: float = TARGET_RATE,
        ranges: str = "auto",
        declared: Mapping[Any, Any] | None = None,
        target_range: tuple[float, float] | None = None,
        colluding: int = 1,
        allow_two: bool = False,
        spare_after: float | None = None,
        quorum: int | float | None = None,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.epsilon = epsilon
        self.delta = delta
        self.n_estimators = n_estimators
        self.parties = parties
        self.max_depth = max_depth
        self.max_features = max_features
        self.learning_rate = learning_rate
        self.ranges = ranges
        self.declared = declared
        self.target_range = target_range
        self.colluding = colluding
        self.allow_two = allow_two
        self.spare_after = spare_after
        self.quorum = quorum
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    def _public_labels(self) -> dict[str, Any]:
        ends = None if self.target_range is None else (float(self.target_range[0]), float(self.target_range[1]))
        return {"target_range": ends}

    def _labels_here(self, targets: Mapping[str, Target]) -> dict[str, Any]:
        values = np.concatenate([target.values for target in targets.values()])
        low, high = float(values.min()), float(values.max())
        return {"target_range": (low, high) if low < high else (low - 1.0, high + 1.0)}

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True
        return tags
