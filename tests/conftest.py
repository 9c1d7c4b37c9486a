"""Set-up that must come before any test module is imported."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Numba numbers its cache files without a lock: two workers that compile variants of one kernel at the same
# moment could find each other's machine code under their own name. So every worker has a cache of its own.
_worker = os.environ.get("PYTEST_XDIST_WORKER")
if _worker is not None:
    _root = os.environ.get("NUMBA_CACHE_DIR", str(Path(__file__).resolve().parents[1] / ".numba_cache"))
    os.environ["NUMBA_CACHE_DIR"] = str(Path(_root) / _worker)

# A whole federation (world.py) is for the tests of its command line too.
sys.path.insert(0, str(Path(__file__).resolve().parent / "service"))
