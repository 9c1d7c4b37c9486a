"""Parts of a connected federation's rows: rules that parties follow, on one alignment; and what is told of them."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from woodlot.connected.column_orders import chosen_fields
from woodlot.data.row_rules import CIRCLE, RowRule, whole_circle
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.federation import AnyFederation, GrownForest, Labels
from woodlot.federation.column_choice import Catalog, CatalogColumn
from woodlot.federation.interface import KnownRows
from woodlot.federation.row_access import check_seed
from woodlot.metrics.resampling import Resampling
from woodlot.metrics.summaries import Summary
from woodlot.protocols.core.target import Target
from woodlot.protocols.linear.linear_model import FittedLinear

if TYPE_CHECKING:
    from woodlot.jobs.job_messages import JobFacts
    from woodlot.jobs.linear.linear_orders import EvaluateLinearOrder
    from woodlot.jobs.orders import EvaluateOrder, RowSubset

_SMALLEST = 1e-6
"""The smallest share of the rows that a part can have."""


STRATIFIED_COLUMNS = (
    "rows of parties with different columns are not divided by class between organisations: every party has the key of "
    "the division, and rows near its edge would tell it their labels. Leave stratify out; of many rows each part has "
    "nearly the same share of each class"
)


@dataclass(frozen=True)
class RowsAt(KnownRows):
    """Which rows of which tables a connected federation has, by names and rules.

    Attributes
    ----------
    address : str
        The coordinator's.
    tables : tuple of (str, str)
        Each party's table.
    rules : tuple of RowRule
        Rows are in all of them; empty: all common rows.
    """

    address: str
    tables: tuple[tuple[str, str], ...]
    rules: tuple[RowRule, ...] = ()

    def seen_in(self, training: Any) -> str:
        """How many of these rows a training had, in words; empty if none."""
        if not isinstance(training, RowsAt) or (self.address, self.tables) != (training.address, training.tables):
            return ""
        if any(not one.meets(other) for one in self.rules for other in training.rules if _alike(one, other)):
            return ""
        return "all rows" if set(training.rules) <= set(self.rules) else "some of the rows"


def _alike(one: RowRule, other: RowRule) -> bool:
    """Whether both are parts of the same circle."""
    return (one.seed, one.by) == (other.seed, other.by)


class RowParts(AnyFederation):
    """The part of a connected federation's rows that its jobs are for."""

    rates_elsewhere = True
    _rules: tuple[RowRule, ...] = ()
    _chosen: Mapping[str, Mapping[str, tuple[str, ...]]] = {}
    _label: str | None = None
    """Where the labels are, if a fit needs not say it."""
    _alignment: JobFacts | None

    def __bool__(self) -> bool:
        return True

    def __len__(self) -> int:
        raise TypeError(
            "how many rows a connected federation has is known to its parties: fed.n_rows asks them how many they have "
            "in common, and a report says how many rows it is of"
        )

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str):
            raise TypeError(
                f"the values of a column stay with their party: name it where it is needed, as in fit(fed, y={key!r}); "
                "fed.catalog() shows which columns there are"
            )
        raise TypeError(
            "rows of a connected federation have no numbers here: hold rows out with train, test = fed.split(0.25), "
            "make folds with wl.cross_validate(..., cv=5), and name single rows by fed.named_rows(ids)"
        )

    def __iter__(self) -> NoReturn:
        raise TypeError("a connected federation has no single rows to go through; hold some out: fed.split()")

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise TypeError(
            "a connected federation is no array: its rows stay with their parties. In place of scikit-learn's "
            "cross_validate and GridSearchCV use wl.cross_validate and wl.search"
        )

    def split(self, test_size: float = 0.25, *, seed: int = 0, stratify: Any = None) -> tuple[Self, Self]:
        """Divide the common rows into those to learn from and those to test on, by a hash of their ids.

        The parties are aligned first, if they are not yet; both parts use this alignment. A part is a rule in the
        orders of its jobs, and each party finds its rows by a key that neither the coordinator nor the user has. A row
        stays on its side when rows are added to the tables, as long as the same parties take part in the same order.

        Parameters
        ----------
        test_size : float, default=0.25
            Share of the rows to test on; the number of rows comes out near it, not exactly.
        seed : int, default=0
            Another seed gives another split.
        stratify : str, optional
            Of parties with different rows, the column of the labels, which every party has: each party divides the rows
            of each class in these shares. Jobs of the parts must have the same label.

        Returns
        -------
        train, test : ConnectedFederation
        """
        is_share = isinstance(test_size, Real) and not isinstance(test_size, bool)
        if not is_share or not _SMALLEST <= test_size <= 1 - _SMALLEST:
            raise ValueError(f"test_size must be a share between 0 and 1, such as 0.25, not {test_size!r}")
        base = self._base(seed, self._stratum(stratify))
        held = base.part(0, float(test_size))
        return self._part_with(base, base.rest(held)), self._part_with(base, held)

    def _stratum(self, stratify: Any) -> str:
        """The labels whose classes are divided one by one; empty: none."""
        if stratify is not None:
            raise DataError(STRATIFIED_COLUMNS)
        return ""

    def folds(self, n_folds: int, seed: int = 0, stratify: Any = None) -> list[tuple[Self, Self]]:
        """The rows to fit on and to score, of each fold; all of them use one alignment."""
        base = self._base(seed, self._stratum(stratify))
        held = [base.part(k / n_folds, (k + 1) / n_folds) for k in range(n_folds)]
        return [(self._part_with(base, base, fold.other()), self._part_with(base, fold)) for fold in held]

    def _base(self, seed: int, by: str = "") -> RowRule:
        """The interval that these rows are from under a seed: all of the circle, or what an earlier split has left."""
        check_seed(seed)
        if seed >= CIRCLE:
            raise ValueError(f"seed must be below 2**64, not {seed}")
        found = [rule for rule in self._rules if (rule.seed, rule.by) == (seed, by)]
        if len(found) > 1:
            raise DataError(f"these rows were divided with the seed {seed} more than once; take another seed")
        self._find_rows()
        return found[0] if found else whole_circle(seed, by)

    def _find_rows(self) -> None:
        """Have the rows found that parts are of."""
        if self._alignment is None:
            self.align()

    def align(self) -> Any:
        """Find the common rows now."""
        raise NotImplementedError

    def _part_with(self, base: RowRule, *rules: RowRule) -> Self:
        """The rows in these rules, which take the place of one before."""
        part = copy.copy(self)
        kept = tuple(rule for rule in self._rules if rule != base)
        part._rules = (*kept, *(rule for rule in rules if rule.width < CIRCLE))
        return part

    def _row_fields(self, label: str = "") -> dict[str, Any]:
        """What an order with this label says of the rows that it is for."""
        import msgspec

        from woodlot.jobs.orders import RowSubset

        def subset(rule: RowRule) -> RowSubset:
            if rule.by not in ("", label):
                raise DataError(f"these rows were divided by the classes of {rule.by!r}; use it as y, or split again")
            return RowSubset(rule.seed, rule.start % CIRCLE, rule.stop % CIRCLE, True if rule.by else msgspec.UNSET)

        return {"subset": tuple(map(subset, self._rules))} if self._rules else {}

    @property
    def source(self) -> RowsAt:
        """The coordinator's address, the names of the tables, and which rows."""
        return RowsAt(str(self._address()), tuple(sorted(self.tables.items())), self._rules)

    def _address(self) -> Any:
        raise NotImplementedError

    def labels_for_training(
        self,
        y: Any,
        sample_weight: Any,
        make_target: Callable[[NDArray[Any], NDArray[np.float64] | None], Target],
    ) -> Labels:
        """Where the labels and weights are; a federation in folds knows it."""
        return super().labels_for_training(self._label if y is None else y, sample_weight, make_target)

    # --- columns ---

    def choose_columns(self, features: Any, exclude: Any, labels: Labels | str | None) -> Self:
        """The federation with the columns that are to be learnt from; each party is told its own."""
        chosen = copy.copy(self)
        if features is None and exclude is None:
            return chosen
        chosen._chosen = chosen_fields(self.parties, features, exclude, labels)
        return chosen

    def catalog(self) -> Catalog:
        """What there is to learn from, as far as each owner tells it: columns, types, missing shares; no values.

        Each party's policy says how much (``catalog``). Its page is sealed to you: the coordinator reads no name.
        """
        from woodlot.jobs.catalog.catalog_jobs import CatalogOrder, CatalogPage
        from woodlot.jobs.evaluate.report_seal import ReportSeal, new_report_key

        keys = {party: new_report_key() for party in self.parties}
        order = CatalogOrder(**self.order_fields({party: self.part(party, key=key) for party, key in keys.items()}))
        try:
            told = {party: bytes.fromhex(page) for party, page in json.loads(self.run(order).told).items()}
            sealed = {party: told[party] for party in self.parties}
        except (ValueError, TypeError, AttributeError, KeyError):
            raise RemoteProtocolError(f"job {order.job} has no catalogue") from None
        pages = {p: ReportSeal(keys[p], order.job, p).open(sealed[p], CatalogPage) for p in self.parties}
        return Catalog(
            {party: page.rows for party, page in pages.items() if page.rows is not None},
            tuple(CatalogColumn(p, c.name, c.kind, c.missing) for p, page in pages.items() for c in page.columns or ()),
            tuple(f"{party}.{name}" for party, page in pages.items() for name in page.labels or ()),
            tuple(party for party, page in pages.items() if page.columns is None),
        )

    # --- evaluations ---

    def evaluate_order(
        self, model: str, label: str, bootstrap: Resampling, *, linear: bool = False, **options: Any
    ) -> tuple[EvaluateOrder | EvaluateLinearOrder, bytes]:
        """An order to have the holder of ``label``, ``"party.column"``, rate a model; and the key of its report."""
        from woodlot.jobs.evaluate.report_seal import new_report_key
        from woodlot.jobs.linear.linear_orders import EvaluateLinearOrder
        from woodlot.jobs.orders import BootstrapPlan, EvaluateOrder

        labels, key = self.find_labels(label, None), new_report_key()
        fields = self._evaluation_fields(model, labels, key) | {"model": model, "score_at": labels.holder}
        plan = BootstrapPlan(bootstrap.n_bootstrap, bootstrap.confidence, bootstrap.seed)
        kind = EvaluateLinearOrder if linear else EvaluateOrder
        return kind(**fields, bootstrap=plan, **options), key

    def _evaluation_fields(self, model: str, labels: Labels, key: bytes) -> dict[str, Any]:
        raise NotImplementedError

    def rate_answers(
        self, fitted: GrownForest | FittedLinear, y: Any, bootstrap: Resampling, **options: Any
    ) -> Summary:
        """Have the label holder rate a model's answers for the rows."""
        from woodlot.connected.connected_models import model_of

        if not isinstance(y, str):
            raise DataError("on a connected federation y names the labels, which only their party sees: 'party.column'")
        linear = isinstance(fitted, FittedLinear)
        self._remember(fitted)
        order, key = self.evaluate_order(model_of(fitted), y, bootstrap, linear=linear, **({} if linear else options))
        return read_report(self.run(order), key)

    def _remember(self, fitted: GrownForest | FittedLinear) -> None:
        raise NotImplementedError


def read_report(facts: JobFacts, key: bytes) -> Summary:
    """Open the report of an evaluation."""
    from woodlot.jobs.evaluate.report_seal import ReportSeal

    try:
        told = json.loads(facts.told)
        holder, sealed = str(told["holder"]), bytes.fromhex(told["report"])
    except (ValueError, TypeError, KeyError):
        raise RemoteProtocolError(f"job {facts.job} has no report of an evaluation") from None
    return ReportSeal(key, facts.job, holder).open(sealed, Summary)
