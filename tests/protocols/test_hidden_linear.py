"""Residuals by dealt products: the same weights, and no role sees more than its own numbers and uniform ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_linear import play

from woodlot import FederatedLinearRegression, FederatedLogisticRegression
from woodlot.data.tables import read_table
from woodlot.exceptions import ConfigError, DataError, LocalProtocolError, RemoteProtocolError
from woodlot.protocols.core.handling import MessageHandler
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.linear import dealt_messages as msg
from woodlot.protocols.linear import linear_messages
from woodlot.protocols.linear.dealt_numbers import (
    COLUMN_BITS,
    RESIDUAL_BITS,
    WholeColumns,
    from_floats,
    from_whole,
    minus,
    plus,
    product_numbers,
    products_of,
    products_told,
    residual_numbers,
    score_numbers,
    scores_of,
    to_floats,
)
from woodlot.protocols.linear.hidden_linear_party import HiddenLinearParty, asked_digest
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.protocols.linear.product_dealer import ProductDealer
from woodlot.runtime.codec import decode, encode

N = 12
PLAN = LinearPlan(
    task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(), max_iter=20,
    tol=1e-3, protection="hidden",
)  # fmt: skip
RING = 1 << 128


# --- numbers modulo 2**128 ---


def naive(numbers: np.ndarray) -> list[int]:
    """As whole numbers of Python."""
    return [int(low) + (int(high) << 64) for low, high in numbers.reshape(-1, 2)]


def signed(number: int) -> int:
    return number - RING if number >> 127 else number


WIDE = st.integers(0, RING - 1) | st.sampled_from([0, 1, RING - 1, 1 << 64, (1 << 64) - 1, 1 << 127])


def wide(numbers: list[int]) -> np.ndarray:
    return np.array([[number & (2**64 - 1), number >> 64] for number in numbers], np.uint64)


@given(st.lists(st.tuples(WIDE, WIDE), min_size=1, max_size=20))
@settings(max_examples=50, deadline=None)
def test_sums_and_products_are_those_of_whole_numbers(pairs: list[tuple[int, int]]) -> None:
    left, right = (list(numbers) for numbers in zip(*pairs, strict=True))
    a, b = wide(left), wide(right)
    assert naive(plus(a, b)) == [(x + y) % RING for x, y in pairs]
    assert naive(minus(a, b)) == [(x - y) % RING for x, y in pairs]
    two = np.stack([b, a])
    expected = [sum(x * y for x, y in zip(left, other, strict=True)) % RING for other in (right, left)]
    assert naive(products_of(a[None], two)) == expected


@given(
    st.lists(st.floats(-(2.0**23), 2.0**23) | st.sampled_from([0.0, -1e-300, 2.0**-96, -(2.0**-96)]), min_size=1),
)
@settings(max_examples=50, deadline=None)
def test_numbers_with_a_point_keep_what_they_are_worth(values: list[float]) -> None:
    array = np.array(values)
    assert np.abs(scores_of(score_numbers(array)) - array).max() <= 2.0**-97
    again = products_told(product_numbers(array * 1e6))
    assert (np.abs(again - array * 1e6) <= np.maximum(2.0**-140, 2.0**-52 * np.abs(array * 1e6))).all()
    whole = [signed(number) for number in naive(from_floats(array, 40))]
    assert whole == [round(value * 2**40) for value in values]
    assert np.array_equal(to_floats(from_whole(np.array([-5, 7])), 0), [-5, 7])


@pytest.mark.parametrize("make", [score_numbers, product_numbers])
@pytest.mark.parametrize("wrong", [1e30, -1e30, np.inf, np.nan])
def test_numbers_that_do_not_fit_are_refused(make: Callable[[Any], Any], wrong: float) -> None:
    with pytest.raises(LocalProtocolError, match="standardize=True"):
        make(np.array([[0.0, wrong]]))


def test_residuals_of_a_loss_that_has_risen_do_not_fit() -> None:
    with pytest.raises(LocalProtocolError, match="outgrown"):
        residual_numbers(np.array([[1.5], [-1.5]]))


# --- message by message ---


def entropy(whose: str) -> Callable[[str], bytes]:
    return lambda purpose: f"{whose} {purpose}".encode().ljust(64, b".")


def handlers(
    seed: int = 0, *, n: int = N, others: int = 1, run: int = 0, other_label: int | None = None
) -> dict[str, MessageHandler]:
    """A bank with labels, shops without, and the dealer."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2 + 2 * others))
    chosen = X.sum(axis=1) + rng.normal(size=n) > 0
    if other_label is not None:
        chosen[other_label] ^= True
    keys: dict[str, Any] = {"job": "job", "shared_secret": b"common to all but the bank".ljust(32)}
    found: dict[str, MessageHandler] = {
        "bank": HiddenLinearParty(
            "bank", read_table(X[:, :2]), target=Target.of_classes(chosen), entropy=entropy(f"{run} bank"), **keys
        )
    }
    for k in range(others):
        name, own = f"shop{k}", X[:, 2 + 2 * k : 4 + 2 * k]
        found[name] = HiddenLinearParty(name, read_table(own), entropy=entropy(f"{run} {name}"), **keys)
    return {**found, "dealer": ProductDealer("dealer", entropy=entropy(f"{run} dealer"), **keys)}


Said = list[tuple[str, Message, bytes]]


@pytest.fixture(scope="module")
def said() -> Said:
    """Role, request and reply of every message of a descent."""
    return play(handlers(), PLAN)


def replies(said: Said, kind: type[Message], role: str | None = None) -> list[Any]:
    found = [decode(reply) for name, _, reply in said if role in (None, name)]
    return [reply for reply in found if isinstance(reply, kind)]


def requests(said: Said, kind: type[Message], role: str | None = None) -> list[Any]:
    return [message for name, message, _ in said if role in (None, name) and isinstance(message, kind)]


def replayed(said: Said, parties: Mapping[str, MessageHandler]) -> None:
    for name, message, reply in said:
        assert encode(parties[name].handle(message)) == reply


def test_whoever_repeats_the_messages_gets_the_same_bytes(said: Said) -> None:
    assert len(requests(said, msg.DescendHidden)) > 2
    replayed(said, handlers())


@given(seed=st.integers(0, 2**32), n=st.integers(3, 30), others=st.integers(1, 3))
@settings(max_examples=8, deadline=None)
def test_slopes_are_exact(seed: int, n: int, others: int) -> None:
    """What a party takes from its share is the sum of products of whole numbers, to the last bit."""
    parties = handlers(seed, n=n, others=others)
    seen: list[tuple[str, list[int], list[int]]] = []
    slopes = WholeColumns.slopes

    def noted(self: WholeColumns, numbers: np.ndarray) -> Any:
        residuals = naive(residual_numbers(parties["bank"]._descent.residuals()))  # type: ignore[attr-defined]
        columns = self.numbers.tolist()
        expected = [sum(x * signed(r) for x, r in zip(column, residuals, strict=True)) for column in columns]
        seen.append(("", [signed(number) for number in naive(numbers)], expected))
        return slopes(self, numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WholeColumns, "slopes", noted)
        play(parties, msgspec.structs.replace(PLAN, max_iter=2, tol=0.0))
    assert len(seen) == 3 * others
    for _, found, expected in seen:
        assert found == expected
        assert max(map(abs, found)) < 1 << (COLUMN_BITS + RESIDUAL_BITS + 1)


# --- what each role sees ---


def test_a_label_holder_and_a_party_see_uniform_numbers() -> None:
    """The same data under other secrets: every bit of what travels is a fair coin."""
    few = msgspec.structs.replace(PLAN, max_iter=1, tol=0.0)
    bits: dict[str, list[np.ndarray]] = {"columns": [], "dealt": [], "residuals": [], "share": [], "scores": []}
    for k in range(120):
        told = play(handlers(others=2, run=k), few)
        step = requests(told, msg.DescendHidden, "shop0")[0]
        bits["columns"].append(replies(told, msg.MaskedColumns, "shop0")[0].columns)
        bits["dealt"].append(replies(told, msg.DealtProducts)[0].products["shop0"])
        bits["residuals"].append(step.residuals)
        bits["share"].append(step.share)
        bits["scores"].append(replies(told, msg.MaskedScores, "shop0")[0].scores)  # there is a second shop
    for what, words in bits.items():
        share = np.unpackbits(np.array(words).view(np.uint8), axis=1).mean(axis=0)
        assert np.abs(share - 0.5).max() < 6 * 0.5 / np.sqrt(len(words)), what
        assert abs(share.mean() - 0.5) < 5 * 0.5 / np.sqrt(share.size * len(words)), what


def test_the_dealer_is_told_the_same_of_any_data() -> None:
    """Lengths, public keys, and keyed hashes that are other ones for other data."""
    few = msgspec.structs.replace(PLAN, max_iter=2, tol=0.0)
    one, other = (play(handlers(seed), few) for seed in (0, 1))
    hashed = []
    for told in (one, other):
        asked = [message for name, message, _ in told if name == "dealer"]
        hashed.append([m.nonce for m in asked if isinstance(m, msg.DealProducts)])
        bare = [m if not isinstance(m, msg.DealProducts) else (m.step, sorted(m.of_columns)) for m in asked]
        assert bare[2:] == [(0, ["shop0"]), (1, ["shop0"]), (2, ["shop0"])]
        assert isinstance(bare[1], msg.StartProducts)
        assert (bare[1].columns, bare[1].n_rows, bare[1].n_scores) == ({"shop0": 2}, N, 1)
    assert encode(requests(one, msg.StartProducts)[0]) == encode(requests(other, msg.StartProducts)[0])
    assert len({*hashed[0], *hashed[1]}) == 6


def test_no_mask_hides_two_contents() -> None:
    """With the same secrets and other labels, residuals of the same step have another mask, and so have slopes."""
    few = msgspec.structs.replace(PLAN, max_iter=1, tol=0.0)
    masks, dealt, columns = [], [], []
    for row in (1, 2):
        told = play(handlers(other_label=row), few)
        bank: Any = handlers(other_label=row)["bank"]
        for name, message, _ in told:
            if name == "bank" and isinstance(message, linear_messages.OpenLinear | msg.StartHidden):
                bank.handle(message)
        residuals = residual_numbers(bank._descent.residuals())
        masked = requests(told, msg.DescendHidden)[0].residuals.reshape(residuals.shape)
        masks.append(naive(minus(residuals, masked)))
        dealt.append(naive(replies(told, msg.DealtProducts)[0].products["shop0"]))
        columns.append(replies(told, msg.MaskedColumns)[0].columns)
    assert not set(masks[0]) & set(masks[1])
    assert not set(dealt[0]) & set(dealt[1])
    assert np.array_equal(columns[0], columns[1])  # the same columns, the same bytes


def test_columns_that_have_changed_have_other_masks() -> None:
    few = msgspec.structs.replace(PLAN, max_iter=1, tol=0.0)
    masked = []
    for seed in (0, 1):
        party: Any = handlers(seed)["shop0"]
        told = play({**handlers(seed), "shop0": party}, few)
        own = from_whole(party._side._columns.numbers)
        masked.append(naive(minus(own, replies(told, msg.MaskedColumns)[0].columns.reshape(own.shape))))
    assert not set(masked[0]) & set(masked[1])


def test_scores_of_several_parties_are_told_as_their_sum() -> None:
    """The label holder's own scores aside; the same sum as without masks."""
    few = msgspec.structs.replace(PLAN, max_iter=1, tol=0.0)
    parties = handlers(others=3)
    told, shape = play(parties, few), (N, 1)
    first = [replies(told, msg.MaskedScores, f"shop{k}")[0] for k in range(3)]
    total = plus(plus(*(reply.scores.reshape(*shape, 2) for reply in first[:2])), first[2].scores.reshape(*shape, 2))
    advance = requests(told, linear_messages.Advance)[0]
    own = replies(told, linear_messages.PartialScores, "bank")[0]
    assert np.array_equal(advance.scores, own.scores + scores_of(total))
    assert np.abs(advance.scores).max() < 100
    for reply in first:
        assert np.abs(scores_of(reply.scores.reshape(*shape, 2))).max() > 1e6  # alone it is noise


def retold(said: Said, **change: Any) -> Said:
    """What a label holder would send that says something else in the first step, and the same in the second one."""
    found: Said = []
    for name, message, reply in said:
        if isinstance(message, msg.OpenDescent) and "penalty" in change:
            message = msgspec.structs.replace(message, **change)
        if isinstance(message, msg.DescendHidden) and "share" in change and not len(message.step):
            share = message.share.copy()
            share[::2] += np.uint64(1 << 62)
            message = msgspec.structs.replace(message, share=share)
            asked = {**message.asked, name: asked_digest(message)}
            message = msgspec.structs.replace(message, asked=asked)
        found.append((name, message, reply))
    return found


@pytest.mark.parametrize("change", [{"penalty": 3.0}, {"share": True}])
def test_scores_after_another_story_have_other_masks(change: dict[str, Any]) -> None:
    """A state folder may be restored from a copy: the label holder must not have the difference of two scores."""
    few = msgspec.structs.replace(PLAN, max_iter=1, tol=0.0)
    told = play(handlers(others=2), few)
    scores = []
    for story in (told, retold(told, **change)):
        party: Any = handlers(others=2)["shop0"]
        answers = [party.handle(message) for name, message, _ in story if name == "shop0"]
        scores.append([reply.scores for reply in answers if isinstance(reply, msg.MaskedScores)])
    one, other = scores
    assert len(one) == len(other) == 2
    for k in range(2):
        apart = scores_of(minus(one[k].reshape(-1, 2), other[k].reshape(-1, 2)))
        assert np.abs(apart).min() > 1  # numbers modulo 2**128; scores themselves are small


def test_no_party_tells_its_own_scores_of_the_training(said: Said) -> None:
    """When all is fitted the label holder could ask each of them; together they tell their sum only."""
    parties = handlers()
    replayed(said, parties)
    for party in ("bank", "shop0"):
        with pytest.raises(RemoteProtocolError, match="HiddenLinearParty does not take it"):
            parties[party].handle(linear_messages.AskScores())


def test_a_party_that_chooses_its_column_reads_labels_from_one_slope() -> None:
    """A limit, not a protection: one slope is a sum of all residuals, and powers of two spell them out."""
    rng, n = np.random.default_rng(5), 40
    y = rng.permutation(np.arange(n) % 2)
    chosen = read_table(np.ldexp(1.0, np.arange(n))[:, None])
    keys: dict[str, Any] = {"job": "job", "shared_secret": b"common to all but the bank".ljust(32)}
    bank = HiddenLinearParty(
        "bank", read_table(rng.normal(size=(n, 2))), target=Target.of_classes(y), entropy=entropy("bank"), **keys
    )
    shop = HiddenLinearParty("shop", chosen, entropy=entropy("shop"), **keys)
    parties = {"bank": bank, "shop": shop, "dealer": ProductDealer("dealer", entropy=entropy("dealer"), **keys)}
    seen: list[int] = []
    slopes = WholeColumns.slopes

    def noted(self: WholeColumns, numbers: np.ndarray) -> Any:
        seen.append(signed(naive(numbers)[0]))
        return slopes(self, numbers)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WholeColumns, "slopes", noted)
        play(parties, msgspec.structs.replace(PLAN, max_iter=1, standardize=False, fit_intercept=False))
    # with no score yet, the residual of a row is 1 / 2n or -1 / 2n
    x = shop._side._columns.numbers[0].tolist()  # type: ignore[union-attr]
    half = round(2**RESIDUAL_BITS / (2 * n))
    left, found = (seen[0] / half + sum(x)) / 2, np.ones(n, int)
    for row in range(n - 1, -1, -1):
        if left > x[row] - x[0] / 2:
            left -= x[row]
            found[row] = 0
    assert np.array_equal(found, y)


# --- what is refused ---


def wrong(said: Said, kind: type[Message], role: str, which: int = 0, **change: Any) -> tuple[int, str, Message]:
    """A message of the run with something else in it, and before which one it is brought."""
    at = [i for i, (name, m, _) in enumerate(said) if name == role and isinstance(m, kind)][which]
    found = msgspec.structs.replace(said[at][1], **change)
    if isinstance(found, msg.DescendHidden) and "asked" not in change:
        found = msgspec.structs.replace(found, asked={role: asked_digest(found)})
    return at, role, found


def test_what_is_wrong_is_refused_and_changes_nothing(said: Said) -> None:
    start = requests(said, msg.StartHidden)[0]
    clear = linear_messages.StartLinear(**{f: getattr(start, f) for f in linear_messages.StartLinear.__struct_fields__})
    step = requests(said, msg.DescendHidden)[0]
    columns = requests(said, msg.TakeMasked)[0].columns["shop0"]
    of_columns = requests(said, msg.DealProducts)[0].of_columns
    opening = requests(said, msg.OpenDealt)[0]
    bad = [
        wrong(said, msg.StartHidden, "bank", task="targets"),
        wrong(said, msg.StartHidden, "bank", columns={"shop0": 0}),
        wrong(said, msg.StartHidden, "bank", columns={"bank": 2}),
        wrong(said, msg.StartHidden, "bank", strength=-1.0),
        wrong(said, msg.OpenDealt, "shop0", parties=("dealer",)),
        wrong(said, msg.OpenDealt, "shop0", parties=("shop0",)),
        wrong(said, msg.OpenDealt, "shop0", holder="shop0"),
        wrong(said, msg.OpenDealt, "dealer", parties=("shop0", "shop0", "dealer")),
        wrong(said, msg.OpenDescent, "shop0", n_scores=0),
        wrong(said, msg.OpenDescent, "shop0", penalty=float("nan")),
        wrong(said, msg.OpenDescent, "shop0", tol=-1.0),
        wrong(said, msg.OpenDescent, "shop0", introductions={}),
        wrong(said, msg.StartProducts, "dealer", n_rows=0),
        wrong(said, msg.StartProducts, "dealer", n_rows=1 << 40),
        wrong(said, msg.StartProducts, "dealer", columns={"mill": 2}),
        wrong(said, msg.AskColumns, "shop0", first=1),
        wrong(said, msg.AskColumns, "shop0", n_columns=3),
        wrong(said, msg.AskColumns, "shop0", n_columns=0),
        wrong(said, msg.TakeMasked, "bank", columns={"shop0": columns[:-1]}),
        wrong(said, msg.TakeMasked, "bank", columns={}),
        wrong(said, msg.TakeMasked, "bank", secret=b"short"),
        wrong(said, msg.DealProducts, "dealer", step=1),
        wrong(said, msg.DealProducts, "dealer", of_columns={**of_columns, "mill": bytes(32)}),
        wrong(said, msg.DealProducts, "dealer", 1, step=0),
        wrong(said, msg.MaskSlopes, "bank", products={}),
        wrong(said, msg.MaskSlopes, "bank", products={"shop0": np.zeros(3, np.uint64)}),
        wrong(said, msg.DescendHidden, "shop0", step=np.zeros(3)),
        wrong(said, msg.DescendHidden, "shop0", residuals=step.residuals[:-1]),
        wrong(said, msg.DescendHidden, "shop0", share=step.share[:-1]),
        wrong(said, msg.DescendHidden, "shop0", asked={}),
        wrong(said, msg.DescendHidden, "shop0", nonce=bytes(32), asked=step.asked),
        wrong(said, msg.DescendOwn, "bank", 1, step=np.zeros(7)),
    ]
    columns_due = wrong(said, msg.AskColumns, "shop0")[0]
    last = len(said) - 1
    bad += [
        (2, "bank", clear),
        (columns_due, "shop0", step),  # before all columns were sent
        (columns_due + 1, "shop0", requests(said, msg.AskColumns)[0]),  # once
        (columns_due, "shop0", opening),
        (columns_due, "shop0", requests(said, msg.OpenDescent)[0]),
        (columns_due, "bank", opening),
        (columns_due, "bank", start),
        (last, "bank", requests(said, msg.TakeMasked)[0]),
        (last, "bank", step),
        (last, "shop0", requests(said, linear_messages.Advance)[0]),
        (last, "shop0", requests(said, msg.MaskSlopes)[0]),
        (last, "dealer", opening),
    ]
    parties, refused = handlers(), 0
    for i, (name, message, reply) in enumerate(said):
        for _, role, other in [one for one in bad if one[0] == i]:
            refused += 1
            with pytest.raises(RemoteProtocolError):
                parties[role].handle(other)
        assert encode(parties[name].handle(message)) == reply
    assert refused == len(bad)


@pytest.mark.parametrize(
    ("role", "kind", "change"),
    [
        ("bank", msg.HiddenResiduals, {"step": np.zeros(5)}),
        ("bank", msg.SlopeShares, None),
        ("dealer", msg.DealtProducts, None),
        ("shop0", msg.MaskedScores, {"scores": np.zeros(3, np.uint64)}),
        ("shop0", msg.MaskedScores, {"products": np.zeros(3, np.uint64)}),
        ("shop0", msg.MaskedColumns, None),
    ],
)
def test_who_answers_with_something_else_is_named(
    role: str, kind: type[Message], change: dict[str, Any] | None
) -> None:
    parties = handlers()

    class Changed:
        def handle(self, message: Message) -> Message:
            reply = parties[role].handle(message)
            if not isinstance(reply, kind):
                return reply
            return msg.MaskedTaken() if change is None else msgspec.structs.replace(reply, **change)

    with pytest.raises(RemoteProtocolError, match=role):
        play({**parties, role: Changed()}, PLAN)


def test_a_party_has_an_identity_or_a_secret_in_common() -> None:
    with pytest.raises(ConfigError, match="read every column"):
        ProductDealer("dealer", entropy=entropy("a"), job="job")


# --- the same weights ---


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("parties", [2, 3, 4])
def test_the_same_classifier(n_classes: int, parties: int) -> None:
    rng = np.random.default_rng(n_classes)
    X = rng.normal(size=(60, 5))
    y = (X @ rng.normal(size=(5, n_classes)) + rng.normal(size=(60, n_classes))).argmax(axis=1)
    opened, hidden = (
        FederatedLogisticRegression(parties=parties, protection=how, tol=1e-8).fit(X, y, np.arange(60) % 3)
        for how in ("open", "hidden")
    )
    assert hidden.n_iter_ == opened.n_iter_
    np.testing.assert_allclose(hidden.coef_, opened.coef_, rtol=0, atol=1e-12)
    np.testing.assert_allclose(hidden.intercept_, opened.intercept_, rtol=0, atol=1e-12)
    in_clear = "the residual of every row"
    assert any(in_clear in row.reveals for row in opened.disclosure_)
    assert not any(in_clear in row.reveals for row in hidden.disclosure_)
    assert {row.receiver for row in hidden.disclosure_} == {f"party-{k + 1}" for k in range(parties)} | {"dealer"}


@pytest.mark.parametrize("standardize", [True, False])
def test_the_same_regression(standardize: bool) -> None:
    """Columns, and so weights, of any size; lengths of directions are added up all the same."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(25, 4)) * [1, 1e6, 1e-6, 1]
    y = X @ [1, 1e-6, 1e6, 0] + 0.1 * rng.normal(size=25)
    opened, hidden = (
        FederatedLinearRegression(parties=3, standardize=standardize, protection=how).fit(X, y)
        for how in ("open", "hidden")
    )
    assert hidden.n_iter_ == opened.n_iter_
    np.testing.assert_allclose(hidden.coef_, opened.coef_, rtol=1e-9)


def test_who_has_all_columns_needs_no_dealer() -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    y = X[:, 0] > 0
    alone = FederatedLogisticRegression(parties={"bank": [0, 1], "shop": []}, protection="hidden").fit(X, y)
    np.testing.assert_allclose(alone.coef_, FederatedLogisticRegression(parties=1).fit(X, y).coef_)
    assert "dealer" not in {row.receiver for row in alone.disclosure_}


def test_a_label_holder_without_columns() -> None:
    X = np.random.default_rng(0).normal(size=(20, 2))
    y = X[:, 0] > 0
    without = FederatedLogisticRegression(parties={"bank": [], "shop": [0, 1]}, protection="hidden").fit(X, y)
    np.testing.assert_allclose(without.coef_, FederatedLogisticRegression(parties=1).fit(X, y).coef_, atol=1e-12)


def test_columns_travel_in_several_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = play(handlers(), PLAN)
    monkeypatch.setattr("woodlot.protocols.linear.linear_train.MOST_AT_ONCE", 1)
    parts = play(handlers(), PLAN)
    assert len(requests(parts, msg.AskColumns)) == 2
    assert encode(requests(parts, msg.TakeMasked)[0]) == encode(requests(whole, msg.TakeMasked)[0])


def test_as_many_columns_as_rows_would_tell_every_residual() -> None:
    X = np.random.default_rng(0).normal(size=(6, 8))
    model = FederatedLogisticRegression(protection="hidden", parties={"a": [0, 1], "b": list(range(2, 8))})
    with pytest.raises(DataError, match="b has 6 columns of 6 rows"):
        model.fit(X, [0, 1] * 3)


def test_a_party_may_not_have_the_dealers_name() -> None:
    model = FederatedLogisticRegression(protection="hidden", parties={"a": [0], "dealer": [1]})
    with pytest.raises(DataError, match="'dealer'"):
        model.fit(np.eye(4)[:, :2], [0, 1, 0, 1])


def test_settings_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="protection"):
        FederatedLogisticRegression(protection="secret").fit(np.eye(4), [0, 1, 0, 1])  # type: ignore[arg-type]
