"""A member's key for what is sealed to it, beside the one of its certificate: ML-KEM-768, against quantum computers.

The private key follows from that of the identity (HKDF), so that a folder holds one secret. The public key is an
extension of the request and of the certificate, and so is signed by the authority. What is sealed uses both keys:
whoever opens it must break P-256 and ML-KEM-768.
"""

from __future__ import annotations

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from woodlot.exceptions import IdentityError

KEM_EXTENSION = x509.ObjectIdentifier("2.25.214749337265814437906829031466219580577")
"""The extension that has the public key: an identifier made of a random UUID, as ITU-T X.667 allows."""
CIPHERTEXT_BYTES = 1088
_PUBLIC_BYTES = 1184
_SEED_BYTES = 64
_HEADER = b"\x04\x82" + _PUBLIC_BYTES.to_bytes(2)  # of an OCTET STRING, DER


def kem_key(key: ec.EllipticCurvePrivateKey) -> MLKEM768PrivateKey:
    """Return the key that follows from an identity's."""
    secret = key.private_numbers().private_value.to_bytes(32)
    seed = HKDF(SHA256(), _SEED_BYTES, salt=None, info=b"woodlot identity ML-KEM-768").derive(secret)
    try:
        return MLKEM768PrivateKey.from_seed_bytes(seed)
    except UnsupportedAlgorithm:
        raise IdentityError(
            "the package cryptography on this machine is built without ML-KEM; install it from a wheel"
        ) from None


def kem_extension(public: bytes) -> x509.UnrecognizedExtension:
    """Return the extension that has a public key."""
    return x509.UnrecognizedExtension(KEM_EXTENSION, _HEADER + public)


def kem_public(document: x509.Certificate | x509.CertificateSigningRequest, what: str) -> bytes:
    """Return the public key in a request or certificate.

    Raises
    ------
    IdentityError
        If it has none.

    """
    try:
        value = document.extensions.get_extension_for_oid(KEM_EXTENSION).value
        data = value.value if isinstance(value, x509.UnrecognizedExtension) else b""
        public = data[len(_HEADER) :] if data.startswith(_HEADER) else b""
        MLKEM768PublicKey.from_public_bytes(public)
    except (x509.ExtensionNotFound, ValueError):
        raise IdentityError(
            f"{what} has no ML-KEM-768 key, which orders are sealed with; make a new one with: woodlot identity request"
        ) from None
    return public
