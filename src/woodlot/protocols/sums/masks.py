"""Masks that hide each client's vector and cancel in the sum of all.

Neighbours u < v have a key in common for each round. Both make the same mask of it; u adds it and v subtracts it::

    key    HKDF-SHA256(pair secret; salt = transcript,
                       info = tag, round, u, v, length, bits, all clients of the round, what is asked)
    mask   ChaCha20 keystream under this key, nonce zero, as little-endian integers; the key is used for this alone

The pair secret is that of the agreement where all clients are needed (`Masker`). Where some can be spared it is one of
the round, and each client adds a mask of its own (`recovery.RecoverableMasker`).

All sums are modulo 2^64, or modulo 2^32 for vectors of 32 bits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from woodlot.exceptions import LocalProtocolError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.agreement import derive
from woodlot.protocols.sums.keystreams import Vector, fill

TAG = "woodlot secure sum 4"
"""The protocol and its version; in everything that is signed, hashed or made a key of."""

WIDTHS = ("<u8", "<u4")
"""The dtypes of vectors."""


class MaskTerms(NamedTuple):
    """What all masks of a round depend on.

    Attributes
    ----------
    transcript : bytes
        Hash of what all clients were told at the start of the session.
    round : bytes or int
        The round.
    clients : tuple of str
        The clients of the round.
    about : bytes
        What is asked.

    """

    transcript: bytes
    round: bytes | int
    clients: tuple[str, ...]
    about: bytes

    def add(self, vector: Vector, scratch: Vector, secret: bytes, name: str, peer: str, *, sign: int = 1) -> None:
        """Add the mask that `name` has in common with `peer`, or the one of its own if that is itself.

        Parameters
        ----------
        vector : uint64 or uint32 array
            What it is added to, in place.
        scratch : array
            Of the same size and dtype; overwritten.
        secret : bytes
            Of the pair, or of the client alone.
        name, peer : str
            Whose mask, and with whom.
        sign : int
            -1 to take the mask away again.

        """
        first, second = sorted((name, peer))
        terms = (self.round, first, second, vector.size, 8 * vector.dtype.itemsize, self.clients, self.about)
        fill(derive(TAG, secret, *terms, salt=self.transcript), scratch)
        if (name == first) == (sign > 0):
            vector += scratch
        else:
            vector -= scratch


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

    def restrict(self, clients: tuple[str, ...]) -> None:
        """Do without some clients in all later rounds.

        Raises
        ------
        RemoteProtocolError, PolicyError
            As for `mask`.

        """
        self._check_clients(clients)
        self._clients = clients

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
                f"a sum over {len(clients)} clients has too few of them; this one takes part in sums over "
                f"{self._minimum} or more"
            )
        if len(clients) < len(self._clients) and not self._recover:
            raise PolicyError("this client takes part in no sum without some of the others")

    def _apply(self, vector: Vector, round_id: bytes | int, clients: tuple[str, ...], about: bytes) -> Vector:
        return vector.copy()


class Masker(PlainMasker):
    """Masks one client's vectors, for sums of which every round has all clients.

    Parameters
    ----------
    name : str
        This client.
    transcript : bytes
        Hash of what all clients were told at the start of the session.
    clients : iterable of str
        All clients of the session, this one among them.
    secrets : mapping of str to bytes
        What this client has in common with each of its neighbours.

    """

    def __init__(self, name: str, transcript: bytes, clients: Iterable[str], secrets: Mapping[str, bytes]) -> None:
        super().__init__(name, clients, recover=False)
        self._transcript = transcript
        self._secrets = dict(secrets)

    def _apply(self, vector: Vector, round_id: bytes | int, clients: tuple[str, ...], about: bytes) -> Vector:
        terms = MaskTerms(self._transcript, round_id, clients, about)
        result, scratch = vector.copy(), np.empty_like(vector)
        for peer, secret in self._secrets.items():
            terms.add(result, scratch, secret, self.name, peer)
        return result
