"""What k-fold cross-validation costs between organisations: a coordinator and two parties, each a process over TLS.

    python benchmarks/cross_validation.py [--rows 20000] [--trees 100] [--folds 5] [--lead holder]

Prints seconds, and CPU seconds of all processes together, of one alignment, of one fit on all rows, and of the
cross-validation with its evaluations; and compares the scores with scikit-learn's metrics of the same answers beside
the labels, which this program knows. Exits 1 if the cross-validation takes more seconds than 5.5 fits and an alignment,
or a score differs by more than 1e-12.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn import metrics

import woodlot as wl
from woodlot.data.ids import canonical_ids
from woodlot.data.row_rules import row_points
from woodlot.jobs.party_store import read_alignment
from woodlot.service.local import LocalFederation, local_federation

MOST = 5.5
"""Fits that k folds may cost, for k = 5."""
EXACT = 1e-12
FITS = 3
"""How often the one fit is measured; the median counts."""
KINDS = ["align", "train", "predict", "evaluate"]
T = TypeVar("T")


def made_up(n: int) -> dict[str, Any]:
    """Customers of a bank and a shop, ten columns each, and who is late."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 20)).round(4)
    late = np.where(x[:, :3].sum(axis=1) + x[:, 10:13].sum(axis=1) + 2 * rng.normal(size=n) > 0, "yes", "no")
    ids = np.arange(n) + 10_000_000
    theirs = rng.permutation(n)
    bank = {"id": ids, "late": late} | {f"b{k}": x[:, k] for k in range(10)}
    shop = {"id": ids[theirs]} | {f"s{k}": x[theirs, 10 + k] for k in range(10)}
    return {"bank": pa.table(bank), "shop": pa.table(shop)}


def cpu_seconds(pids: list[int]) -> float:
    """CPU time of processes so far."""
    ticks = [Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:13] for pid in pids]
    return sum(int(user) + int(system) for user, system in ticks) / os.sysconf("SC_CLK_TCK")


def measured(services: LocalFederation, work: Callable[[], T]) -> tuple[T, float, float]:
    """What work gives, its seconds, and the CPU seconds of all processes together."""
    pids = [*services.pids.values(), os.getpid()]
    began, cpu = time.perf_counter(), cpu_seconds(pids)
    result = work()
    return result, time.perf_counter() - began, cpu_seconds(pids) - cpu


def differences(services: LocalFederation, fed: Any, tables: dict[str, Any], found: dict[str, Any]) -> float:
    """The largest difference to scikit-learn's metrics of the same folds, from the labels and answers."""
    facts, rows = read_alignment(services.root / "bank" / "state", fed.alignment_job)
    ids, late = tables["bank"]["id"].to_numpy()[rows], tables["bank"]["late"].to_numpy()[rows]
    points = row_points(canonical_ids(pa.array(ids)).values, 0, bytes.fromhex(facts.row_key))
    worst = 0.0
    for k, (_, held) in enumerate(fed.folds(len(found["estimator"]))):
        (rule,) = held.source.rules
        y, p = late[rule.chosen(points)] == "yes", found["estimator"][k].predict_proba(held)[:, 1]
        for name, value in (("roc_auc", metrics.roc_auc_score(y, p)), ("log_loss", metrics.log_loss(y, p))):
            worst = max(worst, abs(found[f"test_{name}"][k] - value))
    return worst


def main() -> int:
    """Measure, print, and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--lead", choices=["holder", "coordinator"], default="holder")
    given = parser.parse_args()
    tables = made_up(given.rows)
    model = wl.FederatedForestClassifier(given.trees, random_state=0, n_jobs=1)
    with local_federation(list(tables)) as services:
        for party, table in tables.items():
            pq.write_table(table, services.root / party / "customers.parquet")
        files = {party: {"customers": "customers.parquet"} for party in tables}
        services.start(files, "id", 1, {"bank": ["late"]}, protocols=KINDS)
        services.wait_connected()
        with wl.connect(services.address, services.identity, tables="customers", lead=given.lead) as fed:
            small = wl.FederatedForestClassifier(2, random_state=0).fit(fed, y="bank.late")  # kernels are compiled
            small.evaluate(fed.split(0.2)[1], n_bootstrap=0)
            _, *aligning = measured(services, fed.align)
            fits = [measured(services, lambda: model.fit(fed, y="bank.late"))[1:] for _ in range(FITS)]
            fitting = [float(np.median(seconds)) for seconds in zip(*fits, strict=True)]
            found, *crossing = measured(
                services,
                lambda: wl.cross_validate(
                    model, fed, y="bank.late", cv=given.folds, scoring=("roc_auc", "log_loss"), return_estimator=True
                ),
            )
            worst = differences(services, fed, tables, found)
    allowed = [MOST / 5 * given.folds * fit + align for fit, align in zip(fitting, aligning, strict=True)]
    print(f"{given.rows:,} rows, {given.trees} trees, {given.folds} folds, led by the {given.lead}\n")
    print("| | seconds | CPU seconds |\n|---|---|---|")
    for what, (wall, cpu) in {"one alignment": aligning, "one fit": fitting, "cross-validation": crossing}.items():
        print(f"| {what} | {wall:.2f} | {cpu:.2f} |")
    print(f"| allowed: {MOST / 5 * given.folds:g} fits and an alignment | {allowed[0]:.2f} | {allowed[1]:.2f} |")
    ratios = [(total - align) / fit for total, align, fit in zip(crossing, aligning, fitting, strict=True)]
    print(f"\nIn fits, less an alignment: {ratios[0]:.2f} of the seconds, {ratios[1]:.2f} of the CPU seconds.")
    print(f"Largest difference to scikit-learn's metrics: {worst:.1e}.")
    return int(crossing[0] > allowed[0] or worst > EXACT)


if __name__ == "__main__":
    sys.exit(main())
