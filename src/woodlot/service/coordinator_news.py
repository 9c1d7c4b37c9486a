"""How parties are told that jobs have ended: each by itself, so that none waits for one that is slow or silent."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from woodlot.exceptions import PartyAwayError, PolicyError, RemoteProtocolError, WoodlotError
from woodlot.jobs import job_messages as msg
from woodlot.jobs.hosting import JobHost
from woodlot.jobs.order_seal import housekeeping_job
from woodlot.runtime.drivers.carried import CarriedDriver, Carrier
from woodlot.runtime.drivers.grpc_hub import Cancelled

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
"""How long a party that is connected may take to answer. Then it is told of other jobs, and of this one later."""
_GONE_SECONDS = 10.0  # how long it may be away, where it has just been there


class Messenger:
    """Tells parties that jobs have ended.

    Parameters
    ----------
    host : JobHost
        Its store has the jobs, and who has still to be told.
    reach : callable
        What carries requests to parties; parameters as for `Hub.carrier`.
    closing : threading.Event
        Set when the coordinator ends: nobody is told any more.

    """

    def __init__(self, host: JobHost, reach: Callable[..., Carrier], closing: threading.Event) -> None:
        self._host = host
        self._store = host.store
        self._reach = reach
        self._closing = closing
        self._at_work: dict[str, threading.Thread] = {}

    def send(self, news: Mapping[str, Sequence[str]]) -> None:
        """Begin to tell parties of their jobs; one that is still being told of others is left at that."""
        self._at_work = {party: thread for party, thread in self._at_work.items() if thread.is_alive()}
        for party, jobs in news.items():
            if party not in self._at_work:
                name = f"woodlot-news-{party}"
                thread = threading.Thread(target=self.tell, args=(party, jobs), name=name, daemon=True)
                self._at_work[party] = thread
                thread.start()

    def tell(self, party: str, jobs: Sequence[str]) -> None:
        """Tell a party of jobs that have ended, and record which it knows of; what goes wrong is put off."""
        for job in jobs:
            fields = {"job": job, "party": party}
            try:
                self._tell(party, job)
            except WoodlotError as error:
                if self._closing.is_set():
                    return
                logger.warning("%s is told later that job %s has ended: %s", party, job, error, extra=fields)
                if isinstance(error, PartyAwayError):
                    return
            except Exception:
                logger.exception("%s is told later that job %s has ended", party, job, extra=fields)

    def _tell(self, party: str, job: str) -> None:
        stored = self._store.job(job)
        if stored is None:
            return
        notice = self._host.end_notice(stored, party)
        try:
            self._ask(party, job, notice)
        except (PolicyError, RemoteProtocolError) as error:
            if not isinstance(notice, msg.LeaveNotice):
                raise
            # it was told, whatever it makes of it
            fields = {"job": job, "party": party}
            logger.warning("%s does not take the notice that it has left a model: %s", party, error, extra=fields)
        self._store.told(job, party)

    def _ask(self, party: str, job: str, message: msg.ForgetJob | msg.LeaveNotice) -> None:
        late = threading.Event()
        timer = threading.Timer(ANSWER_SECONDS, late.set)
        timer.daemon = True
        carrier = self._reach(housekeeping_job(job), wait_seconds=_GONE_SECONDS, cancelled=late)
        with CarriedDriver(carrier, [party]) as driver:
            timer.start()
            try:
                driver.ask({party: message})
            except Cancelled as error:
                raise Cancelled(f"it has not answered within {ANSWER_SECONDS:g} s") from error
            finally:
                timer.cancel()

    def close(self) -> None:
        """Wait for what is being told; whatever carries it must be closed before."""
        for thread in self._at_work.values():
            thread.join()
