"""Kill -9 at an exact operation on a file: between a rename and the next, in the middle of erasing a folder.

Python tells an audit hook of every operation before it is done. In a service that is started with `SETTING` the hook
counts those on its state folder, and the process kills itself when its turn has come.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

SETTING = "WOODLOT_TEST_DIE_AT"
"""``NUMBER PATH``: die before that operation below that path, from 1; 0 counts only. Counts go to ``PATH.count``."""

OPERATIONS = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")


def install() -> None:
    """Count, and die when the time has come."""
    number, _, below = os.environ[SETTING].partition(" ")
    turn, seen = int(number), 0
    counter = os.open(f"{below}.count", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event in OPERATIONS or (event == "open" and _writes(arguments)):
            path = arguments[0]
            if isinstance(path, int):
                return
            if event in ("os.remove", "os.rmdir") and arguments[1] not in (-1, None):
                path = f"{os.readlink(f'/proc/self/fd/{arguments[1]}')}/{os.fsdecode(path)}"
            if not os.fsdecode(path).startswith(f"{below}/"):
                return
            seen += 1
            os.write(counter, f"{event} {os.fsdecode(path)}\n".encode())
            if seen == turn:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _writes(arguments: tuple[Any, ...]) -> bool:
    _, _, flags = arguments
    return bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


if __name__ == "service":
    install()
