"""Out-of-bag estimates at the coordinator: each training row by the trees that did not draw it.

Answers are taken from the whole forest and from its first few trees, so that it can be seen whether more trees would
help. The label holder, who alone may judge them, returns the scores and no more.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import DataError, RemoteProtocolError
from woodlot.protocols.core.bits import smallest_unsigned
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.core.replies import reply_of
from woodlot.protocols.core.target import Target
from woodlot.protocols.vertical import forest_messages as msg
from woodlot.protocols.vertical.predict import gather_replies
from woodlot.trees import wire
from woodlot.trees.collect import Collector
from woodlot.trees.forest import Leaves
from woodlot.trees.predict import Vote
from woodlot.trees.sampling import Bootstrap

WITHHELD = (
    "all rows, or all of some class, are in the sample of every tree, so no tree can judge them; grow more trees, "
    "lower max_samples, or use smaller class weights or class_weight='balanced_subsample'"
)
"""Why there are out-of-bag answers and no score, and what to do."""


class OutOfBagCurve(NamedTuple):
    """Out-of-bag score by number of trees: accuracy, or R2. ``plt.plot(*curve)`` draws it."""

    n_trees: NDArray[np.int64]
    """Sizes of the forest: its first trees, up to all of them."""
    score: NDArray[np.float64]
    """Score over the rows that at least one of these trees has not drawn; classes count by their share of all rows."""

    @classmethod
    def of(cls, points: Sequence[tuple[int, float]]) -> OutOfBagCurve:
        """A curve from its points; those without a score are left out."""
        known = [(n, score) for n, score in points if np.isfinite(score)]
        return cls(np.array([n for n, _ in known], np.int64), np.array([score for _, score in known], np.float64))

    def points(self) -> tuple[tuple[int, float], ...]:
        """The curve in plain values."""
        return tuple(zip(self.n_trees.tolist(), self.score.tolist(), strict=True))


@dataclass(frozen=True, eq=False)
class OutOfBagResult:
    """What is known of a forest out of bag; nothing by default.

    ``outputs`` are NaN for rows that every tree drew; ``residuals`` are quantiles, of a regression. There may be
    outputs and no ``score``: it is withheld where the label holder cannot judge all classes, since their rows are in
    every tree's sample.
    """

    outputs: NDArray[np.float64] | None = None
    score: float | None = None
    residuals: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    curve: OutOfBagCurve | None = None

    def points(self) -> tuple[tuple[int, float], ...]:
        """The curve in plain values; empty if there is none."""
        return () if self.curve is None else self.curve.points()


@dataclass(frozen=True, eq=False)
class OutOfBagOutputs:
    """What forests of the first trees answer: class numbers, or targets, shape (sizes, rows).

    ``since``: of each row the first of the sizes at which it counts, the number of sizes where it never does.
    """

    outputs: NDArray[np.float64]
    sizes: tuple[int, ...]
    answers: NDArray[np.float64]
    since: NDArray[np.int64]


def curve_sizes(n_trees: int) -> tuple[int, ...]:
    """Sizes of the forest at which it is scored: 1, 2, 3, 4, 6, 8, 12, 16 and so on, and the whole forest."""
    sizes, step = {n_trees}, 1
    while step < n_trees:
        sizes |= {size for size in (step, step * 3 // 2) if size < n_trees}
        step *= 2
    return tuple(sorted(sizes))


def first_sizes(sampling: Bootstrap, n_trees: int, n_rows: int) -> NDArray[np.int64]:
    """Of each row the first of the `curve_sizes` at which it counts, their number where it never does.

    A row counts as soon as a tree has not drawn it.
    """
    sizes = np.array(curve_sizes(n_trees))
    since = np.full(n_rows, len(sizes), np.int64)
    for tree in reversed(range(n_trees)):
        since[sampling.counts(tree, n_rows) == 0] = np.searchsorted(sizes, tree + 1)
    return since


def score_out_of_bag(
    forest: CoordinatorForest, holder: str, vote: Vote | None, n_jobs: int
) -> Generator[Round, dict[str, Message], OutOfBagResult]:
    """Have the training rows answered by the trees that did not draw them, and the label holder score the answers.

    Without a ``vote`` nothing is asked.
    """
    if vote is None:
        return OutOfBagResult()
    found = yield from answer_out_of_bag(forest, vote, n_jobs)
    answers = found.answers.ravel()
    request = msg.OutOfBagAnswers(
        sizes=np.array(found.sizes, np.uint32),
        classes=smallest_unsigned(answers.astype(np.int64)) if forest.classes else None,
        targets=None if forest.classes else answers,
        since=found.since.astype(np.uint8),
    )
    reply = reply_of((yield Round("out-of-bag", {holder: request}))[holder], msg.OutOfBagScores, holder)
    if len(reply.scores) != len(found.sizes):
        raise RemoteProtocolError(
            f"{holder} sent {len(reply.scores)} scores for {len(found.sizes)} sizes of the forest"
        )
    return _result(found, reply.scores.tolist(), reply.residuals.copy())


def judge_out_of_bag(
    forest: CoordinatorForest, target: Target, vote: Vote | None, n_jobs: int
) -> Generator[Round, dict[str, Message], OutOfBagResult]:
    """As `score_out_of_bag`, where the coordinator has the labels itself."""
    if vote is None:
        return OutOfBagResult()
    found = yield from answer_out_of_bag(forest, vote, n_jobs)
    return _result(found, *target.summary(found.answers, found.since))


def _result(found: OutOfBagOutputs, scores: list[float], residuals: NDArray[np.float64]) -> OutOfBagResult:
    curve = OutOfBagCurve.of(list(zip(found.sizes, scores, strict=True)))
    score = scores[-1] if np.isfinite(scores[-1]) else None
    return OutOfBagResult(found.outputs, score, residuals, curve)


def answer_out_of_bag(
    forest: CoordinatorForest, vote: Vote, n_jobs: int
) -> Generator[Round, dict[str, Message], OutOfBagOutputs]:
    """Let every training row fall down all trees, and gather what those answer that did not draw it."""
    sampling = forest.sampling
    if sampling is None or sampling.seed is None:
        raise DataError("out-of-bag estimates need bootstrap=True")
    n_rows = forest.n_rows
    replies, known = yield from gather_replies(forest, forest.parties, n_rows, "decisions", None)
    collector = Collector(forest.structure, forest.owner, forest.leaves, len(forest.parties))
    decisions = [reply if isinstance(reply, wire.DecisionBits) else None for reply in replies]
    leaf = collector.leaves_from_decisions(decisions, known, n_rows, n_jobs)
    sums = np.zeros((n_rows, forest.leaves.n_outputs))
    trees = np.zeros(n_rows, np.int64)
    said = _answers_of_leaves(forest.leaves, vote)
    sizes = curve_sizes(forest.structure.n_trees)
    answers = np.zeros((len(sizes), n_rows))
    point = 0
    for tree in range(forest.structure.n_trees):
        left_out = sampling.counts(tree, n_rows) == 0
        sums[left_out] += said[leaf[left_out, tree]]
        trees += left_out
        if tree + 1 == sizes[point]:
            counted = trees > 0
            mean = sums[counted] / trees[counted, None]
            answers[point, counted] = mean.argmax(axis=1) if forest.classes else mean[:, 0]
            point += 1
    outputs = np.full_like(sums, np.nan)
    outputs[counted] = mean
    since = first_sizes(sampling, forest.structure.n_trees, n_rows)
    return OutOfBagOutputs(outputs, sizes, answers, since)


def _answers_of_leaves(leaves: Leaves, vote: Vote) -> NDArray[np.float64]:
    """What a tree answers for rows in each leaf."""
    said = np.zeros((len(leaves.weight), leaves.n_outputs))
    if vote == "majority":
        said[np.arange(len(said)), leaves.top] = 1.0
    else:
        said[np.repeat(np.arange(len(said)), np.diff(leaves.start)), leaves.output] = leaves.value
    return said
