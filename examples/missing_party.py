"""Prediction when a party is offline, or does not know some of the customers.

At the nodes of a party that cannot answer, a row follows both branches, weighted by the training rows that went
there, and a warning says how many rows this concerns. Run with ``python examples/missing_party.py``.
"""

# ruff: noqa: T201 - an example prints
from __future__ import annotations

import warnings

import numpy as np
import pyarrow as pa

import woodlot as wl

rng = np.random.default_rng(1)
n = 4_000
income, visits = rng.normal(0, 1, n), rng.normal(0, 1, n)
default = income + visits + rng.normal(0, 0.5, n) > 0
customer = np.arange(n)
bank = pa.table({"customer_id": customer, "income": income, "default": default})
shop = pa.table({"customer_id": customer, "visits": visits})


def predict(title: str, federation: wl.Federation) -> None:
    """Score the federation's rows, and say which warnings came with the answer."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", wl.UncertainPredictionWarning)
        accuracy = model.score(federation)
    print(f"{title:<34} {accuracy:.3f}", *(f"\n    {warning.message}" for warning in caught))


train = wl.Federation.local({"bank": bank.slice(0, 3_000), "shop": shop.slice(0, 3_000)}, id="customer_id")
model = wl.FederatedForestClassifier(100, random_state=0, n_jobs=-1).fit(train, y="bank.default")

new_at_bank, new_at_shop = bank.slice(3_000), shop.slice(3_000)
print(f"{'accuracy on 1,000 new customers':<34}")
predict("bank and shop", wl.Federation.local({"bank": new_at_bank, "shop": new_at_shop}, id="customer_id"))
half = new_at_shop.slice(0, 500)
predict(
    "the shop knows half of them",
    wl.Federation.local({"bank": new_at_bank, "shop": half}, id="customer_id", join="outer"),
)
predict("the shop is offline", wl.Federation.local({"bank": new_at_bank}, id="customer_id"))
