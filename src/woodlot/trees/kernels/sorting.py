"""Sorting packed keys ``code << shift | payload`` by code, stably, by the cheapest method for number and range.

The payload travels inside the key, so that a scan of the sorted keys needs no index into another array. Only codes are
compared: keys of one code keep their order. Three methods::

    keys      method                      why
    1..12     insertion                   no set-up
    13..512   one pass of buckets         the code, scaled to as many buckets as keys (a power of two), is the bucket;
                                          nearly sorted keys are then finished by insertion
    more      radix, up to 11 bits a pass linear time for any distribution of the codes

Where the codes span no more values than there are buckets, every bucket is one code and nothing is left to finish.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel

I64: Any = np.int64
U64: Any = np.uint64

INSERTION = 12
"""Up to this many keys insertion sort is fastest."""
BUCKETS = 512
"""Up to this many keys one pass of bucket sort and a repair by insertion beats radix sort."""
COUNT_SIZE = 4096
"""Size of the counters that the caller passes: more than the 2**11 of a radix pass and the 513 of the buckets."""


@kernel
def _insertion(keys: Any, first: Any, n: Any, shift: Any) -> None:
    """Insertion sort of ``keys[:n]`` whose first keys, up to ``first``, are in order."""
    for i in range(first + 1, n):
        key = keys[i]
        code = U64(key) >> shift
        j = i
        while j > 0 and (U64(keys[j - 1]) >> shift) > code:
            keys[j] = keys[j - 1]
            j -= 1
        keys[j] = key


@kernel
def sort_keys(keys: Any, spare: Any, count: Any, n: Any, shift: Any, low: Any, high: Any) -> bool:
    """Sort ``keys[:n]`` with codes in [low, high]; True when the result is in ``spare``, False when it is in ``keys``.

    ``keys`` and ``spare`` are uint32 or uint64 and of equal length; the other one has undefined contents afterwards.
    """
    if n <= INSERTION:
        _insertion(keys, 0, n, shift)
        return False
    span = high - low + 1
    base = U64(low)
    if n <= BUCKETS:
        buckets = 16
        while buckets < n:
            buckets <<= 1
        for i in range(buckets + 1):
            count[i] = 0
        exact = span <= buckets
        # the bucket of a code is (code - low) * buckets / span, by a multiplication in fixed point with 32 bits
        factor = U64(1) << U64(32) if exact else (U64(buckets) << U64(32)) // U64(span)
        for i in range(n):
            count[((((U64(keys[i]) >> shift) - base) * factor) >> U64(32)) + U64(1)] += 1
        fullest = 0
        for i in range(buckets):
            fullest = max(fullest, count[i + 1])
            count[i + 1] += count[i]
        if exact or fullest <= 32:  # skewed codes would make the repair quadratic
            for i in range(n):
                key = keys[i]
                d = (((U64(key) >> shift) - base) * factor) >> U64(32)
                q = U64(count[d])
                spare[q] = key
                count[d] = q + U64(1)
            if not exact:
                _insertion(spare, 0, n, shift)
            return True
    # radix sort of code - low: as few passes as digits of 8 bits need, or of 11 bits for more than 16
    bits = 1
    while (I64(1) << bits) < span:
        bits += 1
    passes = (bits + 10) // 11 if bits > 16 else (bits + 7) // 8
    width = (bits + passes - 1) // passes
    mask = (U64(1) << U64(width)) - U64(1)
    in_keys = True
    for p in range(passes):
        digit_shift = U64(p * width)
        for i in range(I64(mask) + 1):
            count[i] = 0
        source = keys if in_keys else spare
        target = spare if in_keys else keys
        for i in range(n):
            count[(((U64(source[i]) >> shift) - base) >> digit_shift) & mask] += 1
        total = 0
        for i in range(I64(mask) + 1):
            c = count[i]
            count[i] = total
            total += c
        for i in range(n):
            key = source[i]
            d = (((U64(key) >> shift) - base) >> digit_shift) & mask
            q = U64(count[d])
            target[q] = key
            count[d] = q + U64(1)
        in_keys = not in_keys
    return not in_keys
