"""Messages of sealed prediction: the coordinator learns the leaf of each row in each tree, and no way that led there.

The set-up is that of the secure sums (``OpenSums``, ``StartSums``).
"""

from __future__ import annotations

from typing import ClassVar

from woodlot.protocols.core.message import FROM_PARTY, TO_PARTY, U64, Disclosure, Message
from woodlot.protocols.sums.sum_messages import check_clients

MAX_ENTRIES = 1 << 22
"""The most numbers in one block: 32 MiB. It bounds the memory of all roles, whatever the rows and leaves."""


class AskSealed(Message):
    """Asks for a party's part of a sealed prediction: a block of rows and leaves."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "that the rows are to be predicted, and whose answers are added; with permutation importance, which of its "
        "features to shuffle",
        "clear",
    )
    round: int
    clients: tuple[str, ...]
    first_row: int
    n_rows: int
    first_leaf: int
    n_leaves: int
    shuffled: int | None
    seed: int

    def check(self) -> None:
        """A block has numbers, and not more than fit."""
        check_clients(self.clients)
        if not 0 <= self.round < 1 << 63 or self.first_row < 0 or self.first_leaf < 0:
            raise ValueError("rounds, rows and leaves are numbered from 0")
        if self.n_rows < 1 or self.n_leaves < 1 or self.n_rows * self.n_leaves > MAX_ENTRIES:
            raise ValueError(f"a block has 1 to {MAX_ENTRIES:,} numbers")
        if self.seed < 0:
            raise ValueError("a seed is not negative")


class SealedLeaves(Message):
    """One number per row and leaf, under masks: 0 for a leaf that the party's splits allow, else a random one."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "nothing of one party's splits; together with the numbers of all other parties of the same round, the leaf "
        "of each row in each tree: there the sum is 0, and a random number everywhere else",
        "encoded",
    )
    round: int
    values: U64
