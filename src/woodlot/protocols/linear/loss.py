"""The label holder's part of the descent: losses of scores, and how far to go along the parties' directions.

Labels, scores and the images of directions (what a direction adds to the scores) are all that is needed to know the
mean loss anywhere in the span of the directions. So each step minimises it there completely, intercepts included, by
Newton's method: with two directions, the newest and the last step, that is the conjugate gradient method for least
squares; more of them make it as fast as L-BFGS for logistic losses.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, log_softmax, softmax

from woodlot.exceptions import DataError
from woodlot.protocols.core.target import Target
from woodlot.protocols.linear.linear_model import Matrix

MEMORY = 8
"""Steps that stay among the directions."""

MAX_NEWTON = 50
"""Newton steps within one span; a handful is usual."""

_SHORTEST = 2.0**-40  # a step of a line search below which nothing is to be gained
_FLAT = 1e-10  # the share of the loss below which a full step needs no proof
_NOTHING = 1e-30  # the share of the loss below which the descent has come to its end


class Loss(Protocol):
    """A loss of scores, with weights of rows that add up to 1."""

    n_scores: int
    curvature: float
    """About the second derivative of a row's loss, for the parties' directions; its exact size does not matter."""

    def value(self, scores: Matrix) -> float:
        """The mean loss."""
        ...

    def residuals(self, scores: Matrix) -> Matrix:
        """Its derivative by every score."""
        ...

    def hessian(self, scores: Matrix, images: NDArray[np.float64]) -> Matrix:
        """Its second derivatives along some images (directions first), and along the intercepts after them."""
        ...


class Squares:
    """Half the squared difference to targets of mean 0 and variance 1."""

    n_scores = 1
    curvature = 1.0

    def __init__(self, targets: NDArray[np.float64], weights: NDArray[np.float64]) -> None:
        self._targets = targets[:, None]
        self._weights = weights[:, None]

    def value(self, scores: Matrix) -> float:
        return float(0.5 * (self._weights * (scores - self._targets) ** 2).sum())

    def residuals(self, scores: Matrix) -> Matrix:
        return self._weights * (scores - self._targets)

    def hessian(self, scores: Matrix, images: NDArray[np.float64]) -> Matrix:
        return _one_score_hessian(self._weights[:, 0], images)


class Logistic:
    """Of two classes: one score, the log-odds of the second."""

    n_scores = 1
    curvature = 0.25

    def __init__(self, numbers: NDArray[np.int64], weights: NDArray[np.float64]) -> None:
        self._labels = numbers[:, None].astype(np.float64)
        self._weights = weights[:, None]

    def value(self, scores: Matrix) -> float:
        return float((self._weights * (np.logaddexp(0, scores) - self._labels * scores)).sum())

    def residuals(self, scores: Matrix) -> Matrix:
        return np.asarray(self._weights * (expit(scores) - self._labels))

    def hessian(self, scores: Matrix, images: NDArray[np.float64]) -> Matrix:
        p = expit(scores)
        return _one_score_hessian((self._weights * p * (1 - p))[:, 0], images)


class Multinomial:
    """Of three or more classes: one score each."""

    def __init__(self, numbers: NDArray[np.int64], n_classes: int, weights: NDArray[np.float64]) -> None:
        self.n_scores = n_classes
        self.curvature = (1 - 1 / n_classes) / n_classes
        self._numbers = numbers
        self._weights = weights

    def value(self, scores: Matrix) -> float:
        own = log_softmax(scores, axis=1)[np.arange(len(scores)), self._numbers]
        return float(-(self._weights * own).sum())

    def residuals(self, scores: Matrix) -> Matrix:
        p = softmax(scores, axis=1)
        p[np.arange(len(p)), self._numbers] -= 1
        return np.asarray(p * self._weights[:, None])

    def hessian(self, scores: Matrix, images: NDArray[np.float64]) -> Matrix:
        p = softmax(scores, axis=1)
        weighted = p * self._weights[:, None]
        mean = np.einsum("qnk,nk->qn", images, p)
        q, flat = len(images), images.reshape(len(images), scores.size)
        result = np.empty((q + self.n_scores, q + self.n_scores))
        result[:q, :q] = (flat * weighted.ravel()) @ flat.T - (mean * self._weights) @ mean.T
        result[:q, q:] = np.einsum("qnk,nk->qk", images, weighted) - mean @ weighted
        result[q:, :q] = result[:q, q:].T
        result[q:, q:] = np.diag(weighted.sum(axis=0)) - weighted.T @ p
        return result


def _one_score_hessian(curvature: NDArray[np.float64], images: NDArray[np.float64]) -> Matrix:
    rows = np.concatenate([images[:, :, 0], np.ones((1, len(curvature)))])
    return np.asarray((rows * curvature) @ rows.T)


def loss_of(target: Target, weights: NDArray[np.float64], centred: bool) -> tuple[Loss, float, float]:
    """The loss of a holder's labels, and what its targets are shifted and scaled by (0 and 1 for classes)."""
    share = weights / weights.sum()
    if not target.classes:
        # in a unit of about the largest target, a power of two: squares of any targets are floats there
        unit = 2.0 ** int(np.frexp(np.abs(target.values).max())[1])
        values = target.values / unit
        mean = float(share @ values) if centred else 0.0
        spread = float(np.sqrt(share @ (values - mean) ** 2))
        spread = spread if spread > 0 else 1.0
        return Squares((values - mean) / spread, share), mean * unit, spread * unit
    if len(target.classes) < 2:
        raise DataError(
            "logistic regression needs samples of at least 2 classes in the data, but the data contains only one "
            f"class: {target.classes[0]!r}"
        )
    if len(target.classes) == 2:
        return Logistic(target.numbers, share), 0.0, 1.0
    return Multinomial(target.numbers, len(target.classes), share), 0.0, 1.0


class Descent:
    """Where the descent stands at the label holder.

    Parameters
    ----------
    loss : Loss
        Of this holder's labels.
    penalty : float
        Weight of half the squared weights beside the mean loss.
    fit_intercept : bool
        Whether intercepts are free.
    n_rows : int
        Rows.

    """

    def __init__(self, loss: Loss, penalty: float, fit_intercept: bool, n_rows: int) -> None:
        self._loss = loss
        self.penalty = penalty
        self._free = fit_intercept
        self.intercept = np.zeros(loss.n_scores)
        self._scores = np.zeros((n_rows, loss.n_scores))
        self._images = np.zeros((0, n_rows, loss.n_scores))
        if fit_intercept:
            self._minimise(self._images, np.zeros((1, 1)))

    def expects(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Shapes of the next image and of its products."""
        n = len(self._images) + 2
        return (self._scores.shape[0], self._scores.shape[1]), (n, n)

    def residuals(self) -> Matrix:
        """What the parties' next directions are made from."""
        return self._loss.residuals(self._scores + self.intercept)

    def advance(self, image: Matrix, products: Matrix) -> tuple[NDArray[np.float64], bool]:
        """Go as far as is best along the newest direction and the last steps.

        Parameters
        ----------
        image : array
            What the newest direction adds to the scores.
        products : array
            Inner products of the newest direction, the last steps (newest first) and the weights.

        Returns
        -------
        step : array
            How far to go along each direction.
        stuck : bool
            Whether nothing more is gained within the precision of numbers.

        """
        images = np.concatenate([image[None], self._images])
        step, gain = self._minimise(images, products)
        move = np.tensordot(step, images, axes=1)
        self._scores += move
        self._images = np.concatenate([move[None], self._images])[:MEMORY]
        return step, bool(gain <= _NOTHING)

    def _minimise(self, images: NDArray[np.float64], products: Matrix) -> tuple[NDArray[np.float64], float]:
        """Newton's method in the span of some directions; returns the step, and by which share the loss has fallen."""
        q, k = len(images), self._loss.n_scores
        gram, along = self.penalty * products[:q, :q], self.penalty * products[:q, q]
        base, start = self._scores, self.intercept
        step, shift = np.zeros(q), np.zeros(k)

        def objective(step: NDArray[np.float64], shift: NDArray[np.float64]) -> float:
            scores = base + np.tensordot(step, images, axes=1) + start + shift
            return self._loss.value(scores) + float(step @ along + 0.5 * step @ gram @ step)

        value, gain = objective(step, shift), 0.0
        for _ in range(MAX_NEWTON):
            scores = base + np.tensordot(step, images, axes=1) + start + shift
            residuals = self._loss.residuals(scores)
            slope = np.append(np.tensordot(images, residuals, axes=2) + along + gram @ step, residuals.sum(axis=0))
            hessian = self._loss.hessian(scores, images)
            hessian[:q, :q] += gram
            if not self._free:
                slope[q:], hessian[q:], hessian[:, q:] = 0, 0, 0
            move = _newton(hessian, slope)
            drop = float(-slope @ move)
            if drop <= _FLAT * abs(value):  # so near that the loss itself cannot tell better from worse
                step, shift, gain = step + move[:q], shift + move[q:], gain + drop
                break
            length = 1.0
            while length >= _SHORTEST:
                trial = objective(step + length * move[:q], shift + length * move[q:])
                if trial <= value - 1e-4 * length * drop:
                    break
                length /= 2
            else:
                break
            step, shift, gain = step + length * move[:q], shift + length * move[q:], gain + (value - trial)
            value = trial
        self.intercept = start + shift
        if k > 1:  # what all classes have in common means nothing
            self.intercept -= self.intercept.mean()
        return step, gain / max(abs(value), np.finfo(np.float64).tiny)


def _newton(hessian: Matrix, slope: NDArray[np.float64]) -> NDArray[np.float64]:
    """The step to the minimum of the quadratic, with all directions first brought to the same length."""
    size = np.sqrt(np.maximum(np.diag(hessian), 0))
    size[size == 0] = 1.0
    step = np.linalg.lstsq(hessian / np.outer(size, size), -slope / size, rcond=1e-12)[0] / size
    return np.asarray(step)
