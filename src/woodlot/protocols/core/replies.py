"""The coordinator's check that a party answered with the kind of message it was asked for."""

from __future__ import annotations

from typing import TypeVar

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.message import Message

M = TypeVar("M", bound=Message)


def reply_of(reply: Message, kind: type[M], party: str) -> M:
    """The reply, if it is of this kind."""
    if not isinstance(reply, kind):
        raise RemoteProtocolError(f"{party} answered with {type(reply).__name__} instead of {kind.__name__}")
    return reply
