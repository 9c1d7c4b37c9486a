"""Keys that the parties agree on through a coordinator who must not have them.

Every party introduces itself with a fresh X25519 key, signed by its identity. The hash of all introductions is the
*transcript*. It enters every key, so parties whom the coordinator told different things have different keys and can
read nothing of each other::

    key of a message   HKDF-SHA256(X25519(own key, peer's key), salt = shared secret or none,
                                   info = transcript, purpose, sender, receiver)
    sealed message     ChaCha20-Poly1305 under this key, which is used once
    key of the job     HKDF-SHA256(secret, salt = transcript, info = purpose)

The secret is configured at every party, or drawn by the leader and sealed for the others.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from woodlot.data.ids import IdKind
from woodlot.exceptions import ConfigError, DataError, IdentityError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.messages.align import Introduction, OpenAlignment

Entropy = Callable[[str], bytes]
"""Secret bytes for a purpose: always the same for one party and job, and known to nobody else."""

PURPOSE = "align"
"""What a party's identity signs introductions for."""

MIN_SECRET = 16
"""The shortest secret, in bytes: 128 bits cannot be tried out."""

KEY_BYTES = 32
"""Bytes of every key, and of the secret of a job."""

_VERSION = "woodlot align 1"
_ONCE = bytes(12)  # a nonce for keys that are used once


class Signer(Protocol):
    """A party's identity in the federation."""

    @property
    def certificate(self) -> bytes:
        """The certificate that the others know the party by."""
        ...

    def sign(self, purpose: str, data: bytes) -> bytes:
        """Sign data, for this purpose and no other."""
        ...

    def verify(self, name: str, certificate: bytes, purpose: str, data: bytes, signature: bytes) -> None:
        """Raise IdentityError unless the certificate is a party's of this name, and the signature its own."""
        ...


def derive(secret: bytes, *info: bytes | str, salt: bytes | None = None, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256, with a list of what the key is for that cannot be read in two ways."""
    return HKDF(SHA256(), length, salt, msgspec.msgpack.encode((_VERSION, *info))).derive(secret)


class KeyAgreement:
    """One party's side of the agreement, for one job.

    Parameters
    ----------
    name : str
        The party.
    job : str
        The job, as all parties know it.
    id_kind : IdKind
        What its ids are.
    entropy, lasting : callable
        See `Entropy`: for this job, and for all jobs of this party.
    table_digest : bytes
        Of the ids. It enters all secret bytes, so that no key is ever used for two tables.
    shared_secret : bytes, optional
        From the configuration, the same at every party.
    signer : Signer, optional
        The party's identity.

    """

    def __init__(
        self,
        name: str,
        *,
        job: str,
        id_kind: IdKind,
        entropy: Entropy,
        lasting: Entropy,
        table_digest: bytes,
        shared_secret: bytes | None,
        signer: Signer | None,
    ) -> None:
        if shared_secret is None and signer is None:
            raise ConfigError(
                f"party {name!r} has neither an identity nor a shared secret, so the coordinator could read its ids; "
                "give it one of them"
            )
        if shared_secret is not None and len(shared_secret) < MIN_SECRET:
            raise ConfigError(
                f"the shared secret of party {name!r} has {len(shared_secret)} bytes; "
                f"draw {MIN_SECRET} or more at random"
            )
        self.name = name
        self._job = job
        self._id_kind = id_kind
        self._entropy = entropy
        self._lasting = lasting
        self._table_digest = table_digest
        self._shared_secret = shared_secret
        self._signer = signer
        self._private = X25519PrivateKey.from_private_bytes(self.own_bytes("share"))

    def own_bytes(self, purpose: str, *info: bytes, length: int = KEY_BYTES) -> bytes:
        """Secret bytes that this party can always make again and nobody else can, for this job."""
        return self._bytes_from(self._entropy, purpose, info, length)

    def lasting_bytes(self, purpose: str, *info: str) -> bytes:
        """Secret bytes that this party can always make again and nobody else can, the same in all jobs."""
        return self._bytes_from(self._lasting, purpose, info, KEY_BYTES)

    def _bytes_from(self, source: Entropy, purpose: str, info: tuple[bytes | str, ...], length: int) -> bytes:
        secret = source(f"{PURPOSE} {purpose}")
        if len(secret) < MIN_SECRET:
            raise LocalProtocolError(f"entropy gave {len(secret)} bytes where {MIN_SECRET} are the least")
        return derive(secret, purpose, *info, salt=self._table_digest, length=length)

    def introduce(self, opening: OpenAlignment) -> Introduction:
        """What this party tells the others of itself."""
        unsigned = Introduction(
            id_kind=self._id_kind,
            configured=self._shared_secret is not None,
            share=self._private.public_key().public_bytes_raw(),
            certificate=b"" if self._signer is None else self._signer.certificate,
            signature=b"",
        )
        if self._signer is None:
            return unsigned
        signature = self._signer.sign(PURPOSE, self._signed_bytes(opening, self.name, unsigned))
        return msgspec.structs.replace(unsigned, signature=signature)

    def accept(self, opening: OpenAlignment, own: Introduction, introductions: Mapping[str, Introduction]) -> JobKeys:
        """Check everybody's introduction, this party's `own` among them, and make the keys; nothing is changed."""
        if tuple(introductions) != opening.parties:
            raise RemoteProtocolError("the introductions are not those of the parties that were named at the opening")
        if introductions[self.name] != own:
            raise RemoteProtocolError("the introduction under this party's name is not its own")
        check_kinds({name: introduction.id_kind for name, introduction in introductions.items()})
        check_configured({name: introduction.configured for name, introduction in introductions.items()})
        digest = Hash(SHA256())
        digest.update(msgspec.msgpack.encode((_VERSION, self._job, opening, introductions)))
        shared = {}
        for name, introduction in introductions.items():
            if name != self.name:
                self._verify(opening, name, introduction)
                shared[name] = self._exchange(name, introduction.share)
        return JobKeys(self.name, opening.parties[0], digest.finalize(), shared, self._shared_secret)

    def _signed_bytes(self, opening: OpenAlignment, name: str, introduction: Introduction) -> bytes:
        unsigned = msgspec.structs.replace(introduction, signature=b"")
        return msgspec.msgpack.encode((_VERSION, self._job, opening, name, unsigned))

    def _verify(self, opening: OpenAlignment, name: str, introduction: Introduction) -> None:
        if self._signer is None:  # then the configured secret is in every key, and proves who has it
            return
        data = self._signed_bytes(opening, name, introduction)
        try:
            self._signer.verify(name, introduction.certificate, PURPOSE, data, introduction.signature)
        except IdentityError as error:
            raise RemoteProtocolError(
                f"the introduction of party {name!r} is not signed by its identity for this job; "
                "somebody between the parties may have changed it"
            ) from error

    def _exchange(self, name: str, share: bytes) -> bytes:
        try:
            return self._private.exchange(X25519PublicKey.from_public_bytes(share))
        except ValueError:
            raise RemoteProtocolError(f"the public key of party {name!r} is none") from None


def check_kinds(kinds: Mapping[str, IdKind]) -> None:
    """Refuse to compare numbers with text."""
    by_kind = {
        kind: [name for name, own in kinds.items() if own == kind]
        for kind in dict.fromkeys(kinds.values())
        if kind != "nothing"
    }
    if len(by_kind) > 1:
        found = "; ".join(f"{kind} at {_named(names)}" for kind, names in by_kind.items())
        raise DataError(f"ids are of different types, so none would match: {found}; convert them to the same type")


def check_configured(configured: Mapping[str, bool]) -> None:
    """Refuse to mix parties that have a configured secret with parties that have none."""
    with_secret = [name for name, own in configured.items() if own]
    without = [name for name, own in configured.items() if not own]
    if with_secret and without:
        raise DataError(
            f"a shared secret is configured at {_named(with_secret)} and none at {_named(without)}; "
            "configure the same secret at every party, or at none to have one drawn for each job"
        )


def _named(names: list[str]) -> str:
    return ", ".join(map(repr, names))


@dataclass(frozen=True, eq=False)
class JobKeys:
    """The keys of one job, as one party has them.

    Attributes
    ----------
    name, leader : str
        This party and the first one.
    transcript : bytes
        Hash of the job, the opening and all introductions.
    exchanged : dict of str to bytes
        What this party has in common with each other.
    shared_secret : bytes or None
        The configured secret.

    """

    name: str
    leader: str
    transcript: bytes
    exchanged: dict[str, bytes]
    shared_secret: bytes | None

    def seal(self, receiver: str, purpose: str, data: bytes) -> bytes:
        """Encrypt a message for one other party; one message for each purpose."""
        return self._cipher(receiver, purpose, self.name, receiver).encrypt(_ONCE, data, self.transcript)

    def unseal(self, sender: str, purpose: str, sealed: bytes) -> bytes:
        """Decrypt what one other party has sealed for this one."""
        try:
            return self._cipher(sender, purpose, sender, self.name).decrypt(_ONCE, sealed, self.transcript)
        except InvalidTag:
            raise RemoteProtocolError(
                f"what should be the {purpose} of party {sender!r} was not sealed by it for this party and job"
            ) from None

    def _cipher(self, peer: str, purpose: str, sender: str, receiver: str) -> ChaCha20Poly1305:
        key = derive(self.exchanged[peer], self.transcript, purpose, sender, receiver, salt=self.shared_secret)
        return ChaCha20Poly1305(key)

    def confirmation(self, secret: bytes) -> bytes:
        """Proof of having the secret and the transcript, which tells neither."""
        return derive(secret, "confirmation", salt=self.transcript)

    def check(self, secret: bytes, confirmation: bytes) -> None:
        """Refuse a secret that is not the leader's."""
        if hmac.compare_digest(confirmation, self.confirmation(secret)):
            return
        if self.shared_secret is not None:
            raise DataError(
                f"the shared secret that is configured here is not that of party {self.leader!r}; "
                "configure the same secret at every party"
            )
        raise RemoteProtocolError(f"the confirmation does not fit the secret of party {self.leader!r}")

    def order_key(self, secret: bytes) -> bytes:
        """The key under which the common rows are put in order, in all jobs under this secret."""
        return derive(secret, "order")

    def matching_key(self, secret: bytes) -> bytes:
        """The key that turns ids into tokens, in this job only."""
        return derive(secret, "tokens", salt=self.transcript)
