"""What an estimator is fitted on: parties with their tables, rows aligned, and a driver between them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import NumericColumn
from woodlot.data.tables import Table, read_table
from woodlot.data.values import column_values, id_values, is_null
from woodlot.exceptions import DataError
from woodlot.protocols.messages.base import Message, Progress, Round
from woodlot.protocols.vertical.model import CoordinatorForest, PartyForest
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.plan import ForestPlan
from woodlot.protocols.vertical.predict import score_out_of_bag
from woodlot.protocols.vertical.target import Target
from woodlot.protocols.vertical.train import train
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run

R = TypeVar("R")


@dataclass(frozen=True, eq=False)
class GrownForest:
    """A forest in its parts: the coordinator's, and those of the parties that are at hand."""

    coordinator: CoordinatorForest
    parts: dict[str, PartyForest]
    oob_outputs: NDArray[np.float64] | None = None
    oob_score: float | None = None
    residuals: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    """Quantiles of the out-of-bag residuals (regression)."""


@dataclass(frozen=True, eq=False)
class _Member:
    """One party: its columns in the common order of rows, and where they came from."""

    table: Table
    source: Any
    rows: NDArray[np.int64] | None
    """Row of the source for each common row, -1 where the party has none; None: the same rows."""
    shares_model: bool

    @property
    def known(self) -> NDArray[np.bool_] | None:
        return None if self.rows is None or (self.rows >= 0).all() else self.rows >= 0

    def values(self, column: str, what: str) -> NDArray[Any]:
        values = column_values(self.source, column, what)
        return values if self.rows is None else values[self.rows]


class Federation:
    """Parties that can grow and use a forest together. Make one with :meth:`Federation.local`.

    Attributes
    ----------
    parties : tuple of str
        Names of the parties.
    n_rows : int
        Rows that they have in common.
    ids : array or None
        Id of each common row, in the order of predictions.
    """

    def __init__(self, members: Mapping[str, _Member], ids: NDArray[Any] | None, key_by_party: bool) -> None:
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
    ) -> Federation:
        """Parties in this process, one table each.

        Parameters
        ----------
        tables : mapping of str to table
            Each party's table: pandas, polars, Arrow, or anything with the Arrow interface.
        id : str, optional
            Column that identifies a row at every party. Without it the tables must have the same rows in the same
            order.
        join : {"inner", "outer"}
            Keep the rows that all parties have, or every row of any party. With "outer" a row that a party lacks
            follows both branches at that party's nodes; it is for prediction only.
        shares_model : bool or sequence of str
            Parties that let the coordinator keep the complete model.

        """
        if not tables:
            raise DataError("a federation needs at least one party; give a mapping of party name to table")
        if join not in ("inner", "outer"):
            raise ValueError(f"join must be 'inner' or 'outer', not {join!r}")
        for name in tables:
            if not isinstance(name, str) or not name or "." in name or name == "coordinator":
                raise DataError(f"{name!r} cannot name a party: use a text without dots, other than 'coordinator'")
        sharing = set(tables if shares_model is True else shares_model or ())
        read = {name: read_table(data, what=f"the table of {name}") for name, data in tables.items()}
        ids, rows = _align(tables, id, join)
        members = {}
        for name, table in read.items():
            features = table.select([c for c in table.names if c != id])
            taken = features if rows is None else _take(features, rows[name])
            members[name] = _Member(taken, tables[name], None if rows is None else rows[name], name in sharing)
        _refuse_shared_columns(members)
        if len({m.table.n_rows for m in members.values()}) > 1:
            raise DataError(
                f"tables have different numbers of rows: { {p: m.table.n_rows for p, m in members.items()} }; "
                "name the id column with id=... so that rows can be aligned"
            )
        return cls(members, ids, key_by_party=True)

    @classmethod
    def dealt(cls, table: Table, dealing: Mapping[str, Sequence[str]]) -> Federation:
        """One table whose columns are dealt to simulated parties: the forest does not depend on the dealing."""
        members = {
            name: _Member(table.select(list(columns)), None, None, shares_model=True)
            for name, columns in dealing.items()
        }
        return cls(members, None, key_by_party=False)

    def __repr__(self) -> str:
        width = max(len(p) for p in self.parties)
        lines = [f"Federation of {len(self.parties)} parties, {self.n_rows:,} common rows"]
        for name, member in self._members.items():
            lines.append(f"  {name:<{width}}  {len(member.table.names)} columns")
        return "\n".join(lines)

    def columns(self, party: str) -> tuple[str, ...]:
        """Names of a party's columns (its own view)."""
        return self._members[party].table.names

    def locate(self, column: str) -> tuple[str, str]:
        """Party and column of a name such as ``"bank.default"``."""
        party, dot, name = column.partition(".")
        if not dot or party not in self._members:
            raise DataError(f"{column!r} must be written party.column, with a party of {list(self.parties)}")
        if name not in self._members[party].table.names:
            raise DataError(f"{party} has no column {name!r}")
        return party, name

    def labels(self, column: str) -> NDArray[Any]:
        """The label holder's own view of its labels, one per common row."""
        party, name = self.locate(column)
        member = self._members[party]
        if member.known is not None:
            raise DataError(f"{int((~member.known).sum())} rows have no label: {party} lacks them; use join='inner'")
        values = member.values(name, f"the table of {party}")
        missing = is_null(values)
        if missing.any():
            raise DataError(f"Input y contains NaN: {int(missing.sum())} rows of {column} have no label; drop them first")
        return values

    def fit(
        self,
        plan: ForestPlan,
        holder: str,
        target: Target,
        *,
        not_features: Mapping[str, Sequence[str]] | None = None,
        n_jobs: int = 1,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> tuple[GrownForest, Ledger]:
        """Grow a forest; used by the estimators.

        Parameters
        ----------
        holder : str
            The party that has the labels.
        target : Target
            The labels, which only that party sees.
        not_features : mapping, optional
            Columns of each party that must not be learnt from, such as the label itself.

        """
        lacking = [p for p, m in self._members.items() if m.known is not None]
        if lacking:
            raise DataError(f"training needs every row at every party; {lacking} lack some: use join='inner'")
        ledger = Ledger()
        handlers = {
            name: VerticalParty(
                name,
                member.table.select([c for c in member.table.names if c not in (not_features or {}).get(name, ())]),
                target=target if name == holder else None,
                key_by_party=self._key_by_party,
                shares_model=member.shares_model,
                n_jobs=n_jobs,
            )
            for name, member in self._members.items()
        }
        with InProcessDriver(handlers, ledger=ledger) as driver:
            forest: CoordinatorForest = run(
                train(plan, self.parties, holder, n_jobs), driver, ledger=ledger, on_progress=on_progress
            )
            outputs, score, residuals = None, None, np.empty(0)
            if plan.out_of_bag:
                outputs, verdict = run(score_out_of_bag(forest, holder, n_jobs), driver, ledger=ledger)
                score, residuals = verdict.score, verdict.residuals.copy()
        active = {p for p, h in handlers.items() if p == holder or len(h.feature_keys)}
        parts = {name: handler.grown_forest() for name, handler in handlers.items() if name in active}
        return GrownForest(forest, parts, outputs, score, residuals), ledger

    def ask(
        self,
        protocol: Generator[Round, dict[str, Message], R],
        parts: Mapping[str, PartyForest],
        *,
        n_jobs: int = 1,
    ) -> tuple[R, Ledger]:
        """Run a prediction protocol over the parties that have both rows and a part of the forest."""
        ledger = Ledger()
        handlers = {
            name: VerticalParty(
                name,
                member.table,
                forest=parts[name],
                known=member.known,
                key_by_party=self._key_by_party,
                n_jobs=n_jobs,
            )
            for name, member in self._members.items()
            if name in parts
        }
        with InProcessDriver(handlers, ledger=ledger) as driver:
            return run(protocol, driver, ledger=ledger), ledger


def _align(
    tables: Mapping[str, Any], id: str | None, join: str
) -> tuple[NDArray[Any] | None, dict[str, NDArray[np.int64]] | None]:
    """The common ids, and for each party the row of each id (-1: none)."""
    if id is None:
        return None, None
    ids = {name: id_values(data, id, f"the table of {name}") for name, data in tables.items()}
    kinds = {name: "text" if values.dtype.kind == "U" else "numbers" for name, values in ids.items()}
    if len(set(kinds.values())) > 1:
        raise DataError(f"ids in column {id!r} are of different kinds: {kinds}; convert them to the same")
    first, *others = ids.values()
    common = first
    if join == "inner":
        for values in others:
            common = common[np.isin(common, values)]
        if len(common) == 0:
            raise DataError(f"no id of column {id!r} is at every party: { {p: len(v) for p, v in ids.items()} } ids each")
    else:
        for values in others:
            common = np.concatenate([common, values[~np.isin(values, common)]])
    rows = {}
    for name, values in ids.items():
        order = np.argsort(values, kind="stable")
        at = np.searchsorted(values[order], common)
        at = np.minimum(at, max(len(values) - 1, 0))
        found = values[order][at] == common if len(values) else np.zeros(len(common), bool)
        rows[name] = np.where(found, order[at] if len(values) else 0, -1)
    return common, rows


def _take(table: Table, rows: NDArray[np.int64]) -> Table:
    """Rows of a table; a row that is not there (-1) is missing in every column."""
    absent = rows < 0
    if not absent.any():
        return table.take(rows)
    columns = []
    for column in table.columns:
        if len(column) == 0:
            columns.append(NumericColumn(np.full(len(rows), np.nan, np.float32)))
            continue
        taken = column.take(np.maximum(rows, 0))
        if isinstance(taken, NumericColumn):
            columns.append(NumericColumn(np.where(absent, np.float32(np.nan), taken.values)))
        else:
            codes = np.where(absent, np.int32(-1), taken.codes)
            columns.append(type(taken)(codes=codes, categories=taken.categories))  # type: ignore[arg-type]
    return Table(table.names, tuple(columns), len(rows))


def _refuse_shared_columns(members: Mapping[str, _Member]) -> None:
    holder: dict[str, str] = {}
    for name, member in members.items():
        for column in member.table.names:
            if column in holder:
                raise DataError(
                    f"column {column!r} is at both {holder[column]} and {name}; rename one, such as "
                    f"'{name}_{column}', or drop it"
                )
            holder[column] = name
