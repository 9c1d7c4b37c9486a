"""Federated extra-trees as a protocol: the same forest whoever has the rows, what is charged, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec import structs

from wire_search import captured
from woodlot.data.tables import read_table
from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.privacy.accounting import UNITS, Spend
from woodlot.privacy.budget import Budget, BudgetFile, Charge
from woodlot.privacy.budget import BudgetRecord as BudgetLedger
from woodlot.privacy.client_budget import LocalBudget
from woodlot.privacy.settings import GlobalDP, LocalDP
from woodlot.protocols.core.message import Message, Refusal
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows import extra_messages as msg
from woodlot.protocols.rows import extra_trees as coordinator
from woodlot.protocols.rows import row_messages
from woodlot.protocols.rows.extra_client import ExtraTreesClient
from woodlot.protocols.rows.extra_plan import ExtraTreesPlan
from woodlot.protocols.rows.extra_trees import extra_trees
from woodlot.protocols.rows.row_claims import claim_of
from woodlot.protocols.rows.row_client import Holdings
from woodlot.protocols.rows.row_labels import UNLISTED, listed_numbers
from woodlot.protocols.rows.whole_forest import fields_of
from woodlot.protocols.sums import sum_messages, sum_of
from woodlot.runtime import codec
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.journal import Journal
from woodlot.runtime.run import run
from woodlot.runtime.sessions import Sessions
from woodlot.trees.alone import WholeTrees

SECRET = bytes(range(32))
KNOTS = {"age": (-4.0, 4.0), "income": (-4.0, 0.0, 4.0)}
TOWNS = ("Aarau", "Brugg", "Chur")
CLASSES = ("high", "low", "middle")


def plan(**changes: Any) -> ExtraTreesPlan:
    known: dict[str, Any] = {
        "task": "classes",
        "n_estimators": 6,
        "criterion": "gini",
        "max_depth": 6,
        "min_samples_split": 2,
        "min_samples_leaf": 1,
        "max_features": "sqrt",
        "bootstrap": False,
        "max_samples": None,
        "max_bins": None,
        "seed": 3,
        "knots": KNOTS,
        "known_categories": {"town": TOWNS},
        "classes": CLASSES,
    }
    return ExtraTreesPlan(**(known | changes))


def table(n: int = 150, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(rng.normal(size=(n, 2)).round(2), columns=["age", "income"])
    frame.loc[rng.random(n) < 0.1, "income"] = np.nan
    frame["town"] = rng.choice(TOWNS, n)
    signal = frame["age"] + (frame["town"] == "Chur")
    return frame, np.array(CLASSES)[np.digitize(signal + rng.normal(size=n) * 0.2, [-0.4, 0.8])]


def holdings(name: str, frame: pd.DataFrame, target: Target, **options: Any) -> Holdings:
    known: dict[str, Any] = {
        "entropy": lambda purpose: SECRET,
        "lasting": lambda purpose: SECRET,
        "client_budget": LocalBudget(name),
        "shared_secret": SECRET,
        "row_ids": lambda: [row.to_bytes(8, "big") for row in frame.index.tolist()],
    }
    return Holdings(name=name, table=read_table(frame), target=target, **(known | options))


def clients(a_plan: ExtraTreesPlan, n: int, dealing: np.ndarray | None = None, **options: Any) -> dict[str, Any]:
    frame, y = table()
    values = frame["age"].to_numpy() * 3.7
    dealing = np.arange(len(y)) % n if dealing is None else dealing
    handlers = {}
    for k in range(n):
        own = dealing == k
        target = Target.of_values(values[own]) if a_plan.task == "targets" else Target.of_classes(y[own])
        handlers[f"client-{k}"] = ExtraTreesClient(holdings(f"client-{k}", frame[own], target, **options), a_plan)
    return handlers


def grow(a_plan: ExtraTreesPlan, handlers: Mapping[str, Any]) -> Any:
    ledger = Ledger()
    with InProcessDriver(handlers, ledger=ledger) as driver:
        return run(extra_trees(a_plan, tuple(handlers)), driver, ledger=ledger)


def arrays(parts: Any) -> list[np.ndarray]:
    forest, part = parts
    splits, leaves = part.splits, forest.leaves
    fields = ("feature", "threshold", "missing_left", "set_start", "sets")
    return [
        forest.structure.right,
        *(getattr(splits, name) for name in fields),
        leaves.weight,
        leaves.output,
        leaves.value,
        forest.gain,
    ]


REGRESSION: dict[str, Any] = {"task": "targets", "criterion": "squared_error", "classes": None}


@pytest.mark.parametrize("changes", [{}, REGRESSION, {"privacy": LocalDP(), "min_samples_leaf": 3}])
def test_the_forest_does_not_depend_on_who_has_the_rows(changes: dict[str, Any]) -> None:
    """One client with all rows, three and seven, secure and plain sums, dealt evenly or not."""
    whole = arrays(grow(plan(**changes, sums="plain"), clients(plan(**changes, sums="plain"), 1)))
    assert len(whole[0]) > 100
    uneven = np.minimum(np.arange(150) // 10, 2)
    for n, dealing, sums in ((3, None, "secure"), (3, uneven, "plain"), (7, None, "secure")):
        ordered = plan(**changes, sums=sums)
        for one, other in zip(whole, arrays(grow(ordered, clients(ordered, n, dealing))), strict=True):
            np.testing.assert_array_equal(one, other)


def test_levels_in_several_answers_give_the_same_forest(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = arrays(grow(plan(), clients(plan(), 3)))
    monkeypatch.setattr(coordinator, "CELLS_AT_ONCE", 12)
    monkeypatch.setattr(coordinator, "_READ_AT_ONCE", 5)
    for one, other in zip(whole, arrays(grow(plan(), clients(plan(), 3))), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("cells", [6, 18])
def test_a_tree_in_several_answers_is_charged_once(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    """The nodes of one tree and level have different rows, in however many messages they are asked about."""
    ordered = plan(privacy=GlobalDP(query_epsilon=5.0), n_estimators=2, max_depth=3, min_samples_leaf=1)
    asked: list[int] = []

    class Counted:
        def __init__(self, client: ExtraTreesClient) -> None:
            self.client = client

        def handle(self, message: Message) -> Message:
            asked.extend([message.step] if isinstance(message, msg.CountSplits) else [])
            return self.client.handle(message)

    monkeypatch.setattr(coordinator, "CELLS_AT_ONCE", cells)
    handlers = clients(ordered, 3)
    grow(ordered, {name: Counted(client) for name, client in handlers.items()})  # type: ignore[arg-type]
    assert len(asked) / 3 > len(set(asked)) > 1  # some levels were asked about in parts
    for spends in spent(handlers):
        assert sum(spend.count for spend in spends) == 2 * (len(set(asked)) * ordered.width(3) + 1)


def test_labels_that_are_not_listed_stop_no_private_job(caplog: pytest.LogCaptureFixture) -> None:
    """Only the client is told, in its own log: a refusal would tell everybody a fact about one row."""
    frame, y = table()
    odd = y.astype(object)
    odd[:5] = "unheard of"
    for privacy in (GlobalDP(epsilon=50.0), LocalDP(epsilon=5.0)):
        ordered = plan(privacy=privacy)
        handlers = clients(ordered, 3)
        client = ExtraTreesClient(holdings("client-0", frame, Target.of_classes(odd.astype(str))), ordered)
        grow(ordered, handlers | {"client-0": client})
        assert "5 rows of client-0 have a label that is missing or not in the public list" in caplog.text
        # the rows take no part under GlobalDP; under LocalDP their number is told, and they are there
        assert client.table.n_rows == len(y) - (5 if isinstance(privacy, GlobalDP) else 0)
        caplog.clear()
    with pytest.raises(DataError, match="not in the public list"):  # without privacy an error helps
        grow(
            plan(),
            clients(plan(), 3)
            | {"client-0": ExtraTreesClient(holdings("client-0", frame, Target.of_classes(odd.astype(str))), plan())},
        )


@pytest.mark.parametrize(
    ("public", "others"),
    [((0, 1), [["0", "1"], [0.0, 1.0], ["0.0", "1"]]), (("0", "1"), [[0, 1], [0.0, 1.0]]),
     ((False, True), [["false", "true"], ["False", "TRUE"]]), (("a", "b"), []), (("1", 1), [])],
)  # fmt: skip
def test_one_odd_cell_changes_what_no_other_row_is_counted_as(public: Any, others: list[list[Any]]) -> None:
    """It makes a column of a CSV file text: a row that changes the counts of all others has no price in epsilon."""
    for labels in (list(public), *others):
        assert listed_numbers(labels, public).tolist() == [0, 1]
        assert listed_numbers([*labels, "odd", None, float("nan"), 7, "7"], public).tolist() == [0, 1] + [UNLISTED] * 5


def test_an_unlisted_label_is_told_as_one_class_at_every_training() -> None:
    """The class follows from the id of the row, so a second training tells nothing new of it."""
    frame, y = table()
    odd = y.astype(object)
    odd[:40] = "unheard of"
    told = []
    for _ in range(2):
        client = ExtraTreesClient(
            holdings("client-0", frame, Target.of_classes(odd.astype(str))), plan(privacy=LocalDP(epsilon=20.0))
        )
        client.handle(msg.DescribeColumns(task="classes", hide_rows=False))
        client.handle(
            row_messages.UseSchema(
                names=("age", "income", "town"), categories=(None, None, TOWNS), classes=CLASSES, magnitude=0,
                max_bins=None,
            )
        )  # fmt: skip
        start, tokens = client._label_tokens()
        told.append([tuple(tokens[a:b].tolist()) for a, b in pairwise(start[:41].tolist())])
    assert told[0] == told[1]
    assert len(set(told[0])) > 1  # not all the same class


def test_before_trees_grow_labels_change_nothing_where_they_are_protected() -> None:
    ordered = plan(privacy=LocalDP(), classes=("A", *CLASSES))
    frame, y = table()
    other = ExtraTreesClient(holdings("client-0", frame, Target.of_classes(np.roll(y, 1))), ordered)
    same = ExtraTreesClient(holdings("client-0", frame, Target.of_classes(y[y != "low"])), ordered)
    question = msg.DescribeColumns(task="classes", hide_rows=False)
    assert codec.encode(other.handle(question)) == codec.encode(same.handle(question))


# --- what is charged ---


def spent(handlers: Mapping[str, Any]) -> list[list[Spend]]:
    return [[s for unit in UNITS for s in handler._own.client_budget.spends(unit)] for handler in handlers.values()]


def test_randomised_labels_are_charged_once_and_for_ever() -> None:
    ordered = plan(privacy=LocalDP())
    handlers = clients(ordered, 3)
    grow(ordered, handlers)
    claim = claim_of(ordered, 3)
    for spends in spent(handlers):
        assert [spend.count for spend in spends] == [1]
        assert spends[0].epsilon == pytest.approx(claim.epsilon)
    client_budgets = {name: handler._own.client_budget for name, handler in handlers.items()}
    before = spent(handlers)
    for changes in ({"n_estimators": 20, "seed": 5}, {"privacy": LocalDP(pr=0.5)}):
        again = plan(**({"privacy": LocalDP()} | changes))
        frame, y = table()
        handlers = {
            name: ExtraTreesClient(
                holdings(name, frame[k::3], Target.of_classes(y[k::3]), client_budget=client_budgets[name]), again
            )
            for k, name in enumerate(client_budgets)
        }
        grow(again, handlers)
        if "n_estimators" in changes:  # more trees are free
            assert spent(handlers) == before
        else:
            assert all(len(spends) == 2 for spends in spent(handlers))


class DroppingBudget(LocalBudget):
    """Notes each time that something is to be paid, for whoever pays it or not."""

    def __init__(self) -> None:
        super().__init__("a")
        self.asked: list[str] = []

    def charge(self, charge: Charge) -> Charge:
        self.asked.append(charge.release)
        return charge


def test_randomised_labels_are_not_told_on_a_charge_that_was_dropped() -> None:
    """A party drops the charges of a request that is refused: every answer asks for its own."""
    client_budget = DroppingBudget()
    client, questions = first_level(plan(privacy=LocalDP(), sums="plain"), client_budget=client_budget)
    rows = msg.CountRows(order=structs.replace(questions.order, length=4, round=7), fraction_bits=0)
    for message in (questions, rows):
        client_budget.asked.clear()
        client.handle(message)
        assert len(set(client_budget.asked)) == 1


@pytest.mark.parametrize("leaves_only", [False, True])
def test_noise_is_charged_for_every_query(leaves_only: bool) -> None:
    ordered = plan(privacy=GlobalDP(query_epsilon=0.5, leaves_only=leaves_only), max_depth=3, n_estimators=4)
    handlers = clients(ordered, 3)
    grow(ordered, handlers)
    planned = ordered.queries(3)
    assert planned == (4 if leaves_only else 4 * (3 * 1 + 1))
    for spends in spent(handlers):
        assert {spend.epsilon for spend in spends} == {0.5}
        assert sum(spend.count for spend in spends) <= planned
        assert sum(spend.count for spend in spends) >= (4 if leaves_only else 8)
    claim = claim_of(ordered, 3)
    assert claim.plain_epsilon == pytest.approx(0.5 * planned)
    assert claim.epsilon is not None
    assert claim.epsilon <= claim.plain_epsilon
    total = plan(privacy=GlobalDP(epsilon=2.0, leaves_only=leaves_only), max_depth=3, n_estimators=4)
    assert claim_of(total, 3).plain_epsilon == pytest.approx(2.0)


def test_noise_alone_does_not_grow_trees() -> None:
    """An empty node has noise in every count: were that taken for rows, all trees would have 2^11 leaves."""
    names = tuple(sorted((*CLASSES, *(f"unseen {k}" for k in range(27)))))
    ordered = plan(privacy=GlobalDP(query_epsilon=1.0), max_depth=11, n_estimators=4, classes=names)
    forest, _ = grow(ordered, clients(ordered, 3))
    assert forest.structure.n_trees == 4
    assert forest.structure.n_leaves < 4 * 50


def test_private_quantiles_are_charged() -> None:
    ordered = plan(ranges="private-quantiles", quantile_epsilon=2.0, privacy=LocalDP())
    handlers = clients(ordered, 3)
    grow(ordered, handlers)
    for spends in spent(handlers):
        assert sum(spend.epsilon * spend.count for spend in spends) == pytest.approx(
            2.0 + LocalDP().total_epsilon(CLASSES)
        )


def test_a_budget_that_is_too_small_is_refused_before_anything_is_told() -> None:
    for privacy, budget in ((LocalDP(), 1.0), (GlobalDP(epsilon=4.0), 3.9)):
        ordered = plan(privacy=privacy)
        handlers = clients(ordered, 3)
        for name in handlers:
            handlers[name]._own.client_budget.budget = Budget(budget)
        with pytest.raises(PolicyError, match="the privacy budget does not allow it"):
            grow(ordered, handlers)
        assert spent(handlers) == [[], [], []]


@pytest.mark.parametrize("privacy", [GlobalDP(epsilon=4.0), LocalDP(epsilon=4.0)], ids=["global", "local"])
@pytest.mark.parametrize("budget", [4.5, 5.1])
def test_quantiles_and_counts_are_one_plan_at_a_party(privacy: Any, budget: float, tmp_path: Path) -> None:
    """Either alone is within the budget of 4.5, and none is told; what was paid for quantiles is not counted twice.

    Randomised labels have an account of their own: quantiles, which are of rows, do not fill it.
    """
    enough = budget > 5 or isinstance(privacy, LocalDP)
    ordered = plan(privacy=privacy, ranges="private-quantiles", quantile_epsilon=1.0, sums="plain", n_estimators=1)
    journal = Journal(tmp_path / "journal", durable=False)

    def open_job(job: str) -> ExtraTreesClient:
        frame, y = table()
        client_budget = sessions.pending_charges(job).client_budget("a", "table", Budget(budget))
        return ExtraTreesClient(
            holdings("a", frame, Target.of_classes(y), client_budget=client_budget, job=job), ordered
        )

    sessions = Sessions("a", open_job, journal=journal)
    numbers = dict.fromkeys(("first", "other"), 0)

    def ask(message: Message, job: str) -> Message:
        numbers[job] += 1
        return codec.decode(sessions.answer(job, numbers[job], codec.encode(message)))

    counting = first_level(ordered)[1]
    ready = (
        msg.DescribeColumns(task="classes", hide_rows=isinstance(privacy, GlobalDP)),
        row_messages.UseSchema(
            names=("age", "income", "town"), categories=(None, None, TOWNS), classes=CLASSES, magnitude=0, max_bins=None
        ),
        sum_messages.OpenSums(clients=("a",), mode="plain"),
        sum_messages.StartSums(introductions={"a": sum_messages.SumIntroduction()}),
    )
    for message in ready:
        assert not isinstance(ask(message, "first"), Refusal)
    told = ask(msg.TellQuantiles(), "first")
    assert isinstance(told, msg.QuantilesTold if enough else Refusal)
    if not enough:  # whichever question comes first
        for message in ready:
            ask(message, "other")
        assert isinstance(ask(counting, "other"), Refusal)
    if enough:
        assert isinstance(ask(counting, "first"), sum_messages.PlainVector)
    charges = journal.job("first").consult(lambda db: BudgetLedger(db).charges("a", "table"))
    assert [c.unit for c in charges] == (
        [] if not enough else ["rows", "rows" if isinstance(privacy, GlobalDP) else "labels"]
    )
    journal.close()


def test_a_budget_that_is_spent_meanwhile_stops_the_forest_in_the_middle() -> None:
    """Another job of the client takes what was left: the next level is refused, and nothing more is charged."""
    ordered = plan(privacy=GlobalDP(query_epsilon=1.0))
    file = BudgetFile.in_memory()
    client_budget = LocalBudget("client-0", budget=Budget(float(ordered.queries(3))), file=file)
    handlers = clients(ordered, 3)
    frame, y = table()
    client = ExtraTreesClient(
        holdings("client-0", frame[::3], Target.of_classes(y[::3]), client_budget=client_budget), ordered
    )
    handlers["client-0"] = client

    class Meanwhile:
        levels = 0

        def handle(self, message: Message) -> Message:
            if isinstance(message, msg.CountSplits):
                self.levels += 1
                if self.levels == 3:
                    left = ordered.queries(3) - sum(spend.count for spend in client_budget.spends("rows"))
                    client_budget.charge(
                        Charge(unit="rows", release="other", mechanism="other", spend=Spend(1.0, left))
                    )
            return client.handle(message)

    with pytest.raises(PolicyError, match="the privacy budget does not allow it"):
        grow(ordered, handlers | {"client-0": Meanwhile()})
    assert client._step == 1  # as after the second level
    assert sum(spend.count for spend in client_budget.spends("rows")) == ordered.queries(3)


def test_an_order_that_cannot_be_answered_costs_nothing() -> None:
    """A coordinator must not be able to use up a budget by questions that are then refused."""
    ordered = plan(privacy=GlobalDP(query_epsilon=1.0), n_estimators=1, max_depth=2)
    handlers = clients(ordered, 3)
    refused = 0

    class Pestering:
        def __init__(self, client: ExtraTreesClient) -> None:
            self._client = client

        def handle(self, message: Message) -> Message:
            nonlocal refused
            order = getattr(message, "order", None)
            if order is not None:
                before = self._client._own.client_budget.spends("rows")
                fewer = structs.replace(order, round=order.round + 100, clients=order.clients[:2])
                others = structs.replace(order, clients=(*order.clients[:-1], "stranger"))
                for wrong in (fewer, others):
                    with pytest.raises((RemoteProtocolError, PolicyError)):
                        self._client.handle(structs.replace(message, order=wrong))
                    refused += 1
                assert self._client._own.client_budget.spends("rows") == before
            reply = self._client.handle(message)
            if order is not None:
                with pytest.raises(RemoteProtocolError):  # the same round once more, which would draw other noise
                    self._client.handle(message)
            return reply

    undisturbed = [len(spends) for spends in spent_after(ordered, clients(ordered, 3))]
    grow(ordered, {name: Pestering(client) for name, client in handlers.items()})
    assert refused > 6
    assert [len(spends) for spends in spent(handlers)] == undisturbed


def spent_after(ordered: ExtraTreesPlan, handlers: dict[str, Any]) -> list[Any]:
    grow(ordered, handlers)
    return spent(handlers)


def test_a_repeated_question_gets_the_same_noise() -> None:
    ordered = plan(privacy=GlobalDP(query_epsilon=0.1), sums="plain", n_estimators=1, max_depth=2)
    client, questions = first_level(ordered)
    again, _ = first_level(ordered, client_budget=client._own.client_budget)
    one, two = client.handle(questions), again.handle(questions)
    assert isinstance(one, sum_messages.PlainVector)
    assert isinstance(two, sum_messages.PlainVector)
    np.testing.assert_array_equal(one.values, two.values)
    fresh, _ = first_level(ordered)
    three = fresh.handle(questions)
    assert isinstance(three, sum_messages.PlainVector)
    assert (three.values != one.values).any()


class Greedy:
    """Stands before a client, for a coordinator that asks for everything again, under rounds of its own."""

    def __init__(self, client: ExtraTreesClient) -> None:
        self.client = client
        self.refused: set[str] = set()

    def handle(self, message: Message) -> Message:
        reply = self.client.handle(message)
        if isinstance(message, msg.TellQuantiles):
            assert codec.encode(self.client.handle(message)) == codec.encode(reply)
        if isinstance(message, msg.CountSplits | msg.CountLeaves):
            again = changed(message, order=structs.replace(message.order, round=10_000 + message.order.round))
            if isinstance(again, msg.CountSplits):  # what has become of the level before was told
                told = ("fate", "is_open", "split_feature", "split_threshold", "split_missing_left", "split_sets")
                again = changed(again, **{name: getattr(again, name)[:0] for name in told})
            for question in (again, msg.TellQuantiles()):
                with pytest.raises(RemoteProtocolError, match=r"than was ordered|not what was ordered|not ordered"):
                    self.client.handle(question)
                self.refused.add(type(question).__name__)
        return reply


@pytest.mark.parametrize("leaves_only", [False, True])
def test_no_more_noise_is_drawn_than_was_ordered(leaves_only: bool) -> None:
    """A party's budget may be larger than what an order costs: it is not the coordinator's to use up."""
    privacy = GlobalDP(query_epsilon=0.5, leaves_only=leaves_only)
    ordered = plan(privacy=privacy, max_depth=3, n_estimators=4, ranges="private-quantiles", quantile_epsilon=1.0)
    handlers = clients(ordered, 3)
    greedy = {name: Greedy(client) for name, client in handlers.items()}
    grow(ordered, greedy)
    for spends in spent(handlers):
        noise = [spend for spend in spends if spend.epsilon == 0.5]
        assert sum(spend.count for spend in noise) <= ordered.queries(3)
    for one in greedy.values():
        assert one.refused == {"CountLeaves", "TellQuantiles"} | (set() if leaves_only else {"CountSplits"})
    if leaves_only:
        client, questions = first_level(changed(ordered, sums="plain"))
        with pytest.raises(RemoteProtocolError, match="more than was ordered"):
            client.handle(questions)
        assert client._own.client_budget.spends("rows") == []  # type: ignore[union-attr]


# --- a coordinator that asks clients different things ---


def agreed(ordered: ExtraTreesPlan, **options: Any) -> dict[str, ExtraTreesClient]:
    """Three clients that are ready to count."""
    handlers = clients(ordered, 3, **options)
    hello: Message = row_messages.DescribeRows(task="classes")
    if ordered.privacy is not None:
        hello = msg.DescribeColumns(task="classes", hide_rows=isinstance(ordered.privacy, GlobalDP))
    use = row_messages.UseSchema(
        names=("age", "income", "town"), categories=(None, None, TOWNS), classes=CLASSES, magnitude=0, max_bins=None
    )
    names = tuple(handlers)
    for message in (hello, use):
        for client in handlers.values():
            client.handle(message)
    told = {
        name: client.handle(sum_messages.OpenSums(clients=names, mode="secure")) for name, client in handlers.items()
    }
    start = sum_messages.StartSums(introductions={name: reply.introduction for name, reply in told.items()})
    for client in handlers.values():
        client.handle(start)
    return handlers


@pytest.mark.parametrize("elsewhere", [False, True])
def test_what_has_become_of_a_level_is_in_the_masks_also_where_it_came_with_proposals(elsewhere: bool) -> None:
    """Two clients that are told of a split which sends all of their rows left would add nothing on the right."""
    ordered = plan(ranges="proposals", knots={}, n_estimators=1, max_features=None, min_proposal_rows=1)
    handlers = agreed(ordered)
    nothing = np.empty(0, np.uint8)
    untold: dict[str, Any] = {
        "fate": nothing, "is_open": nothing, "split_feature": np.empty(0, np.int32), "split_threshold": np.empty(0),
        "split_missing_left": nothing, "split_sets": nothing,
    }  # fmt: skip
    columns = np.array([0, 1, -1], np.int32)
    root = msg.ProposeThresholds(**(untold | {"is_open": np.ones(1, np.uint8)}), step=0, width=3, feature=columns)
    for name, client in handlers.items():
        client.handle(root)
        at = 1e9 if elsewhere and name != "client-1" else 0.0
        split = untold | {
            "fate": np.full(1, 2, np.uint8), "is_open": np.array([0, 1], np.uint8), "split_threshold": np.array([at]),
            "split_feature": np.zeros(1, np.int32), "split_missing_left": np.zeros(1, np.uint8),
        }  # fmt: skip
        client.handle(msg.ProposeThresholds(**split, step=1, width=3, feature=columns))
    order = sum_messages.SumOrder(round=0, clients=tuple(handlers), length=9, bound=1000)
    question = msg.CountSplits(
        **untold, step=1, width=3, first=0, feature=columns, threshold=np.array([1e9, 1e9, 0.0]),
        missing_left=np.ones(3, np.uint8), sets=nothing, fraction_bits=0, order=order,
    )  # fmt: skip
    replies = {name: client.handle(question) for name, client in handlers.items()}
    if elsewhere:
        with pytest.raises(RemoteProtocolError, match="they were told different things"):
            sum_of(order, "secure", replies)
        return
    frame, y = table()
    expected = [int((y[frame["age"] > 0] == label).sum()) for label in CLASSES]
    assert sum_of(order, "secure", replies)[:3].tolist() == expected


def test_a_bound_does_not_have_noise_drawn_again_and_again() -> None:
    """A refusal that depends on the noise would be an answer that nobody has paid for."""
    ordered = plan(privacy=GlobalDP(epsilon=1.0, leaves_only=True), n_estimators=1)
    client = agreed(ordered)["client-1"]
    names = ("client-0", "client-1", "client-2")
    trees = fields_of(WholeTrees.single_leaves(1), 0)
    for number, bound in enumerate((1, 10, 10**9)):
        ask = msg.CountLeaves(**trees, order=sum_messages.SumOrder(round=number, clients=names, length=3, bound=bound))
        if number:
            with pytest.raises(RemoteProtocolError, match="another time one that is done"):
                client.handle(ask)
        else:
            assert isinstance(client.handle(ask), sum_messages.MaskedVector)
        assert [spend.count for spend in client._own.client_budget.spends("rows")] == [1]  # type: ignore[union-attr]


# --- what is refused ---


def first_level(ordered: ExtraTreesPlan, **options: Any) -> tuple[ExtraTreesClient, msg.CountSplits]:
    """A client that is asked its first questions."""
    frame, y = table()
    client = ExtraTreesClient(holdings("a", frame, Target.of_classes(y), **options), ordered)
    if ordered.privacy is None:
        client.handle(row_messages.DescribeRows(task="classes"))
    else:
        client.handle(msg.DescribeColumns(task="classes", hide_rows=isinstance(ordered.privacy, GlobalDP)))
    client.handle(
        row_messages.UseSchema(
            names=("age", "income", "town"),
            categories=(None, None, TOWNS),
            classes=CLASSES,
            magnitude=0,
            max_bins=None,
        )
    )
    client.handle(sum_messages.OpenSums(clients=("a",), mode="plain"))
    client.handle(sum_messages.StartSums(introductions={"a": sum_messages.SumIntroduction()}))
    width, n = ordered.width(3), ordered.n_estimators
    nothing = np.empty(0, np.uint8)
    cells = client._tally.cells
    questions = msg.CountSplits(
        step=0,
        fate=nothing,
        is_open=np.ones(n, np.uint8),
        split_feature=np.empty(0, np.int32),
        split_threshold=np.empty(0),
        split_missing_left=nothing,
        split_sets=nothing,
        width=width,
        first=0,
        feature=np.zeros(n * width, np.int32),
        threshold=np.zeros(n * width),
        missing_left=np.zeros(n * width, np.uint8),
        sets=nothing,
        fraction_bits=0,
        order=sum_messages.SumOrder(round=0, clients=("a",), length=n * width * cells, bound=10**9),
    )
    return client, questions


def changed(message: Any, **fields: Any) -> Any:
    known = {name: getattr(message, name) for name in message.__struct_fields__}
    return type(message)(**(known | fields))


@pytest.mark.parametrize(
    "fields",
    [
        {"step": 1},
        {"width": 2},
        {"is_open": np.ones(2, np.uint8)},
        {"fate": np.zeros(1, np.uint8)},
        {"first": 1},
        {"first": -1},
        {"feature": np.full(6, 3, np.int32)},
        {"feature": np.full(6, 2, np.int32)},
        {"feature": np.empty(0, np.int32)},
        {"threshold": np.full(6, np.nan)},
        {"sets": np.zeros(1, np.uint8)},
        {"order": sum_messages.SumOrder(round=0, clients=("a",), length=3, bound=10)},
        {"split_feature": np.zeros(1, np.int32), "split_threshold": np.zeros(1)},
    ],
)
def test_a_level_that_is_not_sound_is_refused_and_changes_nothing(fields: dict[str, Any]) -> None:
    client, questions = first_level(plan(sums="plain"))
    with pytest.raises(RemoteProtocolError):
        client.handle(changed(questions, **fields))
    assert client._step == -1
    expected, _ = first_level(plan(sums="plain"))
    one, two = client.handle(questions), expected.handle(questions)
    assert isinstance(one, sum_messages.PlainVector)
    assert isinstance(two, sum_messages.PlainVector)
    np.testing.assert_array_equal(one.values, two.values)


def test_a_client_does_what_was_ordered_and_nothing_else() -> None:
    private, questions = first_level(plan(privacy=GlobalDP(epsilon=1.0), sums="plain"))
    order = sum_messages.SumOrder(round=1, clients=("a",), length=3, bound=10)
    for message in (msg.CountRows(order=order, fraction_bits=0), msg.CountOutside(order=order), msg.TellQuantiles()):
        with pytest.raises(RemoteProtocolError):
            private.handle(message)
    plain, questions = first_level(plan(sums="plain"))
    level = {name: getattr(questions, name) for name in msg.LevelMessage.__struct_fields__}
    with pytest.raises(RemoteProtocolError, match="proposals of thresholds were not ordered"):
        plain.handle(msg.ProposeThresholds(**level, feature=questions.feature))
    frame, y = table()
    hidden = ExtraTreesClient(holdings("a", frame, Target.of_classes(y)), plan(privacy=LocalDP()))
    with pytest.raises(RemoteProtocolError, match="under differential privacy"):
        hidden.handle(row_messages.DescribeRows(task="classes"))


def test_proposals_tell_nothing_of_few_rows_or_of_rows_that_are_alike() -> None:
    frame = pd.DataFrame({"age": [1.0] * 12 + [2.0] * 3, "income": np.arange(15.0), "town": ["Chur"] * 15})
    labels = Target.of_classes(np.array(CLASSES)[np.arange(15) % 3])
    ordered = plan(ranges="proposals", n_estimators=2, max_features=None)
    client = ExtraTreesClient(holdings("a", frame, labels), ordered)
    client.handle(row_messages.DescribeRows(task="classes"))
    client.handle(
        row_messages.UseSchema(
            names=("age", "income", "town"), categories=(None, None, TOWNS), classes=CLASSES, magnitude=0, max_bins=None
        )
    )
    nothing = np.empty(0, np.uint8)
    level: dict[str, Any] = {
        "width": 3,
        "split_sets": nothing,
        "feature": np.tile(np.arange(3, dtype=np.int32), 2),
    }
    first = msg.ProposeThresholds(
        step=0,
        fate=nothing,
        is_open=np.ones(2, np.uint8),
        split_feature=np.empty(0, np.int32),
        split_threshold=np.empty(0),
        split_missing_left=nothing,
        **level,
    )
    told = client.handle(first)
    assert isinstance(told, msg.ThresholdsProposed)
    age, income, town = told.threshold.reshape(2, 3).T
    assert ((age > 1) & (age < 2)).all()
    assert ((income > 0) & (income < 14)).all()
    assert np.isnan(town).all()
    second = msg.ProposeThresholds(  # the first tree by age: 12 rows that are alike, and 3 rows
        step=1,
        fate=np.array([2, 0], np.uint8),
        is_open=np.ones(2, np.uint8),
        split_feature=np.zeros(1, np.int32),
        split_threshold=np.array([1.5]),
        split_missing_left=np.zeros(1, np.uint8),
        **level,
    )
    told = client.handle(second)
    assert isinstance(told, msg.ThresholdsProposed)
    assert np.isnan(told.threshold).tolist() == [True, False, True, True, True, True]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"knots": {"age": (0.0, 1.0)}}, "no range is declared for ..income"),
        ({"knots": KNOTS | {"height": (0.0, 1.0)}}, "height.*do not have"),
        ({"knots": KNOTS | {"town": (0.0, 1.0)}, "known_categories": {}}, "town.*of another kind"),
        ({"known_categories": {}, "privacy": GlobalDP(epsilon=1.0)}, "no categories are declared for ..town"),
        ({"classes": ("high", "low")}, "not in the public list of classes"),
    ],
)
def test_what_is_declared_must_fit_the_columns(changes: dict[str, Any], words: str) -> None:
    ordered = plan(**changes)
    with pytest.raises(DataError, match=words):
        grow(ordered, clients(ordered, 3))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (REGRESSION | {"privacy": LocalDP()}, "regression"),
        ({"privacy": LocalDP(), "classes": None}, "list of classes must be public"),
        ({"privacy": GlobalDP(epsilon=1.0), "max_depth": None}, "needs max_depth"),
        ({"privacy": GlobalDP(epsilon=1.0, leaves_only=True), "max_depth": 30}, "at most 16"),
        ({"privacy": GlobalDP(epsilon=1.0), "ranges": "proposals"}, "tells values of rows"),
    ],
)
def test_plans_that_cannot_be_kept(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan(**changes)


def test_labels_are_randomised_only_for_rows_with_ids() -> None:
    ordered = plan(privacy=LocalDP())
    with pytest.raises(DataError, match="needs an id for every row"):
        grow(ordered, clients(ordered, 3, row_ids=None))


@pytest.mark.parametrize("privacy", [None, GlobalDP(epsilon=1.0)])
def test_what_travels(privacy: Any) -> None:
    """No client's own numbers; and where rows are protected, no category that was not declared."""
    ordered = plan(privacy=privacy, known_categories={"town": ("Zug",)})
    with captured() as seen:
        grow(ordered, clients(ordered, 3))
    names = {type(codec.decode(data)).__name__ for data in seen}
    assert "MaskedVector" in names
    assert "PlainVector" not in names
    assert ("RowsDescribed" in names) == (privacy is None)
    told = any(town.encode() in data for town in TOWNS for data in seen)
    assert told == (privacy is None)
