"""One contract for every database of Woodlot: what it refuses, what it makes, and that its errors say what to do."""

from __future__ import annotations

import os
import re
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "service"))

from small_disk import small_disk

from woodlot.exceptions import ApprovalPendingError, JournalError
from woodlot.foundation.database import Database, Schema, open_reader
from woodlot.jobs.approvals import APPROVALS, Approvals
from woodlot.jobs.approvals import SCHEMA as APPROVALS_SCHEMA
from woodlot.jobs.day_budgets import BUDGET_FILE, PREDICTIONS, PredictionBudget
from woodlot.jobs.evaluated_rows import EVALUATED, EVALUATED_FILE, EvaluatedRows
from woodlot.jobs.job_store import SCHEMA, JobStore
from woodlot.jobs.orders import AlignOrder, Part
from woodlot.jobs.policy import UNLIMITED
from woodlot.privacy.accounting import Spend
from woodlot.privacy.budget import BUDGET_SCHEMA, BudgetFile, Charge
from woodlot.runtime.journal import Entry, Journal
from woodlot.runtime.journal_file import JOURNAL_SCHEMA
from woodlot.runtime.second_copy import SCHEMA as COPY_SCHEMA
from woodlot.runtime.second_copy import SECOND_COPY, SecondCopy

NOON = datetime(2025, 3, 9, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Kind:
    """One kind of database, and the part of Woodlot that opens it."""

    file: str
    schema: Schema
    open: Callable[[Path], Any]
    use: Callable[[Any, int], object]
    """Writes something that depends on a number, and reads it."""


def use_journal(journal: Journal, number: int) -> None:
    journal.job("x").append([Entry("a", "coordinator", number, "Counts", 3, bytes(32), b"abc")])
    journal.job("x").records()


def use_ledger(file: BudgetFile, number: int) -> None:
    with file.transaction() as ledger:
        ledger.charge(
            "bank", "loans", None, Charge(unit="rows", release=str(number), mechanism="laplace", spend=Spend(0.1))
        )


def use_approvals(record: Approvals, number: int) -> None:
    """Another order waits."""
    order = AlignOrder(
        job=f"{number:032x}", created=0.0, federation="f", coordinator="c", parties=("bank",), sealed={"bank": b""}
    )
    with suppress(ApprovalPendingError):
        record.check(b"order", order, Part(), "alice")


KINDS = [
    Kind("journal.sqlite", JOURNAL_SCHEMA, lambda at: Journal(at / "journal.sqlite", durable=True), use_journal),
    Kind("jobs.sqlite", SCHEMA, JobStore, lambda store, number: store.claim_epoch("keyring", str(number))),
    Kind(
        BUDGET_FILE,
        PREDICTIONS,
        lambda at: PredictionBudget(at, UNLIMITED),
        lambda budget, number: budget.spend(f"job {number}", "alice", 1, NOON),
    ),
    Kind(
        EVALUATED_FILE,
        EVALUATED,
        EvaluatedRows,
        lambda record, number: record.take("t.y", np.array([number], np.uint64), 1),
    ),
    Kind(
        SECOND_COPY,
        COPY_SCHEMA,
        lambda at: SecondCopy(at / SECOND_COPY),
        lambda copy, number: copy.note(f"job {number}"),
    ),
    Kind(APPROVALS, APPROVALS_SCHEMA, lambda at: Approvals(at, 7), use_approvals),
    Kind("privacy.sqlite", BUDGET_SCHEMA, lambda at: BudgetFile(at / "privacy.sqlite"), use_ledger),
]


@pytest.fixture(params=KINDS, ids=[kind.file for kind in KINDS])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def used(kind: Kind, tmp_path: Path) -> Path:
    """The path of a database with something in it."""
    with closing(kind.open(tmp_path)) as database:
        kind.use(database, 1)
    return tmp_path / kind.file


def changed(path: Path, *statements: str) -> bytes:
    """Change a database as another program might, and return its bytes."""
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        for statement in statements:
            db.execute(statement)
    return path.read_bytes()


def refusal(kind: Kind, path: Path) -> str:
    """What opening and using it says; it names the file, whatever else."""
    with pytest.raises(JournalError) as caught, closing(kind.open(path.parent)) as database:
        kind.use(database, 2)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_names_and_applications_are_distinct() -> None:
    assert len({kind.schema.application_id for kind in KINDS}) == len(KINDS)
    assert len({kind.schema.name for kind in KINDS}) == len(KINDS)


def test_it_has_an_application_and_a_version(kind: Kind, used: Path) -> None:
    with closing(sqlite3.connect(used)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (kind.schema.application_id,)
        assert db.execute("PRAGMA user_version").fetchone() == (kind.schema.version,)


def test_all_its_files_are_private_whatever_the_umask(kind: Kind, tmp_path: Path) -> None:
    for umask in (0, 0o777):
        folder = tmp_path / f"{umask:o}"
        folder.mkdir()
        before = os.umask(umask)
        try:
            database = kind.open(folder)
            kind.use(database, 1)
        finally:
            os.umask(before)
        with closing(database):
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.glob(f"{kind.file}*")}
            assert {kind.file, f"{kind.file}-wal", f"{kind.file}-shm"} <= modes.keys()
            assert {mode for name, mode in modes.items() if not name.endswith(".lock")} == {0o600}


@pytest.mark.parametrize("suffix", ["", "-wal"])
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620])
def test_a_file_that_others_can_read_or_write_is_refused(kind: Kind, used: Path, suffix: str, mode: int) -> None:
    file = Path(f"{used}{suffix}")
    file.touch()
    file.chmod(mode)
    before = file.read_bytes()
    said = refusal(kind, used)
    assert f"{file} cannot be used" in said
    assert f"by others (mode {mode:o}); make it private with chmod 600" in said
    assert file.read_bytes() == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(kind: Kind, used: Path) -> None:
    os.chown(used, 12345, -1)
    assert "it belongs to another user; run Woodlot as that user" in refusal(kind, used)


def test_another_programs_database_is_refused_and_left_alone(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / kind.file
    before = changed(path, "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)")
    path.chmod(0o600)
    assert "it is another program's database; use another path" in refusal(kind, path)
    assert path.read_bytes() == before  # nor was its journal mode changed


def test_another_database_of_woodlot_is_refused_and_left_alone(kind: Kind, tmp_path: Path) -> None:
    other = KINDS[KINDS.index(kind) - 1]
    with closing(other.open(tmp_path)) as database:
        other.use(database, 1)
    path = (tmp_path / other.file).rename(tmp_path / kind.file)
    before = path.read_bytes()
    assert "it is another program's database" in refusal(kind, path)
    assert path.read_bytes() == before


def test_a_file_that_is_no_database_is_refused_and_left_alone(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / kind.file
    path.write_bytes(b"these are the times that try men's souls" * 1_000)
    path.chmod(0o600)
    assert "it is not a database; use another path, or restore it from a copy" in refusal(kind, path)
    assert path.read_bytes() == b"these are the times that try men's souls" * 1_000


def test_a_newer_version_is_refused_and_left_alone(kind: Kind, used: Path) -> None:
    newer = kind.schema.version + 1
    before = changed(used, f"PRAGMA user_version = {newer}")
    assert f"a newer Woodlot has written it (version {newer}; this one reads versions up to" in refusal(kind, used)
    assert used.read_bytes() == before


def test_an_older_version_is_brought_up_to_date_in_one_step(kind: Kind, used: Path) -> None:
    """Two versions later: everything that was there still is, and the new columns are too."""
    next_one = ("CREATE TABLE added (a TEXT) STRICT", "INSERT INTO added VALUES ('from version 1')")
    then = ("ALTER TABLE added ADD COLUMN b TEXT NOT NULL DEFAULT 'new'",)
    later = replace(kind.schema, migrations=(*kind.schema.migrations, next_one, then))
    with pytest.raises(JournalError, match="an older Woodlot has written it; start its service once"):
        open_reader(used, later)
    with closing(sqlite3.connect(used)) as db:
        rows = {line for line in db.iterdump() if line.startswith("INSERT")}
    with closing(Database(used, later)) as database, database.connection() as db:
        assert db.execute("PRAGMA user_version").fetchone() == (kind.schema.version + 2,)
        assert db.execute("SELECT * FROM added").fetchall() == [("from version 1", "new")]
        assert rows < set(db.iterdump())
    with closing(Database(used, later)):  # and not once more
        pass
    assert "a newer Woodlot" in refusal(kind, used)


def test_a_migration_that_fails_changes_nothing(kind: Kind, used: Path) -> None:
    broken = ("CREATE TABLE added (a TEXT) STRICT", "INSERT INTO nowhere VALUES (1)")
    with pytest.raises(JournalError, match=re.escape(str(used))):
        Database(used, replace(kind.schema, migrations=(*kind.schema.migrations, broken)))
    with closing(kind.open(used.parent)) as database:
        kind.use(database, 2)


def test_a_new_database_has_all_migrations(kind: Kind, tmp_path: Path) -> None:
    later = replace(kind.schema, migrations=(("CREATE TABLE added (a TEXT) STRICT",),))
    with closing(Database(tmp_path / "new", later)) as database, database.connection() as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
        assert db.execute("SELECT * FROM added").fetchall() == []


@pytest.mark.parametrize("damage", ["pages", "schema", "text", "version", "half"])
def test_a_damaged_file_says_so(kind: Kind, used: Path, damage: str) -> None:
    whole = used.read_bytes()
    match damage:
        case "pages":
            broken = whole[:4096] + b"\xa5" * (len(whole) - 4096)
        case "schema":
            broken = whole[:100] + b"\xa5" * (len(whole) - 100)
        case "text":  # SQLite quotes what it finds there, which is not UTF-8
            broken = whole.replace(b"CREATE TABLE", b"\xff" * 12)
        case "version":
            broken = whole[:60] + bytes(4) + whole[64:]
        case _:
            broken = whole[: len(whole) // 2]
    assert broken != whole
    used.write_bytes(broken)
    said = refusal(kind, used)
    assert "it is damaged; restore it from a copy" in said
    assert kind.schema.damaged in said


def test_a_full_disk_says_so_and_the_call_can_be_repeated(kind: Kind, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk, closing(kind.open(disk.folder)) as database:
        kind.use(database, 1)
        disk.fill()
        with pytest.raises(JournalError, match="make room on the disk") as caught:
            any(kind.use(database, number) == "never" for number in range(2, 10_000))
        assert str(disk.folder / kind.file) in str(caught.value)
        disk.clear()
        kind.use(database, 10_000)


def test_a_read_only_folder_says_so(kind: Kind, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        disk.remount("ro")
        assert "this user may write there" in refusal(kind, disk.folder / kind.file)
        disk.remount("rw")
        with closing(kind.open(disk.folder)) as database:
            kind.use(database, 1)
        disk.remount("ro")
        assert re.search("let this user write|this user may write", refusal(kind, disk.folder / kind.file))


def test_what_is_committed_survives_a_loss_of_power(kind: Kind, tmp_path: Path) -> None:
    with closing(Database(tmp_path / "new", kind.schema)) as database, database.connection() as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA secure_delete").fetchone() == (1,)


def test_a_closed_one_says_so(kind: Kind, tmp_path: Path) -> None:
    database = kind.open(tmp_path)
    database.close()
    database.close()
    with pytest.raises(JournalError, match="is closed"):
        kind.use(database, 1)


OPEN = """
import sys
from pathlib import Path
from woodlot.foundation.database import Database
from woodlot.privacy.budget import BUDGET_SCHEMA
print("ready", flush=True)
sys.stdin.readline()
for at in range(200):  # one try of a few shows nothing: the race is short
    Database(Path(sys.argv[1]) / str(at), BUDGET_SCHEMA).close()
"""


def test_many_processes_may_make_one_database_at_once(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN, tmp_path], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for _ in range(4)
    ]  # fmt: skip
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    assert [(process.communicate()[1], process.returncode) for process in processes] == [("", 0)] * 4
