"""A coordinator that asks clients with different rows for more than the plan says: deeper, or about a node again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from deviating import Wrong, changed, run
from woodlot.data.tables import read_table
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows import extra_messages as extra
from woodlot.protocols.rows import row_messages as msg
from woodlot.protocols.rows.collaborative import CollaborativePlan, collaborative_forest
from woodlot.protocols.rows.extra_plan import ExtraTreesPlan
from woodlot.protocols.rows.extra_trees import extra_trees
from woodlot.protocols.rows.lossless import LosslessPlan, lossless_forest, lossless_messages
from woodlot.protocols.rows.methods import HorizontalPlan, client_of
from woodlot.protocols.rows.row_client import Holdings, HorizontalClient
from woodlot.trees.extra import SPLITS

NAMES = ("anna", "bern", "chur")
GROWTH: dict[str, Any] = {
    "task": "classes", "n_estimators": 3, "criterion": "gini", "max_depth": 3, "min_samples_split": 2,
    "min_samples_leaf": 2, "max_features": None, "bootstrap": True, "max_samples": None, "max_bins": 4, "seed": 7,
}  # fmt: skip


def clients(plan: HorizontalPlan, names: tuple[str, ...]) -> dict[str, HorizontalClient]:
    made = {}
    for k, name in enumerate(names):
        values = np.random.default_rng(k).normal(size=(40, 2))
        labels = np.where(values[:, 0] + values[:, 1] > 0, "yes", "no")
        made[name] = client_of(
            plan,
            Holdings(
                name=name,
                table=read_table(pd.DataFrame(values, columns=["age", "dose"])),
                target=Target.of_classes(labels),
                entropy=lambda purpose, name=name: name.encode() * 8,
                lasting=lambda purpose: bytes(32),
                shared_secret=bytes(range(32)),
            ),
        )
    return made


def next_round(message: Any, **fields: Any) -> Message:
    """The same question in a sum of its own."""
    order = message.order
    later = type(order)(round=order.round + 1, clients=order.clients, length=order.length, bound=order.bound)
    return changed(message, order=later, **fields)


def check(
    plan: HorizontalPlan,
    protocol: Callable[[Any, Any], Any],
    wrong: Wrong,
    words: dict[str, int],
    names: tuple[str, ...] = NAMES,
) -> None:
    honest, _ = run(protocol(plan, names), clients(plan, names))
    found, refusals = run(protocol(plan, names), clients(plan, names), wrong)
    for some, least in words.items():
        assert sum(some in refusal for refusal in refusals) >= least, (some, refusals)
    assert np.array_equal(found[0].leaves.value, honest[0].leaves.value)
    assert np.array_equal(found[1].splits.threshold, honest[1].splits.threshold)


def test_leaves_are_filled_of_trees_that_have_grown_here() -> None:
    """With trees of its own making a coordinator would single out the rows of its choice."""

    def wrong(client: HorizontalClient, message: Message) -> Iterator[Message]:
        if isinstance(message, msg.FillLeaves) and len(message.threshold):
            yield changed(message, threshold=message.threshold + 0.001)
            yield changed(message, feature=1 - message.feature)
        if isinstance(message, msg.GrowOn):  # a chain of splits, each to the right of the one above
            n = 9
            chain = np.where(np.arange(n) % 2 == 0, np.arange(n) + 2, -1).astype(np.int32)
            chain[-1] = -1
            yield changed(
                message,
                offset=np.array([0, n], np.int64),
                right=chain,
                feature=np.zeros(n // 2, np.int32),
                threshold=np.arange(n // 2) / 10,
                missing_left=np.zeros(n // 2, np.uint8),
                set_start=np.zeros(n // 2 + 1, np.int64),
                sets=np.empty(0, np.uint8),
            )

    plan = CollaborativePlan(**GROWTH)
    check(plan, collaborative_forest, wrong, {"has changed splits that it was given": 6, "deeper than max_depth=3": 3})


@pytest.mark.parametrize("ranges", ["declared", "proposals"])
def test_extra_trees_ask_about_a_node_once_and_not_below_max_depth(ranges: Any) -> None:
    def wrong(client: HorizontalClient, message: Message) -> Iterator[Message]:
        before = asked.get(client.name)
        if isinstance(message, extra.CountSplits) and before is not None and before.step == message.step:
            yield before if isinstance(before, extra.ProposeThresholds) else next_round(before)
        if isinstance(message, extra.LevelMessage):
            asked[client.name] = changed(message, **NO_FATE)
        frontier = client._frontier  # type: ignore[attr-defined]
        splits = isinstance(message, extra.LevelMessage) and len(message.fate) > 0
        if splits and ((message.fate == SPLITS) & (frontier.depth == 2)).any():  # type: ignore[attr-defined]
            every = {"is_open": np.ones_like(message.is_open)}  # type: ignore[attr-defined]
            if isinstance(message, extra.ProposeThresholds):
                every["feature"] = np.zeros(len(message.is_open) * message.width, np.int32)
            yield changed(message, **every)

    asked: dict[str, Any] = {}
    knots = {} if ranges == "proposals" else {"age": (-3.0, 3.0), "dose": (-3.0, 3.0)}
    plan = ExtraTreesPlan(**GROWTH | {"bootstrap": False, "max_bins": None}, ranges=ranges, knots=knots)
    again = "asks about a level again" if ranges == "proposals" else "as deep as max_depth allows"
    check(plan, extra_trees, wrong, {again: 3, "as deep as max_depth allows": 3})


NO_FATE: dict[str, Any] = {
    "fate": np.empty(0, np.uint8), "is_open": np.empty(0, np.uint8), "split_feature": np.empty(0, np.int32),
    "split_threshold": np.empty(0), "split_missing_left": np.empty(0, np.uint8), "split_sets": np.empty(0, np.uint8),
}  # fmt: skip


def test_lossless_forests_count_a_feature_of_a_node_once_and_draw_rows_once() -> None:
    def wrong(client: HorizontalClient, message: Message) -> Iterator[Message]:
        done = asked.setdefault(client.name, [])
        if isinstance(message, lossless_messages.CountValues):
            every = np.arange(9, dtype=np.uint32) << np.uint32(32 - max(message.known_bits, 8))
            if message.known_bits:
                yield changed(message, column=np.zeros(9, np.uint8), prefix=every)
        if isinstance(message, lossless_messages.DrawRows):
            yield changed(message, thresholds=message.thresholds[:1])
        if isinstance(message, lossless_messages.CountCells):
            yield next_round(drawn[client.name])
            if done and done[-1].level == message.level:
                yield next_round(message, **cells(done[-1]))
            done.append(message)
        if isinstance(message, lossless_messages.DrawRows):
            drawn[client.name] = message

    def cells(message: Any) -> dict[str, Any]:
        return {name: getattr(message, name) for name in message.__struct_fields__ if name not in ("order", "level")}

    asked: dict[str, list[Any]] = {}
    drawn: dict[str, Any] = {}
    plan = LosslessPlan(**GROWTH, words_at_once=1)
    expected = {
        "more than the quantiles of a column take": 3,
        "drawn in another way": 3,
        "rows are drawn once": 3,
        "a feature of a node again": 3,
    }
    check(plan, lossless_forest, wrong, expected)


def test_drawings_that_are_refused_leave_the_one_in_use() -> None:
    """However many: a sum of another length is refused after the rows were drawn."""

    def wrong(client: HorizontalClient, message: Message) -> Iterator[Message]:
        if isinstance(message, lossless_messages.DrawRows):
            order = message.order
            short = type(order)(round=order.round, clients=order.clients, length=1, bound=order.bound)
            for _ in range(3):
                yield changed(message, order=short)

    names = (*NAMES, "genf")
    for plan in (LosslessPlan(**GROWTH), LosslessPlan(**GROWTH, spare_after=60.0)):
        check(plan, lossless_forest, wrong, {"of another length": 3 * len(names)}, names)
