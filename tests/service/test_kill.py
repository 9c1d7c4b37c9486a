"""Kill -9 of the coordinator or of a party at every round of a job: it is done without help, and the model is the same.

The victim's journal is watched from outside. As soon as a record has appeared the victim is killed and started again,
so within one job it dies at nearly every round. Where it died is read from its journal afterwards, and jobs are run
until there is no place left at which it has not died.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing

import pyarrow.parquet as pq
import pytest
from processes import Processes, processes, small_tables
from small_jobs import COORDINATOR, EVERYBODY, PARTIES, model_of, train_order, user_of
from world import World

from woodlot.connected import ConnectedFederation
from woodlot.protocols.messages.jobs import JobFacts
from woodlot.runtime.journal import Journal
from woodlot.service.orders import AnyOrder

MAX_JOBS = 8


class Stage:
    """A running federation of processes, and a user who waits for its jobs in a thread."""

    def __init__(self, running: Processes, user: ConnectedFederation, pool: ThreadPoolExecutor) -> None:
        self.running = running
        self.user = user
        self._pool = pool
        self.undisturbed, _ = self.run(self.train_order())
        self.expected = model_of(running.world.root, self.undisturbed)

    def train_order(self) -> AnyOrder:
        return train_order(self.user)

    def begin(self, order: AnyOrder) -> tuple[str, Future[JobFacts]]:
        self.user.client.submit(order)
        return order.job, self._pool.submit(self.user.client.finish, order.job)

    def run(self, order: AnyOrder) -> tuple[str, JobFacts]:
        job, end = self.begin(order)
        return job, end.result()

    def replies(self, name: str, job: str) -> int:
        with closing(Eye(self.running, name, job)) as eye:
            return eye.replies()

    def check_journals(self, job: str) -> None:
        """What one side sent, the other received; nothing is recorded twice, and no chain is broken."""
        of_coordinator = set()
        sent = {}
        for name in EVERYBODY:
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


class Eye:
    """Looks into a service's journal from outside, again and again."""

    def __init__(self, running: Processes, name: str, job: str) -> None:
        self._job = job
        self._db = sqlite3.connect(f"file:{running.journal(name)}?mode=ro", uri=True, isolation_level=None)

    def replies(self) -> int:
        """How many replies of the job are recorded."""
        found = self._db.execute("SELECT count FROM jobs WHERE job = ?", (self._job,)).fetchone()
        return 0 if found is None else int(found[0]) // 2

    def close(self) -> None:
        self._db.close()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    world = World(tmp_path_factory.mktemp("kill"), small_tables())
    with ThreadPoolExecutor(1) as pool, processes(world) as running:
        running.wait_connected()
        with user_of(world) as user:
            yield Stage(running, user, pool)


def kill_through(stage: Stage, order: AnyOrder, victim: str, wanted: set[int]) -> set[int]:
    """Run a job in which the victim is killed at as many of the wanted places as can be hit; returns these.

    A place is the number of replies that its journal has.
    """
    job, end = stage.begin(order)
    hit: set[int] = set()
    kills = 0
    with closing(Eye(stage.running, victim, job)) as eye:
        while not end.done():
            at = eye.replies()
            if at not in wanted - hit:
                time.sleep(0.0002)
                continue
            stage.running.kill(victim)
            kills += 1
            hit.add(eye.replies())
            stage.running.restart(victim)
            if victim == COORDINATOR and kills % 4 == 0:
                for party in PARTIES:  # new processes, or they would wait longer and longer between attempts
                    stage.running.kill(party)
                    stage.running.restart(party)
    assert end.result().state == "done"
    stage.check_journals(job)
    return hit


def kill_everywhere(stage: Stage, make_order: Callable[[], AnyOrder], victim: str, total: int) -> list[str]:
    """Run jobs until the victim has died at every place; returns the jobs."""
    left, jobs = set(range(total)), list[str]()
    while left:
        assert len(jobs) < MAX_JOBS, f"{victim} never died after {sorted(left)} replies"
        order = make_order()
        left -= kill_through(stage, order, victim, left)
        jobs.append(order.job)
    return jobs


@pytest.mark.parametrize("victim", EVERYBODY)
def test_a_death_at_any_round_of_a_training_changes_nothing(stage: Stage, victim: str) -> None:
    total = stage.replies(victim, stage.undisturbed)
    assert total > 12
    for job in kill_everywhere(stage, stage.train_order, victim, total):
        assert model_of(stage.running.world.root, job) == stage.expected


def test_deaths_at_any_instant_change_nothing(stage: Stage) -> None:
    """At no particular moment, so also in the middle of a round's work; sometimes two or all at the same time."""
    rng = random.Random(5)
    for _ in range(3):
        job, end = stage.begin(stage.train_order())
        for _ in range(5):
            if end.done():
                break
            time.sleep(rng.uniform(0.0, 0.06))
            victims = rng.sample(EVERYBODY, rng.choice([1, 1, 2, 3]))
            for victim in victims:
                stage.running.kill(victim)
            for victim in victims:
                stage.running.restart(victim)
        assert end.result().state == "done"
        stage.check_journals(job)
        assert model_of(stage.running.world.root, job) == stage.expected


def test_a_death_at_any_round_of_a_private_intersection_changes_nothing(stage: Stage) -> None:
    with user_of(stage.running.world, align="psi") as user:
        job, facts = stage.run(user.align_order())
        kept = rows_kept(stage, job)
        for victim in PARTIES:
            for again in kill_everywhere(stage, user.align_order, victim, stage.replies(victim, job)):
                assert rows_kept(stage, again) == kept
                assert user.client.job(again).common == facts.common


def rows_kept(stage: Stage, job: str) -> dict[str, bytes]:
    root = stage.running.world.root
    return {p: (root / p / "state" / "alignments" / job / "rows.npy").read_bytes() for p in PARTIES}


@pytest.mark.parametrize("victim", EVERYBODY)
def test_a_death_at_any_round_of_a_prediction_changes_nothing(stage: Stage, victim: str) -> None:
    def order() -> AnyOrder:
        return stage.user.predict_order(stage.undisturbed, "bank.late", deliver_to="bank")

    root = stage.running.world.root
    job, facts = stage.run(order())
    expected = pq.read_table(root / "bank" / "state" / "answers" / f"{job}.parquet")
    answers = stage.user.client.predictions(job).outputs
    for again in kill_everywhere(stage, order, victim, stage.replies(victim, job)):
        assert pq.read_table(root / "bank" / "state" / "answers" / f"{again}.parquet").equals(expected)
        assert (stage.user.client.predictions(again).outputs == answers).all()
        assert stage.user.client.job(again).score == facts.score
        for party in PARTIES:  # however often it was asked, a row counts once
            assert rows_spent(stage, party, again) == rows_spent(stage, party, job) == len(answers)


def rows_spent(stage: Stage, party: str, job: str) -> int:
    path = stage.running.world.root / party / "state" / "predictions.sqlite"
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        (rows,) = db.execute("SELECT sum(rows) FROM spent WHERE job = ?", (job,)).fetchone()
    return int(rows)
