"""What an estimator is fitted on: parties with their tables, rows aligned, and a driver between them."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.data.alignment import align_rows
from woodlot.data.ids import canonical_ids
from woodlot.data.labels import check_weights
from woodlot.data.markup import html_facts
from woodlot.data.tables import Table, read_table
from woodlot.data.values import column_values, is_null, natural_type
from woodlot.exceptions import DataError
from woodlot.protocols.agreement import KEY_BYTES, Entropy
from woodlot.protocols.messages.base import Message, Progress
from woodlot.protocols.messages.vertical import Wire
from woodlot.protocols.secure_sum import SumClient
from woodlot.protocols.vertical.blind_party import BlindParty
from woodlot.protocols.vertical.model import CoordinatorForest, PartyForest
from woodlot.protocols.vertical.out_of_bag import OutOfBagCurve, score_out_of_bag
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.plan import ForestPlan
from woodlot.protocols.vertical.predict import predict_in_one_round, predict_node_by_node
from woodlot.protocols.vertical.regrow import Level, Regrown, check_leaver, regrow
from woodlot.protocols.vertical.regrowing import RegrowingParty
from woodlot.protocols.vertical.reveal import forget_values, reveal_splits, splitting_parties
from woodlot.protocols.vertical.sealed import Sealer, predict_sealed
from woodlot.protocols.vertical.target import Target
from woodlot.protocols.vertical.train import train
from woodlot.runtime.audit import Account, Cost, Disclosures, Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.predict import Vote

Route = Literal["one-round", "classical", "sealed"]
Answer = tuple[NDArray[np.float64], NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class Labels:
    """Where the labels of a training are, and what they are, where the caller may see them.

    Attributes
    ----------
    holder : str
        The party that has them.
    column, weight : str or None
        Its columns with labels and with weights of rows; they are not learnt from.
    target : Target or None
        The labels, checked.
    """

    holder: str
    column: str | None = None
    weight: str | None = None
    target: Target | None = None

    @classmethod
    def at(cls, locate: Callable[[str], tuple[str, str]], y: str, sample_weight: str | None) -> Labels:
        """Labels and weights at the columns of these names, which ``locate`` turns into party and column."""
        holder, column = locate(y)
        weight = None
        if sample_weight is not None:
            party, weight = locate(sample_weight)
            if party != holder:
                raise DataError(f"weights must be at the label holder {holder}, not at {party}")
        return cls(holder, column, weight)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Columns of the holder that are not features."""
        return tuple(name for name in (self.column, self.weight) if name is not None)


@dataclass
class Memo:
    """What a fitted model remembers between predictions; never copied or stored with it."""

    complete: Any = None
    training: Any = None
    """Tables and labels of the training, for a revocation; in the process that trained only."""
    secrets: Any = None
    """Keys and encrypted splits of a revocable forest."""
    cost: Cost | None = None
    disclosure: Disclosures | None = None

    def key_epoch(self) -> int:
        """Epoch of the keys, 0 without any."""
        return 0 if self.secrets is None else int(self.secrets.splits.epoch)

    def key_fingerprint(self, party: str) -> str:
        """Fingerprint of a party's public key; empty without one."""
        return "" if self.secrets is None else str(self.secrets.fingerprint(party))

    def secret_digests(self) -> dict[str, str]:
        """SHA-256 of the encrypted splits, where there are any."""
        return {} if self.secrets is None else {"encrypted splits": str(self.secrets.digest())}


@dataclass(frozen=True, eq=False, repr=False)
class GrownForest:
    """A forest in its parts, by who holds them.

    Attributes
    ----------
    coordinator : CoordinatorForest
        Structure and answers.
    parts : dict of str to PartyForest
        What each party that is at hand keeps in its own store, in this process or in its own folder. Only that party
        may use it, and only to answer.
    shared : dict of str to PartyForest
        The parts that have been put into the coordinator's hands.
    unwilling : tuple of str
        Parties whose policy keeps their part to themselves.
    oob_outputs, oob_score
        Out-of-bag answers, NaN for rows that every tree has drawn, and their score.
    residuals : array
        Quantiles of the out-of-bag residuals (regression).
    memo : Memo
        What predictions leave behind.
    model : str or None
        Its name at the coordinator that has grown it, on a connected federation.
    plan : ForestPlan or None
        What it was grown by, where it was grown in this process.
    epoch : int
        How many parties have left it.
    oob_curve : OutOfBagCurve or None
        Out-of-bag score by number of trees.
    """

    coordinator: CoordinatorForest
    parts: dict[str, PartyForest]
    shared: dict[str, PartyForest]
    unwilling: tuple[str, ...] = ()
    oob_outputs: NDArray[np.float64] | None = None
    oob_score: float | None = None
    residuals: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    memo: Memo = field(default_factory=Memo)
    model: str | None = None
    plan: ForestPlan | None = None
    epoch: int = 0
    oob_curve: OutOfBagCurve | None = None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"memo": Memo()}

    def __repr__(self) -> str:
        forest = self.coordinator
        splits = np.bincount(forest.owner[forest.owner >= 0], minlength=len(forest.parties))
        known = (
            "complete model" if set(splitting_parties(forest)) <= set(self.shared) else "parts stay with the parties"
        )
        lines = [f"Forest of {forest.structure.n_trees:,} trees, {forest.structure.n_nodes:,} nodes; {known}"]
        width = max(len(party) for party in forest.parties)
        lines += [f"  {party:<{width}}  {n:,} splits" for party, n in zip(forest.parties, splits, strict=True)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_of(self)


@dataclass(frozen=True, eq=False)
class Member:
    """One party: its columns in the common order of rows, and where they came from."""

    table: Table
    source: Any
    rows: NDArray[np.int64] | None
    """Row of the source for each common row, -1 where the party has none; None: the same rows."""
    shares_model: bool
    sealed_only: bool = False

    @property
    def known(self) -> NDArray[np.bool_] | None:
        return None if self.rows is None or (self.rows >= 0).all() else self.rows >= 0

    def values(self, column: str, what: str) -> NDArray[Any]:
        values = column_values(self.source, column, what)
        return values if self.rows is None else values[self.rows]


class Federation:
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
    """

    layout: ClassVar[Literal["columns", "rows"]] = "columns"
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
        layout: Literal["columns", "rows"] = "columns",
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
            Parties that let the coordinator keep the complete model. It does so only if all that split a node agree.
        sealed_predictions : bool or sequence of str
            Parties that answer predictions only under seal: ``predict(..., sealed=True)``.
        layout : {"columns", "rows"}
            Whether the tables have different columns of the same rows, or different rows of the same columns, labels
            among them. With "rows", ``id`` names a column that is not learnt from, and the models are whole: everybody
            has all of them.

        """
        if not isinstance(tables, Mapping) or not tables:
            raise DataError("a federation needs at least one party; give a mapping of party name to table")
        if join not in ("inner", "outer"):
            raise ValueError(f"join must be 'inner' or 'outer', not {join!r}")
        if layout not in ("columns", "rows"):
            raise ValueError(f"layout must be 'columns' or 'rows', not {layout!r}")
        check_party_names(tables)
        if layout == "rows":
            return _with_same_columns(tables, id, join, shares_model or sealed_predictions)
        sharing = _named_parties(tables, shares_model, "shares_model")
        sealing = _named_parties(tables, sealed_predictions, "sealed_predictions")
        read = {name: _read_named(data, name, id) for name, data in tables.items()}
        _refuse_shared_columns(read)
        ids, rows = align_rows(tables, id, join)
        if rows is None and len({table.n_rows for table in read.values()}) > 1:
            raise DataError(
                f"tables have different numbers of rows: { {p: t.n_rows for p, t in read.items()} }; "
                "name the id column with id=... so that rows can be aligned"
            )
        members = {}
        for name, table in read.items():
            own = None if rows is None else rows[name]
            aligned = table if own is None else table.take_or_missing(own)
            members[name] = Member(aligned, tables[name], own, name in sharing, name in sealing)
        return cls(members, ids, key_by_party=True)

    @classmethod
    def dealt(cls, table: Table, dealing: Mapping[str, Sequence[str]]) -> Federation:
        """One table whose columns are dealt to simulated parties: the forest does not depend on the dealing."""
        check_party_names(dealing)
        members = {
            name: Member(table.select(list(columns)), None, None, shares_model=True)
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
        return Federation(members, self.ids, self._key_by_party)

    def without(self, party: str) -> Federation:
        """The other parties."""
        return self.with_members({name: member for name, member in self._members.items() if name != party})

    def _repr_html_(self) -> str:
        return html_of(self)

    @property
    def members(self) -> Mapping[str, Member]:
        """Each party's table and settings; for the protocols that are run on a federation."""
        return self._members

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

    def fit(
        self,
        plan: ForestPlan,
        labels: Labels,
        *,
        settings: Mapping[str, Any] | None = None,
        n_jobs: int = 1,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> tuple[GrownForest, Account]:
        """Grow a forest; used by the estimators.

        Parameters
        ----------
        plan : ForestPlan
            What to grow.
        labels : Labels
            The labels, which only their holder sees.
        settings : mapping, optional
            The estimator's; not needed here.
        n_jobs : int
            Threads.
        on_progress : callable, optional
            Told how far the trees are.

        Returns
        -------
        GrownForest, Account
            The forest in its parts, and who saw what while it grew.
        """
        ledger, holder = Ledger(self.observer), labels.holder
        kind = BlindParty if plan.labels == "encrypted" else VerticalParty
        handlers = {name: kind(name, **told) for name, told in self._for_training(labels, n_jobs).items()}
        with InProcessDriver(handlers, ledger=ledger) as driver:
            forest: CoordinatorForest = run(
                train(plan, self.parties, holder, n_jobs), driver, ledger=ledger, on_progress=on_progress
            )
            grown = self._collect(plan, forest, holder, handlers, driver, ledger, n_jobs)
        return grown, ledger.account()

    def revoke(
        self,
        forest: GrownForest,
        plan: ForestPlan,
        labels: Labels,
        leaver: str,
        level: Level,
        *,
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
        plan, labels, n_jobs, on_progress
            As for ``fit``.
        """
        ledger, holder = Ledger(self.observer), labels.holder
        check_leaver(forest.coordinator.parties, holder, leaver)
        handlers = {
            name: RegrowingParty(name, former=forest.parts[name], **told)
            if name in forest.parts
            else VerticalParty(name, **told)
            for name, told in self._for_training(labels, n_jobs).items()
            if name in forest.coordinator.parties and name != leaver
        }
        absent = [p for p in forest.coordinator.parties if p != leaver and p not in handlers]
        if absent:
            raise DataError(f"{absent} are not here; regrowing needs the tables of all parties that stay")
        with InProcessDriver(handlers, ledger=ledger) as driver:
            protocol = regrow(plan, forest.coordinator, leaver, level, holder, n_jobs)
            regrown: Regrown = run(protocol, driver, ledger=ledger, on_progress=on_progress)
            grown = self._collect(plan, regrown.forest, holder, handlers, driver, ledger, n_jobs)
        return grown, regrown, ledger.account()

    def _for_training(self, labels: Labels, n_jobs: int) -> dict[str, dict[str, Any]]:
        """What each party is made of."""
        self.require_every_row()
        threads = self._threads_of_a_party(n_jobs)
        return {
            name: {
                "table": member.table.select(
                    [c for c in member.table.names if name != labels.holder or c not in labels.hidden]
                ),
                "target": labels.target if name == labels.holder else None,
                "key_by_party": self._key_by_party,
                "shares_model": member.shares_model,
                "n_jobs": threads,
            }
            for name, member in self._members.items()
        }

    def _collect(
        self,
        plan: ForestPlan,
        forest: CoordinatorForest,
        holder: str,
        handlers: Mapping[str, VerticalParty],
        driver: InProcessDriver,
        ledger: Ledger,
        n_jobs: int,
    ) -> GrownForest:
        """Score a forest out of bag, share it where all agree, and gather its parts."""
        oob = run(score_out_of_bag(forest, holder, plan.out_of_bag, n_jobs), driver, ledger=ledger)
        unwilling = tuple(p for p in splitting_parties(forest) if p not in forest.sharing)
        shared: dict[str, PartyForest] = {}
        if self._key_by_party and not unwilling:
            shared = run(reveal_splits(forest), driver, ledger=ledger)
        active = {p for p, h in handlers.items() if p == holder or len(h.feature_keys)}
        parts = {name: forget_values(handler.grown_forest()) for name, handler in handlers.items() if name in active}
        if not self._key_by_party:  # dealt from one table: everything is in one hand from the start
            shared = parts
        return GrownForest(
            forest, parts, shared, unwilling, oob.outputs, oob.score, oob.residuals, plan=plan, oob_curve=oob.curve
        )

    def _threads_of_a_party(self, n_jobs: int) -> int:
        """Parties work at the same time, each in a thread of its own: they share what was asked for."""
        return max(1, n_jobs // max(1, sum(len(member.table.names) > 0 for member in self._members.values())))

    def present(self, forest: GrownForest) -> list[str]:
        """The parties here that have a part of the forest."""
        return [p for p in self.parties if p in forest.parts]

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
        if self.n_rows == 0:
            raise DataError(
                "Found array with 0 sample(s) while a minimum of 1 is required: there are no rows to predict"
            )
        grown, present = forest.coordinator, self.present(forest)
        if method == "classical":
            protocol = predict_node_by_node(grown, present, self.n_rows, vote)
        elif method == "sealed":
            protocol = predict_sealed(grown, present, self.n_rows, vote, shuffled)
        else:
            protocol = predict_in_one_round(grown, present, self.n_rows, wire, vote, n_jobs, shuffled)
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
                n_jobs=self._threads_of_a_party(n_jobs),
            )
            for name in present
        }
        with InProcessDriver(handlers, ledger=ledger) as driver:
            return run(protocol, driver, ledger=ledger), ledger.account()


def fresh_entropy() -> Entropy:
    """Secrets of a party in this process, drawn now and kept nowhere."""
    secret = secrets.token_bytes(KEY_BYTES)
    return lambda purpose: hashlib.blake2b(purpose.encode(), key=secret, digest_size=KEY_BYTES).digest()


def _fresh_sealer(name: str, common: bytes) -> Sealer:
    """Secrets for one sealed prediction; parties in one process have a secret in common in place of identities."""
    entropy = fresh_entropy()
    sums = SumClient(name, job="local", entropy=entropy, shared_secret=common, allow_two=True, recover=False)
    return Sealer(name, sums, entropy=entropy)


def check_party_names(names: Iterable[object]) -> None:
    """Refuse what cannot name a party: names stand before the dot of ``party.column``, in ledgers and in folders."""
    for name in names:
        if not isinstance(name, str) or not name or "." in name or name == "coordinator":
            raise DataError(f"{name!r} cannot name a party: use a text without dots, other than 'coordinator'")


def _with_same_columns(tables: Mapping[str, Any], id: str | None, join: str, settings: object) -> Federation:
    from woodlot.row_federation import RowFederation

    if join != "inner" or settings is not False:
        raise DataError(
            "join, shares_model and sealed_predictions are for layout='columns'; clients with the same columns join "
            "no rows, and everybody has the whole model"
        )
    return RowFederation(
        {name: Member(_read_named(data, name, id), data, None, shares_model=True) for name, data in tables.items()},
        {} if id is None else {name: partial(_row_ids, data, id, name) for name, data in tables.items()},
    )


def _row_ids(data: Any, id: str, party: str) -> list[bytes]:
    what = f"the column {id!r} of {party}"
    return canonical_ids(column_values(data, id, f"the table of {party}"), what).values


def _named_parties(tables: Mapping[str, Any], given: bool | Sequence[str], what: str) -> set[str]:
    if isinstance(given, bool):
        return set(tables) if given else set()
    names = {given} if isinstance(given, str) else set(given)
    unknown = sorted(names - set(tables))
    if unknown:
        raise DataError(f"{what} names {unknown}, who are not parties; the parties are {list(tables)}")
    return names


def _read_named(data: Any, party: str, id: str | None) -> Table:
    table = read_table(data, what=f"the table of {party}", skip=id)
    if table.positional:
        raise DataError(
            f"the table of {party} has no column names; give a pandas, polars or Arrow table instead of an array"
        )
    return table


def _refuse_shared_columns(tables: Mapping[str, Table]) -> None:
    holder: dict[str, str] = {}
    for name, table in tables.items():
        for column in table.names:
            if column in holder:
                raise DataError(
                    f"column {column!r} is at both {holder[column]} and {name}; rename one, such as "
                    f"'{name}_{column}', or drop it; if it identifies the rows, name it with id={column!r}"
                )
            holder[column] = name


def html_of(shown: object) -> str:
    """For notebooks: what is shown as text, as a title and a table."""
    title, *lines = repr(shown).splitlines()
    return html_facts(title, dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in lines))
