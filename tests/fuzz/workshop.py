"""What targets work on: files of this process, a federation that signs, and state folders of one that has worked."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seeds import Federation


@cache
def folder() -> Path:
    """Where the files of this process go, in memory where there is room for files; it is gone with the process."""
    memory = Path("/dev/shm")  # noqa: S108 - a folder of our own is made in it
    keeper = tempfile.TemporaryDirectory(
        prefix="woodlot-fuzz-", dir=memory if os.access(memory, os.W_OK | os.X_OK) else None
    )
    _kept.append(keeper)
    return Path(keeper.name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


@cache
def federation() -> Federation:
    """Members with their keys, and things that they have signed."""
    from seeds import Federation

    return Federation(folder() / "federation")


@cache
def saved_models() -> Path:
    """One small model of every format; where the fuzzer runs they have been made before."""
    if made := os.environ.get("FUZZ_MODELS"):
        return Path(made)
    from seeds import save_models

    root = folder() / "models"
    save_models(root)
    return root


@cache
def copy_of(model: str) -> Path:
    """A copy of a saved model, of which files are replaced and put back."""
    place = folder() / "copies" / model
    shutil.copytree(saved_models() / model, place)
    return place


@dataclass(frozen=True)
class Worked:
    """A coordinator and two parties that have ended after some jobs, by whose names inputs can ask for them."""

    world: Any
    names: dict[str, str]
    files: tuple[Path, ...]
    """Of their state folders, always in the same order."""


@cache
def worked() -> Worked:
    """State folders with a forest that a party has left, a linear model, a prediction and an alignment."""
    from seeds import work

    world, names = work(folder() / "world")
    roots = [world.root / name / "state" for name in ("coordinator", "bank", "shop")]
    found = [path for root in roots for path in root.rglob("*") if path.is_file() and path.name != "secret"]
    order = {name: place for place, name in names.items()}  # names of jobs are random
    return Worked(world, names, tuple(sorted(found, key=lambda path: [order.get(part, part) for part in path.parts])))
