"""Horizontal forests between organisations: grown by services, kept whole, used by everybody; and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hospitals import (
    HOSPITALS,
    LABEL,
    PLAN,
    ROW_POLICY,
    TABLE,
    charges_of,
    extra_trees,
    hospitals,
    patients,
    rows_of,
    uses_of,
)
from world import PROTECTS, World, running

import woodlot as wl
from wire_search import captured, disguised, floats, integers, opened, search, texts
from woodlot.dashboard.views import CoordinatorView
from woodlot.exceptions import DataError
from woodlot.jobs.orders import Part, PredictOrder
from woodlot.jobs.policy import Policy
from woodlot.privacy.accounting import total_epsilon
from woodlot.protocols.rows.methods import METHODS
from woodlot.protocols.rows.whole_forest import HOLDER
from woodlot.protocols.vertical.files import whole_forest_id
from woodlot.service.client import JobFailed

KIND: dict[str, Any] = {
    "collaborative": wl.CollaborativeForestClassifier,
    "local": wl.LocalForestsClassifier,
    "extra-trees": extra_trees,
    "lossless": wl.HorizontalForestClassifier,
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(hospitals(tmp_path_factory.mktemp("rows"))) as world:
        yield world


def tables_of(world: World) -> dict[str, pd.DataFrame]:
    return {p: pq.read_table(world.root / p / f"{TABLE}.parquet").to_pandas() for p in world.settings}


def seen(model: Any) -> list[str]:
    return [row.kind for row in model.disclosure_.rows]


@pytest.mark.parametrize("name", KIND)
def test_a_forest_over_services_is_the_one_grown_in_process(world: World, name: str) -> None:
    tables = tables_of(world)
    local = wl.Federation.local(tables, id="id", layout="rows")
    options: dict[str, Any] = {"n_estimators": 4, "random_state": 1}
    if name in ("collaborative", "local"):
        options["bootstrap"] = False  # a secret of each party's draws the rows of trees
    with rows_of(world) as federation:
        model = KIND[name](**options).fit(federation, y=LABEL)
    expected = KIND[name](**options).fit(local, y=LABEL)
    for row in tables.values():
        np.testing.assert_array_equal(model.predict_proba(row), expected.predict_proba(row))
    assert list(model.classes_) == ["no", "yes"]
    assert model.n_features_in_ == 3
    assert set(seen(expected)) < set(seen(model))  # the order, besides


def test_a_model_is_kept_fetched_exported_and_used_by_every_party(world: World, tmp_path: Path) -> None:
    tables = tables_of(world)
    with rows_of(world) as federation:
        order = federation.train_rows_order(PLAN, LABEL, {"estimator": "", "params": {}}, "ward")
        federation.client.finish(federation.client.submit(order).job)
        model = wl.CollaborativeForestClassifier(5, random_state=2).fit(federation, y=LABEL)
        facts = federation.client.find_model(model.forest_.model)
        assert (facts.layout, facts.parties, facts.n_rows, facts.complete) == ("rows", HOSPITALS, 180, True)
        assert federation.client.find_model("ward").n_trees == 3
        model.save(tmp_path / "model")
        done = federation.predict_rows(model.forest_.model, LABEL)
        in_parts = PredictOrder(**federation.client.order_fields({"anna": Part(table=TABLE)}), model=facts.model)
        with pytest.raises(DataError, match="order predict-rows"):
            federation.client.submit(in_parts)
    again = wl.load(tmp_path / "model")
    for party, rows in tables.items():
        kept = pq.read_table(world.root / party / "state" / "answers" / f"{done.job}.parquet").to_pandas()
        np.testing.assert_array_equal(kept["prediction"], again.predict(rows))
        np.testing.assert_array_equal(kept["id"], rows["id"])
        assert done.scores[party] == pytest.approx((kept["prediction"] == rows[LABEL]).mean())
    assert done.rows == dict.fromkeys(HOSPITALS, 60)
    assert done.score == pytest.approx(np.mean(list(done.scores.values())))
    seen_by_coordinator = CoordinatorView(world.coordinator_config())  # as the dashboard shows it
    assert {line.name: line.n_columns for line in seen_by_coordinator.parties()} == dict.fromkeys(HOSPITALS, 3)
    seen_by_coordinator.store.close()


def test_an_order_names_the_forest_that_its_user_has(world: World) -> None:
    """The same fingerprint of the fitted model, of its name, and of a model that an earlier version has grown."""
    with rows_of(world) as federation:
        model = wl.LocalForestsClassifier(3, random_state=4).fit(federation, y=LABEL)
        name = str(model.forest_.model)
        orders = [federation.predict_rows_order(known) for known in (model.forest_, name)]
        assert orders[0].forest == whole_forest_id(model.forest_.coordinator, model.forest_.parts[HOLDER])
        path = world.root / "coordinator" / "state" / "models" / name / "facts.json"
        facts = msgspec.json.decode(path.read_bytes())
        assert facts.pop("whole") == orders[0].forest
        path.write_bytes(msgspec.json.encode(facts))
        assert federation.client.find_model(name).whole is msgspec.UNSET
        orders.append(federation.predict_rows_order(name))
    assert {(order.model, order.forest) for order in orders} == {(name, orders[0].forest)}


def test_a_secret_of_each_party_draws_the_rows_of_trees(world: World) -> None:
    """Bootstraps cannot be computed from the seed, and are the same at every training."""
    tables = tables_of(world)
    options: dict[str, Any] = {"n_estimators": 4, "random_state": 1}
    with rows_of(world) as federation:
        first, second = (wl.LocalForestsClassifier(**options).fit(federation, y=LABEL) for _ in range(2))
    local = wl.LocalForestsClassifier(**options).fit(wl.Federation.local(tables, id="id", layout="rows"), y=LABEL)
    rows = pd.concat(tables.values())
    np.testing.assert_array_equal(first.predict_proba(rows), second.predict_proba(rows))
    assert (first.predict_proba(rows) != local.predict_proba(rows)).any()


def test_regression_over_services(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    tables = {
        p: pa.table({"id": np.arange(50), "x": (x := rng.normal(size=50)), "y": 3 * x + rng.normal(size=50) * 0.1})
        for p in HOSPITALS
    }
    with running(hospitals(tmp_path, tables, "y")) as world, rows_of(world) as federation:
        model = wl.CollaborativeForestRegressor(10, random_state=0).fit(federation, y="y")
        assert model.score(tables["anna"].to_pandas()[["x"]], tables["anna"]["y"].to_numpy()) > 0.9
        done = federation.predict_rows(model.forest_.model, "y")
        assert done.score is None
        assert min(done.scores.values()) > 0.8  # each party's rows are drawn by a secret of its own


def test_every_method_can_be_allowed_by_its_name() -> None:
    assert {plan.__struct_config__.tag for plan in METHODS} == set(Policy().methods)


# --- differential privacy ---


def test_randomised_labels_are_paid_once_for_all_trainings(tmp_path: Path) -> None:
    private = {"epsilon": 3.0, "required": "labels"}
    with running(hospitals(tmp_path, privacy=private)) as world, rows_of(world) as federation:
        first = extra_trees(wl.LocalDP(epsilon=2.0)).fit(federation, y=LABEL)
        second = extra_trees(wl.LocalDP(epsilon=2.0)).fit(federation, y=LABEL)
        rows = tables_of(world)["anna"]
        np.testing.assert_array_equal(first.predict_proba(rows), second.predict_proba(rows))
        assert first.privacy_.epsilon == pytest.approx(2.0)
        told = failure(world, extra_trees(wl.LocalDP(epsilon=2.5)).make_plan())
        assert "privacy budget does not allow it" in told
        assert "differentially private trainings only" in failure(world, extra_trees().make_plan())
        first.save(tmp_path / "model")
        assert wl.load(tmp_path / "model").privacy_ == first.privacy_  # type: ignore[union-attr]
        for party in HOSPITALS:
            (charge,) = charges_of(world, party)
            assert charge.spend.epsilon == pytest.approx(2.0)
            assert charge.unit == "labels"
            assert [use.units for use in uses_of(world, party)] == [("rows",)] * 3  # their numbers were told


def test_a_budget_that_runs_out_ends_the_job_before_anything_is_told(tmp_path: Path) -> None:
    with running(hospitals(tmp_path, privacy={"epsilon": 2.2})) as world, rows_of(world) as federation:
        noisy = wl.GlobalDP(epsilon=2.0)
        extra_trees(noisy).fit(federation, y=LABEL)
        paid = {party: charges_of(world, party) for party in HOSPITALS}
        # noise decides how deep trees grow, hence how much is paid: the four roots at least, of 16 queries
        assert 0.4 < total_epsilon(c.spend for c in paid["bern"]) <= 2.0 * (1 + 1e-9)
        assert "privacy budget does not allow it" in failure(world, extra_trees(noisy).make_plan())
        assert {party: charges_of(world, party) for party in HOSPITALS} == paid
        extra_trees(wl.GlobalDP(epsilon=0.2)).fit(federation, y=LABEL)  # what is left is enough for this


def test_a_budget_that_runs_out_in_the_middle_of_a_job(tmp_path: Path) -> None:
    """Trees have grown by the time leaves are asked for; they are kept nowhere, and nothing is paid."""
    options: dict[str, Any] = {"n_estimators": 4, "leaf_average": "rows", "dp_leaf_epsilon": 0.5, "random_state": 0}
    with running(hospitals(tmp_path, privacy={"epsilon": 3.0})) as world, rows_of(world) as federation:
        wl.CollaborativeForestClassifier(**options).fit(federation, y=LABEL)
        assert "privacy budget does not allow it" in failure(
            world, wl.CollaborativeForestClassifier(**options).make_plan()
        )
        assert federation.client.jobs()[0].phase == "adjust"
        for party in HOSPITALS:
            assert total_epsilon(c.spend for c in charges_of(world, party)) == pytest.approx(2.0)


def test_a_label_that_is_missing_or_not_listed_does_not_name_its_party(tmp_path: Path) -> None:
    """That the job fails at one party would tell a fact about one of its rows."""
    odd = patients(2).to_pandas()
    odd[LABEL] = odd[LABEL].astype(object)
    odd.loc[:1, LABEL] = [None, "unheard of"]
    tables = {"anna": patients(1), "bern": pa.Table.from_pandas(odd, preserve_index=False), "chur": patients(3)}
    with running(hospitals(tmp_path, tables)) as world, rows_of(world) as federation:
        model = extra_trees(wl.GlobalDP(epsilon=20.0)).fit(federation, y=LABEL)
        assert list(model.classes_) == ["no", "yes"]
        extra_trees(wl.LocalDP(epsilon=5.0)).fit(federation, y=LABEL)
        assert "its labels or its table cannot be used" in failure(world)  # without privacy it may be said


def test_values_beyond_what_was_declared_are_counted(world: World) -> None:
    narrow = extra_trees().set_params(declared={"age": (40, 60), "dose": (0, 1)})
    with rows_of(world) as federation, pytest.warns(UserWarning, match="not within what was declared"):
        narrow.fit(federation, y=LABEL)
    beyond = sum(int(((t["age"] < 40) | (t["age"] > 60)).sum()) for t in tables_of(world).values())
    assert narrow.clipped_["age"] == beyond


# --- what is refused ---


def failure(world: World, plan: Any = PLAN, user: str = "alice", label: str = LABEL, **options: Any) -> str:
    with rows_of(world, user, **options) as federation:
        order = federation.train_rows_order(plan, label, {})
        with pytest.raises(JobFailed) as caught:
            federation.client.finish(federation.client.submit(order).job)
        assert not (world.root / "coordinator" / "state" / "models" / order.job).exists()
    return str(caught.value)


def test_what_the_policy_forbids_is_refused(world: World) -> None:
    change = msgspec.structs.replace
    assert "does not let 'bob' train-rows" in failure(world, user="bob")
    assert "plain_sums = true" in failure(world, change(PLAN, sums="plain"))
    assert "secure sums need 3 clients" in failure(world, parties=HOSPITALS[:2])
    assert "allow_two = true" in failure(world, change(PLAN, allow_two=True), parties=HOSPITALS[:2])
    for label in ("illness", "dose"):  # whether there is such a column is not told
        told = failure(world, label=label)
        assert "names as its label (y) is not one that this party offers as such: the setting labels" in told
        assert label not in told


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"policy": PROTECTS | {"train": ["alice"]}}, "does not train-rows: the setting protocols"),
        ({"policy": ROW_POLICY | {"min_rows": 61}}, "fewer rows than this party's policy asks for (min_rows = 61)"),
        ({"policy": ROW_POLICY | {"min_samples_leaf": 3}}, "train with min_samples_leaf=3 or more"),
        ({"privacy": {"required": True}}, "trainings only (required = true in the section [privacy]"),
        ({"privacy": {"required": "labels"}}, 'trainings only (required = "labels" in the section [privacy]'),
        ({"policy": ROW_POLICY | {"methods": ["lossless"]}}, "allows lossless"),
    ],
    ids=["protocols", "rows", "leaf", "private", "private labels", "methods"],
)
def test_a_stricter_party(world: World, settings: dict[str, Any], words: str) -> None:
    usual = world.settings["bern"]
    world.stop_party("bern")
    world.settings["bern"] = usual | settings
    world.start_party("bern")
    try:
        assert words in failure(world)
    finally:
        world.stop_party("bern")
        world.settings["bern"] = usual
        world.start_party("bern")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.rename_columns(["id", "years", "dose", "ward", LABEL]), "bern lacks 'age', which anna has"),
        (lambda t: t.set_column(1, "age", pa.array(["old"] * 60)), "'age' holds numbers at anna and categories"),
        (lambda t: t.set_column(4, LABEL, pa.array([1] * 60)), "different types: str at anna, int at bern"),
        (lambda t: t.set_column(4, LABEL, pa.array([None, *["no"] * 59])), "its labels or its table cannot be used"),
        (lambda t: t.slice(0, 0), "its table cannot be used; its own log says why"),
    ],
    ids=["columns", "kinds", "classes", "missing labels", "no rows"],
)
def test_tables_that_do_not_go_together(world: World, change: Any, words: str) -> None:
    path = world.root / "bern" / f"{TABLE}.parquet"
    whole = pq.read_table(path)
    pq.write_table(change(whole), path)
    try:
        assert words in failure(world)
    finally:
        pq.write_table(whole, path)


def test_orders_that_make_no_sense_are_declined(world: World) -> None:
    with rows_of(world) as federation:
        with pytest.raises(DataError, match="there is no model"):
            federation.predict_rows("0" * 32)
        with pytest.raises(DataError, match="nothing to align"):
            federation.align()
        with pytest.raises(DataError, match="layout='rows'"):
            wl.FederatedForestClassifier(2).fit(federation, y="anna.ill")
        model = wl.LocalForestsClassifier(2).fit(federation, y=LABEL)
        with pytest.raises(DataError, match="the model is whole"):
            model.predict(federation)
        with pytest.raises(JobFailed, match="does not evaluate: the setting protocols"):
            model.evaluate(federation)
        with pytest.raises(DataError, match="features and exclude are for federations in one process so far"):
            model.fit(federation, y=LABEL, exclude=["age"])
        with pytest.raises(DataError, match="on a federation y names the labels' column"):
            model.fit(federation, y=np.zeros(7))
    with pytest.raises(DataError, match="join no rows"):
        rows_of(world, join="outer")
    with pytest.raises(ValueError, match="layout must be"):
        rows_of(world, layout="cells")


# --- the wire ---


def test_nothing_travels_that_messages_do_not_declare(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    names = ["id", "age", "dose", "ward", "final diagnosis"]
    held = {
        p: patients(k + 1).set_column(0, "id", pa.array(rng.integers(10**8, 10**9, 60))).rename_columns(names)
        for k, p in enumerate(HOSPITALS)
    }
    with captured() as messages, running(hospitals(tmp_path, held, names[-1])) as world, rows_of(world) as federation:
        model = wl.CollaborativeForestClassifier(10, random_state=0).fit(federation, y=names[-1])
        federation.predict_rows(model.forest_.model, names[-1])
    secrets = {
        "values": list(floats(np.concatenate([t[c].to_numpy() for t in held.values() for c in ("age", "dose")]))),
        "ids": list(disguised(integers(np.concatenate([t["id"].to_numpy() for t in held.values()]).tolist()))),
        "names of tables": list(disguised(texts([TABLE]))),
        "names of labels": list(disguised(texts(names[-1:]))),
    }
    items = [item for data in messages for item in opened(data)]
    assert {"GrownTrees", "MaskedVector", "PredictRows", "ModelPart"} <= {name for name, _ in items}
    assert search(secrets, items, short_hits=3) == {}
