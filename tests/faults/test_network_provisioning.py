"""A bank and a shop on two hosts, in network namespaces: from nothing to a forest in six commands and two transfers.

::

    a 10.77.1.1 (coordinator, bank, alice) --+-- switch --+-- b 10.77.1.2 (shop)
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from network_hosts import network_of
from two_machines import Machines, check_who_has_what, set_up

pytestmark = pytest.mark.faults

HOSTS = {"a": "10.77.1.1", "b": "10.77.1.2"}
PORT = 7443

# What Alice types on her host, which is the bank's.
USER = """
import json, sys
import woodlot as wl

with wl.connect(sys.argv[1], sys.argv[2], tables="customers", parties=["bank", "shop"]) as federation:
    model = wl.FederatedForestClassifier(5, min_samples_leaf=20, random_state=0).fit(federation, y="bank.late")
    print(json.dumps({"rows": federation.n_rows, "parties": list(model.forest_.coordinator.parties)}))
"""


def test_two_hosts_need_six_commands_two_transfers_and_one_open_port(tmp_path: Path) -> None:
    with network_of(HOSTS) as network:
        machines = Machines(tmp_path, network.enter)
        try:
            address = f"{HOSTS['a']}:{PORT}"
            log, _ = set_up(machines, address)
            identity = tmp_path / "a" / "bank" / "users" / "alice" / "identity"
            done = subprocess.run(
                [*network.enter("a"), sys.executable, "-c", USER, address, str(identity)],
                capture_output=True, text=True, timeout=300, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr + log.read_text()
            assert json.loads(done.stdout) == {"rows": 300, "parties": ["bank", "shop"]}
            listening = {host: _ports(network.enter(host)) for host in HOSTS}
            assert listening == {"a": {PORT}, "b": set()}, "only the coordinator listens"
            machines.stop()
            check_who_has_what(machines)
        finally:
            machines.close()


def _ports(enter: list[str]) -> set[int]:
    """The TCP ports that somebody listens on, by the kernel's own table of a host."""
    tables = subprocess.run(
        [*enter, "cat", "/proc/net/tcp", "/proc/net/tcp6"], capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in tables.stdout.splitlines() if ":" in line]
    return {int(words[1].rpartition(":")[2], 16) for words in lines if words[3] == "0A"}
