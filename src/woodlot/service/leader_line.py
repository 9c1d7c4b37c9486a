"""How users' sealed questions reach the leaders of their jobs, and the answers come back, through the coordinator."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from woodlot.exceptions import DataError, PartyAwayError, PolicyError
from woodlot.jobs.led.leader_desk import QUESTIONS
from woodlot.jobs.led.led_messages import AskLeader, LeaderAnswer, LeaderAnswered, LeaderQuestion
from woodlot.protocols.core.message import Message, Refusal
from woodlot.protocols.core.replies import reply_of
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.drivers.carried import Carrier, Numbered

PATIENCE_SECONDS = 10.0
"""How long a question waits for a leader that is away."""
MAX_OF_ONE_USER = 8
"""Questions of one user that wait at the same time; more are declined, so that others' find a thread free."""
_THREADS = 32


class LeaderLine:
    """Passes questions on.

    Parameters
    ----------
    reach : callable
        What carries requests to parties; parameters as for `Hub.carrier`.

    """

    def __init__(self, reach: Callable[..., Carrier]) -> None:
        self._reach = reach
        self._numbers = itertools.count(1)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._waiting: Counter[str] = Counter()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="woodlot-leader-line")

    def ask(self, user: str, question: AskLeader) -> Future[Message]:
        """Ask a leader; whoever waits for the answer waits in no thread of its own."""
        with self._lock:
            if self._waiting[user] >= MAX_OF_ONE_USER:
                raise PolicyError(f"you have {MAX_OF_ONE_USER} questions to leaders that wait; ask again later")
            self._waiting[user] += 1
        answer = self._pool.submit(self._ask, question)
        answer.add_done_callback(lambda _: self._answered(user))
        return answer

    def _answered(self, user: str) -> None:
        with self._lock:
            self._waiting[user] -= 1
            self._waiting += Counter()  # drops what is at zero

    def _ask(self, question: AskLeader) -> Message:
        leader, answers = question.leader, list[bytes]()
        request = Numbered(next(self._numbers), encode(LeaderQuestion(question=question.question)))
        carrier = self._reach(QUESTIONS, wait_seconds=PATIENCE_SECONDS, cancelled=self._closing)
        try:
            carrier.carry({leader: request}, lambda _, data: answers.append(data))
        except PartyAwayError:
            raise DataError(
                f"{leader!r} leads this job, keeps what comes of it, and is not connected; have its service started, "
                "then ask again"
            ) from None
        finally:
            carrier.close()
        answer = decode(answers[0])
        if isinstance(answer, Refusal):
            raise answer.to_exception(leader)
        return LeaderAnswered(answer=reply_of(answer, LeaderAnswer, leader).answer)

    def close(self) -> None:
        """End every wait."""
        self._closing.set()
        self._pool.shutdown()
