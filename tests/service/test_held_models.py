"""Parts of models that a party has read before: files that have changed are read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from woodlot.data.whole_files import write_whole
from woodlot.jobs import held_models
from woodlot.jobs.held_models import MOST_MODELS, HeldModels


class Loads:
    """Loads, and counts how often."""

    def __init__(self) -> None:
        self.parts: list[Any] = []

    def __call__(self) -> Any:
        self.parts.append(object())
        return self.parts[-1]


def folder_of(root: Path, name: str) -> Path:
    folder = root / name
    folder.mkdir()
    write(folder, b"one")
    return folder


def write(folder: Path, data: bytes) -> None:
    write_whole(folder / "arrays.npz", lambda file: file.write(data))


def test_a_part_is_read_once_until_its_file_changes_or_it_is_forgotten(tmp_path: Path) -> None:
    held, loads, folder = HeldModels(), Loads(), folder_of(tmp_path, "model")
    first = held.read(folder, "forest", loads)
    assert held.read(folder, "forest", loads) is first
    assert held.read(folder, "other forest", loads) is not first  # whose fingerprint the loading must check
    write(folder, b"two")  # as long as before
    assert held.read(folder, "forest", loads) is not first
    held.forget("model")
    assert held.read(folder, "forest", loads) is loads.parts[-1]
    assert len(loads.parts) == 4


def test_few_parts_are_held_and_no_large_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held, loads = HeldModels(), Loads()
    folders = [folder_of(tmp_path, f"model {k}") for k in range(MOST_MODELS + 1)]
    for folder in folders:
        held.read(folder, "forest", loads)
    held.read(folders[-1], "forest", loads)
    assert len(loads.parts) == MOST_MODELS + 1
    held.read(folders[0], "forest", loads)
    assert len(loads.parts) == MOST_MODELS + 2
    monkeypatch.setattr(held_models, "MOST_BYTES", 2)
    large = folder_of(tmp_path, "large")
    assert held.read(large, "forest", loads) is not held.read(large, "forest", loads)


def test_what_cannot_be_loaded_is_not_held(tmp_path: Path) -> None:
    held, folder = HeldModels(), folder_of(tmp_path, "model")

    def fails() -> Any:
        raise ValueError("damaged")

    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            held.read(folder, "forest", fails)
