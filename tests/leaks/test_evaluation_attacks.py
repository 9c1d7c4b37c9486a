"""Labels from reports: the attacks work on plain numbers, and find little in what a label holder tells."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import norm

from woodlot import leaks
from woodlot.leaks.case import MARGIN
from woodlot.leaks.evaluation_attacks import (
    REPORTS,
    admitted,
    halves,
    labels_from_sums,
    read_labels,
    told_sums,
    unions,
)
from woodlot.metrics.class_numbers import ClassNumbers
from woodlot.metrics.resampling import Resampling
from woodlot.metrics.summaries import summarise
from woodlot.metrics.target_numbers import QUANTILES, WINDOW_ROWS, TargetNumbers

N = 800


def labels_and_answers(models: int = 1, n: int = N) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Labels, and the calibrated probabilities of so many models; each model knows something of its own."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=n)
    y = (hidden + 0.8 * rng.normal(size=n) > 0.5).astype(np.int64)
    seen = hidden + 0.5 * rng.normal(size=(models, n))
    return y, norm.cdf((0.8 * seen - 0.5) / np.sqrt(0.2 + 0.64))


@pytest.mark.parametrize(("round_counts", "more"), [(1, 0.05), (10, 0.02)])
def test_sums_over_any_parts_are_solved_for_labels(round_counts: int, more: float) -> None:
    y, (p,) = labels_and_answers()
    assert read_labels(y, p, halves(N), round_counts) > ((p > 0.5) == y).mean() + more


@pytest.mark.parametrize("round_counts", [1, 10])
def test_the_parts_that_are_admitted_tell_less(round_counts: int) -> None:
    y, (p,) = labels_and_answers()
    least, guessed = N // 8, ((p > 0.5) == y).mean()
    assert len(list(admitted(halves(N), least))) <= 3
    chosen = list(admitted(unions(N), least))
    assert len(chosen) >= REPORTS - 2  # random unions can be empty
    free = read_labels(y, p, halves(N), round_counts)
    assert read_labels(y, p, chosen, round_counts) - guessed < (free - guessed) / 2


@pytest.mark.slow
@pytest.mark.parametrize("round_counts", [1, 10])
def test_of_a_thousand_rows_or_more_they_tell_little(round_counts: int) -> None:
    """With as many rows as the documents advise, in all reports of a day."""
    n = 8000
    y, (p,) = labels_and_answers(n=n)
    chosen = list(admitted(unions(n), 1000))
    assert len(chosen) >= REPORTS - 2
    assert read_labels(y, p, chosen, round_counts) < ((p > 0.5) == y).mean() + MARGIN


def test_nested_parts_tell_single_labels_and_are_not_admitted() -> None:
    y, (p,) = labels_and_answers()
    order = np.random.default_rng(1).permutation(N)  # by points, which a party knows
    nested = [np.sort(order[: 400 + k]) for k in range(REPORTS)]
    reports = [
        summarise(ClassNumbers(y[rows], np.column_stack([1 - p, p])[rows], np.array([0, 1])), Resampling(0), 0)
        for rows in nested
    ]
    positives = np.array([sum(report.confusion[1]) for report in reports])
    np.testing.assert_array_equal(np.diff(positives), y[order[400 : 400 + REPORTS - 1]])
    assert {len(rows) for rows in admitted(nested, 20)} == {400, 420, 440}


def test_many_models_on_the_same_rows_tell_labels_to_who_knows_their_answers() -> None:
    """What is left: docs/limitations.md says so."""
    y, answers = labels_and_answers(25)
    rows, mean = np.arange(N), answers.mean(axis=0)
    read = {}
    for to in (1, 10):
        told = [
            told_sums(
                summarise(ClassNumbers(y, np.column_stack([1 - p, p]), np.array([0, 1])), Resampling(0), 0, to),
                p, rows, N,
            )
            for p in answers
        ]  # fmt: skip
        read[to] = (labels_from_sums(told, mean) == y).mean()
    assert read[1] > ((mean > 0.5) == y).mean() + 0.02
    assert read[10] <= read[1]


def test_who_chooses_the_answers_reads_labels_from_one_report() -> None:
    """What is left, too: a leader that works with the user has each row weigh half as much as the one before."""
    y, _ = labels_and_answers()
    read, odds = 40, np.zeros(N)
    odds[:read] = 2.0 ** -np.arange(1, read + 1)
    p = 1 / (1 + np.exp(-odds))
    report = summarise(ClassNumbers(y, np.column_stack([1 - p, p]), np.array([0, 1])), Resampling(0), 0)
    left = -np.log(1 - p).sum() - N * float(report.metrics["log_loss"] or 0)
    found = []
    for weight in odds[:read]:
        found.append(int(left > weight - odds[read - 1] / 2))
        left -= found[-1] * weight
    assert found == y[:read].tolist()


def test_a_quantile_is_the_target_of_one_row_and_is_not_told() -> None:
    rng = np.random.default_rng(0)
    n = 1001  # so many that every quantile is the error of one row
    y = np.round(100 * np.exp(rng.normal(size=n)), 2)
    p = 0.6 * y + 40 + 20 * rng.normal(size=n)

    def read(quantiles: list[float]) -> int:
        """Amounts have two digits, which is so of one row alone."""
        found = 0
        for quantile in quantiles:
            guess = quantile + p
            whole = np.flatnonzero(np.abs(100 * guess - np.round(100 * guess)) < 1e-6)
            found += len(whole) == 1 and abs(guess[whole[0]] - y[whole[0]]) < 1e-6
        return found

    rows = TargetNumbers(y, p)
    assert read(list(rows.error_quantiles().values())) == len(QUANTILES)
    report = summarise(rows, Resampling(0), 0)
    assert read(list(report.error_quantiles.values())) == 0
    middle = report.metrics["median_absolute_error"]
    assert middle is not None
    assert read([middle, -middle]) == 0
    assert middle == pytest.approx(np.median(np.abs(y - p)), rel=0.05)
    for q, told in report.error_quantiles.items():
        assert told == pytest.approx(rows.error_quantiles()[q], abs=0.05 * np.ptp(y - p))


def test_quantiles_of_few_rows_are_left_out() -> None:
    rng = np.random.default_rng(0)
    y, p = rng.normal(size=(2, WINDOW_ROWS - 1))
    report = summarise(TargetNumbers(y, p), Resampling(0), 0)
    assert report.error_quantiles == {}
    assert "20 rows or more" in report.undefined["median_absolute_error"]
    assert list(summarise(TargetNumbers(*rng.normal(size=(2, 50))), Resampling(0), 0).error_quantiles) == [
        "0.25", "0.5", "0.75"
    ]  # fmt: skip


@pytest.mark.slow
def test_the_leak_test_attacks_evaluations() -> None:
    found = leaks.run_leak_test(leaks.made_up_case(600), {"n_estimators": 12}, parts=["evaluations"])
    free, rounded, ruled, both = found
    assert free.leaks
    assert ruled.verdict == both.verdict == "no more"
    assert free.value is not None
    assert rounded.value is not None
    assert rounded.value < free.value
    (regression,) = leaks.run_leak_test(leaks.made_up_case(100, "targets"), parts=["evaluations"])
    assert regression.verdict == "not attacked"
