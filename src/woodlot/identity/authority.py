"""The federation's authority: what its operator signs and revokes.

::

    authority/
      ca-key.pem      for the owner only
      ca.pem          every member has it
      revoked.pem     the list of revoked certificates, signed, numbered, and good for some days; goes to the
                      coordinator when it changes, and before it ends
      issued.jsonl    one line per certificate that was signed
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from woodlot.exceptions import IdentityError
from woodlot.identity import certificates as files
from woodlot.identity.certificates import CertificateRequest, Revocations, Subject, fingerprint, public_key
from woodlot.identity.identity import to_sign
from woodlot.identity.kem import kem_extension

AUTHORITY_KEY = "ca-key.pem"
ISSUED = "issued.jsonl"
LIST_DAYS = 7
"""How long a list of revocations is good, unless the operator says otherwise."""

SKEW = timedelta(minutes=5)
"""How much the clock of a member may be behind the operator's."""


@dataclass(frozen=True)
class Issued:
    """A certificate that the authority has signed.

    Attributes
    ----------
    subject : Subject
        Role and name.
    fingerprint : str
        SHA-256 of its key.
    serial : int
        By which it is revoked.
    expires : datetime
        Until when it is valid, UTC.
    state : {"valid", "expired", "revoked", "superseded"}
        Whether its owner is let in now, or why not. Superseded is revoked too, in favour of another certificate.

    """

    subject: Subject
    fingerprint: str
    serial: int
    expires: datetime
    state: str


@dataclass(frozen=True, eq=False)
class Authority:
    """The authority in a folder; see `Authority.create` and `Authority.open`.

    Attributes
    ----------
    folder : Path
        Where it keeps its files.
    certificate : x509.Certificate
        Its own certificate.

    """

    folder: Path
    certificate: x509.Certificate = field(repr=False)
    _key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(
        cls, folder: str | os.PathLike[str], federation: str, *, days: int, list_days: int = LIST_DAYS
    ) -> Authority:
        """Make the authority of a new federation.

        Parameters
        ----------
        folder : path
            Must not hold anything yet. It appears with all its files at once.
        federation : str
            The federation's name.
        days : int
            How long the authority is valid; no certificate outlasts it.
        list_days : int, default=7
            How long a list of revocations is good; members refuse orders once theirs has ended.

        """
        root = Path(folder)
        files.check_name(federation)
        if root.exists() and (not root.is_dir() or any(root.iterdir())):
            raise IdentityError(f"{root} is not an empty folder; name a new one for the authority")
        key = ec.generate_private_key(ec.SECP256R1())
        # with an organisation, so that it is never the name of a member
        organisation = x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Woodlot federation")
        name = x509.Name([organisation, x509.NameAttribute(NameOID.COMMON_NAME, federation)])
        starts, ends = _validity(days)
        certificate = (
            _builder(name, name, key.public_key(), key.public_key(), starts, ends)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(authority=True), critical=True)
            .sign(key, SHA256())
        )
        files.make_folder(root.parent)
        try:
            staging = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
        except OSError as error:
            raise IdentityError(f"{root} cannot be made: {error.strerror}") from None
        try:
            new = cls(staging, certificate, key)
            files.write_file(staging / AUTHORITY_KEY, files.key_bytes(key), files.OWNER_ONLY)
            files.write_file(staging / files.AUTHORITY, certificate.public_bytes(Encoding.PEM))
            files.write_file(staging / ISSUED, b"", files.OWNER_ONLY)
            new._publish([], 1, _days(list_days))
            staging.rename(root)
        except OSError as error:
            raise IdentityError(f"{root} cannot be made: {error.strerror}") from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        return cls(root, certificate, key)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Authority:
        """Open the authority in a folder that `Authority.create` has made."""
        root, remedy = Path(folder), "make an authority with: woodlot identity init AUTHORITY --federation NAME"
        key = files.read_key(root / AUTHORITY_KEY, remedy)
        path = root / files.AUTHORITY
        certificate = files.parse_authority(files.read_file(path, remedy), str(path))
        if public_key(certificate) != key.public_key():
            raise IdentityError(f"{root / AUTHORITY_KEY} is not the key of {path}; restore both from one backup")
        return cls(root, certificate, key)

    @property
    def federation(self) -> str:
        """The federation's name."""
        return files.federation_of(self.certificate)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the authority's key, which members compare when they install."""
        return fingerprint(public_key(self.certificate))

    def revocations(self) -> Revocations:
        """Return the list of revocations."""
        path = self.folder / files.REVOKED
        pem = files.read_file(path, "restore it from a backup, or the revoked would be let in again")
        return Revocations.parse(pem, self.certificate, str(path))

    def issued(self) -> list[Issued]:
        """Return all certificates that were signed here, oldest first."""
        path, revoked = self.folder / ISSUED, self._revoked()
        lines = files.read_file(path, "restore it from a backup, or names could be given twice").splitlines()
        return [self._issued(line, revoked, f"{path}, line {number}") for number, line in enumerate(lines, 1)]

    def rivals(self, request: CertificateRequest, *, replace: bool = False) -> list[Issued]:
        """Return the valid certificates that cannot stand beside the one asked for.

        A name has one key and one role, a key has one name; a certificate of the same key, name and role is no rival,
        for signing it again renews it. A key whose certificate was revoked is never signed again: it may be stolen.

        Parameters
        ----------
        request : CertificateRequest
            What is asked for.
        replace : bool, default=False
            Without it, a rival is an error.

        """
        own, issued = (request.subject, request.fingerprint), self.issued()
        if any(other.state == "revoked" and other.fingerprint == request.fingerprint for other in issued):
            raise IdentityError(f"the key of {request.subject} is revoked; ask for a request with a new key")
        found = [
            other
            for other in issued
            if other.state == "valid"
            and (other.subject, other.fingerprint) != own
            # names that differ in case only are the same to a reader and to some file systems
            and (other.subject.name.lower() == request.subject.name.lower() or other.fingerprint == request.fingerprint)
        ]
        if found and not replace:
            other = found[0]
            same = "this key" if other.fingerprint == request.fingerprint else f"the name {request.subject.name!r}"
            raise IdentityError(
                f"{same} is in use by {other.subject} (serial {other.serial:x}, until {other.expires:%Y-%m-%d}); "
                "ask for another name with a new key, or sign with --replace to revoke that certificate"
            )
        return found

    def sign(self, request: CertificateRequest, *, days: int, replace: bool = False) -> bytes:
        """Sign a request; the caller has made sure that it comes from who it says.

        Parameters
        ----------
        request : CertificateRequest
            Of it, only the key, the role and the name get into the certificate.
        days : int
            How long the certificate is valid.
        replace : bool, default=False
            Whether to revoke valid certificates that use the same name or key; else they are an error.

        Returns
        -------
        bytes
            A bundle for `woodlot.identity.identity.install`: the certificate, the authority's, and the list of
            revocations, PEM.

        """
        files.check_time(self.certificate, "the authority's own certificate")
        starts, ends = _validity(days)
        if ends > self.certificate.not_valid_after_utc:
            left = (self.certificate.not_valid_after_utc - datetime.now(UTC)).days
            raise IdentityError(f"the authority itself ends in {left} days; sign for no more days than that")
        with self._locked():
            rivals = self.rivals(request, replace=replace)
            certificate = self._certify(request, starts, ends)
            # recorded before anybody can have it, and valid before what it replaces is not
            self._record(certificate)
            if rivals:
                self._revoke(rivals, x509.ReasonFlags.superseded)
            parts = [certificate.public_bytes(Encoding.PEM), self.certificate.public_bytes(Encoding.PEM)]
            return b"".join([*parts, self.revocations().pem])

    def sign_data(self, purpose: str, data: bytes) -> bytes:
        """Sign bytes for one purpose with the authority's key; what is signed is never a certificate or a list.

        The bytes under the signature begin with words, as `to_sign` writes them, and certificates and lists do not.
        """
        return self._key.sign(to_sign(purpose, data), ec.ECDSA(SHA256(), deterministic_signing=True))

    def revoke(self, name_or_serial: str) -> list[Issued]:
        """Revoke all certificates of a name, or the one with a serial number.

        Parameters
        ----------
        name_or_serial : str
            A name, or a serial number in hex digits.

        Returns
        -------
        list of Issued
            What was revoked now; empty where all of it was revoked before.

        """
        with self._locked():
            issued = self.issued()
            found = [one for one in issued if one.subject.name == name_or_serial] or [
                one for one in issued if f"{one.serial:x}" == name_or_serial.lower()
            ]
            if not found:
                raise IdentityError(
                    f"{name_or_serial!r} is neither a name nor a serial number of a certificate signed here; "
                    f"woodlot identity show {self.folder} lists them"
                )
            fresh = [one for one in found if one.state in ("valid", "expired")]
            if fresh:
                self._revoke(fresh, None)
            return fresh

    def renew_revocations(self, *, days: int | None = None) -> Revocations:
        """Sign the list of revocations again: the same entries, good from now on.

        Parameters
        ----------
        days : int, optional
            How long this list and later ones are good; as long as the one before if omitted.

        """
        with self._locked():
            previous = self.revocations()
            validity = self._list_validity() if days is None else _days(days)
            self._publish(list(x509.load_pem_x509_crl(previous.pem)), previous.number + 1, validity)
            return self.revocations()

    def _list_validity(self) -> timedelta:
        """How long lists are good here: as long as the present one is."""
        present = self.revocations()
        return present.expires - x509.load_pem_x509_crl(present.pem).last_update_utc - SKEW

    def _certify(self, request: CertificateRequest, starts: datetime, ends: datetime) -> x509.Certificate:
        subject = request.subject
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject.name)])
        names = [x509.UniformResourceIdentifier(subject.uri), x509.DNSName(subject.host)]
        return (
            _builder(name, self.certificate.subject, request.key, self._key.public_key(), starts, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(subject.usages), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(kem_extension(request.kem), critical=False)
            .sign(self._key, SHA256())
        )

    def _record(self, certificate: x509.Certificate) -> None:
        subject = files.subject_of(certificate, "the new certificate")
        line = {
            "role": subject.role,
            "name": subject.name,
            "serial": f"{certificate.serial_number:x}",
            "fingerprint": fingerprint(public_key(certificate)),
            "not_after": certificate.not_valid_after_utc.isoformat(),
            "certificate": certificate.public_bytes(Encoding.PEM).decode(),
        }
        path = self.folder / ISSUED
        known = files.read_file(path, "restore it from a backup")
        files.write_file(path, known + json.dumps(line).encode() + b"\n", files.OWNER_ONLY)

    def _revoked(self) -> dict[int, str]:
        """State of every certificate on the list, by serial number."""
        superseded = x509.CRLReason(x509.ReasonFlags.superseded)
        return {
            entry.serial_number: "superseded" if any(e.value == superseded for e in entry.extensions) else "revoked"
            for entry in x509.load_pem_x509_crl(self.revocations().pem)
        }

    def _issued(self, line: bytes, revoked: dict[int, str], what: str) -> Issued:
        """Read a record; of the line only the certificate counts, for that is signed."""
        try:
            pem = json.loads(line)["certificate"].encode()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise IdentityError(f"{what} is not a record of a certificate; restore it from a backup") from None
        certificate = files.parse_certificate(pem, what)
        files.check_issued(certificate, self.certificate, what)
        expired = datetime.now(UTC) > certificate.not_valid_after_utc
        return Issued(
            subject=files.subject_of(certificate, what),
            fingerprint=fingerprint(public_key(certificate)),
            serial=certificate.serial_number,
            expires=certificate.not_valid_after_utc,
            state=revoked.get(certificate.serial_number, "expired" if expired else "valid"),
        )

    def _revoke(self, fresh: Sequence[Issued], reason: x509.ReasonFlags | None) -> None:
        previous, now = self.revocations(), datetime.now(UTC)
        entries = list(x509.load_pem_x509_crl(previous.pem))
        for one in fresh:
            entry = x509.RevokedCertificateBuilder().serial_number(one.serial).revocation_date(now)
            if reason is not None:
                entry = entry.add_extension(x509.CRLReason(reason), critical=False)
            entries.append(entry.build())
        self._publish(entries, previous.number + 1, self._list_validity())

    def _publish(self, entries: Sequence[x509.RevokedCertificate], number: int, validity: timedelta) -> None:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.certificate.subject)
            .last_update(now - SKEW)
            .next_update(now + validity)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .add_extension(x509.CRLNumber(number), critical=False)
        )
        for entry in entries:
            builder = builder.add_revoked_certificate(entry)
        crl = builder.sign(self._key, SHA256())
        files.write_file(self.folder / files.REVOKED, crl.public_bytes(Encoding.PEM))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One change at a time: two terminals must not give one name twice, or lose a revocation."""
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)


def _days(days: int) -> timedelta:
    """How long a list is good that ends after some days."""
    starts, ends = _validity(days)
    return ends - starts - SKEW


def _validity(days: int) -> tuple[datetime, datetime]:
    if days < 1:
        raise IdentityError(f"validity must be at least 1 day, not {days}")
    now = datetime.now(UTC)
    try:
        return now - SKEW, now + timedelta(days=days)
    except OverflowError:
        raise IdentityError(f"{days} days is more than a certificate can say; give fewer") from None


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    starts: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(starts)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
