"""Reports on nearly the same rows, through the parties' own code: what a user and a party that knows the key can read.

The shop knows the points of its ids. It chooses parts that differ in one row, the user orders reports on them, and the
difference is the label of that row. Where the bank asks for many rows, its reports differ in none or many.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from party_bench import Bench, play, train_order
from processes import small_tables
from small_jobs import PARTIES

from woodlot.data.ids import canonical_ids
from woodlot.data.row_rules import CIRCLE, row_points
from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.jobs.evaluate.evaluate_messages import RateAnswers
from woodlot.jobs.evaluate.report_seal import ReportSeal, new_report_key
from woodlot.jobs.orders import AlignOrder, BootstrapPlan, EvaluateOrder, Part, PredictOrder, RowSubset
from woodlot.jobs.party_store import read_alignment
from woodlot.metrics.class_numbers import ClassNumbers
from woodlot.metrics.resampling import Resampling
from woodlot.metrics.summaries import Summary, summarise
from woodlot.runtime.codec import decode

LEAST = 15
"""Of about 55 common rows."""
READ = 6
"""Rows that the attackers are after."""
ONE_CELL = 2 * LEAST - 1
"""Rows of which no two cells can be made."""


class Attackers:
    """A user, and the shop, which knows the points of the common rows."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.model = play(bench, train_order(bench)).job
        self.align()

    def align(self) -> None:
        """Find the common rows, and their points."""
        self.alignment = play(self.bench, AlignOrder(**self.bench.fields(), method="psi")).job
        facts, rows = read_alignment(self.bench.homes["shop"].store.folder, self.alignment)
        ids = self.bench.homes["shop"].tables["customers"].read(None).ids
        self.ids = np.array(ids.to_pylist())[rows]
        key = bytes.fromhex(facts.row_key)
        self.points = row_points(canonical_ids(pa.array(self.ids)).values, 0, key)

    def take_out(self, party: str, row: int) -> None:
        """A row leaves the table of a party; the common rows are found again."""
        path = self.bench.world.root / party / "customers.parquet"
        table = pq.read_table(path)
        pq.write_table(table.filter(pa.array(np.array(table["id"].to_pylist()) != row)), path)
        before = len(self.ids)
        self.align()
        assert len(self.ids) == before - 1

    @property
    def by_point(self) -> NDArray[Any]:
        """The ids in the order of their points."""
        return self.ids[np.argsort(self.points)]

    def first(self, n: int) -> tuple[RowSubset, ...]:
        """The rule that selects so many rows."""
        return (RowSubset(0, 0, int(np.sort(self.points)[n]) % CIRCLE),) if n < len(self.points) else ()

    def order(self, subset: tuple[RowSubset, ...], **options: Any) -> tuple[EvaluateOrder, bytes]:
        key = new_report_key()
        parts = {"bank": Part(table="customers", label="late", key=key), "shop": Part(table="customers")}
        about = {"model": self.model, "alignment": self.alignment, "score_at": "bank"}
        rules = {"subset": subset} if subset else {}
        return EvaluateOrder(**self.bench.fields(**parts), **about, **rules, **options), key

    def report(self, subset: tuple[RowSubset, ...], **options: Any) -> Summary:
        order, key = self.order(subset, **options)
        sealed = play(self.bench, order).outcome.report
        return ReportSeal(key, order.job, "bank").open(sealed, Summary)

    def score(self, subset: tuple[RowSubset, ...]) -> float:
        """The accuracy of a prediction: no evaluation is ordered."""
        about = {"model": self.model, "alignment": self.alignment, "score_at": "bank", "give_answers": False}
        order = PredictOrder(**self.bench.fields(), **about, **({"subset": subset} if subset else {}))
        return float(play(self.bench, order).outcome.score)


@pytest.fixture
def attackers(tmp_path: Path) -> Iterator[Attackers]:
    with closing(Bench(tmp_path)) as bench:
        for party in PARTIES:
            bench.change_policy(party, protocols=("align", "train", "predict", "evaluate"))
        yield Attackers(bench)


def truth() -> dict[int, str]:
    bank = small_tables()["bank"]["customers"]
    return dict(zip(bank["id"].to_pylist(), bank["late"].to_pylist(), strict=True))


def test_differences_tell_single_labels_where_the_bank_asks_for_no_rows(attackers: Attackers) -> None:
    reports = [attackers.report(attackers.first(2 * LEAST + k)) for k in range(READ + 1)]
    positives = [sum(report.confusion[1]) for report in reports]
    read = ["yes" if more else "no" for more in np.diff(positives)]
    assert read == [truth()[row] for row in attackers.by_point[2 * LEAST : 2 * LEAST + READ].tolist()]


def test_differences_tell_nothing_where_the_bank_asks_for_rows(attackers: Attackers) -> None:
    attackers.bench.change_policy("bank", min_evaluation_rows=LEAST)
    first = attackers.report(attackers.first(ONE_CELL))
    for k in range(1, READ):
        assert attackers.report(attackers.first(ONE_CELL + k)) == first  # a few rows more are left out
        order, _ = attackers.order(attackers.first(ONE_CELL - k))
        with pytest.raises(PolicyError, match=f"fewer than {LEAST} rows by the difference"):
            attackers.bench.job("bank", order.job).handle(attackers.bench.opening(order))  # before anybody is asked
    (rule,) = attackers.first(ONE_CELL)
    rest = RowSubset(0, rule.stop, 0)
    others = [attackers.report(part) for part in ((rest,), (), attackers.first(ONE_CELL))]
    assert [report.n_rows for report in others] == [len(attackers.ids) - ONE_CELL, len(attackers.ids), ONE_CELL]
    assert others[2] == first


@pytest.mark.slow
def test_a_score_of_a_prediction_is_a_report_too(attackers: Attackers) -> None:
    right = [attackers.score(attackers.first(ONE_CELL + k)) * (ONE_CELL + k) for k in range(3)]
    assert set(np.diff(np.round(right))) <= {0.0, 1.0}  # each tells whether one row is predicted right
    attackers.bench.change_policy("bank", min_evaluation_rows=LEAST, evaluations_per_day=6)
    assert attackers.score(attackers.first(ONE_CELL + 5)) * (ONE_CELL + 2) == pytest.approx(right[2])
    with pytest.raises(PolicyError, match=f"fewer than {LEAST} rows by the difference"):
        attackers.score(attackers.first(ONE_CELL - 1))
    with pytest.raises(PolicyError, match=f"must be of {LEAST} rows or more"):
        attackers.score(attackers.first(LEAST - 1))
    for k in range(2):
        attackers.score(attackers.first(ONE_CELL + k))
    with pytest.raises(PolicyError, match="evaluated with 6 times per day"):
        attackers.report(attackers.first(ONE_CELL))


@pytest.mark.slow
@pytest.mark.parametrize("party", PARTIES)
def test_a_table_that_loses_rows_one_by_one_tells_nothing_of_them(attackers: Attackers, party: str) -> None:
    """The bank deletes a customer, or the shop leaves out one of its ids: reports before and after are subtracted."""
    attackers.bench.change_policy("bank", min_evaluation_rows=LEAST)
    reports = [attackers.report(())]
    for k in range(READ):
        attackers.take_out(party, attackers.ids[0])
        try:
            reports.append(attackers.report(()))
        except PolicyError:  # too many have left by then
            assert k > 0
            break
    rows = [report.n_rows for report in reports]
    assert rows[:2] == [rows[0], rows[0] - LEAST]
    assert all(gone == 0 or gone >= LEAST for gone in -np.diff(rows))
    for one, other in pairwise(reports):
        assert one.n_rows > other.n_rows or one.confusion == other.confusion


def test_labels_of_rows_that_leave_are_told_where_the_bank_asks_for_no_rows(attackers: Attackers) -> None:
    """The same attack, against a bank that lets reports differ in one row: it reads each label."""
    positives, gone = [sum(attackers.report(()).confusion[1])], []
    for _ in range(3):
        gone.append(int(attackers.ids[0]))
        attackers.take_out("bank", gone[-1])
        positives.append(sum(attackers.report(()).confusion[1]))
    assert ["yes" if fewer else "no" for fewer in -np.diff(positives)] == [truth()[row] for row in gone]


@pytest.mark.slow
def test_bootstrap_samples_are_not_those_of_the_users_seed(attackers: Attackers) -> None:
    order, key = attackers.order((), bootstrap=BootstrapPlan(50, 0.95, 7))
    played = play(attackers.bench, order)
    told = ReportSeal(key, order.job, "bank").open(played.outcome.report, Summary)
    asked = [decode(data) for data in played.asked["bank"]]
    (rate,) = [message for message in asked if isinstance(message, RateAnswers)]
    labels = np.array([truth()[row] for row in attackers.ids.tolist()], object)
    rows = ClassNumbers(labels, rate.outputs, np.array(rate.classes, object))
    guess = summarise(rows, Resampling(50, 0.95, 7), None)
    assert guess.metrics == told.metrics
    assert guess.intervals["log_loss"] != told.intervals["log_loss"]
    again = attackers.report((), bootstrap=BootstrapPlan(50, 0.95, 7))
    assert again.intervals == told.intervals  # asked again, it tells nothing new


@pytest.mark.parametrize("huge", [1e150, -0.5])
def test_answers_that_are_no_probabilities_are_refused(attackers: Attackers, huge: float) -> None:
    """Who runs the job could have one row outweigh all others, so that a rounded sum tells its label."""
    order, _ = attackers.order(())
    job = attackers.bench.job("bank", order.job)
    job.handle(attackers.bench.opening(order))
    outputs = np.tile([0.5, 0.5], (len(attackers.ids), 1))
    outputs[0] = huge, 1 - huge
    with pytest.raises(RemoteProtocolError, match="not probabilities"):
        job.handle(RateAnswers(outputs=outputs, classes=("no", "yes")))
