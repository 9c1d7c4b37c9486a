"""Drift between organisations: each owner compares new rows with those of the training, and tells the user alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from processes import FIRST_ID
from small_jobs import user_of
from world import POLICY, World, running

import woodlot as wl
from woodlot.connected import ConnectedFederation
from woodlot.connected.drifted_rows import read_drift
from woodlot.data.tables import read_table
from woodlot.evaluation.drift import column_stability
from woodlot.exceptions import DataError, JobFailed, WoodlotError
from woodlot.jobs.drift.drift_references import ColumnsReference
from woodlot.jobs.party_store import PartyStore

N = 200
KINDS = ["align", "train", "predict", "train-linear", "drift"]


def frame(seed: int, first: int, shift: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(N, 4)).round(4)
    homes = np.array(["flat", "house", "boat"])[rng.integers(0, 3, N)]
    late = np.where(x[:, 0] + x[:, 2] + 0.4 * rng.normal(size=N) > 0, "yes", "no")
    ids = np.arange(N) + FIRST_ID + first
    columns = {"id": ids, "age": x[:, 0], "income": x[:, 1] + shift, "late": late, "visits": x[:, 2], "home": homes}
    return pd.DataFrame(columns)


OLD, NEW = frame(1, 0), frame(2, 5_000, shift=3.0)
OWNED = {"bank": ["age", "income"], "shop": ["visits", "home"]}


def drift_world(root: Path, **policy: Any) -> World:
    def held(rows: pd.DataFrame, party: str) -> pa.Table:
        return pa.Table.from_pandas(rows[["id", *OWNED[party], *(["late"] if party == "bank" else [])]])

    tables = {party: {"customers": held(OLD, party), "later": held(NEW, party)} for party in OWNED}
    made = World(root, tables, labels=("late",))
    for party, own in made.settings.items():
        own["policy"] = POLICY | {"protocols": KINDS} | policy
        own["policy"]["catalog"] = ["names"] if party == "bank" else []
    return made


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(drift_world(tmp_path_factory.mktemp("drift"))) as made:
        yield made


@pytest.fixture
def fed(world: World) -> Iterator[ConnectedFederation]:
    with user_of(world, lead=None) as user:
        yield user


@pytest.fixture
def later(world: World) -> Iterator[ConnectedFederation]:
    with user_of(world, lead=None, tables="later") as user:
        yield user


def index_of(name: str) -> float:
    """As the definition has it, on the tables that only a test can have both of."""
    old, new = (read_table(rows[[name]]).column(name) for rows in (OLD, NEW))
    return round(column_stability(old, new), 3)


def test_each_owner_tells_how_far_its_columns_have_moved(
    world: World, fed: ConnectedFederation, later: ConnectedFederation
) -> None:
    model = wl.FederatedForestClassifier(8, random_state=0, oob_score=True).fit(fed, y="bank.late")
    moved = model.drift(later)
    assert (moved.n_old, moved.n_new) == (N, N)
    shop = max(index_of("visits"), index_of("home"))  # its catalogue tells no names
    assert moved.columns == {"bank.age": index_of("age"), "bank.income": index_of("income"), "shop": shop}
    assert "bank.income" in moved.shifted
    assert set(moved.answers) == {"yes"}
    assert moved.no_answers == ""
    same = model.drift(fed)
    assert set(same.columns.values()) == {0.0}
    json.dumps(moved.to_dict())
    names = b"age", b"income", b"visits", b"home"
    heard = json.dumps([facts.told for facts in fed.client.jobs()]).encode()
    state = [path.read_bytes() for path in (world.root / "coordinator" / "state").rglob("*") if path.is_file()]
    assert not [name for name in names for data in (heard, *state) if b'"' + name + b'"' in data]


@pytest.mark.slow
def test_answers_are_compared_with_those_out_of_bag_only(fed: ConnectedFederation, later: ConnectedFederation) -> None:
    model = wl.FederatedForestClassifier(3, random_state=0).fit(fed, y="bank.late")
    told = model.drift(later)
    assert told.answers == {}
    assert "fit with oob_score=True" in repr(told)
    with pytest.raises(DataError, match="omit reference"):
        model.drift(later, reference=fed)


@pytest.mark.slow
def test_only_the_process_that_has_ordered_it_reads_it(fed: ConnectedFederation, later: ConnectedFederation) -> None:
    model = wl.FederatedForestClassifier(3, random_state=0).fit(fed, y="bank.late")
    order, keys = later.drift_order(str(model.forest_.model), "soft")
    facts = later.run(order)
    assert read_drift(facts, keys).n_new == N
    with pytest.raises(WoodlotError, match="the report is not one that"):
        read_drift(facts, {party: bytes(32) for party in keys})


@pytest.mark.slow
def test_what_is_not_compared_is_named(tmp_path: Path) -> None:
    made = drift_world(tmp_path)
    made.settings["shop"]["policy"]["protocols"] = KINDS[:-1]
    with running(made), user_of(made, lead=None) as user:
        model = wl.FederatedForestClassifier(4, random_state=0).fit(user, y="bank.late")
        with pytest.raises(JobFailed, match="party 'shop': this party does not drift: the setting protocols"):
            model.drift(user)
        made.stop_party("shop")
        made.settings["shop"]["policy"]["protocols"] = KINDS
        made.start_party("shop")
        made.wait_connected("shop")
        with pytest.raises(JobFailed, match="party 'shop': it has kept nothing of this training to compare"):
            model.drift(user)
        linear = wl.FederatedLogisticRegression(tol=0.1).fit(user, y="bank.late", exclude={"shop": ["home"]})
        order, _ = user.drift_order(str(linear.linear_.model), "soft")
        with pytest.raises(JobFailed, match="this is a linear model"):
            user.run(order)
        with user_of(made, lead="coordinator") as other:
            led = wl.FederatedForestClassifier(2, random_state=0).fit(other, y="bank.late")
            with pytest.raises(DataError, match="the coordinator runs the jobs of this model"):
                led.drift(other)


@pytest.mark.slow
def test_few_rows_are_not_compared(fed: ConnectedFederation) -> None:
    """The tenth in which a single row lies would be told."""
    model = wl.FederatedForestClassifier(3, random_state=0).fit(fed, y="bank.late")
    few = fed.split(0.02)[1]  # 4 rows on average: the chance of 30 is nil
    with pytest.raises(JobFailed, match="30 rows are compared at least"):
        model.drift(few)


def test_what_is_kept_goes_with_the_model(tmp_path: Path) -> None:
    reference = ColumnsReference.of(read_table(OLD[["age", "home"]]))
    with closing(PartyStore(tmp_path, "bank")) as store:
        store.keep_reference("1" * 32, reference)
        assert store.reference("1" * 32) == reference
        store.erase_model("1" * 32)
        assert store.reference("1" * 32) is None
    assert not list(tmp_path.rglob("reference.json"))


@pytest.mark.slow
def test_the_policy_of_every_owner_holds(tmp_path: Path) -> None:
    made = drift_world(tmp_path, predictions_per_day=300)
    with running(made), user_of(made, lead=None) as user, user_of(made, lead=None, tables="later") as new:
        model = wl.FederatedForestClassifier(4, random_state=0).fit(user, y="bank.late")
        assert model.drift(new).n_new == N
        with pytest.raises(JobFailed, match="this party predicts 300 rows per day"):
            model.drift(new)


@pytest.mark.slow
def test_a_forest_that_a_party_has_left_is_compared_with_what_is_kept_of_it(tmp_path: Path) -> None:
    made = drift_world(tmp_path)
    for own in made.settings.values():
        own["policy"]["protocols"] = [*KINDS, "revoke"]
    with running(made), user_of(made, lead=None) as user:
        model = wl.FederatedForestClassifier(4, random_state=0, oob_score=True).fit(user, y="bank.late")
        model.revoke("shop", level=3)
        told = model.drift(user)
        assert set(told.columns) == {"bank.age", "bank.income"}
        assert set(told.columns.values()) == {0.0}
