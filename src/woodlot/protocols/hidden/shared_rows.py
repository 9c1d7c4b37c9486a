"""Records of secret-shared rows at a server, and the shuffle that two servers and a dealer do together.

A shuffle has two halves. In each half one server knows the order and the other one hides its share from it::

    knows the order    new share = order(own share + (share of the other - mask)) + fresh
    the other          sends share - mask; new share = other
    dealer             fresh + other = order(mask), and nobody but the dealer has both

First A, the leader, knows the order, then B. After both halves nobody knows it. What B has of this follows from a
secret that it shares with the dealer, so that the dealer sends vectors to A only. Every stream is derived from a
secret, the number of the step, the lengths that it is for, and all that B and the dealer were told before
(`told_so_far`): it is used for nothing else, and a job that is repeated from its journal repeats it. The second half is
bound to the records that B is sent for it, so the dealer deals it when A has made them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.privacy.derivation import derive_key, open_stream
from woodlot.trees.coarsening import bit_lengths, shifts, value_cells
from woodlot.trees.kernels import shares

Words = NDArray[np.uint64]

MAX_BITS = 16
"""Bits of a code, at most."""


@dataclass(frozen=True)
class RecordLayout:
    """Where the numbers of a row stand in its record: the same at both servers and the dealer.

    Attributes
    ----------
    n_classes : int
        0 for targets.
    width : int
        Bits of a count or weight.
    bits : int
        Bits of a code.
    n_columns : int
        Columns that travel with a row.
    """

    n_classes: int
    width: int
    bits: int
    n_columns: int

    @property
    def n_counts(self) -> int:
        """Rows, weight, and the weights of all classes but one."""
        return 1 + max(1, self.n_classes)

    @cached_property
    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Word and shift of each field; of targets the last two are the weighted target and its weighted square."""
        word, shift = [], []
        at, free = 0, self.bits
        for _ in range(self.n_counts):
            if free + self.width > 64:
                at, free = at + 1, 0
            word.append(at)
            shift.append(free)
            free += self.width
        if self.n_classes == 0:
            word += [at + 1, at + 2]
            shift += [0, 0]
        return np.array(word), np.array(shift)

    @cached_property
    def pair_words(self) -> int:
        """Words of the values that sums are taken of."""
        word, _ = self.places
        return int(word[-1]) + (1 if self.n_classes else 0)

    @property
    def first_column(self) -> int:
        """The first word of codes."""
        return int(self.places[0][-1]) + 1

    @cached_property
    def n_words(self) -> int:
        """Words of a whole record."""
        return self.first_column + -(-self.n_columns // (64 // self.bits))

    @cached_property
    def used(self) -> NDArray[np.int64]:
        """Bytes of each word of a whole record that travel."""
        word, shift = self.places
        used = np.zeros(self.n_words, np.int64)
        counts = slice(0, self.n_counts)
        np.maximum.at(used, word[counts], -(-(shift[counts] + self.width) // 8))
        if self.n_classes == 0:
            used[word[-2:]] = 8
        per_word = 64 // self.bits
        for k in range(self.first_column, self.n_words):
            held = min(per_word, self.n_columns - (k - self.first_column) * per_word)
            used[k] = -(-held * self.bits // 8)
        return used

    @cached_property
    def row_xor(self) -> Words:
        """Which bits of a whole record are shared by XOR: codes, and where a pair has its code."""
        xor = np.zeros(self.n_words, np.uint64)
        xor[0] = self.pair_xor[0]
        xor[self.first_column :] = np.uint64(2**64 - 1)
        return xor

    @cached_property
    def pair_xor(self) -> Words:
        """Which bits of the record of a pair are shared by XOR."""
        xor = np.zeros(self.pair_words, np.uint64)
        xor[0] = np.uint64((1 << self.bits) - 1)
        return xor

    def of_records(self, *, whole_rows: bool) -> tuple[Words, NDArray[np.int64]]:
        """Bits shared by XOR and used bytes, of whole records or of those of pairs."""
        if whole_rows:
            return self.row_xor, self.used
        return self.pair_xor, self.used[: self.pair_words]

    @property
    def dealt_fields(self) -> int:
        """Numbers that the dealer shares for each row of a tree."""
        return 1 + self.n_classes if self.n_classes else 4


@dataclass(frozen=True, eq=False)
class CodeSizes:
    """What servers know of the codes of columns; all arrays count by column, or by pair of a node and a column.

    A missing value is a bit of its own above the bits of values. So it stays apart from them when low bits are dropped.

    Attributes
    ----------
    n_codes : int64 array
        Codes of values.
    has_missing : uint8 array
        1 where a value is missing.
    """

    n_codes: NDArray[np.int64]
    has_missing: NDArray[np.uint8]

    def take(self, columns: NDArray[np.int64]) -> CodeSizes:
        """Those of some columns."""
        return CodeSizes(self.n_codes[columns], self.has_missing[columns])

    @property
    def missing(self) -> NDArray[np.int64]:
        """The code of missing values in shares."""
        return np.int64(1) << bit_lengths(np.maximum(self.n_codes - 1, 0))

    @property
    def bits(self) -> NDArray[np.int64]:
        """Bits that hold every code."""
        return bit_lengths(np.maximum(self.n_codes - 1, 0)) + self.has_missing

    def shifts(self, n_rows: NDArray[np.int64], min_cell: int) -> NDArray[np.int64]:
        """How many low bits are dropped at nodes of so many rows."""
        return shifts(n_rows, self.n_codes, self.has_missing, min_cell)

    def values(self, shift: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cells of values."""
        return value_cells(self.n_codes, shift)

    def cells(self, shift: NDArray[np.int64]) -> NDArray[np.int64]:
        """Cells in all: what is opened of a column has no more."""
        return self.values(shift) + self.has_missing

    def cells_of(
        self, codes: NDArray[Any], size: NDArray[np.int64], shift: NDArray[np.int64], sender: str
    ) -> NDArray[Any]:
        """The cells of opened codes, of which the low bits were dropped; so many for each pair.

        Others than a column can have are the sender's fault. Kernels do not look.
        """
        missing = np.where(self.has_missing == 1, self.missing >> shift, -1)
        cells: NDArray[Any] = np.empty_like(codes)
        if not shares.find_cells(codes, size, self.values(shift), missing, cells):
            raise RemoteProtocolError(f"{sender} sent shares of bins that no column has")
        return cells


def code_bits(sizes: CodeSizes) -> int:
    """Bits of the codes of all columns."""
    bits = int(sizes.bits.max(initial=1))
    if bits > MAX_BITS:
        raise DataError(
            f"a column has {int(sizes.n_codes.max()):,} categories, and protection='hidden' takes at most "
            f"{2 ** (MAX_BITS - 1):,}; merge rare categories first"
        )
    return bits


def code_type(bits: int) -> type[np.uint8] | type[np.uint16]:
    """The smallest type of a code."""
    return np.uint8 if bits <= 8 else np.uint16


def stream(secret: bytes, purpose: str, *numbers: int | str | bytes, n: int) -> Words:
    """So many secret words for one purpose."""
    parts = (part if isinstance(part, bytes) else str(part).encode() for part in numbers)
    return np.frombuffer(open_stream(derive_key(secret, purpose, *parts))(8 * n), np.uint64)


def column_shares(secret: bytes, owner: str, n_columns: int, n_rows: int, bits: int) -> NDArray[Any]:
    """The second server's share of an owner's columns: made by both of them from what they have in common."""
    kind = np.dtype(code_type(bits))
    n = n_columns * n_rows
    words = stream(secret, "columns", owner, n_columns, n_rows, bits, n=-(-n * kind.itemsize // 8))
    codes: NDArray[Any] = words.view(kind)[:n] & kind.type((1 << bits) - 1)
    return codes.reshape(n_columns, n_rows)


def to_wire(records: Words, used: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Records as bytes."""
    out = np.empty(len(records) * int(used.sum()), np.uint8)
    shares.to_bytes(records, used, out)
    return out


def from_wire(data: NDArray[np.uint8], n: int, used: NDArray[np.int64], sender: str) -> Words:
    """Records from bytes; another number of them is the sender's fault."""
    if len(data) != n * int(used.sum()):
        raise RemoteProtocolError(f"{sender} sent {len(data)} bytes for {n} records of {int(used.sum())} bytes")
    out = np.empty((n, len(used)), np.uint64)
    shares.from_bytes(data, used, out)
    return out


@dataclass(frozen=True, eq=False)
class Segments:
    """Records that are shuffled together, segment after segment, in one step of the job.

    Attributes
    ----------
    step : int
        Number of the step: no two steps have the same streams.
    size : int64 array
        Records of each segment.
    xor : uint64 array
        Which bits of each word are shared by XOR.
    bound : bytes
        What the second server and the dealer were told before; see `told_so_far.bond`.
    """

    step: int
    size: NDArray[np.int64]
    xor: Words
    bound: bytes = b""

    @cached_property
    def end(self) -> NDArray[np.int64]:
        return np.cumsum(self.size)

    @cached_property
    def start(self) -> NDArray[np.int64]:
        return self.end - self.size

    @property
    def n(self) -> int:
        """Records in all."""
        return int(self.size.sum())

    def _stream(self, secret: bytes, purpose: str, words: int) -> Words:
        lengths = np.ascontiguousarray(self.size, "<i8").tobytes()
        return stream(secret, purpose, self.step, len(self.xor), lengths, self.bound, n=self.n * words)

    def mask(self, secret: bytes, purpose: str) -> Words:
        """One random record for each."""
        return self._stream(secret, purpose, len(self.xor)).reshape(self.n, len(self.xor))

    def order(self, secret: bytes, purpose: str) -> NDArray[np.uint32]:
        """A random order inside every segment."""
        source = np.empty(self.n, np.uint32)
        shares.draw_order(self.start, self.end, self._stream(secret, purpose, 1), source)
        return source

    def second_half(self, bound: bytes) -> Segments:
        """The same records in the second half, which is bound to what B was sent for it."""
        return replace(self, bound=bound)

    # --- the dealer ---

    def deal_first(self, with_leader: bytes, with_server: bytes) -> Words:
        """What the leader is sent for the first half: ``fresh``."""
        out = np.empty((self.n, len(self.xor)), np.uint64)
        order = self.order(with_leader, "first order")
        shares.deal(self.mask(with_server, "first mask"), order, self.mask(with_server, "first other"), self.xor, out)
        return out

    def deal_second(self, with_leader: bytes, with_server: bytes, second: Segments) -> Words:
        """What the leader is sent for the second half: ``other``."""
        out = np.empty((self.n, len(self.xor)), np.uint64)
        order, fresh = second.order(with_server, "second order"), second.mask(with_server, "second fresh")
        shares.deal(self.mask(with_leader, "second mask"), order, fresh, self.xor, out)
        return out

    # --- server B ---

    def hide(self, secret: bytes, records: Words) -> Words:
        """B, first half: its share behind a mask."""
        out = np.empty_like(records)
        shares.take_off(records, self.mask(secret, "first mask"), self.xor, out)
        return out

    def carry_second(self, secret: bytes, masked: Words, second: Segments) -> Words:
        """B, second half: its new share."""
        out = np.empty_like(masked)
        order, fresh = second.order(secret, "second order"), second.mask(secret, "second fresh")
        shares.carry(self.mask(secret, "first other"), masked, order, fresh, self.xor, out)
        return out

    # --- server A ---

    def carry_first(self, secret: bytes, records: Words, masked: Words, dealt: Words) -> Words:
        """A, first half: its new share, hidden for the second half."""
        out = np.empty_like(records)
        shares.carry(records, masked, self.order(secret, "first order"), dealt, self.xor, out)
        shares.take_off(out, self.mask(secret, "second mask"), self.xor, out)
        return out


class SharedRows:
    """One server's shares of the rows of all open nodes.

    Attributes
    ----------
    records : uint64 array, shape (rows, words)
        Node after node.
    size : int64 array
        Rows of each open node.
    """

    def __init__(self, layout: RecordLayout, records: Words, size: NDArray[np.int64]) -> None:
        self.layout = layout
        self.records = records
        self.size = size

    @property
    def end(self) -> NDArray[np.int64]:
        return np.cumsum(self.size)

    @property
    def start(self) -> NDArray[np.int64]:
        return self.end - self.size

    def totals(self) -> Words:
        """Share of the sums of each node: (nodes, words), of the values alone."""
        values = self.records[:, : self.layout.first_column]
        sums = np.zeros((len(self.size), values.shape[1]), np.uint64)
        bins = np.zeros(len(values), np.uint8)
        xor = self.layout.row_xor[: values.shape[1]]
        shares.add_up(values, bins, self.size, np.arange(len(self.size)), xor, sums)
        return sums

    def pairs(self, node: NDArray[np.int64], slot: NDArray[np.int64], shift: NDArray[np.int64]) -> Words:
        """Records of pairs of a node and a column, without the low bits of its codes."""
        layout = self.layout
        out = np.empty((int(self.size[node].sum()), layout.pair_words), np.uint64)
        shares.gather_pairs(
            self.records, self.start, self.end, node, slot, shift, layout.bits, layout.pair_words,
            layout.first_column, out,
        )  # fmt: skip
        return out

    def of_nodes(self, nodes: NDArray[np.bool_]) -> Words:
        """Records of some nodes."""
        return self.records if nodes.all() else self.records[np.repeat(nodes, self.size)]


def split_codes(
    layout: RecordLayout,
    records: Words,
    size: NDArray[np.int64],
    slot: NDArray[np.int64],
    shift: NDArray[np.int64],
) -> NDArray[Any]:
    """A server's share of the codes that decide the sides of some nodes' rows, without their low bits."""
    out = np.empty(len(records), code_type(layout.bits))
    end = np.cumsum(size)
    shares.gather_codes(records, end - size, end, slot, shift, layout.bits, layout.first_column, out)
    return out


def regrouped(
    layout: RecordLayout, records: Words, size: NDArray[np.int64], left: NDArray[np.uint8], is_open: NDArray[np.bool_]
) -> SharedRows:
    """The rows of split nodes, by their open children; two for each, left first."""
    at, end = np.concatenate([[0], np.cumsum(left, dtype=np.int64)]), np.cumsum(size)
    lefts = at[end] - at[end - size]
    sizes = np.where(is_open, np.column_stack([lefts, size - lefts]).ravel(), 0)
    begin = np.cumsum(sizes) - sizes
    out = np.empty((int(sizes.sum()), layout.n_words), np.uint64)
    shares.regroup(records, end - size, end, left, begin, is_open.astype(np.uint8), out)
    return SharedRows(layout, out, sizes[is_open])


def add_pairs(
    layout: RecordLayout, records: Words, cells: NDArray[Any], size: NDArray[np.int64], n_cells: NDArray[np.int64]
) -> Words:
    """A server's share of the sums of every cell of some pairs."""
    sums = np.zeros((int(n_cells.sum()), layout.pair_words), np.uint64)
    shares.add_up(records, cells, size, np.cumsum(n_cells) - n_cells, layout.pair_xor, sums)
    return sums


def fits(cells: NDArray[Any], size: NDArray[np.int64], n_cells: NDArray[np.int64]) -> bool:
    """Whether all opened cells are cells of their columns: kernels do not look."""
    return len(cells) == int(size.sum()) and bool((cells < np.repeat(n_cells, size)).all())


def pair_codes(layout: RecordLayout, records: Words) -> NDArray[Any]:
    """A server's share of the bins of pairs."""
    codes: NDArray[Any] = (records[:, 0] & layout.pair_xor[0]).astype(code_type(layout.bits))
    return codes


def plant_rows(layout: RecordLayout, codes: NDArray[Any], values: Words, slots: NDArray[np.int64]) -> SharedRows:
    """A server's shares of the rows of some trees: all rows in each.

    Parameters
    ----------
    layout : RecordLayout
        Of the records.
    codes : array, shape (columns, rows)
        Its shares of all columns.
    values : uint64 array, shape (trees, rows, words)
        Its shares of the rows' values.
    slots : int64 array, shape (trees, columns that travel)
        The columns of each tree.
    """
    n_trees, n_rows, n_values = values.shape
    records = np.empty((n_trees, n_rows, layout.n_words), np.uint64)
    records[:, :, :n_values] = values
    for k in range(n_trees):
        shares.pack_codes(codes, slots[k], layout.bits, layout.first_column, records[k])
    return SharedRows(layout, records.reshape(n_trees * n_rows, -1), np.full(n_trees, n_rows, np.int64))


def spread_values(layout: RecordLayout, dealt: Words, masked: NDArray[Any]) -> Words:
    """A server's share of the rows' values, from the dealt shares of the draws and the masked labels."""
    out = np.zeros((len(dealt), layout.first_column), np.uint64)
    word, shift = layout.places
    if layout.n_classes:
        shares.spread_draws(dealt, masked.astype(np.int64), layout.n_classes, word, shift, out)
    else:
        shares.spread_targets(dealt, masked.astype(np.uint64), word, shift, out)
    return out


def value_shares(seed: bytes, layout: RecordLayout, n_rows: int) -> Words:
    """The second server's share of the rows' values, where every tree has every row."""
    words = stream(seed, "values", n=n_rows * layout.first_column).reshape(n_rows, layout.first_column)
    return words & ~layout.row_xor[: layout.first_column]
