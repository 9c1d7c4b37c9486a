"""The map of a federation: who belongs to it, who is away, and what has travelled in the last minute.

Everything in it comes from the record of one role. The coordinator knows all members; a party knows the coordinator and
its own messages.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

from woodlot.dashboard.views import Flow
from woodlot.jobs.job_messages import JobFacts
from woodlot.protocols.core.stakes import STAKES, Stake, stake_of
from woodlot.runtime.audit import readable_bytes

MINUTE = 60.0
"""How long a message stays on the map, in seconds."""
FEW = 8
"""Up to so many parties have large boxes."""
_THINNEST, _THICKEST = 2.0, 12.0


@dataclass(frozen=True)
class MapMember:
    """One party on the map.

    Attributes
    ----------
    since : float or None
        Connected since; None: it is away, or its connection is not known here.
    seen : float or None
        When it was last connected, where it is away.
    is_known : bool
        Whether the role that draws the map knows if the party is connected.
    leads : int
        Models that it keeps and leads the jobs of.
    doing : tuple of str
        Kinds of the running jobs that it takes part in.
    """

    name: str
    since: float | None = None
    seen: float | None = None
    is_known: bool = True
    n_rows: int | None = None
    n_columns: int | None = None
    leads: int = 0
    has_labels: bool = False
    doing: tuple[str, ...] = ()

    @property
    def state(self) -> str:
        """In a word."""
        return "unknown" if not self.is_known else "away" if self.since is None else "connected"


@dataclass(frozen=True)
class MapFacts:
    """What a map shows.

    Attributes
    ----------
    running : bool or None
        Whether the coordinator's process is there; None: that is not known here.
    flows : tuple of Flow
        What has travelled in the last minute, by sender, receiver and kind.
    """

    running: bool | None
    members: tuple[MapMember, ...]
    jobs: tuple[JobFacts, ...] = ()
    flows: tuple[Flow, ...] = ()

    @property
    def digest(self) -> str:
        """Changes when the map does: a browser need not draw the same map again."""
        jobs = [(job.job, job.state, job.phase, job.done, job.total) for job in self.jobs]
        facts = [self.running, [asdict(one) for one in self.members], jobs, [asdict(one) for one in self.flows]]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]

    @property
    def in_words(self) -> str:
        """One sentence, for people who do not see the picture."""
        known = [one for one in self.members if one.is_known]
        there = sum(one.since is not None for one in known)
        running = [job for job in self.jobs if job.state == "running"]
        parties = f"{there} of {len(known)} parties {'is' if there == 1 else 'are'} connected. " if known else ""
        if self.running is False:
            parties = "The coordinator is not running. "
        kinds = ", ".join(dict.fromkeys(job.kind for job in running))
        return parties + (f"Running now: {kinds}." if running else "No job is running.")


class Strand(NamedTuple):
    """A line of the map: messages of one direction with the same at stake."""

    path: str
    width: float
    stake: Stake
    is_out: bool


class LineLabel(NamedTuple):
    """How much a direction carries, at its line."""

    x: float
    y: float
    text: str


class Box(NamedTuple):
    """Where a member is drawn, and its lines."""

    member: MapMember
    x: float
    y: float
    width: float
    height: float
    link: str
    """A thin line, where nothing has travelled; else empty."""
    strands: tuple[Strand, ...]
    labels: tuple[LineLabel, ...]


@dataclass(frozen=True)
class Drawing:
    """A map laid out: coordinates of all its parts."""

    width: float
    height: float
    centre: tuple[float, float, float, float]
    boxes: tuple[Box, ...]
    is_wide: bool


def totals(flows: Iterable[Flow], party: str) -> dict[tuple[bool, Stake], tuple[int, int]]:
    """Messages and bytes of a party's lines: by direction (True: to the party), and by what is at stake."""
    found: dict[tuple[bool, Stake], tuple[int, int]] = {}
    for flow in flows:
        if party in (flow.sender, flow.receiver):
            key = (flow.receiver == party, stake_of(flow.kind))
            count, size = found.get(key, (0, 0))
            found[key] = (count + flow.count, size + flow.bytes)
    return found


def thickness(n_bytes: int) -> float:
    """The width of a line: two steps more for each ten times as many bytes."""
    return round(min(_THICKEST, _THINNEST + 2 * math.log10(1 + n_bytes / 100)), 1)


def draw_wide(facts: MapFacts) -> Drawing:
    """For wide pages: the coordinator between two columns of parties."""
    few = len(facts.members) <= FEW
    width, box, height, step = 1100.0, 250.0, (112.0 if few else 76.0), (142.0 if few else 92.0)
    left = facts.members[: math.ceil(len(facts.members) / 2)]
    right = facts.members[len(left) :]
    total = max(1, len(left)) * step + 28
    middle = total / 2
    centre = (width / 2 - 125, middle - 62, 250.0, 124.0)
    boxes = []
    for side, members in ((-1, left), (1, right)):
        for i, member in enumerate(members):
            y = middle + (i - (len(members) - 1) / 2) * step
            x = 12.0 if side < 0 else width - 12 - box
            start, end = (x + box, centre[0]) if side < 0 else (x, centre[0] + centre[2])
            entry = middle + (i - (len(members) - 1) / 2) * min(36.0, 84 / max(1, len(members)))
            boxes.append(_connected(facts, member, (x, y - height / 2, box, height), (start, y), (end, entry)))
    return Drawing(width, total, centre, tuple(boxes), True)


def _connected(
    facts: MapFacts,
    member: MapMember,
    box: tuple[float, float, float, float],
    at_party: tuple[float, float],
    at_centre: tuple[float, float],
) -> Box:
    """A party beside the coordinator, with curves between them; what comes from it is drawn above what goes to it."""

    def curve(shift: float, is_out: bool) -> str:
        (x1, y1), (x2, y2) = at_party, at_centre
        bend = (x1 + x2) / 2
        if is_out:  # towards the party, so that dashes move that way
            x1, y1, x2, y2 = x2, y2, x1, y1
        return f"M{x1:g} {y1 + shift:g} C{bend:g} {y1 + shift:g} {bend:g} {y2 + shift:g} {x2:g} {y2 + shift:g}"

    strands, labels = [], []
    sums = totals(facts.flows, member.name)
    rightwards = at_party[0] < at_centre[0]
    for is_out in (False, True):
        shift = 0.0
        sign = 1 if is_out else -1
        for stake in STAKES:
            if (is_out, stake) in sums:
                width = thickness(sums[is_out, stake][1])
                strands.append(Strand(curve(sign * (7 + shift + width / 2), is_out), width, stake, is_out))
                shift += width + 1.5
        if shift:
            n_bytes = sum(n for (out, _), (_, n) in sums.items() if out == is_out)
            arrow = "→" if rightwards != is_out else "←"
            x, y = (at_party[0] + at_centre[0]) / 2, (at_party[1] + at_centre[1]) / 2
            below = 7 + shift + 14 if is_out else -(7 + shift + 5)
            labels.append(LineLabel(x, round(y + below, 1), f"{readable_bytes(n_bytes)} {arrow}"))
    return Box(member, *box, "" if strands else curve(0, False), tuple(strands), tuple(labels))


def draw_narrow(facts: MapFacts) -> Drawing:
    """For phones: the coordinator above, the parties below each other, and one trunk beside them."""
    width, height, step, top = 372.0, 112.0, 128.0, 152.0
    boxes = []
    for i, member in enumerate(facts.members):
        y = top + i * step
        middle = y + height / 2
        strands, labels = [], []
        sums = totals(facts.flows, member.name)
        for is_out in (False, True):
            n_bytes = sum(n for (out, _), (_, n) in sums.items() if out == is_out)
            for stake in STAKES:
                if (is_out, stake) in sums:
                    path = _elbow(29 if is_out else 15, middle + (8 if is_out else -8), 52, is_out)
                    strands.append(Strand(path, min(8.0, thickness(n_bytes)), stake, is_out))
                    labels.append(LineLabel(52, y, f"{readable_bytes(n_bytes)} {'received' if is_out else 'sent'}"))
                    break  # the colour of what has most at stake: there is no room for more
        link = "" if strands else _elbow(22, middle, 52, True)
        boxes.append(Box(member, 52.0, y, width - 54, height, link, tuple(strands), tuple(labels)))
    height_of_all = top + max(1, len(facts.members)) * step - 12
    return Drawing(width, height_of_all, (2.0, 2.0, width - 4, 124.0), tuple(boxes), False)


def _elbow(x: float, y: float, end: float, is_out: bool) -> str:
    if is_out:
        return f"M{x:g} 126 V{y - 10:g} Q{x:g} {y:g} {x + 10:g} {y:g} H{end:g}"
    return f"M{end:g} {y:g} H{x + 10:g} Q{x:g} {y:g} {x:g} {y - 10:g} V126"


def by_line(flows: Sequence[Flow]) -> list[dict[str, object]]:
    """The same as a table: what each role has sent another in the last minute, most at stake first."""
    lines: dict[tuple[str, str, Stake], list[Flow]] = {}
    for flow in flows:
        lines.setdefault((flow.sender, flow.receiver, stake_of(flow.kind)), []).append(flow)
    return [
        {
            "sender": sender, "receiver": receiver, "stake": stake, "count": sum(f.count for f in found),
            "bytes": sum(f.bytes for f in found),
            "kinds": [(f.kind, f.count) for f in sorted(found, key=lambda f: -f.bytes)],
        }
        for (sender, receiver, stake), found in sorted(lines.items(), key=lambda line: STAKES.index(line[0][2]))
    ]  # fmt: skip
