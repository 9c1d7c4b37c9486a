"""Hidden trainings without a network: the coordinator relays and deals, played by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from hidden_forests import hidden_companies
from led_bench import LEADER, OTHER, LedBench, carry
from party_bench import Play, Recorded
from small_jobs import PLAN

from woodlot.jobs.hosting import JobHost, new_facts
from woodlot.jobs.job_store import StoredJob
from woodlot.jobs.orders import Order, Part, RevokeOrder, TrainOrder
from woodlot.runtime.audit import Ledger

THIRD = "club"
HIDDEN_PLAN = replace(PLAN, protection="hidden", max_bins=16, min_cell=20, out_of_bag=None, n_estimators=3)


class HiddenBench(LedBench):
    """A bench of three parties, and of a coordinator that relays and deals."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, hidden_companies())
        for party in self.homes:  # a small table: what "auto" asks for leaves no levels to test
            self.change_policy(party, min_cell=HIDDEN_PLAN.min_cell)
        self.host = JobHost(self.identity, self.homes[LEADER].trust, self.coordinator, 1)


def hidden_order(bench: HiddenBench, **changes: Any) -> TrainOrder:
    """An order to grow a small forest hidden: the bank leads, the shop is the second server."""
    fields = bench.fields(**{THIRD: Part(table="customers")})
    order = TrainOrder(**fields, holder=LEADER, plan=HIDDEN_PLAN, settings="{}", led_by=LEADER, server=OTHER)
    return msgspec.structs.replace(order, **changes)


def relay_hidden(bench: HiddenBench, order: Order) -> Play:
    """Play the coordinator by hand, as relay and as dealer, through the codec."""
    record = Play(order.job)
    jobs = {p: bench.job(p, order.job) for p in order.parties}
    record.outcome = carry(record, jobs, bench.host.protocol(stored_order(bench, order)))
    return record


def stored_order(bench: HiddenBench, order: Order) -> StoredJob:
    """An order as the coordinator has recorded it."""
    opening = bench.opening(order)
    if bench.coordinator.job(order.job) is None:
        bench.coordinator.add(opening.order, opening.signature, opening.certificate, new_facts(order, "alice"))
    stored = bench.coordinator.job(order.job)
    assert stored is not None
    return stored


def without_columns(bench: HiddenBench, party: str) -> None:
    """Have a party offer nothing but its ids."""
    home = bench.homes[party]
    bench.homes[party] = replace(home, tables={name: replace(t, columns=()) for name, t in home.tables.items()})


def keep_hidden(bench: HiddenBench, order: Order, play: Play) -> None:
    """Record at the coordinator what has come of a job that was played by hand."""
    stored = stored_order(bench, order)
    fields = bench.host.keep(order, stored.facts, play.outcome, Ledger())
    bench.coordinator.update(msgspec.structs.replace(stored.facts, version=stored.facts.version + 1, **fields))


def leaving_order(bench: HiddenBench, model: str, leaver: str, **changes: Any) -> RevokeOrder:
    """An order by which the shop or the club leaves a hidden forest; the other one is the second server then."""
    stays = next(party for party in (OTHER, THIRD) if party != leaver)
    parts = {LEADER: Part(table="customers", label="late"), stays: Part(table="customers")}
    about: dict[str, Any] = {"model": model, "alignment": model, "leaver": leaver, "task": "classes", "level": 3}
    order = RevokeOrder(**bench.fields_of(parts), **about, led_by=LEADER, server=stays)
    return msgspec.structs.replace(order, **changes)


@contextmanager
def recorded_hidden(root: Path) -> Iterator[Recorded]:
    """A forest that was grown hidden, and one that a party leaves."""
    with closing(HiddenBench(root)) as bench:
        training = hidden_order(bench)
        trained = relay_hidden(bench, training)
        keep_hidden(bench, training, trained)
        left = relay_hidden(bench, leaving_order(bench, training.job, THIRD))
        yield Recorded(bench, {"hidden train": trained, "hidden leave": left})
