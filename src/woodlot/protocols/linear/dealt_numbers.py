"""Whole numbers modulo 2**128 for products under masks, and how residuals, columns and scores become such numbers.

A number is two 64-bit words, the low one first. A slope is a sum over rows of a residual times a value of a column. The
absolute residuals of a score add up to 1 at most: of classes because those of a row are its weight at most, of squares
because their mean square only falls from 1. A residual has 62 bits after the point and a value 52, so a slope has less
than 2**115 and the sum is exact: nothing wraps, and nothing is cut off.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import LocalProtocolError, RemoteProtocolError
from woodlot.privacy.derivation import derive_key, open_stream
from woodlot.protocols.linear.linear_model import Matrix
from woodlot.trees.kernels.products import sum_products

Wide = NDArray[np.uint64]
"""Numbers modulo 2**128: the last axis has the low and the high word."""

RESIDUAL_BITS = 62
"""Bits of a residual after the point: that many fit a word with a sign."""
COLUMN_BITS = 52
"""Bits of the largest value of a column: that many are exact in a float."""
SCORE_BITS = 96
"""Bits of a score after the point: the last directions are short, and must still be exact."""
PRODUCT_BITS = (40, 140)
"""Bits after the point of a product of directions, and of what these leave: lengths have no natural size."""
LARGEST = 2.0**24
"""Of scores; the scores of many parties must fit when they are added up."""
NUMBER_BYTES = 16

_SLACK = 1e-6  # by how much rounding may make residuals larger


def masks_of(key: bytes, purpose: str, *about: int | str | bytes, shape: tuple[int, ...]) -> Wide:
    """Uniform numbers that follow from a key, for one purpose and what they are about."""
    parts = (part if isinstance(part, bytes) else str(part).encode() for part in (*about, *shape))
    data = open_stream(derive_key(key, purpose, *parts))(NUMBER_BYTES * int(np.prod(shape)))
    return np.frombuffer(data, np.uint64).reshape(*shape, 2)


def plus(one: Wide, other: Wide) -> Wide:
    """The sum of two arrays of numbers."""
    found = one + other
    found[..., 1] += found[..., 0] < one[..., 0]
    return found


def minus(one: Wide, other: Wide) -> Wide:
    """The difference of two arrays of numbers."""
    found = one - other
    found[..., 1] -= one[..., 0] < other[..., 0]
    return found


def from_whole(numbers: NDArray[np.int64]) -> Wide:
    """Whole numbers of 64 bits as they are."""
    return np.stack([numbers, numbers >> 63], axis=-1).view(np.uint64)


def from_floats(values: Matrix, bits: int) -> Wide:
    """Multiples of 2**-bits; values are below 2**(127 - bits)."""
    whole = np.rint(np.ldexp(np.abs(values), bits))
    high = np.floor(np.ldexp(whole, -64))
    low = whole - np.ldexp(high, 64)  # exact: both are multiples of the last bit of the value, and of one sign
    size = np.stack([low.astype(np.uint64), high.astype(np.uint64)], axis=-1)
    return np.where((values < 0)[..., None], minus(np.zeros_like(size), size), size)


def to_floats(numbers: Wide, bits: int) -> Matrix:
    """What multiples of 2**-bits, with a sign, are."""
    negative = numbers[..., 1] >> np.uint64(63) == 1
    size = np.where(negative[..., None], minus(np.zeros_like(numbers), numbers), numbers)
    found = np.ldexp(size[..., 1].astype(np.float64), 64) + size[..., 0].astype(np.float64)
    return np.asarray(np.ldexp(np.where(negative, -found, found), -bits))


def products_of(left: Wide, right: Wide) -> Wide:
    """Sums over rows: of every vector on the left times every vector on the right."""
    found = np.empty((len(left), len(right), 2), np.uint64)
    sum_products(left, right, found)
    return found


def read_wide(words: NDArray[np.uint64], shape: tuple[int, ...], what: str) -> Wide:
    """Numbers of this shape from their words as they travel."""
    if len(words) != 2 * int(np.prod(shape)):
        raise RemoteProtocolError(f"{what} must have {int(np.prod(shape)):,} numbers of 16 bytes")
    return np.ascontiguousarray(words).reshape(*shape, 2)


def residual_numbers(residuals: Matrix) -> Wide:
    """Residuals by score and row."""
    if (np.abs(residuals).sum(axis=0) > 1 + _SLACK).any():
        raise LocalProtocolError("residuals have outgrown their numbers: the loss has risen")
    whole = np.rint(np.ldexp(residuals.T, RESIDUAL_BITS)).astype(np.int64)
    return from_whole(np.ascontiguousarray(whole))


def score_numbers(scores: Matrix) -> Wide:
    """Scores as they are added up."""
    if not (np.abs(scores) < LARGEST).all():
        raise LocalProtocolError("scores are too large to be added up under masks; use standardize=True")
    return from_floats(scores, SCORE_BITS)


def scores_of(numbers: Wide) -> Matrix:
    """What sums of `score_numbers` are."""
    return to_floats(numbers, SCORE_BITS)


def product_numbers(products: Matrix) -> Wide:
    """Products of directions as they are added up: a coarse and a fine part of each."""
    if not (np.abs(products) < LARGEST * 2.0 ** PRODUCT_BITS[0]).all():
        raise LocalProtocolError("weights are too large to be added up under masks; use standardize=True")
    coarse = from_floats(products, PRODUCT_BITS[0])
    return np.stack([coarse, from_floats(products - to_floats(coarse, PRODUCT_BITS[0]), PRODUCT_BITS[1])])


def products_told(numbers: Wide) -> Matrix:
    """What sums of `product_numbers` are."""
    return to_floats(numbers[0], PRODUCT_BITS[0]) + to_floats(numbers[1], PRODUCT_BITS[1])


@dataclass(frozen=True, eq=False)
class WholeColumns:
    """A party's columns as whole numbers.

    Attributes
    ----------
    numbers : int64 array of shape (columns, rows)
        Below 2**52.
    exponents : int64 array
        By which power of two each column was multiplied.
    """

    numbers: NDArray[np.int64]
    exponents: NDArray[np.int64]

    @classmethod
    def of(cls, matrix: Matrix) -> WholeColumns:
        """Round each column, relative to its largest value."""
        exponents = (COLUMN_BITS - np.frexp(np.abs(matrix).max(axis=0, initial=0.0))[1]).astype(np.int64)
        whole = np.rint(np.ldexp(matrix, exponents)).astype(np.int64)
        return cls(np.ascontiguousarray(whole.T), exponents)

    @property
    def matrix(self) -> Matrix:
        """The columns as they are multiplied: the same numbers must make scores, so that both are of one loss."""
        return np.asarray(np.ldexp(self.numbers.T.astype(np.float64), -self.exponents))

    def slopes(self, numbers: Wide) -> Matrix:
        """Slopes by column and score, from sums of residuals times these numbers."""
        return np.asarray(np.ldexp(to_floats(numbers, RESIDUAL_BITS), -self.exponents[:, None]))
