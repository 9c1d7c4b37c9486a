"""Secure sums: the sum in clear, and nothing else in clear; also when clients drop out or start again."""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable
from typing import Any, Literal

import numpy as np
import pytest
from alignments import SECRET, entropy_of
from hypothesis import given, settings
from hypothesis import strategies as st
from secure_sums import NAMES, AddUp, Client, Dropping, clients_of, total, vectors_of

from wire_search import captured
from woodlot.exceptions import ConfigError, DataError, LocalProtocolError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.sums import (
    SumSession,
    ask_clients,
    from_fixed,
    open_sums,
    sum_round,
    to_fixed,
)
from woodlot.protocols.sums import sum_messages as msg
from woodlot.runtime.audit import Ledger
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.drivers import answer
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run

# --- the result ---


@st.composite
def tables(draw: st.DrawFn) -> tuple[dict[str, list[Any]], int]:
    """Vectors of 2 to 7 clients, and a bound that they keep: of all sizes that sums can have."""
    n_clients = draw(st.integers(2, 7))
    lengths = draw(st.lists(st.integers(1, 12), min_size=1, max_size=3))
    bound = draw(st.sampled_from([1, 1000, (2**31 - 1) // n_clients, 2**31, (2**63 - 1) // n_clients]))
    numbers = st.integers(-bound, bound) | st.sampled_from([-bound, bound, 0, -1, 1])
    names = draw(st.permutations(NAMES))[:n_clients]
    cells = {name: [draw(st.lists(numbers, min_size=length, max_size=length)) for length in lengths] for name in names}
    return {name: [np.array(cell, np.int64) for cell in own] for name, own in cells.items()}, bound


@given(tables())
@settings(deadline=None, max_examples=60)
def test_secure_and_plain_sums_are_the_sums(case: tuple[dict[str, list[Any]], int]) -> None:
    vectors, bound = case
    lengths = [len(vector) for vector in next(iter(vectors.values()))]
    expected = [sum(own[i] for own in vectors.values()) for i in range(len(lengths))]
    secure = total(clients_of(vectors, allow_two=True), lengths, bound=bound, allow_two=True)
    plain = total(clients_of(vectors, mode="plain"), lengths, bound=bound, mode="plain")
    for i, sums in enumerate(expected):
        assert secure[i].dtype == plain[i].dtype == np.int64
        assert secure[i].tolist() == plain[i].tolist() == sums.tolist()


def test_one_client_in_plain_and_dtypes_of_all_kinds() -> None:
    assert total(clients_of({"ash": [[1, 2]]}, mode="plain"), [2], mode="plain")[0].tolist() == [1, 2]
    kinds = (np.uint8, np.int16, np.uint64, np.bool_)
    vectors = {name: [np.array([1, 0, 1], kind)] for name, kind in zip(NAMES, kinds, strict=False)}
    assert total(clients_of(vectors), [3])[0].tolist() == [4, 0, 4]
    strided = {name: [np.arange(20)[::3]] for name in NAMES[:3]}
    assert total(clients_of(strided), [7])[0].tolist() == (3 * np.arange(20)[::3]).tolist()


def test_fixed_point_sums_do_not_depend_on_the_order() -> None:
    rng = np.random.default_rng(3)
    values = {name: rng.normal(size=50) for name in NAMES}
    vectors = {name: [to_fixed(own, 30)] for name, own in values.items()}
    found = from_fixed(total(clients_of(vectors), [50])[0], 30)
    assert np.abs(found - sum(values.values())).max() < 7 * 2.0**-31 + 1e-12
    assert from_fixed(to_fixed(np.array([-1.25, 0.5]), 2), 2).tolist() == [-1.25, 0.5]
    for bad in (np.nan, np.inf, 1e300):
        with pytest.raises(DataError, match="not finite"):
            to_fixed(np.array([0.0, bad]), 8)
    with pytest.raises(LocalProtocolError):
        to_fixed(np.zeros(1), 60)


def test_a_shared_secret_stands_in_for_identities() -> None:
    vectors = vectors_of(3, 5)
    sealed = clients_of(vectors, signer=None, shared_secret=SECRET)
    assert total(sealed, [5])[0].tolist() == sum(own[0] for own in vectors.values()).tolist()
    with pytest.raises(ConfigError, match="'ash' has neither an identity nor a shared secret"):
        Client("ash", [], signer=None)
    with pytest.raises(ConfigError, match="has 5 bytes"):
        Client("ash", [], shared_secret=b"short")
    mixed = {**clients_of(vectors, signer=None, shared_secret=SECRET), "ash": Client("ash", vectors["ash"])}
    with pytest.raises(DataError, match="a shared secret is configured at 'beech', 'cedar' and none at 'ash'"):
        total(mixed, [5])
    other = {
        name: Client(name, own, signer=None, shared_secret=SECRET if name != "ash" else SECRET[::-1])
        for name, own in vectors.items()
    }
    with pytest.raises(RemoteProtocolError, match="different secrets"):
        total(other, [5])


def test_many_counters_have_eight_bytes_or_four() -> None:
    names = [f"client {i}" for i in range(10)]
    n = 260_000
    values = np.random.default_rng(0).integers(0, 100, n)
    for bound, width in ((None, 8), (10_000, 4)):
        parties = {name: Client(name, [values]) for name in names}
        ledger = Ledger()
        assert np.array_equal(total(parties, [n], ledger, bound=bound)[0], 10 * values)
        sizes = {row.sender: row.bytes for row in ledger.disclosure() if row.kind == "MaskedVector"}
        assert len(sizes) == 10
        assert all(width * n <= size <= width * n + 200 for size in sizes.values())


# --- clients that drop out ---


@pytest.mark.parametrize("mode", ["secure", "plain"])
def test_a_sum_is_that_of_the_survivors(mode: Literal["secure", "plain"]) -> None:
    rng = np.random.default_rng(2)
    vectors = {name: [rng.integers(-9, 9, 8) for _ in range(3)] for name in NAMES[:5]}
    parties: dict[str, Any] = dict(clients_of(vectors, mode=mode, quorum=3))
    parties["beech"] = Dropping(parties["beech"], AddUp, 2, PolicyError("budget is spent"))
    parties["elm"] = Dropping(parties["elm"], AddUp, 3, RuntimeError("secret words"))
    sessions: list[SumSession] = []
    with captured() as seen:
        found = total(parties, [8, 8, 8], mode=mode, spare_after=1.0, quorum=3, session=sessions)
    expected = [
        sum(own[i] for name, own in vectors.items() if name not in gone)
        for i, gone in enumerate([(), ("beech",), ("beech", "elm")])
    ]
    assert [own.tolist() for own in found] == [own.tolist() for own in expected]
    assert sessions[0].clients == ("ash", "cedar", "fir")
    assert sessions[0].left == {"beech": "budget is spent", "elm": "RuntimeError"}
    rounds = [m.order.round for m in map(decode, seen) if isinstance(m, AddUp)]
    assert rounds == [0] * 5 + [1] * 5 + [2] * 4
    if mode == "secure":
        sent = [m.values for m in map(decode, seen) if isinstance(m, msg.MaskedVector)]
        assert len(np.unique(np.concatenate(sent))) == sum(map(len, sent))


def test_too_few_survivors_are_an_error_that_says_why() -> None:
    parties: dict[str, Any] = dict(clients_of({name: [[1], [2]] for name in NAMES[:4]}, quorum=3))
    parties["ash"] = Dropping(parties["ash"], AddUp, 1, DataError("the table is gone"))
    parties["elm"] = Dropping(parties["elm"], AddUp, 2, PolicyError("budget is spent"))
    with pytest.raises(PolicyError) as caught:
        total(parties, [1, 1], spare_after=1.0, quorum=3)
    assert str(caught.value) == (
        "2 of 3 clients are left, and sums need 3: 'ash': the table is gone; 'elm': budget is spent"
    )


def test_a_client_decides_itself_how_many_must_be_left() -> None:
    vectors = {name: [[1]] for name in NAMES[:5]}
    for own, asked in ((None, 3), (3, None), (3, 4), (4, 0.5)):
        with pytest.raises(PolicyError, match="another number of clients than was ordered"):
            total(clients_of(vectors, quorum=own), [1], spare_after=1.0, quorum=asked)
    for quorum in (6, 1.0):
        with pytest.raises(ConfigError, match="set quorum to more than half of the clients"):
            total(clients_of(vectors, quorum=3), [1], spare_after=1.0, quorum=quorum)
    many = {name: [[1]] for name in NAMES}
    for quorum in (3, 0.2):
        with pytest.raises(ConfigError, match="a quorum of 3 of 7 clients is not possible"):
            total(clients_of(many, quorum=4), [1], spare_after=1.0, quorum=quorum)
    with pytest.raises(PolicyError, match="a quorum of 3 of 7 clients is not possible"):
        total(clients_of(many, quorum=3), [1], spare_after=1.0, quorum=4)
    assert total(clients_of(vectors, quorum=5), [1], spare_after=1.0, quorum=5)[0].tolist() == [5]


def test_without_recovery_a_refusal_ends_the_run() -> None:
    parties: dict[str, Any] = dict(clients_of({name: [[1]] for name in NAMES[:5]}))
    parties["ash"] = Dropping(parties["ash"], AddUp, 1, DataError("gone"))
    with pytest.raises(DataError, match="party 'ash': gone"):
        total(parties, [1])


def test_rounds_that_are_no_sums_lose_clients_too() -> None:
    parties: dict[str, Any] = dict(clients_of({name: [[1]] for name in NAMES[:4]}, quorum=3))
    parties["ash"] = Dropping(parties["ash"], AddUp, 1, DataError("gone"))

    def protocol() -> Generator[Round, dict[str, Message], list[str]]:
        session = yield from open_sums(NAMES[:4], spare_after=1.0, quorum=3)
        yield from sum_round(session, "add", lambda order: AddUp(order=order), length=1)
        assert session.left == {"ash": "gone"}
        replies = yield from ask_clients(session, "tell", msg.PrepareSums(first=1, clients=session.clients))
        return list(replies)

    with InProcessDriver(parties) as driver:
        assert run(protocol(), driver, ledger=Ledger()) == ["beech", "cedar", "elm"]


# --- restarts and the wire ---


def test_a_client_that_is_restarted_repeats_its_bytes() -> None:
    vectors = {name: [[1, -2, 3], [4, 5, 6]] for name in NAMES[:3]}

    class Recorded(Client):
        def handle(self, message: Message) -> Message:
            reply = super().handle(message)
            log.append((encode(message), encode(reply)))
            return reply

    log: list[tuple[bytes, bytes]] = []
    parties: dict[str, Any] = dict(clients_of(vectors))
    parties["beech"] = Recorded("beech", vectors["beech"])
    total(parties, [3, 3])
    assert len(log) == 4
    again = Client("beech", vectors["beech"])
    assert [answer(again, request)[0] for request, _ in log] == [reply for _, reply in log]
    for request, reply in log[2:]:  # and a request that is repeated gets the same
        assert answer(again, request)[0] == reply
    again.vectors[1] = again.vectors[1] + 1
    refused, error = answer(again, log[3][0])
    assert refused != log[3][1]
    assert isinstance(error, RemoteProtocolError)


def test_another_table_or_job_has_other_keys() -> None:
    opening = msg.OpenSums(clients=NAMES[:3], mode="secure")
    shares = []
    for options in ({}, {"data_digest": b"1"}, {"data_digest": b"2"}, {"entropy": entropy_of("ash", "k")}):
        reply = Client("ash", [], **options).handle(opening)
        assert isinstance(reply, msg.SumsIntroduced)
        shares.append(reply.introduction.share)
    assert len(set(shares)) == 4
    with pytest.raises(LocalProtocolError, match="entropy gave 3 bytes"):
        Client("ash", [], entropy=lambda purpose: b"abc")


def forms(values: Iterable[int]) -> list[bytes]:
    """The forms in which somebody might find a number in a message."""
    found = []
    for value in values:
        found += [value.to_bytes(8, order, signed=True) for order in ("little", "big")]
        found += [value.to_bytes(4, order, signed=True) for order in ("little", "big")]
        found += [str(value).encode(), struct.pack("<d", value), struct.pack("<f", value)]
    return found


@pytest.mark.parametrize("bound", [None, 2**28])
def test_no_number_of_a_client_travels(bound: int | None) -> None:
    vectors = vectors_of(4, 200, seed=11, low=2**26, high=2**28)
    vectors["ash"][0] *= -1
    traces = forms(int(value) for own in vectors.values() for value in own[0])
    hidden = [entropy_of(name, "j")("secure-sum share") for name in vectors]
    with captured() as seen:
        total(clients_of(vectors), [200], bound=bound)
    assert len(seen) == 6 * 4
    assert not any(trace in message for message in seen for trace in [*traces, *hidden])
    with captured() as seen:
        total(clients_of(vectors, mode="plain"), [200], bound=bound, mode="plain")
    hits = {type(decode(message)) for message in seen for trace in traces if trace in message}
    assert hits == {msg.PlainVector}


def test_what_the_coordinator_gets_is_the_same_for_other_dealings_of_the_rows() -> None:
    """Rows that move from one client to another change no sum, no length, and no message but the masked vectors."""
    rng = np.random.default_rng(4)
    cells = rng.integers(0, 50, 300)
    results, sizes = [], []
    for seed in (1, 2):
        owner = np.random.default_rng(seed).integers(0, 3, 300)
        vectors = {name: [np.bincount(cells[owner == i], minlength=50)] for i, name in enumerate(NAMES[:3])}
        ledger = Ledger()
        results.append(total(clients_of(vectors), [50], ledger, bound=300)[0].tolist())
        sizes.append([(row.kind, row.sender, row.bytes) for row in ledger.disclosure()])
    assert results[0] == results[1] == np.bincount(cells, minlength=50).tolist()
    assert sizes[0] == sizes[1]
