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
from woodlot_lab.experiment import (
    LOAD,
    Cell,
    Experiment,
    Params,
    Report,
    Row,
    Setting,
    Timing,
    timed_amid_others,
    timing,
)
from woodlot_lab.store import Store

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
    timing: Timing | None = None
    """How times were measured; None where none were."""
    unmeasured: tuple[str, ...] = ()
    """Cells of which not even one repeat is at hand; then there is nothing to report."""

    @property
    def repeats(self) -> int:
        """Repeats of the cell that has most."""
        return len({row["repeat"] for row in self.rows})


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
    again : bool
        Whether to measure again what was timed on a busy machine.
    measuring : bool
        Whether to measure what is not measured yet, or only report what is.
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
        again: bool = False,
        measuring: bool = True,
        tell: Tell = lambda *_: None,
    ) -> None:
        self.source = source
        self.folder = folder
        self.quick = quick
        self.jobs = jobs or os.cpu_count() or 1
        self.most_repeats = most_repeats
        self.again = again
        self.measuring = measuring
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
        store = self._measure(experiment, cells)
        # what a former run has measured beyond most_repeats is left out, so that all cells have as many
        found = [
            [row for repeat in range(cell.repeats) for row in store.rows(cell.key(experiment, repeat)) or ()]
            for cell in cells
        ]
        rows = [row for own in found for row in own]
        empty = tuple(describe(cell.params) for cell, own in zip(cells, found, strict=True) if not own)
        report = Report([]) if empty else experiment.report(rows, setting)
        short = any(
            store.rows(cell.key(experiment, repeat)) is None or repeat >= limited.repeats
            for cell, limited in zip(planned, cells, strict=True)
            for repeat in range(cell.repeats)
        )
        return Outcome(experiment, setting, self.source, rows, report, missing, short, timing(found), empty)

    def _missing(self, names: Sequence[str]) -> dict[str, str]:
        missing = {}
        for name in names:
            try:
                self.source.check(name)
            except MissingDataError as error:
                missing[name] = str(error)
        return missing

    def _measure(self, experiment: Experiment, cells: Sequence[Cell]) -> Store:
        todo = {cell.key(experiment, repeat): (cell.params, repeat) for cell in cells for repeat in range(cell.repeats)}
        store = Store(self.folder, experiment.name, experiment.version)
        if not self.measuring:
            return store
        waiting = {key: task for key, task in todo.items() if not self._stands(store.rows(key))}
        done = len(todo) - len(waiting)
        self.tell(experiment.name, done, len(todo), "")
        for key, rows in self._results(experiment, waiting):
            params, repeat = waiting[key]
            load = {} if experiment.parallel else {LOAD: os.getloadavg()[0]}
            store.keep(key, [{**params, "repeat": repeat, **row, **load} for row in rows])
            done += 1
            self.tell(experiment.name, done, len(todo), describe(params, repeat))
        store.close()
        return store

    def _stands(self, rows: list[Row] | None) -> bool:
        """Whether a measurement need not be made again."""
        return rows is not None and not (self.again and any(timed_amid_others(row) for row in rows))

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


def describe(params: Params, repeat: int | None = None) -> str:
    """A cell, or one repeat of it, in a few words."""
    words = [f"{name} {value}" for name, value in params.items()]
    return ", ".join(words if repeat is None else [*words, f"repeat {repeat + 1}"])
