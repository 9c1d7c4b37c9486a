"""Hosts of their own, in network namespaces: a link that is cut for 20 s in the middle of a training changes nothing.

::

    coordinator 10.77.0.1 --+
    bank        10.77.0.2 --+-- switch (a bridge in a namespace of its own)
    shop        10.77.0.3 --+
    alice       10.77.0.4 --+
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from network_hosts import Network, network_of
from processes import processes, records_in, small_tables, wait_until
from small_jobs import COORDINATOR
from tally import Tally
from world import World

import woodlot as wl
from woodlot.runtime.journal import Journal

pytestmark = pytest.mark.faults

HOSTS = {COORDINATOR: "10.77.0.1", "bank": "10.77.0.2", "shop": "10.77.0.3", "alice": "10.77.0.4"}
CUT_SECONDS = 20.0
FOREST: dict[str, Any] = {"n_estimators": 8, "random_state": 1, "n_jobs": 1}

# What alice runs on her host.
USER = """
import json, sys
import woodlot as wl

address, identity, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
with wl.connect(address, identity, tables="customers", parties=["bank", "shop"], lead="coordinator") as federation:
    model = wl.FederatedForestClassifier(**settings).fit(federation, y="bank.late")
    facts = federation.client.find_model(model.forest_.model)
    print(json.dumps({"job": facts.model, "forest": facts.forest, "rounds": model.cost_.rounds}))
"""


@pytest.fixture
def network() -> Iterator[Network]:
    with network_of(HOSTS) as made:
        yield made


@contextmanager
def user(network: Network, world: World) -> Iterator[subprocess.Popen[str]]:
    """Alice's program, on her host."""
    address, identity = f"{HOSTS[COORDINATOR]}:{world.port}", str(world.root / "alice" / "identity")
    command = [*network.enter("alice"), sys.executable, "-c", USER, address, identity, json.dumps(FOREST)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def result(child: subprocess.Popen[str]) -> dict[str, Any]:
    out, _ = child.communicate(timeout=300)
    assert child.returncode == 0
    found: dict[str, Any] = json.loads(out)
    return found


def new_job(path: Path, known: str) -> str | None:
    with closing(Journal.read(path)) as journal:
        return next((job for job in journal.jobs() if job != known), None)


def warm(tables: dict[str, dict[str, Any]]) -> None:
    """Compile in this process what the others then find in the cache."""
    local = {party: held["customers"] for party, held in tables.items()}
    wl.FederatedForestClassifier(**FOREST).fit(wl.Federation.local(local, id="id"), y="bank.late")


def test_a_cut_link_changes_nothing(network: Network, tmp_path: Path, tally: Tally) -> None:
    tables = small_tables(3_000)
    warm(tables)
    world = World(tmp_path, tables)
    with processes(world, plain=True, prefix=network.enter, host=HOSTS[COORDINATOR]) as running:
        running.wait_connected()
        journal = running.journal(COORDINATOR)
        with user(network, world) as alice:
            whole = result(alice)
        n_records = records_in(journal, whole["job"])
        assert n_records > 30
        with tally.checking("same result bit for bit, without help", "train") as noted:
            with user(network, world) as alice:
                job = wait_until(lambda: new_job(journal, whole["job"]), "the job", pause=0.002)
                wait_until(lambda: records_in(journal, job) > n_records // 3, "a third of the training", pause=0.002)
                before = len(running.log(COORDINATOR))
                network.set_link("shop", "down")
                noted["cable of a host pulled for 20 s"] += 1
                cut = time.monotonic()
                wait_until(lambda: f"{job} waits for shop" in running.log(COORDINATOR), "the cut to be noticed")
                stood = records_in(journal, job)
                assert n_records // 3 < stood < n_records
                time.sleep(max(0.0, CUT_SECONDS - (time.monotonic() - cut)))
                assert records_in(journal, job) == stood
                assert alice.poll() is None
                network.set_link("shop", "up")
                assert result(alice) == whole | {"job": job}
            assert records_in(journal, job) == n_records
            assert "waits for bank" not in running.log(COORDINATOR)[before:]
