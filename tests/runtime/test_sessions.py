from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from woodlot.exceptions import DataError, JournalError, PolicyError
from woodlot.protocols.core.message import Message, Refusal, Unanswered
from woodlot.runtime import codec
from woodlot.runtime.journal import Entry, Journal
from woodlot.runtime.sessions import UNREADABLE, Sessions

from .carriers import JOB
from .samples import Answer, Look, Question

OTHER = JOB[::-1]
PATIENCE = 300.0


class Adding:
    """Answers with the sum of all that it was asked."""

    def __init__(self, start: int = 0) -> None:
        self.total = start
        self.asked: list[int] = []

    def handle(self, message: Message) -> Message:
        assert isinstance(message, Question)
        self.asked.append(message.number)
        if message.number < 0:
            raise DataError("negative")
        self.total += message.number
        return Answer(number=self.total)


def ask(number: int) -> bytes:
    return codec.encode(Question(number=number))


def told(reply: bytes) -> int:
    message = codec.decode(reply)
    assert isinstance(message, Answer)
    return message.number


def reason(reply: bytes, kind: type[Refusal] = Unanswered) -> str:
    message = codec.decode(reply)
    assert type(message) is kind
    assert isinstance(message, Refusal)
    return message.reason


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal(tmp_path / "journal", durable=True) as journal:
        yield journal


@pytest.fixture(params=[False, True], ids=["without journal", "with journal"])
def maybe_journal(request: pytest.FixtureRequest) -> Journal | None:
    return request.getfixturevalue("journal") if request.param else None


def test_requests_in_order_are_answered_and_the_latest_is_repeated(maybe_journal: Journal | None) -> None:
    handler = Adding()
    sessions = Sessions("a", lambda job: handler, journal=maybe_journal)
    for number, value in enumerate([5, 7, -1, 2], 1):
        first = sessions.answer(JOB, number, ask(value))
        assert sessions.answer(JOB, number, ask(value)) == first
    assert handler.asked == [5, 7, -1, 2]
    assert told(first) == 14


def test_what_is_refused_does_not_fill_the_disk(journal: Journal, tmp_path: Path) -> None:
    """A coordinator may send anything, as often as it likes: its digest is kept, and the answer."""
    sessions = Sessions("a", lambda job: Adding(), journal=journal)
    refusals = [sessions.answer(JOB, number, bytes([number]) * 100_000) for number in range(1, 20)]
    refusals.append(sessions.answer(JOB, 20, ask(-1)))
    asked = journal.job(JOB).sent("coordinator", "a")
    assert [record.kept for record in asked] == [False] * 20
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 1_000_000
    again = Sessions("a", lambda job: Adding(), journal=journal)
    assert again.answer(JOB, 20, ask(-1)) == refusals[-1]
    assert again.answer(JOB, 3, bytes([3]) * 100_000) == refusals[2]
    assert "not the one that was answered" in reason(again.answer(JOB, 3, bytes([4]) * 100_000))
    assert told(again.answer(JOB, 21, ask(5))) == 5


def test_earlier_replies_are_repeated_from_the_journal(journal: Journal) -> None:
    sessions = Sessions("a", lambda job: Adding(), journal=journal)
    replies = [sessions.answer(JOB, number, ask(number)) for number in range(1, 5)]
    assert [sessions.answer(JOB, number, ask(number)) for number in range(1, 5)] == replies
    without = Sessions("a", lambda job: Adding())
    for number in (1, 2):
        without.answer(JOB, number, ask(number))
    assert "request 1 is not kept" in reason(without.answer(JOB, 1, ask(1)))


def test_a_number_that_cannot_be_is_not_answered_and_changes_nothing(maybe_journal: Journal | None) -> None:
    handler = Adding()
    sessions = Sessions("a", lambda job: handler, journal=maybe_journal)
    assert "missing here; 0 were answered" in reason(sessions.answer(JOB, 2, ask(1)))
    sessions.answer(JOB, 1, ask(1))
    assert "missing here; 1 were answered" in reason(sessions.answer(JOB, 3, ask(1)))
    assert "missing" in reason(sessions.answer(JOB, 2**64 - 1, ask(1)))
    assert "from 1" in reason(sessions.answer(JOB, 0, ask(1)))
    assert "from 1" in reason(sessions.answer(JOB, -5, ask(1)))
    assert "not the one that was answered" in reason(sessions.answer(JOB, 1, ask(2)))
    assert told(sessions.answer(JOB, 2, ask(3))) == 4
    assert handler.asked == [1, 3]
    if maybe_journal is not None:
        assert len(maybe_journal.job(JOB).records()) == 4


def test_what_is_no_message_is_refused_under_its_number(maybe_journal: Journal | None) -> None:
    sessions = Sessions("a", lambda job: Adding(), journal=maybe_journal)
    assert "too short" in reason(sessions.answer(JOB, 1, b"noise"), Refusal)
    assert told(sessions.answer(JOB, 2, ask(3))) == 3
    again = Sessions("a", lambda job: Adding(), journal=maybe_journal)
    if maybe_journal is not None:
        assert told(again.answer(JOB, 3, ask(1))) == 4
        assert maybe_journal.job(JOB).records()[0].kind == UNREADABLE


def test_limits_of_size() -> None:
    large = codec.encode(Question(data=np.zeros(5_000, np.uint8)))
    sessions = Sessions("a", lambda job: Adding(), limit=4_000)
    assert "too large" in reason(sessions.answer(JOB, 1, large), Refusal)


def test_a_restarted_party_goes_on_where_it_was(journal: Journal) -> None:
    values = [5, -1, 7, 9]
    first = Sessions("a", lambda job: Adding(), journal=journal)
    replies = [first.answer(JOB, n, ask(v)) for n, v in enumerate(values, 1)]
    handlers: list[Adding] = []

    def reopen(job: str) -> Adding:
        assert job == JOB
        handlers.append(Adding())
        return handlers[-1]

    second = Sessions("a", reopen, journal=journal)
    assert second.answer(JOB, 4, ask(9)) == replies[3]
    assert handlers == []  # a repeat needs no handler
    assert told(second.answer(JOB, 5, ask(1))) == 22
    assert [handler.asked for handler in handlers] == [[5, 7, 9, 1]]  # what was refused is not asked again
    assert "missing" in reason(second.answer(JOB, 7, ask(1)))


def test_a_party_that_answers_otherwise_after_a_restart_refuses_the_job(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    first = Sessions("a", lambda job: Adding(), journal=journal)
    for job in (JOB, OTHER):
        replies = [first.answer(job, number, ask(number)) for number in (1, 2)]
    opened: list[str] = []

    def changed(job: str) -> Adding:
        opened.append(job)
        return Adding(100 if job == JOB and len(opened) < 4 else 0)

    second = Sessions("a", changed, journal=journal)
    before = journal.job(JOB).head
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            assert "answers request 1 otherwise than before" in reason(second.answer(JOB, 3, ask(3)))
    assert "answers request 1 otherwise" in caplog.text
    assert opened == [JOB, JOB]
    assert journal.job(JOB).head == before
    assert told(second.answer(OTHER, 3, ask(3))) == 6
    assert second.answer(JOB, 2, ask(2)) == replies[1]
    assert told(second.answer(JOB, 3, ask(3))) == 6  # what it has is what it had: it goes on


def test_a_job_that_cannot_be_opened_is_refused_and_may_be_opened_later(maybe_journal: Journal | None) -> None:
    ready = False

    def open_job(job: str) -> Adding:
        if not ready:
            raise PolicyError("not on Sundays")
        return Adding()

    sessions = Sessions("a", open_job, journal=maybe_journal)
    refusal = sessions.answer(JOB, 1, ask(1))
    assert reason(refusal, Refusal) == "not on Sundays"
    ready = True
    assert sessions.answer(JOB, 1, ask(1)) == refusal
    assert told(sessions.answer(JOB, 2, ask(5))) == 5


def test_the_log_of_a_refusal_has_its_words_and_a_trace_only_of_a_fault(caplog: pytest.LogCaptureFixture) -> None:
    def open_job(job: str) -> Adding:
        raise PolicyError("not on Sundays") if job == JOB else RuntimeError("a bug")

    sessions = Sessions("a", open_job, journal=None)
    sessions.answer(JOB, 1, ask(1))
    sessions.answer(OTHER, 1, ask(1))
    refused, failed = caplog.records
    assert refused.getMessage() == f"job {JOB}: a request (Question) is refused: not on Sundays"
    assert refused.exc_info is None
    assert failed.getMessage() == f"job {OTHER}: a request (Question) is refused"
    assert failed.exc_info is not None


@pytest.mark.parametrize(
    ("error", "words"), [(DataError("the table has changed"), "the table has changed"), (OSError("/x"), "OSError")]
)
def test_a_job_that_cannot_be_opened_again_waits(journal: Journal, error: Exception, words: str) -> None:
    Sessions("a", lambda job: Adding(), journal=journal).answer(JOB, 1, ask(1))
    ready = False

    def open_job(job: str) -> Adding:
        if not ready:
            raise error
        return Adding()

    sessions = Sessions("a", open_job, journal=journal)
    for _ in range(2):
        assert reason(sessions.answer(JOB, 2, ask(1))) == words
    ready = True
    assert told(sessions.answer(JOB, 2, ask(1))) == 2


def test_a_reply_that_cannot_be_journalled_does_not_leave(journal: Journal, caplog: pytest.LogCaptureFixture) -> None:
    handlers: list[Adding] = []

    def open_job(job: str) -> Adding:
        handlers.append(Adding())
        return handlers[-1]

    sessions = Sessions("a", open_job, journal=journal)
    sessions.answer(JOB, 1, ask(1))
    assert journal._database is not None
    with journal._database.connection() as writer:
        (pages,) = writer.execute("PRAGMA page_count").fetchone()
        writer.execute(f"PRAGMA max_page_count = {pages + 20}")
    large = codec.encode(Question(number=4, data=np.zeros(1_000_000, np.uint8)))
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            said = reason(sessions.answer(JOB, 2, large))
            assert "journal cannot be written" in said
            assert str(journal.path) not in said
    assert "the disk is full" in caplog.text
    assert len(journal.job(JOB).records()) == 2
    writer.execute("PRAGMA max_page_count = 1000000")
    assert told(sessions.answer(JOB, 2, large)) == 5
    assert [handler.asked for handler in handlers] == [[1, 4], [1, 4], [1, 4]]
    journal.verify()


def test_a_handler_that_cannot_write_leaves_the_request_open(journal: Journal) -> None:
    """As when the disk is full: that is no answer, and the job goes on when there is room again."""
    full = True

    class Writing(Adding):
        def handle(self, message: Message) -> Message:
            reply = super().handle(message)
            if full and isinstance(message, Question) and message.number == 7:
                raise JournalError("the disk is full at /secret/place")
            return reply

    sessions = Sessions("a", lambda job: Writing(), journal=journal)
    assert told(sessions.answer(JOB, 1, ask(5))) == 5
    before = journal.job(JOB).head
    for _ in range(2):
        assert "secret" not in reason(sessions.answer(JOB, 2, ask(7)))
    assert journal.job(JOB).head == before
    full = False
    assert told(sessions.answer(JOB, 2, ask(7))) == 12


def test_an_exit_inside_a_handler_loses_nothing_that_was_journalled(maybe_journal: Journal | None) -> None:
    class Leaving(Adding):
        def handle(self, message: Message) -> Message:
            reply = super().handle(message)
            if leave:
                raise SystemExit(3)
            return reply

    leave = False
    sessions = Sessions("a", lambda job: Leaving(), journal=maybe_journal)
    sessions.answer(JOB, 1, ask(1))
    leave = True
    with pytest.raises(SystemExit):
        sessions.answer(JOB, 2, ask(1))
    leave = False
    reply = sessions.answer(JOB, 2, ask(1))
    if maybe_journal is None:
        assert "keeps no journal" in reason(reply)
    else:
        assert told(reply) == 2


def test_an_ended_job_is_over(maybe_journal: Journal | None) -> None:
    opened: list[str] = []

    def open_job(job: str) -> Adding:
        opened.append(job)
        return Adding()

    sessions = Sessions("a", open_job, journal=maybe_journal)
    for job in (JOB, OTHER):
        sessions.answer(job, 1, ask(1))
    sessions.end(JOB)
    sessions.end(JOB)
    sessions.end("never seen")
    assert isinstance(codec.decode(sessions.answer(JOB, 2, ask(1))), Unanswered)
    assert told(sessions.answer(OTHER, 2, ask(1))) == 2
    if maybe_journal is not None:
        assert "has ended" in reason(sessions.answer(JOB, 1, ask(1)))
        assert maybe_journal.jobs() == sorted([JOB, OTHER])
        with pytest.raises(JournalError, match="has ended"):
            maybe_journal.job(JOB).append([Entry.of("x", "y", 1, "Question", b"")])
        maybe_journal.verify()


def test_jobs_go_side_by_side_and_one_job_goes_in_turn(maybe_journal: Journal | None) -> None:
    meeting = threading.Barrier(2)
    at_work = threading.Lock()

    class Meeting(Adding):
        def handle(self, message: Message) -> Message:
            meeting.wait(PATIENCE)
            return super().handle(message)

    class Alone(Adding):
        def handle(self, message: Message) -> Message:
            assert at_work.acquire(blocking=False)
            time.sleep(0.02)
            at_work.release()
            return super().handle(message)

    sessions = Sessions("a", lambda job: Meeting(), journal=maybe_journal)
    with ThreadPoolExecutor(8) as pool:
        both = [pool.submit(sessions.answer, job, 1, ask(4)) for job in (JOB, OTHER)]
        assert [told(reply.result()) for reply in both] == [4, 4]
        sessions = Sessions("a", lambda job: Alone(), journal=maybe_journal)
        repeats = [pool.submit(sessions.answer, "third", 1, ask(4)) for _ in range(8)]
        assert len({reply.result() for reply in repeats}) == 1
        assert told(repeats[0].result()) == 4


def test_many_threads_and_jobs_do_not_mix(journal: Journal) -> None:
    sessions = Sessions("a", lambda job: Adding(), journal=journal)

    def work(job: str) -> int:
        return [told(sessions.answer(job, number, ask(int(job)))) for number in range(1, 11)][-1]

    with ThreadPoolExecutor(6) as pool:
        assert list(pool.map(work, map(str, range(6)))) == [10 * job for job in range(6)]
    journal.verify()


def test_another_party_in_the_same_journal_is_another(journal: Journal) -> None:
    both: list[Callable[[str, int, bytes], bytes]] = [
        Sessions(name, lambda job: Adding(), journal=journal).answer for name in "ab"
    ]
    assert [told(answer(JOB, 1, ask(4))) for answer in both] == [4, 4]
    again = Sessions("b", lambda job: Adding(), journal=journal)
    assert told(again.answer(JOB, 2, ask(1))) == 5


class Looking:
    """Has a state that is set by questions, and is looked at by `Look` without changing it."""

    def __init__(self) -> None:
        self.state = 0
        self.looks = 0

    def handle(self, message: Message) -> Message:
        if isinstance(message, Look):
            self.looks += 1
            if message.number < 0:
                raise DataError("negative")
            return Answer(number=self.state + message.number)
        assert isinstance(message, Question)
        self.state = message.number
        return Answer(number=self.state)


def look(number: int) -> bytes:
    return codec.encode(Look(number=number))


def test_what_is_repeatable_is_recorded_but_not_kept_and_answered_anew(journal: Journal) -> None:
    handlers: list[Looking] = []

    def open_job(job: str) -> Looking:
        handlers.append(Looking())
        return handlers[-1]

    sessions = Sessions("a", open_job, journal=journal)
    asked = [ask(5), look(1), look(2), look(-1), look(4)]
    replies = [sessions.answer(JOB, number, data) for number, data in enumerate(asked, 1)]
    assert [told(reply) for reply in (*replies[:3], replies[4])] == [5, 6, 7, 9]
    records = journal.job(JOB).records()
    assert [record.kept for record in records] == [1, 1, 0, 0, 0, 0, 0, 1, 0, 0]
    again = Sessions("a", open_job, journal=journal)
    assert told(again.answer(JOB, 6, look(3))) == 8
    assert (handlers[1].state, handlers[1].looks) == (5, 1)  # the rebuilt handler was not asked the others
    for number, data in enumerate(asked, 1):
        assert again.answer(JOB, number, data) == replies[number - 1]
    assert "not the one that was answered" in reason(again.answer(JOB, 2, look(2)))
    handlers[1].state = 6
    assert "otherwise than before" in reason(again.answer(JOB, 2, look(1)))
    journal.job(JOB).verify()


def test_sessions_that_hold_nothing_are_let_go_of(journal: Journal) -> None:
    class Maybe(Adding):
        @property
        def is_empty(self) -> bool:
            return not self.total

    sessions = Sessions("a", lambda job: Maybe(), journal=journal)
    assert told(sessions.answer(JOB, 1, ask(0))) == 0
    assert not sessions._sessions
    assert told(sessions.answer(JOB, 2, ask(3))) == 3
    assert list(sessions._sessions) == [JOB]
    assert told(sessions.answer(JOB, 3, ask(4))) == 7
    sessions.end(JOB)
    assert not sessions._sessions
    assert "the job has ended here" in reason(sessions.answer(JOB, 4, ask(1)))


def test_a_handler_can_say_what_is_other_in_a_repeated_request(journal: Journal) -> None:
    class Explaining(Adding):
        def told_apart(self, before: Message, now: Message) -> str:
            assert isinstance(before, Question)
            assert isinstance(now, Question)
            return f"{now.number} in place of {before.number}"

    sessions = Sessions("bank", lambda job: Explaining(), journal=journal)
    assert told(sessions.answer(JOB, 1, ask(3))) == 3
    assert reason(sessions.answer(JOB, 1, ask(4))).endswith("under this number: 4 in place of 3")
    assert reason(sessions.answer(JOB, 1, b"none")).endswith("under this number")
    assert told(sessions.answer(JOB, 1, ask(3))) == 3
