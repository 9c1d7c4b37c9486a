"""Paillier's cryptosystem over gmpy2: ciphertexts that can be added.

A ciphertext of m is (1 + n)^m noise modulo n^2, where noise is a random n-th residue. Noise is made as Damgard, Jurik
and Nielsen do: p and q are 3 modulo 4, gcd(p - 1, q - 1) is 2, and noise is h^x for h = (-y^2)^n, with y random and x a
random exponent of half the length of n. Powers of h come from a table. The owner of the key makes noise modulo p^2 and
q^2, with an exponent of its own for each.

Everything random comes from a `SecretStream`, so that who repeats a job with the same secret gives the same bytes.
Ciphertexts hide their plaintexts from whoever has only the public key; who may add to them can change what is in them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto._libraries import gmp
from woodlot.crypto.powers import FixedBase, powers_of, secret_power
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import CiphertextError, LocalProtocolError

DEFAULT_BITS = 3072
"""Length of n: 128 bits of security, as NIST counts."""
SMALLEST_BITS = 2048
"""The shortest key that is made or taken: 112 bits of security."""
LARGEST_BITS = 8192
"""The longest: beyond it a message of a malicious peer could keep a machine busy for hours."""

_PRIME_ROUNDS = 40


class PaillierPublicKey:
    """What everybody may know: enough to encrypt, to add and to give a ciphertext new noise.

    Parameters
    ----------
    n : int
        The modulus.
    base : int
        The n-th residue whose powers are the noise.

    Raises
    ------
    CiphertextError
        If the numbers cannot be such a key.

    """

    def __init__(self, n: int, base: int) -> None:
        mpz = gmp().mpz
        self.n = mpz(n)
        self.square = self.n * self.n
        self.base = mpz(base)
        self.bits = int(self.n.bit_length())
        if not SMALLEST_BITS <= self.bits <= LARGEST_BITS or self.n % 2 == 0:
            raise CiphertextError(
                f"a key of {self.bits} bits is not taken; it must have {SMALLEST_BITS} to {LARGEST_BITS}"
            )
        if not 1 < self.base < self.square or gmp().gcd(self.base, self.n) != 1:
            raise CiphertextError("the base of a key's noise is not in its group")

    @property
    def plaintext_bits(self) -> int:
        """How many bits every plaintext of this length has room for."""
        return self.bits - 1

    @property
    def ciphertext_bytes(self) -> int:
        """Length of a ciphertext."""
        return -(-2 * self.bits // 8)

    @cached_property
    def name(self) -> bytes:
        """16 bytes that no other key has."""
        return hashlib.sha256(b"woodlot paillier key" + to_bytes(self.n) + to_bytes(self.base)).digest()[:16]

    @cached_property
    def _table(self) -> FixedBase:
        return FixedBase(int(self.base), int(self.square), self.bits // 2)

    def noise(self, stream: SecretStream) -> Any:
        """A ciphertext of zero."""
        return self._table.power(stream.bits(self.bits // 2))

    def encrypt(self, plain: int, stream: SecretStream) -> Any:
        """A ciphertext of a number from 0 to n - 1."""
        return self._raw(plain) * self.noise(stream) % self.square

    def _raw(self, plain: int) -> Any:
        if not 0 <= plain < self.n:
            raise LocalProtocolError("only numbers from 0 to n - 1 can be encrypted")
        return 1 + plain * self.n

    def add(self, one: Any, other: Any) -> Any:
        """A ciphertext of the sum, modulo n; its noise is that of both."""
        return one * other % self.square

    def multiply(self, cipher: Any, factor: int) -> Any:
        """A ciphertext of the product with a number that is known."""
        return gmp().powmod(cipher, factor, self.square)

    def refresh(self, cipher: Any, stream: SecretStream) -> Any:
        """The same plaintext under new noise: nobody can tell of which ciphertexts it was made."""
        return cipher * self.noise(stream) % self.square

    def pack(self, ciphers: Iterable[Any]) -> NDArray[np.uint8]:
        """Ciphertexts as bytes, end to end."""
        length = self.ciphertext_bytes
        return np.frombuffer(b"".join(int(c).to_bytes(length, "little") for c in ciphers), np.uint8)

    def unpack(self, data: NDArray[np.uint8] | bytes, count: int) -> list[Any]:
        """Exactly so many ciphertexts from their bytes.

        Raises
        ------
        CiphertextError
            If there are more or fewer, or one of them is not in the group: zero, too large, or not prime to n.

        """
        raw, length = bytes(data), self.ciphertext_bytes
        if len(raw) != count * length:
            raise CiphertextError(f"{count} ciphertexts of this key have {count * length} bytes, not {len(raw)}")
        mpz = gmp().mpz
        ciphers = [mpz(int.from_bytes(raw[i : i + length], "little")) for i in range(0, len(raw), length)]
        product, n = mpz(1), self.n
        for cipher in ciphers:
            product = product * cipher % n
        # one test for all: a factor in common with n would stay in the product
        if any(cipher >= self.square for cipher in ciphers) or gmp().gcd(product, n) != 1:
            raise CiphertextError("a ciphertext is not in the group of the key")
        return ciphers


@dataclass(frozen=True, eq=False, repr=False)
class PrivateKey:
    """A key with the primes that only its owner has; make one with `generate`."""

    p: Any
    q: Any
    public: PaillierPublicKey

    @classmethod
    def generate(cls, bits: int, stream: SecretStream) -> PrivateKey:
        """A key of exactly this length.

        Parameters
        ----------
        bits : int
            Length of n.
        stream : SecretStream
            Where everything random comes from: the same stream gives the same key.

        """
        if not SMALLEST_BITS <= bits <= LARGEST_BITS or bits % 2:
            raise LocalProtocolError(f"a key has an even number of bits from {SMALLEST_BITS} to {LARGEST_BITS}")
        lib = gmp()
        p = _prime(bits // 2, stream)
        q = _prime(bits // 2, stream)
        while p == q or lib.gcd(p - 1, q - 1) != 2:
            q = _prime(bits // 2, stream)
        n = p * q
        y = 1 + stream.below(int(n - 1))
        while lib.gcd(y, n) != 1:
            y = 1 + stream.below(int(n - 1))
        return cls(p, q, PaillierPublicKey(int(n), int(lib.powmod(-y * y % n, n, n * n))))

    @cached_property
    def _halves(self) -> tuple[_Half, _Half]:
        return _Half(self.p, self.public), _Half(self.q, self.public)

    @cached_property
    def _joins(self) -> tuple[Any, Any]:
        """Inverse of q modulo p, and of q^2 modulo p^2."""
        invert = gmp().invert
        return invert(self.q, self.p), invert(self.q * self.q, self.p * self.p)

    def encrypt(self, plains: Iterable[int], stream: SecretStream) -> list[Any]:
        """A ciphertext of each number; made by the primes, several times faster than by the public key."""
        one, other = self._halves
        square, inverse = other.square, self._joins[1]
        found = []
        for plain in plains:
            raw = self.public._raw(plain)
            a, b = one.blind(raw, stream), other.blind(raw, stream)
            found.append(b + square * ((a - b) * inverse % one.square))
        return found

    def decrypt(self, ciphers: Sequence[Any], *, threads: int = 1) -> list[int]:
        """The plaintext of each ciphertext."""
        one, other = self._halves
        inverse = self._joins[0]
        found = []
        for a, b in zip(one.open(ciphers, threads), other.open(ciphers, threads), strict=True):
            found.append(int(b + self.q * ((a - b) * inverse % self.p)))
        return found


class _Half:
    """The key modulo the square of one of its primes."""

    def __init__(self, prime: Any, public: PaillierPublicKey) -> None:
        lib = gmp()
        self.prime = prime
        self.square = prime * prime
        self._noise = FixedBase(int(public.base % self.square), int(self.square), int(prime.bit_length()))
        self._unit = lib.invert(self._log(secret_power(1 + public.n, prime - 1, self.square)), prime)

    def _log(self, power: Any) -> Any:
        return (power - 1) // self.prime

    def blind(self, raw: Any, stream: SecretStream) -> Any:
        return raw * self._noise.power(stream.below(int(self.prime - 1))) % self.square

    def open(self, ciphers: Sequence[Any], threads: int) -> list[Any]:
        rest = [cipher % self.square for cipher in ciphers]
        powers = powers_of(rest, int(self.prime - 1), int(self.square), threads=threads)
        return [self._log(power) * self._unit % self.prime for power in powers]


def to_bytes(number: Any) -> bytes:
    """A number as bytes, lowest first."""
    return int(number).to_bytes(-(-int(number).bit_length() // 8), "little")


def from_bytes(data: NDArray[np.uint8] | bytes) -> int:
    """A number from its bytes."""
    return int.from_bytes(bytes(data), "little")


def _prime(bits: int, stream: SecretStream) -> Any:
    """A prime that is 3 modulo 4; its two highest bits are set, so that a product has twice the length."""
    lib = gmp()
    while True:
        candidate = lib.mpz(stream.bits(bits) | 3 | (3 << (bits - 2)))
        while candidate.bit_length() == bits:
            if lib.is_prime(candidate, _PRIME_ROUNDS):
                return candidate
            candidate += 4
