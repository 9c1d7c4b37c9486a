"""Three hospitals with the same columns and different patients, for tests of jobs over rows."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from world import POLICY, World

import woodlot as wl
from woodlot.connected.connected_rows import ConnectedRowFederation
from woodlot.privacy.budget import BudgetRecord, Charge, Use
from woodlot.protocols.rows.collaborative import CollaborativePlan
from woodlot.runtime.journal import Journal

HOSPITALS = ("anna", "bern", "chur")
TABLE, LABEL = "patients", "ill"
ROW_POLICY = POLICY | {"protocols": ["train-rows", "predict-rows"]}
RATED_POLICY = ROW_POLICY | {
    "protocols": ["train-rows", "predict-rows", "evaluate"],
    "min_evaluation_rows": 1, "evaluations_per_day": "unlimited", "round_counts": 1,
}  # fmt: skip
PLAN = CollaborativePlan(
    task="classes", n_estimators=3, criterion="gini", max_depth=3, min_samples_split=2, min_samples_leaf=2,
    max_features="sqrt", bootstrap=True, max_samples=None, max_bins=None, seed=4, min_leaf_rows=2,
)  # fmt: skip


def patients(seed: int, n: int = 60) -> pa.Table:
    """Rows of one hospital; ids are its own, and every column is of all kinds that there are."""
    rng = np.random.default_rng(seed)
    age, dose = rng.normal(50, 15, n), rng.uniform(0, 1, n)
    ward = np.array(["north", "south", "east"])[rng.integers(0, 3, n)]
    ill = np.where(age / 50 + dose + (ward == "east") + 0.3 * rng.normal(size=n) > 1.8, "yes", "no")
    return pa.table({"id": np.arange(n) + 1000 * seed, "age": age, "dose": dose, "ward": ward, LABEL: ill})


def hospitals(root: Path, tables: dict[str, pa.Table] | None = None, label: str = LABEL, **settings: Any) -> World:
    """The world of the hospitals, who all let Alice train; further settings are everybody's."""
    tables = {name: patients(k + 1) for k, name in enumerate(HOSPITALS)} if tables is None else tables
    world = World(root, {name: {TABLE: table} for name, table in tables.items()}, labels=[label])
    for own in world.settings.values():
        own |= {"policy": ROW_POLICY} | settings
    return world


def rows_of(world: World, user: str = "alice", **options: Any) -> ConnectedRowFederation:
    """A user's connection."""
    options = {"tables": TABLE, "parties": tuple(world.settings), "layout": "rows"} | options
    federation = wl.connect(world.address, world.root / user / "identity", **options)
    assert isinstance(federation, ConnectedRowFederation)
    return federation


def extra_trees(privacy: Any = None, **options: Any) -> wl.FederatedExtraTreesClassifier:
    """Extra-trees whose ranges, categories and classes are declared for the hospitals' columns."""
    declared = {"age": (0, 100), "dose": (0, 1), "ward": ["east", "north", "south"]}
    given = {"n_estimators": 4, "max_depth": 3, "min_samples_leaf": 2, "random_state": 0} | options
    return wl.FederatedExtraTreesClassifier(declared=declared, classes=["no", "yes"], privacy=privacy, **given)


def private_forest(epsilon: float = 1.0, **options: Any) -> wl.PrivateForestClassifier:
    """A private forest whose ranges, categories and classes are declared for the hospitals' columns."""
    declared = {"age": (0, 100), "dose": (0, 1), "ward": ["east", "north", "south"]}
    given = {"n_estimators": 4, "random_state": 0} | options
    return wl.PrivateForestClassifier(epsilon, declared=declared, classes=["no", "yes"], **given)


def charges_of(world: World, party: str) -> list[Charge]:
    """What a party has paid for its table."""
    with closing(Journal.read(world.root / party / "state" / "journal.sqlite")) as journal:
        return journal.consult(lambda db: BudgetRecord(db).charges(party, TABLE))


def uses_of(world: World, party: str) -> list[Use]:
    """The jobs that have learnt from its table without differential privacy."""
    with closing(Journal.read(world.root / party / "state" / "journal.sqlite")) as journal:
        return journal.consult(lambda db: BudgetRecord(db).uses(party, TABLE))
