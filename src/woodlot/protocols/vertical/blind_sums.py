"""A party without labels: encrypted labels in, sums of its splits out, in an envelope for the label holder.

What is in the envelope, for one level of all trees in flight::

    widths   bits of each sum, as packed
    n_cuts   splits at each open node, node after node; their order within a node is shuffled
    weight   what the rows on the summed side of each split weigh
    plus     which sum is the split's own, and ...
    minus    ... which is to be taken from it: splits of the level before come first, then the sums of this one
    packed   ciphertexts of the sums, several in each, every one under new noise
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.envelope import seal
from woodlot.crypto.packing import pack, sum_bits
from woodlot.crypto.paillier import PaillierPublicKey, from_bytes
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.vertical.blind_messages import BlindSums, TakeLabels
from woodlot.trees.blind import BlindGrower, Chain, Level

MAX_PARTS = 1 << 12
"""The most ciphertexts per row that are taken: enough for as many classes as there can be."""


class Sums(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """What is in an envelope: arrays as bytes, little endian."""

    widths: bytes
    n_cuts: bytes
    weight: bytes
    plus: bytes
    minus: bytes
    packed: bytes


WIDTH, COUNT, WEIGHT, INDEX = "<u2", "<u4", "<u4", "<i4"
"""Types of the arrays in an envelope."""


def about(key: PaillierPublicKey, party: str, trees: range, depth: int) -> bytes:
    """What an envelope is about: whose sums, of which trees and level, under which key."""
    return msgspec.msgpack.encode((key.name, party, trees.start, trees.stop, depth))


class EncryptedRows:
    """The label of each row as ciphertexts, and their sums.

    Parameters
    ----------
    message : TakeLabels
        The ciphertexts and their key.
    n_rows : int
        Rows at this party.
    """

    def __init__(self, message: TakeLabels, n_rows: int) -> None:
        self.key = PaillierPublicKey(from_bytes(message.modulus), from_bytes(message.noise))
        self.n_parts, self.value_bits = message.n_parts, message.value_bits
        if not 1 <= self.n_parts <= MAX_PARTS or not 0 <= self.value_bits < self.key.plaintext_bits:
            raise RemoteProtocolError("TakeLabels carries a number of ciphertexts per row, or of bits, out of range")
        self._ciphers = self.key.unpack(message.ciphertexts, n_rows * self.n_parts)
        self._powers: list[dict[int, Any]] = [{} for _ in range(self.n_parts)]

    def check_weight(self, tree_weight: int) -> None:
        """Refuse trees so heavy that a sum would outgrow a plaintext."""
        if sum_bits(self.value_bits, tree_weight) > self.key.plaintext_bits:
            raise RemoteProtocolError("the trees weigh more than the sums of the encrypted labels have room for")

    def _times(self, rows: NDArray[np.uint32], weights: NDArray[Any]) -> list[list[Any]]:
        """The ciphertexts of some rows by their weights, for each part; what was raised once is kept."""
        keys = ((rows.astype(np.int64) << 32) | weights).tolist()
        square, first = self.key.square, self._powers[0]
        for key in [key for key in keys if key not in first]:
            row, weight = key >> 32, key & 0xFFFFFFFF
            for part, powers in enumerate(self._powers):
                cipher = self._ciphers[row * self.n_parts + part]
                if weight == 2:
                    cipher = cipher * cipher % square
                elif weight > 2:
                    cipher = self.key.multiply(cipher, weight)
                powers[key] = cipher
        return [list(map(powers.__getitem__, keys)) for powers in self._powers]

    def sums(self, chain: Chain, rows: NDArray[np.uint32], weights: NDArray[Any]) -> list[Any]:
        """Ciphertexts of the sums of a chain, for each part; the parts of one sum stand side by side."""
        items, apart = chain.items[: int(chain.stops.max(initial=0))], chain.apart
        parts = zip(self._times(rows[items], weights[items]), self._times(rows[apart], weights[apart]), strict=True)
        found = [_chain_sums(chain, ciphers, lone, self.key.square) for ciphers, lone in parts]
        return [cipher for sums in zip(*found, strict=True) for cipher in sums]


def _chain_sums(chain: Chain, ciphers: list[Any], apart: list[Any], square: Any) -> list[Any]:
    lone: Any = 1
    if chain.with_apart.any():
        for cipher in apart:
            lone = lone * cipher % square
    held: Any = 1
    done, found = 0, []
    for stop, with_apart in zip(chain.stops.tolist(), chain.with_apart.tolist(), strict=True):
        for cipher in ciphers[done:stop]:
            held = held * cipher % square
        done = stop
        found.append(held * lone % square if with_apart else held)
    return found


class BlindSide:
    """A party without labels in one training.

    Parameters
    ----------
    party : str
        Its name.
    rows : EncryptedRows
        What it was given.
    secret : bytes
        Its secret of this job.
    """

    def __init__(self, party: str, rows: EncryptedRows, secret: bytes) -> None:
        self._party = party
        self.rows = rows
        self._secret = secret

    def sums(self, grower: BlindGrower, trees: range, counts: NDArray[Any], history: bytes) -> BlindSums:
        """The splits of this party at the open nodes.

        Parameters
        ----------
        grower : BlindGrower
            Trees in flight.
        trees : range
            Their numbers.
        counts : array
            How many of the party's features are candidates, by open node.
        history : bytes
            Hash of all messages that have led here: noise is never used for two different things.
        """
        key, depth = self.rows.key, grower.skeleton.depth
        stream = SecretStream.derived(self._secret, "blind sums", history)

        def shuffle(n: int) -> NDArray[np.uint64]:
            return np.frombuffer(stream.bytes(8 * n), "<u8")

        level = grower.list_cuts(counts, shuffle)
        sums, widths = self._ordered(level, grower)
        packed = [key.refresh(cipher, stream) for cipher in pack(key, sums, widths)]
        content = Sums(
            widths=np.array(widths, WIDTH).tobytes(),
            n_cuts=level.n_cuts.astype(COUNT).tobytes(),
            weight=level.weight.astype(WEIGHT).tobytes(),
            plus=level.plus.astype(INDEX).tobytes(),
            minus=level.minus.astype(INDEX).tobytes(),
            packed=bytes(key.pack(packed)),
        )
        envelope = seal(key, msgspec.msgpack.encode(content), about(key, self._party, trees, depth), stream)
        return BlindSums(kind=level.kind, envelope=np.frombuffer(envelope, np.uint8))

    def _ordered(self, level: Level, grower: BlindGrower) -> tuple[list[Any], list[int]]:
        """All sums in the order in which they are told, and their widths."""
        parts, found, widths = self.rows.n_parts, [], []
        for chain in level.chains:
            found += self.rows.sums(chain, grower.rows, grower.weights)
            widths += [sum_bits(self.rows.value_bits, chain.weight)] * (parts * len(chain.stops))
        places = (level.order[:, None] * parts + np.arange(parts)).ravel().tolist()
        return [found[i] for i in places], [widths[i] for i in places]
