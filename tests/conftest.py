"""Set-up that must come before any test module is imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# A whole federation (world.py) is for the tests of its command line too.
sys.path.insert(0, str(Path(__file__).resolve().parent / "service"))

# The first example of a kernel may compile it, and machines may be busy: no example is timed. Every run has the same
# examples: a change is not held up by what it has not caused. `make fuzz` looks for new ones.
settings.register_profile("untimed", deadline=None, derandomize=True)
settings.load_profile("untimed")


@pytest.fixture(autouse=True)
def _closed_figures() -> Iterator[None]:
    """No test leaves figures open: matplotlib warns of the twenty-first, in whichever test draws it."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
