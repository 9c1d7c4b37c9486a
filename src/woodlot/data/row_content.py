"""What stands for a row that has no id: all that it holds, so that it is the same row wherever its table is sorted.

Equal rows of one table are numbered: 0, 1, 2, .... Which of them has which number does not matter, since they are
equal; and one more of them takes the next number, so that the others keep theirs.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn, Column
from woodlot.data.tables import Table

_HASH_BYTES = 16


class RowContents:
    """Reads what stands for the rows of a table, once.

    Parameters
    ----------
    table : Table
        All of its columns count, in any order.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._known: list[bytes] | None = None

    def __call__(self) -> Sequence[bytes]:
        """One value for each row, no two the same."""
        if self._known is None:
            self._known = content_ids(self._table)
        return self._known


def content_ids(table: Table) -> list[bytes]:
    """One value for each row of a table, from what it holds; no two the same.

    Parameters
    ----------
    table : Table
        All of its columns count, in any order.
    """
    names = sorted(table.names)
    columns = [_bytes_of(table.column(name)) for name in names]
    wide = np.concatenate(columns, axis=1) if columns else np.zeros((table.n_rows, 0), np.uint8)
    start = hashlib.blake2b(repr(names).encode(), digest_size=_HASH_BYTES, person=b"woodlot content")
    before: Counter[bytes] = Counter()
    found = []
    for row in np.ascontiguousarray(wide):
        hashed = start.copy()
        hashed.update(row.data)
        content = hashed.digest()
        found.append(b"content " + content + before[content].to_bytes(8, "big"))
        before[content] += 1
    return found


def _bytes_of(column: Column) -> NDArray[np.uint8]:
    """The same bytes for the same value, whatever other rows hold."""
    if isinstance(column, CategoryColumn):
        texts = [b"", *(category.encode() for category in column.categories)]
        hashes = b"".join(hashlib.blake2b(text, digest_size=_HASH_BYTES).digest() for text in texts)
        table = np.frombuffer(hashes, np.uint8).reshape(len(texts), _HASH_BYTES).copy()
        table[0] = 0  # missing
        return table[column.codes + 1]
    numbers = column.values + np.float32(0)  # -0 becomes 0
    numbers[np.isnan(numbers)] = np.float32("nan")  # missing has one form only
    return numbers.astype("<f4").view(np.uint8).reshape(len(numbers), 4)
