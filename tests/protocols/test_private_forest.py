"""Private forests: what one row can change, what clients refuse, and that noise is repeated and never reused."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from private_runs import NAMES, clients_of, holdings, plan_of, play, rows

from woodlot.data.columns import NumericColumn
from woodlot.exceptions import ConfigError, PolicyError, RemoteProtocolError
from woodlot.privacy._libraries import pld
from woodlot.privacy.budget import Budget
from woodlot.privacy.client_budget import LocalBudget
from woodlot.privacy.gaussian import SHARE
from woodlot.protocols.rows import row_messages
from woodlot.protocols.rows.private import PrivateClient, PrivatePlan
from woodlot.protocols.rows.private import private_messages as msg
from woodlot.protocols.rows.private.gradients import histogram, in_steps, residuals, sum_by_leaf, sum_totals
from woodlot.protocols.rows.private.private_coordinator import draw_trees
from woodlot.protocols.rows.private.private_plan import Terms
from woodlot.protocols.rows.private.smoothing import answers_of
from woodlot.protocols.rows.schema import NO_MAGNITUDE, CommonSchema
from woodlot.protocols.sums.sum_messages import SumOrder

KINDS: dict[str, dict[str, Any]] = {
    "two classes": {},
    "five classes": {"classes": (0, 1, 2, 3, 4)},
    "targets": {"task": "targets", "criterion": "squared_error", "classes": None, "target_range": (0.0, 10.0)},
}
finite = st.floats(-1e300, 1e300)


@given(st.sampled_from(list(KINDS)), st.floats(0.05, 20), st.data())
def test_no_gradient_is_longer_than_the_noise_is_made_for(kind: str, epsilon: float, data: st.DataObject) -> None:
    terms = Terms(plan_of(epsilon=epsilon, **KINDS[kind]), 2, 3)
    k = terms.plan.n_scores
    gradients = np.array(data.draw(st.lists(st.lists(st.floats(-2, 2), min_size=k, max_size=k), min_size=1)))
    steps = in_steps(gradients, terms)
    assert (steps**2).sum(axis=1).max() <= terms.clip_steps**2
    short = np.sqrt((gradients**2).sum(axis=1)) <= terms.plan.clip
    np.testing.assert_allclose(steps[short], gradients[short] * terms.gradient_steps, atol=0.5 + 1e-9)


@given(st.sampled_from(list(KINDS)), st.floats(-600, 600), st.floats(-100, 100), st.integers(0, 4), st.data())
def test_one_row_more_changes_sums_by_no_more_than_is_said(
    kind: str, score: float, value: float, label: int, data: st.DataObject
) -> None:
    """Whatever scores the coordinator has made, and whatever the row holds."""
    terms = Terms(plan_of(**KINDS[kind]), 1, 3)
    k, is_target = terms.plan.n_scores, kind == "targets"
    n_classes = len(terms.plan.classes or ())
    scores = np.array([[score] * k, data.draw(st.lists(st.floats(-600, 600), min_size=k, max_size=k))])
    labels = None if is_target else np.array([0, label % n_classes])
    targets = np.clip(np.array([0.3, value]), -1, 1)
    gradients = in_steps(residuals(scores, labels, targets), terms)
    leaf = np.array([1, data.draw(st.integers(0, 3))])
    with_row, without = (sum_by_leaf(leaf[:n], 4, gradients[:n], terms) for n in (2, 1))
    assert np.sqrt(((with_row - without) ** 2).sum()) <= terms.tree_length
    totals = []
    for n in (2, 1):
        column = NumericColumn(np.array([0.5, value], np.float32)[:n])
        own = None if labels is None else labels[:n]
        totals.append(sum_totals(own, targets[:n], n_classes, [histogram(column, (0.0, 1.0))], terms))
    assert np.sqrt(((totals[0] - totals[1]) ** 2).sum()) <= terms.totals_length


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n_clients", "colluding"), [(3, 1), (10, 0), (50, 10)])
@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
def test_the_budget_is_spent_in_full_and_not_exceeded(
    kind: str, n_clients: int, colluding: int, epsilon: float
) -> None:
    terms = Terms(plan_of(epsilon=epsilon, n_estimators=100, colluding=colluding, **KINDS[kind]), 12, n_clients)
    assert 0.98 * epsilon < terms.epsilon_against(colluding) <= epsilon
    assert terms.epsilon_against(0) <= terms.epsilon_against(colluding)
    assert terms.epsilon_against(n_clients) == math.inf


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_an_independent_accountant_counts_the_same(epsilon: float) -> None:
    """Privacy loss distributions of dp-accounting, of the lengths and the noise that are really used."""
    terms = Terms(plan_of(epsilon=epsilon, n_estimators=100), 12, 3)
    deviation = math.sqrt(SHARE * 2)  # the shares of the two clients that do not collude

    def loss(length: float, times: int) -> Any:
        one = pld().from_gaussian_mechanism(
            deviation / length, value_discretization_interval=1e-4, use_connect_dots=True
        )
        return one.self_compose(times)

    whole = loss(terms.totals_length, 1).compose(loss(terms.tree_length, 100))
    counted = float(whole.get_epsilon_for_delta(1e-6))
    assert 0.98 * epsilon < counted <= epsilon
    assert counted == pytest.approx(terms.epsilon_against(1), rel=0.01)


def test_an_epsilon_that_is_too_small_is_refused_before_anything_is_asked() -> None:
    plan = plan_of(epsilon=0.001, n_estimators=100)
    with pytest.raises(ConfigError, match=r"epsilon 0\.001 is too small for 100 trees"):
        play(plan, clients_of(plan))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"classes": None}, "needs the public list of classes"),
        ({"classes": (1,)}, "two or more"),
        ({"task": "targets", "classes": None}, "needs the public range of the targets"),
        ({"task": "targets", "classes": None, "target_range": (2.0, 1.0)}, "target_range needs finite ends"),
        ({"max_depth": 13}, "max_depth is at most 12"),
    ],
)
def test_plans_that_cannot_be_kept(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        plan_of(**changes)


# --- a training ---


def test_the_same_secrets_give_the_same_answers_and_others_give_other_noise() -> None:
    plan = plan_of()
    _, first = play(plan, clients_of(plan))
    _, again = play(plan, clients_of(plan))
    _, other = play(plan, clients_of(plan, trial=1))
    for one, two in zip(first, again, strict=True):
        assert all(one[name][1].__class__ is two[name][1].__class__ for name in NAMES)
        for name in NAMES:
            if hasattr(one[name][1], "values"):
                np.testing.assert_array_equal(one[name][1].values, two[name][1].values)
    sums = [
        [(step["anna"][0]) for step in log if isinstance(step["anna"][0], msg.SumGradients)] for log in (first, other)
    ]
    assert not np.array_equal(sums[0][1].answers, sums[1][1].answers)


def test_noise_is_another_for_every_client_question_and_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key is used twice: not by two clients with the same rows, nor for two trees, nor after another question."""
    keys: list[bytes] = []

    def draw(key: bytes, n: int) -> Any:
        keys.append(key)
        return np.zeros(n, np.int64)

    monkeypatch.setattr("woodlot.protocols.rows.private.private_client.draw_share", draw)
    plan = plan_of()
    for seed in (7, 8):  # other trees
        same = {name: PrivateClient(holdings(name, *rows(20, 0)), plan_of(seed=seed)) for name in NAMES}
        play(plan_of(seed=seed), same)
    n_sums = 1 + plan.n_estimators
    assert len(keys) == 2 * 3 * n_sums
    # the totals are the same question before anything else was asked, and so have the same answer
    assert len(set(keys)) == 2 * 3 * n_sums - 3
    keys.clear()
    changed = {name: replace(holdings(name, *rows(20, 0)), data_digest=b"another table") for name in NAMES}
    play(plan, {name: PrivateClient(own, plan) for name, own in changed.items()})
    before = set(keys)
    play(plan, clients_of(plan))
    assert len(before | set(keys)) == 2 * 3 * n_sums


def test_it_is_charged_once_and_refused_before_anything_is_told() -> None:
    plan = plan_of(epsilon=2.0)
    clients = clients_of(plan)
    budgets = {name: LocalBudget(name, "", Budget(2.0, 1e-6)) for name in NAMES}
    for name, client in clients.items():
        client._own.__dict__["client_budget"] = budgets[name]
    play(plan, clients)
    for budget in budgets.values():
        (spend,) = budget.spends("rows")
        assert (spend.epsilon, spend.delta, spend.count) == (pytest.approx(2.0), 1e-6, 1)
        assert budget.spends("labels") == []
    clients = clients_of(plan)
    clients["bern"]._own.__dict__["client_budget"] = LocalBudget("bern", "", Budget(1.0, 1e-6))
    with pytest.raises(PolicyError, match="privacy budget does not allow it"):
        play(plan, clients)


def test_no_noise_to_speak_of_gives_a_good_forest() -> None:
    plan = plan_of(epsilon=300.0, n_estimators=15, max_depth=3, columns_per_tree=None, learning_rate=0.6)
    (forest, part), _ = play(plan, clients_of(plan, n=400))
    from woodlot.trees.predict import Predictor

    X, y = rows(2000, 9)
    shares = Predictor(forest.structure, part.splits, forest.leaves).predict_outputs(
        [np.ascontiguousarray(column, np.float32) for column in X.T], len(X)
    )
    np.testing.assert_allclose(shares.sum(axis=1), 1.0)
    assert (shares.argmax(axis=1) == y).mean() > 0.8
    assert abs(shares[:, 1].mean() - y.mean()) < 0.05  # answers are calibrated as a whole
    assert forest.n_rows == 0


def test_what_is_only_noise_is_not_answered() -> None:
    """The answers of leaves whose gradients cannot be told from noise are those of their parents."""
    plan = plan_of(n_estimators=1, max_depth=4)
    schema = CommonSchema(("a", "b"), (None, None), (0, 1), NO_MAGNITUDE, {})
    structure = draw_trees(plan, schema, {}, 4).structure
    terms = Terms(plan, 2, 3)
    rng = np.random.default_rng(0)
    noise = rng.normal(0, terms.deviation(3), (structure.n_leaves, 2)).round().astype(np.int64)
    sums = noise + np.array([0, 3000 * terms.row_steps])
    quiet = answers_of(structure, sums, terms, 3)
    loud = answers_of(
        structure, sums + np.arange(structure.n_leaves)[:, None] * [800 * int(terms.gradient_steps), 0], terms, 3
    )
    assert np.abs(quiet.leaf).max() < 0.1 * np.abs(loud.leaf).max()
    assert (np.diff(loud.leaf[:, 0]) >= -1e-9).mean() > 0.7


# --- what clients refuse ---


def ready(plan: PrivatePlan) -> tuple[dict[str, PrivateClient], list[Any]]:
    clients = clients_of(plan)
    _, log = play(plan, clients)
    fresh = clients_of(plan)
    return fresh, [step["anna"][0] for step in log]


def test_a_client_keeps_to_the_order_of_its_messages() -> None:
    plan = plan_of()
    clients, messages = ready(plan)
    anna = clients["anna"]
    with pytest.raises(RemoteProtocolError, match="under differential privacy"):
        anna.handle(row_messages.DescribeRows(task="classes"))
    kinds = [type(message) for message in messages]
    totals, trees, first = (kinds.index(kind) for kind in (msg.CountTotals, msg.TakeTrees, msg.SumGradients))
    for message in messages[:2]:
        anna.handle(message)
    with pytest.raises(RemoteProtocolError):
        anna.handle(messages[totals])  # nobody has opened sums
    for message in messages[2:trees]:
        anna.handle(message)
    with pytest.raises(RemoteProtocolError, match="totals are told once"):
        anna.handle(messages[totals])
    with pytest.raises(RemoteProtocolError, match="Unexpected tree 0"):
        anna.handle(messages[first])
    anna.handle(messages[trees])
    with pytest.raises(RemoteProtocolError, match="trees are taken once"):
        anna.handle(messages[trees])
    with pytest.raises(RemoteProtocolError, match="Unexpected tree 1; expected tree 0"):
        anna.handle(messages[first + 1])
    anna.handle(messages[first])
    with pytest.raises(RemoteProtocolError, match="Unexpected tree 0; expected tree 1"):
        anna.handle(messages[first])
    huge = messages[first + 1].answers * 0 + 1e9
    order: SumOrder = messages[first + 1].order
    with pytest.raises(RemoteProtocolError, match="other answers than the leaves"):
        anna.handle(msg.SumGradients(tree=1, answers=huge, order=order))
    anna.handle(messages[first + 1])
