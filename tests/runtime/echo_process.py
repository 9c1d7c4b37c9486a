"""A party or a coordinator as a process of its own: ``python echo_process.py ROLE ADDRESS FOLDER``.

It prints a line when it is ready and runs until it is killed. A party answers ``pid`` with its process number,
``sleep SECONDS`` with the same after a while, and anything else with the same. ``stay PIPE`` is answered only where
there is no such pipe; else "at work" is written to it, and nothing more is done.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from woodlot.runtime.drivers.grpc_hub import Hub
from woodlot.runtime.drivers.grpc_line import PartyLine
from woodlot.runtime.peers import Credentials, Peer


def answer(job: str, number: int, request: bytes) -> bytes:
    if request == b"pid":
        return str(os.getpid()).encode()
    if request.startswith(b"sleep "):
        time.sleep(float(request.split()[1]))
    if request.startswith(b"stay ") and (pipe := Path(request.split()[1].decode())).exists():
        pipe.write_bytes(b"at work")
        threading.Event().wait()
    return request


def main(role: str, address: str, folder: str) -> None:
    key, certificate, authority = (Path(folder, name).read_bytes() for name in ("key", "certificate", "authority"))
    credentials = Credentials(key=key, certificate=certificate, authority=authority)
    if role == "party":
        line = PartyLine(address, credentials, answer)
        line.start()
        print("ready", flush=True)
    else:
        hub = Hub(
            address,
            credentials,
            admit=lambda pem: Peer(name="a", role="party", serial=1, certificate=pem),
            serve_user=lambda peer, data: data,
        )
        print(hub.start(), flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
