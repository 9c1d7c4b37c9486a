"""Leak tests of a job's setting: the attacks of ``woodlot leak-test`` on made-up tables, in a process of their own."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import Any, Literal

from woodlot.exceptions import DataError

ROWS = 500
"""Rows of the made-up tables: enough for the attacks, and soon done."""
MAX_SECONDS = 1800.0
_PROGRAM = "from woodlot.cli import app; app()"


@dataclass
class LeakRun:
    """One run, as far as it has come."""

    command: str
    state: Literal["running", "done", "failed"] = "running"
    error: str = ""
    seconds: float = 0.0
    findings: list[dict[str, Any]] = field(default_factory=list)


class LeakRuns:
    """Runs leak tests, one at a time; their results stay in the memory of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: dict[str, LeakRun] = {}
        self._thread: threading.Thread | None = None

    def of(self, command: str) -> LeakRun | None:
        """The run of a command, if there was one."""
        return self._runs.get(command)

    def start(self, command: str) -> LeakRun:
        """Begin to run ``woodlot leak-test ...``, with few rows, in the background."""
        with self._lock:
            if any(run.state == "running" for run in self._runs.values()):
                raise DataError("a leak test is running already; wait until it is done")
            run = self._runs[command] = LeakRun(command)
            self._thread = threading.Thread(target=self._run, args=(run,), daemon=True)
        self._thread.start()
        return run

    def wait(self) -> None:
        """Wait until the run that was begun last has ended."""
        if self._thread is not None:
            self._thread.join()

    def _run(self, run: LeakRun) -> None:
        words = [*shlex.split(run.command)[1:], "--rows", str(ROWS), "--json"]
        try:
            done = subprocess.run(  # noqa: S603 - our own program, with words of our own making
                [sys.executable, "-c", _PROGRAM, *words],
                capture_output=True,
                text=True,
                timeout=MAX_SECONDS,
                check=True,
            )
            told = json.loads(done.stdout)
            run.findings, run.seconds = _worst_first(told["findings"]), float(told["seconds"])
            run.state = "done"
        except subprocess.CalledProcessError as error:
            lines = error.stderr.strip().splitlines()
            run.error, run.state = lines[-1] if lines else f"it ended with {error.returncode}", "failed"
        except (OSError, subprocess.TimeoutExpired, ValueError, KeyError, TypeError) as error:
            run.error, run.state = f"the leak test could not be run: {error}", "failed"


def _worst_first(findings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    verdicts = ("recovered", "more", "no more", "not attacked")
    return sorted(findings, key=lambda one: verdicts.index(one["verdict"]))
