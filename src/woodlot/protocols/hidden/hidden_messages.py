"""Messages of the hidden forest: two servers and a dealer, none of whom is told which row goes where.

The label holder leads: it runs the protocol and is the first server. The second server is another party. Neither two
of these three (label holder, second server, dealer) work together: that is what all of it rests on.

Shares and masks are uniform to whoever lacks the other part. Arrays "per open node" follow the order in which both
servers keep their nodes; records travel as bytes (``shared_rows.to_wire``). `bound` is a digest of what the other one
of second server and dealer has been told, this round included; see ``told_so_far``.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from woodlot.protocols.core.message import U8, U16, U32, U64, Disclosure, Message, Role, UInt

_TO_PARTY = (Role.label_holder, Role.party)
_FROM_PARTY = (Role.party, Role.label_holder)
_TO_SERVER = (Role.label_holder, Role.second_server)
_FROM_SERVER = (Role.second_server, Role.label_holder)
_TO_DEALER = (Role.label_holder, Role.dealer)
_FROM_DEALER = (Role.dealer, Role.label_holder)


class HiddenIntroduction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fresh X25519 public key of a party or the dealer, signed by its identity where it has one."""

    share: bytes
    certificate: bytes = b""
    signature: bytes = b""


class OpenHidden(Message):
    """Asks a party, and the dealer, to take part in a hidden training."""

    discloses: ClassVar = Disclosure(
        *_TO_PARTY,
        "that a training is planned, who takes part in which role, the number of bins, and the fewest rows of a leaf "
        "and of a cell",
        "clear",
    )
    parties: tuple[str, ...]
    """Who introduces themselves: every party but the label holder, and last the dealer."""
    holder: str
    server: str
    dealer: str
    max_bins: int
    min_leaf: int
    """The fewest drawn rows of a leaf."""
    min_cell: int
    """A node shows at most so many cells of a column as this number goes into its drawn rows; 0: any number."""


class HiddenSummary(Message):
    """What a party brings to a hidden training."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY,
        "number of rows and of columns; each column's code, which only its party can turn into a name, its number of "
        "bins, whether values are missing, and whether it has categories; whether the party lets the label holder keep "
        "the complete model",
        "encoded",
    )
    introduction: HiddenIntroduction
    n_rows: int
    feature_keys: U64
    n_codes: U32
    has_missing: U8
    categorical: U8
    shares_model: bool


class DealerKey(Message):
    """The dealer's introduction."""

    discloses: ClassVar = Disclosure(*_FROM_DEALER, "a public key", "clear")
    introduction: HiddenIntroduction


class ShareColumns(Message):
    """Asks a party for its columns in two shares; the other one follows from a key that it has with the server."""

    discloses: ClassVar = Disclosure(
        *_TO_PARTY, "the public keys of the others, and how many bits the codes of all columns need", "clear"
    )
    introductions: dict[str, HiddenIntroduction]
    bits: int


class ColumnShares(Message):
    """One share of every column of a party."""

    discloses: ClassVar = Disclosure(
        *_FROM_PARTY, "nothing: uniform bits, without the share that the second server has", "encrypted"
    )
    codes: U8 | None
    wide_codes: U16 | None
    """Where codes need more than a byte."""


class StartDealer(Message):
    """Starts the dealer: lengths, and how rows are drawn."""

    discloses: ClassVar = Disclosure(
        *_TO_DEALER, "the numbers of rows, columns and classes, and how many rows each tree draws", "clear"
    )
    introductions: dict[str, HiddenIntroduction]
    n_rows: int
    n_classes: int
    width: int
    bits: int
    n_columns: int
    n_draws: int | None
    """None: every tree has every row."""
    salt: bytes
    """Of the masks of labels: random to the dealer, and another one for other labels."""


class DealerReady(Message):
    """The dealer's secret with the label holder, from which masks and orders follow."""

    discloses: ClassVar = Disclosure(
        *_FROM_DEALER, "random numbers that depend on nothing that anybody has", "encrypted"
    )
    secret: bytes


class StartServer(Message):
    """Starts the second server: the columns of all parties by number, and its share of the labels."""

    discloses: ClassVar = Disclosure(
        *_TO_SERVER,
        "how many columns each party has, how many bins each column has, whether values are missing, and the number of "
        "classes; of the labels nothing: they are masked",
        "encrypted",
    )
    owners: tuple[str, ...]
    columns_of: U32
    n_codes: U32
    has_missing: U8
    n_rows: int
    n_classes: int
    width: int
    bits: int
    n_columns: int
    seed: bytes
    """Of its shares of the label holder's columns and, where nothing is drawn, of the rows' values."""
    masked: UInt | None
    """Labels less the dealer's masks, where rows are drawn."""


class HiddenReady(Message):
    """The second server is ready."""

    discloses: ClassVar = Disclosure(*_FROM_SERVER, "nothing but that it is ready", "clear")


class PlantHidden(Message):
    """Begins trees at the second server."""

    discloses: ClassVar = Disclosure(
        *_TO_SERVER, "which trees begin, and which columns are tried where that is decided once for a tree", "clear"
    )
    first_tree: int
    n_trees: int
    columns: UInt
    bound: bytes


class DealDraws(Message):
    """Asks the dealer to draw the rows of some trees."""

    discloses: ClassVar = Disclosure(*_TO_DEALER, "which trees begin", "clear")
    first_tree: int
    n_trees: int
    bound: bytes


class DealtDraws(Message):
    """One share of how often each row was drawn."""

    discloses: ClassVar = Disclosure(*_FROM_DEALER, "nothing: uniform numbers, without the second share", "encrypted")
    words: U64


class ServerTotals(Message):
    """The second server's share of each tree's totals."""

    discloses: ClassVar = Disclosure(
        *_FROM_SERVER, "how many rows a tree has drawn, and the weight of each class, or the sum of targets", "clear"
    )
    sums: U8


class AskPairs(Message):
    """Names the candidates of open nodes, and asks for the rows' bins under a mask."""

    discloses: ClassVar = Disclosure(
        *_TO_SERVER,
        "how many rows of each node that was split go left (no row is linked to anything: they were shuffled), which "
        "children are leaves, which columns, by number, are tried at which node, and in how coarse cells: the order of "
        "magnitude of how many rows of the node were drawn",
        "clear",
    )
    left: U8
    is_open: U8
    node: UInt
    slot: UInt
    shift: U8
    """How many low bits of each pair's codes are dropped before they are opened."""
    bound: bytes


class MaskedRecords(Message):
    """The second server's shares of some records under a mask of the dealer."""

    discloses: ClassVar = Disclosure(
        *_FROM_SERVER,
        "nothing of a row: shares under a mask; for regression the spread of targets in each open node",
        "encrypted",
    )
    records: U8
    squares: U64


class DealShuffle(Message):
    """Asks the dealer for a shuffle."""

    discloses: ClassVar = Disclosure(
        *_TO_DEALER, "how many records there are in each segment: the sizes of nodes", "clear"
    )
    sizes: U32
    whole_rows: bool
    bound: bytes


class DealtShuffle(Message):
    """What the label holder needs for the first half of a shuffle."""

    discloses: ClassVar = Disclosure(*_FROM_DEALER, "nothing: uniform bits", "encrypted")
    first: U8


class DealSecond(Message):
    """Asks the dealer for the second half of the shuffle."""

    discloses: ClassVar = Disclosure(*_TO_DEALER, "nothing but that the first half is done", "clear")
    bound: bytes


class DealtSecond(Message):
    """What the label holder needs for the second half of a shuffle."""

    discloses: ClassVar = Disclosure(*_FROM_DEALER, "nothing: uniform bits", "encrypted")
    second: U8


class PassRecords(Message):
    """The label holder's shares, in the order of its own, under a mask of the dealer."""

    discloses: ClassVar = Disclosure(*_TO_SERVER, "nothing: shares under a mask", "encrypted")
    records: U8
    bound: bytes


class CodeShares(Message):
    """The second server's shares of bins that are to be opened, in an order that nobody knows."""

    discloses: ClassVar = Disclosure(
        *_FROM_SERVER,
        "how many rows of a node are in each cell of a column that is known by number only; no row is linked to it",
        "clear",
    )
    codes: UInt


class OpenBins(Message):
    """The opened bins, in an order that nobody knows."""

    discloses: ClassVar = Disclosure(
        *_TO_SERVER,
        "how many rows of a node are in each cell of a column that is known by number only; no row is linked to it",
        "clear",
    )
    codes: UInt


class ServerSums(Message):
    """The second server's share of the sums of each cell."""

    discloses: ClassVar = Disclosure(
        *_FROM_SERVER,
        "for each cell of a candidate column at a node, how many drawn rows are in it, and the weight of each class, "
        "or the sum of targets",
        "clear",
    )
    sums: U8


class AskRows(Message):
    """Names the columns that split nodes, and asks for the whole records of their rows under a mask."""

    discloses: ClassVar = Disclosure(
        *_TO_SERVER, "which nodes are split, and by which column, known by number only", "clear"
    )
    goes_on: U8
    slot: UInt
    bound: bytes


class KeepSplits(Message):
    """Tells a party its own splits: the model's part that it keeps."""

    discloses: ClassVar = Disclosure(
        *_TO_PARTY,
        "the shape of the trees, and for its own columns where they split: between which bins, or which categories go "
        "left",
        "clear",
    )
    offset: U32
    right: U32
    """Right child of each node, 0 at leaves."""
    node: U32
    feature: U32
    low: UInt
    high: UInt
    """Bin above the cut, counted from 1; 0 where only missing values go right."""
    missing_left: U8
    set_length: UInt
    sets: U8


class SplitsKept(Message):
    """The party has its part of the forest."""

    discloses: ClassVar = Disclosure(*_FROM_PARTY, "nothing but that the part is stored", "clear")
