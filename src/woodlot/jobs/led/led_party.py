"""A party in a job that is led: it answers what its leader has sealed; and the leader among the parties."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.columns.common_rows import CommonRowCounts
from woodlot.jobs.home import AskedOrder, LedWork
from woodlot.jobs.led import led_messages as led
from woodlot.jobs.led.frame_seal import TAG, LeaderFrames, LedKeys, Ways
from woodlot.jobs.led.leading import LeaderSeat, Leading, finish_led, has_kept
from woodlot.jobs.led.led_scores import LedScoring, frame_number
from woodlot.jobs.orders import Order
from woodlot.protocols.align import AlignParty
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical.score_messages import ScoreBatch

if TYPE_CHECKING:
    from woodlot.jobs.hosting import JobHost

LEADING = (led.LeadJob, led.LeadOn, led.TakeFrames, led.AskFrames)
"""What a leader is asked on the way to the outcome."""


class LedPart:
    """This party's part in one job that is led.

    Parameters
    ----------
    asked : AskedOrder
        The party, and what was ordered.
    opening : OpenJob
        As everybody was sent it.
    work : LedWork
        Answers the messages of the protocol.

    """

    def __init__(self, asked: AskedOrder[Order], opening: msg.OpenJob, work: LedWork) -> None:
        home = self._home = asked.home
        order = self._order = asked.order
        self._user = asked.user
        self._part = asked.part
        self._opening = opening
        self._work = work
        relay = b"" if isinstance(asked.part.relay, msgspec.UnsetType) else asked.part.relay
        secret = home.store.secret_for(order.job, TAG)
        self._keys = LedKeys(home.identity.name, secret, home.signer(order.job), order, opening, relay)
        self._frames = LeaderFrames(self._keys, order.leader or "")
        self._leading: Leading | None = None
        if self._leads and home.lead is None:
            raise PolicyError("this party cannot lead: only a party's service does; use lead='coordinator'")

    @property
    def key(self) -> led.LedKey:
        """What the others know this party by."""
        return self._keys.own

    @property
    def _leads(self) -> bool:
        return self._order.leader == self._home.identity.name

    def check_clear(self, message: Message) -> None:
        """Refuse what only the leader may ask: in the clear, the coordinator may have the rows aligned and no more."""
        if self._frames.ways is not None or self._leading is not None or type(message) not in AlignParty.handlers:
            raise RemoteProtocolError(
                f"Unexpected {type(message).__name__} in the clear: {self._order.leader!r} leads this job, and seals "
                "what it asks"
            )

    def meet(self, message: led.MeetLeader) -> led.LeaderMet:
        """Take the keys of the others."""
        if self._leads:
            raise RemoteProtocolError("this party leads the job: LeadJob is expected")
        return self._frames.meet(message)

    def answer(self, message: led.SealedRequest) -> led.SealedReply:
        """Answer a frame of the leader."""
        return self._frames.answer(message, self._work.handle, self._work.most_bytes)

    def answer_score(self, message: led.ScoreFrame) -> led.SealedReply:
        """Answer the leader's frame of a batch of a scoring; a repeat gets the same answer."""
        return self._frames.answer_as(frame_number(message.batch), message.frame, self._score, self._work.most_bytes)

    def _score(self, request: Message) -> Message:
        if not isinstance(request, ScoreBatch):
            raise RemoteProtocolError(f"Unexpected {type(request).__name__} in the frame of a batch")
        return self._work.handle(request)

    def led_scoring(self, message: Message) -> LedScoring:
        """The scoring that this party leads, and has opened."""
        scoring = None if self._leading is None else self._leading.scoring
        if scoring is None:
            raise RemoteProtocolError(f"Unexpected {type(message).__name__}: this party leads no scoring in this job")
        return scoring

    def lead(self, message: led.LeadJob) -> led.LedStep:
        """Begin to lead."""
        if not self._leads or self._home.lead is None:
            raise RemoteProtocolError("the order names another party as its leader")
        if self.has_done(message):
            return finish_led(self._seat(self._home.lead, {}))
        seat = self._seat(self._home.lead, self._keys.ways(message.keys))
        leading = Leading(seat, CommonRowCounts(message.n_rows, message.rows, message.common))
        step = leading.begin()
        self._leading = leading
        return step

    def lead_on(self, message: led.LeadOn) -> led.LedStep:
        """Go on with what this party leads."""
        if self._leading is None and self._home.lead is not None and self.has_done(message):
            return finish_led(self._seat(self._home.lead, {}))
        return self._led_by_this(message).go_on(message.frames)

    def take_frames(self, message: led.TakeFrames) -> led.FramesTaken:
        """Take some of the answers to what this party leads."""
        self._led_by_this(message).take(message.frames)
        return led.FramesTaken()

    def more_frames(self, message: led.AskFrames) -> led.LedStep:
        """Go on with a round of frames that this party leads."""
        return self._led_by_this(message).more()

    def _led_by_this(self, message: Message) -> Leading:
        if self._leading is None:
            raise RemoteProtocolError(f"Unexpected {type(message).__name__}: this party does not lead the job")
        return self._leading

    def has_done(self, message: Message) -> bool:
        """Whether the leader has kept what this message of the job has led to, and needs not be asked again."""
        lead, leads = self._home.lead, self._leads and isinstance(message, LEADING)
        return leads and lead is not None and has_kept(lead.store, self._order.job)

    def _seat(self, host: JobHost, ways: Mapping[str, Ways]) -> LeaderSeat:
        replays = partial(self._home.replays, self._order.job)
        return LeaderSeat(host, self._order, self._opening, self._user, self._work, ways, replays, self._part.key)
