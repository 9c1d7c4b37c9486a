"""The front page and the tour keep their word: their code runs, links lead somewhere, commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from woodlot.cli.demo import READ_BY, TITLES

ROOT = Path(__file__).resolve().parents[1]
README, TOUR = (ROOT / page for page in ("README.md", "docs/tour.md"))
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def run_blocks(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(folder)
    namespace: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```$", text_of(page), re.MULTILINE | re.DOTALL)
    for number, block in enumerate(blocks):
        exec(compile(block, f"{page.name}, python block {number + 1}", "exec"), namespace)  # noqa: S102
    return namespace


def test_the_quick_start_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_blocks(README, tmp_path, monkeypatch)
    assert names["model"].score(names["test"]) > 0.9


def test_python_blocks_of_the_tour_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = run_blocks(TOUR, tmp_path, monkeypatch)
    assert names["model"].score(names["test"]) > 0.9
    assert names["in_sklearn"].n_features_in_ == 2


def test_the_front_page_is_short() -> None:
    """Everything counts: code, tables and all."""
    assert len(text_of(README).split()) < 650


def headings(page: Path) -> set[str]:
    return {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", text_of(page), re.M)}


@pytest.mark.parametrize("page", [README, TOUR], ids=["README", "tour"])
def test_links_lead_to_files_and_headings(page: Path) -> None:
    targets = re.findall(r"\]\(([^)]+)\)", text_of(page)) + re.findall(r'src="([^"]+)"', text_of(page))
    assert targets
    for target in targets:
        if target.startswith("http"):
            continue
        path, _, anchor = target.partition("#")
        leads_to = page.parent / path if path else page
        assert leads_to.exists(), target
        assert not anchor or leads_to.suffix != ".md" or anchor in headings(leads_to), target


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"make ([a-z]+)", text_of(README)))
    assert {"demo", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_picture_of_the_demo_is_of_this_version() -> None:
    picture = text_of(TOUR).partition("<!-- demo:begin -->")[2].partition("<!-- demo:end -->")[0]
    for title in TITLES.values():
        assert f"\n{title} " in picture
    for protection in READ_BY:
        assert re.search(rf"\n{protection} +\d\d\.\d % ", picture)
    assert "\nyes  Growing" in picture
    assert "\nyes  Predicting" in picture


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", example], capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
