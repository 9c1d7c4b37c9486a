"""Keys that the second server has with the other parties and the dealer; the leader relays and has none of them."""

from __future__ import annotations

from collections.abc import Mapping

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.agreement import Entropy, Signer
from woodlot.protocols.core.pair_keys import PairKeys
from woodlot.protocols.hidden.hidden_messages import HiddenIntroduction, OpenHidden

TAG = "woodlot hidden 1"


class HiddenKeys:
    """One side of the agreement, for one job; the parameters are those of `PairKeys`."""

    def __init__(
        self, name: str, *, job: str, entropy: Entropy, signer: Signer | None, shared_secret: bytes | None
    ) -> None:
        self._pairs = PairKeys[OpenHidden, HiddenIntroduction](
            name,
            tag=TAG,
            purpose="hidden training",
            danger="read both shares of every row",
            drawn_as="hidden key",
            job=job,
            entropy=entropy,
            signer=signer,
            shared_secret=shared_secret,
        )

    def open(self, opening: OpenHidden) -> HiddenIntroduction:
        """Introduce this party to the others that are named."""
        if self._pairs.name not in opening.parties or not {opening.server, opening.dealer} <= set(opening.parties):
            raise RemoteProtocolError("OpenHidden does not name this party, the second server and the dealer")
        if opening.holder in opening.parties or opening.server == opening.dealer:
            raise RemoteProtocolError("the label holder, the second server and the dealer must be three parties")
        return self._pairs.introduce(opening, HiddenIntroduction)

    @property
    def opening(self) -> OpenHidden:
        """What this party was told at the opening."""
        return self._pairs.opening

    def agree(self, introductions: Mapping[str, HiddenIntroduction]) -> dict[str, bytes]:
        """A key with each of the others."""
        return self._pairs.agree(self.opening.parties, introductions)

    def with_server(self, introductions: Mapping[str, HiddenIntroduction]) -> bytes:
        """The key with the second server."""
        return self.agree(introductions)[self.opening.server]
