"""Jobs that have to stop, wait or run side by side, all as processes: none is lost, and none differs for it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from fault_stage import Stage, another_table, half_way, stage_of, table_of, watched_stage
from processes import wait_until
from shared import Shared
from small_disk import small_disk
from small_jobs import COORDINATOR, EVERYBODY, PARTIES, PLAN, model_of, train_order, user_of

from woodlot.exceptions import DataError, IdentityError
from woodlot.runtime.journal import Journal
from woodlot.service.client import JobFailed


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[Stage]]:
    with Shared(lambda: watched_stage(tmp_path_factory.mktemp("faults"))) as shared:
        yield shared


@pytest.fixture
def stage(stages: Shared[Stage], request: pytest.FixtureRequest) -> Iterator[Stage]:
    yield from stages.lend(request)


@pytest.fixture(scope="module")
def hasty_stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[Stage]]:
    with Shared(lambda: watched_stage(tmp_path_factory.mktemp("hasty"), patience=1.0)) as shared:
        yield shared


@pytest.fixture
def hasty(hasty_stages: Shared[Stage], request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A stage where jobs wait for one second only."""
    yield from hasty_stages.lend(request)


@pytest.mark.slow
def test_a_table_that_has_changed_in_the_middle_of_a_job(stage: Stage) -> None:
    """So little has changed that the answers may well be the same: nothing but the table's fingerprint can tell."""
    table = table_of(stage, "shop")
    values = table.column("basket").to_numpy().copy()
    values[0] += 1e-6
    job = half_way(stage, "shop", 6)
    with another_table(stage, "shop", table.set_column(2, "basket", pa.array(values))):
        stage.start("shop")
        facts = stage.alice.client.follow(job)
        assert facts.state == "stopped"
        assert "party 'shop': after its restart it answers request 1 otherwise than before" in facts.error
        stage.train()  # other jobs take the table as it is
    stage.alice.client.resume(job)
    stage.alice.client.finish(job)
    assert model_of(stage.world.root, job) == stage.expected


# --- parties that are away ---


@pytest.mark.slow
def test_a_job_waits_says_for_whom_and_can_be_resumed(hasty: Stage) -> None:
    hasty.running.stop("shop")
    job = hasty.alice.client.submit(train_order(hasty.alice)).job
    waiting: list[tuple[str, ...]] = []
    facts = hasty.alice.client.follow(job, lambda facts: waiting.append(facts.waiting_for))
    assert ("shop",) in waiting
    assert facts.state == "stopped"
    assert facts.waiting_for == ()
    assert re.match(r"party 'shop' was not connected for 1\.\d s, and the limit is 1 s; start its agent", facts.error)
    with pytest.raises(JobFailed, match=f"woodlot jobs resume {job}"):
        hasty.alice.client.finish(job)
    hasty.alice.client.resume(job)  # too early: it stops again
    assert hasty.alice.client.follow(job).state == "stopped"
    hasty.start("shop")
    hasty.alice.client.resume(job)
    hasty.alice.client.finish(job)
    assert model_of(hasty.world.root, job) == hasty.expected
    with pytest.raises(DataError, match="is done; only a stopped job can be resumed"):
        hasty.alice.client.resume(job)


@pytest.mark.slow
def test_a_job_stops_in_the_middle_and_goes_on_at_once_when_resumed(hasty: Stage) -> None:
    for _ in range(2):
        job = half_way(hasty, "bank", 7)
        assert hasty.alice.client.follow(job).state == "stopped"
        # at once: nothing may be lost between the end of one run and the next
        assert hasty.alice.client.resume(job).state in ("queued", "running")
        assert hasty.alice.client.follow(job).state == "stopped"
        hasty.start("bank")
        hasty.alice.client.resume(job)
        hasty.alice.client.finish(job)
        assert model_of(hasty.world.root, job) == hasty.expected


def test_a_cancelled_job_stays_cancelled(stage: Stage) -> None:
    job = half_way(stage, "bank", 5)
    stage.alice.client.cancel(job)
    assert stage.alice.client.follow(job).state == "cancelled"
    with pytest.raises(DataError, match="has ended already"):
        stage.alice.client.cancel(job)
    with pytest.raises(DataError, match="only a stopped job can be resumed"):
        stage.alice.client.resume(job)
    stage.start("bank")
    assert stage.train() == stage.expected


@pytest.mark.parametrize("name", EVERYBODY)
def test_a_clean_restart_in_the_middle_changes_nothing(stage: Stage, name: str) -> None:
    job = half_way(stage, name, 5, cleanly=True)
    stage.running.restart(name)
    stage.alice.client.finish(job)
    assert model_of(stage.world.root, job) == stage.expected
    assert "ending" in stage.running.log(name)
    wait_until(lambda: stage.connected(*PARTIES), "the parties")


# --- two jobs at once ---


@pytest.mark.slow
def test_jobs_side_by_side_do_not_mix(stage: Stage) -> None:
    plans = [
        PLAN,
        replace(PLAN, seed=9),
        replace(PLAN, max_depth=2, n_estimators=5),
        replace(PLAN, bootstrap=False, out_of_bag=None),
    ]
    alone = [stage.train(plan=plan) for plan in plans]
    assert len({model[COORDINATOR] for model in alone}) == len(plans)
    orders = [train_order(stage.alice, plan=plan) for plan in plans * 3]
    with ThreadPoolExecutor(len(orders)) as pool:
        list(pool.map(stage.alice.client.submit, orders))
        stage.running.kill("shop")
        stage.start("shop")
        list(pool.map(lambda order: stage.alice.client.finish(order.job), orders))
    for order, model in zip(orders, alone * 3, strict=True):
        assert model_of(stage.world.root, order.job) == model


# --- revocation ---


@pytest.mark.slow
def test_the_revoked_lose_their_connection(tmp_path: Path) -> None:
    with stage_of(tmp_path, patience=1.0) as stage:
        revoked = tmp_path / COORDINATOR / "identity" / "revoked.pem"
        with user_of(stage.world, "bob") as bob:
            assert bob.client.parties().keys() == set(PARTIES)
            stage.world.authority.revoke("bob")
            revoked.write_bytes((stage.world.authority.folder / "revoked.pem").read_bytes())
            wait_until(lambda: "user 'bob' (serial" in stage.running.log(COORDINATOR), "bob to be sent away")
            with pytest.raises(IdentityError, match="is revoked"):
                bob.client.parties()
        assert stage.train() == stage.expected
        stage.world.authority.revoke("shop")
        job = half_way(stage, "shop", 5)
        revoked.write_bytes((stage.world.authority.folder / "revoked.pem").read_bytes())
        stage.running.restart("shop")
        facts = stage.alice.client.follow(job)
        assert facts.state == "stopped"
        assert "party 'shop' was not connected" in facts.error
        refused = re.compile(r"party 'shop' \(serial [0-9a-f]+\) is revoked")
        wait_until(lambda: refused.search(stage.running.log(COORDINATOR)), "the coordinator to refuse shop")
        wait_until(lambda: "refuse each other" in stage.running.log("shop"), "shop to be told")
        with user_of(stage.world) as alice, pytest.raises(IdentityError, match=r"party 'shop' .* is revoked"):
            train_order(alice)  # nothing is sealed to it any more
        assert stage.connected("bank")
        stage.world.authority.revoke("bank")
        revoked.write_bytes((stage.world.authority.folder / "revoked.pem").read_bytes())
        wait_until(lambda: not stage.connected("bank"), "bank to be sent away")


# --- full disks ---


@pytest.mark.faults
@pytest.mark.parametrize("victim", EVERYBODY)
def test_a_full_disk_stops_the_job_and_loses_nothing(victim: str, tmp_path: Path) -> None:
    with small_disk(tmp_path / victim / "state") as disk, stage_of(tmp_path) as stage:
        other = next(party for party in PARTIES if party != victim)
        job = half_way(stage, other, 6)
        disk.fill()
        stage.start(other)
        facts = stage.alice.client.follow(job)
        assert facts.state == "stopped", facts
        if victim != COORDINATOR:
            assert f"party '{victim}': its journal cannot be written or read; its own log says why" in facts.error
            assert str(tmp_path) not in facts.error
        assert re.search(r"full|cannot be written", stage.running.log(victim))
        assert stage.alice.client.job(job).state == "stopped"
        disk.clear()
        stage.alice.client.resume(job)
        stage.alice.client.finish(job)
        assert model_of(tmp_path, job) == stage.expected
        for name in EVERYBODY:
            with closing(Journal.read(stage.running.journal(name))) as journal:
                journal.verify()
        assert stage.train() == stage.expected
