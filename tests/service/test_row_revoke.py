"""A party leaves a forest over rows between organisations."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow.parquet as pq
import pytest
from hospitals import HOSPITALS, LABEL, TABLE, hospitals, rows_of
from typer.testing import CliRunner
from world import World, running

import woodlot as wl
from woodlot.cli import app
from woodlot.exceptions import DataError, PolicyError
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import REQUEST_SECONDS, Receipt


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(hospitals(tmp_path_factory.mktemp("row-revoke"))) as world:
        yield world


def test_a_party_leaves_and_the_others_grow_the_forest_anew(world: World, tmp_path: Path) -> None:
    with rows_of(world) as federation:
        model = wl.LocalForestsClassifier(4, bootstrap=False, random_state=1).fit(federation, y=LABEL)
        former = str(model.forest_.model)
        facts, plan = federation.client.find_model(former), model.make_plan()
        order = federation.revoke_rows_order(facts, plan, LABEL, "bern", 3)
        wrongs: list[tuple[dict[str, Any], type[Exception], str]] = [
            ({"created": time.time() - REQUEST_SECONDS - 60}, PolicyError, "too old"),
            ({"parties": ("anna",), "sealed": {"anna": order.sealed["anna"]}}, DataError, "all parties that stay"),
            ({"leaver": "mill"}, DataError, "not a party"),
            ({"plan": msgspec.structs.replace(plan, n_estimators=5)}, DataError, "other parameters"),
        ]
        for changed, kind, words in wrongs:
            with pytest.raises(kind, match=words):
                federation.client.submit(msgspec.structs.replace(order, **changed))
        with pytest.raises(DataError, match="level 3"):
            model.revoke("bern", level=1)
        with rows_of(world, "bob") as bob, pytest.raises(PolicyError, match="only alice"):
            bob.client.submit(order)
        assert model.forest_.model == former

        receipt = model.revoke("bern", level=3)
        statement = receipt.statement
        assert (statement.parties_after, statement.epoch_after) == (("anna", "chur"), 1)
        assert federation.client.find_model(str(model.forest_.model)).parties == ("anna", "chur")
        verdict = receipt.verify(Identity.load(world.root / "alice" / "identity").authority)
        assert (verdict.signer, verdict.requester) == ("coordinator 'coordinator'", "user 'alice'")
        with pytest.raises(DataError, match="replaced"):
            federation.predict_rows(former)
        with pytest.raises(DataError, match="replaced"):
            federation.client.submit(order)

    tables = {p: pq.read_table(world.root / p / f"{TABLE}.parquet").to_pandas() for p in HOSPITALS if p != "bern"}
    fresh = wl.LocalForestsClassifier(4, bootstrap=False, random_state=1)
    fresh.fit(wl.Federation.local(tables, id="id", layout="rows"), y=LABEL)
    for table in tables.values():
        np.testing.assert_array_equal(model.predict_proba(table), fresh.predict_proba(table))

    access = ["--coordinator", world.address, "--identity", str(world.root / "alice" / "identity")]
    command = ["revoke", str(model.forest_.model)[:8], "chur", "--level", "3", "--y", LABEL, "--tables",
               f"anna={TABLE}", *access]  # fmt: skip
    told = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "none" / "receipt.json")])
    assert (told.exit_code, "there is no folder" in told.output) == (1, True)
    told = CliRunner().invoke(app, command)
    assert told.exit_code == 0, told.output
    attach = re.search(r"To keep the receipt: woodlot (jobs attach \w{8}) --out receipt.json", told.stdout)
    assert attach is not None, told.stdout
    kept = tmp_path / "receipt.json"
    told = CliRunner().invoke(app, [*attach[1].split(), "--out", str(kept), *access])
    assert f"woodlot audit verify {kept} --authority {world.root / 'alice' / 'identity' / 'ca.pem'}" in told.stdout
    assert Receipt.load(kept).statement.parties_after == ("anna",)


def test_where_two_stay_both_the_user_and_their_policies_must_allow_it(world: World) -> None:
    with rows_of(world) as federation:
        model = wl.HorizontalForestClassifier(1, max_depth=1, random_state=1).fit(federation, y=LABEL)
    access = ["--coordinator", world.address, "--identity", str(world.root / "alice" / "identity")]
    command = ["revoke", str(model.forest_.model), "chur", "--level", "3", "--y", LABEL, "--tables", TABLE, *access]
    told = CliRunner().invoke(app, command)
    assert "secure sums need 3 clients or more, and there are 2" in told.output
    told = CliRunner().invoke(app, [*command, "--allow-two"])
    assert "let its operator set allow_two = true in the section [policy]" in told.output
