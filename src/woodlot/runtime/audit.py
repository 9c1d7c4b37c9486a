"""Who saw what, and what it cost: the account of one run, kept by the driver and by `run`."""

from __future__ import annotations

import json
import shutil
import textwrap
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, overload

from woodlot.data.markup import html_facts, html_table
from woodlot.protocols.core.message import Message, Role


@dataclass(frozen=True)
class DisclosureRow:
    """All messages of one kind from one sender to one receiver, and what they told."""

    sender: str
    receiver: str
    kind: str
    count: int
    bytes: int
    form: str
    reveals: str


@dataclass(frozen=True, repr=False)
class Disclosures(Sequence[DisclosureRow]):
    """What each party and the coordinator saw, one row per sender, receiver and kind of message."""

    rows: tuple[DisclosureRow, ...] = ()

    @overload
    def __getitem__(self, index: int) -> DisclosureRow: ...

    @overload
    def __getitem__(self, index: slice) -> Disclosures: ...

    def __getitem__(self, index: int | slice) -> DisclosureRow | Disclosures:
        if isinstance(index, slice):
            return Disclosures(self.rows[index])
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[DisclosureRow]:
        return iter(self.rows)

    def to_dicts(self) -> list[dict[str, Any]]:
        """Return the rows as dictionaries, for a data frame or JSON."""
        return [asdict(row) for row in self.rows]

    def __repr__(self) -> str:
        if not self.rows:
            return "nothing was disclosed"
        # What a message tells takes a sentence or two. They stand below, once for each kind, and in lines that fit.
        headings = _HEADINGS[:-1]
        table = [headings, *(_cells(row)[:-1] for row in self.rows)]
        widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
        table.insert(1, ["-" * width for width in widths])
        lines = [
            "  ".join(
                cell.rjust(width) if heading in _NUMBERS else cell.ljust(width)
                for cell, width, heading in zip(line, widths, headings, strict=True)
            ).rstrip()
            for line in table
        ]
        told = {row.kind: row.reveals for row in self.rows}
        kind = max(map(len, told)) + 2
        room = max(_NARROWEST, min(shutil.get_terminal_size().columns, _WIDEST))
        lines.append("")
        for name, reveals in told.items():
            lines += textwrap.wrap(reveals, room, initial_indent=name.ljust(kind), subsequent_indent=" " * kind)
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_table(_HEADINGS, (_cells(row) for row in self.rows))


_HEADINGS = [column.name for column in fields(DisclosureRow)]
_NUMBERS = ("count", "bytes")
_NARROWEST, _WIDEST = 60, 120
"""Columns of the lines that say what a message tells."""


def _cells(row: DisclosureRow) -> list[str]:
    values = asdict(row) | {"bytes": readable_bytes(row.bytes)}
    return [f"{value:,}" if isinstance(value, int) else value for value in values.values()]


@dataclass(frozen=True, repr=False)
class Cost:
    """What a run cost, as the coordinator sees it.

    Parameters
    ----------
    rounds : int
        Exchanges with the parties.
    bytes_sent, bytes_received : int
        From the coordinator to all parties, and from all parties to the coordinator.
    bytes_by_party : dict of str to int
        Both ways together, for each party.
    seconds : dict of str to float
        For each phase, the time of its rounds and of the coordinator's work on their replies.
    total_seconds : float
        The sum over the phases.
    network_seconds : float
        How much of it the network took: for each round, what the party that answered last did not work until then, as
        its replies say. A party that is away counts as well. 0 where all parties are in this process.
    wire_bytes : int
        What was sent both ways, messages compressed where that pays and with their frames; 0 where nothing is sent.
        Like the seconds it counts since the run was last resumed, while the other bytes are those of the whole run.

    """

    rounds: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_by_party: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    total_seconds: float = 0.0
    network_seconds: float = 0.0
    wire_bytes: int = 0

    def __repr__(self) -> str:
        summary = [
            f"{self.rounds:,} round{'' if self.rounds == 1 else 's'}",
            f"{readable_bytes(self.bytes_sent)} sent",
            f"{readable_bytes(self.bytes_received)} received",
            readable_seconds(self.total_seconds),
        ]
        if self.wire_bytes:
            network = readable_seconds(self.network_seconds)
            summary.append(f"of which the network took {network} for {readable_bytes(self.wire_bytes)} on the wire")
        phases, parties = self._details()
        return "\n".join([", ".join(summary), *_aligned(phases), *_aligned(parties)])

    def _details(self) -> tuple[dict[str, str], dict[str, str]]:
        phases = {phase: readable_seconds(seconds) for phase, seconds in self.seconds.items()}
        return phases, {party: readable_bytes(n_bytes) for party, n_bytes in self.bytes_by_party.items()}

    def _repr_html_(self) -> str:
        phases, parties = self._details()
        return html_facts(repr(self).partition("\n")[0], phases | {f"sent, {p}": size for p, size in parties.items()})


def _aligned(details: dict[str, str]) -> list[str]:
    width = max(map(len, details), default=0)
    return [f"  {name:<{width}}  {value}" for name, value in details.items()]


def readable_bytes(n_bytes: int) -> str:
    """A number of bytes for people."""
    if n_bytes < 1_000:
        return f"{n_bytes} B"
    value = float(n_bytes)
    for unit in ("kB", "MB", "GB"):
        value /= 1_000
        if value < 999.95:  # what would be rounded to 1000.0 belongs to the next unit
            return f"{value:.1f} {unit}"
    return f"{value / 1_000:,.1f} TB"


def readable_seconds(seconds: float) -> str:
    """A duration for people."""
    if seconds < 0.9995:
        return f"{seconds * 1_000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


@dataclass(frozen=True)
class Account:
    """Who saw what in a run, and what it cost."""

    disclosure: Disclosures
    cost: Cost

    def to_json(self) -> dict[str, str]:
        """Both as JSON texts."""
        return {"disclosure": json.dumps(self.disclosure.to_dicts()), "cost": json.dumps(asdict(self.cost))}

    @classmethod
    def from_json(cls, disclosure: str, cost: str) -> Account:
        """What `to_json` has written."""
        rows = tuple(DisclosureRow(**row) for row in json.loads(disclosure))
        return cls(Disclosures(rows), Cost(**json.loads(cost)))


class Ledger:
    """Counts every message of a run: drivers record messages, `woodlot.runtime.run.run` rounds and time.

    Parameters
    ----------
    observer : callable, optional
        Told sender, receiver and every message itself, for who wants to look at more than counts.
    host : str
        What the disclosures call who runs the protocol: drivers record it as the coordinator.

    Attributes
    ----------
    rounds : int
        Exchanges so far.
    bytes_sent_to, bytes_received_from : dict of str to int
        Bytes between the coordinator and each party.

    """

    def __init__(
        self,
        observer: Callable[[str, str, Message], None] | None = None,
        *,
        host: str = Role.coordinator.value,
    ) -> None:
        self._observer = observer
        self._host = host
        self.rounds = 0
        self.bytes_sent_to: dict[str, int] = {}
        self.bytes_received_from: dict[str, int] = {}
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str, str], type[Message]] = {}
        self._counts: Counter[tuple[str, str, str]] = Counter()
        self._bytes: Counter[tuple[str, str, str]] = Counter()
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._network_seconds = 0.0
        self._wire_bytes = 0

    def record(self, sender: str, receiver: str, message: Message, n_bytes: int) -> None:
        """Account for one message of `n_bytes` on the wire.

        Parameters
        ----------
        sender, receiver : str
            The name of a party, or ``"coordinator"``.
        message : Message
            What was sent; only its type is kept here.
        n_bytes : int
            Its size when encoded.

        """
        key = (str(sender), str(receiver), type(message).__name__)
        with self._lock:
            self._kinds[key] = type(message)
            self._counts[key] += 1
            self._bytes[key] += n_bytes
            if sender == Role.coordinator:
                self.bytes_sent_to[key[1]] = self.bytes_sent_to.get(key[1], 0) + n_bytes
            if receiver == Role.coordinator:
                self.bytes_received_from[key[0]] = self.bytes_received_from.get(key[0], 0) + n_bytes
            if self._observer is not None:
                self._observer(key[0], key[1], message)

    def count_round(self) -> None:
        """Account for one exchange."""
        with self._lock:
            self.rounds += 1

    def add_seconds(self, phase: str, seconds: float) -> None:
        """Account for time spent in a phase."""
        with self._lock:
            self._seconds[phase] += seconds

    def add_travel(self, seconds: float, n_bytes: int) -> None:
        """Account for what the network took in one round, in time and in bytes as they were sent."""
        with self._lock:
            self._network_seconds += seconds
            self._wire_bytes += n_bytes

    @property
    def bytes_total(self) -> int:
        """All bytes of all messages."""
        with self._lock:
            return self._bytes.total()

    def disclosure(self) -> Disclosures:
        """Return who has seen what so far, in the order in which each kind of message first travelled."""
        with self._lock:
            return Disclosures(
                tuple(
                    DisclosureRow(
                        sender=self._host if sender == Role.coordinator else sender,
                        receiver=self._host if receiver == Role.coordinator else receiver,
                        kind=kind,
                        count=self._counts[sender, receiver, kind],
                        bytes=self._bytes[sender, receiver, kind],
                        form=message.discloses.form,
                        reveals=message.discloses.reveals,
                    )
                    for (sender, receiver, kind), message in self._kinds.items()
                )
            )

    def cost(self) -> Cost:
        """Return what the run has cost so far."""
        with self._lock:
            by_party = Counter(self.bytes_sent_to) + Counter(self.bytes_received_from)
            return Cost(
                rounds=self.rounds,
                bytes_sent=sum(self.bytes_sent_to.values()),
                bytes_received=sum(self.bytes_received_from.values()),
                bytes_by_party=dict(by_party),
                seconds=dict(self._seconds),
                total_seconds=sum(self._seconds.values()),
                network_seconds=self._network_seconds,
                wire_bytes=self._wire_bytes,
            )

    def account(self) -> Account:
        """Return both, as they stand."""
        return Account(self.disclosure(), self.cost())
