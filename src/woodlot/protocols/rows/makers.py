"""Who has found which split of a tree that goes round the clients."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.trees.alone import WholeTrees

Made: TypeAlias = NDArray[np.int16]
"""For each node the number of the client that has split it, -1 for a leaf."""


def nobody(trees: WholeTrees) -> Made:
    """Of trees without a split."""
    return np.full(trees.structure.n_nodes, -1, np.int16)


def grown_on(given: WholeTrees, makers: Made, grown: WholeTrees, client: int, name: str) -> Made:
    """Who has made the nodes of trees that a client has grown on.

    Raises
    ------
    RemoteProtocolError
        Where a split that was given is not there any more.
    """
    place = np.full(given.structure.n_nodes, -1, np.int64)  # of each given node among the grown ones
    level = given.structure.offset[:-1]
    place[level] = grown.structure.offset[:-1]
    while len(level):
        level = level[given.structure.right[level] >= 0]
        there = place[level]
        if (grown.structure.right[there] < 0).any():
            raise RemoteProtocolError(f"{name} has cut trees that it was to grow on")
        right = given.structure.right[level]
        place[level + 1], place[right] = there + 1, grown.structure.right[there]
        level = np.concatenate([level + 1, right])
    inner = np.flatnonzero(given.structure.right >= 0)  # in the order of the splits
    at = np.searchsorted(grown.splits.node, place[inner])
    same = (grown.splits.feature[at] == given.splits.feature) & (grown.splits.threshold[at] == given.splits.threshold)
    if not (same | (np.isnan(grown.splits.threshold[at]) & np.isnan(given.splits.threshold))).all():
        raise RemoteProtocolError(f"{name} has changed splits that it was given")
    made = np.where(grown.structure.right >= 0, client, -1).astype(np.int16)
    made[place[inner]] = makers[inner]
    return made
