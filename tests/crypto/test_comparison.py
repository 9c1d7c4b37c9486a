"""Comparisons: every small pair, the edges, ties, both coins; what the helper sees; mutants that must fail."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import gmpy2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_keys import PRIMES, ROOT, master, stream
from textbook import Book, Textbook

from woodlot.crypto import dealer, packed
from woodlot.crypto.dtpkc import StrongShare, WeakKey
from woodlot.crypto.encoding import decode, encode
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import CiphertextError, DataError, LocalProtocolError, RemoteProtocolError
from woodlot_lab.comparison import Blinded, Comparer, decide
from woodlot_lab.pools import Pool

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


class Sides:
    """The whole way of packed comparisons: dealer, helper and coordinator."""

    def __init__(self, pairs: Sequence[tuple[int, int]], seed: object = 0, spare: int = 0) -> None:
        count = len(pairs)
        values = [ALICE.public.encrypt(x, stream(("x", i))).c1 for i, (x, _) in enumerate(pairs)]
        inverted = [
            gmpy2.invert(BOB.public.encrypt(s, stream(("s", i))).c1, GROUP.N2) for i, (_, s) in enumerate(pairs)
        ]
        sizes = packed.pack_sizes(GROUP, count + spare)  # more may be dealt than is used
        self.masks = packed.draw_masks(stream(("masks", seed)), sum(sizes))
        concealed = packed.conceal_masks(GROUP, self.masks, stream(("conceal", seed)), sizes)
        packs, lines = packed.arrange(GROUP, [0] * count, sizes)
        self.dealt = dealer.deal(self.masks, stream(("common", seed))).take(lines)
        blinded = packed.blind(GROUP, values, inverted, concealed, packs, stream(("factors", seed)))
        self.blinded, self.halves = blinded, CS.power(blinded.c1)
        self.opened = packed.open_blinded(CC, blinded, self.halves)
        self.words, self.theirs = dealer.answer(self.opened, stream(("common", seed)))
        self.ours = dealer.decide(self.dealt, self.words)

    @property
    def goes_left(self) -> list[bool]:
        return [bool(bit) for bit in self.ours ^ self.theirs ^ 1]


@pytest.mark.parametrize("spare", [0, 5])
def test_packed_on_all_pairs(spare: int) -> None:
    pairs = SMALL + EDGES  # not a multiple of the slots, so that the last pack is not full
    assert packed.slots(GROUP) == 3
    assert Sides(pairs, spare=spare).goes_left == [x <= s for x, s in pairs]


@settings(max_examples=15, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(BOTTOM, TOP), st.integers(BOTTOM, TOP)), min_size=1, max_size=7),
    seed=st.integers(0, 10**6),
)
def test_packed_on_any_pairs(pairs: list[tuple[int, int]], seed: int) -> None:
    assert Sides(pairs, seed).goes_left == [x <= s for x, s in pairs]


@settings(max_examples=30, deadline=None)
@given(
    pairs=st.lists(st.tuples(st.integers(0, 2**65 - 1), st.integers(0, 2**65 - 1), st.integers(0, 3)), max_size=20),
    key=st.binary(min_size=32, max_size=32),
)
def test_dealt_comparison(pairs: list[tuple[int, int, int]], key: bytes) -> None:
    z = [a for a, _, _ in pairs]
    # equal, neighbours, equal but for the last byte, or independent
    r = [[a, (a + 1) % 2**65, a ^ (c & 255), c][how] for a, c, how in pairs]
    dealt = dealer.deal([*r, 1, 2, 3], SecretStream(key)).take(np.arange(len(z)))  # more may be dealt than is used
    words, theirs = dealer.answer(z, SecretStream(key))
    np.testing.assert_array_equal(
        dealer.decide(dealt, words) ^ theirs, [(a - b) % 2**65 >> 64 for a, b in zip(z, r, strict=True)]
    )


def test_what_is_seen_in_packed_comparisons() -> None:
    """One pair, many times: opened slots are uniform, and so are both sides' shares and all that travels."""
    count = 600
    sides = Sides([(5, 4)] * count, "views")
    assert len(set(sides.blinded.c1)) == len(sides.blinded.c1)
    assert ((sides.ours ^ sides.theirs) == 1).all()
    low = np.array([number & 2**64 - 1 for number in sides.opened], np.uint64)
    assert len(set(low.tolist())) == count
    # sorted words: where in the line the common one stands is as likely anywhere
    ours, theirs = (lines.view("<u8").reshape(count, -1) for lines in (sides.dealt.words, sides.words))
    common = [np.flatnonzero(np.isin(one, other)) for one, other in zip(ours, theirs, strict=True)]
    assert {len(where) for where in common} == {0, 1}
    where = np.concatenate(common)
    assert 25 < where.mean() < 39
    assert 0.4 < len(where) / count < 0.6  # a coin decides whether there is one
    for lines in (low.view(np.uint8).reshape(count, 8), sides.ours[:, None], sides.theirs[:, None]):
        share = np.unpackbits(lines, axis=1, bitorder="little")[:, : 64 if lines.shape[1] == 8 else 1].mean(axis=0)
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


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.integers(0, 5))
def test_a_pack_has_splits_of_one_owner_and_room_for_any_owners(owners: list[int], spare: int) -> None:
    sizes = packed.pack_sizes(GROUP, len(owners) + spare, 5)
    packs, lines = packed.arrange(GROUP, owners, sizes)
    assert sorted(itertools.chain(*packs)) == list(range(len(owners)))
    assert all(len({owners[at] for at in pack}) == 1 for pack in packs)
    assert [len(pack) <= size <= 3 for pack, size in zip(packs, sizes, strict=False)] == [True] * len(packs)
    # the slots that were dealt for a pack are its own
    bounds = np.cumsum([0, *sizes])
    for number, pack in enumerate(packs):
        assert lines[pack].tolist() == list(range(bounds[number], bounds[number] + len(pack)))


def test_packs_that_were_not_dealt_are_refused() -> None:
    for owners, sizes in (([0, 1], [2]), ([0, 0], [1, 1]), ([0], [])):
        with pytest.raises(RemoteProtocolError, match="do not fit into the packs that were dealt"):
            packed.arrange(GROUP, owners, sizes)


@pytest.mark.parametrize("added", [1, -1, 2**64, 2**130, -(2**200), 3 * 5 * 7 * 11 * 13])
def test_a_half_that_was_changed_is_noticed(added: int) -> None:
    """A coordinator that adds to what is opened would compare with another split than the provider's."""
    sides = Sides([(5, 4)])
    other = [half * (1 + added * N) % GROUP.N2 for half in sides.halves]
    with pytest.raises(CiphertextError, match="half of the decryption was changed"):
        packed.open_blinded(CC, sides.blinded, other)
    with pytest.raises(CiphertextError, match="1 packs need a half of each"):
        packed.open_blinded(CC, sides.blinded, [])
    # without the factor it would open, one off or as many as one likes
    plain = packed.BlindedPacks([GROUP.read(GROUP.write(sides.blinded.c1))[0]], [1], [[0]])
    assert CC.open(plain.c1, other)[0] == CC.open(plain.c1, sides.halves)[0] + added


def test_shares_of_another_epoch_open_nothing() -> None:
    _, other = master(1).split(stream())
    sides = Sides([(1, 2)])
    with pytest.raises(CiphertextError, match="does not open"):
        packed.open_blinded(other, sides.blinded, sides.halves)


def test_malformed_words_are_refused() -> None:
    dealt = dealer.deal([1, 2], stream())
    for wrong in (np.zeros((1, dealer.LINE_BYTES), np.uint8), np.zeros((2, 3), np.uint8)):
        with pytest.raises(RemoteProtocolError, match="520 bytes each"):
            dealer.decide(dealt, wrong)


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
