"""Prediction: rates and bytes of every wire form, local prediction against scikit-learn, one round against classical.

    python benchmarks/prediction.py [--rows 100000] [--trees 100] [--out FILE]

Rates are million row-trees per second and core (one thread, CPU time): all parties together, and the coordinator. The
scikit-learn forest is the exported twin, which gives the same numbers, so both walk the same trees.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping

import numpy as np
from sklearn.datasets import make_classification

import woodlot as wl
from woodlot.data.tables import Table, read_table
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.predict import predict_in_one_round, predict_node_by_node
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.collect import Collector
from woodlot.trees.wire import DecisionBits, PartyPredictor, RankCodes

LINK_SECONDS = 0.02
SLOW_LINK_ROWS = 1000
REQUIRED = {"depth 10": 2.0, "unlimited": 0.3}


class SlowLink(InProcessDriver):
    """The in-process driver with a round trip of 20 ms."""

    def ask(self, requests: Mapping[str, Message]) -> dict[str, Message]:
        time.sleep(LINK_SECONDS)
        return super().ask(requests)


def cpu(call: Callable[[], object]) -> float:
    call()
    start = time.process_time()
    call()
    return time.process_time() - start


def size_of(reply: object) -> int:
    if isinstance(reply, DecisionBits):
        return reply.stream.nbytes + reply.lengths.nbytes
    if isinstance(reply, RankCodes):
        return sum(codes.nbytes for codes in reply.codes)
    return reply.words.nbytes  # type: ignore[attr-defined]


def wire_forms(model: wl.FederatedForestClassifier, X: np.ndarray, rows: int) -> dict[str, tuple[float, float, float]]:
    """Per form: rate of all parties, rate of the coordinator, bytes per row."""
    forest = model.forest_.coordinator
    reference = model.predict_proba(X[:rows])
    table = read_table(X[:rows])
    columns = {p: [table.column(n).values for n in part.names] for p, part in model.forest_.parts.items()}
    predictors = {p: PartyPredictor(part.structure, part.splits) for p, part in model.forest_.parts.items()}
    collector = Collector(forest.structure, forest.owner, forest.leaves, len(forest.parties))
    work = rows * forest.structure.n_trees / 1e6
    result = {}
    for form in ("decisions", "leaves", "ranks"):
        replies = [predictors[p].answer(form, columns[p], rows) for p in forest.parties]
        known = [None] * len(replies)
        if not np.array_equal(collector.outputs(replies, known, rows)[0], reference):
            raise AssertionError(f"form {form} does not give the local prediction")
        parties = cpu(lambda form=form: [predictors[p].answer(form, columns[p], rows) for p in forest.parties])
        coordinator = cpu(lambda replies=replies, known=known: collector.outputs(replies, known, rows))
        result[form] = (work / parties, work / coordinator, sum(map(size_of, replies)) / rows)
    return result


def over_slow_link(model: wl.FederatedForestClassifier, X: np.ndarray) -> tuple[float, float]:
    """Seconds of one round and of the classical method for a thousand rows over a link of 20 ms."""
    forest, n_rows = model.forest_.coordinator, SLOW_LINK_ROWS
    table: Table = read_table(X[:n_rows])
    times = []
    for protocol in (
        predict_in_one_round(forest, forest.parties, n_rows, "decisions", "soft", 1),
        predict_node_by_node(forest, forest.parties, n_rows, "soft"),
    ):
        handlers = {p: VerticalParty(p, table, forest=part) for p, part in model.forest_.parts.items()}
        ledger = Ledger()
        with SlowLink(handlers, ledger=ledger) as driver:
            start = time.perf_counter()
            run(protocol, driver, ledger=ledger)
            times.append(time.perf_counter() - start)
    return times[0], times[1]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--trees", type=int, default=100)
    parser.add_argument("--out")
    arguments = parser.parse_args()
    X, y = make_classification(
        50_000 + arguments.rows,
        40,
        n_informative=15,
        n_redundant=5,
        flip_y=0.05,
        class_sep=0.8,
        random_state=0,
    )
    X = X.astype(np.float32)
    X, X_new, y = X[:50_000], X[50_000:], y[:50_000]
    lines = [
        "| forest | form | all parties | coordinator | bytes per row |",
        "|---|---|---|---|---|",
    ]
    notes, good = [], True
    for what, depth in (("depth 10", 10), ("unlimited", None)):
        local_done = False
        for parties in (2, 5):
            model = wl.FederatedForestClassifier(
                arguments.trees, parties=parties, max_depth=depth, random_state=0, n_jobs=2
            ).fit(X, y)
            rows = min(arguments.rows, 8192 if depth else 4096)
            forms = wire_forms(model, X_new, rows)
            for form, (party_rate, coordinator_rate, size) in forms.items():
                lines.append(
                    f"| {what}, {parties} parties | {form} | {party_rate:.1f} | {coordinator_rate:.1f} | {size:,.0f} |"
                )
            if parties == 2:
                decisions, leaves = forms["decisions"], forms["leaves"]
                good &= min(decisions[0], decisions[1]) >= REQUIRED[what] and decisions[2] * 10 <= leaves[2]
            if local_done:
                continue
            local_done = True
            twin = model.combine().to_sklearn()
            twin.n_jobs = 1
            model.n_jobs = 1
            ours = cpu(lambda model=model: model.combine().outputs(X_new))
            theirs = cpu(lambda twin=twin: twin.predict_proba(X_new))
            work = arguments.rows * arguments.trees / 1e6
            one_round, classical = over_slow_link(model, X_new)
            notes.append(
                f"{what}, {arguments.rows:,} rows, one thread: local prediction of the combined model "
                f"{work / ours:.1f}, "
                f"scikit-learn {work / theirs:.1f} million row-trees per second ({theirs / ours:.1f} times as fast). "
                f"{SLOW_LINK_ROWS} rows over a link of 20 ms: one round {one_round:.2f} s, classical {classical:.2f} s "
                f"({classical / one_round:.0f} times as long)."
            )
            good &= ours <= theirs
    text = "\n".join([*lines, "", *notes])
    print(text)
    if arguments.out:
        with open(arguments.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
