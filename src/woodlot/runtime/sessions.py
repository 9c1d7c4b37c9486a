"""The party's side of numbered requests: the same number gets the same answer, also after a restart."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Callable
from typing import NamedTuple

from woodlot.exceptions import ApprovalPendingError, JournalError, PolicyError, RemoteProtocolError, WoodlotError
from woodlot.protocols.core.message import MAX_REASON, ApprovalPending, Refusal, Role, Unanswered
from woodlot.runtime.codec import DEFAULT_LIMIT, decode, encode
from woodlot.runtime.drivers import Handler, answer, respond
from woodlot.runtime.faults import wordless
from woodlot.runtime.journal import Entry, JobJournal, Journal
from woodlot.runtime.pending_charges import PendingCharges
from woodlot.runtime.second_copy import SecondCopy

logger = logging.getLogger(__name__)

UNREADABLE = "unreadable message"
"""The kind under which a request that is no message is journalled."""

_COORDINATOR = Role.coordinator.value
_OTHERWISE = (
    "after its restart it answers request {} otherwise than before; are its data, its settings and its version the "
    "same?"
)


class Sessions:
    """Answers the requests of all jobs at one party.

    Requests of one job are answered one at a time, in the order of their numbers; jobs go on side by side.
    With a journal, a request and its reply are recorded together before the reply leaves, and a handler that
    is lost by a crash is built again by feeding it what it was asked before. So a handler must answer the same
    to the same; what it refused must have left its state as it was, and is not asked again.

    What a handler pays for privacy (see `pending_charges`) is written in the transaction of the reply that it pays for.
    Where a request is refused after something was to be paid, the handler is built again from the journal as well:
    nothing that it has kept in mind may rest on a charge that was dropped.

    What the session itself cannot answer, for whatever reason, is `Unanswered`: it is not recorded and the
    request stays open, so that nothing is lost once the reason is gone.

    Parameters
    ----------
    party : str
        This party's name.
    open_job : callable
        Returns the handler of a job, given its name. What it raises at the first request refuses that request.
    journal : Journal, optional
        Without it, a job does not survive a restart, and only its latest request can be repeated.
    limit : int
        The largest request that is accepted and the largest reply that is sent, in bytes.
    copy : SecondCopy, optional
        Where it is recorded once more which orders were taken and what was paid.
    pending : callable
        What is sent while an order waits for approval.

    """

    def __init__(
        self,
        party: str,
        open_job: Callable[[str], Handler],
        *,
        journal: Journal | None = None,
        limit: int = DEFAULT_LIMIT,
        copy: SecondCopy | None = None,
        pending: Callable[[], Unanswered] = ApprovalPending.told,
    ) -> None:
        self.party = party
        self._pending = pending
        self._open_job = open_job
        self._journal = journal
        self._limit = limit
        self._copy = copy
        self._sessions: dict[str, _Session] = {}
        self._lock = threading.Lock()

    def answer(self, job: str, number: int, request: bytes) -> bytes:
        """Answer one encoded request; may be called from any thread.

        Parameters
        ----------
        job : str
            The job that the request belongs to.
        number : int
            1 for the first request of the job, then one more for each; a repeat has the number that it had.
        request : bytes
            The encoded message.

        Returns
        -------
        bytes
            The encoded reply, refusal or `Unanswered`.

        """
        session = self._session(job)
        try:
            return session.answer(number, request)
        finally:
            self._leave(job, session)

    def pending_charges(self, job: str) -> PendingCharges:
        """Return where the handler of a job pays for what it releases under differential privacy."""
        session = self._session(job)
        self._leave(job, session)
        return session.charges

    def replays(self, job: str) -> bool:
        """Whether the handler of a job is asked just now what it, or the one before it, has answered."""
        return self.pending_charges(job).replays

    def end(self, job: str) -> None:
        """Forget the job's handler and the bytes of its messages; who was sent what stays in the journal.

        Raises
        ------
        JournalError
            If the end cannot be recorded; it can be repeated.

        """
        session = self._session(job)
        try:
            session.end()
        finally:
            self._leave(job, session)

    def _leave(self, job: str, session: _Session) -> None:
        """Let go of a session that holds nothing which the journal could not give back at once."""
        with self._lock:
            session.users -= 1
            if not session.users and session.is_empty and self._sessions.get(job) is session:
                del self._sessions[job]

    def _session(self, job: str) -> _Session:
        """The session of a job, to be left with `_leave`."""
        with self._lock:
            session = self._sessions.get(job)
            if session is None:
                journal = None if self._journal is None else self._journal.job(job)
                session = self._sessions[job] = _Session(
                    self.party, job, self._open_job, journal, self._limit, self._copy, self._pending
                )
            session.users += 1
            return session


class _Stuck(Exception):  # noqa: N818 - it never leaves this module
    """The session cannot answer; holds what is sent instead."""

    def __init__(self, reply: Unanswered) -> None:
        super().__init__(reply.reason)
        self.reply = reply


def _stuck(reason: str) -> _Stuck:
    return _Stuck(Unanswered(kind="internal", reason=reason[:MAX_REASON]))


def _otherwise(number: int, failure: Exception | None) -> str:
    """What a handler says that does not answer as before; its own words for it, where it has some, say more."""
    if failure is None:
        return _OTHERWISE.format(number)
    told = Refusal.from_exception(failure).reason
    return f"after its restart it refuses request {number}, which it has answered before: {told}"


class _Latest(NamedTuple):
    """The latest exchange, where there is no journal to remember it."""

    number: int
    digest: bytes
    reply: bytes


class _Session:
    """One job at this party."""

    def __init__(
        self,
        party: str,
        job: str,
        open_job: Callable[[str], Handler],
        journal: JobJournal | None,
        limit: int,
        copy: SecondCopy | None,
        pending: Callable[[], Unanswered],
    ) -> None:
        self._pending = pending
        self._copy = copy
        self._party = party
        self._job = job
        self._open_job = open_job
        self._journal = journal
        self._limit = limit
        self.charges = PendingCharges(journal)
        self._lock = threading.Lock()
        self._handler: Handler | None = None
        self._last: int | None = None  # unknown until the journal is read
        self._latest = _Latest(0, b"", b"")
        self._trouble: str | None = None  # why no request of this job can be answered any more
        self._ended = False
        self._fields = {"job": job}  # what a log line for machines has as fields
        self.users = 0  # how many threads are in it, counted by `Sessions`

    @property
    def is_empty(self) -> bool:
        """Whether nothing is lost with this object."""
        if self._ended:
            return True
        return self._journal is not None and (self._handler is None or getattr(self._handler, "is_empty", False))

    def answer(self, number: int, request: bytes) -> bytes:
        with self._lock:
            try:
                return self._answer(number, request)
            except _Stuck as stuck:
                # an order that waits for approval is asked again and again
                level = logging.DEBUG if isinstance(stuck.reply, ApprovalPending) else logging.WARNING
                logger.log(
                    level, "job %s: request %d is not answered: %s", self._job, number, stuck, extra=self._fields
                )
                return encode(stuck.reply)
            except JournalError as error:
                # The words stay here: they may name files.
                logger.error("job %s: request %d is not answered: %s", self._job, number, error, extra=self._fields)
                self._forget()
                reason = "its journal cannot be written or read; its own log says why. Resume the run afterwards"
                return encode(Unanswered(kind="internal", reason=reason))
            except BaseException:
                self._forget()
                raise
            finally:
                if not self.charges.is_empty:  # no reply was recorded with it: what rested on it must not stay
                    self._forget()
                    self.charges.clear()

    def _forget(self) -> None:
        """Drop a handler that may be ahead of the journal: it is built again when it is needed."""
        if self._journal is None and self._handler is not None:
            self._trouble = "it was interrupted, and keeps no journal to go on from"
        self._handler, self._last = None, None

    def _answer(self, number: int, request: bytes) -> bytes:
        last = self._read_last()
        if self._trouble is not None:
            raise _stuck(self._trouble)
        if number < 1:
            raise _stuck("requests are numbered from 1")
        if number > last + 1:
            raise _stuck(f"requests before {number} are missing here; {last} were answered. Is its journal another?")
        digest = hashlib.sha256(request).digest()
        if number <= last:
            return self._repeat(number, digest, request)
        kind, reply, data, keep = self._respond(request)
        if self._journal is None:
            self._latest = _Latest(number, digest, data)
        else:
            asked = Entry(_COORDINATOR, self._party, number, kind, len(request), digest, request if keep else None)
            data = self._record(self._journal, asked, reply, data)
        self._last = number
        return data

    def _record(self, journal: JobJournal, asked: Entry, reply: str, data: bytes) -> bytes:
        """Write request, reply and charges in one; return what may be sent."""
        number, refused = asked.number, asked._replace(body=None)
        pays = reply != Refusal.__name__ and not self.charges.is_empty
        # What was refused is never asked again: were its bytes kept, a coordinator could fill the disk with them.
        if reply == Refusal.__name__:
            asked = refused
        # a refusal may have been for a passing reason: it is repeated as it was
        keep = asked.body is not None or reply == Refusal.__name__
        try:
            answered = Entry.of(self._party, _COORDINATOR, number, reply, data, keep=keep)
            if self._copy is not None and (number == 1 or pays):  # first: the copy must never have less
                self._copy.note(self._job, self.charges.copy if pays else None)
            journal.append([asked, answered], self.charges.write if pays else None)
            if pays:
                self.charges.clear()
        except PolicyError as error:  # another job was faster; the handler is ahead of what is recorded
            self._forget()
            data = encode(Refusal.from_exception(error))
            journal.append([refused, Entry.of(self._party, _COORDINATOR, number, Refusal.__name__, data)])
        return data

    def _read_last(self) -> int:
        if self._last is None:
            if self._journal is None:
                self._last = self._latest.number
            else:
                self._last = self._journal.last(self._party, _COORDINATOR)
                if self._journal.ended:
                    self._trouble = "the job has ended here"
        return self._last

    def _repeat(self, number: int, digest: bytes, request: bytes) -> bytes:
        if self._journal is None:
            if number != self._latest.number:
                raise _stuck(f"the reply to request {number} is not kept")
            known, reply = self._latest.digest, self._latest.reply
        else:
            asked = self._journal.lookup(_COORDINATOR, self._party, number)
            answered = self._journal.lookup(self._party, _COORDINATOR, number)
            if asked is None or answered is None:
                raise JournalError(f"request {number} of job {self._job} is missing in the journal")
            known, reply = asked.digest, self._journal.body(answered) if answered.kept else b""
            if known == digest and not answered.kept:
                with self.charges.replaying():
                    reply = self._respond(request)[2]
                if hashlib.sha256(reply).digest() != answered.digest:
                    raise _stuck(_OTHERWISE.format(number))
        if known != digest:
            why = self._told_apart(number, request)
            raise _stuck(f"request {number} is not the one that was answered under this number{why and f': {why}'}")
        return reply

    def _told_apart(self, number: int, request: bytes) -> str:
        """What the handler says of a request that is not the one before of its number, if it can tell."""
        told_apart = getattr(self._handler, "told_apart", None)
        asked = None if self._journal is None else self._journal.lookup(_COORDINATOR, self._party, number)
        if told_apart is None or self._journal is None or asked is None or not asked.kept:
            return ""
        try:
            before, now = (decode(data, limit=self._limit) for data in (self._journal.body(asked), request))
        except RemoteProtocolError:
            return ""
        return str(told_apart(before, now))

    def _respond(self, request: bytes) -> tuple[str, str, bytes, bool]:
        """The kind of the request, the kind of the reply, the reply, and whether their bytes are to be kept."""
        kind, keep = UNREADABLE, True
        try:
            message = decode(request, limit=self._limit)
            kind, keep = type(message).__name__, not message.repeatable
            if self._handler is None:
                with self.charges.replaying():
                    self._handler = self._open()
        except (_Stuck, JournalError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the coordinator must get an answer
            self._log_refusal(kind, error)
            return kind, Refusal.__name__, encode(Refusal.from_exception(error)), keep
        reply, data, failure = respond(self._handler, message, limit=self._limit)
        if isinstance(failure, JournalError):
            raise failure  # the disk is at fault, not the request: it stays open
        if isinstance(failure, ApprovalPendingError):
            raise _Stuck(self._pending())
        if failure is not None:
            self._log_refusal(kind, failure)
        return kind, type(reply).__name__, data, keep

    def _log_refusal(self, kind: str, error: Exception) -> None:
        """An error of ours says all; any other is a fault, to be found by its trace."""
        ours = isinstance(error, WoodlotError)
        words, trace = (f": {error}", None) if ours else ("", wordless(error))
        logger.warning(
            "job %s: a request (%s) is refused%s", self._job, kind, words, exc_info=trace, extra=self._fields
        )

    def _open(self) -> Handler:
        """Build the handler, and bring it to where the journal ends."""
        journal = self._journal
        if journal is None:
            return self._open_job(self._job)
        journal.verify()
        # What was refused has left the state as it was. It may have been for a passing reason, too.
        accepted = [r for r in journal.sent(self._party, _COORDINATOR) if r.kind != Refusal.__name__]
        try:
            handler = self._open_job(self._job)
        except Exception as error:
            if not accepted:
                raise
            logger.error("job %s cannot be opened again", self._job, exc_info=wordless(error), extra=self._fields)
            raise _Stuck(Unanswered.from_exception(error)) from error
        for answered in accepted:
            asked = journal.lookup(_COORDINATOR, self._party, answered.number)
            if asked is None:
                raise JournalError(f"request {answered.number} of job {self._job} is missing in the journal")
            if not asked.kept or _is_done(handler, journal.body(asked), self._limit):
                continue  # it has left no state, or what it has left is stored
            data, failure = answer(handler, journal.body(asked), limit=self._limit)
            if hashlib.sha256(data).digest() != answered.digest:
                reason = _otherwise(answered.number, failure)
                trace = failure and wordless(failure)
                logger.error("job %s: %s", self._job, reason, exc_info=trace, extra=self._fields)
                raise _stuck(reason)
        return handler

    def end(self) -> None:
        with self._lock:
            self._handler, self._latest = None, _Latest(0, b"", b"")
            self._trouble = "the job has ended here"
            if self._journal is not None and self._read_last():
                self._journal.drop_bodies(self.charges.forget_answers)
            self._ended = True


def _is_done(handler: Handler, request: bytes, limit: int) -> bool:
    """Whether a handler has stored what a request has led to, and erased what it would need to answer it again."""
    has_done = getattr(handler, "has_done", None)
    return has_done is not None and bool(has_done(decode(request, limit=limit)))
