"""Hidden training: the forest of the open one, and nothing but counts is opened."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hidden_cases import HiddenCase, assert_same, plan_of, random_case
from hypothesis import given, settings
from hypothesis import strategies as st

from woodlot.data.columns import CategoryColumn, NumericColumn
from woodlot.data.tables import Table
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.hidden import hidden_messages as msg
from woodlot.protocols.hidden import hidden_train
from woodlot.protocols.hidden.hidden_dealer import ShuffleDealer
from woodlot.protocols.hidden.hidden_train import HiddenLabels
from woodlot.protocols.hidden.hidden_trees import read_sums
from woodlot.protocols.hidden.shared_rows import (
    CodeSizes,
    RecordLayout,
    Segments,
    code_bits,
    column_shares,
    from_wire,
    to_wire,
)
from woodlot.runtime.codec import encode

SEEDS = st.integers(0, 2**32 - 1)


@settings(deadline=None, max_examples=12)
@given(SEEDS)
def test_classes_grow_the_open_forest(seed: int) -> None:
    case = random_case(np.random.default_rng(seed), "classes")
    assert_same(case.grow_open(), case.grow_hidden())


@settings(deadline=None, max_examples=12)
@given(SEEDS)
def test_categories_grow_the_open_forest(seed: int) -> None:
    case = random_case(np.random.default_rng(seed), "categories")
    assert_same(case.grow_open(), case.grow_hidden())


def assert_targets_grow(case: HiddenCase) -> None:
    """Splits are those of the open training; a leaf answers the mean of targets in fixed point, of 24 bits at least."""
    span = float(np.ptp(case.target.values))
    assert_same(case.grow_open(), case.grow_hidden(), answers_within=span * 2.0**-24)


@settings(deadline=None, max_examples=6)
@given(SEEDS)
def test_targets_grow_the_open_forest(seed: int) -> None:
    assert_targets_grow(random_case(np.random.default_rng(seed), "targets"))


@pytest.mark.slow
@settings(deadline=None, max_examples=200)
@given(SEEDS, st.sampled_from(["classes", "categories", "targets"]))
def test_many_more_tables_grow_the_open_forest(seed: int, kind: str) -> None:
    case = random_case(np.random.default_rng(seed), kind)
    if kind == "targets":
        assert_targets_grow(case)
    else:
        assert_same(case.grow_open(), case.grow_hidden())


def small_case(n: int = 60, **params: Any) -> HiddenCase:
    rng = np.random.default_rng(1)
    numbers = [NumericColumn(rng.normal(size=n).astype(np.float32)) for _ in range(4)]
    y = (numbers[0].values + numbers[2].values > 0).astype(int)
    tables = {
        "bank": Table(("age", "income"), tuple(numbers[:2]), n),
        "shop": Table(("visits",), (numbers[2],), n),
        "club": Table(("sport",), (numbers[3],), n),
    }
    return HiddenCase(tables, Target.of_classes(y), plan_of(**params), "bank")


def recording(case: HiddenCase, secret: str = "") -> list[tuple[str, str, Message]]:
    seen: list[tuple[str, str, Message]] = []
    case.grow_hidden(secret, lambda *told: seen.append(told))
    return seen


def test_a_repeated_job_sends_the_same_bytes() -> None:
    first, again = (sorted((s, r, encode(m)) for s, r, m in recording(small_case())) for _ in range(2))
    assert first == again


def test_other_secrets_send_other_shares_and_grow_the_same_forest() -> None:
    case = small_case()
    assert_same(case.grow_hidden("one"), case.grow_hidden("two"))
    first, other = ({(s, r, encode(m)) for s, r, m in recording(case, secret)} for secret in ("one", "two"))
    secretive = (
        msg.ColumnShares,
        msg.MaskedRecords,
        msg.PassRecords,
        msg.DealtShuffle,
        msg.DealtSecond,
        msg.DealtDraws,
    )
    names = {kind.__name__ for kind in secretive}
    repeated = {data for _, _, data in first & other if any(name.encode() in data[:200] for name in names)}
    assert not repeated


def test_parties_that_do_not_serve_are_asked_at_the_beginning_and_the_end_only() -> None:
    told = [type(m).__name__ for s, r, m in recording(small_case()) if "club" in (s, r)]
    assert told == ["OpenHidden", "HiddenSummary", "ShareColumns", "ColumnShares", "KeepSplits", "SplitsKept"]


def test_what_the_second_server_hears_of_labels_is_uniform() -> None:
    """Masked labels of one class have every value about equally often: 30 of 60 rows, 5 sigma."""
    counts = np.zeros((2, 2))
    case = small_case()
    y = case.target.numbers
    for k in range(20):
        start = next(m for _, _, m in recording(case, str(k)) if isinstance(m, msg.StartServer))
        assert start.masked is not None
        np.add.at(counts, (y, start.masked.astype(int)), 1)
    share = counts[:, 1] / counts.sum(axis=1)
    assert (np.abs(share - 0.5) < 5 * 0.5 / np.sqrt(counts.sum(axis=1))).all()


def test_no_order_of_rows_is_the_same_twice() -> None:
    """The opened bins of a column at the roots stand in another order in each tree, though the rows are the same."""
    case = small_case(bootstrap=False, n_estimators=2, max_depth=1, max_features=None, max_bins=8)
    opened = next(m.codes for _, _, m in recording(case) if isinstance(m, msg.OpenBins)).reshape(2, 4, 60)
    first, second = (sorted(tree.tolist()) for tree in np.sort(opened, axis=2))
    assert first == second
    assert not any(np.array_equal(a, b) for a in opened[0] for b in opened[1])


# --- the shuffle ---


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=6), st.integers(0, 12), SEEDS)
def test_a_shuffle_permutes_records_inside_their_segments(sizes: list[int], n_classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = RecordLayout(n_classes, width=11, bits=6, n_columns=int(rng.integers(1, 30)))
    for whole_rows in (True, False):
        xor, used = layout.of_records(whole_rows=whole_rows)
        segments = Segments(3, np.array(sizes), xor)
        clear, b = rng.integers(0, 2**63, (2, segments.n, len(xor)), np.uint64)
        a = ((clear & ~xor) - (b & ~xor)) | ((clear ^ b) & xor)
        leader, server = bytes(32), bytes([1]) * 32
        half = segments.second_half(b"passed")
        first, second = (
            from_wire(to_wire(dealt, used), segments.n, used, "dealer")
            for dealt in (segments.deal_first(leader, server), segments.deal_second(leader, server, half))
        )
        passed = segments.carry_first(leader, a, segments.hide(server, b), first)
        new_b = segments.carry_second(server, passed, half)
        opened = ((second & ~xor) + (new_b & ~xor)) | ((second ^ new_b) & xor)
        mask = np.array([2 ** (8 * int(n)) - 1 for n in used], np.uint64)
        for s, e in zip(segments.start, segments.end, strict=True):
            assert sorted(map(tuple, (opened & mask)[s:e].tolist())) == sorted(map(tuple, (clear & mask)[s:e].tolist()))


def test_every_order_of_a_segment_occurs() -> None:
    layout = RecordLayout(2, width=8, bits=4, n_columns=2)
    orders = set()
    for step in range(200):
        orders.add(tuple(Segments(step, np.array([3]), layout.pair_xor).order(bytes(32), "x").tolist()))
    assert len(orders) == 6


def test_streams_are_bound_to_step_and_lengths() -> None:
    layout = RecordLayout(2, width=8, bits=4, n_columns=2)
    ways = [(0, [2, 2]), (1, [2, 2]), (0, [1, 3]), (0, [4])]
    streams = {Segments(step, np.array(sizes), layout.pair_xor).mask(bytes(32), "m").tobytes() for step, sizes in ways}
    assert len(streams) == len(ways)


# --- what is refused ---


def test_refusals_name_the_remedy() -> None:
    weighted = replace(small_case(), target=Target.of_classes(np.arange(60) % 2, np.arange(60.0)))
    with pytest.raises(DataError, match="bootstrap=False"):
        weighted.grow_hidden()
    with pytest.raises(DataError, match="oob_score=False"):
        replace(small_case(), plan=plan_of(out_of_bag="soft")).grow_hidden()
    with pytest.raises(DataError, match="max_bins=32"):
        plan_of(protection="hidden", max_bins=None)
    with pytest.raises(DataError, match="merge rare categories"):
        code_bits(CodeSizes(np.array([3, 70_000]), np.zeros(2, np.uint8)))


def test_a_column_of_many_categories_needs_wide_codes() -> None:
    codes = np.arange(600) % 300
    column = CategoryColumn(codes.astype(np.int32), tuple(f"c{k:03}" for k in range(300)))
    number = NumericColumn((np.arange(600) % 7).astype(np.float32))
    target = Target.of_values(((codes % 3 == 0) * 5 + number.values).astype(float))
    tables = {"a": Table(("n",), (number,), 600), "b": Table(("c",), (column,), 600)}
    case = HiddenCase(tables, target, plan_of(task="targets", n_estimators=1, max_depth=3, bootstrap=False), "a")
    assert_same(case.grow_open(), case.grow_hidden(), answers_within=1e-9)


def test_the_floor_of_a_leaf() -> None:
    assert plan_of(protection="hidden").rules(1000, 1000).min_samples_leaf == 20
    assert plan_of(protection="hidden", min_samples_leaf=0.05).rules(1000, 1000).min_samples_leaf == 50
    assert plan_of().rules(1000, 1000).min_samples_leaf == 1


def test_a_dealer_draws_each_tree_once_and_nothing_without_end() -> None:
    case = small_case()
    dealer: ShuffleDealer = case.handlers()["dealer"]
    for sender, receiver, message in recording(case):
        if receiver == "dealer" and isinstance(message, msg.OpenHidden | msg.StartDealer | msg.DealDraws):
            dealer.handle(message)
        assert sender != "shop" or receiver != "dealer"
    with pytest.raises(RemoteProtocolError, match="next trees"):
        dealer.handle(msg.DealDraws(first_tree=0, n_trees=1, bound=b""))
    with pytest.raises(RemoteProtocolError, match="ask for fewer"):
        dealer.handle(msg.DealDraws(first_tree=2, n_trees=10**9, bound=b""))
    with pytest.raises(RemoteProtocolError, match="ask for fewer"):
        dealer.handle(msg.DealShuffle(sizes=np.full(9, 2**32 - 1, np.uint32), whole_rows=True, bound=b""))


class Lying:
    """A second server whose sums, or bins, are wrong."""

    def __init__(self, party: Any, kind: type[Message], field: str) -> None:
        self._party, self._kind, self._field = party, kind, field

    def handle(self, message: Message) -> Message:
        reply: Message = self._party.handle(message)
        if isinstance(reply, self._kind):
            wrong = np.array(getattr(reply, self._field))
            wrong[1] ^= 0x3F
            return type(reply)(**{f: getattr(reply, f) for f in reply.__struct_fields__} | {self._field: wrong})
        return reply


@pytest.mark.parametrize("kind", [msg.ServerSums, msg.ServerTotals])
def test_impossible_sums_are_found_out(kind: type[Message], monkeypatch: pytest.MonkeyPatch) -> None:
    case = small_case(max_bins=32)
    handlers = case.handlers()
    handlers["shop"] = Lying(handlers["shop"], kind, "sums")
    monkeypatch.setattr(HiddenCase, "handlers", lambda self, secret="": handlers)
    with pytest.raises(RemoteProtocolError, match="sums"):
        case.grow_hidden()


def test_a_label_holder_that_names_other_bins_reads_values_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit, not a protection: a record alone in a bin opens its target, and a target names its row."""
    rng, n = np.random.default_rng(2), 80
    column = NumericColumn(rng.normal(size=n).astype(np.float32))
    target = Target.of_values(rng.normal(size=n))
    tables = {"bank": Table((), (), n), "shop": Table(("visits",), (column,), n)}
    plan = plan_of(task="targets", n_estimators=1, max_depth=1, bootstrap=False, max_bins=32, min_cell=2)
    real, true, sums, labels = CodeSizes.cells_of, list[Any](), list[Any](), list[Any]()

    def named(self: CodeSizes, codes: Any, size: Any, shift: Any, sender: str) -> Any:
        cells = real(self, codes, size, shift, sender)
        true.append(cells)
        if len(true) > 1:  # where rows go, not what is opened
            return cells
        alone = int(self.cells(shift)[0]) - 1
        return np.where(np.arange(n) < alone, np.arange(n), alone).astype(cells.dtype)

    def opened(*args: Any) -> Any:
        sums.append(read_sums(*args))
        return sums[-1]

    def encoded(*args: Any) -> Any:
        labels.append(labels_of(*args))
        return labels[-1]

    labels_of = HiddenLabels.of
    monkeypatch.setattr(CodeSizes, "cells_of", named)
    monkeypatch.setattr(hidden_train, "read_sums", opened)
    monkeypatch.setattr(HiddenLabels, "of", encoded)
    with suppress(RemoteProtocolError):  # the rest of the training comes to nothing
        HiddenCase(tables, target, plan, "bank").grow_hidden()
    cells, (told,) = true[0], [one for one in sums if len(one.rows) > 2]
    row_of = {number: row for row, number in enumerate(labels[0].numbers.tolist())}
    alone = np.flatnonzero(told.rows == 1)
    assert len(alone) > 10
    rows = [row_of[int(told.sums[record])] for record in alone]
    values = column.values[rows]
    for low, high in pairwise(np.unique(cells[alone])):
        assert values[cells[alone] == low].max() <= values[cells[alone] == high].min()


# --- random numbers are for one content ---


def test_columns_are_masked_otherwise_for_codes_of_other_length() -> None:
    """A label holder that asks a restored party for longer codes must not have differences of values."""
    narrow, wide = (column_shares(bytes(32), "shop", 1, 64, bits) for bits in (8, 16))
    assert not np.array_equal(narrow[0, ::2], (wide[0, :32] & 0xFF).astype(np.uint8))


def told_to(case: HiddenCase, receiver: str) -> list[Message]:
    return [m for _, r, m in recording(case) if r == receiver]


def test_a_second_server_hides_other_contents_under_other_masks() -> None:
    """Two copies of the server, as if its state had been restored, are asked for other columns of the same rows."""
    case = small_case(bootstrap=False, max_bins=8)
    asked = told_to(case, "shop")
    at = next(k for k, m in enumerate(asked) if isinstance(m, msg.AskPairs))
    pairs = asked[at]
    assert isinstance(pairs, msg.AskPairs)
    other = msgspec.structs.replace(pairs, slot=pairs.slot[::-1].copy())
    again = msgspec.structs.replace(pairs, bound=bytes(32))
    hidden = []
    for question in (pairs, pairs, other, again):
        server = case.handlers()["shop"]
        for message in asked[:at]:
            server.handle(message)
        hidden.append(server.handle(question).records)
    assert np.array_equal(hidden[0], hidden[1])
    for reply in hidden[2:]:  # under the same mask equal shares, of which there are many, would look equal
        assert (reply == hidden[0]).mean() < 0.02


def test_a_second_server_opens_no_other_records_in_the_same_order() -> None:
    """Whoever could have two contents put into one unknown order would learn the order."""
    case = small_case(bootstrap=False, max_bins=8)
    asked = told_to(case, "shop")
    at = next(k for k, m in enumerate(asked) if isinstance(m, msg.PassRecords))
    passed = asked[at]
    assert isinstance(passed, msg.PassRecords)
    changed = np.array(passed.records)
    changed[0] ^= 1
    opened = []
    for question in (passed, msgspec.structs.replace(passed, records=changed)):
        server = case.handlers()["shop"]
        for message in asked[:at]:
            server.handle(message)
        opened.append(server.handle(question).codes)
    assert (opened[0] != opened[1]).mean() > 0.5  # in the same order, under the same masks, one differs


@pytest.mark.parametrize("kind", [msg.DealShuffle, msg.DealSecond, msg.DealDraws])
def test_a_dealer_gives_other_numbers_for_another_story(kind: type[Message]) -> None:
    case = small_case(max_bins=8)
    asked = told_to(case, "dealer")
    at = next(k for k, m in enumerate(asked) if isinstance(m, kind))
    stories = [
        (asked[:at], asked[at]),
        (asked[:at], asked[at]),
        (asked[:at], msgspec.structs.replace(asked[at], bound=bytes(32))),
        ([_with_salt(m) for m in asked[:at]], asked[at]),
    ]
    dealt = []
    for before, question in stories:
        dealer = case.handlers()["dealer"]
        for message in before:
            dealer.handle(message)
        reply = dealer.handle(question)
        dealt.append(np.concatenate([getattr(reply, name).view(np.uint8) for name in reply.__struct_fields__]))
    assert np.array_equal(dealt[0], dealt[1])
    for other in dealt[2:]:
        assert (other == dealt[0]).mean() < 0.02


def _with_salt(message: Message) -> Message:
    return msgspec.structs.replace(message, salt=bytes(32)) if isinstance(message, msg.StartDealer) else message
