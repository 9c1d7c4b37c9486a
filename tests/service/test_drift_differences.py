"""Comparisons of parts that differ in one row: the difference of two indices tells where that row lies."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from led_bench import KEY, LEADER, OTHER, LedBench, order_of, relay
from party_bench import number_id, play
from processes import FIRST_ID, small_tables

from woodlot.data.row_rules import CIRCLE, row_points
from woodlot.data.tables import read_table
from woodlot.exceptions import PolicyError
from woodlot.jobs.drift.drift_orders import DriftOrder
from woodlot.jobs.drift.drift_references import ColumnsReference, DriftPage
from woodlot.jobs.evaluate.report_seal import ReportSeal
from woodlot.jobs.orders import AlignOrder, Part, RowSubset
from woodlot.jobs.party_store import read_alignment

ROWS, LEAST = 50, 30


def test_two_indices_tell_the_bin_of_the_row_that_only_one_has() -> None:
    """Who has the training's bins, as the user has of its own shares, tries each of them; here all are told apart."""
    rng = np.random.default_rng(3)
    old, new = rng.normal(size=400), rng.normal(0.5, 1, size=LEAST + 1)
    reference = ColumnsReference.of(read_table(pa.table({"x": old})))
    edges = np.quantile(old, np.linspace(0, 1, 11)[1:-1])
    before, after = (reference.indices(read_table(pa.table({"x": some})))["x"] for some in (new[:-1], new))
    assert before != after
    tried = [
        reference.indices(read_table(pa.table({"x": np.append(new[:-1], value)})))["x"]
        for value in (*(edges - 1e-3), edges[-1] + 1.0)
    ]
    assert tried[int(np.searchsorted(edges, new[-1]))] == after


def test_an_owner_leaves_out_the_row_or_refuses(tmp_path: Path) -> None:
    with closing(LedBench(tmp_path, small_tables(80))) as bench:
        model = relay(bench, order_of(bench)).job
        aligned = play(bench, AlignOrder(**bench.fields(), method="psi")).job
        facts, rows = read_alignment(bench.homes[OTHER].store.folder, aligned)
        ids = small_tables(80)[OTHER]["customers"]["id"].to_numpy()[rows]
        points = np.sort(row_points([number_id(int(one)) for one in ids], 0, bytes.fromhex(facts.row_key)))
        assert ids.min() >= FIRST_ID

        def told(n: int) -> int:
            keys = {party: Part(table="customers", key=KEY) for party in (LEADER, OTHER)}
            subset = (RowSubset(0, 0, int(points[n]) % CIRCLE),)
            about = {"model": model, "alignment": aligned, "subset": subset, "led_by": LEADER}
            order = DriftOrder(**bench.fields_of(keys), **about)
            relay(bench, order)
            kept = bench.led[LEADER].job(order.job)
            assert kept is not None
            page = bytes.fromhex(json.loads(kept.facts.told)["pages"][OTHER])
            return ReportSeal(KEY, order.job, OTHER).open(page, DriftPage).n_new

        assert told(ROWS) == ROWS
        assert told(ROWS + 1) == ROWS  # one row more is left out
        with pytest.raises(PolicyError, match=f"fewer than {LEAST} rows by the difference"):
            told(ROWS - 1)
