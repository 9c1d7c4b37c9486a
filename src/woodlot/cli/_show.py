"""How jobs and models look on a terminal: tables, amounts, and a job while it runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.filesize import decimal
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from woodlot.cli._text import spelled_out

if TYPE_CHECKING:
    from woodlot.jobs.job_messages import JobFacts, ModelFacts
    from woodlot.runtime.audit import Disclosures

N = TypeVar("N", int, float)

WIDTH_OF_PIPES = 120
"""Columns where there is no terminal to measure."""

PHASES = {
    "open": "opening",
    "align": "aligning",
    "prepare": "preparing",
    "agree": "agreeing on keys",
    "keys": "making keys",
    "key": "making keys",
    "labels": "sending labels",
    "encrypt": "encrypting",
    "bins": "finding bins",
    "start": "starting",
    "grow": "growing",
    "sum": "adding up",
    "score": "scoring",
    "columns": "sharing columns",
    "descend": "fitting",
    "mask": "fitting",
    "deal": "fitting",
    "slopes": "fitting",
    "unmask": "fitting",
    "advance": "fitting",
    "finish": "finishing",
    "adjust": "filling leaves",
    "out-of-bag": "scoring",
    "reveal": "sharing",
    "keep": "storing",
    "drop": "erasing",
    "predict": "predicting",
    "test": "predicting",
    "deliver": "delivering",
    "evaluate": "evaluating",
    "catalog": "listing columns",
    "explain": "explaining",
    "drift": "comparing",
    "delete": "deleting",
    "sign": "signing",
}
UNITS = {"align": "steps", "grow": "trees"}
"""What is counted in the phases that count."""
STATES = {"done": "green", "failed": "red", "cancelled": "dim", "stopped": "yellow", "running": "cyan"}

_BAR = 24
_WORD = max(map(len, PHASES.values()))
_SURE_ENOUGH = 0.05
"""Share of the trees after which an end is estimated."""


# --- amounts ---


def amount(n_bytes: int) -> str:
    """Bytes as people read them."""
    return decimal(n_bytes, precision=1)


def clock(seconds: float) -> str:
    """Seconds as a clock shows them."""
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    return f"{max(0.0, seconds):.1f} s" if seconds < 60 else clock(seconds)


def time_taken(facts: JobFacts) -> str:
    """How long a job took, and how much of it the network."""
    took = duration((facts.ended or 0) - (facts.started or 0))
    return f"{took}, of which the network took {duration(facts.network_seconds)}" if facts.network_seconds else took


def moment(since_1970: float | None, *, year: bool = True) -> str:
    """A point in time, in this machine's time zone."""
    form = "%Y-%m-%d %H:%M" if year else "%m-%d %H:%M"
    return "" if since_1970 is None else time.strftime(form, time.localtime(since_1970))


def share(part: int, whole: int) -> str:
    """A share in per cent."""
    return f"{100 * part / whole:.0f} %" if whole else "0 %"


def score(value: float, classes: bool) -> str:
    """A score with what it measures."""
    return f"{100 * value:.1f} % accuracy" if classes else f"R2 {value:.3f}"


def out_of_bag(model: ModelFacts) -> str:
    """The out-of-bag score of a model, or why there is none though it was asked for."""
    if model.oob_score is not None:
        return f"{score(model.oob_score, bool(model.classes))}, out of bag"
    if model.layout == "rows" or json.loads(model.settings or "{}").get("params", {}).get("oob_score") is not True:
        return ""
    from woodlot.protocols.vertical.out_of_bag import WITHHELD  # seldom needed, and it loads the kernels

    return f"withheld: {WITHHELD}"


def by_party(amounts: Mapping[str, N], show: Callable[[N], str]) -> str:
    """One amount for each party, in a line."""
    return ", ".join(f"{party} {show(value)}" for party, value in amounts.items())


# --- tables ---


class PlainConsole(Console):
    """A console on which names and reasons of others are words: of what they hold, a terminal acts on nothing."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich does, but with control characters spelled out that are not rich's own."""
        for segment in super().render(renderable, options):
            if segment.control is None:
                segment = segment._replace(text=spelled_out(segment.text, keep="\n"))
            yield segment


is_terminal: ContextVar[bool | None] = ContextVar("is_terminal", default=None)
"""Whether standard output is a terminal: False where a terminal only passes on what is read elsewhere."""


def stdout() -> Console:
    """Where results go. A pipe is as wide as a table needs rather than 80 columns."""
    terminal = is_terminal.get()
    console = PlainConsole(highlight=False, force_terminal=terminal)
    if not console.is_terminal and console.width == 80:
        console = PlainConsole(highlight=False, force_terminal=terminal, width=WIDTH_OF_PIPES)
    return console


def table(headings: Sequence[str], rows: Iterable[Sequence[str | Text]], *, wrapped: Sequence[str] = ()) -> Table:
    """A plain table; headings that begin with ``>`` are those of numbers.

    Parameters
    ----------
    headings : sequence of str
        One per column.
    rows : iterable
        Cells; nothing in them is taken for markup.
    wrapped : sequence of str
        Headings of the columns that may have several lines where there is little room.

    """
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    for heading in headings:
        name = heading.removeprefix(">")
        made.add_column(
            name, justify="right" if name != heading else "left", no_wrap=name not in wrapped, overflow="fold"
        )
    for row in rows:
        made.add_row(*map(_cell, row))
    return made


def _cell(value: str | Text) -> Text:
    """A text as long as it is when the console has spelled it out: columns are as wide as their cells."""
    return Text(spelled_out(value, keep="\n")) if isinstance(value, str) else value


def facts_grid(facts: Mapping[str, str | Text]) -> Table:
    """Names and values, those without a value left out."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in facts.items():
        if value:
            grid.add_row(name, _cell(value))
    return grid


def state(facts: JobFacts) -> Text:
    """The state of a job, in its colour."""
    return Text(facts.waits, style="yellow") if facts.waits else Text(facts.state, style=STATES.get(facts.state, ""))


def next_commands(console: Console, commands: Sequence[str]) -> None:
    """What one may type now; each stays on one line, to be copied."""
    console.print("\n[dim]Next:[/dim]")
    for command in commands:
        console.print(f"  {command}", markup=False, soft_wrap=True)


def common_rows(facts: JobFacts) -> Table:
    """What an alignment has found, and what each party loses by it."""
    rows = []
    for party, n_rows in facts.rows.items():
        lost = n_rows - facts.common[party]
        rows.append((party, f"{n_rows:,}", f"{facts.common[party]:,}", f"{lost:,}", share(lost, n_rows)))
    return table(("party", ">rows", ">common", ">lost", ">of its rows"), rows)


def disclosures(console: Console, rows: Disclosures) -> None:
    """Every kind of message, what is at stake in it, and below what each tells."""
    from woodlot.protocols.core.stakes import IN_WORDS, stake_of

    words = "what its receiver can work out"
    console.print(
        table(
            ("from", "to", "message", ">count", ">bytes", "form", "at stake"),
            [
                (row.sender, row.receiver, row.kind, f"{row.count:,}", amount(row.bytes), row.form, stake_of(row.kind))
                for row in rows
            ],
        )
    )
    console.print()
    console.print(table(("at stake", words), list(IN_WORDS.items()), wrapped=[words]))
    console.print()
    told = {row.kind: row.reveals for row in rows}
    console.print(table(("message", "what it tells"), sorted(told.items()), wrapped=["what it tells"]))


def who_saw(rows: Disclosures) -> Table:
    """Who has received what, by what is at stake, in a few lines."""
    from woodlot.protocols.core.stakes import STAKES, Stake, stake_of

    seen: dict[tuple[str, Stake], dict[str, int]] = {}
    for row in rows:
        kinds = seen.setdefault((row.receiver, stake_of(row.kind)), {})
        kinds[row.kind] = kinds.get(row.kind, 0) + row.bytes
    lines = [
        (receiver, stake, amount(sum(kinds.values())), ", ".join(sorted(kinds, key=lambda kind: -kinds[kind])))
        for (receiver, stake), kinds in sorted(seen.items(), key=lambda one: (one[0][0], STAKES.index(one[0][1])))
    ]
    return table(("who saw", "at stake", ">bytes", "what"), lines, wrapped=["what"])


# --- a job while it runs ---


@contextmanager
def watch_job() -> Iterator[Callable[[JobFacts | None], None]]:
    """Yield what is called with all news of a job; None: the coordinator is away. It writes to standard error."""
    console = PlainConsole(stderr=True, highlight=False)
    if not console.is_terminal:
        yield _Lines(console)
        return
    from rich.live import Live

    view = _View()
    with Live(console=console, transient=True, refresh_per_second=5, get_renderable=lambda: view):
        yield view


class _Pace:
    """When the trees will be done, from how long those took that were seen growing."""

    def __init__(self) -> None:
        self._first: tuple[float, int] | None = None
        self._last = (0.0, 0, 0)

    def saw(self, facts: JobFacts, now: float) -> None:
        if facts.phase == "grow" and facts.total:
            self._first = self._first or (now, facts.done)
            self._last = (now, facts.done, facts.total)

    def left(self, now: float) -> float | None:
        """Seconds until the end, None while too little is known."""
        seen, done, total = self._last
        if self._first is None or done - self._first[1] < _SURE_ENOUGH * total:
            return None
        return (seen - self._first[0]) * (total - done) / (done - self._first[1]) - (now - seen)


class _View:
    """A job on a terminal: a bar, and a line on what it is doing."""

    def __init__(self) -> None:
        self._facts: JobFacts | None = None
        self._away = False
        self._pace = _Pace()
        self._waiting_since: float | None = None

    def __call__(self, facts: JobFacts | None) -> None:
        self._away = facts is None
        if facts is None:
            return
        self._facts = facts
        self._pace.saw(facts, time.monotonic())
        self._waiting_since = (self._waiting_since or time.monotonic()) if facts.waits else None

    def __rich__(self) -> RenderableType:
        return Text("") if self._facts is None else self.render(self._facts, time.time(), time.monotonic())

    def render(self, facts: JobFacts, now: float, ticks: float) -> RenderableType:
        """The picture at one moment: ``now`` since 1970, ``ticks`` of the monotonic clock."""
        from rich.progress_bar import ProgressBar

        counts = facts.phase in UNITS and facts.total > 0
        top = Table.grid(padding=(0, 2))
        bar = ProgressBar(
            total=facts.total if counts else None,
            completed=facts.done if counts else 0,
            width=_BAR,
            pulse=not counts,
            animation_time=ticks,
        )
        count = f"{facts.done:,}/{facts.total:,} {UNITS[facts.phase]}" if counts else ""
        words = PHASES.get(facts.phase, facts.phase) if facts.state == "running" else facts.state
        seconds = clock(now - (facts.started or facts.created))
        left = self._pace.left(ticks)
        end = f"about {clock(left)} left" if left is not None and facts.phase == "grow" and not self._held else ""
        top.add_row(Text(f"{words or facts.kind:<{_WORD}}", style="bold"), bar, count, seconds, Text(end, style="dim"))
        return Group(top, self._below(facts, ticks))

    @property
    def _held(self) -> bool:
        return self._away or self._waiting_since is not None

    def _below(self, facts: JobFacts, ticks: float) -> Text:
        if self._away:
            words, style = "no connection to the coordinator; trying again", "yellow"
        elif facts.waits and self._waiting_since is not None:
            since = clock(ticks - self._waiting_since)
            words, style = f"{facts.waits} ({since})", "yellow"
        else:
            words, style = " · ".join(_details(facts)), "dim"
        return Text(f"  {words}  [Ctrl-C detaches]", style=style, overflow="ellipsis", no_wrap=True)


class _Lines:
    """A job where there is no terminal: a line whenever something is new, and for every tenth of the trees."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last: Any = None

    def __call__(self, facts: JobFacts | None) -> None:
        key: Any
        if facts is None:
            key, words = "away", "no connection to the coordinator; trying again"
        elif facts.waits:
            key, words = facts.waits, facts.waits
        elif facts.state != "running" or not facts.phase:
            key, words = facts.state, facts.state
        else:
            tenth = 10 * facts.done // facts.total if facts.phase == "grow" and facts.total else 0
            shown = PHASES.get(facts.phase, facts.phase)  # phases that take turns may have one word
            key = (shown, tenth)
            count = f" {facts.done:,}/{facts.total:,} trees" if facts.phase == "grow" and facts.total else ""
            details = _details(facts) if count else []
            words = ", ".join([shown + count, *details])
        if key != self._last:
            self._last = key
            self._console.print(words, markup=False, soft_wrap=True)


def _details(facts: JobFacts) -> list[str]:
    """Level and nodes, and bytes of every party."""
    details = [facts.note] if facts.note and facts.phase in UNITS else []
    return details + [f"{party} {amount(sent)}" for party, sent in facts.bytes_by_party.items()]
