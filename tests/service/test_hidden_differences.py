"""Hidden trainings on nearly the same rows: the difference of their counts reads a row, so parties refuse the second.

The label holder leaves out one of its ids. Every count that is opened is exact, also where rows are drawn, so the cell
of the missing row is where one row less is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hidden_bench import HIDDEN_PLAN, THIRD, HiddenBench, hidden_order, relay_hidden, stored_order
from led_bench import LEADER, OTHER

import woodlot as wl
from woodlot.exceptions import PolicyError
from woodlot.jobs.hidden.ordered_hidden import opening_of
from woodlot.jobs.led import led_messages as led
from woodlot.jobs.orders import TrainOrder
from woodlot.leaks.case import Tape
from woodlot.leaks.hidden_view import opened_trees
from woodlot.runtime.codec import decode, encode

ROWS = 388
"""The common rows of the three companies."""
PEOPLE, READ = 300, (5, 6, 7)


def root_counts(part: wl.Federation, server: str) -> dict[int, tuple[np.ndarray, int]]:
    """What the first root shows of the server's columns: counts by cell, and how coarse cells are."""
    tape = Tape()
    part.observer = tape.record
    wl.FederatedForestClassifier(1, max_depth=1, max_features=None, protection="hidden", random_state=0).fit(
        part, "bank.late"
    )
    trees, found = opened_trees(tape.messages, server), {}
    for node, column, start, shift in zip(
        trees.pair_node, trees.pair_column, trees.pair_start, trees.pair_shift, strict=True
    ):
        if node == trees.roots[0] and column in trees.of_party(server):
            found[int(column)] = trees.counts[start : start + trees.n_codes[column] + 1], int(shift)
    return found


def test_the_difference_of_two_trainings_reads_the_cells_of_a_row() -> None:
    """In one process nobody keeps a record, so the attack works there; rows are drawn, and that hides nothing."""
    rng = np.random.default_rng(1)
    income, visits = rng.normal(size=PEOPLE), rng.integers(0, 12, PEOPLE)
    late = np.where(income + visits / 8 + rng.normal(size=PEOPLE) > 0.7, "yes", "no")
    bank = pd.DataFrame({"id": range(PEOPLE), "income": income, "late": late})
    fed = wl.Federation.local({"bank": bank, "shop": pd.DataFrame({"id": range(PEOPLE), "visits": visits})}, id="id")
    (whole,) = root_counts(fed[np.arange(PEOPLE)], "shop").values()
    for row in READ:
        ((counts, shift),) = root_counts(fed[np.delete(np.arange(PEOPLE), row)], "shop").values()
        lost = whole[0] - counts
        assert (np.abs(lost).sum(), whole[1]) == (1.0, shift)
        assert np.argmax(lost) == visits[row] >> shift


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[HiddenBench]:
    with closing(HiddenBench(tmp_path)) as made:
        relay_hidden(made, hidden_order(made))
        yield made


def take_out_one(bench: HiddenBench, party: str) -> None:
    """A row that all have leaves the table of one party."""
    ids = {p: set(pq.read_table(path_of(bench, p))["id"].to_pylist()) for p in (LEADER, OTHER, THIRD)}
    row, path = min(set.intersection(*ids.values())), path_of(bench, party)
    table = pq.read_table(path)
    pq.write_table(table.filter(pa.array([one != row for one in table["id"].to_pylist()])), path)


def path_of(bench: HiddenBench, party: str) -> Path:
    return bench.world.root / party / "customers.parquet"


def opened(bench: HiddenBench, order: TrainOrder) -> dict[str, Any]:
    """What each party does for an order when the rows are aligned."""
    jobs = {p: bench.job(p, order.job) for p in order.parties}
    protocol = bench.host.protocol(stored_order(bench, order))
    step = next(protocol)
    while not any(isinstance(m, led.LeadJob) for m in step.requests.values()):
        step = protocol.send({p: decode(encode(jobs[p].handle(m))) for p, m in step.requests.items()})
    return {party: job._work for party, job in jobs.items()}


def test_a_party_refuses_a_training_on_all_but_one_of_the_rows(bench: HiddenBench) -> None:
    take_out_one(bench, LEADER)
    order = hidden_order(bench)
    works = opened(bench, order)
    for party in (OTHER, THIRD):
        with pytest.raises(PolicyError, match=r"counts of fewer than 20 rows by the difference \(min_difference"):
            works[party].handle(opening_of(order, ROWS - 1))
    bench.change_policy(OTHER, min_difference=1)  # its owner may say that it does not mind
    again = hidden_order(bench)
    opened(bench, again)[OTHER].handle(opening_of(again, ROWS - 1))


def test_the_label_holder_refuses_it_too_for_its_own_columns(bench: HiddenBench) -> None:
    take_out_one(bench, OTHER)
    with pytest.raises(PolicyError, match="fewer than 20 rows by the difference"):
        opened(bench, hidden_order(bench))[LEADER].hidden_leader()


def test_the_same_rows_may_be_trained_on_again(bench: HiddenBench) -> None:
    """With another forest; what was recorded for the first one stays as it is."""
    plan = HIDDEN_PLAN
    order = hidden_order(bench, plan=plan)
    works = opened(bench, order)
    works[LEADER].hidden_leader()
    for party in (OTHER, THIRD):
        works[party].handle(opening_of(order, ROWS))
