"""Runs experiments: what is to be measured, in which order, beside what; keeps every finished cell."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context, parent_process
from pathlib import Path

from woodlot.exceptions import DataError
from woodlot_lab.data import DataSource, MissingDataError
from woodlot_lab.experiment import Cell, Experiment, Params, Report, Row, Setting
from woodlot_lab.store import Store

LOAD = "load"
"""The column with the machine's load average when times had been measured: others may have used it too."""
Tell = Callable[[str, int, int, str], None]
"""Told of progress: experiment, finished and all measurements, what was finished last."""


@dataclass(frozen=True)
class Outcome:
    """What a run of one experiment gave."""

    experiment: Experiment
    setting: Setting
    source: DataSource
    rows: Sequence[Row]
    report: Report
    missing: dict[str, str] = field(default_factory=dict)
    """Data sets that are not at hand, and why."""
    shortened: bool = False
    """Whether fewer repeats were measured than declared."""


class Runner:
    """Measures experiments one after the other.

    Parameters
    ----------
    source : DataSource
        Where data sets come from.
    folder : Path
        Where finished cells are kept.
    quick : bool
        Short forms of all experiments.
    jobs : int
        Processes for repeats that may run beside each other.
    most_repeats : int, optional
        At most so many repeats of a cell.
    tell : callable
        Is told of progress.

    """

    def __init__(
        self,
        source: DataSource,
        folder: Path,
        *,
        quick: bool = False,
        jobs: int | None = None,
        most_repeats: int | None = None,
        tell: Tell = lambda *_: None,
    ) -> None:
        self.source = source
        self.folder = folder
        self.quick = quick
        self.jobs = jobs or os.cpu_count() or 1
        self.most_repeats = most_repeats
        self.tell = tell
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Runner:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=kind is not None)

    def run(self, experiment: Experiment) -> Outcome:
        """Measure what is not measured yet, and report.

        Raises
        ------
        DataError
            If none of the experiment's data sets is at hand.

        """
        names = experiment.stand_ins if self.source.stand_ins else experiment.sets
        missing = self._missing(names)
        setting = Setting(tuple(name for name in names if name not in missing), self.quick)
        if names and not setting.sets:
            raise DataError(f"{experiment.name}: no data set is at hand; {'; '.join(missing.values())}")
        planned = experiment.cells(setting)
        cells = [Cell(cell.params, min(cell.repeats, self.most_repeats or cell.repeats)) for cell in planned]
        rows = self._measure(experiment, cells)
        return Outcome(
            experiment, setting, self.source, rows, experiment.report(rows, setting), missing, cells != list(planned)
        )

    def _missing(self, names: Sequence[str]) -> dict[str, str]:
        missing = {}
        for name in names:
            try:
                self.source.check(name)
            except MissingDataError as error:
                missing[name] = str(error)
        return missing

    def _measure(self, experiment: Experiment, cells: Sequence[Cell]) -> list[Row]:
        todo = {cell.key(experiment, repeat): (cell.params, repeat) for cell in cells for repeat in range(cell.repeats)}
        store = Store(self.folder, experiment.name, experiment.version)
        waiting = {key: task for key, task in todo.items() if store.rows(key) is None}
        done = len(todo) - len(waiting)
        self.tell(experiment.name, done, len(todo), "")
        for key, rows in self._results(experiment, waiting):
            params, repeat = waiting[key]
            load = {} if experiment.parallel else {LOAD: os.getloadavg()[0]}
            store.keep(key, [{**params, "repeat": repeat, **row, **load} for row in rows])
            done += 1
            self.tell(experiment.name, done, len(todo), describe(params, repeat))
        store.close()
        return [row for key in todo for row in store.rows(key) or ()]

    def _results(
        self, experiment: Experiment, waiting: dict[str, tuple[Params, int]]
    ) -> Iterator[tuple[str, list[Row]]]:
        if not experiment.parallel or self.jobs == 1 or len(waiting) < 2:
            for key, (params, repeat) in waiting.items():
                yield key, measure(experiment.name, params, repeat, self.source)
            return
        with self._processes() as pool:
            futures: dict[Future[list[Row]], str] = {
                pool.submit(measure, experiment.name, dict(params), repeat, self.source): key
                for key, (params, repeat) in waiting.items()
            }
            for future in as_completed(futures):
                yield futures[future], future.result()

    @contextmanager
    def _processes(self) -> Iterator[ProcessPoolExecutor]:
        """The pool, made on first use: new processes import all anew, which takes seconds."""
        if self._pool is None:
            # a forked process would inherit the threads' locks of numba and gRPC
            self._pool = ProcessPoolExecutor(self.jobs, get_context("spawn"), initializer=_end_with_parent)
        try:
            yield self._pool
        except BaseException:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
            raise


def _end_with_parent() -> None:
    """Have this process end when the one that has started it does, even where that was killed."""
    parent = parent_process()

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def measure(name: str, params: Params, repeat: int, source: DataSource) -> list[Row]:
    """One repeat of one cell, in whatever process."""
    from woodlot_lab.catalogue import find

    return list(find(name).measure(params, repeat, source))


def describe(params: Params, repeat: int) -> str:
    """A cell in a few words."""
    return ", ".join([*(f"{name} {value}" for name, value in params.items()), f"repeat {repeat + 1}"])
