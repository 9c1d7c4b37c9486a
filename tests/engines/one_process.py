"""The same order without an engine: coordinator and parties in this process, by the code that the engines run."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from engine_world import FOREST, PARTIES, write_job_file
from world import World

import woodlot as wl
from woodlot.connected import federation_at
from woodlot.engines.one_job import EngineCoordinator, export_model
from woodlot.engines.signed_order import OrderDesk, SignedOrder
from woodlot.jobs.job_messages import JobFacts
from woodlot.protocols.vertical.files import forest_id_of
from woodlot.runtime.drivers.carried import Carrier, Numbered
from woodlot.service.config import CoordinatorConfig, PartyConfig
from woodlot.service.party import Party

MakeCarrier = Callable[[str, Mapping[str, Party]], Carrier]


class HereCarrier:
    """Asks parties in this process, one after the other."""

    def __init__(self, job: str, parties: Mapping[str, Party]) -> None:
        self._job = job
        self._parties = parties

    def carry(
        self,
        requests: Mapping[str, Numbered],
        on_reply: Callable[[str, bytes], None],
        *,
        wait_seconds: float | None = None,
    ) -> None:
        for party, request in requests.items():
            on_reply(party, self._parties[party].answer(self._job, *request[:2]))

    def close(self) -> None:
        """Nothing is open."""


def forest_id(model: Any) -> str:
    """Two models with the same id have the same nodes, owners, gains and answers, bit for bit."""
    return forest_id_of(model.forest_.coordinator)


def signed_order(world: World, **forest: Any) -> SignedOrder:
    """Alice's order, as ``woodlot order`` signs it."""
    _, certificates = write_job_file(world, **forest)
    desk = OrderDesk(world.root / "alice" / "identity", certificates)
    federation = federation_at(desk, tables="customers", parties=PARTIES, lead="coordinator")  # type: ignore[arg-type]
    estimator = wl.FederatedForestClassifier(**(FOREST | forest))
    from woodlot.cli._forest import plan_for
    from woodlot.estimators.estimator_settings import settings_of

    plan = plan_for(estimator, "here")
    labels = federation.find_labels("bank.late", None)
    return SignedOrder.by(desk.identity, federation.train_order(plan, labels, settings_of(estimator)))


@contextmanager
def engine(world: World, make_carrier: MakeCarrier = HereCarrier) -> Iterator[EngineCoordinator]:
    """Coordinator and parties with copies of everybody's folders: same secrets, nothing of it left behind."""
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        root = Path(scratch)
        for name in ("coordinator", *PARTIES):
            shutil.copytree(world.root / name, root / name)
        settings = {name: {"coordinator": "nowhere:0", **world.settings[name]} for name in PARTIES}
        parties = {
            name: stack.enter_context(Party(PartyConfig.parse(settings[name], folder=root / name, origin=name)))
            for name in PARTIES
        }
        config = CoordinatorConfig.parse({}, folder=root / "coordinator", origin="coordinator")
        yield stack.enter_context(EngineCoordinator(config, lambda job: make_carrier(job, parties), PARTIES))


def exported(coordinator: EngineCoordinator, facts: JobFacts) -> Any:
    """The model that a job leaves behind."""
    assert facts.state == "done", facts.error
    folder = coordinator.config.state.parent / "model"
    export_model(coordinator, facts.model, folder)
    return wl.load(folder)


def grow_here(world: World, **forest: Any) -> str:
    """The forest of an order that is run in this process."""
    with engine(world) as coordinator:
        return forest_id(exported(coordinator, coordinator.run(signed_order(world, **forest))))
