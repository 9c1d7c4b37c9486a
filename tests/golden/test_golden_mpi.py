"""Golden digests of a job between MPI ranks: what every rank has sent, and its part of the model."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import mpi_rank
import pyarrow.parquet as pq
import pytest
from golden_data import companies
from goldens import Said, check, files_of, golden_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli"))

from test_mpi_command import mpirun

from woodlot.jobs import every_message  # noqa: F401 - rank 0 is a user, too
from woodlot.protocols.core.message import Role
from woodlot.runtime.codec import decode

JOB = """
[job]
y = "bank.late"
task = "classification"

[align]
method = "keyed-hash"

[forest]
n_estimators = 3
max_depth = 3
oob_score = true
random_state = 5

[mpi.bank]
path = "bank.parquet"
id = "id"
columns = "*"
labels = ["late"]

[mpi.shop]
path = "shop.parquet"
id = "id"
columns = "*"
"""


@pytest.mark.slow
def test_mpi(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    for name, table in companies("late", club=False).items():
        pq.write_table(table, tmp_path / f"{name}.parquet")
    (tmp_path / "job.toml").write_text(JOB)
    (tmp_path / "secret").write_text("a secret of all parties' ranks, for tests\n")
    (tmp_path / "secret").chmod(0o600)
    notes = tmp_path / "notes"
    notes.mkdir()
    script = f'shift; exec {shlex.join([sys.executable, mpi_rank.__file__, str(notes)])} "$@"'
    kept = ("--out", tmp_path / "model", "--state", tmp_path / "state", "--secret", tmp_path / "secret")
    done = mpirun(3, tmp_path / "job.toml", *kept, script=script)
    assert done.returncode == 0, done.stderr
    ranks = {0: Role.coordinator.value, 1: "rank 1", 2: "rank 2"}
    noted = {name: map(decode, mpi_rank.noted(notes / str(rank))) for rank, name in ranks.items()}
    said = [
        Said(name, "a rank", message)
        for name, messages in noted.items()
        for message in messages
        if Role.user
        not in (message.discloses.sender, message.discloses.receiver)  # it asks how the job stands, at times
    ]
    notes_of_model = tmp_path / "model" / "coordinator" / "part.json"
    content = json.loads(notes_of_model.read_text())
    del content["extra"]["model"]  # the name of the job
    notes_of_model.write_text(json.dumps(content))
    what = "Align and train between three MPI ranks; what each rank has sent, one after the other."
    check("mpi/columns", what, golden_of(said, {"files": files_of(tmp_path / "model")}, whole=False))
