"""What all split searches share: their arguments, the candidates of a node, and the order of categories.

A split search answers, for one (node, feature): the best score, the cut (the last code that goes left, for categories
the last rank; -1 when no split is allowed) and whether missing values go left. The cut need not be a code that occurs
in the node: `cut` finds the codes next to it. Scores are functions of exact integers only, so that every strategy,
thread and party finds the same split to the bit. The naive twin of all searches is ``tests/trees/naive_splits.py``.

Larger scores are better. Constants that are the same for all splits of a node are left out::

    gini            sum of squares of class weights / weight, of both sides       at most W, when both sides are pure
    entropy         sum of xlogx(class weight) - xlogx(weight), of both sides     at most 0, when both sides are pure
    squared error   (weighted sum of targets)**2 / weight, of both sides

Ties. Of equal scores in a node the feature with the smallest place wins, then missing values on the right, then the
lowest cut. A search of one column is passed the score that the node has reached already, in ``best``. It returns the
first cut that reaches this score, even if it only equals it, because its feature may come earlier in the order (`offer`
compares the places). Later cuts of the column must be better. With ``strict`` the column has a cut with missing values
on the right already, and the search with missing values on the left must beat it.

Nodes are searched by the cheapest of several strategies, chosen by the number of rows. All give the same answer::

    rows            strategy
    2               the first feature in order that separates the rows (`search_twos`)
    up to 6         regression: the scores of all subsets, once per node (`tiny_targets`)
    up to 16 or 64  keys sorted by counting the smaller ones
    up to 1024      keys sorted (`sorting`), then scanned; or a histogram where the column has few codes
    any             two classes, a column of categories: counted by category, no key is sorted
    more            a histogram over coarse groups, then only the groups that may hide a better cut
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.hashing import BUCKET_SIZE, nth_place, place
from woodlot.trees.kernels.sorting import COUNT_SIZE

I64: Any = np.int64
U64: Any = np.uint64

GROUPS = 256
"""At most this many coarse groups of codes."""
TINY = 6
"""In nodes of at most this many rows the best score of any split is known beforehand from all subsets."""
SMALL = 16
"""Nodes of at most this many rows are never searched by groups of codes."""
RANKED = 64
"""Up to this many keys of more codes are sorted by counting the smaller ones of each: no branch to mispredict."""
COARSE_FROM = 1024
"""Nodes with more rows are searched by groups of codes first, and inside the promising groups only."""
BY_NODE_UP_TO = 1024
"""Nodes with at most this many rows are searched node by node in a table that fits the cache; ..."""
BY_NODE_IN_LARGE_TABLE = 48
"""... in a larger table only nodes of this size: others column by column, so that a column stays in the cache."""
SLACK = 1.0 - 1e-12
"""Factor of the division-free tests whether a score can be reached. Rounding may make them say yes in vain, which costs
the computation of a score, but not no in error, which would lose a split."""
IN_ORDER_UP_TO = 48
"""Nodes with at most this many rows try their candidates in the node's order, to stop at a perfect split."""


class Columns(NamedTuple):
    """A party's encoded table of p columns (see ``trees.encoding.EncodedTable``)."""

    fine: Any
    """uint8, uint16 or uint32 (p, table rows): rank of the value, or code of the category."""
    coarse: Any
    """uint8 (p, table rows): group of fine codes; not used in columns of categories."""
    last_fine: Any
    """int64 (p, 256): last fine code of each group."""
    n_coarse: Any
    """int64 (p,): groups, with that of missing values."""
    refine: Any
    """uint8 (p,): 1 where a group can have several fine codes."""
    n_codes: Any
    """int64 (p,): fine codes that are values; this number is the code of missing values."""
    has_missing: Any
    """uint8 (p,)"""
    categorical: Any
    """uint8 (p,)"""


class Rules(NamedTuple):
    """What a split must satisfy, and the criterion."""

    min_leaf: Any
    """int64: rows on each side, however often each was drawn."""
    min_weight: Any
    """int64: weight on each side."""
    entropy: Any
    """bool: entropy instead of gini; not used for regression."""
    xlogx: Any
    """int64: table of x*log2(x) in fixed point; one entry, the scale, where `wide` searches."""


class Sorting(NamedTuple):
    """Work space for sorting keys: ``keys`` and ``spare`` (uint32 or uint64), and int32 counters."""

    keys: Any
    spare: Any
    count: Any


class Groups(NamedTuple):
    """Work space for histograms over groups of codes.

    All ``hist*`` and ``flag`` have an entry per group, ``group`` and ``chosen`` one per row of a node. What the numbers
    mean is up to the search: see `two_classes.two_by_groups` and `targets`.
    """

    group: Any
    """uint8: group of each row."""
    hist: Any
    """int64"""
    hist_sum: Any
    """int64"""
    hist_weight: Any
    """float64: weight (regression)."""
    hist_target: Any
    """float64: weighted sum of targets."""
    hist_spread: Any
    """float64: weighted sum of absolute deviations from the node's mean."""
    hist_count: Any
    """int64: rows."""
    chosen: Any
    """int32: positions in the node of the rows to sort; also lent as ranks to the sort of few keys."""
    flag: Any
    """uint8: 1 where a group must be looked into."""


class Categories(NamedTuple):
    """Work space for ordering the categories of a node; an entry per code, and one for missing values, int64.

    Invariant: ``weight`` is zero between calls, so that a call only touches the categories of its node.
    """

    rank: Any
    """The answer: rank of each category that is present; undefined for the others."""
    weight: Any
    total: Any
    """What the mean is taken of: weight of the largest class, or weighted sum of targets."""
    mean: Any
    """float64: total / weight of each category that is present; undefined for the others."""
    present: Any
    """Codes that are present, in the order in which they are met, then in order."""


class Scratch(NamedTuple):
    """Work space of one thread, overwritten by every call. Functions get only the part they need: the fewer arrays a
    compiled function takes, the cheaper is the call.

    Arrays by row have one place more than the largest node: loops without branches write before they know whether the
    entry stays.
    """

    sorting: Sorting
    groups: Groups
    categories: Categories
    left: Any
    """int32 (classes,): passed as ``left_of``."""
    hist_class: Any
    """int32 (GROUPS * classes,): class weights of each group."""
    subset_weight: Any
    """float64 (2**TINY,), as the next two: of each set of rows of a tiny node."""
    subset_sum: Any
    subset_score: Any


def make_scratch(capacity: int, key_type: type, n_classes: int, max_codes: int) -> Scratch:
    """Work space for nodes of at most ``capacity`` rows and categories of at most ``max_codes`` codes."""
    return Scratch(
        sorting=Sorting(
            keys=np.empty(capacity + 1, key_type),
            spare=np.empty(capacity + 1, key_type),
            count=np.zeros(COUNT_SIZE, np.int32),
        ),
        groups=Groups(
            group=np.empty(capacity + 1, np.uint8),
            hist=np.zeros(GROUPS + 1, np.int64),
            hist_sum=np.zeros(GROUPS + 1, np.int64),
            hist_weight=np.zeros(GROUPS + 1, np.float64),
            hist_target=np.zeros(GROUPS + 1, np.float64),
            hist_spread=np.zeros(GROUPS + 1, np.float64),
            hist_count=np.zeros(GROUPS + 1, np.int64),
            chosen=np.empty(max(capacity, RANKED) + 1, np.int32),
            flag=np.zeros(GROUPS + 1, np.uint8),
        ),
        categories=Categories(
            rank=np.zeros(max_codes + 1, np.int64),
            weight=np.zeros(max_codes + 1, np.int64),
            total=np.zeros(max_codes + 1, np.int64),
            mean=np.zeros(max_codes + 1, np.float64),
            present=np.zeros(max_codes + 1, np.int64),
        ),
        left=np.zeros(max(n_classes, 2), np.int32),
        hist_class=np.zeros(GROUPS * max(n_classes, 1), np.int32),
        subset_weight=np.zeros(1 << TINY, np.float64),
        subset_sum=np.zeros(1 << TINY, np.float64),
        subset_score=np.zeros(1 << TINY, np.float64),
    )


@kernel
def list_candidates(
    select_key: Any,
    order_key: Any,
    counts: Any,
    sizes: Any,
    feature_keys: Any,
    by_node_up_to: Any,
    in_order_up_to: Any,
    pair_node: Any,
    pair_feature: Any,
    pair_place: Any,
    spare_node: Any,
    spare_feature: Any,
    spare_place: Any,
) -> int:
    """Party: the (node, feature) pairs to search. The first ``counts[node]`` of its features in the node's order.

    Small nodes come first, each with its candidates (in order where that may end a search early); the pairs of large
    nodes follow, sorted by feature, so that a column stays in the cache. They are collected in the ``spare_*`` arrays
    and moved by a counting sort. ``sizes`` (nodes,) is the number of rows. Returns the number of pairs.
    """
    p = len(feature_keys)
    places = np.empty(p, np.uint64)
    members = np.empty(p, np.uint64)
    work = np.empty(BUCKET_SIZE, np.int32)
    by_feature = np.zeros(p + 1, np.int64)
    small = 0
    large = 0
    for node in range(len(counts)):
        c = I64(counts[node])
        if c == 0:
            continue
        for f in range(p):
            places[f] = place(select_key[node], feature_keys[f])
        limit = U64(0xFFFFFFFFFFFFFFFF) if c == p else nth_place(places, c, work, members)
        own_order = select_key[node] == order_key[node]
        if sizes[node] > by_node_up_to:
            for f in range(p):
                if places[f] <= limit:
                    spare_node[large] = node
                    spare_feature[large] = f
                    spare_place[large] = places[f] if own_order else place(order_key[node], feature_keys[f])
                    by_feature[f + 1] += 1
                    large += 1
            continue
        first = small
        in_order = sizes[node] <= in_order_up_to
        for f in range(p):
            if places[f] <= limit:
                at = places[f] if own_order else place(order_key[node], feature_keys[f])
                j = small
                while in_order and j > first and pair_place[j - 1] > at:
                    pair_feature[j] = pair_feature[j - 1]
                    pair_place[j] = pair_place[j - 1]
                    j -= 1
                pair_feature[j] = f
                pair_place[j] = at
                pair_node[small] = node
                small += 1
    for f in range(p):
        by_feature[f + 1] += by_feature[f]
    for q in range(large):
        f = spare_feature[q]
        to = small + by_feature[f]
        by_feature[f] += 1
        pair_node[to] = spare_node[q]
        pair_feature[to] = f
        pair_place[to] = spare_place[q]
    return small + large


@kernel
def search_twos(
    columns: Any,
    rows: Any,
    weights: Any,
    start: Any,
    end: Any,
    payload: Any,
    first: Any,
    entropy: Any,
    order_key: Any,
    feature_keys: Any,
    best: Any,
    best_feature: Any,
    best_place: Any,
    best_cut: Any,
) -> None:
    """Search the nodes of two rows, where all splits are equally good: the first feature in order that has one wins.

    All features are looked at, not only the candidates: where no candidate can split the node the search goes on in the
    same order. This needs rules that allow every split of two rows, and candidates in the order of the node
    (``GrowthRules.splits_two_rows_by_order``).

    ``payload`` is None for classes: the two rows of an open node then are of two classes.
    """
    for node in range(len(start)):
        s = start[node]
        if end[node] - s != 2:
            continue
        one = rows[s]
        other = rows[s + 1]
        least = U64(0xFFFFFFFFFFFFFFFF)
        chosen = I64(-1)
        for f in range(len(feature_keys)):
            at = place(order_key[node], feature_keys[f])
            if at < least and columns.fine[f, one] != columns.fine[f, other]:
                least = at
                chosen = f
        if chosen < 0:
            continue
        w = np.float64(weights[s])
        v = np.float64(weights[s + 1])
        if payload is not None:
            o = first[node]
            best[node] = payload[o] * payload[o] / w + payload[o + 1] * payload[o + 1] / v
        if payload is None:
            best[node] = 0.0 if entropy else w * w / w + v * v / v
        best_feature[node] = chosen
        best_place[node] = least
        code = min(columns.fine[chosen, one], columns.fine[chosen, other])
        # categories are cut by rank, and the lower of two ranks is 0
        best_cut[node] = 0 if columns.categorical[chosen] else I64(code)


@kernel
def next_candidates(
    select_key: Any, failed: Any, tried: Any, feature_keys: Any, pair_node: Any, pair_feature: Any, pair_place: Any
) -> None:
    """Party: for each failed node its next feature in order, after the ``tried`` first ones.

    ``failed`` are numbers of nodes; pair k is for ``failed[k]``. Only where candidates are drawn per node, so that
    ``select_key`` is ``order_key`` and the place holds for both.
    """
    p = len(feature_keys)
    places = np.empty(p, np.uint64)
    members = np.empty(p, np.uint64)
    work = np.empty(BUCKET_SIZE, np.int32)
    for k in range(len(failed)):
        node = failed[k]
        for f in range(p):
            places[f] = place(select_key[node], feature_keys[f])
        at = nth_place(places, I64(tried[node]) + 1, work, members)
        for f in range(p):
            if places[f] == at:
                pair_feature[k] = f
        pair_node[k] = node
        pair_place[k] = at


@kernel
def sort_present_categories(n_present: Any, categories: Any) -> None:
    """Put the present categories in the order of their means (total / weight), equal means by code.

    Shell sort with Knuth's gaps: in place, and fast enough for the hundreds of categories that a node may have.
    """
    present = categories.present
    means = categories.mean
    for i in range(n_present):
        c = present[i]
        means[c] = np.float64(categories.total[c]) / np.float64(categories.weight[c])
    gap = 1
    while gap < n_present // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, n_present):
            c = present[i]
            mean = means[c]
            j = i
            while j >= gap:
                d = present[j - gap]
                other = means[d]
                if other < mean or (other == mean and d < c):
                    break
                present[j] = d
                j -= gap
            present[j] = c
        gap //= 3


@kernel
def order_categories(n_present: Any, categories: Any) -> None:
    """Rank the present categories by their mean; clear ``weight`` again."""
    sort_present_categories(n_present, categories)
    for i in range(n_present):
        c = categories.present[i]
        categories.rank[c] = i
        categories.weight[c] = 0


@kernel
def offer(
    node: Any,
    feature: Any,
    at: Any,
    score: Any,
    cut: Any,
    missing_left: Any,
    best: Any,
    best_feature: Any,
    best_place: Any,
    best_cut: Any,
    best_missing: Any,
) -> None:
    """Keep a split if it is the node's best so far; equal scores go to the feature that comes first in the order."""
    if cut >= 0 and (score > best[node] or (score == best[node] and at < best_place[node])):
        best[node] = score
        best_feature[node] = feature
        best_place[node] = at
        best_cut[node] = cut
        best_missing[node] = missing_left
