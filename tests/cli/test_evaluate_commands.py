"""Evaluate, search and catalog on the command line, against a real federation on localhost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from checked_json import checked
from click.testing import Result
from typer.testing import CliRunner
from world import World, running

from woodlot.cli import app
from woodlot.cli._client import COORDINATOR_ENV, IDENTITY_ENV
from woodlot.cli.train import order_maker
from woodlot.exceptions import ConfigError
from woodlot.service.config import JobConfig

N = 240
LIMITS = {"min_evaluation_rows": 1, "evaluations_per_day": "unlimited", "round_counts": 1}
KINDS = ["align", "train", "predict", "evaluate"]


def tables() -> dict[str, dict[str, pa.Table]]:
    rng = np.random.default_rng(5)
    ids, x = np.arange(N) + 7000, rng.normal(size=(N, 4))
    label = np.where(x[:, 0] + x[:, 2] + 0.4 * rng.normal(size=N) > 0, "yes", "no")
    return {
        "bank": {"customers": pa.table({"id": ids, "age": x[:, 0], "income": x[:, 1], "default": label})},
        "shop": {"customers": pa.table({"id": ids, "visits": x[:, 2], "basket": x[:, 3]})},
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("evaluate"), tables(), labels=("default",))
    for own in made.settings.values():
        own["policy"] |= LIMITS | {"protocols": KINDS, "catalog": ["names", "types"]}
    with running(made):
        yield made


@pytest.fixture(autouse=True)
def alice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COORDINATOR_ENV, world.address)
    monkeypatch.setenv(IDENTITY_ENV, str(world.root / "alice" / "identity"))
    monkeypatch.setenv("WOODLOT_TABLES", "customers")


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == code, result.output
    return result


def told(*words: str) -> dict[str, Any]:
    document: dict[str, Any] = checked(words, json.loads(run(*words, "--json").stdout))
    return document


@pytest.fixture(scope="module")
def job_file(world: World) -> Path:
    path = world.root / "job.toml"
    path.write_text(
        f"""coordinator = "{world.address}"
identity = "{world.root / "alice" / "identity"}"

[job]
tables = "customers"
y = "bank.default"
task = "classification"
name = "risk"
split = 0.3
exclude = {{ shop = ["basket"] }}

[job.features]
bank = ["age"]
shop = "*"

[forest]
n_estimators = 6
random_state = 0
"""
    )
    return path


@pytest.fixture(scope="module")
def model(world: World, job_file: Path) -> dict[str, Any]:
    environment = {COORDINATOR_ENV: world.address, IDENTITY_ENV: str(world.root / "alice" / "identity")}
    result = CliRunner().invoke(app, ["train", str(job_file), "--json"], env=environment)
    assert result.exit_code == 0, result.output
    trained: dict[str, Any] = json.loads(result.stdout)
    return trained


def test_a_model_of_some_rows_and_columns_is_scored_on_the_rows_that_were_held_out(model: dict[str, Any]) -> None:
    assert sum(model["forest"]["splits"].values()) > 0
    held = told("evaluate", "--model", "risk", "--y", "bank.default", "--split", "0.3")["report"]
    assert held["n_rows"] + model["n_rows"] == N
    assert held["training_rows"] == ""
    assert held["metrics"]["roc_auc"] > 0.4  # of rows that a drawn key selects
    assert set(held["intervals"]) >= {"accuracy", "roc_auc"}


def test_a_report_on_rows_of_the_training_says_so(model: dict[str, Any]) -> None:
    words = ["evaluate", "--model", "risk", "--y", "bank.default", "--bootstrap", "0"]
    shown = " ".join(run(*words).stdout.split())
    assert f"{model['n_rows']} of {N} rows were in the training, so it says little about new rows" in shown
    assert "roc_auc" in shown
    assert told(*words)["report"]["training_rows"] == f"{model['n_rows']} of {N} rows"


def test_a_search_shows_the_best_first_and_trains_it(world: World) -> None:
    found = told(
        "search", "--y", "bank.default", "--task", "classification", "--grid", "max_depth=1,4", "--cv", "2",
        "--set", "n_estimators=4", "--set", "random_state=0", "--scoring", "roc_auc",
        "--features", "bank=age", "--features", "shop=*",
    )  # fmt: skip
    assert [one["params"] for one in found["results"]] == [found["best"], *[o["params"] for o in found["results"][1:]]]
    assert found["results"][0]["mean"] >= found["results"][1]["mean"]
    assert found["score"] == found["results"][0]["mean"]
    assert (world.root / "bank" / "state" / "models" / found["model"]).is_dir()


def test_the_catalog_lists_what_parties_tell() -> None:
    shown = run("catalog").stdout
    assert "visits  numbers     -" in shown or "visits  numbers  -" in shown
    assert "may be labels: bank.default" in shown
    found = told("catalog")
    assert {column["column"] for column in found["columns"]} == {"age", "income", "visits", "basket"}
    assert all(column["missing"] is None for column in found["columns"])


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["evaluate", "--model", "risk", "--y", "bank.default", "--split", "1.5"], "give a share between 0 and 1"),
        (["evaluate", "--model", "risk", "--y", "bank.default", "--split-seed", "1"], "give --split, too"),
        (["evaluate", "--model", "risk", "--y", "club.default"], "must be written party.column"),
        (["evaluate", "--model", "risk", "--y", "bank.default", "--bootstrap", "3"], "--bootstrap must be 0 or at"),
        (["search", "--grid", "max_depth"], "write --grid NAME=VALUE,VALUE"),
        (["search", "--grid", "height=1", "--y", "bank.default", "--task", "classification"], "has no such parameter"),
        (
            ["search", "--grid", "max_depth=1", "--y", "bank.default", "--task", "classification", "--scoring", "x"],
            "is not among the metrics that a label holder reports",
        ),
        (["train", "--y", "bank.default", "--task", "classification", "--features", "bank"], "write --features PARTY"),
        (
            ["train", "--y", "bank.default", "--task", "classification", "--features", "bank=age"],
            "features does not name 'shop'",
        ),
        (["train", "--y", "bank.default", "--task", "classification", "--split", "2"], "job.split"),
    ],
    ids=lambda value: " ".join(value[:3]) if isinstance(value, list) else "",
)
def test_what_is_wrong_is_named(model: dict[str, Any], words: list[str], problem: str) -> None:
    result = run(*words, code=1)
    assert problem in " ".join(result.output.split())


def test_other_commands_do_not_ignore_parts(job_file: Path) -> None:
    with pytest.raises(ConfigError, match="split, features and exclude are for woodlot train"):
        order_maker(JobConfig.load(job_file), str(job_file))
