"""Codes against numpy's own ranks, and the promises of the coarse groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn, NumericColumn, category_column
from woodlot.data.spool import Spool
from woodlot.data.tables import Table, read_table
from woodlot.trees.encoding import CategoryCoding, EncodedTable, NumericCoding, encode, match_codes
from woodlot.trees.kernels.encode import group_codes

FLOATS = st.one_of(
    st.floats(width=32, allow_infinity=False),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38]),
    st.integers(-3, 3).map(float),
)


def table_of(*columns: Any) -> Table:
    parts = tuple(
        c if isinstance(c, CategoryColumn) else NumericColumn(np.asarray(c, dtype=np.float32)) for c in columns
    )
    return Table(tuple(f"c{i}" for i in range(len(parts))), parts, len(parts[0]) if parts else 0)


def naive_ranks(values: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    distinct = np.unique(values[~np.isnan(values)])
    return distinct, np.where(np.isnan(values), len(distinct), np.searchsorted(distinct, values))


def check_coarse(encoded: EncodedTable, f: int, ranks: NDArray[np.int64]) -> None:
    """What holds for the coarse codes of any numeric column whose fine codes are `ranks`."""
    coarse, fine = encoded.coarse[f].astype(int), encoded.fine[f].astype(int)
    n_coarse, n_codes = int(encoded.n_coarse[f]), int(encoded.n_codes[f])
    assert n_coarse <= 256
    assert sorted(set(coarse)) == list(range(n_coarse))
    for group in range(n_coarse):
        assert encoded.last_fine[f, group] == fine[coarse == group].max()
    order = np.argsort(ranks, kind="stable")
    assert (np.diff(coarse[order]) >= 0).all()
    assert len(set(zip(fine.tolist(), coarse.tolist(), strict=True))) == len(set(fine.tolist()))
    if encoded.has_missing[f]:
        assert encoded.last_fine[f, n_coarse - 1] == n_codes
        assert ((coarse == n_coarse - 1) == (fine == n_codes)).all()
    assert encoded.refine[f] == (n_codes + int(encoded.has_missing[f]) > n_coarse)
    if not encoded.refine[f]:
        np.testing.assert_array_equal(coarse, fine)


def check_exact(encoded: EncodedTable, f: int, values: NDArray[np.float32]) -> None:
    distinct, ranks = naive_ranks(values)
    np.testing.assert_array_equal(encoded.fine[f], ranks)
    assert encoded.n_codes[f] == len(distinct)
    assert encoded.has_missing[f] == np.isnan(values).any()
    coding = encoded.codings[f]
    assert isinstance(coding, NumericCoding)
    np.testing.assert_array_equal(coding.low, distinct)
    np.testing.assert_array_equal(coding.high, distinct)
    assert coding.low.dtype == coding.high.dtype == np.float32
    assert not np.signbit(coding.low[coding.low == 0]).any()
    check_coarse(encoded, f, ranks)


def check_binned(encoded: EncodedTable, f: int, values: NDArray[np.float32], max_bins: int) -> None:
    distinct, ranks = naive_ranks(values)
    missing = np.isnan(values)
    limit = min(max_bins, 256 - int(missing.any()))
    if len(distinct) <= limit:
        check_exact(encoded, f, values)
        return
    n_codes = int(encoded.n_codes[f])
    assert n_codes <= limit
    assert encoded.refine[f] == 0
    coding = encoded.codings[f]
    assert isinstance(coding, NumericCoding)
    assert len(coding.low) == len(coding.high) == n_codes
    assert (coding.low[1:] > coding.high[:-1]).all()
    codes = encoded.fine[f]
    for code in range(n_codes):
        assert coding.low[code] == values[codes == code].min()
        assert coding.high[code] == values[codes == code].max()
    assert (codes[missing] == n_codes).all()
    check_coarse(encoded, f, ranks)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 40).flatmap(lambda n: st.lists(st.lists(FLOATS, min_size=n, max_size=n), min_size=1, max_size=4)))
def test_small_columns_are_exact(columns: list[list[float]]) -> None:
    encoded = encode(table_of(*columns), max_bins=None, n_jobs=1)
    assert encoded.fine is encoded.coarse
    for f, values in enumerate(columns):
        check_exact(encoded, f, np.asarray(values, dtype=np.float32))


@settings(max_examples=100, deadline=None)
@given(st.lists(FLOATS, min_size=1, max_size=60), st.integers(2, 20))
def test_small_columns_are_binned(column: list[float], max_bins: int) -> None:
    encoded = encode(table_of(column), max_bins=max_bins, n_jobs=1)
    assert encoded.fine is encoded.coarse
    check_binned(encoded, 0, np.asarray(column, dtype=np.float32), max_bins)


def test_binned_columns_do_not_share_memory() -> None:
    columns = [make_column("continuous", 100, seed) for seed in range(5)]
    encoded = encode(table_of(*columns), max_bins=10, n_jobs=1)
    for f, values in enumerate(columns):
        check_binned(encoded, f, values, 10)


def make_column(kind: str, n: int, seed: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    kinds: dict[str, Callable[[], Any]] = {
        "continuous": lambda: rng.normal(size=n),
        "ties": lambda: np.round(rng.normal(size=n) * 100),
        "skewed": lambda: np.where(rng.random(n) < 0.6, 0, -rng.exponential(size=n)),
        "integers": lambda: rng.permutation(n) - n // 2,
        "bits": lambda: rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32),
        "constant": lambda: np.full(n, -2.5),
        "missing": lambda: np.full(n, np.nan),
    }
    values = np.asarray(kinds[kind](), dtype=np.float32)
    return np.where(np.isinf(values), np.float32(0), values)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["continuous", "ties", "skewed", "integers", "bits", "constant", "missing"]),
    st.sampled_from([1, 2, 254, 255, 256, 257, 258, 1000, 5000]),
    st.sampled_from([0.0, 0.01, 0.5]),
    st.sampled_from([None, 2, 3, 16, 254, 255, 256]),
    st.integers(0, 2**32 - 1),
)
def test_larger_columns(kind: str, n: int, missing: float, max_bins: int | None, seed: int) -> None:
    values = make_column(kind, n, seed)
    values[np.random.default_rng(seed + 1).random(n) < missing] = np.nan
    encoded = encode(table_of(values), max_bins=max_bins, n_jobs=1)
    if max_bins is None:
        check_exact(encoded, 0, values)
    else:
        check_binned(encoded, 0, values, max_bins)


@pytest.mark.parametrize(
    ("n_distinct", "missing", "dtype"),
    [
        (256, False, np.uint8),
        (255, True, np.uint8),
        (256, True, np.uint16),
        (257, False, np.uint16),
        (65536, False, np.uint16),
        (65535, True, np.uint16),
        (65536, True, np.uint32),
        (70000, False, np.uint32),
    ],
)
def test_fine_codes_have_the_smallest_type(n_distinct: int, missing: bool, dtype: type) -> None:
    values = np.arange(n_distinct, dtype=np.float32)[::-1]
    if missing:
        values = np.append(values, np.float32(np.nan))
    encoded = encode(table_of(values, np.zeros(len(values))), max_bins=None, n_jobs=1)
    assert encoded.fine.dtype == dtype
    assert encoded.fine.flags.c_contiguous
    assert (encoded.fine is encoded.coarse) == (dtype is np.uint8)
    np.testing.assert_array_equal(encoded.refine, [dtype is not np.uint8, 0])
    check_exact(encoded, 0, values)
    check_exact(encoded, 1, np.zeros(len(values), dtype=np.float32))


def test_categories_make_the_type_wider() -> None:
    column = category_column(np.arange(300) % 299 - 1, [f"k{i}" for i in range(298)])
    encoded = encode(table_of(column, np.arange(300) % 7), max_bins=255, n_jobs=1)
    assert encoded.fine.dtype == np.uint16
    np.testing.assert_array_equal(encoded.fine[0], np.where(column.codes < 0, 298, column.codes))
    np.testing.assert_array_equal(encoded.fine[1], encoded.coarse[1])
    assert not encoded.coarse[0].any()
    np.testing.assert_array_equal(encoded.n_coarse, [0, 7])
    np.testing.assert_array_equal(encoded.n_codes, [298, 7])
    np.testing.assert_array_equal(encoded.refine, [0, 0])
    np.testing.assert_array_equal(encoded.has_missing, [1, 0])
    np.testing.assert_array_equal(encoded.categorical, [1, 0])
    coding = encoded.codings[0]
    assert isinstance(coding, CategoryCoding)
    assert coding.categories == column.categories


def test_arrays_have_the_promised_types() -> None:
    encoded = encode(read_table(np.random.default_rng(0).normal(size=(400, 3))), max_bins=None, n_jobs=1)
    assert (encoded.n_columns, encoded.n_rows) == (3, 400)
    assert encoded.coarse.shape == encoded.fine.shape == (3, 400)
    assert encoded.last_fine.shape == (3, 256)
    types = {name: getattr(encoded, name).dtype for name in encoded.__dataclass_fields__ if name != "codings"}
    assert types == {
        "fine": np.uint16,
        "coarse": np.uint8,
        "last_fine": np.int64,
        "n_coarse": np.int64,
        "refine": np.uint8,
        "n_codes": np.int64,
        "has_missing": np.uint8,
        "categorical": np.uint8,
        "lowest": np.float32,
        "highest": np.float32,
        "first_value": np.int64,
    }


@pytest.mark.parametrize("max_bins", [None, 9])
def test_threads_and_where_codes_are_kept_change_nothing(tmp_path: Path, max_bins: int | None) -> None:
    rng = np.random.default_rng(3)
    columns = [make_column(kind, 2000, 7) for kind in ("continuous", "ties", "skewed", "integers", "missing")]
    table = table_of(*columns, category_column(rng.integers(-1, 5, 2000), list("edcba")))
    one = encode(table, max_bins=max_bins, n_jobs=1)
    four = encode(table, max_bins=max_bins, n_jobs=4, spool=Spool(tmp_path))
    assert four.fine.base is not None
    assert isinstance(four.fine.base.base, memoryview)  # of the mapped file
    for name in (
        "fine",
        "coarse",
        "last_fine",
        "n_coarse",
        "refine",
        "n_codes",
        "has_missing",
        "categorical",
        "lowest",
        "highest",
        "first_value",
    ):
        np.testing.assert_array_equal(getattr(one, name), getattr(four, name))
    for a, b in zip(one.codings, four.codings, strict=True):
        if isinstance(a, NumericCoding) and isinstance(b, NumericCoding):
            np.testing.assert_array_equal(a.low, b.low)
            np.testing.assert_array_equal(a.high, b.high)
        else:
            assert a.categories == b.categories  # type: ignore[union-attr]


@pytest.mark.parametrize("shape", [(0, 3), (5, 0), (0, 0)])
def test_empty_tables(shape: tuple[int, int]) -> None:
    encoded = encode(read_table(np.empty(shape)), max_bins=None, n_jobs=2)
    assert encoded.fine.shape == (shape[1], shape[0])
    assert not encoded.n_codes.any()
    assert not encoded.n_coarse.any()
    assert not encoded.has_missing.any()


@pytest.mark.parametrize("max_bins", [-1, 0, 1, 257])
def test_max_bins_is_checked(max_bins: int) -> None:
    with pytest.raises(ValueError, match=rf"max_bins must be None or from 2 to 256, got {max_bins}"):
        encode(table_of([1.0]), max_bins=max_bins, n_jobs=1)


def group_sizes(counts: NDArray[np.int64], max_groups: int) -> tuple[list[int], list[int]]:
    """Last code and number of rows of each group, checked to be whole and in order."""
    last = np.full(256, -1, dtype=np.int64)
    n_groups = group_codes(counts, len(counts), max_groups, last)
    assert 1 <= n_groups <= max_groups
    assert last[n_groups - 1] == len(counts) - 1
    assert (last[n_groups:] == -1).all()
    edges = np.concatenate([[0], last[:n_groups] + 1])
    assert (np.diff(edges) > 0).all()
    return last[:n_groups].tolist(), np.add.reduceat(counts, edges[:-1]).tolist()


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.one_of(st.integers(1, 3), st.integers(1, 1000)), min_size=3, max_size=80),
    st.integers(2, 79),
)
def test_groups_are_whole_and_heavy_codes_alone(counts: list[int], max_groups: int) -> None:
    max_groups = min(max_groups, len(counts) - 1)
    last, sizes = group_sizes(np.array(counts, dtype=np.int64), max_groups)
    heavy = [code for code, count in enumerate(counts) if count * max_groups >= sum(counts)]
    if 2 * len(heavy_codes(counts, max_groups)) + 1 <= max_groups:
        for code in heavy:
            assert code in last
            assert sizes[last.index(code)] == counts[code]


def heavy_codes(counts: list[int], max_groups: int) -> set[int]:
    """The codes that get a group each: as frequent as a fair share of what the others leave."""
    heavy: set[int] = set()
    while True:
        rest = sum(count for code, count in enumerate(counts) if code not in heavy)
        groups = max_groups - len(heavy)
        found = {code for code, count in enumerate(counts) if count * groups >= rest} | heavy
        if found == heavy:
            return heavy
        heavy = found


@settings(max_examples=50, deadline=None)
@given(st.integers(3, 2000), st.integers(2, 256))
def test_groups_of_equal_codes_are_equal(n_codes: int, max_groups: int) -> None:
    max_groups = min(max_groups, n_codes - 1)
    _, sizes = group_sizes(np.ones(n_codes, dtype=np.int64), max_groups)
    assert len(sizes) == max_groups
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_heavy_value_leaves_the_other_groups_to_the_rest(where: str) -> None:
    light = np.ones(1000, dtype=np.int64)
    at = {"first": 0, "middle": 500, "last": 1000}[where]
    last, sizes = group_sizes(np.insert(light, at, 9000), 65)
    assert len(sizes) >= 64
    assert sizes.pop(last.index(at)) == 9000
    assert max(sizes) <= 17


def test_every_run_of_light_codes_has_a_group_in_reserve() -> None:
    last, sizes = group_sizes(np.array([1] * 1000 + [500, 1] * 5, dtype=np.int64), 20)
    for code in range(1000, 1010):
        assert sizes[last.index(code)] == (500 if code % 2 == 0 else 1)


def test_more_runs_than_groups() -> None:
    counts = np.array([1, 100] * 200, dtype=np.int64)
    _, sizes = group_sizes(counts, 256)
    assert max(sizes) <= 101


@given(
    st.lists(st.sampled_from(["a", "b", "c", "d", "é", ""]), max_size=8),
    st.lists(st.one_of(st.none(), st.sampled_from(["a", "b", "c", "x", "é", ""])), max_size=12),
)
def test_match_codes(training: list[str], rows: list[str | None]) -> None:
    coding = CategoryCoding(tuple(sorted(set(training))))
    column = category_column(np.arange(len(rows)), rows)
    codes, unseen = match_codes(coding, column)
    known = {category: code for code, category in enumerate(coding.categories)}
    assert codes.dtype == np.int32
    assert codes.tolist() == [known.get(row, len(known)) if row is not None else len(known) for row in rows]
    assert unseen == tuple(sorted({row for row in rows if row is not None and row not in known}))
