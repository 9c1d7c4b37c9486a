"""RevFRF as scikit-learn estimators: the forest that a participant can leave."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from woodlot.crypto.dtpkc import DEFAULT_BITS, SETTING_BITS, Setting
from woodlot.data.tables import Table
from woodlot.estimators.base import FederatedForest, plan_of
from woodlot.estimators.callbacks import fit_progress
from woodlot.estimators.estimator_settings import settings_of
from woodlot.estimators.federated_forest import FederatedForestClassifier, FederatedForestRegressor
from woodlot.estimators.parameters import check_parameters
from woodlot.estimators.revoking import Change, HoldOut, Training, revoke_together
from woodlot.exceptions import DataError
from woodlot.federation import Answer, AnyFederation, Federation, GrownForest, Labels, Route, as_federation
from woodlot.federation.local_revocable import (
    Encryption,
    RevocableGrown,
    Secrets,
    SharedSecrets,
    columns_of,
    make_secrets,
    predict_secretly,
    revoke_revocable,
    table_as_numbers,
)
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import Receipt
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.message import Progress
from woodlot.protocols.revocable.participant import check_values
from woodlot.protocols.revocable.revocable_plan import (
    DEFAULT_DEPTH,
    DEFAULT_RHO,
    DEFAULT_SCHEME,
    DEFAULT_ZETA,
    RevocablePlan,
    Scheme,
)
from woodlot.protocols.revocable.share_predict import NO_TEST_OF_SHARES
from woodlot.protocols.vertical.forest_messages import Wire
from woodlot.runtime.audit import Account, Ledger
from woodlot.service.encrypted import request_columns
from woodlot.trees.parallel import effective_jobs

REQUESTER = "user"
"""Under which name this process asks its simulated participants."""
SIMULATED = "simulated"
PAPER = "paper"

_OTHERS: dict[str, Any] = {
    "min_weight_fraction_leaf": 0.0,
    "max_leaf_nodes": None,
    "min_impurity_decrease": 0.0,
    "ccp_alpha": 0.0,
    "feature_sampling": "node",
    "protection": ForestPlan.protection,
    "max_bins": None,
    "min_cell": None,
    "memory_limit": None,
}
"""What other vertical forests have and a revocable one has not."""


class RevocableForest(FederatedForest):
    """What the classifier and the regressor share."""

    _levels = (1, 2, 3)
    rho: int
    zeta: int
    reuse_features: bool
    encryption: Any
    scheme: Scheme
    forest_: RevocableGrown

    def fit(  # type: ignore[override]
        self, X: Any, y: Any = None, *, features: Any = None, exclude: Any = None
    ) -> Self:
        """Grow the forest, and have every split encrypted by its provider. If it fails, the model is as before.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            One table, whose columns are dealt to simulated ``parties``; or a federation of participants.
        y : array-like or str
            Labels, which the coordinator has; on a federation, where they are: ``"party.column"``.
        features, exclude : mapping, optional
            What to learn from, as for `FederatedForestClassifier.fit`.

        Returns
        -------
        self
        """
        return super().fit(X, y, features=features, exclude=exclude)

    def key_setting(self) -> Encryption | None:
        """How splits are to be hidden; None where they are not."""
        if isinstance(self.encryption, Encryption):
            return self.encryption._replace(scheme=self.scheme)
        if self.encryption == SIMULATED:
            return None
        if self.encryption == PAPER:
            return Encryption(SETTING_BITS["paper"], "paper", scheme=self.scheme)
        return Encryption(int(self.encryption), "standard", scheme=self.scheme)

    def make_plan(self) -> RevocablePlan:
        """What is to be grown, with a seed; parameters are checked."""
        check_parameters(self)
        seed = int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        params = _OTHERS | self.get_params(deep=False)
        return RevocablePlan(
            plan_of(params, seed, None, self._task), int(self.rho), int(self.zeta), bool(self.reuse_features)
        )

    def _whole(self, forest: GrownForest, plan: RevocablePlan | None = None) -> RevocableGrown:
        """A forest that was grown elsewhere, as a revocable one."""
        if isinstance(forest, RevocableGrown):
            return forest
        fields = {name: getattr(forest, name) for name in forest.__dataclass_fields__}
        return RevocableGrown(**fields, revocable=plan)

    def _set_forest(self, forest: GrownForest) -> None:
        super()._set_forest(self._whole(forest))

    def _learn(self, federation: AnyFederation, labels: Labels) -> None:
        plan = self.make_plan()
        with fit_progress(self, "growing trees") as show:
            grown, account = federation.fit_revocable(
                plan,
                labels,
                self.key_setting(),
                settings=partial(settings_of, self),
                n_jobs=effective_jobs(self.n_jobs),
                on_progress=show,
            )
        forest = self._whole(grown, plan)
        self.disclosure_, self.cost_ = account.disclosure, account.cost
        self._set_forest(forest)
        if self._origin.dealing is None:
            self.n_features_in_ = len(forest.coordinator.feature_keys)
        forest.memo.training = Training(federation, labels)

    def _label_holder(self, labels: Labels) -> str | None:
        return labels.holder if labels.column is not None else None

    def _regrow(
        self,
        federation: Federation,
        labels: Labels,
        leavers: Sequence[str],
        level: int,
        show: Callable[[Progress], None] | None,
    ) -> tuple[GrownForest, Change, Account]:
        return revoke_revocable(
            federation, self.forest_, labels, leavers, level, self.key_setting(),
            holder=self._label_holder(labels), patched=self._patched, n_jobs=effective_jobs(self.n_jobs),
            on_progress=show,
        )  # fmt: skip

    def revoke_together(
        self,
        parties: Sequence[str],
        *,
        level: int = 1,
        holdout: HoldOut | None = None,
        data: Any = None,
        identity: str | os.PathLike[str] | Identity | None = None,
    ) -> tuple[Receipt, ...]:
        """Take some participants out of the forest at once: nodes below splits of several are regrown only once.

        Parameters
        ----------
        parties : sequence of str
            Who leaves; at least one must stay.
        level : {1, 3}
            As for ``revoke``; at level 2 they leave one at a time.
        holdout, data, identity
            As for ``revoke``.

        Returns
        -------
        tuple of Receipt
            One for each, in this order; what they say of nodes and cost is of all together.
        """
        if isinstance(parties, str):
            raise DataError(f"name the parties in a list: revoke_together([{parties!r}])")
        return revoke_together(self, tuple(parties), level, holdout, data, identity, None)

    # --- predicting ---

    def _check_again(self, X: Any) -> Table:
        return self._numbers(super()._check_again(X))

    def _numbers(self, table: Table) -> Table:
        """Categories as the numbers that they were in training; nothing may be missing."""
        known = {column: names for columns in self.forest_.categories.values() for column, names in columns.items()}
        numbers, _ = table_as_numbers(table, known)
        for name in numbers.names:
            check_values("X", name, numbers)
        return numbers

    def _predict_on(
        self, federation: AnyFederation, method: Route, wire: Wire, shuffled: tuple[int, int] | None
    ) -> tuple[Answer, Account]:
        if method == "encrypted-splits" and self.forest_.model is None:
            if self.key_setting() is not None and self.scheme != "paper":
                raise DataError(NO_TEST_OF_SHARES)
            self._secrets()  # of a loaded forest they are made now; of one at a coordinator its members have them
        return federation.predict_revocable(
            self.forest_, method, wire, self._vote, shuffled=shuffled, n_jobs=effective_jobs(self.n_jobs)
        )

    def score(
        self,
        X: Any,
        y: Any = None,
        sample_weight: Any = None,
        *,
        sealed: bool = False,
        encrypted_splits: bool = False,
    ) -> float:
        """Score the predictions: accuracy for a classifier, R2 for a regressor.

        Parameters
        ----------
        X, y, sample_weight, sealed
            As for ``FederatedForestClassifier.score``.
        encrypted_splits : bool, default=False
            Predict by the encrypted splits, as ``predict_encrypted`` does, but on rows whose columns lie at the
            parties (FRF-Test, Protocols 6 and 7 of the RevFRF paper). Every party opens the coordinator's copy of each
            of its splits that is used, and refuses one that is not its own. The score is the same, to the last bit. It
            takes one exchange per level, in which each party learns which rows reach its nodes. Every party must be
            present and have every row. It needs ``scheme="paper"``: with shares the coordinator keeps no splits.

        Returns
        -------
        float

        Examples
        --------
        >>> import numpy as np, woodlot as wl
        >>> X = np.random.default_rng(0).normal(size=(80, 4))
        >>> forest = wl.RevocableForestClassifier(
        ...     5, max_depth=3, scheme="paper", encryption="paper", random_state=0
        ... )
        >>> forest = forest.fit(X, X[:, 0] > 0)
        >>> forest.score(X, X[:, 0] > 0, encrypted_splits=True) == forest.score(X, X[:, 0] > 0)
        True
        """
        if sealed and encrypted_splits:
            raise ValueError("sealed=True and encrypted_splits=True are two ways to predict; choose one of them")
        route: Route | None = "sealed" if sealed else "encrypted-splits" if encrypted_splits else None
        return self._score(X, y, sample_weight, route)

    def predict_encrypted(self, X: Any, *, federation: AnyFederation | None = None) -> NDArray[np.float64]:
        """FRF-Predict: the rows are encrypted, and only the requester can read them. It cannot read the splits.

        Parameters
        ----------
        X : array, data frame, Arrow table or Federation
            Rows with the columns of all participants; of a federation they are joined here, as a requester has them.
            Of a forest that was grown between organisations, a table with columns called ``party.column``. With the
            paper's scheme they are encrypted only under a modulus that its key service has signed, of no weaker setting
            than ``encryption``; with shares they are split and sealed to its helper and its key service.
        federation : ConnectedFederation, optional
            How the members of such a forest are reached; by default as when it was fitted.

        Returns
        -------
        array of shape (n_rows, n_outputs)
            What ``predict_proba`` answers (regression: one column of what ``predict`` answers), bit for bit.
        """
        check_is_fitted(self, "forest_")
        if self.forest_.model is not None:
            asked = self.key_setting()
            setting: Setting = "standard" if asked is None else asked.setting
            reached, columns = self._reach(federation), request_columns(X)
            return reached.predict_encrypted(self.forest_, columns, self._vote, setting, self.scheme)
        secrets = self._secrets()
        outputs, account = predict_secretly(self.forest_, secrets, self._request_rows(X), REQUESTER, self._vote)
        self.forest_.memo.cost, self.forest_.memo.disclosure = account.cost, account.disclosure
        return outputs

    def _reach(self, federation: AnyFederation | None) -> AnyFederation:
        training: Training | None = self.forest_.memo.training
        found = as_federation(federation if federation is not None or training is None else training.federation)
        if found is None:
            raise DataError("this forest's keys are with its members: give federation=woodlot.connect(...)")
        return found

    def _secrets(self) -> Secrets | SharedSecrets:
        memo, encryption = self.forest_.memo, self.key_setting()
        if encryption is None:
            raise DataError("this forest was grown with encryption='simulated': there are no keys; fit it with keys")
        if memo.secrets is None:  # loaded or copied: keys die with their process, so there are new ones
            memo.secrets = make_secrets(self.forest_, encryption, Ledger(), effective_jobs(self.n_jobs))
        return memo.secrets  # type: ignore[no-any-return]

    def _request_rows(self, X: Any) -> NDArray[np.float64]:
        """One line per row, columns in the order of the forest's features: party after party."""
        federation = as_federation(X)
        if federation is not None:
            return federation.request_rows(self.forest_)
        return columns_of(self.forest_, dict.fromkeys(self.forest_.coordinator.parties, self._check_again(X)))

    # --- files ---

    def _notes(self) -> dict[str, Any]:
        forest = self.forest_
        return {
            "reuse_features": forest.revocable is None or forest.revocable.reuse_features,
            "rho": 0 if forest.revocable is None else forest.revocable.rho,
            "zeta": 1 if forest.revocable is None else forest.revocable.zeta,
            "categories": forest.categories,
        }

    def _restored(self, forest: GrownForest, notes: Mapping[str, Any]) -> RevocableGrown:
        own = notes["revocable"]
        categories = {p: {c: tuple(names) for c, names in columns.items()} for p, columns in own["categories"].items()}
        plan = None
        if forest.plan is not None:
            plan = RevocablePlan(forest.plan, int(own["rho"]), int(own["zeta"]), bool(own["reuse_features"]))
        fields = {name: getattr(forest, name) for name in forest.__dataclass_fields__}
        return RevocableGrown(**fields, revocable=plan, categories=categories)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = False
        return tags


class RevocableForestClassifier(RevocableForest, FederatedForestClassifier):
    """RevFRF for classification: splits are encrypted, and a participant can leave.

    Parameters
    ----------
    n_estimators : int, default=100
        Number of trees.
    parties : int or mapping, default=2
        How the columns of X are divided: a number of simulated participants, or a mapping of name to columns.
    scheme : {"auto", "shares", "paper"}, default="auto"
        How splits and requests are hidden. "shares": each is split between helper and key service, and the coordinator
        has none of it. "paper": each is encrypted under keys of two servers, as in the RevFRF paper, which takes some
        hundred times as long. "auto" is "shares". The forest and its answers are the same.
    encryption : int, str or Encryption, default=3072
        "simulated": the splits stay with their participants in clear, and nothing can be predicted encrypted. Else,
        for ``scheme="paper"``, the length of its keys (at least 2048 bits); "paper" for the paper's 1024 bits, which
        are too short today. ``scheme="shares"`` has no keys of such lengths.
    rho : int, default=20
        Samples of a node that give the range of its candidate splits; 0 for all.
    zeta : int, default=31
        Candidate splits per feature, evenly spaced in that range.
    reuse_features : bool, default=True
        Whether a feature may be split again below a node that it has split. False as in the paper.
    max_depth : int, default=10
        Depth of the trees; an encrypted prediction takes some rounds for each level.
    criterion, min_samples_split, min_samples_leaf, max_features, bootstrap, max_samples, oob_score, voting
        As for `FederatedForestClassifier`; the criterion is "gini".
    n_jobs, random_state, verbose
        As there.

    Attributes
    ----------
    classes_, feature_importances_, importance_owners_, oob_score_, oob_curve_, disclosure_, cost_, forest_
        As for `FederatedForestClassifier`.
    receipts_ : tuple of Receipt
        One for each participant that has left.

    Examples
    --------
    Simulated encryption makes no keys, so that this example runs fast:

    >>> import woodlot as wl
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> dealing = {"bank": [0, 1], "shop": [2, 3]}
    >>> model = wl.RevocableForestClassifier(n_estimators=5, parties=dealing, encryption="simulated", random_state=0)
    >>> model.fit(X[::2], y[::2]).predict(X[1::50]).tolist()
    [0, 1, 2]

    A participant leaves. The trees are grown again where it had split them, and the receipt says so:

    >>> receipt = model.revoke("shop")
    >>> receipt
    Receipt: shop has left at level 1; 54 of 57 nodes removed, 174 regrown, epoch 1
    >>> set(model.importance_owners_.tolist())
    {'bank'}
    """

    class_weight = None

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        parties: int | Mapping[str, Sequence[Any]] = 2,
        scheme: str = DEFAULT_SCHEME,
        encryption: int | str | Encryption = DEFAULT_BITS,
        rho: int = DEFAULT_RHO,
        zeta: int = DEFAULT_ZETA,
        reuse_features: bool = True,
        criterion: str = "gini",
        max_depth: int = DEFAULT_DEPTH,
        min_samples_split: int | float = 2,
        min_samples_leaf: int | float = 1,
        max_features: int | float | str | None = "sqrt",
        bootstrap: bool = True,
        max_samples: int | float | None = None,
        oob_score: bool = False,
        voting: str = "soft",
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_estimators = n_estimators
        self.parties = parties
        self.scheme = scheme  # type: ignore[assignment]
        self.encryption = encryption
        self.rho = rho
        self.zeta = zeta
        self.reuse_features = reuse_features
        self.criterion = criterion
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.max_features = max_features
        self.bootstrap = bootstrap
        self.max_samples = max_samples
        self.oob_score = oob_score
        self.voting = voting
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose


class RevocableForestRegressor(RevocableForest, FederatedForestRegressor):
    """RevFRF for regression: splits are encrypted, and a participant can leave.

    Parameters and attributes as for `RevocableForestClassifier`, except ``criterion`` ("squared_error"), and
    without ``voting`` and ``classes_``.

    Examples
    --------
    >>> import woodlot as wl
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = wl.RevocableForestRegressor(n_estimators=5, encryption="simulated", random_state=0).fit(X[::2], y[::2])
    >>> model.predict(X[1::2]).shape
    (221,)
    """

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        parties: int | Mapping[str, Sequence[Any]] = 2,
        scheme: str = DEFAULT_SCHEME,
        encryption: int | str | Encryption = DEFAULT_BITS,
        rho: int = DEFAULT_RHO,
        zeta: int = DEFAULT_ZETA,
        reuse_features: bool = True,
        criterion: str = "squared_error",
        max_depth: int = DEFAULT_DEPTH,
        min_samples_split: int | float = 2,
        min_samples_leaf: int | float = 1,
        max_features: int | float | str | None = "sqrt",
        bootstrap: bool = True,
        max_samples: int | float | None = None,
        oob_score: bool = False,
        n_jobs: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_estimators = n_estimators
        self.parties = parties
        self.scheme = scheme  # type: ignore[assignment]
        self.encryption = encryption
        self.rho = rho
        self.zeta = zeta
        self.reuse_features = reuse_features
        self.criterion = criterion
        self.max_depth = max_depth
        self.min_samples_split = min_samples_split
        self.min_samples_leaf = min_samples_leaf
        self.max_features = max_features
        self.bootstrap = bootstrap
        self.max_samples = max_samples
        self.oob_score = oob_score
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose
