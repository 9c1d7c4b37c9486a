"""Many powers: of one base by tables, of many bases over threads.

A table of a base is a comb of 8 teeth (Lim and Lee). The exponent's bits stand in 8 rows of equal length; a column is
one byte, the index of a product of the rows' powers of two::

    bit of the exponent    row 0:  0 .. a-1
                           row 1:  a .. 2a-1          index of column c = bits c, a+c, 2a+c, ... as one byte
                           ...
                           row 7: 7a .. 8a-1

The columns are cut into blocks with a table each, so that one squaring serves a column of every block. A power costs
one multiplication per 8 bits and a squaring per 64, where an exponentiation squares for every bit.

The tables are read at places that depend on the exponent, so they serve exponents that are drawn for one encryption
and used once. Keys are exponents that are used again and again: their powers go through `secret_power`, whose time and
memory accesses do not depend on the exponent's bits.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from woodlot.crypto._libraries import gmp
from woodlot.exceptions import LocalProtocolError

_TEETH = 8  # one byte is an index
_BLOCKS = 8


class FixedBase:
    """Powers of one base, up to an exponent of some length.

    Parameters
    ----------
    base, modulus : int
        What is raised, and modulo what.
    bits : int
        Length of the longest exponent.

    """

    def __init__(self, base: int, modulus: int, bits: int) -> None:
        mpz = gmp().mpz
        self.bits = bits
        self._modulus = modulus = mpz(modulus)
        self._height = height = max(1, -(-bits // (_TEETH * _BLOCKS)))  # columns in a block
        self._columns = _BLOCKS * height
        steps = [mpz(base) % modulus]  # base^(2^(height k))
        for _ in range(_TEETH * _BLOCKS - 1):
            power = steps[-1]
            for _ in range(height):
                power = power * power % modulus
            steps.append(power)
        self._tables: list[list[Any]] = []
        for block in range(_BLOCKS):
            table = [mpz(1)]
            for tooth in range(_TEETH):
                step = steps[block + _BLOCKS * tooth]
                table += [entry * step % modulus for entry in table]
            self._tables.append(table)

    def power(self, exponent: int) -> Any:
        """The base to this exponent.

        Raises
        ------
        LocalProtocolError
            If the exponent is negative or longer than the table.

        """
        exponent = int(exponent)
        if exponent < 0 or exponent.bit_length() > self.bits:
            raise LocalProtocolError(f"an exponent of this table has 0 to {self.bits} bits")
        raw = np.frombuffer(exponent.to_bytes(self._columns, "little"), np.uint8)
        rows = np.unpackbits(raw, bitorder="little").reshape(_TEETH, self._columns)
        index = np.packbits(rows, axis=0, bitorder="little")[0].reshape(_BLOCKS, self._height).T.tolist()
        modulus, tables = self._modulus, self._tables
        result = gmp().mpz(1)
        for column in reversed(index):
            result = result * result % modulus
            for table, place in zip(tables, column, strict=True):
                if place:
                    result = result * table[place] % modulus
        return result


def secret_power(base: Any, exponent: int, modulus: int) -> Any:
    """The base to an exponent that is a key: time and memory accesses depend on its length only (GMP's mpz_powm_sec).

    It takes half as long again as a plain power. Every power by a key goes through here.

    Raises
    ------
    LocalProtocolError
        If the exponent is not positive.

    """
    lib = gmp()
    if exponent < 1:
        raise LocalProtocolError("a secret exponent is a positive number")
    return lib.powmod_sec(lib.mpz(base), lib.mpz(exponent), lib.mpz(modulus))


def powers_of(bases: Sequence[Any], exponent: int, modulus: int, *, threads: int = 1) -> list[Any]:
    """Every base to the same secret exponent; gmpy2 gives up the interpreter's lock, so threads share the work."""
    mpz = gmp().mpz
    exponent, modulus = mpz(exponent), mpz(modulus)
    threads = min(threads, len(bases))
    if threads <= 1:
        return [secret_power(base, exponent, modulus) for base in bases]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda base: secret_power(base, exponent, modulus), bases))


class Tables:
    """Tables of the bases of one modulus, each made when it is first needed.

    Parameters
    ----------
    modulus : int
        Of all of them.
    bits : int
        Length of the longest exponent.

    """

    def __init__(self, modulus: int, bits: int) -> None:
        self._modulus = modulus
        self._bits = bits
        self._made: dict[int, FixedBase] = {}
        self._lock = threading.Lock()

    def power(self, base: int, exponent: int) -> Any:
        """The base to this exponent, from its table."""
        with self._lock:
            table = self._made.get(base)
            if table is None:
                table = self._made[base] = FixedBase(base, self._modulus, self._bits)
        return table.power(exponent)
