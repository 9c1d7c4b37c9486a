"""Keys for each pair of parties of a job whose leader relays public keys and must not have the others' keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.agreement import (
    KEY_BYTES,
    Agreement,
    Entropy,
    SignedKey,
    Signer,
    check_trust,
    derive,
    secret_bytes,
)
from woodlot.protocols.core.message import Message

O = TypeVar("O", bound=Message)
I = TypeVar("I", bound=SignedKey)


class PairKeys(Generic[O, I]):
    """One side of the agreement, for one job.

    Parameters
    ----------
    name : str
        The party or the dealer.
    tag : str
        The protocol and its version; in everything that is signed or hashed.
    purpose : str
        What the party's identity signs its introduction for.
    danger : str
        What the leader could do if parties could not tell each other from it.
    drawn_as : str
        The name under which the party's secret of this protocol is drawn.
    job : str
        The job, as all of them know it.
    entropy : Entropy
        Its secrets.
    signer : Signer, optional
        Its identity.
    shared_secret : bytes, optional
        In place of identities, what all but the leader have in common.
    """

    def __init__(
        self,
        name: str,
        *,
        tag: str,
        purpose: str,
        danger: str,
        drawn_as: str,
        job: str,
        entropy: Entropy,
        signer: Signer | None,
        shared_secret: bytes | None,
    ) -> None:
        check_trust(name, shared_secret, signer, danger)
        self.name = name
        self._tag = tag
        private = derive(tag, secret_bytes(entropy, drawn_as), name)
        self._agreement = Agreement(name, tag=tag, purpose=purpose, job=job, private=private, signer=signer)
        self._shared_secret = shared_secret or b""
        self._opened: tuple[O, I] | None = None

    def introduce(self, opening: O, introduction: Callable[..., I]) -> I:
        """Introduce this party to the others that the opening names; the protocol has checked it."""
        agreement = self._agreement
        own = agreement.sign(opening, introduction(share=agreement.share, certificate=agreement.certificate))
        self._opened = opening, own
        return own

    @property
    def opening(self) -> O:
        """What this party was told at the opening."""
        return self._said()[0]

    def agree(self, parties: tuple[str, ...], introductions: Mapping[str, I]) -> dict[str, bytes]:
        """A key with each of the other parties."""
        opening, own = self._said()
        self._agreement.check_named(parties, own, introductions)
        agreed = self._agreement.accept(opening, introductions)
        return {
            other: derive(
                self._tag,
                secret + self._shared_secret,
                sorted((self.name, other)),
                salt=agreed.transcript,
                length=KEY_BYTES,
            )
            for other, secret in agreed.exchanged.items()
        }

    def _said(self) -> tuple[O, I]:
        if self._opened is None:
            raise RemoteProtocolError("introductions are expected after the opening of the protocol")
        return self._opened
