"""The numbers that clients of extra-trees send for a candidate or a node, and what the coordinator reads in them.

::

                        a candidate                              a node
    classes             rows of each class, left                 rows of each class
    targets             rows, sum of targets, left               rows, sum of targets
    LocalDP             rows, sum of each bit, left              rows, sum of each bit
      instant           rows left, sums left, sums right         rows, sums
    GlobalDP            counts left, counts right, with noise    counts with noise

What goes right is the node less what goes left, but for noise that is drawn for each side: it is asked for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.privacy.counts import Method, estimate_counts
from woodlot.privacy.randomised_response import RandomisedResponse
from woodlot.privacy.settings import GlobalDP, LocalDP, Privacy

Raw = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Reading:
    """What candidates do: the numbers of both sides, and what they stand for.

    Attributes
    ----------
    left, right : int64 array (nodes, width, cells of a node)
        As they would be asked of the two children.
    n_left, n_right : array (nodes, width)
        Rows.
    amounts_left, amounts_right : float64 array (nodes, width, outputs)
        Rows of each class, or the sum of targets.
    """

    left: Raw
    right: Raw
    n_left: NDArray[np.float64]
    n_right: NDArray[np.float64]
    amounts_left: NDArray[np.float64]
    amounts_right: NDArray[np.float64]


class Tally(ABC):
    """How numbers are laid out and read; one subclass for each way of counting."""

    node_cells: int
    """Numbers of a node."""
    cells: int
    """Numbers of a candidate."""
    rows_are_exact = True
    """Whether numbers of rows have no noise: only then an empty side is one."""
    asks_leaves = False
    """Whether leaves are asked for, because the numbers of a candidate are no use for its children."""

    def sides(self, sums: Raw, total: Raw) -> tuple[Raw, Raw]:
        """Numbers of the left and the right side."""
        return sums, total[:, None] - sums

    @abstractmethod
    def amounts(self, raw: Raw) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Rows, and rows of each class or the sum of targets."""

    def read(self, sums: Raw, total: Raw) -> Reading:
        """Read the candidates of some nodes.

        Parameters
        ----------
        sums : int64 array (nodes, width, cells)
            Over all clients.
        total : int64 array (nodes, cells of a node)
            What is known of the nodes.
        """
        left, right = self.sides(sums, total)
        n_left, amounts_left = self.amounts(left)
        n_right, amounts_right = self.amounts(right)
        if self.rows_are_exact and ((n_left < 0).any() or (n_right < 0).any()):
            raise RemoteProtocolError("the clients have counted more rows on one side than there are")
        return Reading(left, right, n_left, n_right, amounts_left, amounts_right)


class ClassTally(Tally):
    """Counts of classes, exact."""

    def __init__(self, n_classes: int) -> None:
        self.cells = self.node_cells = n_classes

    def amounts(self, raw: Raw) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        counts = raw.astype(np.float64)
        return counts.sum(axis=-1), counts


class TargetTally(Tally):
    """Rows and sums of targets in fixed point, exact."""

    cells = node_cells = 2

    def amounts(self, raw: Raw) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return raw[..., 0].astype(np.float64), raw[..., 1:].astype(np.float64)


class BitTally(Tally):
    """Rows, and sums of randomised bits."""

    def __init__(self, response: RandomisedResponse, method: Method, alpha: float, instant: bool) -> None:
        self._response, self._method, self._alpha = response, method, alpha
        self.node_cells = 1 + response.code.length
        self.cells = self.node_cells + (response.code.length if instant else 0)
        self.asks_leaves = instant

    def sides(self, sums: Raw, total: Raw) -> tuple[Raw, Raw]:
        if not self.asks_leaves:
            return super().sides(sums, total)
        n_right = total[:, None, :1] - sums[..., :1]
        return sums[..., : self.node_cells], np.concatenate([n_right, sums[..., self.node_cells :]], axis=-1)

    def amounts(self, raw: Raw) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        n = raw[..., 0]
        if (n < 0).any():
            raise RemoteProtocolError("the clients have counted more rows on one side than there are")
        counts = estimate_counts(self._response, raw[..., 1:], n, method=self._method, alpha=self._alpha)
        return n.astype(np.float64), counts


class NoisyTally(Tally):
    """Counts of classes with noise; those below 0 stand for 0."""

    rows_are_exact = False
    asks_leaves = True

    def __init__(self, n_classes: int) -> None:
        self.node_cells, self.cells = n_classes, 2 * n_classes

    def sides(self, sums: Raw, total: Raw) -> tuple[Raw, Raw]:
        return sums[..., : self.node_cells], sums[..., self.node_cells :]

    def amounts(self, raw: Raw) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        counts = np.maximum(raw, 0).astype(np.float64)
        return counts.sum(axis=-1), counts


def tally_of(privacy: Privacy, classes: Sequence[Any]) -> Tally:
    """The way of counting that a plan asks for; no classes: a regression."""
    if isinstance(privacy, LocalDP):
        return BitTally(privacy.response(classes), privacy.counts, privacy.alpha, privacy.is_instant)
    if isinstance(privacy, GlobalDP):
        return NoisyTally(len(classes))
    return ClassTally(len(classes)) if classes else TargetTally()
