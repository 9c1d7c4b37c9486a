"""Searches the bytes of messages for what must not travel, in every form in which it might."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from woodlot.runtime import codec

Secrets: TypeAlias = Mapping[str, Iterable[bytes]]
"""What no message may hold, by kind, in all forms."""

SHORTEST = 4
"""Bytes. Anything shorter is found everywhere by chance."""


@contextmanager
def captured() -> Iterator[list[bytes]]:
    """Every message that is encoded in this process meanwhile."""
    seen: list[bytes] = []
    codec.listeners.append(seen.append)
    try:
        yield seen
    finally:
        codec.listeners.remove(seen.append)


def opened(data: bytes) -> Iterator[tuple[str, bytes]]:
    """A message by its name, and the arrays that are compressed in it."""
    message = codec.decode(data)
    name = type(message).__name__
    yield name, data
    for file, content in getattr(message, "files", {}).items():
        if file.endswith(".npz"):
            with np.load(io.BytesIO(content.tobytes())) as arrays:
                yield from ((name, arrays[key].tobytes()) for key in arrays.files)


# --- the forms in which a secret might travel ---


def texts(values: Iterable[Any]) -> Iterator[bytes]:
    for value in values:
        for encoding in ("utf-8", "utf-16-le", "utf-16-be"):
            yield str(value).encode(encoding)


def floats(values: NDArray[Any]) -> Iterator[bytes]:
    """As float64 and float32, of either byte order, rounded to float32 first, and as decimals.

    Decimals that are `SHORTEST` at least: 0.30000000000000004 is "0.3" to six digits.
    """
    values = np.asarray(values, np.float64)
    values = values[np.isfinite(values)]
    for value in values:
        single = np.float32(value)
        for number in (value, single, np.float64(single)):
            yield number.tobytes()
            yield number.tobytes()[::-1]
        for decimals in (repr(float(value)), repr(float(single)), f"{value:.6g}"):
            if len(decimals) >= SHORTEST:
                yield decimals.encode()


def integers(values: Iterable[int]) -> Iterator[bytes]:
    """As whole numbers of 4 and 8 bytes and as float64, of either byte order, and as decimals."""
    for value in values:
        for dtype in ("<u4", ">u4", "<u8", ">u8", "<f8", ">f8"):
            yield np.array(value, dtype).tobytes()
        yield str(value).encode()


def disguised(forms: Iterable[bytes]) -> Iterator[bytes]:
    """Each form as it is, in hexadecimal and in base64, and under the hashes that everybody can compute."""
    for form in forms:
        yield form
        for hidden in (form, *(hashlib.new(name, form).digest() for name in ("md5", "sha1", "sha256"))):
            if hidden is not form:
                yield hidden
            yield hidden.hex().encode()
            yield hidden.hex().upper().encode()
            for start in range(3):  # base64 takes three bytes at a time, so it depends on what is before
                coded = base64.b64encode(bytes(start) + hidden)
                whole = coded[4 if start else 0 : 4 * ((start + len(hidden)) // 3)]
                if len(whole) >= 8:
                    yield whole
                    yield whole.replace(b"+", b"-").replace(b"/", b"_")


# --- the search ---


def found(secrets: Secrets, messages: Iterable[bytes], *, short_hits: int = 1) -> dict[str, set[str]]:
    """Which kinds of secrets stand in which kinds of messages; see `search`."""
    return search(secrets, [(type(codec.decode(data)).__name__, data) for data in messages], short_hits=short_hits)


def search(secrets: Secrets, items: Iterable[tuple[str, bytes]], *, short_hits: int = 1) -> dict[str, set[str]]:
    """Which kinds of secrets stand in which named bytes.

    Parameters
    ----------
    secrets : mapping of str to iterable of bytes
        What is looked for.
    items : iterable of (str, bytes)
        Where it is looked for; several may have the same name.
    short_hits : int
        How many different needles of less than 8 bytes must be in the same bytes to count: in much random data, as
        keys and ciphertexts are, one is found by chance.

    """
    names, haystacks = zip(*items, strict=True)
    ends = np.cumsum([len(data) + 8 for data in haystacks])
    hay = b"".join(data + bytes(8) for data in haystacks)  # room, so that every place has 8 bytes after it
    hits: dict[str, set[str]] = {}
    for kind, needles in secrets.items():
        places = _places(hay, set(needles))
        by_item: dict[int, set[bytes]] = {}
        for place, needle in places:
            by_item.setdefault(int(np.searchsorted(ends, place, side="right")), set()).add(needle)
        for item, there in by_item.items():
            if len(there) >= short_hits or any(len(needle) >= 8 for needle in there):
                hits.setdefault(kind, set()).add(names[item])
    return hits


def _places(hay: bytes, needles: set[bytes]) -> Iterator[tuple[int, bytes]]:
    """Where each needle is: by its first 4 or 8 bytes at every place at once, then in full."""
    assert needles
    assert min(map(len, needles)) >= SHORTEST, "a needle that is found everywhere"
    for width, dtype in ((4, np.uint32), (8, np.uint64)):
        by_start: dict[int, list[bytes]] = {}
        for needle in needles:
            if (len(needle) >= 8) == (width == 8):
                by_start.setdefault(int(np.frombuffer(needle[:width], dtype)[0]), []).append(needle)
        starts = np.array(sorted(by_start), dtype)
        ends = np.zeros(1 << 16, bool)  # of starts: most places are ruled out by two of their bytes
        ends[starts & 0xFFFF] = True
        for shift in range(width):
            n = (len(hay) - shift) // width
            windows = np.frombuffer(hay, dtype, count=n, offset=shift)
            likely = np.flatnonzero(ends[windows & 0xFFFF])
            for window in likely[np.isin(windows[likely], starts)].tolist():
                place = shift + width * window
                for needle in by_start[int(windows[window])]:
                    if hay.startswith(needle, place):
                        yield place, needle
