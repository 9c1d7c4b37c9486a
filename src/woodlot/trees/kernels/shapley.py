"""Shapley values of trees, 64 rows side by side.

A tree's answer for a row, with only the columns of a set S known, is the mean of its leaves: at a node that asks about
a column of S the row goes its way, at any other both ways, weighted by the training weight of each. The Shapley values
of that game are what "path-dependent TreeSHAP" computes. A leaf with the answer v is under a path with some columns,
and each column j has on this path

    z_j    the product of the shares of training weight along the path's edges at nodes that ask about j
    o_j    1 if the row goes along the path at all of these nodes, else 0

so that the leaf adds ``v * prod(o_j for j in S) * prod(z_j for j not in S)`` to the answer. The weight of a set of k
out of d - 1 columns in the Shapley value is k! (d - 1 - k)! / d!, the integral of t**k (1 - t)**(d - 1 - k) on (0, 1).
With ``f_j(t) = z_j (1 - t) + o_j t`` the leaf's part of the value of column i becomes

    v * (o_i - z_i) * integral of prod(f_j(t) for j != i) dt

The product is a polynomial of degree d - 1 at most, for which Gauss's rule with ceil(d / 2) points is exact. Every
factor is positive inside of (0, 1) unless both z and o are 0, where the column has no part. So P / f_i, with the
product P of all factors, is safe, and nothing cancels. P is extended by one factor per edge on the way down; the sum of
v * P over the leaves below is added up on the way back. So a row costs nodes x points x outputs operations, and
depth x points x outputs words of memory.

A column that is asked again further down replaces its factor. Its edge then adds its own term for the leaves below, and
takes back the term of the earlier edge. A row that the owner of a node lacks takes both ways there: the column plays
no part, and its factor is the share of the edge.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.reach import Tests, goes_right
from woodlot.trees.kernels.settle import TreesShape, settle
from woodlot.trees.kernels.walk import LeafAnswers

LANES = 64


class Edges(NamedTuple):
    """The way into each node of the forest; nodes in preorder, roots have none."""

    share: NDArray[np.float64]
    """Share of the parent's training weight that went this way."""
    column: NDArray[np.int32]
    """The column that the parent asks about."""
    owner: NDArray[np.int16]
    """The party that has it."""
    is_right: NDArray[np.bool_]
    level: NDArray[np.int32]
    """Depth of the node; 0 at roots."""
    earlier: NDArray[np.int32]
    """Level of the edge above at which the same column was asked last; 0 for none."""


class Quadrature(NamedTuple):
    """Gauss's points in (0, 1) and their weights: row n has the rule with n points."""

    point: NDArray[np.float64]
    weight: NDArray[np.float64]


@kernel
def answer_sides(
    tests: Tests, codes: NDArray[Any], n_slots: int, known: NDArray[np.uint64], out: NDArray[np.uint64]
) -> None:
    """Write to ``out[block, question]`` the rows that the question sends right, at all questions; 0 for other rows."""
    for block in range(len(known)):
        for question in range(len(tests.word)):
            rows = known[block]
            out[block, question] = goes_right(tests, question, rows, codes, block * n_slots) & rows


@kernel
def settle_sides(
    shape: TreesShape,
    answers: LeafAnswers,
    sides: NDArray[np.uint64],
    known: NDArray[np.uint64],
    valid: NDArray[np.uint64],
    leaf: NDArray[np.int32],
    out: NDArray[np.float64],
    uncertain: NDArray[np.bool_],
) -> None:
    """Add up what the trees answer for every row, as a prediction does, from the sides at all nodes."""
    for tree in range(len(shape.offset) - 1):
        first, stop = shape.offset[tree], shape.offset[tree + 1]
        for block in range(len(valid)):
            settle(shape, answers, tree, sides[block, first:stop], known, valid, block, leaf, out, uncertain)


@kernel
def link_edges(
    offset: NDArray[np.int64],
    right: NDArray[np.int32],
    feature: NDArray[np.int32],
    owner: NDArray[np.int16],
    share_left: NDArray[np.float64],
    share_right: NDArray[np.float64],
    edges: Edges,
    distinct: NDArray[np.int64],
) -> None:
    """Fill ``edges`` and write, per tree, the most columns on one path."""
    columns = np.zeros(len(right), np.int64)  # on the path to each node
    path = np.empty(len(right) + 1, np.int32)
    for tree in range(len(offset) - 1):
        root = offset[tree]
        edges.level[root] = 0
        columns[root] = 0
        distinct[tree] = 0
        for i in range(root, offset[tree + 1]):
            level = edges.level[i]
            if i > root:
                path[level] = edges.column[i]
            if right[i] < 0:
                distinct[tree] = max(distinct[tree], columns[i])
                continue
            above = 0
            for k in range(level, 0, -1):
                if path[k] == feature[i]:
                    above = k
                    break
            for child in (i + 1, np.int64(right[i])):
                edges.level[child] = level + 1
                edges.column[child] = feature[i]
                edges.owner[child] = owner[i]
                edges.is_right[child] = child != i + 1
                edges.share[child] = share_left[i] if child == i + 1 else share_right[i]
                edges.earlier[child] = above
                columns[child] = columns[i] + (above == 0)


@kernel
def spread_bits(word: np.uint64, out: NDArray[np.float64]) -> None:
    """One number per row: 1 where its bit is set."""
    for r in range(LANES):
        out[r] = np.float64((word >> np.uint64(r)) & np.uint64(1))


@kernel
def add_shapley(
    offset: NDArray[np.int64],
    right: NDArray[np.int32],
    edges: Edges,
    answers: NDArray[np.float64],
    leaf: NDArray[np.int32],
    place: NDArray[np.int32],
    n_points: NDArray[np.int64],
    rule: Quadrature,
    sides: NDArray[np.uint64],
    known: NDArray[np.uint64],
    out: NDArray[np.float64],
) -> None:
    """Add the Shapley values of one block of 64 rows to ``out[place[column], output, row]``.

    ``sides`` has the rows that go right at each node of the forest, ``known`` the rows that each party has, and
    ``answers[leaf, output]`` what leaves answer. The state of the path is by level of the edge::

        product[level, point, row]            P on the way down
        below[level, point, output, row]      sum of v * P of the leaves below that were seen
        on[level, row], z[level]              o and z of the edge's column, edges further up included
        gone[level, row]                      1 where the owner lacks the row
    """
    n_outputs = answers.shape[1]
    deepest = 0
    for i in range(len(right)):
        deepest = max(deepest, edges.level[i])
    most = 1
    for tree in range(len(n_points)):
        most = max(most, n_points[tree])
    product = np.ones((deepest + 1, most, LANES))
    below = np.zeros((deepest + 1, most, n_outputs, LANES))
    on = np.ones((deepest + 1, LANES))
    gone = np.zeros((deepest + 1, LANES))
    z = np.ones(deepest + 1)
    path = np.zeros(deepest + 1, np.int64)
    went = np.empty(LANES)
    for tree in range(len(offset) - 1):
        points = n_points[tree]
        t, w = rule.point[points], rule.weight[points]
        for i in range(offset[tree], offset[tree + 1]):
            level = edges.level[i]
            path[level] = i
            if level > 0:
                parent = path[level - 1]
                word = sides[parent] if edges.is_right[i] else ~sides[parent]
                spread_bits(word, went)
                spread_bits(~known[edges.owner[i]], gone[level])
                some_gone = known[edges.owner[i]] != ~np.uint64(0)
                above = edges.earlier[i]
                extend(product, on, gone, z, level, above, edges.share[i], some_gone, went, points, t)
            if right[i] >= 0:
                for q in range(points):
                    for k in range(n_outputs):
                        for r in range(LANES):
                            below[level, q, k, r] = 0.0
                continue
            for q in range(points):
                for k in range(n_outputs):
                    v = answers[leaf[i], k]
                    for r in range(LANES):
                        below[level, q, k, r] = v * product[level, q, r]
            while level > 0:
                node = path[level]
                above = edges.earlier[node]
                credit(below, on, gone, z, level, above, points, t, w, out[place[edges.column[node]]])
                if not edges.is_right[node]:
                    break
                level -= 1


@kernel
def extend(
    product: NDArray[np.float64],
    on: NDArray[np.float64],
    gone: NDArray[np.float64],
    z: NDArray[np.float64],
    level: int,
    above: int,
    share: float,
    some_gone: bool,
    went: NDArray[np.float64],
    points: int,
    t: NDArray[np.float64],
) -> None:
    """Go down one edge: the factor of its column, or the quotient of the new one and the one ``above``."""
    before, now = product[level - 1], product[level]
    if above == 0:
        z[level] = share
        for r in range(LANES):
            on[level, r] = went[r]
        for q in range(points):
            stays, goes = share * (1.0 - t[q]), t[q]
            for r in range(LANES):
                now[q, r] = before[q, r] * (stays + went[r] * goes)
    else:
        z[level] = share * z[above]
        for r in range(LANES):
            on[level, r] = went[r] * on[above, r]
        for q in range(points):
            old_on = z[above] * (1.0 - t[q]) + t[q]
            stays = z[level] * (1.0 - t[q])
            both, left_it = (stays + t[q]) / old_on, stays / old_on
            for r in range(LANES):
                if on[level, r] > 0.5:
                    factor = both
                elif on[above, r] > 0.5:
                    factor = left_it
                else:
                    factor = share
                now[q, r] = before[q, r] * factor
    if some_gone:
        for q in range(points):
            for r in range(LANES):
                if gone[level, r] > 0.5:
                    now[q, r] = before[q, r] * share


@kernel
def credit(
    below: NDArray[np.float64],
    on: NDArray[np.float64],
    gone: NDArray[np.float64],
    z: NDArray[np.float64],
    level: int,
    above: int,
    points: int,
    t: NDArray[np.float64],
    w: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """Go back up one edge: credit its column with the leaves below, and hand their sum to the level above."""
    n_outputs = below.shape[2]
    for q in range(points):
        yes = w[q] * (1.0 - z[level]) / (z[level] * (1.0 - t[q]) + t[q])
        no = -w[q] / (1.0 - t[q])
        if above == 0:
            for k in range(n_outputs):
                for r in range(LANES):
                    value = below[level, q, k, r]
                    below[level - 1, q, k, r] += value
                    part = yes if on[level, r] > 0.5 else no
                    out[k, r] += value * part * (1.0 - gone[level, r])
        else:
            was = w[q] * (1.0 - z[above]) / (z[above] * (1.0 - t[q]) + t[q])
            for k in range(n_outputs):
                for r in range(LANES):
                    value = below[level, q, k, r]
                    below[level - 1, q, k, r] += value
                    if on[level, r] > 0.5:
                        part = yes - was
                    elif on[above, r] > 0.5:
                        part = no - was
                    else:
                        part = 0.0
                    out[k, r] += value * part * (1.0 - gone[level, r])
