"""What the classifier and the regressor share: they validate, and delegate to a federation."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.validation import check_is_fitted

from woodlot.data.tables import read_table
from woodlot.estimators.checks import check_parameters, check_weights, require
from woodlot.estimators.complete import CompleteForest
from woodlot.estimators.dealing import deal_columns
from woodlot.estimators.labels import ClassWeights
from woodlot.estimators.origin import Origin
from woodlot.estimators.planning import plan_of
from woodlot.estimators.progress import progress_bar
from woodlot.estimators.tables import check_table, check_table_again
from woodlot.exceptions import DataError, PolicyError, WoodlotError
from woodlot.federation import Federation, GrownForest
from woodlot.protocols.messages.vertical import Wire
from woodlot.protocols.vertical.files import StoredForest, load_party, save_parts
from woodlot.protocols.vertical.predict import predict_in_one_round, predict_node_by_node
from woodlot.protocols.vertical.reveal import splitting_parties
from woodlot.protocols.vertical.target import Target
from woodlot.runtime.audit import Cost, Disclosures
from woodlot.trees.parallel import effective_jobs
from woodlot.trees.predict import Vote

Method = Literal["local", "one-round", "classical"]
Outputs = tuple[NDArray[np.float64], NDArray[np.bool_]]


class UncertainPredictionWarning(UserWarning):
    """Some rows followed both branches somewhere, because a party or its row was missing."""


class FederatedForest(BaseEstimator):  # type: ignore[misc]
    """A random forest over columns that lie at different parties."""

    _criteria: tuple[str, ...]
    _origin: Origin
    n_jobs: int | None
    random_state: Any
    verbose: int
    parties: int | Mapping[str, Sequence[Any]]
    criterion: str

    # --- fitting ---

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Grow the forest. If it fails, the model is what it was before.

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
        grown = copy.copy(self)
        _forget(grown)
        if isinstance(X, Federation):
            grown._fit_federation(X, y, sample_weight)
        else:
            grown._fit_table(X, y, sample_weight)
        _forget(self)
        self.__dict__.update(grown.__dict__)
        return self

    def _fit_table(self, X: Any, y: Any, sample_weight: Any) -> None:
        table, y = check_table(self, X, y)
        weights = check_weights(sample_weight, y)
        target = self._make_target(y, weights)
        dealing = deal_columns(table, self.parties)
        federation = Federation.dealt(table, dealing)
        self._origin = Origin(table.names, dealing, None, self.criterion)
        self._grow(federation, next(iter(dealing)), target, {})

    def _fit_federation(self, federation: Federation, y: Any, sample_weight: Any) -> None:
        if not isinstance(y, str):
            raise DataError("on a federation y names the labels: 'party.column', such as y='bank.default'")
        holder, column = federation.locate(y)
        hidden, weights = {column}, None
        labels = federation.labels(y)
        if sample_weight is not None:
            weights, weight_column = _weights_of(federation, sample_weight, holder)
            hidden.add(weight_column)
        target = self._make_target(labels, weights)
        self._origin = Origin((), None, y, self.criterion)
        self._grow(federation, holder, target, {holder: sorted(hidden)})
        self.n_features_in_ = len(self.forest_.coordinator.feature_keys)

    def _grow(self, federation: Federation, holder: str, target: Target, hidden: Mapping[str, Sequence[str]]) -> None:
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        plan = plan_of(self.get_params(deep=False), seed, self._class_weights(target), bool(target.classes))
        with progress_bar(self.verbose, "growing trees") as show:
            forest, ledger = federation.fit(
                plan,
                holder,
                target,
                not_features=hidden,
                n_jobs=effective_jobs(self.n_jobs),
                on_progress=show,
            )
        self.disclosure_: Disclosures = ledger.disclosure()
        self.cost_: Cost = ledger.cost()
        self._set_forest(forest)
        if forest.oob_outputs is not None and np.isnan(forest.oob_outputs).any():
            warnings.warn(
                "Some inputs do not have OOB scores. This probably means too few trees were used to compute any "
                "reliable OOB estimates.",
                UserWarning,
                stacklevel=4,
            )

    def _set_forest(self, forest: GrownForest) -> None:
        self.forest_ = forest
        if forest.oob_score is not None:
            self.oob_score_ = forest.oob_score

    # --- predicting ---

    def _outputs(self, X: Any, method: Method | None, wire: Wire) -> Outputs:
        """Mean answers of the trees, and which rows are uncertain; for methods that the user calls."""
        check_is_fitted(self, "forest_")
        require(
            method in (None, "local", "one-round", "classical"),
            "method", method, "'local', 'one-round' or 'classical'",
        )  # fmt: skip
        require(wire in ("decisions", "leaves", "ranks"), "wire", wire, "'decisions', 'leaves' or 'ranks'")
        if isinstance(X, Federation):
            if method == "local":
                raise ValueError("method='local' needs all columns in one table; use 'one-round' on a federation")
            federation = X
        elif method in (None, "local"):
            table = self._check_again(X)
            outputs = self.combine().outputs(table, self._vote, effective_jobs(self.n_jobs))
            return outputs, np.zeros(table.n_rows, np.bool_)
        else:
            federation = self._deal_again(X)
        outputs, uncertain = self._ask(federation, method or "one-round", wire)
        if uncertain.any():
            absent = [p for p in splitting_parties(self.forest_.coordinator) if p not in self._present(federation)]
            reason = f"{absent} are absent" if absent else "a party does not have them"
            warnings.warn(
                f"{int(uncertain.sum())} of {len(uncertain)} rows were predicted without all parties ({reason}): they "
                "followed both branches where an answer was missing",
                UncertainPredictionWarning,
                stacklevel=3,
            )
        return outputs, uncertain

    def _check_again(self, X: Any) -> Any:
        """A table to predict, with the columns of the training's."""
        if self._origin.dealing is None:
            return read_table(X)
        return check_table_again(self, X, self._origin.names)

    def _deal_again(self, X: Any) -> Federation:
        if self._origin.dealing is None:
            raise ValueError("this model was grown on a federation; give a federation, or combine() its parts")
        return Federation.dealt(self._check_again(X), self._origin.dealing)

    def _present(self, federation: Federation) -> list[str]:
        return [p for p in federation.parties if p in self.forest_.parts]

    def _ask(
        self, federation: Federation, method: Method, wire: Wire, shuffled: tuple[int, int] | None = None
    ) -> Outputs:
        """Predict with the parties of a federation that have a part of the forest."""
        forest, n_jobs = self.forest_.coordinator, effective_jobs(self.n_jobs)
        present = self._present(federation)
        if not present:
            raise DataError(
                f"none of the parties {list(federation.parties)} has a part of this forest; "
                f"its parties are {list(forest.parties)}"
            )
        if federation.n_rows == 0:
            raise DataError(
                "Found array with 0 sample(s) while a minimum of 1 is required: there are no rows to predict"
            )
        if method == "classical":
            protocol = predict_node_by_node(forest, present, federation.n_rows, self._vote)
        else:
            protocol = predict_in_one_round(forest, present, federation.n_rows, wire, self._vote, n_jobs, shuffled)
        answer, ledger = federation.ask(protocol, self.forest_.parts, n_jobs=n_jobs)
        memo = self.forest_.memo
        memo.cost, memo.disclosure = ledger.cost(), ledger.disclosure()
        return answer

    def apply(self, X: Any) -> NDArray[np.int32]:
        """Leaf of every row in every tree, numbered from 0 in each tree's preorder of nodes."""
        complete = self.combine()
        leaf = complete.apply(self._check_again(X), effective_jobs(self.n_jobs))
        structure = self.forest_.coordinator.structure
        node = np.flatnonzero(structure.right < 0)[leaf]
        return np.asarray(node - structure.offset[:-1], dtype=np.int32)

    def permutation_importance(self, X: Any, y: Any = None, *, n_repeats: int = 5, random_state: Any = None) -> Bunch:
        """How much the score falls when a feature's values are shuffled among the rows, by its own party.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            Rows to score.
        y : array-like or str
            Their labels; on a federation where they are, by default where those of the training were.
        n_repeats : int
            How often each feature is shuffled.
        random_state : int, RandomState or None
            Decides the shuffling.

        Returns
        -------
        Bunch
            ``importances`` of shape (n_features, n_repeats), their ``importances_mean`` and ``importances_std``;
            features in the order of ``feature_importances_``.
        """
        check_is_fitted(self, "forest_")
        federation = X if isinstance(X, Federation) else self._deal_again(X)
        labels = self._labels_of(X, y)
        rng = check_random_state(random_state)
        baseline = self._score_outputs(self._ask(federation, "one-round", "decisions")[0], labels)
        n_features = len(self.forest_.coordinator.feature_keys)
        falls = np.empty((n_features, n_repeats))
        for feature in range(n_features):
            for repeat in range(n_repeats):
                seed = int(rng.randint(np.iinfo(np.int32).max))
                outputs, _ = self._ask(federation, "one-round", "decisions", (feature, seed))
                falls[feature, repeat] = baseline - self._score_outputs(outputs, labels)
        falls = self._origin.reorder(falls)
        return Bunch(importances=falls, importances_mean=falls.mean(axis=1), importances_std=falls.std(axis=1))

    def _score(self, X: Any, y: Any, sample_weight: Any) -> float:
        check_is_fitted(self, "forest_")
        labels = self._labels_of(X, y)
        if isinstance(X, Federation) and isinstance(sample_weight, str):
            sample_weight, _ = _weights_of(X, sample_weight, X.locate(sample_weight)[0])
        return self._score_outputs(self._outputs(X, None, "decisions")[0], labels, sample_weight)

    def _labels_of(self, X: Any, y: Any) -> Any:
        if not isinstance(X, Federation) or (y is not None and not isinstance(y, str)):
            return y
        where = self._origin.label if y is None else y
        if where is None:
            raise DataError("this model was not fitted on a federation; say where the labels are: y='party.column'")
        return X.labels(where)

    # --- what is known about the forest ---

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """Mean decrease of impurity, one per column of X; on a federation party after party: ``importance_owners_``."""
        check_is_fitted(self, "forest_")
        return self._origin.reorder(self.forest_.coordinator.importances())

    @property
    def importance_owners_(self) -> NDArray[np.str_]:
        """The party behind each entry of ``feature_importances_``."""
        check_is_fitted(self, "forest_")
        forest = self.forest_.coordinator
        return self._origin.reorder(np.array(forest.parties)[forest.feature_party])

    @property
    def prediction_cost_(self) -> Cost:
        """Rounds, bytes and seconds of the last prediction that parties took part in."""
        check_is_fitted(self, "forest_")
        if self.forest_.memo.cost is None:
            raise AttributeError("prediction_cost_ is there after a prediction on a federation")
        return self.forest_.memo.cost

    @property
    def prediction_disclosure_(self) -> Disclosures:
        """Who saw what during the last prediction that parties took part in."""
        check_is_fitted(self, "forest_")
        if self.forest_.memo.disclosure is None:
            raise AttributeError("prediction_disclosure_ is there after a prediction on a federation")
        return self.forest_.memo.disclosure

    @property
    def estimators_(self) -> list[Any]:
        """The trees as scikit-learn's, where the complete model is known and scikit-learn's trees can express it."""
        check_is_fitted(self, "forest_")
        try:
            trees: list[Any] = self.combine().to_sklearn().estimators_
        except WoodlotError as error:  # so that hasattr() tells whether they are there
            raise AttributeError(f"estimators_: {error}") from error
        return trees

    # --- the parts ---

    def combine(self, folders: Sequence[str | os.PathLike[str]] | None = None) -> CompleteForest:
        """The complete model, from the parts that parties have shared and those in ``folders`` that they hand over.

        Parameters
        ----------
        folders : sequence of paths, optional
            Party folders that ``save`` has written.

        Returns
        -------
        CompleteForest
        """
        check_is_fitted(self, "forest_")
        forest = self.forest_
        if not folders and forest.memo.complete is not None and forest.memo.complete.vote == self._vote:
            complete: CompleteForest = forest.memo.complete
            return complete
        if isinstance(folders, str | os.PathLike):
            folders = [folders]
        parts = dict(forest.shared) | dict(load_party(folder, forest.coordinator) for folder in folders or ())
        absent = [p for p in splitting_parties(forest.coordinator) if p not in parts]
        if absent and forest.unwilling:
            raise PolicyError(
                f"{list(forest.unwilling)} did not agree to share the model, so the parts of {absent} stay with these "
                "parties; predict on a federation, or have them hand over their folders: combine(folders)"
            )
        complete = CompleteForest(
            forest.coordinator,
            parts,
            self._origin.names or None,
            classes=getattr(self, "classes_", None),
            vote=self._vote,
            criterion=self._origin.criterion,
        )
        if not folders:
            forest.memo.complete = complete
        return complete

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model: one folder for the coordinator and one for each party, none with anything of another.

        Parameters
        ----------
        folder : path
            Where; must not exist yet, or be empty.
        """
        check_is_fitted(self, "forest_")
        from woodlot.estimators.loading import notes_of

        forest = self.forest_
        # simulated parties share everything by nature: it would only be written twice
        shared = forest.shared if self._origin.dealing is None else {}
        save_parts(folder, StoredForest(forest.coordinator, forest.parts, shared, notes_of(self)))

    # --- what a classifier and a regressor do each in their way ---

    @property
    def _vote(self) -> Vote:
        return "soft"

    def _score_outputs(self, outputs: NDArray[np.float64], y: Any, sample_weight: Any = None) -> float:
        raise TypeError("a forest scores as a classifier or a regressor")

    def _make_target(self, y: NDArray[Any], weights: NDArray[np.float64] | None) -> Target:
        raise TypeError("a forest learns as a classifier or a regressor")

    def _class_weights(self, target: Target) -> ClassWeights:
        return None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _forget(model: FederatedForest) -> None:
    """Remove what a fit has left: all that scikit-learn takes for a fitted attribute."""
    for name in [name for name in vars(model) if name.endswith("_") and not name.startswith("_")]:
        delattr(model, name)


def _weights_of(federation: Federation, column: Any, holder: str) -> tuple[NDArray[np.float64] | None, str]:
    if not isinstance(column, str):
        raise DataError("on a federation sample_weight names the weights: 'party.column', at the label holder")
    party, name = federation.locate(column)
    if party != holder:
        raise DataError(f"weights must be at the label holder {holder}, not at {party}")
    values = federation.labels(column, what="sample_weight")
    return check_weights(values, values), name
