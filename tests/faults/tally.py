"""Counts faults that were injected, and what became of the runs they hit: one line of JSON for each kind.

The lines go to ``build/reliability/faults.jsonl``. Run as a program, this makes docs/results/faults.md of them.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ACCOUNT = ROOT / "build" / "reliability" / "faults.jsonl"
TABLE = ROOT / "docs" / "results" / "faults.md"


class Tally:
    """Faults by what they were, what they prove and in which protocol, and how many of them lost something."""

    def __init__(self, suite: str = "faults") -> None:
        self._suite = suite
        self._count: Counter[tuple[str, str, str]] = Counter()
        self._lost: Counter[tuple[str, str, str]] = Counter()

    @contextmanager
    def checking(self, proved: str, protocol: str) -> Iterator[Counter[str]]:
        """Count the faults that are noted in the counter meanwhile; with an error, all of them have lost something."""
        noted: Counter[str] = Counter()
        harm = True
        try:
            yield noted
            harm = False
        finally:
            for what, number in (noted or Counter({"runs that failed before any fault": harm})).items():
                self._count[what, proved, protocol] += number
                self._lost[what, proved, protocol] += number * harm

    def write(self) -> None:
        """Append one line for each kind of fault."""
        ACCOUNT.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            {
                "suite": self._suite,
                "what": what,
                "protocol": protocol,
                "count": count,
                "proved": proved,
                "lost": self._lost[what, proved, protocol],
            }
            for (what, proved, protocol), count in self._count.items()
            if count
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        # Workers share the file: one write of O_APPEND is never torn by another.
        handle = os.open(ACCOUNT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)


def table() -> str:
    """The account as Markdown: one row for each kind of fault, whatever the protocol."""
    count: Counter[tuple[str, str]] = Counter()
    lost: Counter[tuple[str, str]] = Counter()
    protocols: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    for line in map(json.loads, ACCOUNT.read_text().splitlines()):
        key = line["what"], line["proved"]
        count[key] += line["count"]
        lost[key] += line["lost"]
        protocols[key].add(line["protocol"])
    kinds = sorted(set().union(*protocols.values()))
    rows = [
        f"| {what} | {number:,} | {len(protocols[what, proved])} | {proved} | {lost[what, proved]} |"
        for (what, proved), number in sorted(count.items())
    ]
    return "\n".join(
        [
            "# Faults",
            "",
            "Made by `make test-faults`: real processes over TLS, each fault at a chosen step of a run.",
            f"{count.total():,} faults were injected; {lost.total():,} of them lost something.",
            "",
            "| fault | injected | in so many protocols | what is checked after each | lost |",
            "|---|---|---|---|---|",
            *rows,
            "",
            f"The protocols: {'; '.join(kinds)}.",
            "",
        ]
    )


if __name__ == "__main__":
    TABLE.write_text(table())
