"""Loaded in a service before it starts: it notes the bytes of every message that the service encodes.

A journal keeps the digests of all messages of a job, and no bytes after the job's end: the notes are found by digest.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

from woodlot.runtime import codec

SETTING = "WOODLOT_TEST_WIRE"
"""The folder of the notes; a file's name is the SHA-256 of its bytes."""


def install() -> None:
    """Note what this process encodes from now on."""
    folder = Path(os.environ[SETTING])

    def note(data: bytes) -> None:
        name = hashlib.sha256(data).hexdigest()
        # several threads may encode the same message at the same time
        part = folder / f"{name}.{os.getpid()}.{threading.get_ident()}"
        part.write_bytes(data)
        part.replace(folder / name)

    codec.listeners.append(note)


if __name__ == "service":
    install()
