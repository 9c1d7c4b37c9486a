"""A federation on this machine, to show and to measure: fresh identities, and a process for each service."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TypeAlias, TypeVar

from woodlot.exceptions import WoodlotError
from woodlot.identity.authority import Authority
from woodlot.identity.throwaway import make_identities
from woodlot.service.client import Client
from woodlot.service.config import CoordinatorConfig, PartyConfig

USER = "alice"
HELPER, KEYS = "helper", "keys"
"""Helper and key service, where there are such."""
START_SECONDS = 60.0
"""How long a service may take until it can be reached, on a machine that is busy with other things."""
END_SECONDS = 5.0
"""How long a service may take to end by itself."""

_CHILD = "from woodlot.service.local import end_with_parent; end_with_parent(); from woodlot.cli import app; app()"
_ENDING_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_OPEN_POLICY = (
    "min_samples_leaf = 1",
    "min_rows = 1",
    'wire_forms = ["sealed", "decisions", "leaves", "ranks", "classical", "encrypted-splits"]',
    'predictions_per_day = "unlimited"',
    'trainings_per_day = "unlimited"',
    "min_evaluation_rows = 1",
    'evaluations_per_day = "unlimited"',
    "round_counts = 1",
    'explains = "values"',
    'explanations_per_day = "unlimited"',
    'catalog = ["names", "types", "missing", "rows"]',
    'lead = ["coordinator", "holder"]',
)
"""Made-up tables need no protection; every file of a party says how much it wants."""
_ENCRYPTED_POLICY = (
    f'helpers = ["{HELPER}"]',
    f'key_services = ["{KEYS}"]',
    "labels_to_coordinator = true",
)
T = TypeVar("T")
_Handler: TypeAlias = Callable[[int, FrameType | None], None]


class LocalFederation:
    """An operator, a user, and services that each know their own folder only.

    ::

        root/
          authority/             the operator's
          alice/identity/        the user's
          coordinator/           coordinator.toml, identity/, state/, log
          PARTY/                 party.toml, identity/, state/, log, and the party's tables
          helper/, keys/         as a party, without tables

    Parameters
    ----------
    root : Path
        An empty folder.
    parties : sequence of str
        Their names; each gets a folder.
    encrypted : bool
        Whether there are a helper and a key service, for revocable forests with hidden splits.

    Attributes
    ----------
    address : str
        Where the coordinator listens, once it does.

    """

    def __init__(self, root: Path, parties: Sequence[str], *, encrypted: bool = False) -> None:
        self.root = root
        self.parties = tuple(parties)
        self._members = (HELPER, KEYS) if encrypted else ()
        self.address = ""
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._again: Callable[[], None] = lambda: None
        operator = Authority.create(root / "authority", "demo", days=2)
        members = {"coordinator": "coordinator", USER: "user"} | dict.fromkeys((*parties, *self._members), "party")
        make_identities(operator, root, members)

    @property
    def identity(self) -> Path:
        """The user's folder of key and certificate."""
        return self.root / USER / "identity"

    def party_config(self, party: str) -> PartyConfig:
        """A party's configuration, as the party reads it."""
        return PartyConfig.load(self.root / party / "party.toml")

    def coordinator_config(self) -> CoordinatorConfig:
        """The coordinator's configuration, as the coordinator reads it."""
        return CoordinatorConfig.load(self.root / "coordinator" / "coordinator.toml")

    # --- processes ---

    def start(
        self,
        tables: Mapping[str, Mapping[str, str]],
        id: str,
        n_jobs: int,
        labels: Mapping[str, Sequence[str]],
        dial: Callable[[str], str] = lambda address: address,
        protocols: Sequence[str] = (),
    ) -> None:
        """Start the coordinator, and the parties as soon as it listens; they need not be connected yet.

        Parameters
        ----------
        tables : mapping
            For each party, the file of each table in the party's folder.
        id : str
            The column that identifies a row.
        n_jobs : int
            Threads of each party.
        labels : mapping
            For each party that has some, the columns of its tables that may be labels.
        dial : callable
            The coordinator's address -> the address that parties dial: another one where something stands between.
        protocols : sequence of str
            What may be ordered, where that is not what a policy allows by default.

        """
        self._again = lambda: self.start(tables, id, n_jobs, labels, dial, protocols)
        config = self.root / "coordinator" / "coordinator.toml"
        config.write_text('listen = "127.0.0.1:0"  # any port that is free\nwait_for_parties = "30 s"\n')
        self._spawn("coordinator", "coordinator", config)
        self.address = f"127.0.0.1:{self._listening_port()}"
        dialled = dial(self.address)
        for party in self.parties:
            config = self.root / party / "party.toml"
            config.write_text(
                self._party_settings(party, dialled, tables[party], id, n_jobs, labels.get(party, ()), protocols)
            )
            self._spawn(party, "party", config)
        for member, command in zip(self._members, (("party", "--role", "helper"), ("identity", "keys")), strict=False):
            config = self.root / member / "party.toml"
            policy = f'[policy]\ntrain = ["{USER}"]\npredict = ["{USER}"]\n'
            config.write_text(f'coordinator = "{dialled}"\nallow_same_host = true\n{policy}')
            self._spawn(member, *command, config)

    def start_again(self) -> None:
        """Start everybody as before, on what was kept, and wait until all are connected; `address` is a new one."""
        self._again()
        self.wait_connected()

    def _party_settings(
        self,
        party: str,
        address: str,
        tables: Mapping[str, str],
        id: str,
        n_jobs: int,
        labels: Sequence[str],
        protocols: Sequence[str],
    ) -> str:
        lines = [f'coordinator = "{address}"', f"n_jobs = {n_jobs}", ""]
        for name, file in tables.items():
            lines += [f"[tables.{name}]", f'path = "{file}"', f'id = "{id}"', 'columns = "*"']
            lines += [f"labels = {json.dumps(list(labels))}", ""]
        lines += ["[policy]", f'train = ["{USER}"]', f'predict = ["{USER}"]']
        lines += [f"protocols = {json.dumps(list(protocols))}"] if protocols else []
        lines += [f"receive = {json.dumps([USER, *self.parties])}", *_OPEN_POLICY]
        lines += _ENCRYPTED_POLICY if self._members else ()
        return "\n".join([*lines, ""])

    def _spawn(self, name: str, *command: str | Path) -> None:
        with _signals_later(), self._log(name).open("wb") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 - this program itself
                [sys.executable, "-c", _CHILD, *map(str, command)],
                stdin=subprocess.PIPE,  # closed when this process ends, whatever ends it
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for this process, which then ends the others in good order
            )

    def _log(self, name: str) -> Path:
        return self.root / name / "log"

    def _listening_port(self) -> int:
        def look() -> int | None:
            found = re.search(r"listening on \S+, port (\d+)\n", self._log("coordinator").read_text())
            return int(found[1]) if found else None

        return self._await(look, "the coordinator does not listen")

    @property
    def pids(self) -> dict[str, int]:
        """The number of each service's process."""
        return {name: process.pid for name, process in self._processes.items()}

    def wait_connected(self) -> None:
        """Wait until all parties are connected."""
        with Client(self.address, self.identity) as client:

            def look() -> bool | None:
                since = client.parties()
                return all(since.get(name) is not None for name in (*self.parties, *self._members)) or None

            self._await(look, "not all parties are connected")

    def _await(self, look: Callable[[], T | None], problem: str) -> T:
        """What there is to see, as soon as there is something."""
        until = time.monotonic() + START_SECONDS
        while time.monotonic() < until:
            if (seen := look()) is not None:
                return seen
            self._check_alive()
            time.sleep(0.05)
        raise WoodlotError(f"{problem} after {START_SECONDS:.0f} s; is this machine very busy?{self._last_words()}")

    def _check_alive(self) -> None:
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise WoodlotError(f"the process of {name} has ended with {process.returncode}{self._last_words(name)}")

    def _last_words(self, *names: str) -> str:
        """The last line of the logs, which are gone when this is read."""
        logs = {name: self._log(name).read_text(errors="replace").split("\n") for name in names or self._processes}
        last = {name: next((line for line in reversed(lines) if line.strip()), "") for name, lines in logs.items()}
        return "".join(f"; last line of {name}: {line}" for name, line in last.items() if line)

    def stop(self) -> None:
        """End all processes: asked first, then by force."""
        for process in self._processes.values():
            process.terminate()
        until = time.monotonic() + END_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self._processes.clear()


@contextmanager
def local_federation(parties: Sequence[str], *, encrypted: bool = False) -> Iterator[LocalFederation]:
    """A federation in a temporary folder; at the end, however it comes, no process and no folder is left."""
    with _signals(_interrupt):
        folder = tempfile.TemporaryDirectory(prefix="woodlot-local-")
        federation: LocalFederation | None = None
        try:
            federation = LocalFederation(Path(folder.name), parties, encrypted=encrypted)
            yield federation
        finally:
            with _signals(_ignore):  # a second Ctrl-C must not leave anything behind
                if federation is not None:
                    federation.stop()
                folder.cleanup()


@contextmanager
def _signals(handler: _Handler) -> Iterator[None]:
    """Handle all signals that end a process in one way; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _ENDING_SIGNALS}
    heeded = {n: previous for n, previous in before.items() if previous not in (signal.SIG_IGN, None)}  # nohup stays
    for number in heeded:
        signal.signal(number, handler)
    try:
        yield
    finally:
        for number, previous in heeded.items():
            signal.signal(number, previous)


@contextmanager
def _signals_later() -> Iterator[None]:
    """Let signals wait: one between the start of a process and its entry in the list would leave it behind."""
    came: list[int] = []
    with _signals(lambda number, frame: came.append(number)):
        yield
    if came:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _ignore(number: int, frame: FrameType | None) -> None: ...


def end_with_parent() -> None:
    """End this process, as a signal would, when the one that has started it ends."""

    def watch() -> None:
        os.read(sys.stdin.fileno(), 1)  # nothing ever comes but the end
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()
