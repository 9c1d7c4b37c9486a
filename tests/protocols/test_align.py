"""Alignment by keyed hash: the rows of the join in clear, without an id on the wire."""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from alignments import (
    OPERATOR,
    SECRET,
    Between,
    Ids,
    Liar,
    Operator,
    entropy_of,
    expected_rows,
    is_found,
    party,
    run_alignment,
    traces_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from wire_search import captured
from woodlot.exceptions import ConfigError, DataError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.align import Alignment, AlignParty, align
from woodlot.protocols.align import align_messages as msg
from woodlot.protocols.align.tokens import are_ascending, make_tokens, match_tokens
from woodlot.protocols.core.message import Message
from woodlot.runtime.audit import Ledger
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.drivers import answer

NAMES = ("bank", "shop", "port", "mill", "inn")
NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.integers(0, 30)
HEADER = 80
# The join in clear compares text as it is: normal forms are tested with the canonical ids.
TEXTS = st.text("abcé0 ", min_size=1, max_size=4)


@st.composite
def tables(draw: st.DrawFn) -> dict[str, Ids]:
    """Tables of 2 to 5 parties that share some ids, in any order; some have no rows."""
    pool = draw(st.lists(draw(st.sampled_from([NUMBERS, TEXTS])), unique=True, min_size=1, max_size=25))
    n_parties = draw(st.integers(2, 5))
    return {name: draw(st.lists(st.sampled_from(pool), unique=True)) for name in NAMES[:n_parties]}


def rows_of(parties: dict[str, AlignParty]) -> list[tuple[int, ...]]:
    return list(zip(*(p.rows.tolist() for p in parties.values()), strict=True))


# --- the result ---


@given(tables(), st.sampled_from(["inner", "outer"]), st.booleans())
@settings(deadline=None, max_examples=60)
def test_the_result_is_that_of_the_join_in_clear(
    ids: dict[str, Ids], join: Literal["inner", "outer"], configured: bool
) -> None:
    parties = {name: party(name, own, secret=SECRET if configured else None) for name, own in ids.items()}
    counts = {name: len(own) for name, own in ids.items()}
    n_common = len(set.intersection(*(set(map(str, own)) for own in ids.values())))
    if (n_common if join == "inner" else sum(counts.values())) == 0:
        with pytest.raises(DataError, match="no id is at every party") as caught:
            run_alignment(parties, "keyed-hash", join)
        assert all(f"{count} at {name!r}" in str(caught.value) for name, count in counts.items())
        return
    found = run_alignment(parties, "keyed-hash", join)
    rows = rows_of(parties)
    assert set(rows) == expected_rows(ids, join)
    assert len(set(rows)) == len(rows) == found.n_rows
    assert all(p.rows.dtype == np.int64 for p in parties.values())
    assert found.rows == counts
    if join == "inner":
        assert found.common == dict.fromkeys(ids, n_common)
        assert found.lost == {name: count - n_common for name, count in counts.items()}
    else:
        assert found.common == counts
        assert set(found.lost.values()) == {0}


@given(st.lists(st.lists(st.integers(0, 40), unique=True, max_size=20), min_size=2, max_size=5))
@settings(deadline=None)
def test_matching_is_that_of_sets(groups: list[list[int]]) -> None:
    sets = [{bytes([value]) * 16 for value in group} for group in groups]
    tokens = [np.frombuffer(b"".join(sorted(own)), np.uint8).reshape(-1, 16) for own in sets]
    common, union = sorted(set.intersection(*sets)), sorted(set.union(*sets))
    n_inner, inner = match_tokens(tokens, "inner")
    n_outer, outer = match_tokens(tokens, "outer")
    assert (n_inner, n_outer) == (len(common), len(union))
    for own, keep, place in zip(sets, inner, outer, strict=True):
        assert np.unpackbits(keep, count=len(own), bitorder="little").tolist() == [t in common for t in sorted(own)]
        assert np.unpackbits(place, count=len(union), bitorder="little").tolist() == [t in own for t in union]


def test_tokens_that_differ_in_one_half_only() -> None:
    heads, tails = (b"\x00" * 8, b"\x80" * 8, b"\xff" * 8), (b"\x01" * 8, b"\x7f" * 8)
    tokens = np.frombuffer(b"".join(head + tail for head in heads for tail in tails), np.uint8).reshape(-1, 16)
    assert are_ascending(tokens)
    assert not are_ascending(tokens[::-1])
    assert not are_ascending(tokens[[0, 0, 1]])
    assert not are_ascending(tokens[[1, 0, 2]])
    assert not are_ascending(tokens[:, :15])
    assert match_tokens([tokens, tokens[1:]], "inner")[0] == 5


def test_tokens_are_hmac_and_ascending() -> None:
    ids = [b"t%d" % number for number in range(100)]
    tokens, order = make_tokens(b"k" * 32, ids)
    expected = sorted((hmac.new(b"k" * 32, value, hashlib.sha256).digest()[:16], row) for row, value in enumerate(ids))
    assert [(token.tobytes(), row) for token, row in zip(tokens, order.tolist(), strict=True)] == expected


def test_columns_of_different_libraries_and_widths() -> None:
    parties = {
        "bank": party("bank", pa.array([5, 7, 9], pa.uint8())),
        "shop": party("shop", np.array([9, 5], np.int64)),
    }
    found = run_alignment(parties, "keyed-hash")
    assert set(rows_of(parties)) == {(0, 1), (2, 0)}
    assert found == Alignment(2, {"bank": 3, "shop": 2}, {"bank": 2, "shop": 2})
    assert found.describe() == "2 common rows; 'bank' loses 1 of 3, 'shop' loses 0 of 2"


def test_two_jobs_have_different_tokens_and_the_same_order() -> None:
    ids = list(range(50))
    tokens, orders = [], []
    for job in ("first", "second"):
        parties = {name: party(name, ids, secret=SECRET, job=job) for name in NAMES[:2]}
        with captured() as seen:
            run_alignment(parties, "keyed-hash")
        tokens.append({t.tobytes() for m in map(decode, seen) if isinstance(m, msg.IdTokens) for t in m.tokens})
        orders.append(parties["bank"].rows.tolist())
    assert [len(own) for own in tokens] == [50, 50]
    assert not tokens[0] & tokens[1]
    assert orders[0] == orders[1] != sorted(orders[0])


# --- the wire ---


@pytest.mark.parametrize("kind", ["numbers", "text"])
@pytest.mark.parametrize("join", ["inner", "outer"])
@pytest.mark.parametrize("secret", [SECRET, None])
def test_nothing_of_an_id_travels(kind: str, join: Literal["inner", "outer"], secret: bytes | None) -> None:
    rng = np.random.default_rng(5)
    numbers = rng.integers(10**9, 2**32, 60).tolist()
    ids: Ids = numbers if kind == "numbers" else [f"customer-{n}" for n in numbers]
    parties = {name: party(name, own, secret=secret) for name, own in (("bank", ids[:40]), ("shop", ids[20:]))}
    with captured() as seen:
        run_alignment(parties, "keyed-hash", join)
    assert len(seen) >= 16
    assert not is_found(traces_of(ids), seen)
    assert not any(SECRET in message for message in seen)
    planted = msg.IdTokens(tokens=np.frombuffer(hashlib.md5(str(ids[7]).encode()).digest(), np.uint8).reshape(1, 16))  # noqa: S324
    assert is_found(traces_of(ids), [*seen, encode(planted)])


def test_a_table_in_another_order_sends_tokens_that_tell_nothing_of_it() -> None:
    ids = list(range(1_000))
    with captured() as seen:
        run_alignment({"bank": party("bank", ids), "shop": party("shop", ids[::-1])}, "keyed-hash")
    first, second = (m.tokens for m in map(decode, seen) if isinstance(m, msg.IdTokens))
    assert first.tolist() == second.tolist()


def test_bytes_are_as_documented() -> None:
    """docs/protocol/align.md: 16 bytes per id up, one bit per id (inner) or per row of the result (outer) down."""
    ids = {"bank": list(range(3_000)), "shop": list(range(1_000, 5_000))}
    joins: list[tuple[Literal["inner", "outer"], int]] = [("inner", 3_000 + 4_000), ("outer", 2 * 5_000)]
    for join, n_bits in joins:
        ledger = Ledger()
        run_alignment({name: party(name, own) for name, own in ids.items()}, "keyed-hash", join, ledger)
        sizes: Counter[str] = Counter()
        for row in ledger.disclosure():
            sizes[row.kind] += row.bytes
        assert 0 <= sizes["IdTokens"] - 16 * 7_000 <= 2 * HEADER
        assert 0 <= sizes["CommonRows"] - n_bits // 8 <= 2 * HEADER
        assert sum(sizes.values()) - sizes["IdTokens"] - sizes["CommonRows"] < 5_000


@pytest.mark.slow
def test_many_ids() -> None:
    n = 200_000
    rng = np.random.default_rng(1)
    bank, shop = (rng.permutation(np.arange(start, start + n)) for start in (0, n // 4))
    parties = {"bank": party("bank", bank), "shop": party("shop", shop)}
    found = run_alignment(parties, "keyed-hash")
    assert found.n_rows == n - n // 4
    assert (bank[parties["bank"].rows] == shop[parties["shop"].rows]).all()


# --- data that cannot be aligned ---


def test_different_types_of_ids_are_told_apart() -> None:
    parties = {"bank": party("bank", [12, 13]), "shop": party("shop", ["12", "13"]), "port": party("port", [12])}
    with pytest.raises(DataError, match="whole numbers at 'bank', 'port'; text at 'shop'"):
        run_alignment(parties, "keyed-hash")
    with pytest.raises(LocalProtocolError, match="not aligned yet"):
        _ = parties["bank"].rows


def test_parties_check_types_themselves() -> None:
    """A coordinator that overlooks it does not get tokens that can never match."""
    parties = {"bank": party("bank", [12]), "shop": party("shop", ["12"])}
    opening = msg.OpenAlignment(parties=("bank", "shop"), method="keyed-hash", join="inner")
    introductions = {name: introduced(p.handle(opening)).introduction for name, p in parties.items()}
    with pytest.raises(DataError, match="whole numbers at 'bank'; text at 'shop'"):
        parties["bank"].handle(msg.DrawSecret(introductions=introductions))


def introduced(message: Message) -> msg.Introduced:
    assert isinstance(message, msg.Introduced)
    return message


@pytest.mark.parametrize("ids", [["a", None], ["a", "a"], [1.0], [True]])
def test_unusable_ids_are_refused_when_the_party_is_made(ids: list[Any]) -> None:
    with pytest.raises(DataError, match="the id column of party 'bank'"):
        party("bank", ids)


@pytest.mark.parametrize("secret", [SECRET, None])
def test_no_common_id(secret: bytes | None) -> None:
    parties = {"bank": party("bank", [1, 2, 3], secret=secret), "shop": party("shop", [4, 5], secret=secret)}
    with pytest.raises(DataError, match="no id is at every party; there are 3 at 'bank', 2 at 'shop'"):
        run_alignment(parties, "keyed-hash")


# --- secrets and identities ---


def test_a_secret_at_one_party_only() -> None:
    parties = {"bank": party("bank", [1], secret=SECRET), "shop": party("shop", [1])}
    with pytest.raises(DataError, match="configured at 'bank' and none at 'shop'"):
        run_alignment(parties, "keyed-hash")


@pytest.mark.parametrize("signer", ["own", None])
def test_different_secrets(signer: Any) -> None:
    parties = {
        name: party(name, [1, 2], secret=secret, signer=signer)
        for name, secret in (("bank", SECRET), ("shop", SECRET), ("port", SECRET[::-1]))
    }
    with captured() as seen, pytest.raises(DataError, match=r"party 'port': the shared secret .* that of party 'bank'"):
        run_alignment(parties, "keyed-hash")
    assert not any(isinstance(decode(message), msg.IdTokens) for message in seen)


def test_configured_secrets_need_no_identity() -> None:
    parties = {name: party(name, [1, 2], secret=SECRET, signer=None) for name in NAMES}
    assert run_alignment(parties, "keyed-hash").n_rows == 2


def test_neither_secret_nor_identity() -> None:
    with pytest.raises(ConfigError, match="party 'bank' has neither an identity nor a shared secret"):
        party("bank", [1], signer=None)


def test_short_secrets() -> None:
    with pytest.raises(ConfigError, match="has 15 bytes"):
        party("bank", [1], secret=SECRET[:15])
    assert party("bank", [1], secret=SECRET[:16]).name == "bank"
    with pytest.raises(LocalProtocolError, match="entropy gave 3 bytes"):
        AlignParty("bank", [1], entropy=lambda purpose: b"abc", shared_secret=SECRET)


def test_a_stranger_is_refused() -> None:
    stranger = Operator(b"another federation").admit("shop")
    parties = {"bank": party("bank", [1]), "shop": party("shop", [1], signer=stranger)}
    with pytest.raises(LocalProtocolError, match="party 'bank': the introduction of party 'shop' is not signed"):
        run_alignment(parties, "keyed-hash")


def test_another_partys_identity_is_refused() -> None:
    parties = {"bank": party("bank", [1]), "shop": party("shop", [1], signer=OPERATOR.admit("port"))}
    with pytest.raises(LocalProtocolError, match="introduction of party 'shop' is not signed"):
        run_alignment(parties, "keyed-hash")


def test_parties_of_two_jobs_are_not_mixed() -> None:
    parties = {"bank": party("bank", [1], job="monday"), "shop": party("shop", [1], job="tuesday")}
    with pytest.raises(LocalProtocolError, match="introduction of party 'shop' is not signed"):
        run_alignment(parties, "keyed-hash")
    jobs = {"bank": "monday", "shop": "tuesday"}
    parties = {name: party(name, [1], job=job, secret=SECRET, signer=None) for name, job in jobs.items()}
    with pytest.raises(DataError, match="party 'shop': the shared secret"):
        run_alignment(parties, "keyed-hash")


def swap_share(name: str) -> Callable[[Message], Message]:
    """What a coordinator does who wants to sit between the parties: its own key under a party's name."""
    own = party("coordinator", [1])._agreement.introduce(  # the key of somebody else
        msg.OpenAlignment(parties=("bank", "shop"), method="keyed-hash", join="inner")
    )

    def change(message: Message) -> Message:
        if isinstance(message, msg.DrawSecret | msg.TakeSecret):
            swapped = msgspec.structs.replace(message.introductions[name], share=own.share)
            return msgspec.structs.replace(message, introductions={**message.introductions, name: swapped})
        return message

    return change


@pytest.mark.parametrize("method", ["keyed-hash", "psi"])
@pytest.mark.parametrize(("at", "of"), [("bank", "shop"), ("shop", "bank")])
def test_a_coordinator_who_swaps_keys_is_refused(at: str, of: str, method: Literal["keyed-hash", "psi"]) -> None:
    parties: dict[str, Any] = {name: party(name, [1, 2]) for name in ("bank", "shop")}
    parties[at] = Between(parties[at], swap_share(of))
    with (
        captured() as seen,
        pytest.raises(LocalProtocolError, match=f"party '{at}': the introduction of party '{of}' is not signed"),
    ):
        run_alignment(parties, method)
    assert not any(isinstance(decode(m), msg.IdTokens | msg.SealedRequests) for m in seen)


@pytest.mark.parametrize(("at", "of"), [("bank", "shop"), ("shop", "bank")])
def test_swapped_keys_are_noticed_with_a_configured_secret_too(at: str, of: str) -> None:
    parties: dict[str, Any] = {name: party(name, [1, 2], secret=SECRET, signer=None) for name in ("bank", "shop")}
    parties[at] = Between(parties[at], swap_share(of))
    with pytest.raises(DataError, match="party 'shop': the shared secret"):
        run_alignment(parties, "keyed-hash")


def test_a_secret_sealed_for_another_is_refused() -> None:
    parties: dict[str, Any] = {name: party(name, [1, 2]) for name in ("bank", "shop", "port")}

    def cross(message: Message) -> Message:
        assert isinstance(message, Message)
        if isinstance(message, msg.SealedSecret):
            sealed = dict(zip(message.sealed, reversed(message.sealed.values()), strict=True))
            return msgspec.structs.replace(message, sealed=sealed)
        return message

    parties["bank"] = Liar(parties["bank"], cross)
    with pytest.raises(LocalProtocolError, match="party 'shop': what should be the secret of party 'bank'"):
        run_alignment(parties, "keyed-hash")


def test_a_leader_who_draws_a_secret_that_can_be_guessed() -> None:
    parties = {name: party(name, [1, 2]) for name in ("bank", "shop")}
    draw = parties["bank"]._agreement.lasting_bytes
    parties["bank"]._agreement.lasting_bytes = lambda *what, **how: draw(*what, **how)[:5]  # type: ignore[method-assign]
    with pytest.raises(LocalProtocolError, match="party 'shop': party 'bank' sealed a secret of 37 bytes"):
        run_alignment(parties, "keyed-hash")


# --- messages out of turn, malformed, repeated ---


def recording(join: Literal["inner", "outer"] = "inner", secret: bytes | None = None) -> dict[str, list[Message]]:
    """The requests of an alignment, by party."""
    heard: dict[str, list[Message]] = {}
    parties: dict[str, Any] = {}
    for name, ids in (("bank", list(range(20))), ("shop", list(range(5, 22)))):
        heard[name] = []

        def listen(message: Message, log: list[Message] = heard[name]) -> Message:
            log.append(message)
            return message

        parties[name] = Between(party(name, ids, secret=secret), listen)
    run_alignment(parties, "keyed-hash", join)
    return heard


def mutations(message: Message, join: str) -> list[Message]:
    """Messages of the same kind that must not be taken."""
    replace = msgspec.structs.replace
    match message:
        case msg.OpenAlignment():
            return [replace(message, parties=("inn", "mill"))]
        case msg.DrawSecret() | msg.TakeSecret():
            introductions = message.introductions
            bad: list[dict[str, msg.Introduction]] = [
                {},
                dict(reversed(introductions.items())),
                {**introductions, "mill": introductions["bank"]},
            ]
            for name, own in introductions.items():
                changes: list[dict[str, Any]] = [
                    {"share": bytes(32)},
                    {"share": own.share[:31]},
                    {"share": b"\x01" + bytes(31)},
                    {"signature": own.signature[::-1]},
                    {"signature": b""},
                    {"certificate": b""},
                    {"id_kind": "nothing"},
                ]
                bad += [{**introductions, name: msgspec.structs.replace(own, **change)} for change in changes]
            wrong: list[Message] = [replace(message, introductions=each) for each in bad]
            if isinstance(message, msg.TakeSecret):
                wrong += [replace(message, confirmation=c) for c in (b"", bytes(32), message.confirmation[::-1])]
                sealed = message.sealed or b""
                wrong += [replace(message, sealed=s) for s in (None, b"", bytes(48), sealed[:-1], sealed + b"x")]
            return wrong
        case msg.CommonRows():
            n, more = message.n_rows, 1 if join == "inner" else 8  # nobody can count the others' rows
            return [
                replace(message, n_rows=n + more),
                replace(message, n_rows=n - more),
                replace(message, n_rows=0, bits=np.zeros(len(message.bits), np.uint8)),
                replace(message, n_rows=-1),
                replace(message, bits=message.bits[:-1]),
                replace(message, bits=np.zeros_like(message.bits)),
                replace(message, bits=np.append(message.bits, np.uint8(0))),
            ]
    return []


@pytest.mark.parametrize("join", ["inner", "outer"])
@pytest.mark.parametrize("name", ["bank", "shop"])
def test_everything_else_is_refused_in_every_state_and_changes_nothing(
    name: str, join: Literal["inner", "outer"]
) -> None:
    heard = recording(join)
    ids = list(range(20)) if name == "bank" else list(range(5, 22))
    undisturbed, disturbed = party(name, ids), party(name, ids)
    every = [*heard["bank"], *heard["shop"], *PSI_MESSAGES]
    n_refused = 0
    for due in heard[name]:
        thrown = [m for m in every if type(m) is not type(due)] + mutations(due, join)
        for message in thrown:
            state = disturbed.state
            with pytest.raises(RemoteProtocolError):
                disturbed.handle(message)
            assert disturbed.state == state
            n_refused += 1
        # A party that is made again from the same secrets answers with the same bytes.
        assert encode(disturbed.handle(due)) == encode(undisturbed.handle(due))
    assert disturbed.rows.tolist() == undisturbed.rows.tolist()
    assert n_refused > 60
    for message in every:
        with pytest.raises(RemoteProtocolError):
            disturbed.handle(message)


NO_BYTES = np.zeros(0, np.uint8)
PSI_MESSAGES: list[Message] = [
    msg.SendRequests(),
    msg.AnswerRequest(sealed=NO_BYTES),
    msg.FindCommon(sealed={"shop": NO_BYTES}),
    msg.TakeIntersection(sealed=NO_BYTES),
    msg.SecretTaken(),
]


def test_a_message_for_another_role_or_method_says_so() -> None:
    bank = party("bank", [1])
    heard = recording()
    bank.handle(heard["bank"][0])
    with pytest.raises(RemoteProtocolError, match="TakeSecret is for the others"):
        bank.handle(heard["shop"][1])
    bank = party("bank", list(range(20)))
    for message in heard["bank"][:2]:
        bank.handle(message)
    with pytest.raises(RemoteProtocolError, match="SendRequests is no part of method 'keyed-hash'"):
        bank.handle(msg.SendRequests())


def test_refusals_that_travel_name_no_id() -> None:
    ids = ["customer-4711", "customer-4712"]
    shop = party("shop", ids)
    for message in [*recording()["bank"], *PSI_MESSAGES]:
        reply, _ = answer(shop, encode(message))
        assert b"471" not in reply


def tokens_of(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Message], Message]:
    return lambda message: (
        msg.IdTokens(tokens=np.ascontiguousarray(change(message.tokens)))
        if isinstance(message, msg.IdTokens)
        else message
    )


@pytest.mark.parametrize(
    "change",
    [
        lambda tokens: tokens[::-1],
        lambda tokens: tokens[:-1],
        lambda tokens: tokens[[0, 0, 2]],
        lambda tokens: tokens[:, :15],
        lambda tokens: np.vstack([tokens, tokens[-1:]]),
        lambda tokens: tokens[:0],
        lambda tokens: tokens[:, :0],
    ],
    ids=["descending", "one less", "one twice", "too short", "one more", "none", "empty"],
)
def test_the_coordinator_refuses_tokens_that_are_not_in_order(change: Callable[[np.ndarray], np.ndarray]) -> None:
    parties = {"bank": party("bank", [1, 2, 3]), "shop": Liar(party("shop", [1, 2, 3]), tokens_of(change))}
    with pytest.raises(RemoteProtocolError, match="shop did not send one token per row"):
        run_alignment(parties, "keyed-hash")


@pytest.mark.parametrize(
    ("kind", "lie", "words"),
    [
        (msg.Introduced, lambda m: msgspec.structs.replace(m, n_rows=-1), "bank tells of -1 rows"),
        (msg.Introduced, lambda m: msg.SecretTaken(), "bank answered with SecretTaken instead of Introduced"),
        (msg.SealedSecret, lambda m: msgspec.structs.replace(m, sealed={}), "bank did not seal one message for each"),
        (msg.RowsTaken, lambda m: msg.RowsTaken(n_rows=2), "bank has found 2 common rows where there are 3"),
    ],
)
def test_the_coordinator_refuses_other_lies(kind: type[Message], lie: Callable[[Any], Message], words: str) -> None:
    liar = Liar(party("bank", [1, 2, 3]), lambda message: lie(message) if isinstance(message, kind) else message)
    with pytest.raises(RemoteProtocolError, match=words):
        run_alignment({"bank": liar, "shop": party("shop", [1, 2, 3])}, "keyed-hash")


@pytest.mark.parametrize(
    ("names", "method", "join"),
    [
        (("bank",), "keyed-hash", "inner"),
        ((), "keyed-hash", "inner"),
        (("bank", "bank"), "keyed-hash", "inner"),
        (("bank", "shop"), "psi", "outer"),
        (("bank", "shop"), "md5", "inner"),
        (("bank", "shop"), "psi", "left"),
    ],
)
def test_alignments_that_do_not_exist(names: tuple[str, ...], method: Any, join: Any) -> None:
    with pytest.raises(LocalProtocolError):
        next(align(names, method=method, join=join))


def test_a_changed_table_has_other_keys() -> None:
    """No key is used for two tables, even where a party is restarted with the same job and secrets."""
    opening = msg.OpenAlignment(parties=("bank", "shop"), method="psi", join="inner")
    shares = [introduced(party("bank", ids).handle(opening)).introduction.share for ids in ([1, 2], [2, 1], [1, 3])]
    assert len(set(shares)) == 3
    again = AlignParty("bank", [1, 2], entropy=entropy_of("bank"), signer=OPERATOR.admit("bank"))
    assert introduced(again.handle(opening)).introduction.share == shares[0]
