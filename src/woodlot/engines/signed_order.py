"""A signed order as a file: what an engine is given to run."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Self

import msgspec

from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import ConfigError, DataError, IdentityError
from woodlot.identity.certificates import REVOKED
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs.order_seal import common_fields, read_order, sign_order
from woodlot.jobs.orders import Order, Part


class SignedOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An order, its user's signature, and the user's certificate."""

    order: bytes
    signature: bytes
    certificate: bytes

    @classmethod
    def by(cls, identity: Identity, order: Order) -> Self:
        """Sign an order."""
        data, signature = sign_order(order, identity)
        return cls(data, signature, identity.certificate)

    @property
    def content(self) -> Order:
        """The order itself, unchecked: whoever carries it out checks the signature."""
        return read_order(self.order)

    def encode(self) -> str:
        """The whole as one line of text; there is nothing secret in it."""
        return base64.b64encode(msgspec.msgpack.encode(self)).decode()

    @classmethod
    def decode(cls, text: str) -> Self:
        """Read what `encode` has written, or raise ConfigError."""
        try:
            return from_msgpack(base64.b64decode(text.strip(), validate=True), cls)
        except (ValueError, msgspec.MsgspecError):
            raise ConfigError("this is no signed order; make one with: woodlot order job.toml") from None


class OrderDesk:
    """A user who makes orders where no coordinator can be asked: the parties' certificates are in files.

    Parameters
    ----------
    identity : Path
        Folder of the user's key and certificate.
    certificates : Path
        Folder with the certificates of every party and of the coordinator, in files that end with ``.pem``.

    Raises
    ------
    IdentityError
        If one of them is not of this federation, or was revoked.

    """

    def __init__(self, identity: Path, certificates: Path) -> None:
        self.identity = Identity.load(identity)
        if self.identity.role != "user":
            raise IdentityError(f"{identity} is the identity of a {self.identity.role}; a user needs its own")
        revoked = identity / REVOKED
        trust = Trust(self.identity.authority, revoked if revoked.exists() else None)
        if not certificates.is_dir():
            raise ConfigError(
                f"{certificates} is not a folder; put the certificate.pem of every party and of the coordinator into "
                "one"
            )
        self._certificates: dict[str, bytes] = {}
        self._coordinator = ""
        for path in sorted(certificates.glob("*.pem")):
            pem = path.read_bytes()
            peer = trust.admit(pem)
            if peer.role == "coordinator":
                self._coordinator = peer.name
            else:
                self._certificates[trust.admit(pem, role="party").name] = pem
        if not self._coordinator:
            raise ConfigError(f"{certificates} has no coordinator's certificate.pem; put it there, with the parties'")

    def parties(self) -> dict[str, None]:
        """The parties whose certificates are there; whether they are connected is not known."""
        return dict.fromkeys(self._certificates)

    def order_fields(self, parts: dict[str, Part]) -> dict[str, object]:
        """The fields of an order for these parties; each part is sealed to the party's certificate."""
        strangers = [party for party in parts if party not in self._certificates]
        if strangers:
            raise DataError(
                f"there is no certificate of {', '.join(strangers)}; there are those of {sorted(self._certificates)}"
            )
        return common_fields(
            parts, self._certificates, federation=self.identity.federation, coordinator=self._coordinator
        )

    def close(self) -> None:
        """Nothing is open."""
