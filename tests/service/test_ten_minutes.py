"""A bank and a shop on two machines: from nothing to a forest, with every command and every file transfer counted.

Two folders stand for the machines; nothing in one is read by a process of the other, but for what `Machines.send`
copies. Fingerprints are read out: they are what people compare over another channel, and no files.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from halts import HANGS
from ports import free_port
from processes import wait_until

import woodlot as wl

WOODLOT = Path(sys.executable).with_name("woodlot")


class Machines:
    """Two folders, and what was typed and sent."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: list[str] = []
        self.sent: list[Path] = []
        self.running: list[subprocess.Popen[bytes]] = []
        for name in ("a", "b"):
            (root / name / "home").mkdir(parents=True)

    def environment(self, machine: str) -> dict[str, str]:
        return os.environ | {"HOME": str(self.root / machine / "home")}

    def run(self, machine: str, *words: str, code: int = 0) -> Any:
        """Type a command of Woodlot's."""
        self.commands.append(f"{machine}$ woodlot {' '.join(words)}")
        done = subprocess.run(
            [WOODLOT, *words], cwd=self.root / machine, env=self.environment(machine), capture_output=True, text=True,
            timeout=HANGS,
        )  # fmt: skip
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stdout

    def start(self, machine: str, script: str) -> Path:
        """Type a command that goes on; returns its log."""
        self.commands.append(f"{machine}$ sh {script}")
        log = self.root / machine / "log.txt"
        with log.open("wb") as out:
            self.running.append(
                subprocess.Popen(
                    ["/bin/sh", script], cwd=self.root / machine, env=self.environment(machine), stdout=out, stderr=out,
                    start_new_session=True,
                )
            )  # fmt: skip
        return log

    def send(self, path: str, sender: str, receiver: str) -> str:
        """Send a file to the other machine; returns its name there."""
        data = (self.root / sender / path).read_bytes()
        assert b"PRIVATE" not in data
        target = self.root / receiver / Path(path).name
        target.write_bytes(data)
        self.sent.append(target)
        return target.name

    def edit(self, path: str, **changes: str) -> None:
        """Complete a settings file in an editor."""
        file = self.root / path
        text = file.read_text()
        for setting, value in changes.items():
            text, n = re.subn(rf"(?m)^{setting} = .*$", f"{setting} = {value}", text, count=1)
            assert n == 1, setting
        file.write_text(text)

    def stop(self) -> None:
        """Ask the scripts to end, and wait until nothing of theirs is left."""
        for process in self.running:
            process.terminate()
        for process in self.running:
            process.wait(HANGS)
            wait_until(lambda process=process: not _has_members(process.pid), "its services to end")  # type: ignore[misc]

    def close(self) -> None:
        for process in self.running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(HANGS)


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    try:
        yield made
    finally:
        made.close()


def write_tables(machines: Machines) -> None:
    rng = np.random.default_rng(0)
    n = 300
    ids, income, visits = np.arange(n), rng.normal(size=n), rng.normal(size=n)
    late = np.where(income + visits > 0, "yes", "no")
    bank = pa.table({"customer_id": ids, "income": income, "late": late})
    shop = pa.table({"customer_id": ids[::-1], "visits": visits[::-1]})
    pq.write_table(bank, machines.root / "a" / "bank" / "party" / "customers.parquet")
    pq.write_table(shop, machines.root / "b" / "shop" / "party" / "customers.parquet")


@pytest.mark.slow
def test_a_bank_and_a_shop_in_six_commands_and_two_transfers(machines: Machines) -> None:
    began = time.monotonic()
    port = free_port()
    asked = machines.run("b", "join", "--as", "shop", "--json")
    machines.run("a", "new", "federation.toml")
    machines.edit("a/federation.toml", coordinator=f'"127.0.0.1:{port}"')
    request = machines.send(asked["request"], "b", "a")
    done = machines.run(
        "a", "provision", "federation.toml", request, "--fingerprint", asked["fingerprint"], "--json"
    )  # fmt: skip
    assert done["organisations"]["shop"]["signed"]
    kit = machines.send("kits/shop.kit", "a", "b")
    machines.run("b", "join", kit, "--authority", done["authority"])

    write_tables(machines)
    usual = {"min_rows": "100", "columns": '"*"'}
    machines.edit("a/bank/party/party.toml", labels='["late"]', **usual)
    machines.edit("b/shop/party/party.toml", **usual)

    log = machines.start("a", "bank/start.sh")
    other = machines.start("b", "shop/start.sh")
    for party in ("bank", "shop"):
        line = f"party '{party}' is connected"
        wait_until(lambda line=line: line in log.read_text(), f"{party}: {log.read_text()} {other.read_text()}")  # type: ignore[misc]
    ready = time.monotonic() - began

    assert len(machines.commands) <= 6, machines.commands
    assert len(machines.sent) <= 2, machines.sent
    assert ready < 600

    identity = machines.root / "a" / "bank" / "users" / "alice" / "identity"
    with wl.connect(f"127.0.0.1:{port}", identity, tables="customers", parties=["bank", "shop"]) as fed:
        model = wl.FederatedForestClassifier(5, min_samples_leaf=20, random_state=0)
        model.fit(fed, y="bank.late")
        assert fed.n_rows == 300
    machines.stop()
    assert "ending" in log.read_text()
    assert "ending" in other.read_text()
    _check_who_has_what(machines)


def _check_who_has_what(machines: Machines) -> None:
    """Each machine has the private keys of its own members, and none of the other's."""
    keys = {
        name: {path.relative_to(machines.root / name).as_posix() for path in (machines.root / name).rglob("*key.pem")}
        for name in ("a", "b")
    }
    assert keys["b"] == {"shop/party/identity/key.pem"}
    assert "authority/ca-key.pem" in keys["a"]
    assert not any("shop" in path for path in keys["a"])


@pytest.mark.slow
def test_whoever_stands_between_the_two_is_noticed(machines: Machines) -> None:
    """Other requests and other kits have other fingerprints; both sides refuse them and leave nothing behind."""
    asked = machines.run("b", "join", "--as", "shop", "--json")
    machines.run("a", "new")
    (machines.root / "evil").mkdir()
    (machines.root / "evil" / "home").mkdir()
    forged = machines.run("evil", "join", "--as", "shop", "--json")
    machines.send(forged["request"], "evil", "a")
    machines.run(
        "a", "provision", "federation.toml", "shop-request.pem", "--fingerprint", asked["fingerprint"], code=1
    )  # fmt: skip
    assert not (machines.root / "a" / "kits").exists()
    done = machines.run("a", "provision", "federation.toml", "--json")
    machines.run("evil", "new")
    machines.send(asked["request"], "b", "evil")
    machines.run("evil", "provision", "federation.toml", "shop-request.pem", "--fingerprint", asked["fingerprint"])
    machines.send("kits/shop.kit", "evil", "b")
    machines.run("b", "join", "shop.kit", "--authority", done["authority"], code=1)
    assert not list((machines.root / "b").rglob("ca.pem"))
