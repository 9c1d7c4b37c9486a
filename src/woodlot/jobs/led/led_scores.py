"""Online scoring that a party leads: the coordinator gathers requests, the leader asks the parties and answers.

The ids are sealed to the parties, and the answers to the user, by keys that came with the order. A batch is not kept to
be repeated, as in every scoring: a leader that is started again while one is at work declines it.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.jobs.led import led_messages as led
from woodlot.jobs.led.frame_seal import Seal
from woodlot.jobs.orders import ScoreOrder
from woodlot.protocols.core.bits import pack
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.vertical.score import Scored, Scorer
from woodlot.protocols.vertical.score_messages import AskScore, Score
from woodlot.runtime.audit import Ledger
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.run import Ended, Stepper

if TYPE_CHECKING:
    from woodlot.jobs.led.leading import Frames, LeaderSeat

_FIRST = 1 << 32  # above the numbers of all frames that have opened the scoring


def frame_number(batch: int) -> int:
    """The number of the frames of a batch."""
    return _FIRST + batch


def answer_seal(key: bytes, job: str, leader: str) -> Seal:
    """Seals the leader's answers to the user; ``key`` came to the leader in its part of the order."""
    return Seal(key, b"answers of a scoring", (job, leader, "user"))


class RelayScorer:
    """The coordinator's side: it carries requests, frames and answers that it cannot read; see `Scorer`.

    Parameters
    ----------
    order : ScoreOrder
        The scoring.

    Attributes
    ----------
    asked : tuple of str
        Whom every request must have ids for.

    """

    def __init__(self, order: ScoreOrder) -> None:
        self.asked = order.parties
        self._leader = order.leader or ""

    def score(
        self, batch: int, requests: Sequence[AskScore]
    ) -> Generator[Round, dict[str, Message], Sequence[Message]]:
        """Have some requests answered at once; returns what each user is told."""
        lead = led.LeadScores(
            batch=batch,
            numbers=tuple(request.number for request in requests),
            n_rows=tuple(request.n_rows for request in requests),
            sealed={party: tuple(request.sealed[party] for request in requests) for party in self.asked},
        )
        replies = yield Round("score", {self._leader: lead})
        frames = reply_of(replies[self._leader], led.LedStep, self._leader).frames
        if not set(frames) <= set(self.asked) - {self._leader}:
            raise RemoteProtocolError(f"the leader {self._leader!r} sends frames to others than the parties of the job")
        asked: dict[str, Message] = {party: led.ScoreFrame(batch=batch, frame=frame) for party, frame in frames.items()}
        replies = (yield Round("score", asked)) if asked else {}
        answers = {party: reply_of(replies[party], led.SealedReply, party).frame for party in asked}
        replies = yield Round("score", {self._leader: led.ScoreOn(batch=batch, frames=answers)})
        scores = reply_of(replies[self._leader], led.LedScores, self._leader).answers
        if len(scores) != len(requests):
            raise RemoteProtocolError(f"the leader {self._leader!r} has not answered every request")
        return [led.SealedScore(answer=answer) for answer in scores]


@dataclass(eq=False)
class _LedBatch:
    """A batch that the parties are asked for."""

    number: int
    requests: tuple[int, ...]
    steps: Stepper[list[Scored]]
    step: Round | Ended[list[Scored]]
    own: Future[bytes] | None


class LedScoring:
    """The leader's side.

    Parameters
    ----------
    seat : LeaderSeat
        The job.
    scorer : Scorer
        The forest, ready to score.

    """

    def __init__(self, seat: LeaderSeat, scorer: Scorer) -> None:
        self._seat = seat
        self._scorer = scorer
        self._name = seat.host.identity.name
        self._answers = answer_seal(seat.key, seat.order.job, self._name)
        self._batch: _LedBatch | None = None
        self._last: tuple[int, led.LedScores] | None = None

    def begin(self, message: led.LeadScores) -> led.LedStep:
        """Ask the parties for a batch."""
        requests = [
            AskScore(
                job=self._seat.order.job,
                number=number,
                n_rows=n_rows,
                sealed={party: seals[k] for party, seals in message.sealed.items()},
            )
            for k, (number, n_rows) in enumerate(zip(message.numbers, message.n_rows, strict=True))
        ]
        missing = [party for party in self._scorer.asked if party not in message.sealed]
        if missing:
            raise DataError(f"the batch has no ids for {', '.join(missing)}")
        steps = Stepper(self._scorer.score(message.batch, requests), Ledger())
        step = steps.begin()
        asked: Mapping[str, Message] = step.requests if isinstance(step, Round) else {}
        sealed = {
            party: self._seat.ways[party].out.seal(frame_number(message.batch), encode(request))
            for party, request in asked.items()
            if party != self._name
        }
        own = self._seat.begin_own(encode(asked[self._name])) if self._name in asked else None
        self._batch = _LedBatch(message.batch, message.numbers, steps, step, own)
        frames = {party: np.frombuffer(frame, np.uint8) for party, frame in sealed.items()}
        return led.LedStep(phase="score", done=0, total=0, ended=False, frames=frames)

    def finish(self, message: led.ScoreOn) -> led.LedScores:
        """Take the answers of the parties; returns the scores, sealed to the user. A repeat gets the same."""
        if self._last is not None and self._last[0] == message.batch:
            return self._last[1]
        batch = self._batch
        if batch is None or batch.number != message.batch:
            raise DataError("the leader was started again while this batch was at work; ask again")
        scored = self._outcome(batch, message.frames)
        answers = []
        for number, (outputs, uncertain) in zip(batch.requests, scored, strict=True):
            data = encode(Score(outputs=outputs, uncertain=pack(uncertain)))
            answers.append(np.frombuffer(self._answers.seal(number, data), np.uint8))
        told = led.LedScores(answers=tuple(answers))
        self._batch, self._last = None, (batch.number, told)
        return told

    def _outcome(self, batch: _LedBatch, frames: Frames) -> list[Scored]:
        step: Any = batch.step
        if isinstance(step, Round):
            if set(frames) != set(step.requests) - {self._name}:
                raise RemoteProtocolError("the answers are not those of the parties that were asked")
            number = frame_number(batch.number)
            data = {party: self._seat.ways[party].back.open(number, frame.data) for party, frame in frames.items()}
            if batch.own is not None:
                data[self._name] = batch.own.result()
            step = batch.steps.go_on({party: decode(data[party]) for party in step.requests})
        if not isinstance(step, Ended):
            raise RemoteProtocolError("a batch is asked in one round")
        return list(step.outcome)
