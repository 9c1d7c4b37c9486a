"""Clients with the same columns and different rows, in this process: what the horizontal estimators are fitted on."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.data.values import is_null, natural_type
from woodlot.exceptions import DataError
from woodlot.federation.grown import GrownForest, Labels
from woodlot.federation.interface import AnyFederation, OnProgress, Settings, needs_columns
from woodlot.federation.local import Federation, fresh_entropy
from woodlot.federation.members import Member
from woodlot.privacy.client_budget import ClientBudget, LocalBudget
from woodlot.protocols.core.agreement import Entropy
from woodlot.protocols.core.message import Progress
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows.collaborative import CollaborativePlan
from woodlot.protocols.rows.methods import HorizontalPlan, client_of, protocol_of
from woodlot.protocols.rows.row_client import Holdings
from woodlot.protocols.rows.row_labels import target_of
from woodlot.protocols.rows.row_leaving import Left, grow_without
from woodlot.protocols.rows.row_messages import Task
from woodlot.protocols.rows.schema import Rounds
from woodlot.protocols.rows.whole_forest import HOLDER
from woodlot.runtime.audit import Account, Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run

if TYPE_CHECKING:
    from woodlot.identity.receipts import Receipt

_SECRET_BYTES = 32
_NAME_BYTES = 8


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
    fit = predict = score = take_out = needs_columns
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
        # drawn once: what is derived from them must be the same at every training
        self._lasting = {name: lasting or fresh_entropy() for name in members}
        self._client_budgets: dict[str, ClientBudget] = {name: LocalBudget(name) for name in members}

    @classmethod
    def dealt_rows(cls, table: Table, client: NDArray[np.int64], names: Sequence[str], seed: int) -> RowFederation:
        """One table whose rows are dealt to simulated clients: ``client`` has the number of each row's.

        What clients would keep secret follows from the seed, so that a simulation can be repeated.
        """
        rows = {name: np.flatnonzero(client == k) for k, name in enumerate(names)}

        def simulated(purpose: str) -> bytes:
            return hashlib.blake2b(f"{seed} {purpose}".encode(), digest_size=_SECRET_BYTES, person=b"woodlot").digest()

        return cls(
            {name: Member(table.take(own), None, None, shares_model=True) for name, own in rows.items()},
            {name: partial(_numbered, own) for name, own in rows.items()},
            simulated,
        )

    def __repr__(self) -> str:
        width = max(len(p) for p in self.parties)
        clients = f"{len(self.parties)} client{'' if len(self.parties) == 1 else 's'}"
        lines = [f"Federation of {clients} with the same columns, {self.n_rows:,} rows"]
        lines += [f"  {name:<{width}}  {member.table.n_rows:,} rows" for name, member in self._members.items()]
        return "\n".join(lines)

    def without(self, party: str) -> RowFederation:
        """The other clients, with their secrets and budgets."""
        members = {name: member for name, member in self._members.items() if name != party}
        rest = RowFederation(members, {name: ids for name, ids in self._row_ids.items() if name != party})
        rest._lasting = {name: self._lasting[name] for name in members}
        rest._client_budgets = {name: self._client_budgets[name] for name in members}
        return rest

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
        lacking = [name for name, member in self._members.items() if label not in member.table.names]
        if lacking:
            raise DataError(
                f"y names the labels' column, which every client has; {label!r} is not at {lacking}: "
                f"{lacking[0]} has {list(self.columns(lacking[0]))}"
            )
        return {name: _read_target(name, member, label, task) for name, member in self._members.items()}

    def grow(
        self,
        plan: HorizontalPlan,
        targets: Mapping[str, Target],
        *,
        label: str | None = None,
        settings: Settings,
        n_jobs: int = 1,
        on_progress: OnProgress = None,
    ) -> tuple[GrownForest, Account]:
        """Grow a whole forest; see `AnyFederation.grow`."""
        (forest, part), account = self._run(protocol_of(plan, self.parties), plan, targets, label, n_jobs, on_progress)
        parts = {HOLDER: part}
        return GrownForest(forest, parts, parts), account

    def take_out_client(
        self,
        forest: GrownForest,
        plan: HorizontalPlan,
        label: str | None,
        leaver: str,
        level: int,
        *,
        here: Callable[[RowFederation], Receipt],
        keep: Callable[[GrownForest, Account, AnyFederation, Receipt], None],
    ) -> Receipt:
        """Take a client out of a forest in this process."""
        return here(self)

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
        return rest._run(protocol, plan, targets, label, n_jobs, on_progress)

    def _run(
        self,
        protocol: Rounds,
        plan: HorizontalPlan,
        targets: Mapping[str, Target],
        label: str | None,
        n_jobs: int,
        on_progress: Callable[[Progress], None] | None,
    ) -> tuple[Any, Account]:
        """Run a protocol with all clients.

        It is a job of its own, as between organisations: what it draws is drawn for it, and paid for.
        """
        job, common = f"local-{secrets.token_hex(_NAME_BYTES)}", secrets.token_bytes(_SECRET_BYTES)
        threads = max(1, n_jobs // len(self.parties))
        handlers = {}
        for name, member in self._members.items():
            own = Holdings(
                name=name,
                table=member.table.select([c for c in member.table.names if c != label]),
                target=targets[name],
                entropy=fresh_entropy(),
                lasting=self._lasting[name],
                client_budget=self._client_budgets[name],
                row_ids=self._row_ids.get(name),
                dataset=label or "",
                job=job,
                shared_secret=common,
                n_jobs=threads,
            )
            handlers[name] = client_of(plan, own)
        ledger = Ledger(self.observer)
        try:
            with InProcessDriver(handlers, ledger=ledger) as driver:
                outcome = run(protocol, driver, ledger=ledger, on_progress=on_progress)
        finally:
            for client_budget in self._client_budgets.values():
                if isinstance(client_budget, LocalBudget):
                    client_budget.forget_answers(job)
        return outcome, ledger.account()


def _numbered(rows: NDArray[np.int64]) -> list[bytes]:
    return [row.to_bytes(8, "big") for row in rows.tolist()]


def _read_target(client: str, member: Member, column: str, task: Task) -> Target:
    values = natural_type(member.values(column, f"the table of {client}"))
    missing = int(is_null(values).sum())
    if missing:
        raise DataError(f"Input y contains NaN: {missing} rows of {client} have no {column!r}; drop them first")
    try:
        return target_of(values, task)
    except ValueError as error:
        raise DataError(f"{client}: {error}") from None
