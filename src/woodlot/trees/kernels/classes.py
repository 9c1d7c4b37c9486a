"""Split search for classification with at most 256 classes and weights up to 255: the payload fits into the keys.

A node's rows are sorted (`class_keys`) and scanned, or counted by groups of codes where that is less work: for two
classes (`two_classes`) or more (`many_classes`). Gini scores are sums of squares per child divided by its weight;
entropy scores are sums from a table of fixed-point x*log2(x): integers both, to the last step. Scores, ties and
strategies are described in `search`, the argument names in the package's docstring.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.class_keys import SHIFT, sort_categories, sort_codes, sort_present
from woodlot.trees.kernels.many_classes import many_by_groups, scan_many, scan_many_after_missing
from woodlot.trees.kernels.search import COARSE_FROM, RANKED, SMALL, offer
from woodlot.trees.kernels.two_classes import scan_two, two_by_categories, two_by_groups

I64: Any = np.int64
U64: Any = np.uint64
F64: Any = np.float64
GROUP_WORK = 32
"""Many classes: what a code costs in a histogram, besides 1 per class; ..."""
ROW_BY_SORTING = 56
"""... and what each row costs more when the rows are sorted instead: roughly, from timings with 26 classes."""


@kernel
def search_classes(
    columns: Any,
    rows: Any,
    start: Any,
    end: Any,
    payload: Any,
    first: Any,
    totals: Any,
    weight: Any,
    square: Any,
    pair_node: Any,
    pair_feature: Any,
    pair_place: Any,
    n_pairs: Any,
    rules: Any,
    sorting: Any,
    rank: Any,
    left_of: Any,
    groups: Any,
    hist_class: Any,
    hist_count: Any,
    categories: Any,
    best: Any,
    best_feature: Any,
    best_place: Any,
    best_cut: Any,
    best_missing: Any,
) -> None:
    """Search every pair; the best of each node is kept.

    The arguments, in the order in which they are passed: the table; the rows of the nodes (``rows`` to ``end``); what
    `class_keys.prepare` gathered of them (``payload`` to ``square``); the pairs (``pair_node`` to ``n_pairs``); the
    rules; the thread's work space (``sorting`` to ``categories``); and the results (``best`` to ``best_missing``).

    ``groups`` serves two classes, ``hist_class`` more than two; one of both is None. Numba prunes a branch on None, so
    its code is not even compiled. Categories and missing values are not told apart in this way: every table of one kind
    of labels and codes has the same compiled code, and a second table seldom waits for a compilation. ``rank`` (int32)
    serves the sort of few keys, ``left_of`` and ``hist_count`` the scans, ``categories`` categorical columns.
    """
    K = totals.shape[1]
    # taken out of their tuples once: inside the loop each would be counted as one more reference, and let go again
    keys, spare, count = sorting.keys, sorting.spare, sorting.count
    fine, coarse, last_fine, n_coarse = columns.fine, columns.coarse, columns.last_fine, columns.n_coarse
    refine, n_codes, categorical = columns.refine, columns.n_codes, columns.categorical
    # a logarithm per class must be looked up one by one, squares are computed many at a time
    group_work = GROUP_WORK + (5 * K if rules.entropy else K)
    for q in range(n_pairs):
        node = pair_node[q]
        f = pair_feature[q]
        s = U64(start[node])
        n = end[node] - start[node]
        o = U64(first[node])
        W = weight[node]
        sq = square[node]
        b = best[node]
        # no score is above that of two pure sides: a feature that comes later in order cannot win any more
        perfect = 0.0 if rules.entropy else F64(W)
        if b >= perfect and best_place[node] < pair_place[q]:
            continue
        plain = categorical[f] == 0
        n_groups = n_coarse[f]
        score = b
        cut = I64(-1)
        searched = False
        if groups is not None:
            if plain and n > SMALL and (n > COARSE_FROM or (refine[f] == 0 and n > 2 * n_groups)):
                searched = True
                A = I64(totals[node, 1])
                score, cut = two_by_groups(
                    coarse,
                    fine,
                    f,
                    last_fine,
                    n_groups,
                    refine[f],
                    rows,
                    s,
                    payload,
                    o,
                    n,
                    A,
                    W,
                    sq,
                    b,
                    rules,
                    sorting,
                    groups,
                )
            elif not plain:
                searched = True
                score, cut = two_by_categories(fine, f, rows, s, payload, o, n, totals, node, W, b, rules, categories)
        if hist_class is not None:
            if plain and n > SMALL and refine[f] == 0 and n * ROW_BY_SORTING > n_groups * group_work:
                searched = True
                score, cut = many_by_groups(
                    coarse,
                    f,
                    last_fine,
                    n_groups,
                    rows,
                    s,
                    payload,
                    o,
                    n,
                    totals,
                    node,
                    W,
                    sq,
                    b,
                    rules,
                    hist_class,
                    hist_count,
                    left_of,
                )
        if not searched:
            where = 0
            if plain and (n <= SMALL or (n <= RANKED and n_codes[f] > RANKED)):
                # every key is compared with those before it, without a branch: quadratic, yet fastest for few keys.
                # Whole keys are compared; keys of one code may change places, which no cut between codes notices
                for i in range(U64(n)):
                    spare[i] = (U64(fine[f, rows[s + i]]) << SHIFT) | U64(payload[o + i])
                for i in range(U64(n)):
                    key = U64(spare[i])
                    smaller = 0
                    for j in range(i):
                        larger = I64(U64(spare[j]) > key)
                        rank[j] += larger
                        smaller += 1 - larger
                    rank[i] = smaller
                for i in range(U64(n)):
                    keys[U64(rank[i])] = spare[i]
                if (U64(keys[0]) ^ U64(keys[n - 1])) > U64(0xFFFF):
                    where = 1
            elif plain:
                where = sort_codes(fine, f, rows, s, payload, o, n, keys, spare, count)
            else:
                where = sort_categories(fine, f, rows, s, payload, o, n, totals, node, sorting, categories)
            if where > 0:
                ordered = keys if where == 1 else spare
                if groups is not None:
                    A = I64(totals[node, 1])
                    score, cut = scan_two(ordered, n, I64(0), I64(0), I64(0), A, W, n, b, False, rules)
                if hist_class is not None:
                    if n < K:  # only the node's own classes are read
                        for i in range(U64(n)):
                            left_of[payload[o + i] >> 8] = 0
                    else:
                        for k in range(K):
                            left_of[k] = 0
                    score, cut = scan_many(
                        ordered, n, I64(0), I64(0), I64(0), sq, totals, node, W, n, b, False, rules, left_of
                    )
        # so far missing values were on the right, as the largest code; now on the left, where that is better
        to_left = np.uint8(0)
        if plain and columns.has_missing[f]:
            m, in_spare = sort_present(fine, f, I64(n_codes[f]), rows, s, payload, o, n, sorting, left_of)
            if m > 0:
                ordered = spare if in_spare else keys
                reached = max(b, score)
                strict = cut >= 0
                cut2 = I64(-1)
                score2 = reached
                if groups is not None:
                    a = left_of[1]
                    w = left_of[0] + left_of[1]
                    A = I64(totals[node, 1])
                    score2, cut2 = scan_two(ordered, m, a, w, n - m, A, W, n, reached, strict, rules)
                if hist_class is not None:
                    score2, cut2 = scan_many_after_missing(
                        ordered, m, totals, node, W, sq, n, reached, strict, rules, left_of
                    )
                if cut2 >= 0:
                    score = score2
                    cut = cut2
                    to_left = np.uint8(1)
        offer(node, f, pair_place[q], score, cut, to_left, best, best_feature, best_place, best_cut, best_missing)
