"""The site's diagrams are drawn when it is built: each one that a document has, with all its words."""

from __future__ import annotations

import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from diagrams import BLOCK, DiagramError, draw, with_drawings  # noqa: E402

PAGES = [path for path in sorted((ROOT / "docs").rglob("*.md")) if "```mermaid" in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_all_that_a_document_says_is_drawn(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert "```mermaid" not in with_drawings(text)
    for source in BLOCK.findall(text):
        drawn = ET.fromstring(draw(source))  # noqa: S314 - we have just written it
        words = " ".join(" ".join(drawn.itertext()).split())
        for line in source.splitlines()[1:]:
            for said in re.findall(r"(?:: | as )(.+)$", line):
                assert all(word in words for word in said.split()), line


def numbers_of(drawn: str, shape: str, attribute: str) -> list[float]:
    root = ET.fromstring(drawn)  # noqa: S314
    return [float(one.get(attribute, "0")) for one in root.iter() if one.tag.endswith(shape)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.stem)
def test_nothing_is_drawn_outside(page: Path) -> None:
    for source in BLOCK.findall(page.read_text(encoding="utf-8")):
        drawn = draw(source)
        _, _, width, height = map(float, re.findall(r'viewBox="(.*?)"', drawn)[0].split())
        assert all(0 <= x <= width for x in numbers_of(drawn, "text", "x"))
        assert all(0 <= y <= height for y in numbers_of(drawn, "text", "y"))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("sequenceDiagram\nparticipant A as a\nA->>B: Hello", "'B' is no participant"),
        ("sequenceDiagram\nparticipant A as a\nA-xA: Hello", "not understood"),
        ("sequenceDiagram\nparticipant A as a\nloop again\nA->>A: Hello", "no end for 'loop: again'"),
        ("sequenceDiagram\nparticipant A as a\nNote over A: one; two", "semicolon"),
        ("stateDiagram-v2\nidle -> open", "not understood"),
        ("pie\n", "neither sequenceDiagram nor"),
    ],
)
def test_what_is_not_understood_is_named(source: str, reason: str) -> None:
    with pytest.raises(DiagramError, match=re.escape(reason)):
        draw(source)


def test_text_of_a_diagram_is_no_markup() -> None:
    drawn = draw("sequenceDiagram\nparticipant A as a<b>\nNote over A: x <= s & more")
    assert "<b>" not in drawn
    assert "x &lt;= s &amp; more" in drawn
