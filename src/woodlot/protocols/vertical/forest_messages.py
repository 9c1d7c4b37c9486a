"""Messages of the vertical forest (Federated Forest): same rows, different columns.

Bits travel packed, eight to a byte, first bit lowest. Nodes are never named: both sides keep the same list of open
nodes (see ``trees.skeleton``), and an array "per open node" follows its order.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from woodlot.protocols.core.message import (
    F64,
    FROM_HOLDER,
    FROM_PARTY,
    I32,
    I64,
    TO_HOLDER,
    TO_PARTY,
    U8,
    U16,
    U32,
    U64,
    Disclosure,
    Message,
    UInt,
)

Wire = Literal["decisions", "leaves", "ranks"]


class OpenTraining(Message):
    """Asks a party what it brings to a training."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY, "that a training is planned, and into how many bins values will go", "clear"
    )
    max_bins: int | None


class TableSummary(Message):
    """What a party brings: how many rows, and its columns by their codes."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "number of rows and of columns; each column's code, which only its party can turn into a name; "
        "whether the party lets the coordinator keep the complete model; how many trees fit its memory at once",
        "encoded",
    )
    n_rows: int
    feature_keys: U64
    shares_model: bool
    trees_together: int = 0
    """0: any number."""


class ShareLabels(Message):
    """Asks the label holder for the encoded labels."""

    discloses: ClassVar = Disclosure(
        *TO_HOLDER,
        "the task, the weights asked for its classes, how many rows trees draw, and a seed of the encoding",
        "clear",
    )
    task: Literal["classes", "targets"]
    seed: int
    balanced: bool
    class_weight: tuple[tuple[str, float], ...]
    reveal_unit: bool
    bootstrap: bool
    max_samples: int | float | None

    def check(self) -> None:
        """Trees draw at least one row."""
        check_samples(self.max_samples)


def check_samples(max_samples: int | float | None) -> None:
    """Refuse a number, or a share, of rows that no tree can draw."""
    if max_samples is not None and not 0 < max_samples < float("inf"):
        raise ValueError("max_samples must be a positive number")


class EncodedLabels(Message):
    """The labels under a code: classes under a secret permutation, targets under a secret affine map."""

    discloses: ClassVar = Disclosure(
        *FROM_HOLDER,
        "which rows have equal labels, and targets up to shift, scale and sign; the names of the "
        "classes, for the model; "
        "the weights of the rows where there are any; the scale of targets only where min_impurity_decrease or "
        "ccp_alpha needs it",
        "encoded",
    )
    labels: UInt | None
    targets: I64 | None
    weights: UInt | None
    weight_factor: float
    classes: tuple[str | int | float | bool, ...]
    unit: float


class GrowthStart(Message, abstract=True, omit_defaults=True):
    """What every start of a training tells: rules, seeds, and weights of the rows."""

    weights: UInt | None
    n_classes: int
    entropy: bool
    max_depth: int
    min_samples_split: int
    min_samples_leaf: int
    min_weight: int
    whole_tree: bool
    max_leaf_nodes: int | None
    min_impurity_decrease: float
    order_seed: int
    bootstrap_seed: int | None
    n_draws: int
    balance: bool
    min_cell: int = 0
    """See ``trees.coarsening``."""
    ccp_alpha: float | None = None
    """Splits are pruned at the end, see ``trees.cost_complexity``; None, which does not travel: they are not."""


class StartForest(GrowthStart):
    """Starts a training at a party: encoded labels, rules and seeds."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "encoded labels (which rows have equal classes; targets up to shift, scale and sign), weights of the rows, the "
        "rules of growth, and the seeds of the bootstrap and of the candidates' order",
        "encoded",
    )
    labels: UInt | None
    targets: I64 | None
    late_scores: bool = False
    """A party offers no score of a feature that is no candidate: only if it splits the node, with its partition."""


class Ready(Message):
    """The party is ready."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that it is ready", "clear")


class PlantTrees(Message):
    """Starts the next trees and asks for offers at their roots."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "how many of its own features are candidates at each root (their average over many nodes "
        "tells the share of all "
        "features that are tried)",
        "clear",
    )
    first_tree: int
    n_trees: int
    candidates: UInt


class Offers(Message):
    """A party's best split at every open node: its score and which of its coded features.

    With ``StartForest.late_scores`` the score may be -inf: none of the party's candidates can split the node, and the
    feature is the first in order that can.
    """

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "the score of the party's best candidate at every open node, and the code of its feature; where none can split "
        "the node, the code of its first feature that can; never a value or a threshold",
        "clear",
    )
    score: F64
    feature: UInt


class HolderOffers(Message):
    """The label holder's offers, with what only labels can tell."""

    discloses: ClassVar = Disclosure(
        *FROM_HOLDER,
        "as Offers; which nodes are leaves, the score of each open node left whole, and the number "
        "of rows of each new tree",
        "clear",
    )
    score: F64
    feature: UInt
    is_open: U8
    whole: F64
    sizes: U32


class ApplySplits(Message):
    """Tells a party at which open nodes its offer has won."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "at which open nodes its own offer is the best", "clear")
    won: U8


class Partition(Message, omit_defaults=True):
    """The winner's answer: for every row of the nodes it won, whether it goes left; and the scores it did not offer."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "one bit per row of a node: its side of a split whose feature and threshold stay with the winner; all of them "
        "together put the rows of a column in order, nearly all of it for columns that split often; the scores of "
        "splits at nodes that no candidate could split",
        "clear",
    )
    flags: U8
    late: F64 | None = None
    """Scores of the won nodes that were offered without, in order; None where there are none."""


class GrowLevel(Message):
    """Carries the splits of a level to a party and asks for offers at the next."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "which nodes are split; for splits of others, one bit per row: its side; how many of its own "
        "features are candidates "
        "at each new node",
        "clear",
    )
    is_split: U8
    flags: U8
    candidates: UInt


class ReplantTrees(Message):
    """Starts the trees that a revocation changes, and asks for offers at the roots that are to be searched."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "which trees change because a party has left; as PlantTrees; which roots stay as they were (their splits are "
        "carried out again)",
        "clear",
    )
    trees: U32
    candidates: UInt
    marks: U8
    former: U32


class RegrowLevel(Message):
    """Carries the splits of a level to a party and asks for offers at the next, as far as it is to be searched."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "as GrowLevel; which of the new nodes stay as they were in the former forest, and which of these need not be "
        "looked at again with all below them",
        "clear",
    )
    is_split: U8
    flags: U8
    candidates: UInt
    marks: U8
    former: U32


class FinishTrees(Message):
    """Ends the trees in flight, with the last level's splits where they are still to be told."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "as GrowLevel, without candidates; which splits were pruned away (max_leaf_nodes, ccp_alpha)",
        "clear",
    )
    is_split: U8
    flags: U8
    pruned: U32


class TreesDone(Message):
    """The party has stored its part of the trees."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "nothing but that the trees are stored", "clear")


class LeafTotals(Message):
    """What the leaves answer, from the label holder: class weights or mean targets, in the model's own terms."""

    discloses: ClassVar = Disclosure(
        *FROM_HOLDER,
        "for every leaf the weight of each class in it, or its weight and mean target: the model's answers, and with "
        "the rows of the leaves the label of every training row",
        "clear",
    )
    entries: UInt
    label: UInt
    weight: UInt
    value: F64


class RevealSplits(Message):
    """Asks for a party's splits, where its policy lets the coordinator keep the complete model."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "that the complete model is wanted", "clear")


class SplitTable(Message):
    """A party's splits: sent only by the party's own consent."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "features, names, thresholds and category sets of all the party's splits (only by its consent)",
        "clear",
    )
    node: U32
    feature: U32
    threshold: F64
    missing_left: U8
    set_start: I64
    sets: U8
    names: tuple[str, ...]
    categories: tuple[tuple[str, ...] | None, ...]


class OutOfBagAnswers(Message):
    """Sends the out-of-bag answers of the forest, and of its first few trees, to the label holder to be scored."""

    discloses: ClassVar = Disclosure(
        *TO_HOLDER,
        "the out-of-bag answer for each training row, of the whole forest and of its first 1, 2, 3, 4, 6, 8, 12, ... "
        "trees",
        "clear",
    )
    sizes: U32
    classes: UInt | None
    targets: F64 | None
    """Size by size, one for each row."""
    since: U8
    """Of each row, the first of the sizes at which it counts."""


class OutOfBagScores(Message):
    """The label holder's verdict on the out-of-bag answers."""

    discloses: ClassVar = Disclosure(
        *FROM_HOLDER,
        "out-of-bag accuracy or R2 of the forest and of its first few trees; for regression 201 quantiles of the "
        "forest's residuals, for prediction intervals",
        "clear",
    )
    scores: F64
    residuals: F64


class AskDecisions(Message):
    """Asks for the party's part of a prediction in one round."""

    discloses: ClassVar = Disclosure(
        *TO_PARTY,
        "that the rows are to be predicted; with permutation importance, which of its features to shuffle",
        "clear",
    )
    wire: Wire
    shuffled: int | None
    seed: int


class Decisions(Message):
    """Form C: the party's decisions at its nodes that the row may reach as far as the party knows."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "for each row, its side at the party's nodes that it can reach by the party's own decisions "
        "(what the paper's leaf "
        "sets tell, no more); which rows the party does not have",
        "clear",
    )
    stream: U64
    lengths: U32
    known: U8 | None


class ReachableLeaves(Message):
    """Form A, as in the paper: the leaves that a row may reach as far as the party knows."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "for each row and leaf, whether the party's splits let it get there; which rows the party does not have",
        "clear",
    )
    words: U64
    known: U8 | None


class Ranks(Message):
    """Form E, for trusted coordinators: rank of each value among the model's thresholds, and the party's node table."""

    discloses: ClassVar = Disclosure(
        *FROM_PARTY,
        "for each row and feature the rank of its value among the forest's thresholds; which nodes "
        "share a feature and the "
        "order of its thresholds (never a value or threshold itself); which rows the party does not have",
        "clear",
    )
    node: I32
    slot: I32
    cut: U16
    missing_left: U8
    set_start: I64
    sets: U8
    n_thresholds: I32
    n_codes: I64
    codes: tuple[UInt, ...]
    known: U8 | None


class AskNodes(Message):
    """The classical method: asks for the side of some rows at some of the party's nodes."""

    discloses: ClassVar = Disclosure(*TO_PARTY, "which rows have arrived at which of its own nodes", "clear")
    rows: I32
    nodes: I32


class Sides(Message):
    """The classical method's answer: one bit per question, 1 for right."""

    discloses: ClassVar = Disclosure(*FROM_PARTY, "the side of each asked row at the asked node", "clear")
    bits: U8
