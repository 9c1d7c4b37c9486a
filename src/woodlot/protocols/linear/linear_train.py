"""Federated linear models at the coordinator: fitting, and predicting in one round.

::

    round 1       every party                how many rows and columns
    round 2       label holder               the first residuals
    then, for every step
      round       parties with columns       a direction each, from the residuals, by what it adds to the scores
      round       label holder               how far to go along all directions, and the residuals there
    last round    every party                keeps its weights

With ``protection="hidden"`` the label holder runs this, and a dealer takes part: parties send their columns under masks
once, and at every step get the residuals under masks (`product_dealer`).

The descent ends when no slope is larger than `tol`. All parties' directions are added up to one, and each step is the
best in the span of it and of the last steps (`loss.Descent`): so the result does not depend on who holds which column.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.bits import unpack
from woodlot.protocols.core.forest_parts import ClassName
from woodlot.protocols.core.message import Message, Progress, Role, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.linear import dealt_messages as dealt
from woodlot.protocols.linear import linear_messages as msg
from woodlot.protocols.linear.dealt_numbers import NUMBER_BYTES, plus, products_told, read_wide, scores_of
from woodlot.protocols.linear.hidden_linear_party import MOST_AT_ONCE, asked_digest
from woodlot.protocols.linear.linear_model import CoordinatorLinear, LinearPlan, Matrix
from woodlot.protocols.linear.loss import MEMORY

Rounds = Generator[Round, dict[str, Message], CoordinatorLinear]


def fit_linear(plan: LinearPlan, parties: Sequence[str], holder: str, dealer: str = Role.dealer.value) -> Rounds:
    """Fit a linear model; its weights stay with the parties.

    Parameters
    ----------
    plan : LinearPlan
        What to fit.
    parties : sequence of str
        Everybody, the label holder among them.
    holder : str
        The party with the labels; with ``protection="hidden"`` this runs in its process.
    dealer : str
        Who deals with ``protection="hidden"``.

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
    columns = {party: n_columns[party] for party in active}
    if plan.protection == "hidden":
        descent = _hidden(plan, columns, holder, n_rows, dealer)
    else:
        descent = _open(plan, columns, holder, n_rows)
    classes, n_scores, n_iter, converged = yield from descent
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


@dataclass(frozen=True, eq=False)
class Gathered:
    """What all parties' directions come to: the scores along them, their products, and whether slopes are small."""

    scores: Matrix
    products: Matrix
    settled: bool


def _open(
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
        replies = yield Round("descend", dict.fromkeys(columns, request), progress)
        return _gathered(plan, replies, (n_rows, n_scores), step)

    def take(reply: Message) -> tuple[NDArray[np.float64], bool]:
        nonlocal residuals
        told = reply_of(reply, msg.Residuals, holder)
        _check_scores(told.residuals, n_rows, holder, n_scores)
        residuals = told.residuals
        return told.step, told.stuck

    n_iter, converged = yield from _descend(plan, list(columns), holder, descend, take)
    return started.classes, n_scores, n_iter, converged


def _hidden(
    plan: LinearPlan, columns: dict[str, int], holder: str, n_rows: int, dealer: str
) -> Generator[Round, dict[str, Message], Descended]:
    """Residuals stay with the label holder; a party has the slopes of its own weights, and nobody else has."""
    others = {party: n for party, n in columns.items() if party != holder}
    start = dealt.StartHidden(**start_of(plan), columns=others)
    started = reply_of((yield Round("start", {holder: start}))[holder], dealt.HiddenStart, holder)
    shape = n_rows, started.n_scores
    of_columns = (yield from _mask_columns(plan, started, others, holder, dealer, n_rows)) if others else {}
    number, nonce = 0, started.nonce

    def descend(step: NDArray[np.float64], progress: Progress) -> Told:
        nonlocal number
        requests: dict[str, Message] = {}
        if others:
            ask = dealt.DealProducts(step=number, nonce=nonce, of_columns=of_columns)
            found = reply_of((yield Round("deal", {dealer: ask}, progress))[dealer], dealt.DealtProducts, dealer)
            mask = dealt.MaskSlopes(products=found.products)
            shares = reply_of((yield Round("mask", {holder: mask}, progress))[holder], dealt.SlopeShares, holder)
            requests |= _requests(step, nonce, shares)
        if holder in columns:
            requests[holder] = dealt.DescendOwn(step=step)
        replies = yield Round("descend", requests, progress)
        number += 1
        return _added_up(plan, replies, others, shape, step)

    def take(reply: Message) -> tuple[NDArray[np.float64], bool]:
        nonlocal nonce
        told = reply_of(reply, dealt.HiddenResiduals, holder)
        nonce = told.nonce
        return told.step, told.stuck

    n_iter, converged = yield from _descend(plan, list(columns), holder, descend, take)
    return started.classes, started.n_scores, n_iter, converged


def _mask_columns(
    plan: LinearPlan, started: dealt.HiddenStart, others: dict[str, int], holder: str, dealer: str, n_rows: int
) -> Generator[Round, dict[str, Message], dict[str, bytes]]:
    """Have the others agree on keys and send their columns under masks; returns what each has bound its masks to."""
    opening = dealt.OpenDealt(parties=(*others, dealer), holder=holder, dealer=dealer)
    replies = yield Round("keys", dict.fromkeys(opening.parties, opening))
    introductions = {p: reply_of(replies[p], dealt.DealtKey, p).introduction for p in opening.parties}
    begin: dict[str, Message] = dict.fromkeys(
        others,
        dealt.OpenDescent(
            introductions=introductions,
            n_scores=started.n_scores,
            penalty=started.penalty,
            curvature=started.curvature,
            tol=plan.tol,
            weights=started.weights,
        ),
    )
    begin[dealer] = dealt.StartProducts(
        introductions=introductions, columns=others, n_rows=n_rows, n_scores=started.n_scores
    )
    replies = yield Round("keys", begin)
    secret = reply_of(replies[dealer], dealt.ProductsReady, dealer).secret
    of_columns = {party: reply_of(replies[party], dealt.DescentReady, party).nonce for party in others}
    parts: dict[str, list[NDArray[np.uint64]]] = {party: [] for party in others}
    at_once = max(1, MOST_AT_ONCE // (NUMBER_BYTES * n_rows))
    for first in range(0, max(others.values()), at_once):
        asked: dict[str, Message] = {
            party: dealt.AskColumns(first=first, n_columns=min(at_once, n - first))
            for party, n in others.items()
            if first < n
        }
        replies = yield Round("columns", asked)
        for party in asked:
            parts[party].append(reply_of(replies[party], dealt.MaskedColumns, party).columns)
    taken = dealt.TakeMasked(secret=secret, columns={party: np.concatenate(own) for party, own in parts.items()})
    reply_of((yield Round("columns", {holder: taken}))[holder], dealt.MaskedTaken, holder)
    return of_columns


def _requests(step: NDArray[np.float64], nonce: bytes, shares: dealt.SlopeShares) -> dict[str, Message]:
    """What the others are asked at a step, each with what all of them are asked."""
    bare = {
        party: dealt.DescendHidden(step=step, nonce=nonce, residuals=shares.residuals, share=share, asked={})
        for party, share in shares.shares.items()
    }
    asked = {party: asked_digest(request) for party, request in bare.items()}
    return {party: msgspec.structs.replace(request, asked=asked) for party, request in bare.items()}


def _added_up(
    plan: LinearPlan,
    replies: dict[str, Message],
    others: Collection[str],
    shape: tuple[int, int],
    step: NDArray[np.float64],
) -> Gathered:
    """The sum over all parties, of which those of the others are under masks that cancel out."""
    n = _n_products(step)
    own = _gathered(plan, {p: reply for p, reply in replies.items() if p not in others}, shape, step)
    scores, products = np.zeros((*shape, 2), np.uint64), np.zeros((2, n, n, 2), np.uint64)
    settled = own.settled
    for party in others:
        told = reply_of(replies[party], dealt.MaskedScores, party)
        scores = plus(scores, read_wide(told.scores, shape, f"scores of {party}"))
        products = plus(products, read_wide(told.products, (2, n, n), f"products of {party}"))
        settled &= told.settled
    return Gathered(own.scores + scores_of(scores), own.products + products_told(products), settled)


def _n_products(step: NDArray[np.float64]) -> int:
    """The newest direction, the last steps, and the weights."""
    return min(len(step), MEMORY) + 2


def _gathered(
    plan: LinearPlan, replies: dict[str, Message], shape: tuple[int, int], step: NDArray[np.float64]
) -> Gathered:
    """The sum over parties whose directions are told as they are."""
    n = _n_products(step)
    scores, products, settled = np.zeros(shape), np.zeros((n, n)), True
    for party in replies:
        share = reply_of(replies[party], msg.PartialScores, party)
        _check_scores(share.scores, shape[0], party, shape[1])
        if share.products.shape != (n, n) or not np.isfinite(share.products).all():
            raise RemoteProtocolError(f"{party} sent products that do not fit its directions")
        scores, products = scores + share.scores, products + share.products
        settled &= share.steepest <= plan.tol
    return Gathered(scores, products, settled)


def _descend(
    plan: LinearPlan,
    active: Sequence[str],
    holder: str,
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
        gathered: Gathered = yield from descend(step, progress)
        if gathered.settled:
            return n_iter, True
        if n_iter == plan.max_iter:
            return n_iter, False
        n = _n_products(step)
        advance = msg.Advance(scores=gathered.scores, products=gathered.products)
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
