"""Tokens: what stands for an id in one job, for everybody who does not have the job's secret.

A token is the first 16 bytes of HMAC-SHA256(key of the job, canonical id). Nobody can look for two ids of one token
without the key, and by chance n ids have a pair of one token with probability n^2 / 2^129: 10^-21 for a thousand
million ids. Inside one party's table such a pair would be noticed, since tokens must be distinct.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.protocols.core.bits import pack

TOKEN_BYTES = 16


def make_tokens(key: bytes, ids: Sequence[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """The tokens in ascending order, one per line, and the row of each."""
    data = b"".join([hmac.digest(key, value, "sha256")[:TOKEN_BYTES] for value in ids])
    tokens = np.frombuffer(data, np.uint8).reshape(-1, TOKEN_BYTES)
    order = _ascending(_numbers(tokens))
    return tokens[order], order


def are_ascending(tokens: NDArray[np.uint8]) -> bool:
    """Whether these are tokens, each larger than the one before."""
    if tokens.shape[1] != TOKEN_BYTES:
        return False
    high, low = _numbers(tokens)
    return bool(((high[1:] > high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] > low[:-1]))).all())


def match_tokens(
    tokens: Sequence[NDArray[np.uint8]], join: Literal["inner", "outer"]
) -> tuple[int, list[NDArray[np.uint8]]]:
    """The number of common rows, and the packed bits that tell each party which are its own.

    Every party's tokens are ascending, and common rows are in ascending order of their tokens too. So for an inner
    join a bit per token of the party is enough, and for an outer join a bit per common row.
    """
    high, low = _numbers(np.concatenate(tokens))
    order = _ascending((high, low))
    high, low = high[order], low[order]
    is_first = np.ones(len(order), np.bool_)
    is_first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(is_first) - 1
    n_groups = int(is_first.sum())
    of_party = np.split(group, np.cumsum([len(part) for part in tokens])[:-1])
    if join == "outer":
        return n_groups, [pack(np.isin(np.arange(n_groups), own, assume_unique=True)) for own in of_party]
    is_common = np.bincount(group, minlength=n_groups) == len(tokens)
    return int(is_common.sum()), [pack(is_common[own]) for own in of_party]


_Numbers = tuple[NDArray[np.uint64], NDArray[np.uint64]]


def _numbers(tokens: NDArray[np.uint8]) -> _Numbers:
    """Tokens as pairs of numbers, which numpy sorts faster than bytes."""
    words = np.ascontiguousarray(tokens).view(">u8").astype(np.uint64)
    return words[:, 0], words[:, 1]


def _ascending(numbers: _Numbers) -> NDArray[np.int64]:
    high, low = numbers
    return np.lexsort((low, high)).astype(np.int64)
