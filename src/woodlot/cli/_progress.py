"""What a long command is doing: a bar on a terminal, plain lines otherwise; always on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def show_steps(n_steps: int) -> Iterator[Callable[[str], None]]:
    """Yield what a command calls at the beginning of each of its steps."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        done = 0

        def line(what: str) -> None:
            nonlocal done
            done += 1
            console.print(f"[{done}/{n_steps}] {what}", markup=False, soft_wrap=True)

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        BarColumn(bar_width=16),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=n_steps)
        begun = 0

        def advance(what: str) -> None:
            nonlocal begun
            bar.update(task, completed=begun, description=what)
            begun += 1

        yield advance
