"""One target under the coverage-guided fuzzer; `scripts/fuzz.py` starts it, in an environment that has atheris."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from pkgutil import walk_packages

import atheris

from woodlot.trees import kernels

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "service")]

# what is included is named by its package, what is not by its module; kernels have a compiler of their own
KERNELS = [found.name for found in walk_packages(kernels.__path__, f"{kernels.__name__}.")]
with atheris.instrument_imports(include=["woodlot", "zipfile", "tomllib", "targets"], exclude=KERNELS):
    import targets


def main() -> None:
    name = os.environ["FUZZ_TARGET"]
    targets.run(name, b"")  # what is made once is made before the memory is watched

    def one(data: bytes) -> None:
        targets.run(name, data)

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


main()
