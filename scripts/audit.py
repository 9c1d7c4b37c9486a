"""What is in the box: known faults of what is installed, a bill of materials, and a wheel that builds the same twice.

    python scripts/audit.py

Run by ``make audit``. Known faults are looked up by pip-audit, which needs a network: where there is none the report
says so, and the rest is done all the same.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import Distribution, distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
RECORD = BUILD / "reliability" / "audit.jsonl"
OWN = ("woodlot", "woodlot-lab")
"""The packages of this repository, which are no dependencies."""
EPOCH = "1735689600"
"""The time that a wheel's files are given: the first second of 2025."""


def known_faults() -> tuple[int | None, str]:
    """How many faults are known of what is installed, None where they could not be looked up; and in words."""
    if importlib.util.find_spec("pip_audit") is None:
        return None, "NOT looked up: pip-audit is not installed"
    done = subprocess.run(
        [sys.executable, "-m", "pip_audit", "--format", "json", "--progress-spinner", "off", "--skip-editable"],
        capture_output=True,
        text=True,
    )
    try:
        found = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        words = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        return None, f"NOT looked up: {words[:200]}"
    known = [one for one in found if "skip_reason" not in one]  # pip-audit is content with what it cannot look up
    if not known:
        return None, f"NOT looked up: pip-audit found none of the {len(found)} packages where it asks"
    faulty = [f"{one['name']} {one['version']}: {fault['id']}" for one in known for fault in one.get("vulns", ())]
    words = f"{len(known)} of {len(found)} packages looked up, {len(faulty)} known faults"
    return len(faulty), "\n".join([words, *faulty])


def component(package: Distribution) -> dict[str, object]:
    """One installed package, as CycloneDX has it."""
    name, version = package.metadata["Name"], package.version
    about: dict[str, object] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name.lower().replace('_', '-')}@{version}",
        "bom-ref": f"{name}=={version}",
    }
    licence = package.metadata.get("License-Expression") or package.metadata.get("License")
    if licence and len(licence) < 100:
        about["licenses"] = [{"license": {"name": licence}}]
    return about


def bill_of_materials(path: Path) -> int:
    """Write a CycloneDX list of everything that is installed here; returns how many packages that are."""
    unique = {p.metadata["Name"].lower(): p for p in distributions() if p.metadata["Name"]}
    parts = [component(unique[name]) for name in sorted(unique) if name not in OWN]
    bill = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(unique["woodlot"]) if "woodlot" in unique else {}},
        "components": parts,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill, indent=1) + "\n")
    return len(parts)


def wheel_digest() -> str:
    """Build a wheel from what is committed, in a folder of its own, and return the SHA-256 of its bytes."""
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "source", Path(folder) / "out"
        source.mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout  # noqa: S607
        subprocess.run(["tar", "-x", "-C", str(source)], input=archive, check=True)  # noqa: S607
        environment = {**os.environ, "SOURCE_DATE_EPOCH": EPOCH}
        subprocess.run(
            [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--wheel-dir", str(out), str(source)],
            env=environment,
            check=True,
        )
        (wheel,) = out.glob("*.whl")
        BUILD.mkdir(exist_ok=True)
        shutil.copy(wheel, BUILD / wheel.name)
        return hashlib.sha256(wheel.read_bytes()).hexdigest()


def record(what: str, count: int, proved: str, lost: int) -> None:
    """One line for ``scripts/reliability.py``."""
    with RECORD.open("a") as file:
        file.write(json.dumps({"suite": "audit", "what": what, "count": count, "proved": proved, "lost": lost}) + "\n")


def main() -> int:
    """Do all three; fails where a fault is known or the wheels differ."""
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.unlink(missing_ok=True)
    faults, words = known_faults()
    print(f"Known faults: {words}")
    if faults is None:
        record("packages looked up for known faults", 0, words, 0)
    else:
        record("packages looked up for known faults", 1, words.splitlines()[0], faults)
    count = bill_of_materials(BUILD / "sbom.cdx.json")
    print(f"Bill of materials: build/sbom.cdx.json, {count} packages")
    record("packages in the bill of materials", count, "CycloneDX 1.5, from what is installed", 0)
    digests = {wheel_digest() for _ in range(2)}
    print(f"Wheel: {' and '.join(sorted(digests))}, {'the same twice' if len(digests) == 1 else 'NOT the same twice'}")
    record("wheels built in different folders", 2, f"the same bytes, SHA-256 {min(digests)}", len(digests) - 1)
    return int(bool(faults) or len(digests) > 1)


if __name__ == "__main__":
    sys.exit(main())
