"""Random tables, labels and plans for hidden and open training, run at the protocol's level."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from woodlot.data.columns import CategoryColumn, NumericColumn
from woodlot.data.tables import Table
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.hidden.hidden_dealer import Draws, ShuffleDealer, open_draws
from woodlot.protocols.hidden.hidden_party import HiddenParty
from woodlot.protocols.hidden.hidden_train import HiddenForest, HiddenLeader, train_hidden
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.train import train
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.sampling import derive_seed

Observer = Callable[[str, str, Message], None]


def plan_of(**params: Any) -> ForestPlan:
    """A plan; without the floors of a hidden plan, so that small tables grow deep trees."""
    usual: dict[str, Any] = {
        "task": "classes",
        "n_estimators": 2,
        "entropy": False,
        "max_depth": None,
        "min_samples_split": 2,
        "min_samples_leaf": 1,
        "min_weight_fraction_leaf": 0.0,
        "max_features": None,
        "max_leaf_nodes": None,
        "min_impurity_decrease": 0.0,
        "bootstrap": True,
        "max_samples": None,
        "class_weight": None,
        "feature_sampling": "node",
        "max_bins": 32,
        "out_of_bag": None,
        "seed": 3,
    }
    return ForestPlan(**(usual | params))


@dataclass(frozen=True, eq=False)
class HiddenCase:
    """Tables of some parties, the labels of one of them, and what to grow."""

    tables: dict[str, Table]
    target: Target
    plan: ForestPlan
    holder: str
    draws: Draws | None = None

    def grow_open(self) -> tuple[CoordinatorForest, dict[str, PartyForest]]:
        handlers = {
            p: VerticalParty(p, table, target=self.target if p == self.holder else None)
            for p, table in self.tables.items()
        }
        ledger = Ledger()
        with InProcessDriver(handlers, ledger=ledger) as driver:
            forest = run(train(self.plan, tuple(self.tables), self.holder), driver, ledger=ledger)
        return forest, {p: h.grown_forest() for p, h in handlers.items() if p == self.holder or h.table.names}

    def leader(self, secret: str = "") -> HiddenLeader:
        return HiddenLeader(
            self.holder, self.tables[self.holder], self.target, entropy=entropy_of(secret + self.holder)
        )

    def handlers(self, secret: str = "") -> dict[str, Any]:
        keys: dict[str, Any] = {"job": "test", "shared_secret": bytes(32)}
        handlers: dict[str, Any] = {
            p: HiddenParty(p, table, entropy=entropy_of(secret + p), **keys)
            for p, table in self.tables.items()
            if p != self.holder
        }
        draws = self.draws or open_draws(derive_seed(self.plan.seed, "bootstrap"))
        handlers["dealer"] = ShuffleDealer("dealer", entropy=entropy_of(secret + "dealer"), draws=draws, **keys)
        return handlers

    @property
    def server(self) -> str:
        return next(p for p in self.tables if p != self.holder)

    def grow_hidden(
        self, secret: str = "", observer: Observer | None = None
    ) -> tuple[CoordinatorForest, dict[str, PartyForest]]:
        handlers, leader = self.handlers(secret), self.leader(secret)
        ledger = Ledger(observer)
        protocol = train_hidden(self.plan, tuple(self.tables), leader, self.server, "dealer")
        with InProcessDriver(handlers, ledger=ledger) as driver:
            grown: HiddenForest = run(protocol, driver, ledger=ledger)
        parts = {p: h.grown_forest() for p, h in handlers.items() if p != "dealer"}
        return grown.forest, {**parts, self.holder: grown.own}


def entropy_of(secret: str) -> Callable[[str], bytes]:
    return lambda purpose: hashlib.blake2b(f"{secret}|{purpose}".encode(), digest_size=32).digest()


def random_case(rng: np.random.Generator, kind: str) -> HiddenCase:
    """Two to five parties, some without columns; 2 to 30 classes, or targets; weights where rows are not drawn."""

    def pick(*choices: Any) -> Any:
        return choices[int(rng.integers(len(choices)))]

    n, n_parties, n_columns = int(rng.integers(2, 120)), int(rng.integers(2, 6)), int(rng.integers(1, 7))
    bootstrap = kind != "categories" and bool(rng.random() < 0.6)
    weights = None
    if kind == "categories":
        # weights of many bits: no two classes of a node weigh the same, a tie that open training breaks by rows
        weights = rng.integers(1, 2**23, n).astype(float)
    elif not bootstrap:
        weights = pick(None, np.maximum(rng.integers(0, 4, n), np.arange(n) == 0).astype(float), rng.random(n) + 0.1)
    columns = [_random_column(rng, n, kind) for _ in range(n_columns)]
    owner = rng.integers(0, n_parties, n_columns)
    tables = {}
    for k in range(n_parties):
        own = np.flatnonzero(owner == k).tolist()
        tables[f"p{k}"] = Table(tuple(f"c{j}" for j in own), tuple(columns[j] for j in own), n)
    if kind == "targets":
        target = Target.of_values(pick(rng.normal(size=n), rng.integers(0, 3, n).astype(float)), weights)
    else:
        n_classes = int(rng.integers(2, 31))
        target = Target.of_classes(np.minimum(rng.integers(0, n_classes, n), rng.integers(0, n_classes, n)), weights)
    plan = plan_of(
        task="targets" if kind == "targets" else "classes",
        n_estimators=pick(1, 2, 3),
        entropy=kind != "targets" and pick(True, False),
        max_depth=pick(None, 3, 1),
        min_samples_leaf=pick(1, 2, 5, 0.1),
        min_samples_split=pick(2, 7),
        min_weight_fraction_leaf=pick(0.0, 0.05),
        max_features=pick(None, "sqrt", 1, 2),
        max_leaf_nodes=pick(None, None, 5),
        min_impurity_decrease=pick(0.0, 0.0, 0.01),
        bootstrap=bootstrap,
        max_samples=pick(None, 0.5) if bootstrap else None,
        feature_sampling=pick("node", "tree"),
        max_bins=pick(2, 8, 32, 256),
        min_cell=pick(0, 1, 2, 3, 7, 20),
        class_weight=pick(None, "balanced") if kind == "classes" and not bootstrap else None,
        memory_limit=pick(2**31, 1),
        ccp_alpha=pick(msgspec.UNSET, msgspec.UNSET, 0.02),
        seed=int(rng.integers(1000)),
    )
    return HiddenCase(tables, target, plan, f"p{int(rng.integers(n_parties))}")


def _random_column(rng: np.random.Generator, n: int, kind: str) -> NumericColumn | CategoryColumn:
    form = int(rng.integers(4, 8) if kind == "categories" else rng.integers(5))
    if form == 0:
        values: Any = np.full(n, 3.0)
    elif form == 1:
        values = rng.integers(0, 3, n)
    elif form == 2:
        values = rng.normal(size=n)
    elif form == 3:
        values = np.where(rng.random(n) < 0.3, np.nan, rng.integers(0, 6, n))
    elif form == 4:
        values = np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n))
    else:
        m = int(rng.integers(2, 10))
        codes = rng.integers(-1 if rng.random() < 0.5 else 0, m, n)
        return CategoryColumn(codes.astype(np.int32), tuple("abcdefghij"[:m]))
    return NumericColumn(np.asarray(values, np.float32))


def assert_same(
    one: tuple[CoordinatorForest, dict[str, PartyForest]],
    other: tuple[CoordinatorForest, dict[str, PartyForest]],
    *,
    answers_within: float = 0.0,
) -> None:
    """Fail unless two forests are equal bit by bit; answers of regression may differ by so much."""
    (forest, parts), (again, again_parts) = one, other
    for name in ("offset", "right"):
        np.testing.assert_array_equal(getattr(forest.structure, name), getattr(again.structure, name))
    for name in ("owner", "feature", "gain"):
        np.testing.assert_array_equal(getattr(forest, name), getattr(again, name))
    for name in ("weight", "start", "output"):
        np.testing.assert_array_equal(getattr(forest.leaves, name), getattr(again.leaves, name))
    np.testing.assert_allclose(forest.leaves.value, again.leaves.value, rtol=0, atol=answers_within)
    for party, part in parts.items():
        for name in ("node", "feature", "threshold", "missing_left", "set_start", "sets"):
            np.testing.assert_array_equal(getattr(part.splits, name), getattr(again_parts[party].splits, name))
