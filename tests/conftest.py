"""Set-up that must come before any test module is imported."""

from __future__ import annotations

import sys
from pathlib import Path

# A whole federation (world.py) is for the tests of its command line too.
sys.path.insert(0, str(Path(__file__).resolve().parent / "service"))
