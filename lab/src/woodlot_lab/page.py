"""Writes what a run gave: a Markdown page with pictures, and the same as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from woodlot_lab.experiment import LOAD, Figure, Table, Timing, Verdict
from woodlot_lab.figures import draw
from woodlot_lab.papers import ITEMS
from woodlot_lab.runner import Outcome
from woodlot_lab.statistics import mean, values
from woodlot_lab.store import machine


def write_page(outcome: Outcome, folder: Path, command: str) -> Path:
    """Write ``NAME.md``, ``NAME.json`` and the figures of an experiment.

    Parameters
    ----------
    outcome : Outcome
        What the run gave.
    folder : Path
        Where to.
    command : str
        What the run was started with, for the page.

    Returns
    -------
    Path
        The page.

    """
    experiment, report = outcome.experiment, outcome.report
    judged = not (outcome.setting.quick or outcome.source.stand_ins)
    verdicts = [settled(verdict, outcome.timing) if judged else _unjudged(verdict) for verdict in report.verdicts]
    if outcome.unmeasured:
        verdicts = _not_measured(outcome)
    about = machine()
    parts = [f"# {experiment.title}", *_setting(outcome)]
    if verdicts:
        parts += ["## What it says", markdown(_verdicts(verdicts))]
    if report.blocks:
        parts.append("## Results")
    for block in report.blocks:
        if isinstance(block, Figure):
            draw(block, folder)
            parts += [f"![{block.caption}]({block.name}.svg)", f"*{block.caption}*"]
        else:
            parts.append(block if isinstance(block, str) else markdown(block))
    parts += ["## How", _how(outcome, command, about)]
    page = folder / f"{experiment.name}.md"
    page.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    facts = {
        "experiment": experiment.name,
        "title": experiment.title,
        "command": command,
        "quick": outcome.setting.quick,
        "sets": list(outcome.setting.sets),
        "timing": None if outcome.timing is None else {"why": outcome.timing.why, "sound": outcome.timing.sound},
        "missing": outcome.missing,
        "verdicts": [asdict(verdict) for verdict in verdicts],
        "tables": [asdict(block) for block in report.blocks if isinstance(block, Table)],
        "figures": [asdict(block) for block in report.blocks if isinstance(block, Figure)],
        "machine": about,
    }
    (folder / f"{experiment.name}.json").write_text(json.dumps(facts, indent=1, default=float) + "\n", encoding="utf-8")
    return page


def _unjudged(verdict: Verdict) -> Verdict:
    return replace(verdict, status="not judged")


def settled(verdict: Verdict, timing: Timing | None) -> Verdict:
    """The verdict; one about time only where every cell was measured often enough, on a quiet machine."""
    if not verdict.timed or (timing is not None and timing.sound):
        return verdict
    why = "no times" if timing is None else timing.why
    return _unjudged(replace(verdict, reason=f"to be measured again: {why}. So far: {verdict.reason}"))


def _not_measured(outcome: Outcome) -> list[Verdict]:
    """What is said of the papers where parts of an experiment have never been measured in its present form."""
    why = f"to be measured: {len(outcome.unmeasured)} of its cells have not been, {outcome.unmeasured[0]} the first"
    name = outcome.experiment.name
    return [Verdict(key, item.about, "not judged", why) for key, item in ITEMS.items() if item.experiment == name]


def _setting(outcome: Outcome) -> list[str]:
    parts = [outcome.experiment.what]
    notes = [(name, outcome.experiment.notes.get(name) or outcome.source.note(name)) for name in outcome.setting.sets]
    lines = [f"- `{name}`: {note}." for name, note in notes if note]
    lines += [f"- `{name}` is missing: {why}." for name, why in outcome.missing.items()]
    if lines:
        parts += ["Data sets that differ from the paper's, or are missing:", "\n".join(lines)]
    if outcome.source.stand_ins:
        parts.append("**Stand-in data**, not the papers': nothing is said about their claims.")
    if outcome.setting.quick:
        parts.append(
            "**A short run:** fewer repeats, smaller settings. It shows that all works; claims are not judged by it."
        )
    elif outcome.shortened:
        parts.append("**Fewer repeats than declared** were measured; a later run with the same folder adds the others.")
    if outcome.timing is not None and not outcome.timing.sound:
        parts.append(f"**Times are not judged:** {outcome.timing.why}. Sizes, rounds and scores do not depend on it.")
    return parts


def _how(outcome: Outcome, command: str, about: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in about["versions"].items())
    repeats = outcome.repeats
    loads = values(outcome.rows, LOAD)
    busy = f" While times were measured, the machine's load average was {mean(loads):.1f}." if loads else ""
    return (
        f"`{command}`\n\n"
        f"Up to {repeats} repeat{'s' * (repeats != 1)} of each cell. {about['processor']}, {about['cores']} cores, "
        f"{about['system']}; Python {about['python']}; {versions}.{busy} All measurements: "
        f"[{outcome.experiment.name}.parquet]({outcome.experiment.name}.parquet); tables and figures as numbers: "
        f"[{outcome.experiment.name}.json]({outcome.experiment.name}.json)."
    )


def _verdicts(verdicts: Sequence[Verdict]) -> Table:
    return Table(
        ("item", "claim", "verdict", "why"),
        [(ITEMS[v.item].title, v.claim, f"**{v.status}**", v.reason) for v in verdicts],
    )


def markdown(table: Table) -> str:
    """A table as Markdown."""
    lines = [table.headings, ["---"] * len(table.headings), *table.rows]
    text = "\n".join(f"| {' | '.join(str(cell).replace('|', '/') for cell in cells)} |" for cells in lines)
    return f"{table.caption}\n\n{text}" if table.caption else text
