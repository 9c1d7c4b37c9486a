"""A coordinator that grows a revocable forest otherwise than was ordered: participants know what nodes there can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from deviating import changed, run
from woodlot.data.columns import NumericColumn
from woodlot.data.tables import Table
from woodlot.protocols.core.bits import pack
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.revocable import growth_messages as msg
from woodlot.protocols.revocable.construct import construct, regrow
from woodlot.protocols.revocable.participant import Participant, write_samples
from woodlot.protocols.revocable.revocable_plan import RevocablePlan

N, NAMES = 120, ("bank", "club", "shop")
PLAN = RevocablePlan(
    ForestPlan(
        task="classes", n_estimators=3, entropy=False, max_depth=4, min_samples_split=2, min_samples_leaf=10,
        min_weight_fraction_leaf=0.0, max_features=2, max_leaf_nodes=None, min_impurity_decrease=0.0, bootstrap=True,
        max_samples=None, class_weight=None, feature_sampling="node", max_bins=None, out_of_bag=None, seed=3,
    ),
    zeta=7,
)  # fmt: skip


def table(name: str) -> Table:
    values = np.random.default_rng(NAMES.index(name)).normal(size=(2, N)).astype(np.float32)
    return Table(("a", "b"), tuple(map(NumericColumn, values)), N)


def target() -> Target:
    signal = sum(table(name).columns[0].values for name in NAMES)  # type: ignore[union-attr, misc]
    return Target.of_classes(np.where(signal + np.random.default_rng(9).normal(size=N) > 0, "yes", "no"))


def few_rows(party: Participant, message: Message) -> Iterator[Message]:
    """What a coordinator would ask to learn the order of a few rows of its choice, or of all columns."""
    if isinstance(message, msg.OpenConstruction):
        yield changed(message, zeta=255)
    if not isinstance(message, msg.ExpandLeaves):
        return
    n_open, n_own = len(message.keys), len(party.feature_keys)
    if len(message.sizes):  # the roots
        pairs = np.arange(2, dtype=np.uint32)
        two = write_samples(np.tile(pairs, n_open), 2 * np.arange(1, n_open + 1), N)
        yield changed(message, **two)
        yield changed(message, keys=message.keys + np.uint64(1))
        selected = np.unpackbits(message.selected, count=n_open * n_own, bitorder="little").reshape(n_open, n_own)
        turned = selected[:, ::-1]
        if not np.array_equal(selected, turned):
            yield changed(message, selected=pack(turned.ravel()))
    if len(message.is_split) and message.flags.any():
        n = int(
            (party._end - party._start)[
                np.unpackbits(message.is_split, count=len(party._start), bitorder="little") == 1
            ].sum()
        )
        one = np.zeros(n, np.uint8)
        one[0] = 1
        none = {"won_pair": message.won_pair[:0], "won_cut": message.won_cut[:0]}
        yield changed(message, flags=pack(one), **none)  # one row goes left
        if len(message.won_pair):
            sides = np.unpackbits(message.flags, count=n, bitorder="little")
            yield changed(message, flags=pack(1 - sides))  # not as this participant's candidate has it
    if len(message.is_open):
        yield changed(message, is_open=pack(np.ones(8 * len(message.is_open), np.uint8)[: 2 * _splits(party, message)]))


def _splits(party: Participant, message: msg.ExpandLeaves) -> int:
    return int(np.unpackbits(message.is_split, count=len(party._start), bitorder="little").sum())


def test_a_construction_is_the_one_that_was_ordered() -> None:
    honest, _ = run(
        construct(PLAN, NAMES, target()), {name: Participant(name, table(name), plan=PLAN) for name in NAMES}
    )
    members = {name: Participant(name, table(name), plan=PLAN) for name in NAMES}
    found, refusals = run(construct(PLAN, NAMES, target()), members, few_rows)
    for words, least in {
        "asks for other candidates": 3,
        "its tree does not bring there": 3,
        "begins at a node that there is not": 3,
        "comes first in the order of a node": 1,
        "on one side; the plan asks for min_samples_leaf=10": 3,
        "other sides of a split than this participant's candidate": 1,
    }.items():
        assert sum(words in refusal for refusal in refusals) >= least, (words, refusals)
    assert np.array_equal(found.forest.structure.right, honest.forest.structure.right)
    assert np.array_equal(found.forest.leaves.value, honest.forest.leaves.value)


def test_a_revocation_begins_at_nodes_of_the_former_forest_with_rows_that_come_there() -> None:
    members = {name: Participant(name, table(name), plan=PLAN) for name in NAMES}
    made, _ = run(construct(PLAN, NAMES, target()), members)

    def staying() -> dict[str, Participant]:
        return {name: Participant(name, table(name), former=members[name].forest, plan=PLAN) for name in NAMES[:2]}

    def elsewhere(party: Participant, message: Message) -> Iterator[Message]:
        if not isinstance(message, msg.ExpandLeaves) or not len(message.sizes):
            return
        drawn = PLAN.sampling(N)
        out = np.flatnonzero(drawn.counts(0, N) == 0).astype(np.uint32)[: 2 * PLAN.forest.min_samples_leaf]  # type: ignore[arg-type]
        k = len(message.sizes)
        yield changed(message, **write_samples(np.tile(out, k), len(out) * np.arange(1, k + 1), N))
        first = message.keys[:1].repeat(len(message.keys))
        if len(first) > 1:
            yield changed(message, keys=first)

    rebuilt = regrow(PLAN, made.forest, made.rebuilding, ["shop"], 1, target())
    honest, _ = run(rebuilt, staying())
    again = regrow(PLAN, made.forest, made.rebuilding, ["shop"], 1, target())
    found, refusals = run(again, staying(), elsewhere)
    assert any("its tree does not bring there" in words for words in refusals)
    assert any("for the second time" in words or "other keys" in words for words in refusals)
    assert np.array_equal(found.forest.structure.right, honest.forest.structure.right)


def test_finished_trees_have_no_more_splits_than_the_levels_had() -> None:
    """With full trees a party would vouch for more splits than there are, and count paths that are none."""
    members = {name: Participant(name, table(name), plan=PLAN) for name in NAMES}

    def right(depth: int, first: int = 0) -> list[int]:
        size = (1 << depth) - 1  # of a full tree below
        below = [*right(depth - 1, first + 1), *right(depth - 1, first + 1 + size)] if depth else []
        return [first + 1 + size if depth else -1, *below]

    def wrong(party: Participant, message: Message) -> Iterator[Message]:
        if isinstance(message, msg.FinishConstruction):
            whole = right(4)
            trees = [at + tree * len(whole) if at >= 0 else at for tree in range(3) for at in whole]
            offset = np.arange(4, dtype=np.int64) * len(whole)
            yield changed(message, offset=offset, right=np.array(trees, np.int32))

    grown, refusals = run(construct(PLAN, NAMES, target()), members, wrong)
    splits = int((grown.forest.structure.right >= 0).sum())
    found = [words for words in refusals if "more splits than the" in words]
    assert len(found) == len(refusals) == 3
    assert splits < 45


def test_finished_trees_are_sound_and_no_deeper_than_was_ordered() -> None:
    shallow = replace(PLAN, forest=replace(PLAN.forest, max_depth=1))
    members = {name: Participant(name, table(name), plan=shallow) for name in NAMES}

    def wrong(party: Participant, message: Message) -> Iterator[Message]:
        if isinstance(message, msg.FinishConstruction):
            yield changed(message, right=message.right[::-1].copy())
            deep = np.array([4, 3, -1, -1, -1], np.int32)
            yield changed(message, offset=np.array([0, 5], np.int64), right=deep)

    _, refusals = run(construct(shallow, NAMES, target()), members, wrong)
    assert any("not sound" in words for words in refusals)
    assert any("other trees, or deeper ones" in words for words in refusals)
