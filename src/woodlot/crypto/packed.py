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
what is opened. A number that is longer than its slot reaches into others of its pack, and nobody proves that numbers
are short: so a pack has splits of one owner only (`arrange`), and what an owner disturbs are comparisons with its own.
The coordinator's half of the decryption is checked by the factor: a half that was changed adds an unknown c / f modulo
N, and the result falls into the range of a pack with a chance of about 2^-80 (3072 bits; 2^-96 at 2048).

x <= s where the difference without its mask is less than 2^64, that is where bit 64 of (slot - mask) is 0. That bit is
the two sides' bits 64 and the borrow from below: whether the low 64 bits of the slot are less than those of the mask,
which `dealer` compares.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto._libraries import gmp
from woodlot.crypto.dtpkc import Group, StrongShare, conceal
from woodlot.crypto.encoding import CODE_BITS
from woodlot.crypto.powers import secret_power
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import CiphertextError, LocalProtocolError, RemoteProtocolError

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


def pack_sizes(group: Group, count: int, owners: int = 1) -> list[int]:
    """How many slots are dealt in each pack of a step: enough however its comparisons are spread over the owners.

    Parameters
    ----------
    group : Group
        Whose numbers have so many slots.
    count : int
        The most comparisons of the step.
    owners : int
        The most owners of their splits.

    """
    room, most = slots(group), min(owners, count)
    n_packs = most + (count - most) // room  # one comparison opens a pack of its owner, and ``room`` more another
    return [min(room, count // place) for place in range(1, n_packs + 1)]  # that of rank j has at most count / j


def arrange(
    group: Group, owners: Sequence[Hashable], sizes: Sequence[int]
) -> tuple[list[list[int]], NDArray[np.int64]]:
    """Which comparisons stand in which pack: those with splits of one owner, and of no other.

    Helper and coordinator find the same by themselves.

    Parameters
    ----------
    group : Group
        Whose numbers have so many slots.
    owners : sequence
        Whose split each comparison is with.
    sizes : sequence of int
        From `pack_sizes`.

    Returns
    -------
    packs : list of list of int
        The comparisons of each pack.
    lines : int64 array
        For each comparison, its place among all slots that were dealt.

    Raises
    ------
    RemoteProtocolError
        If they do not fit.

    """
    room = slots(group)
    mine: dict[Hashable, list[int]] = {}
    for number, owner in enumerate(owners):
        mine.setdefault(owner, []).append(number)
    packs = [own[start : start + room] for own in mine.values() for start in range(0, len(own), room)]
    packs.sort(key=len, reverse=True)
    if len(packs) > len(sizes) or any(len(pack) > size for pack, size in zip(packs, sizes, strict=False)):
        raise RemoteProtocolError(f"{len(owners)} comparisons do not fit into the packs that were dealt for this step")
    starts = np.cumsum([0, *sizes])
    lines = np.empty(len(owners), np.int64)
    for pack, start in zip(packs, starts, strict=False):
        lines[pack] = start + np.arange(len(pack))
    return packs, lines


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


def conceal_masks(group: Group, masks: Sequence[int], stream: SecretStream, sizes: Sequence[int]) -> list[Any]:
    """The dealer: C1 of each pack of masks, for the helper to multiply with; of how many slots, `pack_sizes` says."""
    room, left = slots(group), iter(masks)
    return [conceal(group, pack([_OFFSET + next(left) for _ in range(size)], room), stream) for size in sizes]


@dataclass(frozen=True, eq=False, repr=False)
class BlindedPacks:
    """What the helper has the coordinator raise, and the factors that only the helper knows.

    Attributes
    ----------
    c1 : list
        A pack to its factor.
    factors : list of int
        One for each pack.
    packs : list of list of int
        The comparisons of each.

    """

    c1: list[Any]
    factors: list[int]
    packs: list[list[int]]


def blind(
    group: Group,
    values: Sequence[Any],
    inverted: Sequence[Any],
    masks: Sequence[Any],
    packs: list[list[int]],
    stream: SecretStream,
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
        From the dealer's `conceal_masks`; one for each pack, and there may be more.
    packs : list of list of int
        From `arrange`: the pairs of each pack.
    stream : SecretStream
        For the factors; never used for other packs.

    """
    modulus, powmod = group.N2, gmp().powmod
    shift = gmp().mpz(1) << SLOT_BITS
    found, factors = [], []
    for here, mask in zip(packs, masks, strict=False):
        c1 = gmp().mpz(1)
        for at in reversed(here):
            c1 = powmod(c1, shift, modulus) * (values[at] * inverted[at] % modulus) % modulus
        factor = 1 + stream.bits(FACTOR_BITS)
        found.append(secret_power(c1 * mask % modulus, factor, modulus))
        factors.append(factor)
    return BlindedPacks(found, factors, packs)


def open_blinded(share: StrongShare, blinded: BlindedPacks, halves: Sequence[Any], *, threads: int = 1) -> list[int]:
    """The helper: the slot of each comparison, still under the dealer's masks.

    Raises
    ------
    CiphertextError
        If the halves are not those of these packs.

    """
    group = share.group
    if len(halves) != len(blinded.c1):
        raise CiphertextError(f"{len(blinded.c1)} packs need a half of each, not {len(halves)}")
    room = slots(group)
    numbers = [0] * sum(map(len, blinded.packs))
    opened = share.open(blinded.c1, halves, threads=threads)
    for power, factor, here in zip(opened, blinded.factors, blinded.packs, strict=True):
        found = unpack(int(power * gmp().invert(factor, group.N) % group.N), room)
        for at, number in zip(here, found, strict=False):
            numbers[at] = number
    return numbers
