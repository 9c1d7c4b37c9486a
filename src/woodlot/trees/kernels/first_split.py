"""Where no candidate can split a node: the first feature in the node's order that can.

Under rules that allow every split (``GrowthRules.splits_two_rows_by_order``) a feature can split a node if two of its
rows differ in it. To see that takes a few rows of most nodes, and no label; the best cut is searched for only if the
feature wins the node.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.hashing import place

I64: Any = np.int64
U64: Any = np.uint64


@kernel
def first_splitting(
    columns: Any, rows: Any, start: Any, end: Any, nodes: Any, order_key: Any, feature_keys: Any, chosen: Any
) -> None:
    """Write the first feature in order that differs within the node into ``chosen``, -1 where there is none.

    ``nodes`` (int64) says which nodes; ``start``, ``end`` and ``order_key`` count by node, ``chosen`` (int32) by place
    in ``nodes``. A feature that comes after one that differs is not looked at.
    """
    fine = columns.fine
    for k in range(len(nodes)):
        node = nodes[k]
        s = U64(start[node])
        e = U64(end[node])
        least = U64(0xFFFFFFFFFFFFFFFF)
        chosen[k] = -1
        for f in range(len(feature_keys)):
            at = place(order_key[node], feature_keys[f])
            if at >= least:
                continue
            code = fine[f, rows[s]]
            for i in range(s + U64(1), e):
                if fine[f, rows[i]] != code:
                    least = at
                    chosen[k] = f
                    break
