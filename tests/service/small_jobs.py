"""A small training that tests of the services have in common, and what has come of it on disk."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import msgspec
from world import World

import woodlot as wl
from woodlot.connected import ConnectedFederation
from woodlot.federation import Labels
from woodlot.jobs.job_messages import ModelFacts
from woodlot.jobs.orders import TrainOrder
from woodlot.protocols.core.forest_plan import ForestPlan

COORDINATOR = "coordinator"
PARTIES = ("bank", "shop")
EVERYBODY = (COORDINATOR, *PARTIES)
PLAN = ForestPlan(
    task="classes", n_estimators=5, entropy=False, max_depth=3, min_samples_split=2, min_samples_leaf=1,
    min_weight_fraction_leaf=0.0, max_features="sqrt", max_leaf_nodes=None, min_impurity_decrease=0.0, bootstrap=True,
    max_samples=None, class_weight=None, feature_sampling="node", max_bins=None, out_of_bag="soft", seed=4,
)  # fmt: skip
"""So many trees that every company has splits: rows come in a secret order, and 0.3 % of pairs had none of the shop."""


def user_of(world: World, user: str = "alice", **options: Any) -> ConnectedFederation:
    """A user's connection, for the tables of `processes.small_tables`.

    Most tests look at what the coordinator does with jobs, so it runs them; ``lead=None`` is the default of users.
    """
    options = {"tables": "customers", "parties": PARTIES, "lead": "coordinator"} | options
    return wl.connect(world.address, world.root / user / "identity", **options)


def train_order(user: ConnectedFederation, plan: ForestPlan = PLAN, column: str = "late", **options: Any) -> TrainOrder:
    """An order to grow the small forest."""
    return user.train_order(plan, Labels("bank", column, None), {}, **options)


def model_of(root: Path, job: str) -> dict[str, str]:
    """Fingerprint of the coordinator's forest, and of the files of every party's part."""
    facts = (root / COORDINATOR / "state" / "models" / job / "facts.json").read_bytes()
    found = {COORDINATOR: msgspec.json.decode(facts, type=ModelFacts).forest}
    for party in PARTIES:
        files = sorted((root / party / "state" / "models" / job).iterdir())
        assert [path.name for path in files] == ["arrays.npz", "part.json"]
        found[party] = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return found
