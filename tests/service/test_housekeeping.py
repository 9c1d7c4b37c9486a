"""What the coordinator does beside its jobs goes on, whatever one party, one job or the disk does meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import small_tables, wait_until
from small_jobs import PARTIES, train_order, user_of
from world import POLICY, World, running

from woodlot.exceptions import JournalError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.columns_work import ColumnsWork
from woodlot.service import coordinator, coordinator_news, coordinator_scores
from woodlot.service.client import JobFailed
from woodlot.service.coordinator import Coordinator


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(coordinator, "HOUSEKEEPING_SECONDS", 0.1)
    made = World(tmp_path, small_tables())
    for party in PARTIES:
        made.settings[party]["policy"] = {**POLICY, "protocols": ["align", "train", "predict", "score"]}
    with running(made):
        yield made


def coordinator_of(world: World) -> Coordinator:
    assert world.coordinator is not None
    return world.coordinator


# --- parties that are slow ---


def test_a_slow_party_holds_up_no_other_and_no_other_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bank is at work on a job that was cancelled: it can be told of that only when it has done its work."""
    monkeypatch.setattr(coordinator_news, "ANSWER_SECONDS", 0.5)
    at_work, go_on = threading.Event(), threading.Event()
    keep = ColumnsWork._on_KeepAlignment

    def keep_slowly(self: ColumnsWork, message: msg.KeepAlignment) -> object:
        if self.home.identity.name == "bank" and not at_work.is_set():
            at_work.set()
            go_on.wait(300)
        return keep(self, message)

    monkeypatch.setattr(ColumnsWork, "_on_KeepAlignment", keep_slowly)
    store = coordinator_of(world).store
    try:
        with user_of(world) as user:
            slow = user.client.submit(user.align_order()).job
            assert at_work.wait(300)
            user.client.cancel(slow)
            wait_until(lambda: world.parties["shop"].has_ended(slow), "the shop to be told of the slow job")
            other = user.client.submit(user.align_order()).job
            user.client.finish(other)
            for party in world.parties.values():
                wait_until(lambda party=party: party.has_ended(other), "all to be told of the other job")
        wait_until(lambda: store.job(other).untold == (), "that to be recorded")
        assert store.job(slow).untold == ("bank",)
        assert coordinator_of(world).journal.job(slow).ended
        since = time.time()
        wait_until(lambda: store.presence()[0] > since, "presence to be noted")
    finally:
        go_on.set()
    wait_until(lambda: store.job(slow).untold == (), "the bank to be told")
    assert world.parties["bank"].has_ended(slow)


# --- disks that are full, and faults ---


def test_a_scoring_that_cannot_be_recorded_is_not_left_open(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left behind, it would end one day, when its job is long gone."""
    store, scorings = coordinator_of(world).store, coordinator_of(world).scorings
    update = store.update

    def is_full(facts: msg.JobFacts) -> None:
        if facts.phase == "scoring" and facts.state == "running":
            raise JournalError("the disk is full")
        update(facts)

    with user_of(world) as user:
        model = user.client.finish(user.client.submit(train_order(user)).job).model
        with monkeypatch.context() as patch:
            patch.setattr(store, "update", is_full)
            with pytest.raises(JobFailed, match="the disk is full"):
                user.scoring(model)
        assert not scorings._open
        monkeypatch.setattr(coordinator_scores, "IDLE_SECONDS", 0.0)
        since = time.time()
        wait_until(lambda: store.presence()[0] > since + 0.5, "housekeeping to go on")
        monkeypatch.setattr(coordinator_scores, "IDLE_SECONDS", 900.0)
        with user.scoring(model) as scoring:
            assert scoring.predict([987_654_321_070_001]).shape == (1,)


def test_housekeeping_outlives_any_fault_and_logs_it(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails() -> None:
        raise KeyError("a fault")

    def is_full() -> None:
        raise JournalError("the disk is full")

    made = coordinator_of(world)
    with caplog.at_level(logging.WARNING), monkeypatch.context() as patch, user_of(world) as user:
        patch.setattr(made.scorings, "end_idle", fails)
        patch.setattr(made, "_record_ends", is_full)
        wait_until(lambda: "housekeeping is put off: the disk is full" in caplog.text, "the warning")
        job = user.client.submit(user.align_order()).job
        user.client.finish(job)
        wait_until(lambda: all(p.has_ended(job) for p in world.parties.values()), "the other duties")
    faults = [record.exc_info for record in caplog.records if record.exc_info]
    assert faults
    assert all(fault[0] is KeyError for fault in faults)
