"""Sizes of the papers' data sets, and of those at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from woodlot_lab.data import SPECS, DataSource
from woodlot_lab.experiment import (
    Cell,
    Experiment,
    Params,
    Report,
    Row,
    Setting,
    Table,
    Verdict,
    judge,
)
from woodlot_lab.statistics import select


@dataclass(frozen=True)
class Told:
    """What a paper says of a set: rows, features, classes (0: numbers), or None where it says nothing."""

    item: str
    name: str
    rows: int
    features: int
    classes: int | None


TABLES: Mapping[str, str] = {
    "ff19-tables-2-3": "Federated Forest", "ffj-tables-1-2": "Federated Forest (journal)",
    "fet-table-1": "Federated Extra-Trees", "rev-table-8": "RevFRF", "collab-settings": "slides",
}  # fmt: skip
_FEDERATED_FOREST = (
    ("ionosphere", 351, 34, 2), ("spambase", 4601, 57, 2), ("parkinson_speech_756_subset", 756, 754, 2),
    ("kddcup99_10pct", 4_000_000, 42, 23), ("waveform", 5000, 21, 3), ("gene", 801, 20531, 5),
    ("year_prediction", 515_345, 90, 0), ("superconduct_subset", 21_263, 81, 0),
)  # fmt: skip
PAPERS: tuple[Told, ...] = (
    *(Told("ff19-tables-2-3", *told) for told in _FEDERATED_FOREST),
    *(Told("ffj-tables-1-2", *told) for told in _FEDERATED_FOREST),
    Told("fet-table-1", "spambase", 4600, 57, 2),
    Told("fet-table-1", "credit_default", 30_000, 23, 2),
    Told("fet-table-1", "waveform", 5000, 21, 3),
    Told("fet-table-1", "letter", 20_000, 16, 26),
    Told("fet-table-1", "kddcup99_10pct", 4_000_000, 42, 23),
    Told("rev-table-8", "adult", 48_842, 14, None),
    Told("rev-table-8", "bank_full", 45_211, 17, None),
    Told("rev-table-8", "drug_consumption_heroin_ever", 1885, 32, None),
    Told("rev-table-8", "wine_quality_white", 4898, 12, None),
    Told("rev-table-8", "superconduct_subset", 21_263, 81, 0),
    Told("rev-table-8", "appliance_energy", 19_735, 29, 0),
    Told("rev-table-8", "insurance_coil2000", 9_000, 86, 0),
    Told("rev-table-8", "online_news_subset", 39_797, 61, 0),
    Told("collab-settings", "pendigits", 10_992, 16, 10),
    Told("collab-settings", "letter", 20_000, 16, 26),
)
NEAR = 0.01
"""Rows differ by less: copies of one set differ by a line or two."""
ABSENT = {"ff19-tables-2-3": "target marketing (not public)", "ffj-tables-1-2": "target marketing (not public)",
          "fet-table-1": "MIMIC (not public without a contract)"}  # fmt: skip


def cells(setting: Setting) -> list[Cell]:
    """One for each set at hand."""
    return [Cell({"set": name}) for name in setting.sets]


def measure(params: Params, seed: int, data: DataSource) -> Sequence[Row]:
    """Count."""
    found = data.load(params["set"])
    classes = len(np.unique(found.y)) if found.task == "classes" else 0
    return [{"rows": len(found.y), "features": found.X.shape[1], "classes": classes}]


def report(rows: Sequence[Row], setting: Setting) -> Report:
    """The papers' tables with the sizes at hand beside them."""
    lines: list[list[str]] = []
    verdicts: list[Verdict] = []
    for item, paper in TABLES.items():
        told = [each for each in PAPERS if each.item == item]
        whole: list[str] = []
        partial: list[str] = []
        missing = [ABSENT[item]] if item in ABSENT else []
        for each in told:
            at_hand = select(rows, set=each.name)
            ours = at_hand[0] if at_hand else None
            if ours is None:
                missing.append(each.name)
            else:
                # RevFRF counts the target, or an id, as a feature
                same = abs(ours["rows"] / each.rows - 1) < NEAR and 0 <= each.features - ours["features"] <= 2
                (whole if same else partial).append(each.name)
            lines.append(
                [paper, each.name, f"{each.rows:,} x {each.features:,}",
                 "not at hand" if ours is None else f"{ours['rows']:,} x {ours['features']:,}",
                 "" if each.classes is None else str(each.classes or "numbers"),
                 "" if ours is None else str(ours["classes"] or "numbers"), SPECS[each.name].note]
            )  # fmt: skip
        if whole or partial:
            text = f"{len(whole)} of {len(told)} whole"
            text += f"; partly or differing: {', '.join(partial)}" if partial else ""
            text += f"; not at hand: {', '.join(missing)}" if missing else ""
            verdicts.append(judge(item, "data sets of these sizes", (not partial and not missing, bool(whole)), text))
    headings = ("paper", "data set", "paper: rows x features", "at hand", "paper: classes", "at hand", "note")
    return Report([Table(headings, lines)], verdicts)


EXPERIMENT = Experiment(
    name="data-sets",
    title="Data sets of the papers, and those at hand",
    what="Tables of data sets in all papers: what they say, and what the runs on these pages had.",
    sets=tuple(dict.fromkeys(told.name for told in PAPERS)),
    stand_ins=("waveform_generated", "breast_cancer", "digits", "wine", "diabetes", "friedman"),
    cells=cells,
    measure=measure,
    report=report,
    minutes=1,
    parallel=False,
)
