"""The leader answers users: what it keeps of the jobs that it leads, sealed to who asks."""

from __future__ import annotations

import hashlib
import logging

import numpy as np

from woodlot.exceptions import IdentityError, PolicyError
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs.job_messages import AskJob, AskReceipt, ModelList
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.led.led_messages import LeaderAnswer, LeaderQuestion
from woodlot.jobs.led.question_seal import TakenQuestion
from woodlot.jobs.model_desk import ModelDesk, declined
from woodlot.jobs.policy import Policy
from woodlot.jobs.signers import is_signing_party
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.drivers import answer
from woodlot.runtime.faults import wordless

logger = logging.getLogger(__name__)

QUESTIONS = hashlib.sha256(b"questions to a leader").hexdigest()[:32]
"""The job under which questions are brought. They belong to none, and they change nothing: they are not journalled."""

OF_PARTIES = (AskJob, AskReceipt)
"""What a party may ask that has ordered its own leaving, or that rows are forgotten: how that has ended."""


class LeaderDesk(MessageHandler):
    """Answers the questions of users.

    Parameters
    ----------
    identity, trust
        Who the leader is, and whom it believes.
    policy : Policy
        Who besides a model's user may know what it is: who may use it, or train.
    store : JobStore
        What it keeps.
    limit : int
        The largest message, in bytes.

    """

    def __init__(self, identity: Identity, trust: Trust, policy: Policy, store: JobStore, limit: int) -> None:
        self._identity = identity
        self._trust = trust
        self._policy = policy
        self._desk = ModelDesk(store)
        self._limit = limit

    def answer(self, data: bytes) -> bytes:
        """Answer what the coordinator has brought; anything but a question of a user is refused in clear."""
        reply, error = answer(self, data, limit=self._limit)
        if error is not None:
            logger.warning("a question is refused: %s", type(error).__name__, exc_info=wordless(error))
        return reply

    @takes(LeaderQuestion)
    def _on_LeaderQuestion(self, message: LeaderQuestion) -> LeaderAnswer:
        try:
            self._trust.check_fresh()
            question = TakenQuestion(self._identity, self._trust, message.question)
        except IdentityError as error:
            raise PolicyError(f"the question is not taken: {error}") from None
        reply = question.seal(encode(self._told(question), limit=self._limit))
        return LeaderAnswer(answer=np.frombuffer(reply, np.uint8))

    def _told(self, question: TakenQuestion) -> Message:
        try:
            request = decode(question.request, limit=self._limit)
            if is_signing_party(question.user) and not isinstance(request, OF_PARTIES):
                raise PolicyError(
                    f"{type(request).__name__} is for users; a party is told of what it has ordered itself"
                )
            reply = self._desk.answer(question.user, request)
            if isinstance(reply, ModelList):
                self._check_readers(question.user, reply)
            return reply
        except Exception as error:  # noqa: BLE001 - whatever happens, the user must get an answer
            logger.warning("user %r: a question is declined: %s", question.user, error, extra={"user": question.user})
            return declined(error)

    def _check_readers(self, user: str, found: ModelList) -> None:
        """Refuse to tell of others' models to who may use none here: their classes and scores come of this label."""
        if not self._policy.lists(user) and any(facts.user != user for facts in found.models):
            raise PolicyError(
                f"the leader of this model tells of it to its user only, and to whom it lets train or predict; its "
                f"operator can add {user!r} to the setting predict in the section [policy] of its configuration"
            )
