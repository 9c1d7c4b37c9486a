"""Whether new rows still look like those of the training: population stability per column and of the answers.

The index compares the shares of rows in some bins: sum of (new - old) * ln(new / old). It is 0 for the same shares. By
custom a column below 0.1 is called stable, and above 0.25 shifted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.columns import CategoryColumn, Column, NumericColumn
from woodlot.data.markup import html_table
from woodlot.exceptions import DataError
from woodlot.federation.interface import AnyFederation

BINS = 10
"""Bins of numbers: tenths of the old rows."""
STABLE, SHIFTED = 0.1, 0.25
"""Below and above which a column is called so."""


def stability_index(old: NDArray[np.float64], new: NDArray[np.float64]) -> float:
    """Population stability of counts by bin; half a row is added to each: an empty one costs a finite number."""
    p, q = (old + 0.5) / (old + 0.5).sum(), (new + 0.5) / (new + 0.5).sum()
    return float(np.sum((q - p) * np.log(q / p)))


def column_stability(old: Column, new: Column) -> float:
    """At the owner of a column: its index. Missing values are a bin of their own, and so are unseen categories."""
    if isinstance(old, NumericColumn) != isinstance(new, NumericColumn):
        raise DataError("a column is numeric in one of the tables and has categories in the other; give both alike")
    if isinstance(old, NumericColumn) and isinstance(new, NumericColumn):
        return number_stability(old.values, new.values)
    if not isinstance(old, CategoryColumn) or not isinstance(new, CategoryColumn):
        raise TypeError("a column has numbers or categories")
    place = {name: k for k, name in enumerate(old.categories)}
    n = len(old.categories)
    moved = np.array([*(place.get(name, n) for name in new.categories), n + 1], np.int64)  # a missing one is the last
    own = np.where(old.codes < 0, n + 1, old.codes)
    return _counted(own, moved[new.codes], n + 2)


def number_stability(old: NDArray[Any], new: NDArray[Any]) -> float:
    """The index of numbers, in tenths of the old ones."""
    known = old[~np.isnan(old)]
    cuts = np.unique(np.quantile(known, np.linspace(0, 1, BINS + 1)[1:-1])) if len(known) else np.empty(0)

    def bins(values: NDArray[Any]) -> NDArray[np.int64]:
        return np.where(np.isnan(values), len(cuts) + 1, np.searchsorted(cuts, values, side="left"))

    return _counted(bins(old), bins(new), len(cuts) + 2)


def _counted(old: NDArray[np.int64], new: NDArray[np.int64], n: int) -> float:
    counts = [np.bincount(codes, minlength=n).astype(np.float64) for codes in (old, new)]
    used = (counts[0] > 0) | (counts[1] > 0)
    return stability_index(counts[0][used], counts[1][used])


@dataclass(frozen=True, eq=False, repr=False)
class Drift:
    """How far new rows are from old ones.

    Attributes
    ----------
    columns : dict of str to float
        Population stability by ``party.column``; of a party that keeps the names of its columns to itself, the largest
        one, under the party's name.
    answers : dict of str to float
        Of the model's answers: the predictions of a regressor, the probability of each class of a classifier. Empty
        where ``no_answers`` says why.
    n_old, n_new : int
        Rows that were compared.
    """

    columns: dict[str, float]
    answers: dict[str, float]
    n_old: int
    n_new: int
    no_answers: str = ""
    owners: dict[str, str] = field(default_factory=dict)

    @property
    def shifted(self) -> dict[str, float]:
        """Columns and answers above 0.25, the largest first."""
        every = {**self.columns, **{f"answer {name}": index for name, index in self.answers.items()}}
        return {name: every[name] for name in sorted(every, key=lambda n: -every[n]) if every[name] > SHIFTED}

    def _lines(self) -> list[tuple[str, str, str]]:
        columns = sorted(self.columns.items(), key=lambda one: -one[1])
        every = [*((f"answer {name}", index) for name, index in self.answers.items()), *columns]
        return [(name, f"{index:.3f}", verdict(index)) for name, index in every]

    @property
    def _title(self) -> str:
        return f"Drift from {self.n_old:,} to {self.n_new:,} rows" + (f"; {self.no_answers}" if self.no_answers else "")

    def __repr__(self) -> str:
        lines = [("what", "stability index", ""), *self._lines()]
        widths = [max(len(line[k]) for line in lines) for k in range(2)]
        return "\n".join([self._title, *(f"  {a:<{widths[0]}}  {b:<{widths[1]}}  {c}".rstrip() for a, b, c in lines)])

    def _repr_html_(self) -> str:
        title = html_table((), [(self._title,)]).replace("<td>", "<td><b>").replace("</td>", "</b></td>")
        return title + html_table(("what", "stability index", ""), self._lines())

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values that JSON can hold."""
        return {
            "columns": dict(self.columns),
            "answers": dict(self.answers),
            "n_old": self.n_old,
            "n_new": self.n_new,
            "no_answers": self.no_answers,
        }


def verdict(index: float) -> str:
    """What an index is called by custom."""
    return "stable" if index < STABLE else "shifted" if index > SHIFTED else "some shift"


def column_drift(
    old: AnyFederation, new: AnyFederation, used: Mapping[str, tuple[str, ...]]
) -> tuple[dict[str, float], int, int]:
    """The index of each column that a model uses, found by its owner; and the old and new rows' numbers.

    Parameters
    ----------
    old, new : federation
        Old and new rows.
    used : mapping of str to tuple of str
        By party the columns of the model.
    """
    found: dict[str, float] = {}
    rows = 0, 0
    for party, names in used.items():
        if party not in new.parties or party not in old.parties or not names:
            continue
        before, after = old.own_columns(party, names), new.own_columns(party, names)
        rows = len(before[0]), len(after[0])
        own = {f"{party}.{name}": column_stability(a, b) for name, a, b in zip(names, before, after, strict=True)}
        found |= own if new.shows_names(party) else {party: max(own.values())}
    return found, *rows


def answer_drift(
    old: NDArray[np.float64], new: NDArray[np.float64], names: tuple[str, ...], label: Callable[[int], str]
) -> dict[str, float]:
    """The index of each output; of two classes of the second one alone, since the first says the same."""
    outputs = [1] if len(names) == 2 else range(old.shape[1])
    rows = ~np.isnan(old).any(axis=1)
    return {label(k): number_stability(old[rows, k], new[:, k]) for k in outputs}
