"""Two machines, each a folder, that are provisioned from nothing; every command and every file transfer is counted.

Nothing in one folder is read by a process of the other, but for what `Machines.send` copies. Fingerprints are read out:
they are what people compare over another channel, and no files.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from halts import HANGS
from processes import wait_until

WOODLOT = Path(sys.executable).with_name("woodlot")


class Machines:
    """Two folders, and what was typed and sent.

    ``enter`` gives, by the machine's name, what a command on it starts with.
    """

    def __init__(self, root: Path, enter: Callable[[str], list[str]] = lambda machine: []) -> None:
        self.root = root
        self.enter = enter
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
            [*self.enter(machine), WOODLOT, *words],
            cwd=self.root / machine,
            env=self.environment(machine),
            capture_output=True,
            text=True,
            timeout=HANGS,
        )
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stdout

    def start(self, machine: str, script: str) -> Path:
        """Type a command that goes on; returns its log."""
        self.commands.append(f"{machine}$ sh {script}")
        log = self.root / machine / "log.txt"
        with log.open("wb") as out:
            self.running.append(
                subprocess.Popen(
                    [*self.enter(machine), "/bin/sh", script],
                    cwd=self.root / machine,
                    env=self.environment(machine),
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )
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


def write_tables(machines: Machines) -> None:
    rng = np.random.default_rng(0)
    n = 300
    ids, income, visits = np.arange(n), rng.normal(size=n), rng.normal(size=n)
    late = np.where(income + visits > 0, "yes", "no")
    bank = pa.table({"customer_id": ids, "income": income, "late": late})
    shop = pa.table({"customer_id": ids[::-1], "visits": visits[::-1]})
    pq.write_table(bank, machines.root / "a" / "bank" / "party" / "customers.parquet")
    pq.write_table(shop, machines.root / "b" / "shop" / "party" / "customers.parquet")


def set_up(machines: Machines, address: str) -> tuple[Path, Path]:
    """From nothing to a coordinator with two parties that are connected; returns the logs of both machines."""
    asked = machines.run("b", "join", "--as", "shop", "--json")
    machines.run("a", "new", "federation.toml")
    machines.edit("a/federation.toml", coordinator=f'"{address}"')
    request = machines.send(asked["request"], "b", "a")
    done = machines.run("a", "provision", "federation.toml", request, "--fingerprint", asked["fingerprint"], "--json")
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
    assert len(machines.commands) <= 6, machines.commands
    assert len(machines.sent) <= 2, machines.sent
    return log, other


def check_who_has_what(machines: Machines) -> None:
    """Each machine has the private keys of its own members, and none of the other's."""
    keys = {
        name: {path.relative_to(machines.root / name).as_posix() for path in (machines.root / name).rglob("*key.pem")}
        for name in ("a", "b")
    }
    assert keys["b"] == {"shop/party/identity/key.pem"}
    assert "authority/ca-key.pem" in keys["a"]
    assert not any("shop" in path for path in keys["a"])
