"""A coordinator that makes up other parties' splits, to read labels one by one: parties check both sides of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

from deviating import changed, run
from inventor import Inventor, labels_read
from woodlot.data.columns import NumericColumn
from woodlot.data.tables import Table
from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.protocols.core.bits import pack
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.vertical import forest_messages as msg
from woodlot.protocols.vertical import train
from woodlot.protocols.vertical.out_of_bag import score_out_of_bag
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.predict import predict_node_by_node
from woodlot.protocols.vertical.regrow import KEPT, SEARCHED, regrow
from woodlot.protocols.vertical.regrowing import RegrowingParty
from woodlot.protocols.vertical.start import gain_unit, is_start_of, start_message

N, LEAF = 300, 50
PLAN = ForestPlan(
    task="classes", n_estimators=2, entropy=False, max_depth=None, min_samples_split=2, min_samples_leaf=LEAF,
    min_weight_fraction_leaf=0.0, max_features="sqrt", max_leaf_nodes=None, min_impurity_decrease=0.0, bootstrap=True,
    max_samples=None, class_weight=None, feature_sampling="node", max_bins=16, out_of_bag=None, seed=1,
)  # fmt: skip


def table(seed: int) -> Table:
    values = np.random.default_rng(seed).normal(size=(3, N)).astype(np.float32)
    return Table(("a", "b", "c"), tuple(map(NumericColumn, values)), N)


def labels() -> np.ndarray:
    return np.array(["no", "yes"])[np.random.default_rng(5).integers(0, 2, N)]


def parties(**options: Any) -> dict[str, VerticalParty]:
    options = {"target": Target.of_classes(labels()), "job_secret": bytes(32), **options}
    return {"holder": VerticalParty("holder", table(1), **options), "other": VerticalParty("other", table(2))}


def test_labels_are_not_read_by_invented_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(train, "Batch", Inventor)
    members = parties()
    protocol = train.train(PLAN, tuple(members), "holder")
    try:
        read = labels_read(run(protocol, members)[0], PLAN)
    except RemoteProtocolError as error:
        refused = str(error)
    else:
        right = sum(labels()[row] == label for row, label in read.items())
        pytest.fail(f"{right} labels of {N} were read below min_samples_leaf={LEAF}")
    assert "leaves 1 rows on one side" in refused
    assert f"min_samples_leaf={LEAF}" in refused


# --- single messages that do not follow the plan ---


def same_forest(one: Any, other: Any) -> bool:
    return np.array_equal(one.structure.right, other.structure.right) and np.array_equal(
        one.leaves.value, other.leaves.value
    )


def invented(party: VerticalParty, message: Message) -> Iterator[Message]:
    """Levels in which somebody else has split a node: no row on a side, and one too few on either."""
    grower = party._grower
    if not isinstance(message, msg.GrowLevel) or grower is None or (grower._middle >= 0).all():
        return
    own = grower._middle >= 0
    split = own | (np.arange(len(own)) == np.flatnonzero(~own)[0])
    n, leaf = int((grower.end - grower.start)[split & ~own].sum()), grower.rules.min_samples_leaf
    for left in (0, leaf - 1, n - leaf + 1, n):
        flags, candidates = pack(np.arange(n) < left), np.zeros(2 * int(split.sum()), np.uint8)
        yield changed(message, is_split=pack(split), flags=flags, candidates=candidates)


def test_no_side_is_smaller_than_the_plan_says_and_a_refusal_changes_nothing() -> None:
    plan = replace(PLAN, min_samples_leaf=20)
    honest = run(train.train(plan, ("holder", "other"), "holder"), parties())[0]
    members = parties()
    forest, refusals = run(train.train(plan, tuple(members), "holder"), members, invented)
    assert len(refusals) >= 8
    assert all("min_samples_leaf=20" in words for words in refusals)
    assert same_forest(forest, honest)


def test_no_side_is_lighter_than_the_plan_says() -> None:
    """Rows of weight 1 among rows of weight 100: enough of them are not heavy enough."""
    weights = np.where(np.arange(N) % 2, 100.0, 1.0)
    target = Target.of_classes(labels(), weights)
    plan = replace(PLAN, min_samples_leaf=1, min_weight_fraction_leaf=0.1, bootstrap=False)

    def light(party: VerticalParty, message: Message) -> Iterator[Message]:
        if isinstance(message, msg.GrowLevel) and message.is_split[0] & 1 and party.name == "other":
            grower = party._grower
            assert grower is not None
            if grower.skeleton.depth == 0 and grower._middle[0] < 0:
                flags = (np.arange(N) % 2 == 0) & (np.arange(N) < 100)  # 50 rows that weigh 50 of 15,150
                both = np.concatenate([flags, np.unpackbits(message.flags, bitorder="little")[N : 2 * N]])
                yield changed(message, flags=pack(both))

    members = parties(target=target)
    honest = run(train.train(plan, tuple(members), "holder"), members)[0]
    members = parties(target=target)
    forest, refusals = run(train.train(plan, tuple(members), "holder"), members, light)
    assert len(refusals) == 1
    assert "a weight of at least 1515" in refusals[0]
    assert same_forest(forest, honest)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_label_holder_takes_no_weights_but_its_own(weighted: bool) -> None:
    """With weights 1, 2, 4, ... the total of a leaf would tell the label of every row in it."""
    own = np.where(np.arange(N) % 2, 3.0, 1.0) if weighted else None
    plan = replace(PLAN, bootstrap=False)
    powers = np.where(np.arange(N) < 20, 2 ** np.minimum(np.arange(N), 20), 1).astype(np.uint32)

    def other_weights(party: VerticalParty, message: Message) -> Iterator[Message]:
        if isinstance(message, msg.StartForest) and party.name == "holder":
            yield changed(message, weights=powers)
            if weighted:
                yield changed(message, weights=None, n_draws=N, min_weight=1)

    members = parties(target=Target.of_classes(labels(), own))
    _, refusals = run(train.train(plan, tuple(members), "holder"), members, other_weights)
    assert len(refusals) == 1 + weighted
    assert all("other weights" in words for words in refusals)


def test_the_label_holder_knows_how_many_rows_its_weights_draw() -> None:
    """A share of the rows' weights is a number that the others cannot tell."""
    target = Target.of_classes(labels(), np.where(np.arange(N) % 2, 2.5, 1.0))

    def other_draws(party: VerticalParty, message: Message) -> Iterator[Message]:
        if isinstance(message, msg.StartForest) and party.name == "holder":
            yield changed(message, n_draws=1)
            yield changed(message, n_draws=message.n_draws + 1)

    members = parties(target=target)
    _, refusals = run(train.train(replace(PLAN, max_samples=0.5), tuple(members), "holder"), members, other_draws)
    assert [("another number of rows" in words) for words in refusals] == [True, True]


def test_a_node_whose_split_gains_too_little_is_not_split() -> None:
    plan = replace(PLAN, min_samples_leaf=5, min_impurity_decrease=0.005)

    def every_offer(party: VerticalParty, message: Message) -> Iterator[Message]:
        grower = party._grower
        due = isinstance(message, msg.GrowLevel | msg.FinishTrees) and party.state == "growing"
        if due and grower is not None:
            can = grower._cut >= 0
            weak = can & (party._gains * gain_unit(party._start, N, 1.0) < 0.0049)  # type: ignore[arg-type, operator]
            if weak.any():
                yield msg.ApplySplits(won=pack(weak))

    honest, _ = run(train.train(plan, ("holder", "other"), "holder"), parties())
    members = parties()
    forest, refusals = run(train.train(plan, tuple(members), "holder"), members, every_offer)
    assert refusals
    assert all("min_impurity_decrease=0.005" in words for words in refusals)
    assert same_forest(forest, honest)


@pytest.mark.parametrize("limit", [None, 4])
def test_trees_are_pruned_to_max_leaf_nodes_and_not_otherwise(limit: int | None) -> None:
    plan = replace(PLAN, min_samples_leaf=5, max_leaf_nodes=limit)

    def other_prunings(party: VerticalParty, message: Message) -> Iterator[Message]:
        if isinstance(message, msg.FinishTrees):
            leaf = np.array([party._grower.skeleton.n_nodes - 1], np.uint32)  # type: ignore[union-attr]
            if limit is None:
                yield changed(message, pruned=np.zeros(1, np.uint32))
            else:
                yield changed(message, pruned=message.pruned[:0])
                yield changed(message, pruned=np.repeat(message.pruned, 2))
            yield changed(message, pruned=np.concatenate([message.pruned, leaf]))

    members = parties()
    protocol = train.train(plan, tuple(members), "holder")
    forest, refusals = run(protocol, members, other_prunings)
    assert len(refusals) == (4 if limit is None else 6)
    if limit is not None:
        assert max(np.diff(forest.structure.offset) + 1) // 2 <= limit
        assert any("max_leaf_nodes=4" in words for words in refusals)


def test_branches_are_pruned_by_their_cost_where_that_was_ordered() -> None:
    """What is no split is refused then, too; a start that says another cost than the order is none of it."""
    plan = replace(PLAN, min_samples_leaf=5, ccp_alpha=0.01)

    def other_prunings(party: VerticalParty, message: Message) -> Iterator[Message]:
        if isinstance(message, msg.FinishTrees):
            leaf = np.array([party._grower.skeleton.n_nodes - 1], np.uint32)  # type: ignore[union-attr]
            yield changed(message, pruned=np.concatenate([message.pruned, leaf]))
            yield changed(message, pruned=np.repeat(message.pruned, 2))

    members = parties()
    forest, refusals = run(train.train(plan, tuple(members), "holder"), members, other_prunings)
    assert len(refusals) == 4
    whole, _ = run(train.train(replace(plan, ccp_alpha=msgspec.UNSET), tuple(members), "holder"), parties())
    assert forest.structure.n_nodes < whole.structure.n_nodes
    start = start_message(plan, 3, msg.EncodedLabels(labels=np.zeros(3, np.uint8), targets=None, weights=None,
                          weight_factor=1.0, classes=("a",), unit=1.0))  # fmt: skip
    assert is_start_of(plan, start, 3)
    assert not is_start_of(replace(plan, ccp_alpha=0.02), start, 3)
    assert not is_start_of(replace(plan, ccp_alpha=msgspec.UNSET), start, 3)


def test_a_tree_of_fewer_rows_than_a_leaf_must_have_is_not_planted() -> None:
    """Its root is its only leaf, and tells the labels of the few rows that were drawn."""
    members = parties(min_leaf=LEAF)
    with pytest.raises(PolicyError, match=r"draws \d rows, and this party's policy asks for leaves of at least 50"):
        run(train.train(replace(PLAN, max_samples=5), tuple(members), "holder"), members)
    assert members["holder"]._grower is None
    members = parties(min_leaf=LEAF)
    run(train.train(PLAN, tuple(members), "holder"), members)


def test_a_row_is_asked_about_on_one_way_down_each_tree() -> None:
    """Else the classical method would tell the side of every row at every node, reached or not."""
    plan = replace(PLAN, min_samples_leaf=5)
    members = parties()
    forest = run(train.train(plan, tuple(members), "holder"), members)[0]
    asked: list[msg.AskNodes] = []

    def elsewhere(party: VerticalParty, message: Message) -> Iterator[Message]:
        if not isinstance(message, msg.AskNodes) or party.name != "holder":
            return
        own = party.grown_forest().splits.node
        for earlier in asked:
            yield earlier  # answered before
            rows, nodes = np.append(message.rows, earlier.rows[0]), np.append(message.nodes, earlier.nodes[0])
            yield changed(message, rows=rows, nodes=nodes)
        every = np.repeat(np.arange(N, dtype=np.int32), len(own)), np.tile(own, N)
        yield changed(message, rows=every[0], nodes=every[1])
        asked.append(message)

    protocol = predict_node_by_node(forest, tuple(members), N, "soft")
    _, refusals = run(protocol, members, elsewhere)
    assert len(asked) >= 2
    assert len(refusals) == len(asked) ** 2
    assert all("cannot have reached, or again" in words for words in refusals)


# --- revoking ---


def test_a_former_split_is_repeated_where_it_stood_and_nowhere_else() -> None:
    """Else a party's former questions could be asked of any rows, one small node after the other."""
    plan = replace(PLAN, min_samples_leaf=10, n_estimators=3)
    members = parties()
    members["third"] = VerticalParty("third", table(3))
    forest = run(train.train(plan, tuple(members), "holder"), members)[0]
    target = members["holder"].target

    def staying() -> dict[str, VerticalParty]:
        return {
            name: RegrowingParty(
                name,
                members[name].table,
                former=members[name].grown_forest(),
                target=target if name == "holder" else None,
                job_secret=bytes(32),
            )
            for name in ("holder", "other")
        }

    def elsewhere(party: VerticalParty, message: Message) -> Iterator[Message]:
        assert isinstance(party, RegrowingParty)
        former = party._former
        inner = np.flatnonzero(former.structure.right >= 0)
        if isinstance(message, msg.ReplantTrees | msg.RegrowLevel):
            kept = np.flatnonzero(message.marks == KEPT)
            other = [node for node in former.splits.node.tolist() if node not in message.former.tolist()]
            if len(kept) and other:  # a question of this party's, from elsewhere
                place = int((message.marks[: kept[0]] != SEARCHED).sum())
                moved = message.former.copy()
                moved[place] = other[-1]
                yield changed(message, former=moved)
            new = np.flatnonzero(message.marks == SEARCHED)
            if isinstance(message, msg.RegrowLevel) and len(new) and party._places.min() < 0:
                marks = message.marks.copy()
                marks[new[-1]] = KEPT
                yield changed(message, marks=marks, former=np.append(message.former, np.uint32(inner[-1])))
        grower = party._grower
        if isinstance(message, msg.RegrowLevel) and grower is not None and (stays := ~party._is_searched(grower)).any():
            split = np.unpackbits(message.is_split, count=len(grower.start), bitorder="little").astype(bool)
            if not (grower._middle[stays] >= 0).any():
                yield changed(message, is_split=pack(split & ~stays))  # what stays is not split

    with_leaver = regrow(plan, forest, "third", 1, "holder")
    honest = run(with_leaver, staying())[0].forest
    again = staying()
    found, refusals = run(regrow(plan, forest, "third", 1, "holder"), again, elsewhere)
    assert sum("stood in another place" in words for words in refusals) >= 4
    assert same_forest(found.forest, honest)


# --- out of bag ---


@pytest.mark.parametrize("task", ["classes", "targets"])
def test_rows_count_out_of_bag_where_a_tree_has_not_drawn_them(task: str) -> None:
    """A row that alone counts has its label told by the score; answers far apart have all labels told by residuals."""
    values = np.random.default_rng(3).normal(size=N)
    target = Target.of_classes(labels()) if task == "classes" else Target.of_values(values)
    plan = replace(PLAN, task=task, min_samples_leaf=20, out_of_bag="soft")  # type: ignore[arg-type]
    members = parties(target=target)
    forest = run(train.train(plan, tuple(members), "holder"), members)[0]

    def other_answers(party: VerticalParty, message: Message) -> Iterator[Message]:
        if isinstance(message, msg.OutOfBagAnswers):
            one = np.full_like(message.since, len(message.sizes))
            one[0] = 0
            yield changed(message, since=one)
            yield changed(message, since=np.zeros_like(message.since))
            if message.classes is not None:
                yield changed(message, classes=np.full_like(message.classes, 2))
            else:
                n = len(message.sizes) * N
                yield changed(message, targets=1000.0 * np.arange(n))
                yield changed(message, targets=np.full(n, np.nan))

    _, refusals = run(score_out_of_bag(forest, "holder", "soft", 1), members, other_answers)
    assert len(refusals) == (3 if task == "classes" else 4)
