"""Gaussian noise on whole numbers that several clients add together, drawn exactly and in bulk.

Many clients sum vectors; the sum shall be private, and no single client's vector is seen. Then the noise is needed once
and not once per client: each adds a share, and the shares add up (`SharedNoise`). Whoever knows some of the shares can
take them off, so enough must be left for those who do not collude.

Notation: a mechanism with noise of standard deviation sigma on a vector that one row changes by at most S (its length)
has mu = S / sigma. Several of them, however each depends on the answers before it, have together the root of the sum of
their mu squared (Dong, Roth and Su 2022). `gaussian_delta` is the exact delta of a mu for an epsilon (Balle and Wang
2018).

These are formulas of the normal distribution. What is drawn are whole numbers: a discrete Gaussian has at each whole
number the density of the normal distribution, but for a common factor. With as many steps per standard deviation as
here (`SHARE`) the two differ in epsilon by far less than a thousandth, for which sigma is raised by `MARGIN`; the tests
compute the exact delta of discrete noise, and of sums of shares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from woodlot.privacy.accounting import check_delta, check_epsilon
from woodlot.privacy.derivation import open_stream

SHARE = 4**14
"""Variance of one client's share, in squared steps: 16,384 steps per standard deviation."""
MARGIN = 1e-3
"""By how much sigma is larger than the normal distribution needs it to be."""
_DEVIATIONS = 12
"""Where the table of the noise ends: beyond it are less than 2^-105 of all draws."""
_LARGEST = 700.0
_BITS = 256
_WORD = 64


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The smallest delta with which a Gaussian mechanism of this mu has this epsilon."""
    if mu == 0:
        return 0.0
    # beyond what a float holds the second term is left smaller than it is, which makes delta larger
    return _normal(mu / 2 - epsilon / mu) - math.exp(min(epsilon, _LARGEST)) * _normal(-mu / 2 - epsilon / mu)


def _normal(x: float) -> float:
    """Distribution function of the normal distribution; exact in relative terms also far below 0."""
    return math.erfc(-x / math.sqrt(2)) / 2


def mu_for(epsilon: float, delta: float) -> float:
    """The largest mu that keeps to an epsilon and a delta, not rounded up.

    Raises
    ------
    ValueError
        If there is none: Gaussian noise needs a delta above 0.

    """
    check_epsilon(epsilon)
    check_delta(delta)
    if delta <= 0:
        raise ValueError("delta must be above 0: Gaussian noise keeps to an epsilon but for a small chance only")
    low, high = 0.0, 1.0
    while gaussian_delta(high, epsilon) <= delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(middle, epsilon) <= delta else (low, middle)
    return low


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon that a Gaussian mechanism of this mu has with a delta, not rounded down."""
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    low, high = 0.0, 1.0
    while gaussian_delta(mu, high) > delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(mu, middle) <= delta else (middle, high)
    return high


@dataclass(frozen=True)
class SharedNoise:
    """The noise of sums over clients. It is always the same; what differs is in how many steps a row is counted.

    Attributes
    ----------
    n_clients : int
        How many clients add a share of variance `SHARE`.
    colluding : int
        How many of them may tell their shares.

    Raises
    ------
    ValueError
        If no client is left that does not collude.

    """

    n_clients: int
    colluding: int = 0

    def __post_init__(self) -> None:
        if self.n_clients - self.colluding < 1:
            raise ValueError(
                f"colluding={self.colluding} of {self.n_clients} clients leaves none to add noise: it must be less "
                "than their number"
            )

    def longest(self, mu: float) -> float:
        """By how many steps a row may change the sums, as the length of a vector, where they are to keep to a mu."""
        return mu * math.sqrt(SHARE * (self.n_clients - self.colluding)) / (1 + MARGIN)

    @property
    def deviation(self) -> float:
        """Standard deviation of the noise of a sum, in steps."""
        return math.sqrt(SHARE * self.n_clients)

    def mu_against(self, known: int, length: float) -> float:
        """The mu against who knows the shares of so many clients, of rows of this length; infinite against all."""
        others = self.n_clients - known
        return math.inf if others < 1 else length / math.sqrt(SHARE * others)


def draw_share(key: bytes, n: int) -> NDArray[np.int64]:
    """One client's share of the noise of so many sums, derived from a key of 32 bytes that is used for nothing else.

    The same key gives the same noise: an answer that is asked for again, also after a crash, is the same.
    """
    return draw_gaussian(SHARE, key, n)


# --- drawing ---


def draw_gaussian(variance: int, key: bytes, n: int) -> NDArray[np.int64]:
    """Discrete Gaussian numbers by inversion, from the stream of a key.

    A word of the stream is compared with the first 64 bits of the exact table. Where it equals one of them, which is
    once in 2^45 draws or less, the bits that follow decide, so that nothing is rounded before the 256th bit.
    """
    bounds, exact = gaussian_table(variance)
    stream = open_stream(key)
    words = np.frombuffer(stream(8 * n), "<u8")
    negative = np.unpackbits(np.frombuffer(stream((n + 7) // 8), np.uint8), count=n).astype(np.bool_)
    size = np.searchsorted(bounds, words, side="right").astype(np.int64)
    ties = np.flatnonzero((size > 0) & (bounds[np.maximum(size, 1) - 1] == words))
    for i in ties.tolist():
        tail = int.from_bytes(stream((_BITS - _WORD) // 8), "little")
        size[i] = resolve(exact, (int(words[i]) << (_BITS - _WORD)) | tail)
    return np.where(negative, -size, size)


def resolve(exact: tuple[int, ...], point: int) -> int:
    """The number whose part of the line from 0 to 2^256 a point lies in."""
    low, high = 0, len(exact)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if exact[middle] <= point else (low, middle)
    return low


@lru_cache(maxsize=2)
def gaussian_table(variance: int) -> tuple[NDArray[np.uint64], tuple[int, ...]]:
    """Where the part of each absolute value ends on a line from 0 to 2^256; its first 64 bits, and all of them.

    The weight of k is exp(-k^2 / (2 variance)), twice for k > 0 as it stands for -k too. The next weight is the one
    before it times a ratio, and the next ratio the one before it times a constant: two multiplications of whole numbers
    for each.
    """
    shift = _BITS + _WORD  # bits after the point
    context = Context(prec=110)
    start = context.exp(context.divide(Decimal(-1), Decimal(2 * variance)))
    ratio = int(context.multiply(start, Decimal(1 << shift)))
    factor = ratio * ratio >> shift
    weight = total = 1 << shift
    ends = [total]
    for _ in range(_DEVIATIONS * math.isqrt(variance)):
        weight = weight * ratio >> shift
        ratio = ratio * factor >> shift
        total += 2 * weight
        ends.append(total)
    inverse = (1 << (2 * shift)) // total
    exact = tuple(end * inverse >> (2 * shift - _BITS) for end in ends[:-1])
    return np.array([end >> (_BITS - _WORD) for end in exact], np.uint64), exact
