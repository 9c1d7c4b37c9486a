"""Names of others' models and reasons of parties reach a reader's terminal as words, and as nothing else."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from woodlot.cli import _Commands
from woodlot.cli import _show as show
from woodlot.cli._client import one_line
from woodlot.cli.explain import _print
from woodlot.dashboard.app import _withheld
from woodlot.evaluation.explanations import make_explanation
from woodlot.exceptions import PolicyError
from woodlot.jobs.job_messages import JobFacts, ModelFacts

TITLE = "\x1b]0;owned\x07"
CLEAR = "\x1b[2J\x9b2J"
SPELLED = r"\x1b[2J\x9b2J"


def facts(**changes: object) -> JobFacts:
    told = {"job": "ab" * 16, "kind": "train", "user": "alice", "state": "running", "version": 1, "created": 0.0}
    return JobFacts(**(told | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("terminal", [False, True])
def test_what_is_shown_has_no_control_characters_of_others(terminal: bool, capsys: pytest.CaptureFixture[str]) -> None:
    token = show.is_terminal.set(terminal)
    console = show.stdout()
    show.is_terminal.reset(token)
    console.print(show.table(("name", "user"), [(CLEAR, "mallory"), (TITLE, "mallory")]))
    console.print(show.facts_grid({"error": CLEAR}))
    console.print(show.state(facts(waiting_for=(CLEAR,))))
    console.print(f"The model is now {CLEAR}.", markup=False)
    shown = capsys.readouterr().out
    assert shown.count(SPELLED) == 4
    assert "\x07" not in shown
    for raw in ("\x1b]", "\x1b[2J", "\x9b"):
        assert raw not in shown
    assert terminal or "\x1b" not in shown
    assert shown.count("\n") > 4


def test_nor_has_a_job_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    with show.watch_job() as tell:
        tell(facts(waiting_for=(CLEAR,)))
        tell(facts(phase="grow", done=1, total=2, note=CLEAR))
        tell(facts(phase=CLEAR))
    shown = capsys.readouterr().err
    assert shown.count(SPELLED) == 3
    assert "\x1b" not in shown


def test_nor_has_an_error() -> None:
    assert one_line(f"party 'bank':\n  {CLEAR}\u202e ") == rf"party 'bank': {SPELLED}\u202e"
    app = typer.Typer(cls=_Commands)

    @app.command()
    def refused() -> None:
        raise PolicyError(CLEAR)

    app.callback()(lambda: None)
    assert CliRunner().invoke(app, ["refused"]).stderr == f"woodlot: {SPELLED}\n"


def test_nor_has_a_reason_and_it_forges_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Values in reasons are as their party has written them."""
    one, known = np.ones((1, 1)), np.zeros(1, np.bool_)
    told = make_explanation(
        [("bank", "bank.age")], one[..., None], np.zeros(1), one, classes=None, uncertain=known, texts={}
    )
    _print(told, [[f"bank: age ({CLEAR}\nRow 2:) raised it."]])
    shown = capsys.readouterr().out
    assert rf"({SPELLED}\nRow 2:)" in shown
    assert "\x1b" not in shown


def test_a_withheld_score_says_why() -> None:
    settings = {"estimator": "FederatedForestClassifier", "params": {"oob_score": True}}
    model = ModelFacts(
        model="ab" * 16, name="", user="alice", created=0.0, forest="", parties=("bank",), holder="bank", n_rows=9,
        n_trees=1, n_nodes=1, splits={}, classes=(0, 1), complete=True, unwilling=(), oob_score=None,
        settings=json.dumps(settings), disclosure="[]", cost="{}",
    )  # fmt: skip
    assert "balanced_subsample" in show.out_of_bag(model)
    assert _withheld(model) in show.out_of_bag(model)
    scored, unasked = msgspec.structs.replace(model, oob_score=0.5), msgspec.structs.replace(model, settings="{}")
    assert show.out_of_bag(scored) == "50.0 % accuracy, out of bag"
    assert [show.out_of_bag(unasked), _withheld(scored), _withheld(unasked)] == ["", "", ""]
