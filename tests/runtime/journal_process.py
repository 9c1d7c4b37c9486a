"""What the tests of the journal run as a process of its own: python journal_process.py COMMAND PATH."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

from woodlot.exceptions import JournalError
from woodlot.runtime.journal import Entry, Journal

JOBS = ("even", "odd")


def entries(number: int) -> list[Entry]:
    data = f"request {number} ".encode() * (1 + number % 7 * 5_000)
    return [
        Entry.of("coordinator", "a", number, "Question", data),
        Entry.of("a", "coordinator", number, "Answer", data[::-1]),
    ]


def append_until_killed(path: Path) -> None:
    """Tell every number on standard output once it is recorded, and never end."""
    with Journal(path, durable=True) as journal:
        number = max(journal.job(name).last("a", "coordinator") for name in JOBS)
        while True:
            number += 1
            journal.job(JOBS[number % 2]).append(entries(number))
            print(number, flush=True)


def hold(path: Path) -> None:
    with Journal(path, durable=False):
        print("open", flush=True)
        sys.stdin.read()


def fill(path: Path) -> None:
    """Append until nothing fits any more, then make room and append what did not fit."""
    limited = resource.RLIM_INFINITY, resource.RLIM_INFINITY
    if sys.argv[3] == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000_000, resource.RLIM_INFINITY))
    with Journal(path, durable=True) as journal:
        job = journal.job("full")
        number = 0
        try:
            while True:
                job.append(entries(number + 1))
                number += 1
        except JournalError as error:
            print(error, flush=True)
        before = job.head
        for _ in range(2):
            try:
                job.append(entries(number + 1))
            except JournalError:
                continue
            print("it fits after all", flush=True)
        journal.verify()
        same = job.head == before and job.last("a", "coordinator") == number
        resource.setrlimit(resource.RLIMIT_FSIZE, limited)
        path.with_name("ballast").unlink(missing_ok=True)
        job.append(entries(number + 1))
        journal.verify()
        print("kept" if same else "changed", number, flush=True)


if __name__ == "__main__":
    {"append": append_until_killed, "hold": hold, "fill": fill}[sys.argv[1]](Path(sys.argv[2]))
