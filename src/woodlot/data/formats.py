"""CSV, Parquet, Arrow and the rows of a query as Arrow tables, and a digest that is the same for all of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import csv

from woodlot.data.columns import mixed_types
from woodlot.data.spool import Spool, rows_of_a_batch

T = TypeVar("T")

Choose = Callable[[Sequence[str]], list[str]]
"""Takes the names of the columns that there are, returns those to read, in their order, or raises DataError."""

Peek: TypeAlias = tuple[Any, Any]
"""A schema of the columns to read, and the values of the id column."""

ROWS_OF_A_QUERY = 20_000
"""Rows of a query that are Python objects at the same time."""

_BUFFER = 1 << 16
"""Bytes of a column of a Parquet file that are read ahead, where not the whole column is."""

_ROWS_OF_A_DIGEST = 1 << 16
"""Part of what a digest means: another number gives other digests."""

_TRUE, _FALSE = ["True", "TRUE", "true"], ["False", "FALSE", "false"]
_DATES = [pa.timestamp("us"), pa.timestamp("us", "UTC")]
_MISSING_NUMBERS = csv.ConvertOptions().null_values


def is_text(kind: Any) -> bool:
    """Whether an Arrow type is one of those for text."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def read_parquet(path: Path, choose: Choose, spool: Spool | None = None) -> Any:
    """Read some columns of a Parquet file."""
    with pq.ParquetFile(path, buffer_size=0 if spool is None else _BUFFER, pre_buffer=spool is None) as file:
        used = choose(file.schema_arrow.names)
        if spool is None:
            return _sound(file.read(columns=used).select(used))
        batches = file.iter_batches(rows_of_a_batch(len(used)), columns=used, use_threads=False)
        schema = pa.schema([file.schema_arrow.field(name) for name in used])
        return spool.table(schema, (_sound(batch.select(used)) for batch in batches))


def peek_parquet(path: Path, choose: Choose, id: str) -> Peek:
    """The types of some columns of a Parquet file, from its metadata, and the values of one of them."""
    with pq.ParquetFile(path) as file:
        schema = pa.schema([file.schema_arrow.field(name) for name in choose(file.schema_arrow.names)])
        return schema, _sound(file.read(columns=[id])).column(id)


def peek_arrow(path: Path, choose: Choose, id: str) -> Peek:
    """The same of an Arrow file or stream, or of a Feather file."""
    with pa.OSFile(str(path)) as file:
        opened = pa.ipc.open_file if file.read(6) == b"ARROW1" else pa.ipc.open_stream
        file.seek(0)
        with opened(file) as reader:
            whole = reader.schema
        schema = pa.schema([whole.field(name) for name in choose(whole.names)])
        file.seek(0)
        only = pa.ipc.IpcReadOptions(included_fields=[whole.names.index(id)])
        with opened(file, options=only) as reader:
            return schema, _sound(reader.read_all()).column(id)


def _sound(data: Any) -> Any:
    data.validate(full=True)  # the offsets and codes of a damaged file would otherwise be followed
    return data


def read_arrow(path: Path, choose: Choose, spool: Spool | None = None) -> Any:
    """Read some columns of an Arrow file or stream, or of a Feather file."""
    with pa.OSFile(str(path)) as file:
        opened = pa.ipc.open_file if file.read(6) == b"ARROW1" else pa.ipc.open_stream
        file.seek(0)
        with opened(file) as reader:
            names = reader.schema.names
        used = choose(names)
        file.seek(0)
        only = pa.ipc.IpcReadOptions(included_fields=[names.index(name) for name in used])
        with opened(file, options=only) as reader:
            if spool is None:
                return _sound(reader.read_all().select(used))
            schema = pa.schema([reader.schema.field(name) for name in used])
            return spool.table(schema, (_sound(batch.select(used)) for batch in _batches(reader)))


def _batches(reader: Any) -> Iterator[Any]:
    """The record batches of an Arrow file or stream, one at a time."""
    if isinstance(reader, pa.ipc.RecordBatchFileReader):
        yield from map(reader.get_batch, range(reader.num_record_batches))
    else:
        yield from reader


def read_csv(path: Path, id: str, choose: Choose, check: Callable[[Any], None], spool: Spool | None = None) -> Any:
    """Read some columns of a CSV file: first their types, from all rows and not the first ones only, then the values.

    Arrow's errors quote cells; those that escape from here do not.
    """

    def read(types: dict[str, Any]) -> Any:
        known, text = _csv_options(include_columns=list(types), column_types=types), _text(path)
        return _stored_csv(text, known, spool) if spool else _empty_is_missing(csv.read_csv(text, **known))

    return _typed_csv(path, id, choose, check, read)


def peek_csv(path: Path, choose: Choose, id: str, check: Callable[[Any], None]) -> Peek:
    """The types of some columns of a CSV file, and the values of one of them. All cells are looked at, few are kept."""

    def read(types: dict[str, Any]) -> Peek:
        known = _csv_options(include_columns=[id], column_types={id: types[id]})
        return pa.schema(types), _empty_is_missing(csv.read_csv(_text(path), **known)).column(id)

    return _typed_csv(path, id, choose, check, read)


def _csv_options(**convert: Any) -> dict[str, Any]:
    return {
        "parse_options": csv.ParseOptions(newlines_in_values=True),
        "convert_options": csv.ConvertOptions(true_values=_TRUE, false_values=_FALSE, **convert),
    }


def _typed_csv(
    path: Path, id: str, choose: Choose, check: Callable[[Any], None], read: Callable[[dict[str, Any]], T]
) -> T:
    """What `read` makes of a CSV file once the types of its columns are known."""
    in_turn = csv.ReadOptions(use_threads=False)  # or Arrow would not know the number of a row
    try:
        with csv.open_csv(_text(path), in_turn, **_csv_options()) as reader:
            names = reader.schema.names
        used = choose(names)
        cells = _csv_options(include_columns=used, column_types=dict.fromkeys(used, pa.string()))
        with csv.open_csv(_text(path), in_turn, **cells) as reader:
            types = _types_of_cells(reader, used, id)
        check(pa.schema(types))
        found = read(types)
    except pa.ArrowInvalid as error:
        fault = _fault_of_csv(str(error))
    else:
        if not _has_open_quote(path):
            return found
        fault = "a quote is never closed"
    raise pa.ArrowInvalid(fault)


def _stored_csv(stream: Any, options: dict[str, Any], spool: Spool) -> Any:
    """The values of a CSV file, block by block to the disk."""
    with csv.open_csv(stream, csv.ReadOptions(use_threads=False), **options) as reader:
        tables = (_empty_is_missing(pa.Table.from_batches([batch])) for batch in reader)
        return spool.table(reader.schema, (batch for table in tables for batch in table.to_batches()))


def _fault_of_csv(words: str) -> str:
    if row := re.match(r"CSV parse error: Row #(\d+): Expected (\d+) columns, got (\d+)", words):
        return f"row {row[1]} has {row[3]} cells instead of {row[2]}"
    known = {"invalid UTF8": "it is not UTF-8 text", "Empty CSV file": "it has no header"}
    return next((fault for sign, fault in known.items() if sign in words), "it cannot be parsed")


def _text(path: Path) -> Any:
    """The text of a file; it is closed when nobody uses it any more, and not before.

    Arrow reads ahead in threads of its own, also for a reader that is closed: in a file that is closed under them they
    would read on from whatever has the same number next.
    """
    return pa.input_stream(str(path), compression="gzip" if path.suffix.lower() == ".gz" else None)


def _has_open_quote(path: Path) -> bool:
    """Whether all rows behind some quote would become one cell: Arrow lets the end of the file close it."""
    quotes = 0
    with _text(path) as stream:
        while block := stream.read(1 << 20):
            quotes += block.count(b'"')
    return quotes % 2 == 1


def _types_of_cells(batches: Any, names: Sequence[str], id: str) -> dict[str, Any]:
    """The narrowest type of each column that takes all of its cells."""
    possible = {name: [pa.int64(), pa.float64(), pa.bool_(), *_DATES] for name in names}
    possible[id] = [pa.int64()]
    for batch in batches:
        for name in names:
            if not possible[name]:
                continue
            missing = [""] if name == id else _MISSING_NUMBERS
            cells = batch.column(name)
            cells = cells.filter(pc.invert(pc.is_in(cells, pa.array(missing))))
            possible[name] = [kind for kind in possible[name] if _takes(kind, cells, as_written=name == id)]
    return {name: kinds[0] if kinds else pa.string() for name, kinds in possible.items()}


def _takes(kind: Any, cells: Any, *, as_written: bool) -> bool:
    if pa.types.is_boolean(kind):
        return bool(pc.all(pc.is_in(cells, pa.array(_TRUE + _FALSE)), min_count=0).as_py())
    try:
        values = pc.utf8_trim(cells, " \t").cast(kind)
    except pa.ArrowInvalid:
        return False
    # Ids such as 007 are not numbers: they would no longer be what others write.
    return not as_written or bool(pc.all(pc.equal(values.cast(pa.string()), cells), min_count=0).as_py())


def _empty_is_missing(table: Any) -> Any:
    """Empty text is missing. Not so NA, which may be a country; among numbers it can only be missing."""
    for at, column in enumerate(table.schema):
        if is_text(column.type):
            text = table.column(at)
            text = pc.if_else(pc.not_equal(text, ""), text, pa.scalar(None, column.type))
            table = table.set_column(at, column.name, text)
    return table


def rows_to_table(
    parts: Iterator[Sequence[Sequence[Any]]],
    names: Sequence[str],
    used: list[str],
    what: str,
    spool: Spool | None = None,
) -> Any:
    """Collect some columns of rows that come in parts, as Python objects."""

    def arrow(part: Sequence[Sequence[Any]]) -> Any:
        columns = dict(zip(names, zip(*part, strict=True), strict=True))
        return pa.table({name: _objects(columns[name], name, what) for name in used})

    tables = [arrow(part) for part in parts] if spool is None else spool.parts(map(arrow, parts))
    chunks = {name: [chunk for table in tables for chunk in table.column(name).chunks] for name in used}
    return pa.table({name: _one_type(arrays, name, what) for name, arrays in chunks.items()})


def peek_rows(
    parts: Iterator[Sequence[Sequence[Any]]], names: Sequence[str], used: list[str], what: str, id: str
) -> Peek:
    """The types of some columns of rows that come in parts, as Python objects, and the values of one of them."""
    ids: list[Any] = []
    kinds: dict[str, list[Any]] = {name: [] for name in used}
    for part in parts:
        columns = dict(zip(names, zip(*part, strict=True), strict=True))
        for name in used:
            values = _objects(columns[name], name, what)
            kinds[name].append(values.slice(0, 0))
            if name == id:
                ids.append(values)
    if not ids:
        return pa.schema([(name, pa.null()) for name in used]), pa.chunked_array([], pa.null())
    schema = pa.schema([(name, _one_type(arrays, name, what).type) for name, arrays in kinds.items()])
    return schema, _one_type(ids, id, what)


def sort_rows(table: Any, by: str, spool: Spool | None = None) -> Any:
    """The rows in the order of one column."""
    if spool is None:
        return table.sort_by([(by, "ascending")])
    order = pc.sort_indices(table.column(by))
    step = rows_of_a_batch(table.num_columns)
    parts = (table.take(order.slice(at, step)) for at in range(0, len(order), step))
    return spool.table(table.schema, (batch for part in parts for batch in part.to_batches()))


def _objects(values: Sequence[Any], name: str, what: str) -> Any:
    try:
        return pa.array(values)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        kinds = sorted({type(value).__name__ for value in values if value is not None})
    raise mixed_types(name, what, kinds)


def _one_type(arrays: list[Any], name: str, what: str) -> Any:
    """Parts of a column in a type that fits all of them, wherever the parts begin."""
    kinds = {array.type for array in arrays} - {pa.null()}
    if len(kinds) == 1 and not any(pa.types.is_decimal(kind) for kind in kinds):
        wanted = kinds.pop()
    elif kinds and all(pa.types.is_decimal(kind) and kind.scale == 0 for kind in kinds):
        wanted = pa.decimal128(38, 0)
    elif all(pa.types.is_integer(k) or pa.types.is_floating(k) or pa.types.is_decimal(k) for k in kinds):
        wanted = pa.float64()
    else:
        raise mixed_types(name, what, sorted(str(kind) for kind in kinds))
    return pa.chunked_array([array.cast(wanted, safe=False) for array in arrays], wanted)


def digest(table: Any) -> str:
    """SHA-256 of names, types and values of a table in the order of its rows, however they are stored."""
    sha = hashlib.sha256(b"woodlot table 1\n")
    schema = [[column.name, _type_name(column.type)] for column in table.schema]
    sha.update(msgspec.json.encode([schema, table.num_rows]) + b"\n")
    for column in table.itercolumns():
        for start in range(0, table.num_rows, _ROWS_OF_A_DIGEST):
            for part in _canonical(column.slice(start, _ROWS_OF_A_DIGEST)):
                sha.update(part)
    return sha.hexdigest()


def _type_name(kind: Any) -> str:
    if pa.types.is_dictionary(kind):
        return "text" if is_text(kind.value_type) else f"category of {kind.value_type}"
    return "text" if is_text(kind) else str(kind)


def _canonical(column: Any) -> Iterator[bytes | memoryview]:
    """Which values are there, and the values, as bytes that depend on nothing else."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_null(column.type):
        return
    present = pc.is_valid(column).to_numpy()
    yield np.packbits(present).tobytes()
    if is_text(column.type) or pa.types.is_decimal(column.type):
        text = column.cast(pa.large_string()).fill_null("")
        yield pc.binary_length(text).to_numpy().astype("<i8").tobytes()
        for chunk in text.chunks:
            yield _bytes_of_text(chunk)
    else:
        values = column.fill_null(pa.scalar(0).cast(column.type)).to_numpy()
        yield values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()


def _bytes_of_text(chunk: Any) -> memoryview:
    _, offsets, data = chunk.buffers()
    ends = np.frombuffer(offsets, np.int64)[chunk.offset : chunk.offset + len(chunk) + 1]
    return memoryview(data)[ends[0] : ends[-1]] if data is not None and len(ends) else memoryview(b"")
