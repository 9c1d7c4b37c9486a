"""A secret between whoever has a member's certificate and that member: ECDH on P-256, the curve of all identities."""

from __future__ import annotations

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509 import load_pem_x509_certificate

from woodlot.exceptions import RemoteProtocolError
from woodlot.identity.identity import Identity

SHARE_BYTES = 65
"""Bytes of the public key that goes with what is sealed: an uncompressed point of P-256."""


def secret_with(certificate: bytes, name: str) -> tuple[bytes, bytes]:
    """Draw a key; returns its public half, and the secret that it makes with the member's key."""
    theirs = load_pem_x509_certificate(certificate).public_key()
    if not isinstance(theirs, ec.EllipticCurvePublicKey):
        raise RemoteProtocolError(f"the certificate of {name!r} has a key of another kind")
    own = ec.generate_private_key(ec.SECP256R1())
    share = own.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    return share, own.exchange(ec.ECDH(), theirs)


def secret_of(identity: Identity, share: bytes) -> bytes:
    """The secret that was made with this member's certificate; ``ValueError`` where ``share`` is no public key."""
    theirs = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), share)
    key = serialization.load_pem_private_key(identity.key, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("not a key of this kind")
    return key.exchange(ec.ECDH(), theirs)
