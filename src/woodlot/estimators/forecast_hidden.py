"""What a hidden training will cost, and what it will open.

The shape of the trees comes from trials of the open training with the same limits: both grow the same forest. Bytes
follow from it (docs/decisions/0022-hidden-training.md): every row of a node that is searched travels as a record for
each column that is tried, and once more, whole, where the node is split. A record is sent four times: twice between the
servers, and twice by the dealer. Seconds for each byte are measured by two small hidden trainings on this machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from sklearn.base import clone

from woodlot.estimators.forecast_parts import (
    DEALER,
    DataShape,
    Forecast,
    Network,
    Profile,
    candidates,
    drawn_rows,
    fit_trial,
    priced,
    quickest,
)
from woodlot.exceptions import DataError
from woodlot.protocols.core.forest_plan import DEFAULT_MEMORY, HIDDEN_BINS, HIDDEN_MIN_LEAF
from woodlot.protocols.hidden.hidden_train import BATCH_BYTES, RECORDS_AT_ONCE
from woodlot.protocols.hidden.shared_rows import CodeSizes, RecordLayout, code_bits
from woodlot.trees.coarsening import cell_for, shifts, value_cells

SHAPE_ROWS, SHAPE_TREES = (8_000, 32_000), 6
"""Open trials, which tell the shape of the trees."""
TIMED = ((2_000, 2), (8_000, 4))
"""Rows and trees of the hidden trials, which tell seconds."""
HEADER = 90
"""Bytes of a message besides its arrays, on average."""


def forecast_hidden(estimator: Any, shape: DataShape, network: Network) -> Forecast:
    """What fitting with ``protection="hidden"`` will cost in one process; parameters as for `forecast`.

    The first party leads, so that its own messages are not sent; the second is the second server.
    """
    if len(shape.columns) < 2:
        raise DataError("protection='hidden' needs two parties: name the second server with --columns")
    limited = clone(estimator).set_params(min_cell=_cell(estimator, shape.rows))
    opened = clone(limited).set_params(
        protection="open",
        max_bins=limited.max_bins or HIDDEN_BINS,
        min_samples_leaf=_leaf(limited, shape.rows),
        oob_score=False,
    )
    trees = int(estimator.n_estimators)
    sizes = [(min(shape.rows, rows), min(trees, SHAPE_TREES)) for rows in SHAPE_ROWS]
    small, large = (Profile.of(fit_trial(opened, shape, *size), size[0]) for size in sizes)
    bill = HiddenBill.of(limited, shape, Profile.carried(small, large, shape.rows, estimator.max_depth), trees)
    timed = [(min(shape.rows, rows), min(trees, n)) for rows, n in TIMED]
    models = quickest(limited, shape, timed)
    seconds = _seconds(bill, limited, shape, [(model, *size) for model, size in zip(models, timed, strict=True)])
    by_party = bill.bytes_by_party
    return Forecast(
        rounds=bill.rounds,
        bytes_by_party=by_party,
        memory_by_party=bill.memory_by_party,
        compute_seconds=seconds,
        network_seconds=network.seconds(bill.rounds, max(by_party.values())),
        details={"splits": bill.splits, "depth": float(bill.depth), "counts": bill.counts},
        opened=bill.opened,
    )


def _cell(estimator: Any, n_rows: int) -> int:
    """``min_cell`` of the planned training; a trial has fewer rows, and the same cells."""
    given = estimator.min_cell
    return cell_for(n_rows) if given is None or given == "auto" else int(given)


def _leaf(estimator: Any, n_rows: int) -> int:
    leaf = estimator.min_samples_leaf
    return max(HIDDEN_MIN_LEAF, leaf if isinstance(leaf, int) else ceil(leaf * n_rows))


@dataclass(frozen=True, eq=False)
class HiddenBill:
    """Rounds, bytes and opened counts of a hidden training whose trees have some shape.

    Attributes
    ----------
    rounds, depth : int
        Rounds of all batches; levels of a tree.
    splits, counts : float
        Splits of all trees; cells that are opened, of all nodes and columns tried.
    sent : float
        Bytes of records of all links.
    bytes_by_party, memory_by_party : dict of str to int
        Both ways together; the label holder leads and has no link to itself. At the peak of the training.
    opened : dict of str to str
        What each role is told, in words.

    """

    rounds: int
    depth: int
    splits: float
    counts: float
    sent: float
    bytes_by_party: dict[str, int]
    memory_by_party: dict[str, int]
    opened: dict[str, str]

    @classmethod
    def of(cls, estimator: Any, shape: DataShape, profile: Profile, trees: int) -> HiddenBill:
        n, columns = shape.rows, np.array(list(shape.columns.values()))
        levels = int((profile.splits * trees >= 0.5).sum())  # a level on which one split is expected in two forests
        f, bins = int(columns.sum()), int(estimator.max_bins or HIDDEN_BINS)
        tried = max(1, min(f, int(candidates(estimator.max_features, f))))
        whole_tree = estimator.feature_sampling == "tree"
        codes = np.full(f, min(bins, n), np.int64)
        layout = RecordLayout(
            n_classes=shape.classes,
            width=n.bit_length(),
            bits=code_bits(CodeSizes(codes, np.zeros(f, np.uint8))),
            n_columns=tried if whole_tree else f,
        )
        pair, row = (int(layout.of_records(whole_rows=whole)[1].sum()) for whole in (False, True))
        # rows of searched nodes, and of those whose children are searched again
        searched = profile.share[:levels] * n * trees
        searched_pairs, divided_rows = float(searched.sum()) * tried, float(searched[:-1].sum())
        memory = min(int(estimator.memory_limit or DEFAULT_MEMORY), BATCH_BYTES)
        of_tree = 3 * 8 * n * max(layout.n_words, layout.dealt_fields)
        together = max(1, min(trees, memory // of_tree))
        batches = ceil(trees / together)
        chunks = sum(ceil(together / trees * rows * tried / RECORDS_AT_ONCE) for rows in searched.tolist())
        rounds = 4 + batches * (1 + 3 * chunks + 2 * max(0, levels - 1))
        size = profile.share * drawn_rows(estimator, n) / np.maximum(profile.splits, 1e-9)
        all_bins, no_missing = np.full(len(size), bins, np.int64), np.zeros(len(size), np.uint8)
        cells = value_cells(all_bins, shifts(size.astype(np.int64), all_bins, no_missing, _cell(estimator, n)))
        counts = float((profile.splits * cells).sum()) * tried * trees
        splits = float(profile.splits.sum()) * trees
        holder, server, *rest = shape.columns
        sums = counts * int(layout.used[: layout.pair_words].sum())
        draws = 8.0 * layout.dealt_fields * n * trees if estimator.bootstrap else 0.0
        to_server = searched_pairs * (2 * pair + 2) + divided_rows * (2 * row + 1 + 1 / 8) + sums
        from_dealer = searched_pairs * 2 * pair + divided_rows * 2 * row + draws
        nodes = 2 * splits + trees
        label_bytes = 8 if shape.classes == 0 else 1
        by_party = {server: int(to_server + n * label_bytes + HEADER * 2 * rounds)}
        by_party |= dict.fromkeys(rest, 0)
        for party in (server, *rest):
            own = shape.columns[party]
            by_party[party] += int(n * own + 4 * nodes + 10 * splits * own / f + 6 * HEADER)
        by_party[DEALER] = int(from_dealer + HEADER * rounds)
        kept = of_tree * together + n * f
        return cls(
            rounds,
            levels,
            splits,
            counts,
            to_server + from_dealer,
            by_party,
            {p: int(kept if p in (holder, server) else n * shape.columns[p]) for p in shape.columns},
            _opened(holder, server, rest, counts, _cell(estimator, n)),
        )


def _opened(holder: str, server: str, rest: list[str], counts: float, cell: int) -> dict[str, str]:
    cells = f"about {_rounded(counts):,} counts of rows by cell of a column"
    fine = f"cells of {cell} rows or more on average" if cell else "cells as fine as bins"
    told = {
        holder: f"{cells} and node, with sums of labels; {fine}",
        server: f"{cells} and node; {fine}",
        DEALER: "lengths: rows, columns, classes, node sizes",
    }
    return told | dict.fromkeys(rest, "its own splits, and the shape of the trees")


def _rounded(number: float) -> int:
    """Two digits."""
    digits = max(0, len(str(int(number))) - 2)
    return int(round(number, -digits))


def _seconds(bill: HiddenBill, estimator: Any, shape: DataShape, trials: list[tuple[Any, int, int]]) -> float:
    """Seconds of the planned work, at the price for each byte and each round that the trials have paid."""
    work, paid = [], []
    for model, rows, trees in trials:
        small = DataShape(rows, shape.columns, shape.classes, shape.noise)
        tried = HiddenBill.of(estimator, small, Profile.of(model, rows), trees)
        work.append([tried.sent, tried.rounds])
        paid.append(model.cost_.total_seconds)
    return priced(work, paid, [bill.sent, bill.rounds])
