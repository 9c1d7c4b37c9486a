"""Loaded in a service before it starts: it notes what the service writes, and tells the environment when it is asked.

It also gives the service the folder for temporary files that its environment names, for the process that it was forked
from has looked for one before.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from typing import Any

SETTING = "WOODLOT_TEST_WATCH"
"""The folder that gets ``written`` (a path or a command per line), and after SIGUSR1 ``environment``."""


def install() -> None:
    """Watch this process from now on."""
    folder = os.environ[SETTING]
    tempfile.tempdir = None
    written = os.open(f"{folder}/written", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            if not isinstance(arguments[0], int):
                os.write(written, b"open " + os.path.abspath(os.fsencode(arguments[0])) + b"\n")
        elif event == "sqlite3.connect":
            file, _, _ = os.fsdecode(arguments[0]).removeprefix("file:").partition("?mode=")
            os.write(written, b"open " + os.path.abspath(os.fsencode(file)) + b"\n")
        elif event in ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system"):
            os.write(written, f"run {arguments}\n".encode())

    sys.addaudithook(note)

    def tell(number: int, frame: Any) -> None:
        part = f"{folder}/environment.part"
        with open(part, "wb") as file:
            file.writelines(name + b"=" + value + b"\n" for name, value in os.environb.items())
        os.rename(part, f"{folder}/environment")

    signal.signal(signal.SIGUSR1, tell)


if __name__ == "service":
    install()
