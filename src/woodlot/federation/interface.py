"""What estimators ask of a federation, whether its parties are in this process or elsewhere.

An estimator never asks what sort of federation it has. Some work is done in this process where the tables are here, and
by a coordinator where they are not: a federation that is asked for it is given what to do in either case, and calls
the one that applies (``here``, ``keep``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import Column
from woodlot.data.tables import Table
from woodlot.exceptions import DataError
from woodlot.federation.grown import Answer, GrownForest, Labels, Route
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.message import Progress
from woodlot.protocols.core.target import Target
from woodlot.protocols.vertical.explain import ExplainedRows
from woodlot.protocols.vertical.forest_messages import Wire
from woodlot.runtime.audit import Account
from woodlot.trees.predict import Vote

if TYPE_CHECKING:
    from woodlot.crypto.dtpkc import Setting
    from woodlot.federation.local import Federation
    from woodlot.federation.local_forgetting import LocalMemory
    from woodlot.federation.local_revocable import Encryption, RevocableGrown
    from woodlot.federation.local_rows import RowFederation
    from woodlot.federation.row_access import Lineage
    from woodlot.identity.erasure import ErasureReceipt
    from woodlot.identity.receipts import Receipt
    from woodlot.jobs.job_messages import JobFacts
    from woodlot.jobs.orders import Order, Part
    from woodlot.metrics.resampling import Resampling
    from woodlot.metrics.summaries import Summary
    from woodlot.protocols.linear.linear_model import FittedLinear, LinearPlan
    from woodlot.protocols.revocable.revocable_plan import RevocablePlan, Scheme
    from woodlot.protocols.rows.methods import HorizontalPlan
    from woodlot.protocols.rows.row_messages import Task

Shuffled = tuple[int, int] | None
"""A feature whose values are shuffled among the rows, and the seed; for permutation importance."""
OnProgress = Callable[[Progress], None] | None
"""Told how far the work is."""
Settings = Callable[[], Mapping[str, Any]]
"""Gives the kind of the estimator and its parameters, as a model that is kept elsewhere needs them."""
ScoreHere = Callable[[Any, Any], float]
"""Predicts the rows of the federation and scores the answers, given the labels and the weights of the rows."""

_NEEDS_ROWS = (
    "this federation's parties have different columns; a horizontal forest needs clients with the same "
    "columns: Federation.local(tables, layout='rows') or connect(..., layout='rows')"
)

_NEEDS_TABLES = "this is for parties with different columns in one process so far: Federation.local(tables)"


@dataclass(frozen=True)
class ToldDrift:
    """How far new rows are from those of a training, as parties elsewhere tell it.

    Attributes
    ----------
    columns : dict of str to float
        By ``party.column``, or by party the largest one where it keeps names to itself.
    answers : tuple of float or None
        By output; None where the training has no out-of-bag answers.
    classes : tuple
        The classes of a classifier.
    n_old, n_new : int
        Rows that were compared.
    """

    columns: dict[str, float]
    answers: tuple[float, ...] | None
    classes: tuple[Any, ...]
    n_old: int
    n_new: int


class KnownRows(ABC):
    """Rows that are known by names and rules where they cannot be counted: a `source` of a federation."""

    @abstractmethod
    def seen_in(self, training: Any) -> str:
        """How many of these rows a training had, in words; empty if none."""


class AnyFederation(ABC):
    """Parties that train and use a model together.

    `woodlot.Federation` has them in this process, `woodlot.connect` reaches them through a coordinator. Methods are
    used by the estimators. Methods for another layout than the federation's are refused.

    Attributes
    ----------
    layout : {"columns", "rows"}
        What the parties hold of one table: different columns of the same rows, or different rows of the same columns.
    parties : tuple of str
        Names of the parties.
    ids : array or None
        Id of each row, where this process may see them.
    """

    layout: ClassVar[Literal["columns", "rows"]]
    parties: tuple[str, ...]
    ids: NDArray[Any] | None

    rates_elsewhere: ClassVar[bool] = False
    """Whether only the party that has the labels can compare answers with them: this process sees neither."""

    @property
    def lineage(self) -> Lineage | None:
        """Which rows of which federation these are; None where rows are not selected in this process."""
        return None

    def row_owners(self) -> NDArray[np.int64] | None:
        """The place among ``parties`` of the client that has each row; None where all parties have every row."""
        return None

    @property
    @abstractmethod
    def source(self) -> object:
        """What two federations with the same tables have in common, by names; None where tables have no names."""

    # --- orders of any kind ---

    @property
    @abstractmethod
    def tables(self) -> dict[str, str]:
        """The name of each party's table, as orders have it."""

    def part(self, party: str, **fields: Any) -> Part:
        """What an order tells one party alone: its table, and the given fields of `woodlot.jobs.orders.Part`."""
        from woodlot.jobs.orders import Part

        if party not in self.tables:
            raise DataError(f"{party!r} is not a party of this federation; its parties are {list(self.parties)}")
        return Part(table=self.tables[party], **fields)

    @abstractmethod
    def order_fields(self, parts: Mapping[str, Part]) -> dict[str, Any]:
        """The fields that every order has: who takes part, with each party's part sealed to it."""

    @abstractmethod
    def run(self, order: Order, on_facts: Callable[[JobFacts], None] | None = None) -> JobFacts:
        """Sign an order of any kind, have it run, and wait until it is done.

        Parameters
        ----------
        order : Order
            What is to be done; see docs/how-to/add-a-kind.md.
        on_facts : callable, optional
            Told of all news of the job.

        Returns
        -------
        JobFacts
            How it has ended.

        Raises
        ------
        JobFailed
            If it ends without a result.
        """

    # --- labels ---

    @abstractmethod
    def find_labels(self, y: str, sample_weight: str | None) -> Labels:
        """Where the labels and weights are; each is named ``"party.column"``."""

    @abstractmethod
    def label_values(self, labels: Labels) -> tuple[NDArray[Any], NDArray[np.float64] | None] | None:
        """The labels and weights; None where only their holder sees them."""

    def labels_for_training(
        self,
        y: Any,
        sample_weight: Any,
        make_target: Callable[[NDArray[Any], NDArray[np.float64] | None], Target],
    ) -> Labels:
        """Where the labels and weights are, and what ``make_target`` makes of them where this process sees them.

        Both are named ``"party.column"``; where the tables are in this process the labels may be an array as well.
        """
        if not isinstance(y, str):
            raise DataError("on a federation y names the labels: 'party.column', such as y='bank.default'")
        if sample_weight is not None and not isinstance(sample_weight, str):
            raise DataError("on a federation sample_weight names the weights: 'party.column', at the label holder")
        labels = self.find_labels(y, sample_weight)
        values = self.label_values(labels)
        return labels if values is None else replace(labels, target=make_target(*values))

    def scored_labels(self, y: Any) -> NDArray[Any]:
        """The labels to evaluate answers with, one per row; refused where only their holder sees them."""
        raise DataError(
            "only the parties see the labels. Over rows use predict_rows(model.forest_, label), by which every "
            "party scores its own rows"
        )

    def rate_answers(
        self, fitted: GrownForest | FittedLinear, y: Any, bootstrap: Resampling, **options: Any
    ) -> Summary:
        """Have the party that has the labels rate a model's answers; for federations that rate elsewhere.

        Parameters
        ----------
        fitted : GrownForest or FittedLinear
            The model.
        y : str
            Where the labels are, ``"party.column"``.
        bootstrap : Resampling
            How confidence intervals are found.
        **options
            ``vote`` and ``how`` of a forest's predictions.
        """
        raise DataError("the labels are in this process; the model rates its answers here")

    def in_folds(
        self,
        y: str,
        n_folds: int,
        seed: int = 0,
        *,
        stratify: bool = False,
        features: Any = None,
        exclude: Any = None,
    ) -> AnyFederation:
        """This federation as scikit-learn's X with one row for each fold; for federations that rate elsewhere.

        Parameters
        ----------
        y : str
            Where the labels are, which a fit on it, or on some of its folds, needs not say.
        n_folds, seed : int
            How the rows are divided.
        stratify : bool
            Whether each fold has its share of each class.
        features, exclude : mapping, optional
            What is learnt from.
        """
        raise DataError("folds of rows in this process are row numbers: fold_numbers")

    def fold_numbers(self, n_folds: int, seed: int = 0, stratify: Any = None) -> NDArray[np.int64]:
        """The fold of each row; refused where rows are not selected in this process."""
        raise DataError("folds are for federations in one process so far")

    def choose_columns(self, features: Any, exclude: Any, labels: Labels | str | None) -> AnyFederation:
        """The federation with the columns that are to be learnt from.

        Parameters
        ----------
        features, exclude : mapping or sequence, optional
            By party, or for all clients with the same columns; None for all columns.
        labels : Labels, str or None
            The columns that are never learnt from.
        """
        if features is None and exclude is None:
            return self
        raise DataError(
            "features and exclude are for federations in one process so far; between organisations each owner names in "
            "its configuration what may be learnt from"
        )

    # --- forests over columns ---

    def drawn_by_row(self, plan: ForestPlan, labels: Labels) -> tuple[AnyFederation, Labels]:
        """The federation and labels with rows that are drawn one by one; refused where the rows are elsewhere."""
        raise DataError(
            "bootstrap_by='row' is for parties in one process so far; between organisations use bootstrap_by='draw'"
        )

    def forget_elsewhere(
        self, forest: GrownForest, labels: Labels, ids: Any, *, identity: Any, prove: bool
    ) -> tuple[GrownForest, ErasureReceipt] | None:
        """Have parties elsewhere forget rows; None where the rows are here."""
        return None

    def remember(self, labels: Labels, plan: ForestPlan) -> LocalMemory:
        """What it takes to forget rows of a forest; refused where the rows are elsewhere."""
        raise DataError("this federation's rows are elsewhere; give the tables of the training in this process as data")

    @abstractmethod
    def fit_forest(
        self,
        plan: ForestPlan,
        labels: Labels,
        *,
        settings: Settings,
        n_jobs: int = 1,
        device: str = "cpu",
        on_progress: OnProgress = None,
    ) -> tuple[GrownForest, Account]:
        """Grow a forest.

        Parameters
        ----------
        plan : ForestPlan
            What to grow.
        labels : Labels
            The labels, which only their holder sees.
        settings : callable
            Gives the estimator's settings, to be kept with a model that is kept elsewhere.
        n_jobs : int
            Threads in this process.
        device : {"cpu", "cuda", "auto"}
            Where parties in this process grow trees.
        on_progress : callable, optional
            Told how far the trees are.

        Returns
        -------
        GrownForest, Account
            The forest in its parts, and who saw what while it grew.
        """

    @abstractmethod
    def present(self, forest: GrownForest) -> list[str]:
        """The parties here that have a part of the forest."""

    @abstractmethod
    def predict(
        self,
        forest: GrownForest,
        method: Route,
        wire: Wire,
        vote: Vote,
        *,
        shuffled: Shuffled = None,
        n_jobs: int = 1,
    ) -> tuple[Answer, Account]:
        """Predict with the parties that have both rows and a part of the forest."""

    def columns_to_learn(self, labels: Labels | None) -> dict[str, tuple[str, ...]]:
        """By party the columns to learn from; refused where the tables are not in this process."""
        raise DataError(_NEEDS_TABLES)

    def own_columns(self, party: str, names: Sequence[str]) -> tuple[Column, ...]:
        """A party's own view of some of its columns; refused where the tables are not in this process."""
        raise DataError(_NEEDS_TABLES)

    def shows_names(self, party: str) -> bool:
        """Whether a party lets results name its columns."""
        raise DataError(_NEEDS_TABLES)

    def with_shuffled(self, party: str, seed: int) -> AnyFederation:
        """The federation with a party's rows in another order, all of its columns alike; refused elsewhere."""
        raise DataError("all columns of a party are shuffled together in one process only; use by='column'")

    def explain(
        self, forest: GrownForest, vote: Vote, *, n_jobs: int = 1, on_progress: OnProgress = None
    ) -> tuple[ExplainedRows, Account]:
        """Divide the forest's answers for the rows among parties and columns; refused on other hosts so far."""
        raise DataError(
            "explain is for federations in one process and between organisations so far; combine() the parts where "
            "their owners agree, and explain a table"
        )

    def drift(self, forest: GrownForest, vote: Vote) -> ToldDrift:
        """Have owners compare the rows with those of the forest's training; for federations that rate elsewhere."""
        raise DataError(_NEEDS_TABLES)

    @abstractmethod
    def score(
        self,
        forest: GrownForest,
        y: Any,
        sample_weight: Any,
        here: ScoreHere,
        *,
        vote: Vote,
        method: Route,
        shuffled: Shuffled = None,
    ) -> float:
        """Accuracy or R2 of the forest's predictions.

        Parameters
        ----------
        forest : GrownForest
            The forest.
        y : str or array
            Where the labels are, ``"party.column"``; or the labels, in this process.
        sample_weight : str, array or None
            The weights likewise.
        here : callable
            Predicts and scores in this process. It is not called where only the party that has the labels sees them:
            that party then scores.
        vote, method, shuffled
            How that party's predictions are made, as for ``predict``.
        """

    @abstractmethod
    def take_out(
        self,
        forest: GrownForest,
        labels: Labels,
        leavers: Sequence[str],
        level: int | None,
        *,
        here: Callable[[Federation], tuple[Receipt, ...]],
        keep: Callable[[GrownForest, str, Receipt], None],
    ) -> tuple[Receipt, ...]:
        """Take parties out of a forest that was fitted on this federation.

        Parameters
        ----------
        forest : GrownForest
            The forest; it is not changed.
        labels : Labels
            Those of the training.
        leavers : sequence of str
            Who leaves.
        level : int or None
            How thoroughly; None: as is usual for such a forest.
        here : callable
            Regrows the forest in this process, keeps it, and signs the receipts.
        keep : callable
            Given each forest that a coordinator has regrown, who left it, and the coordinator's receipt.

        Returns
        -------
        tuple of Receipt
            One for each leaver.
        """

    # --- revocable forests ---

    @abstractmethod
    def fit_revocable(
        self,
        plan: RevocablePlan,
        labels: Labels,
        encryption: Encryption | None,
        *,
        settings: Settings,
        n_jobs: int = 1,
        on_progress: OnProgress = None,
    ) -> tuple[GrownForest, Account]:
        """Grow a revocable forest, and have its splits encrypted where ``encryption`` says how.

        Everything else is as for ``fit_forest``.
        """

    @abstractmethod
    def predict_revocable(
        self,
        forest: RevocableGrown,
        method: Route,
        wire: Wire,
        vote: Vote,
        *,
        shuffled: Shuffled = None,
        n_jobs: int = 1,
    ) -> tuple[Answer, Account]:
        """As ``predict``, with a revocable forest."""

    @abstractmethod
    def predict_encrypted(
        self,
        forest: GrownForest,
        columns: Mapping[str, NDArray[np.float64]],
        vote: Vote,
        setting: Setting,
        scheme: Scheme,
    ) -> NDArray[np.float64]:
        """Outputs for rows that only this user reads, by ``"party.column"``, of a forest that is kept elsewhere."""

    @abstractmethod
    def request_rows(self, forest: RevocableGrown) -> NDArray[np.float64]:
        """The rows of all parties joined, as an encrypted request has them: columns in the order of the features."""

    # --- forests over rows ---

    def repeat_draws(self, seed: int) -> None:
        """Let what clients draw follow from a seed, noise too; for rows that were dealt in this process."""
        raise DataError("what clients draw follows from a seed in a simulation only")

    # --- linear models ---

    @abstractmethod
    def fit_linear(
        self, plan: LinearPlan, labels: Labels, *, settings: Settings, on_progress: OnProgress = None
    ) -> tuple[FittedLinear, Account]:
        """Fit a linear model; parameters as for ``fit_forest``."""

    @abstractmethod
    def predict_linear(self, fitted: FittedLinear) -> tuple[Answer, Account]:
        """One score per row, or per row and class, and which rows are uncertain."""

    @abstractmethod
    def score_linear(self, fitted: FittedLinear, y: Any, sample_weight: Any, here: ScoreHere) -> float:
        """Accuracy or R2 of a linear model's predictions; parameters as for ``score``."""

    # --- forests over rows; refused where the parties have different columns ---

    @abstractmethod
    def tables_here(self) -> list[Table]:
        """The parties' tables that are in this process."""

    def row_targets(self, label: str, task: Task) -> dict[str, Target]:
        """Every client's labels, from its column of this name; none where only the clients see them."""
        raise DataError(_NEEDS_ROWS)

    def row_targets_of(self, y: Any, task: Task) -> tuple[dict[str, Target], str | None, bool]:
        """Every client's labels, from an array of one label per row of all clients.

        Returns
        -------
        targets : dict of str to Target
            As ``row_targets`` gives them.
        column : str or None
            The column that the array has come from, which is not to be learnt from.
        made : bool
            Whether the labels are others than that column has.
        """
        if self.layout == "columns":
            raise DataError(_NEEDS_ROWS)
        raise DataError("on a federation y names the labels' column, which every client has, such as y='default'")

    def row_weights_of(self, sample_weight: Any) -> tuple[dict[str, Any], str | None]:
        """Every client's weights of rows, from the name of their column or an array of one weight per row.

        Returns
        -------
        weights : dict of str to array
            By client, as it has them; none where only the clients see them.
        column : str or None
            Where they have come from, which is not to be learnt from.
        """
        raise DataError(_NEEDS_ROWS)

    def answer_rows(self, answer: Callable[[Table], NDArray[np.float64]]) -> NDArray[np.float64]:
        """What ``answer`` makes of each client's table, one line per row, in the order of the federation's rows."""
        raise DataError(
            "the model is whole: predict each client's table where it is, model.predict(table); on a connected "
            "federation, predict_rows(model.forest_) has every party do so"
        )

    def grow(
        self,
        plan: HorizontalPlan,
        targets: Mapping[str, Target],
        *,
        label: str | None = None,
        weight: str | None = None,
        settings: Settings,
        n_jobs: int = 1,
        device: str = "cpu",
        on_progress: OnProgress = None,
    ) -> tuple[GrownForest, Account]:
        """Grow a whole forest.

        Parameters
        ----------
        plan : HorizontalPlan
            What to grow, and by which method.
        targets : mapping of str to Target
            What ``row_targets`` gives.
        label : str, optional
            The labels' column, which is not learnt from; None for one table whose rows were dealt.
        weight : str, optional
            The column of weights, which is not learnt from either.
        settings, n_jobs, device, on_progress
            As for ``fit_forest``.

        Returns
        -------
        GrownForest, Account
            The forest, whole, and who saw what while it grew.
        """
        raise DataError(_NEEDS_ROWS)

    def take_out_client(
        self,
        forest: GrownForest,
        plan: HorizontalPlan,
        label: str | None,
        leaver: str,
        level: int,
        *,
        weight: str | None = None,
        here: Callable[[RowFederation], Receipt],
        keep: Callable[[GrownForest, Account, AnyFederation, Receipt], None],
    ) -> Receipt:
        """Take a client out of a whole forest that was grown on this federation.

        Parameters
        ----------
        here : callable
            Takes it out in this process, keeps the forest, and signs the receipt.
        keep : callable
            Given the forest that a coordinator has regrown, the account of it, who stays, and the coordinator's
            receipt.
        forest, plan, label, leaver, level, weight
            As for ``grow`` and ``take_out``.
        """
        raise DataError(_NEEDS_ROWS)

    def forget_rows(
        self,
        forest: GrownForest,
        ids: Any,
        label: str | None,
        *,
        weight: str | None = None,
        here: Callable[[RowFederation], ErasureReceipt],
        keep: Callable[[GrownForest, Account, AnyFederation, ErasureReceipt], None],
        only_here: bool = False,
    ) -> ErasureReceipt:
        """Take rows out of a whole forest that was grown on this federation.

        Parameters
        ----------
        forest, ids, label, weight
            The forest, the ids of the rows, and the columns of the training.
        here, keep
            As for ``take_out_client``.
        only_here
            Whether something was asked for that there is in one process only: an own identity, or a proof.
        """
        raise DataError(_NEEDS_ROWS)


def as_federation(X: object) -> AnyFederation | None:
    """What a user has given, if it is a federation; None for a table, or anything else."""
    return X if isinstance(X, AnyFederation) else None


def needs_columns(self: object, *_: Any, **__: Any) -> NoReturn:
    """Refuse, as a method of a federation of layout "rows", what needs layout "columns"."""
    raise DataError(
        "this federation's parties have the same columns and different rows (layout='rows'); this model needs parties "
        "with different columns: Federation.local(tables) or connect(..., layout='columns')"
    )
