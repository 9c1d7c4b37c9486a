"""The secret of a state folder: 32 random bytes from which all others of its owner follow."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from pathlib import Path

from woodlot.data.sources import read_private
from woodlot.data.whole_files import write_whole
from woodlot.exceptions import JournalError

SECRET_BYTES = 32
SECRET_FILE = "secret"  # noqa: S105 - a name
CHECK_FILE = "secret.check"
"""Tells whether the secret is the one that was made here; it does not tell the secret."""


class LastingSecret:
    """The secret in a state folder; it is made where there is none.

    Parameters
    ----------
    folder : Path
        The state folder.
    owner : str
        Whose it is, for errors: "party" or "coordinator".
    remedy : str
        What to do where the secret is lost and there is no copy.

    Raises
    ------
    JournalError
        If it is damaged, or was there once and is missing.
    OSError
        If the folder cannot be used.

    """

    def __init__(self, folder: Path, owner: str, remedy: str) -> None:
        path, check = folder / SECRET_FILE, folder / CHECK_FILE
        whose = f"the {owner}'s own secret"

        def lost(what: str) -> JournalError:
            return JournalError(f"{whose} {path} {what}; restore it from a copy. Without a copy, {remedy}")

        if not path.exists():
            if check.exists():
                raise lost("is missing")
            write_whole(path, lambda file: file.write(os.urandom(SECRET_BYTES).hex().encode()))
        secret = read_private(path, whose)
        about = f"woodlot check of a {owner}'s secret".encode()
        expected = hmac.new(secret, about, hashlib.sha256).hexdigest().encode()
        if not re.fullmatch(rb"[0-9a-f]{%d}" % (2 * SECRET_BYTES), secret):
            raise lost("is damaged")
        if not check.exists():  # a new secret
            write_whole(check, lambda file: file.write(expected))
        elif not hmac.compare_digest(check.read_bytes(), expected):
            raise lost(f"is damaged, or {CHECK_FILE} is")
        self._secret = secret

    def of(self, scope: str, purpose: str) -> bytes:
        """Secret bytes, always the same for this owner, scope and purpose."""
        return hmac.new(self._secret, f"{scope}\0{purpose}".encode(), hashlib.sha256).digest()
