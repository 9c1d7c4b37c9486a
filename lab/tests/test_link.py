"""The relay: what goes in comes out, later and slower."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from woodlot_lab.link import Link, Relay


def echo(server: socket.socket) -> None:
    while True:
        try:
            line, _ = server.accept()
        except OSError:
            return
        threading.Thread(target=answer, args=(line,), daemon=True).start()


def answer(line: socket.socket) -> None:
    while data := line.recv(65536):
        line.sendall(data)
    line.close()


@pytest.fixture
def relay() -> Iterator[Relay]:
    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=echo, args=(server,))
    thread.start()
    relay = Relay(f"127.0.0.1:{server.getsockname()[1]}", Link())
    yield relay
    relay.close()
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()


def dial(relay: Relay) -> socket.socket:
    host, port = relay.address.split(":")
    return socket.create_connection((host, int(port)), timeout=300)


def there_and_back(line: socket.socket, data: bytes) -> float:
    start = time.monotonic()
    threading.Thread(target=line.sendall, args=(data,)).start()
    received = bytearray()
    while len(received) < len(data):
        received += line.recv(65536)
    assert bytes(received) == data
    return time.monotonic() - start


def test_nothing_is_lost_changed_or_early(relay: Relay) -> None:
    data = bytes(range(256)) * 1000
    with dial(relay) as line:
        there_and_back(line, data)
        relay.link = Link(delay=0.05)
        assert there_and_back(line, b"x") >= 0.1
        # 256,000 bytes at 20 Mb/s take 0.1 s each way; the way back begins when the first chunk has arrived
        relay.link = Link(rate=20e6)
        assert there_and_back(line, data) >= 0.1


def test_a_line_that_ends_ends_at_both_sides(relay: Relay) -> None:
    with dial(relay) as line:
        there_and_back(line, b"x")
        line.shutdown(socket.SHUT_WR)
        assert line.recv(10) == b""
    with dial(relay) as line:
        there_and_back(line, b"y")
        relay.close()
        assert line.recv(10) == b""


def test_a_link_is_told_in_numbers() -> None:
    assert str(Link(0.01, 20e6)) == "20 ms round trip, 20 Mb/s"
    assert str(Link()) == "0 ms round trip, unlimited"
