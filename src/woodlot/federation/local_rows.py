"""Clients with the same columns and different rows, in this process: what the horizontal estimators are fitted on."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.data.row_content import RowContents
from woodlot.data.tables import Table
from woodlot.data.values import is_null, natural_type
from woodlot.exceptions import DataError, DeviceError, MissingExtraError, RemoteProtocolError
from woodlot.federation.column_choice import chosen_of_all
from woodlot.federation.drawn_rows import take_target
from woodlot.federation.grown import GrownForest, Labels
from woodlot.federation.interface import AnyFederation, OnProgress, Settings, needs_columns
from woodlot.federation.label_columns import LabelColumn, column_of, found_column, one_per_row
from woodlot.federation.local import Federation, fresh_entropy
from woodlot.federation.members import Member
from woodlot.federation.named_rows import ids_by_client
from woodlot.federation.row_access import Rows
from woodlot.privacy.client_budget import ClientBudget, LocalBudget
from woodlot.protocols.core.agreement import Entropy
from woodlot.protocols.core.message import Progress
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows.collaborative import CollaborativePlan
from woodlot.protocols.rows.methods import HorizontalPlan, check_division, client_of, protocol_of
from woodlot.protocols.rows.row_client import Holdings
from woodlot.protocols.rows.row_forgetting import grow_without_rows
from woodlot.protocols.rows.row_labels import target_of
from woodlot.protocols.rows.row_leaving import Left, grow_without
from woodlot.protocols.rows.row_messages import Task
from woodlot.protocols.rows.schema import Rounds
from woodlot.protocols.rows.whole_forest import HOLDER
from woodlot.runtime.audit import Account, Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run

if TYPE_CHECKING:
    from woodlot.identity.erasure import ErasureReceipt
    from woodlot.identity.receipts import Receipt

_SECRET_BYTES = 32
_NAME_BYTES = 8


class WithoutRows(NamedTuple):
    """Clients without some of their rows.

    Attributes
    ----------
    federation : RowFederation
        The clients with the rows that are left.
    targets : dict of str to Target
        Their labels.
    gone : dict of str to int
        How many rows each client has lost.
    unknown : int
        Ids that are of no row.
    ids : tuple of bytes
        All ids, each once.
    """

    federation: RowFederation
    targets: dict[str, Target]
    gone: dict[str, int]
    unknown: int
    ids: tuple[bytes, ...]

    @property
    def rows(self) -> int:
        """Rows that are gone, of all clients."""
        return sum(self.gone.values())


class RowFederation(Federation):
    """Clients with the same columns. Make one with `Federation.local`, ``layout="rows"``.

    Attributes
    ----------
    parties : tuple of str
        Names of the clients.
    n_rows : int
        Rows of all clients together.
    """

    layout = "rows"
    fit_forest = predict = explain = score = take_out = needs_columns
    columns_to_learn = own_columns = shows_names = with_shuffled = needs_columns
    fit_revocable = predict_revocable = request_rows = needs_columns
    fit_linear = predict_linear = score_linear = needs_columns

    def __init__(
        self,
        members: Mapping[str, Member],
        row_ids: Mapping[str, Callable[[], Sequence[bytes]]] | None = None,
        lasting: Entropy | None = None,
    ) -> None:
        super().__init__(members, None, key_by_party=False)
        self.n_rows = sum(member.table.n_rows for member in self._members.values())
        self._row_ids = {} if row_ids is None else row_ids
        self._split_ids: Mapping[str, Callable[[], Sequence[bytes]]] = self._row_ids or {
            name: RowContents(member.table) for name, member in self._members.items()
        }
        """What puts each client's rows on their sides in a split: their ids, or all that they hold."""
        # drawn once: what is derived from them must be the same at every training
        self._lasting = {name: lasting or fresh_entropy() for name in members}
        self._client_budgets: dict[str, ClientBudget] = {name: LocalBudget(name) for name in members}
        self._entropy = dict.fromkeys(members, fresh_entropy)
        """Makes the secrets of each client for one job."""
        self.numbered = False
        """Whether rows are known by their numbers in one table, which was dealt to the clients."""
        self._order: Rows | None = None
        """Place of each row among the clients' rows, client after client; None: in this order."""

    @classmethod
    def dealt_rows(cls, table: Table, client: NDArray[np.int64], names: Sequence[str], seed: int) -> RowFederation:
        """One table whose rows are dealt to simulated clients: ``client`` has the number of each row's.

        What clients would keep secret follows from the seed, so that a simulation can be repeated.
        """
        rows = {name: np.flatnonzero(client == k) for k, name in enumerate(names)}

        dealt = cls(
            {name: Member(table.take(own), None, None, shares_model=True) for name, own in rows.items()},
            {name: partial(_numbered, own) for name, own in rows.items()},
            partial(_simulated, seed),
        )
        dealt.numbered = True
        return dealt

    def repeat_draws(self, seed: int) -> None:
        """Let what clients draw for a job follow from a seed, noise too: it can be repeated, and protects nobody."""

        def repeated(name: str) -> Entropy:
            return lambda purpose: _simulated(seed, f"{name} {purpose}")

        self._entropy = {name: partial(repeated, name) for name in self.parties}

    def __repr__(self) -> str:
        width = max(len(p) for p in self.parties)
        clients = f"{len(self.parties)} client{'' if len(self.parties) == 1 else 's'}"
        lines = [f"Federation of {clients} with the same columns, {self.n_rows:,} rows"]
        lines += [f"  {name:<{width}}  {member.table.n_rows:,} rows" for name, member in self._members.items()]
        return "\n".join(lines)

    def without(self, party: str) -> RowFederation:
        """The other clients, with their secrets and budgets."""
        members = {name: member for name, member in self._members.items() if name != party}
        return self._same_clients(members, self._row_ids, self._split_ids)

    def _same_clients(
        self,
        members: Mapping[str, Member],
        row_ids: Mapping[str, Callable[[], Sequence[bytes]]],
        split_ids: Mapping[str, Callable[[], Sequence[bytes]]],
    ) -> RowFederation:
        """Some of the clients, or some of their rows, with their secrets and budgets."""
        rest = RowFederation(members, {name: read for name, read in row_ids.items() if name in members})
        rest._split_ids = {name: split_ids[name] for name in members}
        rest._lasting = {name: self._lasting[name] for name in members}
        rest._client_budgets = {name: self._client_budgets[name] for name in members}
        rest.observer = self.observer
        rest.numbered = self.numbered
        return rest

    # --- rows: those of the first client, then those of the second, or in the order of a selection ---

    def _taken(self, rows: Rows) -> RowFederation:
        place = rows if self._order is None else self._order[rows]
        first = np.cumsum([0, *(member.table.n_rows for member in self._members.values())])
        owner = np.searchsorted(first, place, side="right") - 1
        members, row_ids, split_ids = {}, {}, {}
        for k, (name, member) in enumerate(self._members.items()):
            own = place[owner == k] - first[k]
            members[name] = member.take(own)
            split_ids[name] = partial(_selected, self._split_ids[name], own)
            if name in self._row_ids:
                row_ids[name] = partial(_selected, self._row_ids[name], own)
        subset = self._same_clients(members, row_ids, split_ids)
        grouped = np.argsort(owner, kind="stable")
        if not np.array_equal(grouped, np.arange(len(rows))):
            subset._order = np.argsort(grouped, kind="stable")
        return subset

    def _label_column(self, name: str) -> LabelColumn:
        self._require_column(name)
        values = [_read_labels(client, member, name) for client, member in self._members.items() if member.table.n_rows]
        return LabelColumn.of(self._arranged(np.concatenate(values)), name)

    def _n_columns(self) -> int:
        return len(next(iter(self._members.values())).table.names)

    def _hashed_ids(self) -> list[bytes]:
        ids = [own for read in self._split_ids.values() for own in read()]
        return ids if self._order is None else [ids[k] for k in self._order]

    def row_owners(self) -> NDArray[np.int64]:
        """The place among ``parties`` of the client that has each row."""
        counts = [member.table.n_rows for member in self._members.values()]
        return self._arranged(np.repeat(np.arange(len(counts)), counts))

    def _arranged(self, values: NDArray[Any]) -> NDArray[Any]:
        """One value per row, from those of client after client."""
        return values if self._order is None else values[self._order]

    def answer_rows(self, answer: Callable[[Table], NDArray[np.float64]]) -> NDArray[np.float64]:
        """Have every client's rows answered where they are."""
        return self._arranged(np.concatenate([answer(m.table) for m in self._members.values() if m.table.n_rows]))

    def row_targets_of(self, y: Any, task: Task) -> tuple[dict[str, Target], str | None, bool]:
        """Give every client the labels of its rows."""
        values, column = one_per_row(y, self.n_rows, "y"), column_of(y)
        placed = self._placed(values)
        if column is None:
            common = [name for name in next(iter(self._members.values())).table.names if self._has_column(name)]
            members = self._members.values()
            column = found_column(placed, {name: [member.table.column(name) for member in members] for name in common})
        targets = {name: target_of(own, task) for name, own in self._divided(placed).items()}
        if column is None or not self._has_column(column):
            return targets, None, True
        return targets, column, not np.array_equal(values, self._label_column(column))

    def _placed(self, values: NDArray[Any]) -> NDArray[Any]:
        """Values of client after client, from one value per row: the opposite of `_arranged`."""
        if self._order is None:
            return values
        placed = np.empty_like(values)
        placed[self._order] = values
        return placed

    def _divided(self, placed: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """The values of each client."""
        first = np.cumsum([member.table.n_rows for member in self._members.values()])[:-1]
        return dict(zip(self._members, np.split(placed, first), strict=True))

    def row_weights_of(self, sample_weight: Any) -> tuple[dict[str, Any], str | None]:
        """Give every client the weights of its rows."""
        if isinstance(sample_weight, str):
            self._require_column(sample_weight, "sample_weight names the weights' column")
            return {
                name: natural_type(member.values(sample_weight, f"the table of {name}"))
                for name, member in self._members.items()
            }, sample_weight
        values, column = one_per_row(sample_weight, self.n_rows, "sample_weight"), column_of(sample_weight)
        return self._divided(self._placed(values)), column if column is not None and self._has_column(column) else None

    def choose_columns(self, features: Any, exclude: Any, labels: Labels | str | None) -> RowFederation:
        """The federation with the columns that are to be learnt from, the same at every client."""
        if features is None and exclude is None:
            return self
        label = labels if isinstance(labels, str) else None
        first = next(iter(self._members.values())).table
        chosen = chosen_of_all(first, features, exclude, label)
        if not set(chosen) - {label}:
            raise DataError("features and exclude leave no column to learn from; keep at least one")
        members = {
            name: replace(m, table=m.table.select([c for c in m.table.names if c in chosen or c not in first.names]))
            for name, m in self._members.items()
        }
        same = self._same_clients(members, self._row_ids, self._split_ids)
        same._order, same._lineage = self._order, self.lineage
        return same

    def _has_column(self, name: str) -> bool:
        return all(name in member.table.names for member in self._members.values())

    def _require_column(self, label: str, what: str = "y names the labels' column") -> None:
        lacking = [name for name, member in self._members.items() if label not in member.table.names]
        if lacking:
            raise DataError(
                f"{what}, which every client has; {label!r} is not at {lacking}: "
                f"{lacking[0]} has {list(self.columns(lacking[0]))}"
            )

    def use_client_budgets(self, client_budgets: Mapping[str, ClientBudget]) -> None:
        """Charge these budgets for what clients release under differential privacy.

        Without, what they release is only added up, for as long as the federation lives. Between organisations each
        party's own configuration decides.

        Parameters
        ----------
        client_budgets : mapping of str to ClientBudget
            By client, such as ``{"bank": LocalBudget("bank", "loans", Budget(4.0), BudgetFile("privacy.sqlite"))}``;
            others keep theirs.
        """
        unknown = sorted(set(client_budgets) - set(self._client_budgets))
        if unknown:
            raise DataError(f"{unknown} are no clients of this federation; its clients are {list(self.parties)}")
        self._client_budgets |= client_budgets

    def labels_for_training(self, y: Any, sample_weight: Any, make_target: Callable[..., Target]) -> Labels:
        """Refuse to be split by columns."""
        return self.find_labels(str(y), None)

    def find_labels(self, y: str, sample_weight: str | None) -> Labels:
        """Refuse to be split by columns."""
        raise DataError(
            "this federation's clients have the same columns and different rows (layout='rows'); fit a "
            "HorizontalForest, CollaborativeForest, FederatedExtraTrees or LocalForests on it, or make it with "
            "layout='columns'"
        )

    def row_targets(self, label: str, task: Task) -> dict[str, Target]:
        """Every client's own view of its labels.

        Parameters
        ----------
        label : str
            The name of their column, the same at every client.
        task : {"classes", "targets"}
            What the labels are.
        """
        self._require_column(label)
        return {name: _read_target(name, member, label, task) for name, member in self._members.items()}

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
        """Grow a whole forest; see `AnyFederation.grow`."""
        check_division(plan, by_class=self.lineage.by_class)
        apart = [name for name in (label, weight) if name is not None]
        protocol = protocol_of(plan, self.parties)
        (forest, part), account = self._run(protocol, plan, targets, apart, n_jobs, on_progress, device)
        parts = {HOLDER: part}
        return GrownForest(forest, parts, parts, oob_score=forest.oob_score), account

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
        """Take a client out of a forest in this process."""
        return here(self)

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
        """Take rows out of a forest in this process."""
        return here(self)

    def without_rows(self, ids: Any, targets: Mapping[str, Target]) -> WithoutRows:
        """The clients without the rows of some ids; used by the estimators.

        Parameters
        ----------
        ids : array-like or mapping of str to array-like
            Ids; of a table that was dealt to simulated clients the numbers of its rows. By client: only there.
        targets : mapping of str to Target
            The labels of all rows.
        """
        if not self._row_ids:
            raise DataError(
                "the rows of these clients have no ids, so nothing says which of them to forget: name their column, "
                "Federation.local(tables, id='column', layout='rows'), and fit on that; or take the rows out of the "
                "tables and fit again"
            )
        wanted = ids_by_client(ids, self.parties)
        sought = {self._own_id(id): id for named in wanted.values() for id in named}
        own, owner = {name: set(named) for name, named in wanted.items()}, self.row_owners()
        gone, found, here = np.zeros(self.n_rows, np.bool_), set(), self._hashed_ids()
        for row in [row for row, id in enumerate(here) if id in sought]:
            id = sought[here[row]]
            if id in own.get(self.parties[owner[row]], ()):
                gone[row] = True
                found.add(id)
        if gone.all():
            raise DataError("these are all rows of the model; delete the model instead")
        masks = self._divided(self._placed(gone))
        left = {name: take_target(target, np.flatnonzero(~masks[name])) for name, target in targets.items()}
        named = tuple(sorted({id for ids in wanted.values() for id in ids}))
        rest = self.take(np.flatnonzero(~gone)) if found else self
        lost = {name: int(mask.sum()) for name, mask in masks.items()}
        return WithoutRows(rest, left, lost, len(named) - len(found), named)

    def grow_without_rows(
        self,
        forest: GrownForest,
        plan: HorizontalPlan,
        targets: Mapping[str, Target],
        gone: Mapping[str, int],
        *,
        label: str | None = None,
        weight: str | None = None,
        n_jobs: int = 1,
        on_progress: OnProgress = None,
    ) -> tuple[GrownForest, Account, tuple[int, ...]]:
        """Grow a forest again on the rows that are left; also tells which trees stand as they were.

        Parameters
        ----------
        forest : GrownForest
            The forest on all rows; it is not changed.
        plan, targets, label, weight, n_jobs, on_progress
            As for ``grow``.
        gone : mapping of str to int
            How many rows each client has lost.
        """
        protocol = grow_without_rows(plan, self.parties, forest.coordinator, forest.parts[HOLDER], gone)
        apart = [name for name in (label, weight) if name is not None]
        grown, account = self._run(protocol, plan, targets, apart, n_jobs, on_progress)
        parts = {HOLDER: grown.part}
        return GrownForest(grown.forest, parts, parts), account, grown.kept

    def _own_id(self, id: bytes) -> bytes:
        """What stands here for an id in canonical form: of a dealt table the number of the row."""
        return id if not self.numbered else id[-_NAME_BYTES:] if id[:2] == b"i\0" else b""

    def grow_without(
        self,
        forest: GrownForest,
        leaver: str,
        plan: CollaborativePlan,
        targets: Mapping[str, Target],
        *,
        label: str | None = None,
        n_jobs: int = 1,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> tuple[Left, Account]:
        """Take a client out of a collaborative forest that has grown here; used by the estimators.

        Parameters
        ----------
        forest : GrownForest
            The forest; it is not changed.
        leaver : str
            The client that leaves; it is not asked anything.
        plan, targets, label, n_jobs, on_progress
            As for ``grow``.
        """
        rest = self.without(leaver)
        protocol = grow_without(
            plan, rest.parties, forest.coordinator, forest.parts[HOLDER], self.parties.index(leaver)
        )
        return rest._run(protocol, plan, targets, [] if label is None else [label], n_jobs, on_progress)

    def _run(
        self,
        protocol: Rounds,
        plan: HorizontalPlan,
        targets: Mapping[str, Target],
        apart: Sequence[str],
        n_jobs: int,
        on_progress: Callable[[Progress], None] | None,
        device: str = "cpu",
    ) -> tuple[Any, Account]:
        """Run a protocol with all clients. The columns ``apart``, the label's first, are not learnt from.

        It is a job of its own, as between organisations: what it draws is drawn for it, and paid for.
        """
        job, common = f"local-{secrets.token_hex(_NAME_BYTES)}", secrets.token_bytes(_SECRET_BYTES)
        threads = max(1, n_jobs // len(self.parties))
        handlers = {}
        for name, member in self._members.items():
            own = Holdings(
                name=name,
                table=member.table.select([c for c in member.table.names if c not in apart]),
                target=targets[name],
                entropy=self._entropy[name](),
                lasting=self._lasting[name],
                client_budget=self._client_budgets[name],
                row_ids=self._row_ids.get(name),
                dataset=apart[0] if apart else "",
                job=job,
                shared_secret=common,
                n_jobs=threads,
                device=device,
                in_one_process=True,
            )
            handlers[name] = client_of(plan, own)
        ledger = Ledger(self.observer)
        try:
            with InProcessDriver(handlers, ledger=ledger) as driver:
                outcome = run(protocol, driver, ledger=ledger, on_progress=on_progress)
        except RemoteProtocolError as error:
            if isinstance(error.__cause__, DeviceError | MissingExtraError):  # the user's card, not a peer's fault
                raise error.__cause__ from error
            raise
        finally:
            for client_budget in self._client_budgets.values():
                if isinstance(client_budget, LocalBudget):
                    client_budget.forget_answers(job)
        return outcome, ledger.account()


def _simulated(seed: int, purpose: str) -> bytes:
    """What stands for a secret where nothing is to be protected."""
    return hashlib.blake2b(f"{seed} {purpose}".encode(), digest_size=_SECRET_BYTES, person=b"woodlot").digest()


def _numbered(rows: NDArray[np.int64]) -> list[bytes]:
    return [row.to_bytes(8, "big") for row in rows.tolist()]


def _selected(read: Callable[[], Sequence[bytes]], rows: NDArray[np.int64]) -> list[bytes]:
    ids = read()
    return [ids[row] for row in rows.tolist()]


def _read_labels(client: str, member: Member, column: str) -> NDArray[Any]:
    values = natural_type(member.values(column, f"the table of {client}"))
    missing = int(is_null(values).sum())
    if missing:
        raise DataError(f"Input y contains NaN: {missing} rows of {client} have no {column!r}; drop them first")
    return values


def _read_target(client: str, member: Member, column: str, task: Task) -> Target:
    values = _read_labels(client, member, column)
    try:
        return target_of(values, task)
    except ValueError as error:
        raise DataError(f"{client}: {error}") from None
