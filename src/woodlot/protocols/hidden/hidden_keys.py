"""Keys that the second server has with the other parties and the dealer; the leader relays and has none of them."""

from __future__ import annotations

from collections.abc import Mapping

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.agreement import KEY_BYTES, Agreement, Entropy, Signer, check_trust, derive, secret_bytes
from woodlot.protocols.hidden.hidden_messages import HiddenIntroduction, OpenHidden

TAG = "woodlot hidden 1"


class HiddenKeys:
    """One side of the agreement, for one job.

    Parameters
    ----------
    name : str
        The party or the dealer.
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
        self, name: str, *, job: str, entropy: Entropy, signer: Signer | None, shared_secret: bytes | None
    ) -> None:
        check_trust(name, shared_secret, signer, "read both shares of every row")
        self._name = name
        private = derive(TAG, secret_bytes(entropy, "hidden key"), name)
        self._agreement = Agreement(name, tag=TAG, purpose="hidden training", job=job, private=private, signer=signer)
        self._shared_secret = shared_secret or b""
        self._opening: OpenHidden | None = None
        self._own: HiddenIntroduction | None = None

    def open(self, opening: OpenHidden) -> HiddenIntroduction:
        """Introduce this party to the others that are named."""
        if self._name not in opening.parties or not {opening.server, opening.dealer} <= set(opening.parties):
            raise RemoteProtocolError("OpenHidden does not name this party, the second server and the dealer")
        if opening.holder in opening.parties or opening.server == opening.dealer:
            raise RemoteProtocolError("the label holder, the second server and the dealer must be three parties")
        agreement = self._agreement
        unsigned = HiddenIntroduction(share=agreement.share, certificate=agreement.certificate)
        self._opening, self._own = opening, agreement.sign(opening, unsigned)
        return self._own

    @property
    def opening(self) -> OpenHidden:
        """What this party was told at the opening."""
        if self._opening is None:
            raise RemoteProtocolError("no hidden training has been opened")
        return self._opening

    def agree(self, introductions: Mapping[str, HiddenIntroduction]) -> dict[str, bytes]:
        """A key with each of the others."""
        opening, own = self.opening, self._own
        if own is None:
            raise RemoteProtocolError("no hidden training has been opened")
        self._agreement.check_named(opening.parties, own, introductions)
        agreed = self._agreement.accept(opening, introductions)
        return {
            other: derive(
                TAG, secret + self._shared_secret, sorted((self._name, other)), salt=agreed.transcript, length=KEY_BYTES
            )
            for other, secret in agreed.exchanged.items()
        }

    def with_server(self, introductions: Mapping[str, HiddenIntroduction]) -> bytes:
        """The key with the second server."""
        return self.agree(introductions)[self.opening.server]
