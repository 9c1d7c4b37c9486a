"""Comparisons: every small pair, the edges, ties, both coins; what the helper sees; mutants that must fail."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_keys import PRIMES, ROOT, master, stream
from textbook import Book, Textbook

from woodlot.crypto import dealer, packed
from woodlot.crypto.comparison import Blinded, Comparer, decide
from woodlot.crypto.dtpkc import StrongShare, WeakKey
from woodlot.crypto.encoding import decode, encode
from woodlot.crypto.pools import Pool
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import CiphertextError, DataError, LocalProtocolError, RemoteProtocolError

KEY = master()
GROUP = KEY.group
N = int(GROUP.N)
ALICE, BOB = WeakKey.draw(GROUP, stream("alice")), WeakKey.draw(GROUP, stream("bob"))
CS, CC = KEY.split(stream("split"))
TOP, BOTTOM = 2**63 - 1, -(2**63) + 1
SMALL = list(itertools.product(range(-4, 5), repeat=2))
EDGES = list(itertools.product((BOTTOM, BOTTOM + 1, -1, 0, 1, TOP - 1, TOP), repeat=2))


def one(comparer: Comparer, x: int, s: int, coin: int | None = None) -> Blinded:
    value = comparer.prepare_values([ALICE.public.encrypt(x, stream(("x", x)))])[0]
    split = comparer.prepare_splits([BOB.public.encrypt(s, stream(("s", s)))])[0]
    return comparer.ask(value, split, coin=coin)


@pytest.mark.parametrize("coin", [0, 1])
def test_holt_on_all_pairs(coin: int) -> None:
    comparer = Comparer(CS, stream(coin))
    asked = [one(comparer, x, s, coin) for x, s in SMALL + EDGES]
    told = decide(CC, [a.c1 for a in asked], [a.half for a in asked])
    assert [Comparer.answer(a, t) for a, t in zip(asked, told, strict=True)] == [x <= s for x, s in SMALL + EDGES]


def test_holt_from_a_pool() -> None:
    comparer = Comparer(CS, stream())
    pool = Pool(comparer.key)
    pool.fill(2)
    value = comparer.prepare_values([ALICE.public.encrypt(3, stream())])[0]
    splits = comparer.prepare_splits([BOB.public.encrypt(s, stream(s)) for s in (2, 3, 4)])
    asked = [comparer.ask(value, split, pool=pool) for split in splits]  # one more than were prepared
    told = decide(CC, [a.c1 for a in asked], [a.half for a in asked])
    assert [Comparer.answer(a, t) for a, t in zip(asked, told, strict=True)] == [False, True, True]
    assert len(pool) == 0


def test_mutants_of_holt_fail() -> None:
    comparer = Comparer(CS, stream())
    pairs = SMALL + EDGES
    asked = [one(comparer, x, s) for x, s in pairs]
    c1, halves, truth = [a.c1 for a in asked], [a.half for a in asked], [x <= s for x, s in pairs]

    def answers(told: Sequence[int]) -> list[bool]:
        return [Comparer.answer(a, t) for a, t in zip(asked, told, strict=True)]

    numbers = CC.open(c1, halves)
    assert answers([int(n < 0) for n in numbers]) == truth
    assert answers([int(n >= 0) for n in numbers]) != truth  # the other direction
    # decided by the length of the residue, as the paper prints it: wrong where the product is long
    assert answers([int((n % N).bit_length() > N.bit_length() / 2) for n in numbers]) != truth
    # shares of lambda, not of sigma
    order = Textbook(*PRIMES[0], ROOT).order
    wrong = StrongShare(GROUP, (order - CS.exponent) % (order * N))
    assert answers(decide(wrong, c1, halves)) != truth


def test_the_textbook_twin_agrees() -> None:
    book, shares = Book(N, int(GROUP.g)), Textbook(*PRIMES[0], ROOT).split_long()
    alice, bob = ((int(k._secret), int(k.public.h)) for k in (ALICE, BOB))
    for x, s in [(1, 2), (2, 2), (3, 2), (-5, -4), (TOP, BOTTOM)]:
        cx, cs = book.encrypt(alice[1], x), book.encrypt(bob[1], s)
        assert book.less_or_equal(shares, alice[1], cx, bob[1], cs, alice, bob) == (x <= s)


def test_what_the_helper_sees_in_holt() -> None:
    comparer = Comparer(CS, stream())
    beta = 2 * (1000 - 13) - 1
    views = []
    for _ in range(40):
        asked = one(comparer, 1000, 13)
        views.append(CC.open([asked.c1], [asked.half])[0])
    assert len({abs(v) for v in views}) == 40
    assert all(math.gcd(a, b) != beta for a, b in itertools.combinations(views, 2))
    assert 8 < sum(v < 0 for v in views) < 32  # a coin's sign
    # lengths from a few bits to all of them, whatever the difference
    lengths = [abs(v).bit_length() for v in views]
    assert min(lengths) < 100
    assert max(lengths) > 180


# --- packed ---


def compare(pairs: Sequence[tuple[int, int]], seed: object = 0) -> list[bool]:
    """The whole way of packed comparisons, all three sides."""
    values = [ALICE.public.encrypt(x, stream(("x", i))).c1 for i, (x, _) in enumerate(pairs)]
    inverted = packed.invert_splits([BOB.public.encrypt(s, stream(("s", i))) for i, (_, s) in enumerate(pairs)])
    question = packed.ask(CS, values, inverted, stream(("ask", seed)))
    slots = packed.open_slots(CC, question.c1, question.halves, len(pairs))
    dealt = dealer.deal(len(pairs), stream(("common", seed)), stream(("dealer", seed)))
    masks = question.masks
    tables = dealer.tabulate(stream(("common", seed)), slots.low, dealer.choose(dealt, masks.low))
    masked = dealer.unmask(dealt, masks.low, tables)
    ours = packed.result_shares(masks, dealer.coordinator_share(dealt, masked))
    theirs = packed.result_shares(slots, dealer.helper_share(stream(("common", seed)), masked))
    return [bool(bit) for bit in ours ^ theirs ^ 1]


def test_packed_on_all_pairs() -> None:
    pairs = SMALL + EDGES  # not a multiple of the slots, so that the last pack is not full
    assert packed.slots(GROUP) == 3
    assert compare(pairs) == [x <= s for x, s in pairs]


@settings(max_examples=15, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(BOTTOM, TOP), st.integers(BOTTOM, TOP)), min_size=1, max_size=7),
    seed=st.integers(0, 10**6),
)
def test_packed_on_any_pairs(pairs: list[tuple[int, int]], seed: int) -> None:
    assert compare(pairs, seed) == [x <= s for x, s in pairs]


@settings(max_examples=30, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 3)), max_size=20),
    key=st.binary(min_size=32, max_size=32),
)
def test_dealt_comparison(pairs: list[tuple[int, int, int]], key: bytes) -> None:
    z = np.array([a for a, _, _ in pairs], np.uint64)
    # equal, neighbours, equal but for the last byte, or independent
    b = np.array([[a, min(a + 1, 2**64 - 1), a ^ (c & 255), c][how] for a, c, how in pairs], np.uint64)
    dealt = dealer.deal(len(z) + 3, SecretStream(key), stream()).take(0, len(z))  # more may be dealt than is used
    tables = dealer.tabulate(SecretStream(key), z, dealer.choose(dealt, b))
    masked = dealer.unmask(dealt, b, tables)
    ours, theirs = dealer.coordinator_share(dealt, masked), dealer.helper_share(SecretStream(key), masked)
    np.testing.assert_array_equal(ours ^ theirs, z < b)


def test_what_the_helper_sees_in_packed_comparisons() -> None:
    """One pair, many times: masked low bits are uniform, and so are both sides' shares and all that travels."""
    count = 600
    values = [ALICE.public.encrypt(5, stream()).c1] * count
    inverted = packed.invert_splits([BOB.public.encrypt(4, stream())]) * count
    question = packed.ask(CS, values, inverted, stream("views"))
    slots = packed.open_slots(CC, question.c1, question.halves, count)
    assert len(set(question.c1)) == len(question.c1)
    assert len(set(slots.low.tolist())) == count
    dealt = dealer.deal(count, stream("common"), stream("dealer"))
    chosen = dealer.choose(dealt, question.masks.low)
    tables = dealer.tabulate(stream("common"), slots.low, chosen)
    masked = dealer.unmask(dealt, question.masks.low, tables)
    theirs = packed.result_shares(slots, dealer.helper_share(stream("common"), masked))
    ours = packed.result_shares(question.masks, dealer.coordinator_share(dealt, masked))
    assert ((ours ^ theirs) == 1).all()
    for lines, used in (
        (slots.low.view(np.uint8).reshape(count, 8), 64),
        (chosen, 64),
        (tables, 480 * 8),
        (masked, 15),
        (ours[:, None], 1),
        (theirs[:, None], 1),
    ):
        share = np.unpackbits(lines, axis=1, bitorder="little")[:, :used].mean(axis=0)
        # six standard deviations: no bit leans to either side
        assert (np.abs(share - 0.5) < 3 / math.sqrt(count)).all()


def test_full_slots_are_exact_and_overflow_is_refused() -> None:
    full = (1 << packed.SLOT_BITS) - 1
    numbers = [full, 0, full]
    assert packed.unpack(packed.pack(numbers, 3), 3) == numbers
    for wrong in ([0] * 4, [full + 1], [-1]):
        with pytest.raises(LocalProtocolError):
            packed.pack(wrong, 3)
    for number in (1 << (3 * packed.SLOT_BITS), -1):
        with pytest.raises(CiphertextError, match="larger than its slots"):
            packed.unpack(number, 3)


def test_a_difference_beyond_its_slot_is_noticed() -> None:
    values = [ALICE.public.encrypt(1 << 200, stream()).c1]
    question = packed.ask(CS, values, packed.invert_splits([BOB.public.encrypt(0, stream())]), stream())
    with pytest.raises(CiphertextError, match="larger"):
        packed.open_slots(CC, question.c1, question.halves, 1)
    with pytest.raises(CiphertextError, match="need 2 ciphertexts"):
        packed.open_slots(CC, question.c1, question.halves, 4)


def test_shares_of_another_epoch_open_nothing() -> None:
    _, other = master(1).split(stream())
    question = packed.ask(
        CS,
        [ALICE.public.encrypt(1, stream()).c1],
        packed.invert_splits([BOB.public.encrypt(2, stream())]),
        stream(),
    )
    with pytest.raises(CiphertextError, match="does not open"):
        packed.open_slots(other, question.c1, question.halves, 1)


def test_malformed_parts_of_a_comparison_are_refused() -> None:
    dealt = dealer.deal(2, stream(), stream(1))
    numbers = np.zeros(2, np.uint64)
    for call in (
        lambda: dealer.tabulate(stream(), numbers, np.zeros((1, 8), np.uint8)),
        lambda: dealer.unmask(dealt, numbers, np.zeros((2, 3), np.uint8)),
        lambda: dealer.helper_share(stream(), np.zeros((2, 3), np.uint8)),
    ):
        with pytest.raises(RemoteProtocolError):
            call()


# --- numbers ---


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=20))
def test_codes_keep_the_order(numbers: list[float]) -> None:
    codes = encode(numbers)
    for (a, x), (b, y) in itertools.product(zip(numbers, codes, strict=True), repeat=2):
        assert (a <= b) == (x <= y)
    np.testing.assert_array_equal(decode(codes), numbers)


def test_codes_of_special_numbers() -> None:
    assert encode([0.0, -0.0]).tolist() == [0, 0]
    tiny = np.nextafter(0, 1)
    assert encode([-tiny, tiny]).tolist() == [-1, 1]
    assert (np.abs(encode([np.inf, -np.inf, np.finfo(float).max]).astype(object)) < 2**63).all()
    with pytest.raises(DataError, match="value 1 is not a number"):
        encode([1.0, np.nan])


def test_the_papers_fixed_point_form() -> None:
    assert encode([3.1415, -3.1415], encoding="fixed-point", digits=2).tolist() == [314, -314]
    near = [1.0, 1.0 + 1e-9]
    assert len(set(encode(near, encoding="fixed-point").tolist())) == 1  # neighbours become one
    assert len(set(encode(near).tolist())) == 2
    assert decode(np.array([314]), encoding="fixed-point", digits=2).tolist() == [3.14]
    for wrong in (1e300, np.inf):
        with pytest.raises(DataError, match="too large"):
            encode([wrong], encoding="fixed-point")
    with pytest.raises(DataError, match="encoding is"):
        encode([1.0], encoding="rounded")  # type: ignore[arg-type]


def test_dealt_again_for_more_the_first_are_the_same() -> None:
    """Else bytes that were masks the first time would be told as choices the second."""
    few, many = (dealer.deal(count, stream("helper"), stream("own")) for count in (3, 50))
    for one, other in ((few.choices, many.choices), (few.pads, many.pads), (few.products, many.products)):
        np.testing.assert_array_equal(one, other[:3])
