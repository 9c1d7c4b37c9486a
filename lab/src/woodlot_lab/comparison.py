"""HoLT: whether x <= s, both encrypted under keys of their own. One comparison, as in the paper, corrected.

The coordinator makes beta = 2 (x - s) - 1, which is odd and negative wherever x <= s, blinds it to r beta + r' with
r' < r, flips its sign by a coin, and lets the helper open it. The helper tells, encrypted, whether it was negative.

The helper sees a number whose sign is a coin's. Its size still tells something of the difference: r is log-uniform, so
that a bit or so of six remains where a uniform r would show four; and r' keeps two views of one pair from having a
common divisor. `packed` shows the helper nothing, and is faster; this one is kept for the paper's message flow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from woodlot.crypto._libraries import gmp
from woodlot.crypto.dtpkc import Ciphertext, Group, PublicKey, Randomness, StrongShare
from woodlot.crypto.encoding import CODE_BITS
from woodlot.crypto.powers import secret_power
from woodlot.crypto.streams import SecretStream

BLIND_BITS = 256
"""Length of the longest blinding factor."""


@dataclass(frozen=True, eq=False, slots=True)
class Prepared:
    """One side of comparisons: a C1, and its power to the coordinator's share; the inverse of both for a split."""

    c1: Any
    half: Any


@dataclass(frozen=True, eq=False, slots=True, repr=False)
class Blinded:
    """What the helper opens, and the coin that only the coordinator knows."""

    coin: int
    c1: Any
    half: Any


class Comparer:
    """The coordinator's side.

    Parameters
    ----------
    share : StrongShare
        The coordinator's.
    stream : SecretStream
        For coins, blinding and, where no pool is used, re-randomisation.

    Attributes
    ----------
    key : PublicKey
        What a pool for re-randomisation is filled for.

    """

    def __init__(self, share: StrongShare, stream: SecretStream) -> None:
        self.group: Group = share.group
        self._share = share
        self._stream = stream
        self._blind_bits = min(BLIND_BITS, self.group.N.bit_length() - CODE_BITS - 4)
        # its randomness is g^r and the coordinator's half of that
        self.key = PublicKey(self.group, share.power([self.group.g])[0])

    def prepare_values(self, values: Sequence[Ciphertext], *, threads: int = 1) -> list[Prepared]:
        """Numbers of a request, each once however often it is compared."""
        self.group.check(*values)
        return self._prepare([value.c1 for value in values], threads)

    def prepare_splits(self, splits: Sequence[Ciphertext], *, threads: int = 1) -> list[Prepared]:
        """Splits of a forest, once and for all requests."""
        self.group.check(*splits)
        return self._prepare([gmp().invert(split.c1, self.group.N2) for split in splits], threads)

    def _prepare(self, elements: list[Any], threads: int) -> list[Prepared]:
        halves = self._share.power(elements, threads=threads)
        return [Prepared(c1, half) for c1, half in zip(elements, halves, strict=True)]

    def ask(
        self, value: Prepared, split: Prepared, *, pool: Randomness | None = None, coin: int | None = None
    ) -> Blinded:
        """What goes to the helper to know whether value <= split.

        Parameters
        ----------
        value, split : Prepared
            The two numbers.
        pool : Pool, optional
            Of `key`, filled beforehand.
        coin : int, optional
            For tests; drawn otherwise.

        """
        group, stream = self.group, self._stream
        modulus, n = group.N2, group.N
        coin = stream.bits(1) if coin is None else coin
        factor = stream.log_uniform(self._blind_bits)
        shift = stream.below(factor) - factor
        c1 = secret_power(value.c1 * split.c1 % modulus, 2 * factor, modulus) * (1 + shift * n) % modulus
        half = secret_power(value.half * split.half % modulus, 2 * factor, modulus)
        half = half * (1 + shift * self._share.exponent % n * n) % modulus
        if not coin:
            c1, half = gmp().invert(c1, modulus), gmp().invert(half, modulus)
        # a fresh power of g, which the strong key erases: the helper cannot recognise what it opened before
        half_blind, blind = self.key.randomness(stream) if pool is None else pool.take(self.key)
        return Blinded(coin, c1 * blind % modulus, half * half_blind % modulus)

    @staticmethod
    def answer(asked: Blinded, told: int) -> bool:
        """Whether value <= split, given what the helper told."""
        return bool(told) == bool(asked.coin)


def decide(share: StrongShare, c1: Sequence[Any], halves: Sequence[Any], *, threads: int = 1) -> list[int]:
    """The helper: 1 for each number that is negative.

    Raises
    ------
    CiphertextError
        If one does not open under both shares.

    """
    return [int(number < 0) for number in share.open(c1, halves, threads=threads)]
