"""Counter-based randomness: every draw is a hash of what it is for, so the order of evaluation never matters."""

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
    """Place of a feature in a node's order of candidates: the smallest come first. Distinct for distinct features."""
    return mix(node_key ^ feature_key)


@kernel
def places(node_keys: Any, feature_keys: Any, out: Any) -> None:
    """Place of one feature in the order of each of some nodes."""
    for i in range(len(node_keys)):
        out[i] = place(node_keys[i], feature_keys[i])


BUCKET_SIZE = 4096
"""Size of the counters that ``nth_place`` is lent."""


@kernel
def nth_place(places: Any, m: Any, count: Any, members: Any) -> Any:
    """The m-th smallest of some places (m counts from 1).

    Places are uniform in 64 bits: count them by their leading bits, walk to the bucket that holds the answer, and look
    among its few members. ``count`` and ``members`` are lent work space.
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
    """The place of the last candidate of every node that has any, and how many candidates each owner has.

    wanted is the number of candidates of each node, counts is (owners, nodes) of zeros.
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
    """Coordinator: the winning party of every node (-1 where nobody can split it), its feature and its score.

    Among the candidates the best score wins, and equal scores go to the feature first in the node's order. Where no
    candidate can split the node, the first feature after them that can has it. scores and offered are (parties, nodes);
    offered features are numbered from 1 within each party, 0 for no offer, and from 0 over all parties in the answer.
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
    """Bootstrap: how often each row was drawn."""
    n = U64(len(counts))
    for i in range(len(counts)):
        counts[i] = 0
    k = key
    for _ in range(n_draws):
        k += U64(0x9E3779B97F4A7C15)
        counts[I64(((mix(k) >> U64(32)) * n) >> U64(32))] += np.uint32(1)


@kernel
def draw_weighted_counts(key: Any, n_draws: Any, cumulated: Any, counts: Any) -> None:
    """Bootstrap of weighted rows: row i is drawn with probability proportional to its integer weight."""
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
