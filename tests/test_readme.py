"""The front page keeps its word: its code runs, its links lead somewhere, its commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from woodlot.cli.demo import TITLES

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


def test_python_blocks_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(BLOCKS) >= 4
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"README.md, python block {number + 1}", "exec"), namespace)  # noqa: S102
    assert namespace["model"].score(namespace["test"]) > 0.9
    assert namespace["in_sklearn"].n_features_in_ == 2


def test_links_lead_to_files_and_headings() -> None:
    headings = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)$", TEXT, re.M)}
    targets = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert targets
    for target in targets:
        if target.startswith("#"):
            assert target[1:] in headings
        elif not target.startswith("http"):
            assert (ROOT / target).exists(), target


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"make ([a-z]+)", TEXT))
    assert {"demo", "test"} <= named
    for target in named:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_picture_of_the_demo_is_of_this_version() -> None:
    picture = TEXT.partition("<!-- demo:begin -->")[2].partition("<!-- demo:end -->")[0]
    for title in TITLES.values():
        assert f"\n{title} " in picture
    assert "\nyes  Growing" in picture
    assert "\nyes  Predicting" in picture


def test_there_is_a_place_for_measured_speed() -> None:
    assert re.search(r"<!-- speed:begin -->\n.*<!-- speed:end -->", TEXT, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_examples_run(example: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", example], capture_output=True, text=True, timeout=300, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy" in done.stdout
