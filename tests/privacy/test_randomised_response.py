"""Randomised response: exact epsilon, bits that never change, and sums."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from parts import sum_parts
from scipy import stats

from woodlot.exceptions import DataError
from woodlot.privacy._libraries import opendp
from woodlot.privacy.derivation import derive_key, open_stream
from woodlot.privacy.label_code import LabelCode
from woodlot.privacy.randomised_response import INSTANT_STEPS, RandomisedResponse

SECRET = bytes(range(32))
TWO = LabelCode.one_hot(["no", "yes"])
SETTINGS = [(0.5, 0.75, 0.5), (0.75, 0.9, 0.1), (0.9, 0.9, 0.1), (0.99, 0.99, 0.01)]


def row_ids(n: int) -> list[bytes]:
    return [number.to_bytes(8, "big") for number in range(n)]


# --- epsilon ---


def enumerated_epsilon(response: RandomisedResponse, reports: int) -> float:
    """The largest log ratio over all outcomes and pairs of classes, from the probabilities alone."""
    kept, xi, zeta = float(response.kept), float(response.xi), float(response.zeta)

    def chances(bit: int) -> list[float]:
        one = kept if bit else 1 - kept
        return [
            one * xi**told * (1 - xi) ** (reports - told) + (1 - one) * zeta**told * (1 - zeta) ** (reports - told)
            for told in range(reports + 1)
        ]

    by_bit = chances(0), chances(1)
    worst = 0.0
    for first, second in itertools.permutations(response.code.bits, 2):
        for outcome in itertools.product(range(reports + 1), repeat=response.code.length):
            top = math.prod(by_bit[bit][told] for bit, told in zip(first, outcome, strict=True))
            bottom = math.prod(by_bit[bit][told] for bit, told in zip(second, outcome, strict=True))
            worst = max(worst, math.log(top / bottom)) if top else worst
    return worst


@pytest.mark.parametrize("reports", [1, 2, 3])
@pytest.mark.parametrize("parameters", SETTINGS)
@pytest.mark.parametrize(
    "code",
    [
        LabelCode.one_bit(["no", "yes"]),
        TWO,
        LabelCode.bloom(["a", "b", "c"], length=5, hashes=2),
        LabelCode.bloom(["a", "b", "c", "d"], length=6, hashes=2),
    ],
    ids=["one-bit", "one-hot", "bloom-5", "bloom-6"],
)
def test_epsilon_is_that_of_enumeration(code: LabelCode, parameters: tuple[float, float, float], reports: int) -> None:
    pr, xi, zeta = parameters
    response = RandomisedResponse.from_paper(code, pr=pr, xi=xi, zeta=zeta)
    assert response.epsilon(reports) == pytest.approx(enumerated_epsilon(response, reports), rel=1e-9)


@pytest.mark.parametrize(
    ("parameters", "known"),
    [
        (SETTINGS[0], (0.54, 1.83, 2.196, 2.197)),
        (SETTINGS[1], (2.77, 3.892, 3.892, 3.892)),
        (SETTINGS[2], (3.63, 5.888, 5.889, 5.889)),
        (SETTINGS[3], (8.38, 10.587, 10.587, 10.587)),
    ],
)
def test_known_epsilons(parameters: tuple[float, float, float], known: tuple[float, ...]) -> None:
    pr, xi, zeta = parameters
    response = RandomisedResponse.from_paper(TWO, pr=pr, xi=xi, zeta=zeta)
    found = [response.epsilon(reports) for reports in (1, 5, 20, None)]
    assert found == pytest.approx(known, abs=0.006)


def test_one_report_is_rappors_formula() -> None:
    response = RandomisedResponse.from_paper(TWO, pr=0.75, xi=0.9, zeta=0.1)
    high, low = float(response.told(1)), float(response.told(0))
    assert response.epsilon(1) == pytest.approx(math.log(high * (1 - low) / (low * (1 - high))), rel=1e-12)
    assert high == pytest.approx(0.875 * 0.9 + 0.125 * 0.1, abs=1e-4)


@pytest.mark.parametrize(("pr", "hashes"), [(0.5, 1), (0.9, 1), (0.9, 2), (0.46, 3)])
def test_total_epsilon_is_that_of_opendp(pr: float, hashes: int) -> None:
    bits = np.repeat(np.eye(2, dtype=np.uint8), hashes, axis=1)  # two filters without a common bit
    response = RandomisedResponse.from_paper(LabelCode("bloom", ("a", "b"), bits), pr=pr)
    domain = opendp("domains").bitvector_domain(max_weight=hashes)
    theirs = opendp("measurements").make_randomized_response_bitvec(
        domain, opendp("metrics").discrete_distance(), f=1 - pr
    )
    assert response.epsilon() == pytest.approx(theirs.map(1), rel=1e-12)


def test_one_bit_costs_half_of_two() -> None:
    one = RandomisedResponse.from_paper(LabelCode.one_bit(["no", "yes"]), pr=0.75)
    assert one.epsilon() == pytest.approx(math.log(7), rel=1e-15)
    assert RandomisedResponse.from_paper(TWO, pr=0.75).epsilon() == pytest.approx(2 * math.log(7), rel=1e-15)


@given(st.floats(0.001, 0.999), st.floats(0, 1), st.floats(0, 1), st.integers(1, 50))
@settings(max_examples=100, deadline=None)
def test_rounding_is_to_the_safe_side(pr: float, a: float, b: float, reports: int) -> None:
    zeta, xi = min(a, b), max(a, b)
    if xi - zeta < 1e-4:
        return
    response = RandomisedResponse.from_paper(TWO, pr=pr, xi=xi, zeta=zeta)
    assert response.kept <= (1 + Fraction(pr)) / 2
    assert response.xi <= Fraction(xi)
    assert response.zeta >= Fraction(zeta)
    assert response.epsilon(reports) <= response.epsilon(reports + 1) <= response.epsilon()
    odds = response.kept / (1 - response.kept)
    with mpmath.workdps(50):
        exact = 2 * mpmath.log(mpmath.mpf(odds.numerator) / odds.denominator)
        assert math.nextafter(response.epsilon(), 0) < exact <= response.epsilon()


@given(st.floats(0.01, 30), st.sampled_from(["one-bit", "one-hot", "bloom"]))
@settings(max_examples=60, deadline=None)
def test_epsilon_that_was_asked_for_is_not_exceeded(epsilon: float, kind: str) -> None:
    code = {
        "one-bit": LabelCode.one_bit(["a", "b"]),
        "one-hot": LabelCode.one_hot(["a", "b", "c"]),
        "bloom": LabelCode.bloom(["a", "b", "c"], length=6, hashes=2),
    }[kind]
    found = RandomisedResponse.for_epsilon(code, epsilon).epsilon()
    assert found <= epsilon
    assert found == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("pr", [0, 1, -0.5, math.nan, math.inf, "much"])
def test_bad_probabilities_are_refused(pr: float) -> None:
    with pytest.raises(ValueError, match="pr"):
        RandomisedResponse.from_paper(TWO, pr=pr)


@pytest.mark.parametrize(("xi", "zeta"), [(0.5, 0.5), (0.1, 0.9), (1.1, 0), (1, -0.1), (0.500001, 0.5)])
def test_bad_instant_probabilities_are_refused(xi: float, zeta: float) -> None:
    with pytest.raises(ValueError, match="zeta"):
        RandomisedResponse.from_paper(TWO, pr=0.5, xi=xi, zeta=zeta)


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, 1e-30])
def test_bad_epsilons_are_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="epsilon"):
        RandomisedResponse.for_epsilon(TWO, epsilon)


# --- the permanent layer ---


def described_bits(response: RandomisedResponse, dataset: str, row: bytes, label: int) -> list[int]:
    """The permanent bits of one row, from the description alone."""

    def part(data: bytes) -> bytes:
        return len(data).to_bytes(8, "big") + data

    mechanism = hashlib.sha256(
        part(b"permanent response") + part(response.code.digest()) + part(response.keep.to_bytes(8, "big"))
    ).digest()
    common = part(mechanism) + part(dataset.encode())
    tail = part(row) + part(label.to_bytes(4, "big"))
    key = hmac.new(SECRET, part(b"woodlot: permanent response") + part(common) + part(tail), hashlib.sha256).digest()
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * response.code.length))
    words = [int.from_bytes(stream[at : at + 8], "little") >> 1 for at in range(0, len(stream), 8)]
    return [
        int(bit) if word < response.keep else 1 - int(bit)
        for bit, word in zip(response.code.bits[label], words, strict=True)
    ]


def test_permanent_bits_are_those_described() -> None:
    response = RandomisedResponse.from_paper(LabelCode.one_hot(["a", "b", "c"]), pr=0.5)
    labels = np.arange(30) % 3
    found = response.permanent(SECRET, "patients", row_ids(30), labels)
    for row, label in enumerate(labels.tolist()):
        assert found[row].tolist() == described_bits(response, "patients", row_ids(30)[row], label)


def test_permanent_bits_are_the_same_for_ever() -> None:
    # A version that changes these bits makes every client spend its whole epsilon a second time.
    response = RandomisedResponse.from_paper(TWO, pr="0.75", xi="0.9", zeta="0.1")
    bits = response.permanent(SECRET, "patients", row_ids(64), np.arange(64) % 2)
    assert np.packbits(bits).tobytes().hex() == KNOWN_PERMANENT
    told = response.instant(SECRET, "patients", b"query", *sum_parts(bits, np.arange(64) // 32, 2))
    assert told.tolist() == KNOWN_INSTANT
    assert response.release(SECRET, "patients") == KNOWN_RELEASE


KNOWN_PERMANENT = "dc99999993999d999fd81b199919b199"
KNOWN_INSTANT = [[16, 16], [17, 16]]
KNOWN_RELEASE = "labels-222b6e0baef6d465aa39f3ddefaaccf0"


def test_bits_of_a_row_depend_on_nothing_else() -> None:
    response = RandomisedResponse.from_paper(TWO, pr=0.5)
    rows, labels = row_ids(200), np.arange(200) % 2
    whole = response.permanent(SECRET, "d", rows, labels)
    order = np.random.default_rng(0).permutation(200)[:50]
    some = response.permanent(SECRET, "d", [rows[row] for row in order], labels[order])
    assert (some == whole[order]).all()
    same_layer = RandomisedResponse.from_paper(TWO, pr=0.5, xi=0.9, zeta=0.2)
    assert (same_layer.permanent(SECRET, "d", rows, labels) == whole).all()
    assert same_layer.release(SECRET, "d") == response.release(SECRET, "d")


@pytest.mark.parametrize("changed", ["secret", "data set", "rows", "pr", "code"])
def test_whatever_differs_shares_no_chance(changed: str) -> None:
    rows, labels = row_ids(4000), np.arange(4000) % 2
    response = other = RandomisedResponse.from_paper(TWO, pr=0.5)
    if changed == "pr":
        other = RandomisedResponse.from_paper(TWO, pr=0.6)
    elif changed == "code":
        other = RandomisedResponse.from_paper(LabelCode.one_hot(["no", "maybe"]), pr=0.5)
    secret = bytes(32) if changed == "secret" else SECRET
    dataset = "e" if changed == "data set" else "d"
    uids = [b"x" + row for row in rows] if changed == "rows" else rows
    turned = response.permanent(SECRET, "d", rows, labels) ^ TWO.bits[labels]
    turned_other = other.permanent(secret, dataset, uids, labels) ^ TWO.bits[labels]
    assert abs(np.corrcoef(turned.ravel(), turned_other.ravel())[0, 1]) < 0.05
    if changed != "rows":
        assert response.release(SECRET, "d") != other.release(secret, dataset)


def test_new_label_of_a_row_draws_anew() -> None:
    # The same turns for both labels would give the label away to whoever sees both.
    response = RandomisedResponse.from_paper(TWO, pr=0.5)
    rows = row_ids(4000)
    no = response.permanent(SECRET, "d", rows, np.zeros(4000, int)) ^ TWO.bits[0]
    yes = response.permanent(SECRET, "d", rows, np.ones(4000, int)) ^ TWO.bits[1]
    assert abs(np.corrcoef(no.ravel(), yes.ravel())[0, 1]) < 0.05


def test_bits_are_kept_as_often_as_they_should() -> None:
    response = RandomisedResponse.from_paper(LabelCode.one_hot(["a", "b", "c"]), pr=0.75)
    labels = np.arange(20_000) % 3
    kept = response.permanent(SECRET, "d", row_ids(20_000), labels) == response.code.bits[labels]
    for column in range(3):
        assert stats.binomtest(int(kept[:, column].sum()), 20_000, 0.875).pvalue > 1e-4
    assert abs(np.corrcoef(kept.T) - np.eye(3)).max() < 0.03


def test_derived_bytes_are_uniform() -> None:
    stream = np.frombuffer(open_stream(derive_key(SECRET, "test"))(1 << 20), np.uint8)
    heads = np.frombuffer(b"".join(derive_key(SECRET, "test", row) for row in row_ids(20_000)), np.uint8)
    for data in (stream, heads):
        assert stats.chisquare(np.bincount(data, minlength=256)).pvalue > 1e-4
        assert stats.binomtest(int(np.unpackbits(data).sum()), 8 * len(data), 0.5).pvalue > 1e-4


def test_a_stream_is_read_on() -> None:
    key = derive_key(SECRET, "test")
    stream = open_stream(key)
    assert stream(10) + stream(7) == open_stream(key)(17)


def test_bad_rows_are_refused_without_naming_them() -> None:
    response = RandomisedResponse.from_paper(TWO, pr=0.5)
    with pytest.raises(DataError, match="same id") as refused:
        response.permanent(SECRET, "d", [b"alice", b"alice"], np.array([0, 1]))
    assert "alice" not in str(refused.value)
    for label in (2, -1):
        with pytest.raises(DataError, match="public list"):
            response.permanent(SECRET, "d", [b"alice"], np.array([label]))
    with pytest.raises(ValueError, match="whole numbers"):
        response.permanent(SECRET, "d", [b"alice"], np.array([0.0]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="32 random bytes"):
        response.permanent(b"short", "d", [b"alice"], np.array([0]))
    assert response.permanent(SECRET, "d", [], np.empty(0, int)).shape == (0, 2)


# --- sums and the instant layer ---


def instant_parts(sizes: list[int], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    n = np.array(sizes, np.int64)
    return np.random.default_rng(seed).integers(0, n[:, None] + 1, (len(n), 2)), n


def test_repeated_query_has_the_same_answer_and_another_query_another() -> None:
    response = RandomisedResponse.from_paper(TWO, pr=0.75, xi=0.9, zeta=0.1)
    ones, n = instant_parts([100, 0, 1, 5000], 0)
    first = response.instant(SECRET, "d", b"tree 0, node 3", ones, n)
    assert (response.instant(SECRET, "d", b"tree 0, node 3", ones, n) == first).all()
    assert (response.instant(SECRET, "d", b"tree 0, node 4", ones, n) != first).any()
    assert (response.instant(bytes(32), "d", b"tree 0, node 3", ones, n) != first).any()
    assert (response.instant(SECRET, "e", b"tree 0, node 3", ones, n) != first).any()


def test_rows_that_changed_do_not_keep_the_noise_of_a_query() -> None:
    response = RandomisedResponse.from_paper(TWO, pr=0.75, xi=0.6, zeta=0.4)
    n = np.full(2000, 50)
    before = np.full((2000, 2), 20)
    after = before.copy()
    after[0, 0] += 1
    noise = response.instant(SECRET, "d", b"q", before, n) - response.instant(SECRET, "d", b"q", after, n)
    assert noise[1:].std() > 1


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_blocks_do_not_change_the_answer(sizes: list[int], seed: int) -> None:
    response = RandomisedResponse.from_paper(TWO, pr=0.75, xi=0.9, zeta=0.1)
    ones, n = instant_parts(sizes, seed)
    whole = response.instant(SECRET, "d", b"q", ones, n)
    assert ((whole >= 0) & (whole <= n[:, None])).all()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("woodlot.privacy.randomised_response._WORDS_AT_ONCE", 16)
        assert (response.instant(SECRET, "d", b"q", ones, n) == whole).all()


def test_instant_sums_have_the_right_distribution() -> None:
    response = RandomisedResponse.from_paper(TWO, pr=0.75, xi=0.9, zeta=0.1)
    n = np.full(20_000, 10)
    ones = np.tile([3, 8], (20_000, 1))
    told = response.instant(SECRET, "d", b"q", ones, n)
    for column, have in enumerate((3, 8)):
        chances = np.convolve(
            stats.binom.pmf(np.arange(11), have, float(response.xi)),
            stats.binom.pmf(np.arange(11), 10 - have, float(response.zeta)),
        )[:11]
        seen = np.bincount(told[:, column], minlength=11)
        usual = chances * 20_000 >= 5
        expected = np.append(chances[usual], chances[~usual].sum())
        counted = np.append(seen[usual], seen[~usual].sum())
        assert stats.chisquare(counted, expected / expected.sum() * 20_000).pvalue > 1e-4


def test_instant_layer_can_be_off() -> None:
    response = RandomisedResponse.from_paper(TWO, pr=0.75)
    assert (response.one, response.zero) == (INSTANT_STEPS, 0)
    ones, n = instant_parts([5, 9], 1)
    assert (response.instant(SECRET, "d", b"q", ones, n) == ones).all()
    assert response.epsilon(1) == response.epsilon()


def test_impossible_sums_are_refused() -> None:
    response = RandomisedResponse.from_paper(TWO, pr=0.75, xi=0.9, zeta=0.1)
    for ones in ([[6, 0]], [[-1, 0]], [[0]], [[0, 0], [0, 0]]):
        with pytest.raises(ValueError, match="for each part and bit"):
            response.instant(SECRET, "d", b"q", np.array(ones), np.array([5]))
