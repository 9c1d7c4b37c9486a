"""Ranking a numeric column and dealing its values into groups of about equal size.

One column goes through four steps; `rows` is sorted by value with missing rows last::

    values       2.5  nan  -1   2.5   7
    rows          2    0    3    4    1
    fine          1    3    0    1    2        rank of the value, the code after the last for missing
    count         1    2    1                  rows of each code
    group_of      0    1    1    2             codes 1 and 2 share a group, missing is alone
    coarse        1    2    0    1    1

Ranks keep a split search exact. Groups are what a large node is counted by first, so they should have about as many
rows each: then the histogram's best cut is close to the best of all.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels._jit import kernel

_MISSING = 0xFFFFFFFF
"""Ordered bits of NaN: above those of every number, infinity included."""
_DIGITS = 3
_DIGIT_BITS = 11
_BUCKETS = 1 << _DIGIT_BITS
"""The 32 bits of a float32 in three digits of 11 bits."""
_COARSE = 256
"""Groups fit one byte, that of missing values included."""


@kernel
def sort_rows(values: NDArray[np.float32], keys: NDArray[np.uint64], spare: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Radix sort ``ordered bits of the value << 32 | row``; returns `keys` or `spare`, where the result is.

    The counts of all digits are taken in one pass over the values. A digit that is equal for all rows is skipped.
    """
    n = values.size
    bits = values.view(np.uint32)
    counts = np.zeros((_DIGITS, _BUCKETS), np.int64)
    for i in range(n):
        b = np.uint64(bits[i])
        # Unsigned order must be the order of the numbers: negatives reversed and below the others.
        if (b & np.uint64(0x7FFFFFFF)) > np.uint64(0x7F800000):
            b = np.uint64(_MISSING)
        elif b > np.uint64(0x80000000):
            b ^= np.uint64(0xFFFFFFFF)
        else:
            b |= np.uint64(0x80000000)  # -0.0 becomes 0.0 here
        keys[i] = (b << np.uint64(32)) | np.uint64(i)
        for digit in range(_DIGITS):
            counts[digit, (b >> np.uint64(digit * _DIGIT_BITS)) & np.uint64(_BUCKETS - 1)] += 1
    source, target = keys, spare
    for digit in range(_DIGITS):
        shift = np.uint64(32 + digit * _DIGIT_BITS)
        place = counts[digit]
        if n == 0 or place[(source[0] >> shift) & np.uint64(_BUCKETS - 1)] == n:
            continue
        total = 0
        for bucket in range(_BUCKETS):
            size = place[bucket]
            place[bucket] = total
            total += size
        for i in range(n):
            key = source[i]
            digit_value = (key >> shift) & np.uint64(_BUCKETS - 1)
            target[place[digit_value]] = key
            place[digit_value] += 1
        source, target = target, source
    return source


@kernel
def group_codes(count: NDArray[np.int64], n_codes: int, max_groups: int, last_code: NDArray[np.int64]) -> int:
    """Deal codes in order into at most `max_groups` groups of about equal frequency; there are more codes.

    A heavy code, as frequent as a whole group, stands alone. The light codes between heavy ones form runs;
    every run has one group in reserve, the others go to the runs by frequency. Where there are fewer groups
    than runs, a heavy code joins the run before it.
    """
    share_rows = 0
    for code in range(n_codes):
        share_rows += count[code]
    share_groups = max_groups
    # Taking heavy codes out lowers the fair share of a group, which may make other codes heavy. Some light
    # codes and a group for them always remain, since there are more codes than groups.
    while True:
        light_rows, light_groups = 0, max_groups
        for code in range(n_codes):
            if count[code] * share_groups >= share_rows:
                light_groups -= 1
            else:
                light_rows += count[code]
        if light_groups == share_groups:
            break
        share_rows, share_groups = light_rows, light_groups
    runs_after = 0
    inside = False
    for code in range(n_codes):
        light = count[code] * share_groups < share_rows
        if light and not inside:
            runs_after += 1
        inside = light

    n_groups = 0
    size = 0  # rows in the open group of light codes
    fair_rows, fair_groups = 0, 1
    inside = False
    for code in range(n_codes):
        rows = count[code]
        if rows * share_groups >= share_rows:
            inside = False
            if size > 0 and (light_groups > 1 or light_rows == size):
                last_code[n_groups] = code - 1
                n_groups += 1
                light_groups -= 1
                light_rows -= size
            elif size > 0:
                light_rows -= size  # shares the heavy code's group and keeps its own for a later run
            size = 0
            last_code[n_groups] = code
            n_groups += 1
            continue
        if not inside:
            inside = True
            runs_after -= 1
        if size > 0 and fair_groups > 1 and (2 * size + rows) * fair_groups > 2 * fair_rows:
            last_code[n_groups] = code - 1
            n_groups += 1
            light_groups -= 1
            light_rows -= size
            size = 0
        if size == 0:
            fair_rows = light_rows
            fair_groups = max(1, light_groups - runs_after)
        size += rows
    if size > 0:
        last_code[n_groups] = n_codes - 1
        n_groups += 1
    return n_groups


@kernel
def encode_values(
    values: NDArray[np.float32],
    max_bins: int,
    keys: NDArray[np.uint64],
    spare: NDArray[np.uint64],
    count: NDArray[np.int64],
    group_of: NDArray[np.uint8],
    fine: NDArray[np.uint32],
    coarse: NDArray[np.uint8],
    low: NDArray[np.float32],
    high: NDArray[np.float32],
    last_fine: NDArray[np.int64],
) -> tuple[int, int, bool]:
    """Encode one column; returns how many codes of values and coarse groups it has, and if rows are missing.

    `keys`, `spare`, `count`, `fine`, `low` and `high` have a place for every row, `group_of` one more; what
    they hold at the call does not matter. `fine` gets the ranks of all values even where these are binned.
    `max_bins` 0 keeps every value; otherwise a column of more values gets as many codes, each from `low` to
    `high`.
    """
    n = values.size
    n_codes = 0
    missing = False
    previous = np.uint64(_MISSING)
    rows = sort_rows(values, keys, spare)
    for i in range(n):
        value_bits = rows[i] >> np.uint64(32)
        row = np.int64(rows[i] & np.uint64(0xFFFFFFFF))
        if value_bits == np.uint64(_MISSING):
            missing = True
            fine[row] = n_codes
            continue
        if value_bits != previous:
            previous = value_bits
            value = values[row]
            low[n_codes] = value if value != 0 else np.float32(0)  # never -0.0
            high[n_codes] = low[n_codes]
            count[n_codes] = 0
            n_codes += 1
        count[n_codes - 1] += 1
        fine[row] = n_codes - 1

    max_groups = _COARSE - 1 if missing else _COARSE
    binned = max_bins > 0 and n_codes > min(max_bins, max_groups)
    if binned:
        max_groups = min(max_bins, max_groups)
    if n_codes > max_groups:
        n_groups = group_codes(count, n_codes, max_groups, last_fine)
    else:
        n_groups = n_codes
        for code in range(n_codes):
            last_fine[code] = code

    code = 0
    for group in range(n_groups):
        first = code
        while code <= last_fine[group]:
            group_of[code] = group
            code += 1
        if binned:
            # `low` is read at or beyond where it is written, never behind.
            high[group] = low[code - 1]
            low[group] = low[first]
            last_fine[group] = group
    group_of[n_codes] = n_groups
    for i in range(n):
        coarse[i] = group_of[fine[i]]
    if binned:
        n_codes = n_groups
    if missing:
        last_fine[n_groups] = n_codes
        n_groups += 1
    return n_codes, n_groups, missing
