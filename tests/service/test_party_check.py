"""What `woodlot check` finds, and that a party does not start with what it finds wrong."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import stat
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import small_tables, write_toml
from typer.testing import CliRunner
from world import PROTECTS, World

from woodlot.cli import app
from woodlot.data.ids import canonical_ids, check_ids
from woodlot.data.sources import TableSource
from woodlot.exceptions import ConfigError, DataError
from woodlot.service.party import Party
from woodlot.service.party_check import check_coordinator, check_party
from woodlot.trees.arrays.array_module import card


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("check"), small_tables())
    made.start_coordinator()
    yield made
    made.close()


def run(world: World, party: str = "bank", *options: str, **settings: Any) -> tuple[int, str]:
    """Exit code and output of the command for a party's settings, some of them others."""
    own = {"coordinator": world.address, **world.settings[party], **settings}
    config = write_toml(world.root / party / "checked.toml", own)
    done = CliRunner().invoke(app, ["check", str(config), *options], env={"COLUMNS": "200"})
    return done.exit_code, done.output


def table(world: World, party: str = "bank", **changes: Any) -> dict[str, Any]:
    return {"tables": {"customers": world.settings[party]["tables"]["customers"] | changes}}


def test_a_party_that_can_start(world: World) -> None:
    code, text = run(world, "bank", "--json", policy=PROTECTS | {"min_rows": 5, "min_samples_leaf": 5, "receive": [],
        "train": ["alice"], "predictions_per_day": 5, "trainings_per_day": 5, "max_bins": 32,
        "trees": 100})  # fmt: skip
    assert code == 0
    told = json.loads(text)
    assert told["ok"]
    found = {one["what"]: one for one in told["findings"]}
    assert {name: one["state"] for name, one in found.items()} == dict.fromkeys(
        ("identity", "revocations", "alignment secret", "state folder", "table customers", "policy", "coordinator"),
        "right",
    ) | {"identity": "warning"}  # it is valid for ten days
    assert found["table customers"]["told"] == (
        "57 rows, ids are whole numbers; learnt from: 'age', 'income'; labels: 'late'"
    )
    assert found["coordinator"]["told"] == f"{world.address} answers, with a certificate of the same federation"
    assert "it expires in 9 days" in found["identity"]["told"]
    code, text = run(world)
    assert code == 0
    assert "The party can start." in text
    assert "predictions_per_day and trainings_per_day set no limit" in " ".join(text.split())
    assert "max_bins and trees set no limit" in " ".join(text.split())
    assert "explains" not in text
    explaining = {
        "protocols": ["align", "predict", "explain"],
        "explains": "party",
        "explanations_per_day": "unlimited",
    }
    code, text = run(world, policy=PROTECTS | explaining)
    assert code == 0
    assert "and explanations_per_day set no limit" in " ".join(text.split())
    assert 'explains = "party" lets the label holder of a model learn which way' in " ".join(text.split())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"columns": ["age", "incom"], "labels": []},
            "has no column 'incom', which the setting columns names; did you",
        ),
        ({"labels": ["lat"]}, "has no column 'lat', which the setting labels names; did you mean 'late'?"),
        ({"features": ["agee"]}, "has no column 'agee', which the setting features names"),
        ({"id": "age", "columns": ["income"], "labels": []}, "holds numbers with a fraction (double)"),
        ({"path": "nowhere.parquet"}, "nowhere.parquet) is not there; correct the setting path"),
    ],
)
def test_a_wrong_column_fails_at_the_start_and_not_in_a_job(world: World, changes: Any, words: str) -> None:
    code, text = run(world, "bank", "--json", **table(world, **changes))
    assert code == 1
    (wrong,) = (one for one in json.loads(text)["findings"] if one["state"] == "wrong")
    assert words in wrong["told"]
    before = world.settings["bank"]
    world.settings["bank"] = before | table(world, **changes)
    try:
        with pytest.raises(ConfigError) as caught:
            Party(world.party_config("bank"))
    finally:
        world.settings["bank"] = before
    assert (
        f"does not start, since it could not do what its configuration says:\n  table customers: {wrong['told']}"
        in (str(caught.value))
    )
    code, text = run(world, **table(world, **changes))
    assert "1 of 7 checks failed: the party does not start." in text


def test_a_card_that_is_not_there_fails_at_the_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    card.cache_clear()
    code, text = run(world, "bank", "--json", compute={"device": "cuda"})
    assert code == 1
    (wrong,) = (one for one in json.loads(text)["findings"] if one["state"] == "wrong")
    assert wrong["what"] == "compute.device"
    assert "pip install 'woodlot[gpu]'" in wrong["told"]
    assert run(world, "bank", compute={"device": "auto"})[0] == 0


def test_lines_that_are_missing_are_printed_to_be_copied(world: World) -> None:
    code, text = run(world, policy={"train": ["alice"]})
    assert code == 1
    assert re.search(r"\n  receive = \[\] +# who may receive predictions", text)


def test_what_is_wrong_with_an_identity(world: World, tmp_path: Path) -> None:
    folder = tmp_path / "identity"
    shutil.copytree(world.root / "bank" / "identity", folder)
    others = world.root / "shop" / "identity" / "certificate.pem"
    for spoil, words in (
        (lambda: (folder / "key.pem").chmod(0o644), "chmod"),
        (lambda: shutil.copy(others, folder / "certificate.pem"), "key"),
        (lambda: (folder / "certificate.pem").unlink(), "have the operator sign"),
    ):
        shutil.copytree(world.root / "bank" / "identity", folder, dirs_exist_ok=True)
        spoil()
        code, text = run(world, "bank", "--json", identity=str(folder))
        assert code == 1
        states = {one["what"]: one for one in json.loads(text)["findings"]}
        assert states["identity"]["state"] == "wrong"
        assert words in states["identity"]["told"]
        assert states["table customers"]["state"] == "right"


def test_revoked_certificates_and_lists_that_have_ended(tmp_path: Path) -> None:
    world = World(tmp_path, small_tables())
    folder = tmp_path / "bank" / "identity"

    def found() -> Any:
        return next(one for one in check_party(world.party_config("bank")) if one.what == "revocations")

    assert found().state == "right"
    (folder / "revoked.pem").unlink()
    assert found().state == "warning"
    assert "would take no orders: no list of revoked certificates" in found().told
    world.authority.revoke("bank")
    shutil.copy(tmp_path / "authority" / "revoked.pem", folder / "revoked.pem")
    assert found().state == "wrong"
    assert "is revoked" in found().told


def test_the_secret_and_the_state_folder(world: World, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef")
    secret.chmod(0o644)
    (tmp_path / "file").touch()
    raw = {"alignment": {"secret_file": str(secret)}, "state": str(tmp_path / "file")}
    code, text = run(world, "bank", "--json", **raw)
    assert code == 1
    told = {one["what"]: one["told"] for one in json.loads(text)["findings"] if one["state"] == "wrong"}
    assert "chmod 600" in told["alignment secret"]
    assert "make it a folder" in told["state folder"]
    secret.chmod(0o600)
    assert run(world, alignment=raw["alignment"])[0] == 0
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


# --- the coordinator ---


def test_the_way_to_the_coordinator(world: World, tmp_path: Path) -> None:
    config = world.party_config("bank")
    assert check_coordinator(config).state == "right"
    away = World(tmp_path, small_tables())
    found = check_coordinator(away.party_config("bank"))
    assert found.state == "warning", "it may be started later"
    assert "cannot be reached (Connection refused)" in found.told
    away.port = world.port
    found = check_coordinator(away.party_config("bank"))
    assert found.state == "wrong"
    assert "is not the coordinator of this party's federation" in found.told


def test_a_check_does_not_disturb_a_party_that_runs(world: World) -> None:
    world.start_party("shop")
    try:
        world.wait_connected("shop")
        assert check_coordinator(world.party_config("shop")).state == "right"
        assert world.parties["shop"].connected
    finally:
        world.stop_party("shop")


# --- tables, whatever they are ---

ROWS = pa.table({"id": [3, 1, 2], "age": [1.5, 2.5, None], "late": ["yes", "no", "no"], "day": ["a", "b", "c"]})


def source(folder: Path, kind: str, rows: pa.Table, **settings: Any) -> TableSource:
    """A table in a file of some kind, or behind a query."""
    settings = {"id": "id", "labels": ("late",)} | settings
    if kind == "sql":
        with closing(sqlite3.connect(folder / "t.db")) as db:
            names = ", ".join(rows.column_names)
            db.execute(f"CREATE TABLE t ({names})")
            marks = ", ".join("?" * rows.num_columns)
            db.executemany(f"INSERT INTO t VALUES ({marks})", [tuple(row.values()) for row in rows.to_pylist()])  # noqa: S608
            db.commit()
        return TableSource("t", sql="SELECT * FROM t", url="sqlite:///t.db", folder=folder, **settings)
    path = folder / f"t.{kind}"
    write = {"csv": pyarrow.csv.write_csv, "parquet": pq.write_table, "feather": pyarrow.feather.write_feather}[kind]
    write(rows, str(path))
    return TableSource("t", path=path, folder=folder, **settings)


@pytest.mark.parametrize("kind", ["csv", "parquet", "feather", "sql"])
def test_facts_and_faults_of_every_kind_of_table(tmp_path: Path, kind: str) -> None:
    folders = (tmp_path / str(number) for number in range(9))

    def of(rows: pa.Table = ROWS, **settings: Any) -> TableSource:
        folder = next(folders)
        folder.mkdir()
        return source(folder, kind, rows, **settings)

    facts = of().inspect()
    assert (facts.n_rows, facts.ids) == (3, "whole numbers")
    assert (facts.columns, facts.features) == (("age", "late", "day"), ("age", "day"))
    assert of(columns=("age", "late")).inspect().columns == of(columns=("age", "late")).read().columns
    for rows, words in (
        (ROWS.set_column(0, "id", pa.array([1, 1, 2])), "has 1 ids more than once, in 2 of 3 rows"),
        (ROWS.set_column(0, "id", pa.array([1, None, 2])), "has 1 rows without an id"),
        (ROWS.slice(0, 0), "has no rows"),
    ):
        with pytest.raises(DataError, match=words):
            of(rows).inspect()
    with pytest.raises(DataError, match="has no column 'lat', which the setting labels names"):
        of(labels=("lat",)).inspect()


@given(st.one_of(
    st.lists(st.one_of(st.none(), st.integers(0, 5)), max_size=6),
    st.lists(st.one_of(st.none(), st.sampled_from(["", "a", "é", "e\u0301", "b"])), max_size=6),
    st.lists(st.floats(0, 3), max_size=3),
    st.lists(st.booleans(), max_size=3),
))  # fmt: skip
def test_ids_are_checked_as_they_are_made(values: list[Any]) -> None:
    def told(check: Any) -> str:
        try:
            found = check(pa.array(values))
        except DataError as error:
            return str(error)
        return str(getattr(found, "kind", found))

    assert told(check_ids) == told(canonical_ids)


def test_all_tables_are_told_of_at_once(world: World) -> None:
    own = world.settings["bank"]["tables"]["customers"]
    tables = {"tables": {"a": own | {"labels": ["x"]}, "b": own, "c": own | {"features": ["y"]}}}
    before = world.settings["bank"]
    world.settings["bank"] = before | tables
    try:
        config = world.party_config("bank")
        with pytest.raises(ConfigError) as caught:
            Party(config)
    finally:
        world.settings["bank"] = before
    assert [line.split(":")[0].strip() for line in str(caught.value).splitlines()[1:]] == ["table a", "table c"]
    assert [one.what for one in check_party(config) if one.state == "wrong"] == ["table a", "table c"]
