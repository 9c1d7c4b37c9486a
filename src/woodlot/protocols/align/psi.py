"""Private set intersection by elliptic curves: openmined-psi, with its points as plain bytes.

A *client* with key a learns which of its ids a *server* with key b has::

    client -> server   request    H(x)^a  for its ids x
    server -> client   response   H(x)^ab, in the order of the request
                       setup      H(y)^b  for the server's ids y, ascending

The client takes its key off the response and looks the result up in the setup. Points are compressed points of the
curve P-256. All messages follow from keys and ids, so a party that is restarted repeats them byte for byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, RemoteProtocolError

POINT_BYTES = 33
"""Bytes of a point: the only thing that the messages consist of."""

Points = NDArray[np.uint8]
"""Points, one per line."""

_ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_PREFIXES = (2, 3)
_UNUSED_RATE = 1e-9  # of false positives; a raw setup has none


def load() -> Any:
    """The library, or an error that says how to get it."""
    try:
        import private_set_intersection.python as library
    except ImportError:
        raise DataError(
            "this party cannot take part in private set intersection: a package is missing; "
            "install woodlot[psi] there, or use method='keyed-hash'"
        ) from None
    return library


def key_from(material: bytes) -> bytes:
    """A key of the curve from secret bytes, more of them than a key has."""
    return (int.from_bytes(material, "big") % (_ORDER - 1) + 1).to_bytes(32, "big")


def request(key: bytes, ids: Sequence[bytes]) -> Points:
    """Client: its ids, blinded, in the order given."""
    client = load().client.CreateFromKey(key, True)
    return _points(client.CreateRequest(_items(ids)).encrypted_elements)


def setup(key: bytes, ids: Sequence[bytes]) -> Points:
    """Server: its ids under its key, ascending."""
    library = load()
    server = library.server.CreateFromKey(key, True)
    message = server.CreateSetupMessage(_UNUSED_RATE, len(ids), _items(ids), library.DataStructure.RAW)
    return _points(message.raw.encrypted_elements)


def respond(key: bytes, points: Points) -> Points:
    """Server: the client's points with the server's key on top."""
    library = load()
    message = library.Request(reveal_intersection=True, encrypted_elements=_elements(points))
    try:
        return _points(library.server.CreateFromKey(key, True).ProcessRequest(message).encrypted_elements)
    except RuntimeError:
        raise _no_points() from None


def intersect(key: bytes, server_setup: Points, response: Points) -> NDArray[np.int64]:
    """Client: positions in its request of the ids that the server has, ascending."""
    library = load()
    message = library.ServerSetup()
    message.raw.encrypted_elements.extend(_elements(server_setup))
    answer = library.Response(encrypted_elements=_elements(response))
    try:
        found = library.client.CreateFromKey(key, True).GetIntersection(message, answer)
    except RuntimeError:
        raise _no_points() from None
    return np.sort(np.array(found, np.int64))


def read_points(data: bytes, *, what: str) -> Points:
    """The points of a received message."""
    if len(data) % POINT_BYTES:
        raise RemoteProtocolError(f"{what}: {len(data)} bytes are no whole number of points")
    points = np.frombuffer(data, np.uint8).reshape(-1, POINT_BYTES)
    if not np.isin(points[:, 0], _PREFIXES).all():
        raise _no_points()
    return points


def check_distinct(points: Points, *, ascending: bool, what: str) -> None:
    """Refuse an id that is there twice; a setup must also be in its order, which looking up relies on."""
    elements = _elements(points)
    if len(set(elements)) < len(elements):
        raise RemoteProtocolError(f"{what} has a point twice")
    if ascending and sorted(elements) != elements:
        raise RemoteProtocolError(f"{what} is not in ascending order")


def _no_points() -> RemoteProtocolError:
    return RemoteProtocolError("private set intersection: received bytes that are no points of the curve")


def _items(ids: Sequence[bytes]) -> list[str]:
    return [value.hex() for value in ids]


def _elements(points: Points) -> list[bytes]:
    data = points.tobytes()
    return [data[at : at + POINT_BYTES] for at in range(0, len(data), POINT_BYTES)]


def _points(elements: Sequence[bytes]) -> Points:
    return np.frombuffer(b"".join(elements), np.uint8).reshape(-1, POINT_BYTES)
