"""A participant's side of the construction: it recommends candidate splits and keeps those that win.

States and messages::

    idle, opened, trained  OpenConstruction    -> opened    settings of candidates; a growth that was begun is dropped
    opened, growing        ExpandLeaves        -> growing   one level: what won, how nodes were split, what is open next
    opened, growing        FinishConstruction  -> trained   the shape of all trees, and where this party's splits stand

ExpandLeaves carries out a level and begins the next one. Before anything changes it is checked whole: winners are pairs
that this participant proposed in the level before, the sides of its own splits are those that its values give, and,
where the order is known (``plan``), `Oversight` checks nodes, keys and candidates against it. Only then rows, open
nodes, pairs and winners are replaced. After a refusal the level can be sent again.

The rows of all open nodes are in ``_rows``, those of node k in ``_start[k] : _end[k]``. Weights are not known here:
only the coordinator knows how often a row was drawn. ``_pairs`` has the candidates of the level: node, feature, and the
ends of the range in which the cuts lie.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import NumericColumn
from woodlot.data.tables import Table
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.bits import unpack
from woodlot.protocols.core.forest_parts import PartyForest
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.soundness import check_structure
from woodlot.protocols.revocable import growth_messages as msg
from woodlot.protocols.revocable.oversight import Opened, Oversight
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.trees.encoding import NumericCoding
from woodlot.trees.forest import Splits, Structure
from woodlot.trees.grow import ONES
from woodlot.trees.kernels import rows as row_kernels
from woodlot.trees.kernels.samples import read_bits, write_bits
from woodlot.trees.kernels.spaced import bin_rows, cut_values, draw_ranges
from woodlot.trees.sampling import feature_key

MAX_ZETA = 255
"""Candidates per feature: a row's bin fits one byte."""

RANGE_SALT = np.uint64(0x6A09E667F3BCC909)
"""The draw of a range is another one than the order of candidates, though both follow from node and feature."""


class ParticipantState(StrEnum):
    """Where a participant stands."""

    idle = "idle"
    opened = "opened"
    growing = "growing"
    trained = "trained"


CONSTRUCTION = (ParticipantState.opened, ParticipantState.growing)
"""While trees are constructed."""


def bin_bits(zeta: int) -> int:
    """Bits of a bin."""
    return int(zeta).bit_length()


def pack_bins(bins: NDArray[np.uint8], zeta: int) -> NDArray[np.uint8]:
    """Bins as packed bits, all lowest bits first."""
    planes = [np.packbits((bins >> k) & 1, bitorder="little") for k in range(bin_bits(zeta))]
    return np.concatenate([np.empty(0, np.uint8), *planes])


def unpack_bins(planes: NDArray[np.uint8], n: int, zeta: int, party: str) -> NDArray[np.uint8]:
    """What `pack_bins` packed; a packet of another length, or a bin that cannot be, is the party's fault."""
    width, bits = (n + 7) // 8, bin_bits(zeta)
    if len(planes) != width * bits:
        raise RemoteProtocolError(f"{party} sent {len(planes)} bytes of split vectors instead of {width * bits}")
    bins = np.zeros(n, np.uint8)
    for k in range(bits):
        bins |= np.unpackbits(planes[k * width : (k + 1) * width], count=n, bitorder="little") << np.uint8(k)
    if n and int(bins.max()) > zeta:
        raise RemoteProtocolError(f"{party} sent split vectors that are not nested")
    return bins


def segments(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """The places of some stretches, one after the other."""
    sizes = end - start
    return np.asarray(np.arange(int(sizes.sum())) + np.repeat(start - np.cumsum(sizes) + sizes, sizes))


def write_samples(rows: NDArray[np.uint32], ends: NDArray[np.int64], n_rows: int) -> dict[str, NDArray[Any]]:
    """The rows of some nodes: as sample vectors, one bit per row of the table, or as a list where that is shorter.

    Parameters
    ----------
    rows : uint32 array
        Node after node, ascending in each.
    ends : int64 array
        Where the rows of each node end.
    n_rows : int
        Rows of the table.
    """
    width = (n_rows + 7) // 8
    sizes = np.diff(ends, prepend=0)
    as_bits = 4 * sizes > width
    vectors = np.zeros(width * int(as_bits.sum()), np.uint8)
    write_bits(rows, (ends - sizes)[as_bits], ends[as_bits], width, vectors)
    return {
        "vectors": vectors,
        "sizes": np.where(as_bits, 0, sizes).astype(np.uint32),
        "samples": rows[np.repeat(~as_bits, sizes)],
    }


def read_samples(
    vectors: NDArray[np.uint8], sizes: NDArray[np.uint32], lists: NDArray[np.uint32], n_rows: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """What `write_samples` wrote: rows of the table, ascending, at least one for each node; and how many each has."""
    width, as_bits = (n_rows + 7) // 8, sizes == 0
    if len(vectors) != width * int(as_bits.sum()) or len(lists) != int(sizes.sum()):
        raise RemoteProtocolError("a sample vector has one bit per row")
    found = sizes.astype(np.int64)
    found[as_bits] = ONES[vectors].reshape(-1, width).sum(axis=1, dtype=np.int64) if width else 0
    bits = np.empty(int(found[as_bits].sum()), np.uint32)
    read_bits(vectors, bits, width)
    rows = np.empty(int(found.sum()), np.uint32)
    of_bits = np.repeat(as_bits, found)
    rows[of_bits], rows[~of_bits] = bits, lists
    rising = np.diff(rows.astype(np.int64), prepend=-1) > 0
    if (found == 0).any():
        raise RemoteProtocolError(_NOT_SAMPLES)
    rising[np.cumsum(found) - found] = True
    if not rising.all() or int(rows.max(initial=0)) >= max(n_rows, 1):
        raise RemoteProtocolError(_NOT_SAMPLES)
    return rows, found


_NOT_SAMPLES = "the samples of a node are rows of the table, ascending, at least one"


class Participant(MessageHandler):
    """One participant and its table, for one construction or revocation.

    Parameters
    ----------
    name : str
        Its name, part of the code of its columns.
    table : Table
        Its columns, all of them numbers, without missing values.
    former : PartyForest, optional
        Its part of the former forest, where one is regrown in part.
    plan : RevocablePlan, optional
        What was ordered; anything else is refused. Without it only the form of messages is checked.
    key_by_party : bool
        Whether the name enters the codes of the columns.
    secret : bytes
        Keeps these codes from being guessed.
    """

    state: ParticipantState

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        former: PartyForest | None = None,
        plan: RevocablePlan | None = None,
        key_by_party: bool = True,
        secret: bytes = b"",
    ) -> None:
        columns = [check_values(name, column, table) for column in table.names]
        self.name = name
        self.names = table.names
        self._n_rows = table.n_rows
        self._values = np.array(columns, np.float32).reshape(len(columns), table.n_rows)
        owner = name if key_by_party else ""
        self.feature_keys = np.array([feature_key(column, owner, secret) for column in table.names], np.uint64)
        self.former = former
        self._plan = plan
        self._oversight: Oversight | None = None
        self.forest: PartyForest | None = None
        self.state = ParticipantState.idle

    @takes(
        msg.OpenConstruction,
        when=(ParticipantState.idle, ParticipantState.opened, ParticipantState.trained),
        then=ParticipantState.opened,
    )
    def _on_OpenConstruction(self, message: msg.OpenConstruction) -> msg.ParticipantSummary:
        if message.rho < 0 or not 1 <= message.zeta <= MAX_ZETA:
            raise RemoteProtocolError(f"rho must not be negative, and zeta be from 1 to {MAX_ZETA}")
        if message.regrows and self.former is None and len(self.feature_keys):
            raise RemoteProtocolError("this participant has no part of a former forest")
        plan = self._plan
        if plan is not None and (message.rho, message.zeta) != (plan.rho, plan.zeta):
            raise RemoteProtocolError("OpenConstruction asks for other candidates than were ordered")
        if plan is not None:
            self._oversight = Oversight(plan, self._values, self.former if message.regrows else None)
        self._rho, self._zeta = message.rho, message.zeta
        self._regrows = message.regrows
        self._rows, self._start, self._end = _NO_ROWS, _NONE, _NONE
        self._pairs = (_NONE, _NONE, np.empty(0), np.empty(0))
        self._won: list[tuple[NDArray[np.int64], NDArray[np.float64]]] = []
        return msg.ParticipantSummary(n_rows=self._n_rows, feature_keys=self.feature_keys)

    # --- one level ---

    @takes(msg.ExpandLeaves, when=CONSTRUCTION, then=ParticipantState.growing)
    def _on_ExpandLeaves(self, message: msg.ExpandLeaves) -> msg.SplitVectors:
        won = self._check_won(message.won_pair, message.won_cut)
        rows, start, end, opened = self._split(message)
        n_open, n_own = len(start), len(self.feature_keys)
        selected = unpack(message.selected, n_open * n_own, "selected features").reshape(n_open, n_own)
        if self._oversight is not None:
            self._oversight.check_candidates(selected, message.keys, self.feature_keys)
        node, feature = (np.ascontiguousarray(part, dtype=np.int64) for part in np.nonzero(selected))
        keys = message.keys[node] ^ self.feature_keys[feature] ^ RANGE_SALT
        low, high = np.empty(len(node)), np.empty(len(node))
        draw_ranges(self._values, rows, start, end, node, feature, keys, self._rho, low, high)
        bins = np.empty(int((end - start)[node].sum()), np.uint8)
        bin_rows(self._values, rows, start, end, node, feature, low, high, self._zeta, bins)
        if self._oversight is not None and opened is not None:
            self._oversight.note(opened)
        self._won += won
        self._rows, self._start, self._end = rows, start, end
        self._pairs = (node, feature, low, high)
        return msg.SplitVectors(planes=pack_bins(bins, self._zeta))

    def _check_won(
        self, pair: NDArray[np.uint32], cut: NDArray[Any]
    ) -> list[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Feature and threshold of the candidates that have won."""
        node, feature, low, high = self._pairs
        if len(pair) != len(cut) or (len(pair) and (int(pair.max()) >= len(node) or int(cut.max()) >= self._zeta)):
            raise RemoteProtocolError("a candidate has won that this participant did not recommend")
        if len(pair) == 0:
            return []
        threshold = np.empty(len(pair))
        cut_values(low[pair], high[pair], cut.astype(np.int64), self._zeta, threshold)
        return [(feature[pair], threshold)]

    def _check_own_sides(
        self, is_split: NDArray[np.bool_], flags: NDArray[np.uint8], pair: NDArray[np.uint32], cut: NDArray[Any]
    ) -> None:
        """Refuse a split by this participant's candidate, the sides of which are not those that it has told."""
        node, feature, low, high = (some[pair] for some in self._pairs)
        if len(np.unique(node)) != len(node) or not is_split[node].all():
            raise RemoteProtocolError("two candidates have won at one node, or one has at a node that is not split")
        sizes = self._end - self._start
        bins = np.empty(int(sizes[node].sum()), np.uint8)
        bin_rows(self._values, self._rows, self._start, self._end, node, feature, low, high, self._zeta, bins)
        ends = np.cumsum(np.where(is_split, sizes, 0))
        told = flags[segments(ends[node] - sizes[node], ends[node])]
        if not np.array_equal(told, bins <= np.repeat(cut, sizes[node])):
            raise RemoteProtocolError(
                "ExpandLeaves carries other sides of a split than this participant's candidate has"
            )

    def _split(
        self, message: msg.ExpandLeaves
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64], NDArray[np.int64], Opened | None]:
        """The rows of the next open nodes: children of those that were split, and nodes at which growing begins."""
        is_split = unpack(message.is_split, len(self._start), "split nodes").astype(bool)
        start, end = self._start[is_split], self._end[is_split]
        n = int((end - start).sum())
        flags = unpack(message.flags, n, "sides")
        self._check_own_sides(is_split, flags, message.won_pair, message.won_cut)
        is_open = unpack(message.is_open, 2 * len(start), "open nodes").astype(bool)
        kept = self._rows[segments(start, end)]
        ends = np.cumsum(end - start)
        starts = ends - (end - start)
        middle = np.full(len(start), -1, np.int64)
        spare, unused = np.empty(n + 1, np.uint32), np.empty(n + 1, np.uint8)
        weights = np.zeros(len(kept), np.uint8)  # only the coordinator knows how often a row was drawn
        row_kernels.partition(kept, weights, starts, ends, flags, spare, unused, middle)
        children = np.column_stack([starts, middle]).ravel()[is_open], np.column_stack([middle, ends]).ravel()[is_open]
        entering, sizes = read_samples(message.vectors, message.sizes, message.samples, self._n_rows)
        if len(message.keys) != len(children[0]) + len(sizes):
            raise RemoteProtocolError("ExpandLeaves must carry a key for each open node")
        opened = None
        if self._oversight is not None:
            sides = np.column_stack([middle - starts, ends - middle])
            opened = self._oversight.check_level(is_split, is_open, sides, message.keys, entering, sizes)
        last = len(kept) + np.cumsum(sizes)
        return (
            np.concatenate([kept, entering]),
            np.concatenate([children[0], last - sizes]).astype(np.int64),
            np.concatenate([children[1], last]).astype(np.int64),
            opened,
        )

    # --- the end ---

    @takes(msg.FinishConstruction, when=CONSTRUCTION, then=ParticipantState.trained)
    def _on_FinishConstruction(self, message: msg.FinishConstruction) -> msg.ConstructionDone:
        won = [*self._won, *self._check_won(message.won_pair, message.won_cut)]
        structure = Structure(message.offset.copy(), message.right.copy())
        try:
            check_structure(structure)
        except ValueError as error:
            raise RemoteProtocolError(f"FinishConstruction carries trees that are not sound: {error}") from None
        if self._oversight is not None:
            self._oversight.check_trees(structure)
        feature = np.concatenate([_NONE, *(part[0] for part in won)])
        threshold = np.concatenate([np.empty(0), *(part[1] for part in won)])
        former = NO_SPLITS if self.former is None or not self._regrows else self.former.splits
        if len(message.node) != len(feature) or len(message.moved) != len(former.node):
            raise RemoteProtocolError("FinishConstruction must say where each split stands")
        node = np.concatenate([message.moved, message.node]).astype(np.int64)
        at = node[node >= 0]
        if len(np.unique(at)) != len(at) or (len(at) and int(at.max()) >= structure.n_nodes):
            raise RemoteProtocolError("two splits cannot stand at one node, nor outside the trees")
        if (structure.right[at] < 0).any():
            raise RemoteProtocolError("a split cannot stand at a leaf")
        order = np.flatnonzero(node >= 0)[np.argsort(at)]
        n = len(order)
        splits = Splits(
            node=node[order].astype(np.int32),
            feature=np.concatenate([former.feature, feature])[order].astype(np.int32),
            threshold=np.concatenate([former.threshold, threshold])[order],
            missing_left=np.zeros(n, np.bool_),
            set_start=np.zeros(n + 1, np.int64),
            sets=np.empty(0, np.uint8),
        )
        self.forest = PartyForest(structure, splits, self.names, (_NUMBERS,) * len(self.names))
        return msg.ConstructionDone()


def check_values(name: str, column: str, table: Table) -> NDArray[np.float32]:
    """A column that can be split by encrypted thresholds: numbers, none missing."""
    values = table.column(column)
    if not isinstance(values, NumericColumn):
        raise DataError(f"column {column!r} of {name} is not numeric; give categories as numbers")
    missing = np.isnan(values.values)
    if missing.any():
        raise DataError(
            f"Input X contains NaN: {int(missing.sum())} values of column {column!r} of {name} are missing, and "
            "an encrypted comparison has no side for them; fill them first"
        )
    return values.values


_NONE = np.empty(0, np.int64)
_NO_ROWS = np.empty(0, np.uint32)
_NUMBERS = NumericCoding(np.empty(0, np.float32), np.empty(0, np.float32))
NO_SPLITS = Splits(
    node=np.empty(0, np.int32),
    feature=np.empty(0, np.int32),
    threshold=np.empty(0),
    missing_left=np.empty(0, np.bool_),
    set_start=np.zeros(1, np.int64),
    sets=np.empty(0, np.uint8),
)
