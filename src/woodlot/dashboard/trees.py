"""One tree as one role knows it, some levels at a time, and the way of one row through it.

The coordinator knows the shape, the answers of the leaves, and whose coded feature splits a node. A party knows the
shape and its own questions; whose the other nodes are it does not know. This is Figure 3 of the Federated Forest
paper.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.dashboard.views import CoordinatorView, PartyView
from woodlot.data.tables import Table
from woodlot.exceptions import DataError
from woodlot.protocols.vertical.answers import match_columns
from woodlot.protocols.vertical.model import CoordinatorForest, PartyForest
from woodlot.trees.encoding import CategoryCoding
from woodlot.trees.forest import Structure
from woodlot.trees.stepwise import answer_questions

MAX_LEVELS = 8
"""Levels that are sent at once; deeper ones are loaded when somebody asks for them."""
MAX_PATH = 20_000
"""Nodes of a row's way that are shown."""
_TOP_CLASSES = 3
_SHOWN_CATEGORIES = 6


def draw(view: CoordinatorView | PartyView, model: str, tree: int, root: int | None, levels: int) -> dict[str, Any]:
    """A part of a tree, as JSON.

    Parameters
    ----------
    view : CoordinatorView or PartyView
        The role.
    model : str
        The model.
    tree : int
        Number of the tree, from 0.
    root : int, optional
        Node to begin at, by default the tree's root.
    levels : int
        How many levels to send.
    """
    part = view.forest(model) if isinstance(view, CoordinatorView) else view.part(model)
    structure = part.structure
    start, end = _bounds(structure, tree)
    root = start if root is None else root
    if not start <= root < end:
        raise DataError(f"node {root} is not in tree {tree + 1}")
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
        _of_coordinator(part, nodes)
    else:
        _of_party(part, nodes)
    return {"tree": tree, "root": root, "n_nodes": end - start, "nodes": nodes}


def subtree_end(structure: Structure, node: int) -> int:
    """The first node after all that is below this one, in preorder."""
    while structure.right[node] >= 0:
        node = int(structure.right[node])
    return node + 1


def _bounds(structure: Structure, tree: int) -> tuple[int, int]:
    if not 0 <= tree < structure.n_trees:
        raise DataError(f"there is no tree {tree + 1}; the forest has {structure.n_trees}")
    return int(structure.offset[tree]), int(structure.offset[tree + 1])


def _of_coordinator(forest: CoordinatorForest, nodes: list[dict[str, Any]]) -> None:
    for fact in nodes:
        node = fact["id"]
        if not fact["leaf"]:
            feature = int(forest.feature[node])
            fact |= {
                "owner": forest.parties[int(forest.owner[node])],
                "code": f"{int(forest.feature_keys[feature]):016x}"[:8],
                "gain": float(forest.gain[node]),
            }
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
    own = part.splits.node
    for fact in nodes:
        place = int(np.searchsorted(own, fact["id"]))
        if fact["leaf"] or place == len(own) or own[place] != fact["id"]:
            continue
        feature = int(part.splits.feature[place])
        fact |= {"name": part.names[feature], "missing_left": bool(part.splits.missing_left[place])}
        coding = part.codings[feature]
        if isinstance(coding, CategoryCoding):
            bits = part.splits.sets[part.splits.set_start[place] : part.splits.set_start[place + 1]]
            flags = np.unpackbits(bits, bitorder="little")[: len(coding.categories)]
            left = [str(coding.categories[c]) for c in np.flatnonzero(flags)]
            rest = f" and {len(left) - _SHOWN_CATEGORIES} more" if len(left) > _SHOWN_CATEGORIES else ""
            fact["test"] = "is " + (" or ".join(left[:_SHOWN_CATEGORIES]) or "none") + rest
        else:
            fact["test"] = f"≤ {part.splits.threshold[place]:.6g}"


# --- the way of one row ---


def way_at_party(view: PartyView, model: str, tree: int, table: str, row: int) -> list[int]:
    """Nodes that a row of the party's table may come through, as far as this party knows.

    At its own nodes it knows the side; at all others both are possible.
    """
    part = view.part(model)
    loaded = view.loaded(table)
    if not 0 <= row < loaded.n_rows:
        raise DataError(f"table {table!r} has rows 0 to {loaded.n_rows - 1}, not {row}")
    return _reachable(part, tree, loaded.table().take(np.array([row])))


def way_at_coordinator(parties: list[PartyView], model: str, tree: int, alignment: str, row: int) -> list[int]:
    """The nodes that all parties' answers leave possible: what one-round prediction tells the coordinator of a row."""
    ways = []
    for view in parties:
        table, rows = view.alignment(alignment)
        if not 0 <= row < len(rows):
            raise DataError(f"the alignment has rows 0 to {len(rows) - 1}, not {row}")
        ways.append(set(way_at_party(view, model, tree, table, int(rows[row]))))
    return sorted(set.intersection(*ways)) if ways else []


def _reachable(part: PartyForest, tree: int, row: Table) -> list[int]:
    structure, (start, end) = part.structure, _bounds(part.structure, tree)
    own = part.splits.node[(part.splits.node >= start) & (part.splits.node < end)]
    columns = match_columns(part.names, part.codings, row)
    goes_right: dict[int, bool] = {}
    if len(own):
        bits = answer_questions(structure, part.splits, columns, np.zeros(len(own), np.int32), own)
        flags = np.unpackbits(bits, bitorder="little")[: len(own)]
        goes_right = {int(node): bool(flag) for node, flag in zip(own, flags, strict=True)}
    reached: list[int] = []
    queue = [start]
    while queue and len(reached) < MAX_PATH:
        node = queue.pop()
        reached.append(node)
        right = int(structure.right[node])
        if right < 0:
            continue
        side = goes_right.get(node)
        queue += ([right] if side is not False else []) + ([node + 1] if side is not True else [])
    return sorted(reached)
