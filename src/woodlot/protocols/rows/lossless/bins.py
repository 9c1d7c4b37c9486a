"""Common bins of all columns of numbers: declared, or the exact quantiles of all clients' values.

::

    round 1      every client   missing values of each column; its values by the first 8 bits of their ordered form
    round 2-7    every client   by the next 4 bits, in the ranges that a quantile lies in

All answers are vectors of sums. Where every column has declared bins, only the missing values are counted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import ConfigError
from woodlot.protocols.core.bits import smallest_unsigned
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.rows.lossless.lossless_messages import CountValues
from woodlot.protocols.rows.schema import CommonSchema
from woodlot.protocols.sums import SumSession, sum_round
from woodlot.protocols.sums.sum_messages import SumOrder
from woodlot.trees.quantiles import DIGIT_BITS, VALUE_BITS, Bins, PooledColumn, declared_bins

PHASE = "bins"


@dataclass(frozen=True, eq=False)
class CommonColumns:
    """The codes that all clients have in common.

    Attributes
    ----------
    bins : tuple of Bins or None
        Of each column; None for categories.
    n_codes : int64 array
        Codes of values of each column; this number itself is the code of missing ones.
    categorical, has_missing : uint8 arrays
        1 for columns of categories; 1 where any client has a missing value.
    """

    bins: tuple[Bins | None, ...]
    n_codes: NDArray[np.int64]
    categorical: NDArray[np.uint8]
    has_missing: NDArray[np.uint8]

    def threshold(self, feature: int, low: int, high: int) -> float:
        """The question of a cut between two codes: halfway between their values; -1 as ``high`` for no value at all."""
        bins = self.bins[feature]
        if bins is None:
            return float("nan")
        return float("inf") if high < 0 else float(bins.below[low] / 2 + bins.above[high - 1] / 2)


def asking(kind: type[Message], **fields: Any) -> Callable[[SumOrder], Message]:
    """The request of a sum, but for its order."""
    return lambda order: kind(order=order, **fields)


def common_bins(
    session: SumSession, schema: CommonSchema, max_bins: int, declared: Mapping[str, NDArray[np.float64]], limit: int
) -> Generator[Round, dict[str, Message], CommonColumns]:
    """Coordinator: find the bins of all columns.

    Parameters
    ----------
    session : SumSession
        The sums.
    schema : CommonSchema
        The columns.
    max_bins : int
        The most bins of a column whose edges are not declared.
    declared : mapping of str to float64 array
        Ascending edges, by the columns' names.
    limit : int
        The most numbers of one message.

    Raises
    ------
    ConfigError
        If edges are declared for a column that is not numeric.
    """
    numeric = [f for f, categories in enumerate(schema.categories) if categories is None]
    wrong = sorted(set(declared) - {schema.names[f] for f in numeric})
    if wrong:
        raise ConfigError(f"bins are declared for {wrong}, which are no columns of numbers of this federation")
    undeclared = [f for f in numeric if schema.names[f] not in declared]
    pooled, missing = yield from _count_all(session, schema, undeclared, max_bins, limit)
    bins: list[Bins | None] = [None] * len(schema.names)
    for f in numeric:
        bins[f] = pooled[f].bins() if f in pooled else declared_bins(declared[schema.names[f]])
    n_codes = [
        len(categories or ()) if some is None else some.n_codes
        for some, categories in zip(bins, schema.categories, strict=True)
    ]
    return CommonColumns(
        tuple(bins),
        np.array(n_codes, np.int64),
        np.array([some is None for some in bins], np.uint8),
        (missing > 0).astype(np.uint8),
    )


def _count_all(
    session: SumSession, schema: CommonSchema, numeric: Sequence[int], max_bins: int, limit: int
) -> Generator[Round, dict[str, Message], tuple[dict[int, PooledColumn], NDArray[np.int64]]]:
    """The refined counts of some columns, and missing values of all.

    No client is spared here, whatever the quorum: values can be asked for in many words, and counted once with a client
    and once without it they would tell all of its own.
    """
    pooled = {f: PooledColumn(max_bins) for f in numeric}
    missing: NDArray[np.int64] = np.zeros(0, np.int64)
    bound = schema.count_bound()
    for known_bits, digit_bits in DIGIT_BITS.items():
        digits = 1 << digit_bits
        asked = [(f, prefix) for f, column in pooled.items() for prefix in column.due()]
        columns = np.array([f for f, _ in asked], np.int64)
        prefixes = np.array([prefix for _, prefix in asked], np.uint32)
        counts = np.empty((len(asked), digits), np.int64)
        at_once = max(1, limit // digits)
        for first in range(0, len(asked) if known_bits else max(1, len(asked)), at_once):
            some = slice(first, first + at_once)
            n_missing = len(schema.names) if known_bits == first == 0 else 0
            sums = yield from sum_round(
                session,
                PHASE,
                asking(
                    CountValues,
                    known_bits=known_bits,
                    with_missing=n_missing > 0,
                    column=smallest_unsigned(columns[some]),
                    prefix=prefixes[some],
                ),
                length=n_missing + len(columns[some]) * digits,
                bound=bound,
                progress=Progress(known_bits, VALUE_BITS, "common bins"),
                whole=True,
            )
            missing = sums[:n_missing] if n_missing else missing
            counts[some] = sums[n_missing:].reshape(-1, digits)
        for f, column in pooled.items():
            column.refine(counts[columns == f])
    return pooled, missing
