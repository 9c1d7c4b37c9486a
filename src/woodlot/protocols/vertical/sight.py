"""One tree as one role knows it, some levels at a time.

The coordinator knows the shape, the answers of the leaves, and whose coded feature splits a node. A party knows the
shape and its own questions; whose the other nodes are it does not know. This is Figure 3 of the Federated Forest
paper. Where parties share their part of the model, the coordinator knows their questions too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest
from woodlot.trees.encoding import CategoryCoding
from woodlot.trees.forest import Structure

MAX_LEVELS = 8
"""Levels that are told at once; deeper ones when somebody asks for them."""
_TOP_CLASSES = 3
_SHOWN_CATEGORIES = 6


def sight_of_tree(
    part: CoordinatorForest | PartyForest,
    tree: int,
    root: int | None = None,
    levels: int = MAX_LEVELS,
    shared: Mapping[str, PartyForest] | None = None,
) -> dict[str, Any]:
    """A part of a tree, in plain values.

    Parameters
    ----------
    part : CoordinatorForest or PartyForest
        What the role has of the forest.
    tree : int
        Number of the tree, from 0.
    root : int, optional
        Node to begin at, by default the tree's root.
    levels : int
        How many levels to tell.
    shared : mapping, optional
        What parties have shared with the coordinator.

    Returns
    -------
    dict
        ``nodes``: of each its ``id``, whether it is a ``leaf``, its children ``left`` and ``right`` or how many nodes
        ``more`` are below it; and what the role knows of it.
    """
    structure = part.structure
    start, end = bounds_of_tree(structure, tree)
    root = start if root is None else root
    if not start <= root < end:
        raise DataError(f"node {root} is not in tree {tree}")
    nodes: list[dict[str, Any]] = []
    queue = [(root, 0)]
    limit = min(max(levels, 1), MAX_LEVELS)
    while queue:
        node, level = queue.pop()
        right = int(structure.right[node])
        fact: dict[str, Any] = {"id": node, "leaf": right < 0}
        if right >= 0:
            if level + 1 < limit:
                fact |= {"left": node + 1, "right": right}
                queue += [(right, level + 1), (node + 1, level + 1)]
            else:
                fact["more"] = subtree_end(structure, node) - node - 1
        nodes.append(fact)
    if isinstance(part, CoordinatorForest):
        _of_coordinator(part, nodes, shared or {})
    else:
        _of_party(part, nodes)
    return {"tree": tree, "root": root, "n_nodes": end - start, "nodes": nodes}


def subtree_end(structure: Structure, node: int) -> int:
    """The first node after all that is below this one, in preorder."""
    while structure.right[node] >= 0:
        node = int(structure.right[node])
    return node + 1


def bounds_of_tree(structure: Structure, tree: int) -> tuple[int, int]:
    """First node of a tree, and the first after it."""
    if not 0 <= tree < structure.n_trees:
        raise DataError(f"there is no tree {tree}; the forest has trees 0 to {structure.n_trees - 1}")
    return int(structure.offset[tree]), int(structure.offset[tree + 1])


def feature_names(forest: CoordinatorForest, known: Mapping[str, Sequence[str]]) -> list[str]:
    """What to call each feature: by its name where its party's columns are known, else by a code."""
    names = []
    for feature in range(len(forest.feature_keys)):
        party, own = forest.place_of(feature)
        columns = known.get(party, ())
        names.append(columns[own] if own < len(columns) else _code_of(forest, feature))
    return names


def _code_of(forest: CoordinatorForest, feature: int) -> str:
    return f"{int(forest.feature_keys[feature]):016x}"[:8]


def _of_coordinator(forest: CoordinatorForest, nodes: list[dict[str, Any]], shared: Mapping[str, PartyForest]) -> None:
    for fact in nodes:
        node = fact["id"]
        if not fact["leaf"]:
            owner, code = forest.parties[int(forest.owner[node])], _code_of(forest, int(forest.feature[node]))
            fact |= {"owner": owner, "gain": float(forest.gain[node])}
            fact |= _question(shared[owner], node) if owner in shared else {"code": code}
            continue
        leaf = int(forest.structure.leaf[node])
        begin, end = forest.leaves.start[leaf], forest.leaves.start[leaf + 1]
        values, outputs = forest.leaves.value[begin:end], forest.leaves.output[begin:end]
        fact["weight"] = float(forest.leaves.weight[leaf])
        if forest.classes:
            top = np.argsort(-values, kind="stable")[:_TOP_CLASSES]
            fact["answer"] = [[str(forest.classes[int(outputs[k])]), float(values[k])] for k in top]
        else:
            fact["answer"] = float(values[0]) if len(values) else None


def _of_party(part: PartyForest, nodes: list[dict[str, Any]]) -> None:
    for fact in nodes:
        fact |= {} if fact["leaf"] else _question(part, fact["id"])


def _question(part: PartyForest, node: int) -> dict[str, Any]:
    """What is asked at a node; nothing if that is not for this party to know."""
    own = part.splits.node
    place = int(np.searchsorted(own, node))
    if place == len(own) or own[place] != node:
        return {}
    feature = int(part.splits.feature[place])
    coding = part.codings[feature]
    if isinstance(coding, CategoryCoding):
        bits = part.splits.sets[part.splits.set_start[place] : part.splits.set_start[place + 1]]
        flags = np.unpackbits(bits, bitorder="little")[: len(coding.categories)]
        left = [str(coding.categories[c]) for c in np.flatnonzero(flags)]
        rest = f" and {len(left) - _SHOWN_CATEGORIES} more" if len(left) > _SHOWN_CATEGORIES else ""
        test = "is " + (" or ".join(left[:_SHOWN_CATEGORIES]) or "none") + rest
    else:
        test = f"≤ {part.splits.threshold[place]:.6g}"
    return {"name": part.names[feature], "missing_left": bool(part.splits.missing_left[place]), "test": test}
