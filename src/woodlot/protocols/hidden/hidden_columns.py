"""A party's own columns in a hidden training: their codes, a masked share of them, and its splits at the end."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.forest_parts import PartyForest
from woodlot.protocols.hidden.hidden_messages import KeepSplits, OpenHidden
from woodlot.protocols.hidden.shared_rows import CodeSizes, code_type, column_shares
from woodlot.trees.encoding import MAX_COARSE, MIN_BINS, EncodedTable, encode
from woodlot.trees.forest import Splits, Structure
from woodlot.trees.sampling import feature_key


def check_opening(message: OpenHidden) -> None:
    """Refuse a number of bins that columns cannot be put into, and rules that no training has."""
    if not MIN_BINS <= message.max_bins <= MAX_COARSE:
        raise RemoteProtocolError(f"a hidden training asks for {message.max_bins} bins")
    if message.min_leaf < 1 or message.min_cell < 0:
        raise RemoteProtocolError("a hidden training asks for leaves or cells of no rows")


class OwnColumns:
    """The columns of one party.

    Parameters
    ----------
    name : str
        The party.
    table : Table
        Its columns.
    key_by_party : bool
        Whether the party's name enters the codes of its columns.
    secret : bytes
        Keeps the codes of its columns from being guessed.
    n_jobs : int
        Threads.
    """

    def __init__(self, name: str, table: Table, *, key_by_party: bool, secret: bytes, n_jobs: int) -> None:
        self.name = name
        self.table = table
        self._n_jobs = n_jobs
        owner = name if key_by_party else ""
        self.feature_keys = np.array([feature_key(column, owner, secret) for column in table.names], np.uint64)
        self._codes: EncodedTable | None = None

    def encode(self, max_bins: int) -> EncodedTable:
        """Make the codes."""
        self._codes = encode(self.table, max_bins=max_bins, n_jobs=self._n_jobs)
        return self._codes

    @property
    def codes(self) -> EncodedTable:
        """The codes."""
        if self._codes is None:
            raise RemoteProtocolError("the table has not been encoded")
        return self._codes

    @property
    def sizes(self) -> CodeSizes:
        """What the servers are told of the codes."""
        return CodeSizes(self.codes.n_codes, self.codes.has_missing)

    def masked(self, secret: bytes, bits: int) -> NDArray[Any]:
        """The leader's share: the codes under what the second server derives from the same secret."""
        n_columns, n_rows = len(self.table.names), self.table.n_rows
        hidden = column_shares(secret, self.name, n_columns, n_rows, bits)
        missing = self.sizes.missing.astype(np.int64)
        for k in range(n_columns):
            codes = self.codes.fine[k]
            hidden[k] ^= np.where(codes == self.codes.n_codes[k], missing[k], codes).astype(code_type(bits))
        return hidden

    def keep(self, told: KeepSplits) -> PartyForest:
        """This party's part of the forest: what it was told, with thresholds from its own values."""
        structure = self._structure(told)
        codes, n = self.codes, len(told.node)
        node, feature = told.node.astype(np.int64), told.feature.astype(np.int64)
        low, high = told.low.astype(np.int64), told.high.astype(np.int64) - 1
        lengths = told.set_length.astype(np.int64)
        fits = len(feature) == len(low) == len(high) == len(told.missing_left) == len(lengths) == n
        if not fits or int(lengths.sum()) != len(told.sets):
            raise RemoteProtocolError("KeepSplits must tell everything of each split")
        if n and (
            (np.diff(node) <= 0).any()
            or int(node[-1]) >= structure.n_nodes
            or (structure.right[node] < 0).any()
            or int(feature.max()) >= codes.n_columns
        ):
            raise RemoteProtocolError("KeepSplits names nodes or columns that cannot be split")
        by_set = codes.categorical[feature] == 1
        n_codes = codes.n_codes[feature]
        if (lengths != np.where(by_set, n_codes // 8 + 1, 0)).any() or (
            ~by_set & ((low >= n_codes) | (high >= n_codes))
        ).any():
            raise RemoteProtocolError("KeepSplits names bins or categories that a column does not have")
        return PartyForest(
            structure=structure,
            splits=Splits(
                node=node.astype(np.int32),
                feature=feature.astype(np.int32),
                threshold=codes.thresholds(feature, low, high),
                missing_left=told.missing_left.astype(np.bool_),
                set_start=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
                sets=np.array(told.sets),
            ),
            names=self.table.names,
            codings=codes.codings,
        )

    def _structure(self, told: KeepSplits) -> Structure:
        offset, right = told.offset.astype(np.int64), told.right.astype(np.int64)
        numbers = np.arange(len(right))
        inner = right > 0
        if len(offset) < 2 or offset[0] != 0 or (np.diff(offset) < 1).any() or offset[-1] != len(right):
            raise RemoteProtocolError("KeepSplits carries trees without nodes")
        if (right[inner] <= numbers[inner] + 1).any() or (right >= len(right)).any():
            raise RemoteProtocolError("KeepSplits carries children that stand before their parents")
        return Structure(offset=offset, right=np.where(inner, right, -1).astype(np.int32))
