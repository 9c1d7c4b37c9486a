"""``mpirun -n 3 woodlot mpi job.toml`` with real ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import woodlot as wl
from mpi_launch import launch
from woodlot.cli.mpi import _check_command
from woodlot.exceptions import ConfigError

COMMAND = Path(sys.executable).with_name("woodlot")

JOB = """
[job]
y = "bank.default"
task = "classification"
name = "risk"

[align]
method = "keyed-hash"

[forest]
n_estimators = 8
max_depth = 4
random_state = 0

[mpi.bank]
path = "bank.parquet"
id = "id"
columns = "*"
labels = ["default"]

[mpi.shop]
path = "shop.csv"
id = "id"
columns = ["visits", "basket"]
"""


def mpirun(count: int, *arguments: object, script: str = '"$@"') -> subprocess.CompletedProcess[str]:
    """Run the command at every rank."""
    return launch(count, "sh", "-c", script, "sh", COMMAND, "mpi", *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job and its tables, and a secret of the parties."""
    root = tmp_path_factory.mktemp("cluster")
    rng = np.random.default_rng(0)
    ids, X = np.arange(200), rng.normal(size=(200, 4))
    label = np.where(X[:, 0] + X[:, 2] > 0, "yes", "no")
    bank, shop = rng.permutation(200)[:180], rng.permutation(200)[:190]
    pq.write_table(
        pa.table({"id": ids[bank], "age": X[bank, 0], "income": X[bank, 1], "default": label[bank]}),
        root / "bank.parquet",
    )
    pyarrow.csv.write_csv(
        pa.table({"id": ids[shop], "visits": X[shop, 2], "basket": X[shop, 3], "secret": X[shop, 3]}), root / "shop.csv"
    )
    (root / "job.toml").write_text(JOB)
    (root / "psi.toml").write_text(JOB.replace("keyed-hash", "psi"))
    (root / "secret").write_text("0123456789abcdef0123456789abcdef\n")
    (root / "secret").chmod(0o600)
    return root


def arrays(folder: Path) -> dict[str, Any]:
    with np.load(folder / "arrays.npz", allow_pickle=False) as stored:
        return {name: stored[name].tolist() for name in stored.files}


@pytest.mark.slow
def test_every_rank_writes_its_part_and_the_parts_make_a_model(folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    kept = ["--out", tmp_path / "m", "--state", state, "--secret", folder / "secret"]
    done = mpirun(3, folder / "job.toml", *kept, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["state"], facts["rows"]) == ("done", {"bank": 180, "shop": 190})
    assert (facts["forest"]["n_trees"], facts["forest"]["name"]) == (8, "risk")
    assert set(facts["bytes_by_party"]) == {"bank", "shop"}
    assert "aligning" in done.stderr
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["coordinator", "party-bank", "party-shop"]
    names = {
        p: json.loads((tmp_path / "m" / f"party-{p}" / "part.json").read_text())["names"] for p in ("bank", "shop")
    }
    assert names == {"bank": ["age", "income"], "shop": ["visits", "basket"]}

    model = wl.load(tmp_path / "m")
    assert model.forest_.coordinator.n_rows == facts["n_rows"]
    whole = wl.load(tmp_path / "m" / "coordinator").combine(
        [tmp_path / "m" / "party-bank", tmp_path / "m" / "party-shop"]
    )
    bank, shop = (
        pq.read_table(folder / "bank.parquet").to_pandas(),
        pyarrow.csv.read_csv(folder / "shop.csv").to_pandas(),
    )
    joined = bank.merge(shop, on="id")
    assert len(joined) == facts["n_rows"]
    assert (whole.predict(joined) == joined["default"]).mean() > 0.85

    answers = tmp_path / "answers.csv"
    to = ["--", "predict", "--model", "risk", "--score", "bank.default", "--out", answers, "--json"]
    predicted = mpirun(3, folder / "job.toml", "--state", state, "--secret", folder / "secret", *to)
    assert predicted.returncode == 0, predicted.stderr
    facts = json.loads(predicted.stdout)
    assert (facts["kind"], facts["state"], facts["n_rows"]) == ("predict", "done", len(joined))
    assert facts["score"] == (whole.predict(joined) == joined["default"]).mean()
    assert pyarrow.csv.read_csv(answers).num_rows == len(joined)

    again = mpirun(3, folder / "psi.toml", "--out", tmp_path / "n", "--secret", folder / "secret")
    assert again.returncode == 0, again.stderr
    assert "Forest risk has grown." in again.stdout
    assert f"woodlot.load('{tmp_path / 'n'}')" in again.stdout
    assert f"mpirun -n 3 woodlot mpi {folder / 'psi.toml'} -- predict --model risk --score bank.default" in again.stdout
    assert "\x1b" not in again.stdout
    for part in ("coordinator", "party-bank", "party-shop"):  # however the rows were found: same secret, same forest
        assert arrays(tmp_path / "m" / part) == arrays(tmp_path / "n" / part)


@pytest.mark.slow
def test_what_cannot_begin_ends_at_every_rank_and_is_told_once(folder: Path, tmp_path: Path) -> None:
    few = mpirun(2, folder / "job.toml", "--out", tmp_path / "m", "--json")
    assert few.returncode != 0
    assert (
        "2 parties, so 3 ranks are needed, not 2: mpirun -n 3 woodlot mpi" in json.loads(few.stdout)["error"]["message"]
    )
    assert few.stderr.count("woodlot: ") == 1
    assert not (tmp_path / "m").exists()


@pytest.mark.slow
def test_a_rank_that_cannot_begin_does_not_leave_the_others_waiting(folder: Path, tmp_path: Path) -> None:
    leave_out = 'if [ "$OMPI_COMM_WORLD_RANK" = 2 ]; then exec "$1" mpi absent.toml; else exec "$@"; fi'
    done = mpirun(3, folder / "job.toml", "--out", tmp_path / "m", "--state", tmp_path / "state", script=leave_out)
    assert done.returncode != 0
    assert "woodlot: absent.toml cannot be read: No such file or directory" in done.stderr
    assert "woodlot: a party's rank cannot begin; its own line says why" in done.stderr


@pytest.mark.slow
def test_a_table_that_cannot_be_used_is_told_by_its_rank(folder: Path, tmp_path: Path) -> None:
    job = folder / "wrong.toml"
    job.write_text(JOB.replace("shop.csv", "absent.csv"))
    (tmp_path / "m").mkdir()
    done = mpirun(3, job, "--out", tmp_path / "m", "--state", tmp_path / "state", "--json")
    assert done.returncode != 0
    error = json.loads(done.stdout)["error"]
    assert (error["kind"], error["message"]) == (
        "ConfigError", "a party's rank cannot begin; its own line says why"
    )  # fmt: skip
    assert "woodlot: party 'shop': the party does not start" in done.stderr
    assert "is not there; correct the setting path" in done.stderr
    assert not list((tmp_path / "m").iterdir())


@pytest.mark.parametrize(
    ("command", "out", "as_json", "words"),
    [
        (["models"], Path("m"), False, "--out and --json belong to it: write them after --"),
        (["models"], None, True, "--out and --json belong to it: write them after --"),
        (["mpi", "job.toml"], None, False, "woodlot mpi cannot run itself"),
    ],
)
def test_options_of_a_command_stand_behind_it(command: list[str], out: Path | None, as_json: bool, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        _check_command(command, out, as_json)
