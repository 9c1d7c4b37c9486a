"""Progress while a forest grows: a bar on a terminal or in a notebook, plain lines otherwise, nothing by default."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from woodlot.protocols.core.message import Progress

_BESIDE = {
    "align": "aligning ids",
    "open": "opening the job",
    "agree": "agreeing on keys of sums",
    "prepare": "preparing",
    "columns": "comparing columns",
    "bins": "finding common bins",
    "deal": "dealing random numbers",
    "keys": "making keys",
    "encrypting splits": "encrypting splits",
    "out-of-bag": "scoring out of bag",
}
"""Phases before and after the work proper, by their names in protocols, in words. They have totals of their own."""


def phase_in_words(progress: Progress, what: str) -> str:
    """What a run is doing: the name of its phase, or of the work proper."""
    return _BESIDE.get(progress.phase, what)


def is_beside(progress: Progress) -> bool:
    """Whether this is a phase before or after the work proper."""
    return progress.phase in _BESIDE


@contextmanager
def progress_bar(verbose: int, what: str) -> Iterator[Callable[[Progress], None] | None]:
    """What a run calls with its progress; None where it is not shown.

    Parameters
    ----------
    verbose : int
        0 shows nothing.
    what : str
        The work proper, as in "growing trees"; phases before and after it have names of their own.
    """
    if not verbose:
        yield None
    elif (display := _notebook_display()) is not None:
        yield _notebook_bar(display, what)
    elif not sys.stderr.isatty():
        yield _lines(what)
    else:
        with _terminal_bar(what) as show:
            yield show


def _lines(what: str) -> Callable[[Progress], None]:
    last = ("", -1)

    def line(progress: Progress) -> None:
        nonlocal last
        here = (phase_in_words(progress, what), 10 * progress.done // max(progress.total, 1))
        if progress.total and here != last:
            last = here
            sys.stderr.write(f"{here[0]}: {progress.done}/{progress.total} ({_note(progress)})\n")

    return line


@contextmanager
def _terminal_bar(what: str) -> Iterator[Callable[[Progress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    with Bars(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bars:
        task = bars.add_task(what, total=None, note="")

        def show(progress: Progress) -> None:
            title = phase_in_words(progress, what)
            total = progress.total or None
            bars.update(task, description=title, completed=progress.done, total=total, note=_note(progress))

        yield show


# --- notebooks ---


def _notebook_display() -> Callable[..., Any] | None:
    """IPython's `display` where there is a notebook to show HTML in; IPython on a terminal has none."""
    ipython = sys.modules.get("IPython")
    if ipython is None or type(ipython.get_ipython()).__name__ != "ZMQInteractiveShell":
        return None
    from IPython.display import display  # type: ignore[import-not-found, unused-ignore]

    shown: Callable[..., Any] = display
    return shown


def _notebook_bar(display: Callable[..., Any], what: str) -> Callable[[Progress], None]:
    handle = display(_NotebookBar(what, None), display_id=True)

    def show(progress: Progress) -> None:
        handle.update(_NotebookBar(what, progress))

    return show


class _NotebookBar:
    """A bar as a notebook shows it; no script and no extension is needed."""

    def __init__(self, what: str, progress: Progress | None) -> None:
        self._what, self._progress = what, progress

    def __repr__(self) -> str:
        if self._progress is None:
            return self._what
        progress = self._progress
        return f"{phase_in_words(progress, self._what)}: {progress.done}/{progress.total} ({_note(progress)})"

    def _repr_html_(self) -> str:
        progress = self._progress or Progress(0, 0, "")
        title = html.escape(phase_in_words(progress, self._what))
        if not progress.total:
            return f'<progress aria-label="{title}"></progress> {title} {html.escape(progress.note)}'
        return (
            f'<progress aria-label="{title}" max="{progress.total}" value="{progress.done}"></progress> '
            f"{title}, {progress.done} of {progress.total} ({html.escape(_note(progress))})"
        )


def _note(progress: Progress) -> str:
    return progress.note if progress.done < progress.total or not progress.total else "done"
