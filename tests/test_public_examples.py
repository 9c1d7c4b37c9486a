"""Every public class and function has an example in its docstring, and the example runs as it is printed."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any

import matplotlib
import pyarrow as pa
import pytest
from world import World, running

import woodlot as wl

matplotlib.use("agg")

WARNINGS = [name for name in wl.__all__ if inspect.isclass(value := getattr(wl, name)) and issubclass(value, Warning)]
SHOWN = [*(name for name in wl.__all__ if name not in WARNINGS), "Federation.local", "RevocableForestClassifier.score"]


def run_example(name: str, **given: Any) -> None:
    """Run the example of a public name, which may use what is given by name."""
    value: Any = wl
    for part in name.split("."):
        value = getattr(value, part)
    text = inspect.getdoc(value) or ""
    test = doctest.DocTestParser().get_doctest(text, given, name, inspect.getsourcefile(value), 0)
    assert test.examples, f"the docstring of {name} has no example"
    report: list[str] = []
    failed, _ = doctest.DocTestRunner().run(test, out=report.append)
    assert not failed, "".join(report)


@pytest.mark.parametrize("name", [name for name in SHOWN if name != "connect"])
def test_the_example_of_a_public_name_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run_example(name)


def test_the_example_of_connect_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = list(range(40))
    bank = pa.table({"id": ids, "income": [20, 60] * 20, "late": ["yes", "no"] * 20})
    shop = pa.table({"id": ids, "visits": [1, 4] * 20})
    world = World(tmp_path, {"bank": {"customers": bank}, "shop": {"customers": shop}})
    monkeypatch.chdir(tmp_path)
    with running(world):
        run_example("connect", address=world.address)
