"""The lossless forest: grown on the rows of all clients as if they lay in one place, from sums alone.

::

    round 1, 2    every client   the common schema
    round 3, 4    every client   agreement on keys for secure sums
    round 5-11    every client   the common bins (bins.py)
    round 12      every client   what each tree has drawn; before it, with class weights, rows of each class
    every level   every client   histograms of the candidate features at all open nodes of all trees, as one vector
    at the end    every client   with ``oob_score``: right and wrong answers of the trees that have not drawn a row

The coordinator searches the sums for the best splits and sends them with the question for the next level. Where no
candidate can split a node, its next ones are asked for in another round of the level. A level whose vector would be
larger than a limit goes in several messages. Rounds so depend on the depth of the trees, not on their number.

All numbers are whole, so that sums do not depend on who holds which row: the forest is that of the pooled rows, bit for
bit.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from woodlot.exceptions import DataError
from woodlot.protocols.core.bits import smallest_unsigned
from woodlot.protocols.core.message import Message, Progress, Round
from woodlot.protocols.rows.lossless import lossless_messages
from woodlot.protocols.rows.lossless.bins import CommonColumns, asking, common_bins
from woodlot.protocols.rows.lossless.left_out import score_left_out
from woodlot.protocols.rows.lossless.lossless_plan import (
    EXACT_BITS,
    MAX_BINS,
    LosslessPlan,
    true_targets,
    true_weights,
    weight_bits,
)
from woodlot.protocols.rows.lossless.lossless_trees import Growing, Nodes
from woodlot.protocols.rows.schema import CommonSchema, Rounds, agree_on_schema
from woodlot.protocols.rows.whole_forest import whole_forest
from woodlot.protocols.sums import SumSession, open_sums, sum_round
from woodlot.trees.drawing import MAX_RATE, poisson_thresholds
from woodlot.trees.sampling import WEIGHT_BITS, feature_key

_WORD_BITS = 63


def lossless_forest(plan: LosslessPlan, clients: Sequence[str]) -> Rounds:
    """Coordinator: grow the forest of all clients' rows; returns the parts of the whole model.

    Parameters
    ----------
    plan : LosslessPlan
        What to grow.
    clients : sequence of str
        Everybody who takes part.
    """
    declared = plan.declared()
    schema = yield from agree_on_schema(clients, plan.task, None)
    session = yield from open_sums(
        clients, mode=plan.sums, allow_two=plan.allow_two, spare_after=plan.spare_after, quorum=plan.needed
    )
    columns = yield from common_bins(session, schema, plan.max_bins or MAX_BINS, declared, plan.words_at_once)
    growing = yield from _draw(plan, session, schema, columns)
    left_at = dict.fromkeys(session.left, 0)
    while growing.n_open:
        level = growing.depth
        yield from _grow_level(plan, session, growing)
        left_at |= dict.fromkeys(session.left.keys() - left_at.keys(), level)
    trees, leaves, gain = growing.finish()
    if plan.task == "targets":
        leaves.value[:] = true_targets(leaves.value, schema.magnitude, growing.target_bits)
    forest, part = whole_forest(trees, leaves, gain, schema)
    score = None
    if plan.scores_left_out:
        score = yield from score_left_out(
            session,
            trees,
            leaves,
            schema,
            plan.task,
            growing.every_row,
            by_class=plan.task == "classes" and (plan.is_weighted or plan.row_weights is True),
        )
    return replace(forest, left=tuple(sorted(session.left)), left_at=left_at, oob_score=score), part


def _draw(
    plan: LosslessPlan, session: SumSession, schema: CommonSchema, columns: CommonColumns
) -> Generator[Round, dict[str, Message], Growing]:
    """Have all clients draw rows; the sums are the roots of the trees."""
    settings = plan.settings(len(schema.names))
    drawing: type[lossless_messages.DrawRows] = lossless_messages.DrawRows
    rules: dict[str, Any] = {"thresholds": plan.thresholds(schema.total_rows)}
    heaviest = schema.total_rows * max(1, len(rules["thresholds"]))
    if plan.row_weights is True:
        rules, heaviest = yield from _weight_rules(plan, session, schema)
        drawing = lossless_messages.DrawByWeight
    elif plan.is_weighted:
        counts = yield from sum_round(
            session,
            "grow",
            lambda order: lossless_messages.CountClasses(order=order),
            length=schema.n_outputs,
            bound=schema.total_rows,
        )
        lists = plan.class_thresholds(counts.tolist(), schema.classes)
        heaviest = schema.total_rows * max(1, *map(len, lists))
        drawing = lossless_messages.DrawByClass
        rules = {
            "thresholds": np.concatenate(lists),
            "n_thresholds": smallest_unsigned(np.array([len(one) for one in lists], np.int64)),
            "class_rows": counts,
        }
    if heaviest >= 2**WEIGHT_BITS:
        raise DataError(
            f"{schema.total_rows:,} rows are too many for one forest; lower max_samples or sample them first"
        )
    target_bits = 0 if plan.task == "classes" else EXACT_BITS - heaviest.bit_length()
    edges = [np.empty(0) if bins is None else bins.below for bins in columns.bins]
    n_classes = schema.n_outputs
    bound = (1 << _word_bits(session)) - 1
    totals = yield from sum_round(
        session,
        "grow",
        asking(
            drawing,
            n_edges=smallest_unsigned(np.array([len(some) for some in edges], np.int64)),
            edges=np.concatenate(edges),
            has_missing=columns.has_missing,
            n_trees=plan.n_estimators,
            seed=settings.bootstrap_seed,
            **rules,
            with_rows=plan.with_rows,
            target_bits=target_bits,
        ),
        length=(plan.n_estimators + 1) * (n_classes + 2) + (plan.row_weights is True),
        bound=bound,
        progress=Progress(0, plan.n_estimators, "drawing rows"),
    )
    if plan.row_weights is True:
        totals, too_heavy = totals[:-1], int(totals[-1])
        if too_heavy:
            some = "a row" if too_heavy == 1 else f"{too_heavy:,} rows"
            raise DataError(
                f"sample_weight draws {some} more than {MAX_RATE:.0f} times on average, which is not possible; use "
                "weights that differ less, or lower max_samples"
            )
    roots = totals.reshape(plan.n_estimators + 1, n_classes + 2)
    every_row = np.flatnonzero(roots[:-1, n_classes] == 0)
    roots[every_row] = roots[-1]
    return Growing(
        settings,
        plan.criterion,
        columns,
        np.array([feature_key(name) for name in schema.names], np.uint64),
        Nodes.of_table(roots[:-1, :n_classes], roots[:-1, n_classes], roots[:-1, -1]),
        every_row,
        n_outputs=n_classes,
        with_rows=plan.with_rows,
        target_bits=target_bits,
        word_bits=_word_bits(session),
    )


def _weight_rules(
    plan: LosslessPlan, session: SumSession, schema: CommonSchema
) -> Generator[Round, dict[str, Message], tuple[dict[str, Any], int]]:
    """Have all clients add their weights up; returns the rules of drawing, and how much a tree weighs at most."""
    bits = weight_bits(schema.total_rows)
    sums = yield from sum_round(
        session,
        "grow",
        lambda order: lossless_messages.CountWeights(order=order, fraction_bits=bits),
        length=2 * schema.n_outputs,
        bound=(1 << _word_bits(session)) - 1,
        whole=True,
    )
    class_rows, class_sums = np.split(sums, 2)
    weights = true_weights(class_sums, bits)
    rates = plan.class_rates(class_rows.tolist(), weights, schema.classes)  # also refuses weights that are all 0
    rules = {
        "thresholds": np.empty(0, np.uint64),
        "class_rows": class_rows,
        "class_sums": class_sums,
        "fraction_bits": bits,
        "rates": np.array(rates if plan.bootstrap else [], np.float64),
    }
    heaviest = schema.total_rows * len(poisson_thresholds(MAX_RATE)) if plan.bootstrap else int(sum(weights)) + 1
    return rules, max(schema.total_rows, heaviest)


def _word_bits(session: SumSession) -> int:
    """Bits of a number that all clients together fill at most: what they add must not reach the sign."""
    return _WORD_BITS - (len(session.clients) - 1).bit_length()


def _grow_level(
    plan: LosslessPlan, session: SumSession, growing: Growing
) -> Generator[Round, dict[str, Message], None]:
    """Find the best splits of all open nodes, and split them."""
    while (asked := growing.ask()) is not None:
        for batch in asked.cells.batches(plan.words_at_once):
            cells = asked.cells.take(batch)
            sums = yield from sum_round(
                session,
                "grow",
                asking(
                    lossless_messages.CountCells,
                    **growing.splits_to_tell(),
                    nodes=asked.nodes[batch].astype(np.uint32),
                    **growing.cells_to_tell(cells),
                ),
                length=cells.length,
                bound=(1 << growing.word_bits) - 1,
                progress=Progress(growing.n_finished, plan.n_estimators, f"level {growing.depth}"),
            )
            growing.take(asked.nodes[batch], cells, sums, whole=not session.left)
    growing.split()
