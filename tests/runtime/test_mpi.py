from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from woodlot.exceptions import ConfigError
from woodlot.runtime.drivers.mpi_carrier import MpiCarrier, rank, serve
from woodlot.runtime.frames import FrameKind, Label

from .carriers import JOB
from .driver_contract import DriverContract

SCRIPT = Path(__file__).with_name("mpi_ranks.py")
PATIENCE = 300.0


def mpirun() -> str:
    found = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    if found is None:
        pytest.skip("mpirun is neither beside this Python nor on the PATH")
    return found


def ranks(count: int, *scenarios: str) -> subprocess.CompletedProcess[str]:
    """Run scenarios one after the other on real ranks; a hang is a failure."""
    command = [mpirun(), "--allow-run-as-root", "--oversubscribe", "-n", str(count), sys.executable, str(SCRIPT)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    return subprocess.run([*command, *scenarios], capture_output=True, text=True, timeout=PATIENCE, env=environment)


@pytest.mark.slow
def test_the_driver_contract_and_clean_ends_with_real_ranks() -> None:
    # One test, since the ranks take longer to start than to do all this.
    done = ranks(4, "contract", "two_jobs", "interrupted", "same_names", "wrong_reply")
    everything = done.stdout + done.stderr
    assert done.returncode == 0, everything
    passed = re.search(r"^(\d+) passed in", done.stdout, re.MULTILINE)
    assert passed is not None, everything
    assert int(passed[1]) >= len([name for name in vars(DriverContract) if name.startswith("test_")])
    assert done.stdout.splitlines()[-5:] == [
        "both jobs ended",
        "left and closed",
        "names refused",
        f"rank 2 has sent what was not expected: {Label(FrameKind.reply, JOB, 7)}",
        "what was received is not a frame of this version of Woodlot",
    ], everything


@pytest.mark.parametrize(
    ("scenario", "words"),
    [
        ("party_fails", "ZeroDivisionError: the party's own fault"),
        ("coordinator_fails", "ZeroDivisionError: the coordinator's own fault"),
    ],
)
def test_a_failure_at_one_rank_ends_all(scenario: str, words: str) -> None:
    done = ranks(2, scenario)
    assert done.returncode != 0
    assert words in done.stderr


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    for action in (rank, lambda: MpiCarrier(JOB), lambda: serve("a", lambda job, number, request: b"")):
        with pytest.raises(ConfigError, match=r"pip install 'woodlot\[mpi\]'"):
            action()
