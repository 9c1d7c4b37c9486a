"""Whether one side's 64-bit number is less than the other's, with randomness that a third one has dealt beforehand.

The helper has z, the coordinator has b, the key centre deals. Both sides end with a bit that means nothing alone; the
exclusive or of the bits says whether z < b. Numbers are cut into 8 bytes, the highest first::

    dealer -> coordinator    c (8 bytes), the pads at c, its shares of masks and their products
           -> helper         nothing: all of its part is made from a key that the two have in common
    coordinator -> helper    d = b xor c
    helper -> coordinator    for every byte and each of 256 values j of b's byte: [z < j] and [z == j], each under a
                             mask bit and the pad at j xor d: only that at j = b can be read
    coordinator -> helper    the 15 masked bits: less-than of 8 bytes, equality of the upper 7

    z < b  =  xor over i of  less_i  and  equal_0 and ... and equal_(i-1)

Both have shares of every product of the mask bits that occurs here (382 of them), so they compute their shares of the
result from the masked bits alone. Dealt randomness is good for one comparison: twice would tell differences.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import RemoteProtocolError

Bytes2 = NDArray[np.uint8]
"""One line of bytes per comparison."""

BYTES = 8
"""Bytes of a number."""

_EQUALS = BYTES - 1
_PLANES = BYTES + _EQUALS  # less-than of every byte, equality of all but the last
_PLANE_BYTES = 256 // 8
_SETS = 1 << _EQUALS  # sets of equality masks, the empty one among them
_PRODUCTS = (_SETS - 1) + (2**BYTES - 1)

TABLE_BYTES = _PLANES * _PLANE_BYTES
"""Bytes of the helper's tables for one comparison."""

MASKED_BYTES = 2
"""Bytes of the 15 masked bits."""

PRODUCT_BYTES = -(-_PRODUCTS // 8)
"""Bytes of one side's shares of masks and products."""

_HELPER_BYTES = TABLE_BYTES + PRODUCT_BYTES
_BLOCK = 512  # comparisons that are worked on at a time, for the sake of memory


@dataclass(frozen=True, eq=False, repr=False)
class Dealt:
    """The coordinator's part, one line per comparison.

    Attributes
    ----------
    choices : uint8 array of 8 columns
        c.
    pads : uint8 array of 2 columns
        The pads at c, as bits.
    products : uint8 array of 48 columns
        Shares of masks and products, as bits.

    """

    choices: Bytes2
    pads: Bytes2
    products: Bytes2

    def __len__(self) -> int:
        return len(self.choices)

    def take(self, start: int, stop: int) -> Dealt:
        """Some of them."""
        return Dealt(self.choices[start:stop], self.pads[start:stop], self.products[start:stop])


def _bits(lines: Bytes2, count: int) -> NDArray[np.uint8]:
    return np.unpackbits(lines, axis=1, count=count, bitorder="little")


def _packed(bits: NDArray[Any]) -> Bytes2:
    return np.packbits(bits.astype(np.uint8, copy=False), axis=1, bitorder="little")


def _helper_part(stream: SecretStream, count: int) -> tuple[Bytes2, Bytes2]:
    """The helper's pads and shares. Those of a comparison stand together: fewer are the first of more."""
    lines = np.frombuffer(stream.bytes(count * _HELPER_BYTES), np.uint8).reshape(count, _HELPER_BYTES)
    return lines[:, :TABLE_BYTES], lines[:, TABLE_BYTES:]


def _products(masks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """All products that occur, of 8 less-than masks and 7 equality masks per line, in the order of the shares."""
    sets = np.ones((len(masks), 1), np.uint8)
    found = []
    for place in range(BYTES):
        found.append(sets & masks[:, place : place + 1])
        if place < _EQUALS:
            sets = np.concatenate([sets, sets & masks[:, BYTES + place : BYTES + place + 1]], axis=1)
    return np.concatenate([sets[:, 1:], *found], axis=1)


def deal(count: int, helper: SecretStream, own: SecretStream) -> Dealt:
    """The dealer: the coordinator's part of this many comparisons.

    Parameters
    ----------
    count : int
        How many.
    helper : SecretStream
        From the key that dealer and helper have in common.
    own : SecretStream
        The dealer's.

    """
    pads, shares = _helper_part(helper, count)
    # here too those of a comparison stand together: dealt again for more, what is a mask is never shown as a choice
    lines = np.frombuffer(own.bytes(count * (BYTES + MASKED_BYTES)), np.uint8).reshape(count, BYTES + MASKED_BYTES)
    choices, masks = np.ascontiguousarray(lines[:, :BYTES]), _bits(lines[:, BYTES:], _PLANES)
    planes = pads.reshape(count, _PLANES, _PLANE_BYTES)
    chosen = np.concatenate([choices, choices[:, :_EQUALS]], axis=1)  # the byte that each plane belongs to
    at = np.take_along_axis(planes, (chosen >> 3)[:, :, None].astype(np.intp), 2)[:, :, 0] >> (chosen & 7) & 1
    return Dealt(choices, _packed(at), _packed(_products(masks) ^ _bits(shares, _PRODUCTS)))


def _line_bytes(numbers: NDArray[np.uint64]) -> Bytes2:
    """Bytes of numbers, the highest first."""
    return numbers.astype(">u8").view(np.uint8).reshape(-1, BYTES)


def _planes_of(lines: Bytes2) -> Bytes2:
    """The byte that each of the 15 planes belongs to."""
    return np.concatenate([lines, lines[:, :_EQUALS]], axis=1)


def choose(dealt: Dealt, numbers: NDArray[np.uint64]) -> Bytes2:
    """The coordinator: d of its numbers b."""
    return _line_bytes(numbers) ^ dealt.choices


def tabulate(stream: SecretStream, numbers: NDArray[np.uint64], chosen: Bytes2) -> Bytes2:
    """The helper: the tables for its numbers z, as the coordinator's d asks.

    Raises
    ------
    RemoteProtocolError
        If there is not one d for each number.

    """
    count = len(numbers)
    if chosen.shape != (count, BYTES):
        raise RemoteProtocolError(f"{count} comparisons need {BYTES} bytes each of what was chosen")
    pads, shares = _helper_part(stream, count)
    masks = _own_masks(_bits(shares, _PRODUCTS))
    every = np.arange(256, dtype=np.uint8)
    lines, tables = _line_bytes(numbers), np.empty((count, TABLE_BYTES), np.uint8)
    for start in range(0, count, _BLOCK):
        part = slice(start, start + _BLOCK)
        own = lines[part, :, None]
        truth = np.concatenate([own < every, own[:, :_EQUALS] == every], axis=1).astype(np.uint8)
        padding = np.unpackbits(pads[part].reshape(len(own), _PLANES, _PLANE_BYTES), axis=2, bitorder="little")
        where = every ^ _planes_of(chosen[part])[:, :, None]
        hidden = truth ^ masks[part][:, :, None] ^ np.take_along_axis(padding, where.astype(np.intp), 2)
        tables[part] = np.packbits(hidden, axis=2, bitorder="little").reshape(len(own), TABLE_BYTES)
    return tables


def _own_masks(shares: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """A side's shares of the 15 masks: products of one factor."""
    less = [_SETS - 1 + (1 << place) - 1 for place in range(BYTES)]
    equal = [(1 << place) - 1 for place in range(_EQUALS)]
    return shares[:, less + equal]


def unmask(dealt: Dealt, numbers: NDArray[np.uint64], tables: Bytes2) -> Bytes2:
    """The coordinator: the 15 masked bits of each comparison, which both sides may know.

    Raises
    ------
    RemoteProtocolError
        If the tables are not those of so many comparisons.

    """
    count = len(numbers)
    if tables.shape != (count, TABLE_BYTES):
        raise RemoteProtocolError(f"{count} comparisons need tables of {TABLE_BYTES} bytes each")
    own = _planes_of(_line_bytes(numbers))
    planes = tables.reshape(count, _PLANES, _PLANE_BYTES)
    read = np.take_along_axis(planes, (own >> 3)[:, :, None].astype(np.intp), 2)[:, :, 0] >> (own & 7) & 1
    return _packed(read ^ _bits(dealt.pads, _PLANES) ^ _own_masks(_bits(dealt.products, _PRODUCTS)))


def _less(masked: Bytes2, shares: NDArray[np.uint8], *, has_one: bool) -> NDArray[np.uint8]:
    """A side's share of the result; `has_one` is the side that holds the empty product."""
    bits = _bits(masked, _PLANES)
    empty = np.full((len(bits), 1), int(has_one), np.uint8)
    sets = np.concatenate([empty, shares[:, : _SETS - 1]], axis=1)
    factors = np.ones((len(bits), 1), np.uint8)  # of each set: the masked bits of the equalities outside it
    result = np.zeros(len(bits), np.uint8)
    for place in range(BYTES):
        width = 1 << place
        products = shares[:, _SETS - 1 + width - 1 : _SETS - 1 + 2 * width - 1]
        terms = factors & ((bits[:, place : place + 1] & sets[:, :width]) ^ products)
        result ^= np.bitwise_xor.reduce(terms, axis=1)
        if place < _EQUALS:
            factors = np.concatenate([factors & bits[:, BYTES + place : BYTES + place + 1], factors], axis=1)
    return result


def coordinator_share(dealt: Dealt, masked: Bytes2) -> NDArray[np.uint8]:
    """The coordinator's share of each [z < b]."""
    return _less(masked, _bits(dealt.products, _PRODUCTS), has_one=True)


def helper_share(stream: SecretStream, masked: Bytes2) -> NDArray[np.uint8]:
    """The helper's share of each [z < b], from the same stream as its tables.

    Raises
    ------
    RemoteProtocolError
        If the masked bits are none.

    """
    if masked.ndim != 2 or masked.shape[1] != MASKED_BYTES:
        raise RemoteProtocolError(f"a comparison has {MASKED_BYTES} bytes of masked bits")
    return _less(masked, _bits(_helper_part(stream, len(masked))[1], _PRODUCTS), has_one=False)
