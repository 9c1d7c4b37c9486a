"""What nobody has in production: both parties' tables, secrets and common rows in one hand, to check the federation.

The codes of columns, which decide the order in which a forest tries them, come from the parties' secrets, and so does
the order of the common rows. With both, one process can grow the forest that the federation must have grown, to the
last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from woodlot import CompleteForest
from woodlot.cli._companies import ID, LABEL
from woodlot.data.labels import check_classes
from woodlot.data.tables import read_table
from woodlot.data.values import natural_type
from woodlot.exceptions import WoodlotError
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.order_seal import read_order
from woodlot.jobs.orders import TrainOrder
from woodlot.jobs.party_store import PartyStore
from woodlot.protocols.core.forest_parts import CoordinatorForest, forget_values
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.target import Target
from woodlot.protocols.vertical.files import forest_id_of
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.train import train
from woodlot.runtime.audit import Disclosures, Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.journal import Journal
from woodlot.runtime.run import run
from woodlot.service.agent import JOURNAL
from woodlot.service.local import LocalFederation
from woodlot.trees.parallel import effective_jobs
from woodlot.trees.sampling import feature_key

HOLDER = "bank"


class OnePlace:
    """The folders of all members of a local federation, whose processes have ended.

    Parameters
    ----------
    federation : LocalFederation
        Where to look.

    """

    def __init__(self, federation: LocalFederation) -> None:
        self._federation = federation
        self._configs = {party: federation.party_config(party) for party in federation.parties}

    # --- rows ---

    def rows(self, alignment: str, tables: Mapping[str, str]) -> pa.Table:
        """All columns of the common rows, in their common order: id, the bank's with the label, the shop's."""
        joined: dict[str, Any] = {}
        for party, config in self._configs.items():
            loaded = config.tables[tables[party]].read()
            with closing(self._store(party)) as store:
                own = loaded.arrow.take(store.alignment(alignment, self._federation.parties, loaded))
            if ID in joined and not own[ID].equals(joined[ID]):
                raise WoodlotError("the parties' common rows are not of the same customers: the alignment is wrong")
            joined |= {name: own[name] for name in own.column_names}
        return pa.table(joined)

    def _store(self, party: str) -> PartyStore:
        return PartyStore(self._configs[party].state, party)

    # --- forests ---

    def ordered_plan(self, job: str) -> ForestPlan:
        """What the user's signed order asks to grow."""
        with closing(JobStore(self._federation.coordinator_config().state)) as store:
            stored = store.job(job)
        order = None if stored is None else read_order(stored.order)
        if not isinstance(order, TrainOrder):
            raise WoodlotError(f"job {job} is no training")
        return order.plan

    def grow(self, plan: ForestPlan, columns: Mapping[str, list[str]], rows: pa.Table) -> CompleteForest:
        """Grow a forest on all columns here, under the codes that the parties' secrets give to their columns."""
        secrets: dict[str, bytes] = {}
        for party in columns:
            with closing(self._store(party)) as store:
                secrets[party] = store.secret_for("forest", "codes")
        names = [name for own in columns.values() for name in own]
        everything = VerticalParty(
            HOLDER,
            read_table(rows.select(names)),
            target=Target.of_classes(check_classes(natural_type(rows[LABEL].to_numpy()))),
            secret=secrets[HOLDER],
            n_jobs=effective_jobs(-1),
        )
        keys = [feature_key(name, party, secrets[party]) for party, own in columns.items() for name in own]
        everything.feature_keys = np.array(keys, np.uint64)
        ledger = Ledger()
        with InProcessDriver({HOLDER: everything}, ledger=ledger) as driver:
            forest: CoordinatorForest = run(train(plan, (HOLDER,), HOLDER, effective_jobs(-1)), driver, ledger=ledger)
        return CompleteForest(forest, {HOLDER: forget_values(everything.grown_forest())})

    def put_together(self, job: str, forest: CoordinatorForest) -> CompleteForest:
        """The forest that the federation has grown, from the coordinator's part and those that the parties keep."""
        parts = {}
        for party in forest.parties:
            with closing(self._store(party)) as store:
                parts[party] = store.model(job, forest_id_of(forest))
        return CompleteForest(forest, parts)

    # --- what stays behind ---

    def delivered(self, party: str, job: str) -> pa.Table:
        """The answers that a party was given, beside its ids."""
        return pq.read_table(self._configs[party].state / "answers" / f"{job}.parquet")

    def own_log(self, party: str, job: str) -> tuple[int, Disclosures]:
        """A party's own record of a job, its chain verified: the number of entries, and who saw what."""
        with Journal.read(self._configs[party].state / JOURNAL) as journal:
            record = journal.job(job)
            record.verify()
            return record.head[0], record.disclosures()
