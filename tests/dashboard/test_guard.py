"""Who gets to see a page, and what a browser may do."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request

import woodlot.dashboard.guard
from woodlot.dashboard.guard import CSRF_HEADER, MAX_BODY, USER_KEY, Guard

HOST = "127.0.0.1:8000"
ORIGIN = f"http://{HOST}"


async def length(request: Request) -> int:
    return len(await request.body())


def pages() -> FastAPI:
    app = FastAPI()
    app.add_api_route("/", lambda: "page")
    app.add_api_route("/change", lambda: "changed", methods=["POST"])
    app.add_api_route("/length", length, methods=["POST"])
    return app


class Browser:
    """Sends requests to a guard, with cookies or without."""

    def __init__(self, guard: Any) -> None:
        self.guard = guard
        self.cookies: dict[str, str] = {}

    def send(self, method: str, path: str, **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.guard)
            async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, cookies=self.cookies) as client:
                return await client.request(method, path, headers=headers)

        reply = asyncio.run(ask())
        self.cookies |= dict(reply.cookies)
        return reply


@pytest.fixture
def guard() -> Guard:
    return Guard(pages(), (HOST,))


def test_the_token_opens_the_door_once(guard: Guard) -> None:
    browser, second = Browser(guard), Browser(guard)
    token = guard.token
    assert browser.send("GET", "/").status_code == 401
    assert browser.send("GET", "/?token=wrong").status_code == 401
    let_in = browser.send("GET", f"/?token={token}")
    assert let_in.status_code == 303
    assert "HttpOnly" in let_in.headers["set-cookie"]
    assert "SameSite=Strict" in let_in.headers["set-cookie"]
    assert browser.send("GET", "/").text == '"page"'
    assert second.send("GET", f"/?token={token}").status_code == 401
    assert second.send("GET", "/?token=").status_code == 401


def test_another_host_name_is_refused(guard: Guard) -> None:
    browser = Browser(guard)
    browser.send("GET", f"/?token={guard.token}")
    assert browser.send("GET", "/", Host="evil.example:8000").status_code == 421
    assert browser.send("GET", "/", Host="127.0.0.1").status_code == 421


@pytest.mark.parametrize(
    ("origin", "has_token"),
    [(None, True), ("http://evil.example", True), ("null", True), (ORIGIN, False), (f"https://{HOST}", True)],
)
def test_a_change_needs_our_origin_and_our_token(guard: Guard, origin: str | None, has_token: bool) -> None:
    browser = Browser(guard)
    browser.send("GET", f"/?token={guard.token}")
    headers = {} if origin is None else {"Origin": origin}
    if has_token:
        headers[CSRF_HEADER] = guard.csrf
    assert browser.send("POST", "/change", **headers).status_code == 403
    assert browser.send("POST", "/change", Origin=ORIGIN, **{CSRF_HEADER: guard.csrf}).text == '"changed"'


def test_every_answer_has_strict_headers(guard: Guard) -> None:
    browser = Browser(guard)
    answers = [browser.send("GET", "/"), browser.send("GET", f"/?token={guard.token}"), browser.send("GET", "/")]
    for answer in answers:
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert answers[-1].headers["cache-control"] == "no-store"


@pytest.mark.parametrize(("user", "status"), [("alice", 200), ("bob", 403), ("", 403), (None, 403)])
def test_over_the_network_a_users_certificate_opens_the_door(user: str | None, status: int) -> None:
    guard = Guard(pages(), (HOST,), users=("alice",), secure=True)

    async def tls(scope: Any, receive: Any, send: Any) -> None:  # what the TLS layer does
        await guard(scope | ({} if user is None else {USER_KEY: user}), receive, send)

    browser = Browser(tls)
    assert browser.send("GET", "/").status_code == status
    assert browser.send("GET", f"/?token={guard.token}").status_code == status  # the token is no way round it


HANG_UP = b"hang up"


class Sender:
    """Sends a body in parts, as a server hands them on, and counts those that were taken."""

    def __init__(self, parts: Iterable[bytes], *, length: int | None = None, method: str = "POST") -> None:
        self._parts = iter(parts)
        self._length = length
        self._method = method
        self.n_taken = 0
        self.answers: list[Any] = []

    async def receive(self) -> dict[str, Any]:
        part = next(self._parts, None)
        if part is None:
            await asyncio.sleep(60)
        self.n_taken += 1
        if part == HANG_UP:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": part != b""}

    async def take(self, event: Any) -> None:
        self.answers.append(event)

    def send(self, guard: Guard) -> tuple[int, bytes]:
        headers = {"host": HOST, "origin": ORIGIN, CSRF_HEADER: guard.csrf}
        if self._length is not None:
            headers["content-length"] = str(self._length)
        scope = {
            "type": "http", "method": self._method, "path": "/length", "query_string": b"", USER_KEY: "alice",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        asyncio.run(guard(scope, self.receive, self.take))
        return self.answers[0]["status"], self.answers[1]["body"]


@pytest.fixture
def open_guard() -> Guard:
    return Guard(pages(), (HOST,), users=("alice",))


def test_a_request_of_a_form_is_passed_on_whole(open_guard: Guard) -> None:
    assert Sender([b"x" * 30_000, b"y" * 30_000, b""]).send(open_guard) == (200, b"60000")
    assert Sender([b""], length=0).send(open_guard) == (200, b"0")


@pytest.mark.parametrize("method", ["POST", "GET"])
def test_a_large_request_is_refused_before_a_page_has_any_of_it(open_guard: Guard, method: str) -> None:
    reached: list[Any] = []

    async def page(*given: Any) -> None:
        reached.append(given)

    open_guard._app = page
    announced = Sender(itertools.repeat(b"x" * 10_000), length=MAX_BODY + 1, method=method)
    assert announced.send(open_guard) == (413, b"A request has at most 64,000 bytes here.")
    assert announced.n_taken == 0
    unannounced = Sender(itertools.repeat(b"x" * 10_000), method=method)
    assert unannounced.send(open_guard)[0] == 413
    assert unannounced.n_taken == 7
    assert (b"connection", b"close") in unannounced.answers[0]["headers"]
    assert reached == []


def test_a_request_that_does_not_end_is_not_waited_for(open_guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(woodlot.dashboard.guard, "BODY_SECONDS", 0.1)
    assert Sender([b"x"]).send(open_guard)[0] == 408


def test_a_request_that_breaks_off_is_not_passed_on(open_guard: Guard) -> None:
    assert Sender([b"party=ban", HANG_UP]).send(open_guard)[0] == 408
