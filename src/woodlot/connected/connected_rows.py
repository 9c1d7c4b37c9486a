"""A real federation of parties with the same columns and different rows."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeAlias

import msgspec
import numpy as np

from woodlot.connected.connected_models import model_of, ordered_forest, whole_grown_forest
from woodlot.connected.federation import ConnectedFederation, InFolds
from woodlot.connected.forgotten_rows import check_named
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.federation import AnyFederation, GrownForest, Labels
from woodlot.federation.interface import OnProgress, Settings, needs_columns
from woodlot.federation.named_rows import ids_by_client
from woodlot.metrics.resampling import Resampling
from woodlot.metrics.summaries import PooledSummary, Summary
from woodlot.privacy.accounting import check_epsilon
from woodlot.protocols.core.leavers import check_leaver
from woodlot.protocols.core.target import Target
from woodlot.protocols.linear.linear_model import FittedLinear
from woodlot.protocols.rows.methods import HorizontalPlan, check_division
from woodlot.runtime.audit import Account

if TYPE_CHECKING:
    from woodlot.federation.local_rows import RowFederation
    from woodlot.identity.erasure import ErasureReceipt
    from woodlot.identity.receipts import Receipt
    from woodlot.jobs.forget.forget_orders import ForgetRowsOrder
    from woodlot.jobs.job_messages import JobFacts, ModelFacts
    from woodlot.jobs.rows.rows_orders import EvaluateRowsOrder, PredictRowsOrder, RevokeRowsOrder, TrainRowsOrder
    from woodlot.protocols.rows.row_messages import Task
    from woodlot.service.client import Client

    Forest: TypeAlias = str | ModelFacts | GrownForest


class ConnectedRowFederation(ConnectedFederation):
    """Parties with the same columns, reached through a coordinator. Make one with `woodlot.connect`.

    Horizontal forests are fitted on it; they are whole, so that everybody predicts its own rows without the others.

    Attributes
    ----------
    parties : tuple of str
        Who takes part.
    client : Client
        The line to the coordinator.
    """

    layout = "rows"
    fit_forest = predict = explain = drift = score = take_out = needs_columns
    fit_revocable = predict_revocable = predict_encrypted = request_rows = needs_columns
    fit_linear = predict_linear = score_linear = needs_columns

    def __init__(self, client: Client, tables: Mapping[str, str]) -> None:
        super().__init__(client, tables, "keyed-hash", "inner")

    def _find_rows(self) -> None:
        """Every party finds the rows of a part by itself, by a key of its own."""

    def align(self) -> NoReturn:
        """Refuse: there is nothing to align."""
        raise DataError("parties with the same columns have no rows in common; there is nothing to align")

    @property
    def n_rows(self) -> NoReturn:
        """Refuse: how many rows there are, parties tell in a job only."""
        raise DataError("how many rows the parties have is known when a forest has grown: model.forest_.coordinator")

    def choose_columns(self, features: Any, exclude: Any, labels: Labels | str | None) -> Self:
        """Refuse a choice of columns: every client has the same ones."""
        AnyFederation.choose_columns(self, features, exclude, labels)
        return self

    def find_labels(self, y: str, sample_weight: str | None) -> Labels:
        """Refuse to be split by columns."""
        raise DataError(
            "this federation's parties have the same columns and different rows (layout='rows'); fit a horizontal "
            "forest on it, such as a CollaborativeForest, or connect with layout='columns'"
        )

    # --- orders ---

    def _parts(self, parties: Sequence[str], label: str | None, weight: str | None = None) -> dict[str, Any]:
        return self.order_fields({p: self.part(p, label=label, weight=weight) for p in parties})

    def train_rows_order(
        self,
        plan: HorizontalPlan,
        label: str,
        settings: Mapping[str, Any],
        name: str = "",
        weight: str | None = None,
    ) -> TrainRowsOrder:
        """An order to grow a whole forest; every party has a column of the label's name, and of the weight's."""
        from woodlot.jobs.rows.rows_orders import TrainRowsOrder

        check_division(plan, by_class=any(rule.by for rule in self._rules))
        fields = self._parts(self.parties, label, weight) | self._row_fields(label)
        return TrainRowsOrder(**fields, plan=plan, settings=json.dumps(settings), name=name)

    def without(self, party: str) -> ConnectedRowFederation:
        """The other parties, over the same line, with the same part of their rows."""
        rest = ConnectedRowFederation(self.client, {p: table for p, table in self._tables.items() if p != party})
        rest._rules = self._rules
        return rest

    def revoke_rows_order(
        self,
        model: ModelFacts,
        plan: HorizontalPlan,
        label: str,
        leaver: str,
        level: int,
        weight: str | None = None,
    ) -> RevokeRowsOrder:
        """An order to take a party out of a whole forest: the others grow it again."""
        from woodlot.jobs.rows.rows_orders import RevokeRowsOrder

        if level != 3:
            raise DataError("between organisations a party leaves a forest over rows at level 3: it is grown again")
        check_leaver(model.parties, None, leaver)
        staying = [p for p in model.parties if p != leaver]
        absent = [p for p in staying if p not in self._tables]
        if absent:
            raise DataError(f"name the tables of {absent} too: all parties that stay grow the forest again")
        return RevokeRowsOrder(
            **self._parts(staying, label, weight), **self._row_fields(label), plan=plan, settings=model.settings,
            name=model.name, model=model.model, leaver=leaver,
        )  # fmt: skip

    def forget_rows_order(
        self, model: ModelFacts, ids: Any, label: str, weight: str | None = None
    ) -> tuple[ForgetRowsOrder, bytes]:
        """An order to take rows out of a whole forest; and the key of their ids in the receipt.

        Parameters
        ----------
        model : ModelFacts
            The forest.
        ids : list, array, column or mapping of str to list
            Ids of up to 10,000 rows that every party looks for; or, by party, those that only this one does.
        label, weight : str, str or None
            The columns of the training.
        """
        from woodlot.identity.erasure import fresh_key
        from woodlot.jobs.forget.forget_orders import MAX_FORGOTTEN, ForgetRowsOrder

        if model.layout != "rows":
            raise DataError("this model was grown over columns of different parties: connect with layout='columns'")
        absent = [p for p in model.parties if p not in self._tables]
        if absent:
            raise DataError(f"name the tables of {absent} too: all parties of the model grow it without the rows")
        named = {party: own for party, own in ids_by_client(ids, model.parties).items() if own}
        if not named or max(map(len, named.values())) > MAX_FORGOTTEN:
            raise DataError(f"give the ids of 1 to {MAX_FORGOTTEN:,} rows for each party that is to look for any")
        key = fresh_key()
        secret: dict[str, dict[str, Any]] = {party: {"ids": own, "key": key} for party, own in named.items()}
        parts = {p: self.part(p, label=label, weight=weight, **secret.get(p, {})) for p in model.parties}
        return ForgetRowsOrder(**self.order_fields(parts), model=model.model), key

    def evaluate_rows_order(
        self, model: Forest, label: str, bootstrap: Resampling, *, allow_two: bool = False
    ) -> tuple[EvaluateRowsOrder, dict[str, bytes]]:
        """An order to have every party rate a whole forest on its own rows; and the keys of what they tell."""
        from woodlot.jobs.evaluate.report_seal import new_report_key
        from woodlot.jobs.orders import BootstrapPlan
        from woodlot.jobs.rows.rows_orders import EvaluateRowsOrder

        keys = {party: new_report_key() for party in self.parties}
        fields = self.order_fields({p: self.part(p, label=label, key=key) for p, key in keys.items()})
        plan = BootstrapPlan(bootstrap.n_bootstrap, bootstrap.confidence, bootstrap.seed)
        fields |= self._row_fields(label)
        fields |= ordered_forest(self.client, model)
        return EvaluateRowsOrder(**fields, bootstrap=plan, allow_two=allow_two), keys

    def predict_rows_order(
        self, model: Forest, label: str | None = None, score_epsilon: float | None = None
    ) -> PredictRowsOrder:
        """An order to have every party predict its rows and keep the answers; with a label it scores them, too."""
        from woodlot.jobs.rows.rows_orders import PredictRowsOrder

        if score_epsilon is not None:
            if label is None:
                raise DataError("score_epsilon is for a score: name the column of the labels, too")
            check_epsilon(score_epsilon)
        fields = self._parts(self.parties, label) | ordered_forest(self.client, model)
        return PredictRowsOrder(**fields, score_epsilon=score_epsilon)

    # --- as every federation, for the estimators; see `AnyFederation` ---

    def row_targets(self, label: str, task: Task) -> dict[str, Target]:
        """None: only the parties see them."""
        return {}

    def row_targets_of(self, y: Any, task: Task) -> tuple[dict[str, Target], str | None, bool]:
        """None, and the column of the labels where these are folds; labels that are given are refused."""
        if y is None and self._label is not None:
            return {}, self._label, False
        return super().row_targets_of(y, task)

    def row_weights_of(self, sample_weight: Any) -> tuple[dict[str, Any], str | None]:
        """None, and their column: only the parties see them."""
        if not isinstance(sample_weight, str):
            raise DataError(
                "on a connected federation sample_weight names the weights' column, which every party has: "
                "sample_weight='column'"
            )
        return {}, sample_weight

    def _stratum(self, stratify: Any) -> str:
        if stratify is not None and not isinstance(stratify, str):
            raise DataError("on a connected federation stratify names the labels' column, which every party has")
        return stratify or ""

    def in_folds(
        self,
        y: str,
        n_folds: int,
        seed: int = 0,
        *,
        stratify: bool = False,
        features: Any = None,
        exclude: Any = None,
    ) -> FoldedRows:
        """This federation as scikit-learn's X with one row for each fold."""
        chosen = copy.copy(self.choose_columns(features, exclude, y))
        chosen._label = y
        return FoldedRows.of(chosen, n_folds, seed, y if stratify else None)

    def rate_answers(
        self, fitted: GrownForest | FittedLinear, y: Any, bootstrap: Resampling, **options: Any
    ) -> PooledSummary:
        """Have every party rate a whole forest on its own rows; ``allow_two``: also where there are two of them."""
        if not isinstance(y, str) or not isinstance(fitted, GrownForest):
            raise DataError("on a connected federation y names the labels, which only their party sees: y='column'")
        order, keys = self.evaluate_rows_order(fitted, y, bootstrap, allow_two=bool(options.get("allow_two", False)))
        return read_rows_report(self.run(order), keys, fitted.coordinator.classes, bootstrap)

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
        """Have a whole forest grown."""
        order = self.train_rows_order(plan, _named(label), settings(), weight=weight)
        return whole_grown_forest(self._have_grown(order, on_progress))

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
        """Have a party leave a whole forest."""
        facts = self.client.model(model_of(forest)).facts
        done = self.run(self.revoke_rows_order(facts, plan, _named(label), leaver, level, weight))
        receipt = self.client.receipt(done.job)
        keep(*whole_grown_forest(self.client.model(done.job)), self.without(leaver), receipt)
        return receipt

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
        """Have rows of a whole forest forgotten."""
        if only_here:
            raise DataError(
                "identity and prove are for clients in this process: between organisations the coordinator and all "
                "parties sign the receipt, and the forest is grown without the rows in any case"
            )
        facts = self.client.model(model_of(forest)).facts
        order, key = self.forget_rows_order(facts, ids, _named(label), weight)
        self.run(order)
        receipt = self.client.erasure(order.job, key)
        check_named(receipt, ids, self.parties)
        keep(*whole_grown_forest(self.client.model(order.job)), self, receipt)
        return receipt

    def predict_rows(
        self, model: str | GrownForest, label: str | None = None, *, score_epsilon: float | None = None
    ) -> JobFacts:
        """Have every party predict its own rows and keep the answers beside its ids, under ``answers/JOB.parquet``.

        Parameters
        ----------
        model : GrownForest or str
            The forest, as ``model.forest_``: parties refuse any other that the coordinator may bring. Or its id there,
            such as ``model.forest_.model``: which forest that is, the coordinator tells.
        label : str, optional
            A column of every party's, with which it scores the answers.
        score_epsilon : float, optional
            Have numbers of rows and scores told with integer Laplace noise of this epsilon, which every party charges
            to its privacy budget for rows. Parties that require differential privacy tell no other score. For classes
            only.

        Returns
        -------
        JobFacts
            Among others ``rows`` and ``scores`` by party, and for classes ``score``, the accuracy over all rows. A
            party that requires differential privacy tells its number of rows with a noisy score only.
        """
        order = self.predict_rows_order(model, label, score_epsilon)
        return self.run(order)


class FoldedRows(InFolds, ConnectedRowFederation):
    """Folds of the rows of parties with the same columns."""


def read_rows_report(
    facts: JobFacts, keys: Mapping[str, bytes], classes: Sequence[Any], bootstrap: Resampling
) -> PooledSummary:
    """The report of an evaluation over rows, from sums that only its user can read.

    Parameters
    ----------
    facts : JobFacts
        Of the job.
    keys : mapping of str to bytes
        Of each party, as `ConnectedRowFederation.evaluate_rows_order` has made them.
    classes : sequence
        Of the model; empty for regression.
    bootstrap : Resampling
        How intervals are found.
    """
    from woodlot.jobs.evaluate.report_seal import ReportSeal
    from woodlot.jobs.evaluate.sum_pads import without_pads
    from woodlot.metrics.pooled_classes import check_cuts, class_summary
    from woodlot.metrics.pooled_targets import target_summary

    try:
        told = json.loads(facts.told)
        sums = np.array(told["sums"], np.int64)
        cuts = [np.array(own, np.int64) for own in told["cuts"]]
        reports = {str(party): bytes.fromhex(report) for party, report in told["reports"].items()}
        rounded = int(told["round_counts"])
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise RemoteProtocolError(f"job {facts.job} has no report of an evaluation over rows") from None
    sums = without_pads(sums, keys, facts.job)
    if classes:
        check_cuts(cuts, len(classes))
        summary = class_summary(sums, classes, cuts, len(keys), bootstrap, rounded)
    else:
        summary = target_summary(sums, len(keys), bootstrap, rounded)
    own = {p: ReportSeal(keys[p], facts.job, p).open(reports[p], Summary) for p in keys if p in reports}
    return msgspec.structs.replace(summary, by_client=own, withheld=tuple(p for p in keys if p not in own))


def _named(label: str | None) -> str:
    if label is None:
        raise DataError("on a federation the labels have a column, which every party has: name it, as in y='default'")
    return label
