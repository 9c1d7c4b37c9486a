"""``woodlot bench``: small runs of the real measurements, and what they say."""

from __future__ import annotations

import json
import re
import sys
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from checked_json import checked
from click.testing import Result
from typer.testing import CliRunner

from woodlot.cli import app
from woodlot.cli.bench import FEDERATED, INTELEX, ONE_PLACE, SKLEARN, _run

SMALL = ("--rows", "400", "--columns", "5", "--trees", "6", "--repeats", "2")


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["bench", *SMALL, *arguments])


def told(*arguments: str) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return checked(["bench"], json.loads(done.stdout))


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("depth", [4, 0])
def test_all_three_are_measured_and_federated_equals_one_place(task: str, depth: int) -> None:
    facts = told("--task", task, "--depth", str(depth))
    assert facts["identical"]
    assert facts["nodes"] > 6
    assert (facts["rows"], facts["test_rows"], facts["columns"], facts["trees"]) == (400, 100, 5, 6)
    assert (facts["depth"], facts["task"], facts["repeats"]) == (depth or None, task, 2)
    results = facts["results"]
    assert [name for name in results if name != INTELEX] == [SKLEARN, ONE_PLACE, FEDERATED]
    theirs = results[SKLEARN]
    for result in results.values():
        for what in ("fit", "predict"):
            assert result[f"{what}_ratio"] == theirs[f"{what}_seconds"] / result[f"{what}_seconds"] > 0
        assert result["score"] > (0.6 if task == "classification" else 0.2)
    assert results[ONE_PLACE]["score"] == results[FEDERATED]["score"]
    assert results[FEDERATED]["fit_rounds"] > results[FEDERATED]["predict_rounds"] == 1
    assert min(results[FEDERATED]["fit_bytes"], results[FEDERATED]["predict_bytes"]) > 0


@pytest.mark.slow
def test_what_people_see() -> None:
    done = run("--depth", "3")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("6 trees of depth 3, two classes; 400 made-up rows of 5 columns to learn from")
    assert re.search(r"scikit-learn +\d+\.\d\d s +\d\.\d{3} s +\d+\.\d %", done.stdout)
    assert re.search(r"two parties +[\d.]+ s +[\d.]+x +[\d.]+ s +[\d.]+x +\d+\.\d % +\d+ +[\d.]+ kB", done.stdout)
    assert re.search(r"bit for bit: +yes \([\d,]+ nodes, 200 answers\)", done.stdout)
    assert "[1/4] making up rows" in done.stderr


def test_a_difference_is_told_and_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(model: Any, X: Any, y: Any, unseen: Any) -> Any:
        done = _run(model, X, y, unseen)
        if isinstance(y, str):  # of the federation, one answer in its last bit
            done.answers.flat[7] = np.nextafter(done.answers.flat[7], 2.0)
        return done

    monkeypatch.setattr(sys.modules["woodlot.cli.bench"], "_run", wrong)  # the package has the command by this name
    done = run("--depth", "3")
    assert done.exit_code == 1
    assert re.search(r"bit for bit: +no \(the answers differ\)", done.stdout)
    assert json.loads(run("--depth", "3", "--json").stdout)["identical"] is False


def test_the_least_that_can_be_measured() -> None:
    done = CliRunner().invoke(app, ["bench", "--rows", "100", "--columns", "2", "--trees", "1", "--repeats", "1"])
    assert done.exit_code == 0, done.output
    assert "1 tree of depth 10" in done.stdout
    assert "One run of each" in done.stdout
    assert CliRunner().invoke(app, ["bench", "--columns", "1"]).exit_code == 2


@pytest.mark.skipif(find_spec("sklearnex") is not None, reason="scikit-learn-intelex itself is installed")
def test_intelex_stands_beside_scikit_learn_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with the same names as scikit-learn-intelex stands in for it."""
    from sklearn import ensemble

    package = ModuleType("sklearnex")
    package.ensemble = ensemble  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sklearnex", package)
    arguments = ["bench", "--rows", "100", "--columns", "2", "--trees", "1", "--repeats", "1"]
    results = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)["results"]
    assert list(results) == [SKLEARN, INTELEX, ONE_PLACE, FEDERATED]
    assert results[INTELEX]["fit_ratio"] > 0
    assert re.search(rf"{INTELEX} +[\d.]+ s +[\d.]+x", CliRunner().invoke(app, arguments).stdout)
