"""The lab as a package: it belongs to one version of Woodlot, and its command is the one that is documented."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import yaml

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


def test_papers_are_cited_alike_in_both_places() -> None:
    cited = yaml.safe_load((LAB.parent / "CITATION.cff").read_text())
    page = (LAB.parent / "docs" / "papers.md").read_text()
    assert cited["version"] == woodlot.__version__
    assert f"version = {{{woodlot.__version__}}}" in page
    for paper in cited["references"]:
        (entry,) = [part for part in page.split("@misc{") if f"{{{paper['title']}}}" in part]
        names = re.search(r"author = \{(.*)\}", entry)
        assert names is not None
        assert names[1] == " and ".join(f"{who['family-names']}, {who['given-names']}" for who in paper["authors"])
        (identifier,) = paper["identifiers"]
        assert f"eprint = {{{identifier['value'].removeprefix('arXiv:')}}}" in entry
        assert paper["url"].endswith(identifier["value"].removeprefix("arXiv:"))
