"""Connections that say little or nothing, to the dashboard's server itself."""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from fastapi import FastAPI

import woodlot.dashboard.server
from woodlot.dashboard.server import Server

PATIENCE = 300.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(woodlot.dashboard.server, "HEADER_SECONDS", 1.0)
    app = FastAPI()

    async def slow() -> str:
        await asyncio.sleep(2.5)
        return "page"

    app.add_api_route("/", slow)
    with Server(app, "127.0.0.1", 0) as server:
        server.start()
        yield server


def connected(server: Server) -> socket.socket:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        except OSError:
            assert time.monotonic() < until


def heard(connection: socket.socket) -> bytes:
    """All that comes until the other side hangs up."""
    parts = []
    try:
        while part := connection.recv(1 << 16):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\nHost:"])
def test_who_does_not_say_what_is_asked_for_is_hung_up_on(server: Server, said: bytes) -> None:
    with connected(server) as connection:
        begun = time.monotonic()
        connection.sendall(said)
        assert heard(connection) == b""
        assert time.monotonic() - begun < PATIENCE / 2


def test_a_header_that_comes_letter_by_letter_is_hung_up_on(server: Server) -> None:
    def spell(connection: socket.socket) -> None:
        for letter in b"GET / HTTP/1.1\r\nHost:" + 200 * b"x":
            connection.sendall(bytes([letter]))
            time.sleep(0.05)

    with connected(server) as connection, pytest.raises(ConnectionError):
        spell(connection)


def test_a_page_may_take_longer_and_the_next_request_has_its_time_again(server: Server) -> None:
    browser = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)
    browser.sock = connected(server)
    with closing(browser):
        browser.request("GET", f"/?token={server.guard.token}")
        let_in = browser.getresponse()
        assert (let_in.status, let_in.read()) == (303, b"")
        browser.request("GET", "/", headers={"Cookie": (let_in.getheader("set-cookie") or "").partition(";")[0]})
        page = browser.getresponse()
        assert (page.status, page.read()) == (200, b'"page"')
        browser.sock.sendall(b"GET / HT")
        assert heard(browser.sock) == b""
