"""scikit-learn's callbacks watch fits of every estimator; a fit that fails lets go of them."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import woodlot as wl
from companies import ALL, FEATURES, classifier, federation
from woodlot.estimators.callbacks import STEPS
from woodlot.exceptions import DataError

pytest.importorskip("sklearn.callback", reason="callbacks came with scikit-learn 1.9")

NUMBERS = ["age", "income"]


class Recorder:
    """A callback that writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def setup(self, estimator: Any, context: Any) -> None:
        self.told.append("setup")

    def teardown(self, estimator: Any, context: Any) -> None:
        self.told.append("teardown")

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.told.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator: Any, context: Any) -> None:
        self.told.append(f"end {context.task_name}")


@pytest.mark.parametrize(
    ("model", "step"),
    [
        (wl.FederatedForestClassifier(4, random_state=0), "growing trees"),
        (wl.RevocableForestClassifier(2, random_state=0, max_depth=2), "growing trees"),
        (wl.HorizontalForestClassifier(3, parties=3, random_state=0), "growing trees"),
        (wl.FederatedLogisticRegression(max_iter=3, tol=1.0), "descending"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_callbacks_are_told_of_every_step(model: Any, step: str) -> None:
    recorder = Recorder()
    model.set_callbacks(recorder).fit(ALL[NUMBERS], ALL.default)
    assert recorder.told == [
        "setup",
        "begin fit",
        *[f"{what} {step}" for _ in range(STEPS) for what in ("begin", "end")],
        "end fit",
        "teardown",
    ]
    assert not hasattr(model, "_callback_fit_ctx")
    copy.deepcopy(model).predict(ALL[NUMBERS])


def test_a_fit_that_fails_lets_go(capsys: pytest.CaptureFixture[str]) -> None:
    recorder = Recorder()
    model = classifier(verbose=1).set_callbacks(recorder)
    with pytest.raises(DataError, match="bank has no column"):
        model.fit(federation(), y="bank.nothing")
    assert recorder.told == ["setup", "begin fit", "teardown"]
    assert not hasattr(model, "_callback_fit_ctx")
    model.fit(federation(), y="bank.default")
    assert recorder.told[-1] == "teardown"
    assert "growing trees" not in capsys.readouterr().err  # callbacks are shown in place of verbose
    model.set_callbacks().fit(federation(), y="bank.default")
    assert "growing trees" in capsys.readouterr().err


def test_the_progress_bar_of_scikit_learn() -> None:
    callback = pytest.importorskip("sklearn.callback", reason="callbacks came with scikit-learn 1.9")
    model = classifier().set_callbacks(callback.ProgressBar())
    model.fit(ALL[FEATURES], ALL.default)
    model.fit(ALL[FEATURES], ALL.default)


def test_a_search_passes_its_callbacks_on(capsys: pytest.CaptureFixture[str]) -> None:
    from sklearn.callback import ProgressBar
    from sklearn.datasets import load_iris
    from sklearn.model_selection import GridSearchCV

    X, y = load_iris(return_X_y=True)
    search = GridSearchCV(wl.FederatedForestClassifier(2, parties=2, random_state=0), {"max_depth": [1, 2]}, cv=2)
    search.set_callbacks(ProgressBar())
    search.fit(X, y)
    shown = capsys.readouterr()
    assert "FederatedForestClassifier" in shown.out + shown.err
