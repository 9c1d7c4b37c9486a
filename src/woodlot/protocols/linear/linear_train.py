"""Federated linear models at the coordinator: fitting, and predicting in one round.

::

    round 1       every party                how many rows and columns
    round 2       label holder               the first residuals
    then, for every step
      round       parties with columns       a direction each, from the residuals, by what it adds to the scores
      round       label holder               how far to go along all directions, and the residuals there
    last round    every party                keeps its weights

With ``residuals="encrypted"`` a direction takes three rounds: encrypted residuals to the parties, their masked slopes
to the label holder, and back.

The descent ends when no slope is larger than `tol`. All parties' directions are added up to one, and each step is the
best in the span of it and of the last steps (`loss.Descent`): so the result does not depend on who holds which column.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.bits import unpack
from woodlot.protocols.core.forest_parts import ClassName
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.linear import linear_messages as msg
from woodlot.protocols.linear import residual_messages as blind
from woodlot.protocols.linear.linear_model import CoordinatorLinear, LinearPlan, Matrix
from woodlot.protocols.linear.loss import MEMORY

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
    active = [party for party in parties if n_columns[party]]
    route = _encrypted if plan.residuals == "encrypted" else _clear
    classes, n_scores, n_iter, converged = yield from route(plan, {p: n_columns[p] for p in active}, holder, n_rows)
    replies = yield Round("finish", dict.fromkeys(parties, msg.FinishLinear()))
    fit = reply_of(replies[holder], msg.LinearFit, holder)
    if fit.intercept.shape != (n_scores,) or not np.isfinite([*fit.intercept, fit.unit]).all():
        raise RemoteProtocolError(f"{holder} sent intercepts that do not fit its scores")
    return CoordinatorLinear(
        parties=tuple(parties),
        n_columns=n_columns,
        classes=classes,
        intercept=np.array(fit.intercept),
        unit=fit.unit,
        centred=plan.fit_intercept,
        n_rows=n_rows,
        n_iter=n_iter,
        converged=converged,
    )


Descended = tuple[tuple[ClassName, ...], int, int, bool]
"""The classes, the number of scores, how many steps were made, and whether they were enough."""

Told = Generator[Round, dict[str, Message], Any]
"""Rounds, and what comes of them."""


def start_of(plan: LinearPlan) -> dict[str, Any]:
    """What the label holder is told of the plan."""
    return {
        "task": plan.task,
        "strength": plan.strength,
        "fit_intercept": plan.fit_intercept,
        "balanced": plan.balanced,
        "class_weight": plan.class_weight,
    }


def _clear(
    plan: LinearPlan, columns: dict[str, int], holder: str, n_rows: int
) -> Generator[Round, dict[str, Message], Descended]:
    """Residuals are everybody's."""
    start = msg.StartLinear(**start_of(plan))
    started = reply_of((yield Round("start", {holder: start}))[holder], msg.LinearStarted, holder)
    _check_scores(started.residuals, n_rows, holder)
    n_scores, residuals = started.residuals.shape[1], started.residuals

    def descend(step: NDArray[np.float64], progress: Progress) -> Told:
        request = msg.Descend(
            step=step,
            residuals=residuals,
            penalty=started.penalty,
            curvature=started.curvature,
            weights=None if len(step) else started.weights,  # the first step is none
        )
        return (yield Round("descend", dict.fromkeys(columns, request), progress))

    def take(reply: Message) -> tuple[NDArray[np.float64], bool]:
        nonlocal residuals
        told = reply_of(reply, msg.Residuals, holder)
        _check_scores(told.residuals, n_rows, holder, n_scores)
        residuals = told.residuals
        return told.step, told.stuck

    n_iter, converged = yield from _descend(plan, list(columns), holder, (n_rows, n_scores), descend, take)
    return started.classes, n_scores, n_iter, converged


def _encrypted(
    plan: LinearPlan, columns: dict[str, int], holder: str, n_rows: int
) -> Generator[Round, dict[str, Message], Descended]:
    """Residuals are under the label holder's key; a party has the slopes of its own weights, and nobody else has."""
    others = {party: n for party, n in columns.items() if party != holder}
    start = blind.StartEncrypted(**start_of(plan), key_bits=plan.key_bits, columns=others)
    started = reply_of((yield Round("start", {holder: start}))[holder], blind.EncryptedStart, holder)
    if started.n_scores < 1:
        raise RemoteProtocolError(f"{holder} speaks of {started.n_scores} scores")
    ciphertexts = started.ciphertexts
    opening = blind.OpenDescent(
        n_scores=started.n_scores,
        penalty=started.penalty,
        curvature=started.curvature,
        modulus=started.modulus,
        noise=started.noise,
        weights=started.weights,
    )
    if others:
        replies = yield Round("key", dict.fromkeys(others, opening))
        for party in others:
            reply_of(replies[party], blind.DescentReady, party)

    def descend(step: NDArray[np.float64], progress: Progress) -> Told:
        slopes = dict.fromkeys(columns, np.empty(0, np.uint8))
        if others:
            asked = blind.AskSlopes(ciphertexts=ciphertexts)
            replies = yield Round("slopes", dict.fromkeys(others, asked), progress)
            masked = {party: reply_of(replies[party], blind.MaskedSlopes, party).ciphertexts for party in others}
            replies = yield Round("unmask", {holder: blind.OpenSlopes(slopes=masked)}, progress)
            opened = reply_of(replies[holder], blind.OpenedSlopes, holder)
            if set(opened.slopes) != set(others):
                raise RemoteProtocolError(f"{holder} has opened other slopes than it was brought")
            slopes |= opened.slopes
        requests: dict[str, Message] = {p: blind.DescendMasked(step=step, slopes=own) for p, own in slopes.items()}
        return (yield Round("descend", requests, progress))

    def take(reply: Message) -> tuple[NDArray[np.float64], bool]:
        nonlocal ciphertexts
        told = reply_of(reply, blind.EncryptedResiduals, holder)
        ciphertexts = told.ciphertexts
        return told.step, told.stuck

    n_iter, converged = yield from _descend(plan, list(columns), holder, (n_rows, started.n_scores), descend, take)
    return started.classes, started.n_scores, n_iter, converged


def _descend(
    plan: LinearPlan,
    active: Sequence[str],
    holder: str,
    shape: tuple[int, int],
    descend: Callable[[NDArray[np.float64], Progress], Told],
    take: Callable[[Message], tuple[NDArray[np.float64], bool]],
) -> Generator[Round, dict[str, Message], tuple[int, bool]]:
    """Step by step to the minimum; returns how many steps, and whether they were enough.

    ``descend`` has every party take a step and answer with its next direction; ``take`` reads how far to go along it.
    """
    step: NDArray[np.float64] = np.empty(0)
    stuck = not active
    for n_iter in range(plan.max_iter + 1):
        if stuck:
            return n_iter, True
        progress = Progress(n_iter, plan.max_iter, "steps")
        replies = yield from descend(step, progress)
        shares = [reply_of(replies[party], msg.PartialScores, party) for party in active]
        n = min(len(step), MEMORY) + 2  # the newest direction, the last steps, and the weights
        for party, share in zip(active, shares, strict=True):
            _check_scores(share.scores, shape[0], party, shape[1])
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
        step, stuck = take((yield Round("advance", {holder: advance}, progress))[holder])
        if len(step) != n - 1 or not np.isfinite(step).all():
            raise RemoteProtocolError(f"{holder} sent a step that does not fit the directions")
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
