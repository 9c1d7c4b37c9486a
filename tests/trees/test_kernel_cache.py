"""Machine code on disk is that of the sources as they are."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from woodlot.trees.kernels import _jit

INNER = """
from kernels._jit import kernel

@kernel
def inner(x):
    return x + {0}
"""
OUTER = """
from kernels._jit import kernel
from kernels.inner import inner

@kernel
def outer(x):
    return inner(x)
"""
ASK = "from kernels.outer import outer; print(outer(40))"


@pytest.mark.slow
def test_a_kernel_is_compiled_anew_when_one_that_it_calls_has_changed(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    folder.mkdir()
    shutil.copy(_jit.__file__, folder)
    (folder / "outer.py").write_text(OUTER)

    def answer(added: int) -> int:
        (folder / "inner.py").write_text(INNER.format(added))
        # -B: Python takes its own compiled file for that of another source of the same second and length.
        done = subprocess.run([sys.executable, "-Bc", ASK], cwd=tmp_path, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert [answer(1), answer(2)] == [41, 42]


PAIR = """
from typing import NamedTuple
from kernels._jit import kernel

class {0}(NamedTuple):
    x: int

@kernel
def outer(pair):
    return pair.x + 1
"""


@pytest.mark.slow
def test_a_cache_of_another_version_is_no_obstacle(tmp_path: Path) -> None:
    """Its list names a class that has another name now."""
    folder = tmp_path / "kernels"
    folder.mkdir()
    shutil.copy(_jit.__file__, folder)
    for name in ("Former", "Present"):
        (folder / "outer.py").write_text(PAIR.format(name))
        ask = f"from kernels.outer import {name}, outer; print(outer({name}(40)))"
        done = subprocess.run([sys.executable, "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.stdout, done.returncode) == ("41\n", 0), done.stderr
