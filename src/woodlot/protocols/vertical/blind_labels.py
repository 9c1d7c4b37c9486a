"""The label holder of a training whose labels are encrypted: it encrypts them once, and scores the others' sums.

A row's number is 2^(slot k) for class k, 0 for the last class, so that the sum over rows has the weight of every class
in a slot of its own; of a target, how far it is above the smallest. Parties tell what their rows weigh, so the last
class follows, and so does what the smallest target takes from a sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.crypto.envelope import unseal
from woodlot.crypto.packing import layout, unpack
from woodlot.crypto.paillier import PrivateKey, to_bytes
from woodlot.crypto.streams import SecretStream
from woodlot.data.decoding import from_msgpack
from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.bits import smallest_unsigned
from woodlot.protocols.vertical.blind_messages import ScoreSums, SumScores
from woodlot.protocols.vertical.blind_sums import COUNT, INDEX, WEIGHT, WIDTH, Sums, about
from woodlot.trees.grow import Grower
from woodlot.trees.kernels.blind import score_class_sums, score_target_sums

N = TypeVar("N", bound=np.generic)


@dataclass(frozen=True)
class Slots:
    """How a row's label is a number.

    Attributes
    ----------
    n_classes : int
        0 for targets.
    slot_bits : int
        Bits of a class's weight.
    per_part : int
        Classes in one ciphertext.
    n_parts : int
        Ciphertexts of a row.
    value_bits : int
        No row's number is above 2 to this power.
    lowest : int
        The smallest target.
    """

    n_classes: int
    slot_bits: int
    per_part: int
    n_parts: int
    value_bits: int
    lowest: int = 0

    @classmethod
    def of_classes(cls, n_classes: int, tree_weight: int, capacity: int) -> Slots:
        """Slots for the weights of classes in trees of this weight."""
        slot_bits = max(1, tree_weight.bit_length())
        told = max(1, n_classes - 1)  # the last class follows from the others
        per_part = min(told, capacity // slot_bits)
        return cls(n_classes, slot_bits, per_part, -(-told // per_part), (per_part - 1) * slot_bits)

    @classmethod
    def of_targets(cls, targets: NDArray[np.int64], tree_weight: int) -> Slots:
        """One slot for sums of targets."""
        lowest = int(targets.min())
        bits = (int(targets.max()) - lowest).bit_length()
        return cls(0, max(1, tree_weight.bit_length()), 1, 1, bits, lowest)

    def numbers(self, labels: NDArray[Any]) -> list[int]:
        """The numbers of all rows, part after part within each row."""
        if self.n_classes == 0:
            return [label - self.lowest for label in labels.tolist()]
        shift = {k: divmod(k, self.per_part) for k in range(self.n_classes - 1)}
        found = [0] * (len(labels) * self.n_parts)
        for row, label in enumerate(labels.tolist()):
            if label in shift:
                part, slot = shift[label]
                found[row * self.n_parts + part] = 1 << (slot * self.slot_bits)
        return found

    def split(self, sums: list[int]) -> NDArray[np.int64]:
        """Sums of numbers, as (sums, columns): the weight of each class but the last, or the one sum of targets."""
        if self.n_classes == 0:
            return np.array(sums, np.int64).reshape(-1, 1)
        mask = (1 << self.slot_bits) - 1
        told = max(1, self.n_classes - 1)
        found = np.empty((len(sums) // self.n_parts, told), np.int64)
        for k in range(told):
            part, slot = divmod(k, self.per_part)
            shift = slot * self.slot_bits
            # a slot of its own for each; the highest is not masked, so that too large a sum shows
            top = slot == self.per_part - 1 or k == told - 1
            found[:, k] = [total >> shift if top else total >> shift & mask for total in sums[part :: self.n_parts]]
        return found


@dataclass(eq=False)
class LabelDesk:
    """What the label holder has in one training: the key, and what it knows of the others' splits.

    Attributes
    ----------
    labels : array
        Class codes or coded targets.
    slots : Slots
        How they are numbers.
    key : PrivateKey or None
        None where nobody else has columns.
    trees : range
        Trees in flight.
    """

    labels: NDArray[Any]
    slots: Slots
    key: PrivateKey | None
    n_jobs: int
    trees: range = range(0)
    _scored: int = -1
    _known: dict[str, NDArray[np.int64]] = field(default_factory=dict)

    def encrypt(self, stream: SecretStream) -> dict[str, Any]:
        """The labels under the key, with the key's public numbers."""
        if self.key is None:
            empty = np.empty(0, np.uint8)
            fields: dict[str, Any] = {"modulus": empty, "noise": empty, "ciphertexts": empty}
        else:
            public = self.key.public
            fields = {
                "modulus": np.frombuffer(to_bytes(public.n), np.uint8),
                "noise": np.frombuffer(to_bytes(public.base), np.uint8),
                "ciphertexts": public.pack(self.key.encrypt(self.slots.numbers(self.labels), stream)),
            }
        return fields | {"n_parts": self.slots.n_parts, "value_bits": self.slots.value_bits}

    def plant(self, trees: range) -> None:
        """New trees: of their splits nothing is known."""
        self.trees, self._scored, self._known = trees, -1, {}

    def score(self, message: ScoreSums, grower: Grower, scale: int) -> SumScores:
        """The best splits of every other party at the open nodes.

        Parameters
        ----------
        message : ScoreSums
            Their sums.
        grower : Grower
            The label holder's own trees in flight.
        scale : int
            Of entropy scores.

        Raises
        ------
        RemoteProtocolError
            If this level was scored before, or sums cannot be those of rows of these nodes. Nothing has changed then.
        """
        if self.key is None or grower.skeleton.depth == self._scored:
            raise RemoteProtocolError("Unexpected ScoreSums; there is no key, or this level was scored before")
        score, n_ties, ties, known = {}, {}, {}, {}
        for party, envelope in message.envelopes.items():
            found = self._open(self.key, party, bytes(envelope), grower)
            known[party], first, weight = found
            scores = self._score(grower, first, weight, known[party], scale, party)
            score[party], number, places = _best(scores, first)
            n_ties[party], ties[party] = smallest_unsigned(number), smallest_unsigned(places)
        self._known, self._scored = known, grower.skeleton.depth
        return SumScores(score=score, n_ties=n_ties, ties=ties)

    def _open(
        self, key: PrivateKey, party: str, envelope: bytes, grower: Grower
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Sums of a party's splits, where those of each open node begin, and what they weigh."""
        content = unseal(key, envelope, about(key.public, party, self.trees, grower.skeleton.depth))
        try:
            told = from_msgpack(content, Sums)
            widths = np.frombuffer(told.widths, WIDTH)
            n_cuts = np.frombuffer(told.n_cuts, COUNT).astype(np.int64)
            weight = np.frombuffer(told.weight, WEIGHT).astype(np.int64)
            plus = np.frombuffer(told.plus, INDEX).astype(np.int64)
            minus = np.frombuffer(told.minus, INDEX).astype(np.int64)
        except (msgspec.MsgspecError, ValueError):
            raise RemoteProtocolError(f"what {party} has put into its envelope cannot be read") from None
        before = self._known.get(party, np.empty((0, max(1, self.slots.n_classes - 1)), np.int64))
        n_sums, n = len(before) + len(widths) // self.slots.n_parts, len(weight)
        if len(n_cuts) != len(grower.start) or not int(n_cuts.sum()) == len(plus) == len(minus) == n:
            raise RemoteProtocolError(f"{party} has told of other splits than there are open nodes for")
        if n and not (int(plus.min()) >= 0 and int(plus.max()) < n_sums):
            raise RemoteProtocolError(f"{party} speaks of sums that it has not told")
        if n and not (int(minus.min()) >= -1 and int(minus.max()) < n_sums):
            raise RemoteProtocolError(f"{party} speaks of sums that it has not told")
        sums = np.concatenate([before, self._decrypt(key, told.packed, widths.tolist(), party)])
        found = sums[plus] - np.where(minus[:, None] >= 0, sums[minus] if n else sums[:0], 0)
        return found, np.concatenate([[0], np.cumsum(n_cuts)]).astype(np.int64), weight

    def _decrypt(self, key: PrivateKey, packed: bytes, widths: list[int], party: str) -> NDArray[np.int64]:
        capacity = key.public.plaintext_bits
        if len(widths) % self.slots.n_parts or max(widths, default=1) > capacity or min(widths, default=1) < 1:
            raise RemoteProtocolError(f"{party} has packed its sums in another way than was agreed")
        ciphers = key.public.unpack(packed, len(layout(widths, capacity)))
        plains = key.decrypt(ciphers, threads=self.n_jobs)
        try:
            return self.slots.split(unpack(plains, widths, capacity))
        except OverflowError:
            raise RemoteProtocolError(f"{party} has told of sums that no labels can have") from None

    def _score(
        self,
        grower: Grower,
        first: NDArray[np.int64],
        weight: NDArray[np.int64],
        sums: NDArray[np.int64],
        scale: int,
        party: str,
    ) -> NDArray[np.float64]:
        self._check_sides(grower, first, weight, party)
        score = np.empty(len(weight))
        where = (grower.rows, grower.weights, self.labels, grower.start, grower.end, first, weight)
        if self.slots.n_classes == 0:
            wrong = score_target_sums(*where, sums[:, 0] + self.slots.lowest * weight, score)
        else:
            K = self.slots.n_classes
            by_class = np.empty((len(sums), K), np.int64)
            by_class[:, : K - 1] = sums[:, : K - 1]
            totals = np.empty(K, np.int64)
            wrong = score_class_sums(*where, by_class, totals, grower.rules.entropy, float(scale), score)
        if wrong >= 0:
            raise RemoteProtocolError(f"{party} has told of sums that rows of the node cannot have")
        return score

    def _check_sides(self, grower: Grower, first: NDArray[np.int64], weight: NDArray[np.int64], party: str) -> None:
        """Refuse sums of sides that the rules do not allow: a row weighs 1 at least, so they are too light."""
        before = np.concatenate([[0], np.cumsum(grower.weights, dtype=np.int64)])
        whole = np.repeat(before[grower.end] - before[grower.start], np.diff(first))
        least = max(grower.rules.min_weight, grower.rules.min_samples_leaf)
        if int(np.minimum(weight, whole - weight).min(initial=least)) < least:
            raise RemoteProtocolError(
                f"{party} has told of a split that leaves less than {least} on one side, which the rules do not allow"
            )


def _best(
    score: NDArray[np.float64], first: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64]]:
    """The best score of each node, how many splits reach it, and which of the node's they are."""
    n_cuts = np.diff(first)
    best = np.full(len(n_cuts), -np.inf)
    some = np.flatnonzero(n_cuts)
    if len(some):
        best[some] = np.maximum.reduceat(score, first[some])
    node = np.repeat(np.arange(len(n_cuts)), n_cuts)
    tied = np.flatnonzero(score == best[node])
    return best, np.bincount(node[tied], minlength=len(n_cuts)), tied - first[node[tied]]
