"""A link of a given delay and rate between parties and their coordinator: a relay that TLS passes through."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass

CHUNK = 16 * 1024
BUFFER = 4 * 1024 * 1024
"""Bytes that may be under way in one direction; a sender waits beyond."""


@dataclass(frozen=True)
class Link:
    """What every party's line is like.

    Parameters
    ----------
    delay : float
        Seconds from one end to the other; a round trip takes twice as long.
    rate : float, optional
        Bits per second in each direction of each line; None: no limit.

    """

    delay: float = 0.0
    rate: float | None = None

    def __str__(self) -> str:
        rate = "unlimited" if self.rate is None else f"{self.rate / 1e6:g} Mb/s"
        return f"{2e3 * self.delay:g} ms round trip, {rate}"


class Relay:
    """Listens on this machine and passes everything on to one address, as late and as slowly as its link says.

    Each connection is a line of its own, with threads for its two directions. `link` may be set at any time.

    Parameters
    ----------
    target : str
        ``host:port`` to which all connections lead.
    link : Link
        What the lines are like.

    """

    def __init__(self, target: str, link: Link) -> None:
        self.link = link
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """End all lines."""
        with self._lock:
            self._closed = True
            sockets = [self._listener, *self._open]
        for each in sockets:
            _shut(each)

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            with self._lock:
                if self._closed:
                    near.close()
                    far.close()
                    return
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _Direction(self, source, sink).start()

    def forget(self, *sockets: socket.socket) -> None:
        """Close sockets of a line that has ended."""
        with self._lock:
            self._open -= set(sockets)
        for each in sockets:
            _shut(each)


class _Direction:
    """One direction of a line: what is read is written when the link would have delivered it."""

    def __init__(self, relay: Relay, source: socket.socket, sink: socket.socket) -> None:
        self._relay = relay
        self._source = source
        self._sink = sink
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()

    def start(self) -> None:
        for work in (self._read, self._write):
            threading.Thread(target=work, daemon=True).start()

    def _read(self) -> None:
        free_at = 0.0  # when the line has sent all before
        while True:
            try:
                data = self._source.recv(CHUNK)
            except OSError:
                data = b""
            link, now = self._relay.link, time.monotonic()
            free_at = max(free_at, now) + (8 * len(data) / link.rate if link.rate else 0.0)
            with self._changed:
                self._changed.wait_for(lambda: self._bytes < BUFFER)
                self._under_way.append((free_at + link.delay, data))
                self._bytes += len(data)
                self._changed.notify_all()
            if not data:
                return

    def _write(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._under_way)
                due, data = self._under_way.popleft()
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            try:
                if data:
                    self._sink.sendall(data)
            except OSError:
                data = b""
            with self._changed:
                self._bytes -= len(data)
                self._changed.notify_all()
            if not data:  # the end of the line, in both directions
                self._relay.forget(self._source, self._sink)
                return


def _shut(each: socket.socket) -> None:
    with contextlib.suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads or accepts
    each.close()
