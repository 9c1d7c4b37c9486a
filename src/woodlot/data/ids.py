"""Ids in one canonical form, so that the same id has the same bytes at every party.

========================  =====================================================================================
column                    bytes of an id
========================  =====================================================================================
whole numbers, any width  ``i``, then 9 bytes: the number in two's complement, highest byte first
text                      ``t``, then UTF-8 of the text in Unicode's form NFC
========================  =====================================================================================

NFC makes what looks the same the same: an accent written as part of a letter or after it. Nothing else is changed:
no case, no blanks, no leading zeros. Whatever else could be written in two ways (floats, dates, truth values, raw
bytes) is refused, since two parties would write it differently and lose rows without a word.

Errors tell counts and types, never an id: the coordinator may be told of them.
"""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError

IdKind = Literal["whole numbers", "text", "nothing"]
"""What the ids of a column are; ``"nothing"`` for a column without rows, which goes with every other."""

_NUMBER_BYTES = 10


@dataclass(frozen=True, eq=False, repr=False)
class CanonicalIds:
    """The ids of one column: none missing, none twice.

    Attributes
    ----------
    kind : {"whole numbers", "text", "nothing"}
        What they are.
    values : list of bytes
        One per row, in the order of the rows.

    """

    kind: IdKind
    values: list[bytes]

    def __len__(self) -> int:
        return len(self.values)

    def digest(self) -> bytes:
        """SHA-256 over all ids in the order of the rows. It stays with the party: ids could be guessed from it."""
        digest = hashlib.sha256(self.kind.encode())
        for value in self.values:
            digest.update(len(value).to_bytes(8, "big"))
            digest.update(value)
        return digest.digest()


def canonical_ids(ids: Any, what: str = "the id column") -> CanonicalIds:
    """Return the ids of a column in their canonical form.

    Parameters
    ----------
    ids : pyarrow, numpy, pandas or polars column, or list
        Whole numbers or text.
    what : str
        What to call the column in errors.

    Returns
    -------
    CanonicalIds

    Raises
    ------
    DataError
        If ids are missing or occur more than once, or are neither whole numbers nor text.

    """
    column = _arrow_column(ids, what)
    if len(column) == 0:
        return CanonicalIds("nothing", [])
    if column.null_count:
        raise _missing(column.null_count, what)
    kind, values = _values(column, what)
    repeated = len(values) - len(set(values))
    if repeated:
        raise _repeated(sum(count > 1 for count in Counter(values).values()), repeated, len(values), what)
    return CanonicalIds(kind, values)


def check_ids(ids: Any, what: str = "the id column") -> IdKind:
    """Check the ids of a column as `canonical_ids` does, and raise what it would, in a few bytes of memory per row.

    Parameters
    ----------
    ids : pyarrow column
        Whole numbers or text.
    what : str
        What to call the column in errors.

    """
    import pyarrow as pa
    import pyarrow.compute as pc

    column = _arrow_column(ids, what)
    if len(column) == 0:
        return "nothing"
    if column.null_count:
        raise _missing(column.null_count, what)
    if pa.types.is_integer(column.type):
        kind: IdKind = "whole numbers"
    elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        kind = "text"
    else:  # refused, or rare
        kind, _ = _values(column, what)
    if kind == "text":
        if empty := pc.sum(pc.equal(column, "")).as_py():
            raise _missing(empty, what)
        column = pc.utf8_normalize(column.cast(pa.large_string()), form="NFC")
    repeated = len(column) - pc.count_distinct(column).as_py()
    if repeated:
        counts = pc.value_counts(column).field("counts")
        raise _repeated(pc.sum(pc.greater(counts, 1)).as_py(), repeated, len(column), what)
    return kind


def _repeated(several: int, repeated: int, rows: int, what: str) -> DataError:
    return DataError(
        f"{what} has {several} ids more than once, in {several + repeated} of {rows} rows; keep one row per id"
    )


def _missing(count: int, what: str) -> DataError:
    return DataError(f"{what} has {count} rows without an id; drop them or give them ids")


def _arrow_column(ids: Any, what: str) -> Any:
    """The column as Arrow has it; pandas' NaN is null."""
    import pyarrow as pa

    if isinstance(ids, pa.Array | pa.ChunkedArray):
        column = ids
    else:
        try:
            column = _from_library(ids)
        except OverflowError:
            raise DataError(f"{what} has whole numbers of more than 64 bits; make the ids text") from None
        except (pa.ArrowException, TypeError, ValueError):  # its words may quote an id
            raise DataError(
                f"{what} cannot be read as one column of whole numbers or of text; give all ids the same type"
            ) from None
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _from_library(ids: Any) -> Any:
    import pyarrow as pa

    if hasattr(ids, "__arrow_c_stream__") and not hasattr(ids, "iloc"):  # pandas' own way loses which values are NaN
        return pa.chunked_array(ids)
    if isinstance(ids, np.ndarray) and not ids.dtype.isnative:
        ids = ids.astype(ids.dtype.newbyteorder("="))
    return pa.array(ids, from_pandas=True)


def _values(column: Any, what: str) -> tuple[IdKind, list[bytes]]:
    import pyarrow as pa

    kind = column.type
    if pa.types.is_decimal(kind) and kind.scale <= 0:  # whole numbers as many databases return them
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid:
            raise DataError(f"{what} has whole numbers of more than 64 bits; make the ids text") from None
        kind = column.type
    if pa.types.is_integer(kind):
        return "whole numbers", _number_bytes(np.asarray(column))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return "text", _text_bytes(column, what)
    raise _unusable(column, what)


def _number_bytes(numbers: NDArray[Any]) -> list[bytes]:
    wide = numbers.astype(np.uint64 if numbers.dtype.kind == "u" else np.int64)
    table = np.empty((len(wide), _NUMBER_BYTES), np.uint8)
    table[:, 0] = ord("i")
    table[:, 1] = np.where(wide < 0, 0xFF, 0)
    table[:, 2:] = wide.astype(wide.dtype.newbyteorder(">")).view(np.uint8).reshape(-1, 8)
    data = table.tobytes()
    return [data[at : at + _NUMBER_BYTES] for at in range(0, len(data), _NUMBER_BYTES)]


def _text_bytes(column: Any, what: str) -> list[bytes]:
    try:
        texts: list[str] = column.to_pylist()
    except UnicodeDecodeError:
        raise DataError(f"{what} has text that is not UTF-8; read it with its right encoding") from None
    # Empty text is how files write a missing id. As an id it would join rows that have nothing in common.
    empty = sum(not text for text in texts)
    if empty:
        raise _missing(empty, what)
    return [b"t" + (text if text.isascii() else unicodedata.normalize("NFC", text)).encode() for text in texts]


def _unusable(column: Any, what: str) -> DataError:
    """The refusal of a type that two parties might write differently, with what to do about it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        whole = pc.all(pc.equal(pc.floor(column), column)).as_py()
        advice = (
            "they are all whole: convert them to integers (numbers become floats where a reader meets missing values)"
            if whole
            else "they are not whole, and rounding would merge or lose ids: make them text"
        )
        return DataError(f"{what} holds numbers with a fraction ({kind}), which are no ids; {advice}")
    if pa.types.is_temporal(kind):
        return DataError(
            f"{what} holds dates or times ({kind}); make them text in one form at every party, as ISO 8601"
        )
    if pa.types.is_boolean(kind):
        return DataError(f"{what} holds truth values, which tell no rows apart; name the column that has the ids")
    return DataError(f"{what} has the type {kind}; ids are whole numbers or text: convert it to one of these")
