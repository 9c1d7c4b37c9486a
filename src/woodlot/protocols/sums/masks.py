"""Masks that hide each client's vector and cancel in the sum of all.

Clients u < v have a key in common for each round. Both make the same mask of it; u adds it and v subtracts it::

    key    HKDF-SHA256(X25519(u, v), shared secret if any; salt = transcript,
                       info = tag, round, u, v, length, bits, all clients of the round, what is asked)
    mask   ChaCha20 keystream under this key, nonce zero, as little-endian integers; the key is used for this alone

All sums are modulo 2^64, or modulo 2^32 for vectors of 32 bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray

from woodlot.exceptions import LocalProtocolError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import derive

TAG = "woodlot secure sum 3"
"""The protocol and its version; in everything that is signed, hashed or made a key of."""

WIDTHS = ("<u8", "<u4")
"""The dtypes of vectors."""

Vector: TypeAlias = NDArray[np.unsignedinteger[Any]]

_NONCE = bytes(16)  # for keys that are used once
_ZEROS = memoryview(bytes(1 << 16))  # what is encrypted to get a keystream, piece by piece


class PlainMasker:
    """Keeps the rules of masked sums without a mask; for debugging.

    Parameters
    ----------
    name : str
        This client.
    clients : iterable of str
        All clients of the session, this one among them.
    minimum : int
        How many clients a round must have.
    recover : bool
        Whether a round may have fewer clients than the one before it.

    """

    def __init__(self, name: str, clients: Iterable[str], *, minimum: int = 1, recover: bool = True) -> None:
        self.name = name
        self._clients = tuple(sorted(clients))
        self._minimum = minimum
        self._recover = recover
        self._masked: dict[bytes | int, bytes] = {}

    def mask(self, round_id: bytes | int, vector: Vector, survivors: Iterable[str], about: bytes = b"") -> Vector:
        """Return the vector as it leaves this client; the vector itself is not changed.

        The same round, vector and clients give the same bytes again. Anything else under a round that was used before
        is refused: the difference of two vectors under the same mask would tell the difference of the numbers.
        Clients that were left out of a round stay out of all later ones.

        Parameters
        ----------
        round_id : bytes or int
            The round, the same at all clients; an integer has 0 to 64 bits.
        vector : uint64 or uint32 array
            This client's numbers, negative ones as two's complement.
        survivors : iterable of str
            The clients of this round.
        about : bytes
            Tells what the numbers are; only masks of clients that were told the same cancel.

        Raises
        ------
        RemoteProtocolError
            If the round was used for something else, or its clients are not some of those before it.
        PolicyError
            If the round has too few clients, or fewer than before where that is not allowed.

        """
        if vector.ndim != 1 or vector.dtype.str not in WIDTHS:
            raise LocalProtocolError("only vectors of unsigned integers of 32 or 64 bits are masked")
        clients = tuple(sorted(survivors))
        terms = (round_id, vector.size, 8 * vector.dtype.itemsize, clients, about)
        digest = hashlib.sha256(msgspec.msgpack.encode(terms))
        digest.update(np.ascontiguousarray(vector).data)
        known = self._masked.get(round_id)
        if known is None:
            self._check_clients(clients)
        elif known != digest.digest():
            raise RemoteProtocolError(
                "this round was used before, for other numbers, clients or questions; a mask is used once, "
                "so repeat the sum under a new round"
            )
        result = self._apply(vector, round_id, clients, about)
        if known is None:
            self._masked[round_id] = digest.digest()
            self._clients = clients
        return result

    def check(self, round_id: bytes | int, survivors: Iterable[str], *, fresh: bool) -> None:
        """Refuse a round that could not be masked, before its numbers are made; with `fresh` also one used before.

        Raises
        ------
        RemoteProtocolError, PolicyError
            As for `mask`.

        """
        if round_id not in self._masked:
            self._check_clients(tuple(sorted(survivors)))
        elif fresh:
            raise RemoteProtocolError("this round was used before; repeat the sum under a new round")

    def _check_clients(self, clients: tuple[str, ...]) -> None:
        if len(set(clients)) < len(clients) or self.name not in clients or not set(clients) <= set(self._clients):
            raise RemoteProtocolError("the clients of a round are this one and some of those of the round before it")
        if len(clients) < self._minimum:
            raise PolicyError(
                f"a sum over {len(clients)} clients would tell too much of each; this one takes part in sums "
                f"over {self._minimum} or more"
            )
        if len(clients) < len(self._clients) and not self._recover:
            raise PolicyError("this client does not repeat a sum without some of the others")

    def _apply(self, vector: Vector, round_id: bytes | int, clients: tuple[str, ...], about: bytes) -> Vector:
        return vector.copy()


class Masker(PlainMasker):
    """Masks one client's vectors.

    Parameters
    ----------
    name : str
        This client.
    transcript : bytes
        Hash of what all clients were told at the start of the session.
    secrets : mapping of str to bytes
        What this client has in common with each other.
    minimum : int
        How many clients a round must have.
    recover : bool
        Whether a round may have fewer clients than the one before it.

    """

    def __init__(
        self, name: str, transcript: bytes, secrets: Mapping[str, bytes], *, minimum: int = 3, recover: bool = True
    ) -> None:
        super().__init__(name, (name, *secrets), minimum=minimum, recover=recover)
        self._transcript = transcript
        self._secrets = dict(secrets)

    def _apply(self, vector: Vector, round_id: bytes | int, clients: tuple[str, ...], about: bytes) -> Vector:
        result = vector.copy()
        mask = np.empty_like(result)
        for peer in clients:
            if peer == self.name:
                continue
            first, second = sorted((self.name, peer))
            terms = (round_id, first, second, vector.size, 8 * vector.dtype.itemsize, clients, about)
            key = derive(TAG, self._secrets[peer], *terms, salt=self._transcript)
            _fill(key, mask)
            if self.name == first:
                result += mask
            else:
                result -= mask
        return result


def keystream(key: bytes, size: int) -> NDArray[np.uint64]:
    """So many uniform numbers of 64 bits from a key that is used for nothing else."""
    numbers = np.empty(size, "<u8")
    _fill(key, numbers)
    return numbers


def _fill(key: bytes, out: Vector) -> None:
    encryptor = Cipher(ChaCha20(key, _NONCE), mode=None).encryptor()
    stream = out.data.cast("B")
    for first in range(0, len(stream), len(_ZEROS)):
        part = stream[first : first + len(_ZEROS)]
        encryptor.update_into(_ZEROS[: len(part)], part)
