"""Proof that encrypted labels, and the key that they are under, are the label holder's.

They come through the coordinator. One that put its own key in their place could open what the parties seal for the
label holder, and with 2^i as the label of row i every sum would be a list of rows. So the label holder signs key and
ciphertexts by its identity; parties of one owner, who need none, tag them with a secret that they share.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from typing import Any, TypedDict

import msgspec
import numpy as np

from woodlot.exceptions import IdentityError, RemoteProtocolError
from woodlot.protocols.core.agreement import Signer, check_trust, derive
from woodlot.protocols.vertical.blind_messages import TakeLabels

TAG = "woodlot encrypted labels 1"
"""The protocol and its version; in everything that is signed or tagged."""

PURPOSE = "encrypted labels"
"""What a label holder's identity signs them for."""


class Vouched(TypedDict):
    """The fields of a message that prove whose labels it brings."""

    certificate: bytes
    signature: bytes


@dataclass(frozen=True, eq=False)
class LabelVoucher:
    """One party's way to vouch for encrypted labels, or to check who has.

    Parameters
    ----------
    name : str
        The party.
    holder : str
        Whose labels they are: not the coordinator's word, but that of whoever has ordered the training.
    job : str
        The job, as all parties know it.
    signer : Signer, optional
        The party's identity. Needed unless there is a shared secret.
    shared_secret : bytes, optional
        The same at every party except the coordinator; used where there is no identity.

    Raises
    ------
    ConfigError
        If there is neither a shared secret nor an identity, or the secret is too short.

    """

    name: str
    holder: str
    job: str
    signer: Signer | None = None
    shared_secret: bytes | None = None

    def __post_init__(self) -> None:
        danger = "bring it labels under a key of its own, and read which rows are on each side of its splits"
        check_trust(self.name, self.shared_secret, self.signer, danger)

    def __repr__(self) -> str:
        return f"LabelVoucher({self.name!r}, holder={self.holder!r}, job={self.job!r})"

    def vouch(self, labels: dict[str, Any]) -> Vouched:
        """At the label holder: the proof for a message with these fields."""
        told = self._told(**{name: labels[name] for name in _FIELDS})
        if self.signer is not None:
            return Vouched(certificate=self.signer.certificate, signature=self.signer.sign(PURPOSE, told))
        return Vouched(certificate=b"", signature=self._tag(told))

    def check(self, message: TakeLabels) -> None:
        """At any other party: refuse labels, or a key, that the label holder has not given for this job.

        Raises
        ------
        RemoteProtocolError
            If they are not the label holder's.

        """
        told = self._told(**{name: getattr(message, name) for name in _FIELDS})
        wrong = RemoteProtocolError(
            f"the encrypted labels, or their key, are not those that {self.holder!r} has vouched for in this job; "
            "somebody between the parties may have changed them"
        )
        if self.signer is None:
            if not hmac.compare_digest(self._tag(told), message.signature):
                raise wrong
            return
        try:
            self.signer.verify(self.holder, message.certificate, PURPOSE, told, message.signature)
        except IdentityError as error:
            raise wrong from error

    def _told(self, *, modulus: Any, noise: Any, ciphertexts: Any, n_parts: int, value_bits: int) -> bytes:
        digest = hashlib.sha256(np.ascontiguousarray(ciphertexts).data).digest()
        return msgspec.msgpack.encode(
            (TAG, self.job, self.holder, bytes(modulus), bytes(noise), n_parts, value_bits, digest)
        )

    def _tag(self, told: bytes) -> bytes:
        return hmac.new(derive(TAG, self.shared_secret or b"", self.job), told, hashlib.sha256).digest()


_FIELDS = ("modulus", "noise", "ciphertexts", "n_parts", "value_bits")
"""What is vouched for: all that a party is told of the labels."""
