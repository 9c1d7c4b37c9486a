"""The out-of-bag score of a lossless forest: every row is answered by the trees that have not drawn it.

The coordinator brings the finished trees. Each client draws its rows again, which gives the same draws, answers each by
the trees that left it out, and counts right and wrong answers, or adds up squares of errors. Sums over all clients
reach the coordinator; so the score is that of the pooled rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import numpy as np
from numpy.typing import NDArray

from woodlot.exceptions import RemoteProtocolError
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.rows.lossless.lossless_messages import ScoreLeftOut
from woodlot.protocols.rows.row_messages import Task
from woodlot.protocols.rows.schema import NO_MAGNITUDE, CommonSchema
from woodlot.protocols.rows.whole_forest import fields_of
from woodlot.protocols.sums import SumSession, sum_round, to_fixed
from woodlot.trees.alone import WholeTrees
from woodlot.trees.forest import Leaves, Structure
from woodlot.trees.predict import Predictor
from woodlot.trees.ranks import Columns

CLASS_NUMBERS, TARGET_NUMBERS = 3, 5
ENOUGH = 0.95
"""Of the rows of a class, how many must be scored where classes are drawn with different weights."""
_MOST_BITS = 40
_ROWS_AT_ONCE = 1 << 14


def numbers_of(task: Task, n_groups: int = 1) -> int:
    """How many numbers clients add up.

    Of classes: right answers, wrong ones, rows that every tree has drawn; under class weights of each class. Of
    targets: rows, rows that every tree has drawn, sums of targets, of their squares, and of the squares of errors.
    """
    return CLASS_NUMBERS * n_groups if task == "classes" else TARGET_NUMBERS


def score_left_out(
    session: SumSession,
    trees: WholeTrees,
    leaves: Leaves,
    schema: CommonSchema,
    task: Task,
    every_row: NDArray[np.int64],
    *,
    by_class: bool,
) -> Generator[Round, dict[str, Message], float | None]:
    """Coordinator: accuracy or R2 of the rows that some tree has not drawn; None where there is no such row.

    Parameters
    ----------
    session : SumSession
        The sums of the training.
    trees, leaves : WholeTrees, Leaves
        The finished forest.
    schema : CommonSchema
        Of all clients.
    task : {"classes", "targets"}
        What the labels are.
    every_row : int array
        Trees that nobody has drawn a row for, and that have seen every row.
    by_class : bool
        Whether classes are drawn with different weights: the score then counts each by its share of all rows, and is
        None where under `ENOUGH` of the rows of a class have a tree that has not drawn them.
    """
    n_trees = trees.structure.n_trees
    bits = min(_MOST_BITS, 58 - schema.total_rows.bit_length())
    sums = yield from sum_round(
        session,
        "score",
        lambda order: ScoreLeftOut(
            **fields_of(trees, 0),
            order=order,
            leaf_start=leaves.start,
            leaf_output=leaves.output,
            leaf_value=leaves.value,
            every_row=every_row.astype(np.uint32),
            fraction_bits=0 if task == "classes" else bits,
        ),
        length=numbers_of(task, schema.n_outputs if by_class else 1),
        progress=Progress(n_trees, n_trees, "scoring out of bag"),
    )
    if task == "classes":
        right, wrong, without = sums.reshape(-1, CLASS_NUMBERS).T
        scored, rows = right + wrong, right + wrong + without
        if (scored == 0)[rows > 0].any() or (by_class and (scored < ENOUGH * rows).any()):
            return None
        there = rows > 0
        return float(np.sum(rows[there] * (right[there] / scored[there])) / rows.sum())
    n, _, total, squares, errors = sums.tolist()
    spread = n * squares - (total * total >> bits)  # whole numbers, n times as large
    return 1 - n * errors / spread if n > 1 and spread > 0 else None


def leaves_of(message: ScoreLeftOut, structure: Structure, n_outputs: int) -> Leaves:
    """The leaves of a message, checked.

    Raises
    ------
    RemoteProtocolError
        If they are not those of these trees.
    """
    start, output, value = message.leaf_start, message.leaf_output, message.leaf_value
    n_leaves = int((structure.right < 0).sum())
    sound = (
        len(start) == n_leaves + 1
        and int(start[0]) == 0
        and (np.diff(start) >= 1).all()
        and int(start[-1]) == len(output) == len(value)
        and int(output.min(initial=0)) >= 0
        and int(output.max(initial=0)) < n_outputs
        and np.isfinite(value).all()
    )
    if not sound:
        raise RemoteProtocolError("ScoreLeftOut brings leaves that are not those of its trees")
    return Leaves(np.ones(n_leaves), start.astype(np.int64), output.astype(np.int32), value.copy(), n_outputs)


def left_out_answers(
    trees: WholeTrees,
    leaves: Leaves,
    columns: Columns,
    n_rows: int,
    drawn: Callable[[int], NDArray[np.uint32]],
    n_jobs: int,
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Mean answer for each row of the trees that have not drawn it, and which rows have such trees.

    Parameters
    ----------
    trees, leaves : WholeTrees, Leaves
        The forest.
    columns : sequence of arrays
        Of the rows.
    n_rows : int
        How many rows there are.
    drawn : callable
        From a tree to the rows that it has drawn, in ascending order.
    n_jobs : int
        Threads.
    """
    predictor, n_trees = Predictor(trees.structure, trees.splits, leaves), trees.structure.n_trees
    is_leaf = np.concatenate([[0], np.cumsum(trees.structure.right < 0)])
    first = is_leaf[trees.structure.offset]
    total, count = np.zeros((n_rows, leaves.n_outputs)), np.zeros(n_rows, np.int64)
    tables = [_dense(leaves, int(first[t]), int(first[t + 1])) for t in range(n_trees)]
    rows_of = [drawn(t).astype(np.int64) for t in range(n_trees)]
    for a in range(0, n_rows, _ROWS_AT_ONCE):
        b = min(n_rows, a + _ROWS_AT_ONCE)
        leaf = predictor.apply([column[a:b] for column in columns], b - a, n_jobs)
        for t in range(n_trees):
            unseen = np.ones(b - a, np.bool_)
            low, high = np.searchsorted(rows_of[t], [a, b])
            unseen[rows_of[t][low:high] - a] = False
            total[a:b][unseen] += tables[t][leaf[unseen, t] - first[t]]
            count[a:b] += unseen
    return total / np.maximum(count, 1)[:, None], count > 0


def _dense(leaves: Leaves, first: int, last: int) -> NDArray[np.float64]:
    """What the leaves of one tree answer, one line for each."""
    table = np.zeros((last - first, leaves.n_outputs))
    entries = slice(int(leaves.start[first]), int(leaves.start[last]))
    owner = np.repeat(np.arange(last - first), np.diff(leaves.start[first : last + 1]))
    table[owner, leaves.output[entries]] = leaves.value[entries]
    return table


def class_numbers(
    answers: NDArray[np.float64], known: NDArray[np.bool_], labels: NDArray[np.int64], n_groups: int = 1
) -> list[int]:
    """Right answers, wrong ones, and rows without an answer: of all rows, or of each class."""
    right = answers.argmax(axis=1) == labels
    found = []
    for k in range(n_groups):
        own = np.ones(len(labels), np.bool_) if n_groups == 1 else labels == k
        found += [int((own & known & right).sum()), int((own & known & ~right).sum()), int((own & ~known).sum())]
    return found


def target_numbers(
    answers: NDArray[np.float64], known: NDArray[np.bool_], values: NDArray[np.float64], magnitude: int, bits: int
) -> list[int]:
    """Rows, those without an answer, and sums in fixed point, in units of the power of two above all targets."""
    scale = 0 if magnitude == NO_MAGNITUDE else -magnitude
    y = np.ldexp(values[known], scale)
    errors = y - np.ldexp(answers[known, 0], scale)
    sums = [int(to_fixed(one, bits).sum()) for one in (y, y**2, np.minimum(errors**2, 16.0))]
    return [int(known.sum()), int((~known).sum()), *sums]
