"""Deaths and standstills of any process at any step of any protocol, step by step.

A step is a message that has left its sender and has not arrived: the proxy holds it while the fault happens. So a party
that dies at its request has not begun, one that dies at its reply has recorded it and nobody knows; and the coordinator
that dies at a reply has to ask again. A protocol is run once without faults, which gives its steps; then again with
faults at every so many of them, at victims in turn, a few faults in each run.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from frame_proxy import FrameProxy, Seen
from kill_stage import ONE_OF, Stage
from processes import Processes, processes, wait_until
from small_jobs import COORDINATOR
from tally import Tally
from world import World

from woodlot.connected import ConnectedFederation
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.orders import Order
from woodlot.runtime.drivers.grpc_line import CoordinatorAwayError
from woodlot.runtime.frames import FrameKind
from woodlot.runtime.journal import Journal

FAULTS_IN_A_RUN = 4
PATIENCE = 600.0
"""Seconds that users and jobs wait for a process that is being started again, on a busy machine."""
STANDSTILL = 0.4
"""Seconds of a short SIGSTOP, which nobody misses. A long one lasts until its victim is missed."""
PROVED = "resumed by itself; same result bit for bit; every recorded message kept; nothing paid twice"
DRAWN_ONCE = "resumed by itself; every message repeated byte for byte, noise included, and kept; paid once"
"""Of protocols with new noise in every job, whose results differ anyway."""

U = TypeVar("U", bound=ConnectedFederation)


class Step(NamedTuple):
    """A message of a job, at which something happens."""

    member: str
    kind: FrameKind
    number: int


class Fault(NamedTuple):
    """What happens to whom."""

    how: str
    victim: str


@dataclass(frozen=True)
class Protocol:
    """One kind of job.

    Attributes
    ----------
    name : str
        For the account.
    order : callable
        Makes an order; every one must come to the same outcome. It may run what comes before.
    outcome : callable
        From a job that is done to what must be the same however often somebody dies.
    every : int
        Faults come at every so many steps.
    proved : str
        What is then as it has to be.

    """

    name: str
    order: Callable[[Any], Order]
    outcome: Callable[[Any, str], Any]
    every: int = 3
    proved: str = PROVED


class FaultStage(Stage[U]):
    """Processes behind a frame proxy."""

    def __init__(
        self,
        running: Processes,
        proxy: FrameProxy,
        user: U,
        pool: ThreadPoolExecutor,
        train_order: Callable[[U], Order],
        outcome_of: Callable[[str], Any],
    ) -> None:
        self.proxy = proxy
        self._turn = threading.Lock()
        self._snapshots: list[tuple[str, list[tuple[int, bytes]]]] = []
        self._coordinator_deaths = 0
        self._made: dict[str, str] = {}
        self._waking: list[threading.Thread] = []
        super().__init__(running, user, pool, train_order, outcome_of)

    # --- runs ---

    def begin(self, order: Order) -> tuple[str, Future[JobFacts]]:
        """Order a job, and wait for it in a thread: for longer than a user would, since the machine may be busy."""
        self._insist(lambda: self.user.client.submit(order))
        return order.job, self._pool.submit(self._insist, lambda: self.user.client.finish(order.job))

    def _insist(self, ask: Callable[[], JobFacts]) -> JobFacts:
        until = time.monotonic() + PATIENCE
        while True:
            try:
                return ask()
            except CoordinatorAwayError:
                if time.monotonic() > until:
                    raise

    def once(self, what: str, make: Callable[[Any], Order]) -> str:
        """A job that others build on, run when it is first needed."""
        if what not in self._made:
            self._made[what], _ = self.run(make(self))
        return self._made[what]

    def steps(self, order: Order) -> list[Step]:
        """Run a job without faults; returns its messages in the order in which they were sent."""
        steps: dict[Step, None] = {}

        def note(seen: Seen) -> None:
            steps[Step(seen.member, seen.kind, seen.number)] = None

        self.run_watched(order, note)
        return list(steps)

    def run_watched(self, order: Order, on_message: Callable[[Seen], None]) -> None:
        """Run a job, and call for each of its messages; what the call raises is raised when the job is done."""
        with self.watched(order.job, on_message):
            self.run(order)

    @contextmanager
    def watched(self, job: str, on_message: Callable[[Seen], None], *, can_record: bool = True) -> Iterator[None]:
        """Call for each message of a job meanwhile; each reply must have been recorded before it was sent.

        But for those by which a member says that it cannot record.
        """
        wrong: list[BaseException] = []

        def call(seen: Seen) -> None:
            if seen.job == job:
                try:
                    if can_record:
                        self._check_recorded(seen)
                    on_message(seen)
                except BaseException as error:  # noqa: BLE001 - it must not get lost in a thread of the proxy's
                    wrong.append(error)

        self.proxy.on_message = call
        try:
            yield
        finally:
            self.proxy.on_message = None
            if wrong:
                raise wrong[0]
        assert self.proxy.wrong == []

    def _check_recorded(self, seen: Seen) -> None:
        """A reply that is on its way is in its sender's journal: whoever dies now still knows what it has said."""
        if seen.kind is FrameKind.reply and seen.member in self.parties:
            with closing(Journal.read(self.running.journal(seen.member))) as journal:
                numbers = {record.number for record in journal.job(seen.job).records() if record.sender == seen.member}
            assert seen.number in numbers, f"{seen} was sent before it was recorded"

    def run_with(self, order: Order, faults: dict[Step, Fault], noted: Counter[str]) -> None:
        """Run a job in which things happen; all of them do, and none loses anything that was recorded."""
        due = dict(faults)
        self._snapshots.clear()

        def act(seen: Seen) -> None:
            with self._turn:
                fault = due.pop(Step(seen.member, seen.kind, seen.number), None)
                if fault is not None:
                    noted[self.inflict(fault, order.job)] += 1

        try:
            self.run_watched(order, act)
        finally:
            for thread in self._waking:  # nobody is left frozen
                thread.join()
            self._waking.clear()
        assert not due
        self.check_kept(order.job)

    def check_kept(self, job: str) -> None:
        """Both sides have recorded the same, and all that was recorded when somebody died is there."""
        self.check_journals(job)
        for name, before in self._snapshots:
            assert self.recorded(name, job)[: len(before)] == before
        self._snapshots.clear()

    def inflict(self, fault: Fault, job: str) -> str:
        """Have it happen, now; returns what it was, for the account."""
        if fault.how == "cut of the line":
            self.proxy.cut(fault.victim)
        elif fault.how == "message held up":
            time.sleep(STANDSTILL)  # all of the job waits for it
            return fault.how
        elif fault.how == "SIGSTOP":
            self.running.freeze(fault.victim)
            self._wake(threading.Timer(STANDSTILL, self._thaw, [self.running.pid(fault.victim)]))
        elif fault.how == "SIGSTOP until missed":
            self._freeze_until_missed(fault.victim)
        else:
            victims = self.everybody if fault.how == "kill -9 at once" else (fault.victim,)
            self._coordinator_deaths += COORDINATOR in victims
            if self._coordinator_deaths % 3 == 2 and victims == (COORDINATOR,):
                # New processes, or the parties would wait longer and longer between their attempts to connect.
                victims = self.everybody
            self.kill(victims, job)
            for victim in random.Random(len(self._snapshots)).sample(victims, len(victims)):
                self.running.restart(victim)
            if victims == self.everybody:
                return "kill -9 at once of everybody"
        return f"{fault.how} of {kind_of(fault)}"

    def kill(self, victims: Sequence[str], job: str, *, cleanly: bool = False) -> None:
        """End processes, and remember what they have recorded of a job."""
        for victim in victims:
            (self.running.stop if cleanly else self.running.kill)(victim)
        self._snapshots += [(victim, self.recorded(victim, job)) for victim in victims]

    def _thaw(self, pid: int) -> None:
        with suppress(ProcessLookupError):  # it has died since
            os.kill(pid, signal.SIGCONT)

    def _freeze_until_missed(self, victim: str) -> None:
        """Others take it for dead, and it does not know."""
        pid = self.running.pid(victim)

        def ended() -> int:
            return self.proxy.ended.total() if victim == COORDINATOR else self.proxy.ended[victim]

        before = ended()

        def wake() -> None:
            try:
                wait_until(lambda: ended() > before, f"{victim} to be missed")
            finally:
                self._thaw(pid)

        self.running.freeze(victim)
        self._wake(threading.Thread(target=wake))

    def _wake(self, thread: threading.Thread) -> None:
        self._waking.append(thread)
        thread.start()

    def recorded(self, name: str, job: str) -> list[tuple[int, bytes]]:
        """What a service's journal has of a job: one link for each record."""
        with closing(Journal.read(self.running.journal(name))) as journal:
            return [(record.position, record.chain) for record in journal.job(job).records()]


def named(protocols: list[Protocol], name: str) -> Protocol:
    """The protocol of that name."""
    return next(protocol for protocol in protocols if protocol.name == name)


def kind_of(fault: Fault) -> str:
    """Whom a fault hits, for the account."""
    roles = {COORDINATOR: "the coordinator", "helper": "the helper", "keys": "the key service"}
    return roles.get(fault.victim, "a party")


def deal(steps: list[Step], victims: tuple[str, ...], every: int, seed: int) -> list[dict[Step, Fault]]:
    """Faults at every so many steps, in runs of a few; all victims come in turn, and each at steps of its own too."""
    rng = random.Random(seed)
    chosen = list(range(rng.randrange(every), len(steps), every))
    faults: dict[int, Fault] = {}
    turns = rng.sample(victims, len(victims))
    for turn, place in enumerate(chosen):
        victim = turns[turn // 2 % len(turns)]
        if turn % 2:
            victim = rng.choice([steps[place].member, COORDINATOR])  # who sends or gets this very message
        how = rng.choice(["kill -9", "kill -9", "kill -9", "SIGSTOP", "cut of the line", "message held up"])
        faults[place] = Fault(how, steps[place].member if how == "cut of the line" else victim)
    faults[rng.choice(chosen)] = Fault("kill -9 at once", COORDINATOR)
    n_runs = -(-len(chosen) // FAULTS_IN_A_RUN)
    return [{steps[place]: faults[place] for place in chosen[run::n_runs]} for run in range(n_runs)]


def play(stage: FaultStage[Any], order: Any, actions: dict[Step, Callable[[], None]]) -> None:
    """Run a job in which something happens at steps of it."""
    due = dict(actions)

    def on_message(seen: Any) -> None:
        if act := due.pop(Step(seen.member, seen.kind, seen.number), None):
            act()

    stage.run_watched(order, on_message)
    assert not due
    stage.check_kept(order.job)


def tried(stage: FaultStage[Any], protocol: Protocol) -> tuple[list[Step], Any]:
    """The steps of a protocol, and its outcome."""
    first = protocol.order(stage)
    return stage.steps(first), protocol.outcome(stage, first.job)


def sweep(stage: FaultStage[Any], protocol: Protocol, tally: Tally, seed: int = 0) -> None:
    """Run a protocol with faults at its steps; everything must come out as without."""
    steps, expected = tried(stage, protocol)
    victims = (COORDINATOR, *dict.fromkeys(step.member for step in steps))
    for faults in deal(steps, victims, min(protocol.every * ONE_OF, len(steps)), seed):
        with tally.checking(protocol.proved, protocol.name) as noted:
            again = protocol.order(stage)
            stage.run_with(again, faults, noted)
            assert protocol.outcome(stage, again.job) == expected, faults


def stand_still(stage: FaultStage[Any], protocol: Protocol, victim: str, tally: Tally) -> None:
    """Run a protocol in which somebody stands still until it is missed; everything must come out as without."""
    steps, expected = tried(stage, protocol)
    with tally.checking(protocol.proved, protocol.name) as noted:
        order = protocol.order(stage)
        place = next(step for step in steps[len(steps) // 2 :] if victim in (step.member, COORDINATOR))
        stage.run_with(order, {place: Fault("SIGSTOP until missed", victim)}, noted)
        assert protocol.outcome(stage, order.job) == expected


@contextmanager
def behind_proxy(world: World) -> Iterator[tuple[Processes, FrameProxy]]:
    """The services of a world, whose members reach the coordinator through a frame proxy."""
    proxy = FrameProxy(world.root, lambda: world.address)
    world.coordinator_settings["wait_for_parties"] = PATIENCE
    proxy.start()
    try:
        for settings in world.settings.values():
            settings["coordinator"] = proxy.address
        with processes(world) as running:
            running.wait_connected()
            yield running, proxy
    finally:
        proxy.close()
