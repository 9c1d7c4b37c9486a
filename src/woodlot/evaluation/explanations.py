"""What `explain` gives: the answer for each row, divided among the parties and their columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from woodlot.data.markup import html_table
from woodlot.exceptions import DataError

ADDITIVITY = 1e-6
"""By how much the parts of an answer may miss it, relative to the largest answer."""
SHOWN = 20
"""Features in a table or a figure."""


@dataclass(frozen=True, eq=False, repr=False)
class Explanation:
    """Shapley values: how much each column, or party, moved the model's answer for each row.

    The answers are divided without a rest: ``base_values`` and the values of a row add up to the model's answer for it.
    This is checked when an explanation is made.

    Attributes
    ----------
    values : array of shape (n_rows, n_features) or (n_rows, n_features, n_classes)
        Of a regressor, how far each feature moved the prediction; of a classifier, the probability of each class.
    base_values : float or array of shape (n_classes,)
        What the model answers without any column: the mean over the training's rows.
    outputs : array of shape (n_rows,) or (n_rows, n_classes)
        What the model answers.
    features : tuple of str
        ``party.column``; or the party alone where it keeps the names of its columns to itself, for all of them.
        Of one table, and of clients with the same columns, the column.
    owners : tuple of str
        The party of each feature; empty where all parties have the same columns.
    classes : array
        The classes of a classifier; empty for a regressor.
    uncertain : array of bool
        Rows that a party lacks: its columns have no part in their answers.
    data : dict of str to tuple of str
        The rows' values in words, of the features whose owners let them be told.
    ids : array or None
        Id of each row.

    Examples
    --------
    >>> import pandas as pd
    >>> import woodlot as wl
    >>> bank = pd.DataFrame({"id": range(40), "income": [20, 60, 30, 70] * 10, "late": ["yes", "no"] * 20})
    >>> shop = pd.DataFrame({"id": range(40), "visits": [5, 2, 4, 1] * 10})
    >>> fed = wl.Federation.local({"bank": bank, "shop": shop}, id="id", explains={"bank": "values", "shop": "party"})
    >>> model = wl.FederatedForestClassifier(n_estimators=5, random_state=0).fit(fed, y="bank.late")
    >>> explanation = model.explain(fed[:1])
    >>> explanation.features
    ('bank.income', 'shop')
    >>> explanation.reasons(1)
    ["Information of shop raised the probability of 'yes' by 43.5 percentage points."]
    """

    values: NDArray[np.float64]
    base_values: Any
    outputs: NDArray[np.float64]
    features: tuple[str, ...]
    owners: tuple[str, ...] = ()
    classes: NDArray[Any] = field(default_factory=lambda: np.empty(0))
    uncertain: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    data: dict[str, tuple[str, ...]] = field(default_factory=dict)
    ids: NDArray[Any] | None = None

    def __post_init__(self) -> None:
        scale = max(1.0, float(np.abs(self.outputs).max(initial=0.0)))
        if self.additivity_error > ADDITIVITY * scale:
            raise ArithmeticError(
                f"the parts of an answer miss it by {self.additivity_error:.3g}; please report this as a bug of Woodlot"
            )

    def __len__(self) -> int:
        return len(self.values)

    @property
    def additivity_error(self) -> float:
        """How far the base values and the parts are from the answers at most."""
        return float(np.abs(self.base_values + self.values.sum(axis=1) - self.outputs).max(initial=0.0))

    def __getitem__(self, rows: Any) -> Explanation:
        """The explanation of some rows: a number, a slice, a mask or an array of numbers."""
        at = np.atleast_1d(np.arange(len(self))[rows])
        return replace(
            self,
            values=self.values[at],
            outputs=self.outputs[at],
            uncertain=self.uncertain[at] if len(self.uncertain) else self.uncertain,
            data={name: tuple(texts[k] for k in at) for name, texts in self.data.items()},
            ids=None if self.ids is None else self.ids[at],
        )

    def by_party(self) -> Explanation:
        """The same, with the columns of each party added up."""
        if not self.owners:
            raise DataError("all parties have the same columns, so an answer is not divided among them")
        parties = tuple(dict.fromkeys(self.owners))
        owner = np.array(self.owners)
        values = np.stack([self.values[:, owner == party].sum(axis=1) for party in parties], axis=1)
        return replace(self, values=values, features=parties, owners=parties, data={})

    # --- one number per feature ---

    def of_output(self, output: Any = None) -> NDArray[np.float64]:
        """Values of shape (n_rows, n_features): of a class, or of the predictions of a regressor.

        Parameters
        ----------
        output : class, optional
            By default the second of two classes; with more, the class that the model predicts for each row.
        """
        if self.values.ndim == 2:
            if output is not None:
                raise DataError("a regressor has one output; leave output out")
            return self.values
        return np.take_along_axis(self.values, self._numbers(output)[:, None, None], axis=2)[:, :, 0]

    def _numbers(self, output: Any) -> NDArray[np.int64]:
        """The number of the class that is looked at, for each row."""
        if output is None:
            one = np.ones(len(self), np.int64)
            return one if len(self.classes) == 2 else self.outputs.argmax(axis=1)
        known = self.classes.tolist()
        if output not in known:
            raise DataError(f"there is no class {output!r}; the classes are {known}")
        return np.full(len(self), known.index(output), np.int64)

    def importance(self, output: Any = None) -> dict[str, float]:
        """Mean size of each feature's part, the largest first; see `of_output`."""
        mean = np.abs(self.of_output(output)).mean(axis=0)
        return {self.features[k]: float(mean[k]) for k in np.argsort(-mean, kind="stable")}

    def reasons(self, n: int = 3, *, row: int = 0, output: Any = None) -> list[str]:
        """The largest reasons for an answer, in words that a letter can quote.

        Parameters
        ----------
        n : int, default=3
            At most so many; fewer where fewer features moved the answer that way.
        row : int, default=0
            Which of the explained rows.
        output : class, optional
            Reasons for this class, by default for the one that the model predicts. Of a regressor the largest parts
            in either direction are given.
        """
        if not 0 <= row < len(self):
            raise DataError(f"there is no row {row}; {len(self)} rows were explained, numbered from 0")
        classifier = self.values.ndim == 3
        if classifier and output is None:
            output = self.classes.tolist()[int(self.outputs[row].argmax())]
        parts = self.of_output(output)[row]
        size = parts if classifier else np.abs(parts)
        largest = [k for k in np.argsort(-size, kind="stable")[:n] if size[k] > 0]
        return [self._sentence(int(k), row, float(parts[k]), output) for k in largest]

    def _sentence(self, feature: int, row: int, part: float, output: Any) -> str:
        name = self.features[feature]
        owner = self.owners[feature] if self.owners else ""
        column = name.removeprefix(f"{owner}.") if name != owner else ""
        who = f"{owner}: {column}" if owner and column else f"Information of {owner}" if owner else name
        value = f" ({self.data[name][row]})" if name in self.data else ""
        moved = "raised" if part > 0 else "lowered"
        if self.values.ndim == 3:
            return f"{who}{value} {moved} the probability of {output!r} by {abs(part) * 100:.1f} percentage points."
        return f"{who}{value} {moved} the prediction by {abs(part):.4g}."

    # --- shown ---

    def plot(self, kind: Literal["bar", "waterfall"] | None = None, *, row: int = 0, output: Any = None) -> Any:
        """Draw the explanation; returns the figure. Needs matplotlib (extra ``plot``).

        Parameters
        ----------
        kind : {"bar", "waterfall"}, optional
            The mean size of each feature's part over all rows, or how the features lead from the base value to the
            answer for one row. By default a waterfall if one row was explained.
        row, output
            As for `reasons` and `of_output`.
        """
        from woodlot.evaluation.explanation_plots import plot_bars, plot_waterfall

        kind = kind or ("waterfall" if len(self) == 1 else "bar")
        if kind not in ("bar", "waterfall"):
            raise ValueError(f"kind must be 'bar' or 'waterfall', not {kind!r}")
        return plot_bars(self, output) if kind == "bar" else plot_waterfall(self, row, output)

    def waterfall(self, row: int = 0, output: Any = None) -> tuple[float, list[tuple[str, float]], float]:
        """The base value, each feature's part (the largest first), and the answer for one row."""
        if not 0 <= row < len(self):
            raise DataError(f"there is no row {row}; {len(self)} rows were explained, numbered from 0")
        parts = self.of_output(output)[row]
        base, answer = self.base_values, self.outputs[row]
        if self.values.ndim == 3:
            number = self._numbers(output)[row]
            base, answer = base[number], answer[number]
        order = np.argsort(-np.abs(parts), kind="stable")
        return float(base), [(self._label(int(k), row), float(parts[k])) for k in order], float(answer)

    def _label(self, feature: int, row: int) -> str:
        name = self.features[feature]
        return f"{name} = {self.data[name][row]}" if name in self.data else name

    @property
    def _title(self) -> str:
        rows = f"{len(self):,} row{'' if len(self) == 1 else 's'}"
        doubts = int(self.uncertain.sum())
        return f"Explanation of {rows}" + (f"; a party lacks {doubts:,} of them" if doubts else "")

    def _lines(self) -> list[tuple[str, str]]:
        return [(name, f"{size:.4f}") for name, size in list(self.importance().items())[:SHOWN]]

    def __repr__(self) -> str:
        lines = [("feature", "mean size"), *self._lines()]
        width = max(len(name) for name, _ in lines)
        return "\n".join([self._title, *(f"  {name:<{width}}  {size}" for name, size in lines)])

    def _repr_html_(self) -> str:
        title = html_table((), [(self._title,)]).replace("<td>", "<td><b>").replace("</td>", "</b></td>")
        return title + html_table(("feature", "mean size"), self._lines())

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values that JSON can hold."""
        return {
            "features": list(self.features),
            "owners": list(self.owners),
            "classes": [str(label) for label in self.classes],
            "base_values": np.asarray(self.base_values).tolist(),
            "values": self.values.tolist(),
            "outputs": self.outputs.tolist(),
            "uncertain": self.uncertain.tolist(),
            "data": {name: list(texts) for name, texts in self.data.items()},
            "ids": None if self.ids is None else [str(one) for one in self.ids.tolist()],
        }


def make_explanation(
    features: Sequence[tuple[str, str]],
    values: NDArray[np.float64],
    base: NDArray[np.float64],
    outputs: NDArray[np.float64],
    *,
    classes: NDArray[Any] | None,
    uncertain: NDArray[np.bool_],
    texts: dict[int, tuple[str, ...]],
    ids: NDArray[Any] | None = None,
) -> Explanation:
    """An explanation of what was computed, by (owner, name) of each feature; owners are empty where there are none."""
    names = tuple(name for _, name in features)
    owners = tuple(owner for owner, _ in features) if all(owner for owner, _ in features) else ()
    data = {names[k]: column for k, column in texts.items()}
    if classes is None:
        return Explanation(
            values[:, :, 0], float(base[0]), outputs[:, 0], names, owners, uncertain=uncertain, data=data, ids=ids
        )
    return Explanation(values, base, outputs, names, owners, classes, uncertain, data, ids)
