"""`drift`: population stability per column and of the answers. `card`: what is known of a model, on one page."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

import woodlot as wl
from companies import ALL, BANK, FEATURES, SHOP, classifier, federation
from woodlot.data.columns import NumericColumn, category_column
from woodlot.evaluation.drift import column_stability, verdict
from woodlot.exceptions import DataError


def test_the_index_is_that_of_the_definition() -> None:
    rng = np.random.default_rng(0)
    old, new = rng.normal(size=2000).astype(np.float32), rng.normal(0.5, 1, 900).astype(np.float32)
    cuts = np.quantile(old, np.linspace(0, 1, 11)[1:-1])
    p, q = (np.bincount(np.searchsorted(cuts, v), minlength=10) + 0.5 for v in (old, new))
    p, q = p / p.sum(), q / q.sum()
    assert column_stability(NumericColumn(old), NumericColumn(new)) == pytest.approx(
        float(((q - p) * np.log(q / p)).sum())
    )
    assert column_stability(NumericColumn(old), NumericColumn(old)) == 0.0
    missing = new.copy()
    missing[::2] = np.nan
    assert column_stability(NumericColumn(old), NumericColumn(missing)) > 1


def test_categories_that_are_new_or_missing_count() -> None:
    def column(codes: list[int], names: tuple[str, ...]) -> Any:
        return category_column(np.array(codes, np.int32), names)

    old = column([0, 0, 1, 1] * 50, ("green", "red"))
    assert column_stability(old, column([1, 1, 0, 0] * 50, ("green", "red"))) == pytest.approx(0)
    assert column_stability(old, column([0, 1] * 100, ("blue", "red"))) > 1
    assert column_stability(old, column([-1, 1] * 100, ("green", "red"))) > 1
    with pytest.raises(DataError, match="numeric in one of the tables"):
        column_stability(old, NumericColumn(np.zeros(3, np.float32)))
    assert [verdict(x) for x in (0.05, 0.2, 0.3)] == ["stable", "some shift", "shifted"]


def shifted() -> pd.DataFrame:
    rows = ALL.copy()
    rows["income"] += 40
    return rows


def test_a_shifted_column_is_found_and_named_where_its_owner_agrees() -> None:
    fed = federation(explains={"bank": "columns", "shop": "party"})
    model = classifier(oob_score=True, n_estimators=40).fit(fed, y="bank.default")
    same = model.drift(fed)
    assert set(same.columns) == {"bank.age", "bank.income", "shop"}
    assert set(same.columns.values()) == {0.0}
    assert set(same.answers) == {"yes"}
    moved = model.drift(federation(shifted(), explains={"bank": "columns", "shop": "party"}))
    assert moved.columns["bank.income"] > 1
    assert moved.columns["bank.age"] == 0
    assert next(iter(moved.shifted)) == "bank.income"
    assert "visits" not in repr(moved)
    assert "bank.income" in moved._repr_html_()
    assert json.loads(json.dumps(moved.to_dict()))["n_new"] == len(ALL)


def test_answers_of_training_rows_are_not_taken_for_those_of_new_ones(tmp_path: Any) -> None:
    train, test = federation().split(test_size=0.4, seed=1)
    model = classifier().fit(train, y="bank.default")
    plain = model.drift(test)
    assert plain.answers == {}
    assert "oob_score=True, or give reference=" in repr(plain)
    held = model.drift(test, reference=test)
    assert held.answers == {"yes": 0.0}
    model.save(tmp_path / "model")
    loaded = wl.load(tmp_path / "model")
    with pytest.raises(DataError, match="does not have its training rows at hand"):
        loaded.drift(test)
    assert loaded.drift(test, reference=train).columns == plain.columns
    with pytest.raises(DataError, match="X must be a federation of parties"):
        model.drift(ALL[FEATURES])
    fewer = wl.Federation.local({"bank": ALL[BANK].drop(columns="age"), "shop": ALL[SHOP]}, id="id")
    with pytest.raises(DataError, match=r"table of bank lacks columns of the model: \['age'\]"):
        model.drift(fewer)


def test_a_card_has_what_is_known(tmp_path: Any) -> None:
    train, test = federation().split(test_size=0.4, seed=1)
    model = classifier(oob_score=True, n_estimators=40).fit(train, y="bank.default")
    report = model.evaluate(test, n_bootstrap=50)
    model.revoke("shop")
    card = model.card(report, name="Default | <b>risk</b>", purpose="To *price* credit.")
    text = card.to_markdown()
    assert text.startswith("# Default \\| \\<b\\>risk\\</b\\>\n")
    assert "To \\*price\\* credit." in text
    assert "| labels | bank.default |" in text
    assert f"| roc\\_auc | {report['roc_auc']:.4f} |" in text
    assert f"| out-of-bag score | {model.oob_score_:.4f} |" in text
    assert "| n\\_estimators | 40 |" in text
    assert "no guarantee of differential privacy" in text
    assert "Receipts of parties that have left" in text
    assert "GrowLevel" in text
    assert "<b>risk" not in card._repr_html_()
    card.save(tmp_path / "card.html")
    card.save(tmp_path / "card.md")
    assert (tmp_path / "card.html").read_text().startswith("<h1>Default | &lt;b&gt;")
    assert (tmp_path / "card.md").read_text() == text


def test_cards_of_other_models() -> None:
    private = wl.FederatedExtraTreesClassifier(n_estimators=2, max_depth=2, parties=3, random_state=0)
    text = private.fit(ALL[["age", "income"]], ALL.default).card().to_markdown()
    assert "## Privacy budget" in text
    assert "None were given" in text
    linear = wl.FederatedLogisticRegression(max_iter=3, tol=1.0).fit(ALL[["age", "income"]], ALL.default)
    assert "Settings of FederatedLogisticRegression" in linear.card().to_markdown()
    with pytest.raises(DataError, match="give reports that evaluate has made"):
        linear.card("good")
    training = linear.evaluate(ALL[["age", "income"]], ALL.default, n_bootstrap=0)
    assert "roc\\_auc" in linear.card(training).to_markdown()
