"""A small authority for tests: it signs what it is asked to sign."""

from __future__ import annotations

import datetime as dt

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from woodlot.exceptions import IdentityError
from woodlot.runtime.peers import Credentials, Peer

SERVER_NAME = "coordinator.woodlot"


class Authority:
    """Signs certificates with the role and name in a URI, and tells what it has signed."""

    def __init__(self, name: str = "test authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(self._name, self._name, self._key.public_key())
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.certificate = builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        self.revoked: set[str] = set()

    def issue(self, role: str, name: str) -> Credentials:
        """A key and a certificate; only a coordinator's has the name that clients insist on."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(f"woodlot://{role}/{name}")]
        # Both uses for all, so that only the name keeps a party from posing as the coordinator, and only the role
        # keeps the coordinator from posing as a party.
        usage = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        if role == "coordinator":
            names.append(x509.DNSName(SERVER_NAME))
        builder = _builder(subject, self._name, key.public_key())
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
        return Credentials(
            key=key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
            certificate=builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
            authority=self.certificate,
        )

    def admit(self, certificate: bytes) -> Peer:
        """Whose certificate this is; a revoked one is refused."""
        loaded = x509.load_pem_x509_certificate(certificate)
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        role, _, name = names.get_values_for_type(x509.UniformResourceIdentifier)[0][len("woodlot://") :].partition("/")
        if name in self.revoked:
            raise IdentityError(f"the certificate of {name!r} is revoked")
        return Peer(name=name, role=role, serial=loaded.serial_number, certificate=certificate)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=1))
    )
