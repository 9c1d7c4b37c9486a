"""Comparisons of values and thresholds that are split between two holders: exact, and told to the coordinator alone."""

from __future__ import annotations

import itertools
import secrets

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from woodlot.crypto import split_compare
from woodlot.crypto.order_words import has_common_word
from woodlot.crypto.split_compare import (
    LINE_BYTES,
    SHARE_BITS,
    dealer_shares,
    dealer_side,
    helper_shares,
    helper_side,
    is_larger,
    read_shares,
    threshold_codes,
    value_codes,
    write_shares,
)
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import DataError, RemoteProtocolError

MOST = float(np.finfo(np.float32).max)
LEAST = float(np.finfo(np.float32).smallest_subnormal)
NORMAL = float(np.finfo(np.float32).tiny)
SPECIAL = (0.0, -0.0, LEAST, -LEAST, NORMAL, -NORMAL, 1.0, -1.0, MOST, -MOST, 1 + 2.0**-23, 1 - 2.0**-24)


def compared(values: NDArray[np.float32], thresholds: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether each value is larger than its threshold, by shares."""
    key, count = secrets.token_bytes(32), len(values)
    of_values, of_thresholds = (dealer_shares(SecretStream.fresh(), count) for _ in range(2))
    helper = helper_side(
        helper_shares(threshold_codes(thresholds), of_thresholds),
        helper_shares(value_codes(values), of_values),
        SecretStream(key),
    )
    return is_larger(helper, dealer_side(of_thresholds, of_values, SecretStream(key)))


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=30),
    thresholds=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=30),
)
def test_every_comparison_is_the_one_in_clear(values: list[float], thresholds: list[float]) -> None:
    pairs = list(itertools.product(values, [*thresholds, *values]))
    x, s = np.array([x for x, _ in pairs], np.float32), np.array([s for _, s in pairs])
    np.testing.assert_array_equal(compared(x, s), x.astype(np.float64) > s)


def test_limits_ties_zeros_and_thresholds_between_two_values() -> None:
    around = [y for x in SPECIAL for y in (np.nextafter(x, -np.inf), x, np.nextafter(x, np.inf))]  # of float64
    pairs = list(itertools.product(SPECIAL, [*around, 1e300, -1e300, np.inf, -np.inf]))
    x, s = np.array([x for x, _ in pairs], np.float32), np.array([s for _, s in pairs])
    np.testing.assert_array_equal(compared(x, s), x.astype(np.float64) > s)


def test_what_has_no_place_in_the_order_is_refused() -> None:
    for bad in (np.nan, np.inf, 1e39):
        with pytest.raises(DataError, match="value 1 is missing, infinite or beyond float32"):
            value_codes([0.0, bad])
    with pytest.raises(DataError, match="split on categories"):
        threshold_codes([0.0, np.nan])


def test_shares_as_they_travel() -> None:
    shares = dealer_shares(SecretStream.fresh(), 50)
    assert int(shares.max()) < 1 << SHARE_BITS
    np.testing.assert_array_equal(read_shares(write_shares(shares), 50), shares)
    with pytest.raises(RemoteProtocolError, match="51 shares have 408 bytes"):
        read_shares(write_shares(shares), 51)
    with pytest.raises(RemoteProtocolError, match="more than 33 bits"):
        read_shares(b"\xff" * 8, 1)


def test_the_shares_of_one_number_are_spread_over_all_numbers() -> None:
    code = value_codes(np.full(20_000, 0.25, np.float32))
    shares = helper_shares(code, dealer_shares(SecretStream.derived(b"a secret of the tests"), len(code)))
    counts = np.bincount((shares >> np.uint64(SHARE_BITS - 4)).astype(np.int64), minlength=16)
    assert (np.abs(counts - 1250) < 6 * np.sqrt(1250)).all()


def test_the_coordinator_sees_one_bit_under_a_coin() -> None:
    n = 4000
    x, s = np.full(n, 1.0, np.float32), np.full(n, 2.0)  # the same comparison again and again
    key = secrets.token_bytes(32)
    of_values, of_thresholds = (dealer_shares(SecretStream.fresh(), n) for _ in range(2))
    helper = helper_side(
        helper_shares(threshold_codes(s), of_thresholds), helper_shares(value_codes(x), of_values), SecretStream(key)
    )
    dealer = dealer_side(of_thresholds, of_values, SecretStream(key))
    assert helper[0].shape == dealer[0].shape == (n, LINE_BYTES)
    common = has_common_word(helper[0], dealer[0])
    for bits in (common, helper[1], dealer[1], helper[1] ^ dealer[1], common ^ helper[1], common ^ dealer[1]):
        assert abs(float(np.mean(bits)) - 0.5) < 0.05  # each pair of the three looks like two coins
    assert not is_larger(helper, dealer).any()
    for words in (helper[0], dealer[0]):
        assert len(np.unique(np.ascontiguousarray(words).view("<u8"))) == n * (split_compare.CODE_BITS + 1)


def test_sides_of_two_keys_have_nothing_in_common() -> None:
    n = 1000
    z = dealer_shares(SecretStream.fresh(), n)
    helper = helper_side(z, np.zeros_like(z), SecretStream.fresh())
    dealer = dealer_side(np.zeros_like(z), z, SecretStream.fresh())
    assert not has_common_word(helper[0], dealer[0]).any()
