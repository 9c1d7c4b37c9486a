"""The winner of a node: which rows go left, and between which codes the cut lies."""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel

I64: Any = np.int64


@kernel
def flags_by_cut(
    fine: Any, f: Any, missing: Any, cut: Any, missing_left: Any, rows: Any, s: Any, n: Any, goes_left: Any, o: Any
) -> Any:
    """Flags of one node of a numeric column. Returns the largest code on the left, the smallest on the right (both of
    values that are not missing; -1 when there is none), and whether a value was missing.
    """
    beyond = I64(1) << 40
    low = I64(-1)
    high = beyond
    top = I64(-1)
    # sides look random: choosing by arithmetic is faster than a branch that is mispredicted half the time
    for i in range(n):
        c = I64(fine[f, rows[s + i]])
        left = c <= cut
        goes_left[o + i] = left
        low = max(low, c if left else I64(-1))
        high = min(high, beyond if left or c == missing else c)
        top = max(top, c)
    seen_missing = top == missing
    if seen_missing and missing_left:
        for i in range(n):
            if I64(fine[f, rows[s + i]]) == missing:
                goes_left[o + i] = 1
    return low, high if high < beyond else I64(-1), seen_missing


@kernel
def flags_by_rank(fine: Any, f: Any, rank: Any, cut: Any, rows: Any, s: Any, n: Any, goes_left: Any, o: Any) -> None:
    """Flags of one node of a categorical column by the ranks of its categories."""
    for i in range(n):
        goes_left[o + i] = 1 if rank[fine[f, rows[s + i]]] <= cut else 0


@kernel
def flags_of_nodes(
    columns: Any,
    nodes: Any,
    feature: Any,
    cut: Any,
    missing_left: Any,
    rows: Any,
    start: Any,
    end: Any,
    goes_left: Any,
    flag_start: Any,
    low: Any,
    high: Any,
) -> None:
    """Flags of the numeric splits among ``nodes``, and the codes on both sides of each cut."""
    for k in range(len(nodes)):
        node = nodes[k]
        f = feature[node]
        if columns.categorical[f]:
            continue
        s = start[node]
        a, b, seen = flags_by_cut(
            columns.fine,
            f,
            I64(columns.n_codes[f]),
            cut[node],
            missing_left[node],
            rows,
            s,
            end[node] - s,
            goes_left,
            flag_start[k],
        )
        low[k] = a
        high[k] = b
        if not seen:
            # nobody was missing here: later ones go where most rows went
            left = I64(0)
            for i in range(end[node] - s):
                left += goes_left[flag_start[k] + i]
            missing_left[node] = 1 if 2 * left > end[node] - s else 0
