"""How far removing rows from a node can raise the score of a split; proofs in docs/decisions/0037-forgetting-rows.md.

A node of weight W is split into two sides. A row of weight w is taken away from one of them. ``*_rise`` is the most by
which the score can be larger afterwards, whichever side the row was on and whatever else the sides hold, as long as
both keep some weight. Scores are those of `search`; entropy is in bits, not in fixed point.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel

F64: Any = np.float64
ROUNDING = 1e-13
"""Relative error of a computed score, at most; it is a few times 2**-53."""


@kernel
def gini_rise(w: Any) -> Any:
    """Gini: the score of a side is a norm-like sum whose slope lies between -1 and 1."""
    return F64(w)


@kernel
def entropy_rise(W: Any, w: Any) -> Any:
    """Entropy: largest where the row was the only one of its class on a side of all the node's weight."""
    whole, rest = F64(W), F64(W - w)
    kept = rest * np.log2(rest) if rest > 0 else 0.0
    return whole * np.log2(whole) - kept - F64(w) * np.log2(F64(w))


@kernel
def two_class_rise(kept: Any, others: Any, w: Any, entropy: Any) -> Any:
    """As `group_rise` for two classes: at least ``kept`` of the row's class, at most ``others`` of the other one."""
    share = F64(kept) / F64(kept + others) if kept > 0 else 0.0
    if entropy:
        return -F64(w) * np.log2(share) if share > 0 else np.inf
    return F64(w) * ((1.0 - share) * (1.0 - share) - share * (2.0 - share))


@kernel
def group_rise(lost: Any, low: Any, high: Any, w: Any, entropy: Any) -> Any:
    """Classes: the same for partitions of which more is known, a group of cuts next to each other.

    ``low`` and ``high`` are the least and the most of each class on the side that the row was on, without the row, in
    any partition of the group. ``lost`` is the row's class. The slope of a score in a class's weight grows with its
    share; afterwards that is at least ``share`` on this side.
    """
    if len(low) == 2:
        return two_class_rise(low[lost], high[1 - lost], w, entropy)
    others = 0.0
    for j in range(len(low)):
        if j != lost:
            others += F64(high[j])
    kept = F64(low[lost])
    share = kept / (kept + others) if kept > 0 else 0.0
    if entropy:
        return -F64(w) * np.log2(share) if share > 0 else np.inf
    squares = 0.0
    for j in range(len(low)):
        if j == lost:
            continue
        rest = 0.0
        for i in range(len(low)):
            if i != j:
                rest += F64(low[i])
        most = F64(high[j]) / (F64(high[j]) + rest) if high[j] > 0 else 0.0
        squares += most * most
    squares = min(squares, (1.0 - share) * (1.0 - share))
    return F64(w) * min(1.0, squares - share * (2.0 - share))


@kernel
def error_rise(w: Any, distance: Any) -> Any:
    """Squared error, with targets counted from that of the row: ``distance`` is the largest of the node's from it."""
    return F64(w) * distance * distance
