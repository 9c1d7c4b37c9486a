"""Cost-complexity pruning against its definition: the weakest link is taken away, again and again."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.trees.best_first import best_first
from woodlot.trees.cost_complexity import splits_to_prune, worthwhile
from woodlot.trees.skeleton import Skeleton


def grown(choices: list[list[bool]], n_trees: int) -> Skeleton:
    """Trees of any shape."""
    skeleton = Skeleton(np.arange(n_trees, dtype=np.uint64))
    for level in choices:
        is_split = np.resize(np.array(level, bool), len(skeleton.frontier))
        if not is_split.any():
            break
        skeleton.split(is_split)
    return skeleton


def weakest_links(left: np.ndarray, gain: dict[int, int], root: int, alpha: int) -> set[int]:
    """The splits that stay in one tree; in whole numbers, so that equal links are equal."""

    def branch(node: int) -> list[int]:
        return [node, *branch(int(left[node])), *branch(int(left[node]) + 1)] if node in standing else []

    standing = set(gain)
    standing &= set(branch(root))
    while standing:
        links = {node: (sum(gain[n] for n in branch(node)), len(branch(node))) for node in standing}
        weakest = min(links, key=lambda node: (links[node][0] / links[node][1], node))
        if links[weakest][0] > alpha * links[weakest][1]:
            break
        standing -= set(branch(weakest))
    return standing


@settings(deadline=None)
@given(
    st.lists(st.lists(st.booleans(), min_size=1, max_size=6), min_size=1, max_size=5),
    st.integers(1, 3),
    st.integers(0, 2**32 - 1),
    st.integers(0, 12),
)
def test_what_stays_is_what_the_weakest_links_leave(
    choices: list[list[bool]], n_trees: int, seed: int, alpha: int
) -> None:
    skeleton = grown(choices, n_trees)
    left, nodes = skeleton.left, skeleton.split_nodes
    gain = np.full(skeleton.n_nodes, np.nan)
    gain[nodes] = np.random.default_rng(seed).integers(0, 16, len(nodes))
    stays = worthwhile(n_trees, left, gain, alpha)
    expected: set[int] = set()
    for root in range(n_trees):
        expected |= weakest_links(left, {int(n): int(gain[n]) for n in nodes}, root, alpha)
    reached = {int(n) for n in nodes if stays[n]}
    parent = {int(c): int(n) for n in nodes for c in (left[n], left[n] + 1)}
    reached = {n for n in reached if all(above in reached for above in _above(n, parent))}
    assert reached == expected


def _above(node: int, parent: dict[int, int]) -> list[int]:
    return [parent[node], *_above(parent[node], parent)] if node in parent else []


def test_nothing_is_pruned_without_a_rule_and_both_rules_go_together() -> None:
    skeleton = grown([[True]] * 4, 2)
    gain = np.full(skeleton.n_nodes, np.nan)
    gain[skeleton.split_nodes] = np.linspace(1.0, 0.01, len(skeleton.split_nodes))
    assert len(splits_to_prune(skeleton, gain, None, 0.0)) == 0
    by_leaves = set(splits_to_prune(skeleton, gain, 6, 0.0).tolist())
    both = set(splits_to_prune(skeleton, gain, 6, 0.9).tolist())
    assert by_leaves < both
    chosen = best_first(2, skeleton.left, gain, 6)
    assert set(skeleton.split_nodes[~chosen[skeleton.split_nodes]].tolist()) == by_leaves
    assert len(splits_to_prune(skeleton, gain, None, 10.0)) == len(skeleton.split_nodes)
