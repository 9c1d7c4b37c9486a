"""Clients with the same columns and different rows, in this process: what the horizontal estimators are fitted on."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.data.labels import check_classes, check_targets
from woodlot.data.tables import Table
from woodlot.data.values import is_null, natural_type
from woodlot.exceptions import DataError
from woodlot.federation import Federation, GrownForest, Labels, Member
from woodlot.protocols.horizontal.client import GrowthPlan, HorizontalClient
from woodlot.protocols.horizontal.collaborative import CollaborativeClient, collaborative_forest
from woodlot.protocols.horizontal.local import LocalClient, local_forests
from woodlot.protocols.horizontal.whole import HOLDER
from woodlot.protocols.messages.base import Message, Progress, Round
from woodlot.protocols.messages.horizontal import Task
from woodlot.protocols.messages.secure_sum import Mode
from woodlot.protocols.secure_sum import SumClient
from woodlot.protocols.vertical.model import CoordinatorForest, PartyForest
from woodlot.protocols.vertical.target import Target
from woodlot.runtime.audit import Account, Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run

Parts = tuple[CoordinatorForest, PartyForest]
_SECRET_BYTES = 32


class RowFederation(Federation):
    """Clients with the same columns. Make one with :meth:`Federation.local`, ``layout="rows"``.

    Attributes
    ----------
    parties : tuple of str
        Names of the clients.
    n_rows : int
        Rows of all clients together.
    """

    layout = "rows"

    def __init__(self, members: Mapping[str, Member]) -> None:
        super().__init__(members, None, key_by_party=False)
        self.n_rows = sum(member.table.n_rows for member in self._members.values())

    @classmethod
    def dealt_rows(cls, table: Table, client: NDArray[np.int64], names: Sequence[str]) -> RowFederation:
        """One table whose rows are dealt to simulated clients: ``client`` has the number of each row's."""
        return cls(
            {name: Member(table.take(client == k), None, None, shares_model=True) for k, name in enumerate(names)}
        )

    def __repr__(self) -> str:
        width = max(len(p) for p in self.parties)
        clients = f"{len(self.parties)} client{'' if len(self.parties) == 1 else 's'}"
        lines = [f"Federation of {clients} with the same columns, {self.n_rows:,} rows"]
        lines += [f"  {name:<{width}}  {member.table.n_rows:,} rows" for name, member in self._members.items()]
        return "\n".join(lines)

    def find_labels(self, y: str, sample_weight: str | None) -> Labels:
        """Refuse to be split by columns."""
        raise DataError(
            "this federation's clients have the same columns and different rows (layout='rows'); fit a "
            "CollaborativeForest or LocalForests on it, or make it with layout='columns'"
        )

    def read_targets(self, column: str, task: Task) -> dict[str, Target]:
        """Every client's own view of its labels.

        Parameters
        ----------
        column : str
            Its name, the same at every client.
        task : {"classes", "targets"}
            What the labels are.
        """
        lacking = [name for name, member in self._members.items() if column not in member.table.names]
        if lacking:
            raise DataError(
                f"y names the labels' column, which every client has; {column!r} is not at {lacking}: "
                f"{lacking[0]} has {list(self.columns(lacking[0]))}"
            )
        return {name: _read_target(name, member, column, task) for name, member in self._members.items()}

    def grow(
        self,
        plan: GrowthPlan,
        method: Literal["local", "collaborative"],
        targets: Mapping[str, Target],
        *,
        label: str | None = None,
        sums: Mode = "secure",
        allow_two: bool = False,
        n_jobs: int = 1,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> tuple[GrownForest, Account]:
        """Grow a whole forest; used by the estimators.

        Parameters
        ----------
        plan : GrowthPlan
            What to grow.
        method : {"local", "collaborative"}
            How.
        targets : mapping of str to Target
            Every client's labels, which only the client sees.
        label : str, optional
            Their column, which is not learnt from.
        sums : {"secure", "plain"}
            Whether the clients' numbers are masked, where only their sum is needed.
        allow_two : bool
            Allow secure sums over two clients.
        n_jobs : int
            Threads.
        on_progress : callable, optional
            Told how far the trees are.

        Returns
        -------
        GrownForest, Account
            The forest, whole, and who saw what while it grew.
        """
        common = secrets.token_bytes(_SECRET_BYTES)
        threads = max(1, n_jobs // len(self.parties))
        handlers: dict[str, HorizontalClient] = {}
        for name, member in self._members.items():
            table = member.table.select([c for c in member.table.names if c != label])
            if method == "local":
                handlers[name] = LocalClient(name, table, targets[name], n_jobs=threads)
                continue
            sum_client = SumClient(
                name,
                job="local",
                entropy=_entropy(),
                shared_secret=common if sums == "secure" else None,
                mode=sums,
                allow_two=allow_two,
            )
            handlers[name] = CollaborativeClient(name, table, targets[name], sums=sum_client, n_jobs=threads)
        protocol: Generator[Round, dict[str, Message], Parts]
        if method == "local":
            protocol = local_forests(plan, self.parties)
        else:
            protocol = collaborative_forest(plan, self.parties, sums, allow_two)
        ledger = Ledger()
        with InProcessDriver(handlers, ledger=ledger) as driver:
            forest, part = run(protocol, driver, ledger=ledger, on_progress=on_progress)
        parts = {HOLDER: part}
        return GrownForest(forest, parts, parts), ledger.account()


def _entropy() -> Callable[[str], bytes]:
    secret = secrets.token_bytes(_SECRET_BYTES)
    return lambda purpose: hashlib.blake2b(purpose.encode(), key=secret, digest_size=_SECRET_BYTES).digest()


def _read_target(client: str, member: Member, column: str, task: Task) -> Target:
    values = natural_type(member.values(column, f"the table of {client}"))
    missing = int(is_null(values).sum())
    if missing:
        raise DataError(f"Input y contains NaN: {missing} rows of {client} have no {column!r}; drop them first")
    try:
        return target_of(values, task)
    except ValueError as error:
        raise DataError(f"{client}: {error}") from None


def target_of(y: NDArray[Any], task: Task) -> Target:
    """Labels, checked; of no rows too, which have no classes."""
    if len(y) == 0:
        return Target((), np.empty(0, np.int64), np.empty(0))
    return Target.of_classes(check_classes(y)) if task == "classes" else Target.of_values(check_targets(y))
