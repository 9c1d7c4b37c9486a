"""``/health`` and ``/metrics`` of a service, over HTTP on a port of this machine; off unless configured.

Both can be read by anybody who reaches the port. They tell no user, no id, no column and no value of a table. They do
tell the service's role and name, names of tables, and how much of what kind of work there is. So the port is for this
machine; another address must be named by the operator, and the log then says what it tells.
"""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any

from woodlot.exceptions import ConfigError
from woodlot.service.open_metrics import CONTENT_TYPE, MetricFamily, exposition
from woodlot.service.settings import Address

logger = logging.getLogger(__name__)

HEALTH, METRICS = "/health", "/metrics"
"""What is served."""

MAX_READERS = 8
"""Requests that are answered at the same time; further connections are closed at once."""

REQUEST_SECONDS = 5.0
"""How long a request may take to arrive, and its answer to leave."""

_TOLD = (
    "whoever can connect reads, without a password or encryption, this service's role and name, its version, whether "
    "it is connected, the names of its tables with their privacy budgets, and how many jobs and messages of which kind "
    "there were"
)


@dataclass(frozen=True)
class Health:
    """Whether a service can do its work.

    Attributes
    ----------
    facts : dict
        What `/health` tells besides.
    problems : sequence of str
        Why it cannot work, in words; empty: it can.

    """

    facts: dict[str, Any]
    problems: Sequence[str] = field(default=())

    def to_json(self) -> str:
        """The body of the answer."""
        standing = {"status": "unavailable" if self.problems else "ok", **self.facts}
        return json.dumps(standing | ({"reason": "; ".join(self.problems)} if self.problems else {}))


class Monitor:
    """Serves `/health` and `/metrics` in threads of its own.

    Parameters
    ----------
    address : Address
        Where to listen. Port 0: any that is free.
    health : callable
        Returns how the service is.
    families : callable
        Returns its metrics.

    Attributes
    ----------
    port : int
        Where it listens, once started.

    """

    def __init__(
        self, address: Address, health: Callable[[], Health], families: Callable[[], Sequence[MetricFamily]]
    ) -> None:
        self._address = address
        self._health = health
        self._families = families
        self._server: _MonitorServer | None = None
        self.port = 0

    def start(self) -> None:
        """Listen.

        Raises
        ------
        ConfigError
            If the address cannot be listened on.

        """
        host = self._address.host.strip("[]")
        try:
            family, _, _, _, where = socket.getaddrinfo(host, self._address.port, type=socket.SOCK_STREAM)[0]
            server = self._server = _MonitorServer(where, family, self._respond)
        except OSError as error:
            raise ConfigError(
                f"health and metrics cannot be served on {self._address}: {error.strerror or error}; choose another "
                "address or port with the setting monitor.listen"
            ) from error
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.1,), name="woodlot-monitor", daemon=True).start()
        logger.info("health and metrics on http://%s:%d/health and /metrics", self._address.host, self.port)
        if not is_loopback(host):
            logger.warning("monitor.listen = %r is reachable from other machines: %s", str(self._address), _TOLD)

    def close(self) -> None:
        """Stop listening. Closing twice does nothing."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def _respond(self, path: str, host: str) -> tuple[int, str, str]:
        """Status, content type and body of an answer."""
        if is_loopback(self._address.host.strip("[]")) and not self._is_ours(host):
            # a page of another site could give its own name this address, and read what a browser here is answered
            return 421, _TEXT, "This is not served under that name; use the address of monitor.listen.\n"
        if path == HEALTH:
            health = self._health()
            return 503 if health.problems else 200, "application/json", health.to_json() + "\n"
        if path == METRICS:
            return 200, CONTENT_TYPE, exposition(self._families())
        return 404, _TEXT, "There are /health and /metrics here.\n"

    def _is_ours(self, host: str) -> bool:
        name, _, port = host.rpartition(":")
        return port == str(self.port) and is_loopback(name.strip("[]"))


_TEXT = "text/plain; charset=utf-8"


def is_loopback(host: str) -> bool:
    """Whether a host can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _MonitorServer(ThreadingTCPServer):
    """A thread for each request, of which there are few."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(
        self, address: Any, family: socket.AddressFamily, respond: Callable[[str, str], tuple[int, str, str]]
    ) -> None:
        self.address_family = family
        self.respond = respond
        self._turns = threading.BoundedSemaphore(MAX_READERS)
        super().__init__(address, _MonitorRequest)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._turns.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._turns.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a request for health or metrics was not answered", exc_info=True)


class _MonitorRequest(BaseHTTPRequestHandler):
    server: _MonitorServer
    timeout = REQUEST_SECONDS
    server_version = "woodlot"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.partition("?")[0]
        try:
            status, kind, text = self.server.respond(path, self.headers.get("Host", ""))
        except Exception:  # whoever watches must hear that something is wrong
            logger.exception("health or metrics cannot be told")
            status, kind, text = 500, _TEXT, "This cannot be told now; the log of the service says why.\n"
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("health and metrics: " + format, *args)
