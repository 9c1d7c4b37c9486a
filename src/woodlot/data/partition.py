"""Ways to deal the rows of one table to clients, for experiments.

Each function gives the number of every row's client, so every row is dealt exactly once. The same seed gives the same
dealing; with another version of NumPy its random numbers may be others.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError


def most_classes(n_classes: int, n_clients: int, alpha: int) -> int:
    """The most classes that a client can have after `deal_alpha_chunks`: M = ceil(c alpha / k)."""
    return math.ceil(n_classes * alpha / n_clients)


def deal_alpha_chunks(labels: NDArray[Any], n_clients: int, alpha: int, seed: int) -> NDArray[np.int64]:
    """Cut every class into alpha chunks, shuffle all chunks, and deal them in turn: few classes at each client.

    A client gets chunks of distinct classes, as the slides' M counts them: where the shuffle gives it two of one class,
    one of them is exchanged for another client's chunk, as long as there is one to exchange.

    Parameters
    ----------
    labels : array
        The class of each row.
    n_clients : int
        The slides' k.
    alpha : int
        Chunks of each class, of equal size but for one row.
    seed : int
        For the rows of the chunks and their order.

    Returns
    -------
    array of int
        The client of each row.

    Raises
    ------
    DataError
        If there are fewer chunks than clients.

    """
    labels = _check(labels, n_clients)
    if alpha < 1:
        raise ValueError(f"alpha must be at least 1, not {alpha}")
    rng = np.random.default_rng(seed)
    parts = [np.array_split(rng.permutation(rows), alpha) for rows in _rows_of_classes(labels)]
    chunks = [(number, chunk) for number, some in enumerate(parts) for chunk in some if len(chunk)]
    if len(chunks) < n_clients:
        raise DataError(f"there are {len(chunks)} chunks for {n_clients} clients; take a larger alpha or fewer clients")
    shuffled = [chunks[place] for place in rng.permutation(len(chunks))]
    _make_distinct(shuffled, n_clients)
    dealt = np.empty(len(labels), np.int64)
    for turn, (_, chunk) in enumerate(shuffled):
        dealt[chunk] = turn % n_clients
    return dealt


def _make_distinct(chunks: list[tuple[int, NDArray[np.intp]]], n_clients: int) -> None:
    """Exchange chunks, in place, until no client has two of a class, or no exchange of two helps."""

    def holds(turn: int, number: int, but: int) -> bool:
        """Whether the client of this turn has a chunk of the class, not counting one turn."""
        return any(chunks[t][0] == number for t in range(turn % n_clients, len(chunks), n_clients) if t != but)

    for turn, (number, _) in enumerate(chunks):
        if not holds(turn, number, turn):
            continue
        for other, (wanted, _) in enumerate(chunks):
            if not holds(turn, wanted, turn) and not holds(other, number, other):
                chunks[turn], chunks[other] = chunks[other], chunks[turn]
                break


def deal_evenly(n_rows: int, n_clients: int, seed: int) -> NDArray[np.int64]:
    """Deal rows at random and as evenly as can be: independent and identically distributed.

    Parameters
    ----------
    n_rows, n_clients : int
        Rows and clients.
    seed : int
        For the rows.

    Returns
    -------
    array of int
        The client of each row.

    """
    _check(np.zeros(n_rows), n_clients)
    return np.random.default_rng(seed).permutation(np.arange(n_rows) % n_clients)


def _check(labels: NDArray[Any], n_clients: int) -> NDArray[Any]:
    labels = np.asarray(labels)
    if n_clients < 1:
        raise ValueError(f"n_clients must be at least 1, not {n_clients}")
    if labels.ndim != 1:
        raise ValueError("labels must be one column")
    if len(labels) < n_clients:
        raise DataError(f"{len(labels)} rows are too few for {n_clients} clients with 1 or more each")
    return labels


def _rows_of_classes(labels: NDArray[Any]) -> list[NDArray[np.intp]]:
    _, code = np.unique(labels, return_inverse=True)
    return [np.flatnonzero(code == number) for number in range(code.max() + 1)]
