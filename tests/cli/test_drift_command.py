"""`woodlot drift` against a federation of real processes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from click.testing import Result
from processes import processes
from typer.testing import CliRunner
from world import World

import woodlot as wl
from woodlot.cli import app
from woodlot.cli._client import COORDINATOR_ENV, IDENTITY_ENV

N = 100
KINDS = ["align", "train", "predict", "drift"]


def rows(seed: int, first: int, shift: float) -> dict[str, pa.Table]:
    rng = np.random.default_rng(seed)
    ids, x = np.arange(N) + first, rng.normal(size=(N, 3))
    late = np.where(x[:, 0] + x[:, 2] + 0.4 * rng.normal(size=N) > 0, "yes", "no")
    return {
        "bank": pa.table({"id": ids, "age": x[:, 0], "income": x[:, 1] + shift, "late": late}),
        "shop": pa.table({"id": ids, "visits": x[:, 2]}),
    }


OLD, NEW = rows(1, 7000, 0.0), rows(2, 9000, 3.0)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tables = {party: {"customers": OLD[party], "later": NEW[party]} for party in OLD}
    made = World(tmp_path_factory.mktemp("drift"), tables, labels=("late",))
    for own in made.settings.values():
        own["policy"] |= {"protocols": KINDS, "catalog": ["names"]}
    with processes(made) as started:
        started.wait_connected()
        yield made


def run(*words: str, code: int = 0) -> Result:
    result = CliRunner().invoke(app, ["drift", *words])
    assert result.exit_code == code, result.output
    return result


@pytest.mark.slow
def test_new_rows_are_compared_as_in_python(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    where = (world.address, world.root / "alice" / "identity")
    with wl.connect(*where, tables="customers", parties=["bank", "shop"]) as fed:
        forest = wl.FederatedForestClassifier(6, random_state=0, oob_score=True).fit(fed, y="bank.late")
    with wl.connect(*where, tables="later", parties=["bank", "shop"]) as later:
        expected = forest.drift(later)
    model = str(forest.forest_.model)
    monkeypatch.setenv(COORDINATOR_ENV, world.address)
    monkeypatch.setenv(IDENTITY_ENV, str(where[1]))
    found = json.loads(run(model, "--tables", "later", "--json").stdout)
    assert found["drift"] == expected.to_dict()
    assert set(found["drift"]["columns"]) == {"bank.age", "bank.income", "shop.visits"}
    assert set(found["drift"]["answers"]) == {"yes"}
    assert found["model"] == model
    assert "bank.income" in found["shifted"]
    shown = run(model[:8], "--tables", "later").stdout
    assert shown.strip() == repr(expected)
    part = json.loads(run(model, "--tables", "customers", "--split", "0.8", "--json").stdout)["drift"]
    assert 30 <= part["n_new"] < N  # by a key that is drawn: 80 on average, and fewer than 30 are refused
    problem = run(model, "--tables", "bank=later", "--tables", "shop=none", code=1).output
    assert "party 'shop': it has no table of the name that the order gives" in problem


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "name the tables of the new rows, such as --tables customers_in_may"),
        (["--tables", "later", "--split", "1.5"], "give a share between 0 and 1"),
        (["--tables", "later", "--split-seed", "1"], "give --split, too"),
        (["--tables", "later"], "no coordinator given"),
    ],
    ids=["tables", "split", "seed", "coordinator"],
)
def test_what_is_wrong_is_named(
    words: list[str], problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in (COORDINATOR_ENV, "WOODLOT_TABLES"):
        monkeypatch.delenv(name, raising=False)
    assert problem in " ".join(run("risk", *words, code=1).output.split())
