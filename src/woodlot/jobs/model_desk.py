"""What users may read of jobs and models, wherever these are kept: at the coordinator, or at the leader of a job.

A user sees its own jobs only. Of models everybody sees what they are, and may use them where parties let them; only who
has ordered a model may take it out. A leader tells of models to fewer: see `LeaderDesk`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from woodlot.exceptions import DataError, EpochError, IdentityError, PolicyError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.explain.explanation_messages import AskExplanation
from woodlot.jobs.explain.told_explanations import sealed_explanation
from woodlot.jobs.job_store import JobStore, StoredJob
from woodlot.jobs.kind import outcome_of
from woodlot.protocols.core.bits import pack
from woodlot.protocols.core.message import MAX_REASON, Message


class ModelDesk:
    """Reads a store for users.

    Parameters
    ----------
    store : JobStore
        What is kept.

    """

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def answer(self, user: str, request: Message) -> Message:
        """Answer one of the questions that change nothing."""
        handlers: dict[type[Message], Callable[[str, Any], Message]] = {
            msg.AskJob: self.job,
            msg.AskPredictions: self.predictions,
            AskExplanation: self.explanation,
            msg.AskReceipt: self.receipt,
            msg.FindModel: self.find_model,
            msg.AskModel: self.model,
        }
        handler = handlers.get(type(request))
        if handler is None:
            raise RemoteProtocolError(f"a leader does not take {type(request).__name__} from users")
        return handler(user, request)

    def own(self, user: str, job: str) -> StoredJob:
        """A job of this user; others' are as unknown as those that never were."""
        stored = self._store.job(job)
        if stored is None or stored.facts.user != user:
            raise unknown_job(job)
        return stored

    def job(self, user: str, request: msg.AskJob) -> Message:
        """How a job of the user stands."""
        return msg.JobStatus(facts=self.own(user, request.job).facts)

    def predictions(self, user: str, request: msg.AskPredictions) -> Message:
        """The answers of a prediction."""
        facts = self.own(user, request.job).facts
        if facts.state != "done" or outcome_of(facts.kind) != "answers":
            raise DataError(f"job {request.job} {facts.standing}: it has no answers")
        outputs, uncertain, account = self._store.answers(request.job)
        classes = self._store.model_facts(facts.model).classes
        return msg.Predictions(
            outputs=outputs, uncertain=pack(uncertain), classes=classes, score=facts.score, **account
        )

    def explanation(self, user: str, request: AskExplanation) -> Message:
        """An explanation, sealed to who has ordered it."""
        facts = self.own(user, request.job).facts
        if facts.state != "done" or outcome_of(facts.kind) != "explanation":
            raise DataError(f"job {request.job} {facts.standing}: it has no explanation")
        return sealed_explanation(self._store, request.job)

    def receipt(self, user: str, request: msg.AskReceipt) -> Message:
        """The receipt of a revocation."""
        self.own(user, request.job)
        text = self._store.receipt(request.job)
        if text is None:
            raise DataError(f"job {request.job} has no receipt: no party has left by it, or not yet")
        return msg.ReceiptText(text=text)

    def find_model(self, user: str, request: msg.FindModel) -> Message:
        """What is known of one model."""
        return msg.ModelList(models=(self._store.find_model(request.name, user),))

    def model(self, user: str, request: msg.AskModel) -> Message:
        """The part of a model that is kept here, for who has ordered it."""
        facts = self._store.model_facts(request.model)
        if facts.user != user:
            raise PolicyError(f"model {request.model} was ordered by {facts.user}; only {facts.user} may take it out")
        return self._store.model_part(request.model)


def unknown_job(job: str) -> DataError:
    """The error when a user has no such job."""
    return DataError(f"you have no job {job!r} here; `woodlot jobs` shows those you have")


def declined(error: Exception) -> msg.Declined:
    """What a user is told instead of a result."""
    reason = str(error)[:MAX_REASON]
    match error:
        case DataError():
            return msg.Declined(kind="data", reason=reason)
        case EpochError():
            return msg.Declined(kind="epoch", reason=reason)
        case RemoteProtocolError():
            return msg.Declined(kind="protocol", reason=reason)
        case PolicyError() | IdentityError():
            return msg.Declined(kind="policy", reason=reason)
        case _:
            return msg.Declined(kind="internal", reason=type(error).__name__[:MAX_REASON])
