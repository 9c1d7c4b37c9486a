"""One job at a helper or a key service: the order is checked, then the messages about keys are answered."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from woodlot.exceptions import IdentityError, PolicyError, RemoteProtocolError
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs import job_messages as msg
from woodlot.jobs.home import JobSigner
from woodlot.jobs.key_store import KeyStore
from woodlot.jobs.order_seal import check_age, check_passed_on, housekeeping_job, open_part
from woodlot.jobs.orders import (
    KeysOrder,
    MemberOrder,
    PredictEncryptedOrder,
    RevocableOrder,
    RevokeRevocableOrder,
    TrainRevocableOrder,
)
from woodlot.jobs.party_job import OpenedJob, OpeningState
from woodlot.jobs.policy import Policy
from woodlot.jobs.revocable.provider_work import check_epoch, check_ticket
from woodlot.protocols.core.handling import takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import key_messages as keys_msg
from woodlot.protocols.revocable.helper import Helper
from woodlot.protocols.revocable.key_service import KeyService
from woodlot.protocols.revocable.revocable_keys import EpochMember as KeyMember
from woodlot.protocols.revocable.split_list import MAX_SPLITS

logger = logging.getLogger(__name__)

MemberRole = Literal["helper", "key service"]


@dataclass(frozen=True, eq=False)
class MemberHome:
    """What all jobs of a member have in common."""

    role: MemberRole
    identity: Identity
    trust: Trust
    policy: Policy
    store: KeyStore
    n_jobs: int
    replays: Callable[[str], bool]


class MemberJob(OpenedJob):
    """Answers the messages of one job."""

    def __init__(self, home: MemberHome, job: str, end_job: Any) -> None:
        self._home = home
        self._job = job
        self._end_job = end_job
        self._order: MemberOrder | RevocableOrder | None = None
        self._user = ""
        self._member: KeyMember | None = None
        self._owners: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been opened here, as in jobs that only bring news."""
        return self._member is None

    def has_done(self, message: Message) -> bool:
        """Whether the epoch that this message of the job has prepared is in use, and what it was made of is erased."""
        order = self._order
        return order is not None and self._home.store.has_begun(order.keyring, self._job)

    def _pass_on(self, message: Message) -> Message:
        order, member = self._order, self._member
        if order is None or member is None:
            raise RemoteProtocolError("this job was not opened")
        ticket = getattr(message, "ticket", None)
        if (ticket is not None) != isinstance(order, PredictEncryptedOrder) or not _is_ordered(message, order):
            raise RemoteProtocolError(f"the order does not ask for {type(message).__name__}")
        if ticket is not None:
            check_ticket(ticket, order, self._user)
        check_epoch(message, order)
        return member.handle(message)

    @takes(msg.OpenJob, when=OpeningState.new, then=OpeningState.open)
    def _on_OpenJob(self, message: msg.OpenJob) -> msg.JobOpened:
        home = self._home
        again = home.replays(self._job)
        try:
            order, user = check_passed_on(message, home.trust, again=again)
        except IdentityError as error:
            raise PolicyError(f"the order is not taken: {error}") from None
        name = home.identity.name
        if order.job != self._job or name not in order.parties:
            raise RemoteProtocolError("the order is of another job, or not for this member")
        home.policy.check_order(order.kind, user)
        if not again:
            check_age(order)
        if not isinstance(order, MemberOrder | RevocableOrder) or name != (
            order.helper if home.role == "helper" else order.key_service
        ):
            raise PolicyError(f"this is a {home.role}, and takes part as such only")
        if isinstance(order, KeysOrder | RevocableOrder):
            home.policy.check_keys(order.setting)
        if isinstance(order, PredictEncryptedOrder) and home.role == "helper":
            self._owners = open_part(order, home.identity).columns
        self._member = self._make(order)
        self._order, self._user = order, user
        logger.info("job %s: %s, ordered by %s, with %s", self._job, order.kind, user, ", ".join(order.parties))
        return msg.JobOpened(n_aligned=None, fingerprint="")

    def _make(self, order: MemberOrder | RevocableOrder) -> KeyMember:
        home, job, model = self._home, self._job, order.keyring
        keys, ended = home.store.load(model, job)
        member: dict[str, Any] = {
            "job": job,
            "entropy": lambda purpose: home.store.secret_for(model, job, purpose),
            "keys": keys,
            "ended": ended,
            "signer": JobSigner(home.identity, home.trust, lambda: home.replays(job)),
            "setting": order.setting if isinstance(order, KeysOrder | RevocableOrder) else "standard",
            "keep": lambda fresh: home.store.keep(model, job, fresh),
            "check_present": lambda keys: None if home.replays(job) else home.store.check_present(model, keys),
        }
        if home.role == "helper":
            return Helper(
                home.identity.name,
                owners=lambda: self._owners,
                most_splits=order.plan.most_splits if isinstance(order, TrainRevocableOrder) else MAX_SPLITS,
                model=order.job if isinstance(order, RevocableOrder) else order.model,
                replaces=_is_within(order),
                leavers=lambda: (order.leaver,) if isinstance(order, RevokeRevocableOrder) else (),
                threads=home.n_jobs,
                **member,
            )
        return KeyService(home.identity.name, **member)

    @takes(msg.ForgetJob, when=OpeningState.new)
    def _on_ForgetJob(self, message: msg.ForgetJob) -> msg.JobForgotten:
        if self._job != housekeeping_job(message.job):
            raise RemoteProtocolError("ForgetJob is for another job: each has a job of its own that ends it")
        self._end_job(message.job)
        return msg.JobForgotten()


def _is_within(order: MemberOrder | RevocableOrder) -> bool:
    """Whether a party leaves, and the epoch goes on."""
    return isinstance(order, RevokeRevocableOrder) and order.level != 2


def _is_ordered(message: Message, order: MemberOrder | RevocableOrder) -> bool:
    """Whether an order asks for what is done to the keys: who leaves within an epoch, or begins a new one.

    When a party leaves within an epoch, the splits of the forest without it are registered, too.
    """
    within = _is_within(order)
    if isinstance(message, keys_msg.RevokeKey):
        return within and isinstance(order, RevokeRevocableOrder) and message.party == order.leaver
    return not within or isinstance(message, keys_msg.RegisterSplits)
