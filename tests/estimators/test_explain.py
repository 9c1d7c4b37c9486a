"""`model.explain`: the same values on a federation as on one table, and as shap has them; what each party shows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine

import woodlot as wl
from companies import ALL, BANK, FEATURES, SHOP, classifier, federation
from woodlot.exceptions import DataError, PolicyError
from woodlot.protocols.vertical.explain_messages import AllSides, ExplainedColumns, RowValues

CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-12}


def on_table(model: Any, rows: pd.DataFrame = ALL) -> Any:
    """The same forest, explained in one place from the parties' own stores, which a test may open."""
    model.forest_.shared.update(model.forest_.parts)
    return model.explain(rows[FEATURES])


@pytest.mark.parametrize("explains", ["columns", "values"])
def test_a_federation_explains_as_one_table_does(explains: Any) -> None:
    fed = federation(explains=explains)
    model = classifier().fit(fed, y="bank.default")
    found = model.explain(fed)
    assert found.features == ("bank.age", "bank.income", "shop.visits", "shop.colour")
    assert found.owners == ("bank", "bank", "shop", "shop")
    np.testing.assert_array_equal(found.outputs, model.predict_proba(fed))
    assert found.additivity_error < 1e-12
    np.testing.assert_allclose(found.base_values.sum(), 1, **CLOSE)
    joined = ALL.set_index("id").loc[fed.ids].reset_index()
    expected = on_table(model, joined)
    assert expected.features == found.features
    np.testing.assert_allclose(found.values, expected.values, **CLOSE)
    if explains == "values":
        assert found.data == expected.data
        assert found.data["shop.colour"] == tuple(joined.colour)
        assert "missing" in found.data["shop.visits"]
    else:
        assert found.data == {}


def test_without_names_a_partys_columns_are_one() -> None:
    fed = federation(explains={"bank": "columns", "shop": "party"})
    model = classifier().fit(fed, y="bank.default")
    by_column = federation(explains="columns")
    every = model.explain(by_column)
    found = model.explain(fed)
    assert found.features == ("bank.age", "bank.income", "shop")
    np.testing.assert_allclose(found.values[:, 2], every.values[:, 2:].sum(axis=1), **CLOSE)
    np.testing.assert_allclose(found.by_party().values, every.by_party().values, **CLOSE)
    assert found.by_party().features == ("bank", "shop")


@pytest.mark.parametrize("level", ["party", "columns", "values"])
def test_messages_tell_what_the_policy_allows(level: Any) -> None:
    fed = federation(explains={"bank": level, "shop": "party"})
    model = classifier().fit(fed, y="bank.default")
    seen: list[tuple[str, Any]] = []
    fed.observer = lambda sender, receiver, message: seen.append((sender, message))
    model.explain(fed[:10])
    told = [(sender, message) for sender, message in seen if sender in ("bank", "shop")]
    kinds = {sender: [type(m) for s, m in told if s == sender] for sender in ("bank", "shop")}
    assert kinds["shop"] == [ExplainedColumns, AllSides]
    assert kinds["bank"] == [ExplainedColumns, AllSides] + ([RowValues] if level == "values" else [])
    words = " ".join(repr(message) for _, message in told)
    assert ("income" in words) == (level != "party")
    assert "visits" not in words
    assert "colour" not in words
    forest = model.forest_.coordinator
    for sender, message in told:
        if isinstance(message, AllSides):  # one bit per node and row, in blocks of 64
            assert len(message.words) == int((forest.owner == forest.parties.index(sender)).sum())
    assert {row.kind for row in model.prediction_disclosure_} >= {"AskAllSides", "AllSides"}
    assert model.prediction_cost_.rounds == (3 if level == "values" else 2)


def test_sides_tell_the_order_of_values() -> None:
    """What the documents say of the leader: sides at all nodes of a coded column are nearly the order of its values."""
    fed = federation(explains="party")
    model = classifier(n_estimators=40).fit(fed, y="bank.default")
    seen: dict[str, AllSides] = {}
    fed.observer = lambda sender, receiver, message: (
        seen.update({sender: message}) if isinstance(message, AllSides) else None
    )
    model.explain(fed)
    forest = model.forest_.coordinator
    nodes = np.flatnonzero(forest.owner == forest.parties.index("bank"))
    bits = np.unpackbits(seen["bank"].words.reshape(2, -1).view(np.uint8).reshape(2, -1, 8), axis=2, bitorder="little")
    sides = bits.transpose(0, 2, 1).reshape(128, -1)[:120]
    ages = ALL.set_index("id").loc[fed.ids, "age"].rank()
    income = ALL.set_index("id").loc[fed.ids, "income"].rank()
    codes = np.unique(forest.feature[nodes])
    guesses = [sides[:, forest.feature[nodes] == code].sum(axis=1) for code in codes]
    found = [max(np.corrcoef(pd.Series(g).rank(), true)[0, 1] for true in (ages, income)) for g in guesses]
    assert min(found) > 0.95


def test_policies_refuse() -> None:
    model = classifier().fit(federation(), y="bank.default")
    with pytest.raises(PolicyError, match=r"shop.*lets explanations show 'none'"):
        model.explain(federation(explains={"bank": "values"}))
    with pytest.raises(PolicyError, match="under seal only"):
        model.explain(federation(sealed_predictions=["shop"]))
    with pytest.raises(DataError, match=r"explains names \['club'\]"):
        federation(explains={"club": "party"})
    with pytest.raises(ValueError, match="explains of bank must be one of"):
        federation(explains={"bank": "all", "shop": "party"})
    rows = {"north": ALL[:60], "south": ALL[60:]}
    with pytest.raises(DataError, match="explains are for layout='columns'"):
        wl.Federation.local(rows, id="id", layout="rows", explains="columns")


def test_bad_input() -> None:
    fed = federation()
    model = classifier().fit(fed, y="bank.default")
    with pytest.raises(PolicyError, match="did not agree to share the model"):
        model.explain(ALL[FEATURES])
    with pytest.raises(DataError, match="'club' is not a party of this model"):
        model.explain(wl.Federation.local({"club": ALL[SHOP]}, id="id"))
    found = model.explain(fed[:5])
    with pytest.raises(DataError, match="there is no class 'maybe'; the classes are"):
        found.reasons(output="maybe")
    with pytest.raises(DataError, match="there is no row 5; 5 rows were explained"):
        found.reasons(row=5)
    with pytest.raises(ValueError, match="kind must be 'bar' or 'waterfall'"):
        found.plot("pie")
    with pytest.raises(ArithmeticError, match="miss it by"):
        type(found)(found.values + 1, found.base_values, found.outputs, found.features)


def test_rows_that_a_party_lacks() -> None:
    model = classifier().fit(federation(explains="columns"), y="bank.default")
    tables = {"bank": ALL[BANK], "shop": ALL[SHOP][20:]}
    fed = wl.Federation.local(tables, id="id", join="outer", explains="columns")
    with pytest.warns(wl.UncertainPredictionWarning, match="20 of 120 rows were explained without all parties"):
        found = model.explain(fed)
    lacks = found.uncertain
    assert lacks.sum() == 20
    assert not found.values[lacks][:, 2:].any()
    assert found.values[~lacks][:, 2:].any()
    with pytest.warns(wl.UncertainPredictionWarning):
        np.testing.assert_array_equal(found.outputs, model.predict_proba(fed))
    assert "a party lacks 20 of them" in repr(found)
    majority = classifier(voting="majority").fit(federation(), y="bank.default")
    with pytest.raises(DataError, match="with voting='majority'"):
        majority.explain(fed)
    assert majority.explain(federation()).additivity_error < 1e-12


def test_a_regressor_and_words() -> None:
    bank = ["id", "age", "income", "amount"]
    fed = federation(bank=bank, explains={"bank": "values", "shop": "party"})
    model = wl.FederatedForestRegressor(n_estimators=15, random_state=0).fit(fed, y="bank.amount")
    found = model.explain(fed)
    assert found.values.shape == (120, 3)
    assert isinstance(found.base_values, float)
    np.testing.assert_allclose(found.base_values + found.values.sum(axis=1), model.predict(fed), **CLOSE)
    largest = int(np.abs(found.values[4]).argmax())
    first = found.reasons(1, row=4)[0]
    part = found.values[4, largest]
    assert ("raised" if part > 0 else "lowered") in first
    assert f"the prediction by {abs(part):.4g}." in first
    assert any(reason.startswith("Information of shop") for reason in found.reasons(3, row=4))
    income = f"bank: income ({found.data['bank.income'][4]})"
    assert any(reason.startswith(income) for reason in found.reasons(3, row=4))
    one = found[4]
    assert len(one) == 1
    assert one.reasons(3) == found.reasons(3, row=4)
    assert one.ids.tolist() == [fed.ids[4]]
    base, parts, answer = found.waterfall(4)
    assert base + sum(p for _, p in parts) == pytest.approx(answer)
    assert json.loads(json.dumps(found.to_dict()))["features"] == list(found.features)


def test_reasons_are_for_the_predicted_class() -> None:
    fed = federation(explains="values")
    model = classifier().fit(fed, y="bank.default")
    found, predicted = model.explain(fed), model.predict(fed)
    for row in range(5):
        assert all(f"raised the probability of '{predicted[row]}'" in reason for reason in found.reasons(4, row=row))
    other = "yes" if predicted[0] == "no" else "no"
    assert not set(found.reasons(4)) & set(found.reasons(4, output=other))
    sizes = list(found.importance().values())
    assert sizes == sorted(sizes, reverse=True)
    assert "<table>" in found._repr_html_()
    assert repr(found).splitlines()[0] == "Explanation of 120 rows"


def test_figures() -> None:
    pytest.importorskip("matplotlib.pyplot", reason="figures need matplotlib: the extra plot")
    fed = federation(explains="values")
    found = classifier().fit(fed, y="bank.default").explain(fed)
    bars = found.plot()
    assert len(bars.axes[0].patches) == 4
    fall = found[3].plot()
    widths = [patch.get_width() for patch in fall.axes[0].patches]
    base, parts, answer = found.waterfall(3)
    assert sum(widths) == pytest.approx(answer - base)
    assert widths[::-1] == pytest.approx([part for _, part in parts])


@pytest.mark.parametrize("kind", [wl.HorizontalForestClassifier, wl.CollaborativeForestClassifier])
def test_a_whole_forest(kind: Any) -> None:
    model = kind(n_estimators=8, parties=3, random_state=0).fit(ALL[FEATURES], ALL.default)
    found = model.explain(ALL[FEATURES])
    assert found.features == tuple(FEATURES)
    np.testing.assert_allclose(
        found.base_values + found.values.sum(axis=1), model.predict_proba(ALL[FEATURES]), **CLOSE
    )
    with pytest.raises(DataError, match="all parties have the same columns"):
        found.by_party()
    clients = wl.Federation.local({"north": ALL[:60], "south": ALL[60:]}, id="id", layout="rows")
    with pytest.raises(DataError, match="explain each client's table"):
        model.explain(clients)


def test_a_revocable_forest_shows_categories() -> None:
    fed = federation(ALL.fillna({"visits": 0.0}), explains="values")
    model = wl.RevocableForestClassifier(n_estimators=8, random_state=0).fit(fed, y="bank.default")
    found = model.explain(fed)
    np.testing.assert_array_equal(found.outputs, model.predict_proba(fed))
    assert set(found.data["shop.colour"]) == {"red", "green", "blue"}


def test_a_model_explains_the_same_after_loading_and_leaving(tmp_path: Any) -> None:
    fed = federation(explains="columns")
    model = classifier().fit(fed, y="bank.default")
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(wl.load(tmp_path / "model").explain(fed).values, model.explain(fed).values)
    model.revoke("shop")
    left = model.explain(fed.without("shop"))
    assert left.features == ("bank.age", "bank.income")
    np.testing.assert_array_equal(left.outputs, model.predict_proba(fed.without("shop")))


@pytest.mark.parametrize("load", [load_breast_cancer, load_wine, load_diabetes])
def test_values_are_those_of_shap(load: Any) -> None:
    shap = pytest.importorskip("shap", reason="shap is not installed: pip install shap to compare with it")
    X, y = load(return_X_y=True, as_frame=True)
    half = X.columns[: X.shape[1] // 2]
    tables = {"bank": X[half].assign(label=y), "shop": X.drop(columns=half)}
    tables["shop"] = tables["shop"].mask(np.random.default_rng(0).random(tables["shop"].shape) < 0.05)
    fed = wl.Federation.local(tables, shares_model=True, explains="columns")
    kind = wl.FederatedForestRegressor if load is load_diabetes else wl.FederatedForestClassifier
    model = kind(n_estimators=20, random_state=0).fit(fed, y="bank.label")
    found = model.explain(fed)
    joined = pd.concat([tables["bank"][half], tables["shop"]], axis=1).astype(np.float32)
    explainer = shap.TreeExplainer(model.combine().to_sklearn(), feature_perturbation="tree_path_dependent")
    np.testing.assert_allclose(
        found.values, explainer.shap_values(joined.to_numpy(), check_additivity=False), atol=1e-6
    )
    np.testing.assert_allclose(found.base_values, np.squeeze(explainer.expected_value), atol=1e-6)
