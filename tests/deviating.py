"""Runs protocols by hand, with a coordinator that also sends what it should not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.message import Message
from woodlot.runtime.codec import decode, encode

Wrong = Callable[[Any, Message], Iterator[Message]]
"""From a member, and the message that is due, to what is sent to it instead."""


def nothing(member: Any, message: Message) -> Iterator[Message]:
    return iter(())


def run(protocol: Iterator[Any], members: Mapping[str, Any], wrong: Wrong = nothing) -> tuple[Any, list[str]]:
    """What comes of a protocol, and why members have refused the wrong messages.

    These are sent before each message that is due. All of them must be refused, and the protocol then goes on.
    """
    replies: dict[str, Message] | None = None
    refusals: list[str] = []
    while True:
        try:
            step = next(protocol) if replies is None else protocol.send(replies)  # type: ignore[attr-defined]
        except StopIteration as end:
            return end.value, refusals
        replies = {}
        for name, asked in step.requests.items():
            member = members[name]
            before = member.state
            for other in wrong(member, asked):
                with pytest.raises(RemoteProtocolError) as caught:
                    member.handle(decode(encode(other)))
                refusals.append(str(caught.value))
                assert member.state == before
            replies[name] = member.handle(decode(encode(asked)))


def changed(message: Message, **fields: Any) -> Message:
    """A message with other fields."""
    return type(message)(**{name: fields.get(name, getattr(message, name)) for name in message.__struct_fields__})
