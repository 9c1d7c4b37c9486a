"""Where a member keeps the keys of its models' epochs, and how it erases those before."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from woodlot.data.decoding import from_msgpack
from woodlot.data.sources import read_private
from woodlot.data.whole_files import private_folder, write_whole
from woodlot.exceptions import DataError, EpochError, JournalError
from woodlot.foundation.disk import sync
from woodlot.protocols.core.agreement import KEY_BYTES, derive
from woodlot.protocols.revocable.epoch_keys import EpochKeys
from woodlot.protocols.revocable.share_keeping import HeldShares

KEYS_FOLDER = "keys"
"""Where a member keeps its keys, in its state folder."""

_TAG = "woodlot key store 1"

_CHANGES = threading.RLock()
"""Jobs of one member go on side by side. Who has left is looked up and files are written without another in between."""


def forest_of_model(model: str, fingerprint: str) -> str:
    """What a party calls a forest whose splits it encrypts: the fingerprint alone would be the coordinator's word."""
    return f"{model} {fingerprint}"


class _StoredKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The keys, the job in which the epoch began, and the epoch before it; who had left, and the models, until then."""

    job: str
    before: int
    keys: EpochKeys
    left: tuple[str, ...] = ()
    models: tuple[str, ...] = ()

    def known(self) -> set[str]:
        """The models whose splits were hidden under these keys and those before."""
        return {*self.models, *_models_of(self.keys)}

    def gone(self) -> set[str]:
        """Who has left the model, in this epoch or before."""
        return {*self.left, *self.keys.revoked}


class KeyStore:
    """The keys of one member.

    ::

        keys/
          MODEL.keys          of the present epoch; at helper and key service also who has left
          MODEL-JOB.secret    random: everything that the member draws in a job follows from it
          MODEL-HASH.shares   at helper and key service: shares of the splits of one forest (`KeptShares`)

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

    def keep(self, model: str, job: str, keys: EpochKeys, leavers: Collection[str] = ()) -> None:
        """Replace the keys of a model, and erase what those before were made of; an earlier epoch never comes back.

        Nor does another one of the same number: a coordinator could give it to two jobs. Nor does a party that has
        left: a coordinator could keep an order, or a job that is open, until then.

        Parameters
        ----------
        model, job : str
            Under which name the keys are kept, and the job that changes them.
        keys : EpochKeys
            The new ones.
        leavers : collection of str
            Who leaves by the order of the job, if it begins an epoch.

        Raises
        ------
        EpochError
            If the keys in use are of a later epoch, or of the same and others; or if a member of the new epoch has
            left.

        """
        with _CHANGES:
            self._keep(model, job, keys, leavers)

    def left(self, model: str) -> set[str]:
        """Who has left a model here: no epoch with it begins, and no shares of it are kept."""
        stored = self._stored(model)
        return set() if stored is None else stored.gone()

    def models(self, model: str) -> set[str]:
        """The models that have had these keys: the first one, and its successors when parties left."""
        stored = self._stored(model)
        return set() if stored is None else stored.known()

    def _keep(self, model: str, job: str, keys: EpochKeys, leavers: Collection[str]) -> None:
        present = self._stored(model)
        if present is not None and present.keys.epoch > keys.epoch:
            raise EpochError(f"epoch {keys.epoch} has ended here; the keys are of epoch {present.keys.epoch}")
        if present is not None and present.keys.epoch == keys.epoch and _made_of(present.keys) != _made_of(keys):
            raise EpochError(
                f"epoch {keys.epoch} has begun here with other keys; those in use are not replaced. Order new "
                "keys, under another number"
            )
        gone = set() if present is None else present.gone()
        if present is None or present.keys.epoch != keys.epoch:  # within an epoch leavers are struck out of the keys
            gone |= {*leavers}
            check_not_left(keys.peers, gone)
        old, before = self.load(model, job)
        began = "" if old is not None and old.epoch == keys.epoch else job  # changed in a later job, as by a revocation
        models = set() if present is None else present.known() - _models_of(keys)
        left = gone - {*keys.revoked}
        data = msgspec.msgpack.encode(_StoredKeys(began, before, keys, tuple(sorted(left)), tuple(sorted(models))))
        try:
            self._write(f"{model}.keys", data)
            for path in self._folder.glob(f"{model}-*.secret"):
                if self._forgets or path.name != f"{model}-{job}.secret":
                    path.unlink()
            sync(self._folder)
        except OSError as error:
            raise JournalError(f"the keys cannot be written: {error.strerror}") from error

    def shares(self, model: str) -> KeptShares:
        """Where a helper or a key service keeps its shares of a model's splits."""
        return KeptShares(self._folder, model, lambda: self.left(model))

    def erase(self, model: str) -> None:
        """Erase the keys of a model, what they were made of, and shares of its splits."""
        found = [path for end in ("secret", "shares") for path in self._folder.glob(f"{model}-*.{end}")]
        try:
            for path in (self._folder / f"{model}.keys", *found):
                path.unlink(missing_ok=True)
            if self._folder.exists():
                sync(self._folder)
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


class KeptShares:
    """The shares of a model's splits in a member's folder, a file for each forest; see `ShareBook`.

    There is one forest, and a second one only while an epoch is prepared, or while a party leaves. A file is written as
    a whole, or erased as a whole: when an owner is struck out, the file is written again without its shares.

    Parameters
    ----------
    folder : Path
        That of the member's keys.
    model : str
        Under which name the member keeps the keys.
    left : callable
        Returns who has left the model: nothing of them is kept.

    """

    def __init__(self, folder: Path, model: str, left: Callable[[], Collection[str]]) -> None:
        self._folder = folder
        self._model = model
        self._left = left

    def _path(self, registration: bytes) -> Path:
        return self._folder / f"{self._model}-{registration.hex()}.shares"

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(f"{self._model}-*.shares"))

    def keep(self, registration: bytes, held: Mapping[str, HeldShares]) -> None:
        """Keep the shares of a forest, beside those of others; on disk when this returns."""
        with _CHANGES:
            check_not_left(held, self._left())
            self._write(self._path(registration), held)

    def load(self, registration: bytes) -> dict[str, HeldShares]:
        """The shares of a forest, by owner; none where there are no such."""
        path = self._path(registration)
        return self._read(path) if path.exists() else {}

    def keep_only(self, registration: bytes) -> None:
        """Erase the shares of all other forests of the model."""
        try:
            with _CHANGES:
                for path in self._files():
                    if path != self._path(registration):
                        path.unlink(missing_ok=True)
                if self._folder.exists():
                    sync(self._folder)
        except OSError as error:
            raise JournalError(f"shares cannot be erased: {error.strerror}") from error

    def strike_out(self, owner: str) -> None:
        """Erase all shares of one owner."""
        with _CHANGES:
            for path in self._files():
                held = self._read(path)
                if held.pop(owner, None) is not None:
                    self._write(path, held)

    def _write(self, path: Path, held: Mapping[str, HeldShares]) -> None:
        data = msgspec.msgpack.encode(dict(held))
        try:
            private_folder(self._folder)
            write_whole(path, lambda file: file.write(data.hex().encode()))
        except OSError as error:
            raise JournalError(f"the shares cannot be written: {error.strerror}") from error

    @staticmethod
    def _read(path: Path) -> dict[str, HeldShares]:
        try:
            return from_msgpack(_read(path, "the shares of a model's splits"), dict[str, HeldShares])
        except (msgspec.MsgspecError, ValueError):
            raise DataError("its shares of this model's splits cannot be read; order new keys") from None


def check_not_left(names: Collection[str], left: Collection[str]) -> None:
    """Refuse to take up again who has left a model.

    Raises
    ------
    EpochError
        It names who.

    """
    back = sorted(set(names) & set(left))
    if back:
        raise EpochError(f"{back[0]!r} has left this model, and does not come back; order new keys without it")


def _models_of(keys: EpochKeys) -> set[str]:
    """The models whose splits were hidden under some keys; see `forest_of_model`."""
    return {forest.partition(" ")[0] for forest in keys.forests}


def _identity(keys: EpochKeys) -> tuple[object, ...]:
    """What tells keys from those that have replaced them."""
    return keys.epoch, *_made_of(keys), keys.revoked, keys.registered


def _made_of(keys: EpochKeys) -> tuple[object, ...]:
    """What tells the keys of two epochs of one number: the modulus, or who met."""
    return keys.group, keys.transcript


def _read(path: Path, what: str) -> bytes:
    return bytes.fromhex(read_private(path, what).decode("ascii"))
