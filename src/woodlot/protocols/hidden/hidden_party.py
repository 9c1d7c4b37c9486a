"""A party of a hidden training: it shares its columns at the beginning and is told its splits at the end.

One of the parties is the second server, too. It keeps its shares of the rows of all open nodes. It learns how many rows
of a node are in each bin of a column that it knows by number, and nothing of any single row.

States and messages::

    idle               OpenHidden    -> opened     the table is encoded
    opened             ShareColumns  -> shared     one share goes to the leader, the other follows from a key
    shared             StartServer   -> serving    second server only, as all that follows but KeepSplits
    serving .. divided PlantHidden   -> planted    the next trees
    planted            AskPairs      -> pairs      which roots are open, and their candidates, under a mask
    growing            AskPairs      -> pairs      further candidates of the same nodes
    divided            AskPairs      -> pairs      the sides of the last splits, and candidates of the children
    pairs              PassRecords   -> opening    the shuffled bins' shares
    opening            OpenBins      -> growing    sums by bin; further pairs, or ...
    growing            AskRows       -> rows       ... the rows of nodes that are split, under a mask
    rows               PassRecords   -> divided    the shuffled shares of the bins that split
    shared .. divided  KeepSplits    -> trained    the party's part of the forest

A handler checks the whole message first, then changes the state, then answers: a refused message leaves the party as it
was. Replies follow from the messages, the table and the secrets, so that a job that is repeated sends the same bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.agreement import Entropy, Signer, secret_bytes
from woodlot.protocols.core.bits import unpack
from woodlot.protocols.core.forest_parts import PartyForest
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.hidden import hidden_messages as msg
from woodlot.protocols.hidden.hidden_columns import OwnColumns, check_opening
from woodlot.protocols.hidden.hidden_dealer import draw_shares, layout_of
from woodlot.protocols.hidden.hidden_keys import HiddenKeys
from woodlot.protocols.hidden.shared_rows import (
    MAX_BITS,
    CodeSizes,
    RecordLayout,
    Segments,
    SharedRows,
    Words,
    add_pairs,
    column_shares,
    fits,
    from_wire,
    pair_codes,
    plant_rows,
    regrouped,
    split_codes,
    spread_values,
    to_wire,
    value_shares,
)
from woodlot.protocols.hidden.told_so_far import ToldSoFar, bond
from woodlot.trees.coarsening import bit_lengths


class HiddenState(StrEnum):
    """Where a party stands in a hidden training."""

    idle = "idle"
    opened = "opened"
    shared = "shared"
    serving = "serving"
    planted = "planted"
    growing = "growing"
    pairs = "pairs"
    opening = "opening"
    rows = "rows"
    divided = "divided"
    trained = "trained"


S = HiddenState
PLANTED = (S.planted, S.growing, S.divided)
"""States of the second server between the rounds of a level."""


class HiddenParty(MessageHandler):
    """One party and its table, for one hidden training.

    Parameters
    ----------
    name : str
        The party's name.
    table : Table
        Its columns, rows in the common order of all parties.
    entropy : Entropy
        Its secrets: the same for the same job.
    job, signer, shared_secret
        As for `HiddenKeys`.
    key_by_party, secret, n_jobs
        As for `OwnColumns`.
    shares_model : bool
        Policy: the leader may keep the complete model.
    min_node : int
        As the second server: the fewest rows of a node of which anything is opened.
    """

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        entropy: Entropy,
        job: str,
        signer: Signer | None = None,
        shared_secret: bytes | None = None,
        key_by_party: bool = True,
        secret: bytes = b"",
        shares_model: bool = False,
        min_node: int = 1,
        n_jobs: int = 1,
    ) -> None:
        self.name = name
        self._min_node = min_node
        self.columns = OwnColumns(name, table, key_by_party=key_by_party, secret=secret, n_jobs=n_jobs)
        self.shares_model = shares_model
        self._forest: PartyForest | None = None
        self.state: HiddenState = HiddenState.idle
        self._own_secret = secret_bytes(entropy, "own columns")
        self._keys = HiddenKeys(name, job=job, entropy=entropy, signer=signer, shared_secret=shared_secret)
        self._agreed: dict[str, bytes] = {}
        self._bits = 0
        self._serving: _Serving | None = None

    # --- every party ---

    @takes(msg.OpenHidden, when=S.idle, then=S.opened)
    def _open(self, message: msg.OpenHidden) -> msg.HiddenSummary:
        check_opening(message)
        introduction = self._keys.open(message)
        codes = self.columns.encode(message.max_bins)
        return msg.HiddenSummary(
            introduction=introduction,
            n_rows=self.columns.table.n_rows,
            feature_keys=self.columns.feature_keys,
            n_codes=codes.n_codes.astype(np.uint32),
            has_missing=codes.has_missing,
            categorical=codes.categorical,
            shares_model=self.shares_model,
        )

    @takes(msg.ShareColumns, when=S.opened, then=S.shared)
    def _share(self, message: msg.ShareColumns) -> msg.ColumnShares:
        if not int(self.columns.sizes.bits.max(initial=1)) <= message.bits <= MAX_BITS:
            raise RemoteProtocolError(f"ShareColumns asks for codes of {message.bits} bits")
        agreed = self._keys.agree(message.introductions)
        server = self._keys.opening.server
        secret = self._own_secret if server == self.name else agreed[server]
        masked = self.columns.masked(secret, message.bits)
        self._agreed, self._bits = agreed, message.bits
        return msg.ColumnShares(
            codes=masked.ravel() if masked.dtype == np.uint8 else None,
            wide_codes=masked.ravel() if masked.dtype == np.uint16 else None,
        )

    @takes(msg.KeepSplits, when=(S.shared, S.serving, *PLANTED), then=S.trained)
    def _keep(self, message: msg.KeepSplits) -> msg.SplitsKept:
        self._forest = self.columns.keep(message)
        self._serving = None
        return msg.SplitsKept()

    def grown_forest(self) -> PartyForest:
        """This party's part of the forest."""
        if self._forest is None:
            raise RemoteProtocolError("this party has no part of a forest")
        return self._forest

    # --- the second server ---

    @takes(msg.StartServer, when=S.shared, then=S.serving)
    def _start_server(self, message: msg.StartServer) -> msg.HiddenReady:
        opening = self._keys.opening
        others = tuple(p for p in opening.parties if p != opening.dealer)
        counts = message.columns_of.astype(np.int64)
        if opening.server != self.name or set(message.owners) != {opening.holder, *others}:
            raise RemoteProtocolError("StartServer is not for this party, or names other parties than the opening")
        if len(counts) != len(message.owners) or int(counts.sum()) != len(message.n_codes) or message.n_columns < 1:
            raise RemoteProtocolError("StartServer does not say how many columns each party has")
        sizes = CodeSizes(message.n_codes.astype(np.int64), message.has_missing)
        if len(sizes.has_missing) != len(sizes.n_codes) or int(sizes.has_missing.max(initial=0)) > 1:
            raise RemoteProtocolError("StartServer must say of every column whether values are missing")
        if message.n_rows != self.columns.table.n_rows or message.bits != self._bits or message.n_classes < 0:
            raise RemoteProtocolError("StartServer carries other lengths than were agreed on")
        if not 1 <= message.width <= 64 - MAX_BITS or int(sizes.bits.max(initial=0)) > message.bits:
            raise RemoteProtocolError("StartServer carries numbers that do not fit the records")
        if message.n_classes > message.n_rows or message.n_columns > len(message.n_codes):
            raise RemoteProtocolError("StartServer carries more classes than rows, or columns than there are")
        masked = message.masked
        if masked is not None and (
            len(masked) != message.n_rows or (message.n_classes and int(masked.max()) >= message.n_classes)
        ):
            raise RemoteProtocolError("StartServer must carry one masked label per row")
        self._serving = _Serving(
            opening, message, sizes, self._shares_of(message, counts), self._agreed[opening.dealer], self._min_node
        )
        return msg.HiddenReady()

    def _shares_of(self, message: msg.StartServer, counts: NDArray[np.int64]) -> NDArray[Any]:
        """This server's shares of all columns, in the order of their numbers."""
        secrets = self._agreed | {self.name: self._own_secret, self._keys.opening.holder: message.seed}
        shares = [
            column_shares(secrets[owner], owner, int(n), message.n_rows, message.bits)
            for owner, n in zip(message.owners, counts.tolist(), strict=True)
        ]
        return np.concatenate(shares)

    def _server(self) -> _Serving:
        if self._serving is None:
            raise RemoteProtocolError("this party is not the second server")
        return self._serving

    @takes(msg.PlantHidden, when=(S.serving, *PLANTED), then=S.planted)
    def _plant(self, message: msg.PlantHidden) -> msg.ServerTotals:
        return self._server().plant(message)

    @takes(msg.AskPairs, when=PLANTED, then=S.pairs)
    def _ask_pairs(self, message: msg.AskPairs) -> msg.MaskedRecords:
        return self._server().ask_pairs(message, self.state)

    @takes(msg.PassRecords, when=(S.pairs, S.rows))
    def _carry(self, message: msg.PassRecords) -> msg.CodeShares:
        whole_rows = self.state == HiddenState.rows
        reply = self._server().carry(message, whole_rows=whole_rows)
        self.state = HiddenState.divided if whole_rows else HiddenState.opening
        return reply

    @takes(msg.OpenBins, when=S.opening, then=S.growing)
    def _add(self, message: msg.OpenBins) -> msg.ServerSums:
        return self._server().add(message)

    @takes(msg.AskRows, when=S.growing, then=S.rows)
    def _ask_rows(self, message: msg.AskRows) -> msg.MaskedRecords:
        return self._server().ask_rows(message)


class _Serving:
    """What the second server has: its shares, and where it stands in a level."""

    def __init__(
        self,
        opening: msg.OpenHidden,
        start: msg.StartServer,
        sizes: CodeSizes,
        codes: NDArray[Any],
        with_dealer: bytes,
        min_node: int,
    ) -> None:
        self._min_node = min_node
        self._min_leaf, self._min_cell = opening.min_leaf, opening.min_cell
        self._start = start
        self._codes = codes
        self._sizes = sizes
        self._secret = with_dealer
        self._layout: RecordLayout = layout_of(start)
        self._told = ToldSoFar(start.seed).after(start)
        self._step = 0
        self._rows: SharedRows | None = None
        self._slots: NDArray[np.int64] = np.empty((0, 0), np.int64)  # by tree: which column is in which slot
        self._tree: NDArray[np.int64] = np.empty(0, np.int64)  # of each open node
        self._segments: Segments | None = None
        self._cells: NDArray[np.int64] = np.empty(0, np.int64)
        # by open node and slot: how many low bits were dropped where the column was tried, -1 where it was not
        self._dropped: NDArray[np.int8] = np.empty((0, 0), np.int8)
        self._records: Words = np.empty((0, 0), np.uint64)
        self._split_tree: NDArray[np.int64] = np.empty(0, np.int64)
        self._split_slot: NDArray[np.int64] = np.empty(0, np.int64)
        self._split_shift: NDArray[np.int64] = np.empty(0, np.int64)

    def _open(self) -> SharedRows:
        if self._rows is None:
            raise RemoteProtocolError("no trees are growing here")
        return self._rows

    def _shuffling(self) -> Segments:
        if self._segments is None:
            raise RemoteProtocolError("nothing is being shuffled here")
        return self._segments

    def plant(self, message: msg.PlantHidden) -> msg.ServerTotals:
        layout, start, n_trees = self._layout, self._start, message.n_trees
        columns = message.columns.astype(np.int64)
        if message.first_tree < 0 or n_trees < 1 or len(columns) != n_trees * layout.n_columns:
            raise RemoteProtocolError("PlantHidden must name the columns of every tree")
        if int(columns.max(initial=0)) >= len(self._sizes.n_codes):
            raise RemoteProtocolError("PlantHidden names a column that does not exist")
        slots = columns.reshape(n_trees, layout.n_columns)
        told = self._told.after(message)
        values = np.empty((n_trees, start.n_rows, layout.first_column), np.uint64)
        for k in range(n_trees):
            values[k] = self._values(message.first_tree + k, bond(told.digest, message.bound))
        self._rows = plant_rows(layout, self._codes, values, slots)
        self._slots, self._tree, self._told = slots, np.arange(n_trees), told
        self._dropped = _nothing_tried(n_trees, layout.n_columns)
        return msg.ServerTotals(sums=to_wire(self._rows.totals(), layout.used[: layout.first_column]))

    def _values(self, tree: int, bound: bytes) -> Words:
        """Its share of the rows' values in a tree."""
        layout, start = self._layout, self._start
        if start.masked is None:
            return value_shares(start.seed, layout, start.n_rows)
        dealt = draw_shares(self._secret, layout, tree, start.n_rows, bound)
        return spread_values(layout, dealt, start.masked)

    def ask_pairs(self, message: msg.AskPairs, state: HiddenState) -> msg.MaskedRecords:
        layout = self._layout
        node, slot, shift = (named.astype(np.int64) for named in (message.node, message.slot, message.shift))
        rows, tree, dropped = self._open(), self._tree, self._dropped
        if state == HiddenState.divided:
            rows, tree = self._divided(message)
        elif len(message.left) or (state == HiddenState.growing and len(message.is_open)):
            raise RemoteProtocolError("AskPairs carries sides where nothing was split")
        elif state == HiddenState.planted:
            is_open = unpack(message.is_open, len(tree), "open roots").astype(bool)
            rows, tree = SharedRows(layout, rows.of_nodes(is_open), rows.size[is_open]), tree[is_open]
        if state != HiddenState.growing:
            dropped = _nothing_tried(len(tree), layout.n_columns)
        if not len(node) == len(slot) == len(shift) or int(slot.max(initial=0)) >= layout.n_columns:
            raise RemoteProtocolError("AskPairs must name a column for every pair")
        if len(node) == 0 or int(node.max()) >= len(rows.size):
            raise RemoteProtocolError("AskPairs names a node that is not open")
        if int(rows.size[node].min()) < self._min_node:
            raise RemoteProtocolError(f"AskPairs opens a node of fewer than {self._min_node} rows")
        if (dropped[node, slot] >= 0).any() or len(np.unique(node * layout.n_columns + slot)) != len(node):
            raise RemoteProtocolError("AskPairs tries a column twice at a node")
        sizes = self._sizes.take(self._slots[tree[node], slot])
        self._check_cells(rows.size[node], sizes, shift)
        told = self._told.after(message)
        segments = Segments(self._step, rows.size[node], layout.pair_xor, bond(told.digest, message.bound))
        masked = segments.hide(self._secret, rows.pairs(node, slot, shift))
        squares = rows.totals()[:, -1] if layout.n_classes == 0 else np.empty(0, np.uint64)
        self._rows, self._tree, self._segments, self._told = rows, tree, segments, told
        self._cells = sizes.cells(shift)
        self._dropped = dropped.copy()
        self._dropped[node, slot] = shift
        return msg.MaskedRecords(records=to_wire(masked, layout.used[: layout.pair_words]), squares=squares)

    def _divided(self, message: msg.AskPairs) -> tuple[SharedRows, NDArray[np.int64]]:
        """The rows of the open children of the nodes that were split, and their trees."""
        segments = self._shuffling()
        left = unpack(message.left, segments.n, "sides")
        is_open = unpack(message.is_open, 2 * len(segments.size), "open children").astype(bool)
        lefts = np.add.reduceat(left, segments.start, dtype=np.int64)
        if int(np.minimum(lefts, segments.size - lefts).min()) < self._min_leaf:
            raise RemoteProtocolError(f"AskPairs makes a node of fewer than {self._min_leaf} rows")
        rows = regrouped(self._layout, self._records, segments.size, left, is_open)
        return rows, np.repeat(self._split_tree, 2)[is_open]

    def _check_cells(self, n_rows: NDArray[np.int64], sizes: CodeSizes, shift: NDArray[np.int64]) -> None:
        """Refuse cells that are finer than the rule allows with all rows of a node: it counts the drawn ones."""
        if self._min_cell and int(n_rows.min()) < 2 * self._min_cell:
            raise RemoteProtocolError(f"AskPairs opens a node of fewer than {2 * self._min_cell} rows")
        if (shift < sizes.shifts(n_rows, self._min_cell)).any():
            raise RemoteProtocolError(f"AskPairs asks for cells of fewer than {self._min_cell} rows on average")
        if (shift > bit_lengths(np.maximum(sizes.n_codes - 1, 0))).any():
            raise RemoteProtocolError("AskPairs drops more bits than a code has")

    def carry(self, message: msg.PassRecords, *, whole_rows: bool) -> msg.CodeShares:
        layout, segments = self._layout, self._shuffling()
        _, used = layout.of_records(whole_rows=whole_rows)
        masked = from_wire(message.records, segments.n, used, "the label holder")
        told = self._told.after(message)
        second = segments.second_half(bond(told.digest, message.bound))
        self._records = segments.carry_second(self._secret, masked, second)
        self._told = told
        self._step += 1
        if whole_rows:
            opened = split_codes(layout, self._records, segments.size, self._split_slot, self._split_shift)
            return msg.CodeShares(codes=opened)
        return msg.CodeShares(codes=pair_codes(layout, self._records))

    def add(self, message: msg.OpenBins) -> msg.ServerSums:
        layout, segments = self._layout, self._shuffling()
        if not fits(message.codes, segments.size, self._cells):
            raise RemoteProtocolError("OpenBins carries bins that no column has")
        sums = add_pairs(layout, self._records, message.codes, segments.size, self._cells)
        self._told = self._told.after(message)
        return msg.ServerSums(sums=to_wire(sums, layout.used[: layout.pair_words]))

    def ask_rows(self, message: msg.AskRows) -> msg.MaskedRecords:
        layout, rows = self._layout, self._open()
        goes_on = unpack(message.goes_on, len(rows.size), "split nodes").astype(bool)
        slot = message.slot.astype(np.int64)
        if len(slot) != int(goes_on.sum()) or len(slot) == 0 or int(slot.max()) >= layout.n_columns:
            raise RemoteProtocolError("AskRows must name a column for every node that is split")
        shift = self._dropped[goes_on, slot].astype(np.int64)
        if (shift < 0).any():
            raise RemoteProtocolError("AskRows names a column that was not tried at its node")
        told = self._told.after(message)
        segments = Segments(self._step, rows.size[goes_on], layout.row_xor, bond(told.digest, message.bound))
        masked = segments.hide(self._secret, rows.of_nodes(goes_on))
        self._segments, self._split_tree, self._told = segments, self._tree[goes_on], told
        self._split_slot, self._split_shift = slot, shift
        return msg.MaskedRecords(records=to_wire(masked, layout.used), squares=np.empty(0, np.uint64))


def _nothing_tried(n_nodes: int, n_columns: int) -> NDArray[np.int8]:
    return np.full((n_nodes, n_columns), -1, np.int8)
