"""The lossless forest as a protocol: the forest of the pooled rows, what travels, who may drop out, what is refused."""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from trees import naive_splits
from wire_search import captured, floats, found
from woodlot.data.columns import NumericColumn
from woodlot.data.tables import Table, read_table
from woodlot.exceptions import ConfigError, DataError, PolicyError, RemoteProtocolError
from woodlot.protocols.core import bits
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows import row_messages as msg
from woodlot.protocols.rows.lossless import LosslessClient, LosslessPlan, lossless_forest, lossless_messages
from woodlot.protocols.rows.lossless.bins import asking
from woodlot.protocols.rows.lossless.lossless_plan import true_weights
from woodlot.protocols.rows.lossless.lossless_trees import Growing
from woodlot.protocols.rows.schema import agree_on_schema
from woodlot.protocols.sums import SumClient, open_sums, sum_messages, sum_round
from woodlot.runtime import codec
from woodlot.runtime.audit import Cost, Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.cells import Cells
from woodlot.trees.sampling import derive_seed, feature_key

SECRET = bytes(range(32))
ROWS = 120


def plan(**changes: Any) -> LosslessPlan:
    known: dict[str, Any] = {
        "task": "classes",
        "n_estimators": 6,
        "criterion": "gini",
        "max_depth": None,
        "min_samples_split": 2,
        "min_samples_leaf": 1,
        "max_features": "sqrt",
        "bootstrap": True,
        "max_samples": None,
        "max_bins": 16,
        "seed": 3,
    }
    if changes.get("task") == "targets":
        known["criterion"] = "squared_error"
    return LosslessPlan(**(known | changes))


def frame(n: int = ROWS) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Numbers with many values and with few, missing ones, categories; classes and targets."""
    rng = np.random.default_rng(n)
    X = pd.DataFrame(rng.normal(size=(n, 3)), columns=["age", "income", "visits"])
    X["children"] = rng.integers(0, 4, n).astype(float)
    X.loc[rng.random(n) < 0.15, "income"] = np.nan
    X["town"] = rng.choice(np.array(["Aarau", "Brugg", "Chur", None]), n)
    signal = X["age"] + X["visits"] * X["income"].fillna(2) + (X["town"] == "Chur") + X["children"] / 2
    signal = (signal + rng.normal(size=n) * 0.3).to_numpy()
    return X, np.digitize(signal, [-0.4, 0.8, 2.0]), signal


FRAME, CLASSES, TARGETS = frame()


def clients_of(
    dealt: np.ndarray,
    a_plan: LosslessPlan,
    X: pd.DataFrame = FRAME,
    y: Any = None,
    weights: Any = None,
    kind: type[LosslessClient] = LosslessClient,
) -> dict[str, Any]:
    """One client for each number up to the largest; some may have no rows."""
    regression = a_plan.task == "targets"
    y = (TARGETS if regression else CLASSES) if y is None else y
    clients = {}
    for k in range(int(dealt.max()) + 1):
        mine = dealt == k
        target = Target.of_values(y[mine]) if regression else Target.of_classes(y[mine])
        target = replace(target, weights=None if weights is None else weights[mine])
        sums = SumClient(
            f"client-{k}",
            job="test",
            entropy=lambda purpose: SECRET,
            shared_secret=SECRET if a_plan.sums == "secure" else None,
            mode=a_plan.sums,
            allow_two=a_plan.allow_two,
            quorum=a_plan.needed,
        )
        clients[f"client-{k}"] = kind(f"client-{k}", read_table(X[mine]), target, sums=sums, plan=a_plan)
    return clients


def run_on(clients: Mapping[str, Any], a_plan: LosslessPlan) -> tuple[Any, Cost]:
    ledger = Ledger()
    with InProcessDriver(clients, ledger=ledger) as driver:
        parts = run(lossless_forest(a_plan, tuple(clients)), driver, ledger=ledger)
    return parts, ledger.account().cost


def grow(dealt: np.ndarray, a_plan: LosslessPlan, **data: Any) -> Any:
    return run_on(clients_of(dealt, a_plan, **data), a_plan)[0]


def arrays(parts: Any) -> dict[str, np.ndarray]:
    forest, part = parts
    whole = {"structure": ("offset", "right"), "leaves": ("weight", "start", "output", "value")}
    found = {f"{of}.{name}": getattr(getattr(forest, of), name) for of, names in whole.items() for name in names}
    names = ("feature", "threshold", "missing_left", "set_start", "sets")
    return found | {"gain": forest.gain} | {name: getattr(part.splits, name) for name in names}


def assert_same(one: Any, other: Any) -> None:
    for name, array in arrays(one).items():
        np.testing.assert_array_equal(array, arrays(other)[name], err_msg=name)


ALONE = np.zeros(ROWS, int)
THREE = np.arange(ROWS) % 3
SETTINGS: list[dict[str, Any]] = [
    {},
    {"criterion": "entropy", "min_samples_leaf": 3},
    {"bootstrap": False, "max_features": None, "max_depth": 4},
    {"max_samples": 0.3, "max_bins": 300, "max_features": 1},
    {"task": "targets"},
    {"task": "targets", "min_samples_split": 8, "max_features": 1.0},
    {"task": "targets", "bootstrap": False, "bins": (("age", (-1.0, 0.0, 0.5)), ("visits", ()))},
]


@functools.cache
def pooled(number: int) -> Any:
    return grow(ALONE, plan(**SETTINGS[number], sums="plain"))


# --- the forest of the pooled rows ---


@pytest.mark.parametrize("number", range(len(SETTINGS)))
@settings(max_examples=2, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_any_dealing_gives_the_forest_of_the_pooled_rows(number: int, seed: int) -> None:
    """One, three and seven clients, some perhaps without rows; secure and plain sums; rows in any order."""
    rng, some, alone = np.random.default_rng(seed), SETTINGS[number], pooled(number)
    assert alone[0].structure.n_nodes > 50
    for n_clients, mode in ((3, "secure"), (7, "plain"), (7, "secure")):
        dealt = rng.choice(n_clients, ROWS, p=rng.dirichlet(np.full(n_clients, 0.7)))
        dealt[0] = n_clients - 1
        order = rng.permutation(ROWS)
        y = TARGETS if some.get("task") == "targets" else CLASSES
        shuffled = grow(dealt, plan(**some, sums=mode), X=FRAME.iloc[order], y=y[order])
        assert_same(alone, shuffled)


def test_trees_are_not_all_the_same_and_a_seed_changes_them() -> None:
    forest, part = grow(THREE, plan())
    ends = forest.structure.offset.tolist()
    roots = {(part.splits.feature[part.splits.node == a].item(), b - a) for a, b in pairwise(ends)}
    assert len(roots) > 3
    assert grow(THREE, plan(seed=4))[0].structure.n_nodes != forest.structure.n_nodes


@pytest.mark.parametrize("words", [1, 40, 1000])
def test_small_messages_give_the_same_forest(words: int) -> None:
    for task in ("classes", "targets"):
        whole, small = (plan(task=task, max_depth=4, words_at_once=w) for w in (1 << 20, words))
        assert_same(grow(THREE, whole), grow(THREE, small))


def test_the_order_of_columns_at_clients_changes_nothing() -> None:
    clients = clients_of(THREE, plan())
    clients["client-1"].table = read_table(FRAME[THREE == 1][FRAME.columns[::-1]])
    assert_same(grow(THREE, plan()), run_on(clients, plan())[0])


def test_a_tree_that_draws_nothing_takes_every_row_once() -> None:
    X, y = FRAME[:4], CLASSES[:4]
    small: dict[str, Any] = {"n_estimators": 30, "max_samples": 0.1, "max_features": None}
    drawn = grow(np.arange(4) % 3, plan(**small), X=X, y=y)
    assert_same(drawn, grow(np.zeros(4, int), plan(**small, sums="plain"), X=X, y=y))
    structure = drawn[0].structure
    first_leaf = np.searchsorted(np.flatnonzero(structure.right < 0), structure.offset[:-1])
    weights = np.add.reduceat(drawn[0].leaves.weight, first_leaf)
    assert (weights == 4).sum() > 10
    assert weights.min() == 1


# --- an independent twin ---

MASK = (1 << 64) - 1


def mix(z: int) -> int:
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & MASK
    return z ^ (z >> 31)


class Twin:
    """The same forest grown in one place, row by row and in Python's numbers."""

    def __init__(self, a_plan: LosslessPlan, names: list[str]) -> None:
        self.plan, self.names = a_plan, names
        self.table = read_table(FRAME)
        self.splits: list[tuple[int, float, frozenset[int]]] = []
        self.values = {name: self.binned(name) for name in names}

    def binned(self, name: str) -> np.ndarray:
        """Values, each replaced by the largest of its bin; categories by their codes."""
        column = self.table.column(name)
        if not isinstance(column, NumericColumn):
            return np.where(column.codes < 0, len(column.categories), column.codes)
        values = column.values.astype(np.float64)
        known = np.sort(values[~np.isnan(values)])
        bins = self.plan.max_bins or 0
        if len(np.unique(known)) <= bins:
            return values
        edges = np.unique([known[-(-k * len(known) // bins) - 1] for k in range(1, bins)] + [known[-1]])
        return np.where(np.isnan(values), np.nan, edges[np.searchsorted(edges, np.nan_to_num(values))])

    def key(self, row: int) -> int:
        total = 0
        for name in self.names:
            column = self.table.column(name)
            if isinstance(column, NumericColumn):
                value = float(column.values[row])
                bits = struct.unpack("<Q", struct.pack("<d", float("nan") if np.isnan(value) else value + 0.0))[0]
            else:
                bits = int(column.codes[row]) & MASK
            total += mix(feature_key(name) ^ mix((bits + 0x9E3779B97F4A7C15) & MASK))
        return (total + mix(0x5851F42D4C957F2D ^ mix((int(CLASSES[row]) + 0x9E3779B97F4A7C15) & MASK))) & MASK

    def weights(self, tree: int) -> np.ndarray:
        seed = derive_seed(derive_seed(derive_seed(self.plan.seed, "bootstrap"), "rows"), "bootstrap", tree)
        drawn = np.zeros(ROWS, np.int64)
        for row in range(ROWS):
            u = mix((mix(seed ^ self.key(row)) + 0x9E3779B97F4A7C15) & MASK) / 2.0**64
            share = upto = float(np.exp(-1.0))
            while u >= upto:
                drawn[row] += 1
                share /= drawn[row]
                upto += share
        return drawn

    def grow(self, tree: int) -> None:
        weights = self.weights(tree)
        key = derive_seed(derive_seed(self.plan.seed, "order"), "tree", tree)
        self.split(np.flatnonzero(weights), weights, key)

    def split(self, rows: np.ndarray, weights: np.ndarray, key: int) -> None:
        """Preorder: the node, what is left of it, what is right."""
        if len(np.unique(CLASSES[rows])) < 2:
            return
        present = np.unique(CLASSES[rows])
        labels = np.searchsorted(present, CLASSES[rows])
        target = naive_splits.Target.of_classes(labels, weights[rows], len(present))
        order = sorted(range(len(self.names)), key=lambda f: mix(key ^ feature_key(self.names[f])))
        n_candidates = self.plan.settings(len(self.names)).n_candidates
        best: tuple[float, int, np.ndarray] | None = None
        for place, f in enumerate(order):
            if place >= n_candidates and best is not None:
                break
            found = self.best_of(f, rows, target)
            if found is not None and (best is None or found[0] > best[0]):
                best = found[0], f, found[1]
        if best is None:
            return
        self.splits.append((best[1], int(weights[rows[best[2]]].sum()), frozenset(rows[best[2]].tolist())))
        for side, part in enumerate((rows[best[2]], rows[~best[2]])):
            self.split(part, weights, mix(key ^ (0x5851F42D4C957F2D * (side + 1) & MASK)))

    def best_of(self, f: int, rows: np.ndarray, target: naive_splits.Target) -> tuple[float, np.ndarray] | None:
        values = self.values[self.names[f]][rows]
        if isinstance(self.table.column(self.names[f]), NumericColumn):
            cuts = naive_splits.cuts_of_numbers(values, target)
            if (at := cuts.best()) < 0:
                return None
            known = np.unique(values[~np.isnan(values)])
            left = values <= known[cuts.cut[at]]
            return cuts.scores[at], left | (np.isnan(values) & bool(cuts.missing_left[at]))
        largest = int(target.parts.sum(axis=0).argmax())
        first = np.argsort(target.parts.argmax(axis=1) != largest, kind="stable")
        ordered = naive_splits.Target(target.parts[first], target.criterion)
        cuts, ranks = naive_splits.cuts_of_categories(values[first], ordered)
        if (at := cuts.best()) < 0:
            return None
        return cuts.scores[at], np.isin(values, ranks[: cuts.cut[at] + 1])


def test_an_independent_twin_grows_the_same_trees() -> None:
    a_plan = plan(n_estimators=3)
    forest, part = grow(THREE, a_plan)
    twin = Twin(a_plan, list(FRAME.columns))
    for tree in range(3):
        twin.grow(tree)
    assert [f for f, _, _ in twin.splits] == part.splits.feature.tolist()
    assert len(twin.splits) > 60
    weight = np.zeros(forest.structure.n_nodes)
    weight[forest.structure.right < 0] = forest.leaves.weight
    for node in range(len(weight) - 1, -1, -1):
        if forest.structure.right[node] >= 0:
            weight[node] = weight[node + 1] + weight[forest.structure.right[node]]
    assert [w for _, w, _ in twin.splits] == weight[part.splits.node + 1].tolist()


@pytest.mark.parametrize("criterion", ["gini", "entropy", "squared_error"])
def test_scikit_learn_finds_the_same_splits_but_for_ties(criterion: str) -> None:
    """Rounded values, so that every value has a bin; the trees part ways only where two splits are equally good."""
    X = FRAME[["age", "visits", "children"]].round(1)
    y = TARGETS.round(3) if criterion == "squared_error" else CLASSES
    kind = DecisionTreeRegressor if criterion == "squared_error" else DecisionTreeClassifier
    task = "targets" if criterion == "squared_error" else "classes"
    a_plan = plan(
        task=task, criterion=criterion, n_estimators=1, bootstrap=False, max_features=None, max_bins=255, max_depth=5
    )
    _, part = grow(THREE, a_plan, X=X, y=y)
    values = X.to_numpy(np.float32)
    tree = kind(criterion=criterion, max_depth=5, random_state=0).fit(values, y).tree_
    splits, right, compared = part.splits, part.structure.right, 0
    waiting = [(0, 0, np.arange(ROWS))]
    question = {int(node): k for k, node in enumerate(splits.node)}
    while waiting:
        ours, theirs, rows = waiting.pop()
        assert (right[ours] >= 0) == (tree.children_left[theirs] >= 0)
        if right[ours] < 0:
            continue
        k = question[ours]
        left = values[rows, splits.feature[k]] <= splits.threshold[k]
        other = values[rows, tree.feature[theirs]] <= tree.threshold[theirs]
        if not np.array_equal(left, other):
            assert gain(y[rows], left, criterion) == pytest.approx(gain(y[rows], other, criterion), rel=1e-9)
            continue
        compared += 1
        waiting.append((ours + 1, tree.children_left[theirs], rows[left]))
        waiting.append((right[ours], tree.children_right[theirs], rows[~left]))
    assert compared > 12


def gain(y: np.ndarray, left: np.ndarray, criterion: str) -> float:
    def disorder(part: np.ndarray) -> float:
        if criterion == "squared_error":
            return float(part.var() * len(part))
        share = np.bincount(part) / len(part)
        share = share[share > 0]
        return float(len(part) * (1 - (share**2).sum() if criterion == "gini" else -(share * np.log2(share)).sum()))

    return disorder(y) - disorder(y[left]) - disorder(y[~left])


# --- what it costs ---


def test_rounds_do_not_depend_on_the_number_of_trees() -> None:
    plans = (plan(n_estimators=n, max_depth=3, max_features=None) for n in (2, 40))
    rounds = {run_on(clients_of(THREE, a_plan), a_plan)[1].rounds for a_plan in plans}
    assert rounds == {2 + 2 + 7 + 1 + 3}


def test_bytes_are_as_the_documents_say() -> None:
    a_plan = plan(n_estimators=10)
    with captured() as seen:
        run_on(clients_of(THREE, a_plan), a_plan)
    messages = [codec.decode(m) for m in seen]
    asked = [m for m in messages if isinstance(m, lossless_messages.CountCells)][::3]
    answers = [m for m in messages if isinstance(m, sum_messages.MaskedVector)][-3 * len(asked) :]
    assert sum(m.values.nbytes for m in answers) == 3 * 8 * sum(m.order.length + 2 for m in asked)
    for m in asked:
        pairs = np.repeat(np.arange(len(m.width)), m.n_pairs)
        missing = np.unpackbits(m.missing, count=len(pairs), bitorder="little")
        cells = np.bincount(pairs, m.codes.astype(int) + missing, minlength=len(m.width)).astype(int)
        assert m.order.length == (-(-cells * m.n_classes // (m.word_bits // m.width.astype(int)))).sum()
        assert m.order.bits == 64


# --- what travels ---


def test_no_value_id_or_label_of_a_row_leaves_a_client() -> None:
    """But for the edges of bins, which the coordinator tells: those are declared here."""
    bins = tuple((name, (-1.0, 0.0, 1.0)) for name in ("age", "income", "visits", "children"))
    a_plan = plan(bins=bins)
    with captured() as seen:
        run_on(clients_of(THREE, a_plan), a_plan)
    values = FRAME[["age", "income", "visits"]].to_numpy().ravel()
    assert not found({"value": floats(values)}, seen)
    a_plan = plan()
    with captured() as seen:
        run_on(clients_of(THREE, a_plan), a_plan)
    sent = [m for m in seen if not isinstance(codec.decode(m), lossless_messages.DrawRows)]
    assert not found({"value": floats(values)}, sent)
    assert found({"value": floats(values)}, seen)  # edges are values, and the search would find them


def test_secure_sums_look_random_and_no_mask_is_used_twice() -> None:
    a_plan = plan()
    with captured() as seen:
        run_on(clients_of(THREE, a_plan), a_plan)
    sent = [m for m in map(codec.decode, seen) if isinstance(m, sum_messages.MaskedVector)]
    wide = np.concatenate([m.values for m in sent if m.values.dtype == np.uint64])
    assert len(np.unique(wide)) == len(wide)
    assert abs(float((wide >> np.uint64(63)).mean()) - 0.5) < 0.02
    assert len({m.round for m in sent}) == len(sent) / 3


# --- clients that drop out ---


class Dropping:
    """A client that is gone from its n-th request of a kind on."""

    def __init__(self, client: LosslessClient, kind: type[Message], at: int) -> None:
        self.client, self.kind, self.at, self.asked = client, kind, at, 0

    def handle(self, message: Message) -> Message:
        self.asked += isinstance(message, self.kind)
        if self.asked >= self.at:
            raise DataError("the table is gone")
        return self.client.handle(message)


FOUR = np.arange(ROWS) % 4
STAYING = FOUR != 2


@pytest.mark.parametrize("task", ["classes", "targets"])
def test_before_growth_a_drop_out_leaves_a_forest_of_the_others(task: str) -> None:
    a_plan = plan(task=task, spare_after=1.0)
    clients = clients_of(FOUR, a_plan)
    clients["client-2"] = Dropping(clients["client-2"], lossless_messages.DrawRows, 1)
    y = (TARGETS if task == "targets" else CLASSES)[STAYING]
    others = grow(np.zeros(STAYING.sum(), int), plan(task=task, sums="plain"), X=FRAME[STAYING], y=y)
    left = run_on(clients, a_plan)[0]
    assert left[0].leaves.weight.sum() == others[0].leaves.weight.sum()  # the bins are of all
    assert left[0].structure.n_nodes > 50


@pytest.mark.parametrize(
    ("kind", "at"),
    [
        (lossless_messages.CountValues, 1),
        (lossless_messages.CountValues, 3),
        (sum_messages.PrepareSums, 1),
        (sum_messages.Unmask, 1),
    ],
)
def test_nobody_is_spared_while_bins_are_found(kind: type[Message], at: int) -> None:
    a_plan = plan(spare_after=1.0)
    clients = clients_of(FOUR, a_plan)
    clients["client-2"] = Dropping(clients["client-2"], kind, at)
    with pytest.raises(DataError, match="the table is gone"):
        run_on(clients, a_plan)


@pytest.mark.parametrize(("said", "mode"), [("before", "secure"), ("before", "plain"), ("after", "secure")])
def test_values_are_not_counted_again_in_other_words_without_a_client(said: str, mode: str) -> None:
    """With the missing values and without: two questions. The difference would be the client's values."""
    a_plan = plan(spare_after=1.0, sums=mode)
    clients = clients_of(FOUR, a_plan)
    names = tuple(clients)

    def attack() -> Any:
        schema = yield from agree_on_schema(names, a_plan.task, None)
        session = yield from open_sums(names, mode=a_plan.sums, spare_after=1.0, quorum=a_plan.needed)
        column = list(schema.names).index("age")

        def asked(missing: bool, whole: bool) -> Any:
            return sum_round(
                session,
                "bins",
                asking(
                    lossless_messages.CountValues,
                    known_bits=0,
                    with_missing=missing,
                    column=np.full(1, column, np.uint8),
                    prefix=np.zeros(1, np.uint32),
                ),
                length=256 + missing * len(schema.names),
                bound=1 << 20,
                whole=whole,
            )

        first = yield from asked(missing=False, whole=True)
        if said == "before":  # the client is no more in the order
            session.clients = tuple(name for name in names if name != "client-2")
        else:  # it is, and is said to have dropped out of the round
            line["client-2"].at = 1
        rest = yield from asked(missing=True, whole=False)
        return first, rest

    line = dict(clients) | {"client-2": Dropping(clients["client-2"], lossless_messages.CountValues, 100)}
    reason = "over all clients alone" if said == "before" else "this round spares nobody"
    with InProcessDriver(line) as driver, pytest.raises(PolicyError, match=reason):
        run(attack(), driver, ledger=Ledger())


def test_weights_are_not_counted_again_in_other_bits_without_a_client() -> None:
    """In other bits it is another question. The difference would be what the client's rows of each class weigh."""
    a_plan = plan(spare_after=1.0, row_weights=True)
    clients = clients_of(FOUR, a_plan, weights=np.linspace(0.1, 2, ROWS))
    names = tuple(clients)

    def attack() -> Any:
        schema = yield from agree_on_schema(names, a_plan.task, None)
        session = yield from open_sums(names, mode=a_plan.sums, spare_after=1.0, quorum=a_plan.needed)
        for fraction in (20, 21):
            if fraction == 21:
                session.clients = tuple(name for name in names if name != "client-2")
            yield from sum_round(
                session,
                "grow",
                asking(lossless_messages.CountWeights, fraction_bits=fraction),
                length=2 * schema.n_outputs,
                bound=1 << 40,
                whole=fraction == 20,
            )

    with InProcessDriver(clients) as driver, pytest.raises(PolicyError, match="over all clients alone"):
        run(attack(), driver, ledger=Ledger())


def test_no_client_refuses_to_draw_by_what_its_rows_weigh() -> None:
    """Who claims other sums of weights has rows drawn at other rates; a refusal would tell the largest weight."""
    a_plan = plan(sums="plain", max_depth=2, row_weights=True)
    weights = np.where(np.arange(ROWS) == 40, 20.0, np.linspace(0.1, 2, ROWS))
    clients = clients_of(THREE, a_plan, weights=weights)
    clients["client-1"] = recording = Recording(clients["client-1"])  # type: ignore[assignment]
    run_on(clients, a_plan)
    drawing = next(m for m in recording.asked if isinstance(m, lossless_messages.DrawByWeight))
    before = recording.asked[: recording.asked.index(drawing)]
    lengths = set()
    for halved in (0, 1, 4, 8, 16):
        client = clients_of(THREE, a_plan, weights=weights)["client-1"]
        for message in before:
            client.handle(message)
        sums = drawing.class_sums >> halved
        claimed = true_weights(sums, drawing.fraction_bits)
        rates = a_plan.class_rates(drawing.class_rows.tolist(), claimed, (0, 1, 2, 3))
        lengths.add(client.handle(changed(drawing, class_sums=sums, rates=np.array(rates))).values.size)
    assert len(lengths) == 1


@pytest.mark.parametrize("at", [1, 2, 5])
def test_in_the_middle_of_growth_the_others_go_on(at: int) -> None:
    a_plan = plan(spare_after=1.0)
    clients = clients_of(FOUR, a_plan)
    clients["client-2"] = Dropping(clients["client-2"], lossless_messages.CountCells, at)
    with captured() as seen:
        forest, _ = run_on(clients, a_plan)[0]
    whole = grow(FOUR, plan())[0]
    assert forest.structure.n_nodes > 60
    assert forest.leaves.weight.sum() < whole.leaves.weight.sum()
    asked = [m.order for m in map(codec.decode, seen) if isinstance(m, lossless_messages.CountCells)]
    rounds = {order.round: order.clients for order in asked}
    assert len(next(iter(rounds.values()))) == 4
    assert list(rounds.values())[-1] == ("client-0", "client-1", "client-3")
    sent = [m.values for m in map(codec.decode, seen) if isinstance(m, sum_messages.MaskedVector)]
    words = np.concatenate([values for values in sent if values.dtype == np.uint64])
    assert len(np.unique(words)) == len(words)


class Dying(Dropping):
    """A client that is killed at its n-th message from the drawing of rows on; it counts the sums that it is in."""

    def __init__(self, client: LosslessClient, at: int) -> None:
        super().__init__(client, lossless_messages.DrawRows, 1)
        self.is_drawing, self.at_message, self.n_sums = False, at, 0

    def handle(self, message: Message) -> Message:
        self.is_drawing |= isinstance(message, self.kind)
        self.at_message -= self.is_drawing
        if self.at_message < 0:
            raise DataError("the table is gone")
        reply = self.client.handle(message)
        self.n_sums += self.is_drawing and isinstance(reply, sum_messages.MaskedVector)
        return reply


class Mute(LosslessClient):
    """Adds zeros from one of its sums on, the drawing of rows being the first, as if its rows were not there."""

    stops = 0
    is_drawing = False

    def _answer(self, message: Any, numbers: np.ndarray, *, whole: bool = False) -> Message:
        self.is_drawing |= isinstance(message, lossless_messages.DrawRows)
        is_mute = self.is_drawing and self.stops <= 0
        reply = super()._answer(message, np.zeros_like(numbers) if is_mute else numbers, whole=whole)
        self.stops -= self.is_drawing
        return reply


@pytest.mark.parametrize("task", ["classes", "targets"])
@pytest.mark.parametrize("seed", range(2))
def test_three_of_ten_killed_at_random_messages_leave_the_forest_without_their_later_rows(
    task: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_plan, rng = plan(task=task, max_depth=6, spare_after=1.0), np.random.default_rng(seed)
    ten = np.arange(ROWS) % 10
    clients = clients_of(ten, a_plan)
    victims = sorted(rng.choice(list(clients), 3, replace=False).tolist())
    sums = 1 + 6  # the drawing, and one at least for each level; each of two messages or more
    for name in victims:
        clients[name] = Dying(clients[name], int(rng.integers(0, 2 * sums)))
    # parents have more rows than both children once clients are gone: the coordinator then takes no side for granted
    wholes: list[bool] = []
    take = Growing.take

    def noted(self: Growing, *asked: Any, whole: bool) -> None:
        wholes.append(whole)
        take(self, *asked, whole=whole)

    def repeated(self: Growing, *asked: Any, whole: bool) -> None:
        take(self, *asked, whole=wholes.pop(0))

    monkeypatch.setattr(Growing, "take", noted)
    killed = run_on(clients, a_plan)[0]
    assert killed[0].left == tuple(victims) == tuple(sorted(killed[0].left_at))
    mute = clients_of(ten, a_plan, kind=Mute)
    for name, client in mute.items():
        client.stops = clients[name].n_sums if name in victims else len(wholes) + 1
    monkeypatch.setattr(Growing, "take", repeated)
    expected = run_on(mute, a_plan)[0]
    assert_same(killed, expected)
    assert expected[0].left == ()
    assert not wholes


def test_without_being_told_to_go_on_the_run_stops() -> None:
    clients = clients_of(FOUR, plan())
    clients["client-2"] = Dropping(clients["client-2"], lossless_messages.CountCells, 2)
    with pytest.raises(DataError, match="the table is gone"):
        run_on(clients, plan())
    clients = clients_of(THREE, plan(spare_after=1.0))
    clients["client-2"] = Dropping(clients["client-2"], lossless_messages.CountCells, 2)
    with pytest.raises(DataError, match="the table is gone"):  # more than two thirds of three are three
        run_on(clients, plan(spare_after=1.0))
    a_plan = plan(spare_after=1.0, quorum=4)
    clients = clients_of(np.arange(ROWS) % 5, a_plan)
    for name in ("client-2", "client-3"):
        clients[name] = Dropping(clients[name], lossless_messages.CountCells, 2)
    with pytest.raises(DataError, match="3 of 5 clients are left, and sums need 4"):
        run_on(clients, a_plan)


# --- what is refused ---


def test_too_few_clients() -> None:
    with pytest.raises(ConfigError, match="secure sums need 3 clients"):
        grow(np.arange(ROWS) % 2, plan())
    two = plan(allow_two=True)
    assert_same(grow(np.arange(ROWS) % 2, two), grow(THREE, plan()))


@pytest.mark.parametrize(
    ("changes", "error", "reason"),
    [
        ({"bins": (("height", (1.0,)),)}, ConfigError, "no columns of numbers"),
        ({"bins": (("town", (1.0,)),)}, ConfigError, "no columns of numbers"),
        ({"bins": (("age", (1.0, 0.0)),)}, ConfigError, "ascending"),
        ({"bins": (("age", (1.0, float("inf"))),)}, ConfigError, "finite"),
        ({"max_samples": 33.0}, ConfigError, "draws every row 33 times"),
    ],
)
def test_plans_that_cannot_be(changes: dict[str, Any], error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        grow(THREE, plan(**changes))


class Recording:
    """Keeps what one client was asked."""

    def __init__(self, client: LosslessClient) -> None:
        self.client = client
        self.asked: list[Any] = []

    def handle(self, message: Message) -> Message:
        self.asked.append(message)
        return self.client.handle(message)


def script(**changes: Any) -> tuple[list[Any], LosslessClient]:
    """All that a client is asked in a run, and a fresh client to ask it."""
    a_plan = plan(sums="plain", max_depth=3, **changes)
    clients = clients_of(THREE, a_plan)
    clients["client-1"] = recording = Recording(clients["client-1"])  # type: ignore[assignment]
    run_on(clients, a_plan)
    return recording.asked, clients_of(THREE, a_plan)["client-1"]


def changed(message: Message, **fields: Any) -> Message:
    known = {name: getattr(message, name) for name in message.__struct_fields__}
    return type(message)(**(known | fields))


WRONG: list[tuple[type[Message], dict[str, Any]]] = [
    (lossless_messages.CountValues, {"known_bits": 7}),
    (lossless_messages.CountValues, {"column": np.array([9], np.uint8), "prefix": np.zeros(1, np.uint32)}),
    (lossless_messages.CountValues, {"column": np.array([4], np.uint8), "prefix": np.zeros(1, np.uint32)}),
    (lossless_messages.CountValues, {"with_missing": False}),
    (lossless_messages.DrawRows, {"n_trees": 7}),
    (lossless_messages.DrawRows, {"seed": 1}),
    (lossless_messages.DrawRows, {"thresholds": np.empty(0, np.uint64)}),
    (lossless_messages.DrawRows, {"with_rows": True}),
    (lossless_messages.DrawRows, {"target_bits": 9}),
    (
        lossless_messages.DrawRows,  # more bins than were ordered
        {"n_edges": np.array([16, 0, 0, 0, 0], np.uint8), "edges": np.arange(16.0)},
    ),
    (lossless_messages.CountCells, {"level": 5}),
    (lossless_messages.CountCells, {"is_open": np.zeros(9, np.uint8)}),
    (lossless_messages.CountCells, {"every_row": np.array([99], np.uint32)}),
    (lossless_messages.CountCells, {"nodes": np.array([99], np.uint32)}),
    (lossless_messages.CountCells, {"word_bits": 64}),
    (lossless_messages.CountCells, {"width": np.zeros(6, np.uint8)}),
    (lossless_messages.CountCells, {"pair_feature": np.full(12, 7, np.uint8)}),
]


@pytest.mark.parametrize(("kind", "fields"), WRONG, ids=lambda value: getattr(value, "__name__", str(value)))
def test_a_refused_message_changes_nothing(kind: type[Message], fields: dict[str, Any]) -> None:
    asked, client = SCRIPT[0], clients_of(THREE, plan(sums="plain", max_depth=3))["client-1"]
    done = False
    for message in asked:
        if isinstance(message, kind) and not done:
            done = True
            with pytest.raises(RemoteProtocolError):
                client.handle(changed(message, **fields))
        assert codec.encode(client.handle(message)) == codec.encode(SCRIPT[1][id(message)])
    assert done


def recorded() -> tuple[list[Any], dict[int, Message]]:
    asked, client = script()
    return asked, {id(message): client.handle(message) for message in asked}


SCRIPT = recorded()


def test_messages_out_of_turn_are_refused() -> None:
    asked, client = SCRIPT[0], clients_of(THREE, plan(sums="plain", max_depth=3))["client-1"]
    counts = next(m for m in asked if isinstance(m, lossless_messages.CountCells))
    for message in asked:
        if isinstance(message, lossless_messages.DrawRows):
            break
        with pytest.raises(RemoteProtocolError):
            client.handle(counts)
        client.handle(message)
    with pytest.raises(RemoteProtocolError, match="Unexpected CountCells; expected after DrawRows"):
        client.handle(counts)


@pytest.mark.parametrize(
    "fields",
    [
        {"feature": np.full(6, 7, np.uint8)},
        {"set_length": np.full(6, 1, np.uint8)},
        {"split": np.zeros(0, np.uint8)},
        {"missing_left": np.zeros(5, np.uint8)},
    ],
    ids=str,
)
def test_splits_that_do_not_go_together_are_refused(fields: dict[str, Any]) -> None:
    asked, client = SCRIPT[0], clients_of(THREE, plan(sums="plain", max_depth=3))["client-1"]
    second = next(m for m in asked if isinstance(m, lossless_messages.CountCells) and m.level == 1)
    assert len(second.feature) == 6
    for message in asked:
        if message is second:
            with pytest.raises(RemoteProtocolError):
                client.handle(changed(message, **fields))
        assert codec.encode(client.handle(message)) == codec.encode(SCRIPT[1][id(message)])


def test_values_of_declared_columns_are_not_told() -> None:
    asked, _ = script(bins=(("age", (0.0,)),))
    first = next(m for m in asked if isinstance(m, lossless_messages.CountValues))
    assert 0 not in first.column
    client = clients_of(THREE, plan(sums="plain", max_depth=3, bins=(("age", (0.0,)),)))["client-1"]
    for message in asked:
        if message is first:
            break
        client.handle(message)
    with pytest.raises(RemoteProtocolError, match="whose bins were declared"):
        client.handle(changed(first, column=np.zeros_like(first.column)))


@pytest.mark.parametrize("lacking", ["classes", "codes"])
def test_rows_beyond_what_is_asked_for_are_not_refused(lacking: str) -> None:
    """By refusals a coordinator would find out, question after question, which codes and classes one client has."""
    asked = SCRIPT[0]
    at = next(i for i, message in enumerate(asked) if isinstance(message, lossless_messages.CountCells))
    first: Any = asked[at]
    client = clients_of(THREE, plan(sums="plain", max_depth=3))["client-1"]
    for message in asked[:at]:
        client.handle(message)
    fields: dict[str, Any] = {"classes": first.classes * 0}
    if lacking == "codes":
        fields = {"first": first.first + 1, "codes": first.codes - 1}
    some: Any = changed(first, **fields)
    missing = bits.unpack(some.missing, len(some.pair_feature), "missing values")
    cells = Cells(
        some.width, some.n_classes, some.classes, some.n_pairs, some.pair_feature, some.first, some.codes, missing,
        False, 0, some.word_bits,
    )  # fmt: skip
    order = structs.replace(first.order, length=cells.length)
    assert isinstance(client.handle(changed(some, order=order)), sum_messages.PlainVector)


class Lying:
    """A client that counts one row too many in one cell, in a way that the check numbers of the sum do not find."""

    def __init__(self, client: LosslessClient) -> None:
        self.client = client

    def handle(self, message: Message) -> Message:
        reply = self.client.handle(message)
        if isinstance(message, lossless_messages.CountCells) and isinstance(reply, sum_messages.PlainVector):
            values = reply.values.copy()
            values[0] += 1
            values[-1] += 1
            return sum_messages.PlainVector(round=reply.round, values=values)
        return reply


def test_histograms_that_do_not_fit_the_nodes_are_found() -> None:
    a_plan = plan(sums="plain")
    clients = clients_of(THREE, a_plan)
    clients["client-1"] = Lying(clients["client-1"])
    with pytest.raises(RemoteProtocolError, match=r"not of the same rows|not those of its rows"):
        run_on(clients, a_plan)


def test_a_client_takes_part_in_secure_sums_only_if_it_says_so() -> None:
    secure, plain = plan(), plan(sums="plain")
    with pytest.raises(PolicyError, match="takes part in secure ones only"):
        run_on(clients_of(THREE, secure), plain)


def test_constant_and_empty_columns_and_one_class() -> None:
    X = pd.DataFrame({"same": np.ones(30), "nothing": np.full(30, np.nan), "x": np.arange(30.0)})
    y = np.arange(30) // 10
    dealt = np.arange(30) % 3
    forest, part = grow(dealt, plan(n_estimators=4, max_features=1, max_bins=99), X=X, y=y)
    assert set(part.splits.feature.tolist()) == {2}
    assert (np.diff(forest.leaves.start) == 1).all()  # every leaf is pure: where "same" came first, the search went on
    one_class = grow(dealt, plan(n_estimators=4), X=X, y=np.zeros(30, int))
    assert one_class[0].structure.n_nodes == 4
    same_target = grow(dealt, plan(task="targets", n_estimators=4), X=X, y=np.full(30, 2.5))
    np.testing.assert_allclose(same_target[0].leaves.value, 2.5, rtol=1e-9)
    assert same_target[0].structure.n_nodes == 4


def test_columns_that_differ_are_named() -> None:
    clients = clients_of(THREE, plan())
    table = clients["client-1"].table
    clients["client-1"].table = Table(("height", *table.names[1:]), table.columns, table.n_rows)
    with pytest.raises(DataError, match="'age'"):
        run_on(clients, plan())
    assert isinstance(SCRIPT[0][0], msg.DescribeRows)
