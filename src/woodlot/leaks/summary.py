"""One table of a leak test: roles by settings, and in each cell the best attack beside guessing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SETTINGS = ("open, lead=coordinator", "open, lead=holder", "hidden")
ROLES = ("coordinator or dealer", "label holder", "second server", "other party", "who answers predictions", "user")
NOTHING = "not attacked"


def _places(finding: Mapping[str, Any], holder: str) -> list[tuple[str, str]]:
    """Rows and columns of the table that a finding belongs to."""
    role, setting = str(finding["role"]), str(finding["setting"])
    opened = SETTINGS[:2]
    if setting == "hidden":
        name = ROLES[0] if role in ("dealer", "coordinator") else ROLES[1] if role == holder else role
        name = ROLES[2] if name.endswith("(second server)") else ROLES[3] if name.endswith("(other party)") else name
        return [(name, SETTINGS[2])]
    if setting.startswith("hidden, "):
        return [(ROLES[4], SETTINGS[2])]
    if setting == SETTINGS[1]:
        return [(ROLES[0] if role == "coordinator" else ROLES[1], setting)]
    if setting == "protection=open":
        if role == "coordinator":
            return [(ROLES[0], SETTINGS[0])]
        return [(ROLES[1] if role == holder else ROLES[3], one) for one in opened]
    if setting in ("open predictions", "sealed predictions"):
        return [(ROLES[4], one) for one in opened]
    return [(ROLES[5], one) for one in opened] if role == "user" and setting == "vertical" else []


def best_attacks(
    findings: Iterable[Mapping[str, Any]], holder: str
) -> dict[tuple[str, str], dict[str, tuple[float, float]]]:
    """By role, setting and asset: what the best attack reached, and what it reaches without messages.

    Parameters
    ----------
    findings : iterable of mapping
        Findings as plain values (`Finding.to_dict`).
    holder : str
        The label holder.

    """
    best: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for finding in findings:
        for place in _places(finding, holder):
            cell = best.setdefault(place, {})
            value, baseline, asset = finding["value"], finding["baseline"], str(finding["asset"])
            if value is None or baseline is None:
                continue
            if asset not in cell or value - baseline > cell[asset][0] - cell[asset][1]:
                cell[asset] = (float(value), float(baseline))
    return best


def summary_rows(findings: Iterable[Mapping[str, Any]], holder: str) -> list[list[str]]:
    """The table's rows: a role, and for every setting the best attacks beside guessing."""
    best = best_attacks(findings, holder)

    def cell(role: str, setting: str) -> str:
        found = best.get((role, setting), {})
        if role == ROLES[2] and setting != SETTINGS[2]:
            return "no such role"
        return "; ".join(f"{asset} {found[asset][0]:.2f} ({found[asset][1]:.2f})" for asset in sorted(found)) or NOTHING

    return [[role, *(cell(role, setting) for setting in SETTINGS)] for role in ROLES]


def as_markdown(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a Markdown table."""
    head = ["role", *SETTINGS]
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
