"""Rows of which only chances are known: expected counts of trees, and how the chances must change to fit true counts.

An attacker has own columns (codes) and, of every other column, chances that row i has bin v. Down a tree a row has a
part in every node that it may be in. The two passes walk every tree for every row, depth first::

    chances    float32 (rows, other columns, bins)      part of a row in a node = product of what its path leaves
    path       float64 (other columns, bins)            the chances of this row, 0 for bins that the path excludes
    whole      float64 (other columns)                  their sum
    cells      (classes of rows, bins of all histograms)

Columns are numbered from 0 where they are another's, and -1 - k where they are the attacker's own column k. Histograms
of node n are those from ``pairs[n]`` to ``pairs[n + 1]``: ``of_pair`` has of each the column, where its bins begin, how
many low bits of bins are dropped, and the bin of missing values, of which none are.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel

DEEPEST = 64
"""Levels that a walk goes down, at most."""


@kernel
def _restrict(path: Any, whole: Any, column: int, table: Any, is_left: int, saved: Any) -> Any:
    """Keep what goes to one side in a column's chances; returns their former sum, ``saved`` gets the former ones."""
    former = whole[column]
    total = 0.0
    for v in range(path.shape[1]):
        saved[v] = path[column, v]
        part = table[v] if is_left else 1.0 - table[v]
        path[column, v] *= part
        total += path[column, v]
    whole[column] = total
    return former


@kernel
def _cell(start: int, v: int, shift: int, missing: int) -> int:
    return start + v if v == missing else start + (v >> shift)


@kernel
def expected_counts(
    rows: Any, roots: Any, left: Any, right: Any, column: Any, goes_left: Any, pairs: Any, of_pair: Any,
    own: Any, group: Any, chances: Any, least: float, cells: Any,
) -> int:  # fmt: skip
    """Add to ``cells`` what each row is expected to count there; returns nodes visited.

    A row is not followed into nodes in which its part is below ``least``.
    """
    n_columns, n_bins = chances.shape[1], chances.shape[2]
    path, whole = np.empty((n_columns, n_bins)), np.empty(n_columns)
    node, stage = np.empty(DEEPEST, np.int64), np.empty(DEEPEST, np.int64)
    part, former = np.empty(DEEPEST), np.empty(DEEPEST)
    saved = np.empty((DEEPEST, n_bins))
    visited = 0
    for at in range(len(rows)):
        i = rows[at]
        y = group[i]
        for c in range(n_columns):
            whole[c] = 0.0
            for v in range(n_bins):
                path[c, v] = chances[i, c, v]
                whole[c] += path[c, v]
        for t in range(len(roots)):
            d = 0
            node[0], stage[0], part[0] = roots[t], 0, 1.0
            while d >= 0:
                n = node[d]
                if stage[d] == 0:
                    visited += 1
                    for k in range(pairs[n], pairs[n + 1]):
                        c, start, shift, missing = of_pair[k]
                        if c < 0:
                            cells[y, _cell(start, own[-1 - c, i], shift, missing)] += part[d]
                            continue
                        share = part[d] / whole[c]
                        if shift == 0:
                            for v in range(missing + 1):
                                cells[y, start + v] += share * path[c, v]
                        else:
                            for v in range(missing + 1):
                                cells[y, _cell(start, v, shift, missing)] += share * path[c, v]
                elif column[n] >= 0 and former[d] > 0:
                    whole[column[n]] = former[d]
                    for v in range(n_bins):
                        path[column[n], v] = saved[d, v]
                if stage[d] == 2 or left[n] < 0 or d + 1 == DEEPEST:
                    d -= 1
                    continue
                is_left = 1 - stage[d]
                child = left[n] if is_left else right[n]
                stage[d] += 1
                former[d] = 0.0
                if column[n] < 0:
                    share = goes_left[n, own[-1 - column[n], i]]
                    share = share if is_left else 1.0 - share
                else:
                    former[d] = _restrict(path, whole, column[n], goes_left[n], is_left, saved[d])
                    share = whole[column[n]] / former[d]
                if part[d] * share >= least:
                    node[d + 1], stage[d + 1], part[d + 1] = child, 0, part[d] * share
                    d += 1
    return visited


@kernel
def slopes_of_chances(
    rows: Any, roots: Any, left: Any, right: Any, column: Any, goes_left: Any, pairs: Any, of_pair: Any,
    own: Any, group: Any, chances: Any, least: float, pull: Any, slopes: Any,
) -> None:  # fmt: skip
    """Add to ``slopes`` (as ``chances``) how the fit grows with the logarithm of each chance.

    ``pull`` (as ``cells``) is how the fit grows with each expected count. A child's part is its node's part times what
    its side leaves of a column; so the pull of everything below a node, times its part, is the slope of the logarithm
    of that quotient. The sums below a node are in ``below``.
    """
    n_columns, n_bins = chances.shape[1], chances.shape[2]
    path, whole = np.empty((n_columns, n_bins)), np.empty(n_columns)
    node, stage = np.empty(DEEPEST, np.int64), np.empty(DEEPEST, np.int64)
    part, former, below, left_with = np.empty(DEEPEST), np.empty(DEEPEST), np.empty(DEEPEST), np.empty(DEEPEST)
    saved, pulls = np.empty((DEEPEST, n_bins)), np.empty(n_bins)
    for at in range(len(rows)):
        i = rows[at]
        y = group[i]
        for c in range(n_columns):
            whole[c] = 0.0
            for v in range(n_bins):
                path[c, v] = chances[i, c, v]
                whole[c] += path[c, v]
        for t in range(len(roots)):
            d = 0
            node[0], stage[0], part[0] = roots[t], 0, 1.0
            while d >= 0:
                n = node[d]
                if stage[d] == 0:
                    below[d] = 0.0
                    for k in range(pairs[n], pairs[n + 1]):
                        c, start, shift, missing = of_pair[k]
                        if c < 0:
                            below[d] += part[d] * pull[y, _cell(start, own[-1 - c, i], shift, missing)]
                            continue
                        share, mean = part[d] / whole[c], 0.0
                        for v in range(missing + 1):
                            pulls[v] = pull[y, start + v] if shift == 0 else pull[y, _cell(start, v, shift, missing)]
                            mean += path[c, v] * pulls[v]
                        mean /= whole[c]
                        below[d] += part[d] * mean
                        for v in range(missing + 1):
                            slopes[i, c, v] += share * path[c, v] * (pulls[v] - mean)
                elif column[n] >= 0 and former[d] > 0:
                    c, is_left = column[n], 2 - stage[d]
                    whole[c] = former[d]
                    for v in range(n_bins):
                        path[c, v] = saved[d, v]
                    if left_with[d] > 0:
                        for v in range(n_bins):
                            kept = goes_left[n, v] if is_left else 1.0 - goes_left[n, v]
                            slopes[i, c, v] += below[d + 1] * path[c, v] * (kept / left_with[d] - 1.0 / former[d])
                if stage[d] > 0:
                    below[d] += below[d + 1]
                if stage[d] == 2 or left[n] < 0 or d + 1 == DEEPEST:
                    d -= 1
                    continue
                is_left = 1 - stage[d]
                child = left[n] if is_left else right[n]
                stage[d] += 1
                former[d], left_with[d], below[d + 1] = 0.0, 0.0, 0.0
                if column[n] < 0:
                    share = goes_left[n, own[-1 - column[n], i]]
                    share = share if is_left else 1.0 - share
                else:
                    former[d] = _restrict(path, whole, column[n], goes_left[n], is_left, saved[d])
                    share = whole[column[n]] / former[d]
                if part[d] * share >= least:
                    left_with[d] = whole[column[n]] if column[n] >= 0 else 0.0
                    node[d + 1], stage[d + 1], part[d + 1] = child, 0, part[d] * share
                    d += 1
