"""Safe primes: p = 2 p' + 1 with p' prime.

One in some hundred thousand numbers of 1536 bits is a safe prime, so candidates p' = 6 k + 5 are sieved by all small
primes, for p' and for 2 p' + 1 at once, before the first exponentiation.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto._libraries import gmp
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import LocalProtocolError

MIN_BITS = 32
"""The shortest prime that is drawn: below, a sieve would cross out the prime itself."""

ROUNDS = 40
"""Miller-Rabin rounds; gmpy2 begins with a Baillie-PSW test."""

_SIEVE_LIMIT = 1 << 20
_WINDOW = 1 << 18
_CHUNK_BITS = 2000  # small primes are multiplied up to this, so that a long number is divided seldom


@cache
def _small_primes() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """All primes from 5 on, and the inverse of 6 modulo each."""
    alive = np.ones(_SIEVE_LIMIT + 1, bool)
    alive[:2] = False
    for number in range(2, int(_SIEVE_LIMIT**0.5) + 1):
        if alive[number]:
            alive[number * number :: number] = False
    primes = np.nonzero(alive)[0][2:].astype(np.int64)
    return primes, np.array([pow(6, -1, int(prime)) for prime in primes], np.int64)


def _residues(number: Any, primes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The number modulo each of the small primes."""
    mpz = gmp().mpz
    found = np.empty(len(primes), np.int64)
    start = 0
    while start < len(primes):
        product, end = mpz(1), start
        while end < len(primes) and product.bit_length() < _CHUNK_BITS:
            product *= int(primes[end])
            end += 1
        rest = int(number % product)
        found[start:end] = [rest % int(prime) for prime in primes[start:end]]
        start = end
    return found


def safe_prime(bits: int, stream: SecretStream) -> int:
    """A safe prime of exactly this length whose two highest bits are set, so that a product has twice the length.

    Parameters
    ----------
    bits : int
        Length of the prime.
    stream : SecretStream
        Where the search begins, again and again until a prime is found.

    """
    if bits < MIN_BITS:
        raise LocalProtocolError(f"safe primes are drawn from {MIN_BITS} bits on, not of {bits}")
    lib = gmp()
    primes, inverse = _small_primes()
    usable = primes < 1 << min(bits - 3, 60)
    primes, inverse = primes[usable], inverse[usable]
    half = (primes + 1) // 2
    while True:
        # p' has bits - 1 bits, the two highest of them set; p' = 5 (mod 6), as it must be for 2 p' + 1 to be prime
        base = 6 * (((lib.mpz(3) << (bits - 3)) | stream.bits(bits - 3)) // 6) + 5
        residue = _residues(base, primes)
        alive = np.ones(_WINDOW, bool)
        of_half = (-residue * inverse) % primes
        of_whole = (-((residue + half) % primes) * inverse) % primes
        for prime, first, second in zip(primes.tolist(), of_half.tolist(), of_whole.tolist(), strict=True):
            alive[first::prime] = False
            alive[second::prime] = False
        for place in np.nonzero(alive)[0].tolist():
            small = base + 6 * place
            large = 2 * small + 1
            likely = lib.powmod(2, small - 1, small) == 1 and lib.powmod(2, large - 1, large) == 1
            if likely and large.bit_length() == bits and is_safe_prime(large):
                return int(large)


def is_safe_prime(number: int) -> bool:
    """Whether the number is, but for a negligible chance, a safe prime."""
    lib = gmp()
    return number > 4 and lib.is_prime(lib.mpz(number) // 2, ROUNDS) and lib.is_prime(lib.mpz(number), ROUNDS)
