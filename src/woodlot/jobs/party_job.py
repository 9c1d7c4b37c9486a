"""One job at a party: the order is checked, then the messages of its protocols are answered.

What the party's policy forbids is refused here. Errors that name columns, files or settings stay in the party's own
log; the coordinator is told where to look.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from abc import ABC, abstractmethod
from enum import StrEnum

import msgspec

from woodlot.data.sources import LoadedTable, TableSource
from woodlot.exceptions import DataError, IdentityError, LocalProtocolError, PolicyError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.approvals import check_approved
from woodlot.jobs.home import AskedOrder, LedWork, PartyHome, TakenOrder, Work, private_errors
from woodlot.jobs.key_store import KEYS_FOLDER, KeyStore
from woodlot.jobs.kind import kind_of
from woodlot.jobs.leaving_orders import Revocation
from woodlot.jobs.led.leading import end_led, told_apart
from woodlot.jobs.led.led_messages import (
    AskFrames,
    FramesTaken,
    LeaderMet,
    LeadJob,
    LeadOn,
    LeadScores,
    LedJobOpened,
    LedScores,
    LedStep,
    MeetLeader,
    ScoreFrame,
    ScoreOn,
    SealedReply,
    SealedRequest,
    TakeFrames,
)
from woodlot.jobs.led.led_party import LedPart
from woodlot.jobs.order_seal import check_age, check_passed_on, completed, housekeeping_job, open_part
from woodlot.jobs.orders import Order, Part
from woodlot.jobs.revocable.revocable_orders import RevokeRevocableOrder
from woodlot.jobs.tally import log_end, log_taken
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message

logger = logging.getLogger(__name__)


class OpeningState(StrEnum):
    """Where a job stands."""

    new = "new"
    open = "open"
    led = "led"


class OpenedJob(MessageHandler, ABC):
    """A job at a party or a member. What it does not take itself is passed on, once the job is open."""

    state: OpeningState = OpeningState.new

    def handle(self, message: Message) -> Message:
        """Answer one message; one that is not expected in this state is refused and changes nothing."""
        if type(message) in self.handlers:
            return super().handle(message)
        if self.state == OpeningState.new:
            raise RemoteProtocolError(
                f"Unexpected {type(message).__name__} in state {self.state}; expected after OpenJob"
            )
        return self._pass_on(message)

    @abstractmethod
    def _pass_on(self, message: Message) -> Message:
        """Answer a message of the protocols."""


class PartyJob(OpenedJob):
    """Answers the messages of one job; its state follows from the messages it has answered."""

    def __init__(self, home: PartyHome, job: str) -> None:
        self.home = home
        self.job = job
        self._work: Work | None = None
        self._led: LedPart | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been opened here, as in jobs that only bring news."""
        return self._work is None

    def has_done(self, message: Message) -> bool:
        """Whether what this message of the job has led to is kept, and what it was made of may be erased."""
        return self._led is not None and self._led.has_done(message)

    def told_apart(self, before: Message, now: Message) -> str:
        """Why a request that was answered before is another one now, where that can be told."""
        return told_apart(before, now)

    def _pass_on(self, message: Message) -> Message:
        if self._work is None:
            raise RemoteProtocolError("this job was not opened")
        if self._led is not None:
            self._led.check_clear(message)
        return self._work.handle(message)

    @takes(msg.OpenJob, when=OpeningState.new, then=OpeningState.open)
    def _on_OpenJob(self, message: msg.OpenJob) -> msg.JobOpened | LedJobOpened:
        home = self.home
        again = home.replays(self.job)
        try:
            order, user = check_passed_on(message, home.trust, again=again)
        except IdentityError as error:
            raise PolicyError(f"the order is not taken: {error}") from None
        if order.job != self.job or home.identity.name not in order.parties:
            raise RemoteProtocolError("the order is of another job, or not for this party")
        home.policy.check_order(order.kind, user)
        kind = kind_of(order)
        home.privacy.check_kind(kind)
        others = [party for party in order.answers_to if party != home.identity.name]
        home.policy.check_receivers([user, *others] if order.answers_user else others)
        if not again:
            check_age(order)
            home.store.restored.check(order)
        if order.leader is not None and not kind.led:
            raise PolicyError(f"a job of the kind {kind.name!r} cannot be led by a party")
        if kind.led:
            home.policy.check_lead(order.leader)
        if (model := getattr(order, "model", "")) and not kind.erases:
            home.store.check_leader(model, order.leader)
        part = open_part(order, home.identity)
        asked = AskedOrder(home, completed(order, part), user, message.certificate, part)
        if not kind.needs_table:
            self._check_approved(message, asked, again=again)
            self._work = kind.work(asked)
            home.tally.take(self.job, order.kind, again=again)
            log_taken(order, user)
            return msg.JobOpened(n_aligned=None, fingerprint="")
        taken = self._take(message, asked, again=again)
        work = kind.work(taken)
        home.pending_charges(self.job).note_use(home.identity.name, taken.loaded.name, order.kind, work.uncovered)
        home.tally.take(self.job, order.kind, again=again)
        log_taken(order, user)
        key = home.store.secret_for(self.job, "table")
        fingerprint = hmac.new(key, taken.loaded.digest.encode(), hashlib.sha256).hexdigest()
        if order.leader is None:
            self._work = work
            return msg.JobOpened(n_aligned=work.n_aligned, fingerprint=fingerprint)
        if not isinstance(work, LedWork):
            raise LocalProtocolError(f"a job of the kind {kind.name!r} cannot be led by a party")
        self._led = LedPart(taken, message, work)
        self._work = work
        return LedJobOpened(n_aligned=work.n_aligned, fingerprint=fingerprint, key=self._led.key)

    def _check_approved(self, message: msg.OpenJob, asked: AskedOrder[Order], *, again: bool) -> None:
        """Have an order wait that its owner must allow; a job that was opened before has been allowed."""
        if not again:
            home = self.home
            check_approved(home.approvals, home.policy, message.order, asked.order, asked.part, asked.user)

    def _take(self, message: msg.OpenJob, asked: AskedOrder[Order], *, again: bool) -> TakenOrder[Order]:
        tables, part = self.home.tables, asked.part
        if part.table not in tables:
            raise DataError("it has no table of the name that the order gives; ask it for the names of its tables")
        self._check_roles(tables[part.table], part)
        self._check_approved(message, asked, again=again)  # before anything is read or counted
        with private_errors(self.job, "its table cannot be used"):
            room = self.home.room
            loaded = self.home.held.read(tables[part.table], None if room is None else room.spool)
        self._check_choice(loaded, part)
        return TakenOrder(asked.home, asked.order, asked.user, asked.certificate, part, loaded)

    def _check_choice(self, loaded: LoadedTable, part: Part) -> None:
        """Refuse columns that this party does not offer; as for roles, the refusal names the setting and no column."""
        for setting in ("features", "exclude"):
            asked = getattr(part, setting)
            strange = [] if isinstance(asked, msgspec.UnsetType) else sorted(set(asked) - set(loaded.features))
            if strange:
                logger.warning(
                    "job %s is refused: its %s names %s, which table %s does not offer to learn from",
                    self.job, setting, strange, loaded.name, extra={"job": self.job},
                )  # fmt: skip
                raise DataError(
                    f"{setting} names columns that it does not offer to learn from; ask it for the names of its "
                    "columns, or let it open its catalog (woodlot catalog shows it)"
                )

    def _check_roles(self, table: TableSource, part: Part) -> None:
        """Refuse a label or weight that the owner has not named as such, whether there is such a column or not.

        The refusal passes through the coordinator, so it names the setting and no column.
        """
        for column, may, asked, setting in (
            (part.label, table.may_label, "label (y)", "labels"),
            (part.weight, table.may_weigh, "weights (sample_weight)", "weights"),
        ):
            if column is not None and not may(column):
                logger.warning(
                    "job %s is refused: it names %r as its %s, which [tables.%s] does not list among its %s",
                    self.job, column, asked, table.name, setting, extra={"job": self.job},
                )  # fmt: skip
                raise PolicyError(
                    f"the column that the order names as its {asked} is not one that this party offers as such: the "
                    f"setting {setting} of that table, in the section [tables] of its configuration, does not list it"
                )

    @takes(MeetLeader, when=OpeningState.open, then=OpeningState.led)
    def _on_MeetLeader(self, message: MeetLeader) -> LeaderMet:
        return self._led_part(message).meet(message)

    @takes(SealedRequest, when=OpeningState.led)
    def _on_SealedRequest(self, message: SealedRequest) -> SealedReply:
        return self._led_part(message).answer(message)

    @takes(LeadJob, when=OpeningState.open, then=OpeningState.led)
    def _on_LeadJob(self, message: LeadJob) -> LedStep:
        return self._led_part(message).lead(message)

    @takes(LeadOn, when=(OpeningState.open, OpeningState.led))
    def _on_LeadOn(self, message: LeadOn) -> LedStep:
        return self._led_part(message).lead_on(message)

    @takes(TakeFrames, when=OpeningState.led)
    def _on_TakeFrames(self, message: TakeFrames) -> FramesTaken:
        return self._led_part(message).take_frames(message)

    @takes(AskFrames, when=OpeningState.led)
    def _on_AskFrames(self, message: AskFrames) -> LedStep:
        return self._led_part(message).more_frames(message)

    @takes(ScoreFrame, when=OpeningState.led)
    def _on_ScoreFrame(self, message: ScoreFrame) -> SealedReply:
        return self._led_part(message).answer_score(message)

    @takes(LeadScores, when=OpeningState.led)
    def _on_LeadScores(self, message: LeadScores) -> LedStep:
        return self._led_part(message).led_scoring(message).begin(message)

    @takes(ScoreOn, when=OpeningState.led)
    def _on_ScoreOn(self, message: ScoreOn) -> LedScores:
        return self._led_part(message).led_scoring(message).finish(message)

    def _led_part(self, message: Message) -> LedPart:
        if self._led is None:
            raise RemoteProtocolError(f"Unexpected {type(message).__name__}: the order names no leader")
        return self._led

    @takes(msg.ForgetJob, when=OpeningState.new)
    def _on_ForgetJob(self, message: msg.ForgetJob) -> msg.JobForgotten:
        if self.job != housekeeping_job(message.job):
            raise RemoteProtocolError("ForgetJob is for another job: each has a job of its own that ends it")
        self.home.end_job(message.job)
        if self.home.lead is not None:
            end_led(self.home.lead.store, message.job)
        if message.done is not None:
            self.home.store.end_row_training(message.job, done=message.done)
        self.home.store.erase_dropped(message.job)
        self.home.store.forget_batches(message.job)
        self.home.store.forget_deceived(message.job)
        if self.home.approvals is not None:
            self.home.approvals.withdraw(message.job)
        log_end(self.home.tally, message.job)
        return msg.JobForgotten()

    @takes(msg.LeaveNotice)
    def _on_LeaveNotice(self, message: msg.LeaveNotice) -> msg.LeaveNoted:
        """This party has left a forest: what it still has of it is of no use to anybody."""
        home = self.home
        again = home.replays(self.job)
        try:
            order, user = check_passed_on(message, home.trust, again=again)
        except IdentityError as error:
            raise PolicyError(f"the notice is not taken: {error}") from None
        if not isinstance(order, Revocation) or (order.leaver, housekeeping_job(order.job)) != (
            home.identity.name,
            self.job,
        ):
            raise RemoteProtocolError("the notice is not for this party")
        home.policy.check_order(order.kind, user)
        home.store.erase_model(order.model)
        if isinstance(order, RevokeRevocableOrder) and order.keyring:
            KeyStore(home.store.folder / KEYS_FOLDER).erase(order.keyring)
        logger.warning(
            "this party has left model %s, at level %d, by an order of %s", order.model, order.level, user,
            extra={"job": order.job, "kind": order.kind, "user": user},
        )  # fmt: skip
        return msg.LeaveNoted()
