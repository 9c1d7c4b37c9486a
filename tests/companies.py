"""A bank and a shop with the same customers, for tests on federations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import woodlot as wl
from woodlot.estimators.complete import CompleteForest

N = 120
RNG = np.random.default_rng(7)
ALL = pd.DataFrame(
    {
        "id": RNG.permutation(1000)[:N],
        "age": RNG.integers(18, 80, N),
        "income": RNG.normal(50, 10, N).round(1),
        "visits": RNG.integers(0, 9, N).astype(float),
        "colour": np.array(["red", "green", "blue"])[RNG.integers(0, 3, N)],
        "weight": RNG.integers(1, 4, N),
    }
)
ALL["default"] = np.where((ALL.age > 45) ^ (ALL.visits > 4), "yes", "no")
ALL["amount"] = ALL.income * 2 + (ALL.colour == "red") * 30
ALL.loc[3::11, "visits"] = np.nan
BANK = ["id", "age", "income", "default"]
SHOP = ["id", "visits", "colour"]
FEATURES = ["age", "income", "visits", "colour"]


def tables(rows: pd.DataFrame = ALL, bank: list[str] = BANK) -> dict[str, Any]:
    """Two companies with the same customers in different orders."""
    return {"bank": rows[bank], "shop": rows[SHOP].sample(frac=1, random_state=0)}


def federation(rows: pd.DataFrame = ALL, bank: list[str] = BANK, **options: Any) -> wl.Federation:
    return wl.Federation.local(tables(rows, bank), **{"id": "id", **options})


def classifier(**params: Any) -> wl.FederatedForestClassifier:
    return wl.FederatedForestClassifier(**{"n_estimators": 12, "random_state": 0, **params})


def whole(model: Any) -> CompleteForest:
    """The complete forest, from the parties' own stores, which a test may open."""
    return CompleteForest(model.forest_.coordinator, model.forest_.parts)
