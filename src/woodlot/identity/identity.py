"""Who an organisation is, and whom it lets in.

::

    bank/
      key.pem            made here, for the owner only, never sent
      request.pem        goes to the federation's operator; serves again when the certificate is renewed
      certificate.pem    comes back: role and name, signed by the authority
      ca.pem             comes with it: the authority's own certificate
      revoked.pem        comes with it: the authority's list of revoked certificates, replaced when there is a newer one

A list of revocations is good for some days. Its number tells an old list from a new one, its end date whether there
may be a newer one that somebody withholds: a member whose list has ended takes no orders.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from woodlot.exceptions import IdentityError
from woodlot.identity import certificates as files
from woodlot.identity.certificates import CertificateRequest, Revocations, Subject, fingerprint, public_key
from woodlot.identity.kem import kem_extension, kem_key, kem_public
from woodlot.identity.revocation_source import RevocationSource
from woodlot.runtime.peers import Credentials, Peer

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Identity:
    """A key and its certificate, found to belong together and to be valid now.

    Attributes
    ----------
    name, role : str
        As the certificate has them.
    fingerprint : str
        SHA-256 of the public key, 64 hex digits.
    serial : int
        The certificate's serial number.
    expires : datetime
        Until when the certificate is valid, UTC.
    key, certificate, authority : bytes
        PEM; the key is not part of the ``repr``.

    """

    name: str
    role: str
    fingerprint: str
    serial: int
    expires: datetime
    key: bytes = field(repr=False)
    certificate: bytes = field(repr=False)
    authority: bytes = field(repr=False)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Identity:
        """Read the identity in a folder.

        Parameters
        ----------
        folder : path
            With ``key.pem``, ``certificate.pem`` and ``ca.pem``.

        Raises
        ------
        IdentityError
            Where a file is missing or unreadable, the key can be read by others than its owner, the certificate is
            not of this key, not signed by this authority, or not valid now.

        """
        root = Path(folder)
        if not root.is_dir():
            raise IdentityError(f"{root} is not a folder; make an identity with: woodlot identity request {root}")
        key = files.read_key(root / files.KEY, f"make one with: woodlot identity request {root}")
        pem = files.read_file(
            root / files.CERTIFICATE,
            f"have the operator sign {root / files.REQUEST}, then run: woodlot identity install {root} CERTIFICATE",
        )
        authority_pem = files.read_file(root / files.AUTHORITY, "it comes from the federation's operator")
        authority = files.parse_authority(authority_pem, str(root / files.AUTHORITY))
        return _identity(key, files.parse_certificate(pem, str(root / files.CERTIFICATE)), authority, root)

    @property
    def federation(self) -> str:
        """The federation that this identity belongs to: SHA-256 of its authority's public key, 64 hex digits."""
        return fingerprint(public_key(files.parse_authority(self.authority, "the authority's certificate")))

    @property
    def credentials(self) -> Credentials:
        """What a connection needs of this identity."""
        return Credentials(key=self.key, certificate=self.certificate, authority=self.authority)

    def sign(self, data: bytes, purpose: str) -> bytes:
        """Sign ``data`` with this identity's key (ECDSA on P-256, SHA-256).

        Parameters
        ----------
        data : bytes
            What is signed.
        purpose : str
            What the signature is for, such as ``"receipt"``: it is not valid for any other purpose.

        Returns
        -------
        bytes
            The signature; `Trust.verify` checks it.

        """
        key = load_pem_private_key(self.key, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise IdentityError(f"the key of {self.role} {self.name!r} cannot sign; load the identity from its folder")
        return key.sign(to_sign(purpose, data), ec.ECDSA(SHA256(), deterministic_signing=True))


def request(folder: str | os.PathLike[str], role: str, name: str) -> CertificateRequest:
    """Make a key and a request for its certificate.

    Parameters
    ----------
    folder : path
        Made where it is missing; must not hold a key yet.
    role : {"party", "user", "coordinator"}
        What the member wants to be.
    name : str
        What it wants to be called.

    Returns
    -------
    CertificateRequest
        What is in ``request.pem``, the file for the operator.

    """
    subject, root = Subject(role, name), Path(folder)
    if (root / files.KEY).exists():
        raise IdentityError(
            f"{root} holds a key already; to renew its certificate send {root / files.REQUEST} again, "
            "for another identity name another folder"
        )
    files.make_folder(root)
    key = ec.generate_private_key(ec.SECP256R1())
    kem = kem_key(key).public_key().public_bytes_raw()
    document = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(subject.uri)]), critical=True)
        .add_extension(kem_extension(kem), critical=False)
        .sign(key, SHA256())
    )
    # the key last: it marks the folder as taken, and then the request is there
    files.write_file(root / files.REQUEST, document.public_bytes(Encoding.PEM))
    files.write_file(root / files.KEY, files.key_bytes(key), files.OWNER_ONLY)
    return CertificateRequest(subject, key.public_key(), kem)


def install(
    folder: str | os.PathLike[str],
    certificate: str | os.PathLike[str],
    authority: str | os.PathLike[str] | None = None,
) -> Identity:
    """Put what the operator sent into the folder of the key, after checking that all of it belongs together.

    Parameters
    ----------
    folder : path
        With the key that the certificate is for.
    certificate : path
        What ``woodlot identity sign`` wrote: the certificate, usually with the authority's and the list of
        revocations in the same file.
    authority : path, optional
        The authority's certificate, where it is not in the same file.

    Returns
    -------
    Identity
        As `Identity.load` would read it now.

    """
    root, source = Path(folder), Path(certificate)
    key = files.read_key(root / files.KEY, f"make one with: woodlot identity request {root}")
    pem = files.read_file(source, "name the file that the operator sent")
    own, *others = files.parse_certificates(pem, str(source))
    issuer = _issuer(others, source, None if authority is None else Path(authority))
    known = root / files.AUTHORITY
    if known.exists() and files.parse_authority(files.read_file(known, ""), str(known)) != issuer:
        raise IdentityError(f"{known} is another authority's; remove it if the federation has a new authority")
    identity = _identity(key, own, issuer, source)
    if (root / files.REQUEST).exists():
        asked = CertificateRequest.parse(files.read_file(root / files.REQUEST, ""), str(root / files.REQUEST)).subject
        if asked != Subject(identity.role, identity.name):
            raise IdentityError(f"{source} is for {identity.role} {identity.name!r}, but {asked} was asked for")
    trust, revoked = Trust(identity.authority, None), root / files.REVOKED
    if revoked.exists():
        trust.update(files.read_file(revoked, ""))
    if b"X509 CRL" in pem:
        trust.update(pem)
    trust.admit(identity.certificate)
    if trust.revocation_list():
        files.write_file(revoked, trust.revocation_list())
    files.write_file(known, identity.authority)
    files.write_file(root / files.CERTIFICATE, identity.certificate)
    return identity


_SHOWN = "the certificate"
_MOST_KNOWN = 1024
"""Certificates of members that are remembered, at most; then all are forgotten."""
_SETTLED_SECONDS = 2.0
"""A file that was changed more recently is read again: its time might not tell two changes apart."""


class _KnownMember(NamedTuple):
    """A certificate of the authority, and what it says."""

    certificate: x509.Certificate
    subject: Subject
    peer: Peer
    key: ec.EllipticCurvePublicKey


def _stamp_of(path: Path) -> tuple[int, ...]:
    """What changes when a file does; empty where it may not, or there is no file."""
    try:
        found = path.stat()
    except OSError:
        return ()
    now = time.time()
    if min(abs(now - found.st_mtime), abs(now - found.st_ctime)) < _SETTLED_SECONDS:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Trust:
    """Decides who is let in: members with a valid certificate of the authority that is not revoked.

    May be used by several threads at once.

    Parameters
    ----------
    authority_pem : bytes
        The authority's certificate.
    revocations : Path or None
        The list of revoked certificates; read again when it changes. Must be there where it is named. Without it
        only lists given to `update` count, and only as long as this object lives.
    may_be_missing : bool
        Whether the file may not be there yet: it is written when a list is given to `update`.
    source : RevocationSource, optional
        Where newer lists are looked for, besides.

    """

    def __init__(
        self,
        authority_pem: bytes,
        revocations: Path | None,
        *,
        may_be_missing: bool = False,
        source: RevocationSource | None = None,
    ) -> None:
        self._authority = files.parse_authority(authority_pem, "the authority's certificate")
        self._path = revocations
        self._may_be_missing = may_be_missing
        self._source = source
        self._offered: bytes | None = None  # what the source had when it was last asked
        self._lock = threading.Lock()
        self._current: Revocations | None = None
        self._in_file: bytes | None = None
        self._stamp: tuple[int, ...] = ()  # of the file when it was last read
        self._members: dict[bytes, _KnownMember] = {}
        with self._lock:
            self._read_again()

    @property
    def federation(self) -> str:
        """The federation whose members are let in; see `Identity.federation`."""
        return fingerprint(public_key(self._authority))

    def admit(self, certificate_pem: bytes, *, role: str | None = None) -> Peer:
        """Return whose certificate this is.

        Parameters
        ----------
        certificate_pem : bytes
            The certificate that the other side has shown and whose key TLS has found it to hold.
        role : {"party", "user", "coordinator"}, optional
            The role that is needed.

        Raises
        ------
        IdentityError
            Unless it is of this authority, valid now, not revoked, and of the role.

        """
        return self._check(certificate_pem, role)[0]

    def verify(
        self,
        certificate_pem: bytes,
        purpose: str,
        data: bytes,
        signature: bytes,
        *,
        role: str | None = None,
        again: bool = False,
    ) -> Peer:
        """Return who has signed ``data`` for this purpose; see `admit` and `Identity.sign`.

        With ``again``, what was found good before may be signed with a certificate that has expired since.
        """
        peer, key = self._check(certificate_pem, role, again)
        try:
            key.verify(signature, to_sign(purpose, data), ec.ECDSA(SHA256(), deterministic_signing=True))
        except InvalidSignature:
            raise IdentityError(f"the signature is not of {peer.role} {peer.name!r} for this {purpose}") from None
        return peer

    def update(self, crl_pem: bytes) -> bool:
        """Take a list of revocations that a peer relays, and store it.

        Parameters
        ----------
        crl_pem : bytes
            The list; whoever relays it, the authority's signature counts.

        Returns
        -------
        bool
            Whether it was newer than the one in use. An older one is no fault of the peer's and changes nothing.

        """
        with self._lock:
            self._read_again()
            return self._take(crl_pem, "the list of revocations")

    def _take(self, crl_pem: bytes, what: str) -> bool:
        offered = Revocations.parse(crl_pem, self._authority, what)
        previous, current = self._current, self._current
        if current is None or offered.number > current.number:
            # in use even if the disk is full: what is revoked must not come in meanwhile
            self._current = current = offered
        if self._path is not None and self._in_file != current.pem:
            files.write_file(self._path, current.pem)
            self._in_file = current.pem
        return current is not previous

    def check_fresh(self) -> None:
        """Raise unless there is a list of revocations that is good now."""
        with self._lock:
            self._read_again()
            files.check_fresh(self._current)

    def warn(self) -> None:
        """Log it where there is no list of revocations that is good now: orders will be refused."""
        try:
            self.check_fresh()
        except IdentityError as error:
            _log.warning("no orders are taken: %s", error)

    def revocation_list(self) -> bytes:
        """Return the list of revocations in use, PEM; empty where there is none."""
        with self._lock:
            self._read_again()
            return b"" if self._current is None else self._current.pem

    def list_in_use(self) -> Revocations | None:
        """Return the list of revocations in use, None where there is none; no address is asked for a newer one."""
        with self._lock:
            self._read_file()
            return self._current

    def _check(self, pem: bytes, role: str | None, again: bool = False) -> tuple[Peer, ec.EllipticCurvePublicKey]:
        known = self._known(pem)
        subject, serial = known.subject, known.peer.serial
        _check_times(known.certificate, self._authority, _SHOWN, at_any_time=again)
        with self._lock:
            self._read_again()
            revoked = self._current is not None and serial in self._current.serials
        if revoked:
            raise IdentityError(f"the certificate of {subject} (serial {serial:x}) is revoked")
        if role is not None and subject.role != role:
            raise IdentityError(f"the certificate is of {subject}; here a {role} is needed")
        return known.peer, known.key

    def _known(self, pem: bytes) -> _KnownMember:
        """What a certificate says, which never changes, and that the authority has signed it: found out once.

        Whether it is valid now, and not revoked, is looked at every time.
        """
        found = self._members.get(pem)
        if found is None:
            certificate = files.parse_certificate(pem, _SHOWN)
            subject = _issued_member(certificate, self._authority, _SHOWN)
            peer = Peer(
                name=subject.name,
                role=subject.role,
                serial=certificate.serial_number,
                certificate=certificate.public_bytes(Encoding.PEM),
            )
            found = _KnownMember(certificate, subject, peer, public_key(certificate))
            if len(self._members) >= _MOST_KNOWN:
                self._members.clear()
            self._members[bytes(pem)] = found
        return found

    def _read_again(self) -> None:
        """Take the list in the file, and that of the source, unless damaged or older than the one in use."""
        self._read_file()
        if self._source is None:
            return
        data = self._source.read(is_fresh=files.is_fresh(self._current))
        if data is None or data == self._offered:
            return
        self._offered = data
        try:
            self._take(data, f"the list of revocations at {self._source.where}")
        except IdentityError as error:
            _log.warning("a list of revocations is not taken: %s", error)

    def _read_file(self) -> None:
        if self._path is None or (self._may_be_missing and not self._path.exists()):
            return
        stamp = _stamp_of(self._path)
        if stamp and stamp == self._stamp:
            return
        data = files.read_file(self._path, "put the list of revocations from the federation's operator there")
        self._stamp = stamp
        if data == self._in_file:
            return
        try:
            found = Revocations.parse(data, self._authority, str(self._path))
            if self._current is not None and found.number < self._current.number:
                raise IdentityError(
                    f"{self._path} has number {found.number}, which is older than {self._current.number} seen before"
                )
        except IdentityError as error:
            if self._current is None:
                raise
            _log.warning("keeping the list of revocations number %d: %s", self._current.number, error)
        else:
            self._current = found
        self._in_file = data


def _identity(
    key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate, authority: x509.Certificate, where: Path
) -> Identity:
    what = f"the certificate in {where}"
    if public_key(certificate) != key.public_key():
        raise IdentityError(f"{what} is not of the key beside it; install the one signed for this request")
    subject = _member(certificate, authority, what)
    if kem_public(certificate, what) != kem_key(key).public_key().public_bytes_raw():
        raise IdentityError(f"{what} has another's ML-KEM-768 key; install the one signed for this request")
    return Identity(
        name=subject.name,
        role=subject.role,
        fingerprint=fingerprint(public_key(certificate)),
        serial=certificate.serial_number,
        expires=certificate.not_valid_after_utc,
        key=files.key_bytes(key),
        # encoded again: a bundle's other parts would be sent in every handshake
        certificate=certificate.public_bytes(Encoding.PEM),
        authority=authority.public_bytes(Encoding.PEM),
    )


def _member(
    certificate: x509.Certificate, authority: x509.Certificate, what: str, *, at_any_time: bool = False
) -> Subject:
    """Return whose certificate this is; raise unless it is a member's, of this authority, and valid now."""
    subject = _issued_member(certificate, authority, what)
    _check_times(certificate, authority, what, at_any_time=at_any_time)
    return subject


def _check_times(
    certificate: x509.Certificate, authority: x509.Certificate, what: str, *, at_any_time: bool = False
) -> None:
    """Raise unless authority and member have certificates that are valid now; those of members may be at any time."""
    files.check_time(authority, "the authority's own certificate")
    if not at_any_time:
        files.check_time(certificate, what)


def _issued_member(certificate: x509.Certificate, authority: x509.Certificate, what: str) -> Subject:
    """Return whose certificate this is; raise unless it is a member's, and of this authority."""
    files.check_issued(certificate, authority, what)
    if files.is_authority(certificate, what):
        raise IdentityError(f"{what} is the authority's own; a member needs one of its own")
    subject = files.subject_of(certificate, what)
    extensions = files.readable(what, lambda: certificate.extensions)
    hosts = extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    usages = files.readable(what, lambda: extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    if hosts != [subject.host] or list(usages) != subject.usages:
        raise IdentityError(f"{what} allows other uses than those of {subject}; have it signed again")
    return subject


def _issuer(others: list[x509.Certificate], source: Path, authority: Path | None) -> x509.Certificate:
    if authority is not None:
        return files.parse_authority(
            files.read_file(authority, "name the authority's certificate that the operator sent"), str(authority)
        )
    if not others:
        raise IdentityError(f"{source} holds no authority's certificate; name the {files.AUTHORITY} as well")
    return files.parse_authority(others[0].public_bytes(Encoding.PEM), str(source))


def to_sign(purpose: str, data: bytes) -> bytes:
    """The bytes under a signature, which count for one purpose only."""
    if not purpose or not purpose.isascii() or "\0" in purpose:
        raise IdentityError("the purpose of a signature must be plain text")
    return b"\0".join([b"woodlot signature 1", purpose.encode(), data])
