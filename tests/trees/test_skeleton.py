"""The growing shape against a tree of plain objects, and the finished structure."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.trees.kernels.hashing import child_key
from woodlot.trees.skeleton import Skeleton


@dataclass(eq=False)
class Node:
    number: int
    key: int
    root: Node | None = None
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)

    def preorder(self, cut: set[int]) -> list[Node]:
        below = [] if self.number in cut else self.children
        return [self, *(node for child in below for node in child.preorder(cut))]


def grow(rng: np.random.Generator, n_trees: int, n_levels: int) -> tuple[Skeleton, list[Node]]:
    """Grow a skeleton at random, and the same trees by hand."""
    keys = rng.integers(0, 2**64, n_trees, dtype=np.uint64)
    skeleton = Skeleton(keys)
    nodes = [Node(i, int(keys[i])) for i in range(n_trees)]
    front = list(nodes)
    for depth in range(n_levels):
        assert skeleton.depth == depth
        is_open = rng.random(len(front)) < 0.9
        skeleton.keep_open(is_open)
        front = [node for node, keep in zip(front, is_open, strict=True) if keep]
        check_front(skeleton, front)
        is_split = rng.random(len(front)) < 0.7
        made = skeleton.split(is_split)
        after = []
        for node in (node for node, split in zip(front, is_split, strict=True) if split):
            for side in (0, 1):
                child = Node(len(nodes), int(child_key(np.uint64(node.key), side)), node.root or node, node)
                nodes.append(child)
                node.children.append(child)
                after.append(child)
        assert made.tolist() == [node.number for node in after]
        front = after
        check_front(skeleton, front)
    return skeleton, nodes


def check_front(skeleton: Skeleton, front: list[Node]) -> None:
    assert skeleton.frontier.tolist() == [node.number for node in front]
    assert skeleton.key.tolist() == [node.key for node in front]
    assert skeleton.root_key.tolist() == [(node.root or node).key for node in front]


@given(seed=st.integers(0, 2**32), n_trees=st.integers(1, 5), n_levels=st.integers(0, 6), prune=st.booleans())
@settings(max_examples=100, deadline=None, derandomize=True)
def test_growing_and_finishing(seed: int, n_trees: int, n_levels: int, prune: bool) -> None:
    rng = np.random.default_rng(seed)
    skeleton, nodes = grow(rng, n_trees, n_levels)
    inner = [node for node in nodes if node.children]
    assert sorted(skeleton.split_nodes.tolist()) == [node.number for node in inner]
    assert skeleton.left.tolist() == [node.children[0].number if node.children else -1 for node in nodes]
    cut = {node.number for node in inner if prune and rng.random() < 0.3}
    structure, position = skeleton.finish(np.array(sorted(cut), np.int64))

    order = [node.preorder(cut) for node in nodes[:n_trees]]
    flat = [node for tree in order for node in tree]
    assert structure.offset.tolist() == [0, *np.cumsum([len(tree) for tree in order]).tolist()]
    place = {node.number: i for i, node in enumerate(flat)}
    assert position.tolist() == [place.get(node.number, -1) for node in nodes]
    for i, node in enumerate(flat):
        if node.children and node.number not in cut:
            assert flat[i + 1] is node.children[0]
            assert structure.right[i] == place[node.children[1].number]
        else:
            assert structure.right[i] == -1

    heirs = skeleton.surviving_ancestor(position)
    for node in nodes:
        heir = node
        while heir.number not in place:
            assert heir.parent is not None
            heir = heir.parent
        assert heirs[node.number] == heir.number


def test_a_node_has_its_key_whatever_grows_beside_it() -> None:
    keys = np.array([5, 6], np.uint64)
    both, alone = Skeleton(keys), Skeleton(keys[1:])
    both.split(np.array([True, True]))
    alone.split(np.array([True]))
    np.testing.assert_array_equal(both.key[2:], alone.key)


@pytest.mark.parametrize("n_trees", [1, 3])
def test_roots_only(n_trees: int) -> None:
    skeleton = Skeleton(np.arange(n_trees, dtype=np.uint64))
    structure, position = skeleton.finish(np.empty(0, np.int64))
    assert structure.right.tolist() == [-1] * n_trees
    assert position.tolist() == list(range(n_trees))
    assert structure.leaf.tolist() == list(range(n_trees))
