"""Many comparisons in one strong decryption, of which the helper learns nothing.

The coordinator puts differences x - s of several pairs side by side into one number, each in a slot of its own and
under an additive mask that it alone knows::

    slot i    x - s - 1 + 2^64  +  mask,     mask uniform of 65 + 64 bits

    |  0  |  difference  in 65 bits, under a mask of 129 bits  |  0  | ...       130 bits in all

The helper opens the number and has the masked slots. x <= s where the difference without its mask is less than 2^64,
that is where bit 64 of (slot - mask) is 0. That bit is the two sides' bits 64 and the borrow from below: whether the
low 64 bits of the slot are less than those of the mask, which `dealer` compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto._libraries import gmp
from woodlot.crypto.dtpkc import Ciphertext, Group, StrongShare
from woodlot.crypto.encoding import CODE_BITS
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import CiphertextError, LocalProtocolError

MASK_BITS = 64
"""By how much a mask is longer than what it hides: the helper's chance to see anything is 2^-64 per comparison."""

_DIFFERENCE_BITS = CODE_BITS + 1
SLOT_BITS = _DIFFERENCE_BITS + MASK_BITS + 1
"""Bits of a slot: difference and mask never reach beyond it."""

_OFFSET = (1 << CODE_BITS) - 1
_LOW = (1 << CODE_BITS) - 1


def slots(group: Group) -> int:
    """How many comparisons one ciphertext of this group takes."""
    return int((group.N.bit_length() - 2) // SLOT_BITS)


def pack(numbers: Sequence[int], room: int) -> int:
    """Numbers side by side, the first one highest.

    Raises
    ------
    LocalProtocolError
        If there are more than there is room for, or one is larger than its slot.

    """
    if len(numbers) > room:
        raise LocalProtocolError(f"{len(numbers)} numbers do not fit into {room} slots")
    packed = 0
    for number in numbers:
        if not 0 <= number < 1 << SLOT_BITS:
            raise LocalProtocolError(f"a slot takes numbers of 0 to {SLOT_BITS} bits")
        packed = packed << SLOT_BITS | number
    return packed


def unpack(packed: int, count: int) -> list[int]:
    """The numbers of `pack`.

    Raises
    ------
    CiphertextError
        If the number is not one of so many slots: something in it was larger than agreed.

    """
    if not 0 <= packed < 1 << (SLOT_BITS * count):
        raise CiphertextError("an opened number is larger than its slots: a difference was beyond 64 bits")
    mask = (1 << SLOT_BITS) - 1
    return [packed >> SLOT_BITS * place & mask for place in reversed(range(count))]


@dataclass(frozen=True, eq=False, repr=False)
class Halves:
    """One side of comparisons that are not decided yet: what the dealer's part needs of it.

    Attributes
    ----------
    low : uint64 array
        The low 64 bits of each slot, or of its mask.
    top : uint8 array
        The bit above them.

    """

    low: NDArray[np.uint64]
    top: NDArray[np.uint8]

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Halves:
        """The two parts of each number that matter."""
        return cls(
            np.array([number & _LOW for number in numbers], np.uint64),
            np.array([number >> CODE_BITS & 1 for number in numbers], np.uint8),
        )


@dataclass(frozen=True, eq=False)
class PackedQuestion:
    """What goes to the helper, and the coordinator's masks.

    Attributes
    ----------
    c1, halves : list
        The packed differences' C1s, and the coordinator's half of their strong decryption.
    masks : Halves
        Of all comparisons, in order.

    """

    c1: list[Any]
    halves: list[Any]
    masks: Halves


def invert_splits(splits: Sequence[Ciphertext]) -> list[Any]:
    """What `ask` needs of splits; once and for all requests."""
    invert = gmp().invert
    return [invert(split.c1, split.group.N2) for split in splits]


def ask(
    share: StrongShare,
    values: Sequence[Any],
    inverted: Sequence[Any],
    stream: SecretStream,
    *,
    threads: int = 1,
) -> PackedQuestion:
    """The coordinator: pack the differences of pairs.

    Parameters
    ----------
    share : StrongShare
        The coordinator's.
    values : sequence
        C1 of the left side of each pair.
    inverted : sequence
        Of the right sides, from `invert_splits`.
    stream : SecretStream
        For masks and re-randomisation.
    threads : int
        For the decryptions.

    """
    group = share.group
    modulus, n, powmod = group.N2, group.N, gmp().powmod
    room, shift = slots(group), gmp().mpz(1) << SLOT_BITS
    masks = [stream.bits(_DIFFERENCE_BITS + MASK_BITS) for _ in values]
    packs = []
    for start in range(0, len(masks), room):
        here = range(start, min(start + room, len(masks)))
        c1 = None
        for at in here:
            difference = values[at] * inverted[at] % modulus
            c1 = difference if c1 is None else powmod(c1, shift, modulus) * difference % modulus
        offset = pack([_OFFSET + masks[at] for at in here], room)
        c1 = c1 * (1 + offset * n) % modulus
        packs.append(c1 * group.tables.power(group.g, group.draw(stream)) % modulus)
    return PackedQuestion(packs, share.power(packs, threads=threads), Halves.of(masks))


def open_slots(share: StrongShare, c1: Sequence[Any], halves: Sequence[Any], count: int, *, threads: int = 1) -> Halves:
    """The helper: open packed differences of `count` comparisons, still masked.

    Raises
    ------
    CiphertextError
        If they do not open, or are not so many.

    """
    room = slots(share.group)
    if len(c1) != -(-count // room) or len(halves) != len(c1):
        raise CiphertextError(f"{count} comparisons need {-(-count // room)} ciphertexts of {room} slots")
    numbers: list[int] = []
    for packed in share.open(c1, halves, threads=threads):
        numbers += unpack(packed, min(room, count - len(numbers)))
    return Halves.of(numbers)


def result_shares(side: Halves, less: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """One side's share of each answer: the exclusive or of both shares is 1 where the value is larger than the split.

    `less` is its share of whether the low bits of the slot are less than those of the mask.
    """
    return side.top ^ less
