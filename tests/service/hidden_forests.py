"""The forest that a hidden training between organisations must have grown: that of an open training with its draws.

The draws follow from a secret of the dealer. It is read from the dealer's state folder here, and nowhere else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from woodlot.data.columns import NumericColumn
from woodlot.data.tables import Table
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.lasting_secret import LastingSecret
from woodlot.jobs.party_store import PartyStore, read_alignment
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest, active_parties, forget_values
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.target import Target
from woodlot.protocols.hidden.hidden_dealer import secret_draws
from woodlot.protocols.vertical.files import load_own_part
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.train import train
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.sampling import Bootstrap

ID, LABEL = "id", "late"
Grown = tuple[CoordinatorForest, dict[str, PartyForest]]


def hidden_companies(n: int = 400) -> dict[str, dict[str, pa.Table]]:
    """Three companies with numbers on most of the same customers; the bank has the labels."""
    rng = np.random.default_rng(5)
    ids, values = np.arange(n) + 987_654_321_070_000, rng.normal(size=(n, 6))
    late = np.where(values[:, 0] + values[:, 2] * values[:, 4] + 0.3 * rng.normal(size=n) > 0, "yes", "no")
    names = {"bank": ("age", "income"), "shop": ("visits", "basket"), "club": ("years", "dues")}
    tables = {}
    for k, (party, columns) in enumerate(names.items()):
        own = rng.permutation(n)[: n - 5 + k]
        held: dict[str, Any] = {ID: ids[own], **{c: values[own, 2 * k + j] for j, c in enumerate(columns)}}
        tables[party] = {"customers": pa.table(held | ({LABEL: late[own]} if party == "bank" else {}))}
    return tables


def stored_forest(root: Path, job: str, led: str = "bank/state/led") -> Grown:
    """The parts of a model, as leader and parties keep them; ``led`` is the leader's folder of what it leads."""
    store = JobStore(root / led)
    try:
        facts, forest = store.model_facts(job), store.forest(job).coordinator
    finally:
        store.close()
    parts = {
        party: load_own_part(root / party / "state" / "models" / job, party, facts.forest)
        for party in forest.parties
        if (root / party / "state" / "models" / job).is_dir()
    }
    return forest, parts


def open_forest(
    root: Path,
    job: str,
    plan: ForestPlan,
    tables: dict[str, dict[str, pa.Table]],
    holder: str = "bank",
    drawn_by: str = "",
    dealer: str = "coordinator",
) -> Grown:
    """Grow a forest in the open on the rows of a job, with the draws of its dealer, or of those in another job."""
    handlers = {}
    for party, held in tables.items():
        table = held["customers"]
        _, rows = read_alignment(root / party / "state", job)
        names = tuple(name for name in table.column_names if name not in (ID, LABEL))
        columns = tuple(NumericColumn(table[name].to_numpy()[rows].astype(np.float32)) for name in names)
        target = None
        if party == holder:
            target = Target.of_classes(np.array(table[LABEL].to_pylist(), dtype=object)[rows])
        store = PartyStore(root / party / "state", party)
        secret = store.secret_for("forest", "codes")
        store.close()
        handlers[party] = VerticalParty(party, Table(names, columns, len(rows)), target=target, secret=secret)
    secret = LastingSecret(root / dealer / "state", dealer, "").of(drawn_by or job, "dealer draws")
    draw, ledger = secret_draws(secret), Ledger()

    def drawn(self: Bootstrap, tree: int, n_rows: int) -> NDArray[np.uint32]:
        return draw(tree, n_rows, self.n_draws).astype(np.uint32)

    with pytest.MonkeyPatch.context() as patch, InProcessDriver(handlers, ledger=ledger) as driver:
        if plan.bootstrap:
            patch.setattr(Bootstrap, "counts", drawn)
        forest = run(train(plan, tuple(tables), holder), driver, ledger=ledger)
    grown = active_parties(forest, holder)
    return forest, {party: forget_values(handlers[party].grown_forest()) for party in grown}
