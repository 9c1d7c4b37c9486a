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
    low = I64(-1)
    high = I64(1) << 40
    seen_missing = False
    for i in range(n):
        c = I64(fine[f, rows[s + i]])
        if c == missing:
            seen_missing = True
            goes_left[o + i] = missing_left
        elif c <= cut:
            goes_left[o + i] = 1
            low = max(low, c)
        else:
            goes_left[o + i] = 0
            high = min(high, c)
    return low, high if high < (I64(1) << 40) else I64(-1), seen_missing


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
