"""``woodlot reproduce``: the papers' tables and figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from woodlot.exceptions import ConfigError

OUT = Path("reproduced")
PLAIN_LINES = 10
"""Lines per experiment where there is no terminal to draw a bar on."""


def reproduce(
    names: Annotated[list[str] | None, typer.Argument(help="Experiments, or 'all'; see --list.")] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder of Parquet files. Without it, data sets are fetched from OpenML by name."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Short forms: minutes instead of hours.")] = False,
    out: Annotated[Path, typer.Option(help="Where pages, pictures and measurements go.")] = OUT,
    stand_ins: Annotated[
        bool, typer.Option("--stand-ins", help="Use generated and scikit-learn's data, which need no files.")
    ] = False,
    repeats: Annotated[
        int | None, typer.Option(min=1, help="At most so many repeats; a later run can add the others.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes for what may run side by side; default: cores.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure again what was timed on a busy machine.")] = False,
    pages: Annotated[
        bool, typer.Option("--pages", help="Write the pages of what is measured in the folder; measure nothing.")
    ] = False,
    show_list: Annotated[bool, typer.Option("--list", help="List the experiments and exit.")] = False,
) -> None:
    """Reproduce tables and figures of the papers on real data.

    Every experiment gives a page with a table (ours beside the paper's), figures, and all measurements. A run that is
    stopped goes on where it was when it is started again with the same folder.
    """
    from woodlot_lab.catalogue import choose

    if show_list:
        _list()
        return
    if not names:
        raise ConfigError("name an experiment, or 'all'; `woodlot reproduce --list` shows them")
    if data is not None and (stand_ins or not data.is_dir()):
        problem = "--data and --stand-ins exclude each other" if stand_ins else f"{data} is not a folder"
        raise ConfigError(f"{problem}; --data takes a folder of Parquet files")
    chosen = choose(names)
    from woodlot_lab.data import DataSource
    from woodlot_lab.page import write_page
    from woodlot_lab.runner import Runner
    from woodlot_lab.summary import write_summary

    options = [
        *(["--data DIR"] if data else []),
        *(["--stand-ins"] if stand_ins else []),
        *(["--quick"] if quick else []),
    ]
    if not (pages or quick or stand_ins):
        expected = _lasts(sum(experiment.minutes for experiment in chosen))
        typer.echo(f"a full run takes {expected} on two cores, less what {out} has already", err=True)
    with (
        _progress() as tell,
        Runner(
            DataSource(data, stand_ins),
            out,
            quick=quick,
            jobs=jobs,
            most_repeats=repeats,
            again=again,
            measuring=not pages,
            tell=tell,
        ) as runner,
    ):
        for experiment in chosen:
            outcome = runner.run(experiment)
            fewer = [f"--repeats {outcome.repeats}"] if outcome.shortened and outcome.repeats else []
            page = write_page(outcome, out, " ".join(["woodlot reproduce", experiment.name, *options, *fewer]))
            typer.echo(f"{experiment.name}: {page}")
            for name, why in outcome.missing.items():
                typer.echo(f"  left out {name}: {why}", err=True)
    typer.echo(f"summary: {write_summary(out)}")


def _list() -> None:
    from woodlot_lab.catalogue import MODULES, find
    from woodlot_lab.papers import ITEMS

    for name in MODULES:
        shows = [item.title for item in ITEMS.values() if item.experiment == name]
        experiment = find(name)
        typer.echo(f"{name:24}  {experiment.title}: {_lasts(experiment.minutes)}")
        for title in shows or ["beyond the papers"]:
            typer.echo(f"{'':24}    {title}")


def _lasts(minutes: float) -> str:
    """How long something takes on two cores."""
    return f"about {minutes:.0f} min" if minutes < 100 else f"about {minutes / 60:.0f} h"


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int, str], None]]:
    """What is told of progress: a bar on a terminal, a few plain lines otherwise; on standard error."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:

        def line(name: str, done: int, total: int, what: str) -> None:
            step = max(1, total // PLAIN_LINES)
            if done == total or done % step == 0:
                console.print(f"{name}: {done}/{total} {what}", markup=False, soft_wrap=True)

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.fields[name]}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=console) as bar:
        tasks = {}

        def update(name: str, done: int, total: int, what: str) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task("", total=total, name=name)
            bar.update(tasks[name], completed=done, description=what)

        yield update
