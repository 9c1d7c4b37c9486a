"""Bad input to the horizontal estimators: errors that name the thing and the remedy, and change nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import woodlot as wl
from woodlot.exceptions import ConfigError, DataError, WoodlotError

ALL = [
    wl.LocalForestsClassifier,
    wl.LocalForestsRegressor,
    wl.CollaborativeForestClassifier,
    wl.CollaborativeForestRegressor,
]
CLASSIFIERS = ALL[::2]


def frame(n: int = 30, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame({"age": rng.normal(size=n), "income": rng.normal(size=n), "outcome": np.arange(n) % 3})


def fit(kind: Any, tables: dict[str, pd.DataFrame], y: Any = "outcome", **params: Any) -> Any:
    return kind(4, random_state=0, **params).fit(wl.Federation.local(tables, layout="rows"), y)


def three(**changes: pd.DataFrame) -> dict[str, pd.DataFrame]:
    return {name: frame(seed=seed) for seed, name in enumerate(("north", "south", "west"))} | changes


@pytest.mark.parametrize("kind", ALL)
def test_clients_with_different_columns(kind: Any) -> None:
    with pytest.raises(DataError, match=r"south lacks 'income', which north has; north lacks 'wage', which south has"):
        fit(kind, three(south=frame().rename(columns={"income": "wage"})))
    with pytest.raises(DataError, match=r"north lacks 'more', which west has\. Give every client the same columns"):
        fit(kind, three(west=frame().assign(more=1.0)))
    with pytest.raises(DataError, match="has no column to learn from"):
        fit(kind, {name: table[["outcome"]] for name, table in three().items()})


@pytest.mark.parametrize("kind", ALL)
def test_clients_with_different_types(kind: Any) -> None:
    with pytest.raises(DataError, match="column 'income' holds numbers at north and categories at west"):
        fit(kind, three(west=frame().assign(income="high")))


@pytest.mark.parametrize("kind", ALL)
def test_the_column_of_labels(kind: Any) -> None:
    with pytest.raises(DataError, match=r"'result' is not at \['north', 'south', 'west'\]"):
        fit(kind, three(), "result")
    with pytest.raises(DataError, match=r"'outcome' is not at \['south'\]: south has \['age', 'income'\]"):
        fit(kind, three(south=frame()[["age", "income"]]))
    with pytest.raises(DataError, match="Input y contains NaN: 3 rows of south"):
        fit(kind, three(south=frame().assign(outcome=[np.nan] * 3 + [1.0] * 27)))
    with pytest.raises(DataError, match=r"inconsistent numbers of samples: \[90, 7\]"):
        fit(kind, three(), np.zeros(7))


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_labels_of_different_types(kind: Any) -> None:
    with pytest.raises(DataError, match="labels of the clients are of different types: int at north, str at west"):
        fit(kind, three(west=frame().assign(outcome="high")))
    with pytest.raises(DataError, match="south: Unknown label type"):
        fit(kind, three(south=frame().assign(outcome=[0.5] + [1.25] * 29)))


def test_targets_that_are_text() -> None:
    with pytest.raises(DataError, match="west: targets of a regression must be numbers"):
        fit(wl.CollaborativeForestRegressor, three(west=frame().assign(outcome="high")))


@pytest.mark.parametrize("kind", ALL)
def test_no_rows_at_all(kind: Any) -> None:
    with pytest.raises(DataError, match="tables of all clients are empty"):
        fit(kind, {name: table[:0] for name, table in three().items()})


def test_rows_too_few_for_any_leaf() -> None:
    X = frame()[["age", "income"]]
    with pytest.warns(UserWarning, match="the forest has learnt nothing; lower min_leaf_rows"):
        nothing = fit(wl.CollaborativeForestClassifier, three(), min_leaf_rows=31)
    np.testing.assert_allclose(nothing.predict_proba(X), 1 / 3)
    with pytest.warns(UserWarning, match="the forest has learnt nothing"):
        assert (fit(wl.CollaborativeForestRegressor, three(), min_leaf_rows=31).predict(X) == 0).all()
    whole = fit(wl.CollaborativeForestRegressor, three(), min_leaf_rows=30, leaf_average="rows").predict(X)
    np.testing.assert_allclose(whole, 1.0)  # the mean of all


@pytest.mark.parametrize("kind", [wl.CollaborativeForestClassifier, wl.LocalForestsClassifier])
def test_one_class_per_client_is_constant_and_says_so(kind: Any) -> None:
    table = frame().assign(outcome=np.repeat([0, 1, 2], 10))
    table["age"] = table["outcome"] + table["age"] / 1000  # one split would tell them apart
    clients = {f"client-{k}": rows for k, rows in table.groupby("outcome")}
    words = r"no tree has a split.*every client's rows are of one class.*HorizontalForestClassifier"
    with pytest.warns(UserWarning, match=words):
        model = fit(kind, clients)
    X = table[["age", "income"]]
    assert len(np.unique(model.predict_proba(X), axis=0)) == 1
    remedy = fit(wl.HorizontalForestClassifier, clients, max_features=None)
    assert remedy.score(X, table["outcome"]) > 0.9


@pytest.mark.parametrize("n_clients", [1, 2])
def test_secure_sums_need_three_clients(n_clients: int) -> None:
    X, y = frame()[["age", "income"]], frame()["outcome"]
    with pytest.raises(ConfigError, match=r"secure sums need 3 clients or more.*sums='plain'"):
        wl.CollaborativeForestClassifier(4, parties=n_clients).fit(X, y)
    wl.CollaborativeForestClassifier(4, parties=n_clients, sums="plain").fit(X, y)
    two = wl.CollaborativeForestClassifier(4, parties=n_clients, allow_two=True)
    if n_clients == 2:
        assert two.fit(X, y).n_classes_ == 3
    else:
        with pytest.raises(ConfigError, match="need 2 clients"):
            two.fit(X, y)


def test_the_wrong_kind_of_federation() -> None:
    columns = wl.Federation.local({"a": frame()[["age"]], "b": frame()[["income", "outcome"]]})
    with pytest.raises(DataError, match=r"different columns.*layout='rows'"):
        wl.CollaborativeForestClassifier().fit(columns, "outcome")
    rows = wl.Federation.local(three(), layout="rows")
    with pytest.raises(DataError, match=r"different rows.*HorizontalForest, .*ExtraTrees.*layout='columns'"):
        wl.FederatedForestClassifier().fit(rows, "north.outcome")
    with pytest.raises(DataError, match="names of columns are for federations"):
        wl.HorizontalForestClassifier().fit(frame(), "outcome")
    model = wl.LocalForestsClassifier(3).fit(rows, "outcome")
    with pytest.raises(DataError, match="predict each client's table"):
        model.predict(columns)
    with pytest.raises(DataError, match=r"different columns.*layout='rows'"):
        wl.CollaborativeForestClassifier().fit(columns, columns["b.outcome"])
    with pytest.raises(DataError, match=r"different rows.*layout='columns'"):
        wl.FederatedForestClassifier().fit(rows, rows["outcome"])


@pytest.mark.parametrize(
    "kind", [wl.FederatedForestClassifier, wl.RevocableForestClassifier, wl.FederatedLogisticRegression]
)
def test_models_over_columns_refuse_clients_with_rows(kind: Any) -> None:
    few = {"max_iter": 5, "tol": 1.0} if kind is wl.FederatedLogisticRegression else {"n_estimators": 2}
    model = kind(**few, **({"encryption": "simulated"} if kind is wl.RevocableForestClassifier else {}))
    model.fit(
        wl.Federation.local({"north": frame()[["age"]], "south": frame()[["income", "outcome"]]}), "south.outcome"
    )
    rows = wl.Federation.local({"north": frame(), "south": frame()}, layout="rows")
    for use in (model.predict, model.score):
        with pytest.raises(DataError, match=r"different rows.*connect\(\.\.\., layout='columns'\)"):
            use(rows)


def test_settings_of_a_federation() -> None:
    with pytest.raises(ValueError, match="layout must be 'columns' or 'rows', not 'diagonal'"):
        wl.Federation.local(three(), layout="diagonal")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="join, shares_model"):
        wl.Federation.local(three(), layout="rows", join="outer")
    with pytest.raises(DataError, match="join, shares_model"):
        wl.Federation.local(three(), layout="rows", shares_model=True)
    with pytest.raises(DataError, match="cannot name a party"):
        wl.Federation.local({"a.b": frame()}, layout="rows")
    with pytest.raises(DataError, match="no column names"):
        wl.Federation.local({"a": frame().to_numpy()}, layout="rows")


WRONG: list[tuple[str, Any]] = [
    ("n_estimators", 0),
    ("n_estimators", True),
    ("min_samples_split", 1),
    ("min_samples_leaf", 0),
    ("min_samples_leaf", 0.5),
    ("max_depth", 0),
    ("criterion", "mse"),
    ("max_features", "all"),
    ("max_features", 0.0),
    ("max_samples", -1),
    ("max_samples", float("inf")),
    ("max_bins", 1),
    ("bootstrap", "yes"),
    ("verbose", -1),
    ("n_jobs", 0),
    ("parties", 0),
    ("parties", "three"),
    ("parties", [[0, 1]]),
    ("parties", 2.5),
]


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize(("name", "value"), WRONG)
def test_parameters(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"The '{name}' parameter must be"):
        kind(**{name: value}).fit(frame()[["age", "income"]], frame()["outcome"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("leaf_average", "median"), ("min_leaf_rows", 0), ("sums", "open"), ("allow_two", 1)],
)
@pytest.mark.parametrize("kind", ALL[2:])
def test_parameters_of_the_collaborative_forest(kind: Any, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"The '{name}' parameter must be"):
        kind(**{name: value}).fit(frame()[["age", "income"]], frame()["outcome"])


@pytest.mark.parametrize(
    ("name", "value"),
    [("spare_after", 0), ("spare_after", -1.0), ("spare_after", np.nan), ("quorum", 0), ("quorum", 1.0),
     ("quorum", "most")],
)  # fmt: skip
def test_how_many_clients_must_be_left(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"The '{name}' parameter must be"):
        wl.HorizontalForestClassifier(**{name: value}).fit(frame()[["age", "income"]], frame()["outcome"])


@pytest.mark.parametrize("kind", ALL)
def test_a_failed_fit_changes_nothing(kind: Any) -> None:
    X, y = frame()[["age", "income"]], frame()["outcome"]
    model = kind(4, random_state=0).fit(X, y)
    before = model.predict(X)
    model.set_params(parties=np.zeros(7, int))
    with pytest.raises(DataError, match="clients of 7 rows, and X has 30"):
        model.fit(X.assign(more=1), y)
    np.testing.assert_array_equal(model.predict(X), before)
    model.set_params(parties=3, bootstrap=False, max_samples=0.5)
    with pytest.raises(ValueError, match="`max_samples` cannot be set if `bootstrap=False`"):
        model.fit(X, y)
    np.testing.assert_array_equal(model.predict(X), before)


@pytest.mark.parametrize("kind", ALL)
def test_tables_to_predict(kind: Any) -> None:
    X, y = frame()[["age", "income"]], frame()["outcome"]
    model = kind(4, random_state=0).fit(X, y)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(X.rename(columns={"age": "years"}))
    with pytest.raises(DataError, match="column 'age' was numeric in training"):
        model.predict(X.assign(age="old"))
    on_federation = fit(kind, three())
    with pytest.raises(DataError, match=r"columns of the training are missing: \['income'\]"):
        on_federation.predict(X[["age"]])


def test_names_of_dealt_clients() -> None:
    X, y = frame()[["age", "income"]], frame()["outcome"]
    model = wl.LocalForestsClassifier(6, parties=np.array(["north", "south"] * 15)).fit(X, y)
    assert set(model.cost_.bytes_by_party) == {"north", "south"}
    with pytest.raises(DataError, match="cannot name a party"):
        wl.LocalForestsClassifier(6, parties=["a.b"] * 30).fit(X, y)


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"max_bins": None}, "max_bins"),
        ({"max_bins": 1}, "max_bins"),
        ({"max_bins": 70_000}, "max_bins"),
        ({"bins": [1, 2]}, "bins"),
        ({"bins": {"0": [2, 1]}}, "bins"),
        ({"bins": {"0": [1, np.inf]}}, "bins"),
        ({"bins": {"0": "edges"}}, "bins"),
        ({"bins": {"9": [1]}}, "no columns of numbers"),
        ({"sums": "open"}, "sums"),
        ({"max_samples": 40.0}, "at most 32"),
        ({"parties": 2}, "secure sums need 3 clients"),
    ],
)
def test_parameters_of_the_lossless_forest(params: dict[str, Any], reason: str) -> None:
    X, y = np.arange(20.0).reshape(10, 2), np.arange(10) % 2
    model = wl.HorizontalForestClassifier(2, random_state=0, min_samples_leaf=1).fit(X, y)
    before = model.predict_proba(X)
    with pytest.raises((ValueError, WoodlotError), match=reason):
        model.set_params(**params).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), before)
