"""What each party is worth to a model: the score with and without it, and its Shapley value, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from math import factorial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone, is_classifier

from woodlot.data.extras import need
from woodlot.data.markup import html_table
from woodlot.evaluation.class_metrics import HIGHER_IS_BETTER, ClassRows
from woodlot.evaluation.evaluated import rated, rows_of
from woodlot.evaluation.reports import plain
from woodlot.evaluation.target_metrics import TARGET_METRICS, TargetRows
from woodlot.exceptions import DataError
from woodlot.federation.interface import AnyFederation, as_federation
from woodlot.metrics.resampling import Interval, Resampling, interval, resampled

MAX_SHAPLEY = 6
"""Parties up to which every coalition is fitted: 2**6 - 1 models."""

Coalition = frozenset[str]


@dataclass(frozen=True, eq=False, repr=False)
class Contributions:
    """How much a metric changes by each party's columns, on the same test rows.

    Attributes
    ----------
    metric : str
        The metric; of log loss and errors a negative contribution is a good one.
    score : float
        With the columns of all parties.
    without : dict of str to (float, interval or None)
        By party, the score with all parties less the score without its columns, and its interval.
    shapley : dict of str to (float, interval or None)
        By party, its mean contribution over all orders in which the parties could join, and its interval. They add up
        to ``score`` less the score without any column. Empty with more than six parties.
    scores : dict of frozenset of str to float
        The score of every coalition that was fitted.
    """

    metric: str
    score: float
    without: dict[str, tuple[float, Interval | None]]
    shapley: dict[str, tuple[float, Interval | None]]
    scores: dict[Coalition, float]
    n_rows: int
    confidence: float
    training_rows: str = ""

    def _lines(self) -> list[tuple[str, ...]]:
        return [
            (party, *_in_words(*self.without[party]), *(_in_words(*self.shapley[party]) if self.shapley else ()))
            for party in self.without
        ]

    @property
    def _headings(self) -> tuple[str, ...]:
        ends = f"{self.confidence:.0%} interval"
        return ("party", "all less without", ends, *(("Shapley value", ends) if self.shapley else ()))

    @property
    def _title(self) -> str:
        seen = f"; {self.training_rows} were in the training" if self.training_rows else ""
        return f"{self.metric} {self.score:.4f} on {self.n_rows:,} rows{seen}"

    def __repr__(self) -> str:
        lines = [self._headings, *self._lines()]
        widths = [max(len(line[k]) for line in lines) for k in range(len(self._headings))]
        text = ("  " + "  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)).rstrip() for line in lines)
        return "\n".join([self._title, *text])

    def _repr_html_(self) -> str:
        title = html_table((), [(self._title,)]).replace("<td>", "<td><b>").replace("</td>", "</b></td>")
        return title + html_table(self._headings, self._lines())

    def to_dict(self) -> dict[str, Any]:
        """Everything in plain values that JSON can hold; NaN is None."""
        return {
            "metric": self.metric,
            "score": self.score,
            "without": {party: _plain(*found) for party, found in self.without.items()},
            "shapley": {party: _plain(*found) for party, found in self.shapley.items()},
            "scores": plain({" + ".join(sorted(who)) or "no columns": v for who, v in self.scores.items()}),
            "n_rows": self.n_rows,
            "confidence": self.confidence,
        }

    def plot(self) -> Any:
        """Draw the contributions with their intervals; returns the figure. Needs matplotlib (extra ``plot``)."""
        shown = self.shapley or self.without
        figure, axes = need("matplotlib.pyplot", "plot").subplots(
            figsize=(6.0, 1.2 + 0.5 * len(shown)), layout="constrained"
        )
        for level, (value, ends) in enumerate(reversed(shown.values())):
            axes.barh(level, value, color="#3b6fb5")
            if ends is not None:
                axes.plot(ends, (level, level), color="#1c2620", lw=1.5)
            axes.annotate(f"{value:+.3g}", (value, level), xytext=(3, 7), textcoords="offset points")
        axes.set_yticks(range(len(shown)), list(reversed(shown)))
        axes.set(xlabel=f"{'Shapley value of' if self.shapley else 'all less without:'} {self.metric}")
        return figure


def contributions(
    model: Any,
    train: Any,
    test: Any,
    y: str | None = None,
    *,
    scoring: str | None = None,
    n_bootstrap: int = 500,
    confidence: float = 0.95,
    seed: int = 0,
) -> Contributions:
    """Find what each party's columns are worth to a model.

    The model is fitted on the columns of every coalition of parties, and scored on the same rows: 2**n - 1 fits for up
    to six parties. With more, it is fitted once with all of them and once without each.

    Parameters
    ----------
    model : estimator
        What is fitted; it is not changed.
    train, test : Federation
        Rows to learn from and rows to score, in this process: ``fed.split()``.
    y : str
        Where the labels are, ``"party.column"``.
    scoring : str, optional
        A metric of a report. By default ``"roc_auc"`` for two classes, ``"accuracy"`` for more, ``"r2"`` for numbers.
    n_bootstrap, confidence, seed
        As for ``evaluate``. Intervals say how far other test rows would move the result, not how far another training
        would.

    Returns
    -------
    Contributions

    Examples
    --------
    >>> import pandas as pd
    >>> import woodlot as wl
    >>> bank = pd.DataFrame({"id": range(80), "income": [20, 60, 30, 70] * 20, "late": ["yes", "no"] * 40})
    >>> shop = pd.DataFrame({"id": range(80), "visits": [5, 2, 4, 1, 3] * 16})
    >>> train, test = wl.Federation.local({"bank": bank, "shop": shop}, id="id").split(seed=1)
    >>> model = wl.FederatedForestClassifier(n_estimators=5, random_state=0)
    >>> found = wl.contributions(model, train, test, y="bank.late", scoring="accuracy", n_bootstrap=0)
    >>> found.without["bank"][0] > found.without["shop"][0]
    True
    """
    learn, scored = _here(train), _here(test)
    if not isinstance(y, str):
        raise DataError("say where the labels are: y='party.column'")
    known = HIGHER_IS_BETTER if is_classifier(model) else TARGET_METRICS
    if scoring is not None and scoring not in known:
        raise ValueError(f"scoring must be one of {list(known)}, not {scoring!r}")
    bootstrap = Resampling(n_bootstrap, confidence, seed)
    truth = scored.scored_labels(y)
    players = _players(learn, y)
    game = _Game(model, learn, scored, y, truth, players, bootstrap)
    metric = scoring or game.default_metric()
    everyone = frozenset(players)
    coalitions = _coalitions(players)
    rows = {who: game.rows(who) for who in coalitions}
    undefined = rows[everyone].undefined()
    if metric in undefined:
        raise DataError(f"{metric} of the test rows is not defined: {undefined[metric]}")
    values = {who: found.scores()[metric] for who, found in rows.items()}
    drawn = {who: game.drawn(found, metric) for who, found in rows.items()}

    def measured(weights: Mapping[Coalition, float]) -> tuple[float, Interval | None]:
        value = sum(weight * values[who] for who, weight in weights.items())
        if metric not in drawn[everyone]:
            return float(value), None
        spread = np.sum([weight * drawn[who][metric] for who, weight in weights.items()], axis=0)
        return float(value), interval(np.asarray(spread), confidence)

    return Contributions(
        metric,
        values[everyone],
        {party: measured({everyone: 1.0, everyone - {party}: -1.0}) for party in players},
        {party: measured(_shapley_weights(party, players)) for party in players} if len(players) <= MAX_SHAPLEY else {},
        values,
        len(truth),
        confidence,
        game.training_rows,
    )


class _Game:
    """What a coalition of parties scores: the model is fitted on its columns alone."""

    def __init__(
        self,
        model: Any,
        train: AnyFederation,
        test: AnyFederation,
        y: str,
        truth: NDArray[Any],
        players: tuple[str, ...],
        bootstrap: Resampling,
    ) -> None:
        self._model, self._train, self._test, self._y = model, train, test, y
        self._truth, self._players, self._bootstrap = truth, players, bootstrap
        self._all = clone(model).fit(train, y=y)
        self.training_rows: str = self._all._seen.count(test)

    def default_metric(self) -> str:
        if not is_classifier(self._model):
            return "r2"
        return "roc_auc" if len(self._all.classes_) == 2 else "accuracy"

    def rows(self, coalition: Coalition) -> ClassRows | TargetRows:
        if not coalition:
            return rows_of(self._all, self._truth, self._without_columns())
        fitted = self._all
        if len(coalition) < len(self._players):
            chosen: dict[str, list[str] | None] = {
                party: None if party in coalition else [] for party in self._train.parties
            }
            fitted = clone(self._model).fit(self._train, y=self._y, features=chosen)
        return rows_of(fitted, self._truth, rated(fitted, self._test))

    def _without_columns(self) -> NDArray[np.float64]:
        """The best answer of a model without columns: the shares of the classes in the training, or the mean."""
        labels = np.asarray(self._train.scored_labels(self._y))
        if not is_classifier(self._model):
            return np.full(len(self._truth), labels.astype(np.float64).mean())
        shares = np.array([(labels == label).mean() for label in self._all.classes_])
        return np.tile(shares, (len(self._truth), 1))

    def drawn(self, rows: ClassRows | TargetRows, metric: str) -> dict[str, NDArray[np.float64]]:
        found = resampled(rows, self._bootstrap.n_bootstrap, self._bootstrap.seed)
        return {metric: found[metric]} if metric in found else {}


def _here(given: Any) -> AnyFederation:
    federation = as_federation(given)
    if federation is None:
        raise DataError("contributions are of parties of a federation: train, test = Federation.local(tables).split()")
    return federation


def _players(federation: AnyFederation, y: str) -> tuple[str, ...]:
    """The parties with columns to learn from."""
    held = federation.columns_to_learn(federation.find_labels(y, None))
    players = tuple(party for party in federation.parties if held[party])
    if len(players) < 2:
        raise DataError(f"contributions are of at least two parties with columns to learn from, not of {list(players)}")
    return players


def _coalitions(players: tuple[str, ...]) -> list[Coalition]:
    if len(players) <= MAX_SHAPLEY:
        return [frozenset(who) for k in range(len(players) + 1) for who in combinations(players, k)]
    return [frozenset(players), *(frozenset(players) - {party} for party in players)]


def _shapley_weights(party: str, players: tuple[str, ...]) -> dict[Coalition, float]:
    """The Shapley value as a sum over the scores of coalitions."""
    n, weights = len(players), dict[Coalition, float]()
    others = [player for player in players if player != party]
    for k in range(n):
        weight = factorial(k) * factorial(n - 1 - k) / factorial(n)
        for who in combinations(others, k):
            before = frozenset(who)
            weights[before] = weights.get(before, 0.0) - weight
            weights[before | {party}] = weights.get(before | {party}, 0.0) + weight
    return weights


def _in_words(value: float, ends: Interval | None) -> tuple[str, str]:
    return f"{value:+.4f}", "" if ends is None else f"{ends[0]:+.4f} to {ends[1]:+.4f}"


def _plain(value: float, ends: Interval | None) -> dict[str, Any]:
    return {"value": value, "interval": None if ends is None else list(ends)}
