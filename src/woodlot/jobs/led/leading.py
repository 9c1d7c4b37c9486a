"""The leader's side of a job that it leads: it runs the protocol, and asks the other parties by sealed frames.

`Leading` is driven by the requests that the coordinator relays: the answers of a round go in, the next round comes out.
So the leader is rebuilt after a crash as every party is, from the record of what it was asked. Its own part in the
protocol it asks directly, in a thread of its own while the other parties work on theirs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import (
    DataError,
    JournalError,
    LocalProtocolError,
    PolicyError,
    RemoteProtocolError,
    WoodlotError,
)
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.common_rows import CommonRowCounts
from woodlot.jobs.home import Work
from woodlot.jobs.hosting import JobHost, new_facts
from woodlot.jobs.job_store import UNFINISHED, JobStore
from woodlot.jobs.kind import CoordinatorHost, kind_of
from woodlot.jobs.led.dealing import DEALER
from woodlot.jobs.led.frame_seal import Ways
from woodlot.jobs.led.led_messages import LeadOn, LedStep, TakeFrames, in_parts
from woodlot.jobs.led.led_scores import LedScoring
from woodlot.jobs.order_seal import read_order
from woodlot.jobs.orders import Order, ScoreOrder
from woodlot.protocols.core.message import Message, Refusal, Role, Round
from woodlot.protocols.vertical.score import Scorer
from woodlot.runtime.audit import Ledger
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.run import Ended, Stepper

Frames = Mapping[str, NDArray[np.uint8]]

ENDED = LedStep(phase="done", done=0, total=0, ended=True, frames={})
"""The last step of every job."""

SCORE = str(ScoreOrder.__struct_config__.tag)
"""The kind of job that has no outcome: it is over when the coordinator says so."""


@dataclass(frozen=True, eq=False)
class LeaderSeat:
    """What a leader has for one job.

    Attributes
    ----------
    host : JobHost
        The leader as the host of a protocol: it keeps what comes of it.
    order : Order
        What was ordered.
    opening : OpenJob
        With the order, as it was brought.
    user : str
        Who has signed it.
    own : Work
        The leader's own part: it answers what the protocol asks it.
    ways : mapping of str to Ways
        The seals between the leader and each other party.
    replays : callable
        Whether the job is being rebuilt after a restart.
    key : bytes
        Of a scoring: what came from the user in the leader's part of the order.

    """

    host: JobHost
    order: Order
    opening: msg.OpenJob
    user: str
    own: Work
    ways: Mapping[str, Ways]
    replays: Callable[[], bool]
    key: bytes = field(default=b"", repr=False)

    def begin_own(self, data: bytes) -> Future[bytes]:
        """Have the leader's own part answer a request, while others work."""
        own: Future[bytes] = Future()

        def work() -> None:
            try:
                own.set_result(encode(self.own.handle(decode(data))))
            except BaseException as error:  # noqa: BLE001 - raised where the answer is needed
                own.set_exception(error)

        if self.replays():  # certificates may have expired since: the thread must not outlast the replay
            work()
        else:
            threading.Thread(target=work, name="woodlot-leader", daemon=True).start()
        return own


class Leading:
    """One job at its leader.

    Parameters
    ----------
    seat : LeaderSeat
        The job.
    rows : CommonRowCounts
        The common rows.

    """

    def __init__(self, seat: LeaderSeat, rows: CommonRowCounts) -> None:
        self._seat = seat
        host, order = seat.host, seat.order
        if not seat.replays():  # what was good when the job began may be too old now
            host.check(order, seat.user)
        self._facts = self._recorded()
        self._ledger = Ledger(host=f"{host.identity.name} (leader)")
        protocol = kind_of(order).protocol(
            order, seat.opening, CoordinatorHost(host.store, host.n_jobs, rows, seat.own)
        )
        self._steps: Stepper[Any] = Stepper(protocol, self._ledger)
        self._numbers = dict.fromkeys(seat.ways, 0)
        self._round: Round | None = None
        self._own: Future[bytes] | None = None
        self._taken: dict[str, bytes] = {}  # answers that came before the last ones of their round
        self._unsent: list[LedStep] = []  # the rest of a round that does not fit into one message
        self.scoring: LedScoring | None = None

    def _recorded(self) -> msg.JobFacts:
        """The job in the leader's own record; after a restart it is there already."""
        store, order, opening = self._seat.host.store, self._seat.order, self._seat.opening
        stored = store.job(order.job)
        if stored is not None:
            return stored.facts
        facts = msgspec.structs.replace(new_facts(order, self._seat.user), state="running", started=time.time())
        # with what was sealed to the leader alone: by this plan the forest grows again if a party leaves
        data = opening.order if read_order(opening.order) == order else msgspec.json.encode(order)
        store.add(data, opening.signature, opening.certificate, facts)
        return facts

    def begin(self) -> LedStep:
        """The first round."""
        return self._next(self._steps.begin)

    def go_on(self, frames: Frames) -> LedStep:
        """Take the answers to the round before; returns the next one. Frames that are not theirs change nothing."""
        step = self._asked_round()
        if set(frames) | set(self._taken) != set(step.requests) - {self._name}:
            raise RemoteProtocolError("the answers are not those of the parties that were asked")
        answers = self._taken | {party: self._opened(party, frame) for party, frame in frames.items()}
        self._taken = {}
        return self._next(lambda: self._resume(step, answers))

    def take(self, frames: Frames) -> None:
        """Take some of the answers to the round before; the others follow."""
        if not set(frames) <= set(self._asked_round().requests) - {self._name}:
            raise RemoteProtocolError("the answers are not those of the parties that were asked")
        self._taken |= {party: self._opened(party, frame) for party, frame in frames.items()}

    def more(self) -> LedStep:
        """More frames of the present round."""
        if not self._unsent:
            raise RemoteProtocolError("Unexpected AskFrames: there are no more frames in this round")
        return self._unsent.pop(0)

    def _asked_round(self) -> Round:
        if self._round is None:
            raise RemoteProtocolError("this job has ended at its leader")
        if self._unsent:
            raise RemoteProtocolError("there are more frames in this round; AskFrames is expected")
        return self._round

    @property
    def _name(self) -> str:
        return self._seat.host.identity.name

    def _next(self, advance: Callable[[], Round | Ended[Any]]) -> LedStep:
        """Advance to the next round that asks others; what ends the protocol is kept for the user."""
        try:
            step = advance()
            while isinstance(step, Round) and not set(step.requests) - {self._name}:
                self._ask(step)
                step = self._resume(step, {})
            if isinstance(step, Round):
                return self._ask(step)
            if isinstance(step.outcome, Scorer):
                self.scoring = LedScoring(self._seat, step.outcome)
                self._round = None
            else:
                self._keep(step.outcome)
            return ENDED
        except JournalError:  # the disk is at fault: the request stays open, and the job is rebuilt
            raise
        except WoodlotError as error:
            self._end(state="failed", error=str(error))
            self._round = None
            # what went wrong may tell of labels and answers, so it is for the user and not for the coordinator
            raise DataError("it has ended the job that it leads; the user who ordered it can ask it why") from error

    def _ask(self, step: Round) -> LedStep:
        """Begin a round: its own request goes to its own part, and the others are sealed."""
        if step.sparing is not None:
            raise LocalProtocolError("a round that can spare parties cannot be led by a party")
        progress = step.progress
        if step.requests:
            self._ledger.count_round()
        frames = {}
        for party, request in step.requests.items():
            data = encode(request)
            self._ledger.record(Role.coordinator, party, request, len(data))
            if party == self._name:
                self._own = self._seat.begin_own(data)
            elif party == DEALER:  # the coordinator: no party has this name, see `LedOrder`, and no party sees this
                frames[party] = np.frombuffer(data, np.uint8)
            else:
                self._numbers[party] += 1
                sealed = self._seat.ways[party].out.seal(self._numbers[party], data)
                frames[party] = np.frombuffer(sealed, np.uint8)
        self._round = step
        done, total = (0, 0) if progress is None else (progress.done, progress.total)
        parts = in_parts(frames)
        first, *self._unsent = [
            LedStep(phase=step.phase, done=done, total=total, ended=False, frames=part, more=k < len(parts) - 1)
            for k, part in enumerate(parts)
        ]
        return first

    def _resume(self, step: Round, answers: Mapping[str, bytes]) -> Round | Ended[Any]:
        """Give the protocol the answers to its round; what its own part refuses is raised inside it."""
        try:
            data = dict(answers)
            if self._own is not None:
                data[self._name] = self._own_answer(self._own)
            replies = {party: decode(data[party]) for party in step.requests}
            if isinstance(refusal := replies.get(DEALER), Refusal):
                raise refusal.to_exception(DEALER)
        except Exception as error:  # noqa: BLE001 - raised again, inside the protocol
            return self._steps.fail(error)
        finally:
            self._own = None
        for party, reply in replies.items():
            self._ledger.record(party, Role.coordinator, reply, len(data[party]))
        return self._steps.go_on(replies)

    def _own_answer(self, own: Future[bytes]) -> bytes:
        """What its own part has answered; a refusal names this party, as those of the others do."""
        try:
            return own.result()
        except (DataError, PolicyError) as error:
            raise Refusal.from_exception(error).to_exception(self._name) from error

    def _opened(self, party: str, frame: NDArray[np.uint8]) -> bytes:
        if party == DEALER:
            return frame.tobytes()
        return self._seat.ways[party].back.open(self._numbers[party], frame.data)

    def _keep(self, outcome: Any) -> None:
        self._round = None
        self._end(**self._seat.host.keep(self._seat.order, self._facts, outcome, self._ledger))

    def _end(self, **fields: Any) -> None:
        self._facts = msgspec.structs.replace(self._facts, version=self._facts.version + 1, ended=time.time(), **fields)
        self._seat.host.store.update(self._facts)


def has_kept(store: JobStore, job: str) -> bool:
    """Whether the outcome of a job is kept, and what the job was made from may be erased: it is not run again."""
    stored = store.job(job)
    return stored is not None and (stored.facts.state == "done" or store.receipt(job) is not None)


def finish_led(seat: LeaderSeat) -> LedStep:
    """End a job whose outcome is kept, where only its end could not be told: its protocol has nothing more to ask."""
    stored = seat.host.store.job(seat.order.job)
    if stored is not None and stored.facts.state == "done":
        return ENDED
    again = replace(seat, replays=lambda: True)  # it was checked when it began
    return Leading(again, CommonRowCounts(0)).begin()


def told_apart(before: Message, now: Message) -> str:
    """Why a request to a leader that came before is another one now, where that can be told; else nothing."""
    if (
        not isinstance(before, LeadOn | TakeFrames)
        or type(now) is not type(before)
        or set(now.frames) != set(before.frames)
    ):
        return ""
    other = [party for party, frame in before.frames.items() if not np.array_equal(frame, now.frames[party])]
    if other == [DEALER]:
        return (
            "the dealer deals other numbers than before in the same step. The dealer is the coordinator: was its state "
            "folder restored, or its secret replaced? Cancel this job and order it again"
        )
    if len(other) == 1:
        return (
            f"{other[0]!r} has answered the same step otherwise before. Was its state folder restored, or its secret "
            "replaced? Cancel this job and order it again"
        )
    return ""


def end_led(store: JobStore, job: str) -> None:
    """Record that a job was ended elsewhere before it was done here."""
    stored = store.job(job)
    if stored is not None and stored.facts.state in UNFINISHED:
        facts = stored.facts
        state = "done" if facts.kind == SCORE else "cancelled"
        store.update(msgspec.structs.replace(facts, version=facts.version + 1, state=state, ended=time.time()))
