"""``woodlot warm-up``: what it uses is compiled afterwards, and it says what it did."""

from __future__ import annotations

import json
import re
import sys

import pytest
from typer.testing import CliRunner

from woodlot.cli import app
from woodlot.cli.warm_up import WarmUpCase, cases, use
from woodlot.trees.kernels._jit import compilations

CASES = [WarmUpCase(200, 2, categories=True, missing=True), WarmUpCase(200, 0)]


def test_no_case_is_listed_twice() -> None:
    listed = list(cases())
    assert len({str(case) for case in listed}) == len(set(listed)) == len(listed) == 15


def test_what_was_used_is_not_compiled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules["woodlot.cli.warm_up"], "cases", lambda: iter(CASES)
    )  # the package has the command by this name
    first = CliRunner().invoke(app, ["warm-up", "--json"])
    assert first.exit_code == 0, first.output
    assert json.loads(first.stdout)["cases"] == 2
    before = compilations()
    again = CliRunner().invoke(app, ["warm-up"])
    assert again.exit_code == 0, again.output
    assert compilations() == before
    assert re.fullmatch(r"all kernels were compiled already; \d+ s\.\n", again.stdout)
    assert "[3/3] regression, numbers, 200 rows" in again.stderr


def test_categories_and_missing_values_share_compiled_code() -> None:
    for both in (False, True):
        use(WarmUpCase(200, 2, categories=both, missing=both))
    before = compilations()
    use(WarmUpCase(200, 2, categories=True))
    use(WarmUpCase(200, 2, missing=True))
    assert compilations() == before


@pytest.mark.slow
def test_all_cases() -> None:
    done = CliRunner().invoke(app, ["warm-up", "--json"])
    assert done.exit_code == 0, done.output
    before = compilations()
    for case in cases():
        use(case)
    assert compilations() == before
