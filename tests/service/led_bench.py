"""Jobs that a party leads, without a network: the coordinator is played by hand, and all that is said is recorded."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from party_bench import Bench, Play, Recorded, number_id
from processes import FIRST_ID
from small_jobs import PARTIES, PLAN

from woodlot.jobs.drift.drift_orders import DriftOrder
from woodlot.jobs.evaluate.report_seal import new_report_key
from woodlot.jobs.explain.explain_orders import ExplainOrder
from woodlot.jobs.forget.forget_orders import ForgetOrder
from woodlot.jobs.hosting import JobHost, new_facts
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.led.led_scores import RelayScorer
from woodlot.jobs.led.relay_jobs import relay_job
from woodlot.jobs.orders import Order, Part, PredictOrder, ScoreOrder, TrainOrder
from woodlot.jobs.party_job import PartyJob
from woodlot.jobs.scores.score_seal import IdSeal, new_key
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.vertical.score_messages import AskScore
from woodlot.runtime.codec import decode, encode

LEADER, OTHER = PARTIES
RELAY = bytes(range(32))
KEY = bytes(32)


class LedBench(Bench):
    """A bench whose parties can lead."""

    def __init__(self, root: Path, tables: dict[str, dict[str, pa.Table]] | None = None) -> None:
        super().__init__(root, tables)
        self.homes |= {party: self._home(party) for party in tables or () if party not in self.homes}
        self.led = {party: JobStore(root / party / "led") for party in self.homes}
        for party, home in self.homes.items():
            self.homes[party] = replace(home, lead=JobHost(home.identity, home.trust, self.led[party], 1))
            kinds = ("align", "train", "predict", "revoke", "score", "explain", "drift", "forget")
            self.change_policy(party, protocols=kinds, explains="values")

    def fields_of(self, parts: Mapping[str, Part]) -> dict[str, Any]:
        """With the secret that the parties of a led job have from its user."""
        return super().fields_of({p: msgspec.structs.replace(part, relay=RELAY) for p, part in parts.items()})

    def job(self, party: str, name: str) -> PartyJob:
        """A party's job, new or made again after a restart in the middle of it."""
        stored = self.led[party].job(name)
        if stored is not None:
            self.led[party].update(msgspec.structs.replace(stored.facts, state="running"))
        return self.ended_job(party, name)

    def ended_job(self, party: str, name: str) -> PartyJob:
        """A party's job as it is made after a restart, whatever the leader has kept of it."""
        return PartyJob(self.homes[party], name)

    def close(self) -> None:
        for store in self.led.values():
            store.close()
        super().close()


def order_of(bench: Bench, **parts: Part) -> TrainOrder:
    """An order to grow the small forest, led by the bank."""
    return TrainOrder(**bench.fields(**parts), holder=LEADER, plan=PLAN, settings="{}", led_by=LEADER)


def relay(bench: Bench, order: Order) -> Play:
    """Play the coordinator by hand, through the codec."""
    record = Play(order.job)
    jobs = {p: bench.job(p, order.job) for p in order.parties}
    opening = bench.opening(order)
    if bench.coordinator.job(order.job) is None:
        bench.coordinator.add(opening.order, opening.signature, opening.certificate, new_facts(order, "alice"))
    record.outcome = carry(record, jobs, relay_job(order, opening))
    return record


def carry(record: Play, jobs: Mapping[str, PartyJob], protocol: Generator[Round, dict[str, Message], Any]) -> Any:
    """Carry the rounds of a protocol to the parties, and record what is said; returns its outcome."""
    step = next(protocol)
    while True:
        replies: dict[str, Message] = {}
        for party, message in step.requests.items():
            record.asked[party].append(encode(message))
            record.answered[party].append(encode(jobs[party].handle(decode(record.asked[party][-1]))))
            replies[party] = decode(record.answered[party][-1])
        try:
            step = protocol.send(replies)
        except StopIteration as end:
            return end.value


def score_order(bench: Bench, model: str) -> tuple[ScoreOrder, dict[str, bytes]]:
    """An order to open a scoring, and the user's keys for the parties."""
    keys = {party: new_key() for party in PARTIES}
    fields = bench.fields_of({p: Part(table="customers", key=key) for p, key in keys.items()})
    return ScoreOrder(**fields, model=model, led_by=LEADER), keys


def score_request(order: ScoreOrder, keys: Mapping[str, bytes], number: int) -> AskScore:
    """A request of five rows."""
    ids = [number_id(FIRST_ID + k) for k in range(5)]
    sealed = {p: IdSeal(key, order.job, p).seal(number, ids) for p, key in keys.items()}
    return AskScore(job=order.job, number=number, n_rows=len(ids), sealed=sealed)


def forget_order(bench: LedBench, model: str, ids: Sequence[int] = (FIRST_ID + 4, 1), **parts: Part) -> ForgetOrder:
    """An order to forget a row, by its id, and an id of none."""
    named: dict[str, Any] = {"table": "customers", "ids": tuple(map(number_id, ids)), "key": KEY}
    own = {LEADER: Part(label="late", **named), OTHER: Part(**named)} | parts
    return ForgetOrder(**bench.fields_of(own), model=model, alignment=model, led_by=LEADER)


@contextmanager
def recorded_led(root: Path) -> Iterator[Recorded]:
    """A forest that the bank leads, a prediction with it, rows that are scored by their ids, and what follows."""
    with closing(LedBench(root)) as bench:
        trained = relay(bench, order_of(bench))
        predicting = PredictOrder(
            **bench.fields(), model=trained.job, score_at=LEADER, deliver_to=LEADER, led_by=LEADER
        )
        order, keys = score_order(bench, trained.job)
        scored = relay(bench, order)
        assert isinstance(scored.outcome, RelayScorer)
        jobs = {p: bench.job(p, order.job) for p in PARTIES}
        for party, job in jobs.items():
            for data in scored.asked[party]:
                job.handle(decode(data))
        carry(scored, jobs, scored.outcome.score(1, [score_request(order, keys, 1)]))
        explaining = ExplainOrder(
            **bench.fields(**{LEADER: Part(table="customers", key=new_report_key())}), model=trained.job, led_by=LEADER
        )
        keys = {party: Part(table="customers", key=new_report_key()) for party in PARTIES}
        comparing = DriftOrder(**bench.fields(**keys), model=trained.job, led_by=LEADER)
        plays = {"led train": trained, "led predict": relay(bench, predicting), "led score": scored}
        plays |= {"explain": relay(bench, explaining), "drift": relay(bench, comparing)}
        other = relay(bench, order_of(bench))
        yield Recorded(bench, plays | {"forget": relay(bench, forget_order(bench, other.job))})
