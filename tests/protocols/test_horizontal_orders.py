"""A client that knows what was ordered does nothing else, whatever the coordinator asks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from msgspec import json, structs

from woodlot.data.tables import read_table
from woodlot.exceptions import LocalProtocolError, PolicyError, RemoteProtocolError
from woodlot.privacy.client_budget import LocalBudget
from woodlot.protocols.core.message import registered
from woodlot.protocols.core.target import Target
from woodlot.protocols.rows import extra_messages
from woodlot.protocols.rows import row_messages as msg
from woodlot.protocols.rows.collaborative import CollaborativePlan
from woodlot.protocols.rows.local_forests import LocalPlan
from woodlot.protocols.rows.lossless import lossless_messages
from woodlot.protocols.rows.methods import METHODS, HorizontalPlan, client_of
from woodlot.protocols.rows.private import private_messages
from woodlot.protocols.rows.row_client import Holdings, HorizontalClient, RowClientState
from woodlot.protocols.rows.whole_forest import fields_of, trees_of
from woodlot.protocols.sums import sum_messages
from woodlot.runtime import codec
from woodlot.trees.alone import WholeTrees

SECRET = bytes(range(32))
GROWTH: dict[str, Any] = {
    "task": "classes", "n_estimators": 4, "criterion": "gini", "max_depth": 3, "min_samples_split": 4,
    "min_samples_leaf": 2, "max_features": "sqrt", "bootstrap": True, "max_samples": None, "max_bins": None, "seed": 7,
}  # fmt: skip
COLLABORATIVE = CollaborativePlan(**GROWTH, min_leaf_rows=2)
LOCAL = LocalPlan(**GROWTH)


def client(plan: HorizontalPlan, name: str = "anna", **options: Any) -> HorizontalClient:
    rng = np.random.default_rng(0)
    table = read_table(pd.DataFrame(rng.normal(size=(30, 2)), columns=["age", "dose"]))
    own = Holdings(
        name=name,
        table=table,
        target=Target.of_classes(np.array(["no", "yes", "yes"] * 10)),
        entropy=lambda purpose: SECRET,
        lasting=lambda purpose: SECRET,
        shared_secret=SECRET,
        **options,
    )
    return client_of(plan, own)


def schema(**changes: Any) -> msg.UseSchema:
    usual: dict[str, Any] = {
        "names": ("age", "dose"), "categories": (None, None), "classes": ("no", "yes"), "magnitude": 0,
        "max_bins": None,
    }  # fmt: skip
    return msg.UseSchema(**(usual | changes))


def ready(plan: HorizontalPlan, **options: Any) -> HorizontalClient:
    made = client(plan, **options)
    made.handle(msg.DescribeRows(task="classes"))
    made.handle(schema())
    return made


def grow_on(plan: CollaborativePlan) -> msg.GrowOn:
    return msg.GrowOn(settings=plan.settings(2), **fields_of(WholeTrees.single_leaves(2), 0))


def test_the_schema_is_of_what_was_ordered() -> None:
    made = client(LOCAL)
    with pytest.raises(RemoteProtocolError, match="not what was ordered: another task"):
        made.handle(msg.DescribeRows(task="targets"))
    made.handle(msg.DescribeRows(task="classes"))
    with pytest.raises(RemoteProtocolError, match="not what was ordered: another max_bins"):
        made.handle(schema(max_bins=2))
    assert made.state == RowClientState.described
    made.handle(schema())


@pytest.mark.parametrize("changes", [{"min_samples_leaf": 1}, {"max_depth": 30}, {"seed": 8}, {"bootstrap": False}])
def test_trees_grow_as_was_ordered(changes: dict[str, Any]) -> None:
    made = ready(COLLABORATIVE)
    with pytest.raises(RemoteProtocolError, match="not those that were ordered"):
        made.handle(grow_on(structs.replace(COLLABORATIVE, **changes)))
    assert isinstance(made.handle(grow_on(COLLABORATIVE)), msg.GrownTrees)
    alone = ready(LOCAL)
    other = structs.replace(LOCAL, **changes).settings(2)
    with pytest.raises(RemoteProtocolError, match="not those that were ordered"):
        alone.handle(msg.GrowAlone(settings=other, first_tree=0, n_trees=1))


def test_no_more_trees_than_were_ordered() -> None:
    with pytest.raises(RemoteProtocolError, match="not what was ordered: more trees"):
        ready(LOCAL).handle(msg.GrowAlone(settings=LOCAL.settings(2), first_tree=3, n_trees=2))


def test_a_client_grows_one_share_alone() -> None:
    made = ready(LOCAL)
    share = msg.GrowAlone(settings=LOCAL.settings(2), first_tree=1, n_trees=2)
    once, again = made.handle(share), made.handle(share)
    assert codec.encode(once) == codec.encode(again)
    for first, n in ((3, 1), (0, 1), (0, 4), (1, 1)):
        with pytest.raises(RemoteProtocolError, match=r"another share|not what was ordered"):
            made.handle(msg.GrowAlone(settings=LOCAL.settings(2), first_tree=first, n_trees=n))


def test_trees_are_numbered_from_0_in_every_message() -> None:
    """A client answers for each tree once, by its number: with others there would be no end to trees."""
    fields = fields_of(WholeTrees.single_leaves(2), 0)
    order = sum_messages.SumOrder(round=0, clients=("anna", "bern", "chur"), length=4, bound=100)
    usual: dict[str, Any] = {"order": order, "average": "rows", "min_rows": 1, "fraction_bits": 0}
    messages = [
        msg.GrowAlone(settings=LOCAL.settings(2), first_tree=0, n_trees=2),
        grow_on(COLLABORATIVE),
        msg.FillLeaves(**fields, **usual),
        msg.GrownTrees(**fields),
        extra_messages.CountLeaves(**fields, order=order),
        private_messages.TakeTrees(**fields, start=np.zeros(1)),
        lossless_messages.ScoreLeftOut(
            **fields, order=order, leaf_start=np.arange(3), leaf_output=np.zeros(2, np.int32), leaf_value=np.zeros(2),
            every_row=np.empty(0, np.uint32), fraction_bits=0,
        ),
    ]  # fmt: skip
    about_trees = [kind for kind in registered().values() if issubclass(kind, msg.TreesMessage)]
    assert {type(message) for message in messages} >= set(about_trees) - {msg.LocalTrees}
    for message in messages:
        encoded = codec.encode(message)
        negative = encoded.replace(b"first_tree\x00", b"first_tree\xfe")  # -2
        assert negative != encoded
        with pytest.raises(RemoteProtocolError, match="numbered from 0"):
            codec.decode(negative)


def test_leaves_with_noise_are_filled_for_the_trees_of_the_order_and_no_others() -> None:
    plan = structs.replace(COLLABORATIVE, dp_leaf_epsilon=0.1, leaf_average="rows", min_leaf_rows=1, allow_two=True)
    made, other = (
        ready(plan, client_budget=LocalBudget("anna")),
        ready(plan, name="bern", client_budget=LocalBudget("bern")),
    )
    names = ("anna", "bern")
    opened: dict[str, Any] = {
        c.name: c.handle(sum_messages.OpenSums(clients=names, mode="secure")) for c in (made, other)
    }
    made.handle(sum_messages.StartSums(introductions={name: reply.introduction for name, reply in opened.items()}))
    whole = made.handle(msg.GrowOn(settings=plan.settings(2), **fields_of(WholeTrees.single_leaves(4), 0)))
    grown = trees_of(whole, (None, None), "anna")  # type: ignore[arg-type]
    for number, first in enumerate((0, -2, 2, 4, -4, 0)):
        some = grown.take(max(0, min(first, 2)), max(0, min(first, 2)) + 2)
        order = sum_messages.SumOrder(round=number, clients=names, length=2 * some.structure.n_leaves, bound=100)
        answered = True
        try:
            ask = msg.FillLeaves(
                **fields_of(some, first),
                order=order,
                average="rows",
                min_rows=1,
                fraction_bits=0,
            )
            made.handle(ask)
        except (LocalProtocolError, RemoteProtocolError):
            answered = False
        assert answered == (first in (0, 2))
    spends = made._client_budget.spends("rows")  # type: ignore[attr-defined]
    assert sum(spend.epsilon * spend.count for spend in spends) == pytest.approx(4 * 0.1)


@pytest.mark.parametrize(("changes", "words"), [({"average": "rows"}, "leaf_average"), ({"min_rows": 1}, "min_leaf")])
def test_leaves_are_filled_as_was_ordered(changes: dict[str, Any], words: str) -> None:
    made = ready(COLLABORATIVE)
    order = sum_messages.SumOrder(round=0, clients=("anna", "bern", "chur"), length=6, bound=100)
    usual: dict[str, Any] = {"order": order, "average": "plain", "min_rows": 2, "fraction_bits": 0}
    with pytest.raises(RemoteProtocolError, match=f"another {words}"):
        made.handle(msg.FillLeaves(**fields_of(WholeTrees.single_leaves(2), 0), **(usual | changes)))


def test_sums_are_as_was_ordered() -> None:
    clients = ("anna", "bern")
    with pytest.raises(PolicyError, match="secure ones only"):
        ready(COLLABORATIVE).handle(sum_messages.OpenSums(clients=("anna", "bern", "chur"), mode="plain"))
    with pytest.raises(PolicyError, match="over 3 or more"):
        ready(COLLABORATIVE).handle(sum_messages.OpenSums(clients=clients, mode="secure"))
    two = structs.replace(COLLABORATIVE, allow_two=True)
    ready(two).handle(sum_messages.OpenSums(clients=clients, mode="secure"))


def test_plans_travel_by_their_method() -> None:
    for plan in (COLLABORATIVE, LOCAL):
        assert json.decode(json.encode(plan), type=HorizontalPlan) == plan
        assert json.decode(json.encode(plan))["method"] == plan.method
    assert len({method.__struct_config__.tag for method in METHODS}) == len(METHODS)
    for wrong in ({"n_estimators": 0}, {"min_samples_leaf": -1}, {"method": "magic"}, {"surprise": 1}):
        data = json.decode(json.encode(LOCAL)) | wrong
        with pytest.raises(ValueError, match=r"."):
            json.decode(json.encode(data), type=HorizontalPlan)
