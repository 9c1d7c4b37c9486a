"""Small file systems, to be filled or made read-only."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A file system of 16 MB at a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        """Leave no byte free."""
        with self._ballast.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 12, 1):
                while True:
                    try:
                        file.write(bytes(size))
                    except OSError:
                        break

    def clear(self) -> None:
        """Give the room back."""
        self._ballast.unlink()

    def remount(self, how: str) -> None:
        """Make it ``ro``, which nobody who has a file open for writing allows, or ``rw``."""
        subprocess.run(["mount", "-o", f"remount,{how}", self.folder], check=True)


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    """A small disk at a folder that does not exist yet; the test is skipped where it cannot be."""
    folder.mkdir(parents=True)
    options = ["-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs"]
    done = subprocess.run(["mount", *options, folder], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", folder], check=True)
