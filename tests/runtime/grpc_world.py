"""A coordinator, parties and users on this machine, with certificates of their own, for tests."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from woodlot.runtime.drivers.carried import Carrier, Numbered
from woodlot.runtime.drivers.grpc_hub import Hub
from woodlot.runtime.drivers.grpc_line import PartyLine, UserLine

from .certificates import Authority
from .driver_contract import PATIENCE


def echo(job: str, number: int, request: bytes) -> bytes:
    return request


def eventually(condition: Callable[[], object], patience: float = PATIENCE) -> float:
    """Wait until `condition` holds; the seconds that it took."""
    started = time.monotonic()
    while not condition():
        assert time.monotonic() - started < patience, "this did not happen in time"
        time.sleep(0.01)
    return time.monotonic() - started


class World:
    """Everything that a test starts, and its end."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority()
        self.port = 0
        self._coordinator = self.authority.issue("coordinator", "c")
        self.folder = folder
        self._stack = ExitStack()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def hub(self, **settings: Any) -> Hub:
        """A hub at the port of the one before it, if any."""
        settings = {"admit": self.authority.admit, "serve_user": lambda peer, data: data, **settings}
        hub = Hub(self.address, settings.pop("credentials", self._coordinator), **settings)
        self._stack.callback(hub.close)
        self.port = hub.start()
        return hub

    def party(
        self, name: str, answer: Callable[[str, int, bytes], bytes] = echo, *, wait: bool = True, **settings: Any
    ) -> PartyLine:
        credentials = settings.pop("credentials", None) or self.authority.issue("party", name)
        line = PartyLine(settings.pop("address", self.address), credentials, answer, **settings)
        self._stack.callback(line.stop)
        line.start()
        if wait:
            assert line.wait_connected(PATIENCE)
        return line

    def user(self, name: str = "alice", **settings: Any) -> UserLine:
        credentials = settings.pop("credentials", None) or self.authority.issue("user", name)
        return self._stack.enter_context(UserLine(self.address, credentials, **settings))

    def process(self, role: str, name: str) -> subprocess.Popen[str]:
        """A party or a coordinator in a process of its own."""
        folder = self.folder / secrets.token_hex(4)
        folder.mkdir()
        credentials = self.authority.issue(role, name)
        for part in ("key", "certificate", "authority"):
            (folder / part).write_bytes(getattr(credentials, part))
        process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("echo_process.py")), role, self.address, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        return process

    def closing(self, thing: Any) -> None:
        """Close another thing at the end."""
        self._stack.callback(thing.close)

    def close(self) -> None:
        self._stack.close()


def ask(carrier: Carrier, number: int, requests: dict[str, bytes]) -> dict[str, bytes]:
    replies: dict[str, bytes] = {}
    carrier.carry({party: Numbered(number, data) for party, data in requests.items()}, replies.__setitem__)
    return replies


class Asking:
    """A round in a thread of its own, and what becomes of it."""

    def __init__(self, carrier: Carrier, number: int, requests: dict[str, bytes]) -> None:
        self.replies: dict[str, bytes] = {}
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._ask, args=(carrier, number, requests), daemon=True)
        self._thread.start()

    def _ask(self, carrier: Carrier, number: int, requests: dict[str, bytes]) -> None:
        try:
            self.replies = ask(carrier, number, requests)
        except Exception as error:  # noqa: BLE001 - for the test to look at
            self.error = error

    def result(self, patience: float = PATIENCE) -> dict[str, bytes]:
        self._thread.join(patience)
        assert not self._thread.is_alive(), "the round did not end in time"
        if self.error is not None:
            raise self.error
        return self.replies


def new_job() -> str:
    return secrets.token_hex(16)
