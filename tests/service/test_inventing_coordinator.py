"""A coordinator process that invents splits, and party processes that do not take them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from processes import Processes, deviating, small_tables
from small_jobs import COORDINATOR, PLAN, train_order, user_of
from world import World

import inventor
from inventor import labels_read
from woodlot.jobs.job_store import JobStore
from woodlot.service.client import JobFailed

ROWS, LEAF = 260, 50
ALONE = replace(PLAN, min_samples_leaf=LEAF, max_depth=None, out_of_bag=None)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Processes]:
    world = World(tmp_path, small_tables(ROWS))
    for own in world.settings.values():
        own["policy"]["min_samples_leaf"] = LEAF
    with deviating(world, inventor.__file__) as services:
        yield services


def test_a_party_refuses_splits_that_a_coordinator_invents(running: Processes) -> None:
    with user_of(running.world) as user:
        order = train_order(user, ALONE)
        user.client.submit(order)
        try:
            user.client.finish(order.job)
        except JobFailed as error:
            refused = str(error)
        else:
            with closing(JobStore(running.world.root / COORDINATOR / "state")) as store:
                read = labels_read(store.forest(order.job).coordinator, ALONE)
            pytest.fail(f"{len(read)} labels were read below min_samples_leaf={LEAF}")
    assert "leaves 1 rows on one side" in refused
    for party in running.world.settings:
        assert not (running.world.root / party / "state" / "models" / order.job).exists()
    assert any("leaves 1 rows on one side" in running.log(party) for party in running.world.settings)
