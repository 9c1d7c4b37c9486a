"""How a label is written as bits: one bit, one bit per class, or a Bloom filter.

The list of classes, the salt and so the whole code are public. They are fixed before any data is looked at: a list
that is found in the data would tell which classes a client has.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.privacy.derivation import pack

_SALTS_COMPARED = 64
_SALTS_TRIED = 1000


@dataclass(frozen=True, eq=False)
class LabelCode:
    """The bits of every class. Make one with `one_bit`, `one_hot` or `bloom`.

    Attributes
    ----------
    kind : {"one-bit", "one-hot", "bloom"}
        How it was made.
    classes : tuple of str
        The public list of classes; a label is a position in it.
    bits : array of shape (classes, bits)
        The code matrix, of zeros and ones. Counts of classes can be told from sums of bits: the rank is checked.

    """

    kind: Literal["one-bit", "one-hot", "bloom"]
    classes: tuple[str, ...]
    bits: NDArray[np.uint8]

    def __post_init__(self) -> None:
        _check_classes(self.classes)
        if self.bits.shape[:1] != (len(self.classes),) or self.bits.ndim != 2 or not np.isin(self.bits, (0, 1)).all():
            raise ValueError("a code matrix has one row of zeros and ones for each class")
        # One bit tells two classes apart since the number of rows is known too.
        design = np.column_stack([self.bits, np.ones(len(self.bits))]) if self.kind == "one-bit" else self.bits
        if not _full_rank(design):
            raise ValueError("counts cannot be told from this code: its matrix has not full rank; use another code")
        self.bits.setflags(write=False)

    @classmethod
    def one_bit(cls, classes: Sequence[str]) -> LabelCode:
        """Two classes in a single bit: half the epsilon of two bits."""
        if len(classes) != 2:
            raise ValueError(f"one bit tells two classes apart, not {len(classes)}; use one_hot")
        return cls("one-bit", tuple(classes), np.array([[0], [1]], np.uint8))

    @classmethod
    def one_hot(cls, classes: Sequence[str]) -> LabelCode:
        """One bit per class."""
        return cls("one-hot", tuple(classes), np.eye(len(classes), dtype=np.uint8))

    @classmethod
    def bloom(cls, classes: Sequence[str], *, length: int, hashes: int, salt: bytes = b"woodlot") -> LabelCode:
        """A Bloom filter of each class, as in the paper.

        Of the first 64 matrices that the salt gives, the best conditioned of full rank is taken, and if none is of
        full rank, the first later one that is. Everybody who has the same arguments finds the same matrix.

        Parameters
        ----------
        classes : sequence of str
            The public list of classes.
        length : int
            Bits of the filter, the paper's h; at least as many as classes.
        hashes : int
            Bits that are set in each filter, the paper's k; all different. Epsilon grows with it.
        salt : bytes
            Public, and the same for all clients.

        Raises
        ------
        ValueError
            If no matrix of full rank exists or is found.

        """
        _check_classes(classes)
        if not 1 <= hashes <= length:
            raise ValueError(f"hashes must be from 1 to length={length}, not {hashes}")
        remedy = "make the filter longer, change the number of hashes, or use one_hot"
        if length < len(classes) or math.comb(length, hashes) < len(classes):
            raise ValueError(
                f"{hashes} of {length} bits can never tell the counts of {len(classes)} classes apart; {remedy}"
            )
        best: tuple[float, NDArray[np.uint8]] | None = None
        for attempt in range(_SALTS_TRIED):
            if best is not None and attempt >= _SALTS_COMPARED:
                break
            bits = _bloom_bits(classes, length, hashes, salt, attempt)
            if _full_rank(bits):
                condition = float(np.linalg.cond(bits))
                best = (condition, bits) if best is None or condition < best[0] else best
        if best is None:
            raise ValueError(
                f"no code of {hashes} hashes and {length} bits with full rank was found for {len(classes)} classes; "
                + remedy
            )
        return cls("bloom", tuple(classes), best[1])

    @property
    def length(self) -> int:
        """Bits of a label."""
        return int(self.bits.shape[1])

    def differences(self) -> list[tuple[int, int]]:
        """For each pair of classes: how many bits only the first has, and how many only the second; each once."""
        wide = self.bits.astype(np.int64)
        only_first = wide @ (1 - wide).T
        pairs = {
            (int(only_first[a, b]), int(only_first[b, a])) for a in range(len(wide)) for b in range(len(wide)) if a != b
        }
        return sorted(pairs)

    def digest(self) -> bytes:
        """SHA-256 of classes and bits."""
        text = pack(self.kind.encode(), *(name.encode() for name in self.classes), bytes([0]), self.bits.tobytes())
        return hashlib.sha256(text).digest()


def _check_classes(classes: Sequence[str]) -> None:
    if len(classes) < 2 or len(set(classes)) < len(classes) or not all(isinstance(name, str) for name in classes):
        raise ValueError("the public list of classes needs two or more texts, all different")


def _full_rank(matrix: NDArray[np.generic]) -> bool:
    return int(np.linalg.matrix_rank(matrix.astype(np.float64))) == len(matrix)


def _bloom_bits(classes: Sequence[str], length: int, hashes: int, salt: bytes, attempt: int) -> NDArray[np.uint8]:
    bits = np.zeros((len(classes), length), np.uint8)
    for row, name in enumerate(classes):
        number = 0
        while bits[row].sum() < hashes:  # two hashes that meet would make one class easier to tell than another
            text = pack(salt, attempt.to_bytes(8, "big"), name.encode(), number.to_bytes(8, "big"))
            bits[row, int.from_bytes(hashlib.sha256(text).digest(), "big") % length] = 1
            number += 1
    return bits
