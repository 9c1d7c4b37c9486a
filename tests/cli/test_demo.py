"""``woodlot demo``: its numbers, its JSON, what it shows to people, and how it ends."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from woodlot.cli import _comparison
from woodlot.cli._companies import ID, LABEL, make_companies
from woodlot.cli.demo import N_STEPS, _print

COMMAND = Path(sys.executable).with_name("woodlot")
SMALL = ["--rows", "1500", "--trees", "20", "--seed", "3"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "FORCE_COLOR")}
    return subprocess.run(
        [COMMAND, "demo", *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
    )


@pytest.fixture(scope="module")
def as_json() -> tuple[dict[str, Any], str]:
    done = run("--json", *SMALL)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.fixture(scope="module")
def comparison() -> _comparison.Comparison:
    return _comparison.compare(300, 3, 0, begin=lambda what: None)


def test_together_is_better_than_alone_and_the_same_as_central(as_json: tuple[dict[str, Any], str]) -> None:
    result, _ = as_json
    models = result["models"]
    federated = models["federated"]
    for alone in ("bank alone", "shop alone"):
        assert federated["accuracy"] > models[alone]["accuracy"] + 0.03
        assert federated["auc"] > models[alone]["auc"] + 0.03
    for central in ("one place", "one place, scikit-learn"):
        assert abs(federated["auc"] - models[central]["auc"]) < 0.03
    assert result["identical"] is True
    compared = result["compared"]
    assert compared["same_forest"] is True
    assert compared["same_answers"] is True
    assert compared["n_trees"] == 20
    assert compared["n_nodes"] > 20
    assert compared["n_answers"] == 2 * result["customers"]["test"]


def test_json_has_every_field(as_json: tuple[dict[str, Any], str]) -> None:
    result, _ = as_json
    assert set(result) == {
        "woodlot", "seed", "trees", "customers", "columns", "models", "identical", "compared", "prediction",
        "disclosure", "seconds",
    }  # fmt: skip
    assert (result["seed"], result["trees"]) == (3, 20)
    customers = result["customers"]
    assert customers["common"] == 1_500 == customers["train"] + customers["test"]
    assert customers["common"] < min(customers["bank"], customers["shop"])
    assert "default" not in result["columns"]["bank"]
    assert not set(result["columns"]["bank"]) & set(result["columns"]["shop"])
    assert list(result["models"]) == ["bank alone", "shop alone", "one place", "one place, scikit-learn", "federated"]
    for name, model in result["models"].items():
        assert set(model) == {"accuracy", "auc", "fit_seconds", "predict_seconds", "rounds", "bytes"}
        assert 0.5 < model["accuracy"] < 1
        assert 0.5 < model["auc"] < 1
        assert 0 < model["fit_seconds"] < result["seconds"]
        assert (model["rounds"] is None) == (model["bytes"] is None) == (name != "federated")


def test_json_accounts_for_every_byte_of_the_training(as_json: tuple[dict[str, Any], str]) -> None:
    result, _ = as_json
    federated = result["models"]["federated"]
    assert federated["bytes"] == sum(row["bytes"] for row in result["disclosure"])
    assert federated["rounds"] > 3
    assert {row["receiver"] for row in result["disclosure"]} == {"bank", "shop", "coordinator"}
    assert {row["form"] for row in result["disclosure"]} <= {"clear", "encoded", "encrypted"}
    assert result["prediction"]["rounds"] == 1
    assert result["prediction"]["bytes"] > 0


def test_progress_goes_to_standard_error_in_plain_lines(as_json: tuple[dict[str, Any], str]) -> None:
    _, progress = as_json
    steps = [line for line in progress.splitlines() if line.startswith("[")]
    assert [line.split()[0] for line in steps] == [f"[{i + 1}/{N_STEPS}]" for i in range(N_STEPS)]
    assert "\x1b" not in progress
    assert "Warning" not in progress


def test_the_same_seed_gives_the_same_numbers(comparison: _comparison.Comparison) -> None:
    again = _comparison.compare(300, 3, 0, begin=lambda what: None)
    other = _comparison.compare(300, 3, 1, begin=lambda what: None)

    def numbers(c: _comparison.Comparison) -> list[tuple[Any, ...]]:
        return [(r.name, r.accuracy, r.auc, r.rounds, r.bytes) for r in c.results]

    assert numbers(again) == numbers(comparison)
    assert numbers(other) != numbers(comparison)


def test_output_for_people_has_no_ragged_lines() -> None:
    done = run("--rows", "300", "--trees", "3")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in done.stdout
    assert "…" not in done.stdout
    table = [line for line in lines if re.search(r"\d\d\.\d %", line)]
    assert len(table) == 5
    assert len({line.index("%") for line in table}) == 1
    assert sum(line.startswith("yes ") for line in lines) == 2


def test_a_difference_would_be_shown(comparison: _comparison.Comparison) -> None:
    different = replace(comparison, identity=replace(comparison.identity, same_answers=False))
    assert not different.identity.holds
    shown = io.StringIO()
    _print(Console(width=80, file=shown), different, trees=3, seconds=1.0)
    text = shown.getvalue()
    assert re.search(r"^yes +Growing", text, re.MULTILINE)
    assert re.search(r"^NO +Predicting", text, re.MULTILINE)


def test_forests_of_different_seeds_are_not_the_same(comparison: _comparison.Comparison) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, 3)), rng.integers(2, size=200)
    one, same, other = (
        _comparison.FederatedForestClassifier(2, parties=parties, random_state=seed).fit(X, y).combine()
        for parties, seed in ((1, 0), (3, 0), (1, 1))
    )
    assert _comparison._same_forest(one, same)
    assert not _comparison._same_forest(one, other)


@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C is a signal of its own there")
def test_ctrl_c_ends_it_quietly() -> None:
    process = subprocess.Popen(
        [COMMAND, "demo", "--rows", "20000", "--trees", "1000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("[3/"):
            break
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert output == ""
    assert "Traceback" not in errors


def test_the_companies_tables_are_as_told() -> None:
    companies = make_companies(1_000, seed=5)
    train, test, shop = (table[ID].to_numpy() for table in (companies.bank_train, companies.bank_test, companies.shop))
    bank = np.concatenate([train, test])
    assert len(np.unique(bank)) == len(bank)
    assert len(np.unique(shop)) == len(shop)
    common = np.intersect1d(bank, shop)
    assert len(common) == 1_000 < min(len(bank), len(shop))
    in_bank, in_shop = bank[np.isin(bank, common)], shop[np.isin(shop, common)]
    assert not np.array_equal(in_bank, in_shop)
    assert companies.bank_train["occupation"].null_count > 0
    assert companies.bank_train["income"].null_count > 0
    assert companies.shop["basket_value"].null_count > 0
    assert set(companies.bank_test[LABEL].to_pylist()) == {"yes", "no"}
