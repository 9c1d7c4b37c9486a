"""DT-PKC: encryption with two trapdoors (Bresson, Catalano and Pointcheval), the stronger one shared by two servers.

::

    group        N = p q of safe primes, g = a^(2N) mod N^2, of order p' q'
    weak key     sk in [1, N/4], h = g^sk; opens what is encrypted under h
    encryption   C1 = h^r (1 + m N), C2 = g^r mod N^2
    strong key   sigma = 0 (mod lambda), = 1 (mod N): C1^sigma = 1 + m N, whatever h is
    its shares   lambda1 uniform in Z_(lambda N), lambda2 = sigma - lambda1: C1^lambda1 C1^lambda2 = 1 + m N

Numbers are those from -N/2 to N/2; m and m + N are the same. "Adding" public keys means multiplying their h: what is
under the product needs both weak keys. The paper splits lambda itself, which opens m lambda; see
docs/protocol/revocable.md for this and other changes. Powers by keys take a time that does not depend on the key; what
is drawn for one encryption goes by tables, and does not have that property (see `powers`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto._libraries import gmp
from woodlot.crypto.powers import Tables, powers_of, secret_power
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import CiphertextError, ConfigError, EpochError, LocalProtocolError

DEFAULT_BITS = 3072
"""Length of a modulus: 128 bits of security."""

Setting = Literal["standard", "paper", "test"]
"""What a modulus is good for: the paper's own length is too short for use, and the shortest are for tests."""

SETTING_BITS: dict[Setting, int] = {"standard": 2048, "paper": 1024, "test": 12}
"""The shortest modulus of each setting."""

Exponents = Literal["full", "short"]

SHORT_BITS = 256
"""Length of short exponents, twice 128 bits of security. They rest on a stronger assumption than the scheme does."""

Elements = NDArray[np.uint8]
"""Elements of a group as they travel, one per line, little-endian."""


def check_bits(bits: int, setting: Setting) -> None:
    """Refuse a length that moduli of a setting do not have.

    Raises
    ------
    ConfigError
        If it is odd, or too short.

    """
    if bits % 2 or bits < SETTING_BITS[setting]:
        raise ConfigError(
            f"keys of {bits} bits are not made: {DEFAULT_BITS} is the default, {SETTING_BITS['standard']} the least, "
            "and 1024 has to be asked for as setting='paper'"
        )


class Group:
    """Where ciphertexts of one epoch live.

    Parameters
    ----------
    modulus, generator : int
        N and g.
    epoch : int
        Counts the moduli of a federation: a revocation of level 2 begins a new one.
    setting : {"standard", "paper", "test"}
        The shortest modulus that is taken.
    exponents : {"full", "short"}
        Length of random exponents.

    Raises
    ------
    CiphertextError
        If these are no modulus and generator, or too short for the setting.

    """

    def __init__(
        self,
        modulus: int,
        generator: int,
        *,
        epoch: int = 1,
        setting: Setting = "standard",
        exponents: Exponents = "full",
    ) -> None:
        lib = gmp()
        n, g = lib.mpz(modulus), lib.mpz(generator)
        if n.bit_length() < SETTING_BITS[setting]:
            raise CiphertextError(
                f"a modulus of {n.bit_length()} bits is too short; {SETTING_BITS[setting]} are the least "
                f"in the {setting} setting"
            )
        if n % 2 == 0 or not 1 < g < n * n or lib.jacobi(g, n) != 1:
            raise CiphertextError("the generator does not belong to this modulus")
        self.N, self.g, self.N2 = n, g, n * n
        self.epoch = epoch
        self.setting: Setting = setting
        self.exponents: Exponents = exponents
        self.element_bytes = (self.N2.bit_length() + 7) // 8
        self.tables = Tables(self.N2, n.bit_length())
        """Powers of g and of public keys."""

    @cached_property
    def fingerprint(self) -> bytes:
        """Names the group: modulus, generator and epoch."""
        size = self.element_bytes
        parts = (int(self.N).to_bytes(size, "little"), int(self.g).to_bytes(size, "little"), str(self.epoch).encode())
        return hashlib.sha256(b"".join(parts)).digest()[:16]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Group) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def draw(self, stream: SecretStream) -> int:
        """A random exponent, of the length that the group asks for."""
        limit = self.N // 4 if self.exponents == "full" else min(self.N // 4, gmp().mpz(1) << SHORT_BITS)
        return 1 + stream.below(int(limit))

    def number(self, residue: Any) -> int:
        """The number from -N/2 to N/2 that a residue stands for; decided by value, never by length."""
        return int(residue - self.N) if residue > self.N >> 1 else int(residue)

    def message_of(self, power: Any) -> int:
        """m of 1 + m N.

        Raises
        ------
        CiphertextError
            If this is no such number: the keys are not those of the ciphertext, or it was changed.

        """
        whole, rest = divmod(power - 1, self.N)
        if rest:
            raise CiphertextError("a ciphertext does not open: it is of other keys than these, or was changed")
        return int(whole)

    def check(self, *ciphertexts: Ciphertext) -> None:
        """Refuse ciphertexts of another epoch or modulus."""
        for ciphertext in ciphertexts:
            if ciphertext.group is not self and ciphertext.group != self:
                other = ciphertext.group.epoch
                if other != self.epoch:
                    raise EpochError(f"a ciphertext is of epoch {other}, and these keys are of epoch {self.epoch}")
                raise CiphertextError("a ciphertext is of another modulus than the keys")

    # --- as they travel ---

    def write(self, elements: Iterable[Any]) -> Elements:
        """Elements as lines of bytes."""
        data = b"".join(int(element).to_bytes(self.element_bytes, "little") for element in elements)
        return np.frombuffer(data, np.uint8).reshape(-1, self.element_bytes)

    def read(self, lines: Elements) -> list[Any]:
        """Elements of lines of bytes, each checked.

        Raises
        ------
        CiphertextError
            If a line has another length, or is no element of the group.

        """
        if lines.ndim != 2 or lines.shape[1] != self.element_bytes:
            raise CiphertextError(f"an element of this group has {self.element_bytes} bytes; is it of another modulus?")
        lib, data, size = gmp(), lines.tobytes(), self.element_bytes
        found = [lib.mpz(int.from_bytes(data[at : at + size], "little")) for at in range(0, len(data), size)]
        for element in found:
            # 0 where it has a factor in common with N, -1 where it is no square
            if not 0 < element < self.N2 or lib.jacobi(element, self.N) != 1:
                raise CiphertextError("received a number that is no element of the group")
        return found

    def write_pairs(self, ciphertexts: Sequence[Ciphertext]) -> Elements:
        """Ciphertexts as lines of bytes, C1 before C2."""
        self.check(*ciphertexts)
        flat = self.write(element for c in ciphertexts for element in (c.c1, c.c2))
        return flat.reshape(-1, 2 * self.element_bytes)

    def read_pairs(self, lines: Elements) -> list[Ciphertext]:
        """Ciphertexts of lines of bytes; see `read`."""
        if lines.ndim != 2 or lines.shape[1] != 2 * self.element_bytes:
            raise CiphertextError(
                f"a ciphertext of this group has {2 * self.element_bytes} bytes; is it of another modulus?"
            )
        flat = self.read(lines.reshape(-1, self.element_bytes))
        return [Ciphertext(self, c1, c2) for c1, c2 in zip(flat[::2], flat[1::2], strict=True)]


@dataclass(frozen=True, eq=False, slots=True)
class Ciphertext:
    """An encrypted number."""

    group: Group
    c1: Any
    c2: Any


# --- what everybody can do ---


def conceal(group: Group, number: int, stream: SecretStream) -> Any:
    """A C1 alone: a number that only the strong key opens, and can be compared. It takes one power, not two.

    It is h^r (1 + m N) for an h whose secret key nobody has, which is Paillier's scheme.
    """
    return conceal_with(group, number, group.draw(stream))


def conceal_with(group: Group, number: int, exponent: int) -> Any:
    """As `conceal`, with an exponent that was drawn for it: who has to prove to know the number needs it again."""
    if not -group.N < 2 * number < group.N:
        raise LocalProtocolError("the number is too large for this modulus")
    return group.tables.power(group.g, exponent) * (1 + int(number) * group.N) % group.N2


def add(first: Ciphertext, second: Ciphertext) -> Ciphertext:
    """The sum of two numbers under the same key."""
    group = first.group
    group.check(second)
    return Ciphertext(group, first.c1 * second.c1 % group.N2, first.c2 * second.c2 % group.N2)


def scale(ciphertext: Ciphertext, factor: int) -> Ciphertext:
    """The number times a factor that is known."""
    group, powmod = ciphertext.group, gmp().powmod
    return Ciphertext(group, powmod(ciphertext.c1, factor, group.N2), powmod(ciphertext.c2, factor, group.N2))


def refresh(ciphertext: Ciphertext, exponent: int) -> Ciphertext:
    """HEncRef as the paper prints it: the same number under sk + exponent.

    It gives no backward security: the strong key opens the result, and any copy from before opens as before.
    """
    group = ciphertext.group
    shift = secret_power(ciphertext.c2, exponent, group.N2)
    return Ciphertext(group, ciphertext.c1 * shift % group.N2, ciphertext.c2)


# --- keys ---


class PublicKey:
    """What numbers are encrypted under.

    Parameters
    ----------
    group : Group
        Where it belongs.
    h : int
        g to the secret exponent, or a product of such: then all of their holders are needed.

    """

    def __init__(self, group: Group, h: Any) -> None:
        self.group = group
        self.h = gmp().mpz(h)

    def joined(self, *others: PublicKey) -> PublicKey:
        """The key whose ciphertexts need the holders of all."""
        h = self.h
        for other in others:
            h = h * other.h % self.group.N2
        return PublicKey(self.group, h)

    def randomness(self, stream: SecretStream) -> tuple[Any, Any]:
        """h^r and g^r for a new r, from tables: everything in an encryption that takes time."""
        return self.powers(self.group.draw(stream))

    def powers(self, exponent: int) -> tuple[Any, Any]:
        """h^r and g^r for an r that was drawn for one encryption."""
        tables = self.group.tables
        return tables.power(self.h, exponent), tables.power(self.group.g, exponent)

    def encrypt(self, number: int, source: SecretStream | Randomness) -> Ciphertext:
        """HoEnc.

        Parameters
        ----------
        number : int
            From -N/2 to N/2.
        source : SecretStream or Pool
            Gives the exponent r, or what has been computed from it beforehand.

        """
        return self._with(number, *(self.randomness(source) if isinstance(source, SecretStream) else source.take(self)))

    def encrypt_with(self, number: int, exponent: int) -> Ciphertext:
        """HoEnc with an exponent that was drawn for it: who has to prove to know the number needs it again."""
        return self._with(number, *self.powers(exponent))

    def _with(self, number: int, blind: Any, c2: Any) -> Ciphertext:
        group = self.group
        if not -group.N < 2 * number < group.N:
            raise LocalProtocolError("the number is too large for this modulus")
        return Ciphertext(group, blind * (1 + int(number) * group.N) % group.N2, c2)


class Randomness(Protocol):
    """Something that has h^r and g^r at hand; see `pools`."""

    def take(self, key: PublicKey) -> tuple[Any, Any]:
        """h^r and g^r that nobody got before."""
        ...


class WeakKey:
    """One participant's secret key.

    Parameters
    ----------
    group : Group
        Where it belongs.
    secret : int
        The exponent.

    """

    def __init__(self, group: Group, secret: int) -> None:
        self.group = group
        self._secret = gmp().mpz(secret)

    def __repr__(self) -> str:
        return f"WeakKey(epoch={self.group.epoch})"

    @classmethod
    def draw(cls, group: Group, stream: SecretStream) -> WeakKey:
        """A new key."""
        return cls(group, group.draw(stream))

    @cached_property
    def public(self) -> PublicKey:
        """What others encrypt under for this participant."""
        return PublicKey(self.group, secret_power(self.group.g, self._secret, self.group.N2))

    def base_exponent(self, exponent: int) -> int:
        """The exponent of g in a C1 under this key that was made with an exponent; it is secret."""
        return int(self._secret * exponent)

    def _masks(self, ciphertexts: Sequence[Ciphertext], threads: int) -> list[Any]:
        self.group.check(*ciphertexts)
        return powers_of([c.c2 for c in ciphertexts], self._secret, self.group.N2, threads=threads)

    def reencrypt(self, ciphertext: Ciphertext) -> Ciphertext:
        """HReEnc: puts this key on top of the others. It takes the secret key, whatever the paper's notation says."""
        mask = self._masks([ciphertext], 1)[0]
        return Ciphertext(self.group, ciphertext.c1 * mask % self.group.N2, ciphertext.c2)

    def partial(self, ciphertexts: Sequence[Ciphertext], *, threads: int = 1) -> list[Ciphertext]:
        """ParHDec1: takes this key off; those of the others stay on."""
        invert, modulus = gmp().invert, self.group.N2
        masks = self._masks(ciphertexts, threads)
        return [
            Ciphertext(self.group, c.c1 * invert(mask, modulus) % modulus, c.c2)
            for c, mask in zip(ciphertexts, masks, strict=True)
        ]

    def decrypt(self, ciphertexts: Sequence[Ciphertext], *, threads: int = 1) -> list[int]:
        """ParHDec2, and decryption where this key is the only one: the numbers.

        Raises
        ------
        CiphertextError
            If another key is on one of them.

        """
        group = self.group
        return [group.number(group.message_of(c.c1)) for c in self.partial(ciphertexts, threads=threads)]


class StrongShare:
    """One server's share of the strong key: alone it opens nothing.

    Parameters
    ----------
    group : Group
        Where it belongs.
    exponent : int
        The share. It is as long as lambda N and never shortened: a shorter one would give away the factors of N.

    """

    def __init__(self, group: Group, exponent: int) -> None:
        self.group = group
        self.exponent = gmp().mpz(exponent)

    def __repr__(self) -> str:
        return f"StrongShare(epoch={self.group.epoch})"

    def power(self, elements: Sequence[Any], *, threads: int = 1) -> list[Any]:
        """Each C1 to the share: half of a strong decryption."""
        return powers_of(elements, self.exponent, self.group.N2, threads=threads)

    def open(self, elements: Sequence[Any], halves: Sequence[Any], *, threads: int = 1) -> list[int]:
        """Numbers of C1s, given what the other server made of them.

        Raises
        ------
        CiphertextError
            If the halves are not those of these elements, or of another epoch.

        """
        group = self.group
        own = self.power(elements, threads=threads)
        return [group.number(group.message_of(mine * half % group.N2)) for mine, half in zip(own, halves, strict=True)]
