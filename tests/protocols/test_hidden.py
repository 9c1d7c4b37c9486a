"""Hidden training: the forest of the open one, and nothing but counts is opened."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

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
from woodlot.protocols.hidden.hidden_dealer import ShuffleDealer
from woodlot.protocols.hidden.shared_rows import RecordLayout, Segments, code_bits, from_wire, to_wire
from woodlot.runtime.codec import encode

SEEDS = st.integers(0, 2**32 - 1)


@settings(deadline=None, max_examples=50)
@given(SEEDS)
def test_classes_grow_the_open_forest(seed: int) -> None:
    case = random_case(np.random.default_rng(seed), "classes")
    assert_same(case.grow_open(), case.grow_hidden())


@settings(deadline=None, max_examples=30)
@given(SEEDS)
def test_categories_grow_the_open_forest(seed: int) -> None:
    case = random_case(np.random.default_rng(seed), "categories")
    assert_same(case.grow_open(), case.grow_hidden())


@settings(deadline=None, max_examples=50)
@given(SEEDS)
def test_targets_grow_the_open_forest(seed: int) -> None:
    """Splits are those of the open training; a leaf answers the mean of targets in fixed point, of 24 bits at least."""
    case = random_case(np.random.default_rng(seed), "targets")
    span = float(np.ptp(case.target.values))
    assert_same(case.grow_open(), case.grow_hidden(), answers_within=span * 2.0**-24)


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
    secretive = (msg.ColumnShares, msg.MaskedRecords, msg.PassRecords, msg.DealtShuffle, msg.DealtDraws)
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
        first, second = (
            from_wire(to_wire(half, used), segments.n, used, "dealer") for half in segments.deal(leader, server)
        )
        passed = segments.carry_first(leader, a, segments.hide(server, b), first)
        new_b = segments.carry_second(server, passed)
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
    with pytest.raises(DataError, match="labels='shared'"):
        plan_of(protection="hidden", labels="encrypted")
    with pytest.raises(DataError, match="merge rare categories"):
        code_bits(np.array([3, 70_000]))


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
        dealer.handle(msg.DealDraws(first_tree=0, n_trees=1))
    with pytest.raises(RemoteProtocolError, match="ask for fewer"):
        dealer.handle(msg.DealDraws(first_tree=2, n_trees=10**9))
    with pytest.raises(RemoteProtocolError, match="ask for fewer"):
        dealer.handle(msg.DealShuffle(sizes=np.full(9, 2**32 - 1, np.uint32), whole_rows=True))


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
