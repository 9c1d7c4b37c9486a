"""The scheme: known answers, every way to open, what is refused, and the textbook twin."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_keys import PRIMES, ROOT, master, stream
from textbook import Book, Textbook

from woodlot.crypto import _libraries
from woodlot.crypto.dtpkc import Ciphertext, Group, PublicKey, StrongShare, WeakKey, add, refresh, scale
from woodlot.crypto.master import MasterKey
from woodlot.crypto.powers import FixedBase, powers_of
from woodlot.crypto.primes import is_safe_prime, safe_prime
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import CiphertextError, ConfigError, EpochError, LocalProtocolError
from woodlot_lab.cross_addition import CrossAddition
from woodlot_lab.pools import Pool

KEY = master()
GROUP = KEY.group
N = int(GROUP.N)
BOOK = Book(N, int(GROUP.g))
TEXT = Textbook(*PRIMES[0], ROOT)
ALICE, BOB = WeakKey.draw(GROUP, stream("alice")), WeakKey.draw(GROUP, stream("bob"))
CS, CC = KEY.split(stream("split"))
EDGES = {"0": 0, "1": 1, "N-1": N - 1, "N/2": N // 2, "N/2+1": N // 2 + 1}


def opened(ciphertext: Ciphertext) -> int:
    return CC.open([ciphertext.c1], CS.power([ciphertext.c1]))[0]


class Exponent(SecretStream):
    """Gives exponents that are known beforehand."""

    def __init__(self, *values: int) -> None:
        self._values = list(values)

    def below(self, limit: int) -> int:
        return self._values.pop(0)


def test_a_known_answer() -> None:
    key = MasterKey(59, 83, 2, setting="test")
    group = key.group
    assert (group.N, group.g) == (4897, 6457553)
    weak = WeakKey(group, 17)
    assert weak.public.h == 17293745
    # r = 1 + what is drawn
    ciphertext = weak.public.encrypt(42, Exponent(4))
    assert (ciphertext.c1, ciphertext.c2) == (11116649, 1783636)
    first, second = key.split(Exponent(1234567))
    assert (first.exponent, second.exponent) == (1234567, 6115831)
    assert first.exponent + second.exponent == 7350398
    assert weak.decrypt([ciphertext]) == [42] == second.open([ciphertext.c1], first.power([ciphertext.c1]))
    assert Textbook(59, 83, 2).sigma == 7350398
    assert Book(4897, 6457553).encrypt(17293745, 42, 5) == (11116649, 1783636)


@pytest.mark.parametrize("edge", EDGES)
def test_all_ways_to_open_agree(edge: str) -> None:
    m = EDGES[edge]
    number = GROUP.number(m)
    ciphertext = ALICE.public.encrypt(number, stream(edge))
    assert ALICE.decrypt([ciphertext]) == [number]
    assert KEY.decrypt(ciphertext) == number == opened(ciphertext)
    pair = (int(ciphertext.c1), int(ciphertext.c2))
    assert BOOK.decrypt(int(ALICE._secret), pair) == m == BOOK.open(*TEXT.split_long(), pair)


@pytest.mark.parametrize("share", [CS, CC])
def test_one_share_alone_opens_nothing(share: StrongShare) -> None:
    c1 = ALICE.public.encrypt(7, stream()).c1
    with pytest.raises(CiphertextError, match="does not open"):
        share.open([c1], [1])
    # and is as long as both together: a shorter one would give away the factors
    assert share.exponent.bit_length() > 2 * GROUP.N.bit_length() - 20


def test_a_split_of_lambda_itself_does_not_open() -> None:
    """The paper's section 4: what comes out is m lambda."""
    order = TEXT.order
    first = StrongShare(GROUP, order // 3)
    second = StrongShare(GROUP, order - order // 3)
    c1 = ALICE.public.encrypt(5, stream()).c1
    assert second.open([c1], first.power([c1])) == [GROUP.number(5 * order % N)] != [5]


def test_joint_keys_need_every_holder() -> None:
    both = ALICE.public.joined(BOB.public).encrypt(-9, stream())
    with pytest.raises(CiphertextError):
        ALICE.decrypt([both])
    assert BOB.decrypt(ALICE.partial([both])) == [-9] == ALICE.decrypt(BOB.partial([both]))
    under_bob = BOB.public.encrypt(-9, stream(2))
    assert BOB.decrypt(ALICE.partial([ALICE.reencrypt(under_bob)])) == [-9]
    assert opened(ALICE.reencrypt(under_bob)) == -9


def test_the_papers_refresh_changes_the_key_and_nothing_else() -> None:
    before = ALICE.public.encrypt(123, stream())
    r = GROUP.draw(stream("refresh"))
    after = refresh(before, r)
    with pytest.raises(CiphertextError):
        ALICE.decrypt([after])
    assert WeakKey(GROUP, ALICE._secret + r).decrypt([after]) == [123]
    assert opened(after) == 123 == KEY.decrypt(after)  # no backward security
    assert ALICE.decrypt([before]) == [123]
    pair = BOOK.refresh(r, (int(before.c1), int(before.c2)))
    assert (after.c1, after.c2) == pair


@settings(max_examples=25, deadline=None)
@given(a=st.integers(-(2**200), 2**200), b=st.integers(-(2**200), 2**200), k=st.integers(0, 2**40))
def test_sums_and_multiples(a: int, b: int, k: int) -> None:
    x, y = ALICE.public.encrypt(a, stream("x")), ALICE.public.encrypt(b, stream("y"))
    assert ALICE.decrypt([add(x, y), add(x, scale(y, N - 1)), scale(x, k)]) == [a + b, a - b, a * k]
    pair = BOOK.add((int(x.c1), int(x.c2)), (int(y.c1), int(y.c2)))
    assert BOOK.signed(BOOK.decrypt(int(ALICE._secret), pair)) == a + b


def test_the_twin_computes_the_same_elements() -> None:
    secret, other = int(ALICE._secret), int(BOB._secret)
    x = ALICE.public.encrypt(77, stream("twin"))
    pair = (int(x.c1), int(x.c2))
    r = 1 + stream("twin").below(N // 4)
    assert BOOK.encrypt(int(ALICE.public.h), 77, r) == pair
    for own, twin in (
        (scale(x, 12345), BOOK.scale(pair, 12345)),
        (scale(x, N - 1), BOOK.scale(pair, N - 1)),
        (BOB.reencrypt(x), BOOK.reencrypt(other, pair)),
        (ALICE.partial([x])[0], BOOK.partial(secret, pair)),
    ):
        assert (own.c1, own.c2) == twin
    assert ALICE.decrypt([scale(x, N - 1)]) == [-77]


def test_sums_across_keys() -> None:
    x, y = ALICE.public.encrypt(1000, stream("x")), BOB.public.encrypt(-1001, stream("y"))
    addition = CrossAddition(CS, stream("masks"))
    asked = addition.ask(x, y)
    assert CC.open([asked[0]], [asked[1]]) != [-1]  # the helper sees it masked
    joint = ALICE.public.joined(BOB.public)
    total = addition.finish(CrossAddition.help(CC, asked, joint, stream("helper")))
    assert BOB.decrypt(ALICE.partial([total])) == [-1]
    twin = BOOK.cross_add(
        TEXT.split_long(),
        int(ALICE.public.h),
        (int(x.c1), int(x.c2)),
        int(BOB.public.h),
        (int(y.c1), int(y.c2)),
    )
    assert BOOK.signed(BOOK.decrypt(int(BOB._secret), BOOK.partial(int(ALICE._secret), twin))) == -1


# --- what is refused ---


def test_elements_outside_the_group_are_refused() -> None:
    good = ALICE.public.encrypt(1, stream())
    lines = GROUP.write_pairs([good])
    assert ALICE.decrypt(GROUP.read_pairs(lines)) == [1]
    p = PRIMES[0][0]
    bad: list[tuple[str, Any]] = [
        ("zero", 0),
        ("beyond the modulus", GROUP.N2 + 1),
        ("a multiple of a factor", p * 12345),
        ("no square", next(x for x in range(2, 100) if _jacobi(x) == -1)),
    ]
    for _, number in bad:
        with pytest.raises(CiphertextError, match="no element"):
            GROUP.read(GROUP.write([number]))
    with pytest.raises(CiphertextError, match="another modulus"):
        GROUP.read(lines)
    with pytest.raises(CiphertextError, match="another modulus"):
        GROUP.read_pairs(lines[:, 1:])


def _jacobi(number: int) -> int:
    return int(_libraries.gmp().jacobi(number, GROUP.N))


def test_other_epochs_and_moduli_are_refused() -> None:
    later = Group(N, int(GROUP.g), epoch=2, setting="test")
    with pytest.raises(EpochError, match=r"epoch 1.*epoch 2"):
        WeakKey(later, ALICE._secret).decrypt([ALICE.public.encrypt(1, stream())])
    other = master(1).group
    foreign = WeakKey.draw(other, stream()).public.encrypt(1, stream())
    for operation in (
        lambda: ALICE.decrypt([foreign]),
        lambda: add(ALICE.public.encrypt(1, stream()), foreign),
        lambda: KEY.decrypt(foreign),
        lambda: CrossAddition(CS, stream()).ask(foreign, foreign),
    ):
        with pytest.raises(CiphertextError, match="another modulus"):
            operation()


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: MasterKey(23, 47, 2, setting="test"), "do not go together"),
        (lambda: MasterKey(59, 61, 2, setting="test"), "two different safe primes"),
        (lambda: MasterKey(59, 59, 2, setting="test"), "two different safe primes"),
        (lambda: MasterKey(*PRIMES[0], ROOT), "keys of 512 bits are not made"),
        (lambda: MasterKey(*PRIMES[0], ROOT, setting="paper"), "keys of 512 bits are not made"),
        (lambda: MasterKey.generate(1024), "setting='paper'"),
        (lambda: MasterKey.generate(2049), "not made"),
        (lambda: MasterKey(59, 83, 59, setting="test"), "generator"),
    ],
)
def test_unsafe_keys_are_not_made(make: Callable[[], MasterKey], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make()


def test_a_short_modulus_is_not_taken() -> None:
    with pytest.raises(CiphertextError, match="too short"):
        Group(N, int(GROUP.g))
    with pytest.raises(CiphertextError, match="generator"):
        Group(N, 1, setting="test")


def test_numbers_beyond_the_modulus_are_not_encrypted() -> None:
    with pytest.raises(LocalProtocolError, match="too large"):
        ALICE.public.encrypt(N // 2 + 1, stream())


def test_secrets_are_not_shown() -> None:
    shown = repr((ALICE, CS, KEY))
    assert str(int(ALICE._secret)) not in shown
    assert str(int(CS.exponent)) not in shown


# --- primes, powers, pools, streams ---


def test_safe_primes() -> None:
    prime = safe_prime(64, stream())
    assert prime.bit_length() == 64
    assert prime >> 62 == 3
    assert is_safe_prime(prime)
    assert [n for n in range(4, 200) if is_safe_prime(n)] == [5, 7, 11, 23, 47, 59, 83, 107, 167, 179]
    with pytest.raises(LocalProtocolError):
        safe_prime(8, stream())


def test_drawn_keys_work() -> None:
    key = MasterKey.generate(128, stream=stream(), setting="test", exponents="short")
    assert key.group.N.bit_length() == 128
    weak = WeakKey.draw(key.group, stream(1))
    assert weak.decrypt([weak.public.encrypt(-5, stream(2))]) == [-5]


@pytest.mark.parametrize("bits", [1, 63, 64, 65, 512, 1000])
def test_table_powers_are_powers(bits: int) -> None:
    table = FixedBase(int(GROUP.g), int(GROUP.N2), bits)
    for exponent in {0, 1, (1 << bits) - 1, 1 << bits - 1, stream(bits).bits(bits)}:
        assert table.power(exponent) == pow(int(GROUP.g), exponent, int(GROUP.N2))
    for exponent in (-1, 1 << bits):
        with pytest.raises(LocalProtocolError):
            table.power(exponent)


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_of_powers(threads: int) -> None:
    bases = list(range(2, 9))
    assert powers_of(bases, 12345, N, threads=threads) == [pow(b, 12345, N) for b in bases]
    assert powers_of([], 3, N, threads=threads) == []


def test_a_pool_gives_nothing_twice() -> None:
    pool = Pool(ALICE.public)
    pool.fill(3)
    assert len(pool) == 3
    ciphertexts = [ALICE.public.encrypt(1, pool) for _ in range(5)]  # the last two are made when they are needed
    assert len(pool) == 0
    assert len({int(c.c2) for c in ciphertexts}) == 5
    assert ALICE.decrypt(ciphertexts) == [1] * 5
    with pytest.raises(LocalProtocolError, match="another key"):
        BOB.public.encrypt(1, pool)


def test_a_forked_child_has_randomness_of_its_own() -> None:
    pool, fresh = Pool(ALICE.public), SecretStream.fresh()
    pool.fill(1)
    reading, writing = os.pipe()
    with pool._lock:  # as another thread may hold it at that moment
        child = os.fork()
    if child == 0:  # no test framework in the child: it answers and is gone
        try:
            fresh.bytes(1)
            refused = b"no"
        except LocalProtocolError:
            refused = b"yes"
        os.write(writing, b"%s %d %d" % (refused, len(pool), int(ALICE.public.encrypt(1, pool).c2)))
        os._exit(0)
    os.waitpid(child, 0)
    refused, ready, theirs = os.read(reading, 1 << 16).split()
    os.close(reading)
    os.close(writing)
    assert refused == b"yes"
    assert int(ready) == 0
    assert int(theirs) != int(ALICE.public.encrypt(1, pool).c2)
    assert len(fresh.bytes(3)) == 3


def test_streams() -> None:
    assert stream(1).bytes(20) == stream(1).bytes(20) != stream(2).bytes(20)
    assert SecretStream.fresh().bytes(16) != SecretStream.fresh().bytes(16)
    assert {stream().below(1) for _ in range(3)} == {0}
    drawn = stream()
    lengths = np.bincount([drawn.log_uniform(8).bit_length() for _ in range(4000)], minlength=9)
    assert lengths[0] == 0
    assert (np.abs(lengths[1:] - 500) < 120).all()
    for call in (lambda: stream().below(0), lambda: SecretStream(b"short")):
        with pytest.raises(LocalProtocolError):
            call()


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr("woodlot.data.extras.import_module", absent)
    _libraries.gmp.cache_clear()
    try:
        with pytest.raises(ModuleNotFoundError, match=r"pip install 'woodlot\[crypto\]'"):
            PublicKey(GROUP, 3)
    finally:
        _libraries.gmp.cache_clear()
