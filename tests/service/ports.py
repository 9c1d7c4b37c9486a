"""Ports of this machine for coordinators, which keep theirs while they are away."""

from __future__ import annotations

import contextlib
import os
import random
import socket

N_WORKERS = 64
"""More processes never share the tests of one run."""


def free_port() -> int:
    """A port that nobody has, and that the system gives to no connection while the coordinator is away from it.

    Tests that run at the same time draw from ports of their own.
    """
    draw, worker = random.SystemRandom(), int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:])
    while True:
        port = draw.randrange(15_000 + worker, 32_000, N_WORKERS)  # connections get theirs from 32768 on
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
