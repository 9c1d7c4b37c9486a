"""A federation for tests: its authority, its members, and certificates that are wrong as wished."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from woodlot.identity.authority import Authority
from woodlot.identity.certificates import Subject, key_bytes, write_file
from woodlot.identity.identity import Trust, install, request
from woodlot.identity.kem import kem_extension, kem_key

NOW = datetime.now(UTC)
DAY = timedelta(days=1)


@dataclass
class Federation:
    """An authority and the folders of its members."""

    root: Path
    authority: Authority

    @property
    def revoked(self) -> Path:
        return self.authority.folder / "revoked.pem"

    @property
    def ca(self) -> bytes:
        return (self.authority.folder / "ca.pem").read_bytes()

    def trust(self) -> Trust:
        return Trust(self.ca, self.revoked)

    def join(self, role: str, name: str, folder: str | None = None) -> Path:
        """Request, sign and install, as members and operator do."""
        member = self.root / (folder or name)
        bundle = self.root / f"{folder or name}.bundle"
        bundle.write_bytes(self.authority.sign(request(member, role, name), days=30))
        install(member, bundle)
        return member

    def forge(self, folder: Path, subject: Subject, **changes: Any) -> Path:
        """Make a member's folder whose certificate the authority's own key has signed, wrong as wished."""
        issuer = load_pem_private_key((self.authority.folder / "ca-key.pem").read_bytes(), None)
        assert isinstance(issuer, ec.EllipticCurvePrivateKey)
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = build_certificate(key, subject, issuer, self.authority.certificate.subject, **changes)
        return write_folder(folder, key, certificate, self.ca)


def build_certificate(
    key: ec.EllipticCurvePrivateKey,
    subject: Subject,
    issuer_key: ec.EllipticCurvePrivateKey,
    issuer: x509.Name,
    *,
    starts: datetime = NOW - DAY,
    ends: datetime = NOW + DAY,
    common: str | None = None,
    uris: list[str] | None = None,
    hosts: list[str] | None = None,
    usages: list[x509.ObjectIdentifier] | None = None,
    ca: bool = False,
) -> x509.Certificate:
    names = [
        *map(x509.UniformResourceIdentifier, [subject.uri] if uris is None else uris),
        *map(x509.DNSName, [subject.host] if hosts is None else hosts),
    ]
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common or subject.name)]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(subject.usages if usages is None else usages), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(kem_extension(kem_key(key).public_key().public_bytes_raw()), critical=False)
        .sign(issuer_key, SHA256())
    )


def write_folder(folder: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, ca: bytes) -> Path:
    folder.mkdir()
    write_file(folder / "key.pem", key_bytes(key), 0o600)
    write_file(folder / "certificate.pem", certificate.public_bytes(Encoding.PEM))
    write_file(folder / "ca.pem", ca)
    return folder


def self_signed(folder: Path, subject: Subject, ca: bytes) -> Path:
    """What an outsider can make who knows everything but the authority's key."""
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = x509.load_pem_x509_certificate(ca).subject
    return write_folder(folder, key, build_certificate(key, subject, key, issuer), ca)


def pem_of(folder: Path) -> bytes:
    return (folder / "certificate.pem").read_bytes()


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def build_request(
    key: Any = None, common: str = "bank", names: list[x509.GeneralName] | None = None, *more: x509.ExtensionType
) -> bytes:
    if names is None:
        names = [x509.UniformResourceIdentifier("woodlot://party/bank")]
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name(
            [x509.NameAttribute(NameOID.COMMON_NAME, common), x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Evil")]
        )
    )
    p256 = key if isinstance(key, ec.EllipticCurvePrivateKey) and key.key_size == 256 else None
    sealing = kem_extension(kem_key(p256 or ec.generate_private_key(ec.SECP256R1())).public_key().public_bytes_raw())
    for extension in [*([x509.SubjectAlternativeName(names)] if names else []), sealing, *more]:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(key or ec.generate_private_key(ec.SECP256R1()), SHA256()).public_bytes(Encoding.PEM)


def uri(*texts: str) -> list[x509.GeneralName]:
    return [x509.UniformResourceIdentifier(text) for text in texts]
