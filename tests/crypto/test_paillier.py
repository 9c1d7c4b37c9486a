"""Paillier's cryptosystem: against the textbook, in its group, and packed."""

from __future__ import annotations

import hashlib
import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.crypto import _libraries, paillier
from woodlot.crypto.envelope import seal, unseal
from woodlot.crypto.packing import layout, pack, sum_bits, unpack
from woodlot.crypto.paillier import PaillierPublicKey, PrivateKey
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import LocalProtocolError, RemoteProtocolError

BITS = 256


def stream(*purpose: object) -> SecretStream:
    return SecretStream.derived(bytes(32), "test", *purpose)


@pytest.fixture(scope="module")
def key() -> PrivateKey:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(paillier, "SMALLEST_BITS", BITS)
        made = PrivateKey.generate(BITS, stream("key"))
        assert made.public.bits == BITS
        return made


def textbook_decrypt(key: PrivateKey, cipher: int) -> int:
    """Paillier 1999, scheme 1, with g = 1 + n and in Python's own integers."""
    p, q = int(key.p), int(key.q)
    n, exponent = p * q, math.lcm(p - 1, q - 1)
    return (pow(int(cipher), exponent, n * n) - 1) // n * pow(exponent, -1, n) % n


# --- known answers ---


def test_a_key_of_two_digits_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """p = 7, q = 11: (1 + 77)^42 23^77 modulo 77^2 is 3840, and the sum with a ciphertext of 40 is one of 82 - 77."""
    monkeypatch.setattr(paillier, "SMALLEST_BITS", 7)
    mpz = _libraries.gmp().mpz
    small = PrivateKey(mpz(7), mpz(11), PaillierPublicKey(77, pow(-4 % 77, 77, 77**2)))
    known = 78**42 * 23**77 % 77**2
    assert known == 3840
    other = 78**40 * 5**77 % 77**2
    assert small.decrypt([mpz(known), mpz(other), small.public.add(known, other)]) == [42, 40, 5]
    assert [textbook_decrypt(small, c) for c in small.encrypt([0, 1, 76], stream("small"))] == [0, 1, 76]


def test_the_same_stream_gives_the_same_key_and_the_same_bytes(key: PrivateKey) -> None:
    ciphers = key.encrypt([0, 1, 2**200], stream("known"))
    data = key.public.name + bytes(key.public.pack([*ciphers, key.public.encrypt(7, stream("public"))]))
    assert hashlib.sha256(data).hexdigest() == "86afff9f0b38132fc8a7f11b413643ea86a26ef7d78a9907a0ee0c83e0ead773"


def test_a_key_of_full_length() -> None:
    key = PrivateKey.generate(paillier.SMALLEST_BITS, SecretStream.fresh())
    assert key.public.bits == 2048
    assert key.p % 4 == key.q % 4 == 3
    assert math.gcd(int(key.p - 1), int(key.q - 1)) == 2
    (cipher,) = key.encrypt([12345], SecretStream.fresh())
    assert textbook_decrypt(key, cipher) == 12345
    assert key.decrypt([key.public.encrypt(2**2046, SecretStream.fresh())]) == [2**2046]


# --- properties ---

numbers = st.integers(0, 2**250)


@given(a=numbers, b=numbers, k=st.integers(0, 2**64), seed=st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_sums_and_products(key: PrivateKey, a: int, b: int, k: int, seed: int) -> None:
    public, n, random = key.public, int(key.public.n), stream(seed)
    a, b = a % n, b % n
    (one,), other = key.encrypt([a], random), public.encrypt(b, random)
    found = [one, other, public.add(one, other), public.multiply(one, k)]
    expected = [a, b, (a + b) % n, a * k % n]
    assert key.decrypt(found) == key.decrypt(found, threads=2) == expected
    assert [textbook_decrypt(key, c) for c in found] == expected
    fresh = public.refresh(one, random)
    assert fresh != one
    assert key.decrypt([fresh]) == [a]


@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 2**90)), min_size=1, max_size=30))
@settings(max_examples=40, deadline=None)
def test_packed_numbers_come_out_as_they_went_in(key: PrivateKey, items: list[tuple[int, int]]) -> None:
    widths = [width for width, _ in items]
    values = [value % (1 << width) for width, value in items]
    packed = pack(key.public, key.encrypt(values, stream("packed")), widths)
    groups = layout(widths, key.public.plaintext_bits)
    assert len(packed) == len(groups)
    assert [i for group in groups for i in group] == list(range(len(items)))
    assert unpack(key.decrypt(packed), widths, key.public.plaintext_bits) == values


@given(st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 1000)), min_size=1, max_size=20))
def test_a_sum_never_outgrows_its_place(rows: list[tuple[int, int]]) -> None:
    weight = sum(w for _, w in rows)
    assert sum(v * w for v, w in rows) < 1 << sum_bits(20, weight)
    assert sum(w for _, w in rows) < 1 << sum_bits(0, weight)


# --- what is refused ---


def test_numbers_that_do_not_fit_are_refused(key: PrivateKey) -> None:
    for plain in (-1, int(key.public.n)):
        with pytest.raises(LocalProtocolError, match="from 0 to n - 1"):
            key.public.encrypt(plain, stream("bad"))
        with pytest.raises(LocalProtocolError, match="from 0 to n - 1"):
            key.encrypt([plain], stream("bad"))
    with pytest.raises(LocalProtocolError, match="does not fit"):
        layout([10, BITS], BITS - 1)
    with pytest.raises(RemoteProtocolError, match="2 plaintexts, not in 1"):
        unpack([5], [200, 200], BITS - 1)
    with pytest.raises(RemoteProtocolError, match="more in it than was packed"):
        unpack([1 << 9], [4, 5], BITS - 1)


def test_elements_outside_the_group_are_refused(key: PrivateKey) -> None:
    public = key.public
    good = public.encrypt(3, stream("good"))
    assert public.unpack(public.pack([good]), 1) == [good]
    for bad in (0, int(public.square), int(key.p), int(public.n), 3 * int(key.q)):
        with pytest.raises(RemoteProtocolError, match="not in the group"):
            public.unpack(public.pack([good, bad, good]), 3)
    with pytest.raises(RemoteProtocolError, match="bytes, not"):
        public.unpack(public.pack([good]), 2)


def test_keys_that_are_none_are_refused(key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    n, base = int(key.public.n), int(key.public.base)
    with pytest.raises(RemoteProtocolError, match="256 bits is not taken"):
        PaillierPublicKey(n, base)
    with pytest.raises(LocalProtocolError, match="from 2048"):
        PrivateKey.generate(1024, stream("short"))
    monkeypatch.setattr(paillier, "SMALLEST_BITS", BITS)
    assert PaillierPublicKey(n, base).name == key.public.name
    for wrong in (0, 1, n * n, int(key.p) * 5):
        with pytest.raises(RemoteProtocolError, match="not in its group"):
            PaillierPublicKey(n, wrong)
    with pytest.raises(RemoteProtocolError, match="is not taken"):
        PaillierPublicKey(n + 1, base)


def test_an_envelope_opens_for_its_key_and_purpose_only(key: PrivateKey, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paillier, "SMALLEST_BITS", BITS)
    monkeypatch.setattr("woodlot.crypto.envelope._SECRET_BITS", 128)
    other = PrivateKey.generate(BITS, stream("other key"))
    envelope = seal(key.public, b"what is said", b"level 3", stream("envelope"))
    assert unseal(key, envelope, b"level 3") == b"what is said"
    rng = np.random.default_rng(0)
    changed = [bytearray(envelope) for _ in range(20)]
    for copy in changed:
        copy[int(rng.integers(len(copy)))] ^= 1 << int(rng.integers(8))
    for owner, data, about in [
        (other, envelope, b"level 3"),
        (key, envelope, b"level 4"),
        (key, envelope[:-1], b"level 3"),
        (key, b"", b"level 3"),
        *((key, bytes(copy), b"level 3") for copy in changed),
    ]:
        with pytest.raises(RemoteProtocolError, match=r"envelope|group"):
            unseal(owner, data, about)


def test_without_gmpy2_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gmpy2", None)
    _libraries.gmp.cache_clear()
    try:
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'woodlot\[crypto\]'"):
            PrivateKey.generate(paillier.SMALLEST_BITS, stream("none"))
    finally:
        _libraries.gmp.cache_clear()
