"""Secure sums with a coordinator that is not honest, and with vectors that were tampered with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
import pytest
from alignments import Between, Liar, Operator
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from secure_sums import NAMES, AddUp, Client, changing, clients_of, total, vectors_of

from woodlot.exceptions import ConfigError, LocalProtocolError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.message import Message
from woodlot.protocols.sums import (
    SumSession,
    sum_of,
)
from woodlot.protocols.sums import sum_messages as msg
from woodlot.protocols.sums.sum_client import SumClientState
from woodlot.runtime.codec import decode, encode

# --- a coordinator that is not honest ---


def test_two_clients_are_refused_unless_all_allow_it() -> None:
    vectors = vectors_of(2, 4)
    with pytest.raises(ConfigError, match=r"3 clients or more, and there are 2.*allow_two=True"):
        total(clients_of(vectors, allow_two=True), [4])
    with pytest.raises(PolicyError, match="party 'ash': sums over 2 clients"):
        total(clients_of(vectors), [4], allow_two=True)
    with pytest.raises(ConfigError, match="2 clients or more, and there are 1"):
        total(clients_of(vectors_of(1, 4), allow_two=True), [4], allow_two=True)


def test_a_client_decides_itself_whether_sums_are_plain() -> None:
    vectors = vectors_of(3, 4)
    with pytest.raises(PolicyError, match="this client takes part in secure ones only"):
        total(clients_of(vectors), [4], mode="plain")
    with pytest.raises(PolicyError, match="this client takes part in plain ones only"):
        total(clients_of(vectors, mode="plain"), [4])


def replaced(name: str, **fields: Any) -> Callable[[msg.StartSums], Message]:
    def change(message: msg.StartSums) -> Message:
        changed = msgspec.structs.replace(message.introductions[name], **fields)
        return msg.StartSums(introductions={**message.introductions, name: changed})

    return change


def _swapped(message: msg.StartSums) -> Message:
    own = message.introductions
    return msg.StartSums(introductions={**own, "beech": own["cedar"], "cedar": own["beech"]})


def _without(message: msg.StartSums) -> Message:
    return msg.StartSums(introductions={n: i for n, i in message.introductions.items() if n != "elm"})


def _forged(message: msg.StartSums) -> Message:
    """The coordinator's own key, signed by an operator of its own."""
    stranger = Operator(b"another").admit("beech")
    share = X25519PrivateKey.from_private_bytes(bytes(range(32))).public_key().public_bytes_raw()
    return replaced("beech", share=share, certificate=stranger.certificate, signature=stranger.sign("secure-sum", b""))(
        message
    )


LIES: dict[str, tuple[Callable[[msg.StartSums], Message], str]] = {
    "another key": (replaced("beech", share=bytes(range(32))), "party 'beech' is not signed"),
    "no signature": (replaced("beech", signature=b""), "party 'beech' is not signed"),
    "a forged identity": (_forged, "party 'beech' is not signed"),
    "keys exchanged": (_swapped, "is not signed"),
    "one left out": (_without, "not those of the parties"),
    "its own changed": (replaced("ash", share=bytes(32)), "under this party's name is not its own"),
}


@pytest.mark.parametrize("lie", LIES)
def test_introductions_that_are_not_in_order_are_refused(lie: str) -> None:
    change, words = LIES[lie]
    parties: dict[str, Any] = dict(clients_of(vectors_of(4, 3)))
    honest = parties["ash"]
    parties["ash"] = Between(honest, changing(msg.StartSums, change))
    with pytest.raises(LocalProtocolError, match=words):
        total(parties, [3])
    assert honest.sums.state == SumClientState.opened


def test_a_roster_told_differently_is_refused() -> None:
    """A client that is told of fewer others signs that; nobody who was told of all takes it."""
    parties: dict[str, Any] = dict(clients_of(vectors_of(4, 3)))
    parties["ash"] = Between(
        parties["ash"],
        changing(msg.OpenSums, lambda m: msg.OpenSums(clients=tuple(n for n in m.clients if n != "elm"), mode=m.mode)),
    )
    with pytest.raises(LocalProtocolError, match=r"not those of the parties|is not signed"):
        total(parties, [3])
    elsewhere = {**clients_of(vectors_of(4, 3)), "ash": Client("ash", [[1, 2, 3]], job="another")}
    with pytest.raises(LocalProtocolError, match="is not signed by its identity for this job"):
        total(elsewhere, [3])


def test_plain_clients_of_different_jobs_are_found_out() -> None:
    parties = clients_of(vectors_of(3, 3), mode="plain")
    parties["ash"] = Client("ash", [[1, 2, 3]], mode="plain", job="another")
    with pytest.raises(RemoteProtocolError, match="not told the same"):
        total(parties, [3], mode="plain")


def test_rounds_told_differently_give_garbage_that_is_found() -> None:
    """Another round for one of them: the masks do not cancel. Other clients are refused."""
    vectors = vectors_of(5, 6)

    def fewer(message: AddUp) -> Message:
        clients = tuple(n for n in message.order.clients if n != "elm")
        return AddUp(order=msgspec.structs.replace(message.order, clients=clients))

    def later(message: AddUp) -> Message:
        return AddUp(order=msgspec.structs.replace(message.order, round=message.order.round + 1))

    def as_asked(message: msg.MaskedVector) -> Message:
        return msg.MaskedVector(round=0, values=message.values)

    parties: dict[str, Any] = dict(clients_of(vectors))
    parties["ash"] = Liar(Between(parties["ash"], changing(AddUp, later)), changing(msg.MaskedVector, as_asked))
    with pytest.raises(RemoteProtocolError, match="the sum is not one of these clients' numbers"):
        total(parties, [6])
    parties = dict(clients_of(vectors))
    parties["ash"] = Between(parties["ash"], changing(AddUp, fewer))
    with pytest.raises(PolicyError, match="party 'ash': this client takes part in no sum without"):
        total(parties, [6])


def test_messages_out_of_turn_change_nothing() -> None:
    client = Client("ash", [[1, 2]])
    opening = msg.OpenSums(clients=NAMES[:3], mode="secure")
    order = msg.SumOrder(round=0, clients=NAMES[:3], length=2, bound=5)
    for early in (msg.StartSums(introductions={}), AddUp(order=order)):
        with pytest.raises(RemoteProtocolError, match="idle"):
            client.handle(early)
    with pytest.raises(RemoteProtocolError, match="Unexpected SumsStarted"):
        client.handle(msg.SumsStarted(transcript=b""))
    with pytest.raises(RemoteProtocolError, match="'ash', is not among"):
        client.handle(msg.OpenSums(clients=NAMES[1:5], mode="secure"))
    first = client.handle(opening)
    with pytest.raises(RemoteProtocolError, match="Unexpected OpenSums in state opened; expected in state idle"):
        client.handle(opening)
    assert isinstance(first, msg.SumsIntroduced)
    assert client.sums.state == SumClientState.opened


@pytest.mark.parametrize(
    "wrong",
    [{"clients": ("b", "a", "c")}, {"clients": ("a", "a")}, {"clients": ()}, {"round": -1}, {"length": 0},
     {"bound": 0}, {"bound": 2**62}],
)  # fmt: skip
def test_orders_that_cannot_be(wrong: dict[str, Any]) -> None:
    good = {"round": 0, "clients": ("a", "b", "c"), "length": 2, "bound": 5}
    with pytest.raises(ValueError, match=r"ascending|numbered|one number|bound"):
        msg.SumOrder(**{**good, **wrong})
    encoded = encode(AddUp(order=msg.SumOrder(**good)))
    assert isinstance(decode(encoded), AddUp)
    replaced_bytes = encoded.replace(b"\xa5bound\x05", b"\xa5bound\x00")
    assert replaced_bytes != encoded
    with pytest.raises(RemoteProtocolError, match="bound"):
        decode(replaced_bytes)
    session = SumSession(("a", "b", "c"), "secure", 3)
    with pytest.raises(LocalProtocolError, match="no such sum"):
        session.order(0, 5)
    assert session.next_round == 0


# --- tampered sums ---


@pytest.mark.parametrize("bound", [None, 1000])
@pytest.mark.parametrize("mode", ["secure", "plain"])
def test_a_changed_vector_is_found(mode: Literal["secure", "plain"], bound: int | None) -> None:
    vectors = vectors_of(4, 20)

    def added(at: int, amount: int) -> Callable[[Any], Message]:
        def change(message: Any) -> Message:
            values = message.values.copy()
            values[at : at + 1] += values.dtype.type(amount)
            return type(message)(round=message.round, values=values)

        return change

    def exchanged(message: Any) -> Message:
        values = message.values.copy()
        values[[2, 3]] = values[[3, 2]]
        return type(message)(round=message.round, values=values)

    top = 1 << (31 if bound else 63)
    for change in (added(0, 1), added(7, top), added(19, 2), added(20, 1), added(21, 1), exchanged):
        parties: dict[str, Any] = dict(clients_of(vectors, mode=mode))
        parties["beech"] = Liar(parties["beech"], changing(msg.SumVector, change))
        with pytest.raises(RemoteProtocolError, match="the sum is not one of these clients' numbers"):
            total(parties, [20], mode=mode, bound=bound)


def test_a_vector_of_another_form_names_its_sender() -> None:
    vectors = vectors_of(3, 5)
    changes: list[Callable[[Any], Message]] = [
        lambda m: msg.MaskedVector(round=m.round, values=m.values[:-1]),
        lambda m: msg.MaskedVector(round=m.round, values=m.values.astype("<u4")),
        lambda m: msg.MaskedVector(round=m.round + 1, values=m.values),
        lambda m: msg.PlainVector(round=m.round, values=m.values),
        lambda m: msg.SumsStarted(transcript=b""),
    ]
    for change in changes:
        parties: dict[str, Any] = dict(clients_of(vectors))
        parties["cedar"] = Liar(parties["cedar"], changing(msg.MaskedVector, change))
        with pytest.raises(RemoteProtocolError, match=r"^cedar "):
            total(parties, [5])


def test_numbers_beyond_the_bound() -> None:
    vectors = vectors_of(3, 5, low=0, high=10)
    vectors["beech"][0][3] = -123456
    with pytest.raises(RemoteProtocolError, match="a sum is beyond 3000, the largest") as caught:
        total(clients_of(vectors), [5], bound=1000)
    assert "123456" not in str(caught.value)
    order = msg.SumOrder(round=0, clients=("a", "b"), length=1, bound=4)
    lying = np.array([9, 2, 0], "<u4")
    lying[2] = np.dot(np.array([1, 3], "<u4"), lying[:2])
    replies = {
        "a": msg.PlainVector(round=0, values=lying),
        "b": msg.PlainVector(round=0, values=np.zeros(3, "<u4")),
    }
    with pytest.raises(RemoteProtocolError, match="a sum is beyond 8"):
        sum_of(order, "plain", replies)
    with pytest.raises(LocalProtocolError, match="needs a vector of each"):
        sum_of(order, "plain", {"a": replies["a"]})


def agreed(vectors: dict[str, list[Any]], **options: Any) -> dict[str, Client]:
    """Clients that are ready for sums."""
    clients = clients_of(vectors, **options)
    opening = msg.OpenSums(clients=tuple(vectors), mode=options.get("mode", "secure"))
    introduced: dict[str, Any] = {name: client.handle(opening) for name, client in clients.items()}
    start = msg.StartSums(introductions={name: reply.introduction for name, reply in introduced.items()})
    for client in clients.values():
        client.handle(start)
    return clients


def test_no_bound_tells_a_client_from_another() -> None:
    """A client that refused numbers beyond a bound would be asked for one bound after another, until they are known."""
    vectors = {name: [[5, 70_000, -3, 2**40]] for name in NAMES[:3]}
    for bits in (32, 64):
        clients = agreed(vectors, mode="plain")
        for number, bound in enumerate((1, 69_999, 70_000, 10**8) if bits == 32 else (2**31, 2**41)):
            order = msg.SumOrder(round=number, clients=NAMES[:3], length=4, bound=bound)
            reply = clients["ash"].handle(AddUp(order=order))
            assert isinstance(reply, msg.PlainVector)
            assert reply.values[:4].tolist() == [5, 70_000, 2**bits - 3, 2**40 % 2**bits]


@pytest.mark.parametrize("bound", [1000, 2**40])
def test_clients_that_are_told_different_bounds_have_no_sum(bound: int) -> None:
    clients = agreed(vectors_of(3, 4, low=0, high=9))
    order = msg.SumOrder(round=0, clients=NAMES[:3], length=4, bound=bound)
    other = msgspec.structs.replace(order, bound=bound + 1)
    assert order.bits == other.bits
    replies = {name: client.handle(AddUp(order=order)) for name, client in clients.items() if name != "ash"}
    replies["ash"] = clients["ash"].handle(AddUp(order=other))
    with pytest.raises(RemoteProtocolError, match="they were told different things"):
        sum_of(order, "secure", replies)


def test_what_clients_are_told_between_sums_is_in_the_masks() -> None:
    for last, ends in ((b"split", True), (b"split elsewhere", False)):
        clients = agreed(vectors_of(3, 4, low=0, high=9))
        order = msg.SumOrder(round=0, clients=NAMES[:3], length=4, bound=9)
        for name, client in clients.items():
            client.sums.note(last if name == "ash" else b"split")
        replies = {name: client.handle(AddUp(order=order)) for name, client in clients.items()}
        again = clients["ash"].handle(AddUp(order=order))
        assert encode(again) == encode(replies["ash"])
        if ends:
            sum_of(order, "secure", replies)
            continue
        with pytest.raises(RemoteProtocolError, match="they were told different things"):
            sum_of(order, "secure", replies)


def test_what_is_not_the_ordered_numbers_stays_here() -> None:
    client = clients_of(vectors_of(3, 5), mode="plain")
    total(client, [5], mode="plain")
    order = msg.SumOrder(round=9, clients=NAMES[:3], length=5, bound=5)
    for wrong in (np.zeros(5), np.zeros(4, int), np.zeros((5, 1), int)):
        with pytest.raises(LocalProtocolError):
            client["ash"].sums.answer(order, wrong)
