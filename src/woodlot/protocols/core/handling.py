"""How a message finds its handler: declared beside the method, looked up in one table, checked in one place.

Whoever answers messages (a party, a client, the work of a job) derives from `MessageHandler` and declares each of its
handlers with `takes`: for which message, in which states, and which state follows. `MessageHandler.handle` is the one
dispatcher:

1. The exact type of the message gives the handler. A subclass of a message is another message.
2. A message that the state does not allow is refused, and nothing has changed.
3. The handler checks the whole message, changes what it must, and answers. If it raises, the state is as before.
4. The state that was declared follows. Where it depends on the message, ``then`` is left out and the handler sets it.

The table is made once for each class, from the class before it and its own declarations, so that a reader finds a
handler by searching for its message, and a tool reads ``handlers``. Replies are made by the message, the state and the
attributes alone: a party that was killed is made again and hears the same messages from the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, ClassVar, NamedTuple, TypeVar

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.message import Message

M = TypeVar("M", bound=Message)
S = TypeVar("S", bound="MessageHandler")
R = TypeVar("R", bound=Message)

_DECLARED = "_takes_messages"


class Transition(NamedTuple):
    """How one message is taken: by which method, in which states (none: in all), and which state follows."""

    method: str
    when: tuple[StrEnum, ...]
    then: StrEnum | None


def takes(
    *kinds: type[M], when: StrEnum | tuple[StrEnum, ...] = (), then: StrEnum | None = None
) -> Callable[[Callable[[S, M], R]], Callable[[S, M], R]]:
    """Declare a method of a `MessageHandler` as the handler of a message.

    Parameters
    ----------
    *kinds : type of Message
        Which messages it takes.
    when : state or tuple of states
        In which states; by default in all.
    then : state, optional
        Which state follows its reply. By default the state stays, unless the handler sets it.

    """

    def declare(handler: Callable[[S, M], R]) -> Callable[[S, M], R]:
        transition = Transition(handler.__name__, (when,) if isinstance(when, StrEnum) else when, then)
        setattr(handler, _DECLARED, dict.fromkeys(kinds, transition))
        return handler

    return declare


class MessageHandler:
    """Answers messages by its declared handlers.

    A subclass inherits them. It overrides a handler by its name, and declares it again only where its states differ. It
    names as ``refuses`` the inherited messages that it does not take.
    """

    handlers: ClassVar[Mapping[type[Message], Transition]] = {}
    """How each message is taken."""
    state: StrEnum | None = None
    """Where it stands; None if it has no states."""

    def __init_subclass__(cls, *, refuses: tuple[type[Message], ...] = (), **options: Any) -> None:
        super().__init_subclass__(**options)
        handlers = {kind: how for kind, how in cls.handlers.items() if kind not in refuses}
        for member in vars(cls).values():
            for kind, how in getattr(member, _DECLARED, {}).items():
                other = handlers.setdefault(kind, how).method
                if other != how.method:
                    raise TypeError(f"{cls.__name__} has two handlers of {kind.__name__}: {other} and {how.method}")
                handlers[kind] = how
        cls.handlers = handlers

    def handle(self, message: Message) -> Message:
        """Answer one message; one that is not expected in this state is refused and changes nothing."""
        how = self.handlers.get(type(message))
        if how is None or (how.when and self.state not in how.when):
            raise self._unexpected(type(message), how)
        answer: Callable[[Any], Message] = getattr(self, how.method)
        reply = answer(message)
        if how.then is not None:
            self.state = how.then
        return reply

    def _unexpected(self, kind: type[Message], how: Transition | None) -> RemoteProtocolError:
        here = "" if self.state is None else f" in state {self.state}"
        if how is None:
            return RemoteProtocolError(f"Unexpected {kind.__name__}{here}; {type(self).__name__} does not take it")
        expected = " or ".join(how.when)
        return RemoteProtocolError(f"Unexpected {kind.__name__}{here}; expected in state {expected}")
