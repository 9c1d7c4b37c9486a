"""What an estimator is fitted on: parties with their tables, rows aligned, and a driver between them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import Column
from woodlot.data.ids import canonical_ids
from woodlot.data.labels import check_weights
from woodlot.data.markup import html_of
from woodlot.data.tables import Table
from woodlot.data.values import is_null, natural_type
from woodlot.exceptions import DataError, DeviceError, MissingExtraError, RemoteProtocolError
from woodlot.federation.column_choice import Catalog, catalog_of, chosen_by_party
from woodlot.federation.drawn_rows import DrawnRows, order_rows, take_target
from woodlot.federation.grown import Answer, GrownForest, Labels, Route
from woodlot.federation.interface import OnProgress, ScoreHere, Settings, Shuffled
from woodlot.federation.label_columns import LabelColumn, labels_of_array
from woodlot.federation.members import Member, aligned_members, party_name, refuse_strangers, row_members
from woodlot.federation.row_access import RowAccess, Rows, numbered
from woodlot.protocols.core.agreement import KEY_BYTES, Entropy
from woodlot.protocols.core.forest_parts import active_parties, forget_values, splitting_parties
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.leavers import Level, check_leaver
from woodlot.protocols.core.message import Message, Progress
from woodlot.protocols.core.target import Target
from woodlot.protocols.sums import SumClient
from woodlot.protocols.vertical.completion import CompletedForest, grow_forest, predict_forest, regrow_forest
from woodlot.protocols.vertical.explain import ExplainedRows
from woodlot.protocols.vertical.explain_messages import Explains
from woodlot.protocols.vertical.forest_messages import Wire
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.regrow import Regrown
from woodlot.protocols.vertical.regrowing import RegrowingParty
from woodlot.protocols.vertical.sealed import Sealer
from woodlot.runtime.audit import Account, Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.arrays.array_module import uses_card
from woodlot.trees.common_grow import CommonTrees
from woodlot.trees.drawing import RowDraws
from woodlot.trees.predict import Vote

if TYPE_CHECKING:
    from woodlot.crypto.dtpkc import Setting
    from woodlot.federation.local_forgetting import LocalMemory
    from woodlot.federation.local_host import LocalHost
    from woodlot.federation.local_revocable import Encryption, RevocableGrown
    from woodlot.identity.receipts import Receipt
    from woodlot.jobs.job_messages import JobFacts
    from woodlot.jobs.orders import Order, Part
    from woodlot.protocols.linear.linear_model import FittedLinear, LinearPlan
    from woodlot.protocols.revocable.revocable_plan import RevocablePlan, Scheme


class Federation(RowAccess):
    """Parties that can grow and use a forest together. Make one with `Federation.local`.

    Attributes
    ----------
    layout : {"columns", "rows"}
        What the parties hold of one table: different columns of the same rows, or different rows of the same columns.
    parties : tuple of str
        Names of the parties.
    n_rows : int
        Rows that they have in common (or, joined "outer", that any of them has).
    ids : array or None
        Id of each row, in the order of predictions: that of the first party.

    Examples
    --------
    >>> import pandas as pd
    >>> import woodlot as wl
    >>> bank = pd.DataFrame({"id": range(40), "income": [20, 60, 30, 70] * 10, "late": ["yes", "no"] * 20})
    >>> shop = pd.DataFrame({"id": range(39, 4, -1), "visits": [5, 2, 4, 1, 3] * 7})
    >>> fed = wl.Federation.local({"bank": bank, "shop": shop}, id="id")
    >>> fed
    Federation of 2 parties, 35 rows
      bank  2 columns
      shop  1 column
    >>> model = wl.FederatedForestClassifier(n_estimators=5, random_state=0).fit(fed, y="bank.late")
    >>> dict(zip(fed.ids[:3].tolist(), model.predict(fed)[:3].tolist(), strict=True))
    {5: 'no', 6: 'yes', 7: 'no'}
    """

    layout: ClassVar[Literal["columns", "rows"]] = "columns"
    drawn: DrawnRows | None = None
    """Rows that are drawn one by one, where the estimator asks for it."""
    observer: Callable[[str, str, Message], None] | None = None
    """Told sender, receiver and every message of fits and predictions; for looking at what each role sees."""

    def __init__(self, members: Mapping[str, Member], ids: NDArray[Any] | None, key_by_party: bool) -> None:
        self._members = dict(members)
        self._key_by_party = key_by_party
        self.ids = ids
        self.parties = tuple(self._members)
        self.n_rows = next(iter(self._members.values())).table.n_rows

    @classmethod
    def local(
        cls,
        tables: Mapping[str, Any],
        *,
        id: str | None = None,
        join: str = "inner",
        shares_model: bool | Sequence[str] = False,
        sealed_predictions: bool | Sequence[str] = False,
        explains: Explains | Mapping[str, Explains] = "party",
        layout: Literal["columns", "rows"] = "columns",
    ) -> Federation:
        """Parties in this process, one table each.

        Parameters
        ----------
        tables : mapping of str to table
            Each party's table: pandas, polars, Arrow, or anything with the Arrow interface.
        id : str, optional
            Column that identifies a row at every party; in a pandas frame it may be the index, if the index has this
            name. Without it the tables must have the same rows in the same order, and pandas frames equal indexes.
        join : {"inner", "outer"}
            Keep the rows that all parties have, or every row of any party. With "outer" a row that a party lacks
            follows both branches at that party's nodes; it is for prediction only.
        shares_model : bool or sequence of str
            Parties that let the coordinator keep the complete model. It does so only if all that split a node agree.
        sealed_predictions : bool or sequence of str
            Parties that answer predictions only under seal: ``predict(..., sealed=True)``.
        explains : {"none", "party", "columns", "values"} or mapping, default="party"
            What ``explain`` may show of each party, for all of them or by party: nothing; its part of an answer; the
            parts of its columns, by their names; or these with the rows' values. "none" for parties that a mapping
            leaves out.
        layout : {"columns", "rows"}
            Whether the tables have different columns of the same rows, or different rows of the same columns, labels
            among them. With "rows", ``id`` names a column that is not learnt from, and the models are whole: everybody
            has all of them.

        Examples
        --------
        Different columns of the same customers; rows are found by their id:

        >>> import pandas as pd
        >>> import woodlot as wl
        >>> bank = pd.DataFrame({"id": range(40), "income": [20, 60, 30, 70] * 10, "late": ["yes", "no"] * 20})
        >>> shop = pd.DataFrame({"id": range(39, 4, -1), "visits": [5, 2, 4, 1, 3] * 7})
        >>> wl.Federation.local({"bank": bank, "shop": shop}, id="id").n_rows
        35
        >>> wl.Federation.local({"bank": bank, "shop": shop}, id="id", join="outer").n_rows
        40

        Different rows of the same columns:

        >>> wl.Federation.local({"north": bank[:20], "south": bank[20:]}, id="id", layout="rows").parties
        ('north', 'south')
        """
        if not isinstance(tables, Mapping):
            raise DataError(f"give a mapping of party name to table, not a {type(tables).__name__}")
        if not tables:
            raise DataError("a federation needs at least one party; give a mapping of party name to table")
        if join not in ("inner", "outer"):
            raise ValueError(f"join must be 'inner' or 'outer', not {join!r}")
        if layout not in ("columns", "rows"):
            raise ValueError(f"layout must be 'columns' or 'rows', not {layout!r}")
        tables = {party_name(name): data for name, data in tables.items()}
        if layout == "rows":
            from woodlot.federation.local_rows import RowFederation

            if join != "inner" or shares_model or sealed_predictions or explains != "party":
                raise DataError(
                    "join, shares_model, sealed_predictions and explains are for layout='columns'; clients with the "
                    "same columns join no rows, and everybody has the whole model"
                )
            return RowFederation(*row_members(tables, id))
        members, ids = aligned_members(tables, id, join, shares_model, sealed_predictions, explains)
        return cls(members, ids, key_by_party=True)

    @classmethod
    def dealt(cls, table: Table, dealing: Mapping[str, Sequence[str]]) -> Federation:
        """One table whose columns are dealt to simulated parties: the forest does not depend on the dealing."""
        members = {
            party_name(name): Member(table.select(list(columns)), None, None, shares_model=True, explains="values")
            for name, columns in dealing.items()
        }
        return cls(members, None, key_by_party=False)

    def __repr__(self) -> str:
        width = max(len(p) for p in self.parties)
        parties = f"{len(self.parties)} part{'y' if len(self.parties) == 1 else 'ies'}"
        lines = [f"Federation of {parties}, {self.n_rows:,} rows"]
        for name, member in self._members.items():
            n = len(member.table.names)
            line = f"  {name:<{width}}  {n} column{'' if n == 1 else 's'}"
            if member.known is not None:
                line += f", lacks {int((~member.known).sum()):,} rows"
            lines.append(line + (", shares the model" if member.shares_model and self._key_by_party else ""))
        return "\n".join(lines)

    @property
    def key_by_party(self) -> bool:
        """Whether the parties' names enter the codes of their columns."""
        return self._key_by_party

    def with_members(self, members: Mapping[str, Member]) -> Federation:
        """The same rows at other members."""
        federation = Federation(members, self.ids, self._key_by_party)
        federation.observer = self.observer
        federation.drawn = self.drawn
        federation._lineage = self.lineage
        return federation

    def without(self, party: str) -> Federation:
        """The other parties."""
        return self.with_members({name: member for name, member in self._members.items() if name != party})

    def columns_to_learn(self, labels: Labels | None) -> dict[str, tuple[str, ...]]:
        """By party the columns to learn from."""
        hidden = {} if labels is None else {labels.holder: labels.hidden}
        return {
            name: tuple(c for c in member.table.names if c not in hidden.get(name, ()))
            for name, member in self._members.items()
        }

    def own_columns(self, party: str, names: Sequence[str]) -> tuple[Column, ...]:
        """A party's own view of some of its columns."""
        table = self._members[party].table
        absent = table.absent(list(names))
        if absent:
            raise DataError(f"the table of {party} lacks columns of the model: {absent}")
        return tuple(table.column(name) for name in names)

    def shows_names(self, party: str) -> bool:
        """Whether a party lets results name its columns."""
        return self._members[party].explains in ("columns", "values")

    def with_shuffled(self, party: str, seed: int) -> Federation:
        """The federation with a party's rows in another order, all of its columns alike."""
        if party not in self._members:
            return self
        order = np.random.default_rng(seed).permutation(self.n_rows)
        return self.with_members({**self._members, party: self._members[party].take(order)})

    def _taken(self, rows: Rows) -> Federation:
        members = {name: member.take(rows) for name, member in self._members.items()}
        subset = Federation(members, None if self.ids is None else self.ids[rows], self._key_by_party)
        subset.observer = self.observer
        subset.drawn = None if self.drawn is None else self.drawn.take(rows)
        return subset

    def _label_column(self, name: str) -> LabelColumn:
        return LabelColumn.of(self.labels(name, what=name), name)

    def _n_columns(self) -> int:
        return sum(len(member.table.names) for member in self._members.values())

    def _hashed_ids(self) -> list[bytes]:
        if self.ids is None:
            return numbered(self.lineage.positions)
        ids, place = np.unique(self.ids, return_inverse=True)  # rows may be there twice, in a subset
        values = canonical_ids(ids).values
        return [values[k] for k in place]

    def catalog(self) -> Catalog:
        """What there is to learn from: columns of each party, their types and missing shares; no values.

        Examples
        --------
        >>> import pandas as pd
        >>> import woodlot as wl
        >>> bank = pd.DataFrame({"id": range(4), "income": [20, None, 30, 70], "late": ["yes", "no"] * 2})
        >>> shop = pd.DataFrame({"id": range(4), "visits": [5, 2, 4, 1]})
        >>> wl.Federation.local({"bank": bank, "shop": shop}, id="id").catalog()
        3 columns; rows: bank 4, shop 4
          party  column  type        missing
          bank   income  numbers     25.0%
          bank   late    categories  0.0%
          shop   visits  numbers     0.0%
        """
        return catalog_of({name: member.table for name, member in self._members.items()})

    def choose_columns(self, features: Any, exclude: Any, labels: Labels | str | None) -> Federation:
        """The federation with the columns that are to be learnt from."""
        if features is None and exclude is None:
            return self
        kept = {labels.holder: labels.hidden} if isinstance(labels, Labels) else {}
        tables = {name: member.table for name, member in self._members.items()}
        chosen = chosen_by_party(tables, features, exclude, kept)
        if not any(set(own) - set(kept.get(name, ())) for name, own in chosen.items()):
            raise DataError("features and exclude leave no column to learn from; keep at least one")
        members = self._members.items()
        return self.with_members({name: replace(m, table=m.table.select(chosen[name])) for name, m in members})

    def _repr_html_(self) -> str:
        return html_of(self)

    @property
    def members(self) -> Mapping[str, Member]:
        """Each party's table and settings; for the protocols that are run on a federation."""
        return self._members

    # --- orders of any kind ---

    @cached_property
    def host(self) -> LocalHost:
        """What runs orders in this process; its ``store`` has what the jobs have kept. Made when it is first asked."""
        from woodlot.federation.local_host import LocalHost

        return LocalHost(self._members)

    @property
    def tables(self) -> dict[str, str]:
        """The name of each party's table, as orders have it."""
        from woodlot.federation.local_host import TABLE

        return dict.fromkeys(self.parties, TABLE)

    def order_fields(self, parts: Mapping[str, Part]) -> dict[str, Any]:
        """Seal each party's part to it."""
        return self.host.order_fields(parts)

    def run(self, order: Order, on_facts: Callable[[JobFacts], None] | None = None) -> JobFacts:
        """Run an order of any kind; the parties do their work, and ask their policies, as their services would.

        Examples
        --------
        >>> import pandas as pd
        >>> import woodlot as wl
        >>> from woodlot.jobs.orders import AlignOrder
        >>> bank = pd.DataFrame({"id": range(40), "income": [20, 60, 30, 70] * 10})
        >>> shop = pd.DataFrame({"id": range(39, 4, -1), "visits": [5, 2, 4, 1, 3] * 7})
        >>> fed = wl.Federation.local({"bank": bank, "shop": shop}, id="id")
        >>> order = AlignOrder(**fed.order_fields({party: fed.part(party) for party in fed.parties}))
        >>> fed.run(order).common
        {'bank': 35, 'shop': 35}
        """
        return self.host.run(order, Ledger(self.observer), on_facts)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "host"}  # it has open files

    def require_every_row(self) -> None:
        """Refuse to train where a party lacks some of the rows."""
        lacking = [p for p, m in self._members.items() if m.known is not None]
        if lacking:
            raise DataError(f"training needs every row at every party; {lacking} lack some: use join='inner'")

    def columns(self, party: str) -> tuple[str, ...]:
        """Names of a party's columns (its own view)."""
        if party not in self._members:
            raise DataError(f"{party!r} is not a party of this federation; its parties are {list(self.parties)}")
        return self._members[party].table.names

    def locate(self, column: str) -> tuple[str, str]:
        """Party and column of a name such as ``"bank.default"``."""
        party, dot, name = str(column).partition(".")
        if not dot or party not in self._members:
            raise DataError(f"{column!r} must be written party.column, with a party of {list(self.parties)}")
        if name not in self._members[party].table.names:
            raise DataError(f"{party} has no column {name!r}; it has {list(self._members[party].table.names)}")
        return party, name

    def labels(self, column: str, *, what: str = "y") -> NDArray[Any]:
        """The label holder's own view of its labels or weights, one per row.

        Parameters
        ----------
        column : str
            Where they are: ``"party.column"``.
        what : str
            What error messages call them.
        """
        party, name = self.locate(column)
        member = self._members[party]
        if member.known is not None:
            lacking = int((~member.known).sum())
            raise DataError(f"{lacking} rows have no {what}, because {party} lacks them; use join='inner'")
        values = member.values(name, f"the table of {party}")
        missing = is_null(values)
        if missing.any():
            raise DataError(
                f"Input {what} contains NaN: {int(missing.sum())} rows of {column} are empty; drop them first"
            )
        return natural_type(values)

    def labels_for_training(
        self,
        y: Any,
        sample_weight: Any,
        make_target: Callable[[NDArray[Any], NDArray[np.float64] | None], Target],
    ) -> Labels:
        """Labels by the name of their column, or as an array of one per row."""
        if y is None or isinstance(y, str):
            return super().labels_for_training(y, sample_weight, make_target)
        return labels_of_array(self, y, sample_weight, make_target)

    def find_labels(self, y: str, sample_weight: str | None) -> Labels:
        """Where the labels and weights are; weights must be at the label holder."""
        return Labels.at(self.locate, y, sample_weight)

    def label_values(self, labels: Labels) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
        """The label holder's own view of its labels and weights."""
        weights = None if labels.weight is None else self.weight_values(f"{labels.holder}.{labels.weight}")
        return self.labels(f"{labels.holder}.{labels.column}"), weights

    def weight_values(self, column: str) -> NDArray[np.float64] | None:
        """A party's own view of the weights of its rows, checked."""
        values = self.labels(column, what="sample_weight")
        return check_weights(values, values)

    def fit_forest(
        self,
        plan: ForestPlan,
        labels: Labels,
        *,
        settings: Settings,
        n_jobs: int = 1,
        device: str = "cpu",
        on_progress: Callable[[Progress], None] | None = None,
    ) -> tuple[GrownForest, Account]:
        """Grow a forest; used by the estimators.

        Parameters
        ----------
        plan : ForestPlan
            What to grow.
        labels : Labels
            The labels, which only their holder sees.
        settings : callable
            Not needed here.
        n_jobs : int
            Threads.
        device : {"cpu", "cuda", "auto"}
            Where the parties grow trees.
        on_progress : callable, optional
            Told how far the trees are.

        Returns
        -------
        GrownForest, Account
            The forest in its parts, and who saw what while it grew.
        """
        told = self.for_training(labels, n_jobs)
        if plan.protection == "hidden":
            from woodlot.federation.local_hidden import grow_hidden

            return grow_hidden(self, plan, labels, told, on_progress)
        ledger, holder = Ledger(self.observer), labels.holder
        common = CommonTrees() if device == "cpu" and len(told) > 1 else None
        handlers = {name: VerticalParty(name, device=device, common=common, **own) for name, own in told.items()}
        one_card = uses_card(device, self.n_rows)
        with InProcessDriver(handlers, ledger=ledger, side_by_side=not one_card) as driver:
            protocol = grow_forest(
                plan, self.parties, holder, n_jobs, reveal=self._key_by_party, by_row=self._draws_by_row
            )
            try:
                completed = run(protocol, driver, ledger=ledger, on_progress=on_progress)
            except RemoteProtocolError as error:
                if isinstance(error.__cause__, DeviceError | MissingExtraError):  # the user's card, not a peer's fault
                    raise error.__cause__ from error
                raise
        return self._collect(plan, completed, holder, handlers), ledger.account()

    def revoke(
        self,
        forest: GrownForest,
        plan: ForestPlan,
        labels: Labels,
        leaver: str,
        level: Level,
        *,
        patched: bool = False,
        n_jobs: int = 1,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> tuple[GrownForest, Regrown, Account]:
        """Grow the forest without one of its parties; used by the estimators. The former one is not changed.

        Parameters
        ----------
        forest : GrownForest
            What was grown here by ``plan`` and ``labels``.
        leaver : str
            The party that leaves; its table is not looked at.
        level : {1, 3}
            Its nodes only, or exact.
        patched : bool
            Whether the last revocation from it was not exact.
        plan, labels, n_jobs, on_progress
            As for ``fit``.
        """
        if plan.protection == "hidden":
            from woodlot.federation.local_hidden import regrow_hidden

            return regrow_hidden(self, forest, plan, labels, leaver, level, n_jobs, on_progress)
        ledger, holder = Ledger(self.observer), labels.holder
        check_leaver(forest.coordinator.parties, holder, leaver)
        if self.drawn is not None and not self.drawn.by_id:
            raise DataError(
                "the rows of this forest are drawn by all they hold, the leaver's values too: without them every tree "
                "is another one; fit again without the party, or fit on a federation with id=... before"
            )
        handlers = {
            name: RegrowingParty(name, former=forest.parts[name], **told)
            if name in forest.parts
            else VerticalParty(name, **told)
            for name, told in self.for_training(labels, n_jobs).items()
            if name in forest.coordinator.parties and name != leaver
        }
        self.require_staying(forest, leaver)
        with InProcessDriver(handlers, ledger=ledger) as driver:
            protocol = regrow_forest(
                plan, forest.coordinator, leaver, level, holder, n_jobs, patched, reveal=self._key_by_party,
                by_row=self._draws_by_row,
            )  # fmt: skip
            regrown, completed = run(protocol, driver, ledger=ledger, on_progress=on_progress)
        return self._collect(plan, completed, holder, handlers), regrown, ledger.account()

    def require_staying(self, forest: GrownForest, leaver: str) -> tuple[str, ...]:
        """The parties of a forest but one, all of which must be here."""
        staying = tuple(p for p in forest.coordinator.parties if p != leaver)
        if absent := [p for p in staying if p not in self._members]:
            raise DataError(f"{absent} are not here; regrowing needs the tables of all parties that stay")
        return staying

    @property
    def _draws_by_row(self) -> RowDraws | None:
        return None if self.drawn is None else self.drawn.draws

    def drawn_by_row(self, plan: ForestPlan, labels: Labels) -> tuple[Federation, Labels]:
        """The federation with its rows in the order of their keys, and the labels in that order."""
        self.require_every_row()
        if labels.target is None:
            raise DataError("bootstrap_by='row' needs the labels in this process")
        tables = {name: self.learnt_from(name, labels) for name in self.parties}
        ids = None if self.ids is None else self._hashed_ids()
        drawn = order_rows(plan, labels.target, tables, ids, self._key_by_party)
        federation = self.take(drawn.place)
        federation.drawn = drawn
        return federation, replace(labels, target=take_target(labels.target, drawn.place))

    def remember(self, labels: Labels, plan: ForestPlan) -> LocalMemory:
        """What it takes to forget rows of a forest that was grown here."""
        from woodlot.federation.local_forgetting import LocalMemory

        return LocalMemory(self, labels, plan)

    def learnt_from(self, party: str, labels: Labels) -> Table:
        """A party's columns without those of labels and weights."""
        table = self._members[party].table
        return table.select([c for c in table.names if party != labels.holder or c not in labels.hidden])

    def for_training(self, labels: Labels, n_jobs: int) -> dict[str, dict[str, Any]]:
        """What each party is made of."""
        self.require_every_row()
        threads = self.threads_of_a_party(n_jobs)
        return {
            name: {
                "table": self.learnt_from(name, labels),
                "target": labels.target if name == labels.holder else None,
                "key_by_party": self._key_by_party,
                "shares_model": member.shares_model,
                "n_jobs": threads,
                "by_row": self._draws_by_row,
            }
            for name, member in self._members.items()
        }

    def _collect(
        self, plan: ForestPlan, completed: CompletedForest, holder: str, handlers: Mapping[str, VerticalParty]
    ) -> GrownForest:
        """Gather the parts of a forest."""
        forest, oob, unwilling, shared = completed
        active = active_parties(forest, holder)
        parts = {name: forget_values(handler.grown_forest()) for name, handler in handlers.items() if name in active}
        if not self._key_by_party:  # dealt from one table: everything is in one hand from the start
            shared = parts
        return GrownForest(
            forest, parts, shared, unwilling, oob.outputs, oob.score, oob.residuals, plan=plan, oob_curve=oob.curve
        )

    def threads_of_a_party(self, n_jobs: int) -> int:
        """Parties work at the same time, each in a thread of its own: they share what was asked for."""
        return max(1, n_jobs // max(1, sum(len(member.table.names) > 0 for member in self._members.values())))

    def present(self, forest: GrownForest) -> list[str]:
        """The parties here that have a part of the forest."""
        return [p for p in self.parties if p in forest.parts]

    def check_prediction(self, forest: GrownForest) -> None:
        """Refuse to predict no rows, or with parties that are not of the forest; used before every prediction."""
        if self.n_rows == 0:
            raise DataError(
                "Found array with 0 sample(s) while a minimum of 1 is required: there are no rows to predict"
            )
        refuse_strangers(self.parties, forest.coordinator.parties, splitting_parties(forest.coordinator))

    def predict(
        self,
        forest: GrownForest,
        method: Route,
        wire: Wire,
        vote: Vote,
        *,
        shuffled: tuple[int, int] | None = None,
        n_jobs: int = 1,
    ) -> tuple[Answer, Account]:
        """Predict with the parties that have both rows and a part of the forest; used by the estimators."""
        self.check_prediction(forest)
        grown, present = forest.coordinator, self.present(forest)
        if method == "encrypted-splits":
            raise DataError("this forest has no encrypted splits; they are for revocable forests")
        protocol = predict_forest(
            grown, present, self.n_rows, how=method, wire=wire, vote=vote, n_jobs=n_jobs, shuffled=shuffled
        )
        ledger = Ledger(self.observer)
        common = secrets.token_bytes(KEY_BYTES)
        handlers = {
            name: VerticalParty(
                name,
                self._members[name].table,
                forest=forest.parts[name],
                known=self._members[name].known,
                key_by_party=self._key_by_party,
                sealer=_fresh_sealer(name, common) if method == "sealed" else None,
                sealed_only=self._members[name].sealed_only,
                n_jobs=self.threads_of_a_party(n_jobs),
            )
            for name in present
        }
        with InProcessDriver(handlers, ledger=ledger) as driver:
            return run(protocol, driver, ledger=ledger), ledger.account()

    def explain(
        self, forest: GrownForest, vote: Vote, *, n_jobs: int = 1, on_progress: OnProgress = None
    ) -> tuple[ExplainedRows, Account]:
        """Divide the forest's answers among parties and columns; used by the estimators."""
        from woodlot.federation.local_explain import explain_here

        return explain_here(self, forest, vote, n_jobs, on_progress)

    # --- as every federation, for the estimators; see `AnyFederation` ---

    source = None

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
        """Score in this process, with the labels and weights of their holder."""
        return here(*self._scored_by(y, sample_weight))

    def _scored_by(self, y: Any, sample_weight: Any) -> tuple[Any, Any]:
        labels = self.labels(y) if isinstance(y, str) else y
        return labels, self.weight_values(sample_weight) if isinstance(sample_weight, str) else sample_weight

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
        """Take parties out of a forest in this process."""
        return here(self)

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
        """Grow a revocable forest."""
        from woodlot.federation.local_revocable import grow_revocable

        return grow_revocable(self, plan, labels, encryption, n_jobs=n_jobs, on_progress=on_progress)

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
        """Predict with a revocable forest, in which categories are numbers."""
        from woodlot.federation.local_revocable import as_numbers, predict_by_encrypted_splits

        rows = as_numbers(self, forest.categories)[0] if self._key_by_party else self
        if method == "encrypted-splits":
            return predict_by_encrypted_splits(rows, forest, vote, n_jobs)
        return rows.predict(forest, method, wire, vote, shuffled=shuffled, n_jobs=n_jobs)

    def predict_encrypted(
        self,
        forest: GrownForest,
        columns: Mapping[str, NDArray[np.float64]],
        vote: Vote,
        setting: Setting,
        scheme: Scheme,
    ) -> NDArray[np.float64]:
        """Refuse: no member of a forest that is kept elsewhere is reached from here."""
        raise DataError("this forest's keys are with its members: give federation=woodlot.connect(...)")

    def request_rows(self, forest: RevocableGrown) -> NDArray[np.float64]:
        """Join the rows of all parties."""
        from woodlot.federation.local_revocable import request_rows

        return request_rows(self, forest)

    def fit_linear(
        self, plan: LinearPlan, labels: Labels, *, settings: Settings, on_progress: OnProgress = None
    ) -> tuple[FittedLinear, Account]:
        """Fit a linear model."""
        from woodlot.federation.local_linear import fit_here

        return fit_here(self, plan, labels, on_progress)

    def predict_linear(self, fitted: FittedLinear) -> tuple[Answer, Account]:
        """Predict with a linear model."""
        from woodlot.federation.local_linear import predict_here

        return predict_here(self, fitted)

    def score_linear(self, fitted: FittedLinear, y: Any, sample_weight: Any, here: ScoreHere) -> float:
        """Score in this process, with the labels and weights of their holder."""
        return here(*self._scored_by(y, sample_weight))

    def tables_here(self) -> list[Table]:
        """All tables."""
        return [member.table for member in self._members.values()]


def fresh_entropy() -> Entropy:
    """Secrets of a party in this process, drawn now and kept nowhere."""
    secret = secrets.token_bytes(KEY_BYTES)
    return lambda purpose: hashlib.blake2b(purpose.encode(), key=secret, digest_size=KEY_BYTES).digest()


def _fresh_sealer(name: str, common: bytes) -> Sealer:
    """Secrets for one sealed prediction; parties in one process have a secret in common in place of identities."""
    entropy = fresh_entropy()
    sums = SumClient(name, job="local", entropy=entropy, shared_secret=common, allow_two=True)
    return Sealer(name, sums, entropy=entropy)
