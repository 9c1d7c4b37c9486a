"""Federations in one process: tables, ids, labels, weights, and the order of rows and parties."""

from __future__ import annotations

import datetime
import uuid
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import woodlot as wl
from companies import ALL, BANK, FEATURES, SHOP, N, classifier, federation, tables
from woodlot.exceptions import DataError
from woodlot.federation import AnyFederation


@pytest.fixture(scope="module")
def fitted() -> wl.FederatedForestClassifier:
    return classifier().fit(federation(), y="bank.default")


# --- tables and ids ---

MAKERS: dict[str, Callable[[pd.DataFrame], Any]] = {
    "polars": pl.DataFrame,
    "arrow": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "record batch": lambda frame: pa.RecordBatch.from_pandas(frame, preserve_index=False),
    "categories": lambda frame: frame.assign(**{c: frame[c].astype("category") for c in frame if c == "colour"}),
    "nullable": lambda frame: frame.convert_dtypes(),
    "chunks": lambda frame: pa.concat_tables(
        [pa.Table.from_pandas(f, preserve_index=False) for f in (frame[:50], frame[50:])]
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_every_kind_of_table_gives_the_same_answers(kind: str, fitted: wl.FederatedForestClassifier) -> None:
    made = {party: MAKERS[kind](frame) for party, frame in tables().items()}
    other = wl.Federation.local(made, id="id")
    np.testing.assert_array_equal(other.ids, ALL.id)
    assert other.labels("bank.default").tolist() == ALL.default.tolist()
    model = classifier().fit(other, y="bank.default")
    np.testing.assert_array_equal(model.predict_proba(other), fitted.predict_proba(federation()))
    assert model.score(other) == fitted.score(federation())


GOOD_IDS: dict[str, Callable[[pd.Series], Any]] = {
    "text": lambda ids: ids.astype(str),
    "text objects": lambda ids: np.array([f"c{i}" for i in ids], object),
    "int objects": lambda ids: ids.astype(object),
    "floats": lambda ids: ids.astype(float),
    "nullable": lambda ids: ids.astype("Int64"),
    "int16": lambda ids: ids.astype(np.int16),
    "uint64": lambda ids: ids.astype(np.uint64) + np.uint64(2**63),
    "negative": lambda ids: -ids,
    "near 2**62": lambda ids: ids + 2**62,
    "categories": lambda ids: ids.astype(str).astype("category"),
}


@pytest.mark.parametrize("kind", GOOD_IDS)
def test_ids_of_every_kind(kind: str, fitted: wl.FederatedForestClassifier) -> None:
    rows = ALL.assign(id=GOOD_IDS[kind](ALL.id))
    fed = federation(rows)
    assert fed.n_rows == N
    assert [str(i) for i in fed.ids] == [str(i).removesuffix(".0") for i in rows.id]
    np.testing.assert_array_equal(fitted.predict_proba(fed), fitted.predict_proba(federation()))
    assert "id" not in fed.columns("bank")


def test_whole_numbers_of_different_types_meet() -> None:
    given = tables()
    given["shop"] = given["shop"].assign(id=given["shop"].id.astype(np.uint64))
    np.testing.assert_array_equal(wl.Federation.local(given, id="id").ids, ALL.id)
    big = ALL.assign(id=ALL.id.astype(np.uint64) + np.uint64(2**63))
    both = pd.concat([ALL.astype({"id": np.uint64})[:60], big[60:]])
    mixed = wl.Federation.local({"bank": both[BANK], "shop": ALL[SHOP]}, id="id")
    np.testing.assert_array_equal(mixed.ids, ALL.id[:60])


BAD_IDS: dict[str, tuple[Callable[[pd.DataFrame], pd.DataFrame], str]] = {
    "twice": (
        lambda f: pd.concat([f, f[:2]]),
        "the table of shop has 2 ids more than once in column 'id'.*one row per id",
    ),
    "missing": (lambda f: f.assign(id=f.id.where(f.index > 1)), "shop has 2 rows without an id in column 'id'; drop"),
    "missing text": (lambda f: f.assign(id=f.id.astype(str).where(f.index > 1)), "shop has 2 rows without an id"),
    "text and numbers": (lambda f: f.assign(id=[1, *map(str, f.id[1:])]), "holds int, str: convert"),
    "text here": (lambda f: f.assign(id=f.id.astype(str)), "different kinds: .*'bank': 'numbers', 'shop': 'text'"),
    "fractions": (lambda f: f.assign(id=f.id + 0.5), "all be whole numbers or all be text; .* float64"),
    "large floats": (lambda f: f.assign(id=f.id + 2.0**60), "float64: convert"),
    "infinite": (lambda f: f.assign(id=[np.inf, *f.id[1:]]), "float64: convert"),
    "dates": (lambda f: f.assign(id=pd.date_range("2020", periods=len(f))), r"holds datetime64.*to text"),
    "truth values": (lambda f: f[:2].assign(id=[True, False]), "holds bool"),
    "identifiers": (
        lambda f: f.assign(id=[uuid.uuid4() for _ in f.id]),
        "holds UUID: convert them, for instance to text",
    ),
    "others": (
        lambda f: f.assign(id=f.id + 5000),
        r"no id of column 'id' is at every party.*120.*write ids in the same",
    ),
    "no rows": (lambda f: f[:0], "no id of column 'id' is at every party"),
    "no column": (
        lambda f: f.drop(columns="id"),
        r"the table of shop has no column 'id'; it has \['visits', 'colour'\]",
    ),
}


@pytest.mark.parametrize("case", BAD_IDS)
def test_bad_ids(case: str) -> None:
    change, words = BAD_IDS[case]
    given = tables()
    given["shop"] = change(given["shop"].reset_index(drop=True))
    with pytest.raises(DataError, match=words):
        wl.Federation.local(given, id="id")


@pytest.mark.parametrize("layout", ["columns", "rows"])
def test_a_misspelt_id_is_not_learnt_from(layout: str) -> None:
    given = {"bank": ALL[BANK], "shop": ALL[BANK if layout == "rows" else SHOP]}
    with pytest.raises(DataError, match=r"the table of bank has no column 'ident'; it has \['id', 'age'"):
        wl.Federation.local(given, id="ident", layout=layout)
    with pytest.raises(DataError, match=r"id must be the name of a column that every table has, not \{'bank'"):
        wl.Federation.local(given, id={"bank": "id", "shop": "key"}, layout=layout)
    with pytest.raises(DataError, match=r"the table of bank is the name of a file; read it first.*'bank\.csv'"):
        wl.Federation.local(given | {"bank": "bank.csv"}, id="id", layout=layout)


@pytest.mark.parametrize("levels", [1, 2])
def test_the_index_may_hold_the_ids(levels: int, fitted: wl.FederatedForestClassifier) -> None:
    bank, shop = tables()["bank"], tables()["shop"].sample(frac=1.0, random_state=0)
    indexed = {"bank": bank.set_index("id"), "shop": shop.set_index("id")}
    if levels == 2:
        indexed["shop"] = indexed["shop"].set_index(pd.Index(range(N), name="line"), append=True)
    here = wl.Federation.local(indexed, id="id")
    assert here.columns("shop") == federation().columns("shop")
    np.testing.assert_array_equal(here.ids, bank["id"])
    np.testing.assert_array_equal(fitted.predict_proba(here), fitted.predict_proba(federation()))
    assert here.labels("bank.default").tolist() == bank["default"].tolist()


def test_rows_have_the_index_for_an_id() -> None:
    frame = pd.DataFrame({"a": [1.0, 2.0], "y": [0, 1]}, index=pd.Index([7, 8], name="id"))
    here = wl.Federation.local({"one": frame, "two": frame.reset_index()}, id="id", layout="rows")
    assert here.columns("one") == here.columns("two") == ("a", "y")


def test_unequal_indexes_are_not_joined_by_position() -> None:
    rng = np.random.default_rng(0)
    label = rng.integers(0, 2, 200)
    bank = pd.DataFrame({"age": rng.normal(size=200), "target": label}, index=pd.Index(range(200), name="id"))
    shop = pd.DataFrame({"same": label.astype(float)}, index=bank.index).sample(frac=1.0, random_state=0)
    with pytest.raises(DataError, match=r"bank and shop have different indexes.*id='id'.*reset_index"):
        wl.Federation.local({"bank": bank, "shop": shop})
    for unindexed in (pl.DataFrame({"same": label}), shop.reset_index(drop=True)):
        with pytest.raises(DataError, match="different indexes"):
            wl.Federation.local({"bank": bank.iloc[::-1], "shop": unindexed})
    by_id = wl.Federation.local({"bank": bank, "shop": shop}, id="id")
    model = wl.FederatedForestClassifier(5, max_features=None, random_state=0).fit(by_id, y="bank.target")
    fresh = wl.Federation.local({"bank": bank[:50], "shop": shop[:50]}, id="id")
    assert model.score(fresh) == 1.0  # joined by position it was 0.51


def test_equal_indexes_are_joined_by_position() -> None:
    bank, shop = tables()["bank"], tables()["shop"].drop(columns="id")
    for index in (pd.RangeIndex(N), pd.Index(range(5, N + 5)), pd.MultiIndex.from_arrays([range(N), range(N)])):
        given = {"bank": bank.set_axis(index), "shop": shop.set_axis(index)}
        assert wl.Federation.local(given).n_rows == N
    mixed = {"bank": bank.reset_index(drop=True), "shop": pl.DataFrame(shop), "port": pa.table({"x": range(N)})}
    assert wl.Federation.local(mixed).n_rows == N


def test_without_ids_rows_must_correspond() -> None:
    fed = wl.Federation.local({"bank": ALL[BANK[1:]], "shop": ALL[SHOP[1:]]})
    assert fed.ids is None
    model = classifier().fit(fed, y="bank.default")
    np.testing.assert_array_equal(
        model.predict_proba(fed), classifier().fit(federation(), y="bank.default").predict_proba(federation())
    )
    with pytest.raises(DataError, match=r"different numbers of rows: .*'bank': 120, 'shop': 119.*id=\.\.\."):
        wl.Federation.local({"bank": ALL[BANK[1:]], "shop": ALL[SHOP[1:]][:-1]})
    with pytest.raises(DataError, match="join='outer' needs the id column"):
        wl.Federation.local({"bank": ALL[BANK[1:]], "shop": ALL[SHOP[1:]]}, join="outer")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "at least one party"),
        ([ALL, ALL], "^give a mapping of party name to table, not a list"),
        ({"coordinator": ALL}, "'coordinator' cannot name a party"),
        ({"a.b": ALL}, "'a.b' cannot name a party"),
        ({"": ALL}, "cannot name a party"),
        ({3: ALL}, "3 cannot name a party"),
        (
            {"bank": ALL[BANK], "shop": ALL[["id", "age"]]},
            "'age' is at both bank and shop; rename one, such as 'shop_age'",
        ),
        ({"bank": np.ones((3, 2))}, "the table of bank has no column names; give a pandas, polars or Arrow table"),
        ({"bank": pd.DataFrame([[1, 2]], columns=["a", "a"])}, "unique, but the table of bank has 'a' more than once"),
        ({"bank": pd.DataFrame({"d": [datetime.date(2020, 1, 1)]})}, "'d' of the table of bank holds dates"),
    ],
)
def test_bad_tables(given: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        wl.Federation.local(given, id="id" if "id" in words or "age" in words else None)


def test_bad_options() -> None:
    with pytest.raises(ValueError, match="join must be 'inner' or 'outer', not 'left'"):
        federation(join="left")
    with pytest.raises(DataError, match=r"shares_model names \['mill'\], who are not parties"):
        federation(shares_model=["bank", "mill"])


def test_the_same_id_column_without_naming_it_is_explained() -> None:
    with pytest.raises(
        DataError, match=r"'id' is at both bank and shop.*if it identifies the rows, name it with id='id'"
    ):
        wl.Federation.local(tables())


# --- labels and weights ---


def test_label_and_weights_are_not_features() -> None:
    fed = federation(bank=[*BANK, "weight"])
    model = classifier(bootstrap=False).fit(fed, y="bank.default", sample_weight="bank.weight")
    assert model.n_features_in_ == 4
    assert model.forest_.parts["bank"].names == ("age", "income")
    assert model.importance_owners_.tolist() == ["bank", "bank", "shop", "shop"]
    assert len(model.feature_importances_) == 4
    repeated = ALL.loc[ALL.index.repeat(ALL.weight)].reset_index(drop=True).assign(id=lambda f: f.index)
    expected = classifier(bootstrap=False).fit(federation(repeated), y="bank.default")
    np.testing.assert_array_equal(model.predict_proba(federation()), expected.predict_proba(federation()))
    # to predict, neither of them need be there
    np.testing.assert_array_equal(
        model.predict_proba(federation(bank=["id", "age", "income"])), model.predict_proba(federation())
    )


def test_labels_are_not_rounded_as_features_are() -> None:
    rows = ALL.assign(default=ALL.id + 2**40)
    assert federation(rows).labels("bank.default").tolist() == (ALL.id + 2**40).tolist()


BAD_LABELS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "short array": ({}, {"y": ALL.default[:9]}, "the federation has 120 rows and y 9 values"),
    "nothing": ({}, {}, "on a federation y names the labels: 'party.column'"),
    "no party": ({}, {"y": "default"}, r"'default' must be written party.column, with a party of \['bank', 'shop'\]"),
    "unknown party": ({}, {"y": "mill.default"}, "with a party of"),
    "unknown column": (
        {},
        {"y": "bank.defaults"},
        r"bank has no column 'defaults'; it has \['age', 'income', 'default'\]",
    ),
    "the id": ({}, {"y": "bank.id"}, "bank has no column 'id'"),
    "NaN": (
        {"default": ALL.default.where(ALL.age > 20)},
        {"y": "bank.default"},
        "Input y contains NaN: .* rows of bank",
    ),
    "None": (
        {"default": ALL.default.astype(object).where(ALL.age > 20, None)},
        {"y": "bank.default"},
        "y contains NaN",
    ),
    "NA": ({"default": ALL.age.astype("Int64").where(ALL.age > 20)}, {"y": "bank.default"}, "y contains NaN"),
    "continuous": ({"default": ALL.income}, {"y": "bank.default"}, "Unknown label type: continuous"),
    "weights elsewhere": (
        {},
        {"y": "bank.default", "sample_weight": "shop.visits"},
        "at the label holder bank, not at shop",
    ),
    "weights as array": ({}, {"y": "bank.default", "sample_weight": np.ones(N)}, "sample_weight names the weights"),
    "negative weights": (
        {"income": -ALL.income},
        {"y": "bank.default", "sample_weight": "bank.income"},
        "Negative values",
    ),
    "weights of zero": (
        {"income": 0.0},
        {"y": "bank.default", "sample_weight": "bank.income"},
        "at least one non-zero",
    ),
    "missing weights": (
        {"income": ALL.income.where(ALL.age > 20)},
        {"y": "bank.default", "sample_weight": "bank.income"},
        "Input sample_weight contains NaN: .* rows of bank.income",
    ),
    "weights as text": (
        {"income": "x"},
        {"y": "bank.default", "sample_weight": "bank.income"},
        "sample_weight must be numbers; it holds str",
    ),
}


@pytest.mark.parametrize("case", BAD_LABELS)
def test_bad_labels_and_weights_change_nothing(case: str) -> None:
    columns, arguments, words = BAD_LABELS[case]
    bad = federation(ALL.assign(**columns))
    with pytest.raises(ValueError, match=words):
        classifier().fit(bad, **arguments)
    model = classifier(n_estimators=2).fit(federation(), y="bank.default")
    before = dict(vars(model))
    with pytest.raises(ValueError, match=words):
        model.fit(bad, **arguments)
    assert vars(model) == before


def test_targets_as_text() -> None:
    with pytest.raises(DataError, match="must be numbers, y holds text; use FederatedForestClassifier"):
        wl.FederatedForestRegressor(2).fit(federation(), y="bank.default")


def test_training_needs_every_row_at_every_party() -> None:
    partial = wl.Federation.local({"bank": ALL[BANK], "shop": ALL[SHOP][:100]}, id="id", join="outer")
    with pytest.raises(
        DataError, match=r"training needs every row at every party; \['shop'\] lack some: use join='inner'"
    ):
        classifier().fit(partial, y="bank.default")
    with pytest.raises(DataError, match="no rows to train on"):
        classifier().fit(
            wl.Federation.local({"bank": ALL[BANK][:0].assign(default=[])}, id="id", join="outer"), y="bank.age"
        )


def test_a_label_holder_without_columns() -> None:
    label = ALL[["id", "default"]]
    rest = {"bank": ALL[["id", "age", "income"]], "shop": ALL[SHOP]}
    fed = wl.Federation.local({"court": label, **rest}, id="id")
    model = classifier(n_estimators=30, oob_score=True).fit(fed, y="court.default")
    assert model.score(fed) > 0.9
    assert 0.5 < model.oob_score_ <= 1
    without = wl.Federation.local(rest, id="id")
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the label holder splits nothing, so nothing is missing without it
        np.testing.assert_array_equal(model.predict_proba(without), model.predict_proba(fed))


def test_no_party_has_a_feature() -> None:
    with pytest.raises(DataError, match="no party has a column to learn from"):
        classifier().fit(wl.Federation.local({"court": ALL[["default"]]}), y="court.default")


def test_score_uses_the_labels_of_the_training(fitted: wl.FederatedForestClassifier) -> None:
    fed = federation(bank=[*BANK, "weight"])
    expected = (fitted.predict(fed) == ALL.default).mean()
    assert fitted.score(fed) == fitted.score(fed, "bank.default") == fitted.score(fed, ALL.default) == expected
    wrong = fitted.predict(fed) != ALL.default
    weighted = 1 - ALL.weight[wrong].sum() / ALL.weight.sum()
    assert fitted.score(fed, sample_weight="bank.weight") == pytest.approx(weighted)
    with pytest.raises(DataError, match="bank has no column 'default'"):
        fitted.score(federation(bank=["id", "age", "income"]))
    regressor = wl.FederatedForestRegressor(10, random_state=0).fit(
        federation(bank=[*BANK[:3], "amount"]), y="bank.amount"
    )
    assert regressor.score(federation(bank=[*BANK[:3], "amount"])) > 0.8


# --- order of rows and parties ---


def test_answers_follow_the_ids(fitted: wl.FederatedForestClassifier) -> None:
    expected = dict(zip(ALL.id, fitted.predict_proba(federation())[:, 0], strict=True))
    shuffled = federation(ALL.sample(frac=0.7, random_state=3))
    assert set(shuffled.ids) < set(ALL.id)
    answers = fitted.predict_proba(shuffled)[:, 0]
    assert answers.tolist() == [expected[i] for i in shuffled.ids]


def test_parties_in_another_order(fitted: wl.FederatedForestClassifier) -> None:
    backwards = wl.Federation.local(dict(reversed(tables().items())), id="id")
    assert backwards.parties == ("shop", "bank")
    assert backwards.ids.tolist() != ALL.id.tolist()  # rows are in the order of the first party
    expected = dict(zip(ALL.id, fitted.predict_proba(federation())[:, 0], strict=True))
    assert fitted.predict_proba(backwards)[:, 0].tolist() == [expected[i] for i in backwards.ids]
    same_rows = wl.Federation.local({"shop": ALL[SHOP], "bank": ALL[BANK]}, id="id")
    model = classifier().fit(same_rows, y="bank.default")
    np.testing.assert_array_equal(model.predict_proba(federation()), fitted.predict_proba(federation()))
    np.testing.assert_array_equal(model.forest_.coordinator.structure.right, fitted.forest_.coordinator.structure.right)


def test_names_that_numpy_gives() -> None:
    """Texts of numpy, as ``numpy.unique`` gives them, name parties like any others, in messages and receipts."""
    bank, shop = np.unique(["bank", "shop"])
    given = tables()
    model = classifier().fit(wl.Federation.local({bank: given["bank"], shop: given["shop"]}, id="id"), "bank.default")
    assert model.revoke(shop, level=3).statement.party == "shop"
    dealt = classifier(parties={bank: FEATURES[:1], shop: FEATURES[1:]}).fit(ALL[FEATURES], ALL.default)
    assert [type(party) for party in dealt.forest_.coordinator.parties] == [str, str]
    clients = {name: ALL[[*FEATURES, "default"]][k::3] for k, name in enumerate(np.unique(["n", "s", "w"]))}
    hospitals = wl.HorizontalForestClassifier(2, random_state=0, allow_two=True)
    hospitals.fit(wl.Federation.local(clients, layout="rows"), "default")
    assert hospitals.revoke(next(iter(clients)), level=3).statement.parties_after == ("s", "w")


def test_a_federation_has_every_method_that_estimators_use() -> None:
    class Partial(AnyFederation):
        """Lacks all of them."""

    with pytest.raises(TypeError, match=r"abstract.*find_labels.*predict_linear"):
        Partial()  # type: ignore[abstract]


def test_columns_in_another_order_and_new_ones(fitted: wl.FederatedForestClassifier) -> None:
    given = tables()
    given["shop"] = given["shop"][["colour", "id", "visits"]].assign(extra=1.0)
    given["mill"] = ALL[["id"]].assign(flour=2.0)  # a party that knows nothing of the forest
    np.testing.assert_array_equal(
        fitted.predict_proba(wl.Federation.local(given, id="id")), fitted.predict_proba(federation())
    )


@pytest.mark.parametrize("method", ["one-round", "classical"])
def test_wrong_columns_at_prediction(fitted: wl.FederatedForestClassifier, method: Any) -> None:
    for change, words in (
        ({"visits": "many"}, "shop.*'visits' was numeric in training and is categorical now"),
        ({"colour": 1.0}, "shop.*'colour' was categorical in training and is numeric now"),
    ):
        with pytest.raises(DataError, match=words):
            fitted.predict(federation(ALL.assign(**change)), method=method)
    without = wl.Federation.local({"bank": ALL[BANK], "shop": ALL[["id", "visits"]]}, id="id")
    with pytest.raises(DataError, match=r"shop.*columns of the training are missing: \['colour'\]"):
        fitted.predict(without, method=method)


def test_a_federation_is_predicted_over_its_parties(fitted: wl.FederatedForestClassifier) -> None:
    with pytest.raises(ValueError, match="method='local' needs all columns in one table; use 'one-round'"):
        fitted.predict(federation(), method="local")
    with pytest.raises(ValueError, match="grown on a federation; give a federation"):
        fitted.predict(ALL[FEATURES], method="one-round")
    with pytest.raises(
        DataError, match=r"none of the parties \['mill'\] has a part of this forest.*\['bank', 'shop'\]"
    ):
        fitted.predict(wl.Federation.local({"mill": ALL[["income"]]}))
    with pytest.raises(DataError, match="no rows to predict"):
        fitted.predict(wl.Federation.local({"bank": ALL[BANK][:0], "shop": ALL[SHOP][:0]}, id="id", join="outer"))


def test_permutation_importance_on_a_federation(fitted: wl.FederatedForestClassifier) -> None:
    found = fitted.permutation_importance(federation(), n_repeats=3, random_state=0)
    assert found.importances.shape == (4, 3)
    age, income, visits, colour = found.importances_mean
    assert min(age, visits) > 0.1 > max(income, colour)


# --- what a federation looks like ---


def test_repr() -> None:
    shown = repr(federation(shares_model=["shop"]))
    assert shown.splitlines() == [
        "Federation of 2 parties, 120 rows",
        "  bank  3 columns",
        "  shop  2 columns, shares the model",
    ]
    outer = wl.Federation.local({"bank": ALL[["id", "age"]][5:], "shop": ALL[SHOP]}, id="id", join="outer")
    assert "bank  1 column, lacks 5 rows" in repr(outer)
    assert repr(wl.Federation.local({"bank": ALL})).startswith("Federation of 1 party, 120 rows")
    with pytest.raises(DataError, match="'mill' is not a party of this federation"):
        outer.columns("mill")
