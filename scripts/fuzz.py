"""Fuzz every target for some seconds, and record how many inputs were tried.

    FUZZ_SECONDS=60 python scripts/fuzz.py [TARGET ...]

Run by ``make fuzz`` in an environment of its own that has atheris. An input that gets anything else out of Woodlot than
an error of its own is kept in ``tests/fuzz/crashes``, where the tests replay it for ever.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
CRASHES = ROOT / "tests" / "fuzz" / "crashes"
RECORD = ROOT / "build" / "reliability" / "fuzz.jsonl"
MEMORY_MB = 1500
"""Where memory would grow beyond this the input counts as a crash; the libraries alone take some 400."""
SECONDS_PER_INPUT = 120
"""By the clock on the wall: so long that a busy machine is no finding."""
LONGEST_INPUT = 1 << 16

sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("fuzz", "", "service")]


class Found(NamedTuple):
    """What came of fuzzing one target."""

    tried: int
    new: list[str]
    """Files of inputs that got through."""
    lost: int
    """How many got through; at least one where the fuzzer itself has not ended well, for whatever reason."""


def fuzz(target: str, seconds: int) -> Found:
    """Run one target."""
    from seeds import seeds
    from targets import saved_models

    before = set(CRASHES.glob(f"{target}-*"))
    corpus = ROOT / "build" / "fuzz" / target
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(target)):
        (corpus / f"seed-{number:03d}").write_bytes(seed)
    environment = {**os.environ, "FUZZ_TARGET": target, "FUZZ_MODELS": str(saved_models())}
    command = [
        sys.executable, str(ROOT / "tests" / "fuzz" / "under_atheris.py"), f"-max_total_time={seconds}",
        f"-max_len={LONGEST_INPUT}", f"-rss_limit_mb={MEMORY_MB}", f"-timeout={SECONDS_PER_INPUT}",
        f"-artifact_prefix={CRASHES}/{target}-", "-print_final_stats=1",
        f"-report_slow_units={SECONDS_PER_INPUT}", str(corpus),
    ]  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    tried = re.search(r"number_of_executed_units:\s*(\d+)", done.stderr)
    new = sorted(str(path.relative_to(ROOT)) for path in set(CRASHES.glob(f"{target}-*")) - before)
    if new or tried is None or done.returncode:
        print(done.stdout[-3000:] + done.stderr[-3000:])
    ended_well = tried is not None and int(tried[1]) > 0 and done.returncode == 0
    return Found(int(tried[1]) if tried else 0, new, max(len(new), int(not ended_well)))


def main() -> int:
    """Fuzz the targets that were named, or all."""
    from targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"some of {', '.join(TARGETS)}; by default all")
    chosen = parser.parse_args().targets or list(TARGETS)
    if unknown := set(chosen) - set(TARGETS):
        parser.error(f"there is no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    seconds = int(os.environ.get("FUZZ_SECONDS", "60"))
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    lost = 0
    for target in chosen:
        found = fuzz(target, seconds)
        lost += found.lost
        print(f"{target}: {found.tried:,} inputs in {seconds} s, {found.lost} lost {' '.join(found.new)}", flush=True)
        line = {
            "suite": "fuzz",
            "what": f"{target}: {(TARGETS[target].__doc__ or '').splitlines()[0]}",
            "count": found.tried,
            "proved": f"only Woodlot's own errors escape, within {MEMORY_MB:,} MB in all and {SECONDS_PER_INPUT} s",
            "lost": found.lost,
        }
        with RECORD.open("a") as file:
            file.write(json.dumps(line) + "\n")
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
