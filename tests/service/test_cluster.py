"""A party on a real cluster of two worker processes: the same answers, byte for byte, also when a worker is killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from distributed import LocalCluster, Status
from party_bench import Bench, Play, play
from small_jobs import PARTIES, PLAN

from woodlot.data.spool import Spool
from woodlot.exceptions import ConfigError, DataError, PolicyError
from woodlot.jobs.orders import Part, RevokeOrder, TrainOrder
from woodlot.jobs.party_job import PartyJob
from woodlot.jobs.rows.rows_orders import TrainRowsOrder
from woodlot.protocols.core.message import Message
from woodlot.protocols.rows.lossless import LosslessPlan
from woodlot.protocols.rows.lossless.lossless_messages import CountCells
from woodlot.runtime.cluster import Cluster, Connection
from woodlot.runtime.journal import Journal
from woodlot.runtime.pending_charges import PendingCharges
from woodlot.trees.room import WorkingMemory

N = 300


def tables() -> dict[str, dict[str, pa.Table]]:
    """Numbers with ties and holes, and categories, at both parties; the rows of one are in another order."""
    rng = np.random.default_rng(8)
    numbers = rng.normal(size=(N, 5)).round(1)
    numbers[rng.random((N, 5)) < 0.1] = np.nan
    town, shop = rng.choice(list("abcdefg"), N), rng.choice(["x", "y", "z"], N)
    late = (np.nan_to_num(numbers[:, 0]) + np.nan_to_num(numbers[:, 3]) > 0) ^ (town == "c")
    bank = {"id": np.arange(N), "late": late.astype(int), "town": town}
    bank |= {f"b{i}": numbers[:, i] for i in range(3)}
    order = rng.permutation(N)
    visits = {"id": order, "kind": shop[order]} | {f"s{i}": numbers[order, i] for i in (3, 4)}
    return {"bank": {"customers": pa.table(bank)}, "shop": {"customers": pa.table(visits)}}


@pytest.fixture(scope="module")
def workers() -> Iterator[LocalCluster]:
    settings = {"distributed.nanny.pre-spawn-environ": {}, "distributed.admin.log-format": "%(message)s"}
    with (
        dask.config.set(settings),
        LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address="127.0.0.1:0", host="127.0.0.1",
            silence_logs=50,
        ) as made,
    ):  # fmt: skip
        yield made


@pytest.fixture(scope="module")
def cluster(workers: LocalCluster) -> Iterator[Cluster]:
    made = Cluster(workers.scheduler_address)
    yield made
    made.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, tables())
    yield made
    made.close()


def processes(workers: LocalCluster) -> list[int]:
    """Of both workers, once both run: Dask starts a worker again that dies, but not one that dies while it starts."""
    nannies = [workers.workers[name] for name in sorted(workers.workers)]
    deadline = time.monotonic() + 300
    while any(nanny.status is not Status.running or nanny.pid is None for nanny in nannies):
        assert time.monotonic() < deadline, "a worker did not start again"
        time.sleep(0.05)
    return [nanny.pid for nanny in nannies]


def order_of(bench: Bench, **changes: Any) -> TrainOrder:
    return TrainOrder(**bench.fields(), holder="bank", plan=replace(PLAN, **changes), settings="{}")


def spread(bench: Bench, cluster: Cluster, *parties: str) -> None:
    for party in parties:
        home = bench.homes[party]
        bench.homes[party] = replace(home, cluster=lambda: cluster, room=WorkingMemory(Spool(home.store.folder)))


def assert_same(one: Play, other: Play) -> None:
    for party in PARTIES:
        assert one.answered[party] == other.answered[party]


CHANGES: list[dict[str, Any]] = [
    {"max_features": None, "max_depth": 5},
    {"feature_sampling": "tree", "entropy": True, "max_bins": 8, "bootstrap": False, "out_of_bag": None},
]


@pytest.mark.slow
@pytest.mark.parametrize("changes", CHANGES)
def test_two_workers_give_the_answers_of_one_machine(bench: Bench, cluster: Cluster, changes: dict[str, Any]) -> None:
    order = order_of(bench, **changes)
    alone = play(bench, order)
    spread(bench, cluster, *PARTIES)
    assert len(cluster.workers()) == 2
    assert_same(alone, play(bench, order))


@pytest.mark.slow
def test_a_worker_that_is_killed_in_the_middle_changes_nothing(
    bench: Bench, workers: LocalCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    order = order_of(bench, max_features=None)  # without late scores, which a cluster does not tell
    alone = play(bench, order)
    spread(bench, cluster, "bank")
    handle, killed = PartyJob.handle, []
    kinds = ["ApplySplits", "GrowLevel"]  # between an offer and its split, and between levels

    def handle_and_kill(self: PartyJob, message: Message) -> Message:
        if kinds and type(message).__name__ == kinds[0] and self.home.identity.name == "bank":
            kinds.pop(0)
            victim = processes(workers)[0]
            os.kill(victim, signal.SIGKILL)
            killed.append(victim)
        return handle(self, message)

    monkeypatch.setattr(PartyJob, "handle", handle_and_kill)
    assert_same(alone, play(bench, order))
    assert len(killed) == 2


@pytest.mark.slow
def test_a_worker_that_dies_as_the_job_begins_changes_nothing(
    bench: Bench, workers: LocalCluster, cluster: Cluster
) -> None:
    order = order_of(bench, max_features=None)  # without late scores, which a cluster does not tell
    alone = play(bench, order)
    spread(bench, cluster, "bank")
    os.kill(processes(workers)[0], signal.SIGKILL)
    assert_same(alone, play(bench, order))


# --- rows ---


def shared_columns(seed: int) -> pa.Table:
    """Rows of one party: numbers with ties and holes, categories that some rows lack, classes and targets."""
    rng = np.random.default_rng(seed)
    numbers = rng.normal(size=(N, 3)).round(1)
    numbers[rng.random((N, 3)) < 0.1] = np.nan
    town = np.where(rng.random(N) < 0.1, None, rng.choice(list("abcdefg")[seed:], N))
    grade = np.digitize(np.nan_to_num(numbers[:, 0]) + (town == "c"), [-0.5, 0.7])
    value = np.nan_to_num(numbers[:, 1]) + 0.1 * rng.normal(size=N)
    columns = {f"x{i}": numbers[:, i] for i in range(3)}
    return pa.table({"id": np.arange(N)} | columns | {"town": town, "grade": grade, "value": value})


@pytest.fixture
def rows_bench(tmp_path: Path) -> Iterator[Bench]:
    tables = {party: {"customers": shared_columns(k)} for k, party in enumerate(PARTIES)}
    made = Bench(tmp_path, tables, labels=["grade", "value"])
    with Journal(tmp_path / "journal", durable=False) as journal:
        for party in PARTIES:
            made.change_policy(party, protocols=("train-rows",), allow_two=True)
            made.homes[party] = replace(made.homes[party], pending_charges=lambda job: PendingCharges(journal.job(job)))
        yield made
        made.close()


def rows_order(bench: Bench, **changes: Any) -> TrainRowsOrder:
    label = "value" if changes.get("task") == "targets" else "grade"
    known: dict[str, Any] = {
        "task": "classes", "n_estimators": 3, "criterion": "squared_error" if label == "value" else "gini",
        "max_depth": 4, "min_samples_split": 2, "min_samples_leaf": 1, "max_features": "sqrt", "bootstrap": True,
        "max_samples": None, "max_bins": 16, "seed": 3, "allow_two": True,
    }  # fmt: skip
    parts = {party: Part(table="customers", label=label) for party in PARTIES}
    return TrainRowsOrder(**bench.fields(**parts), plan=LosslessPlan(**(known | changes)), settings="{}")


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"task": "targets", "bootstrap": False, "words_at_once": 3000},
        {"oob_score": True, "class_weight": "balanced"},
        {"task": "targets", "oob_score": True},
    ],
)
def test_rows_on_two_workers_give_the_answers_of_one_machine(
    rows_bench: Bench, cluster: Cluster, changes: dict[str, Any]
) -> None:
    order = rows_order(rows_bench, **changes)
    alone = play(rows_bench, order)
    spread(rows_bench, cluster, *PARTIES)
    assert_same(alone, play(rows_bench, order))


@pytest.mark.slow
def test_a_worker_of_rows_that_is_killed_in_the_middle_changes_nothing(
    rows_bench: Bench,
    workers: LocalCluster,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    order = rows_order(rows_bench)
    alone = play(rows_bench, order)
    cluster._client.wait_for_workers(2, timeout=300)  # both have rows, whichever is killed
    spread(rows_bench, cluster, "bank")
    handle, killed = PartyJob.handle, []

    def handle_and_kill(self: PartyJob, message: Message) -> Message:
        if isinstance(message, CountCells) and message.level == 2 and self.home.identity.name == "bank" and not killed:
            killed.append(processes(workers)[0])
            os.kill(killed[0], signal.SIGKILL)
        return handle(self, message)

    monkeypatch.setattr(PartyJob, "handle", handle_and_kill)
    assert_same(alone, play(rows_bench, order))
    assert len(killed) == 1
    assert "its block is built again" in caplog.text


# --- what goes wrong ---


@pytest.mark.slow
def test_a_table_that_changes_under_a_job_is_refused(
    bench: Bench, workers: LocalCluster, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    spread(bench, cluster, "shop")
    path = bench.world.root / "shop" / "customers.parquet"
    handle = PartyJob.handle

    def change_and_kill(self: PartyJob, message: Message) -> Message:
        if type(message).__name__ == "PlantTrees" and self.home.identity.name == "shop":
            table = pq.read_table(path)
            pq.write_table(table.set_column(table.column_names.index("s3"), "s3", pa.array(np.zeros(N))), path)
            table = pq.read_table(path)
            pq.write_table(table.set_column(table.column_names.index("kind"), "kind", pa.array(["x"] * N)), path)
            for pid in processes(workers):
                os.kill(pid, signal.SIGKILL)
        return handle(self, message)

    monkeypatch.setattr(PartyJob, "handle", change_and_kill)
    with pytest.raises(DataError, match="the table has changed since the job began; order the job again"):
        play(bench, order_of(bench))


def test_what_a_cluster_cannot_do_is_refused(bench: Bench, cluster: Cluster) -> None:
    spread(bench, cluster, "bank")
    revoking = RevokeOrder(**bench.fields(), model="f" * 32, leaver="club", task="classes")
    with pytest.raises(PolicyError, match="are on a cluster, where revoking a partner is not supported"):
        bench.job("bank", revoking.job).handle(bench.opening(revoking))


def test_a_scheduler_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("woodlot.runtime.cluster.CONNECT_SECONDS", 1)
    connection = Connection("tcp://127.0.0.1:9")
    with pytest.raises(ConfigError, match=r"tcp://127.0.0.1:9, cannot be reached .* check the setting cluster"):
        connection()
    connection.close()
