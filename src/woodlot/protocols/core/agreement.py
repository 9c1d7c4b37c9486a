"""Agreement on keys through a coordinator who must not have them; for every protocol in which parties share a secret.

Every party introduces itself with a fresh X25519 key, signed by its identity together with the job, its name and the
opening of the protocol. The hash of all introductions is the *transcript*. It enters every key that is made later, so
parties whom the coordinator told different things have different keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import msgspec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256, Hash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from woodlot.exceptions import ConfigError, DataError, IdentityError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.core.message import Message

Entropy = Callable[[str], bytes]
"""Secret bytes for a purpose: always the same for one party and job, and known to nobody else."""

MIN_SECRET = 16
"""The shortest secret, in bytes: 128 bits cannot be tried out."""

KEY_BYTES = 32
"""Bytes of every key, and of the secret of a job."""


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


class SignedKey(Protocol):
    """What every introduction has, whatever else it tells: a struct of messages, compared by value."""

    @property
    def share(self) -> bytes:
        """A fresh X25519 public key."""
        ...

    @property
    def certificate(self) -> bytes:
        """The party's identity; empty if it has none."""
        ...

    @property
    def signature(self) -> bytes:
        """By this identity, over everything else."""
        ...


I = TypeVar("I", bound=SignedKey)


def derive(tag: str, secret: bytes, *info: object, salt: bytes | None = None, length: int = KEY_BYTES) -> bytes:
    """HKDF-SHA256, with a list of what the key is for that cannot be read in two ways."""
    return HKDF(SHA256(), length, salt, msgspec.msgpack.encode((tag, *info))).derive(secret)


def secret_bytes(source: Entropy, purpose: str) -> bytes:
    """What a party's entropy gives for a purpose, if it is long enough to be a secret."""
    secret = source(purpose)
    if len(secret) < MIN_SECRET:
        raise LocalProtocolError(f"entropy gave {len(secret)} bytes where {MIN_SECRET} are the least")
    return secret


def check_trust(name: str, shared_secret: bytes | None, signer: Signer | None, danger: str) -> None:
    """Refuse a party whom the others could not tell from the coordinator; `danger` says what that would mean."""
    if shared_secret is None and signer is None:
        raise ConfigError(
            f"party {name!r} has neither an identity nor a shared secret, so the coordinator could {danger}; "
            "give it one of them"
        )
    if shared_secret is not None and len(shared_secret) < MIN_SECRET:
        raise ConfigError(
            f"the shared secret of party {name!r} has {len(shared_secret)} bytes; draw {MIN_SECRET} or more at random"
        )


def check_configured(configured: Mapping[str, bool]) -> None:
    """Refuse to mix parties that have a configured secret with parties that have none."""
    with_secret = [name for name, own in configured.items() if own]
    without = [name for name, own in configured.items() if not own]
    if with_secret and without:
        raise DataError(
            f"a shared secret is configured at {named(with_secret)} and none at {named(without)}; "
            "configure the same secret at every party, or at none to have one drawn for each job"
        )


def named(names: Sequence[str]) -> str:
    """Names for an error."""
    return ", ".join(map(repr, names))


@dataclass(frozen=True, eq=False)
class Agreed:
    """What has been agreed on.

    Attributes
    ----------
    transcript : bytes
        Hash of the job, the opening and all introductions.
    exchanged : dict of str to bytes
        What this party has in common with each other.

    """

    transcript: bytes
    exchanged: dict[str, bytes] = field(repr=False)


class Agreement:
    """One party's side of an agreement, for one job.

    Parameters
    ----------
    name : str
        The party.
    tag : str
        The protocol and its version; in everything that is signed or hashed.
    purpose : str
        What the party's identity signs introductions for.
    job : str
        The job, as all parties know it.
    private : bytes
        The 32 secret bytes of the party's key for this job.
    signer : Signer, optional
        The party's identity. Without it nothing is signed or verified, and the keys must contain another secret.

    """

    def __init__(self, name: str, *, tag: str, purpose: str, job: str, private: bytes, signer: Signer | None) -> None:
        self.name = name
        self._tag = tag
        self._purpose = purpose
        self._job = job
        self._private = X25519PrivateKey.from_private_bytes(private)
        self._signer = signer

    @property
    def share(self) -> bytes:
        """The public key of this party for this job."""
        return self._private.public_key().public_bytes_raw()

    @property
    def certificate(self) -> bytes:
        """The certificate of this party; empty if it has none."""
        return b"" if self._signer is None else self._signer.certificate

    def sign(self, opening: Message, unsigned: I) -> I:
        """Return the introduction with this party's signature, if it has an identity."""
        if self._signer is None:
            return unsigned
        signature = self._signer.sign(self._purpose, self._signed_bytes(opening, self.name, unsigned))
        signed: I = _replaced(unsigned, signature)
        return signed

    def check_named(self, parties: tuple[str, ...], own: I, introductions: Mapping[str, I]) -> None:
        """Refuse introductions that are not those of the parties, in order, this party's `own` among them."""
        if tuple(introductions) != parties:
            raise RemoteProtocolError("the introductions are not those of the parties that were named at the opening")
        if introductions[self.name] != own:
            raise RemoteProtocolError("the introduction under this party's name is not its own")

    def accept(self, opening: Message, introductions: Mapping[str, I]) -> Agreed:
        """Verify the introductions of all others and exchange keys with them; nothing is changed."""
        exchanged = {}
        for name, introduction in introductions.items():
            if name != self.name:
                self._verify(opening, name, introduction)
                exchanged[name] = self._exchange(name, introduction.share)
        return Agreed(transcript_of(self._tag, self._job, opening, introductions), exchanged)

    def _signed_bytes(self, opening: Message, name: str, introduction: SignedKey) -> bytes:
        return msgspec.msgpack.encode((self._tag, self._job, opening, name, _replaced(introduction, b"")))

    def _verify(self, opening: Message, name: str, introduction: SignedKey) -> None:
        if self._signer is None:  # then the configured secret is in every key, and proves who has it
            return
        data = self._signed_bytes(opening, name, introduction)
        try:
            self._signer.verify(name, introduction.certificate, self._purpose, data, introduction.signature)
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


def transcript_of(tag: str, job: str, opening: Message, introductions: Mapping[str, Any]) -> bytes:
    """Hash of everything that the parties were told and have told each other."""
    digest = Hash(SHA256())
    digest.update(msgspec.msgpack.encode((tag, job, opening, introductions)))
    return digest.finalize()


def _replaced(introduction: Any, signature: bytes) -> Any:
    return msgspec.structs.replace(introduction, signature=signature)
