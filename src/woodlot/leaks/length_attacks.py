"""What lengths alone tell: of the frames that a coordinator relays, and of the nodes that a dealer shuffles.

Lengths have no rows in them. The one thing that differs from row to row and that such a role may know is how often each
tree draws each row: from the seed of an order, or because it draws them. So the attack asks whether trees that draw a
row are longer or shorter than others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from woodlot.jobs.padding import pad
from woodlot.leaks.case import Told
from woodlot.protocols.core.part_files import COORDINATOR
from woodlot.protocols.hidden.hidden_messages import DealDraws, DealShuffle
from woodlot.protocols.vertical.forest_messages import PlantTrees
from woodlot.runtime.codec import encode

FIRST = 10
"""Lengths of a batch of trees that the attack looks at one by one; of the others it takes the sum."""
LengthsOfTrees = list[tuple[range, list[float]]]
"""Trees that grew together, and lengths of everything that was sent for them, in order."""


def lengths_of_frames(told: Iterable[Told], holder: str) -> LengthsOfTrees:
    """What a coordinator sees of a training that the label holder leads: the length of every sealed frame.

    Parameters
    ----------
    told : iterable of (sender, receiver, message)
        The messages of the same training led by the coordinator: those of the other parties go through it sealed,
        those of the label holder stay at the label holder.
    holder : str
        The label holder.

    """
    found: LengthsOfTrees = []
    trees, lengths = range(0), list[float]()
    for sender, receiver, message in told:
        if holder in (sender, receiver) or COORDINATOR not in (sender, receiver):
            continue
        if isinstance(message, PlantTrees):
            planted = range(message.first_tree, message.first_tree + message.n_trees)
            if planted != trees:  # every party is asked to plant the same ones
                trees, lengths = planted, []
                found.append((trees, lengths))
        if len(trees):
            lengths.append(float(len(pad(encode(message)))))
    return found


def sizes_at_dealer(told: Iterable[Told]) -> LengthsOfTrees:
    """What a dealer sees of a hidden training: the sizes of all nodes, in the order in which they are shuffled."""
    found: LengthsOfTrees = []
    for _, _, message in told:
        if isinstance(message, DealDraws):
            found.append((range(message.first_tree, message.first_tree + message.n_trees), []))
        elif isinstance(message, DealShuffle) and found:
            found[-1][1].extend(message.sizes.astype(np.float64).tolist())
    return found


def sizes_of_trees(told: Iterable[Told], n_rows: int) -> LengthsOfTrees:
    """The same, tree by tree: children of roots come in the order of trees, and two of them make up all rows."""
    found: LengthsOfTrees = []
    trees, level = range(0), 0
    for _, _, message in told:
        if isinstance(message, DealDraws):
            trees, level = range(message.first_tree, message.first_tree + message.n_trees), 0
        elif isinstance(message, DealShuffle) and message.whole_rows:
            level += 1
            if level == 2:
                found += _paired(trees, message.sizes.astype(np.int64).tolist(), n_rows)
    return found


def _paired(trees: range, sizes: Sequence[int], n_rows: int) -> LengthsOfTrees:
    found: LengthsOfTrees = []
    at = 0
    for tree in trees:
        if at >= len(sizes):
            break
        found.append((range(tree, tree + 1), [float(sizes[at])]))
        at += 2 if at + 1 < len(sizes) and sizes[at] + sizes[at + 1] == n_rows else 1
    return found


def order_by_draws(lengths: LengthsOfTrees, draws: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number per row: whether what was sent for trees that draw it is longer than for others.

    Where all trees grew together there is nothing to compare, and the number of draws is left.

    Parameters
    ----------
    lengths : list of (trees, lengths)
        What the role sees.
    draws : int64 array of shape (trees, rows)
        How often each tree draws each row.

    """
    if len(lengths) < 2:
        return np.asarray(draws.sum(axis=0), np.float64)
    drawn = np.stack([draws[trees.start : trees.stop].mean(axis=0) for trees, _ in lengths])
    seen = np.array([[sum(told), len(told), *told[:FIRST], *[0.0] * (FIRST - len(told))] for _, told in lengths])
    seen = seen - seen.mean(axis=0)
    seen /= np.maximum(seen.std(axis=0), 1e-9)
    main = seen @ np.linalg.svd(seen, full_matrices=False)[2][0]
    return np.asarray((drawn - drawn.mean(axis=0)).T @ main, np.float64)
