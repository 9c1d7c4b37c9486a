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
        done = subprocess.run([sys.executable, "-c", ASK], cwd=tmp_path, capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert [answer(1), answer(2)] == [41, 42]
