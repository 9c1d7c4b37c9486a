"""What a party is worth: scores with and without it, Shapley values, and shuffling its columns."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

import woodlot as wl
from companies import ALL, FEATURES, classifier, federation
from woodlot.exceptions import DataError


@pytest.fixture(scope="module")
def parts() -> tuple[wl.Federation, wl.Federation]:
    return federation().split(test_size=0.4, seed=1)


@pytest.fixture(scope="module")
def found(parts: tuple[wl.Federation, wl.Federation]) -> Any:
    return wl.contributions(classifier(), *parts, y="bank.default", n_bootstrap=50)


def test_scores_are_those_of_models_on_some_columns(found: Any, parts: tuple[wl.Federation, wl.Federation]) -> None:
    train, test = parts
    truth = np.asarray(test["bank.default"]) == "yes"
    for who in (["bank"], ["shop"], ["bank", "shop"]):
        chosen = {party: None if party in who else [] for party in ("bank", "shop")}
        model = classifier().fit(train, y="bank.default", features=chosen)
        assert found.scores[frozenset(who)] == pytest.approx(roc_auc_score(truth, model.predict_proba(test)[:, 1]))
    assert found.metric == "roc_auc"
    assert found.scores[frozenset()] == 0.5


def test_values_follow_from_the_scores(found: Any) -> None:
    v = {"".join(sorted(who)): score for who, score in found.scores.items()}
    assert found.without["shop"][0] == pytest.approx(v["bankshop"] - v["bank"])
    assert found.shapley["shop"][0] == pytest.approx((v["shop"] - v[""] + v["bankshop"] - v["bank"]) / 2)
    assert sum(value for value, _ in found.shapley.values()) == pytest.approx(found.score - v[""])
    for value, ends in [*found.shapley.values(), *found.without.values()]:
        assert ends is not None
        assert ends[0] <= ends[1]
        assert ends[0] - 0.1 < value < ends[1] + 0.1
    assert "Shapley value" in repr(found)
    assert "<table>" in found._repr_html_()
    assert json.loads(json.dumps(found.to_dict()))["scores"]["bank + shop"] == found.score


def test_a_figure(found: Any) -> None:
    pytest.importorskip("matplotlib.pyplot", reason="figures need matplotlib: the extra plot")
    assert len(found.plot().axes[0].patches) == 2


def test_a_regression_and_many_parties() -> None:
    rng = np.random.default_rng(0)
    columns = {f"p{k}": pd.DataFrame({f"c{k}": rng.normal(size=60)}) for k in range(7)}
    columns["p0"]["y"] = columns["p0"]["c0"] + 0.1 * rng.normal(size=60)
    train, test = wl.Federation.local(columns).split(seed=0)
    model = wl.FederatedForestRegressor(n_estimators=5, random_state=0, max_features=None)
    seven = wl.contributions(model, train, test, y="p0.y", n_bootstrap=0)
    assert seven.shapley == {}
    assert len(seven.scores) == 8
    assert max(seven.without, key=lambda party: seven.without[party][0]) == "p0"
    assert seven.metric == "r2"


def test_bad_input(parts: tuple[wl.Federation, wl.Federation]) -> None:
    train, test = parts
    with pytest.raises(DataError, match="of parties of a federation: train, test"):
        wl.contributions(classifier(), ALL[FEATURES], test, y="bank.default")
    with pytest.raises(ValueError, match="scoring must be one of"):
        wl.contributions(classifier(), train, test, y="bank.default", scoring="r2")
    with pytest.raises(DataError, match=r"y='party\.column'"):
        wl.contributions(classifier(), train, test)
    alone = wl.Federation.local({"bank": ALL[["id", "age", "default"]]}, id="id")
    with pytest.raises(DataError, match="at least two parties with columns"):
        wl.contributions(classifier(), alone, alone, y="bank.default")


def test_shuffling_a_party_shuffles_its_columns_together(parts: tuple[wl.Federation, wl.Federation]) -> None:
    train, test = parts
    model = classifier().fit(train, y="bank.default")
    falls = model.permutation_importance(test, n_repeats=3, random_state=0, by="party")
    assert falls.owners.tolist() == ["bank", "shop"]
    assert falls.importances.shape == (2, 3)
    columns = model.permutation_importance(test, n_repeats=2, random_state=0)
    assert columns.owners.tolist() == model.importance_owners_.tolist()
    seed = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max))
    order = np.random.default_rng(seed).permutation(len(test))
    shuffled = test.with_members({**test.members, "bank": test.members["bank"].take(order)})
    expected = model.score(test) - (model.predict(shuffled) == np.asarray(test["bank.default"])).mean()
    assert falls.importances[0, 0] == pytest.approx(expected)
    with pytest.raises(ValueError, match="by"):
        model.permutation_importance(test, by="row")
    table = (
        classifier()
        .fit(ALL[FEATURES], ALL.default)
        .permutation_importance(ALL[FEATURES], ALL.default, n_repeats=1, random_state=0, by="party")
    )
    assert table.owners.tolist() == ["party-1", "party-2"]
