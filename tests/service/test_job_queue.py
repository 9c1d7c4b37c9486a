"""Whose job is next: nobody's jobs keep those of others waiting whose parties are there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from fault_stage import Stage, half_way, stage_of
from processes import wait_until
from shared import Shared
from small_jobs import COORDINATOR, model_of, user_of

from woodlot.jobs.job_messages import JobFacts
from woodlot.runtime.drivers.carried import Numbered
from woodlot.service import job_queue
from woodlot.service.job_queue import JobQueue
from woodlot.service.live import LiveJob

SOON = 15.0
"""Seconds within which a job begins and ends whose parties are there, on a busy machine."""


# --- the rules ---


def live(job: str, user: str, *parties: str, started: float | None = None) -> LiveJob:
    return LiveJob(
        JobFacts(
            job=job, kind="align", user=user, state="queued", version=1, created=0.0, parties=parties, started=started
        )
    )


class Carried:
    """A carrier that only knows whether it was closed."""

    closed = False

    def carry(
        self,
        requests: Mapping[str, Numbered],
        on_reply: Callable[[str, bytes], None],
        *,
        wait_seconds: float | None = None,
    ) -> None: ...

    def close(self) -> None:
        self.closed = True


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(job_queue.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def taken(queue: JobQueue) -> str | None:
    job = queue.take(wait=False)
    return None if job is None else job.facts.job


def test_users_take_turns() -> None:
    queue = JobQueue(lambda: ("bank",), 60)
    for job, user in [("m1", "mallory"), ("m2", "mallory"), ("m3", "mallory"), ("a1", "alice"), ("b1", "bob")]:
        queue.put(live(job, user, "bank"))
    assert [taken(queue) for _ in range(3)] == ["m1", "a1", "b1"]
    queue.put(live("a2", "alice", "bank"))
    assert [taken(queue) for _ in range(4)] == ["m2", "a2", "m3", None]
    queue.close()
    assert queue.take() is None


def test_a_job_is_begun_when_its_parties_are_there(clock: Clock) -> None:
    here = ["bank"]
    queue = JobQueue(lambda: here, 60)
    first, second = live("m1", "mallory", "bank", "gone"), live("m2", "mallory", "bank")
    queue.put(first)
    queue.put(second)
    assert first.facts.waiting_for == ("gone",)
    assert [taken(queue), taken(queue)] == ["m2", None]
    here.append("gone")
    assert taken(queue) == "m1"
    assert first.facts.waiting_for == ()


def test_a_job_that_waits_in_vain_stops_and_one_that_is_cancelled_ends(clock: Clock) -> None:
    here = ["bank"]
    queue = JobQueue(lambda: here, 60)
    waits, cancelled, ready = (live(*of) for of in [("1", "m", "gone"), ("2", "m", "gone"), ("3", "m", "bank")])
    for job in (waits, cancelled, ready):
        queue.put(job)
    cancelled.cancelled.set()
    assert queue.look() == [(cancelled, {"state": "cancelled"})]
    clock.now += 59
    assert queue.look() == []
    here.append("gone")
    clock.now += 59
    queue.look()  # it was there: that does not count
    here.remove("gone")
    clock.now += 2
    [(job, ended)] = queue.look()
    assert job is waits
    assert ended["state"] == "stopped"
    assert ended["error"].startswith("party 'gone' was not connected for 61.0 s, and the limit is 60 s; start its")
    assert [taken(queue), taken(queue)] == ["3", None]


def test_a_job_at_work_gives_way_only_where_another_could_run(clock: Clock) -> None:
    here = ["bank", "shop"]
    queue = JobQueue(lambda: here, 60)
    job, carrier = live("1", "mallory", "bank", "shop"), Carried()
    queue.put(job)
    assert taken(queue) == "1"
    queue.begin("1", carrier, None)
    here.remove("shop")
    job.change(waiting_for=("shop",), state="running")
    queue.put(live("2", "alice", "bank", "shop"))
    for _ in range(10):  # nobody needs its worker: the other job could not run either
        clock.now += 1
        assert queue.look() == []
    assert not carrier.closed
    assert not queue.put_back("1")
    queue.put(live("3", "alice", "bank"))
    queue.look()
    assert carrier.closed
    assert queue.put_back("1")
    assert (job.facts.state, job.facts.waiting_for) == ("queued", ("shop",))
    assert [taken(queue), taken(queue)] == ["3", None]
    clock.now += 51
    [(stopped, ended), *_] = queue.look()  # the time before it gave way counts
    assert stopped is job
    assert "not connected for 60.0 s" in ended["error"]


def test_a_job_that_is_back_soon_or_can_do_without_a_party_does_not_give_way(clock: Clock) -> None:
    queue = JobQueue(lambda: ("bank",), 60)
    job, carrier = live("1", "mallory", "bank", started=5.0), Carried()
    queue.put(job)
    assert taken(queue) == "1"
    queue.begin("1", carrier, 30.0)
    queue.put(live("2", "alice", "bank"))
    job.change(waiting_for=("shop",), phase="sum")
    queue.look()
    clock.now += 29
    queue.look()
    assert not carrier.closed
    job.change(phase="open")  # in the first round it cannot
    queue.look()
    assert carrier.closed


def test_what_was_begun_goes_on_whoever_is_there() -> None:
    """After a restart: whether it needs the one who is away is known to its journal only."""
    queue = JobQueue(tuple, 60)
    queue.put(live("1", "alice", "bank", started=5.0))
    assert taken(queue) == "1"


# --- with processes ---


@pytest.fixture(scope="module")
def narrow_stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[Stage]]:
    with Shared(lambda: stage_of(tmp_path_factory.mktemp("narrow"), max_running_jobs=1)) as shared:
        yield shared


@pytest.fixture
def narrow(narrow_stages: Shared[Stage], request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A coordinator that runs one job at a time."""
    yield from narrow_stages.lend(request)


def aligned_at_bank(stage: Stage) -> None:
    """Have alice's job with the bank alone run."""
    with user_of(stage.world, parties=("bank",)) as alice:
        job = alice.client.submit(alice.align_order()).job
        wait_until(lambda: alice.client.job(job).state == "done", "alice's job", SOON)


def test_users_who_wait_for_a_party_keep_nobody_waiting(narrow: Stage) -> None:
    """Neither of them may do anything at any party; the jobs of both would fail, if only the shop were there."""
    for name in ("eve", "mallory"):
        narrow.world.member("user", name)
    narrow.running.stop("shop")
    with user_of(narrow.world, "eve") as eve, user_of(narrow.world, "mallory") as mallory:
        jobs = [(user.client, user.client.submit(user.align_order()).job) for user in (eve, mallory) for _ in range(3)]
        aligned_at_bank(narrow)
        for client, job in jobs:
            assert client.job(job).waiting_for == ("shop",)
        eve.client.cancel(jobs[0][1])
        assert eve.client.follow(jobs[0][1]).state == "cancelled"
        narrow.running.stop(COORDINATOR)
        narrow.running.restart(COORDINATOR)
        aligned_at_bank(narrow)
        narrow.start("shop")
        for client, job in jobs[1:]:
            facts = client.follow(job)
            assert facts.state == "failed"
            assert "policy" in facts.error


def test_a_job_that_has_lost_a_party_gives_way_and_grows_the_same_forest(narrow: Stage) -> None:
    job = half_way(narrow, "shop", 6)
    wait_until(lambda: narrow.alice.client.job(job).waiting_for == ("shop",), "the training to wait")
    aligned_at_bank(narrow)
    facts = narrow.alice.client.job(job)
    assert (facts.state, facts.waiting_for) == ("queued", ("shop",))
    narrow.start("shop")
    narrow.alice.client.finish(job)
    assert model_of(narrow.world.root, job) == narrow.expected


@pytest.mark.slow
def test_a_job_that_has_given_way_stops_in_time(tmp_path: Path) -> None:
    with stage_of(tmp_path, patience=5.0, max_running_jobs=1) as hasty:
        job = half_way(hasty, "shop", 6)
        aligned_at_bank(hasty)
        facts = hasty.alice.client.follow(job)
        assert facts.state == "stopped"
        assert re.match(r"party 'shop' was not connected for 5\.\d s, and the limit is 5 s; start its", facts.error)
        hasty.start("shop")
        hasty.alice.client.resume(job)
        hasty.alice.client.finish(job)
        assert model_of(hasty.world.root, job) == hasty.expected
