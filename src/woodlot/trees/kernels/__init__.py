"""Numba kernels: arrays in, arrays out. They know nothing of parties, messages or estimators.

A kernel writes its results into arrays that the caller passes. It does not check bounds or values: callers
(``woodlot.trees`` and the protocols) check what comes from other roles before they call. `_jit` compiles the kernels.

The same argument names mean the same everywhere. A docstring of a kernel only says what is special about it.

Rows of nodes, layout drawn in `rows`::

    rows          uint32           row numbers of the table, node after node; ascending inside a node
    weights       uint8 or uint32  weight of each entry of ``rows``: how often the bootstrap drew the row, or its weight
    start, end    int64 (nodes,)   the rows of a node are ``rows[start[node] : end[node]]``
    middle        int64 (nodes,)   where the right child begins once a node is split; -1 before
    labels        (table rows,)    class codes, or targets in fixed point (int64)
    flags         uint8            1: the row goes left; one per row of some nodes, node after node
    spare_*                        work space for the rows that go right; room for the largest node

An encoded table, see `search.Columns` and ``woodlot.trees.encoding``::

    fine          uint8/16/32 (p, table rows)   rank of the value; the code after the last value is "missing"
    coarse        uint8 (p, table rows)         group of neighbouring fine codes; missing is the last group

What a search gathers once per chunk of nodes (``prepare*``), so that no label is looked up twice::

    payload       (rows of the chunk,)     class and weight of a row packed in one integer, or weight * target
    first         int64 (nodes,)           the payload of a node begins at ``payload[first[node]]``
    totals        (nodes, classes)         weight of each class; regression: (nodes, 2) of weight and weighted sum
    weight        int64 (nodes,)           weight of the node, the sum of ``totals``
    square        int64 (nodes,)           sum of squares of ``totals``, or of their x*log2(x) for entropy
    whole         float64 (nodes,)         score of the node without a split

Candidates. Features are tried in an order that is a hash of node and feature, so that all parties agree on it::

    feature_keys  uint64 (p,)       stable code of each column; distinct
    order_key     uint64 (nodes,)   key of the node: by it ties are broken
    select_key    uint64 (nodes,)   key by which candidates are drawn: that of the node, or of the tree's root if the
                                    candidates are drawn once per tree
    place         uint64            ``mix(key ^ feature_key)``: the smaller, the earlier in the node's order
    pair_node     int32 (n_pairs,)  a pair is a node and one of its candidates, ...
    pair_feature  int32 (n_pairs,)  ... here the candidate, ...
    pair_place    uint64 (n_pairs,) ... and its place in the node's order; only the first ``n_pairs`` entries count

The best split of each node so far, updated by `search.offer`::

    best          float64 (nodes,)  score, -inf at first
    best_feature  int32 (nodes,)    -1 at first: no split is allowed
    best_place    uint64 (nodes,)   place of that feature, the largest number at first
    best_cut      int64 (nodes,)    last code (categories: last rank) that goes left
    best_missing  uint8 (nodes,)    1: missing values go left

Inner functions look at one node and one column. Their short names::

    f             the column
    s, o, n       ``start[node]``, ``first[node]``, and how many rows the node has
    keys, m       rows as sortable integers ``code << shift | payload``, and how many of them
    w, W          weight on the left, and of the whole node
    a, A          the same of class 1 alone (two classes)
    sl, sr        sums of squares of class weights on the left and on the right (more classes)
    left          number of rows on the left; in regression their weighted sum of targets
    left_of       weight of each class on the left
    best          score to reach. It is returned with the cut; a cut of -1 says that no split reached it
    strict        True: an equal score is not enough, see `search`

Two idioms recur. Both sides of a choice are written, and only the index of one moves on: sides look random, and a
branch would be mispredicted half of the time. Indices are unsigned where they are computed: Numba tests a signed index
for counting from the end.
"""
