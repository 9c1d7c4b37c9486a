"""Backups of state folders: what is in them, who can read them, and that an older state breaks no promise."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from party_bench import Bench, train_order
from processes import small_tables
from small_jobs import train_order as small_training
from small_jobs import user_of
from typer.testing import CliRunner
from world import World, running

from woodlot.cli import app
from woodlot.exceptions import DataError, JournalError, PolicyError
from woodlot.jobs.orders import JOB_ID
from woodlot.jobs.party_store import PartyStore
from woodlot.jobs.restored import RESTORED, Restoration, Restored
from woodlot.protocols.core.message import Refusal
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.journal import Entry, Journal
from woodlot.runtime.second_copy import SecondCopy
from woodlot.service.backup import restore_backup, write_backup

JOB, OTHER = "0" * 31 + "1", "0" * 31 + "2"


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    """The state folder of a party that has answered one job, and is asked in another."""
    folder = tmp_path / "state"
    with closing(PartyStore(folder, "bank")) as store:
        store.secret_for(JOB, "x")
    (folder / "models" / JOB).mkdir(parents=True)
    (folder / "models" / JOB / "part.json").write_text("{}")
    (folder / "models" / ".begun-abcdefgh").mkdir()
    (folder / "models" / ".begun-abcdefgh" / "half").write_text("")
    (folder / "keys").mkdir()
    (folder / "keys" / "m.keys").write_text("k")
    with (
        Journal(folder / "journal.sqlite", durable=False) as journal,
        SecondCopy(folder / "second-copy.sqlite") as copy,
    ):
        for job in (JOB, OTHER):
            journal.job(job).append([Entry.of("coordinator", "bank", 1, "OpenJob", b"order")])
            copy.note(job)
        journal.job(JOB).drop_bodies()
        yield folder


def entries(path: Path) -> list[str]:
    with tarfile.open(path) as tar:
        return tar.getnames()


def test_a_backup_of_a_running_service_is_private_and_whole(state: Path, tmp_path: Path) -> None:
    """The fixture has the journal open, as a service has."""
    out = tmp_path / "out.tar"
    facts = write_backup(state, out)
    assert (facts.stopped, facts.secret, facts.epoch_keys, facts.identity) == (False, True, False, False)
    assert out.stat().st_mode & 0o777 == 0o600
    names = entries(out)
    assert names[0] == "manifest.json"
    assert names[1] == "state/journal.sqlite"
    assert {"state/secret", f"state/models/{JOB}/part.json", "state/second-copy.sqlite"} <= set(names)
    assert not [name for name in names if "begun" in name or "keys" in name or name.endswith(("-wal", ".lock"))]
    assert [path.name for path in tmp_path.glob(".out.tar-*")] == []
    with pytest.raises(DataError, match="there already"):
        write_backup(state, out)
    assert "state/secret" not in entries(_made(state, tmp_path / "b.tar", secret=False))
    assert "state/keys/m.keys" in entries(_made(state, tmp_path / "c.tar", epoch_keys=True))
    with pytest.raises(DataError, match="not the state folder"):
        write_backup(tmp_path, tmp_path / "d.tar")


def _made(state: Path, out: Path, **options: bool) -> Path:
    write_backup(state, out, **options)
    return out


def test_what_was_done_since_must_be_said(state: Path, tmp_path: Path) -> None:
    out = _made(state, tmp_path / "out.tar")
    with pytest.raises(DataError, match="--nothing-since if it has not run"):
        restore_backup(out, tmp_path / "new")
    with pytest.raises(DataError, match="while the service ran"):
        restore_backup(out, tmp_path / "new", since="nothing")
    keys = _made(state, tmp_path / "keys.tar", epoch_keys=True)
    with pytest.raises(DataError, match="must not come back after their epoch"):
        restore_backup(keys, tmp_path / "new", since="lost")
    assert not (tmp_path / "new").exists()
    with pytest.raises(DataError, match="is not empty"):
        restore_backup(out, state, since="lost")
    with pytest.raises(DataError, match="no identity"):
        restore_backup(out, tmp_path / "new", since="lost", identity=tmp_path / "who")


def test_a_restored_party_answers_nothing_twice(state: Path, tmp_path: Path) -> None:
    out = _made(state, tmp_path / "out.tar")
    new = tmp_path / "new"
    restore_backup(out, new, since="lost")
    assert all(path.stat().st_mode & 0o077 == 0 for path in new.rglob("*"))
    with Journal.read(new / "journal.sqlite") as journal:
        assert {job: journal.job(job).ended for job in journal.jobs()} == {JOB: True, OTHER: True}
        journal.verify()
    with closing(PartyStore(state, "bank")) as before, closing(PartyStore(new, "bank")) as after:
        assert before.secret_for("forest", "codes") == after.secret_for("forest", "codes")
        assert before.secret_for(JOB, "masks") == after.secret_for(JOB, "masks")
        forgotten = "f" * 32
        assert before.secret_for(forgotten, "masks") != after.secret_for(forgotten, "masks")
    (new / RESTORED).write_text("{")
    with pytest.raises(JournalError, match=r"restored\.json cannot be read"):
        PartyStore(new, "bank")


def test_a_service_that_was_stopped_is_moved_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    PartyStore(folder, "bank").close()
    Journal(folder / "journal.sqlite", durable=False).close()
    SecondCopy(folder / "second-copy.sqlite").close()
    (folder / "keys").mkdir()
    (folder / "keys" / "m.keys").write_text("k")
    out = _made(folder, tmp_path / "out.tar", epoch_keys=True)
    facts = restore_backup(out, tmp_path / "new", since="nothing")
    assert facts.stopped
    assert (tmp_path / "new" / "keys" / "m.keys").read_text() == "k"
    assert not (tmp_path / "new" / RESTORED).exists()


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("state/secret", b"other", "is damaged"),
        ("state/../../evil", b"x", "no file of a state folder"),
        ("state/more", None, "is missing"),
    ],
)
def test_a_backup_that_was_changed_is_refused(
    state: Path, tmp_path: Path, name: str, data: bytes | None, words: str
) -> None:
    out, changed = _made(state, tmp_path / "out.tar"), tmp_path / "changed.tar"
    with tarfile.open(out) as old, tarfile.open(changed, "w") as new:
        for entry in old.getmembers():
            found = old.extractfile(entry)
            assert found is not None
            body = found.read()
            if entry.name == "manifest.json" and "secret" not in name:
                manifest = json.loads(body)
                manifest["files"][name] = "0" * 64
                body = json.dumps(manifest).encode()
            if entry.name == name and data is not None:
                body = data
            entry.size = len(body)
            new.addfile(entry, io.BytesIO(body))
        if data is not None and name not in old.getnames():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            new.addfile(entry, io.BytesIO(data))
    with pytest.raises(DataError, match=words):
        restore_backup(changed, tmp_path / "new", since="lost")
    assert not (tmp_path / "new").exists()
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize("data", [b"", b"no tar", b'{"format": 2}'])
def test_what_is_no_backup_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.tar"
    if data.startswith(b"{"):
        with tarfile.open(path, "w") as tar:
            entry = tarfile.TarInfo("manifest.json")
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    else:
        path.write_bytes(data)
    with pytest.raises(DataError, match=r"x\.tar"):
        restore_backup(path, tmp_path / "new", since="lost")


jobs = st.lists(st.integers(0, 5).map(lambda n: f"{n:032x}"), max_size=4).map(lambda names: tuple(sorted(set(names))))


@settings(max_examples=20)
@given(known=st.lists(jobs, max_size=4), job=st.integers(0, 5).map(lambda n: f"{n:032x}"))
def test_a_forgotten_job_gets_secrets_of_its_own_after_each_restoration(
    tmp_path_factory: pytest.TempPathFactory, known: list[tuple[str, ...]], job: str
) -> None:
    """What a job's secrets follow from changes with a restoration if, and only if, the job was forgotten by it."""
    folder = tmp_path_factory.mktemp("restored")
    scopes = [Restored(folder).scope(job)]
    for number, names in enumerate(known):
        time = Restoration(made=0.0, at=float(number), nonce=f"{number:064x}", jobs=names)
        Restored(folder).add(folder, time)
        scopes.append(Restored(folder).scope(job))
        if job not in names:
            assert scopes[-1] not in scopes[:-1]
        else:
            assert scopes[-1] == scopes[-2]
    assert Restored(folder).scope("forest") == "forest"
    assert JOB_ID.fullmatch(job)


@pytest.mark.slow
def test_orders_of_the_time_before_are_refused(tmp_path: Path) -> None:
    with closing(Bench(tmp_path)) as bench:
        home = bench.homes["bank"]
        order = train_order(bench)
        opening = bench.opening(order)
        bench.job("bank", order.job).handle(opening)
        restoration = Restoration(made=order.created - 60, at=order.created - 310, nonce="0" * 64, jobs=())
        Restored(home.store.folder).add(home.store.folder, restoration)
        bench.change_policy("bank")  # reads the folder again
        bench.job("bank", order.job).handle(opening)  # signed 10 seconds too late to have been forgotten
        late = Restoration(made=order.created - 60, at=order.created - 290, nonce="1" * 64, jobs=())
        Restored(home.store.folder).add(home.store.folder, late)
        bench.change_policy("bank")
        with pytest.raises(PolicyError, match="restored from a backup, and orders that were signed before"):
            bench.job("bank", order.job).handle(opening)


def test_the_commands_make_and_restore_a_backup(state: Path, tmp_path: Path) -> None:
    run = CliRunner()
    who = tmp_path / "identity"
    who.mkdir()
    (who / "key.pem").write_text("key")
    out, new, back = (str(tmp_path / name) for name in ("out.tar", "new", "who"))
    made = run.invoke(app, ["backup", str(state), out, "--identity", str(who), "--json"])
    assert made.exit_code == 0, made.output
    assert json.loads(made.output)["identity"] is True
    assert run.invoke(app, ["restore", out, new]).exit_code == 1
    both = run.invoke(app, ["restore", out, new, "--nothing-since", "--accept-lost-records"])
    assert "choose one" in both.output
    done = run.invoke(app, ["restore", out, new, "--accept-lost-records", "--identity", back])
    assert done.exit_code == 0, done.output
    assert "Lower the budgets" in done.output
    assert (Path(back) / "key.pem").read_text() == "key"
    assert (Path(back) / "key.pem").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_a_federation_goes_on_with_a_restored_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models of before the backup answer; a job that was forgotten is not carried out again, by whichever order."""
    monkeypatch.setattr("woodlot.jobs.restored.CLOCK_SECONDS", 0.0)  # else orders wait for five minutes
    world = World(tmp_path, small_tables())
    with running(world), user_of(world) as alice:
        model = alice.client.finish(alice.client.submit(small_training(alice)).job).job
        out, folder = tmp_path / "out.tar", tmp_path / "bank" / "state"
        assert not write_backup(folder, out).stopped
        forgotten = small_training(alice)
        alice.client.finish(alice.client.submit(forgotten).job)
        opening = world.coordinator.host.opening(world.coordinator.store.job(forgotten.job))  # type: ignore[union-attr]
        world.stop_party("bank")
        folder.rename(tmp_path / "lost")
        restore_backup(out, folder, since="lost")
        world.start_party("bank")
        world.wait_connected("bank")
        done = alice.client.finish(alice.client.submit(alice.predict_order(model)).job)
        assert done.state == "done"
        reply = decode(world.parties["bank"].answer(forgotten.job, 1, encode(opening)))
        assert isinstance(reply, Refusal)
        assert "restored from a backup" in reply.reason
