"""Files and folders that are written at once or not at all, whatever ends the process or the machine in between.

::

    .NAME-xxxxxxxx    being written, or being erased: it counts for nothing
    .NAME.new         a folder that is complete, and about to take the place of the one of that name

A name changes when what it stands for has reached the disk. Who finds a folder ``.NAME.new`` after a crash puts it in
its place, and erases the rest; see `finish_writing`.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from woodlot.exceptions import JournalError
from woodlot.foundation.disk import sync

_BEGUN = re.compile(r"\..+-[a-z0-9_]{8}")
_READY = re.compile(r"\.(.+)\.new")


def private_folder(folder: Path) -> None:
    """Make a folder that only its owner can enter, and those above it; when it returns, their names are on the disk."""
    if folder.is_dir():
        return
    private_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync(folder.parent)


def state_folder(folder: Path) -> None:
    """Make a state folder as `private_folder` does; if it cannot be made, say what to do."""
    try:
        private_folder(folder)
    except OSError as error:
        raise JournalError(
            f"the state folder {folder} cannot be used: let this user write there ({error.strerror})"
        ) from error


def write_whole(path: Path, fill: Callable[[IO[bytes]], Any]) -> None:
    """Write a file that only its owner can read; what is there already is replaced at once or not at all.

    Parameters
    ----------
    path : Path
        The file; its folder must be there.
    fill : callable
        Writes to what it is given.

    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            fill(file)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync(path.parent)


def replace_folder(target: Path, fill: Callable[[Path], Any]) -> None:
    """Write a folder that only its owner can enter; what is there already is replaced at once or not at all.

    Parameters
    ----------
    target : Path
        The folder; those above it are made.
    fill : callable
        Writes into the folder that it is given.

    """
    private_folder(target.parent)
    begun = _beside(target)
    ready = target.with_name(f".{target.name}.new")
    try:
        staging = begun / "new"
        staging.mkdir(mode=0o700)
        fill(staging)
        make_private(staging)
        _sync_all(staging)
        if ready.exists():
            ready.rename(begun / ready.name)
        staging.rename(ready)
    except BaseException:
        shutil.rmtree(begun, ignore_errors=True)
        raise
    _put_in_place(ready, target, begun)


def make_private(root: Path) -> None:
    """Let only the owner enter a folder and read what is below it, whatever the umask was when it was written."""
    for folder, _, files in os.walk(root):
        Path(folder).chmod(0o700)
        for name in files:
            Path(folder, name).chmod(0o600)


def erase_folder(target: Path) -> None:
    """Erase a folder: under its name it is there as it was, with the mark that it must go, or not at all.

    Parameters
    ----------
    target : Path
        The folder; where there is none, nothing is done.

    """
    if not target.exists():
        return
    going = target.with_name(f".{target.name}-{secrets.token_hex(4)}")
    target.rename(going)  # needs no room: a full disk must not stop what makes some
    sync(target.parent)
    shutil.rmtree(going)


def finish_writing(root: Path) -> None:
    """End what a crash has left unfinished anywhere below a folder: for whoever alone writes there, before it does.

    Parameters
    ----------
    root : Path
        The folder; without it there is nothing to end.

    Raises
    ------
    JournalError
        If it cannot be ended.

    """
    try:
        _finish_writing(root)
    except OSError as error:
        raise JournalError(
            f"what was being written or erased in {root} cannot be finished ({error}); let this user write there, and "
            "make room on the disk"
        ) from error


def _finish_writing(root: Path) -> None:
    for folder, names, files in os.walk(root):
        for name in list(names):
            path = Path(folder, name)
            if ready := _READY.fullmatch(name):
                names.remove(name)
                target = path.with_name(ready[1])
                _put_in_place(path, target, _beside(target))
            elif _BEGUN.fullmatch(name):
                names.remove(name)
                shutil.rmtree(path)
        for name in files:
            if _BEGUN.fullmatch(name):
                Path(folder, name).unlink()


def _put_in_place(ready: Path, target: Path, begun: Path) -> None:
    """Give a folder that is complete its name; what had that name before is erased, by way of one that was begun."""
    sync(target.parent)
    if target.exists():
        target.rename(begun / target.name)  # needs no room: a full disk must not stop what is ready
    ready.rename(target)
    sync(target.parent)
    shutil.rmtree(begun, ignore_errors=True)


def _beside(target: Path) -> Path:
    return Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))


def _sync_all(root: Path) -> None:
    for folder, _, files in os.walk(root):
        for name in files:
            sync(Path(folder, name))
        sync(Path(folder))
