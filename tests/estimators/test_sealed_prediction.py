"""``sealed=True``: the same predictions as in the open, with any parties, and what a party's policy makes of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import woodlot as wl
from companies import ALL, BANK, FEATURES, SHOP, classifier, federation
from woodlot.exceptions import DataError, PolicyError


@pytest.fixture(scope="module")
def fitted() -> wl.FederatedForestClassifier:
    return classifier().fit(federation(), y="bank.default")


@given(seed=st.integers(0, 2**32), parties=st.integers(1, 4), task=st.sampled_from(["soft", "majority", "targets"]))
@settings(max_examples=12, deadline=None)
def test_sealed_equals_plain_on_every_row(seed: int, parties: int, task: str) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(5, 70))
    X = pd.DataFrame({f"x{k}": rng.integers(-3, 4, n).astype(float) for k in range(4)})
    X["town"] = np.array(["A", "B", "C"])[rng.integers(0, 3, n)]
    X = X.mask(rng.random(X.shape) < 0.1)
    y = rng.integers(0, 3, n)
    options: dict[str, Any] = {"n_estimators": 3, "parties": parties, "random_state": seed % 1000}
    if task == "targets":
        model: Any = wl.FederatedForestRegressor(**options).fit(X, y)
        np.testing.assert_array_equal(model.predict(X, sealed=True), model.predict(X))
    else:
        model = wl.FederatedForestClassifier(voting=task, **options).fit(X, y)
        np.testing.assert_array_equal(model.predict_proba(X, sealed=True), model.predict_proba(X))
        np.testing.assert_array_equal(model.predict(X, sealed=True), model.predict(X))


def test_on_a_federation_of_two(fitted: wl.FederatedForestClassifier) -> None:
    fed = federation()
    proba, uncertain = fitted.predict_proba(fed, sealed=True, return_uncertain=True)
    assert not uncertain.any()
    kinds = {row.kind for row in fitted.prediction_disclosure_}
    assert kinds == {
        "OpenSums", "SumsIntroduced", "StartSums", "SumsStarted", "AskSealed", "SealedLeaves"
    }  # fmt: skip
    assert fitted.prediction_cost_.rounds == 3
    leaves = fitted.forest_.coordinator.structure.n_leaves
    assert 8 * leaves * fed.n_rows * 2 < fitted.prediction_cost_.bytes_received < 8 * leaves * fed.n_rows * 2 + 2000
    np.testing.assert_array_equal(proba, fitted.predict_proba(fed))
    assert fitted.score(fed, sealed=True) == fitted.score(fed)
    again = fitted.permutation_importance(fed, n_repeats=1, random_state=0, sealed=True)
    plain = fitted.permutation_importance(fed, n_repeats=1, random_state=0)
    np.testing.assert_array_equal(again.importances, plain.importances)


def test_where_one_party_splits_all_nodes_or_none_is_split() -> None:
    tables = {"bank": ALL[BANK], "shop": ALL[["id"]].assign(constant=1.0)}
    fed = wl.Federation.local(tables, id="id")
    model = classifier().fit(fed, y="bank.default")
    np.testing.assert_array_equal(model.predict_proba(fed, sealed=True), model.predict_proba(fed))
    assert model.prediction_cost_.rounds == 1  # nobody to agree on masks with
    stumps = classifier(max_leaf_nodes=2, min_samples_leaf=80).fit(fed, y="bank.default")
    np.testing.assert_array_equal(stumps.predict_proba(fed, sealed=True), stumps.predict_proba(fed))


def test_intervals_can_be_sealed() -> None:
    model = wl.FederatedForestRegressor(25, oob_score=True, random_state=0).fit(ALL[FEATURES], ALL.amount)
    np.testing.assert_array_equal(
        model.predict_interval(ALL[FEATURES], sealed=True), model.predict_interval(ALL[FEATURES])
    )


def test_a_party_that_answers_under_seal_only(fitted: wl.FederatedForestClassifier) -> None:
    for strict in (True, ["shop"], "shop"):
        fed = federation(sealed_predictions=strict)
        for options in ({}, {"method": "classical"}, {"wire": "ranks"}):
            with pytest.raises(PolicyError, match=r"party '(bank|shop)': .*predict with sealed=True"):
                fitted.predict(fed, **options)
        np.testing.assert_array_equal(fitted.predict(fed, sealed=True), fitted.predict(federation()))
    with pytest.raises(DataError, match=r"sealed_predictions names \['shoe'\], who are not parties"):
        federation(sealed_predictions=["shoe"])


def test_both_branches_cannot_be_sealed(fitted: wl.FederatedForestClassifier) -> None:
    with pytest.raises(DataError, match=r"\['shop'\] are absent"):
        fitted.predict(wl.Federation.local({"bank": ALL[BANK]}, id="id"), sealed=True)
    wider = wl.Federation.local({"bank": ALL[BANK][20:], "shop": ALL[SHOP]}, id="id", join="outer")
    with pytest.raises(DataError, match="every row at every party"):
        fitted.predict(wider, sealed=True)


@pytest.mark.parametrize("options", [{"method": "classical"}, {"method": "local"}, {"wire": "ranks"}])
def test_sealed_is_a_method_of_its_own(fitted: wl.FederatedForestClassifier, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="leave method and wire as they are"):
        fitted.predict(federation(), sealed=True, **options)
