"""Residuals under encryption, and slopes that come of them: fixed-point numbers, slots, and masks.

A slope is a sum over rows of a residual times a value of a column. Residuals are whole multiples of 2^-f, values of a
column whole multiples of a power of two that its party chooses, so that sums are exact. The absolute values of all
rows' residuals, one score each, add up to 1 at most: of classes because those of a row are its weight at most, of
squares because their mean square only falls from 1. That bounds every slope, and no sum outgrows its slot.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import ldexp

import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.packing import layout, pack, unpack
from woodlot.crypto.paillier import PaillierPublicKey, PrivateKey
from woodlot.crypto.streams import SecretStream
from woodlot.crypto.weighted import weighted_sums
from woodlot.exceptions import LocalProtocolError, RemoteProtocolError
from woodlot.protocols.linear.linear_model import Matrix

FRACTION_BITS = 44
"""Bits of a slope after the point, at least: what rounding residuals can change in it."""

COLUMN_BITS = 32
"""Bits of a column's values, the sign among them."""

_LONGEST = 61  # bits of a residual: twice as much is still a number of 64 bits


@dataclass(frozen=True)
class ResidualSlots:
    """How the residuals of a row are numbers in plaintexts, side by side; slopes have the same places.

    Attributes
    ----------
    n_rows, n_scores : int
        Rows, and scores of a row.
    capacity : int
        Bits of a plaintext.

    """

    n_rows: int
    n_scores: int
    capacity: int

    @property
    def exponent(self) -> int:
        """Bits of a residual after the point."""
        return min(FRACTION_BITS + self.n_rows.bit_length(), _LONGEST)

    @property
    def width(self) -> int:
        """Bits of a slot: a slope, its sign, and one to spare."""
        return self.exponent + COLUMN_BITS + 1

    @property
    def parts(self) -> list[range]:
        """Which scores each plaintext of a row holds."""
        return layout([self.width] * self.n_scores, self.capacity)

    def widths(self, n_columns: int) -> list[int]:
        """Bits of the numbers that are packed for so many columns: part after part of each column."""
        return [len(part) * self.width for part in self.parts] * n_columns

    def n_packed(self, n_columns: int) -> int:
        """Plaintexts that the slopes of so many columns take."""
        return len(layout(self.widths(n_columns), self.capacity))

    def numbers(self, residuals: Matrix) -> NDArray[np.int64]:
        """Residuals as whole numbers."""
        found: NDArray[np.int64] = np.rint(np.ldexp(residuals, self.exponent)).astype(np.int64)
        if (np.abs(found).sum(axis=0) > 1 << (self.exponent + 1)).any():
            raise LocalProtocolError("residuals have outgrown their slots: the loss has risen")
        return found

    def join(self, row: list[int]) -> list[int]:
        """The scores of a row, or of a column, side by side; negative ones borrow from the next slot."""
        return [sum(row[k] << (i * self.width) for i, k in enumerate(part)) for part in self.parts]

    @property
    def offsets(self) -> list[int]:
        """By part, what makes slopes numbers that are not negative."""
        return self.join([1 << (self.width - 1)] * self.n_scores)

    def split(self, numbers: list[int], exponents: NDArray[np.int64]) -> Matrix:
        """Slopes by column and score, from packed numbers with the offsets in them."""
        parts, mask, half = self.parts, (1 << self.width) - 1, 1 << (self.width - 1)
        found = np.empty((len(exponents), self.n_scores))
        for column, exponent in enumerate(exponents.tolist()):
            for q, part in enumerate(parts):
                number = numbers[column * len(parts) + q]
                for i, k in enumerate(part):
                    slope = (number >> (i * self.width) & mask) - half
                    found[column, k] = ldexp(float(slope), -self.exponent - exponent)
        return found


class ResidualDesk:
    """The label holder's: it encrypts residuals, and opens slopes that are under masks.

    Parameters
    ----------
    key : PrivateKey
        The key.
    slots : ResidualSlots
        How residuals are numbers.
    columns : mapping of str to int
        Columns of the other parties: so many slopes are opened for each of them, once per step, and no more.
    secret : bytes
        What everything random of this job comes from.

    """

    def __init__(self, key: PrivateKey, slots: ResidualSlots, columns: Mapping[str, int], secret: bytes) -> None:
        self.key = key
        self._slots = slots
        self._columns = columns
        self._secret = secret
        self._due = False
        self._n_sent = 0

    def encrypt(self, residuals: Matrix) -> NDArray[np.uint8]:
        """The residuals of all rows, row after row."""
        numbers = self._slots.numbers(residuals)
        # of the same step and the same residuals the same noise: it is never used for two different things
        stream = SecretStream.derived(self._secret, "residuals", self._n_sent, numbers.tobytes())
        self._n_sent, self._due = self._n_sent + 1, True
        public = self.key.public
        plains = (number % int(public.n) for row in numbers.tolist() for number in self._slots.join(row))
        return public.pack(self.key.encrypt(plains, stream))

    def open(self, slopes: Mapping[str, NDArray[np.uint8]]) -> dict[str, NDArray[np.uint8]]:
        """Masked slopes without their encryption.

        Raises
        ------
        RemoteProtocolError
            If they were opened in this step before, or are not those of the parties' columns.
        CiphertextError
            If they are no ciphertexts of this key.

        """
        if not self._due or set(slopes) != set(self._columns):
            raise RemoteProtocolError("Unexpected OpenSlopes; expected once in a step, with the slopes of all others")
        public = self.key.public
        ciphers = {p: public.unpack(data, self._slots.n_packed(self._columns[p])) for p, data in slopes.items()}
        self._due = False
        return {party: pack_plains(public, self.key.decrypt(own)) for party, own in ciphers.items()}


class SlopeSide:
    """Any other party's: slopes by its own weights, of residuals that it cannot read.

    Parameters
    ----------
    key : PaillierPublicKey
        The label holder's.
    slots : ResidualSlots
        How residuals are numbers.
    matrix : array
        The party's columns.
    secret : bytes
        What everything random of this job comes from.

    """

    def __init__(self, key: PaillierPublicKey, slots: ResidualSlots, matrix: Matrix, secret: bytes) -> None:
        self._key = key
        self._slots = slots
        self._secret = secret
        largest = np.abs(matrix).max(axis=0, initial=0.0)
        self._exponents = (COLUMN_BITS - 1 - np.frexp(largest)[1]).astype(np.int64)
        edge = (1 << (COLUMN_BITS - 1)) - 1
        self._values = np.clip(np.rint(np.ldexp(matrix, self._exponents)), -edge, edge).astype(np.int64)
        self._masks: list[int] | None = None

    @property
    def matrix(self) -> Matrix:
        """The columns as they are multiplied: the same numbers must make scores, so that both are of one loss."""
        return np.asarray(np.ldexp(self._values.astype(np.float64), -self._exponents))

    def slopes(self, ciphertexts: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Encrypted slopes under masks.

        Raises
        ------
        CiphertextError
            If the residuals are no ciphertexts of the key, or not those of all rows.

        """
        key, slots = self._key, self._slots
        n_parts, n_columns = len(slots.parts), self._values.shape[1]
        ciphers = key.unpack(ciphertexts, slots.n_rows * n_parts)
        about = hashlib.sha256(bytes(ciphertexts) + self._values.tobytes()).digest()
        stream = SecretStream.derived(self._secret, "slopes", key.name, about)
        by_part = [weighted_sums(key, ciphers[q::n_parts], self._values, COLUMN_BITS) for q in range(n_parts)]
        widths, offsets = slots.widths(n_columns), slots.offsets * n_columns
        packed = pack(key, [by_part[q][j] for j in range(n_columns) for q in range(n_parts)], widths)
        found, masks = [], []
        for group, cipher in zip(layout(widths, slots.capacity), packed, strict=True):
            offset, shift = 0, 0
            for i in group:
                offset += offsets[i] << shift
                shift += widths[i]
            mask = stream.below(int(key.n))
            masks.append(mask)
            # a fresh encryption: its noise covers that of the residuals, its plaintext the slopes, from the key's owner
            found.append(key.add(cipher, key.encrypt((offset + mask) % int(key.n), stream)))
        self._masks = masks
        return key.pack(found)

    def unmask(self, opened: NDArray[np.uint8]) -> Matrix:
        """The slopes by column and score, of what the label holder has opened.

        Raises
        ------
        RemoteProtocolError
            If no slopes were asked for since the last time.
        CiphertextError
            If what was opened is not what was sent.

        """
        if self._masks is None:
            raise RemoteProtocolError("Unexpected DescendMasked; expected after AskSlopes")
        slots, n_columns = self._slots, self._values.shape[1]
        plains = unpack_plains(self._key, opened, len(self._masks))
        bare = [(plain - mask) % int(self._key.n) for plain, mask in zip(plains, self._masks, strict=True)]
        numbers = unpack(bare, slots.widths(n_columns), slots.capacity)
        self._masks = None
        return slots.split(numbers, self._exponents)


def pack_plains(key: PaillierPublicKey, plains: list[int]) -> NDArray[np.uint8]:
    """Plaintexts as bytes, end to end."""
    length = _plain_bytes(key)
    return np.frombuffer(b"".join(plain.to_bytes(length, "little") for plain in plains), np.uint8)


def unpack_plains(key: PaillierPublicKey, data: NDArray[np.uint8], count: int) -> list[int]:
    """Exactly so many plaintexts from their bytes."""
    raw, length = bytes(data), _plain_bytes(key)
    if len(raw) != count * length:
        raise RemoteProtocolError(f"{count} opened slopes have {count * length} bytes, not {len(raw)}")
    return [int.from_bytes(raw[i : i + length], "little") for i in range(0, len(raw), length)]


def _plain_bytes(key: PaillierPublicKey) -> int:
    return -(-key.bits // 8)
