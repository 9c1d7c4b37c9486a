"""Alignment by private set intersection: the rows of the inner join in clear, and a coordinator who learns counts."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from alignments import (
    SECRET,
    Between,
    Ids,
    Liar,
    expected_rows,
    is_found,
    party,
    run_alignment,
    traces_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from wire_search import captured
from woodlot.exceptions import DataError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.align import AlignParty, psi
from woodlot.protocols.align import align_messages as msg
from woodlot.protocols.align.align_party import AlignState
from woodlot.protocols.core.message import Message
from woodlot.runtime.audit import Ledger
from woodlot.runtime.codec import decode, encode

NAMES = ("bank", "shop", "port", "mill", "inn")
POINT, SEAL, HEADER = 33, 16, 90
KEYS = [psi.key_from(bytes([n]) * 48) for n in (1, 2)]


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Ids]:
    values: st.SearchStrategy[Any] = draw(
        st.sampled_from([st.integers(-(2**63), 2**63 - 1), st.text("abcé0 ", min_size=1, max_size=4)])
    )
    pool = draw(st.lists(values, unique=True, min_size=1, max_size=12))
    n_parties = draw(st.integers(2, 5))
    return {name: draw(st.lists(st.sampled_from(pool), unique=True, min_size=1)) for name in NAMES[:n_parties]}


@pytest.mark.slow
@given(tables(), st.booleans())
@settings(deadline=None, max_examples=40)
def test_the_result_is_that_of_the_join_in_clear(ids: dict[str, Ids], configured: bool) -> None:
    parties = {name: party(name, own, secret=SECRET if configured else None) for name, own in ids.items()}
    counts = {name: len(own) for name, own in ids.items()}
    n_common = len(set.intersection(*(set(map(str, own)) for own in ids.values())))
    if n_common == 0:
        with pytest.raises(DataError, match="no id is at every party") as caught:
            run_alignment(parties, "psi")
        assert all(f"{count} at {name!r}" in str(caught.value) for name, count in counts.items())
        return
    found = run_alignment(parties, "psi")
    rows = list(zip(*(p.rows.tolist() for p in parties.values()), strict=True))
    assert set(rows) == expected_rows(ids, "inner")
    assert len(set(rows)) == len(rows) == found.n_rows
    assert found.rows == counts
    assert found.lost == {name: count - n_common for name, count in counts.items()}


def test_parties_without_rows() -> None:
    with pytest.raises(DataError, match="there are 2 at 'bank', 0 at 'shop'"):
        run_alignment({"bank": party("bank", [1, 2]), "shop": party("shop", [])}, "psi")


def test_different_types_of_ids() -> None:
    with pytest.raises(DataError, match="whole numbers at 'bank'; text at 'shop'"):
        run_alignment({"bank": party("bank", [1]), "shop": party("shop", ["1"])}, "psi")


def test_different_secrets() -> None:
    parties = {"bank": party("bank", [1], secret=SECRET), "shop": party("shop", [1], secret=SECRET[::-1])}
    with pytest.raises(DataError, match="party 'shop': the shared secret"):
        run_alignment(parties, "psi")


# --- the wire ---


@pytest.mark.parametrize("kind", ["numbers", "text"])
def test_nothing_of_an_id_travels_and_no_point_in_clear(kind: str) -> None:
    numbers = np.random.default_rng(5).integers(10**9, 2**32, 45).tolist()
    ids: Ids = numbers if kind == "numbers" else [f"customer-{n}" for n in numbers]
    parties = {"bank": party("bank", ids[:30]), "shop": party("shop", ids[10:]), "port": party("port", ids[5:40])}
    with captured() as seen:
        run_alignment(parties, "psi")
    assert not is_found(traces_of(ids), seen)
    # Points are sealed between parties: a coordinator who saw them could compare them, or ask for its own guesses.
    blinded = [
        psi.request(p._curve_key(role), p._ids.values) for p in parties.values() for role in ("client", "server")
    ]
    points = [point.tobytes() for own in blinded for point in own]
    assert not is_found(points, seen)
    assert is_found(points, [*seen, encode(msg.SealedAnswer(sealed=np.append(blinded[0][3], np.uint8(0))))])


def test_bytes_are_as_documented() -> None:
    n, m, z = 300, 200, 120
    parties = {"bank": party("bank", list(range(n))), "shop": party("shop", list(range(n - z, n - z + m)))}
    ledger = Ledger()
    assert run_alignment(parties, "psi", ledger=ledger).n_rows == z
    expected = {
        "SealedRequests": POINT * n + SEAL,
        "AnswerRequest": POINT * n + SEAL,
        "SealedAnswer": POINT * (n + 2 * m) + SEAL,
        "FindCommon": POINT * (n + 2 * m) + SEAL,
        "SealedCommon": POINT * (m + z) + SEAL,
        "TakeIntersection": POINT * (m + z) + SEAL,
    }
    sizes = {row.kind: row.bytes for row in ledger.disclosure() if row.kind in expected}
    assert sizes.keys() == expected.keys()
    assert all(0 <= sizes[kind] - size <= HEADER for kind, size in expected.items())


def test_the_order_of_rows_does_not_travel() -> None:
    """Blinded ids come in the order of their tokens, which is that of the common rows at every party."""
    parties = {"bank": party("bank", [5, 3, 8, 1]), "shop": party("shop", [1, 3, 5, 8])}
    run_alignment(parties, "psi")
    assert parties["bank"]._ordered_ids() == parties["shop"]._ordered_ids()


@pytest.mark.slow
def test_two_thousand_ids() -> None:
    rng = np.random.default_rng(2)
    bank, shop = (rng.permutation(np.arange(start, start + 2_000)) for start in (0, 500))
    parties = {"bank": party("bank", bank), "shop": party("shop", shop)}
    assert run_alignment(parties, "psi").n_rows == 1_500
    assert (bank[parties["bank"].rows] == shop[parties["shop"].rows]).all()


# --- a package that is missing ---


def test_the_package_is_missing_at_one_party(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "private_set_intersection.python", None)
    parties = {"bank": party("bank", [1]), "shop": party("shop", [1])}
    with pytest.raises(DataError, match=r"party 'bank': .* install woodlot\[psi\]"):
        run_alignment(parties, "psi")
    assert parties["bank"].state == AlignState.idle
    assert run_alignment(parties, "keyed-hash").n_rows == 1


# --- messages out of turn and malformed ---


def recording() -> dict[str, list[Message]]:
    heard: dict[str, list[Message]] = {"bank": [], "shop": []}

    def ear(name: str) -> Callable[[Message], Message]:
        return lambda message: heard[name].append(message) or message  # type: ignore[func-returns-value]

    run_alignment({name: Between(party(name, TABLES[name]), ear(name)) for name in heard}, "psi")
    return heard


TABLES: dict[str, Ids] = {"bank": list(range(12)), "shop": list(range(4, 14))}


def sealings(sealed: np.ndarray) -> list[np.ndarray]:
    """What is not what was sealed."""
    flipped = sealed.copy()
    flipped[5] ^= 1
    return [sealed[:0], sealed[:-1], np.append(sealed, np.uint8(0)), flipped, np.zeros(99, np.uint8)]


@pytest.mark.parametrize("name", ["bank", "shop"])
def test_everything_else_is_refused_in_every_state_and_changes_nothing(name: str) -> None:
    heard = recording()
    undisturbed, disturbed = party(name, TABLES[name]), party(name, TABLES[name])
    every = [*heard["bank"], *heard["shop"], msg.SendTokens(), msg.CommonRows(n_rows=1, bits=np.ones(2, np.uint8))]
    kinds = set()
    for due in heard[name]:
        thrown = [message for message in every if type(message) is not type(due)]
        if isinstance(due, msg.AnswerRequest | msg.TakeIntersection):
            thrown += [msgspec.structs.replace(due, sealed=sealed) for sealed in sealings(due.sealed)]
        if isinstance(due, msg.FindCommon):
            thrown += [msg.FindCommon(sealed={"shop": sealed}) for sealed in sealings(due.sealed["shop"])]
            thrown += [msg.FindCommon(sealed={}), msg.FindCommon(sealed={**due.sealed, "port": due.sealed["shop"]})]
        for message in thrown:
            state = disturbed.state
            with pytest.raises(RemoteProtocolError):
                disturbed.handle(message)
            assert disturbed.state == state
        # A party that is made again from the same secrets answers with the same bytes.
        assert encode(disturbed.handle(due)) == encode(undisturbed.handle(due))
        kinds.add(type(due))
    assert len(kinds) == 4
    assert disturbed.rows.tolist() == undisturbed.rows.tolist()


def lying(name: str, purpose: str, lie: Callable[[bytes], bytes]) -> AlignParty:
    """A party that seals something else: what a peer with a valid identity can do."""
    liar = party(name, [1, 2, 3])
    take = liar._take

    def take_and_lie(keys: Any, *secrets: bytes) -> None:
        class Lying(type(keys)):  # type: ignore[misc]
            def seal(self, receiver: str, used_for: str, data: bytes) -> bytes:
                return bytes(super().seal(receiver, used_for, lie(data) if used_for == purpose else data))

        take(Lying(**{field: getattr(keys, field) for field in keys.__dataclass_fields__}), *secrets)

    liar._take = take_and_lie  # type: ignore[method-assign]
    return liar


def point(at: int) -> slice:
    return slice(at * POINT, (at + 1) * POINT)


OFF_THE_CURVE = b"\x02" + b"\xff" * 32
LIES: dict[str, Callable[[bytes], bytes]] = {
    "no whole points": lambda data: data[:-1],
    "one point more": lambda data: data + data[-POINT:],
    "nothing": lambda data: b"",
    "other prefix": lambda data: b"\x04" + data[1:],
    "a point twice": lambda data: data[point(0)] + data[point(0)] + data[2 * POINT :],
    "off the curve": lambda data: data[:-POINT] + OFF_THE_CURVE,
}


@pytest.mark.parametrize("lie", [name for name in LIES if name not in ("one point more", "nothing")])
def test_garbage_in_the_leaders_request(lie: str) -> None:
    shop = party("shop", [1, 2, 3])
    with pytest.raises(LocalProtocolError, match="party 'shop': ") as caught:
        run_alignment({"bank": lying("bank", "request", LIES[lie]), "shop": shop}, "psi")
    assert isinstance(caught.value.__cause__, RemoteProtocolError)
    assert shop.state == AlignState.keyed


@pytest.mark.parametrize("lie", LIES)
def test_garbage_in_an_answer(lie: str) -> None:
    bank = party("bank", [1, 2, 3])
    with pytest.raises(LocalProtocolError, match="party 'bank': ") as caught:
        run_alignment({"bank": bank, "shop": lying("shop", "answer", LIES[lie])}, "psi")
    assert isinstance(caught.value.__cause__, RemoteProtocolError)
    assert bank.state == AlignState.requested


def test_garbage_in_the_response_of_an_answer() -> None:
    """The points that the leader takes its key off: setup, response and request have 3 each."""
    bank = party("bank", [1, 2, 3])
    lie = lying("shop", "answer", lambda data: data[: 3 * POINT] + OFF_THE_CURVE + data[4 * POINT :])
    with pytest.raises(LocalProtocolError, match="no points of the curve"):
        run_alignment({"bank": bank, "shop": lie}, "psi")


def test_a_point_twice_in_the_request_of_an_answer() -> None:
    lie = lying("shop", "answer", lambda data: data[: 7 * POINT] + data[point(6)] + data[8 * POINT :])
    with pytest.raises(LocalProtocolError, match="the answer of party 'shop' has a point twice"):
        run_alignment({"bank": party("bank", [1, 2, 3]), "shop": lie}, "psi")


@pytest.mark.parametrize("lie", LIES)
def test_garbage_in_the_intersection(lie: str) -> None:
    shop = party("shop", [1, 2, 3])
    with pytest.raises(LocalProtocolError, match="party 'shop': ") as caught:
        run_alignment({"bank": lying("bank", "intersection", LIES[lie]), "shop": shop}, "psi")
    assert isinstance(caught.value.__cause__, RemoteProtocolError)
    assert shop.state == AlignState.answered


def test_a_setup_out_of_order() -> None:
    lie = lying("shop", "answer", lambda data: data[point(2)] + data[point(1)] + data[point(0)] + data[3 * POINT :])
    with pytest.raises(LocalProtocolError, match="not in ascending order"):
        run_alignment({"bank": party("bank", [1, 2, 3]), "shop": lie}, "psi")


def test_a_leader_who_names_rows_that_are_not_there() -> None:
    stranger = psi.setup(KEYS[0], [b"t?"]).tobytes()

    def swap(data: bytes) -> bytes:
        setup = sorted([stranger, data[point(1)], data[point(2)]])
        return b"".join(setup) + data[3 * POINT :]

    lie = lying("bank", "intersection", swap)
    with pytest.raises(LocalProtocolError, match="has 3 rows, of which 2 are here"):
        run_alignment({"bank": lie, "shop": party("shop", [1, 2, 3])}, "psi")


@pytest.mark.parametrize(
    ("kind", "lie", "words"),
    [
        (msg.SealedRequests, lambda m: msg.SealedRequests(sealed={}), "bank did not seal one message for each"),
        (msg.SealedCommon, lambda m: msgspec.structs.replace(m, n_rows=4), "more than there can be"),
        (msg.SealedCommon, lambda m: msgspec.structs.replace(m, n_rows=-1), "more than there can be"),
        (msg.SealedCommon, lambda m: msgspec.structs.replace(m, sealed={}), "bank did not seal one message for each"),
        (msg.SealedCommon, lambda m: msgspec.structs.replace(m, n_rows=2), "shop has found 3 common rows"),
        (msg.SealedCommon, lambda m: msg.SecretTaken(), "bank answered with SecretTaken"),
    ],
)
def test_the_coordinator_refuses_lies(kind: type[Message], lie: Callable[[Any], Message], words: str) -> None:
    bank = Liar(party("bank", [1, 2, 3]), lambda message: lie(message) if isinstance(message, kind) else message)
    with pytest.raises(RemoteProtocolError, match=words):
        run_alignment({"bank": bank, "shop": party("shop", [1, 2, 3])}, "psi")


# --- the library, as it is used here ---


def test_messages_follow_from_keys_and_ids() -> None:
    ids = [b"t%d" % n for n in range(20)]
    assert psi.request(KEYS[0], ids).tolist() == psi.request(KEYS[0], ids).tolist()
    assert psi.setup(KEYS[0], ids).tolist() == psi.setup(KEYS[0], ids[::-1]).tolist()
    asked = psi.request(KEYS[0], ids)
    assert psi.respond(KEYS[1], asked).tolist() == psi.respond(KEYS[1], asked).tolist()
    assert asked.tolist() != psi.request(KEYS[1], ids).tolist()
    found = psi.intersect(KEYS[0], psi.setup(KEYS[1], ids[5:9]), psi.respond(KEYS[1], asked))
    assert found.tolist() == [5, 6, 7, 8]


def test_keys_are_inside_the_curves_order() -> None:
    for material in (bytes(48), b"\xff" * 48, (psi._ORDER - 1).to_bytes(48, "big"), psi._ORDER.to_bytes(48, "big")):
        assert 0 < int.from_bytes(psi.key_from(material), "big") < psi._ORDER
        assert psi.request(psi.key_from(material), [b"t"]).shape == (1, POINT)


def test_wire_messages_survive_the_codec() -> None:
    message = decode(encode(recording()["bank"][1]))
    assert isinstance(message, msg.DrawSecret)
    assert list(message.introductions) == ["bank", "shop"]
