"""Forecasts: bytes and rounds are near those of the real training, at sizes that were not tried."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import woodlot as wl
from woodlot.estimators.forecast import Network, Shape, forecast, made_up_rows
from woodlot.exceptions import DataError

WOODLOT = Path(sys.executable).with_name("woodlot")
CASES: dict[str, tuple[Any, Shape]] = {
    "many rows": (wl.FederatedForestClassifier(12, max_depth=9), Shape(40_000, {"a": 5, "b": 4})),
    "more trees, five classes": (wl.FederatedForestClassifier(40), Shape(3_000, {"a": 3, "b": 3, "c": 2}, 5)),
    "regression": (wl.FederatedForestRegressor(10), Shape(18_000, {"a": 4, "b": 2}, 0)),
}


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


def test_the_network_adds_its_time() -> None:
    estimator, shape = wl.FederatedForestClassifier(4, max_depth=3), Shape(200, {"a": 2, "b": 2})
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
        Shape(**{"rows": 10, "columns": {"a": 1}, **wrong})
    with pytest.raises(ValueError, match="latency"):
        Network(latency=-1)


def test_what_is_not_foreseen_is_told() -> None:
    with pytest.raises(DataError, match="max_leaf_nodes"):
        forecast(wl.FederatedForestClassifier(max_leaf_nodes=5), Shape(100, {"a": 2}))


def test_the_command() -> None:
    words = [WOODLOT, "plan", "--rows", "500", "--columns", "bank=3", "--columns", "shop=2", "--set", "n_estimators=3"]
    done = subprocess.run([*words, "--measure", "--json"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert set(told["bytes_by_party"]) == {"bank", "shop"}
    assert told["measured"]["rounds"]["foreseen"]
    wrong = subprocess.run([*words, "--columns", "shop"], capture_output=True, text=True, timeout=60, check=False)
    assert wrong.returncode == 1
    assert "--columns PARTY=NUMBER" in wrong.stderr
