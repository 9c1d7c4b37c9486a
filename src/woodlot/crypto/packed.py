"""Many comparisons in one strong decryption, of which neither coordinator nor helper learns anything.

Differences x - s of several pairs stand side by side in one number, each in a slot of its own and under an additive
mask that only the dealer knows::

    slot i    x - s - 1 + 2^64  +  mask,     mask uniform of 65 + 64 bits

    ... |  0  |  difference  in 65 bits, under a mask of 129 bits  |  0  | ...       130 bits in all, the first lowest

    dealer         encrypts the masks of a pack                                       `conceal_masks`
    helper         multiplies ciphertexts of values, splits and masks: the pack;
                   raises it to a secret factor f                                     `blind`
    coordinator    raises that to its share of the strong key: half of a decryption   `StrongShare.power`
    helper         opens f * pack, and divides by f                                   `open_blinded`

The helper makes the pack itself, from ciphertexts that their owners have vouched for, so the coordinator has no say in
what is opened. Its half of the decryption is checked by the factor: a half that was changed adds an unknown c / f
modulo N, and the result falls into the range of a pack with a chance of about 2^-80 (3072 bits; 2^-96 at 2048).

x <= s where the difference without its mask is less than 2^64, that is where bit 64 of (slot - mask) is 0. That bit is
the two sides' bits 64 and the borrow from below: whether the low 64 bits of the slot are less than those of the mask,
which `dealer` compares.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from woodlot.crypto._libraries import gmp
from woodlot.crypto.dtpkc import Group, StrongShare, conceal
from woodlot.crypto.encoding import CODE_BITS
from woodlot.crypto.powers import secret_power
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import CiphertextError, LocalProtocolError

MASK_BITS = 64
"""By how much a mask is longer than what it hides: the helper's chance to see anything is 2^-64 per comparison."""

FACTOR_BITS = 256
"""Length of the helper's factors: too long to be found from a number and its power."""

_DIFFERENCE_BITS = CODE_BITS + 1
SLOT_BITS = _DIFFERENCE_BITS + MASK_BITS + 1
"""Bits of a slot: difference and mask never reach beyond it."""

_OFFSET = (1 << CODE_BITS) - 1


def slots(group: Group) -> int:
    """How many comparisons one ciphertext of this group takes."""
    return int((group.N.bit_length() - 2) // SLOT_BITS)


def packs(group: Group, count: int) -> int:
    """How many ciphertexts this many comparisons take."""
    return -(-count // slots(group))


def pack(numbers: Sequence[int], room: int) -> int:
    """Numbers side by side, the first one lowest.

    Raises
    ------
    LocalProtocolError
        If there are more than there is room for, or one is larger than its slot.

    """
    if len(numbers) > room:
        raise LocalProtocolError(f"{len(numbers)} numbers do not fit into {room} slots")
    packed = 0
    for number in reversed(numbers):
        if not 0 <= number < 1 << SLOT_BITS:
            raise LocalProtocolError(f"a slot takes numbers of 0 to {SLOT_BITS} bits")
        packed = packed << SLOT_BITS | number
    return packed


def unpack(packed: int, room: int) -> list[int]:
    """The numbers of `pack`, and zeros.

    Raises
    ------
    CiphertextError
        If the number is not one of so many slots: it was not opened as agreed, or something in it was too large.

    """
    if not 0 <= packed < 1 << (SLOT_BITS * room):
        raise CiphertextError(
            "an opened number is larger than its slots: the coordinator's half of the decryption was changed, or a "
            "difference was beyond 64 bits"
        )
    mask = (1 << SLOT_BITS) - 1
    return [packed >> SLOT_BITS * place & mask for place in range(room)]


def draw_masks(stream: SecretStream, count: int) -> list[int]:
    """The dealer: a mask for each comparison."""
    return [stream.bits(_DIFFERENCE_BITS + MASK_BITS) for _ in range(count)]


def conceal_masks(group: Group, masks: Sequence[int], stream: SecretStream) -> list[Any]:
    """The dealer: C1 of each pack of masks, for the helper to multiply with."""
    room = slots(group)
    return [
        conceal(group, pack([_OFFSET + mask for mask in masks[start : start + room]], room), stream)
        for start in range(0, len(masks), room)
    ]


@dataclass(frozen=True, eq=False, repr=False)
class BlindedPacks:
    """What the helper has the coordinator raise, and the factors that only the helper knows.

    Attributes
    ----------
    c1 : list
        A pack to its factor.
    factors : list of int
        One for each pack.

    """

    c1: list[Any]
    factors: list[int]


def blind(
    group: Group, values: Sequence[Any], inverted: Sequence[Any], masks: Sequence[Any], stream: SecretStream
) -> BlindedPacks:
    """The helper: packs of differences, each raised to a factor.

    Parameters
    ----------
    group : Group
        Where all of it lives.
    values : sequence
        C1 of the left side of each pair.
    inverted : sequence
        The inverse of C1 of the right side.
    masks : sequence
        From the dealer's `conceal_masks`; one for each pack.
    stream : SecretStream
        For the factors; never used for other packs.

    """
    modulus, powmod = group.N2, gmp().powmod
    room, shift = slots(group), gmp().mpz(1) << SLOT_BITS
    found, factors = [], []
    for number, mask in enumerate(masks):
        here = range(number * room, min((number + 1) * room, len(values)))
        c1 = gmp().mpz(1)
        for at in reversed(here):
            c1 = powmod(c1, shift, modulus) * (values[at] * inverted[at] % modulus) % modulus
        factor = 1 + stream.bits(FACTOR_BITS)
        found.append(secret_power(c1 * mask % modulus, factor, modulus))
        factors.append(factor)
    return BlindedPacks(found, factors)


def open_blinded(
    share: StrongShare, blinded: BlindedPacks, halves: Sequence[Any], count: int, *, threads: int = 1
) -> list[int]:
    """The helper: the slots of `count` comparisons, still under the dealer's masks.

    Raises
    ------
    CiphertextError
        If the halves are not those of these packs.

    """
    group = share.group
    if len(halves) != len(blinded.c1):
        raise CiphertextError(f"{len(blinded.c1)} packs need a half of each, not {len(halves)}")
    room = slots(group)
    numbers: list[int] = []
    for power, factor in zip(share.open(blinded.c1, halves, threads=threads), blinded.factors, strict=True):
        numbers += unpack(int(power * gmp().invert(factor, group.N) % group.N), room)
    return numbers[:count]
