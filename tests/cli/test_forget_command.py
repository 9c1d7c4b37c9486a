"""``woodlot forget`` with a saved model and all tables in one place."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import woodlot as wl
from woodlot.cli import app


@pytest.mark.slow
def test_forget_writes_a_model_and_a_receipt_that_is_checked(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    bank = pd.DataFrame({"id": np.arange(60), "age": rng.normal(size=60), "late": rng.integers(0, 2, 60)})
    shop = pd.DataFrame({"id": np.arange(60), "visits": rng.normal(size=60)})
    for name, table in (("bank", bank), ("shop", shop), ("ids", pd.DataFrame({"id": [3, 999]}))):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    model = wl.FederatedForestClassifier(n_estimators=4, random_state=0, bootstrap_by="row")
    model.fit(wl.Federation.local({"bank": bank, "shop": shop}, id="id"), y="bank.late").save(tmp_path / "model")
    told = CliRunner().invoke(
        app,
        ["forget", str(tmp_path / "model"), str(tmp_path / "ids.csv"), "--id", "id",
         "--table", f"bank={tmp_path / 'bank.csv'}", "--table", f"shop={tmp_path / 'shop.csv'}",
         "--out", str(tmp_path / "after"), "--receipt", str(tmp_path / "receipt.json"), "--prove", "--json"],
    )  # fmt: skip
    assert told.exit_code == 0, told.output
    assert '"rows": 1' in told.output
    assert wl.load(tmp_path / "after").forest_.coordinator.n_rows == 59
    checked = CliRunner().invoke(app, ["audit", "verify", str(tmp_path / "receipt.json")])
    assert checked.exit_code == 0, checked.output
    assert "Not erased: backups" in checked.output.replace("\n", " ")
    (tmp_path / "receipt.json").write_text((tmp_path / "receipt.json").read_text().replace('"rows": 1', '"rows": 2'))
    assert CliRunner().invoke(app, ["audit", "verify", str(tmp_path / "receipt.json")]).exit_code == 1


def test_of_a_forest_over_rows_only_the_named_clients_look(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ages = {name: rng.normal(size=30) for name in ("north", "south", "west")}
    tables = {n: pd.DataFrame({"id": np.arange(30), "age": a, "late": (a > 0) * 1}) for n, a in ages.items()}
    for name, table in tables.items():
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    pd.DataFrame({"id": [3, 999]}).to_csv(tmp_path / "ids.csv", index=False)
    federation = wl.Federation.local(tables, id="id", layout="rows")
    wl.LocalForestsClassifier(n_estimators=6, random_state=0).fit(federation, y="late").save(tmp_path / "model")
    here = [word for name in tables for word in ("--table", f"{name}={tmp_path / name}.csv")]
    command = ["forget", str(tmp_path / "model"), str(tmp_path / "ids.csv"), "--id", "id", "--at", "south", *here,
               "--out", str(tmp_path / "after"), "--receipt", str(tmp_path / "receipt.json"), "--json"]  # fmt: skip
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.output
    assert '"rows": 1' in told.output
    assert '"unknown": 1' in told.output
    rest = tables | {"south": tables["south"].query("id != 3")}
    fresh = wl.LocalForestsClassifier(n_estimators=6, random_state=0)
    fresh.fit(wl.Federation.local(rest, id="id", layout="rows"), y="late")
    after = wl.load(tmp_path / "after")
    np.testing.assert_array_equal(
        after.predict_proba(tables["west"][["age"]]), fresh.predict_proba(tables["west"][["age"]])
    )
    checked = CliRunner().invoke(app, ["audit", "verify", str(tmp_path / "receipt.json")])
    assert checked.exit_code == 0, checked.output
