"""Who may look, and what a browser may do: a middleware before all pages.

On this machine (the default) the printed address has a token that serves once and gives the browser a cookie; the
Host header must be ours, so that no other site can reach the page under a name of its own. Over the network a client
certificate of a user is needed instead, which the TLS layer has checked. Whatever changes something needs our own
Origin and a token that only our pages have. Pages get a request when all of it is there, and it is never large.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "woodlot"
CSRF_HEADER = "x-woodlot-csrf"
USER_KEY = "woodlot_user"
"""Where the TLS layer puts the name of the user whose certificate it has checked."""

MAX_BODY = 64_000
"""Bytes that a request has beside its headers: our forms have a few hundred."""
BODY_SECONDS = 10.0
"""How long they may take to arrive."""

_SAFE_METHODS = ("GET", "HEAD")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Lets requests through to the pages, or answers them itself.

    Parameters
    ----------
    app : ASGI application
        The pages.
    hosts : sequence of str
        Host headers that are ours, with the port.
    users : sequence of str or None
        Users whose certificate opens the door, instead of the token.
    secure : bool
        Whether the pages are served over TLS.

    Attributes
    ----------
    token : str
        Opens the door once.
    """

    def __init__(self, app: App, hosts: tuple[str, ...], *, users: tuple[str, ...] | None = None, secure: bool = False):
        self._app = app
        self._hosts = frozenset(hosts)
        self._users = users
        self._secure = secure
        self._key = secrets.token_bytes(32)
        self._cookie = secrets.token_urlsafe(32)
        self.token = secrets.token_urlsafe(24)

    @property
    def csrf(self) -> str:
        """What a request must carry that changes something."""
        return hmac.new(self._key, b"csrf", hashlib.sha256).hexdigest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get("host") not in self._hosts:
            await _refuse(send, 421, "This page is not served under that name.")
            return
        if self._users is not None:
            if scope.get(USER_KEY) not in self._users:
                await _refuse(send, 403, "A certificate of a user who may look is needed.")
                return
        elif not self._knows(headers.get("cookie", "")):
            await self._let_in(scope, send)
            return
        if scope["method"] not in _SAFE_METHODS and not self._is_ours(headers):
            await _refuse(send, 403, "This request did not come from a page of this dashboard. Reload the page.")
            return
        said = headers.get("content-length", "0")
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await _body(receive) if said.isdecimal() and int(said) <= MAX_BODY else None
        except (TimeoutError, ConnectionError):
            await _refuse(send, 408, "The request did not arrive in time.")
            return
        if body is None:
            await _refuse(send, 413, f"A request has at most {MAX_BODY:,} bytes here.")
            return
        await self._app(scope, _replayed(body, receive), _with_headers(send))

    def _knows(self, cookies: str) -> bool:
        try:
            found = SimpleCookie(cookies).get(COOKIE)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._cookie.encode())

    def _is_ours(self, headers: dict[str, str]) -> bool:
        scheme = "https" if self._secure else "http"
        if headers.get("origin") not in {f"{scheme}://{host}" for host in self._hosts}:
            return False
        return hmac.compare_digest(headers.get(CSRF_HEADER, "").encode("latin-1"), self.csrf.encode())

    async def _let_in(self, scope: Scope, send: Send) -> None:
        offered = parse_qs(scope.get("query_string", b"").decode("latin-1")).get("token", [""])[0]
        if scope["method"] != "GET" or not self.token or not hmac.compare_digest(offered.encode(), self.token.encode()):
            await _refuse(
                send,
                401,
                "Open the address that `woodlot dashboard` has printed; it serves once. Start it again for a new one.",
            )
            return
        self.token = ""
        cookie = f"{COOKIE}={self._cookie}; Path=/; HttpOnly; SameSite=Strict{'; Secure' if self._secure else ''}"
        await send(
            {
                "type": "http.response.start",
                "status": 303,
                "headers": [(b"location", b"/"), (b"set-cookie", cookie.encode()), *_headers()],
            }
        )
        await send({"type": "http.response.body", "body": b""})


async def _body(receive: Receive) -> bytes | None:
    """What comes with a request, or None where it is too long, of which no more is read."""
    body, more = b"", True
    while more and len(body) <= MAX_BODY:
        event = await receive()
        if event["type"] != "http.request":
            raise ConnectionResetError  # what there is of it could be taken for another request
        body, more = body + event.get("body", b""), event.get("more_body", False)
    return body if len(body) <= MAX_BODY else None


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Gives what was read already, and then what comes."""
    events = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> MutableMapping[str, Any]:
        return events.pop() if events else await receive()

    return again


def _headers() -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in _HEADERS.items()]


def _with_headers(send: Send) -> Send:
    async def wrapped(event: MutableMapping[str, Any]) -> None:
        if event["type"] == "http.response.start":
            present = {name.lower() for name, _ in event["headers"]}
            kept = [] if b"cache-control" in present else [(b"cache-control", b"no-store")]
            event = {**event, "headers": [*event["headers"], *_headers(), *kept]}
        await send(event)

    return wrapped


async def _refuse(send: Send, status: int, reason: str) -> None:
    headers = [
        (b"content-type", b"text/plain; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (b"connection", b"close"),  # of what was refused, the rest is not read
        *_headers(),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": reason.encode()})
