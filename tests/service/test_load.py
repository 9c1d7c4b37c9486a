"""The short form of `benchmarks/load.py` and `make soak`: eight parties as processes, jobs queued, many requests."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import processes, wait_until
from small_jobs import PLAN
from world import POLICY, World

import woodlot as wl
from woodlot.connected import ConnectedFederation
from woodlot.data.sources import TableSource
from woodlot.federation import Labels
from woodlot.jobs.home import HeldTables
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.orders import TrainOrder
from woodlot.runtime.journal import Entry, Journal

PARTIES = tuple(f"p{k}" for k in range(8))
N_ROWS, QUEUED, SEEDS = 80, 20, 2


def tables() -> dict[str, dict[str, pa.Table]]:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(N_ROWS, len(PARTIES)))
    held = {}
    for k, party in enumerate(PARTIES):
        rows = rng.permutation(N_ROWS)
        columns = {"id": rows, f"x{k}": values[rows, k]}
        if k == 0:
            columns["late"] = np.where(values[rows].sum(axis=1) > 0, "yes", "no")
        held[party] = {"customers": pa.table(columns)}
    return held


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("load"), tables())
    for settings in made.settings.values():
        settings["policy"] = {**POLICY, "protocols": ["align", "train", "predict", "score"]}
    with processes(made) as running:
        running.wait_connected()
        yield made


@pytest.fixture(scope="module")
def user(world: World) -> Iterator[ConnectedFederation]:
    with wl.connect(world.address, world.root / "alice" / "identity", tables="customers", parties=PARTIES) as user:
        user.align()
        yield user


def order(user: ConnectedFederation, seed: int) -> TrainOrder:
    return user.train_order(replace(PLAN, seed=seed, max_depth=2, out_of_bag=None), Labels("p0", "late", None), {})


@pytest.mark.slow
def test_jobs_queued_at_once_give_the_models_of_one_at_a_time(user: ConnectedFederation) -> None:
    client = user.client
    alone = [client.finish(client.submit(order(user, seed)).job).job for seed in range(SEEDS)]
    queued = [client.submit(order(user, k % SEEDS)).job for k in range(QUEUED)]
    for job in queued:
        assert client.finish(job).state == "done"
    forests = {job: client.find_model(job).forest for job in (*alone, *queued)}  # as their leader tells
    assert [forests[job] for job in queued] == [forests[alone[k % SEEDS]] for k in range(QUEUED)]
    assert len({forests[job] for job in alone}) == SEEDS


@pytest.mark.slow
def test_many_requests_at_once_are_all_answered_as_by_a_prediction(world: World, user: ConnectedFederation) -> None:
    client = user.client
    model = client.finish(client.submit(order(user, 0)).job).job
    job = client.finish(client.submit(user.predict_order(model, deliver_to="p0")).job).job
    answers = pq.read_table(world.root / "p0" / "state" / "answers" / f"{job}.parquet").sort_by("id")
    wanted = np.column_stack([answers["probability_no"], answers["probability_yes"]])
    rng = np.random.default_rng(1)
    asked = [rng.choice(N_ROWS, 3, replace=False) for _ in range(300)]
    with user.scoring(model) as scoring, ThreadPoolExecutor(32) as pool:
        for ids, outputs in zip(asked, pool.map(scoring.predict_proba, asked), strict=True):
            assert np.array_equal(outputs, wanted[ids])
    facts = client.job(scoring.job)
    assert facts.n_rows == 900
    assert 0 < facts.rounds < 300  # some went together
    journals = [world.root / party / "state" / "journal.sqlite" for party in PARTIES]
    wait_until(lambda: all(has_ended(path, scoring.job) for path in journals), "all parties to let go of it")


def test_jobs_share_a_table_while_it_is_held_and_its_file_is_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(tables()["p1"]["customers"], path)
    source, held = TableSource("t", id="id", path=path), HeldTables()
    first = held.read(source, None)
    assert held.read(source, None) is first
    pq.write_table(tables()["p2"]["customers"], path)
    changed = held.read(source, None)
    assert changed.columns == ("x2",)
    assert changed.digest != first.digest
    again = weakref.ref(changed)
    del changed
    assert again() is None


def has_ended(path: Path, job: str) -> bool:
    journal = Journal.read(path)
    try:
        return journal.job(job).ended
    finally:
        journal.close()


def test_a_start_and_a_list_do_not_look_at_finished_jobs(tmp_path: Path) -> None:
    """With a thousand of them they must not be slower; so no statement may go through all."""
    store = JobStore(tmp_path)
    facts = JobFacts(job="a", kind="align", user="alice", state="done", version=1, created=1.0, parties=("p",))
    store.add(b"", b"", b"", facts)
    store.add(b"", b"", b"", msgspec.structs.replace(facts, job="b", state="queued"))
    statements: list[str] = []
    with store._db.connection() as db:
        db.set_trace_callback(statements.append)
    assert store.unfinished() == ["b"]
    assert store.ended_untold() == [("a", ("p",))]
    assert len(store.latest(10)) == len(store.of_user("alice", 10)) == 2
    with store._db.connection() as db:
        db.set_trace_callback(None)
        plans = [row[3] for text in statements for row in db.execute(f"EXPLAIN QUERY PLAN {text}")]
    assert len(statements) == 4
    assert all("USING" in plan and "INDEX" in plan for plan in plans if "jobs" in plan), plans
    store.close()

    with Journal(tmp_path / "journal", durable=False) as journal:
        for name in ("x", "y"):
            journal.job(name).append([Entry.of("p", "coordinator", 1, "Ready", b"bytes")])
        journal.job("x").drop_bodies()
        assert journal._with_bodies() == ["y"]
