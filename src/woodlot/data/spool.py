"""Room on disk for what does not fit into memory: arrays and Arrow tables in nameless files, mapped.

The pages of such a file belong to the system's cache: it keeps them while there is room and takes them back when
there is none, so they are no memory of the process. A nameless file is gone when nobody uses it any more, and with
the process, however it ended.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import weakref
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from woodlot.data.columns import CategoryColumn, Column, NumericColumn
from woodlot.exceptions import DataError

Scalar = TypeVar("Scalar", bound=np.generic)

CELLS_OF_A_BATCH = 1 << 18
"""Cells that are on their way to the disk at the same time."""


class Spool:
    """Makes mapped arrays and tables.

    Parameters
    ----------
    folder : Path
        Where the files are, though under no name.

    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        self._lock = threading.Lock()

    def let_go(self, *arrays: NDArray[Any]) -> None:
        """Have the system take mapped pages out of this process: those of some arrays, or all.

        What is used again comes back by itself, from the system's cache or from the disk. For whoever has filled or
        read something large once: its pages would count as this process's for as long as the system has room.
        """
        with self._lock:
            maps = [mapped for array in arrays for mapped in _maps_under(array)] if arrays else list(self._maps)
        for mapped in maps if hasattr(mmap, "MADV_DONTNEED") else ():
            mapped.madvise(mmap.MADV_DONTNEED)

    def _map(self, file: IO[bytes], size: int, access: int) -> mmap.mmap:
        mapped = mmap.mmap(file.fileno(), size, access=access)
        with self._lock:
            self._maps.add(mapped)
        return mapped

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array of zeros, to be written to.

        Raises
        ------
        DataError
            There is no room on the disk. Told now: writing to a mapped page without room would end the process.

        """
        kind = np.dtype(dtype)
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        if size == 0:
            return np.zeros(shape, kind)
        with self._file() as file:
            try:
                _reserve(file, size)
            except OSError as error:
                raise self._no_room(size, error) from None
            return np.frombuffer(self._map(file, size, mmap.ACCESS_WRITE), kind).reshape(shape)

    def copy(self, values: NDArray[Scalar]) -> NDArray[Scalar]:
        """The same values, on disk."""
        kept = self.empty(values.shape, values.dtype)
        kept[...] = values
        return kept

    def column(self, column: Column) -> Column:
        """The same column, on disk."""
        if isinstance(column, CategoryColumn):
            return CategoryColumn(self.copy(column.codes), column.categories)
        return NumericColumn(self.copy(column.values))

    def table(self, schema: Any, batches: Iterable[Any]) -> Any:
        """An Arrow table of these record batches, each written as it comes."""
        import pyarrow as pa

        with self._file() as file:
            with pa.ipc.new_stream(file, schema) as writer:  # a stream, since batches may have their own dictionaries
                for batch in batches:
                    self._write(writer, batch)
            return pa.ipc.open_stream(self._written(file)).read_all()

    def parts(self, parts: Iterable[Any]) -> list[Any]:
        """The same Arrow tables, on disk; unlike the batches of one table each may have its own types."""
        import pyarrow as pa

        with self._file() as file:
            starts = [0]
            for part in parts:
                with pa.ipc.new_stream(file, part.schema) as writer:
                    self._write(writer, part)
                starts.append(file.tell())
            if len(starts) == 1:
                return []
            whole = self._written(file)
            return [pa.ipc.open_stream(whole.slice(start, end - start)).read_all() for start, end in pairwise(starts)]

    def _written(self, file: IO[bytes]) -> Any:
        """What was written, as a buffer of Arrow's."""
        import pyarrow as pa

        file.flush()
        return pa.py_buffer(self._map(file, 0, mmap.ACCESS_READ))

    def _write(self, writer: Any, data: Any) -> None:
        try:
            writer.write(data)
        except OSError as error:
            raise self._no_room(data.nbytes, error) from None

    def _file(self) -> IO[bytes]:
        try:
            return tempfile.TemporaryFile(dir=self.folder)
        except OSError as error:
            raise DataError(f"the folder {self.folder} cannot be written to: {error.strerror}; set state") from None

    def _no_room(self, size: int, error: OSError) -> DataError:
        return DataError(
            f"{size / 1e6:,.0f} MB cannot be written to the folder {self.folder}: {error.strerror or error}; "
            "make room there, or set state to a folder on another disk"
        )


def _maps_under(array: NDArray[Any]) -> list[mmap.mmap]:
    """The map that an array is a view of, if it is one."""
    under: Any = array
    while isinstance(under, np.ndarray):
        under = under.base
    under = under.obj if isinstance(under, memoryview) else under
    return [under] if isinstance(under, mmap.mmap) else []


def rows_of_a_batch(n_columns: int) -> int:
    """How many rows are on their way to the disk at the same time."""
    return max(1, CELLS_OF_A_BATCH // max(n_columns, 1))


def _reserve(file: IO[bytes], size: int) -> None:
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)
