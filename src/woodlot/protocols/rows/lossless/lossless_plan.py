"""What a lossless forest is to be, and targets in fixed point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import ConfigError
from woodlot.protocols.rows.row_client import GrowthPlan, PositiveInt
from woodlot.protocols.rows.row_labels import MOST_WEIGHT_BITS
from woodlot.protocols.rows.schema import NO_MAGNITUDE
from woodlot.protocols.sums import wanted_quorum
from woodlot.protocols.sums.sum_messages import Mode, Quorum, WaitSeconds
from woodlot.trees.drawing import MAX_RATE, poisson_thresholds

EXACT_BITS = 52
"""No sum of targets reaches 2**53, the last whole number that float64 holds exactly."""
MAX_BINS = 255
"""Bins of a column by default; with the code of missing values they fit a byte."""
MOST_BINS = 65_535
WORDS_AT_ONCE = 1 << 23
"""Numbers of eight bytes in one message of a client, unless a single node has more."""


class LosslessPlan(GrowthPlan, frozen=True, tag="lossless"):
    """The forest of all clients' rows together; counts of rows are of all clients'.

    Attributes
    ----------
    bins : tuple of (str, tuple of float)
        Declared edges of columns, ascending. The bins of any other column are its quantiles, or its values where there
        are at most ``max_bins``.
    sums : {"secure", "plain"}
        Whether the coordinator sees sums over the clients, or (for debugging) each client's numbers.
    allow_two : bool
        Allow secure sums over two clients, who then know each other's numbers.
    spare_after : float or None
        Go on without a client that refuses, or is away for so many seconds. What is counted from then on is counted
        without its rows. None: the run stops, and can be resumed when the client is back.
    quorum : int, float or None
        How many clients must be left for that: a number, or more than a share of them; by default more than two thirds.
        At least more than half.
    words_at_once : int
        The most numbers of one message.
    oob_score : bool, unset by default
        Whether the finished forest is scored on the rows that trees have not drawn.
    class_weight : {"balanced"} or tuple of (str, float), unset by default
        How much more often rows of a class are drawn than others; classes that are not named have the weight 1.
    row_weights : bool, unset by default
        Whether clients have weights of rows.
    """

    bins: tuple[tuple[str, tuple[float, ...]], ...] = ()
    sums: Mode = "secure"
    allow_two: bool = False
    spare_after: WaitSeconds | None = None
    quorum: Quorum | None = None
    words_at_once: PositiveInt = WORDS_AT_ONCE
    oob_score: bool | msgspec.UnsetType = msgspec.UNSET
    class_weight: Literal["balanced"] | tuple[tuple[str, float], ...] | msgspec.UnsetType = msgspec.UNSET
    row_weights: bool | msgspec.UnsetType = msgspec.UNSET

    @property
    def is_weighted(self) -> bool:
        """Whether rows of some classes are drawn more often."""
        return not isinstance(self.class_weight, msgspec.UnsetType)

    def class_thresholds(self, class_rows: Sequence[int], classes: Sequence[Any]) -> list[NDArray[np.uint64]]:
        """How often rows of each class are drawn, of so many rows of all clients.

        As many rows as without weights are drawn on average; a share (`max_samples`) counts in units of weight
        (docs/decisions/0004-sample-weights.md).

        Raises
        ------
        ConfigError
            If the weights name a class that there is not, leave no row, or draw one more than `MAX_RATE` times.
        """
        rates = self.class_rates(class_rows, class_rows, classes)
        if max(rates) > MAX_RATE:
            raise ConfigError(
                f"class_weight draws rows of a class {max(rates):.0f} times on average, and at most {MAX_RATE:.0f} are "
                "possible; use weights that differ less, or lower max_samples"
            )
        return [poisson_thresholds(rate) for rate in rates]

    def class_rates(
        self, class_rows: Sequence[int], class_sums: Sequence[float], classes: Sequence[Any]
    ) -> list[float]:
        """How often a row of weight 1 of each class is drawn on average.

        Parameters
        ----------
        class_rows : sequence of int
            Rows of each class, of all clients; of a regression of one.
        class_sums : sequence of float
            Their weights, added.
        classes : sequence
            The classes; of a regression none.

        Raises
        ------
        ConfigError
            If the weights name a class that there is not, or leave no row.
        """
        n_rows = sum(class_rows)
        if self.class_weight == "balanced":
            weights = [n_rows / (len(class_rows) * n) if n else 0.0 for n in class_rows]
        else:
            named = dict(self.class_weight) if isinstance(self.class_weight, tuple) else {}
            unknown = sorted(set(named) - {str(label) for label in classes})
            if unknown:
                raise ConfigError(f"class_weight names classes that do not occur: {unknown}")
            weights = [named.get(str(label), 1.0) for label in classes] or [1.0]
        total = sum(n * weight for n, weight in zip(class_sums, weights, strict=True))
        if not total > 0:
            raise ConfigError("weights give every row the weight 0; give some row, or some class, a weight above 0")
        share = self.max_samples
        factor = share if isinstance(share, float) else (n_rows if share is None else share) / total
        return [factor * weight for weight in weights]

    @property
    def scores_left_out(self) -> bool:
        """Whether the finished forest is scored on the rows that trees have not drawn."""
        return self.oob_score is True and self.bootstrap

    @property
    def shows_numbers(self) -> bool:
        return self.sums == "plain"

    @property
    def allows_two(self) -> bool:
        return self.allow_two

    @property
    def needed(self) -> int | float | None:
        """How many clients a sum needs; None for all."""
        return wanted_quorum(self.spare_after, self.quorum)

    def declared(self) -> dict[str, NDArray[np.float64]]:
        """The declared edges of each column that has any.

        Raises
        ------
        ConfigError
            If they do not ascend.
        """
        edges = {name: np.array(some, np.float64) for name, some in self.bins}
        for name, some in edges.items():
            if not (np.isfinite(some).all() and (np.diff(some) > 0).all()):
                raise ConfigError(f"the declared bins of {name!r} must be finite edges in ascending order")
        return edges

    def thresholds(self, n_rows: int) -> NDArray[np.uint64]:
        """How often rows are drawn, of so many."""
        if not self.bootstrap:
            return np.empty(0, np.uint64)
        share = 1.0 if self.max_samples is None else self.max_samples
        rate = share / n_rows if isinstance(share, int) else share
        if rate > MAX_RATE:
            raise ConfigError(
                f"max_samples draws every row {rate:.0f} times on average, and at most {MAX_RATE:.0f} are possible; "
                "lower it"
            )
        return poisson_thresholds(rate)

    def is_drawn_by(self, thresholds: NDArray[np.uint64]) -> bool:
        """Client: whether rows are drawn like this; of a number of rows it does not know the share."""
        if isinstance(self.max_samples, int) and self.bootstrap:
            return len(thresholds) > 0
        return np.array_equal(thresholds, self.thresholds(1))

    @property
    def with_rows(self) -> bool:
        """Whether rows must be counted beside their weights, to know which nodes are too small."""
        limits = self.min_samples_leaf > 1 or self.min_samples_split > 2 or self.task == "targets"
        return (self.bootstrap or self.row_weights is True) and limits


def weight_bits(n_rows: int) -> int:
    """Bits after the point of weights that are added: the sum of so many rows' stays exact in a float."""
    return max(0, EXACT_BITS - MOST_WEIGHT_BITS - n_rows.bit_length())


def true_weights(class_sums: NDArray[np.int64], fraction_bits: int) -> list[float]:
    """Sums of weights, back from fixed point."""
    sums: list[float] = np.ldexp(class_sums.astype(np.float64), -fraction_bits).tolist()
    return sums


def fixed_targets(values: NDArray[np.float64], magnitude: int, target_bits: int) -> NDArray[np.int64]:
    """Targets between -2^magnitude and 2^magnitude as whole numbers from 0 to 2^target_bits."""
    if magnitude == NO_MAGNITUDE:
        return np.zeros(len(values), np.int64)
    scaled = np.ldexp(np.ldexp(values, -magnitude) + 1.0, target_bits - 1)
    return np.rint(scaled).astype(np.int64)


def true_targets(fixed: NDArray[np.float64], magnitude: int, target_bits: int) -> NDArray[np.float64]:
    """Back from `fixed_targets`, of means of such numbers."""
    if magnitude == NO_MAGNITUDE:
        return np.zeros(len(fixed))
    return np.ldexp(np.ldexp(fixed, 1 - target_bits) - 1.0, magnitude)
