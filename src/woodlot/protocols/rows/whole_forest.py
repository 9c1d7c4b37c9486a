"""Whole trees on the wire, and the finished model: the one place where they change their form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest, codings_of
from woodlot.protocols.core.soundness import check_splits, check_structure
from woodlot.protocols.rows.row_messages import TreesMessage
from woodlot.protocols.rows.schema import CommonSchema
from woodlot.trees.alone import WholeTrees
from woodlot.trees.forest import Leaves, Splits, Structure
from woodlot.trees.sampling import feature_key

HOLDER = "forest"
"""Who has the splits of a whole model: a name in the place of a party's."""


def fields_of(trees: WholeTrees, first_tree: int) -> dict[str, Any]:
    """The fields of a `TreesMessage`."""
    return {
        "first_tree": first_tree,
        "offset": trees.structure.offset,
        "right": trees.structure.right,
        "feature": trees.splits.feature,
        "threshold": trees.splits.threshold,
        "missing_left": trees.splits.missing_left.astype(np.uint8),
        "set_start": trees.splits.set_start,
        "sets": trees.splits.sets,
    }


def trees_of(message: TreesMessage, categories: tuple[tuple[str, ...] | None, ...], sender: str) -> WholeTrees:
    """The trees of a message, checked: rows are sent down them without looking.

    Raises
    ------
    RemoteProtocolError
        If they are no sound trees on these columns.
    """
    structure = Structure(message.offset.copy(), message.right.copy())
    try:
        check_structure(structure)
        splits = Splits(
            node=np.flatnonzero(structure.right >= 0).astype(np.int32),
            feature=message.feature.copy(),
            threshold=message.threshold.copy(),
            missing_left=message.missing_left.astype(np.bool_),
            set_start=message.set_start.copy(),
            sets=message.sets.copy(),
        )
        check_splits(splits, splits.node.astype(np.int64), codings_of(categories))
        _check_sets(splits, categories)
    except ValueError as error:
        raise RemoteProtocolError(f"{sender} sent trees that are not sound: {error}") from None
    return WholeTrees(structure, splits)


def _check_sets(splits: Splits, categories: tuple[tuple[str, ...] | None, ...]) -> None:
    """A set says where every category goes, and those that nobody has seen."""
    full = np.array([0 if names is None else len(names) // 8 + 1 for names in categories], np.int64)
    if not np.array_equal(np.diff(splits.set_start), full[splits.feature]):
        raise ValueError("a set leaves out a category")


def whole_forest(
    trees: WholeTrees,
    leaves: Leaves,
    gain: NDArray[np.float64],
    schema: CommonSchema,
    makers: NDArray[np.int16] | None = None,
) -> tuple[CoordinatorForest, PartyForest]:
    """The finished model in the parts that prediction, export and files know: one holder has every split."""
    structure = trees.structure
    feature = np.full(structure.n_nodes, -1, np.int32)
    feature[trees.splits.node] = trees.splits.feature
    forest = CoordinatorForest(
        structure=structure,
        owner=np.where(feature >= 0, 0, -1).astype(np.int16),
        feature=feature,
        gain=gain,
        leaves=leaves,
        parties=(HOLDER,),
        feature_keys=np.array([feature_key(name) for name in schema.names], np.uint64),
        feature_party=np.zeros(len(schema.names), np.int64),
        classes=schema.classes,
        n_rows=schema.total_rows,
        sampling=None,
        sharing=frozenset({HOLDER}),
        makers=makers,
    )
    return forest, PartyForest(structure, trees.splits, schema.names, codings_of(schema.categories))
