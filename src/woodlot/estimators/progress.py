"""Progress while a forest grows: a bar on a terminal, plain lines otherwise, nothing by default."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from woodlot.protocols.core.message import Progress


@contextmanager
def progress_bar(verbose: int, what: str) -> Iterator[Callable[[Progress], None] | None]:
    """What a run calls with its progress; None when nobody wants to see it."""
    if not verbose:
        yield None
        return
    if not sys.stderr.isatty():
        last = [-1]

        def line(progress: Progress) -> None:
            tenth = 10 * progress.done // max(progress.total, 1)
            if tenth != last[0]:
                last[0] = tenth
                sys.stderr.write(f"{what}: {progress.done}/{progress.total} ({_note(progress)})\n")

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    with Bars(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bars:
        task = bars.add_task(what, total=None, note="")

        def show(progress: Progress) -> None:
            bars.update(task, completed=progress.done, total=progress.total, note=_note(progress))

        yield show


def _note(progress: Progress) -> str:
    return progress.note if progress.done < progress.total else "done"
