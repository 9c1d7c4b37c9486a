"""What the messages of a revocable forest's construction tell: labels to participants, values to the coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.leaks.case import Told
from woodlot.leaks.role_views import OTHERS, LeafRows, SplitRows, View
from woodlot.protocols.core.bits import unpack
from woodlot.protocols.revocable.growth_messages import ExpandLeaves, OpenConstruction, ParticipantSummary, SplitVectors
from woodlot.protocols.revocable.participant import read_samples, unpack_bins

MOST_ENTRIES = 1_000_000
"""Sides of rows that orders are made from, about: levels come from the root down until there are so many."""


class _Level(NamedTuple):
    """One message's news: what was split above, what was closed, and the nodes that are open now."""

    split_sizes: NDArray[np.int64]
    split_rows: NDArray[np.uint32]
    left: NDArray[np.bool_]
    closed_sizes: NDArray[np.int64]
    closed_rows: NDArray[np.uint32]
    sizes: NDArray[np.int64]
    rows: NDArray[np.uint32]


def _next_level(message: ExpandLeaves, before: _Level | None, n_rows: int) -> _Level:
    """Follow the rows one level down, as every role does that gets or sends the message."""
    sizes = np.empty(0, np.int64) if before is None else before.sizes
    rows = np.empty(0, np.uint32) if before is None else before.rows
    split = unpack(message.is_split, len(sizes), "split nodes").astype(bool)
    split_rows, split_sizes = rows[np.repeat(split, sizes)], sizes[split]
    left = unpack(message.flags, len(split_rows), "sides").astype(bool)
    node = np.repeat(np.arange(len(split_sizes)), split_sizes)
    n_left = np.bincount(node[left], minlength=len(split_sizes))
    children = np.column_stack([n_left, split_sizes - n_left]).ravel()
    below = split_rows[np.argsort(2 * node + ~left, kind="stable")]
    is_open = unpack(message.is_open, len(children), "open nodes").astype(bool)
    inside = np.repeat(is_open, children)
    entering, entered = read_samples(message.vectors, message.sizes, message.samples, n_rows)
    return _Level(
        split_sizes,
        split_rows,
        left,
        children[~is_open],
        below[~inside],
        np.concatenate([children[is_open], entered]),
        np.concatenate([below[inside], entering]),
    )


def participant_view(told: Iterable[Told], party: str, smallest: int) -> View:
    """What a participant knows: which rows travel together, and which nodes were closed before the depth limit.

    Parameters
    ----------
    told : iterable of (sender, receiver, message)
        What it gets and sends.
    smallest : int
        The fewest rows that a node needs to be split: in the order that every participant checks.

    """
    n_rows, levels = 0, list[_Level]()
    for sender, receiver, message in told:
        if isinstance(message, ParticipantSummary) and sender == party:
            n_rows = message.n_rows
        elif isinstance(message, ExpandLeaves) and receiver == party:
            levels.append(_next_level(message, levels[-1] if levels else None, n_rows))
    split_sizes, split_rows, left, closed_sizes, closed_rows = (
        np.concatenate(part) for part in list(zip(*levels, strict=True))[:5]
    )
    weight = np.ones(len(closed_rows), np.int64)
    leaves = LeafRows(np.append(0, np.cumsum(closed_sizes)), closed_rows, weight, closed_sizes >= smallest)
    n = len(split_sizes)
    start = np.append(0, np.cumsum(split_sizes))
    splits = SplitRows((party, OTHERS), np.ones(n, np.int64), np.zeros(n, np.int64), start, split_rows, left)
    return View(n_rows, splits, leaves, None)


def splits_in_bins(told: Iterable[Told], party: str) -> SplitRows:
    """At the coordinator: every edge of every participant's bins is a split of which it knows the sides.

    Parameters
    ----------
    told : iterable of (sender, receiver, message)
        All messages of the construction: the coordinator sends or gets each of them.
    party : str
        The participant whose columns are attacked.

    """
    zeta, n_rows, n_own, entries = 0, 0, 0, 0
    level: _Level | None = None
    selected: NDArray[np.uint8] = np.empty((0, 0), np.uint8)
    parts: list[tuple[NDArray[Any], ...]] = []
    for sender, receiver, message in told:
        match message:
            case OpenConstruction():
                zeta = message.zeta
            case ParticipantSummary() if sender == party:
                n_rows, n_own = message.n_rows, len(message.feature_keys)
            case ExpandLeaves() if receiver == party:
                level = _next_level(message, level, n_rows)
                selected = unpack(message.selected, len(level.sizes) * n_own, "selected features").reshape(-1, n_own)
            case SplitVectors() if sender == party and level is not None and entries < MOST_ENTRIES:
                node, feature = np.nonzero(selected)
                sizes = level.sizes[node]
                first = (np.cumsum(level.sizes) - level.sizes)[node]
                at = np.arange(int(sizes.sum())) + np.repeat(first - np.cumsum(sizes) + sizes, sizes)
                bins = unpack_bins(message.planes, len(at), zeta, party)
                # all edges of the bins where there is room, else the middle one
                cuts = max(1, min(zeta, (MOST_ENTRIES - entries) // max(len(at), 1)))
                edges = np.linspace(0, zeta - 1, cuts) if cuts > 1 else np.array([zeta // 2])
                parts += [(feature + 1, sizes, level.rows[at], bins <= cut) for cut in edges.round().astype(int)]
                entries += cuts * len(at)
    feature, sizes, rows, left = (np.concatenate(part) for part in zip(*parts, strict=True))
    start = np.append(0, np.cumsum(sizes))
    n_left = np.add.reduceat(left, start[:-1])
    splits = SplitRows((party,), np.zeros(len(feature), np.int64), feature.astype(np.int64), start, rows, left)
    return splits.select((n_left > 0) & (n_left < sizes))
