"""The services of a `World` as real processes, to be killed; and a user as a process of its own.

Services are started by a mother process that has imported everything and grown one small forest: what it forks is
there in a moment, compiles nothing, and is a process like any other. ``plain`` starts the installed command instead.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import halts
import numpy as np
import pyarrow as pa
from halts import HANGS, Halt
from small_jobs import COORDINATOR
from world import World

from woodlot.runtime.journal import Journal

WAIT = HANGS
FIRST_ID = 987_654_321_070_000
"""Ids are numbers that nothing else can contain, neither a time nor a size."""

PRIVATE = re.compile(
    rb"customers|[\"']age[\"']|bank\.age\b|income|[\"'.]late\b|visits|basket|trolley|parquet|987654321070\d\d\d"
)
"""What only the parties know, as text. Short names count in quotes or after a dot, as they are written everywhere:
three or four letters alone are found by chance in the random bytes of a database, as are three with one more sign in
one of some hundred runs."""


def wait_until(met: Callable[[], Any], what: str, seconds: float = WAIT, pause: float = 0.02) -> Any:
    """What ``met`` returns as soon as it is true."""
    until = time.monotonic() + seconds
    while not (found := met()):
        assert time.monotonic() < until, f"waited {seconds:g} s for {what}"
        time.sleep(pause)
    return found


def write_toml(path: Path, settings: Mapping[str, Any]) -> Path:
    """Settings as TOML: values first, then sections. JSON's texts, numbers and lists are TOML's too."""
    lines: list[str] = []

    def write(section: Mapping[str, Any], name: str) -> None:
        lines.extend(f"{key} = {json.dumps(value)}" for key, value in section.items() if not isinstance(value, Mapping))
        for key, value in section.items():
            if isinstance(value, Mapping):
                lines.append(f"[{name}{key}]")
                write(value, f"{name}{key}.")

    write(settings, "")
    path.write_text("\n".join(lines) + "\n")
    return path


def small_tables(n: int = 60, seed: int = 0) -> dict[str, dict[str, pa.Table]]:
    """Two companies that share most of their customers; shuffled, each with rows that the other lacks."""
    rng = np.random.default_rng(seed)
    ids, values = np.arange(n) + FIRST_ID, rng.normal(size=(n, 5))
    label = np.where(values[:, 0] + values[:, 3] + 0.3 * rng.normal(size=n) > 0, "yes", "no")
    mine, theirs = rng.permutation(n)[: n - 3], rng.permutation(n)[: n - 2]
    bank = {"id": ids[mine], "age": values[mine, 0], "income": values[mine, 1], "late": label[mine]}
    shop = {"id": ids[theirs], "visits": values[theirs, 3], "basket": values[theirs, 4]}
    return {"bank": {"customers": pa.table(bank)}, "shop": {"customers": pa.table(shop)}}


def three_companies() -> dict[str, dict[str, pa.Table]]:
    """The two, and a third that knows the customers of the first."""
    tables = small_tables()
    rng = np.random.default_rng(3)
    ids = tables["bank"]["customers"]["id"]
    tables["club"] = {
        "customers": pa.table({"id": ids, "years": rng.normal(size=len(ids)), "dues": rng.random(len(ids))})
    }
    return tables


def records_in(path: Path, job: str) -> int:
    """How many messages of a job a journal has, looked up from outside; the mark of its end does not count."""
    if not path.exists():
        return 0
    with closing(Journal.read(path)) as journal:
        return sum(record.sender != "" for record in journal.job(job).records())


class Processes:
    """Services of a world, each in a process of its own.

    Parameters
    ----------
    world : World
        Their folders and settings; it starts nothing itself.
    plain : bool
        Whether to run the installed command rather than to fork.
    prefix : callable, optional
        From a service's name to what its command starts with, such as ``ip netns exec``.
    host : str
        Where the coordinator listens.

    """

    def __init__(
        self,
        world: World,
        *,
        plain: bool = False,
        prefix: Callable[[str], Sequence[str]] = lambda name: (),
        host: str = "127.0.0.1",
    ) -> None:
        self.world = world
        self.host = host
        self._prefix = prefix
        self._plain = plain
        self.scripts: dict[str, tuple[str, Mapping[str, str]]] = {}
        """Of services that are forked next: a script to run in them first, and what it finds in the environment."""
        self._running: dict[str, int] = {}
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    # --- starting ---

    def start(self) -> None:
        """Start everybody."""
        self.start_coordinator()
        for party in self.world.settings:
            self.start_party(party)

    def start_coordinator(self, *, listens: bool = True) -> None:
        """Start the coordinator, and wait until it listens if it will; it keeps the port that it had first."""
        folder = self.world.root / COORDINATOR
        settings = {"listen": f"{self.host}:{self.world.port}", **self.world.coordinator_settings}
        begin = len(self.log(COORDINATOR))
        self._start(COORDINATOR, write_toml(folder / "coordinator.toml", settings))
        if not listens:
            return
        listening = re.compile(r"listening on \S+ port (\d+)")
        found = wait_until(lambda: listening.search(self.log(COORDINATOR)[begin:]), "the coordinator to listen")
        self.world.port = int(found[1])

    def start_party(self, name: str) -> None:
        """Start a party; it dials in the background."""
        host = "localhost" if self.host == "127.0.0.1" else self.host
        settings = {"coordinator": f"{host}:{self.world.port}", **self.world.settings[name]}
        self._start(name, write_toml(self.world.root / name / "party.toml", settings))

    def restart(self, name: str) -> None:
        """Start the coordinator or a party."""
        if name == COORDINATOR:
            self.start_coordinator()
        else:
            self.start_party(name)

    def _start(self, name: str, config: Path) -> None:
        assert name not in self._running
        usual = [COORDINATOR if name == COORDINATOR else "party"]
        command = [*self.world.commands.get(name, usual), str(config)]
        log = self.world.root / name / "log.txt"
        if self._plain:
            program = [*self._prefix(name), str(Path(sys.executable).with_name("woodlot")), *command]
            with log.open("ab") as out:
                child = subprocess.Popen(program, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
            self._children[child.pid] = child
            self._running[name] = child.pid
        else:
            self._running[name] = mother().fork(command, log, *self.scripts.get(name, ("", {})))

    # --- watching and ending ---

    def log(self, name: str) -> str:
        """What a service has logged so far, over all its lives."""
        path = self.world.root / name / "log.txt"
        return path.read_text() if path.exists() else ""

    def journal(self, name: str) -> Path:
        """Where a service's journal is."""
        return self.world.root / name / "state" / "journal.sqlite"

    def wait_connected(self) -> None:
        """Wait until the coordinator has let all parties in."""
        for party in self.world.settings:
            line = f"party {party!r} is connected"
            wait_until(lambda line=line: line in self.log(COORDINATOR), f"{party} to connect")  # type: ignore[misc]

    def kill(self, name: str) -> None:
        """End a service as a loss of power would: it gets no chance to do anything."""
        self._end(name, signal.SIGKILL)

    def stop(self, name: str, halt: Halt | None = None) -> None:
        """End a service cleanly; one that stands still goes on, once it has been asked to end."""
        self._end(name, signal.SIGTERM, halt)

    def pid(self, name: str) -> int:
        """The process number of a service that runs."""
        return self._running[name]

    def has_died(self, name: str) -> bool:
        """Whether a service has ended by itself; if so, it can be started again."""
        if _lives(self._running[name]):
            return False
        del self._running[name]
        return True

    def freeze(self, name: str) -> None:
        """Stop a service where it is: it keeps its connections, and says nothing."""
        pid = self._running[name]
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: _state(pid) == "T", f"{name} to stand still", pause=0.001)

    def _end(self, name: str, number: signal.Signals, halt: Halt | None = None) -> None:
        pid = self._running.pop(name)
        with suppress(ProcessLookupError):  # it has just died by itself
            os.kill(pid, number)
        if halt is not None:
            halt.release()
        child = self._children.pop(pid, None)
        if child is not None:
            child.wait(WAIT)
        else:
            wait_until(lambda: not _lives(pid), f"{name} to end", pause=0.002)

    def halt(self, name: str, job: str, places: Collection[int]) -> Halt:
        """Have a service stand still at places of a job; see `halts`. Services that were started plainly never do."""
        assert not self._plain
        return Halt(self.world.root / name, job, places)

    def close(self) -> None:
        """End everybody."""
        for name in list(self._running):
            self.kill(name)


def _state(pid: int) -> str:
    """What the system says of a process: R runs, S waits, T stands still."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@contextmanager
def processes(world: World, **options: Any) -> Iterator[Processes]:
    """The services of a world as processes, ended at the end."""
    running = Processes(world, **options)
    try:
        running.start()
        yield running
    finally:
        running.close()


@contextmanager
def deviating(world: World, script: str, environment: Mapping[str, str] = {}) -> Iterator[Processes]:
    """The services of a world, all connected, of which the coordinator runs a script first; ended at the end."""
    running = Processes(world)
    running.scripts[COORDINATOR] = (script, environment)
    try:
        running.start()
        running.wait_connected()
        yield running
    finally:
        running.close()


# --- the mother process ---


class Mother:
    """The process that forks the services."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def fork(self, command: list[str], log: Path, script: str = "", environment: Mapping[str, str] = {}) -> int:
        """Start a service; returns its process number."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([command, str(log), script, dict(environment)]) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(WAIT)
        self._process.stdout.close()


@functools.cache
def mother() -> Mother:
    """One for all tests of this process; it ends with it."""
    made = Mother()
    atexit.register(made.close)
    return made


def _warm() -> None:
    """Import what services need, and compile what small forests need."""
    import woodlot
    import woodlot.cli.coordinator
    import woodlot.cli.party
    import woodlot.service.coordinator
    import woodlot.service.party

    tables = {party: held["customers"] for party, held in small_tables().items()}
    federation = woodlot.Federation.local(tables, id="id")
    forest = woodlot.FederatedForestClassifier(2, max_depth=3, random_state=0, oob_score=True, n_jobs=1)
    forest.fit(federation, y="bank.late").predict(federation)
    woodlot.FederatedForestClassifier(2, max_depth=2, random_state=0, protection="hidden", n_jobs=1).fit(
        federation, y="bank.late"
    )
    rows = woodlot.Federation.local({f"p{k}": tables["bank"] for k in range(3)}, id="id", layout="rows")
    woodlot.CollaborativeForestClassifier(3, random_state=0, n_jobs=1).fit(rows, y="late")


def _run(command: list[str], log: str, script: str, environment: Mapping[str, str]) -> NoReturn:
    """What a forked process does: the command line, as if it had been typed."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (out, 1), (out, 2)):
        os.dup2(source, target)
    from woodlot.cli import app

    code = 1
    try:
        os.environ.update(environment)
        halts.install(Path(log).parent)
        if script:
            runpy.run_path(script, run_name="service")
        app(command, standalone_mode=True)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except Exception:  # noqa: BLE001 - whatever it is must be in the log
        traceback.print_exc()
    os._exit(code)


def _serve() -> None:
    """Fork one service for each line that is read, and tell its process number."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead are not waited for
    _warm()
    while line := sys.stdin.readline():
        what = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _run(*what)
        print(pid, flush=True)


if __name__ == "__main__":
    _serve()
