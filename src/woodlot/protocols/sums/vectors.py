"""What the clients add: whole numbers as unsigned integers, and two check numbers after them.

::

    values      length numbers, two's complement
    ones        1 at every client: the sum is the number of clients, or the masks did not cancel
    check       sum of (2 i + 1) times number i, over all before it: as odd numbers have inverses, no single number
                can be changed, nor two be exchanged, without being noticed

Both hold for sums, since they are linear. A client that wants to lie can make them fit: they find accidents, different
tellings and different secrets, not lies.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.sums.keystreams import Vector
from woodlot.protocols.sums.sum_messages import SumOrder

CHECKS = 2
"""How many numbers follow the values."""

_MAX_FRACTION_BITS = 52


def pack(order: SumOrder, values: NDArray[Any]) -> Vector:
    """At a client: the vector to be masked.

    The numbers are taken modulo 2^bits, and none is compared with the bound: a client that refused because of what its
    numbers are would tell of them, to whoever tries one bound after another. The sum modulo 2^bits tells no more than
    the sum, and that it is beyond the bound is found there (`unpack`).

    Raises
    ------
    LocalProtocolError
        If these are not as many whole numbers as were ordered.

    """
    if values.ndim != 1 or values.dtype.kind not in "iub":
        raise LocalProtocolError(f"whole numbers are added, not {values.dtype} of {values.ndim} dimensions")
    if values.size != order.length:
        raise LocalProtocolError(f"{values.size} numbers where {order.length} were ordered")
    vector = np.empty(order.length + CHECKS, f"<u{order.bits // 8}")
    vector[:-CHECKS] = values.astype(np.int64, copy=False).view(np.uint64).astype(vector.dtype, copy=False)
    vector[-2] = 1
    vector[-1] = _check_number(vector[:-1])
    return vector


def unpack(order: SumOrder, total: Vector, n_clients: int) -> NDArray[np.int64]:
    """At the coordinator: the sums, if they can be those of so many clients of this order.

    Raises
    ------
    RemoteProtocolError
        If they cannot.

    """
    if int(total[-2]) != n_clients or total[-1] != _check_number(total[:-1]):
        raise RemoteProtocolError(
            "the sum is not one of these clients' numbers: they were told different things, have different secrets "
            "or versions, or a vector was changed on its way"
        )
    sums = total[:-CHECKS].view(f"<i{order.bits // 8}").astype(np.int64)
    largest = order.bound * n_clients
    if int(sums.max()) > largest or int(sums.min()) < -largest:
        raise RemoteProtocolError(f"a sum is beyond {largest}, the largest that these clients can have")
    return sums


def _check_number(values: Vector) -> Any:
    weights = np.arange(1, 2 * values.size + 1, 2, dtype=values.dtype)
    return np.dot(weights, values)


def to_fixed(values: NDArray[np.float64], fraction_bits: int) -> NDArray[np.int64]:
    """Whole multiples of 2^-fraction_bits: the sums of these do not depend on who adds what first.

    Raises
    ------
    DataError
        If a value is not finite or too large.

    """
    if not 0 <= fraction_bits <= _MAX_FRACTION_BITS:
        raise LocalProtocolError(f"fraction_bits is 0 to {_MAX_FRACTION_BITS}, not {fraction_bits}")
    scaled = np.rint(np.ldexp(np.asarray(values, np.float64), fraction_bits))
    if not (np.abs(scaled) < 2.0**62).all():  # also where it is not a number
        raise DataError(f"a value is not finite, or too large for {fraction_bits} bits after the point")
    return scaled.astype(np.int64)


def from_fixed(sums: NDArray[np.int64], fraction_bits: int) -> NDArray[np.float64]:
    """The numbers that sums of `to_fixed` stand for, to the nearest float."""
    return np.ldexp(sums.astype(np.float64), -fraction_bits)
