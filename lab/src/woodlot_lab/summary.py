"""The page over all experiments: for every table and figure of the five papers, what was found."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from woodlot_lab.catalogue import MODULES
from woodlot_lab.experiment import Status, Table
from woodlot_lab.page import markdown
from woodlot_lab.papers import BEYOND, ITEMS, PAPERS, Item

SUMMARY = "README.md"
_HEAD = """# The papers, reproduced

Every table and figure of the five papers, what it claims, and what was found. *Confirmed*: found as claimed. *Partly*:
in part, or in another size. *Not confirmed*: not found, with the reason. Each page has the numbers, the paper's beside
them, and the exact command; [how to run and add experiments](../reproduce.md).
"""


def write_summary(folder: Path) -> Path:
    """Write the summary of all pages in a folder."""
    found = _found(folder)
    parts = [_HEAD.strip()]
    for paper in (*PAPERS, BEYOND):
        items = {key: item for key, item in ITEMS.items() if item.paper == paper}
        rows = [row for key, item in items.items() for row in _rows(key, item, found)]
        parts += [f"## {paper}", markdown(Table(("item", "claim", "verdict", "why", "page"), rows))]
    others = [page for page in sorted(folder.glob("*.md")) if page.name != SUMMARY and page.stem not in MODULES]
    if others:
        parts += ["## Other measurements", "\n".join(f"- [{_heading(page)}]({page.name})" for page in others)]
    parts.insert(1, _counted([row for part in parts for row in part.splitlines()]))
    path = folder / SUMMARY
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    return path


def _counted(lines: Sequence[str]) -> str:
    """How many verdicts there are of each kind."""
    counts = ", ".join(f"{sum(f'| **{kind}**' in line for line in lines)} {kind}" for kind in get_args(Status))
    return f"Verdicts: {counts}. *Not judged*: times that were measured too few times, or on a busy machine."


def _found(folder: Path) -> dict[str, dict[str, Any]]:
    """What each experiment with a page here has found."""
    found = {}
    for name in MODULES:
        path = folder / f"{name}.json"
        if path.is_file():
            found[name] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _rows(key: str, item: Item, found: dict[str, dict[str, Any]]) -> list[list[str]]:
    name = item.experiment
    if item.page is not None:
        return [[item.label, item.about, "measured", item.note, f"[{item.page}]({item.page}.md)"]]
    if name is None:
        return [[item.label, item.about, "-", item.note, ""]]
    if name not in found:
        return [[item.label, item.about, "not run", item.note or "no run in this folder", f"`{name}`"]]
    page = f"[{name}]({name}.md)"
    short = " (short run)" if found[name]["quick"] else ""
    verdicts = [v for v in found[name]["verdicts"] if v["item"] == key]
    if not verdicts:
        timing = found[name].get("timing") or {"sound": True}
        if timing["sound"]:
            return [[item.label, item.about, "measured" + short, item.note, page]]
        return [[item.label, item.about, "**not judged**" + short, f"to be measured again: {timing['why']}", page]]
    rows = []
    for number, verdict in enumerate(verdicts):
        note = f". Not covered: {item.note}" if item.note and number == 0 else ""
        rows.append([item.label, verdict["claim"], f"**{verdict['status']}**{short}", verdict["reason"] + note, page])
    return rows


def _heading(page: Path) -> str:
    first = page.read_text(encoding="utf-8").partition("\n")[0]
    return first.removeprefix("#").strip() or page.stem
