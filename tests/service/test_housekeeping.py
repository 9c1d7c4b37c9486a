"""What the coordinator does beside its jobs goes on, whatever one party, one job or the disk does meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import small_tables, wait_until
from small_jobs import user_of
from world import World, running

from woodlot.protocols.messages import jobs as msg
from woodlot.service import coordinator, coordinator_news
from woodlot.service.coordinator import Coordinator
from woodlot.service.party_columns import ColumnsWork


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(coordinator, "HOUSEKEEPING_SECONDS", 0.1)
    with running(World(tmp_path, small_tables())) as made:
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
            go_on.wait(60)
        return keep(self, message)

    monkeypatch.setattr(ColumnsWork, "_on_KeepAlignment", keep_slowly)
    store = coordinator_of(world).store
    try:
        with user_of(world) as user:
            slow = user.client.submit(user.align_order()).job
            assert at_work.wait(30)
            user.client.cancel(slow)
            wait_until(lambda: world.parties["shop"].has_ended(slow), "the shop to be told of the slow job", 10)
            other = user.client.submit(user.align_order()).job
            user.client.finish(other)
            for party in world.parties.values():
                wait_until(lambda party=party: party.has_ended(other), "all to be told of the other job", 10)
        wait_until(lambda: store.job(other).untold == (), "that to be recorded", 10)
        assert store.job(slow).untold == ("bank",)
        assert coordinator_of(world).journal.job(slow).ended
        since = time.time()
        wait_until(lambda: store.presence()[0] > since, "presence to be noted", 10)
    finally:
        go_on.set()
    wait_until(lambda: store.job(slow).untold == (), "the bank to be told", 10)
    assert world.parties["bank"].has_ended(slow)
