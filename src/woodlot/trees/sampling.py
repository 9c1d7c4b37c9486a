"""Seeds, bootstrap and weights: everything random about a forest, derived from one number."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from woodlot.trees.kernels.hashing import draw_counts, draw_weighted_counts
from woodlot.trees.kernels.rows import keep_drawn
from woodlot.trees.parallel import run_chunks

WEIGHT_BITS = 31
"""Integer weights of a tree sum to less than 2**31: their squares then add exactly in 64 bits."""
COMPACT_WEIGHT = 255
"""Weights up to this fit the fast kernels' one byte."""


def derive_seed(seed: int, purpose: str, *numbers: int, secret: bytes = b"") -> int:
    """A 64-bit seed for one purpose. With a secret, only who has the secret can derive it."""
    text = "|".join([str(seed), purpose, *map(str, numbers)])
    digest = hashlib.blake2b(text.encode(), digest_size=8, key=secret[:64], person=b"woodlot-seed").digest()
    return int.from_bytes(digest, "little")


def tree_keys(seed: int, trees: Sequence[int]) -> NDArray[np.uint64]:
    """One key per tree, the same whatever trees are grown beside it."""
    return np.array([derive_seed(seed, "tree", tree) for tree in trees], np.uint64)


def feature_key(column: str, party: str = "", secret: bytes = b"") -> int:
    """The stable 64-bit code under which a column is known outside its party; with a secret only the party can tell.

    A federation's column ``age`` of ``bank`` has the code of a column ``bank.age`` of one joined table, so that both
    give the same forest.
    """
    name = f"{party}.{column}" if party else column
    digest = hashlib.blake2b(name.encode(), digest_size=8, key=secret[:64], person=b"woodlot-column").digest()
    return int.from_bytes(digest, "little")


def weight_factor(total: float, n_rows: int, bits: int = WEIGHT_BITS) -> float:
    """The power of two that makes weights of this total fill so many bits, with room for rounding every row up."""
    return float(2.0 ** np.floor(np.log2((2**bits - n_rows) / total) - 1e-3))


def integer_weights(weights: NDArray[np.float64], bits: int = WEIGHT_BITS) -> tuple[NDArray[np.int64], float]:
    """Weights as integers that sum to less than 2**bits, and the factor by which they grew.

    Whole numbers stay as they are, so that a weight of 2 is the row twice.
    """
    total = float(weights.sum())
    if total < 2**WEIGHT_BITS and bool(np.all(weights == np.floor(weights))):
        return weights.astype(np.int64), 1.0
    factor = weight_factor(total, len(weights), max(bits, int(np.ceil(np.log2(len(weights)))) + 2))
    return _scaled(weights, factor), factor


def _scaled(weights: NDArray[np.float64], factor: float) -> NDArray[np.int64]:
    # a positive weight stays positive: the row must not fall out of the forest
    return np.maximum(np.rint(weights * factor), weights > 0).astype(np.int64)


class DrawsByRow(Protocol):
    """How often each row is drawn, where that does not depend on the other rows: `woodlot.trees.drawing.RowDraws`."""

    def counts(self, seed: int, tree: int) -> NDArray[np.uint32]:
        """How often a tree sees each row."""


@dataclass(frozen=True)
class Bootstrap:
    """How the rows of each tree are drawn.

    Attributes
    ----------
    seed : int or None
        None: every tree sees every row once (times its weight).
    n_draws : int
        Rows drawn per tree, with replacement.
    weights : int64 array or None
        Integer weight of each row. With a seed, the chance to be drawn; without, its weight in the tree.
    balance : bool
        Weigh the drawn rows of each tree so that its classes weigh the same (``class_weight="balanced_subsample"``).
    by_row : DrawsByRow or None
        With a seed: every row is drawn by itself (``bootstrap_by="row"``), ``n_draws`` on average.
    """

    seed: int | None
    n_draws: int
    weights: NDArray[np.int64] | None
    balance: bool = False
    by_row: DrawsByRow | None = None

    def counts(self, tree: int, n_rows: int) -> NDArray[np.uint32]:
        """How often tree ``tree`` sees each row, before any balancing."""
        if self.seed is None:
            return np.ones(n_rows, np.uint32) if self.weights is None else self.weights.astype(np.uint32)
        if self.by_row is not None:
            return self.by_row.counts(self.seed, tree)
        counts = np.empty(n_rows, np.uint32)
        key = np.uint64(derive_seed(self.seed, "bootstrap", tree))
        if self.weights is None:
            draw_counts(key, self.n_draws, counts)
        else:
            draw_weighted_counts(key, self.n_draws, np.cumsum(self.weights), counts)
        return counts

    def tree_weights(self, tree: int, labels: NDArray[np.generic], n_classes: int) -> NDArray[np.uint32]:
        """Integer weight of each row in one tree."""
        counts = self.counts(tree, len(labels))
        if not self.balance or n_classes == 0:
            return counts
        per_class = np.bincount(labels.astype(np.int64), weights=counts, minlength=n_classes)
        share = np.zeros(n_classes)
        present = per_class > 0
        share[present] = counts.sum() / (present.sum() * per_class[present])
        factor = weight_factor(float(self.n_draws), len(labels))
        return _scaled(counts * share[labels.astype(np.int64)], factor).astype(np.uint32)

    def weight_unit(self, n_rows: int, factor: float) -> float:
        """What a row of weight 1 weighs in a tree; ``factor`` is that of the integer weights."""
        if self.balance:
            return weight_factor(float(self.n_draws), n_rows)
        return factor if self.seed is None else 1.0

    def tree_weight(self, n_rows: int) -> int:
        """What the rows of one tree weigh together; of rows that are drawn one by one, about."""
        if self.balance:
            return int(self.n_draws * weight_factor(float(self.n_draws), n_rows))
        if self.seed is not None:
            return self.n_draws
        return n_rows if self.weights is None else int(self.weights.sum())


TreeRows = tuple[NDArray[np.uint32], NDArray[np.uint8] | NDArray[np.uint32], NDArray[np.int64]]
"""Rows, their weights, and where each tree begins."""


def draw_rows(
    bootstrap: Bootstrap, trees: Sequence[int], labels: NDArray[np.generic], n_classes: int, n_jobs: int
) -> TreeRows:
    """Row numbers and weights of all trees, tree after tree, and where each tree begins."""
    drawn: list[tuple[NDArray[np.uint32], NDArray[np.uint32]]] = [(_NO_ROWS, _NO_ROWS)] * len(trees)

    def draw(k: int) -> None:
        weights = bootstrap.tree_weights(trees[k], labels, n_classes)
        rows = np.empty(len(labels), np.uint32)
        kept = np.empty(len(labels), np.uint32)
        m = keep_drawn(weights, rows, kept)
        narrow = kept[:m].astype(np.uint8) if m == 0 or kept[:m].max() <= COMPACT_WEIGHT else kept[:m].copy()
        drawn[k] = (rows[:m].copy(), narrow)  # type: ignore[assignment]

    run_chunks(draw, range(len(trees)), n_jobs)
    start = np.concatenate([[0], np.cumsum([len(rows) for rows, _ in drawn])]).astype(np.int64)
    return (
        np.concatenate([rows for rows, _ in drawn]),
        np.concatenate([weights for _, weights in drawn]),
        start,
    )


_NO_ROWS = np.empty(0, np.uint32)
