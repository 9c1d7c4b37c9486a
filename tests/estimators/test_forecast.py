"""Forecasts: bytes and rounds are near those of the real training, at sizes that were not tried."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import woodlot as wl
from woodlot.estimators import forecast_parts, forecast_private, forecast_protected
from woodlot.estimators.forecast import DataShape, Network, fit_made_up, forecast, made_up_rows
from woodlot.exceptions import DataError

WOODLOT = Path(sys.executable).with_name("woodlot")
CASES: dict[str, tuple[Any, DataShape]] = {
    "many rows": (wl.FederatedForestClassifier(12, max_depth=9), DataShape(40_000, {"a": 5, "b": 4})),
    "more trees, five classes": (wl.FederatedForestClassifier(40), DataShape(3_000, {"a": 3, "b": 3, "c": 2}, 5)),
    "regression": (wl.FederatedForestRegressor(10), DataShape(18_000, {"a": 4, "b": 2}, 0)),
}


@pytest.fixture(autouse=True)
def no_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only seconds gain by repeating trials, and no test looks at them."""
    monkeypatch.setattr(forecast_parts, "TRIAL_SECONDS", 0.0)


@pytest.mark.parametrize("case", CASES)
def test_bytes_are_foreseen_within_a_tenth(case: str) -> None:
    estimator, shape = CASES[case]
    foreseen = forecast(estimator, shape)
    X, y, dealing = made_up_rows(shape, shape.rows)
    cost = estimator.set_params(parties=dealing, random_state=5).fit(X, y).cost_
    assert foreseen.bytes_total == pytest.approx(cost.bytes_sent + cost.bytes_received, rel=0.1)
    assert foreseen.bytes_by_party == pytest.approx(cost.bytes_by_party, rel=0.15)
    assert foreseen.rounds == pytest.approx(cost.rounds, rel=0.2)
    assert foreseen.compute_seconds > 0
    assert [line[0] for line in foreseen.beside(cost)] == ["rounds", "bytes", "seconds"]


def test_a_leader_carries_the_frames_of_all_others() -> None:
    estimator, shape = wl.FederatedForestClassifier(3, max_depth=3), DataShape(500, {"bank": 3, "shop": 2, "club": 2})
    network = Network(0.01, 1e6)
    plain, led = forecast(estimator, shape, network), forecast(estimator, shape, network, lead="holder")
    others = {"shop": led.bytes_by_party["shop"], "club": led.bytes_by_party["club"]}
    assert led.bytes_by_party == {"bank": sum(others.values())} | others
    assert all(1 < others[party] / plain.bytes_by_party[party] < 1.2 for party in others)  # short frames, padded
    assert led.rounds == plain.rounds
    assert led.network_seconds > 2 * plain.rounds * network.latency
    with pytest.raises(DataError, match="lead='coordinator'"):
        forecast(wl.RevocableForestClassifier(), shape, lead="holder")


SMALLER = {
    "SHAPE_ROWS": (1_000, 2_000),
    "KEYED_ROWS": 80,
    "SPLIT_TREES": (1, 4),
    "COUNTED_ROWS": (1_000, 2_000),
}
"""Trials as small as what is foreseen here."""
PROTECTED: dict[str, tuple[Any, DataShape]] = {
    "RevFRF": (
        wl.RevocableForestClassifier(8, max_depth=5, scheme="paper", encryption="paper"),
        DataShape(4_000, {"a": 3, "b": 3}),
    ),
    "rows": (
        wl.HorizontalForestClassifier(16, max_depth=7, max_bins=20),
        DataShape(5_000, {"a": 6, "b": 6, "c": 6}, classes=3),
    ),
    "rows, regression": (
        wl.HorizontalForestRegressor(6, max_bins=20, max_features=0.5),
        DataShape(3_000, {"a": 4, "b": 4, "c": 4}, classes=0),
    ),
}


@pytest.mark.parametrize("case", PROTECTED)
def test_bytes_of_protected_trainings_are_foreseen_within_a_tenth(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SMALLER.items():
        monkeypatch.setattr(forecast_protected, name, value)
    estimator, shape = PROTECTED[case]
    foreseen = forecast(estimator, shape)
    cost = fit_made_up(estimator.set_params(random_state=5), shape, shape.rows).cost_
    assert foreseen.bytes_total == pytest.approx(cost.bytes_sent + cost.bytes_received, rel=0.1)
    assert foreseen.bytes_by_party.keys() == cost.bytes_by_party.keys()
    assert foreseen.rounds == pytest.approx(cost.rounds, rel=0.2)
    assert foreseen.compute_seconds > 0
    assert foreseen.memory_by_party.keys() == shape.columns.keys()


PRIVATE: dict[str, tuple[Any, DataShape]] = {
    "two classes": (
        wl.PrivateForestClassifier(2.0, n_estimators=30, delta=1e-7),
        DataShape(6_000, {"a": 4, "b": 4, "c": 4}),
    ),
    "regression, some may drop out": (
        wl.PrivateForestRegressor(4.0, n_estimators=12, spare_after=5.0, target_range=(10, 20)),
        DataShape(2_000, {"a": 3, "b": 3, "c": 3, "d": 3}, classes=0),
    ),
}


@pytest.fixture
def few_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TRIAL_ROWS": (500, 1_000), "SIMULATED_ROWS": 4_000, "FRESH_ROWS": 2_000}.items():
        monkeypatch.setattr(forecast_private, name, value)


@pytest.mark.usefixtures("few_simulated")
@pytest.mark.parametrize("case", PRIVATE)
def test_private_trainings_are_foreseen_with_what_they_spend(case: str) -> None:
    estimator, shape = PRIVATE[case]
    foreseen = forecast(estimator, shape)
    model = fit_made_up(estimator.set_params(random_state=5), shape, shape.rows)
    cost, outlook = model.cost_, foreseen.outlook
    assert foreseen.bytes_by_party == pytest.approx(cost.bytes_by_party, rel=0.02)
    assert foreseen.rounds == cost.rounds
    assert foreseen.compute_seconds > 0
    assert outlook is not None
    assert (outlook.epsilon, outlook.delta) == (model.privacy_.epsilon, model.privacy_.delta)
    assert 0.5 * outlook.epsilon < outlook.epsilon_outside < outlook.epsilon  # the noise of one client more
    assert outlook.simulated_rows == min(shape.rows, 4_000)
    assert outlook.constant < outlook.score < outlook.without_noise
    told = repr(foreseen)
    assert f"epsilon {outlook.epsilon:g}, delta {outlook.delta:g} of rows" in told
    assert f"{outlook.measure}, simulated" in told


@pytest.mark.usefixtures("few_simulated")
def test_what_makes_private_answers_noisier_is_foreseen() -> None:
    def noise(in_west: int = 2, **params: Any) -> float:
        shape = DataShape(1_000, {"north": 2, "south": 2, "west": in_west})
        outlook = forecast(wl.PrivateForestClassifier(n_estimators=6, max_depth=3).set_params(**params), shape).outlook
        assert outlook is not None
        return outlook.noise_per_leaf

    usual = noise()
    assert noise(epsilon=0.5) == pytest.approx(2 * usual, rel=0.1)
    assert noise(n_estimators=24) == pytest.approx(2 * usual, rel=0.05)
    assert noise(colluding=0) == pytest.approx(usual * (2 / 3) ** 0.5, rel=0.02)  # all three shares count, not two
    with pytest.raises(DataError, match="too small for 6 trees"):
        noise(epsilon=1e-4)
    with pytest.raises(DataError, match="the same columns: give each the same number"):
        noise(in_west=3)


def test_the_network_adds_its_time() -> None:
    estimator, shape = wl.FederatedForestClassifier(4, max_depth=3), DataShape(200, {"a": 2, "b": 2})
    far = forecast(estimator, shape, Network(latency=0.05, bandwidth=2_500_000))
    assert far.network_seconds == pytest.approx(0.05 * far.rounds + max(far.bytes_by_party.values()) / 2_500_000)
    assert forecast(estimator, shape).network_seconds == 0
    assert "memory, a" in repr(far)
    assert "<td>rounds</td>" in far._repr_html_()


@pytest.mark.parametrize(
    "wrong", [{"rows": 1}, {"columns": {}}, {"columns": {"a": 0}}, {"classes": 1}, {"noise": 1.0}], ids=str
)
def test_shapes_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        DataShape(**{"rows": 10, "columns": {"a": 1}, **wrong})
    with pytest.raises(ValueError, match="latency"):
        Network(latency=-1)


def test_what_is_not_foreseen_is_told() -> None:
    for other in (wl.FederatedForestClassifier(max_leaf_nodes=5), wl.LocalForestsClassifier()):
        with pytest.raises(DataError, match="RevocableForest, HorizontalForest and PrivateForest"):
            forecast(other, DataShape(100, {"a": 2}))
    with pytest.raises(DataError, match="the same columns: give each the same number"):
        forecast(wl.HorizontalForestClassifier(), DataShape(100, {"a": 2, "b": 3}))


@pytest.mark.slow
def test_the_command() -> None:
    words = [WOODLOT, "plan", "--rows", "500", "--columns", "bank=3", "--columns", "shop=2", "--set", "n_estimators=3"]
    done = subprocess.run([*words, "--measure", "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["bytes_by_party"]) == {"bank", "shop"}
    assert told["measured"]["rounds"]["foreseen"]
    wrong = subprocess.run([*words, "--columns", "shop"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 1
    assert "--columns PARTY=NUMBER" in wrong.stderr
