"""A coordinator, parties and users on this machine, with certificates of their own, for tests."""

from __future__ import annotations

import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ports import free_port

from woodlot.runtime.drivers.carried import Carrier, Numbered
from woodlot.runtime.drivers.grpc_hub import Hub
from woodlot.runtime.drivers.grpc_line import PartyLine, UserLine
from woodlot.runtime.drivers.grpc_wire import grpc
from woodlot.runtime.frames import FrameKind, Label, split
from woodlot.runtime.peers import Credentials

from .certificates import Authority
from .driver_contract import PATIENCE

JOB = "ab" * 16
REQUEST = next(split(Label(FrameKind.request, JOB, 1), b"x"))
REPLY = next(split(Label(FrameKind.reply, JOB, 1), b"x"))


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
        self.port = free_port()
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


def call(
    world: World,
    frames: list[bytes],
    method: str = "Party",
    *,
    credentials: Credentials,
    secure: bool = True,
    stay: threading.Event | None = None,
) -> tuple[grpc.StatusCode, str]:
    """Send frames as a stranger's program might, and tell how the coordinator ended it."""
    if secure:
        shown = (credentials.authority, credentials.key or None, credentials.certificate or None)
        name = [("grpc.ssl_target_name_override", "coordinator.woodlot")]
        channel: Any = grpc.secure_channel(world.address, grpc.ssl_channel_credentials(*shown), name)
    else:
        channel = grpc.insecure_channel(world.address)
    with channel:
        stay = stay or threading.Event()

        def send() -> Iterator[bytes]:
            yield from frames
            stay.wait(PATIENCE)

        try:
            list(channel.stream_stream(f"/woodlot.Coordinator/{method}")(send(), timeout=PATIENCE))
        except grpc.RpcError as error:
            return error.code(), error.details()
        finally:
            stay.set()
    return grpc.StatusCode.OK, ""


def new_job() -> str:
    return secrets.token_hex(16)
