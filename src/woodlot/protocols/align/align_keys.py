"""Keys that the parties agree on through a coordinator who must not have them.

Every party introduces itself with a fresh X25519 key, signed by its identity. The hash of all introductions is the
*transcript*. It enters every key, so parties whom the coordinator told different things have different keys and can
read nothing of each other::

    key of a message   HKDF-SHA256(X25519(own key, peer's key), salt = shared secret or none,
                                   info = transcript, purpose, sender, receiver)
    sealed message     ChaCha20-Poly1305 under this key, which is used once
    key of the job     HKDF-SHA256(secret, salt = transcript, info = purpose)

The secret is configured at every party, or drawn by the leader and sealed for the others. So is the key of rows, under
which a hash of its id puts each row on one side of a split. It is the same in all jobs of the same parties with the
same leader, also when rows are added, so that rows stay on their sides; it is used for nothing that leaves a party.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from woodlot.data.ids import IdKind
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.align.align_messages import Introduction, OpenAlignment
from woodlot.protocols.core.agreement import (
    KEY_BYTES,
    Agreement,
    Entropy,
    Signer,
    check_configured,
    check_trust,
    derive,
    named,
    secret_bytes,
)

PURPOSE = "align"
"""What a party's identity signs introductions for."""

VERSION = "woodlot align 1"
"""The protocol and its version; in everything that is signed, hashed or derived."""
_ONCE = bytes(12)  # a nonce for keys that are used once


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
        check_trust(name, shared_secret, signer, "read its ids")
        self.name = name
        self._id_kind = id_kind
        self._entropy = entropy
        self._lasting = lasting
        self._table_digest = table_digest
        self._shared_secret = shared_secret
        self._agreement = Agreement(
            name, tag=VERSION, purpose=PURPOSE, job=job, private=self.own_bytes("share"), signer=signer
        )

    def own_bytes(self, purpose: str, *info: bytes, length: int = KEY_BYTES) -> bytes:
        """Secret bytes that this party can always make again and nobody else can, for this job."""
        return self._bytes_from(self._entropy, purpose, info, length)

    def lasting_bytes(self, purpose: str, *info: str) -> bytes:
        """Secret bytes that this party can always make again and nobody else can, the same in all jobs."""
        return self._bytes_from(self._lasting, purpose, info, KEY_BYTES)

    def _bytes_from(self, source: Entropy, purpose: str, info: tuple[bytes | str, ...], length: int) -> bytes:
        secret = secret_bytes(source, f"{PURPOSE} {purpose}")
        return derive(VERSION, secret, purpose, *info, salt=self._table_digest, length=length)

    def row_key(self, parties: Sequence[str]) -> bytes:
        """The key of rows, as the leader draws it: other tables have the same, and other parties another."""
        return derive(VERSION, secret_bytes(self._lasting, f"{PURPOSE} rows"), "rows", *sorted(parties))

    def introduce(self, opening: OpenAlignment) -> Introduction:
        """What this party tells the others of itself."""
        unsigned = Introduction(
            id_kind=self._id_kind,
            configured=self._shared_secret is not None,
            share=self._agreement.share,
            certificate=self._agreement.certificate,
            signature=b"",
        )
        return self._agreement.sign(opening, unsigned)

    def accept(self, opening: OpenAlignment, own: Introduction, introductions: Mapping[str, Introduction]) -> JobKeys:
        """Check everybody's introduction, this party's `own` among them, and make the keys; nothing is changed."""
        self._agreement.check_named(opening.parties, own, introductions)
        check_kinds({name: introduction.id_kind for name, introduction in introductions.items()})
        check_configured({name: introduction.configured for name, introduction in introductions.items()})
        agreed = self._agreement.accept(opening, introductions)
        return JobKeys(self.name, opening.parties[0], agreed.transcript, agreed.exchanged, self._shared_secret)


def check_kinds(kinds: Mapping[str, IdKind]) -> None:
    """Refuse to compare numbers with text."""
    by_kind = {
        kind: [name for name, own in kinds.items() if own == kind]
        for kind in dict.fromkeys(kinds.values())
        if kind != "nothing"
    }
    if len(by_kind) > 1:
        found = "; ".join(f"{kind} at {named(names)}" for kind, names in by_kind.items())
        raise DataError(f"ids are of different types, so none would match: {found}; convert them to the same type")


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
    exchanged: dict[str, bytes] = field(repr=False)
    shared_secret: bytes | None = field(repr=False)

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
        key = derive(VERSION, self.exchanged[peer], self.transcript, purpose, sender, receiver, salt=self.shared_secret)
        return ChaCha20Poly1305(key)

    def confirmation(self, secret: bytes) -> bytes:
        """Proof of having the secret and the transcript, which tells neither."""
        return derive(VERSION, secret, "confirmation", salt=self.transcript)

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
        return derive(VERSION, secret, "order")

    def row_key(self, secret: bytes) -> bytes:
        """The key of rows where the secret is configured."""
        return derive(VERSION, secret, "rows")

    def matching_key(self, secret: bytes) -> bytes:
        """The key that turns ids into tokens, in this job only."""
        return derive(VERSION, secret, "tokens", salt=self.transcript)
