"""What a federation has, and which of its columns a model learns from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV

import woodlot as wl
from companies import ALL, BANK, SHOP, classifier, federation
from woodlot.exceptions import DataError


def clients() -> wl.Federation:
    rows = ALL.drop(columns=["amount", "weight"])
    return wl.Federation.local({"north": rows[:60], "south": rows[60:]}, id="id", layout="rows")


def names(model: Any) -> dict[str, tuple[str, ...]]:
    return {party: part.names for party, part in model.forest_.parts.items()}


def test_the_catalog_has_no_values() -> None:
    fed = federation()
    catalog = fed.catalog()
    frame = pd.DataFrame(catalog.to_dicts()).set_index(["party", "column"])
    assert frame.index.tolist() == [("bank", c) for c in BANK[1:]] + [("shop", c) for c in SHOP[1:]]
    assert frame.kind.tolist() == ["numbers", "numbers", "categories", "numbers", "categories"]
    assert frame.missing["shop", "visits"] == ALL.visits.isna().mean()
    assert catalog.rows == {"bank": 120, "shop": 120}
    shown = repr(catalog) + catalog._repr_html_()
    assert not any(value in shown for value in ("red", "green", "yes"))
    assert clients().catalog().rows == {"north": 60, "south": 60}


CHOICES: list[tuple[dict[str, Any], list[str], list[str]]] = [
    ({"features": {"bank": ["age"], "shop": None}}, ["age"], ["visits", "colour"]),
    ({"features": {"bank": None, "shop": ["colour"]}}, ["age", "income"], ["colour"]),
    ({"exclude": {"shop": ["visits"]}}, ["age", "income"], ["colour"]),
    ({"features": {"bank": ["income", "age"], "shop": None}, "exclude": {"bank": ["age"]}}, ["income"], SHOP[1:]),
]


@pytest.mark.parametrize(("choice", "bank", "shop"), CHOICES)
def test_the_model_is_that_of_the_chosen_columns(choice: dict[str, Any], bank: list[str], shop: list[str]) -> None:
    fed = federation()
    smaller = wl.Federation.local({"bank": ALL[["id", *bank, "default"]], "shop": ALL[["id", *shop]]}, id="id")
    expected = classifier().fit(smaller, y="bank.default")
    for y in ("bank.default", fed["bank.default"]):
        model = classifier().fit(fed, y, **choice)
        assert names(model) == {"bank": tuple(bank), "shop": tuple(shop)}
        np.testing.assert_array_equal(model.predict_proba(fed), expected.predict_proba(smaller))
        assert model.score(fed) == expected.score(smaller)


def test_a_party_without_columns() -> None:
    model = classifier().fit(federation(), y="bank.default", features={"bank": None, "shop": []})
    alone = classifier().fit(wl.Federation.local({"bank": ALL[BANK]}, id="id"), y="bank.default")
    np.testing.assert_array_equal(model.predict_proba(federation()), alone.predict_proba(federation()))


def test_other_models_over_columns() -> None:
    choice = {"bank": ["age"], "shop": ["visits"]}
    revocable = wl.RevocableForestClassifier(2, encryption="simulated", random_state=0)
    assert names(revocable.fit(federation(), y="bank.default", exclude=choice))["bank"] == ("income",)
    logistic = wl.FederatedLogisticRegression(tol=1e-2).fit(federation(), y="bank.default", exclude=choice)
    assert logistic.linear_.parts["bank"].columns.names == ("income",)


def test_clients_choose_the_same_columns() -> None:
    model = wl.LocalForestsClassifier(4, random_state=0)
    model.fit(clients(), y="default", features=["age", "visits"])
    assert model.combine().feature_names == ("age", "visits")
    model.fit(clients(), clients()["default"], exclude=["age"])
    assert model.combine().feature_names == ("income", "visits", "colour")
    assert len(model.predict(clients())) == 120


def test_searches_choose_columns_too() -> None:
    fed = federation()
    choice = {"features": {"bank": ["age"], "shop": None}}
    for found in (
        wl.search(classifier(n_estimators=2), {"max_depth": [2]}, fed, y="bank.default", cv=2, **choice),
        GridSearchCV(classifier(n_estimators=2), {"max_depth": [2]}, cv=2).fit(fed, fed["bank.default"], **choice),
    ):
        assert names(found.best_estimator_)["bank"] == ("age",)
    folds = wl.cross_validate(classifier(n_estimators=2), fed, y="bank.default", cv=2, return_estimator=True, **choice)
    assert all(names(model)["bank"] == ("age",) for model in folds["estimator"])


def test_a_revocation_keeps_the_choice() -> None:
    model = classifier().fit(federation(), y="bank.default", features={"bank": ["age"], "shop": None})
    model.revoke("shop", level=3)
    alone = wl.Federation.local({"bank": ALL[["id", "age", "default"]]}, id="id")
    expected = classifier().fit(alone, y="bank.default")
    np.testing.assert_array_equal(model.predict_proba(alone), expected.predict_proba(alone))


BAD: list[tuple[dict[str, Any], str]] = [
    ({"features": {"bank": ["age"]}}, r"features does not name 'shop'; write 'shop': None for all columns, or \[\]"),
    ({"features": {"bank": ["ages"], "shop": None}}, r"names column 'ages', which is not there.*Did you mean 'age'\?"),
    ({"features": {"bank": ["default"], "shop": None}}, "'default', which has the labels or weights; leave it out"),
    ({"features": {"mill": None}}, r"'mill', which is not a party; the parties are \['bank', 'shop'\]"),
    ({"features": ["age"]}, "must name columns by party"),
    ({"features": {"bank": "age", "shop": None}}, "must be a list of columns, not 'age'"),
    ({"exclude": {"shop": ["colours"]}}, "exclude names column 'colours'"),
    ({"exclude": {"bank": ["age", "income"], "shop": ["visits", "colour"]}}, "leave no column to learn from"),
]


@pytest.mark.parametrize(("choice", "words"), BAD)
def test_bad_choices(choice: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        classifier().fit(federation(), y="bank.default", **choice)


def test_bad_choices_of_clients_and_tables() -> None:
    with pytest.raises(DataError, match="must be a list of columns"):
        wl.LocalForestsClassifier(2).fit(clients(), y="default", features={"north": ["age"]})
    with pytest.raises(DataError, match="'default', which has the labels"):
        wl.LocalForestsClassifier(2).fit(clients(), y="default", features=["default"])
    for model in (classifier(), wl.LocalForestsClassifier(2)):
        with pytest.raises(DataError, match="select the columns of X instead"):
            model.fit(ALL[["age", "income"]], ALL.default, exclude=["age"])
