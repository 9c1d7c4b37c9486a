"""The map of the house, docs/architecture.md, names what is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAP = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
SOURCES = {path.as_posix(): path for room in ("src", "tests", "scripts") for path in (ROOT / room).rglob("*.py")}


def files_called(name: str) -> list[Path]:
    return [path for where, path in SOURCES.items() if where.endswith(f"/{name}")]


@pytest.mark.parametrize("name", sorted(set(re.findall(r"[\w/]+\.py\b", MAP))))
def test_every_file_exists(name: str) -> None:
    assert files_called(name)


@pytest.mark.parametrize(("file", "name"), re.findall(r"`([\w/]+\.py)`,\s+`([\w.]+)(?<!\.py)`", MAP))
def test_what_is_to_be_read_in_a_file_is_in_it(file: str, name: str) -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in files_called(file))
    for part in name.split("."):
        assert re.search(rf"\b(?:def|class) {part}\b", text), part


@pytest.mark.parametrize(
    "room", sorted({path.name for path in (ROOT / "src" / "woodlot").glob("[!_]*")} - {"py.typed"})
)
def test_every_room_is_on_the_map(room: str) -> None:
    assert f"`{room}" in MAP
