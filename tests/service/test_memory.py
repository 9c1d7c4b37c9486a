"""A party whose table is larger than its memory: the same forest, under a limit that the system enforces."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from party_bench import Bench, play
from small_jobs import PARTIES, PLAN

from woodlot.data.spool import Spool
from woodlot.data.tables import read_table
from woodlot.exceptions import DataError
from woodlot.jobs.orders import TrainOrder
from woodlot.protocols.vertical.forest_messages import OpenTraining, TableSummary
from woodlot.protocols.vertical.party import TrainingState, VerticalParty
from woodlot.runtime.codec import decode
from woodlot.trees.encoding import ENCODING_BYTES
from woodlot.trees.room import LABEL_BYTES, PROCESS_BYTES, SEARCH_BYTES, TREE_BYTES, WorkingMemory


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA counts mapped memory on Linux only")
def test_a_table_larger_than_memory_gives_the_same_forest(tmp_path: Path) -> None:
    here = Path(__file__).parent
    # Arrow's own pools, and the system's heap, keep memory for later use, which the limit would count
    own = {"ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_MMAP_THRESHOLD_": "65536", "PYTHONPATH": str(here)}
    command = [sys.executable, str(here / "memory_stage.py"), str(tmp_path)]
    done = subprocess.run(command, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert "does not fit into memory; set memory" in told.pop("in_memory")
    assert told == {"same": True, "batches": PLAN.n_estimators, "left": []}


def room_of(folder: Path, n_rows: int, per_row: int) -> WorkingMemory:
    return WorkingMemory(Spool(folder), PROCESS_BYTES + per_row * n_rows)


def party_of(room: WorkingMemory) -> VerticalParty:
    return VerticalParty("bank", read_table(np.random.default_rng(0).normal(size=(1000, 3))), room=room, n_jobs=4)


def test_threads_and_trees_follow_from_the_memory(tmp_path: Path) -> None:
    one = LABEL_BYTES + SEARCH_BYTES + TREE_BYTES
    for per_row, n_threads, n_trees in (
        (one, 1, 1),
        (one + SEARCH_BYTES, 2, 1),
        (one + 3 * SEARCH_BYTES + 5 * TREE_BYTES, 4, 6),
    ):
        party = party_of(room_of(tmp_path, 1000, per_row))
        summary = party.handle(OpenTraining(max_bins=None))
        assert isinstance(summary, TableSummary)
        assert (party.n_jobs, summary.trees_together) == (n_threads, n_trees)


def test_a_training_that_cannot_fit_is_refused_with_the_setting_that_helps(tmp_path: Path) -> None:
    too_little = room_of(tmp_path, 1000, ENCODING_BYTES - 1), room_of(tmp_path, 1000, LABEL_BYTES + SEARCH_BYTES)
    for room, words in zip(too_little, ("to encode a column of", "to grow a tree on"), strict=True):
        party = party_of(room)
        with pytest.raises(DataError, match=rf'is too little {words} 1,000 rows: set memory to at least "301 MB"'):
            party.handle(OpenTraining(max_bins=None))
        assert party.state is TrainingState.idle
    party_of(room_of(tmp_path, 1000, 1000)).handle(OpenTraining(max_bins=None))


def test_a_disk_without_room_is_told_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="make room there, or set state to a folder on another disk"):
        Spool(tmp_path).empty((1 << 60,), np.uint8)
    with pytest.raises(DataError, match="cannot be written to"):
        Spool(tmp_path / "nowhere").empty((1,), np.uint8)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.parametrize("named", [False, True])
def test_pages_that_are_let_go_leave_the_process_and_keep_their_numbers(tmp_path: Path, named: bool) -> None:
    def mapped() -> int:
        return int(re.search(r"RssFile:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024  # type: ignore[index]

    spool, size = Spool(tmp_path), 64 << 20
    numbers = spool.empty((2, size // 2), np.uint8)
    numbers[:] = 7
    before = mapped()
    spool.let_go(*([numbers[1]] if named else []))
    assert before - mapped() > size / 2
    spool.let_go(np.zeros(3))  # not the spool's
    assert (numbers == 7).all()


def test_jobs_of_services_are_the_same_on_disk(tmp_path: Path) -> None:
    """Aligning, training and predicting between two parties, byte for byte."""
    bench = Bench(tmp_path)
    try:
        order = TrainOrder(**bench.fields(), holder="bank", plan=PLAN, settings="{}")
        in_memory = play(bench, order)
        for party, home in bench.homes.items():
            bench.homes[party] = replace(home, room=WorkingMemory(Spool(home.store.folder), 1 << 40))
        on_disk = play(bench, order)
    finally:
        bench.close()
    for party in PARTIES:
        assert len(on_disk.answered[party]) == len(in_memory.answered[party])
        for kept, held in zip(on_disk.answered[party], in_memory.answered[party], strict=True):
            if not isinstance(decode(kept), TableSummary):  # which tells how many trees fit
                assert kept == held
