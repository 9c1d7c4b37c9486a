"""A small federation and its models, for the tests of saved models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

import woodlot as wl

N = 80
RNG = np.random.default_rng(5)
FRAME = pd.DataFrame(
    {
        "bank_age": RNG.normal(size=N),
        "bank_colour": np.array(["crimson", "teal", "ochre"])[RNG.integers(0, 3, N)],
        "shop_visits": np.where(RNG.random(N) < 0.2, np.nan, RNG.normal(size=N)),
        "shop_town": np.array(["Oslo", "Lima"])[RNG.integers(0, 2, N)],
    }
)
Y = np.where((FRAME.bank_age > 0) ^ (FRAME.shop_visits > 0) ^ (FRAME.shop_town == "Oslo"), "yes", "no")
DEALING = {"bank": ["bank_age", "bank_colour"], "shop": ["shop_visits", "shop_town"]}
FED = wl.Federation.local({"bank": FRAME[DEALING["bank"]].assign(label=Y), "shop": FRAME[DEALING["shop"]]})


def classifier(**params: Any) -> wl.FederatedForestClassifier:
    return wl.FederatedForestClassifier(**{"n_estimators": 5, "random_state": 0, "parties": DEALING, **params})


def check_kept_receipts(saved: Any, loaded: Any) -> None:
    """A file holds the receipts of forgotten rows as they were signed, and no key of their ids."""
    assert [r.to_json() for r in loaded.erasures_] == [r.to_json() for r in saved.erasures_] != []
    for before, after in zip(saved.erasures_, loaded.erasures_, strict=True):
        after.verify()
        assert before.key != after.key == b""
