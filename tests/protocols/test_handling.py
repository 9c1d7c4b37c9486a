"""How a message finds its handler: by its type and the state; anything else is refused and changes nothing."""

from __future__ import annotations

import re
import runpy
import typing
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.align import AlignParty
from woodlot.protocols.align.align_messages import SendTokens
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical.forest_messages import ApplySplits, Ready, RevealSplits, TreesDone
from woodlot.protocols.vertical.party import VerticalParty

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs" / "protocol"


class Door(StrEnum):
    closed = "closed"
    ajar = "half open"
    open = "open"


class Porter(MessageHandler):
    def __init__(self) -> None:
        self.state = Door.closed
        self.stuck = False

    @takes(Ready, when=(Door.closed, Door.ajar), then=Door.open)
    def _open(self, message: Ready) -> TreesDone:
        if self.stuck:
            raise RemoteProtocolError("the door is stuck")
        return TreesDone()

    @takes(RevealSplits, when=Door.open)
    def _close_a_little(self, message: RevealSplits) -> TreesDone:
        self.state = Door.ajar
        return TreesDone()

    @takes(TreesDone)
    def _repeat(self, message: TreesDone) -> TreesDone:
        return message


def test_the_declared_state_follows_a_reply_and_no_refusal() -> None:
    porter = Porter()
    porter.stuck = True
    with pytest.raises(RemoteProtocolError, match="stuck"):
        porter.handle(Ready())
    assert porter.state == Door.closed
    porter.stuck = False
    assert isinstance(porter.handle(Ready()), TreesDone)
    assert porter.state == Door.open
    porter.handle(TreesDone())
    assert porter.state == Door.open
    porter.handle(RevealSplits())
    assert porter.state == Door.ajar


def test_an_unexpected_message_is_told_with_the_state_and_what_was_expected() -> None:
    porter = Porter()
    with pytest.raises(RemoteProtocolError, match=r"^Unexpected RevealSplits in state closed; expected in state open$"):
        porter.handle(RevealSplits())
    porter.state = Door.open
    with pytest.raises(RemoteProtocolError, match=r"expected in state closed or half open$"):
        porter.handle(Ready())
    with pytest.raises(RemoteProtocolError, match=r"^Unexpected SendTokens in state open; Porter does not take it$"):
        porter.handle(SendTokens())
    assert porter.state == Door.open


def test_a_subclass_overrides_by_name_declares_other_states_and_refuses() -> None:
    class Deputy(Porter, refuses=(TreesDone,)):
        def _open(self, message: Ready) -> TreesDone:
            self.opened = True
            return super()._open(message)

        @takes(RevealSplits)
        def _close_a_little(self, message: RevealSplits) -> TreesDone:
            return super()._close_a_little(message)

    deputy = Deputy()
    with pytest.raises(RemoteProtocolError, match="Deputy does not take it"):
        deputy.handle(TreesDone())
    deputy.handle(RevealSplits())
    deputy.handle(Ready())
    assert (deputy.state, deputy.opened) == (Door.open, True)
    assert Porter.handlers[RevealSplits].when == (Door.open,)
    assert TreesDone in Porter.handlers


def test_no_message_has_two_handlers() -> None:
    with pytest.raises(TypeError, match="Pair has two handlers of Ready: _open and _shut"):

        class Pair(Porter):
            @takes(Ready)
            def _shut(self, message: Ready) -> Message:
                return message


@pytest.mark.parametrize(("document", "party"), [("align.md", AlignParty), ("vertical.md", VerticalParty)])
def test_documents_tell_the_states_as_they_are(document: str, party: type[MessageHandler]) -> None:
    """A state that is added to a handler, or taken away, is told in the documents."""
    told = (DOCS / document).read_text(encoding="utf-8").partition("| message | taken when |")[2].partition("\n\n")[0]
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in told.splitlines()[2:]]
    handlers = {kind.__name__: how for kind, how in party.handlers.items()}
    for kinds, when, *_, then in lines:
        for kind in re.findall(r"`(\w+)`", kinds):
            how = handlers[kind]
            assert when == ", ".join(how.when), kind
            follows, _, unless = then.partition("; ")
            assert follows == (how.then or when) or "as before" in unless, kind


@pytest.fixture(scope="module")
def who_handles() -> dict[str, Any]:
    """What scripts/who_handles.py has."""
    return runpy.run_path(str(ROOT / "scripts" / "who_handles.py"))


def test_every_message_to_a_role_is_answered_there(who_handles: dict[str, Any]) -> None:
    """By a handler that is written for it; a class cannot have two of them."""
    of_role = {"helper": {"Helper", "ShareHelper"}, "key service": {"KeyService", "ShareService"}}
    for kind in who_handles["requests"]():
        classes = list(who_handles["handlers_of"](kind))
        assert classes, kind
        names = {each.__name__ for each in classes}
        assert names <= of_role.get(kind.discloses.receiver, names), kind
        for each in classes:
            takes_it = typing.get_type_hints(getattr(each, each.handlers[kind].method))["message"]
            assert issubclass(kind, takes_it), (kind, each)


def test_a_reader_is_led_to_the_handler(who_handles: dict[str, Any]) -> None:
    line = who_handles["described"](ApplySplits, VerticalParty)
    told, _, where = line.partition("  ")
    assert told == "ApplySplits: VerticalParty._on_ApplySplits, when growing, then applied"
    file, _, number = where.rpartition(":")
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(number) - 1 :]
    assert "@takes(msg.ApplySplits" in lines[0]
    assert "def _on_ApplySplits" in lines[1]
