"""What the long-running commands share: logging, and a clean end on SIGTERM or Ctrl-C."""

from __future__ import annotations

import ctypes
import gc
import json
import logging
import signal
import sys
import threading
import traceback
import warnings
from contextlib import AbstractContextManager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from woodlot.cli._text import spelled_out
from woodlot.runtime.faults import Fault, wordless

if TYPE_CHECKING:
    from woodlot.jobs.member_job import MemberRole


_PR_SET_DUMPABLE = 4

TIDY_SECONDS = 60.0
"""How often objects that only refer to each other are removed.

By itself Python looks among old ones when these have grown by a quarter: that is tens of megabytes in a process that
has loaded compiled kernels.
"""


class LogLevel(StrEnum):
    """Minimum level of lines in the log."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


LogLevelOption = Annotated[LogLevel, typer.Option(case_sensitive=False, help="Minimum level of lines in the log.")]


MAX_MESSAGE = 2_000
"""Characters of a message that are logged: names and reasons in it are others' to choose."""


LOG_FIELDS = ("job", "kind", "state", "user", "party")
"""What a line for machines has as fields of its own, where it is about one."""


class _TextLines(logging.Formatter):
    """A line for each record: what others have written into its message begins no line of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = _one_line(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return _traceback(ei[1])


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "from": record.name,
            "message": _cut(record.getMessage()),
        }
        line |= {field: _cut(str(getattr(record, field))) for field in LOG_FIELDS if hasattr(record, field)}
        if record.exc_info:
            line["error"] = _traceback(record.exc_info[1])
        return json.dumps(line)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[:MAX_MESSAGE]} ... (cut)"


def _one_line(text: str) -> str:
    return _cut(spelled_out(text[: MAX_MESSAGE + 1]))


def _traceback(error: BaseException | None) -> str:
    """What Python would write about an error and those before it, with no words that may quote a table."""
    return "" if error is None else _told(wordless(error))


def _told(fault: Fault) -> str:
    trace = "".join(traceback.format_tb(fault.__traceback__))
    own = f"Traceback (most recent call last):\n{trace}{_one_line(str(fault))}"
    before = fault.__cause__
    return f"{_told(before)}\n\nThis led to another:\n\n{own}" if isinstance(before, Fault) else own


def log_formatter(form: str) -> logging.Formatter:
    """How records are written: "text" for people, or "json" for machines."""
    return _JsonLines() if form == "json" else _TextLines()


def start_logging(form: str, level: LogLevel) -> None:
    """Log to standard error: lines for people or JSON for machines. A long-running command begins with this."""
    leave_no_dump()
    open_more_files()
    warnings.showwarning = _log_warning
    sys.excepthook = lambda _, error, trace: _log_fault("the service has failed", error)
    threading.excepthook = lambda fault: _log_fault("a thread has failed", fault.exc_value)
    sys.unraisablehook = lambda fault: _log_fault("an object could not be removed", fault.exc_value)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(log_formatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _log_warning(message: Warning | str, category: type[Warning], *_: Any, **_named: Any) -> None:
    """A warning is a line of the log, and one that quotes a value of a table is told without it."""
    logging.getLogger("woodlot").warning("%s: %s", category.__name__, getattr(message, "told", message))


def _log_fault(what: str, error: BaseException | None) -> None:
    """An error that nobody has caught: by itself Python would print its words."""
    logging.getLogger("woodlot").critical(what, exc_info=error)


def leave_no_dump() -> None:
    """Whatever ends this process, no image of its memory is written: keys and rows of tables are in it."""
    try:
        import resource
    except ImportError:  # only where there are such limits
        return
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":  # where a program takes the dump in place of a file, the limit does not count
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def open_more_files() -> None:
    """Let this process open as many files as it may: of the usual thousand, strangers' connections could take all."""
    try:
        import resource
    except ImportError:
        return
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems have a lower limit than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def serve(service: AbstractContextManager[Any]) -> None:
    """Keep a started service alive until it is told to end; the end is clean."""
    told = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: told.set())
    gc.freeze()  # what is there from the start is not looked through again
    with service:
        while not told.wait(TIDY_SECONDS):
            gc.collect()
        logging.getLogger("woodlot").info("ending")


def serve_member(config: Path, role: MemberRole, log_level: LogLevel) -> None:
    """Run a helper or a key service."""
    from woodlot.service.config import MemberConfig
    from woodlot.service.member import MemberService

    settings = MemberConfig.load(config)
    start_logging(settings.log_format, log_level)
    service = MemberService(settings, role)
    service.start()
    serve(service)
