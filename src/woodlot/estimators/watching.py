"""The method `drift` of forests over columns: whether new rows still look like those of the training."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from woodlot.evaluation.drift import Drift, answer_drift, column_drift
from woodlot.exceptions import DataError
from woodlot.federation import AnyFederation, GrownForest, as_federation
from woodlot.federation.interface import ToldDrift

NO_ANSWERS = (
    "answers are not compared, for those on training rows are too sure: fit with oob_score=True, or give reference=, "
    "rows that were held out"
)

NO_OUT_OF_BAG = "answers are not compared, for those on training rows are too sure: fit with oob_score=True"


class WatchedForest:
    """A forest over columns that can be watched after its training."""

    forest_: GrownForest

    def drift(self, X: Any, *, reference: Any = None) -> Drift:
        """Compare new rows with old ones, per column at its owner, and by the model's answers.

        Parameters
        ----------
        X : Federation
            New rows. Between organisations each owner compares them with what it has kept of the training, under its
            policy, and tells this process alone; names are told where its catalogue tells them.
        reference : Federation, optional
            Old rows that were held out; by default those of the training, whose answers are then the out-of-bag ones of
            ``oob_score=True``. Not between organisations.

        Returns
        -------
        Drift
            Population stability: below 0.1 stable, above 0.25 shifted, by custom.
        """
        check_is_fitted(self, "forest_")
        new = _rows(X, "X")
        if new.rates_elsewhere:
            return self._told_drift(new, reference)
        old = self._training_rows() if reference is None else _rows(reference, "reference")
        used = {party: part.names for party, part in self.forest_.parts.items()}
        columns, n_old, n_new = column_drift(old, new, used)  # what cannot be compared is refused before any prediction
        answers: dict[str, float] = {}
        before = self.forest_.oob_outputs if reference is None else self._answers_to(old)
        if before is not None:
            classes = getattr(self, "classes_", np.empty(0))
            names = tuple(str(label) for label in classes)
            answers = answer_drift(before, self._answers_to(new), names, lambda k: names[k] if names else "prediction")
        return Drift(columns, answers, n_old, n_new, NO_ANSWERS if before is None else "")

    def _told_drift(self, new: AnyFederation, reference: Any) -> Drift:
        """What parties elsewhere tell: they compare with the rows of the training."""
        if reference is not None:
            raise DataError("between organisations new rows are compared with those of the training; omit reference")
        told = new.drift(self.forest_, self._vote)  # type: ignore[attr-defined]
        return drift_as_told(told)

    def _training_rows(self) -> AnyFederation:
        training = self.forest_.memo.training
        if training is None:
            raise DataError("this model does not have its training rows at hand; give old ones: reference=federation")
        federation: AnyFederation = training.federation
        return federation

    def _answers_to(self, federation: AnyFederation) -> NDArray[np.float64]:
        answers: NDArray[np.float64] = self._routed(federation, None, "decisions")[0]  # type: ignore[attr-defined]
        return answers


def drift_as_told(told: ToldDrift) -> Drift:
    """What parties elsewhere have told, as `drift` gives it."""
    answers: dict[str, float] = {}
    if told.answers is not None:
        names = [str(label) for label in told.classes] or ["prediction"]
        answers = {
            name: index
            for k, (name, index) in enumerate(zip(names, told.answers, strict=True))
            if len(names) != 2 or k == 1
        }  # of two classes the first says the same
    return Drift(told.columns, answers, told.n_old, told.n_new, "" if told.answers is not None else NO_OUT_OF_BAG)


def _rows(given: Any, what: str) -> AnyFederation:
    federation = as_federation(given)
    if federation is None:
        raise DataError(f"{what} must be a federation of parties with different columns, in this process")
    return federation
