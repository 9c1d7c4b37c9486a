"""Explain and card on the command line, against a real federation on localhost."""

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

import woodlot as wl
from woodlot.cli import app
from woodlot.cli._client import COORDINATOR_ENV, IDENTITY_ENV

N = 120
FIRST = 7000
KINDS = ["align", "train", "predict", "score", "explain", "evaluate", "revoke"]
LIMITS = {"min_evaluation_rows": 1, "evaluations_per_day": "unlimited", "round_counts": 1}


def tables() -> dict[str, dict[str, pa.Table]]:
    rng = np.random.default_rng(5)
    ids, x = np.arange(N) + FIRST, rng.normal(size=(N, 4))
    label = np.where(x[:, 0] + x[:, 2] + 0.4 * rng.normal(size=N) > 0, "yes", "no")
    return {
        "bank": {"customers": pa.table({"id": ids, "age": x[:, 0], "income": x[:, 1], "default": label})},
        "shop": {"customers": pa.table({"id": ids, "visits": x[:, 2], "basket": x[:, 3]})},
    }


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("explain"), tables(), labels=("default",))
    for party, own in made.settings.items():
        own["policy"] |= LIMITS | {"protocols": KINDS, "explanations_per_day": "unlimited"}
        own["policy"]["explains"] = "values" if party == "bank" else "party"
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
def model(world: World) -> str:
    where = (world.address, world.root / "alice" / "identity")
    with wl.connect(*where, tables="customers", parties=["bank", "shop"]) as fed:
        forest = wl.FederatedForestClassifier(6, random_state=0, oob_score=True).fit(fed, y="bank.default")
        return str(forest.forest_.model)


def test_named_rows_are_explained_with_reasons(model: str) -> None:
    words = ["explain", model, "--id", str(FIRST), "--id", str(FIRST + 1), "--reasons", "2"]
    found = told(*words)
    explanation = found["explanation"]
    assert explanation["features"] == ["bank.age", "bank.income", "shop"]
    assert explanation["ids"] == [str(FIRST), str(FIRST + 1)]
    values, outputs = np.array(explanation["values"]), np.array(explanation["outputs"])
    np.testing.assert_allclose(explanation["base_values"] + values.sum(axis=1), outputs, rtol=0, atol=1e-12)
    answers = told("score", str(FIRST), str(FIRST + 1), "--model", model)["answers"]
    np.testing.assert_allclose(outputs[:, 1], answers["probability_yes"], rtol=0, atol=1e-12)
    assert set(found["by_party"]) == {"bank", "shop"}
    assert [len(reasons) <= 2 for reasons in found["reasons"]] == [True, True]
    shown = run(*words).stdout
    assert "Explanation of 2 rows" in shown
    assert "by party" in shown
    assert f"Row {FIRST}:" in shown
    assert "percentage points." in shown


@pytest.mark.slow
def test_a_part_of_the_common_rows_is_explained(model: str) -> None:
    found = told("explain", model[:8], "--split", "0.5")
    assert 10 < len(found["explanation"]["outputs"]) < N - 10  # by a key that is drawn: 60 on average
    assert found["explanation"]["ids"] is None
    assert "reasons" not in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--id", "1", "--split", "0.5"], "--id and --split both say which rows"),
        (["--split", "1.5"], "give a share between 0 and 1"),
        (["--split-seed", "1"], "give --split, too"),
        (["--reasons", "-1"], "give a number of reasons"),
        (["--id", "seven"], "its ids are whole numbers"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_what_is_wrong_is_named(model: str, words: list[str], problem: str) -> None:
    assert problem in " ".join(run("explain", model, *words, code=1).output.split())


# --- cards ---


def test_a_card_has_what_the_user_may_read(model: str, tmp_path: Path) -> None:
    text = run("card", model, "--purpose", "Decide who is *called*.").stdout
    for line in (
        f"# Model {model}",
        r"Decide who is \*called\*.",
        "| labels at | bank |",
        "| classes | no, yes |",
        "| training rows | 120 |",
        "| led by | bank |",
        "| party shop | ",
        "## Settings of FederatedForestClassifier",
        r"| n\_estimators | 6 |",
        "## Scores out of bag",
        "## Who saw what in the training",
        "## Privacy budget",
    ):
        assert line in text, line
    assert not [name for name in ("income", "visits", "basket") if name in text]  # of which the user is told nothing
    saved = tmp_path / "card.md"
    run("card", model, "--purpose", "Decide who is *called*.", "--out", str(saved))
    assert saved.read_text() == text
    run("card", model, "--out", str(tmp_path / "card.html"))
    assert (tmp_path / "card.html").read_text().startswith(f"<h1>Model {model}")


def test_a_card_is_printed_without_control_characters(model: str) -> None:
    """Names of models and classes, written by others, get onto the terminal by the same way."""
    text = run("card", model, "--purpose", "\x1b]0;owned\x07 \x9b2J").stdout
    assert r"\x1b" in text
    assert not {"\x1b", "\x07", "\x9b"} & set(text)


@pytest.mark.slow
def test_a_card_has_the_report_of_an_evaluation(model: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    report.write_text(run("evaluate", "--model", model, "--y", "bank.default", "--bootstrap", "0", "--json").stdout)
    text = run("card", model, "--report", str(report)).stdout
    assert "## Scores on 120 rows" in text
    assert "120 of 120 rows were in the training" in text or "all rows were in the training" in text
    assert r"| roc\_auc | " in text
    report.write_text(json.dumps({"model": "another", "report": {}}))
    assert "is of another model" in " ".join(run("card", model, "--report", str(report), code=1).output.split())
    report.write_text(json.dumps({"model": model, "report": {"metrics": 1}}))
    assert "is not one that evaluate has written" in " ".join(
        run("card", model, "--report", str(report), code=1).output.split()
    )
    assert "ends in .md or .html" in " ".join(run("card", model, "--out", "card.pdf", code=1).output.split())


@pytest.mark.slow
def test_a_fitted_model_writes_its_card_too(world: World) -> None:
    """And a party that has left it is on the card, in Python and on the command line."""
    where = (world.address, world.root / "alice" / "identity")
    with wl.connect(*where, tables="customers", parties=["bank", "shop"]) as fed:
        forest = wl.FederatedForestClassifier(3, random_state=0).fit(fed, y="bank.default")
        text = forest.card(name="Risk").to_markdown()
        assert "| party shop | 2 columns |" in text
        assert f"| model | {forest.forest_.model} |" in text
        assert "| led by | bank |" in text
        assert "LeafTotals" in text
        forest.revoke("shop", level=3)
        left = forest.card().to_markdown()
        assert "## Receipts of parties that have left" in left
    on_line = run("card", str(forest.forest_.model)).stdout
    assert "## Receipts of parties that have left" in on_line
    assert "| left since | 1 party |" in on_line
