"""Forecasts of hidden trainings, and of padding: beside a measured run of a size that no trial had."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import woodlot as wl
from woodlot.estimators import forecast_hidden, forecast_parts
from woodlot.estimators.forecast import DataShape, Network, fit_made_up, forecast, made_up_rows
from woodlot.exceptions import DataError
from woodlot.jobs.padding import pad
from woodlot.leaks.hidden_view import opened_trees
from woodlot.protocols.core.part_files import COORDINATOR
from woodlot.runtime.codec import encode

WOODLOT = Path(sys.executable).with_name("woodlot")
CASES: dict[str, tuple[Any, DataShape]] = {
    "two classes": (wl.FederatedForestClassifier(6, max_depth=6), DataShape(4_000, {"a": 5, "b": 4})),
    "three parties, five classes": (wl.FederatedForestClassifier(4), DataShape(5_000, {"a": 5, "b": 4, "c": 3}, 5)),
    "regression": (wl.FederatedForestRegressor(3, max_features=0.5), DataShape(4_000, {"a": 5, "b": 4}, 0)),
    "columns drawn for a tree": (
        wl.FederatedForestClassifier(8, feature_sampling="tree", max_depth=5, min_cell=20),
        DataShape(3_000, {"a": 5, "b": 14}),
    ),
    "a small table, no draws": (wl.FederatedForestClassifier(5, bootstrap=False), DataShape(700, {"a": 3, "b": 3})),
}


@pytest.fixture(autouse=True)
def small_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials as small as what is foreseen here, without repeats: no test looks at seconds."""
    monkeypatch.setattr(forecast_parts, "TRIAL_SECONDS", 0.0)
    monkeypatch.setattr(forecast_hidden, "SHAPE_ROWS", (1_000, 2_500))
    monkeypatch.setattr(forecast_hidden, "TIMED", ((500, 1), (1_500, 2)))


@pytest.mark.parametrize("case", CASES)
def test_bytes_and_rounds_are_those_of_a_measured_run(case: str) -> None:
    estimator, shape = CASES[case]
    estimator = estimator.set_params(protection="hidden", random_state=5)
    foreseen = forecast(estimator, shape)
    cost = fit_made_up(estimator, shape, shape.rows).cost_
    assert foreseen.bytes_total == pytest.approx(cost.bytes_sent + cost.bytes_received, rel=0.15)
    assert foreseen.bytes_by_party == pytest.approx(cost.bytes_by_party, rel=0.2)
    assert foreseen.rounds == pytest.approx(cost.rounds, rel=0.2)
    assert foreseen.compute_seconds > 0
    assert foreseen.memory_by_party.keys() == shape.columns.keys()
    assert foreseen.opened.keys() == {*shape.columns, "dealer"}


def test_the_counts_that_will_be_opened_are_foreseen() -> None:
    estimator = wl.FederatedForestClassifier(6, max_depth=5, protection="hidden", min_cell=60, random_state=5)
    shape = DataShape(4_000, {"a": 5, "b": 4})
    foreseen = forecast(estimator, shape)
    X, y, dealing = made_up_rows(shape, shape.rows)
    tables = {p: pa.table({f"x{k}": X[:, k] for k in own}) for p, own in dealing.items()}
    federation = wl.Federation.local({"a": tables["a"].append_column("y", pa.array(y)), "b": tables["b"]})
    told: list[Any] = []
    federation.observer = lambda *message: told.append(message)
    estimator.fit(federation, y="a.y")
    trees = opened_trees(told, next(receiver for _, receiver, m in told if type(m).__name__ == "StartServer"))
    cells = trees.n_codes[trees.pair_column] - 1 >> trees.pair_shift
    assert foreseen.details["counts"] == pytest.approx((cells + 1).sum(), rel=0.2)
    assert "60 rows or more on average" in foreseen.opened["b"]


def test_frames_of_a_leader_are_padded() -> None:
    """Led, a training sends what it sends in one process, in frames whose lengths are rounded up."""
    shape = DataShape(3_000, {"bank": 3, "shop": 3})
    estimator = wl.FederatedForestClassifier(5, max_depth=6, random_state=5)
    X, y, dealing = made_up_rows(shape, shape.rows)
    tables = {p: {f"x{k}": X[:, k] for k in own} for p, own in dealing.items()}
    tables["bank"]["y"] = y
    federation = wl.Federation.local({p: pa.table(own) for p, own in tables.items()})
    padded: Counter[str] = Counter()
    plain: Counter[str] = Counter()

    def weigh(sender: str, receiver: str, message: Any) -> None:
        party = receiver if sender == COORDINATOR else sender
        data = encode(message)
        plain[party] += len(data)
        padded[party] += len(pad(data))

    federation.observer = weigh
    estimator.fit(federation, y="bank.y")
    foreseen = forecast_parts.Forecast(estimator.cost_.rounds, dict(plain), {}, 0.0, 0.0)
    led = foreseen.led("bank", Network())
    assert padded["shop"] > plain["shop"]
    assert led.bytes_by_party["shop"] - plain["shop"] == pytest.approx(padded["shop"] - plain["shop"], rel=0.5)
    assert led.bytes_by_party["shop"] == pytest.approx(padded["shop"], rel=0.03)
    assert led.bytes_by_party["bank"] == led.bytes_by_party["shop"]


def test_what_a_dealer_sends_is_not_padded() -> None:
    plain = forecast_parts.Forecast(10, {"shop": 100_000, "dealer": 100_000}, {}, 0.0, 0.0)
    led = plain.led("bank", Network())
    assert led.bytes_by_party["dealer"] == 100_000
    assert 100_000 < led.bytes_by_party["shop"] < 112_000
    assert led.bytes_by_party["bank"] == led.bytes_by_party["shop"] + 100_000


def test_a_hidden_training_needs_a_second_server() -> None:
    with pytest.raises(DataError, match="two parties"):
        forecast(wl.FederatedForestClassifier(protection="hidden"), DataShape(1000, {"a": 4}))


def test_numbers_in_words_have_two_digits() -> None:
    told = [forecast_hidden._rounded(number) for number in (7.4, 74.2, 1234.0, 987_654.0)]
    assert told == [7, 74, 1200, 990_000]
    assert np.all(np.array(told) > 0)


@pytest.mark.slow
def test_the_command_says_what_is_opened() -> None:
    words = [str(WOODLOT), "plan", "--rows", "900", "--columns", "bank=3", "--columns", "shop=2"]
    settings = ["--set", "n_estimators=3", "--set", "protection=hidden", "--json"]
    done = subprocess.run([*words, *settings], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["bytes_by_party"]) == {"bank", "shop", "dealer"}
    assert "150 rows or more" in told["opened"]["shop"]
