"""Messages of a vertical forest whose labels are encrypted (``labels="encrypted"``).

As in ``vertical``, nodes are never named: an array "per open node" follows the list of open nodes that all sides keep.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from woodlot.protocols.core.message import (
    F64,
    FROM_HOLDER,
    FROM_PARTY,
    TO_HOLDER,
    TO_PARTY,
    U8,
    Disclosure,
    Message,
    UInt,
)
from woodlot.protocols.vertical.forest_messages import GrowthStart, check_samples


class EncryptLabels(Message):
    """Asks the label holder for its labels under encryption."""

    discloses: ClassVar = Disclosure(
        *TO_HOLDER, "the task, the length of the key, how many rows trees draw, and whether anybody needs them", "clear"
    )
    task: Literal["classes", "targets"]
    seed: int
    reveal_unit: bool
    key_bits: int
    bootstrap: bool
    max_samples: int | float | None
    others: bool

    def check(self) -> None:
        """Trees draw at least one row."""
        check_samples(self.max_samples)


class EncryptedLabels(Message):
    """One ciphertext (with very many classes several) per row, under a key that only the label holder has."""

    discloses: ClassVar = Disclosure(
        *FROM_HOLDER,
        "nothing of any row's label; the names of the classes, for the model; the weights of the rows where there are "
        "any; how many bits a label takes; the scale of targets only where min_impurity_decrease needs it; the label "
        "holder's certificate",
        "encrypted",
    )
    modulus: U8
    noise: U8
    ciphertexts: U8
    n_parts: int
    value_bits: int
    weights: UInt | None
    weight_factor: float
    classes: tuple[str | int | float | bool, ...]
    unit: float
    certificate: bytes = b""
    """The label holder's identity; empty where parties share a secret instead."""
    signature: bytes = b""
    """By this identity, over key and ciphertexts; or their tag under the shared secret."""


class TakeLabels(Message):
    """Brings the encrypted labels to a party."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "nothing of any row's label; how many bits a label takes (with classes: their number); the label holder's "
        "certificate",
        "encrypted",
    )
    modulus: U8
    noise: U8
    ciphertexts: U8
    n_parts: int
    value_bits: int
    certificate: bytes = b""
    signature: bytes = b""
    """As in EncryptedLabels: a party takes no others than the label holder's."""


class StartBlind(GrowthStart):
    """Starts a training at a party: rules and seeds, without labels."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "weights of the rows, the number of classes, the rules of growth, and the seeds of the bootstrap and of the "
        "candidates' order",
        "clear",
    )


class PlantBlind(Message):
    """Starts the next trees at a party without labels, and asks for the sums of its splits."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "which roots can be split at all (the others are pure: their rows have one label); how many of its own "
        "features are candidates at each",
        "clear",
    )
    first_tree: int
    n_trees: int
    candidates: UInt
    is_open: U8


class GrowBlind(Message):
    """Carries the splits of a level to a party without labels, and asks for the sums of its splits at the next."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "which nodes are split; for splits of others, one bit per row: its side; which new nodes can be split at all "
        "(the others are small or pure: rows that share a pure one have one label, and many trees together join them "
        "to the classes); how many of its own features are candidates at each",
        "clear",
    )
    is_split: U8
    flags: U8
    candidates: UInt
    is_open: U8


class BlindSums(Message):
    """A party's splits at the open nodes: encrypted sums of labels, in an envelope that only the label holder opens."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "to the coordinator: at which open nodes the party can split, and whether by a candidate; the length tells "
        "about how many splits there are. To the label holder: for every split of every open node the weight and the "
        "sum of labels on one side, in an order that the party has shuffled, without feature, value or threshold; "
        "which splits of a node and its child are by the same feature",
        "encrypted",
    )
    kind: U8
    envelope: U8


class ScoreSums(Message):
    """Brings the sums of all other parties to the label holder, to be scored."""

    discloses: ClassVar = Disclosure(*TO_HOLDER, "as BlindSums, for each party by name", "encrypted")
    envelopes: dict[str, U8]


class SumScores(Message):
    """The best score of each party at every open node, and which of its splits reach it."""

    discloses: ClassVar = Disclosure(
        *FROM_HOLDER,
        "the score of every party's best split at every open node (-inf: none), and the places of the best ones in "
        "the party's shuffled order",
        "clear",
    )
    score: dict[str, F64]
    n_ties: dict[str, UInt]
    ties: dict[str, UInt]


class ResolveTies(Message):
    """Tells a party which of its splits are the best at nodes that it may win."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY, "at open nodes where no other party has a better split: which of its own are the best", "clear"
    )
    n_ties: UInt
    ties: UInt


class ResolvedTies(Message):
    """The feature of the split that the party has settled on, by open node."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY, "the code of the feature of the party's best split, at nodes that it may win", "clear"
    )
    feature: UInt
