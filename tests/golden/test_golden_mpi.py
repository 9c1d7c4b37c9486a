"""Golden digests of a job between MPI ranks: what every rank has sent, and its part of the model."""

from __future__ import annotations

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
    arguments = (tmp_path / "job.toml", "--out", tmp_path / "model", "--secret", tmp_path / "secret")
    done = mpirun(3, *arguments, script=script)
    assert done.returncode == 0, done.stderr
    ranks = {0: Role.coordinator.value, 1: "rank 1", 2: "rank 2"}
    said = [
        Said(name, "a rank", decode(data)) for rank, name in ranks.items() for data in mpi_rank.noted(notes / str(rank))
    ]
    what = "Align and train between three MPI ranks; what each rank has sent, one after the other."
    check("mpi/columns", what, golden_of(said, {"files": files_of(tmp_path / "model")}, whole=False))
