"""Starts programs at real MPI ranks; where there is no mpirun, the test is skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE = 300.0
"""Seconds after which ranks that still run have hung."""


def launch(count: int, *command: object, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command at every rank; ``path`` is put before what Python finds anyway."""
    found = shutil.which("mpirun", path=str(Path(sys.executable).parent)) or shutil.which("mpirun")
    if found is None:
        pytest.skip("mpirun is neither beside this Python nor on the PATH")
    pytest.importorskip("mpi4py")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")])
    return subprocess.run(
        [found, "--allow-run-as-root", "--oversubscribe", "-n", str(count), *map(str, command)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=environment,
        check=False,
    )
