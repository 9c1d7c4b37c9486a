"""The rule min_cell: no more cells of a column than the node has rows for, in open and in hidden training."""

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
from woodlot.exceptions import DataError, LocalProtocolError
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.hidden import hidden_messages as msg
from woodlot.protocols.hidden.hidden_dealer import layout_of
from woodlot.protocols.hidden.hidden_party import HiddenParty
from woodlot.protocols.hidden.shared_rows import CodeSizes
from woodlot.trees.coarsening import cells_of_codes, first_code, last_code, shifts, value_cells
from woodlot.trees.encoding import encode

SEEDS = st.integers(0, 2**32 - 1)


def mixed_case(n: int = 600, **params: Any) -> HiddenCase:
    """Numbers, missing values and categories at three parties."""
    rng = np.random.default_rng(5)
    x = rng.normal(size=(4, n)).astype(np.float32)
    x[2, rng.random(n) < 0.2] = np.nan
    sport = CategoryColumn(rng.integers(-1, 13, n).astype(np.int32), tuple(f"sport {k:02}" for k in range(13)))
    y = (x[0] + np.nan_to_num(x[2]) + (sport.codes % 3 == 0) + rng.normal(size=n) > 0.5).astype(int)
    tables = {
        "bank": Table(("age", "income"), (NumericColumn(x[0]), NumericColumn(x[1])), n),
        "shop": Table(("visits",), (NumericColumn(x[2]),), n),
        "club": Table(("points", "sport"), (NumericColumn(x[3]), sport), n),
    }
    usual = {"min_cell": 20, "min_samples_leaf": 5, "bootstrap": False, "max_depth": 6}
    return HiddenCase(
        tables, Target.of_classes(y, rng.integers(1, 2**20, n).astype(float)), plan_of(**usual | params), "bank"
    )


# --- the rule ---


@settings(deadline=None)
@given(st.integers(0, 70_000), st.integers(0, 1), st.integers(1, 50), st.integers(0, 40_000))
def test_the_shift_is_the_smallest_that_is_enough(n_codes: int, missing: int, min_cell: int, more: int) -> None:
    n_rows = 2 * min_cell + more

    def cells(shift: int) -> int:
        return int(value_cells(np.array([n_codes]), np.array([shift]))[0]) + missing

    arrays = np.array([n_rows]), np.array([n_codes]), np.array([missing], np.uint8)
    shift = int(shifts(*arrays, min_cell)[0])
    assert cells(shift) <= n_rows // min_cell
    assert shift == 0 or cells(shift - 1) > n_rows // min_cell
    assert shifts(*arrays, 0).tolist() == [0]


@pytest.mark.parametrize("n_codes", [1, 2, 5, 31, 32, 33, 255])
def test_missing_values_stay_apart_however_coarse_the_cells_are(n_codes: int) -> None:
    sizes = CodeSizes(np.array([n_codes]), np.array([1], np.uint8))
    for s in range(int(sizes.bits[0])):
        shift = np.array([s])
        codes = np.append(np.arange(n_codes), sizes.missing) >> s
        cells = sizes.cells_of(codes, np.array([n_codes + 1]), shift, "server")
        np.testing.assert_array_equal(cells, cells_of_codes(n_codes, s))
        assert int(cells.max()) + 1 == int(sizes.cells(shift)[0])
        for cell in range(int(sizes.values(shift)[0])):
            inside = np.flatnonzero(cells[:-1] == cell)
            bounds = first_code(np.array([cell]), shift), last_code(np.array([cell]), sizes.n_codes, shift)
            assert (inside[0], inside[-1]) == (int(bounds[0][0]), int(bounds[1][0]))


def test_coarser_columns_have_the_cells_of_the_rule() -> None:
    for table in mixed_case().tables.values():
        base = encode(table, max_bins=32, n_jobs=1)
        levels = base.levels
        for column in range(base.n_columns, levels.table.n_columns):
            f, s = int(levels.source[column]), int(levels.shift[column])
            expected = cells_of_codes(int(base.n_codes[f]), s)[base.fine[f]]
            np.testing.assert_array_equal(levels.table.fine[column], expected)
            assert int(levels.table.n_codes[column]) + int(base.has_missing[f]) >= 2


# --- the same forest ---


@settings(deadline=None, max_examples=6)
@given(SEEDS, st.sampled_from(["classes", "categories", "targets"]))
@pytest.mark.slow
def test_both_trainings_grow_the_same_forest(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    case = random_case(rng, kind)
    case = replace(case, plan=replace(case.plan, min_cell=int(rng.integers(1, 12)), max_bins=32))
    within = float(np.ptp(case.target.values)) * 2.0**-24 if kind == "targets" else 0.0
    assert_same(case.grow_open(), case.grow_hidden(), answers_within=within)


@pytest.mark.slow
@pytest.mark.parametrize("min_cell", [10, 20, 60])
def test_numbers_missing_values_and_categories_together(min_cell: int) -> None:
    case = mixed_case(min_cell=min_cell)
    opened = case.grow_open()
    assert_same(opened, case.grow_hidden())
    assert len(opened[0].structure.right) > 3
    exact = replace(case, plan=replace(case.plan, min_cell=0)).grow_open()
    assert len(exact[0].structure.right) > len(opened[0].structure.right)


def test_a_threshold_lies_between_cells() -> None:
    """In 100 rows of 40 bins and cells of 25 rows there are four cells, and three thresholds."""
    values = np.arange(100, dtype=np.float32)
    tables = {"a": Table(("x",), (NumericColumn(values),), 100), "b": Table((), (), 100)}
    for boundary in range(5, 96, 7):
        target = Target.of_classes((values >= boundary).astype(int))
        plan = plan_of(min_cell=25, max_bins=40, max_depth=1, bootstrap=False, n_estimators=1)
        case = HiddenCase(tables, target, plan, "a")
        opened, hidden = case.grow_open(), case.grow_hidden()
        assert_same(opened, hidden)
        codes = encode(tables["a"], max_bins=40, n_jobs=1)
        threshold = float(opened[1]["a"].splits.threshold[0])
        last = np.flatnonzero(codes.highest[1:] < threshold)[-1]
        assert (last + 1) % 16 == 0


# --- what is opened ---


class Opened:
    """What the servers see of pairs and splits, message by message.

    Attributes
    ----------
    pairs : list of (rows, cells)
        Of every opened histogram, to both servers: rows of the node, and different cells that its rows are in.
    shares : list of (rows, values)
        Of every split: rows of the node, and different values of the second server's shares.
    sums : list of (rows, cells)
        Of every message with sums, to the leader: the most cells by the rows of its nodes, and the cells it has.
    """

    def __init__(self, min_cell: int) -> None:
        self.pairs: list[tuple[int, int]] = []
        self.shares: list[tuple[int, int]] = []
        self.sums: list[tuple[int, int]] = []
        self._min_cell = min_cell
        self._sizes = np.empty(0, np.int64)
        self._whole_rows = False
        self._bytes = 0

    def __call__(self, sender: str, receiver: str, message: Message) -> None:
        if isinstance(message, msg.StartServer):
            layout = layout_of(message)
            self._bytes = int(layout.used[: layout.pair_words].sum())
        elif isinstance(message, msg.DealShuffle):
            self._sizes, self._whole_rows = message.sizes.astype(np.int64), message.whole_rows
        elif isinstance(message, msg.CodeShares) and self._whole_rows:
            self.shares += counted(message.codes, self._sizes)
        elif isinstance(message, msg.OpenBins):
            self.pairs += counted(message.codes, self._sizes)
        elif isinstance(message, msg.ServerSums):
            self.sums.append((int((self._sizes // self._min_cell).sum()), len(message.sums) // self._bytes))


def counted(codes: Any, sizes: Any) -> list[tuple[int, int]]:
    assert len(codes) == sizes.sum()
    return [(len(part), len(np.unique(part))) for part in np.split(codes, np.cumsum(sizes)[:-1])]


@pytest.mark.parametrize("params", [{}, {"bootstrap": True}, {"feature_sampling": "tree", "max_features": 3}])
@pytest.mark.parametrize("min_cell", [10, 20])
def test_no_more_cells_are_opened_than_rows_allow(params: dict[str, Any], min_cell: int) -> None:
    case = mixed_case(min_cell=min_cell, **params)
    if params.get("bootstrap"):
        case = replace(case, target=Target.of_classes(case.target.numbers))
    opened, without = Opened(min_cell), Opened(min_cell)
    case.grow_hidden(observer=opened)
    assert len(opened.pairs) > 20
    assert all(2 * min_cell <= rows and cells <= rows // min_cell for rows, cells in opened.pairs)
    assert all(cells <= most for most, cells in opened.sums)
    # shares are random in the bits that they have: the cells rounded up to a power of two, and a bit for missing values
    assert len(opened.shares) > 3
    assert all(values <= 4 * (rows // min_cell) for rows, values in opened.shares)
    replace(case, plan=replace(case.plan, min_cell=0)).grow_hidden(observer=without)
    assert any(cells > rows // min_cell for rows, cells in without.pairs)
    assert any(values > 4 * (rows // min_cell) for rows, values in without.shares)


def test_a_split_opens_no_more_than_its_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the leader puts together from both shares, of histograms and of splits."""
    seen: list[tuple[int, int]] = []
    plain = CodeSizes.cells_of

    def note(self: CodeSizes, codes: Any, size: Any, shift: Any, sender: str) -> Any:
        seen.extend(counted(codes, size))
        return plain(self, codes, size, shift, sender)

    monkeypatch.setattr(CodeSizes, "cells_of", note)
    opened = Opened(20)
    mixed_case().grow_hidden(observer=opened)
    assert len(seen) == len(opened.pairs) + len(opened.shares)
    assert all(cells <= rows // 20 for rows, cells in seen)


class Asking:
    """A second server that is asked for more than the rule allows."""

    def __init__(self, party: HiddenParty, change: Any) -> None:
        self._party, self._change = party, change

    def handle(self, message: Message) -> Message:
        return self._party.handle(self._change(message))


def changed(message: Message, **fields: Any) -> Any:
    return type(message)(**{f: getattr(message, f) for f in message.__struct_fields__} | fields)


def finer(message: Message) -> Message:
    if isinstance(message, msg.AskPairs) and message.shift.any():
        return changed(message, shift=np.where(message.shift > 0, message.shift - 1, 0).astype(np.uint8))
    return message


def untried(message: Message) -> Message:
    return changed(message, slot=(message.slot + 1) % 5) if isinstance(message, msg.AskRows) else message


def one_sided(message: Message) -> Message:
    if isinstance(message, msg.AskPairs) and len(message.left):
        return changed(message, left=np.full_like(message.left, 255))
    return message


def twice(message: Message) -> Message:
    if isinstance(message, msg.AskPairs):
        return changed(message, node=np.zeros_like(message.node), slot=np.zeros_like(message.slot))
    return message


@pytest.mark.parametrize(
    ("change", "refusal", "params"),
    [
        (finer, "fewer than 20 rows on average", {}),
        (untried, "not tried", {"max_features": 1}),
        (one_sided, "fewer than 5 rows", {}),
        (twice, "twice", {}),
    ],
)
def test_the_second_server_refuses(change: Any, refusal: str, params: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = mixed_case(**params)
    handlers = case.handlers()
    handlers["shop"] = Asking(handlers["shop"], change)
    monkeypatch.setattr(HiddenCase, "handlers", lambda self, secret="": handlers)
    with pytest.raises(LocalProtocolError, match=refusal):
        case.grow_hidden()


def test_plans_name_what_is_missing() -> None:
    with pytest.raises(DataError, match="max_bins=32"):
        plan_of(min_cell=20, max_bins=None)
    with pytest.raises(DataError, match="positive"):
        plan_of(min_cell=-1)
    for n_rows, cell in ((50, 20), (300, 50), (899, 149), (900, 150), (30_000, 150)):
        assert plan_of(min_cell="auto").cell(n_rows) == cell
    assert plan_of(min_cell="auto").rules(1000, 1000).min_samples_split == 300
    assert plan_of(min_cell=20).rules(1000, 1000).min_samples_split == 40
