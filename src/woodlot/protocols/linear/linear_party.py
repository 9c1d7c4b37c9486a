"""A party of a federated linear model: it keeps its columns and weights, and answers with partial scores.

The label holder is a party too, and besides decides how far to go (`loss.Descent`).

States and messages::

    idle                 OpenLinear     -> opened       columns as a matrix, centred and scaled
    opened               StartLinear    -> opened       label holder: loss, penalty and first residuals
    opened, descending   Descend        -> descending   a step along the directions, then the next direction
    opened, descending   Advance        -> the same     label holder: how far to go, and new residuals
    opened, descending   FinishLinear   -> fitted       not before the first Descend; the matrix is dropped
    fitted               AskScores      -> fitted       a prediction

A party that is made with a model begins as *fitted*. ``_directions`` has the newest direction, then the last steps;
Descend carries one number for each, by which the weights move. The first Descend of a job fixes the number of scores,
penalty, curvature and row weights: later ones that change them are refused. Every handler checks before it moves the
weights, so that after a refusal the descent goes on from where it was.
"""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from woodlot.data.tables import Table
from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.bits import pack
from woodlot.protocols.core.handling import MessageHandler, takes
from woodlot.protocols.core.message import Message
from woodlot.protocols.core.target import Target
from woodlot.protocols.linear import linear_messages as msg
from woodlot.protocols.linear.linear_model import LinearColumns, Matrix, PartyLinear
from woodlot.protocols.linear.loss import MEMORY, Descent, Loss, loss_of

SLACK = 1e-6
"""By how much rounding may make residuals larger."""
MAX_WHITENED = 2000
"""Columns up to which a direction allows for all of a party's own correlations; beyond, for variances only."""


class LinearState(StrEnum):
    """Where a party stands."""

    idle = "idle"
    opened = "opened"
    descending = "descending"
    fitted = "fitted"


TRAINING = (LinearState.opened, LinearState.descending)
"""While a model is fitted."""


class LinearParty(MessageHandler):
    """One party and its table, for one job.

    Parameters
    ----------
    name : str
        The party.
    table : Table
        Its columns, rows in the common order of all parties.
    target : Target, optional
        The labels and weights, at the label holder.
    model : PartyLinear, optional
        Its part of a model that was fitted before, to predict with.
    known : bool array, optional
        Which of the rows to predict the party has; None for all.

    """

    state: LinearState

    def __init__(
        self,
        name: str,
        table: Table,
        *,
        target: Target | None = None,
        model: PartyLinear | None = None,
        known: NDArray[np.bool_] | None = None,
    ) -> None:
        self.name = name
        self.table = table
        self.target = target
        self.known = known
        self.state = LinearState.idle if model is None else LinearState.fitted
        self._model = model
        self._columns: LinearColumns | None = None
        self._scaling = (False, False)
        self._row_weights: NDArray[np.float64] | None = None
        self._matrix: Matrix = np.empty((table.n_rows, 0))
        self._weights: Matrix = np.empty((0, 0))
        self._inverse: Matrix = np.empty((0, 0))
        self._penalty = 0.0
        self._shape = (0.0, 0.0)
        self._directions: list[Matrix] = []
        """The newest direction, then the last steps, newest first."""
        self._descent: Descent | None = None
        self._unit = (0.0, 1.0)
        if model is not None:
            try:
                # at once, so that what does not fit is told here, with the columns' names, and never on the wire
                self._shares = model.scores(table)
            except DataError as error:
                raise DataError(f"{name}: {error}") from None

    @takes(msg.OpenLinear, when=LinearState.idle, then=LinearState.opened)
    def _on_OpenLinear(self, message: msg.OpenLinear) -> msg.LinearSummary:
        self._scaling = (message.centred, message.standardised)
        self._columns = LinearColumns.of(self.table, *self._scaling)
        self._matrix = self._columns.matrix(self.table)
        return msg.LinearSummary(n_rows=self.table.n_rows, n_columns=self._columns.n_columns)

    # --- the label holder ---

    @takes(msg.StartLinear, when=LinearState.opened)
    def _on_StartLinear(self, message: msg.StartLinear) -> msg.LinearStarted:
        target, loss, descent, unit = self._begin(message)
        self._descent, self._unit = descent, unit
        return msg.LinearStarted(
            classes=target.classes,
            penalty=descent.penalty,
            curvature=loss.curvature,
            residuals=descent.residuals(),
            weights=target.weights,
        )

    def _begin(self, message: msg.DescentStart) -> tuple[Target, Loss, Descent, tuple[float, float]]:
        """What a descent begins with, and by what targets are shifted and scaled."""
        target = self.target
        if target is None:
            raise DataError("this party has no labels; name the party and column that has them")
        if (message.task == "classes") != bool(target.classes):
            raise RemoteProtocolError(f"{type(message).__name__} asks for labels of the other kind")
        if not 0 <= message.strength < np.inf:
            raise RemoteProtocolError("the strength of a penalty is a finite number that is not negative")
        weights = target.row_weights(message.balanced, message.class_weight)
        loss, mean, spread = loss_of(target, weights, message.fit_intercept)
        penalty = message.strength / float(weights.sum())
        descent = Descent(loss, penalty, message.fit_intercept, self.table.n_rows)
        return target, loss, descent, (mean, spread)

    @takes(msg.Advance, when=TRAINING)
    def _on_Advance(self, message: msg.Advance) -> Message:
        descent, step, stuck = self._advance(message)
        return msg.Residuals(step=step, residuals=descent.residuals(), stuck=stuck)

    def _advance(self, message: msg.Advance) -> tuple[Descent, NDArray[np.float64], bool]:
        descent = self._descent
        if descent is None:
            raise RemoteProtocolError("Unexpected Advance; expected at the label holder, after its descent has started")
        expected = descent.expects()
        if message.scores.shape != expected[0] or message.products.shape != expected[1]:
            raise RemoteProtocolError("Advance must carry one score per row and class, and one product per direction")
        if not (np.isfinite(message.scores).all() and np.isfinite(message.products).all()):
            raise RemoteProtocolError("Advance carries numbers that are not finite")
        return descent, *descent.advance(message.scores, message.products)

    # --- every party ---

    @takes(msg.Descend, when=TRAINING, then=LinearState.descending)
    def _on_Descend(self, message: msg.Descend) -> msg.PartialScores:
        self._opened()
        residuals, step = message.residuals, message.step
        if len(residuals) != self.table.n_rows or residuals.shape[1] < 1 or not np.isfinite(residuals).all():
            raise RemoteProtocolError("Descend must carry one residual, a number, per row and score")
        if self.state == LinearState.descending and residuals.shape[1] != self._weights.shape[1]:
            raise RemoteProtocolError("the number of scores has changed in the middle of a descent")
        self._check_step(step)
        check_shape(message.penalty, message.curvature)
        # what can be told without labels; whose residuals they are cannot
        if (np.abs(residuals).sum(axis=0) > 1 + SLACK).any():
            raise RemoteProtocolError("Descend carries residuals that no loss has: those of all rows add up to 1")
        shape = (message.penalty, message.curvature)
        if self.state == LinearState.descending and shape != self._shape:
            raise RemoteProtocolError("penalty or curvature have changed in the middle of a descent")
        if self.state == LinearState.opened:
            self._weigh(message.weights)
            self._prepare(residuals.shape[1], *shape)
        elif message.weights is not None:
            raise RemoteProtocolError("weights of rows come with the first Descend only")
        self._penalty, self._shape = message.penalty, shape
        return self._descend(step, self._matrix.T @ residuals)

    def _check_step(self, step: NDArray[np.float64]) -> None:
        if len(step) != len(self._directions) or not np.isfinite(step).all():
            raise RemoteProtocolError("a step must carry one number per direction")

    def _weigh(self, weights: NDArray[np.float64] | None) -> None:
        """Centre and scale the columns again, by the weights of the rows."""
        if self.target is not None and not _same_weights(weights, self.target.weights):
            raise RemoteProtocolError("the weights of the rows are not those that this party has sent")
        if weights is None:
            return
        if len(weights) != self.table.n_rows or not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
            raise RemoteProtocolError("the weights of the rows must be one number per row, none negative and not all 0")
        self._row_weights = weights
        self._columns = LinearColumns.of(self.table, *self._scaling, weights)
        self._matrix = self._columns.matrix(self.table)

    def _prepare(self, n_scores: int, penalty: float, curvature: float) -> None:
        """No weights, and a direction for every slope."""
        self._weights = np.zeros((self._matrix.shape[1], n_scores))
        self._inverse = whitening(self._matrix, penalty, curvature, self._row_weights)

    def _descend(self, step: NDArray[np.float64], loss_slope: Matrix) -> msg.PartialScores:
        """Take a step, and find the next direction from the slope of the loss there."""
        if len(step):
            move = np.asarray(np.tensordot(step, np.array(self._directions), axes=1))
            self._weights = self._weights + move
            self._directions = [move, *self._directions[1:]][:MEMORY]
        slope = loss_slope + self._penalty * self._weights
        direction = -(self._inverse @ slope if self._inverse.ndim == 2 else self._inverse[:, None] * slope)
        self._directions.insert(0, direction)
        flat = np.array([*self._directions, self._weights]).reshape(len(self._directions) + 1, -1)
        return msg.PartialScores(
            scores=self._matrix @ direction,
            products=flat @ flat.T,
            steepest=float(np.abs(slope).max(initial=0.0)),
        )

    def _opened(self) -> LinearColumns:
        if self._columns is None:
            raise RemoteProtocolError("no linear model is open here")
        return self._columns

    @takes(msg.FinishLinear, when=TRAINING, then=LinearState.fitted)
    def _on_FinishLinear(self, message: msg.FinishLinear) -> Message:
        columns = self._opened()
        if len(self._weights) != columns.n_columns:
            raise RemoteProtocolError("Unexpected FinishLinear; expected after the first Descend")
        self._matrix = np.empty((self.table.n_rows, 0))
        self._model = PartyLinear(columns, self._weights)
        self._shares = self._model.scores(self.table) if columns.n_columns else self._matrix
        if self._descent is None:
            return msg.LinearFinished()
        mean, spread = self._unit
        return msg.LinearFit(intercept=self._descent.intercept * spread + mean, unit=spread)

    def fitted_part(self) -> PartyLinear:
        """This party's part of the model."""
        if self._model is None:
            raise RemoteProtocolError("no linear model is fitted here")
        return self._model

    @takes(msg.AskScores, when=LinearState.fitted)
    def _on_AskScores(self, message: msg.AskScores) -> msg.Scores:
        shares = self._shares if self.known is None else np.where(self.known[:, None], self._shares, 0.0)
        return msg.Scores(scores=np.ascontiguousarray(shares), known=None if self.known is None else pack(self.known))


def check_shape(penalty: float, curvature: float) -> None:
    """Refuse a loss that has no minimum."""
    if not (0 <= penalty < np.inf and 0 < curvature < np.inf):
        raise RemoteProtocolError("penalty and curvature of a descent are finite, and not negative")


def _same_weights(one: NDArray[np.float64] | None, other: NDArray[np.float64] | None) -> bool:
    return one is other if one is None or other is None else np.array_equal(one, other)


def whitening(
    matrix: Matrix, penalty: float, curvature: float, weights: NDArray[np.float64] | None = None
) -> NDArray[np.float64]:
    """The inverse of about the second derivatives by a party's own weights; for very many columns, of its diagonal.

    A direction that allows for it is as good as the party alone could choose: with a single party, least squares are
    solved in one step.
    """
    n = max(1, len(matrix))
    if weights is not None:
        matrix = matrix * np.sqrt(weights * (n / weights.sum()))[:, None]
    if matrix.shape[1] > MAX_WHITENED:
        diagonal = curvature * (matrix**2).sum(axis=0) / n + penalty
        return np.asarray(np.divide(1.0, diagonal, out=np.zeros_like(diagonal), where=diagonal > 0))
    values, vectors = np.linalg.eigh(curvature * (matrix.T @ matrix) / n)
    # Where no row differs, slopes are nothing but rounding errors, which a small penalty would blow up.
    real = values > 1e-12 * values.max(initial=0.0)
    inverse = np.divide(1.0, values + penalty, out=np.zeros_like(values), where=real)
    return np.asarray((vectors * inverse) @ vectors.T)
