"""Labels from the messages of a linear model: residuals, and slopes."""

from __future__ import annotations

import time
import warnings

import numpy as np
from numpy.typing import NDArray

from woodlot.estimators.linear_models import FederatedLinearRegression, FederatedLogisticRegression
from woodlot.leaks.case import LABEL, Case, Finding, Tape, not_attacked
from woodlot.leaks.label_attacks import matched_at_best, rank_correlation
from woodlot.protocols.core.part_files import COORDINATOR
from woodlot.protocols.linear.linear_messages import Descend, LinearStarted

OPEN, HIDDEN = "linear, protection=open", "linear, protection=hidden"
STEPS = 1
"""Steps of the descent: the first residuals and directions tell what they tell, whatever follows."""


def linear_attacks(case: Case) -> list[Finding]:
    """Fit a linear model for one step, and read labels from its messages."""
    tape, federation = Tape(), case.federation()
    federation.observer = tape.record
    kind = FederatedLogisticRegression if case.task == "classes" else FederatedLinearRegression
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one step does not converge
        kind(max_iter=STEPS).fit(federation, y=f"{case.holder}.{LABEL}")
    found = []
    for role in (COORDINATOR, case.passive):
        start = time.perf_counter()
        residuals = next(
            message.residuals
            for _, receiver, message in tape.seen_by(role)
            if receiver == role and isinstance(message, LinearStarted | Descend)
        )
        value = _from_residuals(case, residuals)
        found.append(
            Finding(
                role,
                OPEN,
                "labels",
                "residuals",
                _measure(case),
                value,
                _baseline(case),
                _against(case),
                "the first residual is the label itself, up to shift and scale",
                time.perf_counter() - start,
            )
        )
        if role == case.passive:
            found += _hidden(case, residuals)
    words = "weighted sums of a party's columns, one per step"
    found += [not_attacked(role, OPEN, "values", "partial scores", words) for role in (COORDINATOR, case.holder)]
    return found


def _hidden(case: Case, residuals: NDArray[np.float64]) -> list[Finding]:
    """What a party has of hidden residuals: their sums times its own columns, the same as those of open ones."""
    start = time.perf_counter()
    own = np.nan_to_num(case.matrix(case.passive))
    own = (own - own.mean(axis=0)) / np.where(own.std(axis=0) > 0, own.std(axis=0), 1.0)
    direction = np.linalg.lstsq(own.T @ own, -(own.T @ residuals), rcond=None)[0]
    words = "a party gets one weighted sum of all residuals per own column and step: the labels as its columns fit them"
    return [
        Finding(
            case.passive,
            HIDDEN,
            "labels",
            "slopes",
            _measure(case),
            _from_scores(case, own @ direction),
            _baseline(case),
            _against(case),
            words,
            time.perf_counter() - start,
        ),
        not_attacked(COORDINATOR, HIDDEN, "labels", "dealing", "lengths, public keys and keyed hashes"),
        not_attacked(case.holder, HIDDEN, "values", "sum of scores", "of one other party alone: its weighted sums"),
    ]


def _measure(case: Case) -> str:
    return "labels read" if case.task == "classes" else "rank correlation with the targets"


def _baseline(case: Case) -> float:
    return float(np.bincount(case.numbers).max() / case.n_rows) if case.task == "classes" else 0.0


def _against(case: Case) -> str:
    return "largest class" if case.task == "classes" else "no order"


def _from_residuals(case: Case, residuals: NDArray[np.float64]) -> float:
    if case.task == "targets":
        return abs(rank_correlation(residuals[:, 0], case.labels))
    group = (residuals[:, 0] > 0).astype(np.int64) if residuals.shape[1] == 1 else np.abs(residuals).argmax(axis=1)
    return matched_at_best(group, case.numbers)


def _from_scores(case: Case, scores: NDArray[np.float64]) -> float:
    """Guess the classes by the scores, as many of each as are frequent."""
    if case.task == "targets":
        return abs(rank_correlation(scores[:, 0], case.labels))
    if scores.shape[1] > 1:
        return matched_at_best(scores.argmax(axis=1), case.numbers)
    frequent = np.sort(np.bincount(case.numbers))
    guesses = [scores[:, 0] > np.quantile(scores[:, 0], count / case.n_rows) for count in frequent]
    return max(matched_at_best(guess.astype(np.int64), case.numbers) for guess in guesses)
