"""A coordinator and eight parties as processes over TLS, under load; shared by load.py and _soak.py."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import woodlot as wl
from woodlot.connected import ConnectedFederation
from woodlot.connected.scores import Scoring
from woodlot.federation import Labels
from woodlot.jobs.orders import TrainOrder
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.service.local import LocalFederation, local_federation

PARTIES = tuple(f"p{k}" for k in range(8))
COLUMNS = 4
TABLE, LABEL = "customers", "late"
ROOT = Path(__file__).resolve().parents[1]
RECORD = ROOT / "build" / "reliability" / "load.jsonl"


class Page(io.StringIO):
    """Markdown that is shown at once, line by line, and kept for a page of docs/results."""

    def write(self, text: str) -> int:
        """As a stream that can be printed to."""
        sys.__stdout__.write(text)  # type: ignore[union-attr]  # a script has one
        return super().write(text)

    def keep(self, name: str) -> None:
        """Write the page."""
        (ROOT / "docs" / "results" / name).write_text(self.getvalue(), encoding="utf-8")


def record(what: str, count: int, proved: str, lost: int) -> None:
    """Note what was held, for docs/reliability.md."""
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    line = {"suite": "load", "what": what, "count": count, "proved": proved, "lost": lost}
    with RECORD.open("a") as file:
        file.write(json.dumps(line) + "\n")


def make_tables(root: Path, n_rows: int) -> None:
    """Each party's columns of the same customers, in an order of its own; the first has the labels."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(n_rows, COLUMNS * len(PARTIES)))
    label = values[:, ::COLUMNS].sum(axis=1) + rng.normal(size=n_rows) > 0
    for k, party in enumerate(PARTIES):
        order = rng.permutation(n_rows)
        held: dict[str, Any] = {"id": order}
        held |= {f"x{COLUMNS * k + j}": values[order, COLUMNS * k + j] for j in range(COLUMNS)}
        if k == 0:
            held[LABEL] = np.where(label[order], "yes", "no")
        pq.write_table(pa.table(held), root / party / "customers.parquet")


@contextlib.contextmanager
def stage(n_rows: int) -> Iterator[tuple[LocalFederation, ConnectedFederation]]:
    """Nine processes that are connected, and a user."""
    with local_federation(PARTIES) as services:
        make_tables(services.root, n_rows)
        services.start(
            {party: {TABLE: "customers.parquet"} for party in PARTIES},
            "id",
            1,
            labels={PARTIES[0]: [LABEL]},
            protocols=["align", "train", "predict", "revoke", "score"],
        )
        services.wait_connected()
        with wl.connect(services.address, services.identity, tables=TABLE, parties=PARTIES) as user:
            yield services, user


def plan_of(seed: int, n_trees: int = 5) -> ForestPlan:
    """A small forest; another one for every seed."""
    return ForestPlan(
        task="classes", n_estimators=n_trees, entropy=False, max_depth=6, min_samples_split=2, min_samples_leaf=1,
        min_weight_fraction_leaf=0.0, max_features="sqrt", max_leaf_nodes=None, min_impurity_decrease=0.0,
        bootstrap=True, max_samples=None, class_weight=None, feature_sampling="node", max_bins=None, out_of_bag=None,
        seed=seed,
    )  # fmt: skip


def train_order(user: ConnectedFederation, seed: int, n_trees: int = 5) -> TrainOrder:
    """An order to grow it."""
    return user.train_order(plan_of(seed, n_trees), Labels(PARTIES[0], LABEL, None), {})


def memory_of(services: LocalFederation) -> dict[str, float]:
    """Megabytes of memory that each process holds."""
    page = os.sysconf("SC_PAGESIZE")
    return {
        name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * page / 1e6 for name, pid in services.pids.items()
    }


@dataclass
class Held:
    """What came of requests that were sent at a steady pace, whether earlier ones were answered or not."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    wrong: int = 0
    failed: Counter[str] = field(default_factory=Counter)

    @property
    def asked(self) -> int:
        """Requests that were sent."""
        return len(self.latencies) + self.failed.total()

    @property
    def lost(self) -> int:
        """Requests without an answer, or with a wrong one."""
        return self.failed.total() + self.wrong

    @property
    def per_second(self) -> float:
        """Requests that were answered, per second until the last answer."""
        return len(self.latencies) / self.seconds

    def percentile(self, share: float) -> float:
        """Milliseconds within which this share of the requests was answered, from when they were due."""
        return 1000 * float(np.percentile(self.latencies, share)) if self.latencies else float("nan")


def steady_requests(
    scorings: list[Scoring],
    wanted: NDArray[np.float64],
    *,
    rate: float,
    seconds: float,
    rows: int,
    stop: Callable[[], bool] = lambda: False,
    seed: int = 0,
) -> Held:
    """Ask for a few random customers, `rate` times a second; each answer is compared with that of a prediction."""
    held, lock, rng = Held(), threading.Lock(), np.random.default_rng(seed)

    def ask(scoring: Scoring, ids: NDArray[np.int64], due: float) -> None:
        try:
            outputs = scoring.outputs(ids)[0]
        except Exception as error:  # noqa: BLE001 - every kind is counted
            with lock:
                held.failed[f"{type(error).__name__}: {error}"[:200]] += 1
            return
        took = time.perf_counter() - due
        with lock:
            held.latencies.append(took)
            held.wrong += not np.array_equal(outputs, wanted[ids])

    began = time.perf_counter()
    with ThreadPoolExecutor(64 * len(scorings)) as pool:
        for k in range(int(rate * seconds)):
            due = began + k / rate
            if (pause := due - time.perf_counter()) > 0:
                time.sleep(pause)
            if stop():
                break
            pool.submit(ask, scorings[k % len(scorings)], rng.choice(len(wanted), rows, replace=False), due)
    held.seconds = time.perf_counter() - began
    return held


def answers_by_id(services: LocalFederation, user: ConnectedFederation, model: str) -> NDArray[np.float64]:
    """The answers of an ordinary prediction, by ids 0, 1, 2, ...: what every score must be, bit for bit."""
    job = user.client.finish(user.client.submit(user.predict_order(model, deliver_to=PARTIES[0])).job).job
    table = pq.read_table(services.root / PARTIES[0] / "state" / "answers" / f"{job}.parquet").to_pandas()
    found = table.set_index("id").sort_index()
    return found[[name for name in found.columns if name.startswith("probability_")]].to_numpy()
