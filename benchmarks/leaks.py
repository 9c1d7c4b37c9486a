"""What the leak test recovers on real tables: the figures that the documents quote.

    python benchmarks/leaks.py [--data FOLDER] [--only TITLE ...] [--out docs/results/leaks.md]
    python benchmarks/leaks.py --linear --out docs/results/leaks.md
    python benchmarks/leaks.py --hidden-labels --out docs/results/leaks.md [--only TITLE ...]
    python benchmarks/leaks.py --table README.md docs/privacy.md

Columns are dealt to two parties in turns; "bank" holds the labels, "shop" is curious. Every table is used with all its
rows unless its line says otherwise, with 100 trees and the estimator's defaults. Data: Parquet files in
$WOODLOT_DATASETS, or in shared/datasets beside the repository. Exits 1 if an attack recovers less than documented.
``--linear`` attacks linear models alone, on the tables that the page has, and leaves its other lines as they are.
``--hidden-labels`` does the same with labels of hidden trainings, and runs the control: a training on permuted labels.
``--table`` measures nothing: it writes the table of roles and settings, from the figures of the last page, between
the markers of some files.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from woodlot.leaks import PARTS, Case, Finding, Part, case_of, made_up_case, run_leak_test
from woodlot.leaks.hidden_attacks import CONTROL, HIDDEN, HiddenTest, control_findings
from woodlot.leaks.summary import as_markdown, summary_rows

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "leaks.md"
SHOWN = ("spambase", "bank_full", "credit_default, 6,000 rows")
"""The data sets of the tables in README.md and docs/privacy.md."""
BEGIN, END = "<!-- leaks: roles by settings, written by benchmarks/leaks.py --table -->", "<!-- leaks: end -->"
LEAST = 0.99
"""Share of labels that the documents say are recovered."""


PROTECTED: tuple[Part, ...] = ("led", "hidden")
REST: tuple[Part, ...] = tuple(part for part in PARTS if part not in PROTECTED)


@dataclass(frozen=True)
class Table:
    """A data set, how much of it is used, and with which parameters."""

    name: str
    rows: int | None = None
    task: str = "classes"
    drop: tuple[str, ...] = ()
    leaf: int = 1
    parts: tuple[Part, ...] = REST
    sampled: bool = False
    """Whether the title says how many rows are used: the table stands there with all of them as well."""

    @property
    def title(self) -> str:
        hidden = ", led and hidden" if self.parts == PROTECTED else ""
        return (
            self.name
            + (f", {self.rows:,} rows" if self.sampled else "")
            + hidden
            + (f", min_samples_leaf={self.leaf}" if self.leaf > 1 else "")
        )


LABELS_ONLY: tuple[Part, ...] = ("labels",)
OF_ROLES: tuple[Part, ...] = ("labels", "values", "predictions")
"""What the table of roles takes, beside `PROTECTED`."""
EVERY_ROLE: tuple[Part, ...] = ("labels", "values", "led", "hidden", "predictions")
TABLES = (
    Table("made_up", 1000, parts=EVERY_ROLE),
    Table("spambase", parts=PROTECTED),
    Table("credit_default", 6000, parts=PROTECTED, sampled=True),
    Table("credit_default", parts=PROTECTED),
    Table("bank_full", 4521, parts=PROTECTED),
    Table("spambase"),
    Table("bank_full", 4521),
    Table("bank_full", 4521, leaf=5, parts=LABELS_ONLY),
    Table("bank_full", 4521, leaf=20, parts=LABELS_ONLY),
    Table("bank_full", 4521, leaf=50, parts=LABELS_ONLY),
    Table("wine_quality_white", parts=LABELS_ONLY),
    Table("appliance_energy", 5000, "targets", ("date",)),
    Table("appliance_energy", 5000, "targets", ("date",), leaf=5, parts=LABELS_ONLY),
    Table("appliance_energy", 5000, "targets", ("date",), leaf=20, parts=LABELS_ONLY),
    Table("credit_default", 6000, parts=OF_ROLES, sampled=True),
    Table("credit_default", parts=LABELS_ONLY),
)


def folder() -> Path:
    """Where the data sets are unless --data says otherwise."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "datasets"
    return Path(os.environ.get("WOODLOT_DATASETS", beside))


def case_of_table(table: Table, data: Path) -> Case:
    """The columns of one table, dealt to two parties."""
    if table.name == "made_up":
        return made_up_case(table.rows or 1500)
    arrow = pq.read_table(data / f"{table.name}.parquet").drop_columns(list(table.drop))
    # categories as numbers: revocable forests take no others
    for place, name in enumerate(arrow.column_names):
        column = arrow.column(place).combine_chunks()
        if name != "target" and not (column.type.equals("double") or str(column.type) in NUMBERS):
            codes = column if str(column.type).startswith("dictionary") else column.dictionary_encode()
            arrow = arrow.set_column(place, name, codes.indices.cast("double"))
    names = [name for name in arrow.column_names if name != "target"]
    dealing = {"bank": names[::2], "shop": names[1::2]}
    task = "targets" if table.task == "targets" else "classes"
    return case_of(arrow, "target", dealing, max_rows=table.rows, task=task)  # type: ignore[arg-type]


def attacked(table: Table, case: Case) -> tuple[int, float, list[Finding]]:
    """Rows, seconds and findings of one case."""
    start = time.process_time()

    def say(text: str) -> None:
        print(f"{table.title}: {time.process_time() - start:.0f} s, {text}", file=sys.stderr, flush=True)

    found = run_leak_test(case, {"min_samples_leaf": table.leaf}, say=say, parts=table.parts)
    if "hidden" in table.parts:
        found += control_findings(case, {}, say)
    return case.n_rows, time.process_time() - start, found


NUMBERS = ("double", "float", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool")


def measured(table: Table, data: Path) -> dict[str, Any]:
    """All that the page says of one table."""
    rows, seconds, found = attacked(table, case_of_table(table, data))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return {"rows": rows, "seconds": seconds, "gib": peak, "findings": [finding.to_dict() for finding in found]}


def mend_linear(page_file: Path, data: Path) -> None:
    """Attack linear models again, and put what is found in the place of the former lines."""
    store = page_file.with_suffix(".json")
    results = json.loads(store.read_text())
    for table in TABLES:
        former = results.get(table.title, {}).get("findings", [])
        place = [k for k, finding in enumerate(former) if finding["setting"].startswith("linear")]
        if not place:
            continue
        print(f"{table.title}: linear models", file=sys.stderr, flush=True)
        found = run_leak_test(case_of_table(table, data), parts=("linear",))
        kept = [finding for k, finding in enumerate(former) if k not in place]
        kept[place[0] : place[0]] = [finding.to_dict() for finding in found]
        results[table.title]["findings"] = kept
    store.write_text(json.dumps(results, indent=1) + "\n")
    page_file.write_text(page(results))


def mend_hidden_labels(page_file: Path, data: Path, only: Sequence[str]) -> None:
    """Attack labels of hidden trainings again, with the control, and put what is found in the place of the former."""
    store = page_file.with_suffix(".json")
    results = json.loads(store.read_text())
    for table in TABLES:
        if "hidden" not in table.parts or table.title not in results or (only and table.title not in only):
            continue
        print(f"{table.title}: labels, protection=hidden", file=sys.stderr, flush=True)
        case = case_of_table(table, data)
        found = [*HiddenTest(case, {}, _quiet).labels(), *control_findings(case, {}, _quiet)]
        kept = [f for f in results[table.title]["findings"] if f["setting"] != CONTROL and not _is_mended(f)]
        place = next(k for k, f in enumerate(kept) if f["setting"] == HIDDEN)
        kept[place:place] = [finding.to_dict() for finding in found]
        results[table.title]["findings"] = kept
        store.write_text(json.dumps(results, indent=1) + "\n")
        page_file.write_text(page(results))


def _is_mended(f: dict[str, Any]) -> bool:
    return f["setting"] == HIDDEN and f["asset"] == "labels" and str(f["role"]).endswith(("server)", "party)"))


def _quiet(text: str) -> None:
    """Say nothing."""


def page(results: dict[str, dict[str, Any]]) -> str:
    """The page of all tables that have been measured."""
    lines = list(HEAD)
    for table in TABLES:
        if table.title not in results:
            continue
        one = results[table.title]
        drawn = "" if table.name == "made_up" else " drawn at random" if table.rows else ", all"
        size = f"{one['rows']:,} rows{drawn}"
        lines += [
            "",
            f"## {table.title}",
            "",
            f"{size}, 100 trees, {one['seconds']:.0f} s of CPU, {one['gib']:.1f} GiB.",
            "",
        ]
        lines += ["| who | setting | at stake | attack | measure | reached | without | verdict |", "|---" * 8 + "|"]
        for f in one["findings"]:
            figures = " | " if f["value"] is None else f"{f['value']:.3f} | {f['baseline']:.3f}"
            about = " | ".join(f[name] for name in ("role", "setting", "asset", "attack", "measure"))
            lines.append(f"| {about} | {figures} | {f['verdict']} |")
    return "\n".join(lines) + "\n"


def role_table(results: dict[str, dict[str, Any]], name: str) -> list[str]:
    """The table of roles and settings of one data set, from all that was measured of it."""
    found = [f for title in (name, f"{name}, led and hidden") for f in results.get(title, {}).get("findings", [])]
    return as_markdown(summary_rows(found, "bank"))


def shown_tables(results: dict[str, dict[str, Any]], names: Sequence[str]) -> list[str]:
    """The tables of some data sets, each below its name and size."""
    lines = []
    for name in names:
        lines += [f"**{name.partition(',')[0]}**, {results[name]['rows']:,} rows:", "", *role_table(results, name), ""]
    return lines


def write_tables(files: list[Path]) -> int:
    """Write the table of roles between the markers of some files."""
    results = json.loads(PAGE.with_suffix(".json").read_text())
    for path in files:
        text = path.read_text()
        before, rest = text.split(BEGIN)
        after = rest.split(END)[1]
        names = SHOWN[:1] if path.name == "README.md" else SHOWN  # README has little room
        path.write_text(before + "\n".join([BEGIN, "", *shown_tables(results, names), END]) + after)
    return 0


def main() -> int:
    """Attack the tables and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=folder())
    parser.add_argument("--only", nargs="*", default=[], help="titles of tables; the others stay as they are")
    parser.add_argument("--out", type=Path, help="the page; its figures go into a .json file beside it")
    parser.add_argument("--linear", action="store_true", help="linear models alone; needs --out")
    parser.add_argument("--hidden-labels", action="store_true", help="labels of hidden trainings alone; needs --out")
    parser.add_argument("--table", nargs="*", type=Path, help="files in which the table of roles is written again")
    options = parser.parse_args()
    if options.table is not None:
        return write_tables(options.table)
    if not options.data.is_dir():
        print("No data sets: give their folder with --data or WOODLOT_DATASETS. Nothing measured.")
        return 0
    if options.linear:
        mend_linear(options.out or PAGE, options.data)
        return 0
    if options.hidden_labels:
        mend_hidden_labels(options.out or PAGE, options.data, options.only)
        return 0
    store = None if options.out is None else options.out.with_suffix(".json")
    results = json.loads(store.read_text()) if store is not None and store.is_file() else {}
    failed = []
    for table in TABLES:
        if options.only and not {table.title} & set(options.only):
            continue
        results[table.title] = one = measured(table, options.data)
        failed += [f"{table.title}: {f['role']}, {f['attack']}" for f in one["findings"] if _falls_short(table, f)]
        if store is None:
            continue
        store.write_text(json.dumps(results, indent=1) + "\n")
        options.out.write_text(page(results))
    if store is None:
        print(page(results))
    for line in failed:
        print(f"less than {LEAST:.0%} recovered: {line}", file=sys.stderr)
    return 1 if failed else 0


def _falls_short(table: Table, f: dict[str, Any]) -> bool:
    """Whether an attack recovers less than the documents say."""
    if f["value"] is None or f["asset"] != "labels" or not f["setting"].startswith("protection="):
        return False
    return f["role"] == "coordinator" and bool(f["value"] < LEAST)


HEAD = """\
# What the leak test recovers on real tables

Written by `python benchmarks/leaks.py --out docs/results/leaks.md`. The attacks are those of `woodlot leak-test`
([command line](../command-line.md)), which runs them against your own table. Each uses the messages that its role gets,
and nothing else. "without" is what the same role reaches without any message: the largest class, guessing the mean, or
predicting from its own columns with as many known values; for labels of hidden trainings, where none is known, the
clusters of its own columns if these tell more than the largest class. "control: labels permuted" is the same attack
on a training that never had the labels: what it reads is in the party's own columns. A line without figures was
**not attacked**: nothing is said of it. Columns are dealt to two parties in turns; `bank` holds the labels, `shop` is
curious. Categories are given as numbers.""".splitlines()

if __name__ == "__main__":
    sys.exit(main())
