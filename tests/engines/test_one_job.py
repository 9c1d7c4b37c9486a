"""Orders that engines run, without an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from engine_world import FOREST, PARTIES, make_world
from one_process import HereCarrier, engine, exported, forest_id, grow_here, signed_order
from world import World, running

import woodlot as wl
from woodlot.exceptions import DataError, IdentityError, PartyAwayError
from woodlot.runtime.drivers.carried import Numbered


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def test_an_order_run_by_an_engine_is_the_job_of_the_services(world: World) -> None:
    here = grow_here(world)
    with (
        running(world),
        wl.connect(
            world.address, world.root / "alice" / "identity", tables="customers", parties=PARTIES, lead="coordinator"
        ) as federation,
    ):
        model = wl.FederatedForestClassifier(**FOREST).fit(federation, y="bank.late")  # type: ignore[arg-type]
    assert here == forest_id(model)


class Failing(HereCarrier):
    """Fails at one round of the first run, as an engine does that has lost a site."""

    left = 5
    asked = 0

    def carry(
        self,
        requests: Mapping[str, Numbered],
        on_reply: Callable[[str, bytes], None],
        *,
        wait_seconds: float | None = None,
    ) -> None:
        Failing.left -= 1
        if Failing.left == 0:
            raise PartyAwayError("the site is gone", ("shop",))
        Failing.asked += len(requests)
        super().carry(requests, on_reply, wait_seconds=wait_seconds)


def test_an_order_that_was_stopped_goes_on_when_it_is_run_again(world: World) -> None:
    signed = signed_order(world)
    with engine(world, Failing) as coordinator:
        assert coordinator.run(signed).state == "stopped"
        assert Failing.asked
        grown = forest_id(exported(coordinator, coordinator.run(signed)))
        again = coordinator.run(signed)  # what is done is not done again
        assert forest_id(exported(coordinator, again)) == grown
        rounds, asked = again.rounds, Failing.asked
    assert grown == grow_here(world)
    assert asked <= 2 * rounds + 2  # and the farewell: nothing that was answered was asked again


def test_parties_that_are_not_in_the_run(world: World) -> None:
    with engine(world) as coordinator:
        coordinator._parties = ("bank",)
        with pytest.raises(DataError, match="shop"):
            coordinator.run(signed_order(world))


def test_an_order_that_was_changed_is_not_taken(world: World) -> None:
    signed = signed_order(world)
    changed = type(signed)(
        signed.order.replace(b'"n_estimators":6', b'"n_estimators":7'), signed.signature, signed.certificate
    )
    assert changed != signed
    with engine(world) as coordinator, pytest.raises(IdentityError):
        coordinator.run(changed)
