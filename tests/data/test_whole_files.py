"""Folders are replaced at once or not at all, also where the process is killed before any operation on the disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from woodlot.data import whole_files
from woodlot.data.whole_files import erase_folder, finish_writing, private_folder, replace_folder, write_whole

CRASH_POINTS = Path(__file__).parents[1] / "faults" / "crash_points.py"

# Without the package, which takes longer to import than everything else here.
CHILD = """
import runpy, sys
from pathlib import Path

target = Path(sys.argv[1])
files = runpy.run_path(sys.argv[2])

def fill(folder):
    for name in ("a", "b"):
        (folder / name).write_text("new")

runpy.run_path(sys.argv[3], run_name="service")
if sys.argv[4] == "erase":
    files["erase_folder"](target)
else:
    files["replace_folder"](target, fill)
    files["write_whole"](target.parent / "single", lambda file: file.write(b"new"))
"""


def run_child(root: Path, number: int, what: str = "replace") -> int:
    """Replace or erase a folder in a process that dies before one of its operations; returns how it ended."""
    command = [sys.executable, "-c", CHILD, root / "models" / "x", whole_files.__file__, CRASH_POINTS, what]
    return subprocess.run(command, env=os.environ | {"WOODLOT_TEST_DIE_AT": f"{number} {root}"}, check=False).returncode


def set_up(root: Path) -> None:
    replace_folder(
        root / "models" / "x", lambda folder: [(folder / name).write_text("old") for name in ("a", "b", "c")]
    )
    write_whole(root / "models" / "single", lambda file: file.write(b"old"))


def found(root: Path) -> tuple[dict[str, str], str]:
    files = {path.name: path.read_text() for path in (root / "models" / "x").iterdir()}
    return files, (root / "models" / "single").read_text()


OLD, NEW = {"a": "old", "b": "old", "c": "old"}, {"a": "new", "b": "new"}


def test_a_death_at_any_operation_leaves_the_former_or_the_new(tmp_path: Path) -> None:
    seen, number, ended = [], 0, -signal.SIGKILL
    while ended:
        number += 1
        root = tmp_path / str(number)
        set_up(root)
        ended = run_child(root, number)
        assert ended in (0, -signal.SIGKILL)
        for _ in range(2):  # the second time there is nothing left to do
            finish_writing(root)
            seen.append(found(root))
        assert sorted(path.name for path in (root / "models").iterdir()) == ["single", "x"]
    assert seen == sorted(seen, key=[(OLD, "old"), (NEW, "old"), (NEW, "new")].index)
    assert number > 8
    assert {folder["a"] + file for folder, file in seen} == {"oldold", "newold", "newnew"}


def test_a_death_at_any_operation_leaves_all_or_nothing_of_what_is_erased(tmp_path: Path) -> None:
    left, number, ended = [], 0, -signal.SIGKILL
    while ended:
        number += 1
        root = tmp_path / str(number)
        set_up(root)
        ended = run_child(root, number, "erase")
        assert ended in (0, -signal.SIGKILL)
        finish_writing(root)
        left.append(sorted(path.name for path in (root / "models").rglob("*")))
    assert left[0] == ["a", "b", "c", "single", "x"]
    assert left[1:] == [["single"]] * (number - 1)
    assert number > 4
    erase_folder(tmp_path / "nowhere")


def test_what_cannot_be_written_leaves_everything_as_it_was(tmp_path: Path) -> None:
    set_up(tmp_path)

    def fail(_: object) -> None:
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        replace_folder(tmp_path / "models" / "x", fail)
    with pytest.raises(OSError, match="no room"):
        write_whole(tmp_path / "models" / "single", fail)
    assert found(tmp_path) == (OLD, "old")
    assert len(list((tmp_path / "models").iterdir())) == 2


def test_what_is_written_has_reached_the_disk_before_its_name_and_its_name_before_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing else shows it but a loss of power: so the calls are watched."""
    set_up(tmp_path)
    models = tmp_path / "models"
    seen: list[tuple[str, str]] = []

    def watched(handle: int) -> None:
        synced = Path(os.readlink(f"/proc/self/fd/{handle}"))
        seen.append(("names" if synced == models else synced.read_text(), (models / "single").read_text()))

    monkeypatch.setattr(os, "fsync", watched)
    write_whole(models / "single", lambda file: file.write(b"new"))
    assert seen == [("new", "old"), ("names", "new")]


def test_a_folder_has_reached_the_disk_before_its_name_and_its_name_before_it_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(tmp_path)
    models, seen = tmp_path / "models", []

    def watched(handle: int) -> None:
        seen.append(
            (Path(os.readlink(f"/proc/self/fd/{handle}")).name, (models / "x" / "a").exists() and found(tmp_path))
        )

    monkeypatch.setattr(os, "fsync", watched)
    replace_folder(models / "x", lambda folder: [(folder / name).write_text("new") for name in NEW])
    former, new = (OLD, "old"), (NEW, "old")
    assert sorted(seen[:3]) == [("a", former), ("b", former), ("new", former)]  # the files, and their names
    assert seen[3:] == [("models", former), ("models", new)]


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_what_is_written_is_private_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        set_up(tmp_path / "new")
        replace_folder(tmp_path / "new" / "models" / "x", lambda folder: (folder / "in").mkdir() or None)
        (tmp_path / "other").mkdir()
        replace_folder(tmp_path / "new" / "deep", lambda folder: (folder / "file").write_text("private"))
    finally:
        os.umask(before)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "new").rglob("*") if path.is_file()}
    assert modes == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "new").rglob("*") if path.is_dir()} == {0o700}


def test_what_was_ready_and_never_came_to_its_place_is_not_in_the_way(tmp_path: Path) -> None:
    set_up(tmp_path)
    (tmp_path / "models" / "x").rename(tmp_path / "models" / ".x.new")
    replace_folder(tmp_path / "models" / "x", lambda folder: [(folder / name).write_text("new") for name in NEW])
    assert found(tmp_path)[0] == NEW
    assert len(list((tmp_path / "models").iterdir())) == 2


def test_the_names_of_new_folders_reach_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a power cut takes what is in them, though their files have reached it."""
    synced = set()
    fsync = os.fsync

    def noticed(handle: int) -> None:
        fsync(handle)
        here = Path(f"/proc/self/fd/{handle}").resolve()
        if here.is_dir():
            synced.update(here / name for name in os.listdir(here))

    monkeypatch.setattr(os, "fsync", noticed)
    private_folder(tmp_path / "state" / "answers")
    replace_folder(tmp_path / "state" / "models" / "x", lambda folder: (folder / "a").write_text("new"))
    write_whole(tmp_path / "state" / "answers" / "single", lambda file: file.write(b"new"))
    there = set(tmp_path.rglob("*"))
    assert there <= synced | {tmp_path / "state/models/x/a"}  # it was synced under the name that its folder had then
    assert {path.stat().st_mode & 0o777 for path in there if path.is_dir()} == {0o700}


def test_only_the_owner_reads_and_other_files_are_nobodys_business(tmp_path: Path) -> None:
    set_up(tmp_path)
    assert (tmp_path / "models" / "x").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "models" / "single").stat().st_mode & 0o777 == 0o600
    (tmp_path / ".keep").touch()
    (tmp_path / ".git").mkdir()
    finish_writing(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".git", ".keep", "models"]
    finish_writing(tmp_path / "nowhere")
