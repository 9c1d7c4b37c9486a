"""Tell which code answers a message, in which states, and which state follows.

    python scripts/who_handles.py              every message that a party, helper or key service is sent
    python scripts/who_handles.py GrowLevel    one message

A line is a class that takes the message, and where its handler is written. Classes that only inherit it are left out.
"""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import woodlot.jobs.kinds
import woodlot.jobs.led.leader_desk
import woodlot.jobs.member_job  # noqa: F401 - with these three, everything that answers messages is there
from woodlot.protocols.core.handling import MessageHandler
from woodlot.protocols.core.message import Message, Role, registered

ROOT = Path(__file__).resolve().parents[1]


def requests() -> Iterator[type[Message]]:
    """Every message of Woodlot that the coordinator sends to a party, a helper or a key service."""
    for kind in registered().values():
        told = kind.discloses
        if told.sender == Role.coordinator and told.receiver != Role.user and kind.__module__.startswith("woodlot."):
            yield kind


def handlers_of(kind: type[Message]) -> Iterator[type[MessageHandler]]:
    """Every class that takes a message by a method of its own."""
    classes = [MessageHandler]
    for each in classes:
        classes += each.__subclasses__()
        if (
            kind in each.handlers
            and each.handlers[kind].method in vars(each)
            and each.__module__.startswith("woodlot.")
        ):
            yield each


def described(kind: type[Message], handler: type[MessageHandler]) -> str:
    """One line on how a class takes a message."""
    how = handler.handlers[kind]
    method = inspect.unwrap(getattr(handler, how.method))
    file = Path(inspect.getfile(method)).resolve()
    where = f"{file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}:{method.__code__.co_firstlineno}"
    states = f", when {' or '.join(how.when)}" if how.when else ""
    follows = f", then {how.then}" if how.then else ""
    return f"{kind.__name__}: {handler.__name__}.{how.method}{states}{follows}  {where}"


def main() -> int:
    """Print the handlers of one message, or of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("message", nargs="?", help="the name of a message; all of them if omitted")
    name = parser.parse_args().message
    lines = [
        described(kind, handler)
        for kind in requests()
        if name in (None, kind.__name__)
        for handler in handlers_of(kind)
    ]
    print("\n".join(lines) or f"no handler takes {name}")
    return 0 if lines else 1


if __name__ == "__main__":
    sys.exit(main())
