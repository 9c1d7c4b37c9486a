"""How a user asks a leader through a coordinator that must not read it: signed by the user, sealed to the leader.

The user draws a key for each question, and the leader's certificate gives the secret. It makes one key for the question
and one for the answer. The user's signature covers the drawn key, so that nobody else gets an answer in its name.
"""

from __future__ import annotations

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import IdentityError, RemoteProtocolError
from woodlot.identity.exchange import SHARE_BYTES, secret_of, secret_with
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs.padding import pad, unpad
from woodlot.jobs.signers import signing_party
from woodlot.protocols.core.agreement import derive

TAG = "woodlot question to a leader 2"
PURPOSE = "question to a leader"
"""What a user's signature under a question is for."""

_NONCE = bytes(12)  # every key is used once


class _SignedQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    request: bytes
    certificate: bytes
    signature: bytes


class AskedQuestion:
    """A user's side of one question.

    Parameters
    ----------
    identity : Identity
        The user's.
    leader : str
        Whom it asks.
    certificate : bytes
        The leader's, checked.
    request : bytes
        What it asks.

    Attributes
    ----------
    sealed : bytes
        What the leader can read.

    """

    def __init__(self, identity: Identity, leader: str, certificate: bytes, request: bytes) -> None:
        share, self._secret = secret_with(certificate, leader)
        self._leader = leader
        signature = identity.sign(_signed(leader, share, request), PURPOSE)
        question = _SignedQuestion(request, identity.certificate, signature)
        self._share = share
        self.sealed = share + _cipher(self._secret, share, leader, "question").encrypt(
            _NONCE, pad(msgspec.msgpack.encode(question)), None
        )

    def open(self, answer: bytes) -> bytes:
        """What the leader has answered."""
        try:
            padded = _cipher(self._secret, self._share, self._leader, "answer").decrypt(_NONCE, answer, None)
        except InvalidTag:
            raise RemoteProtocolError(f"the answer is not one that {self._leader!r} has sealed") from None
        return unpad(padded)


class TakenQuestion:
    """A leader's side of one question: who asks, a user or a party that has ordered something itself, and what.

    Parameters
    ----------
    identity, trust
        The leader's.
    sealed : bytes
        As it was brought.

    """

    def __init__(self, identity: Identity, trust: Trust, sealed: bytes) -> None:
        self._share = sealed[:SHARE_BYTES]
        self._leader = identity.name
        try:
            self._secret = secret_of(identity, self._share)
            plain = _cipher(self._secret, self._share, identity.name, "question").decrypt(
                _NONCE, sealed[SHARE_BYTES:], None
            )
            question = from_msgpack(unpad(plain), _SignedQuestion)
        except (ValueError, InvalidTag, msgspec.MsgspecError):
            raise RemoteProtocolError(
                "the question is not one that this party can open; was its certificate renewed?"
            ) from None
        signed = _signed(identity.name, self._share, question.request)
        signer = trust.verify(question.certificate, PURPOSE, signed, question.signature)
        if signer.role not in ("user", "party"):
            raise IdentityError(f"the certificate is of {signer.role} {signer.name!r}; here a user is needed")
        self.user = signer.name if signer.role == "user" else signing_party(signer.name)
        self.request = question.request

    def seal(self, answer: bytes) -> bytes:
        """The answer, for the user alone."""
        return _cipher(self._secret, self._share, self._leader, "answer").encrypt(_NONCE, pad(answer), None)


def _signed(leader: str, share: bytes, request: bytes) -> bytes:
    return msgspec.msgpack.encode((TAG, leader, share, request))


def _cipher(secret: bytes, share: bytes, leader: str, way: str) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(derive(TAG, secret, share, leader, way))
