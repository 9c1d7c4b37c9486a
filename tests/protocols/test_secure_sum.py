"""Secure sums: the sum in clear, and nothing else in clear."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import struct
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import msgspec
import numpy as np
import pytest
from alignments import OPERATOR, SECRET, Between, Liar, Operator, captured, entropy_of
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from woodlot.exceptions import ConfigError, DataError, LocalProtocolError, PolicyError, RemoteProtocolError
from woodlot.protocols.messages import secure_sum as msg
from woodlot.protocols.messages.base import Disclosure, Message, Role, Round
from woodlot.protocols.secure_sum import (
    Masker,
    PlainMasker,
    SumClient,
    SumSession,
    ask_clients,
    from_fixed,
    open_sums,
    sum_of,
    sum_round,
    to_fixed,
)
from woodlot.protocols.secure_sum.client import State
from woodlot.runtime.audit import Ledger
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.drivers import answer
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run

NAMES = ("ash", "beech", "cedar", "elm", "fir", "gum", "hazel")
TOLD = Disclosure(Role.coordinator, Role.party, "that numbers are wanted: it is a test", "clear")


class AddUp(Message):
    """Asks for some of a client's vectors."""

    discloses: ClassVar = TOLD
    order: msg.SumOrder
    which: int = 0


class Client:
    """A party whose only work is to have vectors."""

    def __init__(self, name: str, vectors: Sequence[Any], **options: Any) -> None:
        if options.get("mode") != "plain":
            options = {"signer": OPERATOR.admit(name), **options}
        self.sums = SumClient(name, **{"job": "j", "entropy": entropy_of(name, "j"), **options})
        self.vectors = [np.asarray(vector) for vector in vectors]

    def handle(self, message: Message) -> Message:
        if isinstance(message, AddUp):
            return self.sums.answer(message.order, self.vectors[message.which], bytes([message.which]))
        return self.sums.handle(message)


def clients_of(vectors: Mapping[str, Sequence[Any]], **options: Any) -> dict[str, Client]:
    return {name: Client(name, own, **options) for name, own in vectors.items()}


Sums = Generator[Round, dict[str, Message], list[Any]]


def add_up(
    names: Iterable[str], lengths: Sequence[int], bound: int | None = None, session: list[SumSession] | None = None,
    **options: Any,
) -> Sums:  # fmt: skip
    """A protocol: one sum after the other."""
    opened = yield from open_sums(tuple(names), **options)
    if session is not None:
        session.append(opened)
    found = []
    for which, length in enumerate(lengths):
        request = _asking(which)
        found.append((yield from sum_round(opened, "add", request, length=length, bound=bound)))
    return found


def _asking(which: int) -> Callable[[msg.SumOrder], Message]:
    return lambda order: AddUp(order=order, which=which)


def total(
    parties: Mapping[str, Any], lengths: Sequence[int], ledger: Ledger | None = None, **options: Any
) -> list[Any]:
    book = Ledger() if ledger is None else ledger
    with InProcessDriver(parties, ledger=book) as driver:
        return run(add_up(parties, lengths, **options), driver, ledger=book)


def vectors_of(n_clients: int, length: int, seed: int = 0, low: int = -1000, high: int = 1000) -> dict[str, list[Any]]:
    rng = np.random.default_rng(seed)
    return {name: [rng.integers(low, high, length)] for name in NAMES[:n_clients]}


def changing(kind: type[Message], change: Callable[[Any], Message]) -> Callable[[Message], Message]:
    return lambda message: change(message) if isinstance(message, kind) else message


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


def test_many_counters_are_fast_and_have_eight_bytes_or_four() -> None:
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
        session = SumSession(tuple(names), "secure", 3, next_round=7)
        order = session.order(n, bound)
        seconds = []
        for name in names[:4]:
            began = time.perf_counter()
            parties[name].sums.answer(order, values)
            seconds.append(time.perf_counter() - began)
        assert min(seconds) < 0.2


# --- the masks ---


def masker_of(name: str, names: Sequence[str] = NAMES[:4], **options: Any) -> Masker:
    """A client whose common secrets are made of the names; no agreement before it."""
    secrets = {peer: hashlib.sha256("/".join(sorted((name, peer))).encode()).digest() for peer in names if peer != name}
    return Masker(name, b"t" * 32, secrets, **options)


def chacha20(key: bytes, n_bytes: int) -> bytes:
    """The keystream as RFC 8439 has it, nonce and first counter zero."""

    def turn(x: list[int], a: int, b: int, c: int, d: int) -> None:
        for i, j, k, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            x[i] = (x[i] + x[j]) & 0xFFFFFFFF
            mixed = x[k] ^ x[i]
            x[k] = ((mixed << bits) | (mixed >> (32 - bits))) & 0xFFFFFFFF

    stream = b""
    for counter in range(-(-n_bytes // 64)):
        start = [*struct.unpack("<4I", b"expand 32-byte k"), *struct.unpack("<8I", key), counter, 0, 0, 0]
        x = list(start)
        for _ in range(10):
            for first in range(4):
                turn(x, *(first + 4 * row for row in range(4)))
            for first in range(4):
                turn(x, *(4 * row + (first + row) % 4 for row in range(4)))
        stream += struct.pack("<16I", *((a + b) & 0xFFFFFFFF for a, b in zip(x, start, strict=True)))
    return stream[:n_bytes]


def test_masks_are_hkdf_and_chacha20_as_documented() -> None:
    """docs/protocol/secure-sum.md, computed again without the library; from agreement to the bytes on the wire."""
    names = NAMES[:3]
    parties = clients_of({name: [[5, -7]] for name in names})
    with captured() as seen:
        total(parties, [2])
    messages = [decode(data) for data in seen]
    start = next(m for m in messages if isinstance(m, msg.StartSums))
    opening = next(m for m in messages if isinstance(m, msg.OpenSums))
    tag = "woodlot secure sum 2"
    transcript = hashlib.sha256(msgspec.msgpack.encode((tag, "j", opening, start.introductions))).digest()
    assert {m.transcript for m in messages if isinstance(m, msg.SumsStarted)} == {transcript}

    def hkdf(secret: bytes, salt: bytes, info: bytes) -> bytes:
        extracted = hmac.new(salt or bytes(32), secret, hashlib.sha256).digest()
        return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()

    def private(name: str) -> X25519PrivateKey:
        secret = entropy_of(name, "j")("secure-sum share")
        return X25519PrivateKey.from_private_bytes(hkdf(secret, b"", msgspec.msgpack.encode((tag, "share", b""))))

    for name in names:
        assert start.introductions[name].share == private(name).public_key().public_bytes_raw()
    plain = np.array([5, 2**64 - 7, 1, (5 - 3 * 7 + 5) % 2**64], np.uint64)
    expected = plain.copy()
    asked = hashlib.sha256(msgspec.msgpack.encode((b"", 0, names, b"\0"))).digest()
    for peer in ("ash", "cedar"):
        secret = private("beech").exchange(private(peer).public_key())
        first, second = sorted(("beech", peer))
        info = msgspec.msgpack.encode((tag, 0, first, second, 4, 64, names, asked))
        mask = np.frombuffer(chacha20(hkdf(secret, transcript, info), 32), "<u8")
        expected = expected + mask if first == "beech" else expected - mask
    order = msg.SumOrder(round=0, clients=names, length=2, bound=(2**63 - 1) // 3)
    reply = parties["beech"].sums.answer(order, np.array([5, -7]), b"\0")
    assert reply.values.tolist() == expected.tolist()


@pytest.mark.parametrize("when", ["now", "before"])
def test_clients_that_are_asked_different_things_have_no_sum(when: str) -> None:
    """Else a coordinator would have the others count where they have no rows, and so be told one client's numbers."""
    vectors = {name: [[7, 8], [0, 0]] for name in NAMES[:3]}

    def asked(elsewhere: dict[int, int]) -> list[np.ndarray]:
        """What is added up in two rounds, where all but the first are asked for something else in some of them."""
        clients, found = clients_of(vectors), []
        names, opening = tuple(clients), add_up(clients, [2])
        first = next(opening)
        second = opening.send({name: clients[name].handle(message) for name, message in first.requests.items()})
        for name, message in second.requests.items():
            clients[name].handle(message)
        for number, which in enumerate((0, 0)):
            order = msg.SumOrder(round=number, clients=names, length=2, bound=1000)
            questions = {n: which if n == names[0] else elsewhere.get(number, which) for n in names}
            replies = {n: clients[n].handle(AddUp(order=order, which=w)) for n, w in questions.items()}
            try:
                found.append(sum_of(order, "secure", replies).tolist())
            except RemoteProtocolError:
                found.append(None)
        return found

    assert asked({}) == [[21, 24], [21, 24]]
    assert asked({1: 1} if when == "now" else {0: 1}) == ([[21, 24], None] if when == "now" else [None, None])


@pytest.mark.parametrize("dtype", ["<u8", "<u4"])
@pytest.mark.parametrize("data", ["zeros", "counts"])
def test_a_masked_vector_is_uniform_whatever_the_data(dtype: str, data: str) -> None:
    n = 100_000
    vector = np.zeros(n, dtype) if data == "zeros" else np.arange(n).astype(dtype)
    masked = masker_of("beech").mask(1, vector, NAMES[:4])
    counts = np.bincount(masked.view(np.uint8), minlength=256)
    statistic = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert chi2.ppf(0.0001, 255) < statistic < chi2.ppf(0.9999, 255)
    bits = np.unpackbits(masked.view(np.uint8)).mean()
    assert abs(bits - 0.5) < 4 / np.sqrt(8 * masked.nbytes) + 1e-4
    both = np.corrcoef(vector.astype(float) + np.arange(n), masked.astype(float))[0, 1]
    assert abs(both) < 5 / np.sqrt(n)


def test_the_same_test_finds_a_vector_without_a_mask() -> None:
    plain = PlainMasker("beech", NAMES[:4]).mask(1, np.arange(100_000).astype("<u8"), NAMES[:4])
    counts = np.bincount(plain.view(np.uint8), minlength=256)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() > chi2.ppf(0.9999, 255)


def test_no_mask_is_used_twice() -> None:
    """Over rounds, pairs, lengths, widths, clients and jobs: no two masks, nor parts of them, are alike."""
    masks: list[Any] = []
    for name in NAMES[:4]:
        masker = masker_of(name)
        zeros = np.zeros(500, "<u8")
        masks += [masker.mask(round_id, zeros, NAMES[:4]) for round_id in (0, 1, 2, 2**64 - 1, b"", b"\0", b"\1")]
        masks.append(masker.mask(3, np.zeros(501, "<u8"), NAMES[:4]))
        masks.append(masker.mask(4, np.zeros(1000, "<u4"), NAMES[:4]).view("<u8"))
        masks.append(masker.mask(5, zeros, NAMES[:3]) if name in NAMES[:3] else masker.mask(5, zeros, NAMES[:4]))
    other = Masker("ash", b"u" * 32, masker_of("ash")._secrets)
    masks.append(other.mask(0, np.zeros(500, "<u8"), NAMES[:4]))
    words = np.concatenate(masks)
    assert len(np.unique(words)) == len(words) > 20_000
    differences = np.concatenate([first[:500] - second[:500] for first, second in itertools.pairwise(masks)])
    assert len(np.unique(differences)) == len(differences)


def test_the_masks_of_two_clients_alone_cancel() -> None:
    zeros = np.zeros(9, "<u8")
    masked = [masker_of(name, NAMES[:2], minimum=2).mask(b"r", zeros, NAMES[:2]) for name in NAMES[:2]]
    assert masked[0].any()
    assert not (masked[0] + masked[1]).any()


def test_a_round_is_used_for_one_vector() -> None:
    masker = masker_of("beech", NAMES[:5])
    vector = np.arange(6).astype("<u8")
    first = masker.mask(1, vector, NAMES[:5])
    assert masker.mask(1, vector.copy(), NAMES[4::-1]).tobytes() == first.tobytes()
    for other, clients in (
        (vector + np.uint64(1), NAMES[:5]),
        (vector[:5], NAMES[:5]),
        (vector.astype("<u4"), NAMES[:5]),
        (vector, NAMES[:4]),
    ):
        with pytest.raises(RemoteProtocolError, match="repeat the sum under a new round"):
            masker.mask(1, other, clients)
    assert masker.mask(2, vector, NAMES[:4]).tobytes() != first.tobytes()
    assert masker.mask(1, vector, NAMES[:5]).tobytes() == first.tobytes()
    assert vector.tolist() == [0, 1, 2, 3, 4, 5]


def test_clients_of_a_round_are_some_of_those_before() -> None:
    vector = np.zeros(2, "<u8")
    masker = masker_of("beech", NAMES[:5])
    for wrong in (NAMES[2:5], (*NAMES[:5], "yew"), ("ash", "beech", "beech", "cedar")):
        with pytest.raises(RemoteProtocolError, match="the clients of a round"):
            masker.mask(1, vector, wrong)
    with pytest.raises(PolicyError, match="3 or more"):
        masker.mask(1, vector, NAMES[:2])
    masker.mask(1, vector, NAMES[:4])
    with pytest.raises(RemoteProtocolError, match="the clients of a round"):
        masker.mask(2, vector, NAMES[:5])
    steady = masker_of("beech", NAMES[:5], recover=False)
    with pytest.raises(PolicyError, match="without some of the others"):
        steady.mask(1, vector, NAMES[:4])
    with pytest.raises(LocalProtocolError, match="32 or 64 bits"):
        masker.mask(3, np.zeros(2), NAMES[:4])  # type: ignore[arg-type]


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
    assert honest.sums.state == State.opened


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
    """Other clients or another length for one of them: the masks do not cancel."""
    vectors = vectors_of(5, 6)

    def fewer(message: AddUp) -> Message:
        clients = tuple(n for n in message.order.clients if n != "elm")
        return AddUp(order=msgspec.structs.replace(message.order, clients=clients))

    def later(message: AddUp) -> Message:
        return AddUp(order=msgspec.structs.replace(message.order, round=message.order.round + 1))

    def as_asked(message: msg.MaskedVector) -> Message:
        return msg.MaskedVector(round=0, values=message.values)

    for change in (fewer, later):
        parties: dict[str, Any] = dict(clients_of(vectors))
        parties["ash"] = Liar(Between(parties["ash"], changing(AddUp, change)), changing(msg.MaskedVector, as_asked))
        with pytest.raises(RemoteProtocolError, match="the sum is not one of these clients' numbers"):
            total(parties, [6])


def test_messages_out_of_turn_change_nothing() -> None:
    client = Client("ash", [[1, 2]])
    opening = msg.OpenSums(clients=NAMES[:3], mode="secure")
    order = msg.SumOrder(round=0, clients=NAMES[:3], length=2, bound=5)
    for early in (msg.StartSums(introductions={}), AddUp(order=order)):
        with pytest.raises(RemoteProtocolError, match="idle"):
            client.handle(early)
    with pytest.raises(RemoteProtocolError, match="does not take SumsStarted"):
        client.handle(msg.SumsStarted(transcript=b""))
    with pytest.raises(RemoteProtocolError, match="'ash', is not among"):
        client.handle(msg.OpenSums(clients=NAMES[1:5], mode="secure"))
    first = client.handle(opening)
    with pytest.raises(RemoteProtocolError, match="not due"):
        client.handle(opening)
    assert isinstance(first, msg.SumsIntroduced)
    assert client.sums.state == State.opened


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
    with pytest.raises(DataError, match="party 'beech': a number is beyond the bound of 1000") as caught:
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


def test_what_is_not_the_ordered_numbers_stays_here() -> None:
    client = clients_of(vectors_of(3, 5), mode="plain")
    total(client, [5], mode="plain")
    order = msg.SumOrder(round=9, clients=NAMES[:3], length=5, bound=5)
    for wrong in (np.zeros(5), np.zeros(4, int), np.zeros((5, 1), int)):
        with pytest.raises(LocalProtocolError):
            client["ash"].sums.answer(order, wrong)


# --- clients that drop out ---


class Dropping:
    """A client that fails at its n-th sum, and ever after."""

    def __init__(self, handler: Client, at: int, error: Exception) -> None:
        self.handler, self.at, self.error, self.asked = handler, at, error, 0

    def handle(self, message: Message) -> Message:
        if isinstance(message, AddUp):
            self.asked += 1
            if self.asked >= self.at:
                raise self.error
        return self.handler.handle(message)


@pytest.mark.parametrize("mode", ["secure", "plain"])
def test_a_sum_is_repeated_with_the_survivors(mode: Literal["secure", "plain"]) -> None:
    rng = np.random.default_rng(2)
    vectors = {name: [rng.integers(-9, 9, 8) for _ in range(3)] for name in NAMES[:5]}
    parties: dict[str, Any] = dict(clients_of(vectors, mode=mode))
    parties["beech"] = Dropping(parties["beech"], 2, PolicyError("budget is spent"))
    parties["elm"] = Dropping(parties["elm"], 4, RuntimeError("secret words"))
    sessions: list[SumSession] = []
    with captured() as seen:
        found = total(parties, [8, 8, 8], mode=mode, spare_after=1.0, session=sessions)
    expected = [
        sum(own[i] for name, own in vectors.items() if name not in gone)
        for i, gone in enumerate([(), ("beech",), ("beech", "elm")])
    ]
    assert [own.tolist() for own in found] == [own.tolist() for own in expected]
    assert sessions[0].clients == ("ash", "cedar", "fir")
    assert sessions[0].left == {"beech": "budget is spent", "elm": "RuntimeError"}
    rounds = [m.order.round for m in map(decode, seen) if isinstance(m, AddUp)]
    assert rounds == [0] * 5 + [1] * 5 + [2] * 4 + [3] * 4 + [4] * 3
    if mode == "secure":
        sent = [m.values for m in map(decode, seen) if isinstance(m, msg.MaskedVector)]
        assert len(np.unique(np.concatenate(sent))) == sum(map(len, sent))


def test_too_few_survivors_are_an_error_that_says_why() -> None:
    parties: dict[str, Any] = dict(clients_of({name: [[1], [2]] for name in NAMES[:4]}))
    parties["ash"] = Dropping(parties["ash"], 1, DataError("the table is gone"))
    parties["elm"] = Dropping(parties["elm"], 2, PolicyError("budget is spent"))
    with pytest.raises(PolicyError) as caught:
        total(parties, [1, 1], spare_after=1.0)
    assert str(caught.value) == (
        "2 of 3 clients are left, and sums need 3: 'ash': the table is gone; 'elm': budget is spent"
    )


def test_a_client_can_refuse_to_go_on_without_the_others() -> None:
    parties: dict[str, Any] = dict(clients_of({name: [[1]] for name in NAMES[:4]}, recover=False))
    parties["ash"] = Dropping(parties["ash"], 1, DataError("gone"))
    with pytest.raises(PolicyError, match="0 of 3 clients are left"):
        total(parties, [1], spare_after=1.0)


def test_without_recovery_a_refusal_ends_the_run() -> None:
    parties: dict[str, Any] = dict(clients_of({name: [[1]] for name in NAMES[:5]}))
    parties["ash"] = Dropping(parties["ash"], 1, DataError("gone"))
    with pytest.raises(DataError, match="party 'ash': gone"):
        total(parties, [1])


def test_rounds_that_are_no_sums_lose_clients_too() -> None:
    parties: dict[str, Any] = dict(clients_of({name: [[1]] for name in NAMES[:4]}))
    parties["ash"] = Dropping(parties["ash"], 1, DataError("gone"))

    def protocol() -> Generator[Round, dict[str, Message], list[str]]:
        session = yield from open_sums(NAMES[:4], spare_after=1.0)
        order = session.order(1, 5)
        replies = yield from ask_clients(session, "tell", AddUp(order=order))
        assert session.left == {"ash": "gone"}
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
