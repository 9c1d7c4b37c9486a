"""What the second server and the dealer have been told so far: it enters all random numbers that they have in common.

Random numbers hide one content only. If the label holder could have the second server hide two contents under the same
mask, or answer twice in the same order, it would learn the difference. Honest parties never ask again otherwise: the
journals see to it. But a label holder may deviate, and a state folder may be restored from a copy. So every stream of
the second server and the dealer is derived from two digests: of all that the second server was told, and of all that
the dealer was asked. Each of the two computes its own digest, and has the other's from the label holder (`bound` of the
messages). If the label holder tells two different stories, or a false digest, then the two sides derive different
streams, and all that it gets is noise.

The digest of what the second server was told is keyed by a secret that the dealer does not have, for it tells columns.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TypeVar

import msgspec
import numpy as np

from woodlot.protocols.core.message import Message

BOUND = "bound"
"""The field with the other side's digest; it is no part of what was told."""


class ToldSoFar:
    """A running digest of messages.

    Parameters
    ----------
    key : bytes
        Without it, the digest tells nothing of them.
    """

    def __init__(self, key: bytes = b"") -> None:
        self._key = key
        self.digest = b""

    def after(self, message: Message) -> ToldSoFar:
        """What there is after one more message; this one stays as it is, so that a refused message changes nothing."""
        mac = hmac.new(self._key, self.digest, hashlib.sha256)
        mac.update(type(message).__name__.encode() + b"\0")
        for name in message.__struct_fields__:
            value = getattr(message, name)
            if name == BOUND:
                continue
            if isinstance(value, np.ndarray):
                mac.update(msgspec.msgpack.encode((name, value.dtype.str, value.shape)))
                mac.update(np.ascontiguousarray(value).data)
            else:
                mac.update(msgspec.msgpack.encode((name, value)))
        told = ToldSoFar(self._key)
        told.digest = mac.digest()
        return told


def bond(server: bytes, dealer: bytes) -> bytes:
    """What enters a stream: what the second server was told, and what the dealer was asked."""
    return hashlib.sha256(b"%d|" % len(server) + server + dealer).digest()


M = TypeVar("M", bound=Message)
N = TypeVar("N", bound=Message)


class BothTold:
    """At the label holder: what the second server and the dealer have been told."""

    def __init__(self) -> None:
        self._server, self._dealer = ToldSoFar(), ToldSoFar()

    def start_server(self, start: Message, key: bytes) -> None:
        """The second server is told its beginning, with the key of its digest."""
        self._server = ToldSoFar(key).after(start)

    def tell_server(self, message: Message) -> None:
        """The second server alone is told something."""
        self._server = self._server.after(message)

    def ask_dealer(self, message: Message) -> None:
        """The dealer alone is asked something."""
        self._dealer = self._dealer.after(message)

    def ask_both(self, to_server: M, to_dealer: N) -> tuple[M, N, bytes]:
        """Both are asked in one round: returns the messages with each other's digest, and what enters the streams."""
        self._server, self._dealer = self._server.after(to_server), self._dealer.after(to_dealer)
        server, dealer = self._server.digest, self._dealer.digest
        return _bound(to_server, dealer), _bound(to_dealer, server), bond(server, dealer)


def _bound(message: M, digest: bytes) -> M:
    return msgspec.structs.replace(message, **{BOUND: digest})
