"""What docs/protocol/revocable.md says that a coordinator finds out by what it may compare, under scheme="shares".

All of these messages are answered. They are no mistakes of the holders: each tells one true bit, and the bits add up.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from revocable_world import Planted, plant, splits_at
from share_world import ShareWorld, inner_nodes

from woodlot.crypto import split_compare
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import share_messages as msg
from woodlot.protocols.revocable.share_predict import SharedRequest, SharedSplits


def spread(seed: int, **options: Any) -> Planted:
    """A forest whose thresholds are all different, between -1 and 1."""
    planted = plant(seed, **options)
    forest = planted.coordinator
    inner = forest.structure.right >= 0
    rng = np.random.default_rng(seed)
    planted.threshold[inner] = rng.uniform(-1, 1, int(inner.sum())).astype(np.float32)
    for number, name in enumerate(forest.parties):
        node = np.flatnonzero(forest.owner == number)
        own = planted.feature[node] // len(forest.parties)
        planted.splits[name] = splits_at(node, own.astype(np.int32), planted.threshold[node])
    return planted


class Asking:
    """A coordinator that asks for comparisons of its choice, and counts them."""

    def __init__(self, world: ShareWorld, splits: SharedSplits, request: SharedRequest) -> None:
        self._world, self._splits, self._request = world, splits, request
        self.asked = 0
        world.helper.handle(world.take(request))

    def larger(self, nodes: Any, rows: Any) -> NDArray[np.bool_]:
        """Whether the value of each row is larger than the split of each node."""
        self.asked += len(nodes)
        helper, service = self._world.both(self._world.fields(self._request, self._splits, nodes, rows))
        assert isinstance(helper, msg.HelperCompared)
        assert isinstance(service, msg.ServiceCompared)
        return split_compare.is_larger((helper.words, helper.tops), (service.words, service.tops))


def test_one_request_of_a_grid_finds_every_split_between_two_of_its_values() -> None:
    """The rows are known to the requester, who works for the coordinator: each split is searched among them."""
    planted = spread(1, n_trees=10, depth=4)
    world = ShareWorld(planted)
    _, splits = world.begin()
    grid = np.linspace(-1, 1, 512).astype(np.float32)
    asking = Asking(world, splits, world.request(np.tile(grid[:, None], (1, 5)), splits))
    nodes = inner_nodes(planted)
    rng = np.random.default_rng(0)
    low, high = np.full(len(nodes), -1), np.full(len(nodes), len(grid))  # value[low] <= split < value[high]
    while (open_ := np.flatnonzero(high - low > 1)).size:
        # near the middle, by chance: a row has no more comparisons than the paths have
        width = high[open_] - low[open_]
        middle = low[open_] + np.clip((width * rng.uniform(0.35, 0.65, len(open_))).astype(int), 1, width - 1)
        larger = asking.larger(nodes[open_], middle)
        high[open_[larger]] = middle[larger]
        low[open_[~larger]] = middle[~larger]
    thresholds = planted.threshold[nodes]
    inside = (low >= 0) & (high < len(grid))
    assert inside.all()
    assert (grid[low] <= thresholds).all()
    assert (thresholds < grid[high]).all()
    assert len(nodes) > 80
    assert asking.asked / len(nodes) < 12  # some nine bits of each split, from one request


def test_one_request_tells_the_place_of_its_values_among_all_splits_and_is_still_answered_right() -> None:
    """Who knows the order of the splits, as a coordinator from the training, searches each value among them."""
    planted = spread(2, n_trees=12, depth=4)
    world = ShareWorld(planted)
    _, splits = world.begin()
    forest, nodes = planted.coordinator, inner_nodes(planted)
    rows = np.random.default_rng(0).uniform(-1, 1, (20, 5)).astype(np.float32)
    asking = Asking(world, splits, world.request(rows, splits))
    larger = np.zeros((len(rows), forest.structure.n_nodes), bool)
    for column in range(rows.shape[1]):
        ordered = nodes[planted.feature[nodes] == column]
        ordered = ordered[np.argsort(planted.threshold[ordered])]  # the order, and no threshold, is what it knows
        low, high = np.zeros(len(rows), int), np.full(len(rows), len(ordered))
        while (open_ := np.flatnonzero(low < high)).size:
            middle = (low[open_] + high[open_]) // 2
            found = asking.larger(ordered[middle], open_)
            low[open_[found]] = middle[found] + 1
            high[open_[~found]] = middle[~found]
        np.testing.assert_array_equal(low, (rows[:, column, None] > planted.threshold[ordered]).sum(axis=1))
        for row, place in enumerate(low.tolist()):
            larger[row, ordered[:place]] = True
    # all sides are known, so the leaves are: nobody notices
    at = np.tile(forest.structure.offset[:-1], (len(rows), 1))
    for _ in range(5):
        inner = forest.structure.right[at] >= 0
        right = np.take_along_axis(larger, at, axis=1)
        at = np.where(inner, np.where(right, forest.structure.right[at], at + 1), at)
    np.testing.assert_array_equal(forest.structure.leaf[at], planted.leaves(rows.astype(float)))
    # 100 splits, and a row has fewer comparisons than on its paths down the twelve trees
    assert len(nodes) == 100
    assert asking.asked / len(rows) < 29


def test_a_holder_and_a_party_together_read_one_row_at_the_splits_of_that_party() -> None:
    """The party knows the trees and the places of its splits, the holder which of them a row comes by."""
    planted = spread(3, n_trees=30, depth=5, n_features=4, parties=("bank", "shop"))
    world = ShareWorld(planted)
    keys, splits = world.begin()
    heard: list[msg.CompareAtService] = []
    answer = world.key_service.handle

    def listening(message: Message) -> Message:
        if isinstance(message, msg.CompareAtService):
            heard.append(message)
        return answer(message)

    world.key_service.handle = listening  # type: ignore[method-assign]
    row = np.random.default_rng(0).uniform(-1, 1, (1, 4)).astype(np.float32)
    world.leaves(keys, splits, world.request(row, splits))

    own, right = planted.splits["bank"].node, planted.coordinator.structure.right
    node_at = {
        int(splits.place[np.searchsorted(splits.node, node)]): int(node) for node in own
    }  # as the bank drew them
    met: set[int] = set()
    for level in heard:
        bank = level.owners.index("bank") if "bank" in level.owners else -1
        met |= {node_at[place] for place in level.place[level.owner == bank].tolist()}
    told: dict[int, bool] = {}  # whether the value is larger than the split of a node
    for node in met:
        for child, larger in ((node + 1, False), (int(right[node]), True)):
            if child in set(own.tolist()):  # met, or not: both tell the side
                told[node] = larger == (child in met)
    assert len(told) > 30
    assert len(told) / len(met) > 0.5
    for node, larger in told.items():
        assert larger == (row[0, planted.feature[node]] > planted.threshold[node])
