"""Hold-outs, evaluations and searches of forests over rows on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hospitals import HOSPITALS, LABEL, RATED_POLICY, TABLE, hospitals, patients
from test_row_commands import job_file, run, told
from world import World, running

N = 200
SPLIT = ("--split", 0.4, "--split-seed", 3)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tables = {name: patients(k + 1, N) for k, name in enumerate(HOSPITALS)}
    made = hospitals(tmp_path_factory.mktemp("world"), tables, policy=RATED_POLICY)
    made.settings["anna"] |= {"policy": RATED_POLICY | {"own_evaluations": True}}
    with running(made) as started:
        yield started


@pytest.fixture(scope="module")
def model(world: World) -> Any:
    forest = {"kind": "local", "n_estimators": 6, "random_state": 0}
    return told("train", job_file(world, forest, name="ward", split=0.4, split_seed=3))


def test_a_model_is_scored_on_the_rows_that_were_held_out(world: World, model: Any) -> None:
    where = ("--model", "ward", "--tables", TABLE, "--y", LABEL, "--job", world.root / "job.toml")
    held = told("evaluate", *where, *SPLIT)["report"]
    assert held["n_rows"] + model["n_rows"] == 3 * N
    assert held["training_rows"] == ""
    assert held["bins"] > 1
    assert 0 < held["errors"]["roc_auc"] < 0.3
    assert set(held["by_client"]) == {"anna"}
    assert held["withheld"] == ["bern", "chur"]
    shown = " ".join(run("evaluate", *where, "--bootstrap", 0).stdout.split())
    assert f"{model['n_rows']} of {3 * N} rows were in the training, so it says little about new rows" in shown
    assert "bins, error at most" in shown
    assert "chur - - - - - tells no figures of its own" in shown
    two = run("evaluate", *where, "--party", "anna", "--party", "bern")
    assert two.exit_code == 1
    assert "three parties or more" in two.stderr
    assert "for forests over columns" in run("evaluate", *where, "--sealed").stderr


@pytest.mark.slow
def test_a_search_over_rows(world: World) -> None:
    file = job_file(world, {"kind": "local", "n_estimators": 3, "random_state": 0})
    found = told("search", file, "--grid", "max_depth=1,3", "--cv", 2, "--scoring", "accuracy")
    assert found["best"]["max_depth"] in (1, 3)
    assert found["model"]


@pytest.mark.slow
def test_a_party_leaves_a_model_of_a_part_of_the_rows(world: World) -> None:
    forest = {"kind": "local", "n_estimators": 6, "random_state": 0}
    trained = told("train", job_file(world, forest, name="left", split=0.4, split_seed=3))
    asked = ("revoke", "left", "chur", "--level", 3)
    plain = ("--y", LABEL, "--tables", TABLE, "--job", job_file(world, forest))
    assert "trained on a part of the rows" in " ".join(run(*asked, *plain).stderr.split())
    assert "give --split, too" in run(*asked, *plain, "--split-seed", 1).stderr
    done = told(*asked, *plain, *SPLIT)
    shown = told("models", "show", done["model"], "--job", world.root / "job.toml")
    assert shown["n_rows"] < trained["n_rows"]
