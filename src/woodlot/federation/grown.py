"""What a federation is given and what it gives back, wherever its parties are: labels, and a forest in its parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.data.markup import html_of
from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest, splitting_parties
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.target import Target
from woodlot.protocols.vertical.out_of_bag import OutOfBagCurve
from woodlot.runtime.audit import Cost, Disclosures

Route = Literal["one-round", "classical", "sealed", "encrypted-splits"]
"""How parties are asked for a prediction; "encrypted-splits" is FRF-Test, of revocable forests."""
Answer = tuple[NDArray[np.float64], NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class Labels:
    """Where the labels of a training are, and what they are, where the caller may see them.

    Attributes
    ----------
    holder : str
        The party that has them.
    column, weight : str or None
        Its columns with labels and with weights of rows; they are not learnt from.
    target : Target or None
        The labels, checked.
    made : bool
        Whether they are others than the column has, or of no column: an array was given.
    """

    holder: str
    column: str | None = None
    weight: str | None = None
    target: Target | None = None
    made: bool = False

    @property
    def place(self) -> str | None:
        """Party and column from which the same labels can be read again."""
        return None if self.column is None or self.made else f"{self.holder}.{self.column}"

    @classmethod
    def at(cls, locate: Callable[[str], tuple[str, str]], y: str, sample_weight: str | None) -> Labels:
        """Labels and weights at the columns of these names, which ``locate`` turns into party and column."""
        holder, column = locate(y)
        weight = None
        if sample_weight is not None:
            party, weight = locate(sample_weight)
            if party != holder:
                raise DataError(f"weights must be at the label holder {holder}, not at {party}")
        return cls(holder, column, weight)

    @property
    def hidden(self) -> tuple[str, ...]:
        """Columns of the holder that are not features."""
        return tuple(name for name in (self.column, self.weight) if name is not None)


@dataclass
class Memo:
    """What a fitted model remembers between predictions; never copied or stored with it."""

    complete: Any = None
    training: Any = None
    """Tables and labels of the training, for a revocation; in the process that trained only."""
    digests: dict[str, str] | None = None
    """SHA-256 of every part, where they are known."""
    memory: Any = None
    """Where the rows of the training ended, to forget some of them; in the process that trained only."""
    secrets: Any = None
    """Keys and encrypted splits of a revocable forest."""
    cost: Cost | None = None
    disclosure: Disclosures | None = None

    def key_epoch(self) -> int:
        """Epoch of the keys, 0 without any."""
        return 0 if self.secrets is None else int(self.secrets.splits.epoch)

    def key_fingerprint(self, party: str) -> str:
        """Fingerprint of a party's public key; empty without one."""
        return "" if self.secrets is None else str(self.secrets.fingerprint(party))

    def secret_digests(self) -> dict[str, str]:
        """SHA-256 of the encrypted splits, where there are any."""
        return {} if self.secrets is None else {"encrypted splits": str(self.secrets.digest())}


@dataclass(frozen=True, eq=False, repr=False)
class GrownForest:
    """A forest in its parts, by who holds them.

    Attributes
    ----------
    coordinator : CoordinatorForest
        Structure and answers.
    parts : dict of str to PartyForest
        What each party that is at hand keeps in its own store, in this process or in its own folder. Only that party
        may use it, and only to answer.
    shared : dict of str to PartyForest
        The parts that have been put into the coordinator's hands.
    unwilling : tuple of str
        Parties whose policy keeps their part to themselves.
    oob_outputs, oob_score
        Out-of-bag answers, NaN for rows that every tree has drawn, and their score.
    residuals : array
        Quantiles of the out-of-bag residuals (regression).
    memo : Memo
        What predictions leave behind.
    model : str or None
        Its name at the coordinator that has grown it, on a connected federation.
    plan : ForestPlan or None
        What it was grown by, where it was grown in this process.
    epoch : int
        How many parties have left it.
    oob_curve : OutOfBagCurve or None
        Out-of-bag score by number of trees.
    leader : str
        The party that has led its training on a connected federation, and leads its jobs; empty: the coordinator.
    """

    coordinator: CoordinatorForest
    parts: dict[str, PartyForest]
    shared: dict[str, PartyForest]
    unwilling: tuple[str, ...] = ()
    oob_outputs: NDArray[np.float64] | None = None
    oob_score: float | None = None
    residuals: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    memo: Memo = field(default_factory=Memo)
    model: str | None = None
    plan: ForestPlan | None = None
    epoch: int = 0
    oob_curve: OutOfBagCurve | None = None
    leader: str = ""

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"memo": Memo()}

    def __repr__(self) -> str:
        forest = self.coordinator
        splits = np.bincount(forest.owner[forest.owner >= 0], minlength=len(forest.parties))
        known = (
            "complete model" if set(splitting_parties(forest)) <= set(self.shared) else "parts stay with the parties"
        )
        lines = [f"Forest of {forest.structure.n_trees:,} trees, {forest.structure.n_nodes:,} nodes; {known}"]
        width = max(len(party) for party in forest.parties)
        lines += [f"  {party:<{width}}  {n:,} splits" for party, n in zip(forest.parties, splits, strict=True)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_of(self)
