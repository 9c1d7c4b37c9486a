"""What the estimators of whole forests share: they are grown over rows at different clients, and predict locally."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from woodlot.data.labels import check_classes, check_targets, check_weights
from woodlot.data.partition import deal_evenly
from woodlot.data.tables import read_table
from woodlot.estimators.callbacks import CallbackSupportMixin, begin_fit, end_fit, fit_progress, watched
from woodlot.estimators.complete import CompleteForest
from woodlot.estimators.estimator_settings import settings_of
from woodlot.estimators.explaining import CompleteShapley
from woodlot.estimators.input_tables import check_table, check_table_again, class_array
from woodlot.estimators.kept_receipts import notes_of_receipts
from woodlot.estimators.leaving import RowTraining, revoke_client
from woodlot.estimators.origin import Origin, SeenRows, fitting, refuse_choice
from woodlot.estimators.parameters import check_parameters, is_int
from woodlot.estimators.row_forgetting import forget_rows
from woodlot.evaluation.cards import Carded
from woodlot.evaluation.evaluated import Evaluated
from woodlot.evaluation.explanations import Explanation
from woodlot.exceptions import DataError, WoodlotError
from woodlot.federation import AnyFederation, GrownForest, as_federation, party_name
from woodlot.federation.local_rows import RowFederation
from woodlot.identity.erasure import ErasureReceipt
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import Receipt, SignedRequest
from woodlot.privacy.claims import PrivacyClaim
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows.collaborative import CollaborativePlan
from woodlot.protocols.rows.local_forests import LocalPlan
from woodlot.protocols.rows.lossless import LosslessPlan
from woodlot.protocols.rows.methods import HorizontalPlan, counts_copies
from woodlot.protocols.rows.row_claims import claim_of
from woodlot.protocols.rows.row_labels import row_weights, target_of
from woodlot.protocols.rows.row_messages import Task
from woodlot.protocols.vertical.files import StoredForest, save_parts
from woodlot.runtime.audit import Account, Cost, Disclosures
from woodlot.trees.parallel import effective_jobs
from woodlot.trees.sampling import derive_seed

PRIVATE_LEAF = 5
"""The fewest rows of a leaf by default: of leaves with single rows, a model would tell these rows' labels."""


class WholeForest(CallbackSupportMixin, Carded, Evaluated, BaseEstimator, ABC):  # type: ignore[misc]
    """A forest grown over rows that lie at different clients; everybody has all of it."""

    _task: Task
    _origin: Origin
    _seen: SeenRows = SeenRows()
    receipts_: tuple[Receipt, ...]
    erasures_: tuple[ErasureReceipt, ...]
    criterion: str
    parties: Any
    n_jobs: int | None
    random_state: Any
    verbose: int

    # --- fitting ---

    @watched
    def fit(self, X: Any, y: Any = None, *, features: Any = None, exclude: Any = None) -> Self:
        """Grow the forest. If it fails, the model is what it was before.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            One table, whose rows are dealt to simulated clients (see ``parties``); or a federation of layout "rows".
        y : array-like or str
            Labels; on a federation the name of their column, which every client has. In one process also an array with
            one label per row, such as ``fed["column"]``, which is then not learnt from.
        features, exclude : sequence of str, optional
            On a federation in this process, the columns to learn from, or not to learn from, at every client.

        Returns
        -------
        self
        """
        return self._fit(X, y, None, features, exclude)

    def _fit(self, X: Any, y: Any, sample_weight: Any, features: Any, exclude: Any) -> Self:
        seed = self._check()
        begin_fit(self)
        with fitting(self) as grown:
            federation = as_federation(X)
            if federation is None:
                refuse_choice(features, exclude)
                grown._fit_table(X, y, sample_weight, seed)
            else:
                grown._fit_federation(federation, y, sample_weight, seed, features, exclude)
        end_fit(self)
        return self

    def make_plan(self, *, weighted: bool = False) -> HorizontalPlan:
        """What would be grown, once the parameters are checked; for orders."""
        plan = self._plan(self._check())
        return with_weights(plan) if weighted else plan

    def _check(self) -> int:
        """Check the parameters; returns the seed."""
        self._check_parameters()
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))

    def _check_parameters(self) -> None:
        check_parameters(self)

    def _fit_table(self, X: Any, y: Any, sample_weight: Any, seed: int) -> None:
        table, y = check_table(self, X, y)
        y = self._check_labels(y)
        client, names = deal_rows(self.parties, table.n_rows, derive_seed(seed, "dealing"))
        federation = RowFederation.dealt_rows(table, client, names, seed)
        targets = {name: target_of(y[client == k], self._task) for k, name in enumerate(names)}
        weights = check_weights(sample_weight, y)
        if weights is not None:
            given = {name: weights[client == k] for k, name in enumerate(names)}
            targets = self._weighted(targets, given)
        self._origin = Origin(table.names, None, None, self.criterion)
        self._seen = SeenRows()
        self._grow(federation, targets, None, seed)

    def _weighted(self, targets: Mapping[str, Target], weights: Mapping[str, Any]) -> dict[str, Target]:
        """The targets of clients in this process with their weights, checked as clients elsewhere check them."""
        copies = counts_copies(self._plan(0))
        checked = {}
        for name, target in targets.items():
            n_rows = len(target.numbers) + len(target.values)
            try:
                checked[name] = replace(target, weights=row_weights(weights[name], n_rows, copies=copies))
            except DataError as error:
                raise DataError(f"{name}: {error}") from None
        return checked

    def _fit_federation(
        self, federation: AnyFederation, y: Any, sample_weight: Any, seed: int, features: Any, exclude: Any
    ) -> None:
        label, made = y, False
        if isinstance(y, str):
            targets = federation.row_targets(y, self._task)
        else:
            targets, label, made = federation.row_targets_of(y, self._task)
        weight = None
        if sample_weight is not None:
            weights, weight = federation.row_weights_of(sample_weight)
            targets = self._weighted(targets, weights)
        self._origin = Origin((), None, None if made else label, self.criterion)
        self._grow(federation.choose_columns(features, exclude, label), targets, label, seed, weight)
        self.n_features_in_ = len(self.forest_.coordinator.feature_keys)
        self._seen = SeenRows(federation)

    def _grow(
        self,
        federation: AnyFederation,
        targets: Mapping[str, Target],
        label: str | None,
        seed: int,
        weight: str | None = None,
    ) -> None:
        plan = self._plan(seed)
        if weight is not None or any(target.weights is not None for target in targets.values()):
            plan = with_weights(plan)
        self._grow_plan(plan, federation, targets, label, weight)

    def _grow_plan(
        self,
        plan: HorizontalPlan,
        federation: AnyFederation,
        targets: Mapping[str, Target],
        label: str | None,
        weight: str | None = None,
    ) -> None:
        """Grow a forest; ``targets`` are those of the clients in this process."""
        with fit_progress(self, "growing trees") as show:
            forest, account = federation.grow(
                plan,
                targets,
                label=label,
                weight=weight,
                settings=partial(settings_of, self),
                n_jobs=effective_jobs(self.n_jobs),
                device=self._device,
                on_progress=show,
            )
        self._keep(plan, forest, account)
        self._remember(plan, federation, targets, label, weight)
        if not targets:  # whether every client's rows are of one class is not known here
            self._warn_if_constant(plan, "found none: their rows may be of one class, or too few for min_samples_leaf")
            return
        most = max(len(target.numbers) + len(target.values) for target in targets.values())
        if isinstance(plan, CollaborativePlan) and most < plan.min_leaf_rows:
            warnings.warn(
                f"no client has as many as {plan.min_leaf_rows} rows, so none reports any leaf and the forest has "
                "learnt nothing; lower min_leaf_rows or min_samples_leaf, or have fewer clients with more rows",
                UserWarning,
                stacklevel=5,
            )
        elif all(np.ptp(target.numbers) == 0 for target in targets.values() if len(target.numbers)):
            self._warn_if_constant(plan, "every client's rows are of one class")

    def _warn_if_constant(self, plan: HorizontalPlan, reason: str) -> None:
        """Warn where clients that look for splits in their own rows find none, though there are several classes."""
        forest = self.forest_.coordinator
        searched_alone = isinstance(plan, CollaborativePlan | LocalPlan)
        if searched_alone and len(forest.classes) > 1 and forest.structure.n_nodes == forest.structure.n_trees:
            warnings.warn(
                "no tree has a split, so the model gives every row the same answer: clients look for splits in their "
                f"own rows, and {reason}; use HorizontalForestClassifier, which finds splits in sums over all clients",
                UserWarning,
                stacklevel=6,
            )

    def _keep(self, plan: HorizontalPlan, forest: GrownForest, account: Account) -> None:
        self.disclosure_: Disclosures = account.disclosure
        self.cost_: Cost = account.cost
        self.privacy_: PrivacyClaim = claim_of(plan, len(forest.coordinator.feature_keys))
        self._set_forest(forest)

    def _remember(
        self,
        plan: HorizontalPlan,
        federation: AnyFederation,
        targets: Mapping[str, Target],
        label: str | None,
        weight: str | None,
    ) -> None:
        """Keep what a revocation needs, as long as this model lives."""
        self.forest_.memo.training = RowTraining(federation, targets, label, plan, self.get_params(deep=False), weight)

    def _growth_parameters(self) -> dict[str, Any]:
        """The parameters of growth that all methods have, under their common names."""
        params: dict[str, Any] = self.get_params(deep=False)
        return params

    @abstractmethod
    def _plan(self, seed: int) -> HorizontalPlan:
        """What is to be grown; every method makes its own of `growth_fields`."""

    def _set_forest(self, forest: GrownForest) -> None:
        self.forest_ = forest

    @abstractmethod
    def _check_labels(self, y: NDArray[Any]) -> NDArray[Any]:
        """Check the labels: classes of a classifier, numbers of a regressor."""

    # --- predicting ---

    def _table(self, X: Any) -> Any:
        check_is_fitted(self, "forest_")
        if not self._origin.names:
            return read_table(X)
        return check_table_again(self, X, self._origin.names)

    def _outputs(self, X: Any) -> NDArray[np.float64]:
        federation = as_federation(X)
        if federation is None:
            return self._answer(self._table(X))
        check_is_fitted(self, "forest_")
        return federation.answer_rows(self._answer)

    def _answer(self, table: Any) -> NDArray[np.float64]:
        return self.combine().outputs(table, None, effective_jobs(self.n_jobs), self._device)

    @property
    def _device(self) -> str:
        return str(getattr(self, "device", "cpu"))

    def apply(self, X: Any) -> NDArray[np.int32]:
        """Leaf of every row in every tree, numbered from 0 in each tree's preorder of nodes."""
        leaf = self.combine().apply(self._table(X), effective_jobs(self.n_jobs), self._device)
        structure = self.forest_.coordinator.structure
        node = np.flatnonzero(structure.right < 0)[leaf]
        return np.asarray(node - structure.offset[:-1], dtype=np.int32)

    def explain(self, X: Any) -> Explanation:
        """Divide the model's answer for each row among the columns: exact Shapley values (path-dependent TreeSHAP).

        Parameters
        ----------
        X : array, data frame or Arrow table
            Rows to explain. The model is whole: each client explains its own rows.

        Returns
        -------
        Explanation
        """
        check_is_fitted(self, "forest_")
        if as_federation(X) is not None:
            raise DataError("the model is whole: explain each client's table where it is, model.explain(table)")
        table = self._table(X)
        return CompleteShapley(self.combine(), "soft").explain(table, effective_jobs(self.n_jobs))

    # --- the model ---

    def revoke(
        self,
        client: str,
        *,
        level: int = 1,
        holdout: tuple[Any, Any] | None = None,
        identity: str | os.PathLike[str] | Identity | None = None,
        request: SignedRequest | None = None,
    ) -> Receipt:
        """Take a client and its rows out of the forest. Until all is done the model is what it was before.

        Parameters
        ----------
        client : str
            Who leaves; not the last one.
        level : {1, 3}
            3: exact, the forest is from then on, bit for bit, the one grown from scratch without the client. 1: what is
            its own goes. Local forests lose its trees, and have fewer; of a collaborative forest its splits and all
            under them are destroyed, the others grow on there, and fill all leaves. In extra-trees and the lossless
            forest every node is of all clients' rows: there both levels are the same.
        holdout : (X, y), optional
            Rows to score before and after.
        identity : path or Identity, optional
            Who signs the receipt; by default a fresh key. Between organisations the coordinator signs.
        request : SignedRequest, optional
            A signed request of the leaver's, to be checked and kept in the receipt; by default made here.

        Returns
        -------
        Receipt
            Signed; also the last of ``receipts_``.
        """
        return revoke_client(self, client, level, holdout, identity, request)

    def forget(
        self,
        ids: Any,
        *,
        data: Any = None,
        identity: str | os.PathLike[str] | Identity | None = None,
        prove: bool = False,
    ) -> ErasureReceipt:
        """Take rows out of the forest, exactly. Until all is done the model is what it was before.

        From then on the forest is, bit for bit, the one that the same clients grow without these rows. Forests that
        were grown under differential privacy cannot do that: train them again without the rows.

        Parameters
        ----------
        ids : array-like or mapping of str to array-like
            Ids of the rows, which every client looks for; by client, ids that only this one does, and is told. Of one
            table that was dealt to simulated clients, the numbers of its rows. Ids of which the model has no row are
            counted, and change nothing.
        data : (X, y), (X, y, sample_weight) or Federation, optional
            What the model is of, in this process; needed where it was loaded or copied. The forest is grown on it once,
            to see that it is.
        identity : path or Identity, optional
            Who signs the receipt; by default a fresh key. Between organisations the coordinator and all parties sign.
        prove : bool, default=False
            Also grow the forest without the rows once more, from what is in the tables, and compare.

        Returns
        -------
        ErasureReceipt
            Signed; also the last of ``erasures_``. Its ``key`` tells which ids it is about, and is kept nowhere else.

        Examples
        --------
        >>> import woodlot as wl
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = wl.HorizontalForestClassifier(n_estimators=5, random_state=0).fit(X, y)
        >>> receipt = model.forget([3, 17])
        >>> receipt.statement.rows, receipt.statement.rows_left
        (2, 148)
        """
        return forget_rows(self, ids, data, identity, prove=prove)

    def combine(self) -> CompleteForest:
        """The model as one object that predicts without its estimator, and exports itself."""
        check_is_fitted(self, "forest_")
        memo = self.forest_.memo
        if memo.complete is None:
            memo.complete = CompleteForest(
                self.forest_.coordinator,
                self.forest_.shared,
                classes=getattr(self, "classes_", None),
                criterion=self._origin.criterion,
            )
        complete: CompleteForest = memo.complete
        return complete

    def to_sklearn(self) -> Any:
        """A scikit-learn forest that predicts the same. Categorical columns cannot be exported."""
        return self.combine().to_sklearn()

    def to_onnx(self, path: str | os.PathLike[str] | None = None) -> Any:
        """The model in ONNX, perhaps written to a file; see `CompleteForest.to_onnx`."""
        return self.combine().to_onnx(path)

    def to_treelite(self) -> Any:
        """The model for treelite; see `CompleteForest.to_treelite`."""
        return self.combine().to_treelite()

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Mean decrease of impurity by what the leaves answer, one per column."""
        check_is_fitted(self, "forest_")
        return self.forest_.coordinator.importances()

    @property
    def estimators_(self) -> list[Any]:
        """The trees as scikit-learn's, where these can express them."""
        check_is_fitted(self, "forest_")
        try:
            trees: list[Any] = self.to_sklearn().estimators_
        except WoodlotError as error:  # so that hasattr() tells whether they are there
            raise AttributeError(f"estimators_: {error}") from error
        return trees

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model into a folder, which must not exist yet, or be empty; ``woodlot.load`` reads it."""
        check_is_fitted(self, "forest_")
        forest = self.forest_
        save_parts(folder, StoredForest(forest.coordinator, forest.parts, {}, self._notes()))

    def _notes(self) -> dict[str, Any]:
        """All that makes a fitted model of a forest, in plain values."""
        origin = self._origin
        return {
            **settings_of(self),
            "origin": {"names": list(origin.names), "label": origin.label, "criterion": origin.criterion},
            "named": hasattr(self, "feature_names_in_"),
            "class_type": self.classes_.dtype.str if hasattr(self, "classes_") else None,
            "disclosure": self.disclosure_.to_dicts(),
            "cost": asdict(self.cost_),
            "privacy": self.privacy_.to_dict(),
            "epoch": self.forest_.epoch,
            **notes_of_receipts(self),
        }

    def _restore(self, notes: Mapping[str, Any]) -> None:
        """Set what a method has noted besides."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class WeightedForest(WholeForest):
    """A whole forest whose clients can have weights of rows."""

    @watched
    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, features: Any = None, exclude: Any = None
    ) -> Self:
        """Grow the forest. If it fails, the model is what it was before.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            One table, whose rows are dealt to simulated clients (see ``parties``); or a federation of layout "rows".
        y : array-like or str
            Labels; on a federation the name of their column, which every client has. In one process also an array with
            one label per row, such as ``fed["column"]``, which is then not learnt from.
        sample_weight : array-like or str, optional
            Weights of rows; on a federation the name of their column, which every client has and nothing is learnt
            from. With ``bootstrap=True`` how often a row is drawn compared with others; otherwise how often it counts.
        features, exclude : sequence of str, optional
            On a federation in this process, the columns to learn from, or not to learn from, at every client.

        Returns
        -------
        self
        """
        return self._fit(X, y, sample_weight, features, exclude)


class WholeForestClassifier(ClassifierMixin, WholeForest):  # type: ignore[misc]
    """The classifier's part."""

    _task = "classes"

    def _check_labels(self, y: NDArray[Any]) -> NDArray[Any]:
        y = check_classes(y)
        self.classes_: NDArray[Any] = class_array(Target.of_classes(y).classes, y.dtype)
        return y

    def _set_forest(self, forest: GrownForest) -> None:
        super()._set_forest(forest)
        if not hasattr(self, "classes_"):
            self.classes_ = class_array(forest.coordinator.classes)
        self.n_classes_ = len(self.classes_)

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Class probabilities: the mean of the trees'."""
        return self._outputs(X)

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable class of each row."""
        outputs = self._outputs(X)  # first: it knows whether the model is fitted
        return np.asarray(self.classes_[outputs.argmax(axis=1)])


class WholeForestRegressor(RegressorMixin, WholeForest):  # type: ignore[misc]
    """The regressor's part."""

    _task = "targets"

    def _check_labels(self, y: NDArray[Any]) -> NDArray[Any]:
        return check_targets(y)

    def predict(self, X: Any) -> NDArray[np.float64]:
        """Mean of the trees' answers for each row."""
        return self._outputs(X)[:, 0]


# --- parameters ---


def with_weights(plan: HorizontalPlan) -> HorizontalPlan:
    """The plan with weights of rows."""
    if not isinstance(plan, LosslessPlan | LocalPlan):
        raise DataError(
            f"forests of the method {plan.method!r} take no sample_weight; use HorizontalForest* (lossless)"
        )
    return msgspec.structs.replace(plan, row_weights=True)


def growth_fields(params: Mapping[str, Any], task: Task, seed: int) -> dict[str, Any]:
    """The fields that all plans have; numbers of any library become Python's own."""
    p = params
    return {
        "task": task,
        "n_estimators": int(p["n_estimators"]),
        "criterion": "entropy" if p["criterion"] == "log_loss" else p["criterion"],
        "max_depth": None if p["max_depth"] is None else int(p["max_depth"]),
        "min_samples_split": int(p["min_samples_split"]),
        "min_samples_leaf": int(p["min_samples_leaf"]),
        "max_features": _number(p["max_features"]),
        "bootstrap": bool(p["bootstrap"]),
        "max_samples": _number(p["max_samples"]),
        "max_bins": None if p["max_bins"] is None else int(p["max_bins"]),
        "seed": seed,
    }


def _number(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return int(value) if is_int(value) else float(value)


def deal_rows(parties: Any, n_rows: int, seed: int) -> tuple[NDArray[np.int64], list[str]]:
    """The number of each row's simulated client, and the clients' names.

    A number deals rows at random and as evenly as can be; where there are fewer rows than clients, some have none.
    """
    if is_int(parties):
        names = [f"client-{k + 1}" for k in range(int(parties))]
        if n_rows < parties:
            return np.arange(n_rows), names
        return deal_evenly(n_rows, int(parties), seed), names
    clients = np.asarray(parties)
    if len(clients) != n_rows:
        raise DataError(f"parties names the clients of {len(clients)} rows, and X has {n_rows}; name one for each row")
    labels, client = np.unique(clients.astype(str), return_inverse=True)
    names = [party_name(label if clients.dtype.kind in "UTO" else f"client-{label}") for label in labels]
    return client.astype(np.int64), names
