"""Federated linear models at the coordinator: fitting, and predicting in one round.

::

    round 1       every party                how many rows and columns
    round 2       label holder               the first residuals
    then, for every step
      round       parties with columns       a direction each, from the residuals, by what it adds to the scores
      round       label holder               how far to go along all directions, and the residuals there
    last round    every party                keeps its weights

The descent ends when no slope is larger than `tol`. All parties' directions are added up to one, and each step is the
best in the span of it and of the last steps (`loss.Descent`): so the result does not depend on who holds which column.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.linear.loss import MEMORY
from woodlot.protocols.linear.model import CoordinatorLinear, LinearPlan, Matrix
from woodlot.protocols.messages import linear as msg
from woodlot.protocols.messages.base import Message, Progress, Round
from woodlot.protocols.vertical.bits import unpack
from woodlot.protocols.vertical.replies import reply_of

Rounds = Generator[Round, dict[str, Message], CoordinatorLinear]


def fit_linear(plan: LinearPlan, parties: Sequence[str], holder: str) -> Rounds:
    """Fit a linear model; its weights stay with the parties.

    Parameters
    ----------
    plan : LinearPlan
        What to fit.
    parties : sequence of str
        Everybody, the label holder among them.
    holder : str
        The party with the labels.

    Raises
    ------
    DataError
        If the parties have different numbers of rows.
    RemoteProtocolError
        If a party answers with something that cannot be.

    """
    opening = msg.OpenLinear(centred=plan.fit_intercept, standardised=plan.standardize)
    replies = yield Round("open", dict.fromkeys(parties, opening))
    summaries = {party: reply_of(replies[party], msg.LinearSummary, party) for party in parties}
    n_rows = summaries[holder].n_rows
    if any(summary.n_rows != n_rows for summary in summaries.values()):
        raise DataError(f"parties have different numbers of rows: { {p: s.n_rows for p, s in summaries.items()} }")
    n_columns = {party: summary.n_columns for party, summary in summaries.items()}
    start = msg.StartLinear(
        task=plan.task,
        strength=plan.strength,
        fit_intercept=plan.fit_intercept,
        balanced=plan.balanced,
        class_weight=plan.class_weight,
    )
    started = reply_of((yield Round("start", {holder: start}))[holder], msg.LinearStarted, holder)
    _check_scores(started.residuals, n_rows, holder)
    n_iter, converged = yield from _descend(plan, [p for p in parties if n_columns[p]], holder, started)
    replies = yield Round("finish", dict.fromkeys(parties, msg.FinishLinear()))
    fit = reply_of(replies[holder], msg.LinearFit, holder)
    if fit.intercept.shape != (started.residuals.shape[1],) or not np.isfinite([*fit.intercept, fit.unit]).all():
        raise RemoteProtocolError(f"{holder} sent intercepts that do not fit its scores")
    return CoordinatorLinear(
        parties=tuple(parties),
        n_columns=n_columns,
        classes=started.classes,
        intercept=np.array(fit.intercept),
        unit=fit.unit,
        centred=plan.fit_intercept,
        n_rows=n_rows,
        n_iter=n_iter,
        converged=converged,
    )


def _descend(
    plan: LinearPlan, active: Sequence[str], holder: str, started: msg.LinearStarted
) -> Generator[Round, dict[str, Message], tuple[int, bool]]:
    """Step by step to the minimum; returns how many steps, and whether they were enough."""
    step: NDArray[np.float64] = np.empty(0)
    residuals, stuck = started.residuals, not active
    for n_iter in range(plan.max_iter + 1):
        if stuck:
            return n_iter, True
        request = msg.Descend(step=step, residuals=residuals, penalty=started.penalty, curvature=started.curvature)
        progress = Progress(n_iter, plan.max_iter, "steps")
        replies = yield Round("descend", dict.fromkeys(active, request), progress)
        shares = [reply_of(replies[party], msg.PartialScores, party) for party in active]
        n = min(len(step), MEMORY) + 2  # the newest direction, the last steps, and the weights
        for party, share in zip(active, shares, strict=True):
            _check_scores(share.scores, len(residuals), party, residuals.shape[1])
            if share.products.shape != (n, n) or not np.isfinite(share.products).all():
                raise RemoteProtocolError(f"{party} sent products that do not fit its directions")
        if max(share.steepest for share in shares) <= plan.tol:
            return n_iter, True
        if n_iter == plan.max_iter:
            return n_iter, False
        advance = msg.Advance(
            scores=np.sum([share.scores for share in shares], axis=0),
            products=np.sum([share.products for share in shares], axis=0),
        )
        reply = reply_of((yield Round("advance", {holder: advance}, progress))[holder], msg.Residuals, holder)
        _check_scores(reply.residuals, len(residuals), holder, residuals.shape[1])
        if len(reply.step) != n - 1 or not np.isfinite(reply.step).all():
            raise RemoteProtocolError(f"{holder} sent a step that does not fit the directions")
        step, residuals, stuck = reply.step, reply.residuals, reply.stuck
    return plan.max_iter, False


def _check_scores(scores: Matrix, n_rows: int, party: str, n_scores: int | None = None) -> None:
    if len(scores) != n_rows or scores.shape[1] < 1 or n_scores not in (None, scores.shape[1]):
        raise RemoteProtocolError(f"{party} sent scores of shape {scores.shape} for {n_rows} rows")
    if not np.isfinite(scores).all():
        raise RemoteProtocolError(f"{party} sent scores that are not finite")


def predict_linear(
    model: CoordinatorLinear, present: Sequence[str], n_rows: int
) -> Generator[Round, dict[str, Message], tuple[Matrix, NDArray[np.bool_]]]:
    """Scores of every row in one round, and which rows are uncertain: those that a party lacks.

    For these, and where a party is absent, the party's average row stands in.

    Raises
    ------
    DataError
        If a party is absent, or lacks rows, of a model without an intercept: there is no average then.

    """
    asked = [party for party in model.asked if party in present]
    absent = [party for party in model.asked if party not in present]
    replies = (yield Round("predict", dict.fromkeys(asked, msg.AskScores()))) if asked else {}
    total = np.zeros((n_rows, len(model.intercept)))
    uncertain = np.full(n_rows, bool(absent))
    for party in asked:
        reply = reply_of(replies[party], msg.Scores, party)
        _check_scores(reply.scores, n_rows, party, len(model.intercept))
        total += reply.scores
        if reply.known is not None:
            uncertain |= ~unpack(reply.known, n_rows, f"rows of {party}").astype(bool)
    if uncertain.any() and not model.centred:
        raise DataError(
            "a model without intercept needs every party and every row; "
            + (f"{absent} are absent" if absent else "some rows are missing at a party: use join='inner'")
        )
    return model.decide(total), uncertain
