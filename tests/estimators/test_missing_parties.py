"""A party or a row that is missing at prediction: both branches, weighted, and the answer says so."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import woodlot as wl
from companies import ALL, BANK, SHOP, N, classifier, federation, whole
from woodlot.estimators.complete import CompleteForest
from woodlot.exceptions import DataError


@pytest.fixture(scope="module")
def fitted() -> wl.FederatedForestClassifier:
    return classifier().fit(federation(), y="bank.default")


def both_branches(
    forest: CompleteForest, X: pd.DataFrame, known: dict[str, NDArray[np.bool_]], vote: str = "soft"
) -> NDArray[np.float64]:
    """Each row down every tree; both branches, weighted by training weight, at nodes of those who do not know it."""
    part, splits = forest.coordinator, forest.splits
    right, leaves = part.structure.right, part.leaves
    dense = np.zeros((len(leaves.weight), leaves.n_outputs))
    for leaf in range(len(dense)):
        entries = slice(leaves.start[leaf], leaves.start[leaf + 1])
        dense[leaf, leaves.output[entries]] = leaves.value[entries]
    weight = np.zeros(len(right))
    for node in range(len(right) - 1, -1, -1):
        child = right[node]
        weight[node] = leaves.weight[part.structure.leaf[node]] if child < 0 else weight[node + 1] + weight[child]

    def goes_left(row: int, node: int) -> bool:
        at = int(np.searchsorted(splits.node, node))
        name = forest.feature_names[splits.feature[at]]
        value = X[name].iloc[row]
        if isinstance(value, str):
            code = forest.codings[splits.feature[at]].categories.index(value)  # type: ignore[union-attr]
            byte = splits.sets[splits.set_start[at] + code // 8]
            return bool(byte >> (code % 8) & 1)
        return bool(splits.missing_left[at]) if np.isnan(value) else bool(np.float32(value) <= splits.threshold[at])

    def answer(row: int, node: int) -> NDArray[np.float64]:
        child = int(right[node])
        if child < 0:
            return dense[part.structure.leaf[node]]
        if not known[part.parties[part.owner[node]]][row]:
            left, other = answer(row, node + 1), answer(row, child)
            return (left * weight[node + 1] + other * weight[child]) / weight[node]
        return answer(row, node + 1 if goes_left(row, node) else child)

    roots = part.structure.offset[:-1]
    answers = np.array([[answer(row, int(root)) for root in roots] for row in range(len(X))])
    if vote == "majority":
        answers = np.eye(leaves.n_outputs)[answers.argmax(axis=2)]
    return np.asarray(answers.mean(axis=1))


@pytest.mark.parametrize("wire", ["decisions", "leaves", "ranks"])
def test_a_row_that_a_party_lacks_follows_both_branches(fitted: wl.FederatedForestClassifier, wire: Any) -> None:
    given = {"bank": ALL[BANK][20:], "shop": ALL[SHOP][:100]}
    fed = wl.Federation.local(given, id="id", join="outer")
    assert fed.ids.tolist() == [*ALL.id[20:], *ALL.id[:20]]
    rows = ALL.set_index("id").loc[fed.ids]
    known = {"bank": np.isin(fed.ids, ALL.id[20:]), "shop": np.isin(fed.ids, ALL.id[:100])}
    with pytest.warns(wl.UncertainPredictionWarning, match="40 of 120 rows .*a party does not have them"):
        proba, uncertain = fitted.predict_proba(fed, wire=wire, return_uncertain=True)
    np.testing.assert_array_equal(uncertain, ~(known["bank"] & known["shop"]))
    np.testing.assert_allclose(proba, both_branches(whole(fitted), rows, known), rtol=1e-9)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    complete = dict(zip(ALL.id, fitted.predict_proba(federation()).tolist(), strict=True))
    assert proba[~uncertain].tolist() == [complete[i] for i in fed.ids[~uncertain]]
    with pytest.warns(wl.UncertainPredictionWarning):
        labels, same = fitted.predict(fed, wire=wire, return_uncertain=True)
    np.testing.assert_array_equal(labels, fitted.classes_[proba.argmax(axis=1)])
    np.testing.assert_array_equal(same, uncertain)
    with pytest.raises(DataError, match="every row at every party; use method='one-round'"):
        fitted.predict(fed, method="classical")
    with pytest.raises(DataError, match="20 rows have no y, because bank lacks them; use join='inner'"):
        fitted.score(fed)


def test_a_missing_value_is_not_a_missing_row(fitted: wl.FederatedForestClassifier) -> None:
    rows = ALL.assign(visits=np.nan, colour=None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, uncertain = fitted.predict(federation(rows), return_uncertain=True)
    assert not uncertain.any()


def test_a_missing_party(fitted: wl.FederatedForestClassifier) -> None:
    alone = wl.Federation.local({"bank": ALL[BANK]}, id="id")
    with pytest.warns(wl.UncertainPredictionWarning, match=r"120 of 120 rows .*\['shop'\] are absent"):
        proba, uncertain = fitted.predict_proba(alone, return_uncertain=True)
    known = {"bank": np.ones(N, bool), "shop": np.zeros(N, bool)}
    np.testing.assert_allclose(proba, both_branches(whole(fitted), ALL, known), rtol=1e-9)
    assert uncertain.sum() > 100  # a row that meets none of the shop's nodes is certain all the same
    with pytest.raises(
        DataError, match=r"classical method needs every party; \['shop'\] are absent: use method='one-round'"
    ):
        fitted.predict(alone, method="classical")


def test_regression_and_votes_without_a_party() -> None:
    alone = wl.Federation.local({"bank": ALL[["id", "age", "income"]]}, id="id")
    known = {"bank": np.ones(N, bool), "shop": np.zeros(N, bool)}
    regressor = wl.FederatedForestRegressor(8, max_depth=5, random_state=0)
    regressor.fit(federation(bank=[*BANK[:3], "amount"]), y="bank.amount")
    with pytest.warns(wl.UncertainPredictionWarning):
        values, uncertain = regressor.predict(alone, return_uncertain=True)
    np.testing.assert_allclose(values, both_branches(whole(regressor), ALL, known)[:, 0], rtol=1e-9)
    assert uncertain.any()
    votes = classifier(voting="majority", max_depth=5).fit(federation(), y="bank.default")
    with pytest.warns(wl.UncertainPredictionWarning):
        proba = votes.predict_proba(alone)
    np.testing.assert_allclose(proba, both_branches(whole(votes), ALL, known, "majority"), rtol=1e-9)


# --- a wrong name is not a missing party ---


@pytest.mark.parametrize(
    ("name", "hint"), [("shpo", "did you mean 'shop'"), ("Shop", "did you mean 'shop'"), ("telco", "leave it out")]
)
@pytest.mark.parametrize("method", ["one-round", "classical", "sealed"])
def test_a_mistyped_party_is_an_error(name: str, hint: str, method: Any, fitted: wl.FederatedForestClassifier) -> None:
    mistyped = wl.Federation.local({"bank": ALL[BANK], name: ALL[SHOP]}, id="id")
    how: dict[str, Any] = {"sealed": True} if method == "sealed" else {"method": method}
    with pytest.raises(DataError, match=f"'{name}' is not a party of this model.*'bank', 'shop'; {hint}"):
        fitted.predict(mistyped, **how)
    with pytest.raises(DataError, match=hint):
        fitted.score(mistyped, "bank.default")


def test_a_mistyped_party_of_a_linear_model_is_an_error() -> None:
    model = wl.FederatedLogisticRegression(max_iter=5).fit(federation(), y="bank.default")
    mistyped = wl.Federation.local({"bank": ALL[BANK], "shpo": ALL[SHOP]}, id="id")
    with pytest.raises(DataError, match=r"'shpo' is not a party of this model.*did you mean 'shop'"):
        model.predict(mistyped)


def test_parties_that_the_model_does_not_need_may_be_there(fitted: wl.FederatedForestClassifier) -> None:
    more = wl.Federation.local({"bank": ALL[BANK], "shop": ALL[SHOP], "port": ALL[["id", "weight"]]}, id="id")
    np.testing.assert_array_equal(fitted.predict(more), fitted.predict(federation()))
