"""Set-up that must come before any test module is imported."""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import settings

# A whole federation (world.py) is for the tests of its command line too.
sys.path.insert(0, str(Path(__file__).resolve().parent / "service"))

# The first example of a kernel may compile it, and machines may be busy: no example is timed. Every run has the same
# examples: a change is not held up by what it has not caused. `make fuzz` looks for new ones.
settings.register_profile("untimed", deadline=None, derandomize=True)
settings.load_profile("untimed")
