"""The parts of a federated linear model, by who holds them, and what makes a party's table a matrix."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, softmax

from woodlot.data.columns import CategoryColumn, NumericColumn
from woodlot.data.tables import Table
from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_parts import ClassName
from woodlot.protocols.core.forest_plan import Protection
from woodlot.trees.encoding import CategoryCoding, UnseenWarning, match_codes

Task = Literal["classes", "targets"]
Matrix = NDArray[np.float64]


class LinearPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is to be fitted.

    Attributes
    ----------
    task : {"classes", "targets"}
        Logistic regression (multinomial from three classes on), or least squares.
    strength : float
        Of the penalty, half the squared weights: beside the sum of all rows' losses (of squares: half of them).
    fit_intercept, standardize : bool
        Whether scores have a constant, and whether every party scales its columns to unit variance.
    balanced : bool
        Weigh classes so that all count the same.
    class_weight : tuple of (str, float)
        Weights of classes by name.
    max_iter : int
        Steps at most.
    tol : float
        The descent has converged when no slope of the mean loss is larger.
    protection : {"open", "hidden"}
        Whether everybody sees the residuals, or none but the label holder.

    """

    task: Task
    strength: float
    fit_intercept: bool
    standardize: bool
    balanced: bool
    class_weight: tuple[tuple[str, float], ...]
    max_iter: int
    tol: float
    protection: Protection = "open"

    def may_score(self, n_scores: int) -> bool:
        """Party: whether a row can have so many scores. How many classes there are only the label holder knows."""
        return n_scores == 1 or (self.task == "classes" and n_scores > 2)


@dataclass(frozen=True, eq=False, repr=False)
class LinearColumns:
    """How a party's table becomes a matrix: the training's columns and categories, and what stands for missing values.

    Attributes
    ----------
    names : tuple of str
        The party's columns.
    categories : tuple of (tuple of str or None)
        By column its categories, each of which is a column of the matrix; None for numbers.
    fill : float64 array
        By column of the matrix, what stands for a missing number: the training's mean. A missing category is none.
    centre, scale : float64 array
        What is subtracted from each column of the matrix, and what it is divided by then.

    """

    names: tuple[str, ...]
    categories: tuple[tuple[str, ...] | None, ...]
    fill: NDArray[np.float64]
    centre: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def of(
        cls, table: Table, centred: bool, standardised: bool, weights: NDArray[np.float64] | None = None
    ) -> LinearColumns:
        """Learn them from the training rows; a row of weight 2 counts as two rows."""
        categories = tuple(c.categories if isinstance(c, CategoryColumn) else None for c in table.columns)
        width = sum(1 if names is None else len(names) for names in categories)
        blank = cls(table.names, categories, np.zeros(width), np.zeros(width), np.ones(width))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of a column that has nothing but missing values
            fill = np.nan_to_num(_means(blank._raw(table), weights)) if table.n_rows else np.zeros(width)
        filled = cls(table.names, categories, fill, blank.centre, blank.scale)
        values = filled.matrix(table)
        means = values.mean(axis=0) if weights is None else np.average(values, axis=0, weights=weights)
        if weights is None:
            spread = values.std(axis=0)
        else:
            values = values[weights > 0]  # a row without weight is no row: its values must not tell what varies
            spread = np.sqrt(np.average((values - means) ** 2, axis=0, weights=weights[weights > 0]))
        varies = spread > 10 * np.finfo(np.float64).eps * np.abs(values).max(axis=0, initial=0.0)
        return cls(
            table.names,
            categories,
            fill,
            means if centred else np.zeros(width),
            np.where(varies, spread, 1.0) if standardised else np.ones(width),
        )

    @property
    def n_columns(self) -> int:
        """Columns of the matrix."""
        return len(self.fill)

    def matrix(self, table: Table) -> Matrix:
        """The matrix of some rows.

        Raises
        ------
        DataError
            If a column of the training is missing, or is of another kind now.

        """
        raw = self._raw(table)
        raw = np.where(np.isnan(raw), self.fill, raw)
        return np.asarray((raw - self.centre) / self.scale)

    def _raw(self, table: Table) -> Matrix:
        absent = table.absent(self.names)
        if absent:
            raise DataError(
                f"columns of the training are missing: {absent}; give the table the columns it was fitted with"
            )
        parts = [np.empty((table.n_rows, 0))]
        for name, categories in zip(self.names, self.categories, strict=True):
            column = table.column(name)
            if isinstance(column, NumericColumn):
                if categories is not None and not np.isnan(column.values).all():
                    raise DataError(f"column {name!r} was categorical in training and is numeric now; give it as text")
                width = 1 if categories is None else len(categories)
                parts.append(np.repeat(column.values.astype(np.float64)[:, None], width, axis=1))
                if categories is not None:
                    parts[-1] = np.zeros_like(parts[-1])
            elif categories is None:
                if not (column.codes < 0).all():
                    raise DataError(f"column {name!r} was numeric in training and is categorical now; make it numbers")
                parts.append(np.full((table.n_rows, 1), np.nan))
            else:
                parts.append(_one_hot(name, categories, column))
        return np.concatenate(parts, axis=1)


def _means(values: Matrix, weights: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Of every column, over the rows that have a value; NaN where none has."""
    if weights is None:
        return np.asarray(np.nanmean(values, axis=0))
    heavy = np.where(np.isnan(values), 0.0, weights[:, None])
    return np.asarray((np.nan_to_num(values) * heavy).sum(axis=0) / heavy.sum(axis=0))


def _one_hot(name: str, categories: Sequence[str], column: CategoryColumn) -> Matrix:
    codes, unseen = match_codes(CategoryCoding(tuple(categories)), column)
    if unseen:
        warnings.warn(UnseenWarning(name, unseen), stacklevel=2)
    return np.asarray(np.eye(len(categories) + 1)[codes][:, :-1])


@dataclass(frozen=True, eq=False, repr=False)
class PartyLinear:
    """What a party keeps: its columns and its weights."""

    columns: LinearColumns
    weights: Matrix
    """One row per column of the matrix, one column per score."""

    def scores(self, table: Table) -> Matrix:
        """The party's share of the scores of some rows."""
        return self.columns.matrix(table) @ self.weights


@dataclass(frozen=True, eq=False)
class CoordinatorLinear:
    """What the coordinator keeps: who takes part, and the intercepts.

    Attributes
    ----------
    parties : tuple of str
        Everybody.
    n_columns : dict of str to int
        Columns of each party's matrix; a party without any is not asked.
    classes : tuple
        Names of the classes; empty for least squares.
    intercept : float64 array
        One per score.
    unit : float
        What scores are multiplied by: the spread of the targets.
    centred : bool
        Whether a party's average row has the share 0.
    n_iter : int
        Steps that were made.
    converged : bool
        Whether they were enough.

    """

    parties: tuple[str, ...]
    n_columns: dict[str, int]
    classes: tuple[ClassName, ...]
    intercept: NDArray[np.float64]
    unit: float
    centred: bool
    n_rows: int
    n_iter: int
    converged: bool

    @property
    def asked(self) -> tuple[str, ...]:
        """The parties that have weights."""
        return tuple(party for party in self.parties if self.n_columns[party])

    def decide(self, scores: Matrix) -> Matrix:
        """What comes of the sum of all shares: one score per row, or per row and class."""
        return np.asarray(scores * self.unit + self.intercept)

    def probabilities(self, scores: Matrix) -> Matrix:
        """Of every class, from what `decide` returns."""
        if scores.shape[1] == 1:
            second = expit(scores)
            return np.asarray(np.column_stack([1 - second, second]))
        return np.asarray(softmax(scores, axis=1))


@dataclass(frozen=True, eq=False)
class FittedLinear:
    """A linear model in its parts.

    Attributes
    ----------
    coordinator : CoordinatorLinear
        The coordinator's part.
    parts : dict of str to PartyLinear
        What each party that is at hand keeps in its own store.
    model : str or None
        Its name at the coordinator that has fitted it, on a connected federation.
    leader : str
        The party that has led its fitting there, and leads its jobs; empty: the coordinator.

    """

    coordinator: CoordinatorLinear
    parts: dict[str, PartyLinear] = field(default_factory=dict)
    model: str | None = None
    leader: str = ""
