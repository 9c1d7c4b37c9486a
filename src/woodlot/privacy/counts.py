"""Counts of classes from sums of randomised bits: what whoever receives the sums can make of them."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.privacy.randomised_response import RandomisedResponse

Method = Literal["auto", "nnls", "lasso"]
"""How counts are found: closed form where there is one and NNLS elsewhere, NNLS, or Lasso as in the paper."""

_NODES_AT_ONCE = 4096
_PATIENCE = 3  # as in Kim and Park: so often may a step that gains nothing change everything at once


def estimate_counts(
    response: RandomisedResponse,
    sums: NDArray[Any],
    n: NDArray[Any],
    *,
    method: Method = "auto",
    alpha: float = 0.01,
) -> NDArray[np.float64]:
    """Estimate how many rows of each class are behind each sum.

    The sums are first freed of their bias. Then the counts are those, none of them negative, whose codes come nearest
    to the sums, scaled so that they add up to the number of rows. A sum that says nothing gives equal counts.

    Parameters
    ----------
    response : RandomisedResponse
        The mechanism that has made the sums.
    sums : array of shape (..., bits)
        Sums over rows, of one client or of all.
    n : array of shape (...)
        Rows behind each sum.
    method : {"auto", "nnls", "lasso"}
        See `Method`.
    alpha : float
        Strength of the Lasso's penalty, as in scikit-learn.

    Returns
    -------
    array of shape (..., classes)

    """
    sums, n = np.asarray(sums, np.float64), np.asarray(n, np.float64)
    code = response.code
    if sums.shape != (*n.shape, code.length):
        raise ValueError(f"sums must have the shape of n and {code.length} bits more, not {sums.shape}")
    if (n < 0).any():
        raise ValueError("numbers of rows must not be negative")
    if method not in ("auto", "nnls", "lasso"):
        raise ValueError(f"method must be 'auto', 'nnls' or 'lasso', not {method!r}")
    unbiased = debias(response, sums, n)
    if code.kind == "one-bit":  # the second count is what is left, whatever the method
        second = np.clip(unbiased[..., 0], 0, n)
        return np.stack([n - second, second], axis=-1)
    if code.kind == "one-hot" and method != "lasso":
        counts = np.maximum(unbiased, 0)
    else:
        matrix = code.bits.astype(np.float64)
        # For counts that are not negative their sum is the penalty, so the Lasso is an NNLS with another right side.
        right = unbiased.reshape(-1, code.length) @ matrix.T - (code.length * alpha if method == "lasso" else 0)
        counts = _least_squares(matrix @ matrix.T, right).reshape(*n.shape, len(matrix))
    return _scaled(counts, n)


def debias(response: RandomisedResponse, sums: NDArray[Any], n: NDArray[Any]) -> NDArray[np.float64]:
    """Sums of the bits of the code, without bias: ``(sum - n p*) / (q* - p*)``."""
    low, high = float(response.told(0)), float(response.told(1))
    result: NDArray[np.float64] = (sums - np.asarray(n)[..., None] * low) / (high - low)
    return result


def noise_of_a_count(response: RandomisedResponse) -> float:
    """Variance that each row adds to the estimated count of a class, by the noise on its bits alone."""
    low, high = float(response.told(0)), float(response.told(1))
    of_a_bit = max(low * (1 - low), high * (1 - high)) / (high - low) ** 2
    bits = response.code.bits.astype(np.float64)
    shares = np.ones((1, 1)) if response.code.kind == "one-bit" else np.linalg.pinv(bits)
    return of_a_bit * float((shares**2).sum(axis=0).mean())


def _scaled(counts: NDArray[np.float64], n: NDArray[np.float64]) -> NDArray[np.float64]:
    total = counts.sum(axis=-1)
    nothing = total <= 0
    counts = np.where(nothing[..., None], 1.0, counts)
    factor: NDArray[np.float64] = n / np.where(nothing, counts.shape[-1], total)
    return counts * factor[..., None]


def _least_squares(gram: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """Minimise ``x G x / 2 - b x`` over x >= 0 for every row b, by block principal pivoting (Kim and Park, 2011)."""
    parts = [_pivot(gram, right[at : at + _NODES_AT_ONCE]) for at in range(0, len(right), _NODES_AT_ONCE)]
    return np.concatenate(parts) if parts else np.empty((0, len(gram)))


def _pivot(gram: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    # Every row is a problem of its own. A variable is free, or held at zero; one that is free and negative, or held
    # though it would gain by growing, is wrong and changes places.
    x = np.linalg.solve(gram, right.T).T
    free = x > 0
    fewest = np.full(len(right), right.shape[1] + 1)
    patience = np.full(len(right), _PATIENCE)
    slack = 1e-10 * np.maximum(1.0, np.abs(right).max(axis=1, initial=0.0))
    todo = np.arange(len(right))
    while True:
        x[todo] = _solve_free(gram, right[todo], free[todo])
        gradient = x[todo] @ gram - right[todo]
        limit = slack[todo, None]
        wrong = np.where(free[todo], x[todo] < -limit, gradient < -limit)
        count = wrong.sum(axis=1)
        better = count < fewest[todo]
        all_at_once = better | (patience[todo] > 0)
        patience[todo] = np.where(better, _PATIENCE, np.maximum(patience[todo] - 1, 0))
        fewest[todo] = np.minimum(fewest[todo], count)
        # Once patience is out, only the last wrong variable changes: so the search cannot go round in a circle.
        last = wrong.shape[1] - 1 - np.argmax(wrong[:, ::-1], axis=1)
        only_last = wrong & (np.arange(wrong.shape[1]) == last[:, None])
        free[todo] ^= np.where(all_at_once[:, None], wrong, only_last)
        todo = todo[count > 0]
        if len(todo) == 0:
            positive: NDArray[np.float64] = np.maximum(x, 0)
            return positive


def _solve_free(gram: NDArray[np.float64], right: NDArray[np.float64], free: NDArray[np.bool_]) -> NDArray[np.float64]:
    both = free[:, :, None] & free[:, None, :]
    systems = np.where(both, gram, np.eye(len(gram)))
    solved: NDArray[np.float64] = np.linalg.solve(systems, np.where(free, right, 0.0)[..., None])[..., 0]
    return solved
