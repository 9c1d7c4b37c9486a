"""Services that stand still at exact places of a job and say so, instead of being watched from outside.

A place is the number of replies of the job that a service has journalled. A test that watched the journal would have
to look at it at the right moment, which it misses on a busy machine. Here the service itself waits, in the middle of
the call that has written its journal, until it is killed or released.
"""

from __future__ import annotations

import json
import os
import select
import threading
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from woodlot.runtime.journal import JobJournal

WANTED, NEWS, RELEASE = "halt.json", "halt.news", "halt.release"
ENDED = "ended"
HANGS = 300.0
"""Seconds after which what is waited for will never come. No test is about this time."""


class Halt:
    """The places of a job at which a service stands still.

    Parameters
    ----------
    folder : Path
        The service's folder.
    job : str
        The job, which may not exist yet.
    places : collection of int
        Numbers of replies; 0 is before the first.

    """

    def __init__(self, folder: Path, job: str, places: Collection[int]) -> None:
        self._folder = folder
        self._job = job
        for name in (NEWS, RELEASE):
            os.mkfifo(folder / name)
        # Open for reading and writing: neither side then waits for the other, and what is written stays until read.
        self._news, self._release = (os.open(folder / name, os.O_RDWR) for name in (NEWS, RELEASE))
        self.want(places)

    def want(self, places: Collection[int]) -> None:
        """Stand still at these places only, from now on."""
        draft = self._folder / f"{WANTED}.draft"
        draft.write_text(json.dumps([self._job, sorted(places)]), encoding="utf-8")
        draft.replace(self._folder / WANTED)

    def wait(self) -> int | None:
        """Wait until the service stands still; returns at which place, or None if `ended` was called meanwhile."""
        words = b""
        while not words.endswith(b"\n"):
            assert select.select([self._news], [], [], HANGS)[0], f"no service stood still in {self._folder}"
            words += os.read(self._news, 1)
        return None if words.decode().strip() == ENDED else int(words)

    def ended(self, *_: Any) -> None:
        """Say that the job has ended, so that nobody waits for a place that never comes."""
        os.write(self._news, f"{ENDED}\n".encode())

    def release(self) -> None:
        """Let the service go on."""
        os.write(self._release, b".")

    def close(self) -> None:
        for name in (WANTED, NEWS, RELEASE):
            (self._folder / name).unlink()
        os.close(self._news)
        os.close(self._release)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def install(folder: Path) -> None:
    """In a service: stand still where a `Halt` of its folder says so."""
    append, one_at_a_time = JobJournal.append, threading.Lock()

    def stand_still(journal: JobJournal, before: bool) -> None:
        try:
            job, places = json.loads((folder / WANTED).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        if job != journal.name:
            return
        replies = journal.head[0] // 2
        if replies not in places or before != (replies == 0):
            return
        with (folder / NEWS).open("wb", buffering=0) as news, (folder / RELEASE).open("rb", buffering=0) as release:
            news.write(f"{replies}\n".encode())
            release.read(1)

    def watched(self: JobJournal, *arguments: Any, **options: Any) -> None:
        with one_at_a_time:  # while it stands still, nothing else is journalled
            stand_still(self, before=True)
            append(self, *arguments, **options)
            stand_still(self, before=False)

    JobJournal.append = watched  # type: ignore[method-assign]
