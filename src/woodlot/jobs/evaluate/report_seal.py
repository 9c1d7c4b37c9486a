"""How a label holder seals a report to the user: with the key that the user has put into its part of the order.

The nonce is a hash of the report under another key. A job that is rebuilt so gives the same bytes again, and two
reports under one key, should there ever be such, have different nonces.
"""

from __future__ import annotations

import hmac
import os
from typing import TypeVar

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from woodlot.data.decoding import from_json
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.jobs.padding import pad, unpad
from woodlot.protocols.core.agreement import derive

KEY_BYTES = 32
_NONCE_BYTES = 12
_TAG = "woodlot report 1"
T = TypeVar("T")


def new_report_key() -> bytes:
    """A key for one job; it goes into the sealed part of whoever reports."""
    return os.urandom(KEY_BYTES)


class ReportSeal:
    """Seals and opens what one party tells the user of one job.

    Parameters
    ----------
    key : bytes
        As `new_report_key` makes them.
    job, party : str
        The job, and who reports.

    """

    def __init__(self, key: bytes, job: str, party: str) -> None:
        if len(key) != KEY_BYTES:
            raise DataError(f"the order has no key of {KEY_BYTES} bytes to which the report could be sealed")
        self._party = party
        self._cipher = ChaCha20Poly1305(derive(_TAG, key, "seal", job, party))
        self._hash = derive(_TAG, key, "nonce", job, party)

    def seal(self, report: msgspec.Struct, more: int = 0) -> bytes:
        """A report, for the user alone; padded as if it had so many bytes more."""
        data = msgspec.json.encode(report)
        plain = pad(data, len(data) + more)
        nonce = hmac.digest(self._hash, plain, "sha256")[:_NONCE_BYTES]
        return nonce + self._cipher.encrypt(nonce, plain, None)

    def open(self, sealed: bytes, kind: type[T]) -> T:
        """What the party has reported."""
        try:
            plain = self._cipher.decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], None)
            return from_json(unpad(plain), kind)
        except (InvalidTag, ValueError, msgspec.MsgspecError):
            raise RemoteProtocolError(f"the report is not one that {self._party!r} has sealed for this job") from None
