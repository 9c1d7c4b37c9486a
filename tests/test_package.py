"""The package as a whole: what an import costs, what a first use says, and how much memory a forest takes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import woodlot as wl
from woodlot.data.tables import read_table
from woodlot.trees.encoding import encode
from woodlot.trees.grow import Grower
from woodlot.trees.rules import GrowthRules
from woodlot.trees.sampling import Bootstrap

ROOT = Path(__file__).resolve().parents[1]
ENCODE = (
    "import numpy as np\n"
    "from woodlot.data.tables import read_table\n"
    "from woodlot.trees.encoding import encode\n"
    "print(encode(read_table(np.arange(40.0).reshape(20, 2)), max_bins=4, n_jobs=1).fine)\n"
)
"""What has a few kernels compiled, of the many that a fit takes."""


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )


def test_import_does_not_wait_for_the_heavy_libraries() -> None:
    heavy = run_python(
        "import sys, woodlot\n"
        "print([m for m in ('numba', 'sklearn', 'pyarrow', 'pandas', 'numpy') if m in sys.modules])"
    )
    assert heavy.stdout.strip() == "[]"


def test_free_threaded_python_is_refused_with_the_reason() -> None:
    told = run_python(
        "import sys\n"
        "sys._is_gil_enabled = lambda: False\n"  # as python3.13t has it
        "try: import woodlot\n"
        "except ImportError as error: print(error)"
    )
    assert "global interpreter lock" in told.stdout
    assert "python3.13t" in told.stdout


def test_every_public_name_is_there() -> None:
    for name in wl.__all__:
        assert getattr(wl, name).__doc__, name
    assert set(wl.__all__) <= set(dir(wl))
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = wl.no_such_name


@pytest.mark.slow
def test_first_use_says_that_it_compiles_and_later_ones_are_silent(tmp_path) -> None:
    first = run_python(ENCODE, NUMBA_CACHE_DIR=str(tmp_path))
    assert first.stderr.count("woodlot: compiling") == 1
    second = run_python(ENCODE, NUMBA_CACHE_DIR=str(tmp_path))
    assert second.stderr == ""
    assert second.stdout == first.stdout


@pytest.mark.parametrize("n_classes", [0, 2, 5])
def test_rows_of_a_tree_in_flight_take_at_most_twelve_bytes(n_classes: int) -> None:
    n_rows, n_trees = 20_000, 30
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, 4))
    labels = rng.integers(0, n_classes, n_rows).astype(np.uint8) if n_classes else rng.integers(-(2**40), 2**40, n_rows)
    table = encode(read_table(X), max_bins=None, n_jobs=1)
    rules = GrowthRules(
        entropy=False, max_depth=6, min_samples_split=2, min_samples_leaf=1, min_weight=1, whole_tree=False
    )
    keys = np.arange(1, 5, dtype=np.uint64)

    def grow(n: int) -> int:
        """Peak bytes of growing a level of n trees."""
        bootstrap = Bootstrap(seed=1, n_draws=n_rows, weights=None)
        tracemalloc.start()
        grower = Grower(table, keys, labels, n_classes, rules, bootstrap, 1, range(n), 1)
        grower.find(np.full(len(grower.start), 2, np.int64))
        won = np.ones(len(grower.start), bool)
        grower.apply(won)
        tracemalloc.reset_peak()
        grower.split(won, np.empty(0, np.uint8))
        grower.find(np.full(len(grower.start), 2, np.int64))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    grow(2)
    drawn = (n_trees - 2) * n_rows * (1 - np.exp(-1))
    assert (grow(n_trees) - grow(2)) / drawn <= 12


def test_hashes_are_of_the_versions_that_are_tested() -> None:
    pins = re.findall(r"^([\w.-]+==\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    entry = re.compile(r"^(\S+) \\\n(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+", re.MULTILINE)
    assert entry.findall((ROOT / "constraints-hashed.txt").read_text()) == pins, "run: python scripts/lock_hashes.py"
    assert len(pins) > 50
