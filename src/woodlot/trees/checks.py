"""What a coordinator checks before it uses the replies of parties that may be faulty or hostile."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.trees.ranks import MAX_THRESHOLDS, n_blocks
from woodlot.trees.wire import DecisionBits, LeafBits, RankCodes, chunks_of, wire_dtypes


def check_decisions(reply: DecisionBits | None, n_rows: int, party: int) -> NDArray[np.int64]:
    """Check the table of chunks and return where each begins; the kernel checks the chunks themselves."""
    n_chunks = len(chunks_of(n_rows))
    if reply is None:
        return np.zeros(n_chunks + 1, np.int64)
    _check_array(reply.stream, np.uint64, None, "stream", party)
    _check_array(reply.lengths, np.uint32, n_chunks, "lengths", party)
    start = np.append(0, np.cumsum(reply.lengths, dtype=np.int64))
    if start[-1] != len(reply.stream):
        raise RemoteProtocolError(f"Party {party} sent {len(reply.stream)} words and announced {start[-1]}.")
    return start


def check_leaves(reply: LeafBits | None, n_rows: int, n_leaves: int, party: int) -> None:
    """Check the size; whether the bits make sense shows when all parties' replies come together."""
    if reply is None:
        return
    shape = (n_blocks(n_rows), n_leaves)
    if reply.words.dtype != np.uint64 or reply.words.shape != shape:
        raise RemoteProtocolError(f"Party {party} must send {shape} words of reachable leaves.")


def check_ranks(reply: RankCodes, n_rows: int, owned: NDArray[np.int64], party: int) -> None:
    """Check that every question is about one of the party's nodes and points into the tables that it sent."""
    n = len(owned)
    for array, dtype, length, name in (
        (reply.node, np.int32, n, "node"),
        (reply.slot, np.int32, n, "slot"),
        (reply.cut, np.uint16, n, "cut"),
        (reply.missing_left, np.bool_, n, "missing_left"),
        (reply.set_start, np.int64, n + 1, "set_start"),
        (reply.sets, np.uint8, None, "sets"),
        (reply.n_thresholds, np.int32, None, "n_thresholds"),
        (reply.n_codes, np.int64, None, "n_codes"),
    ):
        _check_array(array, dtype, length, name, party)
    set_bytes = np.diff(reply.set_start)
    n_numeric = len(reply.n_thresholds)
    n_slots = n_numeric + len(reply.n_codes)
    numeric = reply.slot < n_numeric
    if not (
        np.array_equal(reply.node, owned)
        and ((reply.slot >= 0) & (reply.slot < n_slots)).all()
        and ((reply.n_thresholds > 0) & (reply.n_thresholds <= MAX_THRESHOLDS)).all()
        and ((reply.n_codes > 0) & (reply.n_codes <= np.iinfo(np.int32).max)).all()
        and reply.set_start[0] == 0
        and reply.set_start[-1] == len(reply.sets)
        and (set_bytes[numeric] == 0).all()
        and (set_bytes[~numeric] > 0).all()
        and (set_bytes[~numeric] * 8 <= reply.n_codes[reply.slot[~numeric] - n_numeric]).all()
        and (reply.cut >= 1).all()
        and (reply.cut[numeric] <= reply.n_thresholds[reply.slot[numeric]]).all()
    ):
        raise RemoteProtocolError(f"The questions of party {party} do not fit its nodes or its own tables.")
    if len(reply.codes) != n_slots:
        raise RemoteProtocolError(f"Party {party} must send codes for {n_slots} columns.")
    largest = np.append(reply.n_thresholds, reply.n_codes)
    for slot, code_dtype in enumerate(wire_dtypes(reply.n_thresholds, reply.n_codes)):
        codes = reply.codes[slot]
        _check_array(codes, code_dtype, n_rows, "codes", party)
        beyond = codes > largest[slot]
        if slot < n_numeric:
            beyond &= codes != np.iinfo(code_dtype).max
        if beyond.any():
            raise RemoteProtocolError(f"Party {party} sent a code beyond its thresholds or categories.")


def _check_array(array: NDArray[np.generic], dtype: type, length: int | None, name: str, party: int) -> None:
    if array.dtype != dtype or array.ndim != 1 or (length is not None and len(array) != length):
        expected = "" if length is None else f" of length {length}"
        raise RemoteProtocolError(f"Party {party} must send {name} as {np.dtype(dtype)}{expected}.")
