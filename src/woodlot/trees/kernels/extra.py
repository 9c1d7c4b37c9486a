"""Extremely randomised trees: counting what candidate questions do to the rows of a node, and drawing the candidates.

The client has the rows of all trees in one array, partitioned by node. A level asks the same number of candidate
questions at every open node::

    node            |------ 0 ------|------ 1 ------|          start, end: its rows in ``rows``
    question        |  0    1    2  |  3    4    5  |          number = node * width + candidate
    counts          (nodes, width, cells)                      what goes left, in cells of classes, bits or sums

A question is on numbers (``value <= threshold``), or on categories (a set, one bit per code). A feature of -1 stands
for no question.

``values`` is float32 (columns, rows); categories are codes, NaN is missing. Kernels with ``first`` and ``last`` work on
the nodes in between: a thread's share.

The coordinator draws the questions. What it knows of a node's values are facts that have been released: the splits
above it, and candidates that left one side empty. Facts stand in linked lists; the list of a node goes on with its
parent's, so that children share it. ``head`` (nodes,) is the first fact of each open node, -1 for none. A position on
a feature's axis says where between the feature's public knots a threshold lies (``trees.extra.Axes``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from woodlot.trees.kernels._jit import kernel
from woodlot.trees.kernels.hashing import mix, place

I64: Any = np.int64
U64: Any = np.uint64
U8: Any = np.uint8

GINI, ENTROPY, SQUARED_ERROR = 0, 1, 2


class Questions(NamedTuple):
    """Candidate questions, node after node; arrays of equal length but for the sets."""

    feature: Any
    """int32; -1: no question."""
    threshold: Any
    """float64; NaN on categories."""
    missing_left: Any
    """uint8."""
    set_start: Any
    """int64, one more: the set of question j is ``sets[set_start[j] : set_start[j + 1]]``."""
    sets: Any
    """uint8; bit c sends code c left."""


@kernel
def flag_rows(values: Any, rows: Any, start: Any, end: Any, questions: Any, j: Any, flags: Any) -> None:
    """Whether each row of a node goes left by question ``j``; flags are written from 0 on."""
    column = values[questions.feature[j]]
    first = questions.set_start[j]
    size = questions.set_start[j + 1] - first
    missing = U8(questions.missing_left[j])
    s = U64(start)
    n = U64(end) - s
    if size == 0:
        threshold = questions.threshold[j]
        for i in range(n):
            x = np.float64(column[rows[s + i]])
            flags[i] = U8(x <= threshold) | (U8(x != x) & missing)
        return
    for i in range(n):
        x = column[rows[s + i]]
        flags[i] = missing
        if x == x:
            code = I64(x)
            flags[i] = (questions.sets[first + (code >> 3)] >> U8(code & 7)) & U8(1)


@kernel
def _largest(start: Any, end: Any, first: Any, last: Any) -> Any:
    """Rows of the largest of some nodes."""
    most = I64(0)
    for node in range(first, last):
        most = max(most, I64(end[node] - start[node]))
    return most


@kernel
def count_classes(
    values: Any,
    rows: Any,
    start: Any,
    end: Any,
    questions: Any,
    labels: Any,
    first: Any,
    last: Any,
    counts: Any,
) -> None:
    """Rows of each class that go left; ``counts`` of zeros is (nodes, width, classes)."""
    most = _largest(start, end, first, last)
    flags = np.empty(most, np.uint8)
    label = np.empty(most, np.int32)
    width = counts.shape[1]
    for node in range(first, last):
        s = U64(start[node])
        n = U64(end[node]) - s
        for i in range(n):
            label[i] = labels[rows[s + i]]
        for c in range(width):
            j = node * width + c
            if questions.feature[j] < 0:
                continue
            flag_rows(values, rows, start[node], end[node], questions, j, flags)
            cells = counts[node, c]
            for i in range(n):
                cells[label[i]] += I64(flags[i])


@kernel
def count_tokens(
    values: Any,
    rows: Any,
    start: Any,
    end: Any,
    questions: Any,
    token_start: Any,
    tokens: Any,
    first: Any,
    last: Any,
    counts: Any,
) -> None:
    """Rows that go left, and sums of their bits; ``counts`` of zeros is (nodes, width, 1 + bits), rows first.

    Labels under local privacy are vectors of randomised bits: the bits of row r that are 1 are
    ``tokens[token_start[r] : token_start[r + 1]]``.
    """
    flags = np.empty(_largest(start, end, first, last), np.uint8)
    width = counts.shape[1]
    for node in range(first, last):
        s = U64(start[node])
        n = U64(end[node]) - s
        for c in range(width):
            j = node * width + c
            if questions.feature[j] < 0:
                continue
            flag_rows(values, rows, start[node], end[node], questions, j, flags)
            cells = counts[node, c]
            for i in range(n):
                if flags[i]:
                    cells[0] += 1
                    r = rows[s + i]
                    for t in range(token_start[r], token_start[r + 1]):
                        cells[1 + tokens[t]] += 1


@kernel
def count_targets(
    values: Any,
    rows: Any,
    start: Any,
    end: Any,
    questions: Any,
    targets: Any,
    first: Any,
    last: Any,
    counts: Any,
) -> None:
    """Rows that go left, and the sum of their whole-numbered targets; ``counts`` of zeros is (nodes, width, 2)."""
    flags = np.empty(_largest(start, end, first, last), np.uint8)
    width = counts.shape[1]
    for node in range(first, last):
        s = U64(start[node])
        n = U64(end[node]) - s
        for c in range(width):
            j = node * width + c
            if questions.feature[j] < 0:
                continue
            flag_rows(values, rows, start[node], end[node], questions, j, flags)
            cells = counts[node, c]
            for i in range(n):
                cells[0] += I64(flags[i])
                cells[1] += I64(flags[i]) * targets[rows[s + i]]


@kernel
def split_rows(
    values: Any, rows: Any, start: Any, end: Any, questions: Any, chosen: Any, first: Any, last: Any, middle: Any
) -> None:
    """Partition the rows of nodes by their chosen question (-1: none), stably and in place.

    ``middle`` gets where the right child begins.
    """
    most = _largest(start, end, first, last)
    flags = np.empty(most, np.uint8)
    spare = np.empty(most, np.uint32)
    for node in range(first, last):
        j = chosen[node]
        if j < 0:
            continue
        flag_rows(values, rows, start[node], end[node], questions, j, flags)
        s = U64(start[node])
        left = s
        right = U64(0)
        for i in range(U64(end[node]) - s):
            row = rows[s + i]
            # both are written always and only one index moves on: no branch to mispredict
            rows[left] = row
            spare[right] = row
            left += U64(flags[i])
            right += U64(1) - U64(flags[i])
        for i in range(right):
            rows[left + i] = spare[i]
        middle[node] = left


@kernel
def value_ranges(values: Any, rows: Any, start: Any, end: Any, feature: Any, width: Any, low: Any, high: Any) -> None:
    """Smallest and largest value of each asked feature among the rows of each node; NaN where there is none."""
    for j in range(len(feature)):
        low[j] = np.nan
        high[j] = np.nan
        if feature[j] < 0:
            continue
        node = j // width
        column = values[feature[j]]
        for i in range(U64(start[node]), U64(end[node])):
            x = np.float64(column[rows[i]])
            if x == x:
                low[j] = x if not low[j] <= x else low[j]  # also true while low is NaN
                high[j] = x if not high[j] >= x else high[j]


# --- the coordinator ---


class Facts(NamedTuple):
    """What is known of values, in lists: an entry names the one before it, -1 the end."""

    next: Any
    """int64."""
    feature: Any
    """int32."""
    at: Any
    """float64: a position on the feature's axis."""
    upper: Any
    """uint8; 1: no value lies above, 0: none lies below."""


@kernel
def add_facts(place: Any, feature: Any, at: Any, upper: Any, head: Any, facts: Any, first: Any) -> None:
    """Put new facts, numbered from ``first`` on, before those that their nodes have already."""
    for i in range(len(place)):
        number = first + i
        facts.next[number] = head[place[i]]
        facts.feature[number] = feature[i]
        facts.at[number] = at[i]
        facts.upper[number] = upper[i]
        head[place[i]] = number


@kernel
def unit(key: Any) -> Any:
    """A number above 0 and below 1 from a key."""
    return (np.float64(mix(key) >> U64(11)) + 0.5) * 2.0**-53


@kernel
def first_places(places: Any, n: Any, order: Any) -> None:
    """The features that come first in a node's order: all of them, or few, which then need no sorting of the rest."""
    p = len(places)
    if n == p:
        order[:] = np.argsort(places)
        return
    for k in range(n):
        best = -1
        for f in range(p):
            if (k == 0 or places[f] > places[order[k - 1]]) and (best < 0 or places[f] < places[best]):
                best = f
        order[k] = best


@kernel
def draw_questions(
    keys: Any,
    attempts: Any,
    width: Any,
    feature_keys: Any,
    tops: Any,
    head: Any,
    facts: Any,
    feature: Any,
    position: Any,
    draw: Any,
) -> None:
    """Candidates of each node: features, positions on their axes, and a key for what else is drawn (sets, missing).

    Features come in the node's own order; one on which all rows are known to be alike is passed over. An attempt that
    failed is followed by the next features: attempt t begins ``t * width`` features further on, and begins again at the
    first when all were tried. ``tops`` has the length of each feature's axis, -1 for categories, 0 for a
    feature that cannot be asked. ``feature`` is filled with -1 before.
    """
    p = len(feature_keys)
    places = np.empty(p, np.uint64)
    order = np.empty(p, np.int64)
    low = np.empty(p)
    high = np.empty(p)
    for i in range(len(keys)):
        for f in range(p):
            places[f] = place(keys[i], feature_keys[f])
            low[f] = 0.0
            high[f] = tops[f]
        fact = head[i]
        while fact >= 0:
            f = facts.feature[fact]
            if facts.upper[fact]:
                high[f] = min(high[f], facts.at[fact])
            else:
                low[f] = max(low[f], facts.at[fact])
            fact = facts.next[fact]
        ranked = (attempts[i] + 2) * width
        if 4 * ranked > p:
            ranked = p
        first_places(places, ranked, order)
        found = 0
        for step in range(p):
            if found == width:
                break
            rank = (step + attempts[i] * width) % p
            if rank >= ranked:  # many features were passed over: sort them all after all
                ranked = p
                first_places(places, ranked, order)
            f = order[rank]
            if tops[f] == 0 or (tops[f] > 0 and not low[f] < high[f]):
                continue
            j = i * width + found
            key = mix(places[f] ^ (U64(0xD1342543DE82EF95) * U64(attempts[i] + 1)))
            feature[j] = f
            draw[j] = key
            position[j] = low[f] + (high[f] - low[f]) * unit(key)
            found += 1


@kernel
def draw_sets(draw: Any, feature: Any, category_start: Any, category_keys: Any, set_start: Any, sets: Any) -> None:
    """For every question on categories a random set; the bit behind the last category is that of missing values."""
    for j in range(len(feature)):
        if set_start[j] == set_start[j + 1]:
            continue
        f = feature[j]
        n = category_start[f + 1] - category_start[f]
        for c in range(n + 1):
            bit = mix(draw[j] ^ category_keys[category_start[f] + c]) if c < n else draw[j]
            sets[set_start[j] + (c >> 3)] |= U8((bit >> U64(32)) & U64(1)) << U8(c & 7)


@kernel
def _class_score(cells: Any, n: Any, criterion: Any) -> Any:
    """The negative weighted impurity of one side, up to a constant: larger is purer. ``n`` is the weight."""
    total = 0.0
    if criterion == GINI:
        for k in range(len(cells)):
            total += cells[k] * cells[k]
        return total / n
    for k in range(len(cells)):
        if cells[k] > 0:
            total += cells[k] * np.log2(cells[k] / n)
    return total


@kernel
def choose_questions(
    left: Any,
    right: Any,
    n_left: Any,
    n_right: Any,
    feature: Any,
    criterion: Any,
    min_leaf: Any,
    best: Any,
) -> None:
    """The best candidate of each node, the first of equals; -1 where none leaves enough rows on both sides.

    ``left`` and ``right`` are float64 (nodes, width, cells): counts of classes, or one sum of targets. Targets that
    are equal on both sides improve nothing: such a candidate is not taken.
    """
    nodes, width = n_left.shape
    for node in range(nodes):
        best[node] = -1
        top = -np.inf
        for c in range(width):
            nl = n_left[node, c]
            nr = n_right[node, c]
            if feature[node * width + c] < 0 or nl < min_leaf or nr < min_leaf:
                continue
            if criterion == SQUARED_ERROR:
                apart = left[node, c, 0] / nl - right[node, c, 0] / nr
                score = nl * nr / (nl + nr) * apart * apart
                if score == 0:
                    continue
            else:
                score = _class_score(left[node, c], nl, criterion) + _class_score(right[node, c], nr, criterion)
            if score > top:
                top = score
                best[node] = c
