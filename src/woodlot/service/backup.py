"""Copies of a state folder, made while its service runs, and how they are put back.

A backup is a tar file that only its owner can read::

    manifest.json     when it was made, what is in it, and the SHA-256 of every file
    state/...         the state folder: databases as SQLite copies them, all other files as they are
    identity/...      key and certificates, where that was asked for

The journal is copied first. What it records was written to the other databases before, so these have as much or more.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Literal

import msgspec

from woodlot.data.decoding import from_json
from woodlot.data.whole_files import private_folder, replace_folder, write_whole
from woodlot.exceptions import DataError, JournalError
from woodlot.foundation.database import copy_database
from woodlot.jobs.hidden.helper_dealing import DEALT_FOLDER
from woodlot.jobs.key_store import KEYS_FOLDER
from woodlot.jobs.lasting_secret import SECRET_FILE
from woodlot.jobs.restored import Restoration, Restored
from woodlot.runtime.journal import Journal
from woodlot.runtime.journal_file import FileLock
from woodlot.runtime.second_copy import SECOND_COPY
from woodlot.service.agent import JOURNAL

MANIFEST = "manifest.json"
STATE, IDENTITY = "state", "identity"
_CHUNK = 1 << 20
_LONGEST_MANIFEST = 1 << 27
_SKIPPED = re.compile(r"\..+-[a-z0-9_]{8}|.*\.sqlite-(wal|shm)|.*\.lock")  # being written, or made again by SQLite

Since = Literal["nothing", "lost"]
"""What was done since a backup: nothing, or what was done is lost."""


class BackupFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup says of itself.

    Attributes
    ----------
    format : int
        1.
    made : float
        When it was made, in seconds since 1970.
    stopped : bool
        Whether the service did not run meanwhile.
    secret, epoch_keys, identity : bool
        Whether it has the state folder's secret, the keys of revocable forests, and the identity.
    files : dict of str to str
        SHA-256 of each file, in hexadecimal digits.

    """

    format: Literal[1] = 1
    made: float
    stopped: bool
    secret: bool
    epoch_keys: bool
    identity: bool
    files: dict[str, str]

    @property
    def answers(self) -> bool:
        """Whether it is of a party, a helper or a key service, which must not forget what they have answered."""
        return f"{STATE}/{SECOND_COPY}" in self.files


def write_backup(
    state: Path, out: Path, *, identity: Path | None = None, secret: bool = True, epoch_keys: bool = False
) -> BackupFacts:
    """Copy a state folder into a file, whether its service runs or not.

    Parameters
    ----------
    state : Path
        The state folder of a coordinator, a party, a helper or a key service.
    out : Path
        The file to write; it must not be there.
    identity : Path, optional
        Also copy this folder, with its private key.
    secret : bool
        Whether to copy the secret that all codes of the folder follow from.
    epoch_keys : bool
        Whether to copy the keys of revocable forests, which are erased when an epoch ends.

    Returns
    -------
    BackupFacts
        What is in it.

    """
    if not (state / JOURNAL).is_file():
        raise DataError(f"{state} is not the state folder of a service: it has no {JOURNAL}")
    if out.exists():
        raise DataError(f"{out} is there already; name another file")
    if not out.parent.is_dir():
        raise DataError(f"there is no folder {out.parent}; make it, or name another file")
    left_out = {name for name, wanted in ((SECRET_FILE, secret), (KEYS_FOLDER, epoch_keys)) if not wanted}
    with ExitStack() as stack:
        stopped = _hold(state, stack)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=f".{out.name}-", dir=out.parent)))
        found = {f"{STATE}/{name}": path for name, path in _databases(state, folder, left_out)}
        found |= {f"{STATE}/{name}": path for name, path in _files(state, left_out)}
        if identity is not None:
            found |= {f"{IDENTITY}/{name}": path for name, path in _files(identity, set())}
        copies, digests = {}, {}
        for number, (name, path) in enumerate(found.items()):
            copy = folder / f"file-{number}"
            try:
                digests[name] = _copy(path, copy)
            except FileNotFoundError:  # erased meanwhile
                continue
            copies[name] = copy
        has = {part for name in digests for part in PurePosixPath(name).parts[:2]}
        facts = BackupFacts(
            made=time.time(), stopped=stopped, secret=SECRET_FILE in has, epoch_keys=KEYS_FOLDER in has,
            identity=IDENTITY in has, files=digests,
        )  # fmt: skip
        write_whole(out, lambda file: _write_tar(file, facts, copies, folder))
    return facts


def restore_backup(
    backup: Path, state: Path, *, since: Since | None = None, identity: Path | None = None
) -> BackupFacts:
    """Put a state folder back.

    Parameters
    ----------
    backup : Path
        What `write_backup` has written.
    state : Path
        The folder to make; one that has something in it is refused.
    since : {"nothing", "lost"} or None
        What the service has done since the backup. "nothing": it goes on where it was. "lost": running jobs are ended,
        orders signed before now are refused, and secrets of forgotten jobs do not come back. None: of a coordinator, as
        "nothing"; of others it must be said.
    identity : Path, optional
        Where to put the identity that is in the backup.

    Raises
    ------
    DataError
        If the backup is damaged, or cannot be put back so.

    """
    for target in (state, *(() if identity is None else (identity,))):
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise DataError(f"{target} is there already and is not empty; move it away, or name another folder")
    try:
        with tarfile.open(backup, "r:") as tar:
            facts = _read_facts(tar, backup)
            _check_since(facts, backup, since)
            if identity is not None and not facts.identity:
                raise DataError(f"{backup} holds no identity; leave --identity away")
            private_folder(state.parent)
            replace_folder(state, lambda folder: _put_back(tar, facts, folder, since))
            if identity is not None:
                replace_folder(identity, lambda folder: _extract(tar, facts, IDENTITY, folder))
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{backup} cannot be restored: {error}") from None
    return facts


# --- writing ---


def _hold(state: Path, stack: ExitStack) -> bool:
    """Keep the service from starting, if it does not run; whether that is so."""
    try:
        lock = FileLock(state / JOURNAL)
    except JournalError:
        return False
    stack.callback(lock.release)
    return True


def _databases(state: Path, folder: Path, left_out: set[str]) -> Iterator[tuple[str, Path]]:
    """Copies of all databases below a state folder, by their names in it; the journal first."""
    found = [path for path in state.rglob("*.sqlite") if path.relative_to(state).parts[0] not in left_out]
    for number, path in enumerate(sorted(found, key=lambda path: (path != state / JOURNAL, path))):
        copy = folder / f"database-{number}"
        copy_database(path, copy)
        yield path.relative_to(state).as_posix(), copy


def _files(root: Path, left_out: set[str]) -> Iterator[tuple[str, Path]]:
    """All other files below a folder, by their names in it."""
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = [name for name in folders if not _SKIPPED.fullmatch(name)]
        for name in files:
            path = here / name
            inside = path.relative_to(root)
            if inside.parts[0] in left_out or _SKIPPED.fullmatch(name) or name.endswith(".sqlite"):
                continue
            if path.is_file() and not path.is_symlink():
                yield inside.as_posix(), path


def _copy(path: Path, copy: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as source, os.fdopen(os.open(copy, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as to:
        while part := source.read(_CHUNK):
            digest.update(part)
            to.write(part)
    return digest.hexdigest()


def _write_tar(file: IO[bytes], facts: BackupFacts, copies: dict[str, Path], folder: Path) -> None:
    manifest = folder / MANIFEST
    manifest.write_bytes(msgspec.json.format(msgspec.json.encode(facts)))
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in {MANIFEST: manifest, **copies}.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = path.stat().st_size, 0o600, int(facts.made)
            with path.open("rb") as source:
                tar.addfile(entry, source)


# --- reading ---


def _read_facts(tar: tarfile.TarFile, backup: Path) -> BackupFacts:
    first = tar.next()
    data = None if first is None or first.name != MANIFEST or first.size > _LONGEST_MANIFEST else tar.extractfile(first)
    if data is None:
        raise DataError(f"{backup} is not a backup that woodlot backup has made")
    text = data.read()
    try:
        form = json.loads(text).get("format")
        if form != 1:
            raise DataError(f"{backup} is of format {form}; this Woodlot reads format 1. Use the Woodlot that made it")
        return from_json(text, BackupFacts)
    except (ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{backup}: {MANIFEST} cannot be read ({error})") from None


def _check_since(facts: BackupFacts, backup: Path, since: Since | None) -> None:
    """Refuse to guess what was done since a backup, and what cannot be undone."""
    if not facts.answers:
        return
    made = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(facts.made))
    if since is None:
        raise DataError(
            f"{backup} was made at {made}. Say what the service has done since then: --nothing-since if it has not "
            "run; else --accept-lost-records. Then what it has spent of privacy since, predictions of the day and rows "
            "that were evaluated are forgotten (lower the budgets by hand), and orders of the time before are refused"
        )
    if since == "nothing" and not facts.stopped:
        raise DataError(
            f"{backup} was made at {made} while the service ran: it has gone on since. Use --accept-lost-records, or "
            "make the backup after you have stopped the service"
        )
    if since == "lost" and facts.epoch_keys:
        raise DataError(
            f"{backup} holds keys of revocable forests, which must not come back after their epoch has ended. They can "
            "be restored with --nothing-since only; else make the backup without them, and order new keys afterwards"
        )


def _put_back(tar: tarfile.TarFile, facts: BackupFacts, folder: Path, since: Since | None) -> None:
    _extract(tar, facts, STATE, folder)
    if not facts.answers or since != "lost":
        return
    with _journal(folder) as journal:
        known = set(journal.jobs())
        for name in known:
            if not journal.job(name).ended:
                journal.job(name).drop_bodies()
    for kept in ("models", "alignments", "answers", DEALT_FOLDER):
        known |= {path.stem for path in (folder / kept).glob("*")}
    restoration = Restoration(made=facts.made, at=time.time(), nonce=secrets.token_hex(32), jobs=tuple(sorted(known)))
    Restored(folder).add(folder, restoration)


@contextmanager
def _journal(folder: Path) -> Iterator[Journal]:
    with Journal(folder / JOURNAL, durable=True) as journal:
        yield journal
    (folder / f"{JOURNAL}.lock").unlink(missing_ok=True)


def _extract(tar: tarfile.TarFile, facts: BackupFacts, part: str, folder: Path) -> None:
    """Write the files of one part of a backup; what is not as its manifest says is refused."""
    wanted = {name: digest for name, digest in facts.files.items() if name.startswith(f"{part}/")}
    for entry in tar.getmembers():
        if entry.name not in wanted:
            continue
        inside = PurePosixPath(entry.name).relative_to(part)
        if not entry.isreg() or ".." in inside.parts or inside.is_absolute() or not inside.parts:
            raise DataError(f"the backup has an entry {entry.name!r}, which is no file of a state folder")
        source = tar.extractfile(entry)
        target = folder.joinpath(*inside.parts)
        private_folder(target.parent)
        if source is None or _receive(source, target) != wanted.pop(entry.name):
            raise DataError(f"{entry.name} is damaged in the backup; use another one")
    if wanted:
        raise DataError(f"{next(iter(wanted))} is missing in the backup; use another one")


def _receive(source: IO[bytes], target: Path) -> str:
    digest = hashlib.sha256()
    with os.fdopen(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
        while part := source.read(_CHUNK):
            digest.update(part)
            file.write(part)
    return digest.hexdigest()
