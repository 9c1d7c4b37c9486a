"""Labels from reports of evaluations: each number of a report is a sum over rows, and sums are solved for labels.

The attacker is a user who orders reports on parts of the rows. It knows the answer of each row, because it may receive
predictions, and which rows are in a part, by matching answers or from a party that has the key. Then nearly every
number of a report of two classes is a known sum of labels: counts, log loss, Brier score, points of curves, bins.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.estimators.federated_forest import FederatedForestClassifier
from woodlot.exceptions import PolicyError
from woodlot.jobs.evaluated_rows import Cells, Points, divide
from woodlot.leaks.case import LABEL, Case, Finding, not_attacked
from woodlot.metrics.class_numbers import CALIBRATION_BINS, CURVE_POINTS, MIN_BIN_ROWS, ClassNumbers, curve_step
from woodlot.metrics.resampling import Resampling
from woodlot.metrics.summaries import Summary, summarise

USER = "user"
REPORTS = 50
"""How many reports the attacker orders: what a label holder is advised to allow in a day."""
ROUNDED = 10
"""To multiples of what counts are rounded: the advice, too."""
PARTS_OF_ROWS = 8
"""The part of the rows that a report must be of at least, where the rule holds."""
_LEAST_ERROR = 0.02  # of exact sums: keeps the system well conditioned
_SURE = 1e-15

Floats = NDArray[np.float64]
Numbers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ToldSums:
    """Sums of labels, 0 and 1, that follow from reports.

    Attributes
    ----------
    weights : array of shape (n_sums, n_rows)
        How often each row counts.
    values, errors : array of shape (n_sums,)
        The sums, and how far off they may be.

    """

    weights: Floats
    values: Floats
    errors: Floats


def told_sums(report: Summary, answers: Floats, rows: Numbers, n_rows: int) -> ToldSums:
    """What a report says of the labels.

    Parameters
    ----------
    report : Summary
        Of two classes.
    answers : array
        The probability of the second class, for each row of the report.
    rows : array of int
        The rows of the report.
    n_rows : int
        How many rows there are at all.

    """
    p, n, to = np.clip(answers, _SURE, 1 - _SURE), len(rows), report.round_counts
    step = to / np.sqrt(12) if to > 1 else 0.0  # standard deviation of what rounding takes
    found: list[tuple[Floats, float, float]] = []
    yes = (answers > 1 - answers).astype(np.float64)
    found += [(yes, report.confusion[1][1], step), (1 - yes, report.confusion[1][0], step)]
    positives = float(sum(report.confusion[1]))
    for name, if_one, if_zero in (
        ("brier", (1 - p) ** 2, p**2),
        ("log_loss", -np.log(p), -np.log(1 - p)),
    ):
        told = report.metrics[name] or 0.0
        found.append((if_one - if_zero, n * told - float(if_zero.sum()), step))
    off = curve_step(n) / np.sqrt(12)
    for curves in report.curves.values():
        falling = np.argsort(-answers, kind="stable")
        last = np.append(np.flatnonzero(np.diff(answers[falling])), n - 1)
        ends = np.searchsorted(last + 1.0, n * np.arange(1, CURVE_POINTS + 1) / CURVE_POINTS)
        at = np.unique(np.minimum(ends, len(last) - 1))
        for end, recall in zip(last[at], curves["roc"]["tpr"][1:], strict=False):
            inside = np.zeros(n)
            inside[falling[: end + 1]] = 1
            found.append((inside, recall * positives, max(off, 1.5 * step * positives / n)))
        bins = np.minimum((answers * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        held = np.bincount(bins, minlength=CALIBRATION_BINS)
        for k, observed in zip(np.flatnonzero(held >= MIN_BIN_ROWS), curves["calibration"]["observed"], strict=False):
            found.append(((bins == k).astype(np.float64), observed * held[k], max(off, step * held[k] / n)))
    weights = np.zeros((len(found), n_rows))
    weights[:, rows] = [one[0] for one in found]
    return ToldSums(weights, np.array([one[1] for one in found]), np.maximum(_LEAST_ERROR, [one[2] for one in found]))


def labels_from_sums(told: Iterable[ToldSums], answers: Floats) -> NDArray[np.bool_]:
    """The likeliest label of each row: least squares that begin with the model's answers.

    Parameters
    ----------
    told : iterable of ToldSums
        Of all reports.
    answers : array
        The probability of the second class, for each row.

    """
    told = list(told)
    if not told:
        return np.asarray(answers > 0.5)
    errors = np.concatenate([one.errors for one in told])
    a = np.concatenate([one.weights for one in told]) / errors[:, None]
    missed = np.concatenate([one.values for one in told]) / errors - a @ answers
    spread = answers * (1 - answers) + 0.01
    solved = np.linalg.solve((a * spread) @ a.T + np.eye(len(a)), missed)
    return np.asarray(answers + spread * (a.T @ solved) > 0.5)


def halves(n_rows: int, seed: int = 4) -> list[Numbers]:
    """Random halves of the rows, as different seeds select: what tells most where all parts are admitted."""
    rng = np.random.default_rng(seed)
    return [np.flatnonzero(rng.random(n_rows) < 0.5) for _ in range(REPORTS)]


def unions(n_rows: int, seed: int = 4) -> list[Numbers]:
    """Equal parts of the rows, and random unions of them: what tells most of what a label holder admits."""
    rng = np.random.default_rng(seed)
    cell = rng.permutation(n_rows) % PARTS_OF_ROWS
    joined = [rng.random(PARTS_OF_ROWS) < 0.5 for _ in range(REPORTS - PARTS_OF_ROWS)]
    wanted = [*np.eye(PARTS_OF_ROWS, dtype=np.bool_), *(chosen for chosen in joined if chosen.any())]
    return [np.flatnonzero(chosen[cell]) for chosen in wanted]


def admitted(parts: Iterable[Numbers], least: int) -> Iterator[Numbers]:
    """The parts that a label holder tells of, one after the other; ``least`` as its policy says."""
    known: Points = np.empty(0, np.uint64)
    cells: Cells = np.empty(0, np.uint32)
    for rows in parts:
        try:
            known, cells, told = divide(known, cells, rows.astype(np.uint64), least)
        except PolicyError:
            continue
        yield rows[told]


def read_labels(truth: Numbers, answers: Floats, parts: Iterable[Numbers], round_counts: int) -> float:
    """The share of labels that reports on parts of the rows give, beside one model's answers."""
    told = []
    for rows in parts:
        numbers = ClassNumbers(truth[rows], np.column_stack([1 - answers, answers])[rows], np.array([0, 1]))
        report = summarise(numbers, Resampling(0), 0, round_counts)
        told.append(told_sums(report, answers[rows], rows, len(truth)))
    return float((labels_from_sums(told, answers) == truth).mean())


def evaluation_attacks(case: Case, params: dict[str, Any]) -> list[Finding]:
    """Train on half of the rows, order reports on parts of the other half, and solve them for labels."""
    attack = "sums over parts of the rows"
    if case.task != "classes" or len(np.unique(case.labels)) != 2:
        return [not_attacked(USER, "evaluations", "labels", attack, "the attack is for two classes")]
    half = np.random.default_rng(3).permutation(case.n_rows) < case.n_rows // 2
    start = time.perf_counter()
    forest = FederatedForestClassifier(**params).fit(case.subset(half).federation(), y=f"{case.holder}.{LABEL}")
    answers = np.asarray(forest.predict_proba(case.subset(~half).federation()), np.float64)[:, 1]
    truth = case.numbers[~half]
    baseline = float(((answers > 0.5) == truth).mean())
    found = []
    for least, ordered in ((1, halves(len(truth))), (len(truth) // PARTS_OF_ROWS, unions(len(truth)))):
        parts = list(admitted(ordered, least))
        for to in (1, ROUNDED):
            value = read_labels(truth, answers, parts, to)
            setting = f"evaluations, min_evaluation_rows={least}, round_counts={to}"
            words = (
                f"the numbers of {len(parts)} reports, of {REPORTS} that were ordered on parts of {len(truth):,} "
                "rows, are sums of labels to who knows the answers and the parts"
            )
            seconds = time.perf_counter() - start
            against, seconds = "the model's answers", time.perf_counter() - start
            found.append(
                Finding(USER, setting, "labels", attack, "labels read", value, baseline, against, words, seconds)
            )
    return found
