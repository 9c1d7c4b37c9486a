"""Who waits for news of a job: all but progress is told at once, and progress not too often."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from woodlot.jobs.job_messages import JobFacts
from woodlot.service import live as module
from woodlot.service.live import NEWS_SECONDS, LiveJob


class Clock:
    """A time that stands still, and what is to be called later."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.calls: list[tuple[float, Callable[[], object]]] = []
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(module, "call_later", lambda seconds, call: self.calls.append((self.now + seconds, call)))

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [call for at, call in self.calls if at <= self.now]
        self.calls = [(at, call) for at, call in self.calls if at > self.now]
        for call in due:
            call()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def running() -> LiveJob:
    return LiveJob(JobFacts(job="a" * 32, kind="train", user="alice", state="running", version=1, created=0.0))


def test_states_and_phases_are_told_at_once(clock: Clock) -> None:
    live = running()
    for fields in ({"phase": "open"}, {"phase": "grow"}, {"waiting_for": ("bank",)}, {"state": "done"}):
        news = live.watch(live.facts.version)
        assert not news.done()
        live.change(**fields)
        assert news.done()
        assert news.result() == live.facts


def test_progress_is_told_now_and_then_with_all_that_has_come_meanwhile(clock: Clock) -> None:
    live = running()
    first = live.watch(live.facts.version)
    live.change(done=1, total=100)
    assert first.result().done == 1
    told = 1
    seen = first.result().version
    for done in range(2, 100):
        news = live.watch(seen)
        live.change(done=done, total=100)
        clock.advance(NEWS_SECONDS / 10)
        if news.done():
            seen, told = news.result().version, told + 1
            assert news.result().done >= done - 1
    assert 8 <= told <= 11  # 98 changes in 9.8 times as long as one must wait
    last = live.watch(seen)
    live.change(state="done")
    assert last.result().state == "done"


def test_who_asks_late_is_told_of_a_phase_at_once_and_of_progress_soon(clock: Clock) -> None:
    live = running()
    live.change(phase="grow")
    assert live.watch(1).done()
    seen = live.facts.version
    live.change(done=1, total=2)
    news = live.watch(seen)
    assert not news.done()
    clock.advance(NEWS_SECONDS)
    assert news.result().done == 1
    assert live.watch(0).done()  # who has seen nothing
    assert live.watch(live.facts.version + 5).done()  # who has seen more than there is since a restart


def test_nobody_is_kept_when_the_coordinator_ends(clock: Clock) -> None:
    live = running()
    news = live.watch(live.facts.version)
    live.release()
    assert news.done()
    assert live.watch(live.facts.version).done()
