"""Install Woodlot as a new user does, on every Python from 3.11 on that this machine has, and try it.

    python scripts/test_pythons.py

Run by ``make test-pythons``. Each interpreter gets a fresh environment with ``pip install .`` and no constraints, so
with the newest releases of all dependencies. There, the README's quick start, a federation between processes
(``woodlot demo``) and a fast part of the tests must pass. The oldest interpreter does it once more with the lowest
versions that ``pyproject.toml`` allows. Interpreters are looked for on PATH and, where it is installed, with pyenv;
``PYTHONS="python3.12 ..."`` names others.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OLDEST = (3, 11)
AT_ONCE = 2
"""Environments in which everything is tried at the same time."""
NEWEST = (3, 20)
"""Names up to this one are looked for on PATH; it is no limit of what Woodlot runs on."""

TOOLS = ("pytest", "pytest-xdist", "hypothesis", "pandas")
TESTS = (
    "tests/protocols/test_messages.py",
    "tests/runtime/test_codec.py",
    "tests/runtime/test_grpc.py",
    "tests/data/test_labels.py",
    "tests/trees/test_cells.py",
    "tests/estimators/test_estimator_checks.py",
    "tests/cli/test_command_line.py",
    "tests/service/test_config.py",
    "tests/service/test_coordinator.py",
    "tests/service/test_job_store.py",
    "tests/foundation/test_database.py",
)
"""What a release of Python or of a dependency may change: types of messages, labels, kernels, gRPC, scikit-learn's
checks, the command line, the services, and SQLite."""


PIP_SOURCES = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT", "PIP_DEFAULT_TIMEOUT")
"""Where pip finds packages, and how, is the machine's business."""


@dataclass(frozen=True)
class Interpreter:
    """A Python that can make environments."""

    path: str
    version: tuple[int, int, int]

    @property
    def name(self) -> str:
        """Its version in words."""
        return "Python " + ".".join(map(str, self.version))


class FailedError(Exception):
    """A step has failed; its output was shown."""


# --- interpreters ---


def candidates() -> Iterator[str]:
    """Commands that may be interpreters, from the places where they usually are."""
    if "PYTHONS" in os.environ:
        yield from os.environ["PYTHONS"].split()
        return
    for folder in os.get_exec_path():
        for minor in range(OLDEST[1], NEWEST[1]):
            if found := shutil.which(f"python3.{minor}", path=folder):
                yield found
    if pyenv := shutil.which("pyenv"):
        listed = subprocess.run([pyenv, "versions", "--bare"], capture_output=True, text=True)
        for version in listed.stdout.split():
            prefix = subprocess.run([pyenv, "prefix", version], capture_output=True, text=True).stdout.strip()
            if prefix:
                yield str(Path(prefix) / "bin" / "python")


def asked(command: str) -> Interpreter | None:
    """Return what a command says of itself, None if it is no Python from 3.11 on that can make an environment."""
    # A virtual environment is no interpreter of its own, and the one it was made from may lack what it has.
    program = "import sys, venv, ensurepip; print(*sys.version_info[:3], sys.prefix == sys.base_prefix)"
    try:
        answer = subprocess.run([command, "-I", "-c", program], capture_output=True, text=True, timeout=120)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode or not answer.stdout.endswith("True\n"):
        return None
    major, minor, micro = map(int, answer.stdout.split()[:3])
    return Interpreter(command, (major, minor, micro)) if (major, minor) >= OLDEST else None


def interpreters() -> list[Interpreter]:
    """Return one interpreter of each version 3.N, the latest that was found, in the order of versions."""
    found: dict[tuple[int, int], Interpreter] = {}
    for command in candidates():
        one = asked(command)
        if one is None and "PYTHONS" in os.environ:
            sys.exit(f"{command} is not a Python from 3.11 on that can make environments. Correct PYTHONS.")
        if one is not None and (one.version[:2] not in found or one.version > found[one.version[:2]].version):
            found[one.version[:2]] = one
    return [found[version] for version in sorted(found)]


# --- steps ---


def lowest() -> str:
    """Return constraints that pin every dependency to the lowest version that pyproject.toml allows."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    bounds = [re.fullmatch(r"([\w-]+)>=([\d.]+)", line) for line in wanted]
    if unread := [line for line, bound in zip(wanted, bounds, strict=True) if bound is None]:
        sys.exit(f"pyproject.toml: expected name>=version, found {', '.join(unread)}")
    return "".join(f"{bound[1]}=={bound[2]}\n" for bound in bounds if bound)


def quick_start() -> str:
    """Return the program of the README's quick start."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("\n## Quick start\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    if not blocks:
        sys.exit("README.md has no quick start")
    return "".join(blocks)


def step(who: str, words: str, command: list[str], folder: Path, environment: dict[str, str]) -> None:
    """Run one command, and show its output only if it fails."""
    begun = time.monotonic()
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    tell(who, f"{words:36} {'FAILED' if done.returncode else 'passed'} in {time.monotonic() - begun:.0f} s")
    if done.returncode:
        tell(who, done.stdout)
        raise FailedError


def tell(who: str, words: str) -> None:
    """Print whole lines, whoever else prints at the same time."""
    print(f"{who + ':':32} {words}\n", end="", flush=True)


def versions(python: str, environment: dict[str, str]) -> str:
    """Return what pip has installed, the direct dependencies first named."""
    listed = subprocess.run(
        [python, "-m", "pip", "list", "--format", "json"], capture_output=True, text=True, check=True, env=environment
    )
    installed = {one["name"].lower(): one["version"] for one in json.loads(listed.stdout)}
    direct = [line.partition("==")[0] for line in lowest().split()]
    return ", ".join(f"{name} {installed.get(name, 'missing')}" for name in direct)


def tried(who: str, interpreter: Interpreter, constraints: str) -> str:
    """Install into a fresh environment and try everything; return what was installed."""
    # No constraints and no paths of whoever calls: this is the environment of a new user.
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "PYTHON", "VIRTUAL_ENV"))}
    kept |= {name: value for name, value in os.environ.items() if name in PIP_SOURCES}
    kept["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
    with tempfile.TemporaryDirectory(prefix="woodlot-python-") as scratch:
        place = Path(scratch)
        (place / "empty").mkdir()
        if constraints:
            (place / "constraints.txt").write_text(constraints, encoding="utf-8")
            kept["PIP_CONSTRAINT"] = str(place / "constraints.txt")
        (place / "quick_start.py").write_text(quick_start(), encoding="utf-8")
        python = str(place / "environment" / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet"]
        elsewhere = place / "empty"
        step(who, "a fresh environment", [interpreter.path, "-m", "venv", str(place / "environment")], elsewhere, kept)
        step(who, "pip install .", [*pip, str(ROOT)], elsewhere, kept)
        words = versions(python, kept)
        tell(who, words)
        step(who, "the README's quick start", [python, "-W", "error", str(place / "quick_start.py")], elsewhere, kept)
        step(who, "woodlot --help", [str(Path(python).with_name("woodlot")), "--help"], elsewhere, kept)
        demo = [str(Path(python).with_name("woodlot")), "demo", "--rows", "1500", "--trees", "20"]
        step(who, "a federation between processes", demo, elsewhere, kept)
        step(who, "pip install " + " ".join(TOOLS), [*pip, *TOOLS], elsewhere, kept)
        pytest = [python, "-m", "pytest", "-n", "2", "--dist", "worksteal", *TESTS]
        # a test that hangs ends with the stacks of all threads
        pytest += ["-o", "faulthandler_timeout=1200", "-o", "faulthandler_exit_on_timeout=true"]
        if constraints:  # old releases use what the newest pytest and click warn of
            pytest += ["-o", "filterwarnings=default"]
        step(who, f"tests of {len(TESTS)} files", pytest, ROOT, kept)
        return words


def main() -> None:
    """Try every interpreter, and the oldest once more with the lowest versions."""
    found = interpreters()
    if not found:
        sys.exit("No Python from 3.11 on that can make environments. Name one: PYTHONS=python3.12 make test-pythons")
    runs = [(one.name, one, "") for one in found]
    runs.insert(1, (f"{found[0].name}, lowest versions", found[0], lowest()))
    # Installing and compiling keep one core busy, so two go side by side.
    with ThreadPoolExecutor(AT_ONCE) as pool:
        ends = [(name, pool.submit(tried, name, interpreter, constraints)) for name, interpreter, constraints in runs]
    told, failed = [], 0
    for name, end in ends:
        try:
            told.append(f"passed  {name}: {end.result()}")
        except FailedError:
            failed += 1
            told.append(f"FAILED  {name}")
    print(*told, sep="\n")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
