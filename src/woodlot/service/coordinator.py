"""The coordinator's process: it listens, runs jobs side by side, and goes on with them after a restart."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

import msgspec

from woodlot.data.whole_files import finish_writing
from woodlot.data.wording import nearest
from woodlot.exceptions import (
    ApprovalPendingError,
    DataError,
    IdentityError,
    JournalError,
    PartyAwayError,
    PolicyError,
    WoodlotError,
)
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs.columns.revoke_jobs import check_no_other
from woodlot.jobs.hosting import JobHost, new_facts, phase_fields
from woodlot.jobs.job_messages import JobFacts
from woodlot.jobs.job_store import ENDED, JobStore
from woodlot.jobs.leaving_orders import Replacing
from woodlot.jobs.led.led_messages import AskLeader
from woodlot.jobs.led.led_scores import RelayScorer
from woodlot.jobs.order_seal import read_order
from woodlot.jobs.orders import ScoreOrder
from woodlot.jobs.tally import JobTally
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical.score import Scorer
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.carried import CarriedDriver, Carrier
from woodlot.runtime.drivers.grpc_hub import Cancelled, Hub
from woodlot.runtime.journal import Journal
from woodlot.runtime.peers import Peer
from woodlot.runtime.run import run
from woodlot.runtime.traffic import Traffic
from woodlot.service.allowance import Allowance
from woodlot.service.approval_wait import ApprovalWait
from woodlot.service.config import CoordinatorConfig
from woodlot.service.coordinator_news import Messenger
from woodlot.service.coordinator_scores import PATIENCE_SECONDS, ScoringJob, Scorings
from woodlot.service.job_queue import LOOK_SECONDS, JobQueue
from woodlot.service.leader_line import LeaderLine
from woodlot.service.live import LiveJob, Watch
from woodlot.service.monitor import Monitor
from woodlot.service.service_metrics import coordinator_health, coordinator_metrics
from woodlot.service.user_desk import UserDesk
from woodlot.trees.parallel import effective_jobs

logger = logging.getLogger(__name__)

JOURNAL = "journal.sqlite"
SCORE = "score"
"""The kind of a job that stays open; see `woodlot.service.coordinator_scores`."""
MAX_UNFINISHED = 200
"""Jobs of one user that wait or run at the same time."""

HOUSEKEEPING_SECONDS = 5.0


class Coordinator:
    """The coordinator of a federation.

    Parameters
    ----------
    config : CoordinatorConfig
        Where to listen, what to keep where, and the limits.

    """

    n_jobs = -1
    """Threads, as in scikit-learn."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self.config = config
        identity = Identity.load(config.identity)
        if identity.role != "coordinator":
            raise IdentityError(
                f"{config.identity} is the identity of a {identity.role}; the coordinator needs its own"
            )
        self.identity = identity
        file = config.revocation_file
        self.trust = Trust(identity.authority, file, may_be_missing=config.revocations is None)
        self.store = JobStore(config.state)
        with ExitStack() as stack:
            stack.callback(self.store.close)
            self.journal = Journal(config.state / JOURNAL, durable=False)  # its lock: nobody else writes there now
            stack.callback(self.journal.close)
            finish_writing(config.state)
            stack.pop_all()
        self.host = JobHost(identity, self.trust, self.store, effective_jobs(self.n_jobs))
        self._allowance = Allowance(self.store)
        self.live: dict[str, LiveJob] = {}
        self.tally = JobTally()
        self.traffic = Traffic()
        self.is_listening = False
        self.monitor: Monitor | None = None
        self.scorings = Scorings()
        self._known: dict[str, bytes] = self.store.parties()
        self._lock = threading.Lock()
        self._taking = threading.Lock()
        self._queue = JobQueue(self.present, config.wait_for_parties)
        self._closing = threading.Event()
        self._threads: list[threading.Thread] = []
        self._messenger = Messenger(self.host, self.carrier, self._closing)
        self._leaders = LeaderLine(self.carrier)
        self._approvals = ApprovalWait(self.host, self.carrier, self.present, self._go_on)
        desk = UserDesk(self)
        self.hub = Hub(
            str(config.listen),
            identity.credentials,
            admit=self._admit,
            serve_user=self.traffic.served(desk.serve),
            greet=lambda peer: self.trust.revocation_list(),
            on_second=lambda second: self.store.note_second(*second),
            message_limit=config.message_limit,
        )

    # --- life ---

    def start(self) -> int:
        """Take up all jobs that were not finished, and listen; returns the port."""
        if self.config.monitor.listen is not None:
            self.monitor = Monitor(
                self.config.monitor.listen, lambda: coordinator_health(self), lambda: coordinator_metrics(self)
            )
            self.monitor.start()
        for job in self.store.unfinished():  # first: nobody can have ordered any of them again
            self._take_up(job)
        port = self.hub.start()
        self.is_listening = True
        self.store.note_presence({})
        for number in range(self.config.max_running_jobs):
            self._spawn(self._work, f"woodlot-job-{number}")
        self._spawn(self._keep_turns, "woodlot-queue")
        self._spawn(self._keep_house, "woodlot-housekeeping")
        self.trust.warn()
        logger.info("listening on %s, port %d", self.config.listen.host, port)
        return port

    def _take_up(self, job: str) -> None:
        """Go on with a job; a scoring has ended with the process that held it."""
        stored = self.store.job(job)
        if stored is not None and stored.facts.kind == SCORE:
            version = stored.facts.version + 1
            self.store.update(msgspec.structs.replace(stored.facts, state="done", ended=time.time(), version=version))
            _log_end(stored.facts, {"state": "done"})
        else:
            self.enqueue(job)

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Stop listening. Jobs that run are left as they are, and go on at the next start."""
        self._closing.set()
        self.is_listening = False
        for live in list(self.live.values()):
            live.release()
        self.hub.close()  # before the scorings: one that is being opened waits for parties, however long they take
        self.scorings.close()
        self._queue.close()
        for thread in self._threads:
            thread.join()
        self._messenger.close()
        self._approvals.close()
        self._leaders.close()
        if self.monitor is not None:
            self.monitor.close()
        self.journal.close()
        self.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _admit(self, certificate: bytes) -> Peer:
        peer = self.trust.admit(certificate)
        if peer.role == "party" and self._known.get(peer.name) != certificate:
            self.store.remember_party(peer.name, certificate)
            self._known[peer.name] = certificate
        return peer

    # --- how the parties are reached ---

    def carrier(
        self,
        job: str,
        *,
        wait_seconds: float,
        cancelled: threading.Event,
        on_waiting: Callable[[tuple[str, ...]], None] | None = None,
    ) -> Carrier:
        """What carries the requests of a job; parameters as for `Hub.carrier`."""
        return self.traffic.carrier(
            self.hub.carrier(job, wait_seconds=wait_seconds, on_waiting=on_waiting, cancelled=cancelled)
        )

    def joined(self) -> Collection[str]:
        """Parties that were ever there."""
        return self.store.parties()

    def present(self) -> Mapping[str, float]:
        """Parties that are there now, and since when."""
        return self.hub.connected()

    def pass_on(self, user: str, question: AskLeader) -> Future[Message]:
        """Pass a user's sealed question on to the leader of its jobs."""
        return self._leaders.ask(user, question)

    # --- jobs ---

    def take(self, data: bytes, signature: bytes, certificate: bytes) -> str:
        """Check and record a user's order, if it is new; returns its job. It is not begun by this.

        Raises
        ------
        WoodlotError
            Saying why the order is not taken.

        """
        order, user = self.host.read(data, signature, certificate)
        known = self.store.job(order.job)
        if known is not None:
            if not known.is_of(data) or known.facts.user != user:
                raise PolicyError("there is another job of this name")
            return order.job
        if sum(live.facts.user == user for live in self.live.copy().values()) >= MAX_UNFINISHED:
            raise PolicyError(f"you have {MAX_UNFINISHED} jobs that wait or run; let some of them end, or cancel them")
        here = self.joined()
        strangers = [party for party in order.parties if party not in here]
        if strangers:
            near = nearest(strangers[0], sorted(here))
            raise DataError(
                f"{', '.join(strangers)} never joined this federation; "
                + (f"did you mean {near!r}? " if near else "")
                + "`woodlot parties` shows who did"
            )
        self.host.check(order, user)
        if isinstance(order, ScoreOrder):
            self.scorings.check_room(user)
        with self._taking:
            if isinstance(order, Replacing):
                check_no_other(self.store, order)
            self._allowance.take(user, len(data) + len(signature) + len(certificate))
            self.store.add(data, signature, certificate, new_facts(order, user))
        self.tally.take(order.job, order.kind)
        logger.info(
            "job %s: %s for %s, ordered by %s", order.job, order.kind, ", ".join(order.parties), user,
            extra={"job": order.job, "kind": order.kind, "user": user},
        )  # fmt: skip
        return order.job

    def enqueue(self, job: str) -> LiveJob | None:
        """Have a stored job run as soon as there is room; None if it cannot run any more."""
        with self._lock:
            former = self.live.get(job)
            if former is not None and not former.over:
                return former
            stored = self.store.job(job)
            if stored is None:
                return None
            live = LiveJob(stored.facts if former is None else former.facts)
            if live.facts.state in ENDED:
                return None
            if live.facts.state != "queued":  # a new job is recorded already: one write takes it, or none does
                self.store.update(live.change(state="queued", error="", waiting_for=(), ended=None))
            self.live[job] = live
            self.tally.take(job, live.facts.kind, again=True)
        self._begin(live)
        return live

    def _begin(self, live: LiveJob) -> None:
        """Have a job run, in its turn."""
        if live.facts.kind == SCORE:  # it waits for nobody's training
            self.scorings.pool.submit(self._work_on, live.facts.job)
        else:
            self._queue.put(live)

    def _put_off(self, live: LiveJob, parties: tuple[str, ...]) -> None:
        """Have a job wait for the approval of these parties' owners; it is as if it had not begun."""
        self._queue.leave(live.facts.job)
        self.store.update(
            live.change(state="queued", started=None, waiting_for=(), approval=parties, **phase_fields(""))
        )
        self._approvals.add(live, parties)

    def _go_on(self, live: LiveJob) -> None:
        """Run a job again whose approval was waited for."""
        if not self._closing.is_set():
            live.change(approval=msgspec.UNSET)
            self._begin(live)

    def cancel(self, job: str) -> None:
        """End a job for good."""
        with self._lock:
            live = self.live.get(job)
            if live is not None and not live.over:
                live.cancelled.set()
            else:
                self._cancel_stopped(job, live)
        self.scorings.end(job, {"state": "cancelled"})

    def _cancel_stopped(self, job: str, live: LiveJob | None) -> None:
        stored = self.store.job(job)
        if stored is None:
            return
        facts = stored.facts if live is None else live.facts
        if facts.state not in ENDED:
            version = facts.version + 1
            self.store.update(msgspec.structs.replace(facts, state="cancelled", ended=time.time(), version=version))
            self.live.pop(job, None)
            self.tally.take(job, facts.kind, again=True)  # it may have stopped before this process began
            self.tally.end(job, "cancelled")
            _log_end(facts, {"state": "cancelled"})

    def _work(self) -> None:
        while (live := self._queue.take()) is not None and not self._closing.is_set():
            self._work_on(live.facts.job)

    def _keep_turns(self) -> None:
        """End jobs that wait for a party in vain or were cancelled, and have others give way."""
        while not self._closing.wait(LOOK_SECONDS):
            try:
                cancelled = [(live, {"state": "cancelled"}) for live in self._approvals.look()]
                for live, ended in [*self._queue.look(), *cancelled]:
                    self._finish(live.facts.job, live, ended)
            except Exception:  # whatever it is, the queue goes on
                logger.exception("a job that waits is looked at later")

    def _work_on(self, job: str) -> None:
        live = self.live[job]
        try:
            ended = self._run(job, live)
        except ApprovalPendingError as error:
            if not self._closing.is_set():
                self._put_off(live, error.parties)
            return
        except JournalError as error:
            ended = {"state": "stopped", "error": str(error)}
        except Exception as error:
            logger.exception("job %s failed", job, extra=_fields(live.facts))
            ended = {"state": "failed", "error": f"internal error ({type(error).__name__}); see the log"}
        if ended is None or (self._closing.is_set() and ended["state"] != "done"):
            return  # a scoring that is open; or as it was, to go on at the next start
        if ended["state"] in ("stopped", "failed") and self._queue.put_back(job):
            return  # it has given way
        self._queue.leave(job)
        self._finish(job, live, ended)

    def _finish(self, job: str, live: LiveJob, ended: dict[str, Any]) -> None:
        ended |= {"ended": time.time(), "waiting_for": (), "approval": msgspec.UNSET}
        is_recorded = True
        try:
            self.store.update(msgspec.structs.replace(live.facts, version=live.facts.version + 1, **ended))
        except JournalError as error:
            logger.error(
                "the end of job %s cannot be recorded; this is tried again: %s", job, error, extra=_fields(live.facts)
            )
            is_recorded = False
        with self._lock:
            live.over = not is_recorded
            if is_recorded:
                self.live.pop(job, None)
            self.tally.end(job, ended["state"])
            live.change(**ended)  # last: whoever hears of it may fetch answers or resume at once
        _log_end(live.facts, ended)

    def _run(self, job: str, live: LiveJob) -> dict[str, Any] | None:
        """Run a job to its end, or as far as it goes; returns what is to be recorded: nothing, if it stays open."""
        if live.cancelled.is_set():
            return {"state": "cancelled"}
        stored = self.store.job(job)
        if stored is None:
            return {"state": "failed", "error": "the job is not recorded"}
        order = read_order(stored.order)
        self.store.update(
            live.change(state="running", started=live.facts.started or time.time(), approval=msgspec.UNSET)
        )
        ledger = Ledger()
        watch = Watch(live, ledger, self.store)
        patience: float = self.config.wait_for_parties
        if isinstance(order, ScoreOrder):
            patience = min(patience, PATIENCE_SECONDS)
        carrier = self.carrier(job, wait_seconds=patience, on_waiting=watch.waiting, cancelled=live.cancelled)
        self._queue.begin(job, carrier, getattr(getattr(order, "plan", None), "spare_after", None))
        try:
            with ExitStack() as stack:
                driver = stack.enter_context(
                    CarriedDriver(
                        carrier,
                        order.parties,
                        ledger=ledger,
                        journal=self.journal.job(job),
                        limit=self.config.message_limit,
                    )
                )
                outcome = run(
                    self.host.protocol(stored),
                    driver,
                    ledger=ledger,
                    on_progress=watch.progress,
                    on_phase=watch.phase,
                )
                if isinstance(outcome, Scorer | RelayScorer):
                    self._keep_open(job, live, ScoringJob(live.facts.user, outcome, driver, ledger, self.scorings.pool))
                    stack.pop_all()  # the scoring closes the driver
                    return None
            return self.host.keep(order, live.facts, outcome, ledger)
        except Cancelled:
            return {"state": "cancelled"}
        except ApprovalPendingError:
            raise
        except (PartyAwayError, JournalError) as error:
            return {"state": "stopped", "error": str(error)}
        except WoodlotError as error:
            return {"state": "failed", "error": str(error)}

    def _keep_open(self, job: str, live: LiveJob, scoring: ScoringJob) -> None:
        """Have a scoring take requests, until it is closed, or a party does not answer."""

        def on_end(ended: dict[str, Any]) -> None:
            self.scorings.forget(job)
            if not self._closing.is_set():
                self._finish(job, live, ended)

        scoring.on_end = on_end
        self.store.update(
            msgspec.structs.replace(live.facts, phase="scoring")
        )  # first: without a record it is not open
        self.scorings.add(job, scoring)
        live.change(phase="scoring")
        if live.cancelled.is_set():
            self.scorings.end(job, {"state": "cancelled"})

    # --- housekeeping ---

    def _keep_house(self) -> None:
        """Tell parties of jobs that have ended, when they are there, and drop anything not needed any more."""
        while not self._closing.wait(HOUSEKEEPING_SECONDS):
            for duty in (self._record_ends, self.scorings.end_idle, self._note_presence, self._end_jobs):
                try:
                    duty()
                except WoodlotError as error:
                    logger.warning("housekeeping is put off: %s", error)
                except Exception:  # whatever it is, the other duties and the next time must not suffer
                    logger.exception("housekeeping is put off")

    def _note_presence(self) -> None:
        self.store.note_presence(self.present())

    def _record_ends(self) -> None:
        """Record the ends of jobs that could not be recorded when they came."""
        for job, live in [(job, live) for job, live in self.live.copy().items() if live.over]:
            with self._lock:
                if self.live.get(job) is live:
                    self.store.update(live.facts)
                    del self.live[job]

    def _end_jobs(self) -> None:
        """Drop the messages of jobs that have ended, and tell the parties that are there; this waits for none."""
        news: dict[str, list[str]] = {party: [] for party in self.present()}
        for job, untold in self.store.ended_untold():
            self._drop_bodies(job)
            for party in untold:
                if party in news:
                    news[party].append(job)
        self._messenger.send({party: jobs for party, jobs in news.items() if jobs})

    def _drop_bodies(self, job: str) -> None:
        try:
            journal = self.journal.job(job)
            if not journal.ended:
                journal.drop_bodies()
        except JournalError as error:  # what is wrong with one job must not hold up the others
            logger.warning(
                "the messages of job %s, which has ended, are dropped later: %s", job, error, extra={"job": job}
            )


def _fields(facts: JobFacts) -> dict[str, Any]:
    """What a log line for machines has as fields."""
    return {"job": facts.job, "kind": facts.kind, "user": facts.user}


def _log_end(facts: JobFacts, ended: dict[str, Any]) -> None:
    state, error = ended["state"], ended.get("error")
    logger.info(
        "job %s is %s%s", facts.job, state, f": {error}" if error else "", extra=_fields(facts) | {"state": state}
    )
