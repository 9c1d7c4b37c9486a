"""What the federated forests share: they validate, make a plan, and delegate to a federation."""

from __future__ import annotations

import os
import warnings
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from sklearn.utils import Bunch, check_random_state
from sklearn.utils.validation import check_is_fitted

from woodlot.data.tables import read_table
from woodlot.estimators.callbacks import fit_progress
from woodlot.estimators.complete import CompleteForest
from woodlot.estimators.estimator_settings import settings_of
from woodlot.estimators.explaining import CompleteShapley, explanation_of
from woodlot.estimators.fitting import ColumnsModel
from woodlot.estimators.input_tables import ClassWeights, check_table_again
from woodlot.estimators.parameters import require
from woodlot.estimators.progress import progress_bar
from woodlot.estimators.revoking import Change, HoldOut, Training, revoke
from woodlot.estimators.watching import WatchedForest
from woodlot.evaluation.explanations import Explanation
from woodlot.exceptions import DataError, PolicyError, WoodlotError
from woodlot.federation import Answer, AnyFederation, Federation, GrownForest, Labels, Route, as_federation
from woodlot.identity.erasure import ErasureReceipt
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import Receipt, SignedRequest
from woodlot.protocols.core.forest_parts import splitting_parties
from woodlot.protocols.core.forest_plan import DEFAULT_MEMORY, HIDDEN_BINS, ForestPlan, Task
from woodlot.protocols.core.message import Progress
from woodlot.protocols.core.target import Target
from woodlot.protocols.vertical.files import StoredForest, load_party, save_parts
from woodlot.protocols.vertical.forest_messages import Wire
from woodlot.protocols.vertical.out_of_bag import WITHHELD
from woodlot.runtime.audit import Account, Cost, Disclosures
from woodlot.trees.parallel import effective_jobs
from woodlot.trees.predict import Vote

Method = Literal["local", "one-round", "classical"]


class UncertainPredictionWarning(UserWarning):
    """Some rows followed both branches somewhere, because a party or its row was missing."""


class FederatedForest(WatchedForest, ColumnsModel):
    """A random forest over columns that lie at different parties."""

    _task: Task
    receipts_: tuple[Receipt, ...]
    erasures_: tuple[ErasureReceipt, ...]
    n_jobs: int | None
    random_state: Any
    verbose: int
    criterion: str

    # --- fitting ---

    def _learn(self, federation: AnyFederation, labels: Labels) -> None:
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        params = self.get_params(deep=False)
        plan = plan_of(params, seed, self._class_weights(labels.target), self._task)
        if params.get("bootstrap_by") == "row":
            if params["device"] == "cuda":
                raise DataError("bootstrap_by='row' grows trees on the CPU; use device='auto' or 'cpu'")
            federation, labels = federation.drawn_by_row(plan, labels)
        with fit_progress(self, "growing trees") as show:
            forest, account = federation.fit_forest(
                plan,
                labels,
                settings=partial(settings_of, self),
                n_jobs=effective_jobs(self.n_jobs),
                device=params["device"],
                on_progress=show,
            )
        forest = in_given_order(forest, federation)
        self.disclosure_: Disclosures = account.disclosure
        self.cost_: Cost = account.cost
        self._set_forest(forest)
        if self._origin.dealing is None:
            self.n_features_in_ = len(forest.coordinator.feature_keys)
        forest.memo.training = Training(federation, labels)
        unscored = forest.oob_outputs is not None and bool(np.isnan(forest.oob_outputs).any())
        if unscored or self._is_withheld(forest):
            warnings.warn(
                "Some inputs do not have OOB scores. This probably means too few trees were used to compute any "
                "reliable OOB estimates." + (f" oob_score_ is NaN: {WITHHELD}" if forest.oob_score is None else ""),
                UserWarning,
                stacklevel=4,
            )

    def _set_forest(self, forest: GrownForest) -> None:
        self.forest_ = forest
        if forest.oob_score is not None:
            self.oob_score_ = forest.oob_score
        elif forest.oob_outputs is not None or self._is_withheld(forest):
            self.oob_score_ = float("nan")
        if forest.oob_curve is not None:
            self.oob_curve_ = forest.oob_curve

    def _is_withheld(self, forest: GrownForest) -> bool:
        """Whether there is no score although it was ordered, of a connected federation, which tells no answers."""
        return forest.model is not None and forest.oob_score is None and bool(getattr(self, "oob_score", False))

    # --- predicting ---

    def _outputs(self, X: Any, method: Method | None, wire: Wire, sealed: bool = False) -> Answer:
        """Mean answers of the trees, and which rows are uncertain; for methods that the user calls."""
        check_is_fitted(self, "forest_")
        require(
            method in (None, "local", "one-round", "classical"),
            "method", method, "'local', 'one-round' or 'classical'",
        )  # fmt: skip
        require(wire in ("decisions", "leaves", "ranks"), "wire", wire, "'decisions', 'leaves' or 'ranks'")
        if sealed and (method not in (None, "one-round") or wire != "decisions"):
            raise ValueError("sealed=True is a method and a form of its own; leave method and wire as they are")
        if method == "local" and as_federation(X) is not None:
            raise ValueError("method='local' needs all columns in one table; use 'one-round' on a federation")
        return self._routed(X, "sealed" if sealed else None if method == "local" else method, wire)

    def _routed(self, X: Any, route: Route | None, wire: Wire, stacklevel: int = 4) -> Answer:
        """As `_outputs`, by a route that was checked; None: in this process where X is one table, else in one round."""
        federation = as_federation(X)
        if federation is None and route is None:
            table = self._check_again(X)
            outputs = self.combine().outputs(table, self._vote, effective_jobs(self.n_jobs), self._device)
            return outputs, np.zeros(table.n_rows, np.bool_)
        federation = self._deal_again(X) if federation is None else federation
        outputs, uncertain = self._ask(federation, route or "one-round", wire)
        if uncertain.any():
            present = federation.present(self.forest_)
            absent = [p for p in splitting_parties(self.forest_.coordinator) if p not in present]
            reason = f"{absent} are absent" if absent else "a party does not have them"
            warnings.warn(
                f"{int(uncertain.sum())} of {len(uncertain)} rows were predicted without all parties ({reason}): they "
                "followed both branches where an answer was missing",
                UncertainPredictionWarning,
                stacklevel=stacklevel,
            )
        return outputs, uncertain

    @property
    def _device(self) -> str:
        return str(getattr(self, "device", "cpu"))

    def _check_again(self, X: Any) -> Any:
        """A table to predict, with the columns of the training's."""
        if self._origin.dealing is None:
            return read_table(X)
        return check_table_again(self, X, self._origin.names)

    def _deal_again(self, X: Any) -> Federation:
        if self._origin.dealing is None:
            raise ValueError("this model was grown on a federation; give a federation, or combine() its parts")
        return Federation.dealt(self._check_again(X), self._origin.dealing)

    def _ask(
        self, federation: AnyFederation, method: Route, wire: Wire, shuffled: tuple[int, int] | None = None
    ) -> Answer:
        """Predict with the parties of a federation that have a part of the forest."""
        forest = self.forest_.coordinator
        if not federation.present(self.forest_):
            raise DataError(
                f"none of the parties {list(federation.parties)} has a part of this forest; "
                + (
                    "their folders were not loaded: load the folder that holds theirs too, or combine() them"
                    if set(federation.parties) & set(forest.parties)
                    else f"its parties are {list(forest.parties)}"
                )
            )
        answer, account = self._predict_on(federation, method, wire, shuffled)
        memo = self.forest_.memo
        memo.cost, memo.disclosure = account.cost, account.disclosure
        return answer

    def _predict_on(
        self, federation: AnyFederation, method: Route, wire: Wire, shuffled: tuple[int, int] | None
    ) -> tuple[Answer, Account]:
        return federation.predict(
            self.forest_, method, wire, self._vote, shuffled=shuffled, n_jobs=effective_jobs(self.n_jobs)
        )

    def apply(self, X: Any) -> NDArray[np.int32]:
        """Leaf of every row in every tree, numbered from 0 in each tree's preorder of nodes."""
        complete = self.combine()
        leaf = complete.apply(self._check_again(X), effective_jobs(self.n_jobs), self._device)
        structure = self.forest_.coordinator.structure
        node = np.flatnonzero(structure.right < 0)[leaf]
        return np.asarray(node - structure.offset[:-1], dtype=np.int32)

    def permutation_importance(
        self,
        X: Any,
        y: Any = None,
        *,
        n_repeats: int = 5,
        random_state: Any = None,
        sealed: bool = False,
        by: Literal["column", "party"] = "column",
    ) -> Bunch:
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
        sealed : bool, default=False
            Predict under seal, as for ``predict``.
        by : {"column", "party"}, default="column"
            Shuffle one column at a time; or all columns of a party together, so that what they say with one another
            stays, on one table or a federation in this process.

        Returns
        -------
        Bunch
            ``importances`` of shape (n_features, n_repeats), their ``importances_mean`` and ``importances_std``, and
            the ``owners`` of the features, in the order of ``feature_importances_``; or one line per party.
        """
        check_is_fitted(self, "forest_")
        federation = as_federation(X)
        labels = y if federation is None else self._origin.label_column(y)
        rows = self._deal_again(X) if federation is None else federation
        require(by in ("column", "party"), "by", by, "'column' or 'party'")
        self._seen.warn(X, "shuffle held-out rows: train, test = fed.split()", stacklevel=3)
        route: Route = "sealed" if sealed else "one-round"
        score = self._scorer(rows, labels, route)
        rng = check_random_state(random_state)
        baseline = score(None)
        if by == "party":
            return self._permuted_parties(rows, labels, route, baseline, n_repeats, rng)
        n_features = len(self.forest_.coordinator.feature_keys)
        falls = np.empty((n_features, n_repeats))
        for feature in range(n_features):
            for repeat in range(n_repeats):
                seed = int(rng.randint(np.iinfo(np.int32).max))
                falls[feature, repeat] = baseline - score((feature, seed))
        return _importances(self._origin.reorder(falls), self.importance_owners_)

    def _permuted_parties(
        self, rows: AnyFederation, labels: Any, route: Route, baseline: float, n_repeats: int, rng: Any
    ) -> Bunch:
        forest = self.forest_.coordinator
        parties = [p for i, p in enumerate(forest.parties) if (forest.feature_party == i).any()]
        # the labels are read before anything is shuffled: they may lie in a column of the party
        truth = rows.scored_labels(labels)
        falls = np.empty((len(parties), n_repeats))
        for place, party in enumerate(parties):
            for repeat in range(n_repeats):
                other = rows.with_shuffled(party, int(rng.randint(np.iinfo(np.int32).max)))
                falls[place, repeat] = baseline - self._scorer(other, truth, route)(None)
        return _importances(falls, np.array(parties))

    def explain(self, X: Any) -> Explanation:
        """Divide the model's answer for each row among the parties and their columns: exact Shapley values.

        The values are those of ``shap.TreeExplainer`` on ``combine().to_sklearn()`` (path-dependent TreeSHAP), also
        with categories, which scikit-learn's trees do not have. On a federation every party tells the rows' sides at
        all of its nodes, which is more than a prediction tells: its policy says what explanations may show
        (``explains`` of `Federation.local`, and of ``[policy]`` between organisations, where the label holder computes
        the values and seals them to this process).

        Parameters
        ----------
        X : Federation, array, data frame or Arrow table
            Rows to explain; a table where the model is complete. Between organisations a part of the common rows
            (``federation.split``), or rows by their ids (``federation.named_rows``).

        Returns
        -------
        Explanation
            By column where its owner agrees, and always ``by_party()``.
        """
        check_is_fitted(self, "forest_")
        federation = as_federation(X)
        if federation is None:
            owners = self._owners()
            shapley = CompleteShapley(self.combine(), self._vote)
            table = self._check_again(X)
            return shapley.explain(table, effective_jobs(self.n_jobs), owners, by_owner=self._origin.dealing is None)
        with progress_bar(self.verbose, "explaining rows") as show:
            found, account = federation.explain(
                self.forest_, self._vote, n_jobs=effective_jobs(self.n_jobs), on_progress=show
            )
        memo = self.forest_.memo
        memo.cost, memo.disclosure = account.cost, account.disclosure
        if found.uncertain.any():
            warnings.warn(
                f"{int(found.uncertain.sum())} of {len(found.uncertain)} rows were explained without all parties, "
                "whose columns then have no part in the answers",
                UncertainPredictionWarning,
                stacklevel=2,
            )
        return explanation_of(found, getattr(self, "classes_", None), federation)

    def _owners(self) -> dict[str, str]:
        """The party of each column of the complete model."""
        if self._origin.dealing is not None:
            return {name: party for party, names in self._origin.dealing.items() for name in names}
        return {name: party for party, part in self.forest_.shared.items() for name in part.names}

    def _scorer(self, federation: AnyFederation, y: Any, route: Route) -> Callable[[tuple[int, int] | None], float]:
        """Score of the predictions, perhaps with one feature shuffled: here, or where the labels are."""

        def score(shuffled: tuple[int, int] | None) -> float:
            def here(labels: Any, weights: Any) -> float:
                return self._score_outputs(self._ask(federation, route, "decisions", shuffled)[0], labels, weights)

            return federation.score(self.forest_, y, None, here, vote=self._vote, method=route, shuffled=shuffled)

        return score

    def _score(self, X: Any, y: Any, sample_weight: Any, route: Route | None) -> float:
        """Score of the predictions; ``route`` as for `_routed`."""
        check_is_fitted(self, "forest_")

        def here(labels: Any, weights: Any) -> float:
            return self._score_outputs(self._routed(X, route, "decisions", stacklevel=6)[0], labels, weights)

        federation = as_federation(X)
        if federation is None:
            score = here(y, sample_weight)
        else:
            where, method = self._origin.label_column(y), route or "one-round"
            score = federation.score(self.forest_, where, sample_weight, here, vote=self._vote, method=method)
        self._seen.warn(X, "score held-out rows, or fit with oob_score=True and read oob_score_")
        return score

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

    def revoke(
        self,
        party: str,
        *,
        level: int | None = None,
        holdout: HoldOut | None = None,
        data: Any = None,
        identity: str | os.PathLike[str] | Identity | None = None,
        request: SignedRequest | None = None,
    ) -> Receipt:
        """Take a party out of the forest. Until all is done the model is what it was before.

        Parameters
        ----------
        party : str
            Who leaves: neither the label holder nor the last party.
        level : {1, 3}
            1: its nodes, and all under them, are destroyed and grown again without it; other branches stay. 3: exact,
            the forest is from then on, bit for bit, the one grown from scratch without it on the same rows. Rows that
            only the leaver lacked stay out, as in the training; to learn from them, fit again without it. By default 1,
            and 3 for a forest of ``protection="hidden"``, which is grown again as a whole on secret shares.
        holdout : (X, y) or Federation, optional
            Rows to score before and after. Without it the receipt has the out-of-bag scores of ``oob_score=True``.
        data : (X, y), (X, y, sample_weight) or Federation, optional
            What the model was fitted on; needed where it was loaded or copied. The leaver's columns of it are not used.
        identity : path or Identity, optional
            Who signs the receipt; by default a fresh key.
        request : SignedRequest, optional
            A signed request of the leaver's, to be checked and kept in the receipt; by default made here.

        Returns
        -------
        Receipt
            Signed; also the last of ``receipts_``.
        """
        return revoke(self, party, level, holdout, data, identity, request)

    def forget(
        self,
        ids: Any,
        *,
        data: Any = None,
        identity: str | os.PathLike[str] | Identity | None = None,
        prove: bool = False,
    ) -> ErasureReceipt:
        """Take rows out of the forest, exactly. Until all is done the model is what it was before.

        From then on the forest is, bit for bit, the one that grows without these rows. With ``bootstrap_by="row"`` only
        the nodes that these rows were in are looked at; otherwise, and where the receipt says so (``again``), the
        whole forest is grown again. ``max_bins`` keeps the edges of its bins. In one process, with
        ``protection="open"``.

        Parameters
        ----------
        ids : array-like
            Ids of the rows; where rows have no ids, their numbers in the table that was given to ``fit``. Ids of which
            the model has no row are counted, and change nothing.
        data : (X, y), (X, y, sample_weight) or Federation, optional
            What the model is of; needed where it was loaded or copied.
        identity : path or Identity, optional
            Who signs the receipt; by default a fresh key.
        prove : bool, default=False
            Also grow the forest without the rows and compare: the receipt then says ``proved``.

        Returns
        -------
        ErasureReceipt
            Signed; also the last of ``erasures_``. Its ``key`` tells which ids it is about, and is kept nowhere else.

        Examples
        --------
        >>> import woodlot as wl
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = wl.FederatedForestClassifier(n_estimators=10, bootstrap_by="row", random_state=0).fit(X, y)
        >>> receipt = model.forget([3, 17], prove=True)
        >>> receipt.statement.rows, receipt.statement.rows_left, receipt.statement.proved
        (2, 148, True)
        """
        from woodlot.estimators.forgetting import forget

        return forget(self, ids, data, identity, prove)

    # --- what each kind of forest, and a classifier and a regressor, do in their way ---

    _levels: tuple[int, ...] = (1, 3)

    def _notes(self) -> dict[str, Any] | None:
        """What a file must say of this kind of forest besides what all say."""
        return None

    def _restored(self, forest: GrownForest, notes: Mapping[str, Any]) -> GrownForest:
        """The forest of a file."""
        return forest

    def _label_holder(self, labels: Labels) -> str | None:
        """Who cannot leave, because it has the labels."""
        return labels.holder

    def _regrow(
        self,
        federation: Federation,
        labels: Labels,
        leavers: Sequence[str],
        level: int,
        show: Callable[[Progress], None] | None,
    ) -> tuple[GrownForest, Change, Account]:
        """The forest without some parties, regrown in this process."""
        if len(leavers) > 1:
            raise DataError("parties leave this forest one at a time; call revoke for each of them")
        plan = self.forest_.plan
        if plan is None:
            raise DataError("this model was saved by a Woodlot that did not note how it was grown; fit it again")
        return federation.revoke(
            self.forest_, plan, labels, leavers[0], 1 if level == 1 else 3, patched=self._patched,
            n_jobs=effective_jobs(self.n_jobs), on_progress=show,
        )  # fmt: skip

    @property
    def _patched(self) -> bool:
        """Whether the last revocation was not exact: another forest would grow from scratch."""
        receipts: tuple[Receipt, ...] = getattr(self, "receipts_", ())
        return bool(receipts) and not receipts[-1].statement.exact

    @property
    def _vote(self) -> Vote:
        return "soft"

    @abstractmethod
    def _score_outputs(self, outputs: NDArray[np.float64], y: Any, sample_weight: Any = None) -> float:
        """Accuracy or R2 of what the trees answer."""

    def _class_weights(self, target: Target | None) -> ClassWeights:
        return None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _importances(falls: NDArray[np.float64], owners: NDArray[Any]) -> Bunch:
    mean, spread = falls.mean(axis=1), falls.std(axis=1)
    return Bunch(importances=falls, importances_mean=mean, importances_std=spread, owners=owners)


def in_given_order(forest: GrownForest, federation: AnyFederation) -> GrownForest:
    """The forest with its out-of-bag answers in the order of the rows that were given to ``fit``."""
    drawn = getattr(federation, "drawn", None)
    if drawn is None or forest.oob_outputs is None:
        return forest
    return replace(forest, oob_outputs=forest.oob_outputs[drawn.in_given_order])


# --- from checked parameters to the plan ---


def plan_of(params: Mapping[str, Any], seed: int, class_weights: ClassWeights, task: Task) -> ForestPlan:
    """What is to be grown; numbers of any library become Python's own."""
    p = params
    features = p["max_features"]
    return ForestPlan(
        task=task,
        n_estimators=int(p["n_estimators"]),
        entropy=p["criterion"] in ("entropy", "log_loss"),
        max_depth=None if p["max_depth"] is None else int(p["max_depth"]),
        min_samples_split=_number(p["min_samples_split"]),
        min_samples_leaf=_number(p["min_samples_leaf"]),
        min_weight_fraction_leaf=float(p["min_weight_fraction_leaf"]),
        max_features=features if features is None or isinstance(features, str) else _number(features),
        max_leaf_nodes=None if p["max_leaf_nodes"] is None else int(p["max_leaf_nodes"]),
        min_impurity_decrease=float(p["min_impurity_decrease"]),
        bootstrap=bool(p["bootstrap"]),
        max_samples=None if p["max_samples"] is None else _number(p["max_samples"]),
        class_weight=class_weights,
        feature_sampling=p["feature_sampling"],
        max_bins=_bins(p["max_bins"], p["protection"]),
        out_of_bag=p.get("voting", "soft") if p["oob_score"] else None,
        seed=seed,
        memory_limit=int(p["memory_limit"] or DEFAULT_MEMORY),
        protection=p["protection"],
        min_cell=_cell(p["min_cell"], p["protection"]),
        ccp_alpha=float(p["ccp_alpha"]) or msgspec.UNSET,
    )


def _bins(max_bins: Any, protection: str) -> int | None:
    if max_bins is not None:
        return int(max_bins)
    return HIDDEN_BINS if protection == "hidden" else None


def _cell(min_cell: Any, protection: str) -> int | Literal["auto"]:
    if min_cell is None:
        return "auto" if protection == "hidden" else 0
    return "auto" if min_cell == "auto" else int(min_cell)


def _number(value: Any) -> int | float:
    return int(value) if isinstance(value, int | np.integer) else float(value)
