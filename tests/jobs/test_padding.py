"""Lengths of what is sealed: few of them, and in predictions the same for every row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from woodlot.exceptions import RemoteProtocolError
from woodlot.jobs.padding import pad, padded_length, unpad
from woodlot.jobs.scores.score_seal import IdSeal, new_key
from woodlot.trees.kernels.reach import most_decided


@given(st.integers(0, 1 << 48))
def test_lengths_grow_by_an_eighth_at_most(length: int) -> None:
    padded = padded_length(length)
    assert length <= padded <= length * 1.125 + 1
    assert padded_length(padded) == padded


def test_there_are_few_lengths() -> None:
    assert len({padded_length(n) for n in range(1 << 16)}) < 300
    assert [padded_length(n) for n in (0, 1, 8, 9, 100, 1_000, 1_000_003)] == [0, 1, 8, 10, 104, 1_024, 1_015_808]


@given(st.binary(max_size=300), st.integers(0, 500))
def test_padding_comes_off(data: bytes, floor: int) -> None:
    padded = pad(data, floor)
    assert unpad(padded) == data
    assert len(padded) == padded_length(max(len(data), floor) + 8)


@pytest.mark.parametrize("wrong", [b"", b"1234567", b"x" + (2).to_bytes(8, "little"), bytes(4) + b"\xff" * 8])
def test_what_is_not_padded_is_refused(wrong: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="not padded"):
        unpad(wrong)


def test_ids_of_a_request_have_one_length() -> None:
    seal = IdSeal(new_key(), "job", "bank")
    sealed = {len(seal.seal(n, [b"t" + b"x" * n])) for n in range(1, 40)}
    assert len(sealed) == 1
    assert seal.open(3, seal.seal(3, [b"txxx"])) == [b"txxx"]


def test_the_most_nodes_that_a_row_can_reach() -> None:
    """Own nodes are gone through one way, others' both ways."""
    #      0                 a tree in preorder: right child of each node, -1 for a leaf
    #   1     4
    #  2 3   5 6
    offset, right = np.array([0, 7]), np.array([4, 3, -1, -1, 6, -1, -1], np.int32)
    for owned, most in (
        ([1, 0, 0, 0, 0, 0, 0], 1), ([0, 1, 0, 0, 1, 0, 0], 2), ([1, 1, 0, 0, 1, 0, 0], 2), ([0, 0, 0, 0, 1, 0, 0], 1),
    ):  # fmt: skip
        assert most_decided(offset, right, np.array(owned, bool)) == most
