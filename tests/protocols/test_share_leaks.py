"""What docs/limitations.md says that helper and key service find out under scheme="shares", by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import spearmanr

import woodlot as wl
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import share_messages as msg

Rows = frozenset[int]


def rows_of_splits(message: msg.CompareAtService) -> list[Rows]:
    """For each split of a level, the rows that come by it."""
    split = message.owner.astype(np.int64) << 32 | message.place
    return [frozenset(message.row[split == one].tolist()) for one in np.unique(split)]


def test_the_key_service_finds_the_order_of_values_from_which_rows_meet() -> None:
    """The two sides of a tree's first split are two sets of the next level; those of one column are nested."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 6))
    y = (X @ [1, -1, 0.8, 0.8, -0.6, 0.6] + rng.normal(size=600) > 0).astype(int)
    model = wl.RevocableForestClassifier(40, max_depth=2, random_state=0, parties=3).fit(X[:300], y[:300])
    service = model._secrets().ring.key_service
    heard: list[msg.CompareAtService] = []
    answer = service.handle

    def listening(message: Message) -> Message:
        if isinstance(message, msg.CompareAtService):
            heard.append(message)
        return answer(message)

    service.handle = listening  # type: ignore[method-assign]
    rows = X[300:]
    model.predict_encrypted(rows)

    everything = frozenset(range(len(rows)))
    below = set(rows_of_splits(heard[1]))
    cuts = sorted((side for side in below if 0 in side and everything - side in below), key=len)
    assert len(cuts) >= 20
    forest = model.forest_.coordinator
    truly = {side for root in forest.structure.offset[:-1].tolist() for side in sides(model, root, rows)}
    assert truly.issuperset(cuts)  # each is the first split of a tree

    groups: list[list[Rows]] = []
    for cut in cuts:
        group = next((g for g in groups if all(is_nested(cut, other, everything) for other in g)), None)
        if group is None:
            groups.append([cut])
        else:
            group.append(cut)
    found = sorted((order_found(group, everything, rows) for group in groups if len(group) > 3), reverse=True)
    assert len(found) >= 3
    assert found[2] > 0.8  # rank correlation with a column, up to the direction


def sides(model: Any, root: int, rows: Any) -> list[Rows]:
    """The rows on each side of a tree's first split, in truth."""
    for part in model.forest_.parts.values():
        at = np.flatnonzero(part.splits.node == root)
        if len(at):
            column = int(part.names[int(part.splits.feature[at[0]])].lstrip("x"))
            larger = rows[:, column].astype(np.float32) > part.splits.threshold[at[0]]
            return [frozenset(np.flatnonzero(larger == side).tolist()) for side in (False, True)]
    return []


def is_nested(one: Rows, other: Rows, everything: Rows) -> bool:
    return one <= other or other <= one or not one & other or one | other == everything


def order_found(group: list[Rows], everything: Rows, rows: Any) -> float:
    """How well the cuts of one group tell the order of a column's values."""
    middle = min(group, key=lambda cut: abs(2 * len(cut) - len(everything)))
    place = np.zeros(len(rows))
    for cut in group:
        side = cut if cut <= middle or middle <= cut else everything - cut
        place[list(side)] += 1
    return max(abs(float(spearmanr(place, column).statistic)) for column in rows.T)
