"""A user's side of the coordinator: orders are signed and sent, jobs are followed, results are fetched."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

from woodlot.exceptions import (
    ConfigError,
    DataError,
    EpochError,
    IdentityError,
    JobFailed,
    LocalProtocolError,
    PolicyError,
    RemoteProtocolError,
    WoodlotError,
)
from woodlot.identity.certificates import REVOKED
from woodlot.identity.erasure import ErasureReceipt
from woodlot.identity.identity import Identity, Trust
from woodlot.identity.receipts import Receipt
from woodlot.jobs import job_messages as msg
from woodlot.jobs.explain.explanation_messages import AskExplanation, SealedExplanation
from woodlot.jobs.led.led_messages import AskLeader, LeaderAnswered
from woodlot.jobs.led.question_seal import AskedQuestion
from woodlot.jobs.order_seal import common_fields, sign_order
from woodlot.jobs.orders import JOB_ID, Order, Part
from woodlot.protocols.core.message import Message
from woodlot.runtime.codec import DEFAULT_LIMIT, decode, encode
from woodlot.runtime.drivers.grpc_line import UserLine
from woodlot.service.settings import Address

M = TypeVar("M", bound=Message)

logger = logging.getLogger(__name__)

ENDED = ("done", "failed", "cancelled", "stopped")
"""States in which a job does not move by itself."""
JOBS_LISTED = 200
"""Jobs that are listed unless more are asked for."""
_WAIT = 10.0


class Client:
    """A user at a coordinator.

    Parameters
    ----------
    address : str
        ``host:port`` of the coordinator.
    identity : path
        Folder of the user's key and certificate.
    message_limit : int
        The largest message that is sent or accepted.

    """

    def __init__(self, address: str, identity: str | os.PathLike[str], *, message_limit: int = DEFAULT_LIMIT) -> None:
        folder = Path(identity)
        try:
            self.address: str = Address.parse(address)
        except ValueError as error:
            raise ConfigError(f"the coordinator's address: {error}") from None
        self.identity = Identity.load(folder)
        if self.identity.role not in ("user", "party"):  # a party orders its leaving, or that rows are forgotten
            raise IdentityError(f"{folder} is the identity of a {self.identity.role}; a user needs its own")
        revoked = folder / REVOKED
        self._trust = Trust(self.identity.authority, revoked if revoked.exists() else None)
        self._limit = message_limit
        self._leaders: dict[str, str] = {}  # of jobs and models, as far as this side knows it; empty: the coordinator
        self._line = UserLine(
            address, self.identity.credentials, on_greeting=self._learn_revocations, message_limit=message_limit
        )

    def _learn_revocations(self, data: bytes) -> None:
        """The coordinator passes on the authority's list, which is signed: nothing is sealed to the revoked."""
        if data:
            try:
                self._trust.update(data)
            except IdentityError as error:
                logger.warning("the coordinator sent a list of revocations that is not taken: %s", error)

    def close(self) -> None:
        """Hang up; jobs go on."""
        self._line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def ask(self, request: Message, kind: type[M]) -> M:
        """Ask the coordinator; what it declines is raised."""
        return self.read(self._line.ask(encode(request, limit=self._limit)), kind, "the coordinator")

    def ask_leader(self, leader: str, request: Message, kind: type[M]) -> M:
        """Ask the party that leads a job what the coordinator must not read; the coordinator, if no party does."""
        if not leader:
            return self.ask(request, kind)
        known = {p.name: p.certificate for p in self.party_facts()}
        if leader not in known or self._trust.admit(known[leader], role="party").name != leader:
            raise RemoteProtocolError(f"the coordinator passed another's certificate on as that of {leader!r}")
        question = AskedQuestion(self.identity, leader, known[leader], encode(request, limit=self._limit))
        reply = self.ask(AskLeader(leader=leader, question=question.sealed), LeaderAnswered)
        return self.read(question.open(reply.answer.tobytes()), kind, f"the leader {leader!r}")

    def read(self, data: bytes, kind: type[M], who: str) -> M:
        """What somebody has answered; what is declined is raised."""
        reply = decode(data, limit=self._limit)
        if isinstance(reply, msg.Declined):
            raise _error_of(reply, who)
        if not isinstance(reply, kind):
            raise RemoteProtocolError(f"{who} answered with {type(reply).__name__}")
        return reply

    # --- the federation ---

    def parties(self) -> dict[str, float | None]:
        """All parties, and since when each is connected; None: it is away."""
        return {party.name: party.since for party in self.party_facts()}

    def party_facts(self) -> tuple[msg.PartyFacts, ...]:
        """All parties, and what the coordinator knows of them."""
        return self.ask(msg.AskFederation(), msg.FederationFacts).parties

    def order_fields(self, parts: Mapping[str, Part], job: str | None = None) -> dict[str, Any]:
        """The fields of an order for these parties; each part is sealed to the party's checked certificate.

        ``job``: its name, where parts depend on it; drawn without.
        """
        facts = self.ask(msg.AskFederation(), msg.FederationFacts)
        known = {p.name: p.certificate for p in facts.parties}
        strangers = [party for party in parts if party not in known]
        if strangers:
            raise DataError(
                f"{', '.join(strangers)} never joined this federation; its parties are {sorted(known)}. Correct the "
                "name, or have that party's service started: it joins when it connects"
            )
        for party in parts:
            # the coordinator passes certificates on; one that is not the party's would read what is sealed to it
            if self._trust.admit(known[party], role="party").name != party:
                raise RemoteProtocolError(f"the coordinator passed another's certificate on as that of {party!r}")
        coordinator = self._trust.admit(facts.coordinator, role="coordinator").name
        return common_fields(parts, known, federation=self._trust.federation, coordinator=coordinator, job=job)

    def check_signed(self, party: str, purpose: str, data: bytes, signature: bytes) -> None:
        """Check that a party of this federation has signed, by the certificate that it has now.

        Raises
        ------
        IdentityError
            If it has not, or has none that is valid.

        """
        known = {p.name: p.certificate for p in self.ask(msg.AskFederation(), msg.FederationFacts).parties}
        if party not in known:
            raise IdentityError(f"{party!r} never joined this federation; its parties are {sorted(known)}")
        # the coordinator passes certificates on: the authority's signature counts, and the name in it
        found = self._trust.verify(known[party], purpose, data, signature, role="party").name
        if found != party:
            raise IdentityError(f"the coordinator passed the certificate of {found!r} on as that of {party!r}")

    # --- jobs ---

    def submit(self, order: Order) -> msg.JobFacts:
        """Sign and send an order. The job goes on whether this user listens or not."""
        data, signature = sign_order(order, self.identity)
        self._leaders[order.job] = order.leader or ""
        return self._status(msg.SubmitJob(order=data, signature=signature), order.job)

    def _status(self, request: Message, job: str) -> msg.JobFacts:
        """How the coordinator says that a job stands; who leads it must be whom its order names."""
        facts = self.ask(request, msg.JobStatus).facts
        if facts.job != job:
            raise RemoteProtocolError(f"the coordinator was asked about job {job} and told of {facts.job}")
        self._check_leader(job, facts.leader, "the coordinator")
        return facts

    def remember_leader(self, model: str, leader: str) -> None:
        """Take it from now on that this party leads the jobs of a model, whatever the coordinator says; empty: none."""
        self._check_leader(model, leader, "the model here")
        self._leaders[model] = leader

    def _check_leader(self, job: str, leader: str, who: str) -> None:
        """Refuse a leader who is not the one of the order: questions and orders would go to who must not read them."""
        known = self._leaders.get(job, leader)
        if known != leader:
            raise RemoteProtocolError(
                f"{who} names {leader or 'nobody'!r} as the leader of {job}, and by its order it is "
                f"{known or 'nobody'!r}. Nothing was asked or ordered on this word; tell the federation's operators"
            )

    def follow(self, job: str, on_facts: Callable[[msg.JobFacts], None] | None = None) -> msg.JobFacts:
        """Wait until a job does not move any more; ``on_facts`` is told of all news."""
        for facts in self._news(job):
            if on_facts is not None:
                on_facts(facts)
            if facts.state in ENDED:
                break
        return self._with_leader(facts)

    def _news(self, job: str) -> Iterator[msg.JobFacts]:
        """How a job stands, now and whenever that changes."""
        seen = 0
        while True:
            facts = self._status(msg.AskJob(job=job, seen=seen, wait=_WAIT), job)
            if facts.version != seen or facts.state in ENDED:
                yield facts
            seen = facts.version

    def finish(self, job: str, on_facts: Callable[[msg.JobFacts], None] | None = None) -> msg.JobFacts:
        """Wait for a job to be done; raise `JobFailed` if it ends otherwise."""
        facts = self.follow(job, on_facts)
        if facts.state != "done":
            again = f"; when the cause is gone: woodlot jobs resume {job}" if facts.state == "stopped" else ""
            raise JobFailed(f"job {job} {facts.standing}{': ' if facts.error else ''}{facts.error}{again}")
        return facts

    def await_phase(self, job: str, phase: str) -> msg.JobFacts:
        """Wait for a job to come to a phase in which it stays; raise `JobFailed` if it ends before."""
        for facts in self._news(job):
            if facts.phase == phase and facts.state == "running":
                break
            if facts.state in ENDED:
                raise JobFailed(f"job {job} {facts.standing}{': ' if facts.error else ''}{facts.error}")
        return facts

    def job(self, job: str) -> msg.JobFacts:
        """How a job stands."""
        return self._with_leader(self._status(msg.AskJob(job=job, seen=0, wait=0.0), job))

    def _with_leader(self, facts: msg.JobFacts) -> msg.JobFacts:
        """The facts of a job, and where it has ended and a party has led it, what only that party can tell."""
        if not facts.leader or facts.state not in ("done", "failed"):
            return facts
        request = msg.AskJob(job=facts.job, seen=0, wait=0.0)
        try:
            led = self.ask_leader(facts.leader, request, msg.JobStatus).facts
        except WoodlotError:
            if facts.state == "done":
                raise
            return facts  # a leader that never began has nothing to add
        if facts.state == "failed":
            return msgspec.structs.replace(facts, error=led.error or facts.error)
        return msgspec.structs.replace(facts, score=led.score, scores=led.scores, told=led.told)

    def jobs(self, limit: int = JOBS_LISTED) -> Sequence[msg.JobFacts]:
        """The user's newest jobs, newest first."""
        return list(islice(self.all_jobs(limit), limit))

    def all_jobs(self, at_once: int = 1 << 30) -> Iterator[msg.JobFacts]:
        """All jobs of the user, newest first; they are asked for as they are needed, so many at a time."""
        below = None
        while True:
            page = self.ask(msg.ListJobs(below=below, limit=at_once), msg.JobList)
            yield from page.jobs
            if not page.more or not page.jobs:
                return
            below = (page.jobs[-1].created, page.jobs[-1].job)

    def cancel(self, job: str) -> msg.JobFacts:
        """End a job."""
        return self._status(msg.CancelJob(job=job), job)

    def resume(self, job: str) -> msg.JobFacts:
        """Go on with a job that stopped."""
        return self._status(msg.ResumeJob(job=job), job)

    def audit(self, job: str) -> msg.AuditReport:
        """The coordinator's record of a job."""
        return self.ask(msg.AskAudit(job=job), msg.AuditReport)

    def predictions(self, job: str) -> msg.Predictions:
        """The answers of a prediction."""
        return self.ask_leader(self._leader_of_job(job), msg.AskPredictions(job=job), msg.Predictions)

    def explanation(self, job: str) -> SealedExplanation:
        """An explanation, sealed to the process that has ordered it."""
        return self.ask_leader(self._leader_of_job(job), AskExplanation(job=job), SealedExplanation)

    def _leader_of_job(self, job: str) -> str:
        """The leader whom the order names, where it was given here; else whom the coordinator names."""
        if job in self._leaders:
            return self._leaders[job]
        return self._status(msg.AskJob(job=job, seen=0, wait=0.0), job).leader

    # --- models ---

    def receipt(self, job: str) -> Receipt:
        """The receipt of a revocation, checked: its signer is the coordinator of this federation, or who has led it."""
        text = self.ask_leader(self._leader_of_job(job), msg.AskReceipt(job=job), msg.ReceiptText).text
        receipt = Receipt.parse(text.encode())
        receipt.verify(self.identity.authority)
        return receipt

    def erasure(self, job: str, key: bytes = b"") -> ErasureReceipt:
        """The receipt of forgotten rows, checked: its signers are parties of this federation; ``key``: of its ids."""
        text = self.ask_leader(self._leader_of_job(job), msg.AskReceipt(job=job), msg.ReceiptText).text
        receipt = ErasureReceipt.parse(text.encode())
        receipt.verify(self.identity.authority)
        receipt.key = key
        return receipt

    def models(self) -> Sequence[msg.ModelFacts]:
        """All models, newest first; what each has cost and who saw what is told by `find_model`."""
        models: list[msg.ModelFacts] = []
        page = self.ask(msg.ListModels(), msg.ModelList)
        while page.more and page.models:
            models += page.models
            page = self.ask(msg.ListModels(below=(models[-1].created, models[-1].model)), msg.ModelList)
        return [*models, *page.models]

    def find_model(self, name: str) -> msg.ModelFacts:
        """A model by its id, by the beginning of its id, or by its name; the user's own before those of others."""
        known = self._found("", name)
        # a party needs who takes part and who leads, to order its own leaving or that rows are forgotten
        asks_leader = known.leader and self.identity.role == "user"
        return self._found(known.leader, known.model) if asks_leader else known

    def _found(self, leader: str, name: str) -> msg.ModelFacts:
        """What a leader, or the coordinator, tells of a model."""
        found = self.ask_leader(leader, msg.FindModel(name=name), msg.ModelList).models
        who = repr(leader) if leader else "the coordinator"
        if len(found) != 1:
            raise RemoteProtocolError(f"{who} answered with {len(found)} models")
        facts = found[0]
        if JOB_ID.fullmatch(name) and facts.model != name:
            raise RemoteProtocolError(f"{who} was asked about model {name} and told of {facts.model}")
        if leader and facts.leader != leader:
            raise RemoteProtocolError(f"{who} was asked as the leader of model {name} and does not lead it")
        self._check_leader(facts.model, facts.leader, who)
        return facts

    def knows_leader(self, model: str) -> bool:
        """Whether an order or a fitted model here says who leads the jobs of a model, and not the coordinator."""
        return model in self._leaders

    def leader_of(self, model: str) -> str:
        """The party that keeps a model and leads its jobs; empty: the coordinator does.

        Of what was ordered here the order says it, and the coordinator is not asked.
        """
        if model in self._leaders:
            return self._leaders[model]
        try:
            return self._found("", model).leader
        except DataError:  # what is asked of the coordinator next says why: it is unknown, or was replaced
            return ""

    def delete_model(self, name: str) -> msg.JobFacts:
        """Have a model of the user's own erased at the coordinator and at all its parties; returns the job.

        Raises
        ------
        WoodlotError
            If there is no such model, it is not the user's own or in use, or a party does not erase its part.

        """
        from woodlot.jobs.delete.delete_jobs import DeleteOrder

        model = self.find_model(name)
        order = DeleteOrder(**self.order_fields({party: Part() for party in model.parties}), model=model.model)
        return self.finish(self.submit(order).job)

    def model(self, model: str) -> msg.ModelPart:
        """The coordinator's part of a model, or the leader's where a party has led its training."""
        leader = self.leader_of(model)
        part = self.ask_leader(leader, msg.AskModel(model=model), msg.ModelPart)
        if (part.facts.model, part.facts.leader) != (model, leader):
            raise RemoteProtocolError(
                f"{repr(leader) if leader else 'the coordinator'} was asked for model {model} and gave "
                f"{part.facts.model}, led by {part.facts.leader or 'nobody'!r}"
            )
        return part


def _error_of(reply: msg.Declined, who: str) -> WoodlotError:
    match reply.kind:
        case "data":
            return DataError(reply.reason)
        case "policy":
            return PolicyError(reply.reason)
        case "epoch":
            return EpochError(reply.reason)
        case "protocol":
            return LocalProtocolError(f"{who} does not take that: {reply.reason}")
        case "internal":
            return RemoteProtocolError(f"{who} failed: {reply.reason}; its log says why")
