"""Arrays out of untrusted ``.npy`` and ``.npz`` files.

numpy's own reader allocates what a header claims before it looks at what is there, and unpacks whatever an archive
holds. Here a length counts only after it has been compared with the bytes, and an archive may not grow beyond a limit.
"""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

GROWS = 100
"""How many times as long as its file the arrays of an archive may be, beyond what `SMALL` allows."""
SMALL = 256 * 2**20
"""Bytes of arrays that any archive may hold: columns of one value shrink to almost nothing."""

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000
_LONGEST_START = 12 + _LONGEST_HEADER
_HEADER = re.compile(
    r"\{'descr': '([<|][biuf]\d{1,2})', 'fortran_order': (True|False), 'shape': \(((?:\d{1,19},? ?){0,8})\), \} *\n"
)
_LENGTHS = {(1, 0): "<H", (2, 0): "<I", (3, 0): "<I"}
_LONGEST_SIDE = 1 << 40  # also of an array that has none of the other side, and so no bytes
_COMPRESSIONS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_UNREADABLE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
    KeyError,
)


class ArrayFile:
    """The arrays of an ``.npz`` file, each read when somebody asks for it.

    Parameters
    ----------
    file : Path or binary file
        Where they are.

    Raises
    ------
    ValueError
        Here and when an array is read: if the file is damaged or not there, or its arrays would take more memory than
        its length can justify.

    """

    def __init__(self, file: Path | IO[bytes]) -> None:
        self._file = file
        with self._archive() as archive:
            members = archive.infolist()
            length = archive.fp.seek(0, io.SEEK_END) if archive.fp is not None else 0
        _check_members(members, length)
        self._members = {member.filename.removesuffix(".npy"): member for member in members}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the arrays."""
        return tuple(self._members)

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self._file) as archive:
                yield archive
        except _UNREADABLE as error:
            raise ValueError(f"it is no archive of arrays ({type(error).__name__})") from None

    def read(self, name: str, first: int = 0, last: int | None = None) -> NDArray[Any]:
        """An array, or its items from ``first`` to before ``last``: what stands behind them is not even unpacked."""
        if name not in self._members:
            raise ValueError(f"it has no array {name!r}")
        member = self._members[name]
        with self._archive() as archive, archive.open(member) as file:
            layout = _Layout.of(file.read(_LONGEST_START), member.file_size)
            file.seek(layout.start)
            if (first, last) == (0, None):
                return layout.whole(file.read(member.file_size))
            length = layout.shape[0] if last is None and layout.shape else last or 0
            if len(layout.shape) != 1 or not 0 <= first <= length <= layout.shape[0]:
                raise ValueError(f"array {name!r} has no items {first} to {length}")
            file.seek(layout.start + first * layout.dtype.itemsize)
            return np.frombuffer(file.read((length - first) * layout.dtype.itemsize), layout.dtype).copy()


def read_arrays(file: Path | IO[bytes]) -> dict[str, NDArray[Any]]:
    """Read all arrays of an ``.npz`` file; see `ArrayFile`."""
    arrays = ArrayFile(file)
    return {name: arrays.read(name) for name in arrays.names}


def _check_members(members: Sequence[zipfile.ZipInfo], length: int) -> None:
    names = [member.filename for member in members]
    if len(set(names)) < len(names) or not all(name.endswith(".npy") for name in names):
        raise ValueError("it is no archive of arrays, each under a name of its own")
    if any(member.compress_type not in _COMPRESSIONS for member in members):
        raise ValueError("its arrays are compressed in a way that is not known here")
    # zipfile never unpacks more than a member claims, so the claims together bound what is in memory
    claimed = sum(member.file_size for member in members)
    if claimed > max(SMALL, GROWS * length):
        raise ValueError(f"its arrays would take {claimed:,} bytes, which a file of {length:,} does not justify")


def parse_array(data: bytes) -> NDArray[Any]:
    """The array of the bytes of an ``.npy`` file.

    Raises
    ------
    ValueError
        If the bytes are not exactly one array of plain numbers.

    """
    layout = _Layout.of(data[:_LONGEST_START], len(data))
    return layout.whole(data[layout.start :])


class _Layout(NamedTuple):
    """What the beginning of an array says of it, found to fit its length."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    by_columns: bool
    start: int

    @classmethod
    def of(cls, beginning: bytes, size: int) -> _Layout:
        """Read the beginning of an array of so many bytes in all."""
        is_array = len(beginning) > 12 and beginning.startswith(_MAGIC)
        form = _LENGTHS.get((beginning[6], beginning[7])) if is_array else None
        if form is None:
            raise ValueError("it holds something that is no array")
        start = 8 + struct.calcsize(form)
        length = struct.unpack_from(form, beginning, 8)[0]
        if length > _LONGEST_HEADER:
            raise ValueError("an array has a header of more bytes than there can be")
        header = _HEADER.fullmatch(beginning[start : start + length].decode("latin-1"))
        if header is None:
            raise ValueError("an array is not one of plain numbers")
        try:
            dtype = np.dtype(header[1])
        except TypeError:
            raise ValueError("an array is of an unknown type") from None
        shape = tuple(int(side) for side in re.findall(r"\d+", header[3]))
        there = size - start - length
        if math.prod(shape) * dtype.itemsize != there or max(shape, default=0) > _LONGEST_SIDE:
            raise ValueError(f"an array says it has the shape {shape}, and is {there:,} bytes long")
        return cls(dtype, shape, header[2] == "True", start + length)

    def whole(self, data: bytes) -> NDArray[Any]:
        """The array of these bytes: aligned, and to be written to."""
        return np.frombuffer(data, self.dtype).reshape(self.shape, order="F" if self.by_columns else "C").copy()
