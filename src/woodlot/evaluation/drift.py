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

from woodlot.data.columns import Column
from woodlot.data.markup import html_table
from woodlot.federation.interface import AnyFederation, ToldDrift
from woodlot.metrics.stability import NumberBins, column_bins, column_index

NO_OUT_OF_BAG = "answers are not compared, for those on training rows are too sure: fit with oob_score=True"

STABLE, SHIFTED = 0.1, 0.25
"""Below and above which a column is called so."""


def column_stability(old: Column, new: Column) -> float:
    """At the owner of a column: its index. Missing values are a bin of their own, and so are unseen categories."""
    return column_index(column_bins(old), new)


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


def told_drift(told: ToldDrift) -> Drift:
    """What parties elsewhere tell, as users read it; of two classes the first says the same as the second."""
    if told.answers is None:
        return Drift(told.columns, {}, told.n_old, told.n_new, NO_OUT_OF_BAG)
    names = [str(label) for label in told.classes] or ["prediction"]
    answers = dict(zip(names, told.answers, strict=True))
    if len(names) == 2:
        del answers[names[0]]
    return Drift(told.columns, answers, told.n_old, told.n_new)


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
    return {label(k): NumberBins.of(old[rows, k]).index(new[:, k]) for k in outputs}
