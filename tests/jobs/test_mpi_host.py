"""Orders of every sort between MPI ranks: what comes of them is what comes of them in one process, bit for bit."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import woodlot as wl
from mpi_launch import launch
from woodlot.cli._forest import make_estimator, plan_for
from woodlot.data.labels import check_classes
from woodlot.jobs.party_store import PartyStore, read_alignment
from woodlot.protocols.core.forest_parts import PartyForest, forget_values
from woodlot.protocols.core.target import Target
from woodlot.protocols.vertical.files import forest_id_of, load_own_part, save_own_part
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.predict import predict_in_one_round
from woodlot.protocols.vertical.train import train
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.service.config import JobConfig

PROGRAM = Path(__file__).with_name("mpi_program.py")

JOB = """
[job]
y = "bank.default"
task = "classification"

[forest]
n_estimators = 6
max_depth = 5
min_samples_leaf = 2
random_state = 3

[mpi.bank]
path = "bank.parquet"
id = "id"
columns = "*"
labels = ["default"]

[mpi.shop]
path = "shop.parquet"
id = "id"
columns = "*"

[mpi.shop.policy]
min_samples_leaf = 2
"""


def write_job(folder: Path) -> None:
    """The job, its tables, and a secret of the parties."""
    rng = np.random.default_rng(7)
    X = rng.normal(size=(150, 4))
    label = np.where(X[:, 0] + X[:, 2] + rng.normal(scale=0.5, size=150) > 0, "yes", "no")
    bank, shop = rng.permutation(150)[:140], rng.permutation(150)[:145]
    columns = {"id": np.arange(150), "age": X[:, 0], "income": X[:, 1], "default": label}
    pq.write_table(pa.table({name: values[bank] for name, values in columns.items()}), folder / "bank.parquet")
    columns = {"id": np.arange(150), "visits": X[:, 2], "basket": X[:, 3]}
    pq.write_table(pa.table({name: values[shop] for name, values in columns.items()}), folder / "shop.parquet")
    (folder / "job.toml").write_text(JOB)
    (folder / "secret").write_text("0123456789abcdef0123456789abcdef\n")
    (folder / "secret").chmod(0o600)


@pytest.mark.slow
def test_a_training_goes_on_after_a_kill_and_all_is_as_in_one_process(tmp_path: Path) -> None:
    write_job(tmp_path)
    killed = launch(3, sys.executable, PROGRAM, "killed", tmp_path)
    assert "signal 9" in killed.stderr, killed.stderr
    done = launch(3, sys.executable, PROGRAM, "resumed", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "leaves of 1 rows are too small for this party's policy" in done.stdout
    (model,) = set(re.findall(r"^model (\w+)$", done.stdout, re.MULTILINE))  # every rank is told
    outcome = np.load(tmp_path / "outcome.npz", allow_pickle=False)

    # The same tables in the order in which the ranks had their rows, and the same codes of columns.
    config = JobConfig.load(tmp_path / "job.toml")
    states = {party: tmp_path / "state" / f"party-{party}" / "state" for party in config.mpi}
    loaded = {party: own.table.read() for party, own in config.mpi.items()}
    rows = {party: read_alignment(state, model)[1] for party, state in states.items()}
    tables = {party: loaded[party].table().take(rows[party]) for party in loaded}
    labels = loaded["bank"].values("default")[rows["bank"]]

    def party(name: str, forest: PartyForest | None = None) -> VerticalParty:
        store = PartyStore(states[name], name)
        target = Target.of_classes(check_classes(labels)) if name == "bank" and forest is None else None
        table = tables[name].select([c for c in loaded[name].features if c != "default"])
        codes = store.secret_for("forest", "codes")
        store.close()
        return VerticalParty(name, table, target=target, forest=forest, secret=codes)

    plan = plan_for(make_estimator("classification", config.forest, "job.toml"), "job.toml")
    growing = {name: party(name) for name in states}
    with InProcessDriver(growing) as driver:
        forest = run(train(plan, tuple(states), "bank", 1), driver, ledger=Ledger())
    fingerprint = forest_id_of(forest)
    assert fingerprint == outcome["fingerprint"]
    parts = {name: forget_values(own.grown_forest()) for name, own in growing.items()}
    for name, part in parts.items():
        stored = load_own_part(states[name] / "models" / model, name, fingerprint)
        digests = [
            save_own_part(tmp_path / f"{name}-{place}", name, fingerprint, one)
            for place, one in (("here", part), ("ranks", stored))
        ]
        assert digests[0] == digests[1]
    with InProcessDriver({name: party(name, part) for name, part in parts.items()}) as driver:
        outputs, _ = run(
            predict_in_one_round(forest, tuple(parts), len(labels), "decisions", "soft", 1), driver, ledger=Ledger()
        )
    assert np.array_equal(outputs, outcome["forest"])
    assert np.mean(np.array(forest.classes)[outputs.argmax(axis=1)] == labels) == outcome["score"]
    (delivered,) = (states["bank"] / "answers").iterdir()
    ids = loaded["bank"].ids.take(pa.array(rows["bank"]))
    assert pq.read_table(delivered).column("id").to_pylist() == ids.to_pylist()

    frames = {name: loaded[name].arrow.take(pa.array(own)).drop_columns(["id"]) for name, own in rows.items()}
    here = wl.Federation.local(frames)
    linear = wl.FederatedLogisticRegression(max_iter=20).fit(here, y="bank.default")
    assert np.array_equal(linear.predict_proba(here), outcome["linear"])
