"""What an experiment declares, and what it reports."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from woodlot_lab.data import DataSource

Params: TypeAlias = Mapping[str, Any]
Row: TypeAlias = dict[str, Any]
QUIET = 2.0
"""The highest load average at which times say anything; more, and others used the machine, too."""
TIMED_REPEATS = 10
"""The fewest repeats of a cell by which times are judged."""
LOAD = "load"
"""The column with the machine's load average when times had been measured: others may have used it too."""
Status: TypeAlias = Literal["confirmed", "partly", "not confirmed", "not judged"]


@dataclass(frozen=True)
class Setting:
    """What a run is about: the data sets at hand, and whether it is a short one."""

    sets: tuple[str, ...]
    quick: bool = False

    def pick(self, full: Any, quick: Any) -> Any:
        """One of the two, by the kind of run."""
        return quick if self.quick else full


@dataclass(frozen=True)
class Cell:
    """One setting of an experiment, to be measured so many times; each time is finished, and kept, by itself.

    Attributes
    ----------
    params : mapping
        What varies, as plain values; ``set`` names the data set where there is one.
    repeats : int
        How often; repeat number r gets r as its seed, so that cells of one experiment share splits.

    """

    params: Params
    repeats: int = 1

    def key(self, experiment: Experiment, repeat: int) -> str:
        """Name of one finished measurement; another version of the experiment does not find it."""
        what = [experiment.name, experiment.version, dict(self.params), repeat]
        return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Timing:
    """How times were measured, by the worst cell: its number of repeats, and the mean load average beside it.

    Examples
    --------
    >>> Timing(repeats=10, load=0.9).sound
    True
    >>> Timing(repeats=3, load=9.7).why
    'measured 3 times at a load average of 9.7, where 10 times below 2 are asked for'

    """

    repeats: int
    load: float

    @property
    def sound(self) -> bool:
        """Whether the times can be judged."""
        return self.repeats >= TIMED_REPEATS and self.load < QUIET

    @property
    def why(self) -> str:
        """The numbers, in words."""
        times = "once" if self.repeats == 1 else f"{self.repeats} times"
        load = "an unknown load" if math.isnan(self.load) else f"a load average of {self.load:.1f}"
        return f"measured {times} at {load}, where {TIMED_REPEATS} times below {QUIET:g} are asked for"


def timing(cells: Iterable[Sequence[Row]]) -> Timing | None:
    """How times were measured, given the rows of each cell; None where nothing was timed."""
    timed = [[row for row in rows if any(is_time(name) for name in row)] for rows in cells]
    timed = [rows for rows in timed if rows]
    if not timed:
        return None
    loads = [sum(row.get(LOAD, math.nan) for row in rows) / len(rows) for rows in timed]
    worst = math.nan if any(map(math.isnan, loads)) else max(loads)
    return Timing(min(len({row["repeat"] for row in rows}) for rows in timed), worst)


def timed_amid_others(row: Row) -> bool:
    """Whether a row has times that were measured on a busy machine."""
    return any(map(is_time, row)) and not row.get(LOAD, math.nan) < QUIET


def is_time(column: str) -> bool:
    """Whether a column of measurements has times."""
    return column in ("cpu", "anew") or column.endswith(("seconds", "_wall"))


@dataclass(frozen=True)
class Verdict:
    """What a run says about one table or figure of a paper.

    Attributes
    ----------
    item : str
        Key of the table or figure in `woodlot_lab.papers`.
    claim : str
        What the paper says.
    status : str
        Whether that was found.
    reason : str
        The numbers behind it, and why where it was not.
    timed : bool
        Whether it is about time: a busy machine, or too few repeats, cannot say.

    """

    item: str
    claim: str
    status: Status
    reason: str
    timed: bool = False


def judge(item: str, claim: str, holds: bool | tuple[bool, bool], reason: str, *, timed: bool = False) -> Verdict:
    """A verdict by what holds: all of it, or (all, some)."""
    whole, some = holds if isinstance(holds, tuple) else (holds, holds)
    return Verdict(item, claim, "confirmed" if whole else "partly" if some else "not confirmed", reason, timed)


@dataclass(frozen=True)
class Table:
    """A table of a page."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Series:
    """A line of a panel, or points beside the others' for each name on the axis.

    Attributes
    ----------
    label : str
        For the legend.
    x, y : sequences
        Points; ``x`` may be names.
    error : sequence of float, optional
        Standard deviation of each point, drawn as an error bar.
    style : str
        Line style of matplotlib.
    marker : str
        Marker of matplotlib.
    colour : int, optional
        Number of the colour; series of one colour belong together.

    """

    label: str
    x: Sequence[Any]
    y: Sequence[float]
    error: Sequence[float] | None = None
    style: str = "-"
    marker: str = "o"
    colour: int | None = None


@dataclass(frozen=True)
class Panel:
    """One pair of axes of a figure."""

    title: str
    x: str
    y: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False
    from_zero: bool = False


@dataclass(frozen=True)
class Figure:
    """A picture of a page: panels side by side."""

    name: str
    caption: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Report:
    """What a page shows: text, tables and figures in order, and the verdicts."""

    blocks: Sequence[str | Table | Figure]
    verdicts: Sequence[Verdict] = ()


@dataclass(frozen=True)
class Experiment:
    """A table or figure to be reproduced.

    Attributes
    ----------
    name : str
        For the command line and the files.
    title : str
        Heading of the page.
    what : str
        What is done, in which setting, as Markdown.
    sets : tuple of str
        Data sets of the papers; those that are not at hand are left out, and the page says so.
    stand_ins : tuple of str
        Data sets that need no files, for runs without data.
    cells : callable
        Setting -> cells.
    measure : callable
        (params, seed, data) -> rows: numbers of one repeat of a cell.
    report : callable
        Rows of all cells -> what the page shows.
    minutes : float
        What a full run takes on two cores, about: for whoever waits.
    parallel : bool
        Whether repeats may run beside each other; not where time is measured.
    version : int
        Raised when the same cell would now give other numbers.

    """

    name: str
    title: str
    what: str
    sets: tuple[str, ...]
    stand_ins: tuple[str, ...]
    cells: Callable[[Setting], Sequence[Cell]]
    measure: Callable[[Params, int, DataSource], Sequence[Row]]
    report: Callable[[Sequence[Row], Setting], Report]
    minutes: float
    parallel: bool = True
    version: int = 1
    notes: Mapping[str, str] = field(default_factory=dict)
    """What is to be known of a data set here, shown on the page where it is used."""
