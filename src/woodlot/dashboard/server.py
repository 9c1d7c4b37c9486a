"""Serves the pages: on this machine behind a token, or over the network behind TLS and users' certificates."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
import threading
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from woodlot.dashboard.guard import USER_KEY, App, Guard, Receive, Scope, Send
from woodlot.exceptions import ConfigError, IdentityError
from woodlot.identity.identity import Identity, Trust

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HEADER_SECONDS = 10.0
"""Who has not said by then what is asked for is disconnected, at each request."""
MAX_CONNECTIONS = 200
"""Beyond so many, requests are told to come again later."""
EVERY_ADDRESS = ("0.0.0.0", "[::]")  # noqa: S104 - compared with, not listened on


class Server:
    """The dashboard's web server.

    Parameters
    ----------
    app : ASGI application
        The pages; told by ``app.state.guard`` how to make requests that change something.
    host, port
        Where to listen; port 0: any that is free. Other than on this machine, only with ``identity``.
    identity : Identity, optional
        Serve over TLS as this coordinator or party.
    trust : Trust, optional
        Who checks users' certificates; goes with ``identity``.
    users : sequence of str
        Users who may look; goes with ``identity``.
    """

    def __init__(
        self,
        app: Any,
        host: str,
        port: int,
        *,
        identity: Identity | None = None,
        trust: Trust | None = None,
        users: tuple[str, ...] = (),
    ) -> None:
        is_local = host in LOOPBACK
        if identity is None and not is_local:
            raise ConfigError(
                f"listening on {host} shows the page to the network: name with --user who may look, by a user's "
                "certificate over TLS, or listen on 127.0.0.1"
            )
        try:
            self._socket = socket.create_server((host.strip("[]"), port))
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port}: {error.strerror or error}; name another address with --listen; "
                "with port 0 it is any that is free"
            ) from None
        self.port = int(self._socket.getsockname()[1])
        names = {*LOOPBACK} if is_local else {host, socket.gethostname(), socket.getfqdn(), *LOOPBACK}
        hosts = tuple(f"{name}:{self.port}" for name in names)
        secure = identity is not None
        self.guard = Guard(app, hosts, users=users if secure else None, secure=secure)
        app.state.guard = self.guard
        # an address that stands for all of this machine's is none that a browser can open
        shown = "127.0.0.1" if is_local else socket.gethostname() if host in EVERY_ADDRESS else host
        self.address = f"{'https' if secure else 'http'}://{shown}:{self.port}/"
        config = uvicorn.Config(
            self.guard, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2,
            log_config=None, limit_concurrency=MAX_CONNECTIONS,
            http=_PatientProtocol if trust is None else _certificate_protocol(trust),
            ssl_context_factory=None if identity is None else lambda config, default: _tls(identity),
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The address to open; on this machine with the token, which serves once."""
        return f"{self.address}?token={self.guard.token}" if self.guard.token and not self._secure else self.address

    @property
    def _secure(self) -> bool:
        return self.address.startswith("https")

    def start(self) -> None:
        """Serve in a thread."""
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._socket.close()

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _tls(identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_verify_locations(cadata=identity.authority.decode())
    with tempfile.TemporaryDirectory() as folder:  # ssl reads keys from files only; the folder is its owner's alone
        chain = Path(folder) / "chain.pem"
        chain.touch(mode=0o600)
        chain.write_bytes(identity.certificate + identity.key)
        context.load_cert_chain(chain)
    return context


class _PatientProtocol(H11Protocol):
    """Waits for the headers of a request, but not for ever."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Begin to count while headers are due, if that has not begun; stop when they are there."""
        if self.conn.their_state is not h11.IDLE:
            self._rest()
        elif self._patience is None:
            self._patience = self.loop.call_later(HEADER_SECONDS, self.transport.abort)

    def _rest(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None


def _certificate_protocol(trust: Trust) -> type[H11Protocol]:
    class CertificateProtocol(_PatientProtocol):
        """Tells the guard whose certificate a connection came with, if it is a user's that is still trusted."""

        def connection_made(self, transport: Any) -> None:
            found = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
            certificate = ssl.DER_cert_to_PEM_cert(found).encode()
            pages: App = self.app

            def with_user(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
                try:  # at each request: somebody may have been revoked meanwhile
                    scope[USER_KEY] = trust.admit(certificate, role="user").name
                except IdentityError:
                    scope[USER_KEY] = ""
                return pages(scope, receive, send)

            self.app = with_user
            super().connection_made(transport)

    return CertificateProtocol
