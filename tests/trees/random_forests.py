"""Random forests of odd shapes, and the slow, obvious way to predict with them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from woodlot.trees.forest import Leaves, Splits, Structure


@dataclass(frozen=True, eq=False)
class RandomForest:
    """A complete forest, a table for it, and the table's columns dealt to parties."""

    structure: Structure
    splits: Splits
    leaves: Leaves
    columns: list[np.ndarray]
    n_rows: int
    column_party: np.ndarray
    n_parties: int

    @property
    def owner(self) -> np.ndarray:
        """Party of each node, -1 at leaves."""
        owner = np.full(self.structure.n_nodes, -1, np.int16)
        owner[self.splits.node] = self.column_party[self.splits.feature]
        return owner

    def party_columns(self, party: int) -> list[np.ndarray]:
        return [self.columns[c] for c in np.flatnonzero(self.column_party == party)]

    def party_splits(self, party: int) -> Splits:
        """The party's own questions, columns numbered as in its own table."""
        place = np.cumsum(self.column_party == party) - 1
        mine = np.flatnonzero(self.column_party[self.splits.feature] == party)
        return take_splits(self.splits, mine, place[self.splits.feature[mine]])


def take_splits(splits: Splits, which: np.ndarray, feature: np.ndarray) -> Splits:
    sets = [splits.sets[splits.set_start[i] : splits.set_start[i + 1]] for i in which]
    return Splits(
        node=splits.node[which],
        feature=feature.astype(np.int32),
        threshold=splits.threshold[which],
        missing_left=splits.missing_left[which],
        set_start=np.append(0, np.cumsum([len(s) for s in sets], dtype=np.int64)).astype(np.int64),
        sets=np.concatenate([np.zeros(0, np.uint8), *sets]),
    )


def random_structure(rng: np.random.Generator, n_trees: int, max_depth: int = 8) -> Structure:
    """Single leaves, chains to either side, bushy and sparse trees."""
    offset, right = [0], []

    def grow(depth: int, chance: float) -> None:
        node = len(right)
        right.append(-1)
        if depth < max_depth and rng.random() < chance:
            grow(depth + 1, chance)
            right[node] = len(right)
            grow(depth + 1, chance)

    def grow_chain(length: int) -> None:
        if length == 0:
            right.append(-1)
            return
        node = len(right)
        right.append(-1)
        long_left = rng.random() < 0.5
        grow_chain(length - 1 if long_left else 0)
        right[node] = len(right)
        grow_chain(0 if long_left else length - 1)

    for _ in range(n_trees):
        kind = rng.integers(4)
        if kind == 0:
            right.append(-1)
        elif kind == 1:
            grow_chain(int(rng.integers(1, 60)))
        else:
            grow(0, rng.choice([0.6, 0.8, 0.95]))
        offset.append(len(right))
    return Structure(np.array(offset, np.int64), np.array(right, np.int32))


def random_leaves(rng: np.random.Generator, n_leaves: int, n_outputs: int) -> Leaves:
    """Answers with many ties, zeros left out, and some leaves without weight."""
    value = rng.integers(0, 4, (n_leaves, n_outputs)) / 3
    value[np.arange(n_leaves), rng.integers(0, n_outputs, n_leaves)] += 1 / 3
    present = value > 0
    return Leaves(
        weight=rng.integers(0, 5, n_leaves).astype(np.float64),
        start=np.append(0, np.cumsum(present.sum(1))).astype(np.int64),
        output=np.nonzero(present)[1].astype(np.int32),
        value=value[present],
        n_outputs=n_outputs,
    )


def random_table(rng: np.random.Generator, n_rows: int, n_categories: list[int], missing: float) -> list[np.ndarray]:
    """One column per entry: 0 for numbers, otherwise how many categories; numbers have many ties."""
    columns: list[np.ndarray] = []
    for n in n_categories:
        absent = rng.random(n_rows) < missing
        if n == 0:
            column = rng.integers(-6, 7, n_rows).astype(np.float32) / 2
            column[rng.random(n_rows) < 0.05] = rng.choice([-np.inf, np.inf, 1e30, -0.0])
            column[absent] = np.nan
        else:
            column = rng.integers(0, n, n_rows).astype(np.int32)
            column[absent] = n
        columns.append(column)
    return columns


def random_splits(rng: np.random.Generator, structure: Structure, n_categories: list[int]) -> Splits:
    node = np.flatnonzero(structure.right >= 0).astype(np.int32)
    feature = rng.integers(0, len(n_categories), len(node)).astype(np.int32)
    threshold = np.full(len(node), np.nan)
    sets = []
    for i, f in enumerate(feature):
        n = n_categories[f]
        if n == 0:
            # on values, between them, and as close to them as float64 can tell and float32 cannot
            threshold[i] = rng.integers(-6, 7) / 2 + rng.choice([0.0, 0.25, 1e-12, -1e-12])
            sets.append(np.zeros(0, np.uint8))
        else:
            # sometimes too short for the code of missing values, which then go where missing_left says
            size = (n + int(rng.integers(0, 2)) + 7) // 8
            sets.append(rng.integers(0, 256, size, dtype=np.uint8))
    return Splits(
        node=node,
        feature=feature,
        threshold=threshold,
        missing_left=rng.random(len(node)) < 0.5,
        set_start=np.append(0, np.cumsum([len(s) for s in sets], dtype=np.int64)).astype(np.int64),
        sets=np.concatenate([np.zeros(0, np.uint8), *sets]),
    )


def random_forest(
    seed: int,
    n_rows: int = 100,
    n_trees: int = 5,
    n_parties: int = 3,
    n_outputs: int = 3,
    categories: bool = True,
    missing: float = 0.1,
) -> RandomForest:
    """Make everything at once; the last of several parties may have no node, or not even a column."""
    rng = np.random.default_rng(seed)
    n_categories = [int(rng.choice([0, 0, 3, 8, 20])) if categories else 0 for _ in range(rng.integers(1, 9))]
    structure = random_structure(rng, n_trees)
    return RandomForest(
        structure=structure,
        splits=random_splits(rng, structure, n_categories),
        leaves=random_leaves(rng, structure.n_leaves, n_outputs),
        columns=random_table(rng, n_rows, n_categories, missing),
        n_rows=n_rows,
        column_party=rng.integers(0, n_parties, len(n_categories)),
        n_parties=n_parties,
    )


def naive_goes_left(splits: Splits, question: int, columns: list[np.ndarray], row: int) -> bool:
    value = columns[splits.feature[question]][row]
    members = splits.sets[splits.set_start[question] : splits.set_start[question + 1]]
    if len(members):
        byte, bit = divmod(int(value), 8)
        return bool(members[byte] >> bit & 1) if byte < len(members) else bool(splits.missing_left[question])
    if np.isnan(value):
        return bool(splits.missing_left[question])
    return float(value) <= splits.threshold[question]


def naive_weights(forest: RandomForest, row: int, known: list[bool]) -> list[dict[int, float]]:
    """Per tree the leaves that the row reaches, with their weights; ``known``: which parties have the row."""
    structure, owner = forest.structure, forest.owner
    question_of = {int(node): i for i, node in enumerate(forest.splits.node)}

    def weight(node: int) -> float:
        if structure.right[node] < 0:
            return float(forest.leaves.weight[structure.leaf[node]])
        return weight(node + 1) + weight(int(structure.right[node]))

    def descend(node: int, share: float, reached: dict[int, float]) -> None:
        right = int(structure.right[node])
        if right < 0:
            reached[int(structure.leaf[node])] = share
        elif known[owner[node]]:
            left = naive_goes_left(forest.splits, question_of[node], forest.columns, row)
            descend(node + 1 if left else right, share, reached)
        else:
            total = weight(node)
            descend(node + 1, share * (weight(node + 1) / total if total else 0.5), reached)
            descend(right, share * (weight(right) / total if total else 0.5), reached)

    trees: list[dict[int, float]] = []
    for root in structure.offset[:-1]:
        trees.append({})
        descend(int(root), 1.0, trees[-1])
    return trees


def naive_answer(leaves: Leaves, trees: list[dict[int, float]], vote: str) -> np.ndarray:
    """Mean over the trees of their answers, in tree order."""
    total = np.zeros(leaves.n_outputs)
    for reached in trees:
        answer = np.zeros(leaves.n_outputs)
        for leaf, share in reached.items():
            for j in range(leaves.start[leaf], leaves.start[leaf + 1]):
                answer[leaves.output[j]] += share * leaves.value[j]
        if vote == "majority":
            total[np.argmax(answer)] += 1.0
        else:
            total += answer
    return total / len(trees)
