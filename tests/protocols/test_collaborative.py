"""The collaborative forest and local forests as protocols: turns, sums, what travels, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec import structs

import woodlot as wl
from wire_search import captured, floats, found, integers, texts
from woodlot.data.tables import read_table
from woodlot.exceptions import DataError, LocalProtocolError, PolicyError, RemoteProtocolError
from woodlot.privacy.budget import Budget
from woodlot.privacy.client_budget import LocalBudget
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows import row_messages as msg
from woodlot.protocols.rows.collaborative import (
    CollaborativeClient,
    CollaborativePlan,
    collaborative_forest,
    tally_nodes,
    tally_width,
)
from woodlot.protocols.rows.local_forests import LocalClient, LocalPlan, deal_trees, local_forests
from woodlot.protocols.rows.row_client import HorizontalClient, RowClientState
from woodlot.protocols.rows.whole_forest import fields_of, trees_of
from woodlot.protocols.sums import SumClient, sum_messages
from woodlot.runtime import codec
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.alone import Field, WholeTrees, grow_on
from woodlot.trees.forest import Structure

SECRET = bytes(range(32))


def plan(**changes: Any) -> CollaborativePlan:
    known: dict[str, Any] = {
        "task": "classes",
        "n_estimators": 8,
        "criterion": "entropy",
        "max_depth": None,
        "min_samples_split": 2,
        "min_samples_leaf": 1,
        "max_features": "sqrt",
        "bootstrap": True,
        "max_samples": None,
        "max_bins": None,
        "seed": 3,
        "leaf_average": "rows",
    }
    return CollaborativePlan(**(known | changes))


def table(seed: int, n: int = 90) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n, 4)), columns=["age", "income", "visits", "basket"])
    frame["town"] = rng.choice(["Aarau", "Brugg", "Chur"], n)
    signal = frame["age"] + frame["visits"] * frame["income"] + (frame["town"] == "Chur")
    return frame, np.digitize(signal + rng.normal(size=n) * 0.3, [-0.4, 0.8])


def labelled(rows: tuple[pd.DataFrame, np.ndarray]) -> tuple[pd.DataFrame, Target]:
    return rows[0], Target.of_classes(rows[1])


def client(name: str, frame: pd.DataFrame, target: Target, **options: Any) -> CollaborativeClient:
    mode = options.pop("mode", "secure")
    sums = SumClient(name, job="test", entropy=lambda purpose: SECRET, shared_secret=SECRET, mode=mode)
    return CollaborativeClient(name, read_table(frame), target, sums=sums, **options)


def clients(n: int, rows: int = 90, **options: Any) -> dict[str, HorizontalClient]:
    return {
        f"client-{k}": client(f"client-{k}", frame, Target.of_classes(y), **options)
        for k, (frame, y) in enumerate(table(k, rows) for k in range(n))
    }


def grow(
    handlers: Mapping[str, HorizontalClient], a_plan: CollaborativePlan, sums: sum_messages.Mode = "secure"
) -> Any:
    ledger = Ledger()
    with InProcessDriver(handlers, ledger=ledger) as driver:
        return run(collaborative_forest(structs.replace(a_plan, sums=sums), tuple(handlers)), driver, ledger=ledger)


def arrays(parts: Any) -> list[np.ndarray]:
    forest, part = parts
    leaves, splits = forest.leaves, part.splits
    return [
        forest.structure.offset, forest.structure.right, forest.gain, leaves.weight, leaves.start, leaves.output,
        leaves.value, splits.feature, splits.threshold, splits.missing_left, splits.sets,
    ]  # fmt: skip


def assert_same(one: Any, other: Any) -> None:
    for a, b in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_array_equal(a, b)


# --- what grows ---


def test_with_one_client_it_is_growing_alone() -> None:
    frame, y = table(5)
    forest, part = grow({"only": client("only", frame, Target.of_classes(y), mode="plain")}, plan(), "plain")
    reference = HorizontalClient("only", read_table(frame), Target.of_classes(y))
    schema = msg.UseSchema(
        names=tuple(frame.columns),
        categories=(None,) * 4 + (("Aarau", "Brugg", "Chur"),),
        classes=(0, 1, 2),
        magnitude=0,
        max_bins=None,
    )
    reference.handle(msg.DescribeRows(task="classes"))
    reference.handle(schema)
    field, growth = reference.growth(plan().settings(5))
    alone = grow_on(field, growth, range(8), WholeTrees.single_leaves(8))
    np.testing.assert_array_equal(part.structure.right, alone.structure.right)
    np.testing.assert_array_equal(part.splits.threshold, alone.splits.threshold)
    assert forest.structure.n_nodes > 100


def test_without_bootstrap_one_client_is_local_forests_leaves_and_all() -> None:
    frame, y = table(6)
    a_plan = plan(bootstrap=False)
    whole = grow({"only": client("only", frame, Target.of_classes(y), mode="plain")}, a_plan, "plain")
    alone = LocalClient("only", read_table(frame), Target.of_classes(y))
    ledger = Ledger()
    with InProcessDriver({"only": alone}, ledger=ledger) as driver:
        own = {name: getattr(a_plan, name) for name in LocalPlan.__struct_fields__ if hasattr(a_plan, name)}
        assert_same(whole, run(local_forests(LocalPlan(**own), ("only",)), driver, ledger=ledger))


def test_every_client_grows_every_tree_and_nobody_waits() -> None:
    handlers = clients(4)
    protocol = collaborative_forest(plan(n_estimators=10), tuple(handlers))
    seen: list[dict[str, range]] = []
    step: Round = next(protocol)
    try:
        while True:
            turn = {
                name: range(request.first_tree, request.first_tree + len(request.offset) - 1)
                for name, request in step.requests.items()
                if isinstance(request, msg.GrowOn)
            }
            seen += [turn] if turn else []
            replies = {name: codec.decode(codec.encode(handlers[name].handle(m))) for name, m in step.requests.items()}
            step = protocol.send(replies)
    except StopIteration as end:
        forest, _ = end.value
    assert len(seen) == 4
    for turn in seen:
        assert set(turn) == set(handlers)
        assert sorted(tree for trees in turn.values() for tree in trees) == list(range(10))
    for name in handlers:
        assert sorted(tree for turn in seen for tree in turn[name]) == list(range(10))
    assert forest.structure.n_trees == 10


@pytest.mark.parametrize(("n_trees", "n_clients"), [(100, 10), (7, 3), (2, 5), (1, 1)])
def test_trees_are_dealt_evenly(n_trees: int, n_clients: int) -> None:
    shares = deal_trees(n_trees, n_clients)
    assert [t for share in shares for t in share] == list(range(n_trees))
    assert len(shares) == n_clients
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_fewer_trees_than_clients() -> None:
    forest, _ = grow(clients(5), plan(n_estimators=2))
    assert forest.structure.n_trees == 2


@pytest.mark.parametrize("average", ["rows", "plain"])
@pytest.mark.parametrize("min_leaf_rows", [1, 4])
def test_secure_and_plain_sums_give_the_same_forest(average: str, min_leaf_rows: int) -> None:
    a_plan = plan(leaf_average=average, min_leaf_rows=min_leaf_rows)
    assert_same(grow(clients(3), a_plan), grow(clients(3, mode="plain"), a_plan, "plain"))


@pytest.mark.parametrize("n_jobs", [2, 4])
def test_threads_change_nothing(n_jobs: int) -> None:
    assert_same(grow(clients(3), plan()), grow(clients(3, n_jobs=n_jobs), plan()))


def test_a_secret_changes_the_draw() -> None:
    one, other = grow(clients(3), plan()), grow(clients(3, secret=b"only the clients know"), plan())
    assert one[0].structure.n_nodes != other[0].structure.n_nodes


# --- what the leaves answer ---


def all_rows(handlers: Mapping[str, HorizontalClient]) -> list[tuple[Field, np.ndarray]]:
    return [(handler.rows, handler.rows.labels.astype(np.int64)) for handler in handlers.values()]


@pytest.mark.parametrize("average", ["rows", "plain"])
def test_leaves_are_filled_from_all_rows_of_all_clients(average: str) -> None:
    handlers = clients(3)
    forest, part = grow(handlers, plan(leaf_average=average))
    trees = WholeTrees(part.structure, part.splits)
    counts = []
    for field, labels in all_rows(handlers):
        count = np.zeros((trees.structure.n_nodes, 3))
        ends = trees.leaves_of(field.columns, field.n_rows, 1)
        np.add.at(count, (ends, labels[:, None]), 1)
        counts.append(count)
    total = np.sum(counts, axis=0)
    shares = [c / np.maximum(c.sum(axis=1, keepdims=True), 1) for c in counts]
    mean = (total if average == "rows" else np.sum(shares, axis=0)) + 0.0
    mean /= np.maximum(mean.sum(axis=1, keepdims=True), 1e-9)
    leaf = np.flatnonzero(part.structure.right < 0)
    found_shares = np.zeros((len(leaf), 3))
    lengths = np.diff(forest.leaves.start)
    found_shares[np.repeat(np.arange(len(leaf)), lengths), forest.leaves.output] = forest.leaves.value
    filled = total[leaf].sum(axis=1) > 0
    np.testing.assert_allclose(found_shares[filled], mean[leaf][filled], atol=2e-6)
    np.testing.assert_array_equal(forest.leaves.weight[filled], total[leaf].sum(axis=1)[filled])


@pytest.mark.parametrize("min_rows", [1, 3, 10])
def test_a_client_reports_nothing_of_fewer_rows(min_rows: int) -> None:
    handlers = clients(3)
    _, part = grow(handlers, plan())
    trees = WholeTrees(part.structure, part.splits)
    for handler in handlers.values():
        assert isinstance(handler, CollaborativeClient)
        tally = handler.tally(trees, "rows", min_rows, 0)
        at_node = tally.sum(axis=1)
        assert ((at_node == 0) | (at_node >= min_rows)).all()
        assert at_node.sum() >= handler.table.n_rows * 8 - 8 * (min_rows - 1)
        cells = tally_nodes(trees.structure, min_rows)
        assert at_node[cells].sum() == at_node.sum()
        assert (min_rows == 1) == (len(cells) < trees.structure.n_nodes)


def test_regression_sums_do_not_depend_on_who_has_which_rows() -> None:
    """Targets are added in fixed point: the leaves of the same trees are the same, whoever reports which row."""
    frame, y = table(8, 120)
    values = y * 1e5 + frame["age"].to_numpy()
    answers = []
    for dealing in (np.arange(120) % 3, np.arange(120) // 40, np.zeros(120, int)):
        handlers = {
            f"client-{k}": client(
                f"client-{k}", frame[dealing == k], Target.of_values(values[dealing == k]), mode="plain"
            )
            for k in range(3)
        }
        a_plan = plan(task="targets", criterion="squared_error", max_depth=1, n_estimators=3, bootstrap=False)
        forest, part = grow(handlers, a_plan, "plain")
        assert set(np.diff(part.structure.offset)) <= {1, 3}
        ends = WholeTrees(part.structure, part.splits).leaves_of(
            [read_table(frame).columns[i].values for i in range(4)]  # type: ignore[union-attr]
            + [np.searchsorted(["Aarau", "Brugg", "Chur"], frame["town"]).astype(np.int32)],
            120,
            1,
        )
        leaf = part.structure.leaf[ends]
        expected = np.array([[values[leaf[:, t] == leaf[i, t]].mean() for t in range(3)] for i in range(120)])
        np.testing.assert_allclose(forest.leaves.value[leaf], expected, rtol=1e-9)
        answers.append(forest.leaves.weight.sum())
    assert answers == [360.0] * 3


# --- what travels ---

CLASSES = ["defaulted-badly", "paid-in-full", "still-running"]


def secret_frames(regression: bool) -> dict[str, pd.DataFrame]:
    frames = {}
    for k in range(3):
        rng = np.random.default_rng(100 + k)
        frame = pd.DataFrame({"income": rng.uniform(1e4, 1e5, 60), "visits": rng.uniform(-1e3, 1e3, 60)})
        frame["customer"] = rng.integers(10**8, 10**9, 60)
        signal = frame["income"] / 1e5 + frame["visits"] / 2e3 + rng.normal(size=60) * 0.3
        frame["outcome"] = signal * 12345.678 if regression else np.array(CLASSES)[np.digitize(signal, [0.3, 0.8])]
        frames[f"bank{k}"] = frame
    return frames


@pytest.mark.parametrize("regression", [False, True], ids=["classes", "targets"])
@pytest.mark.parametrize("method", ["collaborative", "local"])
def test_no_value_of_a_row_travels(regression: bool, method: str) -> None:
    frames = secret_frames(regression)
    federation = wl.Federation.local(frames, id="customer", layout="rows")
    kinds: dict[tuple[str, bool], Any] = {
        ("collaborative", False): wl.CollaborativeForestClassifier,
        ("collaborative", True): wl.CollaborativeForestRegressor,
        ("local", False): wl.LocalForestsClassifier,
        ("local", True): wl.LocalForestsRegressor,
    }
    with captured() as messages:
        model = kinds[method, regression](20, random_state=0).fit(federation, "outcome")
    together = pd.concat(frames.values())
    secrets = {
        "values": list(floats(together[["income", "visits"]].to_numpy().ravel())),
        "ids": list(integers(together["customer"].tolist())),
    }
    if regression:
        secrets["targets"] = list(floats(together["outcome"].to_numpy()))
    # the masked vectors are random numbers: one short needle is found in them by chance
    assert found(secrets, messages, short_hits=3) == {}
    thresholds = {"thresholds": list(floats(model.combine().splits.threshold))}
    carriers = {"GrowOn", "GrownTrees", "FillLeaves"} if method == "collaborative" else {"LocalTrees"}
    assert found(thresholds, messages, short_hits=3) == {"thresholds": carriers}
    for name in carriers:
        assert "thresholds" in getattr(msg, name).discloses.reveals
    if not regression:
        assert found({"classes": list(texts(CLASSES))}, messages) == {"classes": {"RowsDescribed", "UseSchema"}}


def test_plain_sums_show_leaves_and_secure_ones_do_not() -> None:
    """The search would find a client's counts: it does, where sums are plain."""
    frames = secret_frames(False)
    shown = {}
    for sums in ("secure", "plain"):
        federation = wl.Federation.local(frames, id="customer", layout="rows")
        with captured() as messages:
            wl.CollaborativeForestClassifier(4, random_state=0, sums=sums, leaf_average="rows").fit(
                federation, "outcome"
            )
        vectors = [m for m in map(codec.decode, messages) if isinstance(m, sum_messages.SumVector)]
        assert len(vectors) == 3
        shown[sums] = np.concatenate([vector.values for vector in vectors])
    assert shown["plain"][shown["plain"] < 60].size > 0.9 * shown["plain"].size
    assert shown["secure"][shown["secure"] < 60].size < 0.01 * shown["secure"].size


# --- what is refused ---


def ready() -> CollaborativeClient:
    frame, y = table(1)
    one = client("one", frame, Target.of_classes(y), min_leaf_rows=4)
    one.handle(msg.DescribeRows(task="classes"))
    one.handle(
        msg.UseSchema(
            names=tuple(frame.columns),
            categories=(None,) * 4 + (("Aarau", "Brugg", "Chur", "Davos"),),
            classes=(0, 1, 2, 9),
            magnitude=-1100,
            max_bins=None,
        )
    )
    return one


def grow_message(trees: WholeTrees, **changes: Any) -> msg.GrowOn:
    return msg.GrowOn(settings=plan().settings(5), **(fields_of(trees, 0) | changes))


def test_messages_out_of_turn_are_refused_and_change_nothing() -> None:
    frame, y = table(1)
    one = client("one", frame, Target.of_classes(y))
    with pytest.raises(RemoteProtocolError, match="Unexpected GrowOn in state idle; expected in state ready"):
        one.handle(grow_message(WholeTrees.single_leaves(1)))
    with pytest.raises(RemoteProtocolError, match="Unexpected GrowAlone"):
        one.handle(msg.GrowAlone(settings=plan().settings(5), first_tree=0, n_trees=1))
    assert one.state == RowClientState.idle
    with pytest.raises(RemoteProtocolError, match="Unexpected DescribeRows"):
        ready().handle(msg.DescribeRows(task="classes"))


STUMP = WholeTrees(
    Structure(np.array([0, 3]), np.array([2, -1, -1], np.int32)),
    trees_of(
        msg.GrownTrees(
            first_tree=0,
            offset=np.array([0, 3]),
            right=np.array([2, -1, -1], np.int32),
            feature=np.zeros(1, np.int32),
            threshold=np.zeros(1),
            missing_left=np.zeros(1, np.uint8),
            set_start=np.zeros(2, np.int64),
            sets=np.zeros(0, np.uint8),
        ),
        (None,),
        "a test",
    ).splits,
)

UNSOUND: dict[str, dict[str, Any]] = {
    "a branch that leaves its tree": {"right": np.array([7, -1, -1], np.int32)},
    "a loop": {"right": np.array([0, -1, -1], np.int32)},
    "no such column": {"feature": np.array([5], np.int32)},
    "a threshold that is no number": {"threshold": np.array([np.nan])},
    "a question too few": {"threshold": np.zeros(0)},
    "a set for numbers": {"set_start": np.array([0, 1]), "sets": np.zeros(1, np.uint8)},
    "categories without a set": {"feature": np.array([4], np.int32)},
}


@pytest.mark.parametrize("fault", UNSOUND)
def test_unsound_trees_are_refused(fault: str) -> None:
    one = ready()
    assert isinstance(one.handle(grow_message(STUMP)), msg.GrownTrees)
    with pytest.raises(RemoteProtocolError, match="sent trees that are not sound"):
        one.handle(grow_message(STUMP, **UNSOUND[fault]))


def fill_message(**changes: Any) -> msg.FillLeaves:
    order = sum_messages.SumOrder(round=0, clients=("one", "other", "third"), length=3 * 4, bound=1000)
    known: dict[str, Any] = {"order": order, "average": "rows", "min_rows": 4, "fraction_bits": 0}
    return msg.FillLeaves(**(fields_of(STUMP, 0) | known | changes))


def test_a_client_keeps_its_own_limit_of_rows() -> None:
    with pytest.raises(PolicyError, match="4 or more of its rows"):
        ready().handle(fill_message(min_rows=2))
    with pytest.raises(RemoteProtocolError, match="do not fit its trees"):
        ready().handle(fill_message(average="plain"))
    with pytest.raises(RemoteProtocolError, match="bits after the point"):
        ready().handle(fill_message(fraction_bits=60))
    with pytest.raises(RemoteProtocolError, match="unexpected sum"):
        ready().handle(fill_message())


def test_every_tree_is_grown_and_filled_once() -> None:
    """Else a coordinator would have a client grow trees on at whatever leaf it likes, as often as it likes."""
    frame, y = table(1)
    ordered = plan()
    one = client("one", frame, Target.of_classes(y), plan=ordered)
    like = ready()
    one.handle(msg.DescribeRows(task="classes"))
    one.handle(like.schema)
    single = WholeTrees.single_leaves(1)
    told = codec.encode(one.handle(grow_message(single)))
    for other in (grow_message(STUMP), grow_message(single, first_tree=ordered.n_estimators)):
        with pytest.raises(RemoteProtocolError, match="GrowOn is not what was ordered"):
            one.handle(other)
    assert codec.encode(one.handle(grow_message(single))) == told
    assert isinstance(like.handle(grow_message(STUMP, first_tree=ordered.n_estimators)), msg.GrownTrees)  # no order
    asked = fill_message(min_rows=ordered.min_leaf_rows, average=ordered.leaf_average, first_tree=ordered.n_estimators)
    width, cells = tally_width(like.schema.classes, ordered.leaf_average), tally_nodes(STUMP.structure, asked.min_rows)
    order = structs.replace(asked.order, length=len(cells) * width)
    with pytest.raises(RemoteProtocolError, match="FillLeaves is not what was ordered"):
        one.handle(structs.replace(asked, order=order))


@pytest.mark.parametrize(
    "changes", [{"max_depth": 0}, {"min_samples_leaf": 0}, {"n_candidates": 9}, {"max_samples": 0.0}]
)
def test_settings_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    settings = plan().settings(5)
    values = {name: getattr(settings, name) for name in settings.__struct_fields__} | changes
    message = msg.GrowOn(settings=msg.GrowthSettings(**values), **fields_of(STUMP, 0))
    with pytest.raises(RemoteProtocolError, match="out of range"):
        ready().handle(message)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"names": ("age", "income", "visits", "basket", "city")}, "other columns"),
        ({"categories": (None,) * 5}, "calls a column of categories numbers"),
        (
            {"categories": (("x",), None, None, None, ("Aarau", "Brugg", "Chur"))},
            "calls a column of numbers categories",
        ),
        ({"categories": (None,) * 4 + (("Aarau", "Brugg"),)}, "leaves out a category"),
        ({"categories": (None,) * 4 + (("Chur", "Brugg", "Aarau"),)}, "ascending"),
        ({"classes": (0, 1)}, "leaves out a class"),
        ({"max_bins": 1}, "1 bins"),
    ],
)
def test_a_schema_that_is_not_the_clients_is_refused(changes: dict[str, Any], error: str) -> None:
    frame, y = table(1)
    one = client("one", frame, Target.of_classes(y))
    one.handle(msg.DescribeRows(task="classes"))
    known: dict[str, Any] = {
        "names": tuple(frame.columns),
        "categories": (None,) * 4 + (("Aarau", "Brugg", "Chur"),),
        "classes": (0, 1, 2),
        "magnitude": 0,
        "max_bins": None,
    }
    with pytest.raises(RemoteProtocolError, match=error):
        one.handle(msg.UseSchema(**(known | changes)))
    assert one.state == RowClientState.described
    one.handle(msg.UseSchema(**known))


def answered(protocol: Any, handlers: Mapping[str, HorizontalClient], change: dict[type, Any]) -> None:
    """Run a protocol whose first client answers some requests otherwise."""
    step = next(protocol)
    while True:
        replies: dict[str, Message] = {name: handlers[name].handle(m) for name, m in step.requests.items()}
        first = next(iter(replies))
        kind = type(replies[first])
        if kind in change:
            replies[first] = change[kind](replies[first])
        step = protocol.send(replies)


def test_a_client_that_returns_other_trees_is_found_out() -> None:
    fewer = {msg.GrownTrees: lambda reply: msg.GrownTrees(**fields_of(WholeTrees.single_leaves(1), 0))}
    with pytest.raises(RemoteProtocolError, match="client-0 did not return the trees"):
        answered(collaborative_forest(plan(), ("client-0", "client-1", "client-2")), clients(3), fewer)
    other = {msg.GrownTrees: lambda reply: msg.SchemaInUse()}
    with pytest.raises(RemoteProtocolError, match="instead of GrownTrees"):
        answered(collaborative_forest(plan(), ("client-0", "client-1", "client-2")), clients(3), other)


def test_messages_check_themselves() -> None:
    with pytest.raises(LocalProtocolError, match="one by one"):
        msg.RowsDescribed(
            n_rows=3, names=("a", "a"), kinds=("number",) * 2, categories=((), ()), classes=(), magnitude=0
        )
    with pytest.raises(DataError, match="no rows to train on"):
        grow(clients(3, rows=0), plan())


def test_noise_in_the_leaves_is_paid_for_before_it_is_told() -> None:
    ordered = plan(dp_leaf_epsilon=0.5, min_leaf_rows=1, leaf_average="rows")
    for budget, refused in ((4.0, False), (3.9, True)):
        client_budgets = {f"client-{k}": LocalBudget(f"client-{k}", budget=Budget(budget)) for k in range(3)}
        handlers = {
            name: client(name, *labelled(table(k)), plan=ordered, client_budget=client_budget)
            for k, (name, client_budget) in enumerate(client_budgets.items())
        }
        if refused:
            with pytest.raises(PolicyError, match="the privacy budget does not allow it"):
                grow(handlers, ordered)
        else:
            grow(handlers, ordered)
        spent = [
            sum(spend.epsilon * spend.count for spend in client_budget.spends("rows"))
            for client_budget in client_budgets.values()
        ]
        assert spent == pytest.approx([0.0 if refused else 4.0] * 3)
