"""Who is at the other end of a connection, and what this side shows of itself."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Peer:
    """The owner of a certificate that was found good.

    Attributes
    ----------
    name : str
        The name in the certificate.
    role : str
        The role in the certificate: ``"coordinator"``, ``"party"`` or ``"user"``.
    serial : int
        The certificate's serial number, by which it is revoked.
    certificate : bytes
        The certificate itself, PEM.
    version : int
        The version of the protocol that was agreed on with it; see `woodlot.runtime.protocol_versions`.

    """

    name: str
    role: str
    serial: int
    certificate: bytes = field(repr=False)
    version: int = 1


@dataclass(frozen=True)
class Credentials:
    """What one side needs to prove itself and to check the other, all PEM.

    Attributes
    ----------
    key : bytes
        The private key. It never leaves the process and is not part of the ``repr``.
    certificate : bytes
        The certificate of that key, signed by the federation's authority.
    authority : bytes
        The authority's certificate, against which the other side is checked.

    """

    key: bytes = field(repr=False)
    certificate: bytes
    authority: bytes
