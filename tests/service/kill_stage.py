"""Kill -9 of services while a job runs: at every round, or at any instant.

The victim stands still at each place where it is to die, and says so (see `halts`). It is killed there and started
again, so within one job it dies at every round.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Any, Generic, TypeVar

from processes import Processes, records_in
from small_jobs import COORDINATOR

from woodlot.connected import ConnectedFederation
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.orders import Order
from woodlot.runtime.journal import Journal

ONE_OF = int(os.environ.get("WOODLOT_FAULTS_ONE_OF", "1"))
"""Of the places where something can happen, one of so many is tried: `make test-faults` tries all."""

U = TypeVar("U", bound=ConnectedFederation)


class Stage(Generic[U]):
    """A running federation of processes, and a user who waits for its jobs in a thread.

    Parameters
    ----------
    running : Processes
        The services.
    user : ConnectedFederation
        Who orders.
    pool : ThreadPoolExecutor
        Where the user waits.
    train_order : callable
        From the user to an order for the training that all jobs repeat.
    outcome_of : callable
        From a training to what must be the same however often somebody dies.

    """

    def __init__(
        self,
        running: Processes,
        user: U,
        pool: ThreadPoolExecutor,
        train_order: Callable[[U], Order],
        outcome_of: Callable[[str], Any],
    ) -> None:
        self.running = running
        self.user = user
        self.parties = tuple(running.world.settings)
        self.everybody = (COORDINATOR, *self.parties)
        self._pool = pool
        self._train_order = train_order
        self.outcome_of = outcome_of
        self.undisturbed, _ = self.run(self.train_order())
        self.expected = outcome_of(self.undisturbed)

    def train_order(self) -> Order:
        return self._train_order(self.user)

    def begin(self, order: Order) -> tuple[str, Future[JobFacts]]:
        self.user.client.submit(order)
        return order.job, self._pool.submit(self.user.client.finish, order.job)

    def run(self, order: Order) -> tuple[str, JobFacts]:
        job, end = self.begin(order)
        return job, end.result()

    def replies(self, name: str, job: str) -> int:
        """How many replies of a job a service has journalled."""
        return records_in(self.running.journal(name), job) // 2

    def check_journals(self, job: str) -> None:
        """What one side sent, the other received; nothing is recorded twice, and no chain is broken."""
        of_coordinator = set()
        sent = {}
        for name in self.everybody:
            with closing(Journal.read(self.running.journal(name))) as journal:
                journal.job(job).verify()
                records = [r for r in journal.job(job).records() if r.sender]
            rows = [(r.sender, r.receiver, r.number, r.kind, r.digest) for r in records]
            assert len(set(rows)) == len(rows)
            if name == COORDINATOR:
                of_coordinator = set(rows)
            else:
                sent[name] = set(rows)
        assert of_coordinator == set().union(*sent.values())


def kill_through(stage: Stage[Any], order: Order, victim: str, wanted: set[int]) -> set[int]:
    """Run a job in which the victim is killed at all wanted places that the job comes by; returns these.

    A place is the number of replies that its journal has.
    """
    hit: set[int] = set()
    with stage.running.halt(victim, order.job, wanted) as halt:
        job, end = stage.begin(order)
        end.add_done_callback(halt.ended)
        while (place := halt.wait()) is not None:
            stage.running.kill(victim)
            hit.add(place)
            halt.want(wanted - hit)
            stage.running.restart(victim)
            if victim == COORDINATOR and len(hit) % 4 == 0:
                for party in stage.parties:  # new processes, or they would wait longer and longer between attempts
                    stage.running.kill(party)
                    stage.running.restart(party)
    assert end.result().state == "done"
    stage.check_journals(job)
    return hit


def kill_everywhere(
    stage: Stage[Any], make_order: Callable[[], Order], victim: str, total: int, step: int = 1
) -> list[str]:
    """Run a job in which the victim dies at every place, or at every so many (`ONE_OF`); returns it."""
    order, places = make_order(), set(range(0, total, step * ONE_OF))
    hit = kill_through(stage, order, victim, places)
    assert hit == {place for place in places if place <= stage.replies(victim, order.job)}
    return [order.job]


def kill_at_random(stage: Stage[Any], jobs: int, seed: int) -> list[str]:
    """Run trainings in which anybody dies at any instant, sometimes several at once; returns the jobs."""
    rng, done = random.Random(seed), []
    for _ in range(jobs):
        job, end = stage.begin(stage.train_order())
        for _ in range(5):
            if end.done():
                break
            time.sleep(rng.uniform(0.0, 0.06))
            victims = rng.sample(stage.everybody, rng.choice([1, 1, 2, 3]))
            for victim in victims:
                stage.running.kill(victim)
            for victim in victims:
                stage.running.restart(victim)
        assert end.result().state == "done"
        stage.check_journals(job)
        done.append(job)
    return done
