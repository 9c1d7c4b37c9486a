"""One job at a helper or a key service: the order is checked, then the messages about keys are answered.

A helper can be the dealer of hidden trainings, too; see `woodlot.jobs.hidden.helper_dealing`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from woodlot.crypto._libraries import gmp
from woodlot.exceptions import IdentityError, PolicyError, RemoteProtocolError
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs import job_messages as msg
from woodlot.jobs.approvals import Approvals, check_approved
from woodlot.jobs.hidden.helper_dealing import DealerBook, HelperDealing
from woodlot.jobs.home import JobSigner
from woodlot.jobs.key_store import KeyStore
from woodlot.jobs.led.led_messages import LeaderMet, LedJobOpened, MeetLeader, SealedReply, SealedRequest
from woodlot.jobs.order_seal import check_age, check_passed_on, housekeeping_job, open_part
from woodlot.jobs.orders import Order, Part, RevokeOrder, TrainOrder
from woodlot.jobs.party_job import OpenedJob, OpeningState
from woodlot.jobs.policy import Policy
from woodlot.jobs.restored import Restored
from woodlot.jobs.revocable.provider_work import check_epoch, check_kept_scheme, check_ticket
from woodlot.jobs.revocable.revocable_orders import (
    KeysOrder,
    MemberOrder,
    PredictEncryptedOrder,
    RevocableOrder,
    RevokeRevocableOrder,
    TrainRevocableOrder,
)
from woodlot.jobs.signers import is_signing_party
from woodlot.jobs.tally import JobTally, log_end, log_taken
from woodlot.protocols.core.handling import takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import key_messages as keys_msg
from woodlot.protocols.revocable.helper import Helper
from woodlot.protocols.revocable.key_service import KeyService
from woodlot.protocols.revocable.revocable_keys import EpochMember as KeyMember
from woodlot.protocols.revocable.share_holders import ShareHelper, ShareService
from woodlot.protocols.revocable.share_keeping import RequestPart
from woodlot.protocols.revocable.share_messages import RegisterAt
from woodlot.protocols.revocable.split_list import MAX_SPLITS

MemberRole = Literal["helper", "key service"]


@dataclass(frozen=True, eq=False)
class MemberHome:
    """What all jobs of a member have in common."""

    role: MemberRole
    identity: Identity
    trust: Trust
    policy: Policy
    store: KeyStore
    dealt: DealerBook
    n_jobs: int
    replays: Callable[[str], bool]
    tally: JobTally = field(default_factory=JobTally)
    approvals: Approvals | None = None
    restored: Restored | None = None


class MemberJob(OpenedJob):
    """Answers the messages of one job."""

    def __init__(self, home: MemberHome, job: str, end_job: Any) -> None:
        self._home = home
        self._job = job
        self._end_job = end_job
        self._order: MemberOrder | RevocableOrder | None = None
        self._user = ""
        self._member: KeyMember | None = None
        self._dealing: HelperDealing | None = None
        self._part = Part()  # what the user has sealed to this member, of a prediction

    @property
    def is_empty(self) -> bool:
        """Whether nothing has been opened here, as in jobs that only bring news."""
        return self._member is None and self._dealing is None

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
    def _on_OpenJob(self, message: msg.OpenJob) -> msg.JobOpened | LedJobOpened:
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
            if home.restored is not None:
                home.restored.check(order)
        if isinstance(order, TrainOrder | RevokeOrder) and home.role == "helper" and order.dealer == name:
            part = open_part(order, home.identity)
            if not again:
                check_approved(home.approvals, home.policy, message.order, order, part, user)
            self._dealing = HelperDealing(self._signer(), home.dealt, order, user, message, part)
            self._take(order, user, again=again)
            return self._dealing.opened
        if not isinstance(order, MemberOrder | RevocableOrder) or name != (
            order.helper if home.role == "helper" else order.key_service
        ):
            raise PolicyError(f"this is a {home.role}, and takes part as such only")
        if isinstance(order, KeysOrder | RevocableOrder):
            home.policy.check_keys(order.setting)
        if isinstance(order, PredictEncryptedOrder):
            self._part = open_part(order, home.identity)
        if isinstance(order, RevokeRevocableOrder) and is_signing_party(user) and not again:
            self._check_own_leaving(order)
        if not again:
            check_approved(home.approvals, home.policy, message.order, order, self._part, user)
        self._member = self._make(order)
        self._order, self._user = order, user
        self._take(order, user, again=again)
        return msg.JobOpened(n_aligned=None, fingerprint="")

    def _take(self, order: Order, user: str, *, again: bool) -> None:
        self._home.tally.take(self._job, order.kind, again=again)
        log_taken(order, user)

    def _signer(self) -> JobSigner:
        """This member in the agreements of the job."""
        return JobSigner(self._home.identity, self._home.trust, lambda: self._home.replays(self._job))

    @takes(MeetLeader, when=OpeningState.open, then=OpeningState.led)
    def _on_MeetLeader(self, message: MeetLeader) -> LeaderMet:
        return self._dealer(message).meet(message)

    @takes(SealedRequest, when=OpeningState.led)
    def _on_SealedRequest(self, message: SealedRequest) -> SealedReply:
        return self._dealer(message).answer(message)

    def _dealer(self, message: Message) -> HelperDealing:
        if self._dealing is None:
            raise RemoteProtocolError(f"Unexpected {type(message).__name__}: the order does not name a dealer")
        return self._dealing

    def _check_own_leaving(self, order: RevokeRevocableOrder) -> None:
        """Refuse a party's order to leave keys that it has no part in, or to leave others behind without keys.

        A user's order is checked against the model by the coordinator. A party's would otherwise end any model's keys.
        """
        keys, _ = self._home.store.load(order.keyring, self._job)
        others = set() if keys is None else set(keys.peers) - {keys.helper, keys.key_service, *keys.revoked}
        if order.leaver not in others | self._home.store.left(order.keyring):
            raise PolicyError(f"{order.leaver!r} has no part in these keys, and orders its own leaving only")
        if set(order.row_parties) != others - {order.leaver}:
            raise PolicyError(f"when {order.leaver!r} leaves by its own order, all other parties of the keys stay")

    def _make(self, order: MemberOrder | RevocableOrder) -> KeyMember:
        home, job, model = self._home, self._job, order.keyring
        keys, ended = home.store.load(model, job)
        check_kept_scheme(keys, order)
        _check_kept_model(home.store.models(model), order)
        leavers = (order.leaver,) if isinstance(order, RevokeRevocableOrder) else ()
        member: dict[str, Any] = {
            "job": job,
            "entropy": lambda purpose: home.store.secret_for(model, job, purpose),
            "keys": keys,
            "ended": ended,
            "signer": self._signer(),
            "setting": order.setting if isinstance(order, KeysOrder | RevocableOrder) else "standard",
            "keep": lambda fresh: home.store.keep(model, job, fresh, leavers),
            "check_present": lambda keys: None if home.replays(job) else home.store.check_present(model, keys),
        }
        listed: dict[str, Any] = {
            "most_splits": order.plan.most_splits if isinstance(order, TrainRevocableOrder) else MAX_SPLITS,
            "model": order.job if isinstance(order, RevocableOrder) else order.model,
            "replaces": _is_within(order),
            "leavers": lambda: leavers,
        }
        name = home.identity.name
        if order.is_shared:
            holder = ShareHelper if home.role == "helper" else ShareService
            return holder(name, asked=self._told, book=home.store.shares(model), **listed, **member)
        gmp()  # refuses where encryption is not installed
        if home.role == "helper":
            return Helper(name, owners=lambda: self._part.columns, threads=home.n_jobs, **listed, **member)
        return KeyService(name, **member)

    def _told(self) -> RequestPart:
        """What the user has told this holder of shares alone."""
        part = self._part
        other = b"" if isinstance(part.other, msgspec.UnsetType) else part.other
        return RequestPart(key=part.key, owners=part.columns, other=other)

    @takes(msg.ForgetJob, when=OpeningState.new)
    def _on_ForgetJob(self, message: msg.ForgetJob) -> msg.JobForgotten:
        if self._job != housekeeping_job(message.job):
            raise RemoteProtocolError("ForgetJob is for another job: each has a job of its own that ends it")
        self._end_job(message.job)
        if self._home.approvals is not None:
            self._home.approvals.withdraw(message.job)
        log_end(self._home.tally, message.job)
        return msg.JobForgotten()


def _check_kept_model(models: Collection[str], order: MemberOrder | RevocableOrder) -> None:
    """Refuse an order about one model under the keys of another: a new epoch would end those, and erase its shares.

    A former model of the keys is not another one: it is in use again where a leaving was cancelled.
    """
    if not isinstance(order, KeysOrder | RevokeRevocableOrder) or not models:
        return  # a prediction names the splits that it is for
    if order.model not in models:
        raise PolicyError("the order names the keys of another model than its own")


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
    return not within or isinstance(message, keys_msg.RegisterSplits | RegisterAt)
