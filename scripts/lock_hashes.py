"""Write constraints-hashed.txt: the versions of constraints.txt, each with the SHA-256 of its files.

Reads the pages of the package index that pip uses (its simple API); run it after every change of constraints.txt.
Listed are wheels for Linux and for any system, of the Pythons that Woodlot supports, or the source where there is none.
"""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)

ROOT = Path(__file__).resolve().parent.parent
PINS, HASHED = ROOT / "constraints.txt", ROOT / "constraints-hashed.txt"
HEAD = """\
# Written by scripts/lock_hashes.py from constraints.txt. How to install with it: docs/release.md
"""
_PLATFORMS = re.compile(r"any|(?:manylinux|linux|musllinux).*_(?:x86_64|aarch64)")


class _Links(HTMLParser):
    """Links of a page of the index."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for name, value in attrs if tag == "a" and name == "href" and value]


def pins() -> Iterator[tuple[str, str]]:
    """Name and version of everything in constraints.txt."""
    for line in PINS.read_text(encoding="utf-8").splitlines():
        if found := re.match(r"([\w.-]+)==(\S+)", line):
            yield found[1], found[2]


def is_for_us(filename: str) -> bool:
    """Whether a wheel can be installed where Woodlot runs."""
    tags = parse_wheel_filename(filename)[3]
    return any(
        _PLATFORMS.fullmatch(tag.platform)
        and (tag.interpreter in ("py3", "cp311", "cp312", "cp313", "cp314") or tag.abi == "abi3")
        and not tag.abi.endswith("t")
        for tag in tags
    )


def hashes_of(index: str, name: str, version: str) -> list[str]:
    """SHA-256 of the files of one version, sorted."""
    url = f"{index.rstrip('/')}/{canonicalize_name(name)}/"
    if not url.startswith("https://") and not url.startswith("http://"):
        raise SystemExit(f"{index} is not an index on the web")
    with urllib.request.urlopen(url, timeout=60) as answer:  # noqa: S310 - the scheme was checked
        page = _Links()
        page.feed(answer.read().decode())
    wheels, sources = [], []
    for link in page.found:
        path, fragment = urldefrag(link)
        filename = unquote(path.rpartition("/")[2])
        digest = fragment.partition("sha256=")[2]
        try:
            if filename.endswith(".whl"):
                if str(parse_wheel_filename(filename)[1]) == version and is_for_us(filename):
                    wheels.append(digest)
            elif str(parse_sdist_filename(filename)[1]) == version:
                sources.append(digest)
        except (InvalidWheelFilename, InvalidSdistFilename):
            continue
    found = sorted(set(wheels or sources))
    if not found or not all(re.fullmatch(r"[0-9a-f]{64}", digest) for digest in found):
        raise SystemExit(f"the index has no file with a SHA-256 of {name} {version}")
    return found


def main() -> None:
    """Ask the index of pip, and write the file."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    index = told.stdout.strip() or "https://pypi.org/simple"
    lines = [HEAD]
    for name, version in pins():
        digests = " \\\n    ".join(f"--hash=sha256:{digest}" for digest in hashes_of(index, name, version))
        lines.append(f"{name}=={version} \\\n    {digests}\n")
        print(name, file=sys.stderr)
    HASHED.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
