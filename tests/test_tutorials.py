"""The tutorials and how-to guides keep their word: their code runs, their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TUTORIALS = sorted(path for path in (DOCS / "tutorials").glob("*.md") if path.stem != "README")
GUIDES = [DOCS / "how-to" / "evaluate.md", DOCS / "how-to" / "explain.md"]
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

matplotlib.use("agg")


# One tutorial starts a federation of processes, step by step as its reader does.
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page.stem == "deploy" else (), id=page.stem)
        for page in TUTORIALS + GUIDES
    ],
)
def test_the_code_of_a_tutorial_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    try:
        for number, block in enumerate(blocks):
            exec(compile(block, f"{page.name}, python block {number + 1}", "exec"), namespace)  # noqa: S102
    finally:
        for service in namespace.get("services", []):
            service.kill()
            service.wait()


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What links may name within a page: its headings, as GitHub and MkDocs write them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not target.startswith(("http", "mailto:")):
            path, _, anchor = target.partition("#")
            goal = page.parent / path if path else page
            assert goal.exists(), target
            assert not anchor or anchor in anchors(goal), target
