"""A message that only the owner of a Paillier key can read, and that nobody can change on the way.

A fresh secret is encrypted under the key; what is said is encrypted and sealed under that secret (ChaCha20-Poly1305).
``about`` is not sent: both sides know it, and an envelope about anything else does not open. Who has the public key can
write an envelope, so it does not tell who has written it.
"""

from __future__ import annotations

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from woodlot.crypto.paillier import PaillierPublicKey, PrivateKey
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import CiphertextError

_SECRET_BITS = 256
_NONCE = bytes(12)  # every envelope has a secret of its own
_TAG = b"woodlot envelope 1"


def seal(key: PaillierPublicKey, content: bytes, about: bytes, stream: SecretStream) -> bytes:
    """An envelope for the owner of the key."""
    secret = stream.bits(_SECRET_BITS)
    head = bytes(key.pack([key.encrypt(secret, stream)]))
    return head + _cipher(secret, key, about).encrypt(_NONCE, content, head)


def unseal(key: PrivateKey, envelope: bytes, about: bytes) -> bytes:
    """What is in an envelope.

    Raises
    ------
    CiphertextError
        If it was written for another key or about something else, or was changed on the way.

    """
    length = key.public.ciphertext_bytes
    if len(envelope) < length:
        raise CiphertextError("this is no envelope: it is too short")
    head = envelope[:length]
    (secret,) = key.decrypt(key.public.unpack(head, 1))
    try:
        if secret >> _SECRET_BITS:
            raise InvalidTag
        return _cipher(secret, key.public, about).decrypt(_NONCE, envelope[length:], head)
    except InvalidTag:
        raise CiphertextError(
            "an envelope does not open: it is for another key or another step, or was changed on the way"
        ) from None


def _cipher(secret: int, key: PaillierPublicKey, about: bytes) -> ChaCha20Poly1305:
    raw = secret.to_bytes(_SECRET_BITS // 8, "little")
    return ChaCha20Poly1305(HKDF(SHA256(), 32, salt=key.name, info=_TAG + about).derive(raw))
