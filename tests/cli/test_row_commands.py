"""Forests over rows on the command line: train, models, predict, audit and the budget, against a real federation."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from checked_json import checked
from click.testing import Result
from hospitals import HOSPITALS, LABEL, TABLE, hospitals
from processes import write_toml
from typer.testing import CliRunner
from world import World, running

import woodlot as wl
from woodlot.cli import app


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(hospitals(tmp_path_factory.mktemp("world"), privacy={"epsilon": 4.0})) as started:
        yield started


def job_file(world: World, forest: dict[str, Any], **job: Any) -> Path:
    said = {"layout": "rows", "tables": TABLE, "parties": HOSPITALS, "y": LABEL, "task": "classification"} | job
    identity = str(world.root / "alice" / "identity")
    settings = {"coordinator": world.address, "identity": identity, "job": said, "forest": forest}
    return write_toml(world.root / "job.toml", settings)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def told(*arguments: object) -> Any:
    done = run(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return checked(arguments, json.loads(done.stdout))


def test_train_show_export_and_predict(world: World, tmp_path: Path) -> None:
    file = job_file(world, {"n_estimators": 6, "random_state": 0}, name="ward")
    trained = run("train", file)
    assert trained.exit_code == 0, trained.output
    assert "Forest ward has grown." in trained.stdout
    assert f"--score {LABEL}" in trained.stdout
    shown = run("models", "show", "ward", "--job", file).stdout
    assert re.search(r"kind +CollaborativeForestClassifier", shown)
    assert re.search(r"labels at +every party", shown)
    assert run("models", "export", "ward", tmp_path / "model", "--job", file).exit_code == 0
    model = wl.load(tmp_path / "model")
    done = told("predict", "--model", "ward", "--tables", TABLE, "--score", LABEL, "--job", file)
    assert done["rows"] == dict.fromkeys(HOSPITALS, 60)
    for party in HOSPITALS:
        rows = pq.read_table(world.root / party / f"{TABLE}.parquet").to_pandas()
        kept = pq.read_table(world.root / party / "state" / "answers" / f"{done['job']}.parquet").to_pandas()
        np.testing.assert_array_equal(kept["prediction"], model.predict(rows))
    people = run("predict", "--model", "ward", "--tables", TABLE, "--score", LABEL, "--job", file).stdout
    assert re.search(r"scores +anna [\d.]+ % accuracy, bern", people)
    assert run("audit", done["job"], "--job", file).exit_code == 0
    assert "scores" in run("jobs", "attach", done["job"], "--job", file).stdout
    assert "Forest ward has grown." in run("jobs", "attach", done["model"], "--job", file).stdout
    fetched = run("jobs", "attach", done["job"], "--out", tmp_path / "answers.csv", "--job", file)
    assert fetched.exit_code == 1
    assert f"woodlot models export {done['model'][:8]} FOLDER" in fetched.stderr
    refused = run("predict", "--model", "ward", "--tables", TABLE, "--out", "answers.csv", "--job", file)
    assert refused.exit_code == 1
    assert "woodlot models export ward FOLDER" in refused.stderr


def test_private_training_and_the_budget(world: World) -> None:
    config = write_toml(world.root / "bern" / "party.toml", {"coordinator": world.address, **world.settings["bern"]})
    (before,) = told("budget", "show", config)["tables"]
    assert before["table"] == TABLE
    for account, unit in zip(before["accounts"], ("labels", "rows"), strict=True):
        assert (account["unit"], account["epsilon"], account["budget"], account["releases"]) == (unit, 0.0, 4.0, [])
        assert account["meaning"] == "no differentially private release is charged to this account"
    forest = {
        "kind": "extra-trees",
        "n_estimators": 3,
        "max_depth": 3,
        "classes": ["no", "yes"],
        "privacy": {"kind": "local", "epsilon": 2.0},
        "declared": {"age": [0, 100], "dose": [0, 1], "ward": ["east", "north", "south"]},
    }
    trained = told("train", job_file(world, forest))
    assert trained["forest"]["privacy"]["epsilon"] == pytest.approx(2.0)
    shown = run("models", "show", trained["model"], "--job", world.root / "job.toml").stdout
    assert "by this training alone: an attacker who is 50% sure becomes at most 89% sure" in " ".join(shown.split())
    (after,) = told("budget", "show", config)["tables"]
    labels, rows = after["accounts"]
    assert labels["epsilon"] == pytest.approx(2.0)
    assert labels["meaning"] == (
        "of the label of one row, by the charged releases alone: an attacker who is 50% sure becomes at most 89% sure"
    )
    (release,) = labels["releases"]
    assert release["mechanism"] == "permanent randomised response, one-bit"
    assert rows["epsilon"] == 0.0
    assert {"job": trained["model"], "kind": "train-rows", "units": ["rows"]} in after["uses"]
    shown = run("budget", "show", config, "--releases").stdout
    assert re.search(r"spent +epsilon 2 *\n", shown)
    assert re.search(r"budget +epsilon 4 *\n", shown)
    assert release["job"][:8] in shown
    forest["privacy"] = {"kind": "local", "epsilon": 2.5}
    failed = run("train", job_file(world, forest))
    assert failed.exit_code == 1
    assert "privacy budget does not allow it" in failed.stderr


def test_a_table_that_was_used_without_privacy_is_not_said_to_be_safe(world: World) -> None:
    """Epsilon 0 would read as "nothing can be learnt", of a table that two ordinary trainings have learnt from."""
    config = write_toml(world.root / "chur" / "party.toml", {"coordinator": world.address, **world.settings["chur"]})
    (before,) = told("budget", "show", config)["tables"]
    for _ in range(2):
        told("train", job_file(world, {"kind": "local", "n_estimators": 2}))
    (after,) = told("budget", "show", config)["tables"]
    assert len(after["uses"]) == len(before["uses"]) + 2
    for account in after["accounts"]:
        assert re.search(r"\d+ trainings .*have used this table without", account["uncovered"])
        assert (
            f"no epsilon bounds what is learnt of {'one row' if account['unit'] == 'rows' else 'the label'}"
            in (account["uncovered"])
        )
    shown = run("budget", "show", config, "--releases").stdout
    assert "50% sure becomes at most 50% sure" not in shown
    assert "trainings" in " ".join(shown.split()).partition("not covered")[2]
    assert after["uses"][-1]["job"][:8] in shown


@pytest.mark.parametrize(
    ("forest", "job", "words"),
    [
        ({"kind": "deep"}, {}, "forest.kind must be one of collaborative, local, extra-trees"),
        ({"max_deph": 3}, {}, "did you mean 'max_depth'?"),
        ({"min_samples_leaf": 0}, {}, "min_samples_leaf"),
        ({"kind": "extra-trees", "privacy": {"kind": "local", "epsilon": -1}}, {}, "forest.privacy: epsilon must be"),
        ({"kind": "local"}, {"layout": "columns", "y": "anna.ill"}, "layout = 'rows'"),
        ({"kind": "collaborative"}, {"sample_weight": "age"}, "'collaborative' take no sample_weight"),
    ],
)
def test_settings_that_make_no_sense(world: World, forest: dict[str, Any], job: dict[str, Any], words: str) -> None:
    done = run("train", job_file(world, forest, **job))
    assert done.exit_code == 1
    assert words in done.stderr


def test_a_party_that_has_never_run_has_no_budget_to_show(world: World) -> None:
    settings = {"coordinator": world.address, **world.settings["bern"], "state": "elsewhere"}
    done = run("budget", "show", write_toml(world.root / "bern" / "other.toml", settings))
    assert done.exit_code == 1
    assert "has never run" in done.stderr
