"""Parties' jobs without a network: whole jobs are played by hand, through the codec, and recorded."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from processes import small_tables
from small_jobs import PARTIES, PLAN
from world import World

from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.protocols.messages import jobs as msg
from woodlot.protocols.messages.base import Message
from woodlot.protocols.vertical.model import CoordinatorForest
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.till import Till
from woodlot.service.coordinator_jobs import align_job, predict_job, train_job
from woodlot.service.coordinator_rows import train_rows_job
from woodlot.service.identity import Identity, Trust
from woodlot.service.order_seal import common_fields, sign_order
from woodlot.service.orders import AlignOrder, AnyOrder, Part, PredictOrder, TrainOrder, TrainRowsOrder
from woodlot.service.party_home import PartyHome
from woodlot.service.party_jobs import PartyJob
from woodlot.service.party_store import PartyStore

REFUSALS = (DataError, PolicyError, RemoteProtocolError)
PRIVATE = re.compile(r"\b(customers|age|income|late|visits|basket|70\d\d\d|parquet)\b")


class Bench:
    """The homes of two parties and a user's identity, without any connection."""

    def __init__(self, root: Path, tables: dict[str, dict[str, pa.Table]] | None = None) -> None:
        self.world = World(root, small_tables() if tables is None else tables)
        self.users = {name: Identity.load(root / name / "identity") for name in ("alice", "bob")}
        self.ended: list[str] = []
        self.homes = {party: self._home(party) for party in PARTIES}

    def _home(self, party: str) -> PartyHome:
        config = self.world.party_config(party)
        identity = Identity.load(config.identity)
        return PartyHome(
            identity=identity,
            trust=Trust(identity.authority, None),
            tables=config.tables,
            policy=config.policy,
            store=PartyStore(config.state, party, config.policy.predictions_per_day),
            shared_secret=None,
            end_job=self.ended.append,
            till=lambda job: Till(None),
            n_jobs=1,
            privacy=config.privacy,
        )

    def close(self) -> None:
        for home in self.homes.values():
            home.store.close()

    def change_policy(self, party: str, **changes: Any) -> None:
        policy = msgspec.structs.replace(self.homes[party].policy, **changes)
        self.homes[party].store.close()
        store = PartyStore(self.homes[party].store.folder, party, policy.predictions_per_day)
        self.homes[party] = replace(self.homes[party], policy=policy, store=store)

    def fields(self, **parts: Part) -> dict[str, Any]:
        parts = {"bank": Part(table="customers", label="late"), "shop": Part(table="customers")} | parts
        return common_fields(parts, {p: self.homes[p].identity.certificate for p in parts})

    def opening(self, order: AnyOrder, user: str = "alice") -> msg.OpenJob:
        data, signature = sign_order(order, self.users[user])
        return msg.OpenJob(order=data, signature=signature, certificate=self.users[user].certificate)

    def job(self, party: str, name: str) -> PartyJob:
        return PartyJob(self.homes[party], name)


@dataclass
class Play:
    """What each party was asked in a job, what it answered, and what came of it."""

    job: str
    outcome: Any = None
    asked: dict[str, list[bytes]] = field(default_factory=lambda: {p: [] for p in PARTIES})
    answered: dict[str, list[bytes]] = field(default_factory=lambda: {p: [] for p in PARTIES})


def play(bench: Bench, order: AnyOrder, forest: CoordinatorForest | None = None, user: str = "alice") -> Play:
    """Run a whole job by hand, through the codec."""
    record = Play(order.job)
    jobs = {p: bench.job(p, order.job) for p in PARTIES}
    opening = bench.opening(order, user)
    protocol: Generator[Any, Any, Any]
    if isinstance(order, TrainOrder):
        protocol = train_job(order, opening, 1)
    elif isinstance(order, TrainRowsOrder):
        protocol = train_rows_job(order, opening)
    elif isinstance(order, PredictOrder):
        assert forest is not None
        protocol = predict_job(order, opening, forest, 1)
    else:
        protocol = align_job(order, opening)
    replies: dict[str, Message] | None = None
    while True:
        try:
            step = next(protocol) if replies is None else protocol.send(replies)
        except StopIteration as end:
            record.outcome = end.value
            return record
        replies = {}
        for party, message in step.requests.items():
            asked = encode(message)
            answer = encode(jobs[party].handle(decode(asked)))
            record.asked[party].append(asked)
            record.answered[party].append(answer)
            replies[party] = decode(answer)


class Recorded:
    """One bench, jobs of every kind that were run on it, and all that was said in them."""

    def __init__(self, root: Path) -> None:
        bench = self.bench = Bench(root)
        trained = play(bench, TrainOrder(**bench.fields(), holder="bank", plan=PLAN, settings="{}"))
        aligned = play(bench, AlignOrder(**bench.fields(), method="psi"))
        forest = trained.outcome.forest
        on_aligned = bench.fields() | {"model": trained.job, "alignment": aligned.job}
        on_aligned_anew = bench.fields() | {"model": trained.job, "alignment": aligned.job}
        delivering = PredictOrder(**bench.fields(), model=trained.job, score_at="bank", deliver_to="bank")
        self.plays = {
            "train": trained,
            "align": aligned,
            "predict": play(bench, delivering, forest),
            "classical": play(bench, PredictOrder(**on_aligned, how="classical"), forest),
            "sealed": play(bench, PredictOrder(**on_aligned_anew, how="sealed"), forest),
        }
        said = {data for p in self.plays.values() for asked in p.asked.values() for data in asked}
        self.said = [decode(data) for data in sorted(said)]


@contextmanager
def recorded_jobs(root: Path) -> Iterator[Recorded]:
    """Jobs of every kind, recorded on one bench."""
    made = Recorded(root)
    try:
        yield made
    finally:
        made.bench.close()
