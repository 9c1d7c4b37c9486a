"""Rows of a federation in this process: counted, selected and split as the rows of a table are.

scikit-learn's splitters, searches and curves ask of X its number of rows and some of them, by ``len``, ``shape`` and
``[...]``. A federation answers with federations of the same parties, so that all of these run on one.
"""

from __future__ import annotations

import secrets
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, NoReturn, Self, overload

import numpy as np
from numpy.typing import NDArray

from woodlot.data.row_rules import RowRule, class_points, row_points, whole_circle
from woodlot.exceptions import DataError
from woodlot.federation.interface import AnyFederation
from woodlot.federation.label_columns import LabelColumn, one_per_row

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Lineage:
    """Which rows of which federation these are.

    Attributes
    ----------
    root : bytes
        The federation that was made of tables; its subsets have the same.
    positions : array of int
        The place in it of each row.
    rules : tuple of RowRule
        By which its rows were selected.
    by_class : bool
        Whether some of its rows were selected by the classes of all.
    """

    root: bytes
    positions: Rows
    rules: tuple[RowRule, ...] = ()
    by_class: bool = False

    def key(self) -> tuple[bytes, bytes]:
        """The same for the same rows in the same order."""
        return self.root, self.positions.tobytes()


class RowAccess(AnyFederation):
    """A federation whose rows are all in this process."""

    n_rows: int
    _lineage: Lineage | None = None

    @property
    def lineage(self) -> Lineage:
        """Which rows of which federation these are."""
        if self._lineage is None:
            self._lineage = Lineage(secrets.token_bytes(16), np.arange(self.n_rows))
        return self._lineage

    def __len__(self) -> int:
        return self.n_rows

    @property
    def shape(self) -> tuple[int, int]:
        """Rows, and columns of all parties together, labels among them."""
        return self.n_rows, self._n_columns()

    @overload
    def __getitem__(self, key: str) -> LabelColumn: ...

    @overload
    def __getitem__(self, key: slice | Sequence[Any] | NDArray[Any] | tuple[Any, ...]) -> Self: ...

    def __getitem__(self, key: Any) -> Any:
        """One column as an array (``fed["bank.default"]``), or the federation of some of the rows (``fed[rows]``).

        Rows are numbers, a mask or a slice, as for a numpy array; a single number is refused.
        """
        if isinstance(key, str):
            return self._label_column(key)
        if isinstance(key, tuple) and len(key) == 2 and key[1] is Ellipsis:  # as scikit-learn asks for rows
            key = key[0]
        return self.take(self._row_numbers(key))

    def _row_numbers(self, key: Any) -> Rows:
        if isinstance(key, Integral):
            raise TypeError(f"a federation has no single rows; for the federation of one row write fed[[{key}]]")
        if not isinstance(key, slice):
            key = np.asarray(key)
            if key.ndim != 1 or (len(key) and key.dtype.kind not in "iub"):
                raise TypeError(
                    "a federation is indexed by 'party.column', or by rows: an array of row numbers, a mask or a slice"
                )
            if key.dtype.kind == "b" and len(key) != self.n_rows:
                raise DataError(f"a mask of {len(key):,} rows does not fit a federation of {self.n_rows:,} rows")
            key = key if key.dtype.kind == "b" else key.astype(np.int64)
        try:
            rows: Rows = np.arange(self.n_rows)[key]
        except IndexError:
            raise DataError(
                f"some of the rows are not in the federation, which has rows 0 to {self.n_rows - 1}"
            ) from None
        if len(rows) == 0:
            raise DataError("none of the federation's rows is selected; a federation needs at least one row")
        return rows

    def __iter__(self) -> NoReturn:
        raise TypeError("a federation has no single rows to go through; select some: fed[rows]")

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise TypeError(
            "a federation is not one array: its columns stay with their parties. For scikit-learn's "
            "permutation_importance use model.permutation_importance(fed), in which each party shuffles its own columns"
        )

    def scored_labels(self, y: Any) -> NDArray[Any]:
        """Labels by the name of their column, or as they are given."""
        return self[y] if isinstance(y, str) else one_per_row(y, self.n_rows, "y")

    def take(self, rows: Rows) -> Self:
        """The federation of these rows, in this order; the parties stay aligned."""
        subset = self._taken(rows)
        subset._lineage = replace(self.lineage, positions=self.lineage.positions[rows])
        return subset

    def split(self, test_size: float = 0.25, *, seed: int = 0, stratify: Any = None) -> tuple[Self, Self]:
        """Divide the rows into those to learn from and those to test on, by a hash of their ids.

        A row is on the side that its id and the seed say, whoever else is there: when rows are added, the others stay
        where they are. A split of a part divides that part. Without ids, rows of clients with the same columns are
        known by all that they hold, and rows of parties with different columns by their place.

        Parameters
        ----------
        test_size : float, default=0.25
            Share of the rows to test on; the number of rows comes out near it, not exactly.
        seed : int, default=0
            Another seed gives another split.
        stratify : str or array, optional
            Labels, by the name of their column or as an array: each class is divided in these shares. A row near the
            edge can then change sides when rows are added.

        Returns
        -------
        train, test : Federation

        Examples
        --------
        >>> import pandas as pd
        >>> import woodlot as wl
        >>> bank = pd.DataFrame({"id": range(40), "income": [20, 60, 30, 70] * 10, "late": ["yes", "no"] * 20})
        >>> shop = pd.DataFrame({"id": range(40), "visits": [5, 2, 4, 1] * 10})
        >>> fed = wl.Federation.local({"bank": bank, "shop": shop}, id="id")
        >>> train, test = fed.split(test_size=0.25, seed=0)
        >>> len(train) + len(test)
        40
        """
        if not isinstance(test_size, Real) or isinstance(test_size, bool) or not 0 < test_size < 1:
            raise ValueError(f"test_size must be a share between 0 and 1, such as 0.25, not {test_size!r}")
        if stratify is not None:
            part = whole_circle(check_seed(seed)).part(0, float(test_size))
            is_held = part.chosen(self._class_points(seed, stratify))
            if is_held.all() or not is_held.any():
                raise DataError(f"test_size={test_size} of {self.n_rows:,} rows leaves none on one side; take another")
            return self._by_class(np.flatnonzero(~is_held)), self._by_class(np.flatnonzero(is_held))
        base = self._rule(check_seed(seed))
        held = base.part(0, float(test_size))
        points = row_points(self._hashed_ids(), base.seed)
        return (
            self._by_rule(base.rest(held), points, f"test_size={test_size} leaves none to train on"),
            self._by_rule(held, points, f"test_size={test_size} leaves none to test on"),
        )

    def fold_numbers(self, n_folds: int, seed: int = 0, stratify: Any = None) -> Rows:
        """The fold of each row, 0 to ``n_folds`` - 1, by a hash of its id as `split` has it."""
        base = self._rule(check_seed(seed)) if stratify is None else whole_circle(check_seed(seed))
        points = row_points(self._hashed_ids(), seed) if stratify is None else self._class_points(seed, stratify)
        numbers = np.zeros(self.n_rows, np.int64)
        for fold in range(1, n_folds):
            numbers[base.part(fold / n_folds, (fold + 1) / n_folds).chosen(points)] = fold
        return numbers

    def _class_points(self, seed: int, labels: Any) -> NDArray[np.uint64]:
        return class_points(self._hashed_ids(), seed, np.asarray(self.scored_labels(labels)))

    def _by_class(self, rows: Rows) -> Self:
        part = self.take(rows)
        part._lineage = replace(part.lineage, by_class=True)
        return part

    def _rule(self, seed: int) -> RowRule:
        """The interval of the circle that these rows are from: all of it, or what an earlier split has left."""
        return next((rule for rule in self.lineage.rules if rule.seed == seed), whole_circle(seed))

    def _by_rule(self, rule: RowRule, points: NDArray[np.uint64], otherwise: str) -> Self:
        rows = np.flatnonzero(rule.chosen(points))
        if len(rows) == 0:
            raise DataError(f"of {self.n_rows:,} rows {otherwise}; take another seed or another share")
        part = self.take(rows)
        others = tuple(earlier for earlier in self.lineage.rules if earlier.seed != rule.seed)
        part._lineage = replace(part.lineage, rules=(*others, rule))
        return part

    # --- what the layouts do in their way ---

    @abstractmethod
    def _taken(self, rows: Rows) -> Self:
        """As `take`."""

    @abstractmethod
    def _label_column(self, name: str) -> LabelColumn:
        """One column, one value per row."""

    @abstractmethod
    def _n_columns(self) -> int:
        """Columns of all parties."""

    @abstractmethod
    def _hashed_ids(self) -> list[bytes]:
        """What is hashed to put each row on its side."""


def check_seed(seed: Any) -> int:
    """A seed as Python's own number."""
    if not isinstance(seed, Integral) or isinstance(seed, bool) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, not {seed!r}")
    return int(seed)


def numbered(positions: Rows) -> list[bytes]:
    """Places of rows, where they have no ids."""
    return [b"row " + position.to_bytes(8, "big") for position in positions.tolist()]
