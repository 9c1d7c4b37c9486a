"""Keys that parties of a hidden linear model have with each other and with the dealer, and not with the leader."""

from __future__ import annotations

from collections.abc import Mapping

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.agreement import Entropy, Signer
from woodlot.protocols.core.pair_keys import PairKeys
from woodlot.protocols.linear.dealt_messages import DealtIntroduction, OpenDealt

TAG = "woodlot dealt products 1"


class DealtKeys:
    """One side of the agreement, for one job; the parameters are those of `PairKeys`."""

    def __init__(
        self, name: str, *, job: str, entropy: Entropy, signer: Signer | None, shared_secret: bytes | None
    ) -> None:
        self._pairs = PairKeys[OpenDealt, DealtIntroduction](
            name,
            tag=TAG,
            purpose="dealt products",
            danger="read every column",
            drawn_as="key of dealt products",
            job=job,
            entropy=entropy,
            signer=signer,
            shared_secret=shared_secret,
        )

    def open(self, opening: OpenDealt) -> DealtIntroduction:
        """Introduce this party to the others that are named."""
        parties = opening.parties
        if self._pairs.name not in parties or len(set(parties)) != len(parties) or opening.dealer not in parties:
            raise RemoteProtocolError("OpenDealt does not name this party and the dealer, each once")
        if opening.holder in parties:
            raise RemoteProtocolError("the label holder has no key with the others")
        return self._pairs.introduce(opening, DealtIntroduction)

    def agree(self, introductions: Mapping[str, DealtIntroduction]) -> dict[str, bytes]:
        """A key with each of the others."""
        return self._pairs.agree(self._pairs.opening.parties, introductions)
