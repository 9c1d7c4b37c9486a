"""A forest over a bank's and a shop's columns: grow, predict, ask who saw what, save, and load.

Run with ``python examples/vertical_in_process.py``.
"""

# ruff: noqa: T201 - an example prints
from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa

import woodlot as wl

rng = np.random.default_rng(0)
n = 3_000
income, visits = rng.lognormal(8, 0.5, n), rng.gamma(2, 2, n)
default = np.log(income) - 8 + rng.normal(0, 0.3, n) < 0.25 * (visits - 4)
customer = np.arange(n)

# the first 2,400 customers of the bank are for training, and the shop has its customers in another order
bank = pa.table({"customer_id": customer, "income": income, "default": np.where(default, "yes", "no")})
shop = pa.table({"customer_id": customer, "visits": visits}).take(rng.permutation(n))
train = wl.Federation.local({"bank": bank.slice(0, 2_400), "shop": shop}, id="customer_id")
test = wl.Federation.local({"bank": bank.slice(2_400), "shop": shop}, id="customer_id")
print(train, end="\n\n")

model = wl.FederatedForestClassifier(100, random_state=0, n_jobs=-1).fit(train, y="bank.default")
print(f"accuracy {model.score(test):.3f}, grown in {model.cost_.rounds} rounds", end="\n\n")

for owner, importance in zip(model.importance_owners_, model.feature_importances_, strict=True):
    print(f"importance of a column of the {owner}: {importance:.2f}")

print("\nsent to the shop:", sorted({row.kind for row in model.disclosure_ if row.receiver == "shop"}))

with tempfile.TemporaryDirectory() as folder:
    model.save(Path(folder) / "model")
    print("\nsaved as", sorted(part.name for part in (Path(folder) / "model").iterdir()))
    loaded = wl.load(Path(folder) / "model")
    same = np.array_equal(loaded.predict_proba(test), model.predict_proba(test))
    print("the loaded model predicts the same:", same)
