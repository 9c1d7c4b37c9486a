"""Several numbers in one plaintext, side by side.

Numbers are packed under encryption by Horner's rule: shift what is there, add the next. A number that outgrew its place
would spoil its neighbour without a trace, so places are made for the largest sum that there can be, and a plaintext
that has more in it than its places is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from woodlot.crypto.paillier import PaillierPublicKey
from woodlot.exceptions import CiphertextError, LocalProtocolError


def sum_bits(value_bits: int, weight: int) -> int:
    """Bits of a sum of numbers, each at most ``2**value_bits``, that weigh so much together."""
    return value_bits + max(1, int(weight).bit_length())


def layout(widths: Sequence[int], capacity: int) -> list[range]:
    """Which numbers go into each plaintext: one after the other, as many as there is room for.

    Parameters
    ----------
    widths : sequence of int
        Bits of each number.
    capacity : int
        Bits of a plaintext.

    Raises
    ------
    LocalProtocolError
        If a number is wider than a plaintext.

    """
    groups, start, used = [], 0, 0
    for i, width in enumerate(widths):
        if not 0 < width <= capacity:
            raise LocalProtocolError(f"a number of {width} bits does not fit into a plaintext of {capacity}")
        if used + width > capacity:
            groups.append(range(start, i))
            start, used = i, 0
        used += width
    if len(widths):
        groups.append(range(start, len(widths)))
    return groups


def pack(key: PaillierPublicKey, ciphers: Sequence[Any], widths: Sequence[int]) -> list[Any]:
    """Ciphertexts of several numbers each; who has not the key cannot tell how many are in one.

    The caller vouches that each number fits its width: nobody can see it here.
    """
    square, packed = key.square, []
    for group in layout(widths, key.plaintext_bits):
        last = group[-1]
        held = ciphers[last]
        for i in reversed(group[:-1]):
            for _ in range(widths[i]):  # doubling; faster than an exponentiation by so small a power of two
                held = held * held % square
            held = held * ciphers[i] % square
        packed.append(held)
    return packed


def unpack(plains: Sequence[int], widths: Sequence[int], capacity: int) -> list[int]:
    """The numbers in some plaintexts.

    Raises
    ------
    CiphertextError
        If there is another number of plaintexts, or more in one than its places hold.

    """
    groups = layout(widths, capacity)
    if len(groups) != len(plains):
        raise CiphertextError(f"{len(widths)} numbers are in {len(groups)} plaintexts, not in {len(plains)}")
    found = []
    for group, plain in zip(groups, plains, strict=True):
        for i in group:
            found.append(plain & ((1 << widths[i]) - 1))
            plain >>= widths[i]
        if plain:
            raise CiphertextError("a plaintext has more in it than was packed: of another key, or changed")
    return found
