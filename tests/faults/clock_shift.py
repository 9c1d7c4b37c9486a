"""A service whose clock can jump while it runs: what Woodlot asks for the time is told another one.

The seconds by which it is off are in a file, which is read again at every question; what was told for the first time
since it was something else is added to another, ``FILE.told``. TLS keeps the machine's clock.
"""

from __future__ import annotations

import datetime as calendar
import os
import sys
import time
from pathlib import Path

SETTING = "WOODLOT_TEST_CLOCK"


def install() -> None:
    """Shift ``time.time``, ``time.time_ns`` and Woodlot's ``datetime.now``."""
    file = Path(os.environ[SETTING])
    seconds, nanoseconds, usual = time.time, time.time_ns, calendar.datetime

    told = 0.0

    def shift() -> float:
        nonlocal told
        off = float(file.read_text() or 0)
        if off != told:
            told = off
            with open(f"{file}.told", "a") as log:
                log.write(f"{off}\n")
        return off

    class Shifted(usual):  # type: ignore[valid-type, misc]
        @classmethod
        def now(cls, tz: calendar.tzinfo | None = None) -> calendar.datetime:
            moment: calendar.datetime = usual.now(tz) + calendar.timedelta(seconds=shift())
            return moment

    time.time = lambda: seconds() + shift()
    time.time_ns = lambda: nanoseconds() + int(shift() * 10**9)
    for name, module in list(sys.modules.items()):
        if name.startswith("woodlot.") and getattr(module, "datetime", None) is usual:
            module.datetime = Shifted  # type: ignore[attr-defined]


if __name__ == "service":
    install()
