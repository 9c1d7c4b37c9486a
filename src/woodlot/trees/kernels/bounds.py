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
def error_rise(w: Any, distance: Any) -> Any:
    """Squared error, with targets counted from that of the row: ``distance`` is the largest of the node's from it."""
    return F64(w) * distance * distance
