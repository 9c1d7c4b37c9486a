"""A secret between whoever has a member's certificate and that member: P-256, the curve of all identities, and
ML-KEM-768 together. Both must be broken to learn it.
"""

from __future__ import annotations

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PublicKey
from cryptography.x509 import load_pem_x509_certificate

from woodlot.exceptions import RemoteProtocolError
from woodlot.identity.identity import Identity
from woodlot.identity.kem import CIPHERTEXT_BYTES, kem_key, kem_public

_POINT = 65  # bytes of an uncompressed point of P-256
SHARE_BYTES = _POINT + CIPHERTEXT_BYTES
"""Bytes that go with what is sealed: the point of a key that was drawn for it, and a ciphertext of ML-KEM-768."""


def secret_with(certificate: bytes, name: str) -> tuple[bytes, bytes]:
    """Draw keys; returns what goes with what is sealed, and the secret that it makes with the member's keys."""
    document = load_pem_x509_certificate(certificate)
    theirs = document.public_key()
    if not isinstance(theirs, ec.EllipticCurvePublicKey):
        raise RemoteProtocolError(f"the certificate of {name!r} has a key of another kind")
    own = ec.generate_private_key(ec.SECP256R1())
    point = own.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    kem = MLKEM768PublicKey.from_public_bytes(kem_public(document, f"the certificate of {name!r}"))
    encapsulated, ciphertext = kem.encapsulate()
    return point + ciphertext, own.exchange(ec.ECDH(), theirs) + encapsulated


def secret_of(identity: Identity, share: bytes) -> bytes:
    """The secret that was made with this member's certificate; ``ValueError`` where ``share`` cannot be one."""
    theirs = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), share[:_POINT])
    key = serialization.load_pem_private_key(identity.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not a key of this kind")
    return key.exchange(ec.ECDH(), theirs) + kem_key(key).decapsulate(share[_POINT:])
