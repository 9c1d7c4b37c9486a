"""Federations in one process: alignment, labels, missing parties and rows, consent."""

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
from numpy.typing import NDArray

import woodlot as wl
from woodlot.estimators.complete import CompleteForest
from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.protocols.messages.vertical import RevealSplits, SplitTable
from woodlot.protocols.vertical.reveal import reveal_splits

N = 120
RNG = np.random.default_rng(7)
ALL = pd.DataFrame(
    {
        "id": RNG.permutation(1000)[:N],
        "age": RNG.integers(18, 80, N),
        "income": RNG.normal(50, 10, N).round(1),
        "visits": RNG.integers(0, 9, N).astype(float),
        "colour": np.array(["red", "green", "blue"])[RNG.integers(0, 3, N)],
        "weight": RNG.integers(1, 4, N),
    }
)
ALL["default"] = np.where((ALL.age > 45) ^ (ALL.visits > 4), "yes", "no")
ALL["amount"] = ALL.income * 2 + (ALL.colour == "red") * 30
ALL.loc[3::11, "visits"] = np.nan
BANK = ["id", "age", "income", "default"]
SHOP = ["id", "visits", "colour"]
FEATURES = ["age", "income", "visits", "colour"]


def tables(rows: pd.DataFrame = ALL, bank: list[str] = BANK) -> dict[str, Any]:
    """Two companies with the same customers in different orders."""
    return {"bank": rows[bank], "shop": rows[SHOP].sample(frac=1, random_state=0)}


def federation(rows: pd.DataFrame = ALL, bank: list[str] = BANK, **options: Any) -> wl.Federation:
    return wl.Federation.local(tables(rows, bank), **{"id": "id", **options})


def classifier(**params: Any) -> wl.FederatedForestClassifier:
    return wl.FederatedForestClassifier(**{"n_estimators": 12, "random_state": 0, **params})


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
    "chunks": lambda frame: pa.concat_tables([pa.Table.from_pandas(f, preserve_index=False) for f in (frame[:50], frame[50:])]),
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
    "twice": (lambda f: pd.concat([f, f[:2]]), "the table of shop has 2 ids more than once in column 'id'.*one row per id"),
    "missing": (lambda f: f.assign(id=f.id.where(f.index > 1)), "shop has 2 rows without an id in column 'id'; drop"),
    "missing text": (lambda f: f.assign(id=f.id.astype(str).where(f.index > 1)), "shop has 2 rows without an id"),
    "text and numbers": (lambda f: f.assign(id=[1, *map(str, f.id[1:])]), "holds int, str: convert"),
    "text here": (lambda f: f.assign(id=f.id.astype(str)), "different kinds: .*'bank': 'numbers', 'shop': 'text'"),
    "fractions": (lambda f: f.assign(id=f.id + 0.5), "all be whole numbers or all be text; .* float64"),
    "large floats": (lambda f: f.assign(id=f.id + 2.0**60), "float64: convert"),
    "infinite": (lambda f: f.assign(id=[np.inf, *f.id[1:]]), "float64: convert"),
    "dates": (lambda f: f.assign(id=pd.date_range("2020", periods=len(f))), r"holds datetime64.*to text"),
    "truth values": (lambda f: f[:2].assign(id=[True, False]), "holds bool"),
    "identifiers": (lambda f: f.assign(id=[uuid.uuid4() for _ in f.id]), "holds UUID: convert them, for instance to text"),
    "others": (lambda f: f.assign(id=f.id + 5000), r"no id of column 'id' is at every party.*120.*write ids in the same"),
    "no rows": (lambda f: f[:0], "no id of column 'id' is at every party"),
    "no column": (lambda f: f.drop(columns="id"), r"the table of shop has no column 'id'; it has \['visits', 'colour'\]"),
}


@pytest.mark.parametrize("case", BAD_IDS)
def test_bad_ids(case: str) -> None:
    change, words = BAD_IDS[case]
    given = tables()
    given["shop"] = change(given["shop"].reset_index(drop=True))
    with pytest.raises(DataError, match=words):
        wl.Federation.local(given, id="id")


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
        ([ALL], "mapping of party name to table"),
        ({"coordinator": ALL}, "'coordinator' cannot name a party"),
        ({"a.b": ALL}, "'a.b' cannot name a party"),
        ({"": ALL}, "cannot name a party"),
        ({3: ALL}, "3 cannot name a party"),
        ({"bank": ALL[BANK], "shop": ALL[["id", "age"]]}, "'age' is at both bank and shop; rename one, such as 'shop_age'"),
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
    with pytest.raises(DataError, match="'id' is at both bank and shop.*if it identifies the rows, name it with id='id'"):
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
    "array": ({}, {"y": ALL.default}, "on a federation y names the labels: 'party.column'"),
    "nothing": ({}, {}, "on a federation y names the labels: 'party.column'"),
    "no party": ({}, {"y": "default"}, r"'default' must be written party.column, with a party of \['bank', 'shop'\]"),
    "unknown party": ({}, {"y": "mill.default"}, "with a party of"),
    "unknown column": ({}, {"y": "bank.defaults"}, r"bank has no column 'defaults'; it has \['age', 'income', 'default'\]"),
    "the id": ({}, {"y": "bank.id"}, "bank has no column 'id'"),
    "NaN": ({"default": ALL.default.where(ALL.age > 20)}, {"y": "bank.default"}, "Input y contains NaN: .* rows of bank"),
    "None": ({"default": ALL.default.astype(object).where(ALL.age > 20, None)}, {"y": "bank.default"}, "y contains NaN"),
    "NA": ({"default": ALL.age.astype("Int64").where(ALL.age > 20)}, {"y": "bank.default"}, "y contains NaN"),
    "continuous": ({"default": ALL.income}, {"y": "bank.default"}, "Unknown label type: continuous"),
    "weights elsewhere": ({}, {"y": "bank.default", "sample_weight": "shop.visits"}, "at the label holder bank, not at shop"),
    "weights as array": ({}, {"y": "bank.default", "sample_weight": np.ones(N)}, "sample_weight names the weights"),
    "negative weights": ({"income": -ALL.income}, {"y": "bank.default", "sample_weight": "bank.income"}, "Negative values"),
    "weights of zero": ({"income": 0.0}, {"y": "bank.default", "sample_weight": "bank.income"}, "at least one non-zero"),
    "missing weights": (
        {"income": ALL.income.where(ALL.age > 20)},
        {"y": "bank.default", "sample_weight": "bank.income"},
        "Input sample_weight contains NaN: .* rows of bank.income",
    ),
    "weights as text": ({"income": "x"}, {"y": "bank.default", "sample_weight": "bank.income"}, "convert string to float"),
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
    with pytest.raises(DataError, match=r"training needs every row at every party; \['shop'\] lack some: use join='inner'"):
        classifier().fit(partial, y="bank.default")
    with pytest.raises(DataError, match="no rows to train on"):
        classifier().fit(wl.Federation.local({"bank": ALL[BANK][:0].assign(default=[])}, id="id", join="outer"), y="bank.age")


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
    regressor = wl.FederatedForestRegressor(10, random_state=0).fit(federation(bank=[*BANK[:3], "amount"]), y="bank.amount")
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
    np.testing.assert_array_equal(
        model.forest_.coordinator.structure.right, fitted.forest_.coordinator.structure.right
    )


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
    with pytest.raises(DataError, match=r"none of the parties \['mill'\] has a part of this forest.*\['bank', 'shop'\]"):
        fitted.predict(wl.Federation.local({"mill": ALL[["income"]]}))
    with pytest.raises(DataError, match="no rows to predict"):
        fitted.predict(wl.Federation.local({"bank": ALL[BANK][:0], "shop": ALL[SHOP][:0]}, id="id", join="outer"))


def test_permutation_importance_on_a_federation(fitted: wl.FederatedForestClassifier) -> None:
    found = fitted.permutation_importance(federation(), n_repeats=3, random_state=0)
    assert found.importances.shape == (4, 3)
    age, income, visits, colour = found.importances_mean
    assert min(age, visits) > 0.1 > max(income, colour)


# --- a party or a row is missing ---


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


def whole(model: Any) -> CompleteForest:
    """The complete forest, from the parties' own stores, which a test may open."""
    return CompleteForest(model.forest_.coordinator, model.forest_.parts)


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
    with pytest.raises(DataError, match=r"classical method needs every party; \['shop'\] are absent: use method='one-round'"):
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


# --- consent ---


def test_without_consent_nobody_hands_out_the_model(fitted: wl.FederatedForestClassifier, tmp_path: Any) -> None:
    words = r"\['bank', 'shop'\] did not agree to share the model.*\['bank', 'shop'\] stay.*combine\(folders\)"
    for ask in (fitted.combine, lambda: fitted.apply(ALL[FEATURES]), lambda: fitted.predict(ALL[FEATURES])):
        with pytest.raises(PolicyError, match=words):
            ask()
    assert not hasattr(fitted, "estimators_")
    assert fitted.forest_.shared == {}
    assert not any(row.kind in ("RevealSplits", "SplitTable") for row in fitted.disclosure_)
    assert fitted.predict(federation()).shape == (N,)
    fitted.save(tmp_path / "model")
    folders = [tmp_path / "model" / "party-bank", tmp_path / "model" / "party-shop"]
    complete = fitted.combine(folders)
    np.testing.assert_array_equal(complete.predict_proba(ALL[FEATURES]), fitted.predict_proba(federation()))
    with pytest.raises(PolicyError, match=r"so the parts of \['shop'\] stay"):
        fitted.combine(folders[:1])
    with pytest.raises(PolicyError):
        fitted.combine()  # what was handed over once is not kept


def test_one_who_does_not_agree_is_enough() -> None:
    model = classifier().fit(federation(shares_model=["bank"]), y="bank.default")
    with pytest.raises(PolicyError, match=r"\['shop'\] did not agree to share the model, so the parts of \['bank', 'shop'\]"):
        model.combine()
    assert not any(row.kind == "SplitTable" for row in model.disclosure_)


@pytest.mark.parametrize("shares", [True, ["bank", "shop"]])
def test_with_consent_of_all_the_coordinator_has_the_model(shares: Any, fitted: wl.FederatedForestClassifier) -> None:
    model = classifier().fit(federation(shares_model=shares), y="bank.default")
    proba = model.predict_proba(ALL[FEATURES])
    np.testing.assert_array_equal(proba, fitted.predict_proba(federation()))
    np.testing.assert_array_equal(model.predict_proba(federation()), proba)
    assert model.combine().feature_names == ("age", "income", "visits", "colour")
    revealed = [row for row in model.disclosure_ if row.kind == "SplitTable"]
    assert {(row.sender, row.receiver) for row in revealed} == {("bank", "coordinator"), ("shop", "coordinator")}
    assert "reveal" in model.cost_.seconds
    assert model.forest_.shared["shop"] is not model.forest_.parts["shop"]  # it came over the wire
    assert "complete model" in repr(model.forest_)
    assert "parts stay with the parties" in repr(fitted.forest_)


def test_who_splits_nothing_need_not_agree() -> None:
    rows = ALL.assign(visits=1.0, colour="red")
    model = classifier(n_estimators=3).fit(federation(rows, shares_model=["bank"]), y="bank.default")
    assert model.forest_.unwilling == ()
    assert set(model.forest_.shared) == {"bank"}
    exported = model.combine().to_sklearn()
    assert exported.predict(rows[["age", "income"]]).tolist() == model.predict(federation(rows)).tolist()


def test_a_party_that_reveals_nonsense_is_refused(fitted: wl.FederatedForestClassifier) -> None:
    forest = fitted.forest_

    def reveal(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
        protocol = reveal_splits(forest.coordinator)
        step = next(protocol)
        assert all(isinstance(request, RevealSplits) for request in step.requests.values())
        replies = {}
        for party in step.requests:
            part = forest.parts[party]
            told = {
                "node": part.splits.node.astype(np.uint32), "feature": part.splits.feature.astype(np.uint32),
                "threshold": part.splits.threshold, "missing_left": part.splits.missing_left.astype(np.uint8),
                "set_start": part.splits.set_start, "sets": part.splits.sets, "names": part.names,
                "categories": tuple(getattr(c, "categories", None) for c in part.codings),
            }  # fmt: skip
            replies[party] = SplitTable(**(change(told) if party == "shop" else told))
        with pytest.raises(StopIteration) as end:
            protocol.send(replies)
        return end.value.value

    parts = reveal(lambda told: told)
    np.testing.assert_array_equal(parts["shop"].splits.node, forest.parts["shop"].splits.node)
    for change in (
        lambda told: told | {"node": told["node"] + np.uint32(1)},
        lambda told: told | {"node": told["node"][:-1]},
        lambda told: told | {"feature": told["feature"] + np.uint32(2)},
        lambda told: told | {"feature": np.uint32(1) - told["feature"]},
        lambda told: told | {"threshold": told["threshold"] * np.nan},
        lambda told: told | {"set_start": told["set_start"] + 1},
        lambda told: told | {"sets": told["sets"][:-1]},
        lambda told: told | {"names": (*told["names"], "more")},
        lambda told: told | {"names": ("same", "same")},
        lambda told: told | {"categories": (None, None)},
        lambda told: told | {"categories": told["categories"][::-1]},
    ):
        with pytest.raises(RemoteProtocolError, match="shop revealed"):
            reveal(change)


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
