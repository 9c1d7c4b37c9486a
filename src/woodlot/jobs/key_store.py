"""Where a member keeps the keys of its models' epochs, and how it erases those before."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from woodlot.data.decoding import from_msgpack
from woodlot.data.sources import read_private
from woodlot.data.whole_files import private_folder, write_whole
from woodlot.exceptions import DataError, EpochError, JournalError
from woodlot.protocols.core.agreement import KEY_BYTES, derive
from woodlot.protocols.revocable.epoch_keys import EpochKeys

KEYS_FOLDER = "keys"
"""Where a member keeps its keys, in its state folder."""

_TAG = "woodlot key store 1"


def forest_of_model(model: str, fingerprint: str) -> str:
    """What a party calls a forest whose splits it encrypts: the fingerprint alone would be the coordinator's word."""
    return f"{model} {fingerprint}"


class _StoredKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys, the job in which the epoch began, and the epoch before it."""

    job: str
    before: int
    keys: EpochKeys


class KeyStore:
    """The keys of one member.

    ::

        keys/
          MODEL.keys          of the present epoch
          JOB.secret          random: everything that the member draws in a job follows from it

    When an epoch begins its keys replace those before, and the secrets of all earlier jobs of the model are erased. So
    nothing that is left can repeat how the old keys were made, not even with all messages at hand. A key service erases
    the secret of the present job as well: the factors of the modulus follow from it. A file system that keeps old
    blocks, and backups, are beyond its reach.

    Parameters
    ----------
    folder : Path
        Made if it is not there; only its owner may enter.
    forgets : bool
        Whether the secret of a job is erased as soon as the epoch that it made begins.

    """

    def __init__(self, folder: Path, *, forgets: bool = False) -> None:
        self._folder = folder
        self._forgets = forgets

    def load(self, model: str, job: str) -> tuple[EpochKeys | None, int]:
        """The keys as they were when a job began, and the last epoch that is over.

        A job that has begun an epoch, and is being rebuilt, begins it again; unless it cannot (`has_begun`).
        """
        stored = self._stored(model)
        if stored is None:
            return None, 0
        begins_again = stored.job == job and not self._has_forgotten(model, job)
        return (None, stored.before) if begins_again else (stored.keys, stored.keys.epoch)

    def has_begun(self, model: str, job: str) -> bool:
        """Whether a job has begun an epoch that it cannot begin again: its keys are kept, its secret is erased."""
        stored = self._stored(model)
        return stored is not None and stored.job == job and self._has_forgotten(model, job)

    def _has_forgotten(self, model: str, job: str) -> bool:
        return self._forgets and not (self._folder / f"{model}-{job}.secret").exists()

    def _stored(self, model: str) -> _StoredKeys | None:
        path = self._folder / f"{model}.keys"
        if not path.exists():
            return None
        try:
            return from_msgpack(_read(path, "the keys of a model"), _StoredKeys)
        except (msgspec.MsgspecError, ValueError):
            raise DataError("its keys of this model cannot be read; order new ones") from None

    def check_present(self, model: str, keys: EpochKeys | None) -> None:
        """Refuse keys that another job has replaced since: a job holds those with which it was opened.

        Raises
        ------
        EpochError
            If another epoch has begun, somebody's key was struck out, other splits were registered, or the keys were
            erased.

        """
        stored = self._stored(model)
        if stored is None or keys is None or _identity(stored.keys) != _identity(keys):
            raise EpochError("the keys with which this job was opened are no longer in use here")

    def keep(self, model: str, job: str, keys: EpochKeys) -> None:
        """Replace the keys of a model, and erase what those before were made of; an earlier epoch never comes back.

        Nor does another one of the same number: a coordinator could give it to two jobs.

        Raises
        ------
        EpochError
            If the keys in use are of a later epoch, or of the same and of another modulus.

        """
        present = self._stored(model)
        if present is not None and present.keys.epoch > keys.epoch:
            raise EpochError(f"epoch {keys.epoch} has ended here; the keys are of epoch {present.keys.epoch}")
        if present is not None and present.keys.epoch == keys.epoch and present.keys.group != keys.group:
            raise EpochError(
                f"epoch {keys.epoch} has begun here with another modulus; the keys in use are not replaced. Order new "
                "keys, under another number"
            )
        old, before = self.load(model, job)
        data = msgspec.msgpack.encode(_StoredKeys(job, before, keys))
        if old is not None and old.epoch == keys.epoch:  # changed in a later job, such as by a revocation
            data = msgspec.msgpack.encode(_StoredKeys("", before, keys))
        try:
            self._write(f"{model}.keys", data)
            for path in self._folder.glob(f"{model}-*.secret"):
                if self._forgets or path.name != f"{model}-{job}.secret":
                    path.unlink()
        except OSError as error:
            raise JournalError(f"the keys cannot be written: {error.strerror}") from error

    def erase(self, model: str) -> None:
        """Erase the keys of a model, and what they were made of."""
        try:
            for path in (self._folder / f"{model}.keys", *self._folder.glob(f"{model}-*.secret")):
                path.unlink(missing_ok=True)
        except OSError as error:
            raise JournalError(f"the keys cannot be erased: {error.strerror}") from error

    def secret_for(self, model: str, job: str, purpose: str) -> bytes:
        """Secret bytes, always the same for this job and purpose, until the next epoch has begun."""
        name = f"{model}-{job}.secret"
        path = self._folder / name
        try:
            if not path.exists():
                self._write(name, os.urandom(KEY_BYTES))
        except OSError as error:
            raise JournalError(f"the secret of a job cannot be written: {error.strerror}") from error
        return derive(_TAG, _read(path, "the secret of a job"), purpose)

    def _write(self, name: str, data: bytes) -> None:
        """Write a file at once or not at all; nobody else may read it."""
        private_folder(self._folder)
        write_whole(self._folder / name, lambda file: file.write(data.hex().encode()))


def _identity(keys: EpochKeys) -> tuple[object, ...]:
    """What tells keys from those that have replaced them."""
    return keys.epoch, keys.group, keys.revoked, keys.registered


def _read(path: Path, what: str) -> bytes:
    return bytes.fromhex(read_private(path, what).decode("ascii"))
