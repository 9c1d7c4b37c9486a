"""What users may ask the coordinator, one answer per message.

What it reads of jobs and models, and who may read it, is in `woodlot.jobs.model_desk`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from woodlot.exceptions import DataError, JournalError, PolicyError, RemoteProtocolError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.job_store import ENDED, UNFINISHED, StoredJob
from woodlot.jobs.led.led_messages import AskLeader
from woodlot.jobs.model_desk import ModelDesk, declined, unknown_job
from woodlot.jobs.revocable.stored_epochs import told_keys
from woodlot.jobs.signers import signing_party
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable.key_messages import AskKeys
from woodlot.protocols.vertical import score_messages
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.drivers.grpc_wire import limit_wait
from woodlot.runtime.peers import Peer
from woodlot.runtime.protocol_versions import APPROVALS
from woodlot.service.coordinator_scores import CLOSED
from woodlot.service.listing import brief_job, brief_model, page_of

if TYPE_CHECKING:
    from woodlot.service.coordinator import Coordinator

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_WAIT = 30.0
"""The longest that a user's question waits for news, in seconds."""
MAX_LISTED = 1_000
"""Jobs or models on one page of a list."""


_OF_PARTIES = (msg.SubmitJob, msg.AskJob, msg.AskFederation, msg.FindModel, AskKeys, msg.AskReceipt, AskLeader)
"""What a party may ask here, to order its own leaving, or that rows are forgotten."""


class UserDesk:
    """Answers users.

    Parameters
    ----------
    coordinator : Coordinator
        Whose jobs and models they ask for.

    """

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._models = ModelDesk(coordinator.store)

    def serve(self, user: Peer, data: bytes) -> bytes | Future[bytes]:
        """Answer one encoded request of a user, now or as soon as there is an answer."""
        limit = self._coordinator.config.message_limit
        kind = "unreadable message"
        try:
            request = decode(data, limit=limit)
            kind = type(request).__name__
            if user.role == "party":
                self._check_party(user.name, request)
                user = replace(user, name=signing_party(user.name))
            handler: Callable[[Peer, Any], Message | Future[Message]] | None = getattr(self, f"_on_{kind}", None)
            if handler is None:
                raise RemoteProtocolError(f"the coordinator does not take {kind} from users")
            reply = handler(user, request)
            if isinstance(reply, Future):
                return _then(reply, lambda: self._encoded(user, kind, reply.result))
            return encode(in_version(user, reply), limit=limit)
        except Exception as error:  # noqa: BLE001 - whatever happens, the user must get an answer
            return self._decline(user, kind, error)

    def _check_party(self, party: str, request: Message) -> None:
        """Refuse what a party does not need to leave a model or have rows of it forgotten, and models not its own."""
        if type(request) not in _OF_PARTIES:
            raise PolicyError(
                f"{type(request).__name__} is for users, and this is the identity of the party {party!r}: with it a "
                "party can order its own leaving of a model, or that rows of one are forgotten, and nothing else"
            )
        if isinstance(request, msg.FindModel):
            found = self._models.find_model(signing_party(party), request)
            if not isinstance(found, msg.ModelList) or any(party not in model.parties for model in found.models):
                raise PolicyError(f"{party!r} takes no part in this model; a party is told of its own models only")
        if isinstance(request, AskKeys) and party not in self._coordinator.store.model_facts(request.model).parties:
            raise PolicyError(f"{party!r} takes no part in this model; a party is told of its own models only")

    def _encoded(self, user: Peer, kind: str, result: Callable[[], Message]) -> bytes:
        try:
            return encode(in_version(user, result()), limit=self._coordinator.config.message_limit)
        except Exception as error:  # noqa: BLE001 - as above
            return self._decline(user, kind, error)

    def _decline(self, user: Peer, kind: str, error: Exception) -> bytes:
        logger.warning("user %r: %s is declined: %s", user.name, kind, error, extra={"user": user.name})
        return encode(declined(error))

    # --- jobs ---

    def _on_SubmitJob(self, user: Peer, request: msg.SubmitJob) -> Message:
        job = self._coordinator.take(request.order, request.signature, user.certificate)
        if job not in self._coordinator.live:
            stored = self._coordinator.store.job(job)
            if stored is not None and stored.facts.state in UNFINISHED:  # it is new, or was not begun when it was taken
                self._coordinator.enqueue(job)
        return self._status(job)

    def _on_AskJob(self, user: Peer, request: msg.AskJob) -> Message | Future[Message]:
        self._own(user, request.job)
        live = self._coordinator.live.get(request.job)
        if live is None:
            return self._status(request.job)
        news = live.watch(request.seen)
        if not news.done():
            limit_wait(news, min(max(request.wait, 0.0), MAX_WAIT), lambda: live.tell(news))
        return _then(news, lambda: msg.JobStatus(facts=news.result()))

    def _on_ListJobs(self, user: Peer, request: msg.ListJobs) -> Message:
        limit = min(max(request.limit, 1), MAX_LISTED)
        stored = self._coordinator.store.of_user(user.name, limit + 1, request.below)
        live = self._coordinator.live.copy()
        now = (live[facts.job].facts if facts.job in live else facts for facts in stored)
        jobs, more = page_of(map(brief_job, now), limit)
        return msg.JobList(jobs=jobs, more=more)

    def _on_CancelJob(self, user: Peer, request: msg.CancelJob) -> Message:
        if self._own(user, request.job).facts.state in ENDED:
            raise DataError(f"job {request.job} has ended already")
        self._coordinator.cancel(request.job)
        return self._status(request.job)

    def _on_ResumeJob(self, user: Peer, request: msg.ResumeJob) -> Message:
        stored = self._own(user, request.job)
        if self._coordinator.enqueue(request.job) is None:
            raise DataError(f"job {request.job} {stored.facts.standing}; only a stopped job can be resumed")
        return self._status(request.job)

    def _status(self, job: str) -> Message:
        live = self._coordinator.live.get(job)
        if live is not None:
            return msg.JobStatus(facts=live.facts)
        stored = self._coordinator.store.job(job)
        if stored is None:
            raise unknown_job(job)
        return msg.JobStatus(facts=stored.facts)

    def _own(self, user: Peer, job: str) -> StoredJob:
        return self._models.own(user.name, job)

    def _on_AskKeys(self, user: Peer, request: AskKeys) -> Message:
        return told_keys(self._coordinator.store, request.model)

    def _on_AskPredictions(self, user: Peer, request: msg.AskPredictions) -> Message:
        return self._models.predictions(user.name, request)

    def _on_AskReceipt(self, user: Peer, request: msg.AskReceipt) -> Message:
        return self._models.receipt(user.name, request)

    def _on_AskAudit(self, user: Peer, request: msg.AskAudit) -> Message:
        self._own(user, request.job)
        journal = self._coordinator.journal.job(request.job)
        problem = ""
        try:
            journal.verify()
        except JournalError as error:
            problem = str(error)
        rows = msgspec.json.encode(journal.disclosures().to_dicts()).decode()
        records, head = journal.head
        return msg.AuditReport(rows=rows, records=records, head=head, problem=problem)

    # --- online scoring ---

    def _on_AskScore(self, user: Peer, request: score_messages.AskScore) -> Future[Message]:
        return self._coordinator.scorings.ask(user.name, request)

    def _on_CloseScoring(self, user: Peer, request: score_messages.CloseScoring) -> Message:
        self._own(user, request.job)
        if not self._coordinator.scorings.end(request.job, {"state": "done"}):
            raise DataError(CLOSED)
        return self._status(request.job)

    # --- the federation and its models ---

    def _on_AskFederation(self, user: Peer, request: msg.AskFederation) -> Message:
        connected, alarms = self._coordinator.present(), self._coordinator.store.alarms()
        return msg.FederationFacts(
            parties=tuple(
                msg.PartyFacts(
                    name=name,
                    since=connected.get(name),
                    certificate=certificate,
                    alarm=str(alarms.get(name, "")),
                    alarm_at=alarms[name].at if name in alarms else None,
                )
                for name, certificate in self._coordinator.store.parties().items()
            ),
            coordinator=self._coordinator.identity.certificate,
        )

    def _on_ListModels(self, user: Peer, request: msg.ListModels) -> Message:
        models = self._coordinator.store.models()
        if request.below is not None:
            models = [model for model in models if (model.created, model.model) < request.below]
        page, more = page_of(map(brief_model, models), MAX_LISTED)
        return msg.ModelList(models=page, more=more)

    def _on_FindModel(self, user: Peer, request: msg.FindModel) -> Message:
        return self._models.find_model(user.name, request)

    def _on_AskModel(self, user: Peer, request: msg.AskModel) -> Message:
        return self._models.model(user.name, request)

    # --- what leaders keep ---

    def _on_AskLeader(self, user: Peer, request: AskLeader) -> Future[Message]:
        return self._coordinator.pass_on(user.name, request)


def in_version(user: Peer, reply: Message) -> Message:
    """A reply in the version of the protocol that its user speaks: before approvals, who must approve is waited for."""

    def older(facts: msg.JobFacts) -> msg.JobFacts:
        waits = facts.waiting_for or facts.approval or ()
        return msgspec.structs.replace(facts, waiting_for=waits, approval=msgspec.UNSET)

    if user.version < APPROVALS and isinstance(reply, msg.JobStatus):
        return msg.JobStatus(facts=older(reply.facts))
    if user.version < APPROVALS and isinstance(reply, msg.JobList):
        return msg.JobList(jobs=tuple(map(older, reply.jobs)), more=reply.more)
    return reply


def _then(first: Future[Any], result: Callable[[], T]) -> Future[T]:
    """What follows from a result, as soon as that is there."""
    then: Future[T] = Future()

    def follow(_: Future[Any]) -> None:
        try:
            then.set_result(result())
        except Exception as error:  # noqa: BLE001 - it is for whoever asks for the result
            then.set_exception(error)

    first.add_done_callback(follow)
    return then
