"""All splits of a level, seen from one party: its own, and those that it knows by others' bits alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._bits import count_ones
from woodlot.trees.kernels._jit import kernel

I64: Any = np.int64
U64: Any = np.uint64


@kernel
def split_sides(is_split: Any, start: Any, end: Any, middle: Any, words: Any, place: Any, both: Any) -> None:
    """How many rows each split of a level sends left and right, and where the bits of each open node begin.

    ``middle`` is -1 at nodes that this party has not split itself; the bits of their rows are ``words`` (uint64), node
    after node. ``both`` (splits, 2) gets the rows on both sides. ``place`` gets, for each open node, where its bits
    begin among the others'; -2 less the place among this party's own; -1 if it is not split.
    """
    own = I64(0)
    at = I64(0)
    j = 0
    for node in range(len(start)):
        if not is_split[node]:
            place[node] = -1
            continue
        size = end[node] - start[node]
        if middle[node] >= 0:
            place[node] = -2 - own
            own += size
            left = middle[node] - start[node]
        else:
            place[node] = at
            left = I64(0)
            stop = at + size
            while at < stop:
                offset = at & 63
                n = min(stop - at, 64 - offset)
                word = words[at >> 6] >> U64(offset)
                if n < 64:
                    word &= (U64(1) << U64(n)) - U64(1)
                left += count_ones(word)
                at += n
        both[j, 0] = left
        both[j, 1] = size - left
        j += 1


@kernel
def children(is_split: Any, start: Any, end: Any, both: Any, child_start: Any, child_end: Any) -> None:
    """Where the rows of both children of each split begin and end."""
    j = 0
    for node in range(len(start)):
        if is_split[node]:
            middle = start[node] + both[j, 0]
            child_start[2 * j] = start[node]
            child_end[2 * j] = middle
            child_start[2 * j + 1] = middle
            child_end[2 * j + 1] = end[node]
            j += 1
