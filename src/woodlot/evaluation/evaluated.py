"""The method `evaluate`, which every estimator has."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import is_classifier
from sklearn.utils.validation import check_is_fitted

from woodlot.evaluation.class_metrics import HIGHER_IS_BETTER, ClassRows
from woodlot.evaluation.client_scores import ClientScores, client_scores, rows_by_client
from woodlot.evaluation.reports import ClassificationReport, RegressionReport, Resampling
from woodlot.evaluation.target_metrics import TARGET_METRICS, TargetRows
from woodlot.evaluation.told_reports import told_report
from woodlot.exceptions import DataError
from woodlot.federation.interface import AnyFederation, as_federation
from woodlot.federation.label_columns import one_per_row

HELD_OUT = "evaluate held-out rows: train, test = fed.split()"
"""What to do instead of evaluating on rows of the training."""


class Evaluated:
    """A model that can be evaluated."""

    _origin: Any
    _seen: Any

    def evaluate(
        self,
        X: Any,
        y: Any = None,
        *,
        n_bootstrap: int = 500,
        confidence: float = 0.95,
        seed: int = 0,
        sealed: bool = False,
    ) -> ClassificationReport | RegressionReport:
        """Score the model's answers by all usual metrics, with confidence intervals.

        Parameters
        ----------
        X : Federation, array, data frame or Arrow table
            Rows that the model was not fitted on. On rows of the training the report says so, with a warning.
        y : array-like or str, optional
            Their labels; on a federation where they are, by default where those of the training were.
        n_bootstrap : int, default=500
            Samples of the rows from which intervals are found; 0 for none.
        confidence : float, default=0.95
            Of the intervals.
        seed : int, default=0
            Decides the samples. Reports with the same seed can be compared, too: ``report.compare(other)``.
        sealed : bool, default=False
            Have the parties of a forest answer under seal, as ``predict(..., sealed=True)`` does.

        Returns
        -------
        ClassificationReport or RegressionReport
            On a connected federation the label holder computes it, under its policy, and seals it to you; what it says
            of rows of the training comes from the label holder's own record.
        """
        return self._evaluate(X, y, Resampling(n_bootstrap, confidence, seed), sealed)

    def _evaluate(self, X: Any, y: Any, bootstrap: Resampling, sealed: bool) -> ClassificationReport | RegressionReport:
        check_is_fitted(self)
        federation = as_federation(X)
        if federation is not None and federation.rates_elsewhere:
            return self._rated_elsewhere(federation, y, bootstrap, sealed)
        if federation is not None:
            labels = federation.scored_labels(self._origin.label_column(y))
            place = None if federation.lineage is None else federation.lineage.key()
        elif y is None:
            raise DataError("give the labels of the rows as y")
        else:
            labels, place = one_per_row(y, len(np.asarray(y)), "y"), None
        seen = self._seen.count(X)
        self._seen.warn(X, HELD_OUT)
        answers = rated(self, X, sealed)
        if len(answers) != len(labels):
            raise DataError(
                f"Found input variables with inconsistent numbers of samples: {[len(answers), len(labels)]}"
            )
        rows = rows_of(self, labels, answers)
        clients = None if federation is None else self._by_client(federation, labels, answers)
        if isinstance(rows, ClassRows):
            return ClassificationReport(rows, bootstrap, seen, place, clients)
        return RegressionReport(rows, bootstrap, seen, place, clients)

    def _by_client(
        self, federation: AnyFederation, labels: NDArray[Any], answers: NDArray[np.float64]
    ) -> ClientScores | None:
        """The metrics of each client, where clients have different rows."""
        owner = federation.row_owners()
        if owner is None:
            return None
        y = np.asarray(labels)
        own = rows_by_client(owner, federation.parties)
        better = HIGHER_IS_BETTER if is_classifier(self) else TARGET_METRICS
        return client_scores({c: rows_of(self, y[rows], answers[rows]) for c, rows in own.items()}, better)

    def _rated_elsewhere(
        self, federation: AnyFederation, y: Any, bootstrap: Resampling, sealed: bool
    ) -> ClassificationReport | RegressionReport:
        """What the label holder tells of answers that only it sees."""
        forest = getattr(self, "forest_", None)
        fitted = self.linear_ if forest is None else forest  # type: ignore[attr-defined]
        options: dict[str, Any] = {}
        if federation.layout == "rows":
            if sealed:
                raise DataError("sealed=True is for forests over columns; over rows each client answers its own rows")
            options = {"allow_two": bool(getattr(self, "allow_two", False))}
        elif forest is not None:
            options = {"vote": getattr(self, "_vote", "soft"), "how": "sealed" if sealed else "one-round"}
        summary = federation.rate_answers(fitted, self._origin.label_column(y), bootstrap, **options)
        told = summary.seen
        seen = self._seen.count(federation) if told is None else self._seen.in_words(told, summary.n_rows)
        self._seen.tell(seen, HELD_OUT, stacklevel=5)
        return told_report(summary, bootstrap, seen)


def rated(model: Any, X: Any, sealed: bool = False) -> NDArray[np.float64]:
    """What metrics rate: probabilities of a classifier, predictions of a regressor."""
    how = {"sealed": True} if sealed else {}
    answers: NDArray[np.float64] = model.predict_proba(X, **how) if is_classifier(model) else model.predict(X, **how)
    return answers


def rows_of(model: Any, y: Any, answers: NDArray[np.float64]) -> ClassRows | TargetRows:
    """Labels beside the answers."""
    if is_classifier(model):
        return ClassRows(np.asarray(y), answers, model.classes_)
    return TargetRows(np.asarray(y), answers)
