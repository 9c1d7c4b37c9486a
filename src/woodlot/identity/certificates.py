"""What Woodlot's certificates, requests and lists of revocations say, and the files they are in.

Role and name of a certificate are in its URI ``woodlot://ROLE/NAME``; everything else in it follows from these two.
Keys are ECDSA on P-256, since gRPC's TLS takes no Ed25519. Nothing here decides whom to trust: that is `identity`.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from woodlot.exceptions import IdentityError
from woodlot.identity.kem import kem_public

KEY = "key.pem"
REQUEST = "request.pem"
CERTIFICATE = "certificate.pem"
AUTHORITY = "ca.pem"
REVOKED = "revoked.pem"

ROLES = ("party", "user", "coordinator")
COORDINATOR = "coordinator"
COORDINATOR_HOST = "coordinator.woodlot"
"""The TLS name that every client asks for; no certificate but a coordinator's has it."""

OWNER_ONLY = 0o600
PUBLIC = 0o644
MAX_FILE = 16 * 2**20
"""Bytes of a file; room for the record of some 10,000 certificates, or a list of 200,000 revocations."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_URI = re.compile(r"woodlot://([a-z]+)/([A-Za-z0-9_-]+)")
_UNREADABLE = (
    ValueError,
    TypeError,
    IndexError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.ExtensionNotFound,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
_T = TypeVar("_T")


# --- what they say ---


@dataclass(frozen=True)
class Subject:
    """Role and name of a member of the federation, checked when built.

    Attributes
    ----------
    role : {"party", "user", "coordinator"}
        What the member may do.
    name : str
        Letters, digits, ``-`` and ``_``, at most 63; ``coordinator`` is kept for that role.

    """

    role: str
    name: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise IdentityError(f"there is no role {self.role!r}; the roles are {', '.join(ROLES)}")
        check_name(self.name)
        if self.name.lower() == COORDINATOR and self.role != COORDINATOR:
            raise IdentityError(f"a {self.role} cannot be named {self.name!r}; choose another name")

    def __str__(self) -> str:
        return f"{self.role} {self.name!r}"

    @property
    def uri(self) -> str:
        """Where a certificate says role and name."""
        return f"woodlot://{self.role}/{self.name}"

    @property
    def host(self) -> str:
        """The name under which TLS knows the owner."""
        return COORDINATOR_HOST if self.role == COORDINATOR else f"{self.name}.{self.role}.woodlot"

    @property
    def usages(self) -> list[x509.ObjectIdentifier]:
        """What TLS lets the owner be; only a coordinator is ever a server."""
        if self.role == COORDINATOR:
            return [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        return [ExtendedKeyUsageOID.CLIENT_AUTH]


def check_name(name: str) -> None:
    """Raise an `IdentityError` unless ``name`` can be the name of a member or of a federation."""
    if not _NAME.fullmatch(name):
        raise IdentityError(
            f"{name!r} cannot be a name; use letters, digits, - and _, at most 63, a letter or digit first"
        )


@dataclass(frozen=True)
class CertificateRequest:
    """A request for a certificate: all that the authority takes from it.

    Attributes
    ----------
    subject : Subject
        Role and name that are asked for.
    key : EllipticCurvePublicKey
        The key to be certified; who made the request has proved to hold its other half.
    kem : bytes
        The ML-KEM-768 key that orders are sealed with besides; see `kem`.

    """

    subject: Subject
    key: ec.EllipticCurvePublicKey
    kem: bytes

    @property
    def fingerprint(self) -> str:
        """The key's fingerprint, to be compared over another channel before signing."""
        return fingerprint(self.key)

    @classmethod
    def parse(cls, pem: bytes, what: str) -> CertificateRequest:
        """Read a request and check that it is signed by the key that it names."""
        request = readable(what, lambda: x509.load_pem_x509_csr(pem))
        key = _p256(what, readable(what, request.public_key))
        if not readable(what, lambda: request.is_signature_valid):
            raise IdentityError(f"{what} is not signed by its own key; ask for it again")
        return cls(subject_of(request, what), key, kem_public(request, what))


@dataclass(frozen=True)
class Revocations:
    """The authority's list of revoked certificates, found good.

    Attributes
    ----------
    number : int
        Grows with every list; of two lists the higher one counts.
    expires : datetime
        Until when the authority says that it is the latest, UTC.
    serials : frozenset of int
        Serial numbers of the revoked certificates.
    pem : bytes
        The list itself.

    """

    number: int
    expires: datetime
    serials: frozenset[int] = field(repr=False)
    pem: bytes = field(repr=False)

    @classmethod
    def parse(cls, pem: bytes, authority: x509.Certificate, what: str) -> Revocations:
        """Read a list and check that the authority has signed it."""
        crl = readable(what, lambda: x509.load_pem_x509_crl(pem))
        key = public_key(authority)
        if not readable(what, lambda: crl.issuer == authority.subject and crl.is_signature_valid(key)):
            raise IdentityError(f"{what} is not signed by the federation's authority")
        number = readable(what, lambda: crl.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number)
        expires = readable(what, lambda: crl.next_update_utc)
        if expires is None:
            raise IdentityError(f"{what} does not say until when it is good; ask the operator for a new one")
        serials = readable(what, lambda: frozenset(entry.serial_number for entry in crl))
        # encoded again: what stands around the list in a bundle is not signed and does not go on
        return cls(number, expires, serials, crl.public_bytes(Encoding.PEM))


def subject_of(document: x509.Certificate | x509.CertificateSigningRequest, what: str) -> Subject:
    """Return role and name of a certificate or request; raise unless it names exactly one of each."""
    names = readable(what, lambda: document.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    subject = readable(what, lambda: document.subject)
    common = [attribute.value for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    match = _URI.fullmatch(uris[0]) if len(uris) == 1 else None
    if match is None or common != [match[2]]:
        raise IdentityError(f"{what} does not say a role and name as Woodlot's do; make it with woodlot identity")
    return Subject(match[1], match[2])


def fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """SHA-256 of the public key, 64 hex digits: the same for a key, its request and all its certificates."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


# --- reading ---


def parse_certificate(pem: bytes, what: str) -> x509.Certificate:
    """Read the first certificate of a PEM file."""
    return parse_certificates(pem, what)[0]


def parse_certificates(pem: bytes, what: str) -> list[x509.Certificate]:
    """Read all certificates of a PEM file, at least one."""
    certificates = readable(what, lambda: x509.load_pem_x509_certificates(pem))
    for certificate in certificates:
        _p256(what, readable(what, certificate.public_key))
        readable(what, lambda c=certificate: _fields(c))  # type: ignore[misc]
    return certificates


def _fields(certificate: x509.Certificate) -> tuple[object, ...]:
    """All that is read of a certificate beside its extensions: the library reads it only now."""
    valid = (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
    return certificate.issuer, certificate.subject, certificate.serial_number, *valid


def parse_authority(pem: bytes, what: str) -> x509.Certificate:
    """Read an authority's own certificate."""
    certificate = parse_certificate(pem, what)
    if not is_authority(certificate, what):
        raise IdentityError(f"{what} is no authority's certificate; use the {AUTHORITY} of woodlot identity init")
    check_issued(certificate, certificate, what)
    readable(what, lambda: federation_of(certificate))
    return certificate


def is_authority(certificate: x509.Certificate, what: str) -> bool:
    """Tell an authority's certificate from a member's."""
    return readable(what, lambda: certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)


def federation_of(authority: x509.Certificate) -> str:
    """Return the name of the federation whose authority this is."""
    return str(authority.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value)


def check_issued(certificate: x509.Certificate, authority: x509.Certificate, what: str) -> None:
    """Raise unless ``authority`` has signed ``certificate``."""
    try:
        readable(what, lambda: certificate.verify_directly_issued_by(authority))
    except InvalidSignature:
        raise IdentityError(f"{what} is not signed by this federation's authority") from None
    except IdentityError:
        raise IdentityError(f"{what} is of another federation's authority") from None


def check_time(certificate: x509.Certificate, what: str) -> None:
    """Raise unless the certificate is valid now."""
    own = certificate.issuer == certificate.subject
    remedy = "the federation needs a new authority" if own else "have its request signed again"
    now = datetime.now(UTC)
    if now > certificate.not_valid_after_utc:
        raise IdentityError(f"{what} has expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC; {remedy}")
    if now < certificate.not_valid_before_utc:
        raise IdentityError(
            f"{what} is valid only from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC; check the clock"
        )


def is_fresh(revocations: Revocations | None) -> bool:
    """Whether there is a list of revocations, and it is good now."""
    return revocations is not None and datetime.now(UTC) <= revocations.expires


def check_fresh(revocations: Revocations | None) -> None:
    """Raise unless there is a list of revocations that is good now: without, somebody revoked would be let in."""
    if revocations is None:
        raise IdentityError(
            "no list of revoked certificates found, so revoked members cannot be recognised; get revoked.pem from the "
            "federation's operator and run: woodlot identity revocations FOLDER --import revoked.pem"
        )
    if not is_fresh(revocations):
        raise IdentityError(
            f"the list of revoked certificates here (number {revocations.number}) was good until "
            f"{revocations.expires:%Y-%m-%d %H:%M} UTC, and later revocations are not in it. The operator renews it: "
            "woodlot identity revocations AUTHORITY --renew. It arrives through the coordinator, the setting "
            "revocations, or: woodlot identity revocations FOLDER --import revoked.pem"
        )


def public_key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """Return the key that a certificate is about."""
    return _p256("certificate", certificate.public_key())


def readable(what: str, read: Callable[[], _T]) -> _T:
    """Run ``read``; whatever the bytes are, nothing but an `IdentityError` comes out of it."""
    try:
        return read()
    except _UNREADABLE as error:
        raise IdentityError(f"{what} cannot be read: {error}") from None


def _p256(what: str, key: object) -> ec.EllipticCurvePublicKey:
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise IdentityError(f"{what} has a key that is not on the curve P-256; make it with woodlot identity request")
    return key


# --- files ---


def read_file(path: Path, remedy: str) -> bytes:
    """Read a file of the kind that this module knows; a missing one names the remedy."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
    except FileNotFoundError:
        raise IdentityError(f"{path} is missing; {remedy}") from None
    except OSError as error:
        raise IdentityError(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE:
        raise IdentityError(f"{path} is larger than {MAX_FILE:,} bytes and cannot be a certificate file")
    return data


def read_key(path: Path, remedy: str) -> ec.EllipticCurvePrivateKey:
    """Read a private key, unless others than its owner may read the file."""
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise IdentityError(f"{path} can be used by others (mode {mode:04o}); run: chmod 600 {path}")
            pem = file.read(MAX_FILE)
    except FileNotFoundError:
        raise IdentityError(f"{path} is missing; {remedy}") from None
    except OSError as error:
        raise IdentityError(f"{path} cannot be read: {error.strerror}") from None
    try:
        key = load_pem_private_key(pem, password=None)
    except _UNREADABLE:
        # without the library's words: no part of a key belongs in a message
        raise IdentityError(f"{path} is not a private key without a passphrase") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise IdentityError(f"{path} is not a key on the curve P-256; make one with woodlot identity request")
    _p256(str(path), key.public_key())
    return key


def key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the key as it is in its file."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def make_folder(folder: Path) -> None:
    """Make a folder, and those above that are missing, for their owner only; those that are there stay as they are."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        for one in reversed(missing or [folder]):
            one.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise IdentityError(f"{folder} cannot be made a folder: {error.strerror}") from None


def write_file(path: Path, data: bytes, mode: int = PUBLIC) -> None:
    """Write a file beside, then move it into place: a reader finds the old one or the new one, nothing between."""
    try:
        handle, staging = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
        try:
            with open(handle, "wb") as file:
                os.chmod(staging, mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(staging, path)
        except BaseException:
            Path(staging).unlink(missing_ok=True)
            raise
        if os.name == "posix":  # the new name itself must outlast a power cut
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except OSError as error:
        raise IdentityError(f"{path} cannot be written: {error.strerror}") from None
