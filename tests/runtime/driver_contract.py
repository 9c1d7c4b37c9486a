"""What every driver must do, as tests.

A driver's own test module subclasses `DriverContract` and gives it a fixture ``make_driver``: a function that
takes handlers by name and returns a driver, which the fixture closes at the end.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import numpy as np
import pytest

from woodlot.exceptions import DataError, LocalProtocolError, PolicyError, RemoteProtocolError, WoodlotError
from woodlot.protocols.core.message import Message, Refusal
from woodlot.runtime.drivers import Driver, Handler

from .samples import Answer, Question

MakeDriver = Callable[[Mapping[str, Handler]], Driver]
PATIENCE = 300.0  # seconds after which what is waited for will never come; no test is about this time


class Party:
    """Answers with what a function makes of the question, and remembers what it was asked."""

    def __init__(self, name: str, respond: Callable[[Question], Message] | None = None) -> None:
        self.name = name
        self.asked: list[Question] = []
        self._respond = respond or self.echo

    def echo(self, message: Question) -> Message:
        return Answer(number=message.number, party=self.name, data=message.data)

    def handle(self, message: Message) -> Message:
        assert isinstance(message, Question)
        self.asked.append(message)
        return self._respond(message)


def raising(error: BaseException) -> Callable[[Question], Message]:
    def respond(message: Question) -> Message:
        raise error

    return respond


def number_of(reply: Message) -> int:
    assert isinstance(reply, Answer)
    return reply.number


class DriverContract:
    """Tests that any driver passes."""

    def test_replies_are_keyed_and_ordered_as_the_requests(self, make_driver: MakeDriver) -> None:
        def late(message: Question) -> Message:
            time.sleep(0.05)
            return Answer(number=message.number, party="a")

        driver = make_driver({"a": Party("a", late), "b": Party("b"), "c": Party("c")})
        assert driver.parties == ("a", "b", "c")
        replies = driver.ask({"c": Question(number=3), "a": Question(number=1), "b": Question(number=2)})
        assert [(name, reply.party, reply.number) for name, reply in replies.items()] == [  # type: ignore[attr-defined]
            ("c", "c", 3),
            ("a", "a", 1),
            ("b", "b", 2),
        ]

    def test_only_the_named_parties_are_asked(self, make_driver: MakeDriver) -> None:
        parties = {name: Party(name) for name in "abc"}
        driver = make_driver(parties)
        assert list(driver.ask({"b": Question()})) == ["b"]
        assert list(driver.ask({"b": Question(), "c": Question()})) == ["b", "c"]
        assert driver.ask({}) == {}
        assert {name: len(party.asked) for name, party in parties.items()} == {"a": 0, "b": 2, "c": 1}

    def test_all_parties_are_asked_at_once(self, make_driver: MakeDriver) -> None:
        meeting = threading.Barrier(3)

        def respond(message: Question) -> Message:
            return Answer(number=meeting.wait(PATIENCE))

        driver = make_driver({name: Party(name, respond) for name in "abc"})
        replies = driver.ask({name: Question() for name in "abc"})
        assert sorted(map(number_of, replies.values())) == [0, 1, 2]

    def test_one_party(self, make_driver: MakeDriver) -> None:
        driver = make_driver({"only": Party("only")})
        assert number_of(driver.ask({"only": Question(number=5)})["only"]) == 5

    @pytest.mark.parametrize(
        ("error", "expected", "words"),
        [
            (DataError("column 'age' is empty"), DataError, "party 'b': column 'age' is empty"),
            (PolicyError("no labels leave"), PolicyError, "party 'b': no labels leave"),
            (RemoteProtocolError("not now"), LocalProtocolError, "party 'b': not now"),
            (LocalProtocolError("secret"), RemoteProtocolError, "party 'b' failed: LocalProtocolError"),
            (KeyError("secret"), RemoteProtocolError, "party 'b' failed: KeyError"),
            (DataError("long " * 1_000), DataError, "party 'b': long long"),
        ],
    )
    @pytest.mark.parametrize("others", [(), ("a", "c")])
    def test_refusals_are_typed_and_name_the_party(
        self,
        make_driver: MakeDriver,
        error: Exception,
        expected: type[WoodlotError],
        words: str,
        others: tuple[str, ...],
    ) -> None:
        driver = make_driver({"a": Party("a"), "b": Party("b", raising(error)), "c": Party("c")})
        with pytest.raises(expected) as caught:
            driver.ask({name: Question() for name in (*others, "b")})
        assert type(caught.value) is expected
        assert str(caught.value).startswith(words)
        assert "secret" not in str(caught.value)

    def test_a_refusal_can_be_answered_as_any_message(self, make_driver: MakeDriver) -> None:
        driver = make_driver({"a": Party("a", lambda message: Refusal(kind="policy", reason="closed today"))})
        with pytest.raises(PolicyError, match="party 'a': closed today"):
            driver.ask({"a": Question()})

    def test_the_first_party_in_the_drivers_order_is_blamed(self, make_driver: MakeDriver) -> None:
        def late(message: Question) -> Message:
            time.sleep(0.05)
            raise DataError("late")

        driver = make_driver({"a": Party("a", late), "b": Party("b", raising(PolicyError("early")))})
        with pytest.raises(DataError, match="party 'a': late") as caught:
            driver.ask({"b": Question(), "a": Question()})
        assert caught.value.__notes__ == ["also refused: party 'b': early"]

    def test_a_refusal_waits_for_the_others_and_spares_them(self, make_driver: MakeDriver) -> None:
        ended = []

        def refuse_once(message: Question) -> Message:
            if message.number == 0:
                raise DataError("not the first")
            return Answer(number=message.number)

        def late(message: Question) -> Message:
            time.sleep(0.1)
            ended.append(message.number)
            return Answer(number=message.number)

        driver = make_driver({"a": Party("a", refuse_once), "b": Party("b", late)})
        with pytest.raises(DataError):
            driver.ask({"a": Question(number=0), "b": Question(number=0)})
        assert ended == [0]
        replies = driver.ask({"a": Question(number=1), "b": Question(number=1)})
        assert list(map(number_of, replies.values())) == [1, 1]

    def test_an_answer_that_is_no_message_is_the_partys_failure(self, make_driver: MakeDriver) -> None:
        driver = make_driver({"a": Party("a", lambda message: {"number": 1}), "b": Party("b")})  # type: ignore[arg-type, return-value]
        with pytest.raises(RemoteProtocolError, match="party 'a' failed"):
            driver.ask({"a": Question(), "b": Question()})
        assert number_of(driver.ask({"b": Question(number=2)})["b"]) == 2

    def test_large_payloads(self, make_driver: MakeDriver) -> None:
        driver = make_driver({name: Party(name) for name in "ab"})
        data = np.random.default_rng(0).integers(0, 256, 20_000_000, dtype=np.uint8)
        replies = driver.ask({name: Question(data=data) for name in "ab"})
        for reply in replies.values():
            assert isinstance(reply, Answer)
            assert reply.data is not None
            assert np.array_equal(reply.data, data)

    def test_many_rounds(self, make_driver: MakeDriver) -> None:
        driver = make_driver({name: Party(name) for name in "ab"})
        for number in range(2_000):
            replies = driver.ask({name: Question(number=number) for name in "ab"})
            assert [number_of(replies[name]) for name in "ab"] == [number, number]

    def test_messages_are_isolated(self, make_driver: MakeDriver) -> None:
        kept = np.zeros(4, np.uint8)

        def respond(message: Question) -> Message:
            return Answer(data=kept)

        party = Party("a", respond)
        driver = make_driver({"a": party, "b": Party("b")})
        sent = np.zeros(4, np.uint8)
        reply = driver.ask({"a": Question(data=sent), "b": Question()})["a"]
        sent[:] = 1
        kept[:] = 2
        assert isinstance(reply, Answer)
        for received in (party.asked[0].data, reply.data):
            assert received is not None
            assert received.tolist() == [0, 0, 0, 0]
            assert not received.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                received[0] = 3

    @pytest.mark.parametrize("data", [None, np.zeros(0, np.uint8)])
    def test_nothing_and_empty_are_told_apart(self, make_driver: MakeDriver, data: np.ndarray | None) -> None:
        party = Party("a")
        driver = make_driver({"a": party})
        reply = driver.ask({"a": Question(data=data)})["a"]
        assert isinstance(reply, Answer)
        for received in (party.asked[0].data, reply.data):
            assert (received is None) == (data is None)
            assert received is None or received.shape == (0,)

    def test_an_unknown_party_is_met_before_anything_is_sent(self, make_driver: MakeDriver) -> None:
        party = Party("a")
        driver = make_driver({"a": party})
        with pytest.raises(LocalProtocolError, match=r"unknown party 'z'; the parties are a"):
            driver.ask({"a": Question(), "z": Question()})
        assert party.asked == []
        driver.ask({"a": Question()})

    def test_a_bad_request_is_met_before_anything_is_sent(self, make_driver: MakeDriver) -> None:
        party = Party("a")
        driver = make_driver({"a": party, "b": Party("b")})
        with pytest.raises(LocalProtocolError, match="Question cannot be encoded"):
            driver.ask({"a": Question(), "b": Question(number=2**70)})
        assert party.asked == []
        driver.ask({"a": Question()})

    def test_a_closed_driver_refuses(self, make_driver: MakeDriver) -> None:
        party = Party("a")
        driver = make_driver({"a": party})
        driver.ask({"a": Question()})
        driver.close()
        driver.close()
        with pytest.raises(LocalProtocolError, match="closed"):
            driver.ask({"a": Question()})
        assert len(party.asked) == 1

    def test_a_driver_that_was_never_asked_closes(self, make_driver: MakeDriver) -> None:
        make_driver({"a": Party("a"), "b": Party("b")}).close()

    def test_leaving_the_context_closes(self, make_driver: MakeDriver) -> None:
        with make_driver({"a": Party("a")}) as driver:
            driver.ask({"a": Question()})
        with pytest.raises(LocalProtocolError, match="closed"):
            driver.ask({"a": Question()})
