"""How a client hides its part of a report from the coordinator, which adds the parts up: by pads of the user's.

The user has put a key of its own into each client's part of the order. Each number of the client is below 2^32. It adds
a pad below 2^`PAD_BITS`, modulo 2^`PAD_BITS`, before the masks of the secure sum: what comes out is uniform, whatever
the number was. The coordinator gets the sum of these; the user takes all pads away, and has the sum of the numbers. It
has no client's number alone, and the coordinator has none at all.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError
from woodlot.jobs.evaluate.report_seal import KEY_BYTES
from woodlot.protocols.core.agreement import derive
from woodlot.protocols.sums.keystreams import keystream

PAD_BITS = 40
"""Sums of 256 clients' numbers of 32 bits fit."""
PAD_BOUND = 1 << PAD_BITS
"""No padded number is so large."""
_TAG = "woodlot row report 1"


def _pad(key: bytes, job: str, party: str, size: int) -> NDArray[np.int64]:
    if len(key) != KEY_BYTES:
        raise DataError(f"the order has no key of {KEY_BYTES} bytes by which a part of the report could be hidden")
    stream = keystream(derive(_TAG, key, "pad", job, party), size)
    return (stream & np.uint64(PAD_BOUND - 1)).astype(np.int64)


def padded(numbers: NDArray[np.int64], key: bytes, job: str, party: str) -> NDArray[np.int64]:
    """At a client: its numbers, under the user's pad."""
    return (numbers + _pad(key, job, party, len(numbers))) % PAD_BOUND


def without_pads(sums: NDArray[np.int64], keys: Mapping[str, bytes], job: str) -> NDArray[np.int64]:
    """At the user: the sums of the clients' numbers, from those of the padded ones."""
    pads = sum((_pad(key, job, party, len(sums)) for party, key in keys.items()), np.zeros(len(sums), np.int64))
    return (sums - pads) % PAD_BOUND
