"""Mermaid's sequence and state diagrams as SVG, drawn while the site is built: no page loads a program from elsewhere.

Only what our documents use is understood; anything else is an error that names the line. GitHub draws the same text
with Mermaid itself.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass, field
from html import escape

BLOCK = re.compile(r"^```mermaid\n(.*?)^```$", re.DOTALL | re.MULTILINE)
"""A diagram within a page."""

_PARTICIPANT = re.compile(r"participant (\w+) as (.+)")
_MESSAGE = re.compile(r"(\w+)(-->>|->>)(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+)(?:,(\w+))?: (.+)")
_FRAME = re.compile(r"(loop|opt) (.+)")
_STEP = re.compile(r"(\[\*\]|\w+) --> (\w+)(?:: (.+))?")

_COLUMN = 210
_WIDEST = 760
_LETTER = 6.6
"""Width of a letter, in pixels: a little too wide, so that no text leaves its place."""
_LINE = 17
_HEAD = 34
_BOX, _GAP, _LANE = 34, 34, 24


class DiagramError(ValueError):
    """A line of a diagram that is not understood."""


def draw(source: str) -> str:
    """An SVG element for a diagram."""
    kind, *lines = [line.strip() for line in source.strip().splitlines()]
    if kind == "sequenceDiagram":
        return _Sequence().draw(lines)
    if kind == "stateDiagram-v2":
        return _states(lines)
    raise DiagramError(f"{kind!r} is neither sequenceDiagram nor stateDiagram-v2, which is all that is drawn here")


def with_drawings(markdown: str) -> str:
    """A page with its diagrams drawn."""
    return BLOCK.sub(lambda block: f'<figure class="diagram">{draw(block[1])}</figure>', markdown)


# --- sequences ---


@dataclass
class _Sequence:
    """What happens between participants, from top to bottom."""

    at: dict[str, float] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    parts: list[str] = field(default_factory=list)
    open_frames: list[tuple[float, str]] = field(default_factory=list)
    y: float = _HEAD + 16
    width: float = 0

    def draw(self, lines: list[str]) -> str:
        for line in lines:
            if found := _PARTICIPANT.fullmatch(line):
                self.names[found[1]] = found[2]
        column = max(_COLUMN, _WIDEST / max(len(self.names), 2))
        self.at = {name: column * (place + 0.5) for place, name in enumerate(self.names)}
        self.width = column * len(self.names)
        for line in lines:
            self._line(line)
        if self.open_frames:
            raise DiagramError(f"no end for {self.open_frames[-1][1]!r}")
        lifelines = "".join(f'<path class="life" d="M{x:.0f} {_HEAD}V{self.y:.0f}"/>' for x in self.at.values())
        heads = "".join(_box(self.at[name], 0, min(column - 20, 190), text) for name, text in self.names.items())
        return _svg(self.width, self.y + 6, lifelines + "".join(self.parts) + heads, ", ".join(self.names.values()))

    def _line(self, line: str) -> None:
        if _PARTICIPANT.fullmatch(line):
            return
        if ";" in line:
            raise DiagramError(f"a semicolon ends a line for Mermaid, on GitHub: use a comma in {line!r}")
        if found := _MESSAGE.fullmatch(line):
            self._message(self._place(found[1], line), self._place(found[3], line), found[4], found[2] == "-->>")
        elif found := _NOTE.fullmatch(line):
            self._note(self._place(found[1], line), self._place(found[2] or found[1], line), found[3])
        elif found := _FRAME.fullmatch(line):
            self.open_frames.append((self.y, f"{found[1]}: {found[2]}"))
            self.y += 30
        elif line == "end" and self.open_frames:
            self._end_frame()
        else:
            raise DiagramError(f"not understood: {line!r}")

    def _place(self, name: str, line: str) -> float:
        if name not in self.at:
            raise DiagramError(f"{name!r} is no participant: {line!r}")
        return self.at[name]

    def _message(self, start: float, end: float, text: str, is_reply: bool) -> None:
        middle = (start + end) / 2
        lines = _wrapped(text, max(abs(end - start) - 16, self._room(middle)))
        self.y += 8
        for line in lines:
            self.y += _LINE
            self.parts.append(_text(middle, self.y - 5, line))
        tip = 7 if end < start else -7
        kind = "reply" if is_reply else "ask"
        self.parts.append(f'<path class="{kind}" d="M{start:.0f} {self.y:.0f}H{end:.0f}"/>')
        self.parts.append(f'<path class="tip" d="M{end:.0f} {self.y:.0f}l{tip} -4v8z"/>')
        self.y += 6

    def _room(self, middle: float) -> float:
        """How wide text may be about a place before it leaves the drawing."""
        return min(2 * min(middle, self.width - middle) - 8, 400)

    def _note(self, first: float, last: float, text: str) -> None:
        middle = (first + last) / 2
        lines = _wrapped(text, max(abs(last - first) + 80, min(self._room(middle), 330)) - 20)
        wide = max(len(line) for line in lines) * _LETTER + 20
        self.y += 10
        self.parts.append(
            f'<rect class="note" x="{middle - wide / 2:.0f}" y="{self.y:.0f}" width="{wide:.0f}" '
            f'height="{_LINE * len(lines) + 8}" rx="3"/>'
        )
        for line in lines:
            self.y += _LINE
            self.parts.append(_text(middle, self.y - 1, line))
        self.y += 14

    def _end_frame(self) -> None:
        top, text = self.open_frames.pop()
        inset = 4 + 8 * len(self.open_frames)
        self.y += 8
        self.parts.append(
            f'<rect class="frame" x="{inset}" y="{top + 6:.0f}" width="{self.width - 2 * inset:.0f}" '
            f'height="{self.y - top - 4:.0f}" rx="3"/>'
        )
        self.parts.append(_text(inset + 6, top + 20, text, "start"))
        self.y += 8


# --- states ---


def _states(lines: list[str]) -> str:
    """States one below the other; steps that leave some out are on their right side, steps back on their left."""
    steps = []
    for line in lines:
        found = _STEP.fullmatch(line)
        if found is None:
            raise DiagramError(f"not understood: {line!r}")
        steps.append((found[1], found[2], found[3] or ""))
    names = list(dict.fromkeys(name for start, end, _ in steps for name in (start, end) if name != "[*]"))
    top = {name: place * (_BOX + _GAP) + 4 for place, name in enumerate(names)}
    order = {name: place for place, name in enumerate(names)}
    between = [(start, end, text) for start, end, text in steps if start != "[*]"]
    straight = [step for step in between if order[step[1]] == order[step[0]] + 1]
    down = [step for step in between if order[step[1]] > order[step[0]] + 1]
    back = [step for step in between if order[step[1]] <= order[step[0]]]
    widths = [max((len(text) for *_, text in side), default=0) * _LETTER for side in (back, down + straight)]
    middle = widths[0] + _LANE * len(back) + 70
    parts = [_box(middle, top[name], 120, name) for name in names]
    for start, end, text in straight:
        y = top[end] - 1
        parts.append(f'<path class="ask" d="M{middle:.0f} {top[start] + _BOX - 4:.0f}V{y:.0f}"/>')
        parts.append(f'<path class="tip" d="M{middle:.0f} {y:.0f}l-4 -7h8z"/>')
        parts.append(_text(middle + 8, y - 12, text, "start"))
    for side, bent in ((-1, back), (1, down)):
        bent.sort(key=lambda step: abs(order[step[1]] - order[step[0]]))
        for lane, (start, end, text) in enumerate(bent, 1):
            near, far = middle + side * 60, middle + side * (60 + _LANE * lane)
            begin, goal = top[start] + 12 + 4 * lane, top[end] + 18 - 4 * lane
            if start == end:
                begin, goal = top[start] + 24, top[start] + 6
            parts.append(f'<path class="ask" d="M{near:.0f} {begin:.0f}H{far:.0f}V{goal:.0f}H{near:.0f}"/>')
            parts.append(f'<path class="tip" d="M{near:.0f} {goal:.0f}l{7 * side} -4v8z"/>')
            place = (begin + goal) / 2 + _LINE * (len(bent) / 2 - lane)
            parts.append(_text(far + 4 * side, place, text, "start" if side > 0 else "end"))
    width = middle + 60 + _LANE * (len(down) + 1) + widths[1] + 10
    return _svg(width, max(top.values()) + _BOX + 8, "".join(parts), ", ".join(names))


# --- pieces ---


def _wrapped(text: str, width: float) -> list[str]:
    return textwrap.wrap(text, max(12, int(width / _LETTER)))


def _text(x: float, y: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{x:.0f}" y="{y:.0f}" text-anchor="{anchor}">{escape(text)}</text>'


def _box(x: float, y: float, width: float, text: str) -> str:
    return (
        f'<rect class="actor" x="{x - width / 2:.0f}" y="{y:.0f}" width="{width:.0f}" height="{_BOX - 4}" rx="5"/>'
        + _text(x, y + _BOX / 2 + 3, text)
    )


def _svg(width: float, height: float, inner: str, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'role="img" aria-label="Diagram: {escape(title)}"><title>{escape(title)}</title>{inner}</svg>'
    )
