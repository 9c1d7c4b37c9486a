"""What is summed over sorted keys: of two classes, of many, of targets; and the order of categories.

Sums run over all pairs. A sum inside a pair is a difference of two, and exact: whole numbers wrap at 2**64, and every
difference is less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from woodlot.trees.arrays.array_keys import KeyLayout, code_of, pair_of, read_keys
from woodlot.trees.arrays.array_module import ArrayModule
from woodlot.trees.arrays.array_pairs import Pairs
from woodlot.trees.arrays.array_rows import RowBatch, bounds_of, sums_by_node

XLogX = Callable[[Any], Any]
"""Fixed-point x*log2(x) of whole numbers."""
TWO, TARGETS, MANY = 0, 1, 2
"""Ways to score: two classes, regression, more classes."""


class Runs(NamedTuple):
    """Running sums (int64) over the sorted keys, each with the key's own row.

    ::

        way       a                                  b                  c
        TWO       weight << 32 | weight of class 1   -                  -
        TARGETS   weight                             weight * target    -
        MANY      weight                             sum on the left    sum on the right, less with every row

    The sums of MANY are those of squares or of x*log2(x) over classes.
    """

    way: int
    a: Any
    b: Any
    c: Any


def run_sums(
    arrays: ArrayModule,
    keys: Any,
    batch: RowBatch,
    pairs: Pairs,
    layout: KeyLayout,
    n_classes: int,
    xlogx: XLogX | None,
) -> Runs:
    """The running sums that the scores are made of; ``xlogx`` is for entropy, None for gini."""
    xp = arrays.xp
    if n_classes == 2:
        packed, _ = read_keys(arrays, keys, batch, pairs, layout, two=True)
        return Runs(TWO, xp.cumsum(packed), None, None)
    weight, label = read_keys(arrays, keys, batch, pairs, layout, two=False)
    if n_classes == 0:
        label *= weight
        return Runs(TARGETS, xp.cumsum(weight), xp.cumsum(label), None)
    on_left, on_right = _class_changes(arrays, keys, weight, label, n_classes, layout, xlogx)
    return Runs(MANY, xp.cumsum(weight), xp.cumsum(on_left), xp.cumsum(on_right))


def _class_changes(
    arrays: ArrayModule, keys: Any, weight: Any, label: Any, n_classes: int, layout: KeyLayout, xlogx: XLogX | None
) -> tuple[Any, Any]:
    """What each row adds to the sum on the left, and takes from that on the right, when it moves to the left.

    For that the weight of its own class before it must be known: keys are sorted once more, by pair and class.
    """
    xp, n = arrays.xp, len(keys)
    bits = xp.uint64(max(1, (n - 1).bit_length()))
    group = pair_of(arrays, keys, layout) * n_classes + label
    order = xp.sort((group.astype(xp.uint64) << bits) | xp.arange(n, dtype=xp.uint64))
    group = order >> bits
    at = (order & ((xp.uint64(1) << bits) - xp.uint64(1))).astype(xp.int64)
    begins = xp.ones(n, bool)
    begins[1:] = group[1:] != group[:-1]
    number = xp.cumsum(begins) - 1
    first = xp.concatenate([xp.flatnonzero(begins), xp.full(1, n, xp.int64)])
    d = weight[at]
    run = xp.zeros(n + 1, xp.int64)
    run[1:] = xp.cumsum(d)
    left = run[:-1] - run[first[:-1]][number]  # of this class, before the row
    right = (run[first[1:]] - run[first[:-1]])[number] - left
    if xlogx is None:
        gained, lost = d * (2 * left + d), d * (2 * right - d)
    else:
        gained, lost = xlogx(left + d) - xlogx(left), xlogx(right) - xlogx(right - d)
    on_left, on_right = xp.empty(n, xp.int64), xp.empty(n, xp.int64)
    on_left[at], on_right[at] = gained, lost
    return on_left, on_right


def rank_categories(
    arrays: ArrayModule,
    keys: Any,
    batch: RowBatch,
    pairs: Pairs,
    layout: KeyLayout,
    categorical: Any,
    n_classes: int,
    top: Any,
) -> tuple[Any, Any, Any, Any]:
    """Ranks of the categories in each pair, by mean target or by share of the node's largest class; ties by code.

    Parameters
    ----------
    keys : uint64 array
        Sorted.
    categorical : uint8 array
        By feature.
    top : int64 array
        The largest class of each node; not used for targets.

    Returns
    -------
    segment : int64 array
        For each key, which group of equal (pair, code) it belongs to.
    rank : int64 array
        Of each group: the rank of its category; the code itself in pairs of numbers.
    pair, code : int64 arrays
        Of each group.
    """
    xp, n = arrays.xp, len(keys)
    code, pair = code_of(arrays, keys, layout), pair_of(arrays, keys, layout)
    begins = xp.ones(n, bool)
    upper = keys >> xp.uint64(layout.payload)
    begins[1:] = upper[1:] != upper[:-1]
    segment = xp.cumsum(begins) - 1
    at = xp.flatnonzero(begins)
    first = xp.concatenate([at, xp.full(1, n, xp.int64)])
    weight, label = read_keys(arrays, keys, batch, pairs, layout, two=False)
    total = weight * label if n_classes == 0 else xp.where(label == top[pairs.node[pair]], weight, 0)
    mean = sums_by_node(arrays, total, first).astype(xp.float64) / sums_by_node(arrays, weight, first).astype(
        xp.float64
    )
    code, pair = code[at], pair[at]
    order = xp.lexsort(xp.stack([code.astype(xp.uint64), ordered(arrays, mean), pair.astype(xp.uint64)]))
    place = xp.empty(len(order), xp.int64)
    place[order] = xp.arange(len(order), dtype=xp.int64)
    of_pair = bounds_of(arrays, xp.bincount(pair, minlength=len(pairs.node)))  # groups of each pair
    rank = xp.where(categorical[pairs.feature[pair]] > 0, place - of_pair[pair], code)
    return segment, rank, pair, code


def ordered(arrays: ArrayModule, numbers: Any) -> Any:
    """Floats as whole numbers of the same order (uint64); 0 stands below all of them."""
    xp = arrays.xp
    bits = numbers.view(xp.uint64)
    sign = xp.uint64(1 << 63)
    return xp.where(bits & sign > 0, ~bits, bits | sign)


def with_ranks(arrays: ArrayModule, keys: Any, layout: KeyLayout, segment: Any, rank: Any, pair: Any) -> Any:
    """The keys with ranks in the place of codes, sorted again."""
    xp = arrays.xp
    upper = (pair.astype(xp.uint64) << xp.uint64(layout.code)) | rank.astype(xp.uint64)
    payload = keys & xp.uint64((1 << layout.payload) - 1)
    return xp.sort((upper[segment] << xp.uint64(layout.payload)) | payload)


class NodeTotals(NamedTuple):
    """Of each node of a batch."""

    whole: Any
    """float64: the score of the node left whole; None where the card finds it on the way."""
    top: Any
    """int64: of the heaviest classes the one that comes first among the rows; None for targets."""


def node_totals(
    arrays: ArrayModule, batch: RowBatch, n_classes: int, xlogx: XLogX | None, *, with_top: bool
) -> NodeTotals:
    """Scores of the nodes left whole, and their largest classes where categories are ordered by them."""
    xp, n = arrays.xp, len(batch.first) - 1
    weight = sums_by_node(arrays, batch.weight, batch.first)
    if n_classes == 0:
        total = sums_by_node(arrays, batch.weight.astype(xp.int64) * batch.label, batch.first).astype(xp.float64)
        return NodeTotals(total * total / weight.astype(xp.float64), None)
    cell = batch.node_of.astype(xp.int64) * n_classes + batch.label
    if n_classes == 2 and not with_top:
        ones = sums_by_node(arrays, xp.where(batch.label > 0, batch.weight, 0), batch.first)
        totals = xp.stack([weight - ones, ones], axis=1)
    else:  # sums below 2**31 are exact in floats
        totals = xp.bincount(cell, batch.weight.astype(xp.float64), n * n_classes).astype(xp.int64)
        totals = totals.reshape(n, n_classes)
    if xlogx is None:
        whole = (totals * totals).sum(axis=1).astype(xp.float64) / weight.astype(xp.float64)
    else:
        whole = (xlogx(totals).sum(axis=1) - xlogx(weight)).astype(xp.float64)
    if not with_top:
        return NodeTotals(whole, None)
    heaviest = totals.ravel()[cell] == totals.max(axis=1)[batch.node_of]
    run = xp.cumsum(heaviest)
    # the first heaviest row of a node is where the running count reaches that before the node plus one
    before = run[batch.first[:-1]] - heaviest[batch.first[:-1]]
    return NodeTotals(whole, batch.label[xp.searchsorted(run, before + 1)].astype(xp.int64))


def xlogx_of(arrays: ArrayModule, table: np.ndarray | None, host: Callable[[Any], Any]) -> XLogX:
    """Fixed-point x*log2(x): looked up, or where the table would be too large computed on the CPU.

    Another machine's logarithm may differ in its last bit, so that a card never computes one.
    """
    xp = arrays.xp
    if table is not None:
        looked_up = arrays.put(table)
        return lambda x: looked_up[x]

    def compute(x: Any) -> Any:
        distinct, which = xp.unique(x, return_inverse=True)
        return arrays.put(host(arrays.get(distinct)))[which].reshape(x.shape)

    return compute
