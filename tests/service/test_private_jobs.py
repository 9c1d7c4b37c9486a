"""Private forests between organisations: what they cost each party, what a party refuses, and what nobody notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hospitals import HOSPITALS, LABEL, charges_of, hospitals, patients, private_forest, rows_of, uses_of
from world import World, running

import woodlot as wl
from woodlot.privacy.accounting import Spend
from woodlot.service.client import JobFailed
from woodlot.service.privacy_accounts import privacy_accounts


def failure(world: World, model: Any) -> str:
    with rows_of(world) as federation, pytest.raises(JobFailed) as caught:
        model.fit(federation, y=LABEL)
    return str(caught.value)


def test_a_private_forest_is_charged_once_at_each_party_and_refused_beyond_its_budget(tmp_path: Path) -> None:
    """Also at a party that takes part in private trainings only; the answers of its own rows are probabilities."""
    settings = {"row_epsilon": 3.0, "delta": 1e-5, "required": "rows"}
    with running(hospitals(tmp_path, privacy=settings)) as world, rows_of(world) as federation:
        model = private_forest(2.0).fit(federation, y=LABEL)
        for party in HOSPITALS:
            (charge,) = charges_of(world, party)
            assert (charge.unit, charge.spend) == ("rows", Spend(2.0, 1, 1e-6))
            assert uses_of(world, party) == []
        assert "privacy budget does not allow it: of epsilon 3" in failure(world, private_forest(2.0))
        private_forest(1.0).fit(federation, y=LABEL)  # what is left is enough for this
        (account,) = [a for a in privacy_accounts(world.party_config("bern"))[0]["accounts"] if a["unit"] == "rows"]
        assert (account["epsilon"], account["delta"]) == (pytest.approx(3.0), 1e-5)
        assert (model.privacy_.epsilon, model.privacy_.delta) == (2.0, 1e-6)
        facts = federation.client.find_model(model.forest_.model)
        assert '"epsilon":2.0' in facts.privacy.replace(" ", "")
        assert facts.n_rows == 0  # nobody is told
        done = federation.predict_rows(model.forest_.model)
    kept = pq.read_table(tmp_path / "bern" / "state" / "answers" / f"{done.job}.parquet").to_pandas()
    shares = kept[[name for name in kept if name.startswith("probability")]].to_numpy()
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    np.testing.assert_array_equal(kept["prediction"], model.predict(patients(2).to_pandas()))


@pytest.mark.slow
def test_a_budget_without_a_delta_refuses_it_and_says_so(tmp_path: Path) -> None:
    with running(hospitals(tmp_path, privacy={"epsilon": 9.0})) as world:
        assert "let the client's operator set delta in the section [privacy]" in failure(world, private_forest())
        assert all(charges_of(world, party) == [] for party in HOSPITALS)


@pytest.mark.slow
def test_labels_that_are_missing_or_not_declared_do_not_name_their_party(tmp_path: Path) -> None:
    odd = patients(2).to_pandas()
    odd[LABEL] = odd[LABEL].astype(object)
    odd.loc[:1, LABEL] = [None, "unheard of"]
    tables = {"anna": patients(1), "bern": pa.Table.from_pandas(odd, preserve_index=False), "chur": patients(3)}
    with running(hospitals(tmp_path, tables)) as world, rows_of(world) as federation:
        assert list(private_forest().fit(federation, y=LABEL).classes_) == ["no", "yes"]


@pytest.mark.slow
def test_targets_that_are_no_numbers_do_not_name_their_party(tmp_path: Path) -> None:
    amounts: dict[str, list[Any]] = {party: [1.0, 2.0, 30.0] * 20 for party in HOSPITALS}
    amounts["bern"][:2] = [None, None]
    tables = {
        party: pa.table({"id": range(60), "x": np.linspace(0, 1, 60), "y": own}) for party, own in amounts.items()
    }
    with running(hospitals(tmp_path, tables, "y")) as world, rows_of(world) as federation:
        model = wl.PrivateForestRegressor(declared={"x": (0, 1)}, target_range=(0, 10), n_estimators=2)
        assert 0 <= model.fit(federation, y="y").predict(np.array([[0.5]]))[0] <= 10


@pytest.mark.slow
def test_more_clients_may_not_collude_than_there_are(tmp_path: Path) -> None:
    with running(hospitals(tmp_path)) as world:
        assert "colluding=3 of 3 clients leaves none to add noise" in failure(world, private_forest(colluding=3))
