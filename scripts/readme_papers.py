"""Write what docs/tour.md says of the papers, from the pages in docs/results: run it after new runs of experiments."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

from woodlot_lab.catalogue import MODULES
from woodlot_lab.papers import ITEMS, PAPERS

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"
BEGIN, END = "<!-- papers:begin -->", "<!-- papers:end -->"
STATES = ("confirmed", "partly", "not confirmed")
NAMES = {
    "ionosphere": "ionosphere, accuracy",
    "parkinson_speech_756_subset": "Parkinson speech (148 of 754 columns)",
    "kddcup99_10pct": "KDD 99 (10 %; 5 rounds)",
    "superconduct_subset": "superconductors, RMSE (a fifth of the rows)",
}
"""Data sets whose own name says too little."""


def accuracy() -> list[str]:
    """Tables 3 and 4 of Federated Forest."""
    lines = [
        "| Federated Forest, Tables 3 and 4; 40 rounds | one party alone | F-LR | all columns, scikit-learn | "
        "federated | the paper's federated | p | identical to the bit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for table in read("ff-accuracy")["tables"]:
        for row in table["rows"]:
            cell = dict(zip(table["headings"], row, strict=True))
            ours, paper = zip(*(split(cell[name]) for name in ("RF1", "RF2", "F-LR", "NonFF", "FF", "p")), strict=True)
            alone = ", ".join(value.partition(" ±")[0] for value in ours[:2])
            linear = ours[2].partition(" ±")[0].strip("-")
            lines.append(
                f"| {NAMES.get(cell['data set'], cell['data set'])} | {alone} | {linear} | {ours[3]} | **{ours[4]}** "
                f"| {paper[4]} | {float(ours[5]):.2f} | {cell['identical to the bit']} |"
            )
    return lines


def claims() -> list[str]:
    """How many claims of each paper were found."""
    lines = [f"| claims of the papers | {' | '.join(STATES)} | not judged yet |", "|---|---|---|---|---|"]
    for paper in PAPERS:
        counts: Counter[str] = Counter()
        for key, item in ITEMS.items():
            if item.paper == paper and item.experiment is not None:
                page = read(item.experiment) if (RESULTS / f"{item.experiment}.json").exists() else {"verdicts": []}
                counts.update([v["status"] for v in page["verdicts"] if v["item"] == key] or ["not run"])
        others = sum(counts.values()) - sum(counts[state] for state in STATES)
        lines.append(f"| {paper} | {' | '.join(str(counts[state]) for state in STATES)} | {others} |")
    return lines


def read(name: str) -> dict[str, Any]:
    """What a run has found."""
    if name not in MODULES:
        raise ValueError(f"there is no experiment {name}")
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def split(cell: str) -> tuple[str, str]:
    """Ours, and the paper's in brackets."""
    ours, _, paper = cell.partition(" (")
    return ours, paper.rstrip(")")


def main() -> None:
    """Write the block again."""
    block = "\n".join(
        [
            *accuracy(),
            "",
            "p: Z-test that federated and scikit-learn have the same mean. Identical: rounds in which the federated "
            "forest is, split by\nsplit and leaf by leaf, the forest grown on all columns in one place.",
            "",
            *claims(),
            "",
            "Why a claim was found only in part, or not, is [said beside it](results/README.md).",
        ]
    )
    path = ROOT / "docs" / "tour.md"
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(f"{BEGIN}.*{END}", lambda _: f"{BEGIN}\n{block}\n{END}", text, flags=re.DOTALL), "utf-8")


if __name__ == "__main__":
    main()
