"""One target under the coverage-guided fuzzer; `scripts/fuzz.py` starts it, in an environment that has atheris."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import atheris

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "service")]

# not trees: kernels have a compiler of their own
ROOMS = [f"woodlot.{room}" for room in ("data", "estimators", "engines", "protocols", "runtime", "service")]
with atheris.instrument_imports(include=[*ROOMS, "zipfile", "tomllib", "targets"]):
    import targets


def main() -> None:
    name = os.environ["FUZZ_TARGET"]
    targets.run(name, b"")  # what is made once is made before the memory is watched

    def one(data: bytes) -> None:
        targets.run(name, data)

    atheris.Setup(sys.argv, one)
    atheris.Fuzz()


main()
