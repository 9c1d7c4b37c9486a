"""Rows that are drawn one by one (``bootstrap_by="row"``): their keys, and the order in which they are learnt from.

A row's key is a hash of its id, or of all it holds where rows have no ids. Training takes the rows in the order of
their keys, so that neither the order of a table nor rows that are not there change the forest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn
from woodlot.data.tables import Table
from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_plan import ForestPlan
from woodlot.protocols.core.target import Target
from woodlot.trees.drawing import HEAVIEST, RowDraws, id_keys, row_keys, text_keys
from woodlot.trees.sampling import feature_key

WEIGHT_COLUMN = 0x2545F4914F6CDD1D
"""What the weights of rows are known by among the columns that a key is made of."""


@dataclass(frozen=True, eq=False)
class DrawnRows:
    """The rows of a training in the order of their keys.

    Attributes
    ----------
    draws : RowDraws
        How often each is drawn.
    place : int64 array
        Where each stands in what was given to ``fit``.
    by_id : bool
        Whether the keys come from ids; otherwise from all that rows hold, their labels included.
    """

    draws: RowDraws
    place: NDArray[np.int64]
    by_id: bool

    def take(self, rows: NDArray[np.int64]) -> DrawnRows:
        """Some of the rows, in the same order."""
        return DrawnRows(self.draws.take(rows), self.place[rows], self.by_id)

    @property
    def in_given_order(self) -> NDArray[np.int64]:
        """The rows in the order in which they were given to ``fit``."""
        return np.argsort(self.place)


def check_drawn_by_row(plan: ForestPlan) -> None:
    """Refuse plans by which one row's draws depend on the other rows."""
    if plan.protection == "hidden":
        raise DataError("bootstrap_by='row' is for protection='open'; a hidden training draws rows by position")
    if isinstance(plan.max_samples, int):
        raise DataError(
            f"max_samples={plan.max_samples} is a number of rows, of which each row's chance depends on how many "
            "others there are; with bootstrap_by='row' give a share, such as max_samples=0.5"
        )
    if plan.class_weight == "balanced_subsample":
        raise DataError(
            "class_weight='balanced_subsample' weighs the rows of a tree by one another; with bootstrap_by='row' use "
            "'balanced' or weights by class"
        )


def order_rows(
    plan: ForestPlan,
    target: Target,
    tables: Mapping[str, Table],
    ids: Sequence[bytes] | None,
    key_by_party: bool,
) -> DrawnRows:
    """Find the rows' keys and how often each is drawn.

    Parameters
    ----------
    plan : ForestPlan
        What is to be grown.
    target : Target
        Labels and weights.
    tables : mapping of str to Table
        Each party's columns to learn from.
    ids : sequence of bytes, optional
        In canonical form.
    key_by_party : bool
        Whether a column is known by its party's name too.
    """
    check_drawn_by_row(plan)
    keys = content_keys(target, tables, key_by_party) if ids is None else id_keys(ids)
    balanced, named = plan.class_weight == "balanced", plan.class_weight
    weights, factor = target.integer_weights(balanced, named if isinstance(named, tuple) else ())
    rate = 1.0 if plan.max_samples is None else float(plan.max_samples)
    exact = None if weights is None else weights / factor
    heaviest = rate * (1.0 if exact is None else float(exact.max()))
    if plan.bootstrap and heaviest > HEAVIEST:
        raise DataError(
            f"a row would be drawn {heaviest:,.0f} times on average, and with bootstrap_by='row' at most "
            f"{HEAVIEST:,.0f} times; scale the weights or max_samples down, or use bootstrap_by='draw'"
        )
    order = np.argsort(keys, kind="stable")
    draws = RowDraws.of(keys, rate if plan.bootstrap else 1.0, exact if plan.bootstrap else None)
    return DrawnRows(draws.take(order), order, ids is not None)


def content_keys(target: Target, tables: Mapping[str, Table], key_by_party: bool) -> NDArray[np.uint64]:
    """Keys made of all that rows hold; equal rows have equal keys, and other rows change nothing."""
    columns: list[NDArray[Any]] = []
    names: list[int] = []
    for party, table in tables.items():
        for name, column in zip(table.names, table.columns, strict=True):
            if isinstance(column, CategoryColumn):
                columns.append(np.append(text_keys(column.categories), np.int64(-1))[column.codes])
            else:
                columns.append(column.values)
            names.append(feature_key(name, party if key_by_party else ""))
    if target.weights is not None:
        columns.append(target.weights)
        names.append(WEIGHT_COLUMN)
    if target.classes:
        named = text_keys([f"{type(name).__name__} {name}" for name in target.classes])
        return row_keys(columns, names, named[target.numbers])
    return row_keys(columns, names, target.values)


def take_target(target: Target, rows: NDArray[np.int64]) -> Target:
    """The labels of some rows, with the classes that still occur."""
    weights = None if target.weights is None else target.weights[rows]
    if not target.classes:
        return replace(target, values=target.values[rows], weights=weights)
    present, numbers = np.unique(target.numbers[rows], return_inverse=True)
    classes = tuple(target.classes[k] for k in present.tolist())
    return Target(classes, numbers.ravel(), target.values, weights)
