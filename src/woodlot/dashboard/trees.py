"""A tree as one role knows it, and the way of one row through it, as far as the role knows it."""

from __future__ import annotations

from typing import Any

import numpy as np

from woodlot.dashboard.party_view import PartyView
from woodlot.dashboard.views import CoordinatorView
from woodlot.data.tables import Table
from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_parts import PartyForest
from woodlot.protocols.vertical.answers import match_columns
from woodlot.protocols.vertical.sight import sight_of_tree
from woodlot.trees.stepwise import answer_questions

MAX_PATH = 20_000
"""Nodes of a row's way that are shown."""


def draw(view: CoordinatorView | PartyView, model: str, tree: int, root: int | None, levels: int) -> dict[str, Any]:
    """Some levels of a tree of a model, as JSON; see `sight_of_tree`. Nodes are counted from the tree's root."""
    if isinstance(view, CoordinatorView):
        forest, shared = view.tree(model, tree)
        seen = sight_of_tree(forest, 0, root, levels, shared)
    else:
        seen = sight_of_tree(view.tree(model, tree), 0, root, levels)
    return seen | {"tree": tree}


def way_at_party(view: PartyView, model: str, tree: int, table: str, row: int) -> list[int]:
    """Nodes that a row of the party's table may come through, as far as this party knows.

    At its own nodes it knows the side; at all others both are possible.
    """
    part = view.tree(model, tree)
    loaded = view.loaded(table)
    if not 0 <= row < loaded.n_rows:
        raise DataError(f"table {table!r} has rows 0 to {loaded.n_rows - 1}, not {row}")
    return _reachable(part, loaded.table().take(np.array([row])))


def way_at_coordinator(parties: list[PartyView], model: str, tree: int, alignment: str, row: int) -> list[int]:
    """The nodes that all parties' answers leave possible: what one-round prediction tells the coordinator of a row."""
    ways = []
    for view in parties:
        table, rows = view.alignment(alignment)
        if not 0 <= row < len(rows):
            raise DataError(f"the alignment has rows 0 to {len(rows) - 1}, not {row}")
        ways.append(set(way_at_party(view, model, tree, table, int(rows[row]))))
    return sorted(set.intersection(*ways)) if ways else []


def _reachable(part: PartyForest, row: Table) -> list[int]:
    """The nodes, in a forest of one tree."""
    structure, own = part.structure, part.splits.node
    columns = match_columns(part.names, part.codings, row)
    goes_right: dict[int, bool] = {}
    if len(own):
        bits = answer_questions(structure, part.splits, columns, np.zeros(len(own), np.int32), own)
        flags = np.unpackbits(bits, bitorder="little")[: len(own)]
        goes_right = {int(node): bool(flag) for node, flag in zip(own, flags, strict=True)}
    reached: list[int] = []
    queue = [0]
    while queue and len(reached) < MAX_PATH:
        node = queue.pop()
        reached.append(node)
        right = int(structure.right[node])
        if right < 0:
            continue
        side = goes_right.get(node)
        queue += ([right] if side is not False else []) + ([node + 1] if side is not True else [])
    return sorted(reached)
