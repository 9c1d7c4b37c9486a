"""Weights of rows between organisations that have the same columns: real processes, and the forest of one process."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hospitals import HOSPITALS, LABEL, ROW_POLICY, TABLE, patients, rows_of
from processes import processes
from typer.testing import CliRunner
from world import World, running

import woodlot as wl
from woodlot.cli import app
from woodlot.exceptions import DataError, JobFailed

CARE = "care"
SETTINGS = ["--set", "kind=lossless", "--set", "n_estimators=4", "--set", "random_state=0", "--set", "allow_two=true"]


def weighted(root: Path, listed: tuple[str, ...] = (CARE,)) -> tuple[World, dict[str, pa.Table]]:
    rng = np.random.default_rng(5)
    tables = {name: patients(k + 1).append_column(CARE, [rng.gamma(2.0, 0.5, 60)]) for k, name in enumerate(HOSPITALS)}
    world = World(root, {name: {TABLE: table} for name, table in tables.items()}, labels=[LABEL], weights=listed)
    for own in world.settings.values():
        own["policy"] = ROW_POLICY | {"allow_two": True}
    return world, tables


def local(tables: dict[str, pa.Table]) -> wl.Federation:
    return wl.Federation.local({name: table.to_pandas() for name, table in tables.items()}, id="id", layout="rows")


def forest() -> wl.HorizontalForestClassifier:
    return wl.HorizontalForestClassifier(n_estimators=4, random_state=0, allow_two=True)


@pytest.mark.slow
def test_the_forest_is_that_of_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, tables = weighted(tmp_path)
    rows = pa.concat_tables(tables.values()).select(["age", "dose", "ward"]).to_pandas()
    here = forest().fit(local(tables), LABEL, sample_weight=CARE)
    alone = local({name: table for name, table in tables.items() if name != "chur"})
    monkeypatch.setenv("WOODLOT_COORDINATOR", world.address)
    monkeypatch.setenv("WOODLOT_IDENTITY", str(world.root / "alice" / "identity"))
    job = tmp_path / "job.toml"
    job.write_text(
        f'[job]\ny = "{LABEL}"\ntask = "classification"\nlayout = "rows"\nsample_weight = "{CARE}"\n'
        f'tables = "{TABLE}"\nparties = {json.dumps(list(HOSPITALS))}\n'
    )
    with processes(world) as started, rows_of(world) as fed:
        started.wait_connected()
        there = forest().fit(fed, LABEL, sample_weight=CARE)
        np.testing.assert_array_equal(there.predict_proba(rows), here.predict_proba(rows))
        assert there.n_features_in_ == 3
        done = CliRunner().invoke(app, ["train", str(job), *SETTINGS, "--json"])
        assert done.exit_code == 0, done.output
        trained = fed.client.model(json.loads(done.stdout)["model"])
        assert trained.facts.forest == fed.client.model(there.forest_.model).facts.forest
        there.revoke("chur", level=3)
        fresh = forest().fit(alone, LABEL, sample_weight=CARE)
        np.testing.assert_array_equal(there.predict_proba(rows), fresh.predict_proba(rows))


def test_a_party_refuses_weights_that_it_does_not_list_or_that_were_not_planned(tmp_path: Path) -> None:
    world, _ = weighted(tmp_path, listed=())
    with running(world), rows_of(world) as fed:
        with pytest.raises(JobFailed, match=r"weights \(sample_weight\) is not one that this party offers as such"):
            forest().fit(fed, LABEL, sample_weight=CARE)
        with pytest.raises(DataError, match="sample_weight names the weights' column, which every party has"):
            forest().fit(fed, LABEL, sample_weight=np.ones(180))
        order = fed.train_rows_order(forest().make_plan(weighted=True), LABEL, {})
        with pytest.raises(JobFailed, match="names weights of rows that its plan does not have, or none where"):
            fed.run(order)


def test_a_plan_without_weights_is_the_one_from_before() -> None:
    """So that orders of forests without weights have the bytes, and the digests, that they had."""
    assert b"row_weights" not in msgspec.json.encode(forest().make_plan())
    assert b'"row_weights":true' in msgspec.json.encode(forest().make_plan(weighted=True))
