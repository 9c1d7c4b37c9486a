"""A federation of processes in which things go wrong, and its user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import PRIVATE, Processes, processes, small_tables, wait_until
from small_jobs import COORDINATOR, model_of, train_order, user_of
from world import POLICY, World

from woodlot.connected import ConnectedFederation
from woodlot.service.client import JobFailed


class Stage:
    """A federation of processes whose parties' settings can change; alice is connected."""

    def __init__(self, running: Processes, alice: ConnectedFederation) -> None:
        self.running = running
        self.world = running.world
        self.alice = alice
        self.expected = self.train()

    def train(self, **options: Any) -> dict[str, str]:
        """Train the small forest, and return its fingerprints."""
        order = train_order(self.alice, **options)
        self.alice.client.finish(self.alice.client.submit(order).job)
        return model_of(self.world.root, order.job)

    def failure(self, order: Any, user: ConnectedFederation | None = None) -> str:
        """Why a job has failed, as its user is told."""
        client = (user or self.alice).client
        with pytest.raises(JobFailed) as caught:
            client.finish(client.submit(order).job)
        assert client.job(order.job).state == "failed"
        return str(caught.value)

    def connected(self, *names: str) -> bool:
        there = self.alice.client.parties()
        return all(there[name] for name in names)

    def restart(self, party: str) -> None:
        self.running.stop(party)
        self.start(party)

    def start(self, party: str) -> None:
        self.running.restart(party)
        wait_until(lambda: self.connected(party), f"{party} to connect")

    @contextmanager
    def policy(self, party: str, **changes: Any) -> Iterator[None]:
        """Another policy at a party for a while."""
        self.world.settings[party]["policy"] = POLICY | changes
        self.restart(party)
        try:
            yield
        finally:
            self.world.settings[party]["policy"] = dict(POLICY)
            self.restart(party)


@contextmanager
def stage_of(root: Path, patience: float = 60.0, **settings: Any) -> Iterator[Stage]:
    """A stage; patience is how long jobs wait for a party that is away, in seconds; settings are the coordinator's."""
    world = World(root, small_tables())
    world.coordinator_settings = {"wait_for_parties": patience} | settings
    with processes(world) as running:
        running.wait_connected()
        with user_of(world) as alice:
            yield Stage(running, alice)


@contextmanager
def another_table(stage: Stage, party: str, table: pa.Table) -> Iterator[None]:
    path = stage.world.root / party / "customers.parquet"
    whole = path.read_bytes()
    pq.write_table(table, path)
    try:
        yield
    finally:
        path.write_bytes(whole)


def table_of(stage: Stage, party: str) -> pa.Table:
    return pq.read_table(stage.world.root / party / "customers.parquet")


def half_way(stage: Stage, name: str, replies: int, *, cleanly: bool = False) -> str:
    """Begin a training, and end a service when its journal has exactly so many replies; returns the job."""
    order = train_order(stage.alice)
    with stage.running.halt(name, order.job, {replies}) as halt:
        stage.alice.client.submit(order)
        assert halt.wait() == replies
        if cleanly:
            stage.running.stop(name, halt)
        else:
            stage.running.kill(name)
    return order.job


@contextmanager
def watched_stage(root: Path, **settings: Any) -> Iterator[Stage]:
    """A stage; in the end it is looked for what the coordinator must not know."""
    with stage_of(root, **settings) as stage:
        yield stage
        check_nothing_private(stage)


def check_nothing_private(stage: Stage) -> None:
    """Whatever has happened: names of columns and tables, and ids, never got to the coordinator's disk."""
    for path in sorted((stage.world.root / COORDINATOR).rglob("*")):
        if path.is_file() and "identity" not in path.parts:
            assert PRIVATE.search(path.read_bytes()) is None, path
