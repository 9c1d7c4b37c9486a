"""Counter-based randomness: every draw is a hash of what it is for, so the order of evaluation never matters.

A node's key is a hash of the tree's key and of the path to the node. It does not depend on other nodes, on threads or
on who holds which columns, so that every role that knows the seed computes the same order of candidates. The hash is
the finaliser of splitmix64 (Steele, Lea and Flood 2014). It is fast and spreads well. It is not a cryptographic hash:
do not use it for secrets.

The odd constants only keep purposes apart. 0x9E3779B97F4A7C15 is the step of splitmix64: keys that advance by it give
its stream of numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.trees.kernels._jit import kernel

U64: Any = np.uint64
I64: Any = np.int64


@kernel
def mix(z: Any) -> Any:
    """Finaliser of splitmix64: a bijection of 64 bits that looks random."""
    z = (z ^ (z >> U64(30))) * U64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> U64(27))) * U64(0x94D049BB133111EB)
    return z ^ (z >> U64(31))


@kernel
def child_key(key: Any, side: Any) -> Any:
    """Key of the left (0) or right (1) child: a node's key depends on its path only."""
    return mix(key ^ (U64(0x5851F42D4C957F2D) * U64(side + 1)))


@kernel
def child_keys(keys: Any, out: Any) -> None:
    for i in range(len(keys)):
        out[2 * i] = child_key(keys[i], 0)
        out[2 * i + 1] = child_key(keys[i], 1)


@kernel
def place(node_key: Any, feature_key: Any) -> Any:
    """Place of a feature in a node's order of candidates: the smallest come first.

    `mix` is a bijection, so distinct feature keys have distinct places: an order has no ties.
    """
    return mix(node_key ^ feature_key)


@kernel
def places(node_keys: Any, feature_keys: Any, out: Any) -> None:
    """Place of one feature in the order of each of some nodes."""
    for i in range(len(node_keys)):
        out[i] = place(node_keys[i], feature_keys[i])


BUCKET_SIZE = 4096
"""Size of the counters that the caller of ``nth_place`` passes: 2**12, the most buckets."""


@kernel
def nth_place(places: Any, m: Any, count: Any, members: Any) -> Any:
    """The m-th smallest of some places (m counts from 1).

    Places are uniform in 64 bits: count them by their leading bits, walk to the bucket that holds the answer, and sort
    its few members by insertion. There is about one bucket for two places, so this takes linear time. ``count`` (int32,
    BUCKET_SIZE) and ``members`` (uint64, as many as places) are work space.
    """
    p = len(places)
    if m == 1:
        answer = places[0]
        for f in range(1, p):
            answer = min(answer, places[f])
        return answer
    bits = 4
    while (2 << bits) < p and bits < 12:
        bits += 1
    shift = U64(64 - bits)
    for i in range(1 << bits):
        count[i] = 0
    for f in range(p):
        count[I64(places[f] >> shift)] += 1
    bucket = I64(0)
    rest = I64(m)
    while rest > count[bucket]:
        rest -= count[bucket]
        bucket += 1
    n = 0
    for f in range(p):
        if I64(places[f] >> shift) == bucket:
            j = n
            while j > 0 and members[j - 1] > places[f]:
                members[j] = members[j - 1]
                j -= 1
            members[j] = places[f]
            n += 1
    return members[rest - 1]


@kernel
def candidate_limits(keys: Any, wanted: Any, feature_keys: Any, owners: Any, limits: Any, counts: Any) -> None:
    """Coordinator: the place of the last candidate of every node, and how many candidates each owner has there.

    A feature is a candidate of a node if its place is at most ``limits[node]`` (uint64; 0 where none is wanted). A
    party is told only the number of its candidates: they are its first ones in the node's order.

    ``wanted`` (nodes,) is the number of candidates of each node, ``owners`` (features,) the party of each feature;
    ``counts`` (owners, nodes) comes as zeros.
    """
    p = len(feature_keys)
    places = np.empty(p, np.uint64)
    members = np.empty(p, np.uint64)
    work = np.empty(BUCKET_SIZE, np.int32)
    for node in range(len(keys)):
        limits[node] = 0
        m = wanted[node]
        if m == 0:
            continue
        if m >= p:
            limits[node] = U64(0xFFFFFFFFFFFFFFFF)
            for f in range(p):
                counts[owners[f], node] += 1
            continue
        for f in range(p):
            places[f] = place(keys[node], feature_keys[f])
        limit = nth_place(places, m, work, members)
        limits[node] = limit
        for f in range(p):
            counts[owners[f], node] += places[f] <= limit


@kernel
def choose_offers(
    select_key: Any,
    order_key: Any,
    limits: Any,
    scores: Any,
    offered: Any,
    first_feature: Any,
    feature_keys: Any,
    winner: Any,
    feature: Any,
    score: Any,
) -> None:
    """Coordinator: the winning party of every node (-1 where no party can split it), its feature and its score.

    Each party offers one split per node at most. An offer of a candidate beats an offer of another feature. Among
    candidates the best score wins, and equal scores go to the feature first in the node's order. Where no candidate can
    split the node, the first feature in order that can is taken: parties went on to it by themselves.

    ``scores`` and ``offered`` are (parties, nodes). Offered features are numbered from 1 within each party, 0 for no
    offer; ``first_feature[party]`` is added, so that ``feature`` counts from 0 over all parties.
    """
    for node in range(len(limits)):
        best = -np.inf
        first = U64(0xFFFFFFFFFFFFFFFF)
        candidate = False
        winner[node] = -1
        feature[node] = -1
        score[node] = np.nan
        for party in range(scores.shape[0]):
            if offered[party, node] == 0:
                continue
            f = first_feature[party] + I64(offered[party, node]) - 1
            is_candidate = place(select_key[node], feature_keys[f]) <= limits[node]
            at = place(order_key[node], feature_keys[f])
            if is_candidate != candidate:
                better = is_candidate or winner[node] < 0
            elif candidate:
                better = scores[party, node] > best or (scores[party, node] == best and at < first)
            else:
                better = winner[node] < 0 or at < first
            if better:
                winner[node] = party
                feature[node] = f
                best = scores[party, node]
                score[node] = best
                first = at
                candidate = is_candidate


@kernel
def draw_counts(key: Any, n_draws: Any, counts: Any) -> None:
    """Bootstrap: how often each row was drawn.

    The upper 32 bits of a hash times n, shifted down by 32, is a row number: a division-free draw. Rows differ in
    probability by at most 2**-32.
    """
    n = U64(len(counts))
    for i in range(len(counts)):
        counts[i] = 0
    k = key
    for _ in range(n_draws):
        k += U64(0x9E3779B97F4A7C15)
        counts[I64(((mix(k) >> U64(32)) * n) >> U64(32))] += np.uint32(1)


@kernel
def draw_by_row(key: Any, row_keys: Any, level: Any, first: Any, thresholds: Any, counts: Any) -> int:
    """How often each row is drawn: as many times as there are thresholds of its level up to its random number.

    The number is a hash of tree and row, as in `cells.draw_poisson`. Level l has the ascending thresholds
    ``thresholds[first[l] : first[l + 1]]`` (uint64). Returns how many rows are drawn at all.
    """
    drawn = 0
    for i in range(len(row_keys)):
        u = mix(mix(key ^ row_keys[i]) + U64(0x9E3779B97F4A7C15))
        low = first[level[i]]
        high = first[level[i] + 1]
        begin = low
        while high - low > 8:  # long lists are of heavy rows
            middle = (low + high) >> 1
            if thresholds[middle] <= u:
                low = middle + 1
            else:
                high = middle
        while low < high and thresholds[low] <= u:
            low += 1
        counts[i] = low - begin
        drawn += low > begin
    return drawn


@kernel
def draw_weighted_counts(key: Any, n_draws: Any, cumulated: Any, counts: Any) -> None:
    """Bootstrap of weighted rows: row i is drawn with probability proportional to its integer weight.

    ``cumulated`` is the running sum of the weights. A draw is a number below their total (less than 2**32); binary
    search finds the first row whose running sum is above it, so that a row of weight 0 is not drawn.
    """
    total = U64(cumulated[-1])
    for i in range(len(counts)):
        counts[i] = 0
    k = key
    for _ in range(n_draws):
        k += U64(0x9E3779B97F4A7C15)
        r = I64(((mix(k) >> U64(32)) * total) >> U64(32))
        low = 0
        high = len(cumulated) - 1
        while low < high:
            mid = (low + high) >> 1
            if cumulated[mid] > r:
                high = mid
            else:
                low = mid + 1
        counts[low] += np.uint32(1)
