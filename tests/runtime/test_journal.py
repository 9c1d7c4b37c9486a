from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from woodlot.exceptions import JournalError
from woodlot.runtime.journal import Entry, Journal, Record

from .carriers import MEMORY
from .journal_process import JOBS, entries
from .samples import Answer, Question

SCRIPT = Path(__file__).with_name("journal_process.py")
PATIENCE = 300.0
INSERT = "INSERT INTO bodies (job, position, part, data) VALUES"
OPENINGS: list[Callable[[Path], Journal]] = [functools.partial(Journal, durable=False), Journal.read]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    with Journal(path, durable=False) as journal:
        yield journal


def process(command: str, path: Path, *more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), command, str(path), *more],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_what_is_appended_is_there(journal: Journal) -> None:
    job = journal.job("x")
    assert journal.jobs() == []
    assert job.records() == []
    assert job.last("a", "coordinator") == 0
    assert job.lookup("a", "coordinator", 1) is None
    job.verify()
    before = time.time_ns()
    job.append([Entry("coordinator", "a", 1, "Question", 9, b"d" * 32, None), Entry.of("a", "b", 1, "Answer", b"")])
    job.append(entries(3))
    assert journal.jobs() == ["x"]
    first, empty, asked, answered = job.records()
    assert (first.position, first.sender, first.receiver, first.number) == (1, "coordinator", "a", 1)
    assert (first.kind, first.n_bytes, first.digest, first.kept) == ("Question", 9, b"d" * 32, 0)
    assert before <= first.time <= answered.time <= time.time_ns()
    assert job.body(empty) == b""
    assert job.body(asked) == entries(3)[0].body
    assert job.lookup("a", "coordinator", 3) == answered
    assert job.sent("coordinator", "a") == [first, asked]
    assert job.last("coordinator", "a") == 3
    assert job.head == (4, answered.chain.hex())
    with pytest.raises(JournalError, match="not kept"):
        job.body(first)
    job.verify()
    journal.verify()


def test_the_chain_is_what_the_docs_say(journal: Journal) -> None:
    job = journal.job("x")
    job.append(entries(1))
    link = bytes(32)
    for record in job.records():
        *fields, chain = dataclasses.astuple(record)
        link = hashlib.sha256(link + msgspec.msgpack.encode(["x", *fields])).digest()
        assert chain == link


def test_an_append_is_whole_or_not_at_all(journal: Journal) -> None:
    job = journal.job("x")
    job.append(entries(1))
    before = job.head, job.records()
    with pytest.raises(JournalError, match="message 1 from a to coordinator of job x is recorded already"):
        job.append([*entries(2), entries(1)[1]])
    with pytest.raises(OverflowError):
        job.append([*entries(2), Entry.of("a", "b", 2**70, "Answer", b"")])
    assert (job.head, job.records()) == before
    job.append(entries(2))
    journal.verify()


def test_a_journal_is_found_again(path: Path) -> None:
    for number in range(1, 4):
        with Journal(path, durable=True) as journal:
            journal.job("x").append(entries(number))
            assert len(journal.job("x").records()) == 2 * number
    with Journal(path, durable=True) as journal:
        journal.verify()
        assert [journal.job("x").body(r) for r in journal.job("x").records()[:2]] == [e.body for e in entries(1)]


def test_only_the_owner_can_read(path: Path) -> None:
    with Journal(path, durable=False) as journal:
        journal.job("x").append(entries(1))
        files = sorted(path.parent.iterdir())
        assert len(files) == 4  # with the log, the shared memory and the lock
        assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    path.chmod(0o644)
    with pytest.raises(JournalError, match=r"can be read or written by others \(mode 644\).*chmod 600"):
        Journal(path, durable=False)


def test_a_closed_journal(path: Path) -> None:
    journal = Journal(path, durable=False)
    job = journal.job("x")
    job.append(entries(1))
    journal.close()
    journal.close()
    for action in (job.records, job.verify, lambda: job.append(entries(2)), journal.jobs):
        with pytest.raises(JournalError, match="is closed"):
            action()


@pytest.mark.parametrize("durable", [False, True])
def test_durability_is_as_asked(path: Path, durable: bool) -> None:
    with Journal(path, durable=durable) as journal, journal._database.connection() as writer:
        assert writer.execute("PRAGMA synchronous").fetchone() == (2 if durable else 1,)
        assert writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


# --- disclosures, and the end of a job ---


def test_disclosures_come_from_the_records(journal: Journal) -> None:
    job = journal.job("x")
    for number in (1, 2):
        job.append(entries(number))
    job.append([Entry.of("b", "coordinator", 1, "FromTheFuture", b"1234")])
    job.drop_bodies()
    n_bytes = sum(len(entries(number)[0].body or b"") for number in (1, 2))
    assert [tuple(row.values()) for row in job.disclosures().to_dicts()] == [
        ("coordinator", "a", "Question", 2, n_bytes, Question.discloses.form, Question.discloses.reveals),
        ("a", "coordinator", "Answer", 2, n_bytes, Answer.discloses.form, Answer.discloses.reveals),
        ("b", "coordinator", "FromTheFuture", 1, 4, "unknown", "unknown: this version of Woodlot has no such message"),
    ]
    assert list(journal.job("y").disclosures()) == []


def test_the_end_of_a_job_takes_the_bytes_and_leaves_the_digests(journal: Journal, path: Path) -> None:
    secret = b"salary 93517 " * 200_000
    job, other = journal.job("x"), journal.job("y")
    other.append(entries(1))
    job.append([Entry.of("a", "coordinator", 1, "Answer", secret)])
    assert not job.ended
    for _ in range(2):
        job.drop_bodies()
    assert job.ended
    assert not other.ended
    assert job.records()[0].digest == hashlib.sha256(secret).digest()
    with pytest.raises(JournalError, match="not kept"):
        job.body(job.records()[0])
    with pytest.raises(JournalError, match="job x has ended"):
        job.append(entries(2))
    assert other.body(other.records()[0]) == entries(1)[0].body
    journal.verify()
    assert b"93517" not in on_disk(path)


def on_disk(path: Path) -> bytes:
    """Every byte of a journal, of its log and of the index of its log."""
    files = list(path.parent.glob(f"{path.name}*"))
    assert path in files
    return b"".join(file.read_bytes() for file in files)


def needle(number: int) -> bytes:
    """Sixteen bytes that nothing else contains, at the start, in the middle and at the end of a body."""
    return hashlib.md5(b"needle %d" % number, usedforsecurity=False).digest()


def haystack(number: int, size: int) -> bytes:
    filling = b"hay." * (size // 8)
    return needle(number) + filling + needle(number) + filling + needle(number)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("size", [0, 1_000, 3_000_000])
def test_nothing_is_left_on_disk_of_a_job_that_has_ended(path: Path, size: int, durable: bool) -> None:
    with Journal(path, durable=durable) as journal:
        for number in (1, 2):
            journal.job(f"job {number}").append([Entry.of("a", "coordinator", 1, "Answer", haystack(number, size))])
        assert needle(1) in on_disk(path)
        journal.job("job 1").drop_bodies()
        assert needle(1) not in on_disk(path)
        assert needle(2) in on_disk(path)
        assert journal.job("job 2").body(journal.job("job 2").records()[0]) == haystack(2, size)


@pytest.mark.parametrize("seed", [31, 32])
def test_nothing_is_left_of_rows_that_sqlite_has_moved(path: Path, seed: int) -> None:
    """With 31, SQLite moves a row from one page to another between its writing and its removal, and leaves a copy."""
    draw = random.Random(seed)
    bodies: dict[str, list[int]] = {}
    ended: set[str] = set()
    with Journal(path, durable=False) as journal:
        for step in range(150):
            name = f"job{draw.randrange(5)}-{step // 40}"
            if name in ended:
                continue
            if draw.random() < 0.04 and name in bodies:
                journal.job(name).drop_bodies()
                ended.add(name)
                continue
            bodies.setdefault(name, []).append(step)
            size = draw.choice([16, 40, 100, 300, 900, 2000, 4000, 5000, 20000])
            journal.job(name).append([Entry.of("a", "c", step + 1, "Answer", haystack(step, size))])
        for name in bodies:
            if name not in ended and draw.random() < 0.7:
                journal.job(name).drop_bodies()
                ended.add(name)
        found = on_disk(path)
    assert 0 < len(ended) < len(bodies)
    for name, numbers in bodies.items():
        assert {needle(number) in found for number in numbers} == {name not in ended}, name


def test_a_reader_only_delays_the_erasure(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Journal(path, durable=False) as journal:
        journal.job("x").append([Entry.of("a", "coordinator", 1, "Answer", haystack(1, 1_000))])
        with closing(sqlite3.connect(path, isolation_level=None)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT COUNT(*) FROM bodies").fetchone()
            journal.job("x").drop_bodies()
            assert needle(1) in on_disk(path)  # the reader still needs it
            assert (
                f"deleted data stays in {path.name}-wal for now, because another program is reading it" in caplog.text
            )
            journal.job("y").append(entries(1))
            reader.execute("ROLLBACK")
        journal.job("y").append(entries(2))  # the next chance
        assert needle(1) not in on_disk(path)


def test_a_reader_of_the_same_process_only_delays_the_erasure_until_it_has_finished(path: Path) -> None:
    with Journal(path, durable=False) as journal:
        journal.job("x").append([Entry.of("a", "coordinator", 1, "Answer", haystack(1, 1_000))])
        with journal._reading() as reader:
            reader.execute("SELECT COUNT(*) FROM bodies").fetchone()
            journal.job("x").drop_bodies()
            assert needle(1) in on_disk(path)
        assert needle(1) not in on_disk(path)


def test_what_a_killed_process_could_not_erase_is_erased_at_the_next_start(path: Path) -> None:
    with Journal(path, durable=False) as journal, closing(sqlite3.connect(path, isolation_level=None)) as reader:
        journal.job("x").append([Entry.of("a", "coordinator", 1, "Answer", haystack(1, 1_000))])
        reader.execute("BEGIN")
        reader.execute("SELECT COUNT(*) FROM bodies").fetchone()
        journal.job("x").drop_bodies()
        left = path.with_name("left")  # as a kill leaves it
        for suffix in ("", "-wal"):
            shutil.copy(f"{path}{suffix}", f"{left}{suffix}")
            Path(f"{left}{suffix}").chmod(0o600)
        assert needle(1) in on_disk(left)
    with Journal(left, durable=False) as journal:
        assert needle(1) not in on_disk(left)
        journal.verify()


def test_a_removal_that_was_cut_short_is_ended_later(path: Path) -> None:
    with Journal(path, durable=False) as journal:
        journal.job("x").append([Entry.of("a", "coordinator", 1, "Answer", b"z" * 20_000_000)])
        copy = [r for (r,) in _rows(path, "SELECT data FROM bodies")]
        journal.job("x").drop_bodies()
    connection = sqlite3.connect(path)
    connection.executemany(
        "INSERT INTO bodies (job, position, part, data) VALUES ('x', 1, ?, ?)", list(enumerate(copy))
    )
    connection.commit()
    connection.close()
    with Journal(path, durable=False) as journal:
        journal.verify()
        assert _rows(path, "SELECT COUNT(*) FROM bodies") == [(0,)]


# --- one changed byte ---


def _rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query).fetchall()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    with TemporaryDirectory(dir=MEMORY) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def written(memory: Path) -> Path:
    """A closed journal of two jobs, one of them ended, with bodies of several parts, one part and none."""
    path = memory / "written"
    with Journal(path, durable=False) as journal:
        for name in ("x", "gone"):
            job = journal.job(name)
            for number in (1, 2, 3):
                job.append(entries(number))
            job.append([Entry("coordinator", "b", 1, "Question", 3, b"d" * 32, None)])
            job.append([Entry.of("b", "coordinator", 1, "Answer", bytes(2_500_000))])
            job.append([Entry.of("b", "coordinator", 2, "Answer", b"")])
        job.drop_bodies()
    return path


def _copy(written: Path) -> Path:
    for old in written.parent.glob("copy*"):  # also what SQLite has left beside it
        old.unlink()
    copy = written.with_name("copy")
    shutil.copy(written, copy)
    return copy


def _change(value: Any, place: int, bit: int) -> Any:
    """The value with one bit changed somewhere."""
    if isinstance(value, int):
        return value ^ (1 << bit)
    data = bytearray(value.encode() if isinstance(value, str) else value)
    if not data:
        return "x" if isinstance(value, str) else b"x"
    data[place % len(data)] ^= 1 << bit
    return bytes(data)


@settings(deadline=None, max_examples=150)
@given(st.data())
@pytest.mark.slow
def test_a_changed_bit_in_any_column_is_found(written: Path, data: st.DataObject) -> None:
    table = data.draw(st.sampled_from(["records", "records", "bodies", "jobs"]))
    rows = _rows(written, f"SELECT * FROM {table} ORDER BY job, 2")  # noqa: S608
    row = data.draw(st.integers(0, len(rows) - 1))
    names = [name for (_, name, *_) in _rows(written, f"PRAGMA table_info({table})")]
    column = data.draw(st.integers(0, len(names) - 1))
    value = rows[row][column]
    changed = _change(value, data.draw(st.integers(0, 10**7)), data.draw(st.integers(0, 7)))
    path = _copy(written)
    connection = sqlite3.connect(path)
    key = {"records": 2, "bodies": 3, "jobs": 1}[table]
    where = " AND ".join(f"{name} = ?" for name in names[:key])
    setting = "CAST(? AS TEXT)" if isinstance(value, str) else "?"
    try:
        connection.execute(f"UPDATE {table} SET {names[column]} = {setting} WHERE {where}", (changed, *rows[row][:key]))  # noqa: S608
        connection.commit()
    except sqlite3.IntegrityError:  # it would take the place of another row
        reject()
    finally:
        connection.close()
    assert _rows_raw(path, table) != _rows_raw(written, table)
    with Journal.read(path) as journal:
        with pytest.raises(JournalError):
            journal.verify()
        job = rows[row][0]
        if names[column] != "job":
            with pytest.raises(JournalError, match=f"of job {job} "):
                journal.job(job).verify()


def _rows_raw(path: Path, table: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    connection.text_factory = bytes
    try:
        return connection.execute(f"SELECT * FROM {table}").fetchall()  # noqa: S608
    finally:
        connection.close()


@settings(deadline=None, max_examples=100)
@given(st.integers(0, 10**9), st.integers(0, 7))
def test_a_changed_bit_in_the_file_is_found_or_changes_nothing(written: Path, place: int, bit: int) -> None:
    raw = bytearray(written.read_bytes())
    raw[place % len(raw)] ^= 1 << bit
    path = _copy(written)
    path.write_bytes(raw)
    try:
        with Journal.read(path) as journal:
            journal.verify()
            found = _everything(journal)
    except JournalError:
        pass
    else:
        with Journal.read(written) as journal:
            assert found == _everything(journal)


def _everything(journal: Journal) -> list[object]:
    return [(name, journal.job(name).head, journal.job(name).records()) for name in journal.jobs()]


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("DELETE FROM records WHERE job = 'x' AND position = 9", "record 9 of job x is missing"),
        ("DELETE FROM records WHERE job = 'x' AND position > 4", "record 5 of job x is missing"),
        ("DELETE FROM records WHERE job = 'x' AND position = 4", "record 4 of job x is missing"),
        ("DELETE FROM records WHERE job = 'x' AND position = 1", "record 1 of job x is missing"),
        ("DELETE FROM records WHERE job = 'x'", "record 1 of job x is missing"),
        ("DELETE FROM jobs WHERE job = 'x'", "record 1 of job x should not be there"),
        ("DELETE FROM bodies WHERE job = 'x' AND position = 3", "record 3 of job x has bytes that are not what was"),
        ("DELETE FROM bodies WHERE job = 'x' AND part = 2", "record 8 of job x has bytes that are not"),
        (
            "INSERT INTO bodies (job, position, part, data) VALUES ('x', 7, 0, x'00')",
            "record 7 of job x has bytes that were never written",
        ),
        (
            "INSERT INTO bodies (job, position, part, data) VALUES ('x', 70, 0, x'00')",
            "record 70 of job x has bytes that were never written",
        ),
        (
            "INSERT INTO bodies (job, position, part, data) VALUES ('x', 9, 0, x'00')",
            "record 9 of job x has bytes that are not",
        ),
        ("UPDATE jobs SET count = 4 WHERE job = 'x'", "record 5 of job x should not be there"),
        ("UPDATE jobs SET head = zeroblob(32) WHERE job = 'x'", "or the row of the job was changed"),
        (
            "INSERT INTO records SELECT job, 10, sender, receiver, 99, kind, n_bytes, digest, 0, time, chain "
            "FROM records WHERE job = 'x' AND position = 9",
            "record 10 of job x is not what was written",
        ),
    ],
)
def test_what_is_removed_or_added_is_found(written: Path, path: Path, statement: str, words: str) -> None:
    shutil.copy(written, path)
    connection = sqlite3.connect(path)
    connection.execute(statement)
    connection.commit()
    connection.close()
    with Journal.read(path) as journal:
        with pytest.raises(JournalError, match=words):
            journal.job("x").verify()
        with pytest.raises(JournalError):
            journal.verify()
        journal.job("gone").verify()


def test_swapped_records_are_found(written: Path, path: Path) -> None:
    shutil.copy(written, path)
    connection = sqlite3.connect(path)
    for old, new in ((2, 100), (4, 2), (100, 4)):
        for table in ("records", "bodies"):
            connection.execute(f"UPDATE {table} SET position = ? WHERE job = 'x' AND position = ?", (new, old))  # noqa: S608
    connection.commit()
    connection.close()
    with Journal.read(path) as journal, pytest.raises(JournalError, match="record 2 of job x"):
        journal.job("x").verify()


def test_a_changed_body_is_not_handed_out(written: Path, path: Path) -> None:
    shutil.copy(written, path)
    connection = sqlite3.connect(path)
    connection.execute("UPDATE bodies SET data = zeroblob(length(data)) WHERE job = 'x' AND position = 2")
    connection.commit()
    connection.close()
    with Journal(path, durable=False) as journal:
        job = journal.job("x")
        with pytest.raises(JournalError, match="record 2 of job x has bytes that are not what was written"):
            job.body(job.records()[1])


# --- files that cannot be used ---


def test_readers_refuse_a_journal_of_a_newer_version(path: Path) -> None:
    with Journal(path, durable=False) as journal:
        journal.job("x").append(entries(1))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 2")
    connection.close()
    before = path.read_bytes()
    with pytest.raises(JournalError, match=r"a newer Woodlot has written it \(version 2; this one reads versions"):
        Journal.read(path)
    assert path.read_bytes() == before


def test_files_that_are_no_journals(tmp_path: Path) -> None:
    other = tmp_path / "other"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (a)")
    connection.close()
    noise = tmp_path / "noise"
    noise.write_bytes(b"these are the times that try men's souls" * 1_000)
    for file, words in ((other, "another program's database"), (noise, "not a database")):
        file.chmod(0o600)
        for opening in OPENINGS:
            with pytest.raises(JournalError, match=words):
                opening(file)
    with pytest.raises(JournalError, match="check that its folder exists"):
        Journal.read(tmp_path / "nothing")
    with pytest.raises(JournalError, match="check that its folder exists"):
        Journal(tmp_path / "no" / "folder", durable=False)
    tmp_path.chmod(0o700)
    with pytest.raises(JournalError, match="not a plain file"):
        Journal(tmp_path, durable=False)
    assert not (tmp_path / "nothing").exists()


def test_a_crash_while_a_journal_was_made(path: Path) -> None:
    path.touch(0o600)
    with Journal(path, durable=False) as journal:
        journal.job("x").append(entries(1))
        journal.verify()


def test_only_one_process_writes_and_others_read_meanwhile(path: Path) -> None:
    holder = process("hold", path)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "open\n"
    with pytest.raises(JournalError, match=r"in use by another process.*does the service run already"):
        Journal(path, durable=False)
    with Journal.read(path) as reader:
        assert reader.jobs() == []
    holder.communicate(timeout=PATIENCE)
    with Journal(path, durable=False), pytest.raises(JournalError, match="in use"):
        Journal(path, durable=False)  # nor twice in one process


def test_jobs_are_told_in_the_order_in_which_they_began(journal: Journal) -> None:
    assert journal.job("b").began is None
    for name in ("b", "c", "a"):
        journal.job(name).append(entries(3))
    journal.job("b").append(entries(4))
    assert journal.jobs() == ["b", "c", "a"]
    began = journal.job("b").began
    assert began == journal.job("b").records()[0].time / 1e9


def test_reading_while_the_service_writes(journal: Journal, path: Path) -> None:
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            journal.job("x").append(entries(number))

    writer = threading.Thread(target=write)
    writer.start()
    try:
        with Journal.read(path) as reader:
            counts = [0]
            until = time.monotonic() + PATIENCE
            while counts[-1] < 40 and time.monotonic() < until:
                reader.verify()
                counts.append(reader.job("x").head[0])
            with pytest.raises(JournalError, match="open for reading only"):
                reader.job("x").append(entries(10**6))
            with pytest.raises(JournalError, match="open for reading only"):
                reader.job("x").drop_bodies()
    finally:
        stop.set()
        writer.join()
    assert counts == sorted(counts)
    assert counts[-1] >= 40


def test_a_locked_journal_says_so(journal: Journal, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with journal._database.connection() as writer:
        writer.execute("PRAGMA busy_timeout = 50")
    journal.job("x").append(entries(1))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(JournalError, match="another program has it locked"):
        journal.job("x").append(entries(2))
    other.execute("ROLLBACK")
    other.close()
    journal.job("x").append(entries(2))
    journal.verify()


# --- full disks, kills, large bodies, threads ---


def test_a_file_that_cannot_grow(path: Path) -> None:
    filler = process("fill", path, "limit")
    out, err = filler.communicate(timeout=PATIENCE)
    assert filler.returncode == 0, err
    first, last = out.splitlines()
    assert "the disk" in first
    kept, number = last.split()
    assert kept == "kept"
    assert int(number) > 3


def test_a_full_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode().strip()}")
    try:
        (disk / "ballast").write_bytes(bytes(2_000_000))
        filler = process("fill", disk / "journal", "disk")
        out, err = filler.communicate(timeout=PATIENCE)
        assert filler.returncode == 0, err
        first, last = out.splitlines()
        assert "the disk is full; make room on the disk and repeat" in first
        assert last.split()[0] == "kept"
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_what_was_acknowledged_survives_kill_9(path: Path) -> None:
    random_ = random.Random(7)
    acknowledged = 0
    for _ in range(8):
        child = process("append", path)
        assert child.stdout is not None
        acknowledged = int(child.stdout.readline())
        time.sleep(random_.uniform(0, 0.15))
        child.kill()
        out = child.stdout.read()  # with what has come along with the first line, unlike `communicate`
        child.communicate(timeout=PATIENCE)
        # The last line may be torn by the kill; what is whole was said after it was recorded.
        told = [line for line in out.splitlines(keepends=True) if line.endswith("\n")]
        acknowledged = int(told[-1]) if told else acknowledged
        with Journal(path, durable=True) as journal:
            journal.verify()
            last = max(journal.job(name).last("a", "coordinator") for name in JOBS)
            assert acknowledged <= last <= acknowledged + 1
            for remainder, name in enumerate(JOBS):
                job = journal.job(name)
                expected = range(remainder or 2, last + 1, 2)
                assert [r.number for r in job.sent("a", "coordinator")] == list(expected)
                assert [r.number for r in job.sent("coordinator", "a")] == list(expected)
            newest = journal.job(JOBS[last % 2])
            record = newest.lookup("a", "coordinator", last)
            assert record is not None
            assert newest.body(record) == entries(last)[1].body
    assert acknowledged >= 8  # every life has recorded something, on a busy machine too


@pytest.mark.slow
def test_large_bodies_are_not_held_twice(path: Path) -> None:
    program = f"""
import resource, sys
from woodlot.runtime.journal import Entry, Journal
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
with Journal({str(path)!r}, durable=False) as journal:
    job = journal.job("x")
    data = bytes(range(250)) * 400_000
    with_one = peak()
    job.append([Entry.of("a", "coordinator", 1, "Answer", data)])
    job.verify()
    del data
    found = job.body(job.records()[0])
    assert len(found) == 100_000_000 and found[:500] == bytes(range(250)) * 2
    print(peak() - with_one)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 60_000_000


def test_threads_and_jobs_do_not_mix(journal: Journal) -> None:
    def work(index: int) -> None:
        for number in range(1, 21):
            job = journal.job(f"job {index % 3}")
            job.append([Entry.of(f"party {index}", "coordinator", number, "Answer", os.urandom(3_000))])
            found = job.lookup(f"party {index}", "coordinator", number)
            assert isinstance(found, Record)
            job.body(found)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(work, range(6)))
    journal.verify()
    assert [len(journal.job(name).records()) for name in journal.jobs()] == [40, 40, 40]
