"""Counts faults that were injected, and what became of the runs they hit: one line of JSON for each kind.

The lines go to ``build/reliability/faults.jsonl``, from which ``scripts/reliability.py`` makes its table.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ACCOUNT = Path(__file__).resolve().parents[2] / "build" / "reliability" / "faults.jsonl"


class Tally:
    """Faults by what they were, what they prove and in which protocol, and how many of them lost something."""

    def __init__(self) -> None:
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
            for what, number in noted.items():
                self._count[what, proved, protocol] += number
                self._lost[what, proved, protocol] += number * harm

    def write(self) -> None:
        """Append one line for each kind of fault."""
        ACCOUNT.parent.mkdir(parents=True, exist_ok=True)
        lines = [
            {
                "suite": "faults",
                "what": what,
                "protocol": protocol,
                "count": count,
                "proved": proved,
                "lost": self._lost[what, proved, protocol],
            }
            for (what, proved, protocol), count in self._count.items()
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        # Workers share the file: one write of O_APPEND is never torn by another.
        handle = os.open(ACCOUNT, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, text.encode())
        finally:
            os.close(handle)
