"""What every host does with a user's signed order: check it, run what its kind says, and keep what comes of it.

`JobHost` has the steps, for hosts that queue and resume jobs by themselves (`woodlot.service.coordinator`).
`run_order` takes all of them at once, for hosts that run one order to its end while its user waits.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from woodlot.exceptions import DataError, JobFailed, PolicyError, WoodlotError
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs import job_messages as msg
from woodlot.jobs.hidden.ordered_hidden import check_hidden_leaving, check_same_dealer
from woodlot.jobs.job_store import JobStore, StoredJob
from woodlot.jobs.kind import CoordinatorHost, Kept, Kind, Rounds, kind_of, outcome_of, tells_done
from woodlot.jobs.leaving_orders import Replacing
from woodlot.jobs.led.dealing import DealerSeat, dealer_entropy
from woodlot.jobs.led.relay_jobs import keep_relayed, relay_job
from woodlot.jobs.order_seal import check_order, housekeeping_job, pass_on, read_order
from woodlot.jobs.orders import Order, RevokeOrder, ScoreOrder, TrainOrder
from woodlot.jobs.signers import is_signing_party
from woodlot.protocols.core.message import Progress
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers import Handler
from woodlot.runtime.drivers.carried import CarriedDriver, Carrier
from woodlot.runtime.run import run

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class JobHost:
    """The coordinator's side of a host.

    Attributes
    ----------
    identity, trust
        Who the coordinator is, and whom it believes.
    store : JobStore
        Jobs, and what they keep.
    n_jobs : int
        Threads.

    """

    identity: Identity
    trust: Trust
    store: JobStore
    n_jobs: int

    def read(self, data: bytes, signature: bytes, certificate: bytes) -> tuple[Order, str]:
        """The order and the name of the user who has signed it; one for another coordinator is refused."""
        order, user = check_order(data, signature, certificate, self.trust)
        if order.coordinator != self.identity.name:
            raise PolicyError(
                f"the order is for another coordinator; this one is {self.identity.name!r}: order it there"
            )
        return order, user

    def runs(self, order: Order) -> bool:
        """Whether this host runs the protocol of an order; a coordinator relays what a party leads."""
        return order.leader is None or self.identity.role == "party"

    def check(self, order: Order, user: str) -> None:
        """Refuse an order that its kind does not take now, or that only the model's own user may give."""
        kind = kind_of(order)
        self._check_leader(order, kind)
        if self.runs(order):
            kind.check(self.store, order)
        if kind.deed:  # it puts an end to what the model's user relies on
            model = getattr(order, "model", "")
            owner = self.store.model_facts(model).user
            if owner != user and (kind.erases or not is_signing_party(user)):  # a party leaves, or has rows forgotten
                raise PolicyError(f"model {model} was ordered by {owner}; only {owner} may {kind.deed}")

    def _check_leader(self, order: Order, kind: Kind) -> None:
        """Refuse an order whose leader is not that of its model, or whose kind no party can lead."""
        leader, model = order.leader or "", getattr(order, "model", "")
        facts = self.store.model_facts(model) if model else None
        if facts is not None and facts.leader and facts.replaced_by and not kind.erases:
            raise DataError(f"model {model} was replaced by {facts.replaced_by} when a party left it; use that one")
        if facts is not None and isinstance(order, RevokeOrder):
            check_hidden_leaving(order, hidden=facts.is_hidden)
            check_same_dealer(order, facts.dealer)
        if facts is not None and facts.leader != leader and not kind.erases:
            if not facts.leader:
                raise DataError(
                    f"model {model} is kept by the coordinator, and the order names {leader!r} as its leader"
                )
            raise DataError(
                f"model {model} is kept by {facts.leader!r}, who leads its jobs. Name {facts.leader!r} as the leader; "
                "kinds of job that no party can lead are not possible with this model"
            )
        if leader and not kind.led:
            raise DataError(f"a job of the kind {kind.name!r} cannot be led by a party; use lead='coordinator'")

    def protocol(self, stored: StoredJob) -> Rounds:
        """What the kind of a stored order has the coordinator do."""
        order = read_order(stored.order)
        opening = self.opening(stored)
        if not self.runs(order):
            again = stored.facts.started is not None
            return relay_job(order, opening, lambda n_rows: self._dealer(order, n_rows, again))
        return kind_of(order).protocol(order, opening, CoordinatorHost(self.store, self.n_jobs))

    def opening(self, stored: StoredJob) -> msg.OpenJob:
        """The first message of a job to each of its parties; it is the same each time."""
        return msg.OpenJob(**self._passed_on(stored))

    def _dealer(self, order: Order, n_rows: int, again: bool) -> Handler | None:
        """What answers requests to the dealer of a job that a party leads; None where its kind has none."""
        make = kind_of(order).dealer
        if make is None:
            return None
        entropy = dealer_entropy(self.store, order.job)
        return make(order, DealerSeat(self.identity, self.trust, entropy, again, n_rows, self.store))

    def keep(self, order: Order, facts: msg.JobFacts, outcome: Any, ledger: Ledger) -> dict[str, Any]:
        """Store what a protocol has returned; gives back the fields of `JobFacts` that tell of it."""
        if isinstance(order, Replacing) and is_signing_party(facts.user):
            owner = self.store.model_facts(order.model).user  # the model stays that user's
            facts = msgspec.structs.replace(facts, user=owner)
        kept = Kept(self.store, order, facts, ledger.account().to_json(), self.identity)
        keep = kind_of(order).keep if self.runs(order) else keep_relayed
        return {"state": "done"} | cost_fields(ledger) | keep(kept, outcome)

    def end_notice(self, stored: StoredJob, party: str) -> msg.ForgetJob | msg.LeaveNotice:
        """What a party is told when a job has ended, in a job of the name `housekeeping_job`."""
        # The orders of others may be gone.
        if outcome_of(stored.facts.kind) == "receipt" and party == getattr(read_order(stored.order), "leaver", None):
            return msg.LeaveNotice(**self._passed_on(stored))
        facts = stored.facts
        return msg.ForgetJob(job=facts.job, done=facts.state == "done" if tells_done(facts.kind) else None)

    def _passed_on(self, stored: StoredJob) -> dict[str, bytes]:
        own, passed = pass_on(stored.order, self.identity)
        return {
            "order": stored.order, "signature": stored.signature, "certificate": stored.certificate,
            "coordinator": own, "passed": passed,
        }  # fmt: skip


def new_facts(order: Order, user: str) -> msg.JobFacts:
    """How a job stands that was just ordered."""
    return msg.JobFacts(
        job=order.job, kind=order.kind, user=user, state="queued", version=1, created=time.time(),
        parties=order.parties, model=getattr(order, "model", ""), name=getattr(order, "name", ""),
        leader=order.leader or "",
        protection="hidden" if isinstance(order, TrainOrder) and order.is_hidden else msgspec.UNSET,
    )  # fmt: skip


def cost_fields(ledger: Ledger) -> dict[str, Any]:
    """What is told of the cost of a job."""
    cost = ledger.cost()
    return {"rounds": cost.rounds, "bytes_by_party": cost.bytes_by_party, "network_seconds": cost.network_seconds}


def progress_fields(progress: Progress, ledger: Ledger) -> dict[str, Any]:
    """What is told of a job that goes on."""
    return {"done": progress.done, "total": progress.total, "note": progress.note} | cost_fields(ledger)


def phase_fields(phase: str) -> dict[str, Any]:
    """What is told of a job that comes to its next phase."""
    return {"phase": phase, "done": 0, "total": 0, "note": ""}


def run_order(
    host: JobHost,
    signed: tuple[bytes, bytes, bytes],
    carrier_for: Callable[[str], Carrier],
    *,
    ledger: Ledger | None = None,
    on_facts: Callable[[msg.JobFacts], None] | None = None,
) -> msg.JobFacts:
    """Run an order to its end, keep what comes of it, and tell the parties that it is over.

    Parameters
    ----------
    host : JobHost
        The coordinator's side.
    signed : tuple of bytes
        The order, the user's signature, and the user's certificate.
    carrier_for : callable
        From a job's name to what carries its requests to the parties.
    ledger : Ledger, optional
        Records every message of the job.
    on_facts : callable, optional
        Told of all news of the job.

    Returns
    -------
    JobFacts
        How the job has ended.

    Raises
    ------
    DataError, PolicyError
        If the order is not taken; nothing is recorded of it.
    JobFailed
        If the job ends without a result; its cause says why.

    """
    order, user = host.read(*signed)
    if isinstance(order, ScoreOrder):
        raise DataError("a scoring stays open for requests, which only a coordinator's service takes; use predict")
    if not host.runs(order):
        raise DataError("only a coordinator's service relays what a party leads; use lead='coordinator'")
    host.check(order, user)
    ledger = Ledger() if ledger is None else ledger
    job = _HostedJob(host.store, new_facts(order, user), on_facts)
    host.store.add(*signed, job.facts)
    job.change(state="running", started=time.time())
    try:
        with CarriedDriver(carrier_for(order.job), order.parties, ledger=ledger) as driver:
            outcome = run(
                host.protocol(job.stored()),
                driver,
                ledger=ledger,
                on_progress=lambda progress: job.change(**progress_fields(progress, ledger)),
                on_phase=lambda phase: job.change(**phase_fields(phase)),
            )
        job.end(**host.keep(order, job.facts, outcome, ledger))
    except WoodlotError as error:
        job.end(state="failed", error=str(error))
        raise JobFailed(f"job {order.job} has failed: {error}") from error
    except BaseException:  # an interrupt, or a fault: nobody goes on with the job
        job.end(state="cancelled")
        raise
    finally:
        _tell_end(host, order.job, carrier_for)
    return job.facts


class _HostedJob:
    """How a job stands while its user waits for it."""

    def __init__(self, store: JobStore, facts: msg.JobFacts, on_facts: Callable[[msg.JobFacts], None] | None) -> None:
        self.facts = facts
        self._store = store
        self._on_facts = on_facts

    def stored(self) -> StoredJob:
        """The job as it is recorded."""
        stored = self._store.job(self.facts.job)
        if stored is None:
            raise DataError(f"job {self.facts.job} is not recorded")
        return stored

    def change(self, **fields: Any) -> None:
        """Change some of the facts, and tell of it."""
        self.facts = msgspec.structs.replace(self.facts, version=self.facts.version + 1, **fields)
        if self._on_facts is not None:
            self._on_facts(self.facts)

    def end(self, **fields: Any) -> None:
        """Record how the job has ended, and tell of it."""
        ended = msgspec.structs.replace(self.facts, version=self.facts.version + 1, ended=time.time(), **fields)
        self._store.update(ended)
        self.change(ended=ended.ended, **fields)


def _tell_end(host: JobHost, job: str, carrier_for: Callable[[str], Carrier]) -> None:
    """Tell the parties that a job has ended: they drop its messages, and what it has replaced."""
    stored = host.store.job(job)
    if stored is None:
        return
    for party in stored.untold:
        try:
            with CarriedDriver(carrier_for(housekeeping_job(job)), [party]) as driver:
                driver.ask({party: host.end_notice(stored, party)})
            host.store.told(job, party)
        except WoodlotError as error:  # the outcome stands
            fields = {"job": job, "party": party}
            logger.warning("%s could not be told that job %s has ended: %s", party, job, error, extra=fields)
