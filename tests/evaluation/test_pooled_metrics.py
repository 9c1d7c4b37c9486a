"""Metrics from sums over clients: those of the pooled rows, or within the error that is told."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn import metrics

from woodlot.evaluation.told_reports import told_report
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.jobs.evaluate.sum_pads import PAD_BOUND, padded, without_pads
from woodlot.metrics.class_numbers import MIN_BIN_ROWS, RANKED, ClassNumbers
from woodlot.metrics.pooled_classes import (
    GRID,
    check_cuts,
    class_summary,
    class_vector,
    grid_counts,
    merged_cuts,
    vector_length,
)
from woodlot.metrics.pooled_targets import centre_of, target_summary, target_vector
from woodlot.metrics.resampling import Resampling, interval, resampled
from woodlot.metrics.summaries import PooledSummary
from woodlot.metrics.target_numbers import TargetNumbers
from woodlot.metrics.wide_numbers import from_limbs, to_limbs

NO_INTERVALS = Resampling(0)


def answers(n: int, n_classes: int, seed: int, trees: int = 20) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Classes and probabilities as forests have them: with many equal ones."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, n_classes, n)
    p = rng.dirichlet(np.ones(n_classes), n) + 0.7 * np.eye(n_classes)[y]
    p = np.rint(p / p.sum(axis=1, keepdims=True) * trees)
    p = np.where(p.sum(axis=1, keepdims=True) == 0, 1, p)
    return y, p / p.sum(axis=1, keepdims=True)


def clients(n: int, n_classes: int, seed: int = 0, n_clients: int = 3) -> list[ClassNumbers]:
    y, p = answers(n, n_classes, seed)
    owner = np.random.default_rng(seed + 1).integers(0, n_clients, n)
    return [ClassNumbers(y[owner == k], p[owner == k], np.arange(n_classes)) for k in range(n_clients)]


def pooled(
    own: list[ClassNumbers], resampling: Resampling = NO_INTERVALS, to: int = 1, seen: int | None = 0
) -> PooledSummary:
    cuts = merged_cuts(sum(grid_counts(one) for one in own))  # type: ignore[arg-type]
    sums = sum(class_vector(one, cuts, seen, to) for one in own)
    return class_summary(sums, own[0].classes.tolist(), cuts, len(own), resampling, to)  # type: ignore[arg-type]


def together(own: list[ClassNumbers]) -> ClassNumbers:
    codes, outputs = np.concatenate([one.codes for one in own]), np.concatenate([one.outputs for one in own])
    return ClassNumbers(codes, outputs, own[0].classes)


@given(st.integers(60, 900), st.integers(2, 4), st.integers(0, 10**6))
@settings(max_examples=30)
def test_sums_have_the_numbers_of_the_pooled_rows(n: int, n_classes: int, seed: int) -> None:
    own = clients(n, n_classes, seed)
    found, rows = pooled(own), together(own)
    exact = rows.weighted(np.ones(len(rows)))
    for name in ("accuracy", "balanced_accuracy", "log_loss", "brier", "f1"):
        assert found.metrics[name] == pytest.approx(exact[name], abs=1e-12), name
    assert found.confusion == tuple(tuple(line) for line in rows.confusion().tolist())
    for name in RANKED:
        if name in found.undefined:
            assert np.isnan(exact[name])
        else:
            assert abs(found.metrics[name] - exact[name]) <= found.errors[name] + 1e-12, name  # type: ignore[operator]


def test_scikit_learns_numbers() -> None:
    own = clients(5000, 2, 3)
    rows, found = together(own), pooled(own)
    y, p = rows.codes, rows.outputs[:, 1]
    expected = {
        "accuracy": metrics.accuracy_score(y, rows.predicted),
        "balanced_accuracy": metrics.balanced_accuracy_score(y, rows.predicted),
        "log_loss": metrics.log_loss(y, rows.outputs),
        "brier": metrics.brier_score_loss(y, p),
        "f1": metrics.f1_score(y, rows.predicted),
    }
    for name, value in expected.items():
        assert found.metrics[name] == pytest.approx(value, abs=1e-12), name
    # probabilities that are votes of 20 trees are never of one bin unless they are equal
    assert found.metrics["roc_auc"] == pytest.approx(metrics.roc_auc_score(y, p), abs=found.errors["roc_auc"] + 1e-12)
    assert found.errors["roc_auc"] < 0.06


def test_every_bin_has_many_rows_of_all_clients() -> None:
    for n in (5, 30, 500, 20_000):
        own = clients(n, 2, n)
        counts = sum(grid_counts(one) for one in own)
        (cuts,) = merged_cuts(counts)  # type: ignore[arg-type]
        check_cuts([cuts], 2)
        held = np.add.reduceat(counts, np.concatenate([[0], cuts]).astype(int))  # type: ignore[arg-type]
        assert held.sum() == n
        assert len(held) == 1 or held.min() >= MIN_BIN_ROWS


@pytest.mark.parametrize("cuts", [[0], [GRID], [5, 5], [7, 3], [*range(1, GRID), GRID], [-1, 3]])
def test_bins_that_are_none(cuts: list[int]) -> None:
    with pytest.raises(RemoteProtocolError, match="not made of those of the grid"):
        check_cuts([np.array(cuts, np.int64)], 2)
    with pytest.raises(RemoteProtocolError, match="not made of those of the grid"):
        check_cuts([np.array([3], np.int64)] * 2, 2)


def test_rounding_hides_single_rows_and_leaves_the_rest() -> None:
    own = clients(3000, 2, 8)
    exact, rounded = pooled(own), pooled(own, to=10)
    assert rounded.round_counts == 10
    assert all(n % 10 == 0 for line in rounded.confusion for n in line)
    assert rounded.n_rows % 10 == 0
    for name, value in exact.metrics.items():
        assert rounded.metrics[name] == pytest.approx(value, abs=0.1 if name == "lift" else 0.03), name
    cuts = merged_cuts(sum(grid_counts(one) for one in own))  # type: ignore[arg-type]
    vector = class_vector(own[0], cuts, 0, 10)
    assert (vector[: vector_length(2, cuts) - 4 * 32] % 10 == 0)[[0, 1]].all()
    bins = vector[3 + 4 : 3 + 4 + 2 * (len(cuts[0]) + 1)]
    assert (bins % 10 == 0).all()
    assert (bins >= 0).all()


def test_intervals_are_near_those_of_a_bootstrap_of_rows() -> None:
    own = clients(2000, 2, 5)
    found = pooled(own, Resampling(300, 0.9, 1))
    exact = resampled(together(own), 300, 2)
    for name, (low, high) in found.intervals.items():
        ends = interval(exact[name], 0.9)
        assert ends is not None
        width = ends[1] - ends[0]
        assert abs(low - ends[0]) < 0.6 * width + 0.02, name
        assert abs(high - ends[1]) < 0.6 * width + 0.02, name
    assert {"accuracy", "roc_auc", "log_loss", "brier", "f1", "ks"} <= set(found.intervals)


def test_rows_of_one_class() -> None:
    p = answers(90, 2, 0)[1]
    own = [ClassNumbers(np.full(30, "no"), p[k::3], np.array(["no", "yes"])) for k in range(3)]
    found = pooled(own, Resampling(20))
    assert "no row is of class 'yes'; evaluate rows of every class" in found.undefined["roc_auc"]
    assert found.metrics["roc_auc"] is None
    assert found.metrics["accuracy"] is not None
    assert found.curves == {}
    assert np.isnan(told_report(found, Resampling(20), "")["roc_auc"])


@given(st.integers(3, 300), st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(0, 1000))
@settings(max_examples=40)
def test_regression(n: int, centre: float, spread: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    y = centre + spread * rng.normal(size=n)
    p = y + 0.5 * spread * rng.normal(size=n)
    own = [TargetNumbers(y[k::3], p[k::3]) for k in range(3)]
    middle = centre_of(p[:5].tolist())
    found = target_summary(sum(target_vector(one, middle, None, 1) for one in own), 3, Resampling(20), 1)  # type: ignore[arg-type]
    assert found.n_rows == n
    assert found.seen is None
    told = found.metrics
    assert told["r2"] == pytest.approx(metrics.r2_score(y, p), abs=1e-9)
    assert told["rmse"] == pytest.approx(metrics.root_mean_squared_error(y, p), rel=1e-12)
    assert told["mae"] == pytest.approx(metrics.mean_absolute_error(y, p), rel=1e-12)
    assert told["mean_error"] == pytest.approx(np.mean(y - p), abs=1e-9 * spread)
    assert "needs the rows of all clients" in found.undefined["median_absolute_error"]
    for name, (low, high) in found.intervals.items():
        assert low <= told[name] <= high, name  # type: ignore[operator]


def test_regression_equals_scikit_learn_and_its_intervals_a_bootstrap() -> None:
    rng = np.random.default_rng(1)
    y = rng.normal(40, 9, 1500)
    p = y + rng.standard_t(5, 1500) * 4
    own = [TargetNumbers(y[k::3], p[k::3]) for k in range(3)]
    found = target_summary(sum(target_vector(one, 38.5, 7, 1) for one in own), 3, Resampling(20, 0.9), 1)  # type: ignore[arg-type]
    assert found.metrics["r2"] == pytest.approx(metrics.r2_score(y, p), abs=1e-12)
    assert found.seen == 21
    exact = resampled(TargetNumbers(y, p), 300, 0)
    for name, ends in found.intervals.items():
        expected = interval(exact[name], 0.9)
        assert expected is not None
        np.testing.assert_allclose(ends, expected, atol=0.4 * (expected[1] - expected[0]), err_msg=name)
    rounded = target_summary(sum(target_vector(one, 38.5, 7, 10) for one in own), 3, Resampling(20, 0.9), 10)  # type: ignore[arg-type]
    assert rounded.n_rows == 1500
    assert rounded.metrics["rmse"] == pytest.approx(found.metrics["rmse"], rel=0.2)


def test_equal_targets_have_no_r2() -> None:
    own = [TargetNumbers(np.full(5, 3.0), np.arange(5.0))] * 3
    found = target_summary(sum(target_vector(one, 2.0, 0, 1) for one in own), 3, NO_INTERVALS, 1)  # type: ignore[arg-type]
    assert found.metrics["r2"] is None
    assert "all targets are the same" in found.undefined["r2"]


@given(st.lists(st.floats(-1e100, 1e100), min_size=1, max_size=8))
def test_wide_numbers_add_up(numbers: list[float]) -> None:
    (total,) = from_limbs(sum(to_limbs([one]) for one in numbers))  # type: ignore[arg-type]
    exact = float(sum(map(Fraction, numbers)))
    assert total == pytest.approx(exact, rel=1e-15, abs=1e-100)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan, 1e200])
def test_numbers_that_are_too_large(number: float) -> None:
    with pytest.raises(DataError, match="not finite, or too large"):
        to_limbs([number])


@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20), st.integers(1, 6), st.binary(min_size=32, max_size=32)
)
def test_pads_come_off_the_sum_alone(numbers: list[int], n_clients: int, key: bytes) -> None:
    own = np.array(numbers, np.int64)
    keys = {f"c{k}": bytes(b ^ k for b in key) for k in range(n_clients)}
    hidden = {name: padded(own, one, "job", name) for name, one in keys.items()}
    assert all(((one >= 0) & (one < PAD_BOUND)).all() for one in hidden.values())
    total: Any = sum(hidden.values())
    assert without_pads(total, keys, "job").tolist() == (n_clients * own).tolist()
    if n_clients > 1:
        assert without_pads(total, dict(list(keys.items())[1:]), "job").tolist() != (n_clients * own).tolist()


def test_a_pad_needs_a_key() -> None:
    with pytest.raises(DataError, match="no key of 32 bytes"):
        padded(np.zeros(2, np.int64), b"", "job", "north")


def test_reports_say_what_bins_they_are_from() -> None:
    report = told_report(pooled(clients(900, 2, 0), Resampling(20)), Resampling(20), "")
    assert "bins, error at most" in repr(report)
    assert report.to_dict()["errors"].keys() == set(RANKED)
