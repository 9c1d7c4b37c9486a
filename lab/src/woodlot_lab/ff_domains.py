"""Federated Forest: accuracy, training and prediction time against the number of domains."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

import woodlot as wl
from woodlot.exceptions import DataError
from woodlot_lab.data import Dataset, DataSource
from woodlot_lab.experiment import (
    TIMED_REPEATS,
    Cell,
    Experiment,
    Figure,
    Panel,
    Params,
    Report,
    Row,
    Setting,
    Table,
    Verdict,
    judge,
)
from woodlot_lab.forests import Split, federated, quality, split
from woodlot_lab.network import LABEL, NO_LINK, PAPER_LINK, networked, tables_of
from woodlot_lab.statistics import (
    CLEARLY,
    STRAIGHT,
    curve,
    distinct,
    line,
    mean,
    paired_z,
    pm,
    select,
    straightness,
    values,
)

DOMAINS = (
    ("baseline", r"gender|PPE|DFA|RPDE|.*(Pulses|Jitter|Shimmer|Harmonicity)"),
    ("intensity", r".*Intensity"),
    ("formant", r"f\d"),
    ("bandwidth", r"b\d"),
    ("vocal fold", r"(GQ|GNE|VFER|IMF)_.*"),
    ("MFCC", r"(mean|std)_.*"),
    ("wavelet", r"Ea2?|(Ed2?|det|app)_.*"),
    ("TQWT", r"tqwt_.*"),
)
"""Parkinson's domains by their columns' names, in the order of the file."""
GROUPS = 4
"""Groups of columns where a set has no domains of its own."""
ACCURACY_TREES = 100
"""All features are tried at each node: with a share of them, a domain that joins takes places from the others."""
TREES = 50
COPIES = 10
"""The paper measures times on the rows ten times over."""


def domains(data: Dataset) -> dict[str, list[int]]:
    """Columns of each domain; every column belongs to one."""
    if "parkinson" not in data.name:
        parts = np.array_split(np.arange(len(data.columns)), GROUPS)
        return {f"group {number + 1}": part.tolist() for number, part in enumerate(parts)}
    found: dict[str, list[int]] = {name: [] for name, _ in DOMAINS}
    for place, column in enumerate(data.columns):
        domain = next((name for name, pattern in DOMAINS if re.fullmatch(pattern, column)), None)
        if domain is None:
            raise DataError(f"column {column!r} of {data.name} belongs to none of the domains {list(found)}")
        found[domain].append(place)
    return {name: columns for name, columns in found.items() if columns}


def cells(setting: Setting) -> list[Cell]:
    """Accuracy in process, many repeats; times over the network, few."""
    return [
        Cell({"set": name, "what": what, "trees": setting.pick(trees, 10)}, repeats)
        for name in setting.sets
        for what, trees, repeats in (
            ("accuracy", ACCURACY_TREES, setting.pick(60, 2)),
            ("time", TREES, setting.pick(TIMED_REPEATS, 1)),
        )
    ]


def measure(params: Params, seed: int, data: DataSource) -> Sequence[Row]:
    """The federation of the first domain, the first two, and so on."""
    dataset = data.load(params["set"])
    groups = domains(dataset)
    so_far = [*accumulate(groups.values())]
    if params["what"] == "accuracy":
        rows = split(dataset, seed)
        found: list[Row] = []
        for n, columns in enumerate(so_far, 1):
            own = rows.only(columns)
            # the same forest for any parties
            model = federated(own, 1, seed, n_estimators=params["trees"], max_features=None)
            found.append({"domains": n, "columns": len(columns), "score": quality(model, own)})
        return found
    return _times(_copied(split(dataset, seed)), groups, params["trees"], seed)


def _copied(rows: Split) -> Split:
    train, test = (np.tile(X, (COPIES, 1)) for X in (rows.train, rows.test))
    return Split(train, test, np.tile(rows.y_train, COPIES), np.tile(rows.y_test, COPIES), rows.classes)


def _times(rows: Split, groups: dict[str, list[int]], trees: int, seed: int) -> list[Row]:
    parties = {f"d{number}": columns for number, columns in enumerate(groups.values(), 1)}
    tables = {"train": tables_of(rows, parties, test=False), "test": tables_of(rows, parties, test=True)}
    found = []
    with networked(tables) as network:
        for n in range(1, len(parties) + 1):
            present = list(parties)[:n]
            with network.rows("train", present) as train, network.rows("test", present) as test:
                network.link = NO_LINK  # the first fit at a party loads its kernels
                wl.FederatedForestClassifier(1, random_state=seed).fit(train, y=f"d1.{LABEL}")
                network.link = PAPER_LINK
                start = time.perf_counter()
                model = wl.FederatedForestClassifier(trees, random_state=seed).fit(train, y=f"d1.{LABEL}")
                wall = time.perf_counter() - start
                model.predict(test)
                cost, prediction = model.cost_, model.prediction_cost_
            network.link = NO_LINK
            found.append(
                {
                    "domains": n,
                    "train_seconds": cost.total_seconds,
                    "train_wall": wall,
                    "train_rounds": cost.rounds,
                    "predict_seconds": prediction.total_seconds,
                    "predict_rounds": prediction.rounds,
                    "predict_bytes": prediction.bytes_sent + prediction.bytes_received,
                }
            )
    return found


def report(rows: Sequence[Row], setting: Setting) -> Report:
    """Curves against the number of domains."""
    blocks: list[Table | Figure] = []
    verdicts: list[Verdict] = []
    for name in setting.sets:
        own = select(rows, set=name)
        numbers = distinct(own, "domains")
        per = {n: select(own, domains=n) for n in numbers}
        scores = [values(per[n], "score") for n in numbers]
        train, predict = ([values(per[n], f"{kind}_seconds") for n in numbers] for kind in ("train", "predict"))
        lines = [
            [str(n), f"{values(per[n], 'columns')[0]:.0f}", pm(scores[i]), pm(train[i], 2), pm(predict[i], 2),
             f"{mean(values(per[n], 'predict_rounds')):.0f}", f"{mean(values(per[n], 'predict_bytes')) / 1e6:.2f}"]
            for i, n in enumerate(numbers)
        ]  # fmt: skip
        headings = ("domains", "columns", "accuracy", "training s", "prediction s", "exchanges", "prediction MB")
        blocks += [
            Table(headings, lines, f"`{name}`, mean ± standard deviation."),
            _figure(name, numbers, scores, train, predict),
        ]
        exchanges = {value for n in numbers for value in values(per[n], "predict_rounds")}
        for item in ("ff19-figure-3", "ffj-figure-4"):
            verdicts += _verdicts(item, numbers, scores, train, predict, len(exchanges) == 1)
    return Report(blocks, verdicts)


def _verdicts(
    item: str,
    numbers: Sequence[int],
    scores: list[list[float]],
    train: list[list[float]],
    predict: list[list[float]],
    same_exchanges: bool,
) -> list[Verdict]:
    first, last = mean(scores[0]), mean(scores[-1])
    steps = {n: paired_z(b, a) for n, (a, b) in zip(numbers[1:], pairwise(scores), strict=True)}
    falls = [n for n, z in steps.items() if z < -CLEARLY]
    gains = paired_z(scores[-1], scores[0])
    times = [mean(sample) for sample in train]
    slope, base = line(numbers, times)
    straight = straightness(numbers, times)
    quick, slow = mean(predict[0]), mean(predict[-1])
    return [
        judge(
            item,
            "accuracy improves consistently with more domains",
            (gains > CLEARLY and not falls, gains > CLEARLY),
            f"{first:.3f} with one domain, {last:.3f} with {numbers[-1]} ({gains:+.1f} standard errors of the paired "
            f"differences); domain by domain {', '.join(f'{z:+.1f}' for z in steps.values())}, "
            + (f"so domain {', '.join(map(str, falls))} did harm" if falls else "so that none did harm"),
        ),
        judge(
            item,
            "training time grows about linearly with the domains",
            (slope > 0 and straight > STRAIGHT, slope > 0),
            f"{times[0]:.2f} s with one, {times[-1]:.2f} s with {numbers[-1]}, a line of {slope:.2f} s per "
            f"domain from {base:.2f} s (correlation {straight:.3f}): a node tries the square root of the features, so "
            "more columns cost little; what grows is the work of more parties on the same cores",
            timed=True,
        ),
        judge(
            item,
            "prediction time hardly changes",
            (same_exchanges and slow < 2 * quick, same_exchanges),
            f"{quick:.2f} s with one, {slow:.2f} s with {numbers[-1]} domains, "
            f"{'always the same' if same_exchanges else 'another'} number of exchanges; what grows is bytes: every "
            "party tells its side of the splits",
            timed=True,
        ),
    ]


def _figure(
    name: str, numbers: Sequence[int], scores: list[list[float]], train: list[list[float]], predict: list[list[float]]
) -> Figure:
    panels = [
        Panel(title, "domains", label, [curve("", numbers, samples)],
              from_zero=samples is not scores)
        for title, label, samples in (
            ("accuracy", "accuracy on the test rows", scores),
            ("training", "time (s)", train),
            ("prediction", "time (s)", predict),
        )
    ]  # fmt: skip
    return Figure(f"ff-domains-{name}", f"{name}; bars: one standard deviation over the repeats.", panels)


EXPERIMENT = Experiment(
    name="ff-domains",
    title="Federated Forest: number of domains",
    what=(
        "Figure 3 (2019) and Figure 4 (journal) of *Federated Forest*: one domain after the other joins the "
        "federation. Accuracy over 60 splits, in process, 100 trees, all features at each node. Times between "
        f"processes over gRPC with mutual TLS, behind a link of {PAPER_LINK}, on the rows ten times over as in the "
        f"paper; all parties share this machine's cores. {TREES} trees, the square root of the features, no limit of "
        "depth."
    ),
    sets=("parkinson_speech_subject_mean",),
    stand_ins=("breast_cancer",),
    cells=cells,
    measure=measure,
    report=report,
    minutes=60,
    parallel=False,
    notes={
        "parkinson_speech_subject_mean": "the only copy at hand with all eight domains, 252 subjects (the mean of "
        "three recordings each) instead of 756 recordings: absolute accuracy is not comparable"
    },
)
