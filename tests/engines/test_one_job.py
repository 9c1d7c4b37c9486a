"""Orders that engines run, without an engine."""

from __future__ import annotations

import pytest
from engine_world import FOREST, PARTIES, make_world
from one_process import forest_id, grow_here
from world import World, running

import woodlot as wl


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def test_an_order_run_by_an_engine_is_the_job_of_the_services(world: World) -> None:
    here = grow_here(world)
    with (
        running(world),
        wl.connect(world.address, world.root / "alice" / "identity", tables="customers", parties=PARTIES) as federation,
    ):
        model = wl.FederatedForestClassifier(**FOREST).fit(federation, y="bank.late")  # type: ignore[arg-type]
    assert here == forest_id(model)
