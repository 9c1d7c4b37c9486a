"""Real tables: Woodlot against scikit-learn, scikit-learn-intelex, XGBoost and YDF, interleaved in one run.

    python benchmarks/real.py [set ...] [--settings default depth10] [--repeats 5] [--minutes 25]
        [--out docs/results/real.md] [--readme README.md]

The libraries besides scikit-learn are measured where they are installed; none is a dependency of Woodlot:

    pip install scikit-learn-intelex xgboost-cpu ydf

Best in an environment of its own: ydf needs another protobuf than openmined-psi, which the tests need.

Each repeat fits every library once on the same three quarters of the rows, with two threads, and has it predict the
last quarter. The table has medians: CPU seconds of Woodlot, how many times as long the others take (by CPU time and by
the clock), and accuracy (R2 for regression). A library that takes longer than ``--patience`` seconds is measured once.
With ``--minutes`` each set has its share of the time that is left, and fewer repeats where that is spent; every library
is measured at least once. ``--readme`` writes a sentence on fits at default settings between two marks of that file.
Data: parquet files in $WOODLOT_DATASETS, or in shared/datasets beside the repository.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import platform
import statistics
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.metrics import accuracy_score, r2_score
from sklearn.model_selection import train_test_split

import woodlot as wl
from accuracy import NOT_FEATURES, folder

JOBS = 2
TREES = 100
SETS = [
    "adult", "letter", "pendigits", "bank_full", "credit_default", "kddcup99_10pct", "spambase", "wine_quality_white",
    "appliance_energy", "superconduct_subset",
]  # fmt: skip
REGRESSION = {"appliance_energy", "superconduct_subset"}
SETTINGS: dict[str, int | None] = {"default": None, "depth10": 10}
TITLES = {"default": "Default settings: trees without a limit", "depth10": "Trees of depth 10"}
PACKAGES = {
    "Woodlot": "woodlot",
    "scikit-learn": "sklearn",
    "intelex": "sklearnex",
    "XGBoost": "xgboost",
    "YDF": "ydf",
}
DISTRIBUTIONS = {"intelex": ("scikit-learn-intelex",), "XGBoost": ("xgboost", "xgboost-cpu")}
QUIET = 0.1
"""Share of the machine that other processes may use before wall times are marked."""


@dataclass(frozen=True)
class Data:
    """One set, split once, in the forms that the libraries take."""

    name: str
    table: tuple[pa.Table, pa.Table]
    """Columns as they are, categories included: for Woodlot and YDF."""
    X: tuple[np.ndarray, np.ndarray]
    """float32, categories as their codes, -1 where missing: for the others."""
    y: tuple[np.ndarray, np.ndarray]

    @property
    def classify(self) -> bool:
        return self.name not in REGRESSION

    @property
    def shape(self) -> str:
        categories = sum(pa.types.is_dictionary(kind) for kind in self.table[0].schema.types)
        what = f"{len(np.unique(self.y[0]))} classes" if self.classify else "regression"
        columns = f"{self.X[0].shape[1]}" + (f" ({categories} of categories)" if categories else "")
        return f"{len(self.X[0]):,} x {columns}, {what}"


@dataclass
class Times:
    """Seconds of every repeat of one library, and its score."""

    fit: list[tuple[float, float]] = field(default_factory=list)
    predict: list[tuple[float, float]] = field(default_factory=list)
    score: float = float("nan")

    def median(self, what: str, clock: int) -> float:
        """Median seconds of ``fit`` or ``predict``; clock 0 is the wall's, 1 the CPU's."""
        return statistics.median(pair[clock] for pair in getattr(self, what))


def read(name: str) -> Data:
    """Read a set and split it: a quarter of the rows is predicted."""
    table = pq.read_table(folder() / f"{name}.parquet").drop_columns(NOT_FEATURES.get(name, []))
    labels = np.array(table.column("target").to_pylist())
    y = labels.astype(np.float64) if name in REGRESSION else np.unique(labels, return_inverse=True)[1]
    table = table.drop_columns(["target"]).replace_schema_metadata(None)
    for place, column in enumerate(table.column_names):
        if pa.types.is_string(table.schema.field(column).type):
            table = table.set_column(place, column, table.column(column).dictionary_encode())
    X = np.column_stack([_numbers(column) for column in table.itercolumns()])
    train, test = train_test_split(np.arange(len(y)), test_size=0.25, random_state=0)
    parts = (np.sort(train), np.sort(test))
    return Data(
        name,
        tuple(table.take(rows) for rows in parts),
        tuple(np.ascontiguousarray(X[rows]) for rows in parts),
        tuple(y[rows] for rows in parts),
    )


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    if pa.types.is_dictionary(column.type):
        return column.combine_chunks().indices.cast(pa.int64()).fill_null(-1).to_numpy().astype(np.float32)
    return column.cast(pa.float64()).to_numpy().astype(np.float32)


# --- the libraries: each gives a function that fits, whose result predicts ---

Fit = Callable[[], Callable[[], np.ndarray]]


def woodlot_fit(data: Data, depth: int | None) -> Fit:
    kind = wl.FederatedForestClassifier if data.classify else wl.FederatedForestRegressor

    def fit() -> Callable[[], np.ndarray]:
        model = kind(TREES, parties=2, max_depth=depth, n_jobs=JOBS, random_state=0).fit(data.table[0], data.y[0])
        return lambda: model.predict(data.table[1])

    return fit


def sklearn_fit(data: Data, depth: int | None) -> Fit:
    from sklearn import ensemble

    return _as_sklearn(ensemble, data, depth)


def intelex_fit(data: Data, depth: int | None) -> Fit:
    from sklearnex import ensemble

    return _as_sklearn(ensemble, data, depth)


def _as_sklearn(ensemble: Any, data: Data, depth: int | None) -> Fit:
    kind = ensemble.RandomForestClassifier if data.classify else ensemble.RandomForestRegressor

    def fit() -> Callable[[], np.ndarray]:
        model = kind(TREES, max_depth=depth, n_jobs=JOBS, random_state=0).fit(data.X[0], data.y[0])
        return lambda: model.predict(data.X[1])

    return fit


def xgboost_fit(data: Data, depth: int | None) -> Fit:
    import xgboost

    p = data.X[0].shape[1]
    kind = xgboost.XGBRFClassifier if data.classify else xgboost.XGBRFRegressor
    params = {
        "max_depth": depth or 0,  # 0: no limit
        "colsample_bynode": int(np.sqrt(p)) / p if data.classify else 1.0,
        "subsample": 0.632,
        "reg_lambda": 0.0,
        "tree_method": "hist",
    }
    classes, y = np.unique(data.y[0], return_inverse=True) if data.classify else (np.empty(0), data.y[0])

    def fit() -> Callable[[], np.ndarray]:
        model = kind(n_estimators=TREES, n_jobs=JOBS, random_state=0, **params).fit(data.X[0], y)
        return lambda: classes[model.predict(data.X[1])] if data.classify else model.predict(data.X[1])

    return fit


def ydf_fit(data: Data, depth: int | None) -> Fit:
    import ydf

    ydf.verbose(0)
    learner = ydf.RandomForestLearner(
        label="label",
        task=ydf.Task.CLASSIFICATION if data.classify else ydf.Task.REGRESSION,
        num_trees=TREES,
        max_depth=depth or -1,
        min_examples=1,
        num_candidate_attributes=0 if data.classify else -1,  # 0: the square root, -1: all
        winner_take_all=False,
        compute_oob_performances=False,
        num_threads=JOBS,
    )
    train, test = (_plain_columns(part) for part in data.table)
    # its classes are text; the numbers stand for them in the order of their codes
    train["label"] = data.y[0].astype(str) if data.classify else data.y[0].astype(np.float32)

    def fit() -> Callable[[], np.ndarray]:
        model = learner.train(train)
        if not data.classify:
            return lambda: model.predict(test)
        classes = np.array([int(label) for label in model.label_classes()])

        def predict() -> np.ndarray:
            answers = model.predict(test)
            places = (answers > 0.5).astype(int) if answers.ndim == 1 else answers.argmax(axis=1)
            return classes[places]

        return predict

    return fit


def _plain_columns(table: pa.Table) -> dict[str, np.ndarray]:
    columns = {}
    for name, column in zip(table.column_names, table.itercolumns(), strict=True):
        if pa.types.is_dictionary(column.type):
            texts = column.cast(pa.string()).fill_null("").to_pylist()
            columns[name] = np.array(texts, dtype=np.bytes_)
        else:
            columns[name] = column.cast(pa.float32(), safe=False).to_numpy()  # large whole numbers are rounded
    return columns


FITS: dict[str, Callable[[Data, int | None], Fit]] = {
    "Woodlot": woodlot_fit,
    "scikit-learn": sklearn_fit,
    "intelex": intelex_fit,
    "XGBoost": xgboost_fit,
    "YDF": ydf_fit,
}


def installed() -> list[str]:
    """The libraries that can be measured here."""
    return [name for name, package in PACKAGES.items() if _can_be_imported(name, package)]


def _can_be_imported(name: str, package: str) -> bool:
    """Whether a library is there and works: one may be installed beside versions of others that it refuses."""
    if importlib.util.find_spec(package) is None:
        return False
    try:
        importlib.import_module(package)
    except Exception as error:  # noqa: BLE001 - protobuf's own kind of error, for one
        print(f"{name} is installed and cannot be imported: {str(error).splitlines()[0]}")
        return False
    return True


# --- measuring ---


def timed(call: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    """What a call returns, and its seconds: of the wall clock, and of the CPU over all threads of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return result, (time.perf_counter() - wall, time.process_time() - cpu)


def measure(
    data: Data, depth: int | None, libraries: list[str], repeats: int, patience: float, at_most: float
) -> dict[str, Times]:
    """All libraries in turn, repeat after repeat; no repeat begins that would not end within ``at_most`` seconds."""
    begin = time.perf_counter()
    # XGBoost grows a tree for each class: this takes minutes where others take seconds
    n_classes = len(np.unique(data.y[0])) if data.classify else 0
    too_long = n_classes > (2 if depth is None else 10)
    libraries = [name for name in libraries if not (name == "XGBoost" and too_long)]
    fits = {name: FITS[name](data, depth) for name in libraries}
    fits["Woodlot"]()()  # kernels are compiled or loaded before any clock runs
    times = {name: Times() for name in libraries}
    longest = 0.0
    for repeat in range(repeats):
        start = time.perf_counter()
        if repeat and start + longest > begin + at_most:
            break
        for name, fit in fits.items():
            own = times[name]
            if repeat and own.fit[0][1] > patience * JOBS:
                continue
            predict, seconds = timed(fit)
            own.fit.append(seconds)
            answers, seconds = timed(predict)
            own.predict.append(seconds)
            own.score = float((accuracy_score if data.classify else r2_score)(data.y[1], answers))
        longest = max(longest, time.perf_counter() - start)
    return times


class OtherWork:
    """How much of the machine other processes use while this one measures, by Linux's own counts."""

    def __init__(self) -> None:
        self._before = self._counts()

    @staticmethod
    def _counts() -> tuple[float, float, float] | None:
        try:
            first = Path("/proc/stat").read_text(encoding="ascii").splitlines()[0].split()
        except OSError:
            return None
        numbers = [int(number) for number in first[1:9]]
        ticks = os.sysconf("SC_CLK_TCK")
        idle = (numbers[3] + numbers[4]) / ticks
        return sum(numbers) / ticks, idle, time.process_time()

    def share(self) -> float | None:
        """Share of all cores' time since the beginning; None where the system does not tell."""
        before, now = self._before, self._counts()
        if before is None or now is None:
            return None
        total, idle, own = (b - a for a, b in zip(before, now, strict=True))
        return max(0.0, (total - idle - own) / total) if total > 0 else None


# --- the page ---


def times_of(times: dict[str, Times], name: str, what: str) -> str:
    """How many times as long a library takes as Woodlot: CPU / wall."""
    if name not in times:
        return "-"
    ours, theirs = times["Woodlot"], times[name]
    once = "¹" if len(theirs.fit) == 1 else ""
    cpu, wall = (theirs.median(what, clock) / max(ours.median(what, clock), 1e-9) for clock in (1, 0))
    return f"{cpu:.2g}x / {wall:.2g}x{once}" if max(cpu, wall) < 100 else f"{cpu:.0f}x / {wall:.0f}x{once}"


def row(data: Data, times: dict[str, Times], others: list[str], what: str) -> str:
    ours = times["Woodlot"]
    told = [f"{times[name].score:.4f}" if name in times else "-" for name in ["Woodlot", *others]]
    scores = " | ".join(told) if what == "fit" else ""
    ratios = " | ".join(times_of(times, name, what) for name in others)
    size = data.shape if what == "fit" else f"{len(data.X[1]):,} rows"
    digits = 2 if what == "fit" else 3
    cells = [data.name, size, f"{ours.median(what, 1):.{digits}f} / {ours.median(what, 0):.{digits}f}", ratios]
    return "| " + " | ".join([*cells, scores] if scores else cells) + " |"


def head(others: list[str], what: str) -> list[str]:
    cells = ["set", "rows x columns" if what == "fit" else "predicted", "Woodlot s, CPU / wall", *others]
    if what == "fit":
        cells += [f"score {name}" for name in ["Woodlot", *others]]
    return ["| " + " | ".join(cells) + " |", "|" + "---|" * len(cells)]


def machine() -> str:
    """Name the processor, the cores and the libraries."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return f"{names[0] if names else platform.processor() or platform.machine()}, {os.cpu_count()} cores"


def release(name: str) -> str:
    """A library with its version."""
    for distribution in DISTRIBUTIONS.get(name, (name.lower(),)):
        try:
            return f"{name} {version(distribution)}"
        except ModuleNotFoundError:
            continue
    return name


def page(tables: dict[str, dict[str, list[str]]], others: list[str], repeats: int, busy: float | None) -> str:
    """The page of results."""
    if busy is None:
        load = "How much other processes used the machine is not known here."
    elif busy > QUIET:
        load = (
            f"**Other processes used {busy:.0%} of the machine during the run: the wall times are measured under load "
            "and only the CPU ratios tell something.** Run the command again at a quiet moment."
        )
    else:
        load = f"Other processes used {busy:.0%} of the machine during the run."
    lines = [
        "# Real tables",
        "",
        "Written by `python benchmarks/real.py --out docs/results/real.md`; the libraries are interleaved in one run, "
        f"medians of up to {repeats} repeats, {JOBS} threads each, {TREES} trees. Machine: {machine()}, Python "
        f"{platform.python_version()}. {', '.join(release(name) for name in others)}. {load}",
        "",
        "Columns of ratios say how many times as long a library takes as Woodlot with two parties in process, every "
        "message through the codec: CPU / wall. Scores are accuracy, or R2 for regression, on a held-out quarter. "
        "Woodlot and YDF take columns of categories as they are; the others take the categories' codes as numbers, "
        "which is less work. XGBoost grows one tree per class of gradients instead of one tree of class counts, and "
        "finds splits in at most 256 bins; with more than 10 classes, or 2 where depth has no limit, it is left out. "
        "¹ measured once, because it takes long.",
        "",
    ]
    for setting, parts in tables.items():
        lines += [f"## {TITLES[setting]}", "", *parts["fit"], "", "Prediction of the held-out quarter:", ""]
        lines += [*parts["predict"], ""]
    return "\n".join(lines)


README_MARKS = ("<!-- real tables: written by benchmarks/real.py -->", "<!-- end of real tables -->")


def wall_ratios(times: dict[str, Times]) -> dict[str, float]:
    """How many times as long as Woodlot's fit the others' take by the clock."""
    ours = max(times["Woodlot"].median("fit", 0), 1e-9)
    return {name: own.median("fit", 0) / ours for name, own in times.items()}


def write_readme(path: Path, ratios: list[dict[str, float]], busy: float | None) -> None:
    """Put what the first table says between the marks of a file, in a sentence."""
    text = path.read_text(encoding="utf-8")
    before, first, rest = text.partition(README_MARKS[0])
    _, last, after = rest.partition(README_MARKS[1])
    if not first or not last:
        raise SystemExit(f"{path} has no marks {README_MARKS[0]!r} and {README_MARKS[1]!r} to write between.")
    load = "" if busy is None or busy <= QUIET else f" Other processes used {busy:.0%} of the machine."
    spans = []
    for name, words in {"scikit-learn": "scikit-learn", "intelex": "scikit-learn-intelex"}.items():
        found = [ratio[name] for ratio in ratios if name in ratio]
        if found:
            spans.append(f"{words} {min(found):.1f} to {max(found):.1f}")
    told = (
        f"{len(ratios)} real tables, default settings, two parties in one process: {', '.join(spans)} times as long "
        f"([table](docs/results/real.md)).{load}"
    )
    told = textwrap.fill(told, 120, break_long_words=False, break_on_hyphens=False)
    path.write_text("\n".join([before + first, told, last + after]), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("sets", nargs="*", default=SETS)
    parser.add_argument("--settings", nargs="*", choices=list(SETTINGS), default=list(SETTINGS))
    parser.add_argument("--libraries", nargs="*", choices=list(FITS), help="by default all that are installed")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--patience", type=float, default=20.0, help="seconds after which a fit is not repeated")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="of the whole run, about")
    parser.add_argument("--out")
    parser.add_argument("--readme", help="file with two marks, between which a sentence on the first table is written")
    arguments = parser.parse_args()
    if not folder().is_dir():
        print("No data sets: set WOODLOT_DATASETS to a folder of parquet files (see the docstring). Nothing measured.")
        return 0
    libraries = ["Woodlot", *(n for n in arguments.libraries or installed() if n != "Woodlot")]
    others = libraries[1:]
    missing = [name for name in FITS if name not in libraries]
    if missing:
        print(f"Not measured, because not installed or not asked for: {', '.join(missing)}.")
    load, end = OtherWork(), time.perf_counter() + 60 * arguments.minutes
    waiting = len(arguments.settings) * len(arguments.sets)
    tables: dict[str, dict[str, list[str]]] = {}
    ratios: list[dict[str, float]] = []
    for setting in arguments.settings:
        tables[setting] = {what: head(others, what) for what in ("fit", "predict")}
        print(f"{TITLES[setting]}\n" + "\n".join(tables[setting]["fit"]), flush=True)
        for name in arguments.sets:
            data = read(name)
            share = (end - time.perf_counter()) / waiting
            times = measure(data, SETTINGS[setting], libraries, arguments.repeats, arguments.patience, share)
            waiting -= 1
            if setting == "default":
                ratios.append(wall_ratios(times))
            for what, lines in tables[setting].items():
                lines.append(row(data, times, others, what))
                print(lines[-1], flush=True)
            if arguments.out:
                text = page(tables, others, arguments.repeats, load.share())
                Path(arguments.out).write_text(text, encoding="utf-8")
    if arguments.readme and "default" in tables:
        write_readme(Path(arguments.readme), ratios, load.share())
    return 0


if __name__ == "__main__":
    sys.exit(main())
