"""The lab as a package: it belongs to one version of Woodlot, and its command is the one that is documented."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import woodlot
from woodlot.cli import _added
from woodlot_lab.reproduce import reproduce

LAB = Path(__file__).resolve().parents[1]


def test_the_lab_has_woodlots_version() -> None:
    projects = [tomllib.loads((root / "pyproject.toml").read_text())["project"] for root in (LAB, LAB.parent)]
    assert {project["version"] for project in projects} == {woodlot.__version__}
    assert [needed.partition("==")[2] for needed in projects[0]["dependencies"]] == [woodlot.__version__]


def test_reproduce_is_added_by_the_package_that_woodlot_names() -> None:
    (entry,) = entry_points(group=_added.GROUP, name="reproduce")
    assert entry.load() is reproduce
    assert entry.dist is not None
    assert entry.dist.name == _added.PACKAGES["reproduce"]
