"""What others have written gets into the logs of services as words, and as nothing else."""

from __future__ import annotations

import ast
import json
import logging
import sys
from pathlib import Path

import pytest

import woodlot
from woodlot.cli._service import MAX_MESSAGE, log_formatter
from woodlot.exceptions import DataError, PolicyError

FORGED = "no such thing\n2026-01-01 00:00:00 INFO    job done\r\x1b[2J\x9b1m\u2028\u202e\x00"
SPELLED = r"no such thing\n2026-01-01 00:00:00 INFO    job done\r\x1b[2J\x9b1m\u2028\u202e\x00"


def written(form: str, message: str, *arguments: object, error: bool = False) -> str:
    record = logging.LogRecord(
        "woodlot", logging.WARNING, __file__, 1, message, arguments, sys.exc_info() if error else None
    )
    return log_formatter(form).format(record)


def test_a_message_is_one_line_whatever_is_in_it() -> None:
    line = written("text", "job %s failed: %s", "ab", FORGED)
    assert line.endswith(f" WARNING job ab failed: {SPELLED}")
    assert line.isprintable()


def test_letters_of_all_languages_stay_as_they_are() -> None:
    words = "Größe 数据 données\u00a0: ≤ 5 €"
    assert written("text", words).endswith(words)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("long", ["x" * 3_900_000, "\x1b" * 3_900_000])
def test_a_long_message_is_cut(form: str, long: str) -> None:
    line = written(form, "user %r: declined: %s", "bob", long)
    assert len(line) < 7 * MAX_MESSAGE  # JSON spells a character in up to six
    assert "user 'bob': declined: " in line
    assert "... (cut)" in line


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_keeps_its_lines_and_the_words_of_its_errors_have_none(form: str) -> None:
    """Those of Woodlot's own; others may quote a table, and are not told."""
    try:
        try:
            raise KeyError("first")
        except KeyError as error:
            try:
                raise DataError(FORGED) from error
            except DataError:
                raise PolicyError("x" * 10_000)  # noqa: B904 - a context and no cause
    except PolicyError:
        text = written(form, "a request failed", error=True)
    told = json.loads(text)["error"] if form == "json" else text
    lines = told.splitlines()
    assert lines.count("Traceback (most recent call last):") == 3
    assert "KeyError" in lines
    assert f"DataError: {SPELLED}" in lines
    assert lines[-1].startswith("PolicyError: xxx")
    assert len(lines[-1]) < MAX_MESSAGE + 20
    assert sum(line.startswith(f'  File "{__file__}"') for line in lines) == 3
    assert not any(line.startswith("2026-01-01") for line in lines)


def test_json_has_the_message_as_it_was() -> None:
    assert json.loads(written("json", FORGED))["message"] == FORGED


def test_what_a_line_is_about_is_fields_for_machines_and_words_for_people() -> None:
    record = logging.LogRecord("woodlot", logging.INFO, __file__, 1, "job %s is done", ("ab",), None)
    vars(record).update({"job": "ab", "kind": "train", "state": "done", "user": "x" * 3_900_000, "secret": "no"})
    line = json.loads(log_formatter("json").format(record))
    assert {"job": "ab", "kind": "train", "state": "done"}.items() <= line.items()
    assert line["user"].endswith("... (cut)")
    assert "party" not in line
    assert "secret" not in line
    assert log_formatter("text").format(record).endswith("job ab is done")


SERVICES = ("service", "jobs", "runtime")
LOGS = ("info", "warning", "error", "exception")


def test_every_line_of_a_service_about_a_job_has_it_as_a_field() -> None:
    """A line that names a job in its words and not in its fields cannot be found by the job."""
    package = Path(woodlot.__file__).parent
    without = []
    for path in sorted(path for room in SERVICES for path in (package / room).rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
                continue
            words = call.args[0]
            if call.func.attr in LOGS and isinstance(words, ast.Constant) and "job %s" in str(words.value):
                without += [] if any(given.arg == "extra" for given in call.keywords) else [f"{path}:{call.lineno}"]
    assert without == []
