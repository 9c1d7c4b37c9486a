"""The masks of secure sums: as documented, uniform, and never used twice."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from alignments import entropy_of
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from scipy.stats import chi2
from secure_sums import NAMES, AddUp, add_up, clients_of, total

from wire_search import captured
from woodlot.exceptions import LocalProtocolError, PolicyError, RemoteProtocolError
from woodlot.protocols.sums import (
    Masker,
    PlainMasker,
    sum_of,
)
from woodlot.protocols.sums import sum_messages as msg
from woodlot.runtime.codec import decode


def masker_of(name: str, names: Sequence[str] = NAMES[:4], transcript: bytes = b"t" * 32) -> Masker:
    """A client whose common secrets are made of the names; no agreement before it."""
    secrets = {peer: hashlib.sha256("/".join(sorted((name, peer))).encode()).digest() for peer in names if peer != name}
    return Masker(name, transcript, names, secrets)


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
    tag = "woodlot secure sum 4"
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
    bound = (2**63 - 1) // 3
    question = hashlib.sha256(msgspec.msgpack.encode((2, bound, b"\0"))).digest()
    asked = hashlib.sha256(msgspec.msgpack.encode((b"", 0, names, question))).digest()
    for peer in ("ash", "cedar"):
        secret = private("beech").exchange(private(peer).public_key())
        first, second = sorted(("beech", peer))
        info = msgspec.msgpack.encode((tag, 0, first, second, 4, 64, names, asked))
        mask = np.frombuffer(chacha20(hkdf(secret, transcript, info), 32), "<u8")
        expected = expected + mask if first == "beech" else expected - mask
    order = msg.SumOrder(round=0, clients=names, length=2, bound=bound)
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
        masks.append(masker.mask(5, zeros, NAMES[:4], b"another question"))
        if name in NAMES[:3]:
            masks.append(masker_of(name, NAMES[:3]).mask(5, zeros, NAMES[:3]))
    other = masker_of("ash", transcript=b"u" * 32)
    masks.append(other.mask(0, np.zeros(500, "<u8"), NAMES[:4]))
    words = np.concatenate(masks)
    assert len(np.unique(words)) == len(words) > 20_000
    differences = np.concatenate([first[:500] - second[:500] for first, second in itertools.pairwise(masks)])
    assert len(np.unique(differences)) == len(differences)


def test_the_masks_of_two_clients_alone_cancel() -> None:
    zeros = np.zeros(9, "<u8")
    masked = [masker_of(name, NAMES[:2]).mask(b"r", zeros, NAMES[:2]) for name in NAMES[:2]]
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
    assert masker.mask(2, vector, NAMES[:5]).tobytes() != first.tobytes()
    assert masker.mask(1, vector, NAMES[:5]).tobytes() == first.tobytes()
    assert vector.tolist() == [0, 1, 2, 3, 4, 5]


def test_clients_of_a_round_are_some_of_those_before() -> None:
    vector = np.zeros(2, "<u8")
    masker = PlainMasker("beech", NAMES[:5], minimum=3)
    for wrong in (NAMES[2:5], (*NAMES[:5], "yew"), ("ash", "beech", "beech", "cedar")):
        with pytest.raises(RemoteProtocolError, match="the clients of a round"):
            masker.mask(1, vector, wrong)
    with pytest.raises(PolicyError, match="3 or more"):
        masker.mask(1, vector, NAMES[:2])
    masker.mask(1, vector, NAMES[:4])
    with pytest.raises(RemoteProtocolError, match="the clients of a round"):
        masker.mask(2, vector, NAMES[:5])
    steady = masker_of("beech", NAMES[:5])
    with pytest.raises(PolicyError, match="in no sum without some of the others"):
        steady.mask(1, vector, NAMES[:4])
    with pytest.raises(LocalProtocolError, match="32 or 64 bits"):
        steady.mask(3, np.zeros(2), NAMES[:5])  # type: ignore[arg-type]
