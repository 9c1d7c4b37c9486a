"""The coordinator's process where disks, files or parties fail it: as it takes orders, starts and ends."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from halts import HANGS
from processes import small_tables, wait_until
from small_jobs import PARTIES, train_order, user_of
from typer.testing import CliRunner
from world import POLICY, World, running

from woodlot.cli import app
from woodlot.connected import ConnectedFederation
from woodlot.exceptions import JournalError, WoodlotError
from woodlot.identity.identity import Identity
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.party_job import PartyJob
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical.score_messages import OpenScoring
from woodlot.runtime.drivers.grpc_line import PartyLine
from woodlot.service import coordinator
from woodlot.service.coordinator import Coordinator
from woodlot.service.live import LiveJob


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(coordinator, "HOUSEKEEPING_SECONDS", 0.1)
    made = World(tmp_path, small_tables())
    for party in PARTIES:
        made.settings[party]["policy"] = {**POLICY, "protocols": ["align", "train", "score"]}
    with running(made):
        yield made


@pytest.fixture
def service(world: World) -> Coordinator:
    assert world.coordinator is not None
    return world.coordinator


@pytest.fixture
def user(world: World) -> Iterator[ConnectedFederation]:
    with user_of(world) as user:
        yield user


# --- orders ---


def test_an_order_that_is_recorded_is_not_declined_for_a_full_disk(
    service: Coordinator, user: ConnectedFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would run after the next start, and its user would have been told that it was not taken."""

    def is_full(facts: JobFacts) -> None:
        raise JournalError("the disk is full")

    order = user.align_order()
    with monkeypatch.context() as patch:
        patch.setattr(service.store, "update", is_full)
        assert user.client.submit(order).state in ("queued", "running", "stopped")
        facts = user.client.follow(order.job)
        assert (facts.state, facts.error) == ("stopped", "the disk is full")

    def is_recorded() -> bool:
        stored = service.store.job(order.job)
        return stored is not None and stored.facts.state == "stopped"

    wait_until(is_recorded, "the end to be recorded")
    user.client.submit(order)
    assert user.client.job(order.job).state == "stopped"  # only `woodlot jobs resume` goes on with it
    user.client.resume(order.job)
    user.client.finish(order.job)


def test_an_order_that_was_taken_and_not_begun_begins_when_it_is_sent_again(
    service: Coordinator, user: ConnectedFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(job: str) -> LiveJob | None:
        raise JournalError("the disk cannot be read")

    order = user.align_order()
    with monkeypatch.context() as patch:
        patch.setattr(service, "enqueue", fails)
        with pytest.raises(WoodlotError):
            user.client.submit(order)
    user.client.submit(order)
    wait_until(lambda: user.client.job(order.job).state == "done", "the job")
    assert user.client.submit(order).state == "done"


# --- two processes with one key ---


def test_a_second_process_with_a_partys_key_raises_an_alarm(
    world: World, service: Coordinator, user: ConnectedFederation, caplog: pytest.LogCaptureFixture
) -> None:
    assert all(party.alarm == "" for party in user.client.party_facts())
    noted = threading.Event()
    record = service.store.note_second

    def note(party: str, former: str, newer: str) -> None:
        record(party, former, newer)
        noted.set()

    service.store.note_second = note  # type: ignore[method-assign]
    stolen = Identity.load(world.root / "bank" / "identity")
    line = PartyLine(world.address, stolen.credentials, lambda job, number, request: b"")
    line.start()
    try:
        assert noted.wait(HANGS)
    finally:
        line.stop()
    assert "has connected as party 'bank', which was connected" in caplog.text
    alarms = {party.name: party.alarm for party in user.client.party_facts()}
    assert alarms["bank"].startswith("two processes have used its key at once (ipv4:127.0.0.1:")
    assert alarms["shop"] == ""
    where = ["--coordinator", world.address, "--identity", str(world.root / "alice" / "identity")]
    shown = CliRunner().invoke(app, ["parties", *where]).stdout
    assert "bank: two processes have used its key at once" in " ".join(shown.split())
    told = json.loads(CliRunner().invoke(app, ["parties", *where, "--json"]).stdout)["parties"]
    assert [(party["name"], bool(party["alarm"]), bool(party["alarm_at"])) for party in told] == [
        ("bank", True, True), ("shop", False, False),
    ]  # fmt: skip


# --- the start ---


def test_a_job_that_cannot_be_read_keeps_the_coordinator_from_starting(tmp_path: Path) -> None:
    """It must not be left out in silence; who has gone back to an older version learns of that."""
    world = World(tmp_path, {})
    job = "d" * 32
    with Coordinator(world.coordinator_config()) as made:
        made.store.add(
            b"", b"", b"", JobFacts(job=job, kind="align", user="alice", state="queued", version=1, created=0)
        )
        with made.store._db.connection() as db:
            db.execute("UPDATE jobs SET facts = ?", (b'{"of":"a newer version"}',))
        with pytest.raises(JournalError, match=f"record of job {job} cannot be read"):
            made.start()


def test_what_a_crash_has_left_and_cannot_be_ended_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(path: object) -> None:
        raise PermissionError(13, "Permission denied")

    world = World(tmp_path, {})
    (tmp_path / "coordinator" / "state" / "models" / ".x-abcdefgh").mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr("woodlot.data.whole_files.shutil.rmtree", fails)
        with pytest.raises(JournalError, match=r"cannot be finished .*Permission denied.*; let this user write there"):
            Coordinator(world.coordinator_config())
    Coordinator(world.coordinator_config()).close()  # nothing was left locked
    assert not list((tmp_path / "coordinator" / "state" / "models").iterdir())


# --- the end ---


def test_the_end_waits_for_no_party(
    world: World, service: Coordinator, user: ConnectedFederation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scoring is being opened at a party that is there, and takes its time."""
    model = user.client.finish(user.client.submit(train_order(user)).job).model
    at_work, go_on = threading.Event(), threading.Event()
    handle = PartyJob.handle

    def handle_slowly(self: PartyJob, message: Message) -> Message:
        if isinstance(message, OpenScoring):
            at_work.set()
            go_on.wait(300)
        return handle(self, message)

    monkeypatch.setattr(PartyJob, "handle", handle_slowly)
    closing = threading.Thread(target=service.close, daemon=True)
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(user.scoring, model)
        try:
            assert at_work.wait(300)
            closing.start()
            closing.join(300)
            assert not closing.is_alive()
        finally:
            go_on.set()
            closing.join()
            world.coordinator = None
            user.close()
    assert isinstance(opening.exception(), WoodlotError)
