"""What `evaluate` gives: intervals, marks of training rows, comparisons, figures."""

from __future__ import annotations

import json
import warnings
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest
from sklearn import metrics

import woodlot as wl
from companies import ALL, BANK, FEATURES, SHOP, classifier, federation
from woodlot.evaluation.class_metrics import ClassRows
from woodlot.evaluation.reports import ClassificationReport, Resampling
from woodlot.exceptions import DataError

matplotlib.use("agg")


@pytest.fixture(scope="module")
def parts() -> tuple[wl.Federation, wl.Federation]:
    return federation(bank=[*BANK, "amount"]).split(0.4, seed=0)


def models() -> list[Any]:
    return [
        classifier(),
        wl.FederatedLogisticRegression(tol=1e-3),
        wl.RevocableForestClassifier(3, encryption="simulated", random_state=0),
    ]


@pytest.mark.parametrize("model", models(), ids=lambda model: type(model).__name__)
def test_a_report_has_scikit_learns_numbers(model: Any, parts: tuple[wl.Federation, wl.Federation]) -> None:
    train, test = (part[~np.isnan(part.members["shop"].table.column("visits").values)] for part in parts)  # type: ignore[union-attr]
    report = model.fit(train, y="bank.default").evaluate(test, n_bootstrap=50)
    y, p = np.asarray(test["bank.default"]), model.predict_proba(test)
    assert report["roc_auc"] == pytest.approx(metrics.roc_auc_score(y, p[:, 1]), abs=1e-12)
    assert report["accuracy"] == pytest.approx(model.score(test), abs=1e-12)
    assert report.n_rows == len(test)
    for name, (low, high) in report.intervals.items():
        assert low <= high, name
        assert low - 0.2 <= report[name] <= high + 0.2 or name in ("lift", "log_loss")
    assert report.training_rows == ""


def test_a_regression(parts: tuple[wl.Federation, wl.Federation]) -> None:
    train, test = parts
    model = wl.FederatedForestRegressor(10, random_state=0).fit(train, y="bank.amount")
    report = model.evaluate(test, n_bootstrap=50)
    y, p = np.asarray(test["bank.amount"]), model.predict(test)
    assert report["r2"] == pytest.approx(metrics.r2_score(y, p), abs=1e-12)
    assert set(report.intervals) == {"r2", "rmse", "mae", "mean_error"}
    assert len(report.plot().axes) == 2
    assert json.loads(json.dumps(report.to_dict()))["error_quantiles"].keys() == {"0.05", "0.25", "0.5", "0.75", "0.95"}


def test_clients_with_rows() -> None:
    rows = ALL.drop(columns=["amount", "weight"])
    fed = wl.Federation.local({"north": rows[:60], "south": rows[60:]}, id="id", layout="rows")
    train, test = fed.split(0.4)
    model = wl.LocalForestsClassifier(12, random_state=0).fit(train, y="default")
    report = model.evaluate(test, n_bootstrap=0)
    assert report["accuracy"] == metrics.accuracy_score(test["default"], model.predict(test))
    assert report.intervals == {}
    with pytest.warns(wl.TrainingRowsWarning, match="all rows"):
        assert model.evaluate(train, n_bootstrap=0).training_rows == "all rows"


def test_a_table() -> None:
    model = classifier().fit(ALL[FEATURES][:80], ALL.default[:80])
    report = model.evaluate(ALL[FEATURES][80:], ALL.default[80:], n_bootstrap=20)
    assert report["accuracy"] == model.score(ALL[FEATURES][80:], ALL.default[80:])
    with pytest.raises(DataError, match="give the labels"):
        model.evaluate(ALL[FEATURES])
    with pytest.raises(DataError, match=r"inconsistent numbers of samples: \[120, 7\]"):
        model.evaluate(ALL[FEATURES], ALL.default[:7])


def test_training_rows_are_marked_everywhere(parts: tuple[wl.Federation, wl.Federation]) -> None:
    train, test = parts
    model = classifier().fit(train, y="bank.default")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.evaluate(test, n_bootstrap=0)
    both = federation(bank=[*BANK, "amount"])
    with pytest.warns(wl.TrainingRowsWarning, match=rf"{len(train)} of 120 rows were in the training"):
        report = model.evaluate(both, n_bootstrap=0)
    assert report.to_dict()["training_rows"] == f"{len(train)} of 120 rows"
    assert "were in the training, so it says little about new rows" in repr(report)
    assert "were in the training" in report._repr_html_()


def test_words_and_figures(parts: tuple[wl.Federation, wl.Federation]) -> None:
    train, test = parts
    report = classifier().fit(train, y="bank.default").evaluate(test, n_bootstrap=50)
    text = repr(report).splitlines()
    assert text[0] == f"Evaluation on {len(test)} rows"
    assert text[1].split() == ["metric", "value", "95%", "interval"]
    assert text[2].split()[:2] == ["accuracy", f"{report['accuracy']:.4f}"]
    assert len(report.plot().axes) == 4
    told = json.loads(json.dumps(report.to_dict()))
    assert np.sum(told["confusion"]) == len(test)
    assert told["curves"]["yes"]["roc"].keys() == {"fpr", "tpr"}
    one_class = np.flatnonzero(np.asarray(test["bank.default"]) == "no")
    partly = classifier().fit(train, y="bank.default").evaluate(test[one_class], n_bootstrap=20)
    assert "no row is of class 'yes'" in repr(partly)
    assert partly.to_dict()["metrics"]["roc_auc"] is None
    with pytest.raises(DataError, match="there is no metric 'auc'; this report has"):
        report["auc"]


@pytest.mark.slow
def test_intervals_cover_as_often_as_they_say() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(40):
        true = rng.random(200) < 0.7  # a model that is right in 70 % of all rows
        y = np.where(true, "a", "b")
        rows = ClassRows(y, np.tile([0.9, 0.1], (200, 1)), np.array(["a", "b"]))
        low, high = ClassificationReport(rows, Resampling(60, 0.9, seed)).intervals["accuracy"]
        covered += low <= 0.7 <= high
    assert 30 <= covered <= 40  # about 36


def test_two_models_on_the_same_rows(parts: tuple[wl.Federation, wl.Federation]) -> None:
    train, test = parts
    good = classifier(n_estimators=40).fit(train, y="bank.default").evaluate(test, n_bootstrap=100)
    bad = classifier(n_estimators=1, max_depth=1).fit(train, y="bank.default").evaluate(test, n_bootstrap=100)
    difference = good.compare(bad)
    assert difference.differences["accuracy"] == good["accuracy"] - bad["accuracy"]
    assert difference.verdict("roc_auc") == "better"
    assert bad.compare(good).verdict("roc_auc") == "worse"
    same = good.compare(good)
    assert same.intervals["roc_auc"] == (0.0, 0.0)
    assert same.verdict("roc_auc") == "unclear"
    assert "Two models on the same" in repr(difference)
    assert "<th>first less second</th>" in difference._repr_html_()
    assert json.loads(json.dumps(difference.to_dict()))["differences"].keys() == difference.differences.keys()
    # pairing: the interval of a difference is narrower than those of the two models allow
    low, high = difference.intervals["accuracy"]
    assert high - low < np.ptp(good.intervals["accuracy"]) + np.ptp(bad.intervals["accuracy"])


def test_other_rows_are_not_compared(parts: tuple[wl.Federation, wl.Federation]) -> None:
    train, test = parts
    model = classifier().fit(train, y="bank.default")
    report = model.evaluate(test, n_bootstrap=20)
    y = np.asarray(test["bank.default"])
    swapped = np.arange(len(test))
    first, second = np.flatnonzero(y == "no")[:2]
    swapped[[first, second]] = second, first  # other rows with the same labels
    for other in (test[1:], test[swapped]):
        with pytest.raises(DataError, match="different rows"):
            report.compare(model.evaluate(other, n_bootstrap=20))
    numbers = wl.FederatedForestRegressor(3).fit(train, y="bank.amount").evaluate(test, n_bootstrap=20)
    with pytest.raises(DataError, match="same kind"):
        report.compare(numbers)


def test_bad_settings(parts: tuple[wl.Federation, wl.Federation]) -> None:
    train, test = parts
    model = classifier(n_estimators=2).fit(train, train["bank.default"] == "yes")
    for options, words in (({"n_bootstrap": 3}, "at least 20"), ({"confidence": 95}, "between 0 and 1")):
        with pytest.raises(ValueError, match=words):
            model.evaluate(test, **options)
    with pytest.raises(DataError, match="say where the labels are"):
        model.evaluate(test)
    with pytest.raises(DataError, match="does not know"):
        model.evaluate(test, y="bank.default")
    assert model.evaluate(test, test["bank.default"] == "yes", n_bootstrap=0)["accuracy"] > 0
    with pytest.raises(DataError, match="bank has no column"):
        model.evaluate(test, y="bank.nothing")


def test_rows_without_ids() -> None:
    fed = wl.Federation.local({"bank": ALL[BANK[1:]], "shop": ALL[SHOP[1:]]})
    model = classifier(n_estimators=3).fit(fed[:60], y="bank.default")
    with pytest.warns(wl.TrainingRowsWarning, match="10 of 70 rows"):
        model.evaluate(fed[50:], n_bootstrap=0)
    assert isinstance(pd.DataFrame([model.evaluate(fed[60:], n_bootstrap=0).to_dict()["metrics"]]), pd.DataFrame)
