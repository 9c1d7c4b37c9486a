"""Words that a reader would have to translate are in nothing that users read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ODD = (
    r"anew|in earnest|(?:hung|hang) up on|lead astray|youngest|purses?|errands?|knocks?|how grave|says both|what is no"
    r"|no validity|of which nothing is believed|ids of digits|lets nobody|not due|(?:is|was) due (?:once|while|after)"
)
"""There is an ordinary word for each of these."""
READ = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/**/*.md", "src/**/*.py", "src/**/*.html")
    for path in ROOT.glob(pattern)
    if "results" not in path.parts  # pages that the experiments have written
)


@pytest.mark.parametrize("folder", sorted({path.relative_to(ROOT).parts[0] for path in READ}))
def test_no_odd_words(folder: str) -> None:
    found = []
    for path in READ:
        if path.relative_to(ROOT).parts[0] == folder:
            lines = path.read_text(encoding="utf-8").splitlines()
            found += [
                f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
                for number, line in enumerate(lines, 1)
                if re.search(rf"\b(?:{ODD})\b", line, re.IGNORECASE)
            ]
    assert not found, "write it in ordinary words:\n" + "\n".join(found)
