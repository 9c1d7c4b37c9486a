"""Labels that may be told: each bit of a label's code is kept or turned by chance, once and for ever.

There are two layers, as in Federated Extra-Trees and RAPPOR:

=========  ====================================================================================================
permanent  each bit is kept with probability (1 + pr) / 2, else turned. What comes out is derived from the client's
           secret, the data set, the row and its label: it is the same at every training and after every restart.
instant    at each query a bit 1 is told as 1 with probability xi, a bit 0 with probability zeta. It is derived from
           the secret and the whole query: a query that is asked again gets the same answer.
=========  ====================================================================================================

Only sums over rows leave the client. The total epsilon is that of the permanent layer, whatever is asked and however
often; the instant layer never lowers it (``xi=1, zeta=0`` switches it off).

**Exactness.** A probability is a whole number of steps: of 2**63 in the permanent layer, of 2**16 in the instant one;
a chance is a comparison of whole numbers. Where a parameter is between two steps it is moved to the one with more
noise, so epsilon can only be smaller than for the number that was asked for. `RandomisedResponse.epsilon` is computed
from the steps, in fractions, and rounded up to a float. What remains is an assumption: that nobody can tell
HMAC-SHA256 and ChaCha20 under an unknown secret from true chance.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.privacy.derivation import derive_key, derive_streams, open_stream, pack
from woodlot.privacy.exact import as_fraction, float_up, log_up, logistic_down, power_down, sum_up
from woodlot.privacy.label_code import LabelCode

PERMANENT_STEPS = 2**63
INSTANT_STEPS = 2**16

_ROWS_AT_ONCE = 1 << 16
_WORDS_AT_ONCE = 1 << 22


@dataclass(frozen=True, eq=False)
class RandomisedResponse:
    """The public parameters of the mechanism. Make one with `from_paper` or `for_epsilon`.

    Attributes
    ----------
    code : LabelCode
        How labels are written as bits.
    keep : int
        Steps of 2**63 at which the permanent layer keeps a bit.
    one, zero : int
        Steps of 2**16 at which the instant layer tells a bit 1, and a bit 0, as 1.

    """

    code: LabelCode
    keep: int
    one: int = INSTANT_STEPS
    zero: int = 0

    def __post_init__(self) -> None:
        if not PERMANENT_STEPS // 2 < self.keep < PERMANENT_STEPS:
            raise ValueError(
                "the permanent response must keep a bit more often than turn it, and sometimes turn it: "
                "pr must be between 0 and 1"
            )
        if not 0 <= self.zero < self.one <= INSTANT_STEPS:
            raise ValueError(f"the instant response needs 0 <= zeta < xi <= 1, at least {1 / INSTANT_STEPS:.1g} apart")

    @classmethod
    def from_paper(
        cls,
        code: LabelCode,
        *,
        pr: float | Fraction | str,
        xi: float | Fraction | str = 1,
        zeta: float | Fraction | str = 0,
    ) -> RandomisedResponse:
        """The mechanism with the paper's parameters; 1 - pr is RAPPOR's f, xi its q, zeta its p."""
        pr = as_fraction(pr, "pr")
        if not 0 < pr < 1:
            raise ValueError(f"pr must be between 0 and 1, not {float(pr):g}")
        return cls(code, math.floor((1 + pr) / 2 * PERMANENT_STEPS), *_instant_steps(xi, zeta))

    @classmethod
    def for_epsilon(
        cls,
        code: LabelCode,
        epsilon: float,
        *,
        xi: float | Fraction | str = 1,
        zeta: float | Fraction | str = 0,
    ) -> RandomisedResponse:
        """The mechanism with the least noise whose total epsilon is not above the given one."""
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise ValueError(f"epsilon must be positive, not {epsilon}")
        changed = max(a + b for a, b in code.differences())
        keep = min(logistic_down(epsilon / changed, PERMANENT_STEPS), PERMANENT_STEPS - 1)
        if keep <= PERMANENT_STEPS // 2:
            raise ValueError(f"epsilon {epsilon} is too small: the answers would be nothing but noise")
        response = cls(code, keep, *_instant_steps(xi, zeta))
        while response.epsilon() > epsilon:  # the division above was rounded
            keep -= max(1, (PERMANENT_STEPS - keep) >> 50)
            response = cls(code, keep, response.one, response.zero)
        return response

    # --- what it costs ---

    @property
    def kept(self) -> Fraction:
        """Probability that the permanent layer keeps a bit, (1 + pr) / 2."""
        return Fraction(self.keep, PERMANENT_STEPS)

    @property
    def xi(self) -> Fraction:
        """Probability that the instant layer tells a bit 1 as 1."""
        return Fraction(self.one, INSTANT_STEPS)

    @property
    def zeta(self) -> Fraction:
        """Probability that the instant layer tells a bit 0 as 1."""
        return Fraction(self.zero, INSTANT_STEPS)

    def told(self, bit: int) -> Fraction:
        """Probability that a bit of the code is told as 1: q* of a bit 1, p* of a bit 0."""
        kept = self.kept if bit else 1 - self.kept
        return kept * self.xi + (1 - kept) * self.zeta

    def epsilon(self, reports: int | None = None) -> float:
        """The exact epsilon for the label of one row, rounded up.

        Parameters
        ----------
        reports : int or None
            How often the row is reported at most; None: any number of times. This is what is to be charged, once.

        Returns
        -------
        float

        """
        if reports is not None and reports < 0:
            raise ValueError("reports must not be negative")
        if reports == 0:
            return 0.0
        towards_one = self._log_ratio(self.zeta / self.xi, reports)
        towards_zero = self._log_ratio((1 - self.xi) / (1 - self.zeta), reports)
        return float_up(max(sum_up([(a, towards_one), (b, towards_zero)]) for a, b in self.code.differences()))

    def _log_ratio(self, ratio: Fraction, reports: int | None) -> Decimal:
        """How much more likely the best reports for one bit are when it is as they say than when it is not."""
        power = Fraction(0) if reports is None else power_down(ratio, reports)
        kept, turned = self.kept, 1 - self.kept
        return log_up((kept + turned * power) / (turned + kept * power))

    # --- names ---

    def permanent_digest(self) -> bytes:
        """SHA-256 of what the permanent layer depends on. Two that differ share no chance, so their epsilons add."""
        return hashlib.sha256(pack(b"permanent response", self.code.digest(), self.keep.to_bytes(8, "big"))).digest()

    def release(self, secret: bytes, dataset: str) -> str:
        """The name under which the permanent layer is charged, once for ever.

        It depends on the secret: where the secret is lost, a new one draws new bits, and these cost again.
        """
        key = derive_key(secret, "woodlot: name of a permanent response", self.permanent_digest(), dataset.encode())
        return f"labels-{key[:16].hex()}"

    # --- what the client computes ---

    def permanent(
        self, secret: bytes, dataset: str, rows: Sequence[bytes], labels: NDArray[np.integer[Any]]
    ) -> NDArray[np.uint8]:
        """The permanent layer: the bits that stand for each row's label from now on. They never leave the client.

        Parameters
        ----------
        secret : bytes
            The client's secret, at least 32 random bytes; the same for ever.
        dataset : str
            Name of the data set; the same for ever.
        rows : sequence of bytes
            What identifies each row, whatever its place in the file: the same for ever, no two alike.
        labels : array of int
            Position of each row's class in the public list.

        Returns
        -------
        array of shape (rows, bits)

        """
        labels = np.asarray(labels)
        if labels.dtype.kind not in "iu" or labels.shape != (len(rows),):
            raise ValueError("labels must be whole numbers, one for each row")
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < len(self.code.classes):
            raise DataError("a label is not in the public list of classes; add its class for all clients, or drop it")
        if len(set(rows)) < len(rows):
            raise DataError("two rows have the same id, so they would share their noise; give every row an id")
        common = pack(self.permanent_digest(), dataset.encode())
        bits = np.empty((len(rows), self.code.length), np.uint8)
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            tails = [
                pack(row, label.to_bytes(4, "big"))
                for row, label in zip(rows[part], labels[part].tolist(), strict=True)
            ]
            stream = derive_streams(secret, "woodlot: permanent response", common, tails, 8 * self.code.length)
            words = np.frombuffer(stream, "<u8").reshape(-1, self.code.length) >> np.uint64(1)
            turned = words >= np.uint64(self.keep)
            bits[part] = self.code.bits[labels[part]] ^ turned
        return bits

    def instant(
        self, secret: bytes, dataset: str, query: bytes, ones: NDArray[np.int64], n: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """The instant layer: the sums that may leave the client.

        It draws for every row and bit, but only the sums depend on the rows, so their order does not matter.

        Parameters
        ----------
        secret, dataset
            As in `permanent`.
        query : bytes
            The whole query, or a digest of it: whatever is asked differently must differ here.
        ones : array of shape (parts, bits)
            Sums of the permanent bits over the rows of each part.
        n : array of shape (parts,)
            Rows of each part.

        Returns
        -------
        array of shape (parts, bits)

        """
        ones, n = np.asarray(ones, np.int64), np.asarray(n, np.int64)
        if ones.shape != (len(n), self.code.length) or (ones < 0).any() or (ones > n[:, None]).any():
            raise ValueError("there must be a sum from 0 to the number of rows for each part and bit")
        if (self.one, self.zero) == (INSTANT_STEPS, 0):
            return ones.copy()
        # The sums are part of the name: should the rows of a query ever change, the noise must not stay.
        setting = pack(self.permanent_digest(), self.one.to_bytes(4, "big"), self.zero.to_bytes(4, "big"))
        parts = (setting, dataset.encode(), query, n.astype("<i8").tobytes(), ones.astype("<i8").tobytes())
        stream = open_stream(derive_key(secret, "woodlot: instant response", *parts))
        told = np.empty_like(ones)
        for first, last in _blocks(n * self.code.length):
            words = np.frombuffer(stream(2 * self.code.length * int(n[first:last].sum())), "<u2")
            told[first:last] = self._tell(words, ones[first:last], n[first:last])
        return told

    def _tell(self, words: NDArray[np.uint16], ones: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.int64]:
        # The words lie as: part, bit, then first those of rows with a 1, then those of rows with a 0.
        sizes = np.stack([ones, n[:, None] - ones], axis=-1).ravel()
        limits = np.repeat(np.tile(np.array([self.one, self.zero], np.uint32), ones.size), sizes)
        hits = np.concatenate([[0], np.cumsum(words < limits, dtype=np.int64)])
        ends = np.cumsum(sizes)[1::2]
        told: NDArray[np.int64] = np.diff(hits[ends], prepend=0).reshape(ones.shape)
        return told


def _blocks(words: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Parts that are dealt with at once: first and last, as many as memory allows."""
    ends = np.cumsum(words)
    first = 0
    while first < len(words):
        room = _WORDS_AT_ONCE + (int(ends[first - 1]) if first else 0)
        last = max(first + 1, int(np.searchsorted(ends, room, side="right")))
        yield first, last
        first = last


def _instant_steps(xi: float | Fraction | str, zeta: float | Fraction | str) -> tuple[int, int]:
    xi, zeta = as_fraction(xi, "xi"), as_fraction(zeta, "zeta")
    if not 0 <= zeta < xi <= 1:
        raise ValueError(f"xi and zeta need 0 <= zeta < xi <= 1, not zeta={float(zeta):g}, xi={float(xi):g}")
    return math.floor(xi * INSTANT_STEPS), math.ceil(zeta * INSTANT_STEPS)
