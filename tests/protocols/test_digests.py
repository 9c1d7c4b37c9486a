"""Digests of messages: every number counts, wherever it stands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from woodlot.protocols.core import digests
from woodlot.protocols.core.message import Message
from woodlot.protocols.linear import dealt_messages
from woodlot.protocols.rows import extra_messages
from woodlot.protocols.rows.releases import digest_of
from woodlot.protocols.sums import sum_messages
from woodlot.protocols.vertical import forest_messages

LONG = np.zeros(5000, np.uint8)
WORDS = LONG.astype(np.uint64)


def changed(array: np.ndarray) -> np.ndarray:
    """With another number in the middle, where numpy would print dots."""
    other = array.copy()
    other[len(other) // 2] = 1
    return other


@pytest.mark.parametrize(
    "make",
    [
        lambda array: dealt_messages.MaskSlopes(products={"bern": WORDS, "chur": array.astype(np.uint64)}),
        lambda array: forest_messages.ReplantTrees(
            trees=array.astype(np.uint32), candidates=LONG, marks=LONG, former=LONG.astype(np.uint32)
        ),
    ],
)
def test_every_number_of_an_array_counts(make: Any) -> None:
    """What is secret and random follows from it: two questions that are alike would have the same."""
    one, other = make(LONG), make(changed(LONG))
    assert digests.digest_of(one) == digests.digest_of(make(LONG.copy()))
    assert digests.digest_of(one) != digests.digest_of(other)


def test_names_types_and_shapes_count_and_the_order_of_a_sum_need_not() -> None:
    told: list[Message] = [
        dealt_messages.MaskSlopes(products={"bern": WORDS}),
        dealt_messages.MaskSlopes(products={"chur": WORDS}),
        dealt_messages.MaskSlopes(products={"bern": WORDS[1:]}),
        dealt_messages.MaskSlopes(products={"bern": WORDS[:2500], "chur": WORDS[2500:]}),
        forest_messages.PlantTrees(first_tree=0, n_trees=1, candidates=LONG),
        forest_messages.PlantTrees(first_tree=0, n_trees=1, candidates=LONG.astype(np.uint16)),
        extra_messages.QuantilesTold(values=np.zeros((2, 3))),
        extra_messages.QuantilesTold(values=np.zeros((3, 2))),
    ]
    assert len({digests.digest_of(message) for message in told}) == len(told)
    orders = [sum_messages.SumOrder(round=n, clients=("a", "b"), length=3, bound=5) for n in (0, 1)]
    rows = [extra_messages.CountRows(order=order, fraction_bits=0) for order in orders]
    assert digest_of(rows[0]) == digest_of(rows[1])
    assert digests.digest_of(rows[0]) != digests.digest_of(rows[1])
    assert digest_of(rows[0]) != digest_of(extra_messages.CountRows(order=orders[0], fraction_bits=1))
