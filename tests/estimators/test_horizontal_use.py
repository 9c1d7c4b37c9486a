"""Horizontal forests as a user meets them: fit, predict, export, save, and the slides' setting in small."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier
from sklearn.datasets import load_diabetes, load_digits
from sklearn.model_selection import GridSearchCV, cross_val_score, train_test_split

import woodlot as wl
from woodlot.data.partition import deal_alpha_chunks
from woodlot.exceptions import DataError, PolicyError
from woodlot.federation.local_rows import RowFederation
from woodlot.privacy.budget import Budget, BudgetFile
from woodlot.privacy.client_budget import LocalBudget

ALL = [
    wl.LocalForestsClassifier,
    wl.LocalForestsRegressor,
    wl.CollaborativeForestClassifier,
    wl.CollaborativeForestRegressor,
    wl.HorizontalForestClassifier,
    wl.HorizontalForestRegressor,
]
COLLABORATIVE, LOSSLESS = ALL[2:4], ALL[4:]


def data(kind: Any, n: int = 180, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(n, 4)), columns=["age", "income", "visits", "basket"])
    X.loc[rng.random(n) < 0.1, "income"] = np.nan
    signal = X["age"] + X["visits"] + rng.normal(size=n) * 0.3
    return X, np.digitize(signal, [-0.5, 0.7]) if is_classifier(kind()) else signal.to_numpy()


def model_of(kind: Any, **params: Any) -> Any:
    return kind(12, random_state=1, **params)


@pytest.mark.parametrize("kind", ALL)
def test_it_learns_and_predicts_the_same_everywhere(kind: Any) -> None:
    X, y = data(kind)
    model = model_of(kind).fit(X, y)
    assert model.score(X, y) > 0.6
    complete = model.combine()
    np.testing.assert_array_equal(complete.predict(X), model.predict(X))
    exported = model.to_sklearn()
    np.testing.assert_array_equal(exported.predict(X), model.predict(X))
    np.testing.assert_allclose(exported.feature_importances_, model.feature_importances_, atol=1e-12)
    assert len(model.estimators_) == 12
    assert model.feature_importances_.sum() == pytest.approx(1.0)
    assert model.feature_importances_[[0, 2]].min() > model.feature_importances_[[1, 3]].max()
    leaves = model.apply(X)
    expected = np.column_stack([tree.apply(X.to_numpy(np.float32)) for tree in model.estimators_])
    np.testing.assert_array_equal(leaves, expected)
    if is_classifier(model):
        np.testing.assert_array_equal(exported.predict_proba(X), model.predict_proba(X))
        np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1.0)


@pytest.mark.parametrize("kind", ALL)
def test_saved_and_loaded_it_is_the_same(kind: Any, tmp_path: Path) -> None:
    X, y = data(kind)
    if is_classifier(kind()):
        y = np.array(["low", "middle", "high"])[y]
    model = model_of(kind, parties=np.arange(len(X)) % 4).fit(X, y)
    model.save(tmp_path / "model")
    again = wl.load(tmp_path / "model")
    assert type(again) is kind
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    assert list(again.feature_names_in_) == list(X.columns)
    assert again.disclosure_.to_dicts() == model.disclosure_.to_dicts()
    assert again.cost_ == model.cost_
    assert again.get_params()["min_samples_leaf"] == 5
    np.testing.assert_array_equal(again.feature_importances_, model.feature_importances_)
    again.save(tmp_path / "again")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict(X), model.predict(X))  # noqa: S301


@pytest.mark.parametrize("kind", ALL)
def test_threads_change_nothing(kind: Any) -> None:
    X, y = data(kind)
    one, other = (model_of(kind, n_jobs=n_jobs).fit(X, y) for n_jobs in (None, 6))
    for part in ("threshold", "feature"):
        np.testing.assert_array_equal(getattr(one.combine().splits, part), getattr(other.combine().splits, part))
    for part in ("value", "weight"):
        np.testing.assert_array_equal(
            getattr(one.forest_.coordinator.leaves, part), getattr(other.forest_.coordinator.leaves, part)
        )


@pytest.mark.parametrize("kind", ALL)
def test_a_federation_of_rows(kind: Any) -> None:
    """Columns in any order, an id that is not learnt from, and the same forest as from one table dealt alike."""
    X, y = data(kind)
    frame = X.assign(outcome=y, number=np.arange(len(X)))
    client = np.arange(len(X)) % 3
    tables = {f"client-{k}": frame[client == k] for k in range(3)}
    tables["client-1"] = tables["client-1"][frame.columns[::-1]]
    federation = wl.Federation.local(tables, id="number", layout="rows")
    assert federation.layout == "rows"
    assert federation.n_rows == len(X)
    assert "60 rows" in repr(federation)
    model = model_of(kind).fit(federation, y="outcome")
    dealt = model_of(kind, parties=client).fit(X, y)
    np.testing.assert_array_equal(model.predict(frame), dealt.predict(X))
    assert model.n_features_in_ == 4
    assert set(model.cost_.bytes_by_party) == set(tables)


@pytest.mark.parametrize("kind", ALL)
def test_categories_and_missing_values(kind: Any) -> None:
    """Each client sees some categories only; the sets of the splits are of all of them."""
    X, y = data(kind)
    towns = np.array(["Aarau", "Brugg", "Chur", "Davos", "Egg", "Flims"])
    client = np.arange(len(X)) % 3
    X["town"] = towns[(np.arange(len(X)) // 3) % 2 + 2 * client]
    X.loc[::10, "town"] = None
    X["nothing"] = np.nan
    y = y + (X["town"].isin(["Brugg", "Davos", "Flims"])).to_numpy() * 3
    model = model_of(kind, parties=client, max_features=None).fit(X, y)
    assert model.score(X, y) > (0.3 if "Local" in kind.__name__ else 0.6)
    assert model.combine().categorical_features == ("town",)
    assert model.forest_.parts["forest"].codings[4].categories == tuple(towns)
    assert not hasattr(model, "estimators_")
    with pytest.warns(UserWarning, match="unseen in training"):
        model.predict(X.assign(town="Zug"))


@pytest.mark.parametrize("kind", ALL)
def test_clients_with_one_row_or_none(kind: Any) -> None:
    X, y = data(kind)
    frame = X.assign(outcome=y)
    tables = {"a": frame[:0], "b": frame[:1], "c": frame[1:]}
    model = model_of(kind).fit(wl.Federation.local(tables, layout="rows"), y="outcome")
    assert model.score(X, y) > (0.4 if "Local" in kind.__name__ else 0.6)
    if kind is wl.LocalForestsClassifier:  # b grows half of the trees: of one leaf each
        assert (np.diff(model.forest_.coordinator.structure.offset) == 1).sum() == 6


@pytest.mark.parametrize("quorum", [None, 3, 0.5])
def test_a_forest_that_could_spare_clients_is_the_same(quorum: Any, tmp_path: Path) -> None:
    X, y = data(wl.HorizontalForestClassifier)
    expected = model_of(wl.HorizontalForestClassifier, parties=5).fit(X, y)
    model = model_of(wl.HorizontalForestClassifier, parties=5, spare_after=60.0, quorum=quorum).fit(X, y)
    np.testing.assert_array_equal(model.predict_proba(X), expected.predict_proba(X))
    assert "SharesTold" in {row.kind for row in model.disclosure_.rows}
    model.save(tmp_path / "model")
    assert model.left_ == wl.load(tmp_path / "model").left_ == ()
    with pytest.raises(wl.exceptions.ConfigError, match="set quorum to more than half of the clients"):
        model.set_params(parties=8, quorum=4).fit(X, y)


def test_a_class_that_a_client_has_never_seen() -> None:
    X, y = data(wl.CollaborativeForestClassifier)
    frame = X.assign(outcome=np.array(["low", "middle", "high"])[y])
    tables = {"a": frame[y == 0], "b": frame[y == 1], "c": frame[y != 0]}
    for kind in (wl.CollaborativeForestClassifier, wl.LocalForestsClassifier):
        model = model_of(kind).fit(wl.Federation.local(tables, layout="rows"), y="outcome")
        assert list(model.classes_) == ["high", "low", "middle"]
        assert model.predict_proba(X).shape == (len(X), 3)


@pytest.mark.parametrize("kind", ALL)
def test_scikit_learns_tools(kind: Any) -> None:
    X, y = data(kind)
    assert cross_val_score(model_of(kind), X, y, cv=3).mean() > 0.5
    search = GridSearchCV(model_of(kind), {"parties": [2, 4], "max_depth": [2, None]}, cv=2)
    if kind in COLLABORATIVE + LOSSLESS:
        search.set_params(estimator__allow_two=True)
    assert search.fit(X, y).best_score_ > 0.5
    assert clone(search.best_estimator_).fit(X, y).n_features_in_ == 4


def test_rounds_are_as_many_as_clients() -> None:
    X, y = data(wl.CollaborativeForestClassifier)
    for n_trees in (6, 40):
        for n_clients in (3, 5):
            model = wl.CollaborativeForestClassifier(n_trees, parties=n_clients, random_state=0).fit(X, y)
            assert model.cost_.rounds == 2 + 2 + n_clients + 1
    assert wl.LocalForestsClassifier(6, random_state=0).fit(X, y).cost_.rounds == 3


def test_a_higher_limit_of_rows_gives_leaves_of_more_rows() -> None:
    X, y = data(wl.CollaborativeForestClassifier)
    loose, tight = (
        wl.CollaborativeForestClassifier(10, min_samples_leaf=1, min_leaf_rows=n, random_state=0).fit(X, y)
        for n in (1, 10)
    )
    for name in ("threshold", "feature"):  # the same trees
        np.testing.assert_array_equal(getattr(loose.combine().splits, name), getattr(tight.combine().splits, name))
    weight = tight.forest_.coordinator.leaves.weight
    assert (weight[weight >= 1] >= 10).all()
    assert loose.score(X, y) > tight.score(X, y)


def test_progress_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = data(wl.CollaborativeForestClassifier)
    wl.CollaborativeForestClassifier(10, random_state=0, verbose=1).fit(X, y)
    shown = capsys.readouterr().err
    assert "turn 2/3" in shown
    assert "done" in shown


@pytest.mark.parametrize("kind", ALL)
def test_disclosures_say_what_travels(kind: Any) -> None:
    X, y = data(kind)
    disclosure = model_of(kind).fit(X, y).disclosure_
    told = {row.kind: row.reveals for row in disclosure}
    if kind in LOSSLESS:
        assert "each edge a value of one of the clients' rows" in told["DrawRows"]
        assert {row.kind for row in disclosure if row.receiver == "coordinator"} == {
            "RowsDescribed", "SchemaInUse", "SumsIntroduced", "SumsStarted", "MaskedVector"
        }  # fmt: skip
        return
    carriers = {"GrowOn", "GrownTrees", "FillLeaves"} if kind in COLLABORATIVE else {"LocalTrees"}
    assert all("halfway between two neighbouring values" in told[name] for name in carriers)
    assert ("MaskedVector" in told) == (kind in COLLABORATIVE)


def test_the_slides_setting_in_small() -> None:
    """Few classes at each client: growing together is far better than alone, and near one forest on all rows."""
    from sklearn.ensemble import RandomForestClassifier

    X, y = load_digits(return_X_y=True)
    train, test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0, stratify=y)
    clients = deal_alpha_chunks(y_train, 10, 2, 2)
    assert [len(np.unique(y_train[clients == k])) for k in range(10)] == [2] * 10
    slides: dict[str, Any] = {"parties": clients, "min_samples_leaf": 1, "random_state": 0}
    central = RandomForestClassifier(50, criterion="entropy", random_state=0).fit(train, y_train).score(test, y_test)
    alone = wl.LocalForestsClassifier(50, **slides).fit(train, y_train).score(test, y_test)
    together = wl.CollaborativeForestClassifier(50, **slides).fit(train, y_train).score(test, y_test)
    assert alone + 0.05 < together
    assert central - 0.06 < together


def test_a_client_with_one_class_only_is_better_weighed_by_its_rows() -> None:
    """It never finds a split, and with the plain average its class counts in every leaf where it has a row."""
    X, y = load_digits(return_X_y=True)
    train, test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0, stratify=y)
    half = np.random.default_rng(0).integers(0, 2, len(y_train))
    clients = np.where(
        y_train == 0, 0, 1 + (y_train - 1 + half) % 9
    )  # all of class 0 is at one client, which has no other
    assert [len(np.unique(y_train[clients == k])) for k in range(10)] == [1] + [2] * 9
    params: dict[str, Any] = {"parties": clients, "min_samples_leaf": 1, "random_state": 0}
    plain, by_rows = (
        wl.CollaborativeForestClassifier(50, leaf_average=average, **params).fit(train, y_train).score(test, y_test)
        for average in ("plain", "rows")
    )
    assert plain + 0.03 < by_rows


def test_the_collaborative_regressor_is_near_one_forest() -> None:
    from sklearn.ensemble import RandomForestRegressor

    X, y = load_diabetes(return_X_y=True)
    train, test, y_train, y_test = train_test_split(X, y, test_size=0.3, random_state=0)
    params: dict[str, Any] = {"min_samples_leaf": 5, "max_features": 1 / 3, "random_state": 0}
    central = RandomForestRegressor(60, **params).fit(train, y_train).score(test, y_test)
    together = wl.CollaborativeForestRegressor(60, parties=4, **params).fit(train, y_train).score(test, y_test)
    assert central - 0.08 < together


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
@pytest.mark.parametrize("average", ["plain", "rows"])
def test_targets_of_any_size(scale: float, average: str) -> None:
    X, y = data(wl.CollaborativeForestRegressor)
    params: dict[str, Any] = {"random_state": 0, "leaf_average": average}
    plain = wl.CollaborativeForestRegressor(5, **params).fit(X, y).predict(X)
    scaled = wl.CollaborativeForestRegressor(5, **params).fit(X, y * scale).predict(X)
    np.testing.assert_allclose(scaled / scale, plain, rtol=1e-6)
    zero = wl.CollaborativeForestRegressor(5, **params).fit(X, 0 * y)
    assert (zero.predict(X) == 0).all()


def test_noise_in_the_leaves_is_charged_for_every_tree() -> None:
    X, y = data(wl.CollaborativeForestClassifier, n=400)
    params: dict[str, Any] = {"leaf_average": "rows", "random_state": 0}
    loud = wl.CollaborativeForestClassifier(10, dp_leaf_epsilon=0.05, **params).fit(X, y)
    soft = wl.CollaborativeForestClassifier(10, dp_leaf_epsilon=50.0, **params).fit(X, y)
    plain = wl.CollaborativeForestClassifier(10, min_leaf_rows=1, **params).fit(X, y)
    for part in ("threshold", "feature"):  # the same trees
        np.testing.assert_array_equal(getattr(loud.combine().splits, part), getattr(plain.combine().splits, part))
    np.testing.assert_allclose(soft.predict_proba(X), plain.predict_proba(X), atol=0.05)
    assert loud.score(X, y) < plain.score(X, y)
    assert loud.privacy_.epsilon == pytest.approx(0.5)
    assert "in the counts of the leaves alone" in loud.privacy_.in_words
    assert any("splits" in what for what in loud.privacy_.not_protected)
    assert plain.privacy_.epsilon is None
    with pytest.raises(ValueError, match="needs leaf_average='rows'"):
        wl.CollaborativeForestClassifier(10, dp_leaf_epsilon=1.0).fit(X, y)
    with pytest.raises(ValueError, match="takes the place of min_leaf_rows"):
        wl.CollaborativeForestClassifier(10, dp_leaf_epsilon=1.0, min_leaf_rows=5, **params).fit(X, y)
    with pytest.raises(ValueError, match="'dp_leaf_epsilon' parameter must be None or a positive number"):
        wl.CollaborativeForestClassifier(10, dp_leaf_epsilon=0.0, **params).fit(X, y)


@pytest.mark.parametrize("kind", COLLABORATIVE)
def test_thresholds_on_a_public_grid(kind: Any) -> None:
    """They do not tell values: other values in the same cells give the same trees."""
    X, y = data(kind)
    grid = {"age": (-4, 4), "income": (-4, 4), "visits": (-8, 8), "basket": (-4.0, 4.0)}
    model = model_of(kind, grid=grid).fit(X, y)
    assert model.score(X, y) > 0.6
    splits = model.combine().splits
    for column, (low, high) in enumerate(grid.values()):
        steps = (splits.threshold[splits.feature == column] - low) / ((high - low) / 2048)
        np.testing.assert_allclose(steps, np.rint(steps), atol=1e-2)
    step = 8 / 1024
    moved = X.assign(age=(np.ceil(X["age"] / step) - 0.3) * step)
    again = model_of(kind, grid=grid).fit(moved, y)
    np.testing.assert_array_equal(again.combine().splits.threshold, splits.threshold)
    with pytest.raises(DataError, match=r"lacks \['income'\], and has \['height'\]"):
        model_of(kind, grid=dict.fromkeys(("age", "visits", "basket", "height"), (0, 1))).fit(X, y)


def test_clients_in_process_charge_the_budgets_they_are_given(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tables = {
        name: pd.DataFrame({"id": np.arange(40), "x": rng.uniform(size=40), "y": rng.choice(["a", "b"], 40)})
        for name in ("anna", "bern", "chur")
    }
    federation = wl.Federation.local(tables, id="id", layout="rows")
    assert isinstance(federation, RowFederation)
    options: dict[str, Any] = {"declared": {"x": (0, 1)}, "classes": ["a", "b"], "max_depth": 2, "random_state": 0}
    with BudgetFile(tmp_path / "privacy.sqlite") as file:
        federation.use_client_budgets({"bern": LocalBudget("bern", "patients", Budget(3.0), file)})
        wl.FederatedExtraTreesClassifier(3, privacy=wl.LocalDP(epsilon=2.0), **options).fit(federation, y="y")
        with pytest.raises(PolicyError, match="privacy budget"):
            wl.FederatedExtraTreesClassifier(3, privacy=wl.LocalDP(epsilon=1.5), **options).fit(federation, y="y")
        with file.transaction() as ledger:
            assert ledger.spent("bern", "patients", "labels") == pytest.approx(2.0)
    with pytest.raises(DataError, match="no clients of this federation"):
        federation.use_client_budgets({"zug": LocalBudget("zug")})


def test_every_training_of_a_federation_draws_and_pays_its_own_noise(tmp_path: Path) -> None:
    """Noise of an earlier training on the same federation is not told again, as if rows had not changed since."""
    rng = np.random.default_rng(0)
    tables = {k: pd.DataFrame({"x": rng.uniform(size=60), "y": rng.choice(["a", "b"], 60)}) for k in "abc"}
    federation = wl.Federation.local(tables, layout="rows")
    assert isinstance(federation, RowFederation)
    rows = pd.DataFrame({"x": np.linspace(0, 1, 20)})
    with BudgetFile(tmp_path / "privacy.sqlite") as file:
        federation.use_client_budgets({"a": LocalBudget("a", "", Budget(3.0), file)})
        told = []
        for epsilon, spent in ((0.1, 0.4), (0.1, 0.8), (0.5, 2.8)):
            model = wl.CollaborativeForestClassifier(
                4, dp_leaf_epsilon=epsilon, leaf_average="rows", max_depth=2, random_state=0
            )
            told.append(model.fit(federation, "y").predict_proba(rows))
            with file.transaction() as ledger:
                assert ledger.spent("a", "", "rows") == pytest.approx(spent)
                assert all(charge.answer is None for charge in ledger.charges("a", ""))
        assert not np.array_equal(told[0], told[1])
        with pytest.raises(PolicyError, match="privacy budget"):
            model.fit(federation, "y")
