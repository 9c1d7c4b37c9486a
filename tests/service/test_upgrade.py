"""State folders of an earlier version: they are brought up to date, and what they hold is as good as before.

``state-1.tar.xz`` was written by ``scripts/old_state.py`` under version 1 of the protocol, before there were approvals,
with the record of predictions in its first version. It is never written again.
"""

from __future__ import annotations

import json
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest
from processes import small_tables
from small_jobs import train_order, user_of
from world import World, running

from woodlot.exceptions import JournalError
from woodlot.foundation.database import copy_database
from woodlot.jobs.approvals import APPROVALS
from woodlot.jobs.day_budgets import BUDGET_FILE, PREDICTIONS, PredictionBudget
from woodlot.runtime.journal import Journal

OLD = Path(__file__).with_name("state-1.tar.xz")


def unpacked(root: Path) -> dict[str, object]:
    """Put the old folders where the members of a world have theirs; returns the model, and how good it was."""
    with tarfile.open(OLD) as tar:
        tar.extractall(root, filter="data")
    for path in root.glob("*/state/**/*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    for path in root.glob("*/state"):
        path.chmod(0o700)
    facts: dict[str, object] = json.loads((root / "facts.json").read_text())
    return facts


def version_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        return int(database.execute("PRAGMA user_version").fetchone()[0])


def test_an_old_record_is_brought_up_to_date_and_keeps_what_it_has(tmp_path: Path) -> None:
    facts = unpacked(tmp_path)
    path = tmp_path / "bank" / "state" / BUDGET_FILE
    assert version_of(path) == 1 < PREDICTIONS.version
    with closing(sqlite3.connect(path)) as database:
        before = database.execute("SELECT * FROM spent ORDER BY job").fetchall()
    assert before
    PredictionBudget(path.parent, "unlimited").close()
    assert version_of(path) == PREDICTIONS.version
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT * FROM spent ORDER BY job").fetchall() == before
    for name in ("coordinator", "bank", "shop"):
        with closing(Journal.read(tmp_path / name / "state" / "journal.sqlite")) as journal:
            journal.verify()
            assert facts["model"] in journal.jobs()


def test_an_older_woodlot_refuses_a_newer_folder(tmp_path: Path) -> None:
    """There is no way back: whoever may need one keeps a backup from before."""
    unpacked(tmp_path)
    path = tmp_path / "bank" / "state" / BUDGET_FILE
    copy_database(path, tmp_path / "copy")
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute(f"PRAGMA user_version = {PREDICTIONS.version + 1}")
    with pytest.raises(JournalError, match="a newer Woodlot has written it"):
        PredictionBudget(path.parent, "unlimited")


@pytest.mark.slow
def test_services_go_on_with_folders_of_an_earlier_version(tmp_path: Path) -> None:
    world = World(tmp_path, small_tables())
    facts = unpacked(tmp_path)
    with running(world), user_of(world) as alice:
        (known,) = alice.client.models()
        assert known.model == facts["model"]
        done = alice.client.finish(alice.client.submit(alice.predict_order(known.model, "bank.late")).job)
        assert done.score == pytest.approx(facts["score"])
        assert alice.client.finish(alice.client.submit(train_order(alice)).job).state == "done"
        assert not alice.client.audit(known.model).problem
    assert (tmp_path / "bank" / "state" / APPROVALS).is_file()
