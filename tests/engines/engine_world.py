"""What the tests of both engines share: members with identities and tables, a job file, and processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from processes import small_tables, write_toml
from world import World

import woodlot as wl
from woodlot.jobs.party_store import PartyStore

PARTIES = ("bank", "shop")
FOREST = {"n_estimators": 6, "max_depth": 5, "random_state": 1, "n_jobs": 1}
START_SECONDS = 120.0


def make_world(root: Path) -> World:
    """Bank and shop, alice, and a coordinator's identity; nothing runs."""
    world = World(root, small_tables())
    for party in PARTIES:  # the secret that forests depend on is there from the start
        PartyStore(root / party / "state", party).close()
    return world


def write_party(world: World, party: str, path: Path, **more: Any) -> None:
    """A party.toml elsewhere than in the party's folder."""
    home = {"identity": str(world.root / party / "identity"), "state": str(world.root / party / "state")}
    write_toml(path, more | home | world.settings[party])


def write_coordinator(world: World, path: Path, **more: Any) -> None:
    """A coordinator.toml elsewhere than in the coordinator's folder."""
    home = {
        "identity": str(world.root / "coordinator" / "identity"),
        "state": str(world.root / "coordinator" / "state"),
    }
    write_toml(path, more | home)


def write_job_file(world: World, **forest: Any) -> tuple[Path, Path]:
    """The job file, and the folder of the members' certificates."""
    certificates = world.root / "certificates"
    certificates.mkdir(exist_ok=True)
    for name in ("coordinator", *world.settings):
        (certificates / f"{name}.pem").write_bytes((world.root / name / "identity" / "certificate.pem").read_bytes())
    job = write_toml(
        world.root / "alice" / "job.toml",
        {
            "identity": "identity",
            "job": {"y": "bank.late", "task": "classification", "tables": "customers", "parties": list(PARTIES)},
            "forest": FOREST | forest,
        },
    )
    return job, certificates


def order(job: Path, certificates: Path, *where: str) -> None:
    """Run ``woodlot order``."""
    program = Path(sys.executable).with_name("woodlot")
    command = [program, "order", str(job), "--certificates", str(certificates), *where]
    subprocess.run(command, check=True, capture_output=True)


def warm() -> None:
    """Compile in this process what the others then find in the cache."""
    tables = {party: held["customers"] for party, held in small_tables().items()}
    wl.FederatedForestClassifier(**FOREST).fit(wl.Federation.local(tables, id="id"), y="bank.late")  # type: ignore[arg-type]


class Children:
    """Processes that are ended with all that they have started."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: object, cwd: Path | None = None, **environment: str) -> None:
        with (self._folder / f"{name}.log").open("ab") as log:
            self._running[name] = subprocess.Popen(
                list(map(str, command)),
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=cwd,
                env=os.environ | environment,
                start_new_session=True,
            )

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str, how: signal.Signals = signal.SIGKILL) -> None:
        """End a process and its children, which may be in sessions of their own."""
        import psutil

        process = self._running.pop(name)
        family = [*psutil.Process(process.pid).children(recursive=True)] if process.poll() is None else []
        for one in [*family, process]:
            try:
                one.send_signal(how)
            except (psutil.NoSuchProcess, ProcessLookupError):
                continue
        if how is not signal.SIGKILL:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()
        _, alive = psutil.wait_procs(family, timeout=5)
        for one in alive:
            one.kill()

    def kill_all(self) -> None:
        for name in list(self._running):
            self.kill(name)

    def check(self) -> bool:
        for name, process in self._running.items():
            assert process.poll() is None, f"{name} has ended: {self.log(name)[-3000:]}"
        return True
