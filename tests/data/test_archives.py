"""Untrusted files of arrays."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from woodlot.data import archives
from woodlot.data.archives import parse_array, read_arrays

ARRAYS = hnp.arrays(
    st.sampled_from(["|b1", "|u1", "<i4", "<i8", "<u8", "<f4", "<f8"]), hnp.array_shapes(min_dims=0, min_side=0)
)


def saved(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


@given(one=ARRAYS, fortran=st.booleans())
def test_what_numpy_writes_is_read_and_may_be_written_to(one: np.ndarray, fortran: bool) -> None:
    written = np.asfortranarray(one) if fortran else one
    (read,) = read_arrays(io.BytesIO(saved(one=written))).values()
    assert read.dtype == one.dtype
    np.testing.assert_array_equal(read, one)
    assert read.flags.writeable
    assert read.flags.aligned


def header(text: str, body: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode("latin-1") + body


def described(descr: str = "'<f8'", shape: str = "(2,)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}\n"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY\x01\x00",
        header(described(), bytes(15)),
        header(described(), bytes(17)),
        header(described(shape="(1000000000000000,)"), bytes(16)),
        header(described(shape="(4611686018427387904, 4)"), b""),
        header(described(shape="(9999999999999999999, 0)"), bytes(16)),
        header(described(descr="'|O'"), bytes(16)),
        header(described(descr="'>f8'"), bytes(16)),
        header(described(descr="'<f3'"), bytes(6)),
        header(described(descr="[('a', '<f8')]"), bytes(16)),
        header("{'descr': __import__('os').abort(), 'shape': (2,), }\n", bytes(16)),
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 1 << 31) + bytes(100),
        b"\x93NUMPY\x09\x00" + header(described(), bytes(16))[8:],
    ],
)
def test_headers_that_claim_something_else_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"array|bytes"):
        parse_array(data)


def packed(content: bytes, method: int = zipfile.ZIP_DEFLATED, name: str = "one.npy") -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr(name, content)
    return file.getvalue()


def test_an_archive_that_grows_out_of_all_proportion_is_refused_unopened(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 1 << 24
    bomb = packed(header(described(shape=f"({n},)"), bytes(8 * n)))
    monkeypatch.setattr(archives, "SMALL", 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="does not justify"):
            read_arrays(io.BytesIO(bomb))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_is_no_archive_of_arrays_is_refused(tmp_path: Path) -> None:
    whole = saved(one=np.arange(50))
    claims_less = bytearray(whole)
    at = whole.rindex(b"PK\x01\x02")
    claims_less[at + 24 : at + 28] = struct.pack("<I", 3)  # how long the array is, says the directory
    damaged = [b"", b"PK", whole[:-9], whole[: len(whole) // 2], bytes(claims_less), packed(b"x", zipfile.ZIP_LZMA)]
    damaged += [packed(b"not an array"), packed(whole, name="one.txt"), whole.replace(b"one.npy", b"../.npy", 1)]
    for data in damaged:
        with pytest.raises(ValueError, match=r"array"):
            read_arrays(io.BytesIO(data))
    path = tmp_path / "one.npz"
    path.write_bytes(whole)
    np.testing.assert_array_equal(read_arrays(path)["one"], np.arange(50))
    with pytest.raises(ValueError, match="FileNotFoundError"):
        read_arrays(tmp_path / "absent.npz")
