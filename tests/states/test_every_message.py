"""Every message in every state of every party: a typed refusal changes nothing, and the run goes on to the same end.

Whole runs of all protocols are recorded once (`worlds.py`). A party is then played to again, and between the messages
that are due everything else is thrown at it: every message of `protocols/messages`, empty and with what the recorded
runs had in it, and messages that Hypothesis fills. What is refused must leave the party's fingerprint as it was, and
what is due must then be answered with the bytes of the recording.

The short form throws each message in one state of one party; ``make fuzz`` sets WOODLOT_EVERY_STATE and throws each in
every state.
"""

from __future__ import annotations

import json
import os
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from digests import digest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from test_party_states import any_message, blank
from worlds import WORLDS, Part, copied, world

from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.message import Message, registered
from woodlot.runtime.codec import decode, encode

pytestmark = pytest.mark.slow

REFUSALS = (DataError, PolicyError, RemoteProtocolError)
OWN = [kind for kind in registered().values() if kind.__module__.startswith("woodlot.")]
EVERY_STATE = bool(os.environ.get("WOODLOT_EVERY_STATE"))
RECORD = Path(__file__).resolve().parents[2] / "build" / "reliability" / "states.jsonl"


@cache
def strays() -> list[Message]:
    """One message of every kind with nothing in it, and those of all recorded runs, each kind once for each sender."""
    found: dict[str, Message] = {}
    for kind in OWN:
        if (empty := blank(kind)) is not None:
            found[f"{kind.__name__} empty"] = empty
    for name in WORLDS:
        for part in world(name):
            for data in (*part.asked, *part.answered):
                message = decode(data)
                found.setdefault(f"{type(message).__name__} {name.partition(',')[0]}", message)
    return list(found.values())


class Player:
    """Plays a recorded run to one party, and throws what is not due."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.party: Any = part.fresh()
        self.done = 0
        self.thrown = self.refused = 0

    def go_on(self) -> None:
        """Send what is due: the reply is that of the recording."""
        reply = encode(self.party.handle(decode(self.part.asked[self.done])))
        assert reply == self.part.answered[self.done], f"another reply to message {self.done}"
        self.done += 1

    def throw(self, stray: Message) -> None:
        """Send what is not due: a refusal has changed nothing; after what is taken the party is made again."""
        before = digest(self.party)
        self.thrown += 1
        try:
            encode(self.party.handle(decode(encode(stray))))
        except REFUSALS:
            self.refused += 1
            assert digest(self.party) == before, f"{type(stray).__name__} was refused and has changed something"
        else:
            self.party = self.part.fresh(self.done)

    def finish(self) -> None:
        while self.done < len(self.part.asked):
            self.go_on()


@pytest.mark.parametrize("name", WORLDS)
def test_every_message_in_every_state(name: str) -> None:
    thrown = refused = 0
    states = [(part, state) for part in world(name) for state in range(len(part.asked))]
    for number, (part, state) in enumerate(states):
        if state == 0:
            player = Player(part)
        for stray in strays() if EVERY_STATE else strays()[number :: len(states)]:
            player.throw(stray)
        player.go_on()
        if player.done == len(part.asked):
            thrown, refused = thrown + player.thrown, refused + player.refused
    assert refused > len(strays()) // 2
    if EVERY_STATE:
        RECORD.parent.mkdir(parents=True, exist_ok=True)
        line = {
            "suite": "states",
            "what": f"{name}: every message in every state of every party",
            "count": thrown,
            "proved": "a typed refusal changes nothing, and the run ends with the same bytes",
            "lost": 0,
        }
        with RECORD.open("a") as file:
            file.write(json.dumps(line) + "\n")


def test_every_kind_of_message_is_thrown() -> None:
    assert {type(stray) for stray in strays()} == set(OWN)


class Machine(RuleBasedStateMachine):
    """A run of any protocol, disturbed by messages with anything in them."""

    @initialize(name=st.sampled_from(list(WORLDS)), number=st.integers(0, 9))
    def begin(self, name: str, number: int) -> None:
        parts = world(name)
        self.player = Player(parts[number % len(parts)])

    @precondition(lambda self: self.player.done < len(self.player.part.asked))
    @rule()
    def go_on(self) -> None:
        self.player.go_on()

    @rule(stray=st.sampled_from(OWN).flatmap(any_message))
    def throw_anything(self, stray: Message | None) -> None:
        if stray is not None:
            self.player.throw(stray)

    @rule(data=st.data())
    def throw_something_like_it(self, data: st.DataObject) -> None:
        """A message of a kind that this party does take in some state."""
        kinds = sorted({type(decode(asked)) for asked in self.player.part.asked}, key=lambda kind: kind.__name__)
        stray = data.draw(st.sampled_from(kinds).flatmap(any_message))
        if stray is not None:
            self.player.throw(stray)

    def teardown(self) -> None:
        if hasattr(self, "player"):
            self.player.finish()


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=400 if EVERY_STATE else 12,
    stateful_step_count=25,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # the steps of a failure are told as they are: runs are short
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def test_the_fingerprint_notices_a_change() -> None:
    part = world("vertical")[0]
    party = part.fresh(3)
    assert digest(party) == digest(copied(party)) == digest(part.fresh(3))
    assert digest(party) != digest(part.fresh(4))
    before = digest(party)
    party._labels[0] ^= 1
    assert digest(party) != before
