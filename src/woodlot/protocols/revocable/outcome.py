"""What one level of the construction has decided."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.protocols.core.bits import smallest_unsigned


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a round has decided at its nodes."""

    parties: tuple[str, ...]
    is_split: NDArray[np.bool_]
    flags: NDArray[np.uint8]
    winner: NDArray[np.int64]
    pair: NDArray[np.int64]
    cut: NDArray[np.int64]
    feature: NDArray[np.int64]
    gain: NDArray[np.float64]

    @classmethod
    def none(cls, parties: tuple[str, ...]) -> Outcome:
        empty = np.empty(0, np.int64)
        return cls(parties, np.empty(0, bool), np.empty(0, np.uint8), empty, empty, empty, empty, np.empty(0))

    def without(self, same: NDArray[np.bool_], sizes: NDArray[np.int64]) -> Outcome:
        """The outcome where some nodes are as they were before."""
        if not same.any():
            return self
        stays = np.repeat(~same[self.is_split], sizes[self.is_split])
        return Outcome(
            self.parties, self.is_split & ~same, self.flags[stays], self.winner, self.pair, self.cut, self.feature,
            self.gain,
        )  # fmt: skip

    def told(self, party: str) -> dict[str, Any]:
        """What the participant is told: which of its candidates have won."""
        mine = self.is_split & (self.winner == self.parties.index(party))
        return {"won_pair": self.pair[mine].astype(np.uint32), "won_cut": smallest_unsigned(self.cut[mine])}
