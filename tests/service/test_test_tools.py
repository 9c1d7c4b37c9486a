"""The tests' own tools: they find what they look for, and hold nothing for what it is not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from halts import Halt, install
from processes import PRIVATE, small_tables
from shared import Shared

from woodlot.runtime.journal import Entry, JobJournal, Journal


@pytest.mark.parametrize(
    "data", [b"1794942369.70085", b"\x0070\x8070123\x00", b"\xffage\x01", b"\x80.age\x01", b" late\x00", b"pages.late_"]
)
def test_what_is_no_secret_is_not_taken_for_one(data: bytes) -> None:
    assert PRIVATE.search(data) is None


def test_every_id_and_every_name_is_found() -> None:
    for party, tables in small_tables().items():
        for number in tables["customers"]["id"].to_pylist():
            assert PRIVATE.search(b"x%dy" % number)
        for name in tables["customers"].column_names[1:]:
            assert PRIVATE.search(f'["{name}"]'.encode())
            assert PRIVATE.search(f"\0{party}.{name}\0".encode())


def test_after_a_failure_the_next_test_gets_a_new_one() -> None:
    made, ended = [], []

    @contextmanager
    def make() -> Iterator[int]:
        made.append(len(made))
        yield made[-1]
        ended.append(made[-1])

    request: Any = SimpleNamespace(session=SimpleNamespace(testsfailed=3))

    def lent(*, fails: bool) -> int:
        lending = shared.lend(request)
        one = next(lending)
        request.session.testsfailed += fails
        assert next(lending, None) is None
        return one

    with Shared(make) as shared:
        assert [lent(fails=fails) for fails in (False, False, True, False, True)] == [0, 0, 0, 1, 1]
        assert ended == [0, 1]
        assert lent(fails=False) == 2
    assert ended == made == [0, 1, 2]


def test_a_service_stands_still_where_it_was_told_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one thread: every halt is released before it comes, and told afterwards."""
    monkeypatch.setattr(JobJournal, "append", JobJournal.append)  # undone in the end
    install(tmp_path)
    with Journal(tmp_path / "journal.sqlite", durable=False) as journal, Halt(tmp_path, "mine", {0, 2}) as halt:

        def exchange(job: str, number: int) -> None:
            pair = [Entry.of("coordinator", "a", number, "Q", b""), Entry.of("a", "coordinator", number, "A", b"")]
            journal.job(job).append(pair)

        for _ in range(2):
            halt.release()
        for number in range(1, 5):
            exchange("other", number)
            exchange("mine", number)
        halt.ended()
        assert [halt.wait(), halt.wait(), halt.wait()] == [0, 2, None]
