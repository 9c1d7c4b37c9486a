"""Codes of labels: known matrices, full rank always, and errors where there can be none."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.privacy.label_code import LabelCode

LETTERS = [chr(ord("A") + number) for number in range(26)]


def test_known_codes() -> None:
    assert LabelCode.one_bit(["no", "yes"]).bits.tolist() == [[0], [1]]
    assert LabelCode.one_hot(["a", "b", "c"]).bits.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert LabelCode.one_hot(["a", "b", "c"]).differences() == [(1, 1)]
    assert LabelCode.one_bit(["no", "yes"]).differences() == [(0, 1), (1, 0)]


def test_bloom_is_the_same_for_ever() -> None:
    code = LabelCode.bloom(["a", "b", "c"], length=5, hashes=2, salt=b"known")
    assert code.bits.tolist() == KNOWN_BLOOM
    assert code.digest() == LabelCode.bloom(["a", "b", "c"], length=5, hashes=2, salt=b"known").digest()
    assert code.digest() != LabelCode.bloom(["a", "b", "d"], length=5, hashes=2, salt=b"known").digest()


KNOWN_BLOOM = [[1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [0, 0, 0, 1, 1]]


@pytest.mark.parametrize(("length", "hashes"), [(32, 2), (64, 2), (128, 2), (128, 4)])
def test_bloom_of_letters_has_full_rank_whatever_the_salt(length: int, hashes: int) -> None:
    for salt in (b"a", b"b", b"c"):
        bits = LabelCode.bloom(LETTERS, length=length, hashes=hashes, salt=salt).bits.astype(float)
        assert np.linalg.matrix_rank(bits) == 26
        assert (bits.sum(axis=1) == hashes).all()


@given(st.integers(2, 6), st.integers(0, 6), st.integers(1, 8), st.binary(max_size=4))
@settings(max_examples=60, deadline=None)
def test_bloom_has_full_rank_or_says_that_it_cannot(n_classes: int, extra: int, hashes: int, salt: bytes) -> None:
    names = LETTERS[:n_classes]
    try:
        code = LabelCode.bloom(names, length=n_classes + extra, hashes=hashes, salt=salt)
    except ValueError:
        with pytest.raises(ValueError, match=r"one_hot|hashes must be"):
            LabelCode.bloom(names, length=n_classes + extra, hashes=hashes, salt=salt)
    else:
        assert np.linalg.matrix_rank(code.bits.astype(float)) == n_classes


@pytest.mark.parametrize(
    ("length", "hashes"),
    [
        (25, 2),  # fewer bits than classes
        (26, 26),  # all filters alike
        (40, 1),  # 26 different places out of 40 are never hit by chance
    ],
)
def test_impossible_blooms_are_refused(length: int, hashes: int) -> None:
    with pytest.raises(ValueError, match="one_hot"):
        LabelCode.bloom(LETTERS, length=length, hashes=hashes)


def test_bad_lists_of_classes_are_refused() -> None:
    for classes in ([], ["a"], ["a", "a"], [1, 2]):
        with pytest.raises(ValueError, match="list of classes"):
            LabelCode.one_hot(classes)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one bit"):
        LabelCode.one_bit(["a", "b", "c"])


def test_matrix_without_full_rank_is_refused() -> None:
    with pytest.raises(ValueError, match="full rank"):
        LabelCode("bloom", ("a", "b"), np.array([[1, 1], [1, 1]], np.uint8))
