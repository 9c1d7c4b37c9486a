"""Values of a party's columns, from the sides to which splits send rows.

A split says of one column: the rows on the left lie below a threshold, those on the right above it. Thousands of such
constraints, over all trees and nodes, put the rows of a column in order. Who knows how the column is distributed in
the population turns the order into values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from woodlot.leaks.label_attacks import rank_correlation
from woodlot.leaks.role_views import SplitRows

STEPS = 40
"""Steps of the descent that puts rows in order."""
SHRINK = 0.01
"""Weight of the penalty that keeps places of rows finite."""
ROUNDS = 2
"""How often a party decides again which splits are by which column."""
FIRST_NODES = 400
"""Largest nodes that a first guess looks at."""
ATTACK_TREES = 50
"""Trees of forests that an attacker grows on what it knows."""
MOST_SIDES = 3_000_000
"""Sides of rows that the order of one column is made from at most."""
QUANTILES = 1001
"""Points of a column's distribution that an attacker knows of the population."""


def order_by_constraints(splits: SplitRows, n_rows: int) -> NDArray[np.float64]:
    """Put rows in the order of a column, given splits by this column alone.

    Rows and thresholds get places on a line; a row on the right of a threshold should be above it. The logistic loss
    of all these differences is convex, so that there is one best arrangement.

    Returns
    -------
    float array
        A place for every row; 0 where no split tells of it.

    """
    sizes = np.diff(splits.start)
    n_nodes = len(sizes)
    if n_nodes == 0:
        return np.zeros(n_rows)
    rows = splits.rows.astype(np.int64)
    sign = np.where(splits.left, -1.0, 1.0)
    first = splits.start[:-1]

    def loss(places: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        above = sign * (places[rows] - np.repeat(places[n_rows:], sizes))
        small = np.exp(-np.abs(above))
        pull = -sign * np.where(above > 0, small, 1.0) / (1.0 + small)
        slope = np.concatenate([np.bincount(rows, pull, minlength=n_rows), -np.add.reduceat(pull, first)])
        total = float((np.log1p(small) + np.maximum(-above, 0.0)).sum() + SHRINK / 2 * (places @ places))
        return total, slope + SHRINK * places

    start = np.zeros(n_rows + n_nodes)
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": STEPS}).x
    return np.asarray(found[:n_rows], np.float64)


def _at_most(splits: SplitRows, most: int) -> SplitRows:
    """Some of the splits, drawn at random, where all together have too many rows: an order needs no more."""
    sizes = np.diff(splits.start)
    drawn = np.random.default_rng(0).permutation(len(sizes))
    chosen = np.zeros(len(sizes), bool)
    chosen[drawn[np.cumsum(sizes[drawn]) <= most]] = True
    return splits.select(chosen)


def values_by_population(places: NDArray[np.float64], column: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values for rows in this order, given how the column is distributed in the population (its quantiles).

    Parameters
    ----------
    places : float array
        An order of the rows.
    column : float array
        Stands for the population: nothing but its distribution is used.

    """
    quantiles = np.quantile(column, np.linspace(0, 1, QUANTILES), method="inverted_cdf")
    rank = np.argsort(np.argsort(places, kind="stable"), kind="stable")
    return np.asarray(quantiles[np.rint((rank + 0.5) / len(places) * (QUANTILES - 1)).astype(np.int64)], np.float64)


class Recovered(NamedTuple):
    """How far a column was recovered."""

    column: int
    """Its number at its party, from 0."""
    correlation: float
    """Rank correlation of the recovered values with the true ones."""
    baseline: float
    """What the attacker reaches without messages."""


def columns_at_coordinator(splits: SplitRows, victim: str, truth: NDArray[np.float64]) -> list[Recovered]:
    """Every column of a party, at a role that knows which splits are by which coded column.

    Parameters
    ----------
    truth : float array of shape (n_rows, n_columns)
        The victim's columns: for their distribution, and to mark the result.

    """
    found = []
    of_victim = splits.owner == splits.owners.index(victim)
    for number in worth_attacking(truth):
        column = truth[:, number]
        chosen = _at_most(splits.select(of_victim & (splits.feature == number + 1)), MOST_SIDES)
        places = order_by_constraints(chosen, len(column))
        reached = rank_correlation(values_by_population(places, column), column) if np.ptp(places) else 0.0
        found.append(Recovered(number, reached, 0.0))
    return found


def worth_attacking(columns: NDArray[np.float64]) -> list[int]:
    """Columns with enough distinct values to speak of an order."""
    return [number for number, column in enumerate(columns.T) if len(np.unique(column)) >= 5]


def columns_at_party(
    splits: SplitRows, others: int, truth: NDArray[np.float64], own: NDArray[np.float64], known: NDArray[np.int64]
) -> list[Recovered]:
    """Every column of another party, at a party that knows a few of the values, and its own columns.

    It does not know which split is by which column. A first guess from the known values says of every split how well
    each column explains it; the splits that a column explains best put its rows in order; and so on, in turns.

    Parameters
    ----------
    splits : SplitRows
        As the attacking party knows them.
    others : int
        Owner of the splits that are not its own.
    truth : float array of shape (n_rows, n_columns)
        The victim's columns: the known rows of them, and to mark the result.
    own : float array of shape (n_rows, any)
        The attacker's columns.
    known : int64 array
        Rows whose values it knows.

    """
    from sklearn.ensemble import RandomForestRegressor

    splits = splits.select(splits.owner == others)
    rest = np.setdiff1d(np.arange(len(truth)), known)
    numbers = worth_attacking(truth)
    sides = np.column_stack([_largest_sides(splits, len(truth)), own])
    guesses, certain, baselines = [], [], []
    for number in numbers:
        column = truth[:, number]
        forest = RandomForestRegressor(ATTACK_TREES, max_features=0.3, random_state=0)
        guesses.append(forest.fit(sides[known], column[known]).predict(sides))
        half = len(known) // 2  # an honest estimate of the guess: on known values that it has not seen
        forest.fit(sides[known[:half]], column[known[:half]])
        certain.append(rank_correlation(forest.predict(sides[known[half:]]), column[known[half:]]))
        alone = RandomForestRegressor(ATTACK_TREES, max_features=0.3, random_state=0)
        alone.fit(own[known], column[known])
        baselines.append(abs(rank_correlation(alone.predict(own[rest]), column[rest])))
    orders = [guess.copy() for guess in guesses]
    for turn in range(ROUNDS if len(splits.owner) else 0):
        chosen = _splits_by_column(splits, orders, 0.75 + 0.05 * turn)
        orders = [
            order_by_constraints(splits.select(by), len(truth)) if by.any() else order
            for by, order in zip(chosen, orders, strict=True)
        ]
    found = []
    for number, guess, order, sure, baseline in zip(numbers, guesses, orders, certain, baselines, strict=True):
        column = truth[:, number]
        # the known values tell which of both is the better one
        best = guess
        if rank_correlation(order[known], column[known]) > sure:
            best = values_by_population(order, column[known])
        found.append(Recovered(number, abs(rank_correlation(best[rest], column[rest])), baseline))
    return found


def _largest_sides(splits: SplitRows, n_rows: int) -> NDArray[np.float32]:
    """For every row and the largest nodes: -1 left, 1 right, 0 not there."""
    sizes = np.diff(splits.start)
    largest = np.argsort(-sizes, kind="stable")[:FIRST_NODES]
    place = np.full(len(sizes), -1)
    place[largest] = np.arange(len(largest))
    of_entry = np.repeat(place, sizes)
    inside = of_entry >= 0
    sides = np.zeros((n_rows, len(largest)), np.float32)
    sides[splits.rows[inside], of_entry[inside]] = np.where(splits.left[inside], -1, 1)
    return sides


def _splits_by_column(
    splits: SplitRows, orders: Sequence[NDArray[np.float64]], least: float
) -> list[NDArray[np.bool_]]:
    """For every column the splits that its order explains best: left rows below right ones in nearly all pairs."""
    sizes = np.diff(splits.start)
    node = np.repeat(np.arange(len(sizes)), sizes)
    n_right = np.bincount(node, ~splits.left, minlength=len(sizes))
    pairs = np.maximum(n_right * (sizes - n_right), 1)
    explained = np.empty((len(orders), len(sizes)))
    for k, order in enumerate(orders):
        ranked = np.lexsort((order[splits.rows], node))
        place = np.arange(len(node)) - np.repeat(splits.start[:-1], sizes) + 1
        above = np.bincount(node, np.where(splits.left[ranked], 0, place), minlength=len(sizes))
        explained[k] = (above - n_right * (n_right + 1) / 2) / pairs
    by_chance = np.sqrt((sizes + 1) / (12.0 * pairs))
    best = explained.argmax(axis=0)
    return [(best == k) & (share > least) & (share - 0.5 > 2 * by_chance) for k, share in enumerate(explained)]
