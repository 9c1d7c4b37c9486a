from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mpi_launch import launch
from woodlot.exceptions import ConfigError
from woodlot.runtime.drivers.mpi_carrier import MpiRanks, rank, serve
from woodlot.runtime.frames import FrameKind, Label

from .carriers import JOB
from .driver_contract import DriverContract

SCRIPT = Path(__file__).with_name("mpi_ranks.py")


def ranks(count: int, *scenarios: str) -> subprocess.CompletedProcess[str]:
    """Run scenarios one after the other on real ranks."""
    return launch(count, sys.executable, SCRIPT, *scenarios)


@pytest.mark.slow
def test_the_driver_contract_and_clean_ends_with_real_ranks() -> None:
    # One test, since the ranks take longer to start than to do all this.
    done = ranks(4, "contract", "two_jobs", "left", "interrupted", "same_names", "wrong_reply")
    everything = done.stdout + done.stderr
    assert done.returncode == 0, everything
    passed = re.search(r"^(\d+) passed in", done.stdout, re.MULTILINE)
    assert passed is not None, everything
    assert int(passed[1]) >= len([name for name in vars(DriverContract) if name.startswith("test_")])
    assert done.stdout.splitlines()[-6:] == [
        "both jobs ended",
        "went on",
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
    for action in (rank, MpiRanks, lambda: serve("a", lambda job, number, request: b"")):
        with pytest.raises(ConfigError, match=r"pip install 'woodlot\[mpi\]'"):
            action()
