"""Disks that are full or read-only, and journals that end in the middle of a record."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import row_jobs
import vertical_jobs
from frame_proxy import Seen
from processes import wait_until
from row_jobs import clinics
from small_disk import small_disk
from small_jobs import COORDINATOR
from sweep import FaultStage, Step, named
from tally import Tally
from torn import last_transaction, log_of, moved, tear
from vertical_jobs import companies

from woodlot.runtime.frames import FrameKind
from woodlot.runtime.journal import Entry, Journal

pytestmark = pytest.mark.faults

TEAR_EVERY = 16
"""Bytes between two places at which the journal is torn; around the beginning of each page it is torn at every byte."""

STOPPED = "the job stops and says why, goes on when resumed; as if nothing had been; nothing paid twice"
TORN = "resumed by itself; all before the torn transaction kept; paid once"


def at_step(step: Step, act: Callable[[], None]) -> Callable[[Seen], None]:
    """Have something happen once, when a message has left its sender and has not arrived."""
    left = [act]

    def on_message(seen: Seen) -> None:
        if step == (seen.member, seen.kind, seen.number) and left:
            left.pop()()

    return on_message


def middles(stage: FaultStage[Any], order: Any, member: str, kind: FrameKind, count: int) -> list[Step]:
    """Steps of a member, spread over a job that is run for it."""
    steps = [step for step in stage.steps(order) if step.member == member and step.kind is kind]
    return [steps[len(steps) * (2 * n + 1) // (2 * count)] for n in range(count)]


@pytest.mark.parametrize(
    ("kind", "name", "victim"),
    [
        ("rows", "horizontal rounds, noisy sums", "bern"),
        ("rows", "horizontal rounds, noisy sums", COORDINATOR),
        ("columns", "revoke revocable, level 2", "helper"),
        ("columns", "revoke revocable, level 2", "keys"),
        ("columns", "revoke revocable, level 2", COORDINATOR),
    ],
)
def test_disks_that_fill_up_and_that_come_back_read_only(
    kind: str, name: str, victim: str, tmp_path: Path, tally: Tally
) -> None:
    make, module = (clinics, row_jobs) if kind == "rows" else (companies, vertical_jobs)
    protocol = named(module.PROTOCOLS, name)
    with small_disk(tmp_path / victim / "state") as disk, make(tmp_path) as stage:
        first = protocol.order(stage)
        member = stage.parties[0] if victim == COORDINATOR else victim
        places = middles(stage, first, member, FrameKind.request, 3)
        expected = protocol.outcome(stage, first.job)
        client = stage.user.client
        for place in places:
            with tally.checking(STOPPED, name) as noted:
                order = protocol.order(stage)
                noted["full disk"] += 1
                with stage.watched(order.job, at_step(place, disk.fill), can_record=False):
                    client.submit(order)
                    assert client.follow(order.job).state == "stopped"
                disk.clear()
                stage.proxy.said.clear()  # in place of a reply, that it could not be recorded
                client.resume(order.job)
                assert client.finish(order.job).state == "done"
                assert protocol.outcome(stage, order.job) == expected
                stage.check_journals(order.job)

        with tally.checking(protocol.proved, name) as noted:
            order = protocol.order(stage)

            def come_back_read_only() -> None:
                stage.kill((victim,), order.job)
                disk.remount("ro")
                begin = len(stage.running.log(victim))
                if victim == COORDINATOR:
                    stage.running.start_coordinator(listens=False)
                else:
                    stage.running.restart(victim)
                wait_until(lambda: stage.running.has_died(victim), f"{victim} to give up")
                assert "Read-only file system" in stage.running.log(victim)[begin:]
                assert "Traceback" not in stage.running.log(victim)[begin:]
                disk.remount("rw")
                stage.running.restart(victim)

            noted["read-only disk after a restart"] += 1
            stage.run_watched(order, at_step(places[1], come_back_read_only))
            assert protocol.outcome(stage, order.job) == expected
            stage.check_kept(order.job)


# --- torn journals ---


@pytest.fixture(scope="module")
def private(tmp_path_factory: pytest.TempPathFactory) -> Iterator[row_jobs.Rows]:
    with clinics(tmp_path_factory.mktemp("torn")) as made:
        yield made


@pytest.mark.parametrize("name", ["horizontal rounds, noisy sums", "horizontal rounds, collaborative"])
def test_a_party_dies_while_it_records_its_reply(private: row_jobs.Rows, name: str, tally: Tally) -> None:
    """The reply has not left, so it is made again: whatever was drawn for it was never seen, and is paid once."""
    stage, rng = private, random.Random(11)
    protocol = named(row_jobs.PROTOCOLS, name)
    first = protocol.order(stage)
    places = middles(stage, first, "bern", FrameKind.reply, 8)
    expected = protocol.outcome(stage, first.job)
    for place in places:
        with tally.checking(TORN, name) as noted:
            order = protocol.order(stage)

            def torn() -> None:
                stage.running.kill("bern")
                stage.proxy.lose("bern")  # or the coordinator would have a reply that was never recorded
                journal = stage.running.journal("bern")
                begin, end = last_transaction(journal)
                tear(journal, rng.randrange(begin, end))
                stage.proxy.said.clear()  # nobody has seen the reply, which may be another one now
                stage.running.restart("bern")

            noted["torn end of a party's journal"] += 1
            stage.run_watched(order, at_step(place, torn))
            assert protocol.outcome(stage, order.job) == expected
            stage.check_journals(order.job)


def test_a_coordinator_loses_the_end_of_its_journal(private: row_jobs.Rows, tally: Tally) -> None:
    """It does not wait for the disk, and asks again for what it has lost."""
    stage, rng = private, random.Random(12)
    protocol = named(row_jobs.PROTOCOLS, "horizontal rounds, noisy sums")
    first = protocol.order(stage)
    places = middles(stage, first, "anna", FrameKind.request, 6)
    expected = protocol.outcome(stage, first.job)
    for place in places:
        with tally.checking(TORN, protocol.name) as noted:
            order = protocol.order(stage)

            def torn() -> None:
                for name in stage.everybody:  # others too, so that they do not take longer and longer to connect
                    stage.running.kill(name)
                journal = stage.running.journal(COORDINATOR)
                begin, _ = last_transaction(journal)
                kept = max(begin // 2, moved(journal))
                tear(journal, rng.randrange(kept, max(kept, begin) + 1))  # some of what it had, too
                for name in stage.everybody:
                    stage.running.restart(name)

            noted["torn end of the coordinator's journal"] += 1
            stage.run_watched(order, at_step(place, torn))
            assert protocol.outcome(stage, order.job) == expected
            stage.check_journals(order.job)


def test_a_journal_torn_at_any_byte_is_whole_without_its_last_transaction(tmp_path: Path) -> None:
    tally = Tally("journal")
    path = tmp_path / "journal.sqlite"
    torn = tmp_path / "torn" / path.name
    torn.parent.mkdir()
    with Journal(path, durable=True) as journal:
        job = journal.job("x")
        for number in (1, 2, 3):
            job.append([Entry.of("coordinator", "a", number, "Question", os.urandom(700))])
        before = job.records()
        job.append(
            [Entry.of("coordinator", "a", 4, "Question", os.urandom(3000)), Entry.of("a", "b", 4, "Answer", b"")]
        )
        after = job.records()
        whole, log = path.read_bytes(), log_of(path).read_bytes()
        begin, end = last_transaction(path)
    assert end == len(log)
    edges = [at for at in range(begin, end + 1) if at % TEAR_EVERY == 0 or (at - begin) % 4120 < 40]

    def tear_at(at: int) -> None:
        for left in torn.parent.iterdir():
            left.unlink()
        for file, data in ((torn, whole), (log_of(torn), log[:at])):
            file.touch(0o600)
            file.write_bytes(data)

    with tally.checking("all transactions before it are there, and the next is written", "the journal itself") as noted:
        for at in [*edges, end]:
            tear_at(at)
            with closing(Journal.read(torn)) as read:
                read.job("x").verify()
                assert read.job("x").records() == (after if at == end else before), at
            noted["journal torn at a byte, and read"] += 1
        for at in random.Random(3).sample(edges, 20):
            tear_at(at)
            with Journal(torn, durable=True) as again:
                again.job("x").append([Entry.of("coordinator", "a", 4, "Question", b"again")])
                again.verify()
                assert again.job("x").records()[: len(before)] == before
            noted["journal torn at a byte, and written on"] += 1
    tally.write()
