"""The tutorials and how-to guides keep their word: their code runs, their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib
import pytest

DOCS = Path(__file__).resolve().parents[1] / "docs"
TUTORIALS = sorted(path for path in (DOCS / "tutorials").glob("*.md") if path.stem != "README")
PAGES = sorted(DOCS.rglob("*.md"))

matplotlib.use("agg")


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda path: path.stem)
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


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(DOCS)))
def test_links_lead_to_files(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http", "#", "mailto:")):
            assert (page.parent / target.partition("#")[0]).exists(), target
