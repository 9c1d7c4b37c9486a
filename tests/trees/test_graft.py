"""Grafted forests against the same done node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from woodlot.trees.forest import Structure, subtree_ends
from woodlot.trees.graft import Sketch, graft
from woodlot.trees.kernels.branches import answer_numbers, answer_sets

Tree = Any  # a leaf is its label; an inner node (label, left, right)


def trees(depth: int = 4) -> st.SearchStrategy[Tree]:
    return st.recursive(st.none(), lambda below: st.tuples(below, below), max_leaves=2**depth)


def structure(roots: list[Tree]) -> Structure:
    offset, right = [0], []

    def add(tree: Tree) -> None:
        right.append(-1)
        if tree is not None:
            node = len(right) - 1
            add(tree[0])
            right[node] = len(right)
            add(tree[1])

    for root in roots:
        add(root)
        offset.append(len(right))
    return Structure(np.array(offset, np.int64), np.array(right, np.int32))


def ends_one_by_one(right: list[int]) -> list[int]:
    def end(node: int) -> int:
        return node + 1 if right[node] < 0 else end(right[node])

    return [end(node) for node in range(len(right))]


@given(st.lists(trees(), min_size=1, max_size=4))
def test_ends_of_branches(roots: list[Tree]) -> None:
    right = structure(roots).right
    right.flags.writeable = False  # as in a model that was read from a file
    assert subtree_ends(right).tolist() == ends_one_by_one(right.tolist())


@st.composite
def sketches(draw: st.DrawFn) -> tuple[Structure, Sketch, list[Any]]:
    """A former forest, a sketch, and the grafted trees with the origin of every node."""
    roots = draw(st.lists(trees(), min_size=1, max_size=4))
    former = structure(roots)
    chosen = [tree for tree in range(len(roots)) if draw(st.booleans())]
    right, origin, settled, offset = [], [], [], [0]
    grafted: list[list[tuple[str, int]]] = []

    def whole(node: int, end: int) -> list[tuple[str, int]]:
        return [("former", k) for k in range(node, end)]

    def new(tree: Tree) -> list[tuple[str, int]]:
        at = len(right)
        right.append(-1), origin.append(-1), settled.append(False)
        order = [("sketch", at)]
        if tree is not None:
            order += new(tree[0])
            right[at] = len(right)
            order += new(tree[1])
        return order

    def add(node: int, ends: list[int]) -> list[tuple[str, int]]:
        inner = former.right[node] >= 0
        kind = draw(st.sampled_from(["settled", "new", "kept"] if inner else ["settled", "new"]))
        if kind == "new":
            return new(draw(trees(2)))
        at = len(right)
        right.append(-1), origin.append(node), settled.append(kind == "settled")
        if kind == "settled":
            return whole(node, ends[node])
        order = [("former", node), *add(node + 1, ends)]
        right[at] = len(right)
        return order + add(int(former.right[node]), ends)

    ends = ends_one_by_one(former.right.tolist())
    for tree in range(len(roots)):
        first, last = former.offset[tree], former.offset[tree + 1]
        if tree in chosen:
            grafted.append(add(int(first), ends))
            offset.append(len(right))
        else:
            grafted.append(whole(int(first), int(last)))
    sketch = Sketch(
        np.array(chosen, np.int64),
        Structure(np.array(offset, np.int64), np.array(right, np.int32)),
        np.array(origin, np.int64),
        np.array(settled, bool),
    )
    return former, sketch, grafted


@given(sketches())
def test_branches_stand_where_they_belong(given_: tuple[Structure, Sketch, list[Any]]) -> None:
    former, sketch, grafted = given_
    found = graft(former, sketch)
    order = [node for tree in grafted for node in tree]
    assert found.structure.offset.tolist() == np.cumsum([0, *(len(tree) for tree in grafted)]).tolist()
    for place, (kind, node) in enumerate(order):
        assert (found.of_former if kind == "former" else found.of_sketch)[node] == place
    gone = set(range(former.n_nodes)) - {node for kind, node in order if kind == "former"}
    assert (found.of_former[sorted(gone)] == -1).all()
    # every tree is whole: right children and leaves are where preorder puts them
    kept = {int(found.of_former[o]): k for k, o in enumerate(sketch.former) if o >= 0 and not sketch.settled[k]}
    for place, (kind, node) in enumerate(order):
        if kind == "sketch" or place in kept:
            k = node if kind == "sketch" else kept[place]
            below = int(sketch.structure.right[k])
            assert found.structure.right[place] == (-1 if below < 0 else found.of_sketch[below])
        else:
            below = int(former.right[node])
            assert found.structure.right[place] == (-1 if below < 0 else found.of_former[below])


@given(st.integers(0, 2**32 - 1))
def test_splits_are_carried_out_again_row_by_row(seed: int) -> None:
    """On numbers and on categories, with values missing and categories that a set does not cover."""
    rng = np.random.default_rng(seed)
    n, nodes = 40, int(rng.integers(1, 5))
    rows = rng.integers(0, n, 30).astype(np.uint32)
    bounds = np.sort(rng.integers(0, 31, nodes + 1))
    start, end = bounds[:-1].astype(np.int64), bounds[1:].astype(np.int64)
    first, missing_left = start - start[0], rng.integers(0, 2, nodes).astype(np.uint8)
    node = np.repeat(np.arange(nodes), end - start)
    asked = rows[start[0] : end[-1]]

    values = rng.integers(-3, 4, n).astype(np.float32)
    values[rng.random(n) < 0.2] = np.nan
    threshold = rng.integers(-3, 4, nodes).astype(np.float64)
    flags = np.full(len(node), 9, np.uint8)
    answer_numbers(values, rows, start, end, first, threshold, missing_left, flags)
    told = [
        missing_left[k] if np.isnan(values[r]) else values[r] <= threshold[k] for k, r in zip(node, asked, strict=True)
    ]
    assert flags.tolist() == [int(each) for each in told]

    codes = rng.integers(-1, 30, n).astype(np.int32)
    left_sets = [rng.random(8 * int(rng.integers(0, 4))) < 0.5 for _ in range(nodes)]
    sets = np.concatenate([np.packbits(each, bitorder="little") for each in left_sets])
    lengths = np.array([len(each) // 8 for each in left_sets])
    stops = np.cumsum(lengths).astype(np.int64)
    answer_sets(codes, rows, start, end, first, stops - lengths, stops, sets, missing_left, flags)
    told = [
        left_sets[k][codes[r]] if 0 <= codes[r] < len(left_sets[k]) else missing_left[k]
        for k, r in zip(node, asked, strict=True)
    ]
    assert flags.tolist() == [int(each) for each in told]
