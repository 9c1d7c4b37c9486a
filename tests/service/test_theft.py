"""A user who may train has a forest learn a partner's column by heart, and a colluding party take the answers.

All services are processes. Where the owner offers the column as a label to everybody, the theft works: so it is the
settings that stop it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import Processes, processes, wait_until
from world import POLICY, World

import woodlot as wl
from woodlot.connected import ConnectedFederation
from woodlot.service.client import JobFailed

N = 400
PARTIES = ("bank", "telco", "shop")
EXAMPLE = Path(__file__).parents[2] / "examples" / "three-machines"
ALLOWED = POLICY | {"receive": ["alice", "bank"]}


def tables() -> dict[str, dict[str, pa.Table]]:
    """Three companies with the same customers; the shop works for the thief."""
    rng = np.random.default_rng(5)
    ids = np.arange(N) + 5_000_000
    balance, duration, visits = rng.normal(size=N) * 1_000, rng.gamma(2.0, 9.0, N), rng.random((N, 3))
    target = np.where(balance / 1_000 + duration / 20 > 1, "yes", "no")
    bank = {"id": ids, "balance": balance, "age": rng.integers(18, 90, N), "target": target}
    shop = {"id": ids, **{f"visits_{k}": visits[:, k] for k in range(3)}}
    held = {"bank": bank, "telco": {"id": ids, "duration": duration, "calls": rng.random(N)}, "shop": shop}
    return {party: {"customers": pa.table(columns)} for party, columns in held.items()}


class Stage:
    """The federation, its processes, and alice, who may train."""

    def __init__(self, running: Processes, alice: ConnectedFederation) -> None:
        self.running, self.world, self.alice = running, running.world, alice

    @contextmanager
    def settings(self, policy: dict[str, Any], **roles: Any) -> Iterator[None]:
        """Have the bank and the telco say something else for a while."""
        usual = {party: self.world.settings[party] for party in ("bank", "telco")}
        for party, own in usual.items():
            section = own["tables"]["customers"] | roles.get(party, {})
            self.world.settings[party] = own | {"policy": policy, "tables": {"customers": section}}
            self._restart(party)
        try:
            yield
        finally:
            for party, own in usual.items():
                self.world.settings[party] = own
                self._restart(party)

    def _restart(self, party: str) -> None:
        self.running.stop(party)
        self.running.restart(party)
        wait_until(lambda: self.alice.client.parties()[party], f"{party} to connect")

    def learn(self, column: str, weight: str | None = None, *, leaf: int = 1, seed: int = 0) -> str:
        """Grow a forest that has one leaf per value, if it may; returns the model."""
        numbers = column != "bank.target"
        kind = wl.FederatedForestRegressor if numbers else wl.FederatedForestClassifier
        forest = kind(4, bootstrap=False, max_features=None, min_samples_leaf=leaf, random_state=seed)
        return str(forest.fit(self.alice, y=column, sample_weight=weight).forest_.model)

    def deliver(self, model: str, receiver: str) -> dict[int, Any]:
        """Have a party given the answers; what it then has beside its ids."""
        order = self.alice.predict_order(model, deliver_to=receiver, give_answers=False)
        job = self.alice.client.finish(self.alice.client.submit(order).job).job
        kept = pq.read_table(self.world.root / receiver / "state" / "answers" / f"{job}.parquet")
        return dict(zip(kept["id"].to_pylist(), kept["prediction"].to_pylist(), strict=True))

    def stolen(self, answers: dict[int, Any]) -> float:
        """The share of the telco's values that the answers tell."""
        column = tables()["telco"]["customers"]
        true = dict(zip(column["id"].to_pylist(), column["duration"].to_pylist(), strict=True))
        return float(np.mean([abs(answers[row] - value) <= 1e-3 * abs(value) for row, value in true.items()]))


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    world = World(tmp_path_factory.mktemp("theft"), tables(), labels=["target"])
    for settings in world.settings.values():
        settings["policy"] = dict(ALLOWED)
    with processes(world) as running:
        running.wait_connected()
        identity = world.root / "alice" / "identity"
        with wl.connect(world.address, identity, tables="customers", parties=PARTIES) as alice:
            yield Stage(running, alice)


def test_a_column_that_is_no_label_cannot_be_learnt(stage: Stage) -> None:
    with pytest.raises(JobFailed, match=r"party 'telco': .*label \(y\) .*: the setting labels of that table") as caught:
        stage.learn("telco.duration")
    assert "duration" not in str(caught.value)
    refused = "it names 'duration' as its label (y), which [tables.customers] does not list among its labels"
    assert refused in stage.running.log("telco")
    with pytest.raises(JobFailed, match=r"party 'bank': .*weights \(sample_weight\) .*: the setting weights of that"):
        stage.learn("bank.target", "bank.balance")


def test_a_party_without_the_right_gets_no_answers(stage: Stage) -> None:
    model = stage.learn("bank.target")
    with pytest.raises(JobFailed, match=r"party '(bank|telco)': this party does not let 'shop' receive predictions"):
        stage.deliver(model, "shop")
    assert not (stage.world.root / "shop" / "state" / "answers").exists()
    assert len(stage.deliver(model, "bank")) == N


@pytest.mark.slow
def test_the_bank_does_not_learn_from_its_own_label_for_another(stage: Stage) -> None:
    with stage.settings(ALLOWED, telco={"labels": ["duration"]}):
        model = stage.learn("telco.duration")
    part = next((stage.world.root / "bank" / "state" / "models" / model).glob("*.json")).read_text()
    assert '"balance"' in part
    assert '"target"' not in part


@pytest.mark.slow
def test_where_everything_is_allowed_the_theft_works(stage: Stage) -> None:
    with stage.settings(POLICY, telco={"labels": ["duration"]}):
        answers = stage.deliver(stage.learn("telco.duration"), "shop")
    assert stage.stolen(answers) > 0.99


@pytest.mark.slow
def test_the_policy_of_the_example_stops_it_at_each_step(stage: Stage) -> None:
    """Seven jobs of large leaves did as one of small ones does: none of them is begun, and no more than five a day."""
    policy = tomllib.loads((EXAMPLE / "bank.toml").read_text(encoding="utf-8"))["policy"] | {"min_rows": N}
    leaf, daily = policy["min_samples_leaf"], policy["trainings_per_day"]
    with stage.settings(policy):
        with pytest.raises(JobFailed, match=r"party 'telco': .*the setting labels of that table"):
            stage.learn("telco.duration", leaf=leaf)
        with pytest.raises(JobFailed, match="leaves of 1 rows are too small"):
            stage.learn("bank.target")
    with stage.settings(policy, telco={"labels": ["calls"]}):
        models = [stage.learn("telco.calls", leaf=leaf, seed=seed) for seed in range(daily)]
        with pytest.raises(JobFailed, match=rf"party 'telco': .*learnt from {daily} times per day \(trainings_per_day"):
            stage.learn("telco.calls", leaf=leaf, seed=daily)
        with pytest.raises(JobFailed, match="does not let 'shop' receive predictions"):
            stage.deliver(models[0], "shop")
        asked = stage.alice.client.submit(stage.alice.predict_order(models[0])).job
        with pytest.raises(JobFailed, match="does not let 'alice' receive predictions"):
            stage.alice.client.finish(asked)
