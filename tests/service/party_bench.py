"""Parties' jobs without a network: whole jobs are played by hand, through the codec, and recorded."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from hospitals import LABEL, ROW_POLICY, TABLE, patients
from processes import small_tables
from small_jobs import PARTIES, PLAN
from world import World

from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.identity.certificates import REVOKED
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs import job_messages as msg
from woodlot.jobs import policy
from woodlot.jobs.catalog.catalog_jobs import CatalogOrder
from woodlot.jobs.delete.delete_jobs import DeleteOrder
from woodlot.jobs.evaluate.report_seal import new_report_key
from woodlot.jobs.forget.forget_orders import ForgetRowsOrder
from woodlot.jobs.home import PartyHome
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.kind import CoordinatorHost, Kept, kind_of, known
from woodlot.jobs.linear.linear_orders import EvaluateLinearOrder, PredictLinearOrder, TrainLinearOrder
from woodlot.jobs.order_seal import common_fields, pass_on, sign_order
from woodlot.jobs.orders import (
    AlignOrder,
    EvaluateOrder,
    Order,
    Part,
    PredictOrder,
    RevokeOrder,
    ScoreOrder,
    TrainOrder,
)
from woodlot.jobs.party_job import PartyJob
from woodlot.jobs.party_store import PartyStore
from woodlot.jobs.revocable.revocable_orders import RevokeRevocableOrder, TrainRevocableOrder
from woodlot.jobs.rows.rows_orders import EvaluateRowsOrder, PredictRowsOrder, RevokeRowsOrder, TrainRowsOrder
from woodlot.jobs.scores.score_seal import IdSeal, new_key
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.protocols.revocable.revocable_plan import RevocablePlan
from woodlot.protocols.rows.collaborative import CollaborativePlan
from woodlot.protocols.rows.local_forests import LocalPlan
from woodlot.protocols.vertical.score_messages import ScoreBatch
from woodlot.runtime.audit import Ledger
from woodlot.runtime.codec import decode, encode
from woodlot.runtime.journal import Journal
from woodlot.runtime.pending_charges import PendingCharges
from woodlot.trees.parallel import effective_jobs

REFUSALS = (DataError, PolicyError, RemoteProtocolError)
LINEAR = LinearPlan(
    task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(), max_iter=4,
    tol=0.02,
)  # fmt: skip
ROWS: dict[str, Any] = {
    "task": "classes", "n_estimators": 2, "criterion": "gini", "max_depth": 2, "min_samples_split": 2,
    "min_samples_leaf": 2, "max_features": 1, "bootstrap": False, "max_samples": None, "max_bins": None, "seed": 1,
}  # fmt: skip
PRIVATE = re.compile(r"\b(customers|age|income|late|visits|basket|987654321070\d\d\d|parquet)\b")
"""What no error may tell. In files, where words are found by chance, see `processes.PRIVATE`."""


class Bench:
    """The homes of two parties and a user's identity, without any connection."""

    def __init__(self, root: Path, tables: dict[str, dict[str, pa.Table]] | None = None, **roles: Any) -> None:
        self.world = World(root, small_tables() if tables is None else tables, **roles)
        self.users = {name: Identity.load(root / name / "identity") for name in ("alice", "bob")}
        self.ended: list[str] = []
        self.homes = {party: self._home(party) for party in PARTIES}
        self.identity = Identity.load(root / "coordinator" / "identity")
        self.coordinator = JobStore(root / "coordinator" / "state")

    def _home(self, party: str) -> PartyHome:
        config = self.world.party_config(party)
        identity = Identity.load(config.identity)
        return PartyHome(
            identity=identity,
            trust=Trust(identity.authority, config.identity / REVOKED),
            tables=config.tables,
            policy=config.policy,
            store=_store(config.state, party, config.policy),
            shared_secret=None,
            end_job=self.ended.append,
            pending_charges=lambda job: PendingCharges(None),
            n_jobs=1,
            privacy=config.privacy,
        )

    def close(self) -> None:
        for home in self.homes.values():
            home.store.close()
        self.coordinator.close()

    def change_policy(self, party: str, **changes: Any) -> None:
        changed = msgspec.structs.replace(self.homes[party].policy, **changes)
        self.homes[party].store.close()
        store = _store(self.homes[party].store.folder, party, changed)
        self.homes[party] = replace(self.homes[party], policy=changed, store=store)

    def fields(self, **parts: Part) -> dict[str, Any]:
        parts = {"bank": Part(table="customers", label="late"), "shop": Part(table="customers")} | parts
        return self.fields_of(parts)

    def fields_of(self, parts: Mapping[str, Part]) -> dict[str, Any]:
        """What every order says, with these parts."""
        return common_fields(parts, {p: self.homes[p].identity.certificate for p in parts}, **self.here)

    @property
    def here(self) -> dict[str, str]:
        """Where every order is to be done."""
        return {"federation": self.identity.federation, "coordinator": self.identity.name}

    def opening(self, order: Order, user: str = "alice") -> msg.OpenJob:
        return msg.OpenJob(**self.passed_on(order, user))

    def passed_on(self, order: Order, user: str = "alice") -> dict[str, bytes]:
        """An order as the coordinator brings it to a party."""
        data, signature = sign_order(order, self.users[user])
        own, passed = pass_on(data, self.identity)
        certificate = self.users[user].certificate
        return {"order": data, "signature": signature, "certificate": certificate, "coordinator": own, "passed": passed}

    def job(self, party: str, name: str) -> PartyJob:
        return PartyJob(self.homes[party], name)


def _store(folder: Path, party: str, own: policy.Policy) -> PartyStore:
    limits = (own.predictions_per_day, own.trainings_per_day, own.evaluations_per_day, own.explanations_per_day)
    return PartyStore(folder, party, *limits)


@dataclass
class Play:
    """What each party was asked in a job, what it answered, and what came of it."""

    job: str
    outcome: Any = None
    asked: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    answered: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))


def rounds(bench: Bench, order: Order) -> Iterator[set[str]]:
    """A job, one round for each step: the coordinator can let it wait."""
    opening = bench.opening(order)
    facts = msg.JobFacts(
        job=order.job, kind=order.kind, user="alice", state="running", version=1, created=order.created,
        parties=order.parties,
    )  # fmt: skip
    bench.coordinator.add(opening.order, opening.signature, opening.certificate, facts)
    jobs = {party: bench.job(party, order.job) for party in order.parties}
    protocol = kind_of(order).protocol(order, opening, CoordinatorHost(bench.coordinator, 1))
    replies: Any = None
    while True:
        try:
            step = next(protocol) if replies is None else protocol.send(replies)
        except StopIteration:
            return
        replies = {p: decode(encode(jobs[p].handle(decode(encode(m))))) for p, m in step.requests.items()}
        yield {type(message).__name__ for message in step.requests.values()}


def play(bench: Bench, order: Order, user: str = "alice") -> Play:
    """Run a whole job by hand, through the codec, and have the coordinator keep what comes of it."""
    record = Play(order.job)
    jobs = {p: bench.job(p, order.job) for p in order.parties}
    opening, kind, store = bench.opening(order, user), kind_of(order), bench.coordinator
    facts = msg.JobFacts(
        job=order.job, kind=order.kind, user=user, state="running", version=1, created=order.created,
        parties=order.parties,
    )  # fmt: skip
    if store.job(order.job) is None:
        store.add(opening.order, opening.signature, opening.certificate, facts)
    protocol = kind.protocol(order, opening, CoordinatorHost(store, effective_jobs(-1)))
    replies: dict[str, Message] | None = None
    while True:
        try:
            step = next(protocol) if replies is None else protocol.send(replies)
        except StopIteration as end:
            record.outcome = end.value
            break
        assert isinstance(step, Round)
        replies = {}
        for party, message in step.requests.items():
            asked = encode(message)
            answer = encode(jobs[party].handle(decode(asked)))
            record.asked[party].append(asked)
            record.answered[party].append(answer)
            replies[party] = decode(answer)
    account = Ledger().account().to_json()
    kind.keep(Kept(store, order, facts, account, bench.identity), record.outcome)
    return record


class Recorded:
    """A bench, jobs that were run on it, and all that was said in them."""

    def __init__(self, bench: Bench, plays: dict[str, Play]) -> None:
        self.bench, self.plays = bench, plays
        said = {data for p in plays.values() for asked in p.asked.values() for data in asked}
        self.said = [decode(data) for data in sorted(said)]


def train_order(bench: Bench) -> TrainOrder:
    """An order to grow the small forest."""
    return TrainOrder(**bench.fields(), holder="bank", plan=PLAN, settings="{}")


@contextmanager
def recorded_jobs(root: Path) -> Iterator[Recorded]:
    """Jobs to grow a forest, and to predict with it."""
    with closing(Bench(root)) as bench:
        trained, aligned = play(bench, train_order(bench)), play(bench, AlignOrder(**bench.fields(), method="psi"))
        about = {"model": trained.job, "alignment": aligned.job}
        delivering = PredictOrder(**bench.fields(), model=trained.job, score_at="bank", deliver_to="bank")
        plays = {
            "train": trained,
            "align": aligned,
            "predict": play(bench, delivering),
            "classical": play(bench, PredictOrder(**bench.fields(), **about, how="classical")),
            "sealed": play(bench, PredictOrder(**bench.fields(), **about, how="sealed")),
        }
        yield Recorded(bench, plays)


@contextmanager
def recorded_others(root: Path) -> Iterator[Recorded]:
    """Jobs about linear models and revocable forests, a party that leaves, and rows that are scored by their ids."""
    with closing(Bench(root)) as bench:
        for party in PARTIES:
            bench.change_policy(
                party, protocols=tuple(kind.listed for kind in known().values()), labels_to_coordinator=True
            )
        trained, scored = play(bench, train_order(bench)), play(bench, train_order(bench))
        fitted = play(bench, TrainLinearOrder(**bench.fields(), holder="bank", plan=LINEAR, settings="{}"))
        grown = play(
            bench, TrainRevocableOrder(**bench.fields(), holder="bank", plan=RevocablePlan(PLAN), settings="{}")
        )
        delivering = PredictLinearOrder(**bench.fields(), model=fitted.job, score_at="bank", deliver_to="bank")
        plays = {
            "train-linear": fitted,
            "predict-linear": play(bench, delivering),
            "score": _scored(bench, scored.job),
            "revoke": play(bench, RevokeOrder(**_leaving(bench, trained))),
            "train-revocable": grown,
            "revoke-revocable": play(bench, RevokeRevocableOrder(**_leaving(bench, grown), holder="bank")),
            "evaluate": play(bench, EvaluateOrder(**_reported(bench), model=scored.job, score_at="bank")),
            "evaluate-linear": play(bench, EvaluateLinearOrder(**_reported(bench), model=fitted.job, score_at="bank")),
            "catalog": play(bench, CatalogOrder(**_reported(bench))),
            "delete": play(bench, DeleteOrder(**bench.fields(), model=play(bench, train_order(bench)).job)),
        }
        yield Recorded(bench, plays)


def _leaving(bench: Bench, trained: Play) -> dict[str, Any]:
    """What an order says by which the shop leaves a model."""
    about = {"model": trained.job, "alignment": trained.job, "leaver": "shop", "task": "classes"}
    return bench.fields_of({"bank": Part(table="customers", label="late")}) | about


def _reported(bench: Bench) -> dict[str, Any]:
    """What an order says whose reports are sealed to the user."""
    bank = Part(table="customers", label="late", key=new_report_key())
    return bench.fields(bank=bank, shop=Part(table="customers", key=new_report_key()))


def number_id(value: int) -> bytes:
    return b"i" + value.to_bytes(9, "big", signed=True)


def _scored(bench: Bench, model: str) -> Play:
    """A scoring, and a request of two rows in it, one of which nobody has."""
    key = new_key()
    order = ScoreOrder(**bench.fields(**{p: Part(table="customers", key=key) for p in PARTIES}), model=model)
    record = play(bench, order)
    for party in record.outcome.asked:
        sealed = IdSeal(key, order.job, party).seal(1, [number_id(987_654_321_070_001), number_id(1)])
        batch = ScoreBatch(batch=1, numbers=(1,), n_rows=(2,), sealed=(sealed,))
        record.asked[party].append(encode(batch))
        job = bench.job(party, order.job)
        answers = [encode(job.handle(decode(asked))) for asked in record.asked[party]]
        assert answers[:-1] == record.answered[party]
        record.answered[party].append(answers[-1])
    return record


@contextmanager
def clinics(root: Path) -> Iterator[Bench]:
    """A bench of two clinics, with the same columns and different rows."""
    with (
        closing(Bench(root, {party: {TABLE: patients(k + 1)} for k, party in enumerate(PARTIES)})) as bench,
        Journal(root / "journal.sqlite", durable=False) as journal,
    ):
        for party in PARTIES:
            bench.change_policy(party, protocols=tuple(ROW_POLICY["protocols"]), train=("*",), predict=("*",))
            bench.homes[party] = replace(
                bench.homes[party], pending_charges=lambda job: PendingCharges(journal.job(job))
            )
        yield bench


def named(bench: Bench, model: str) -> dict[str, str]:
    """How an order names a whole forest."""
    return {"model": model, "forest": str(bench.coordinator.model_facts(model).whole)}


def rows_order(bench: Bench, plan: Any, parties: Sequence[str] = PARTIES, **about: Any) -> TrainRowsOrder:
    """An order of the clinics to grow a forest, or to have one of them leave it."""
    fields = bench.fields_of(dict.fromkeys(parties, Part(table=TABLE, label=LABEL)))
    return (RevokeRowsOrder if about else TrainRowsOrder)(**fields, plan=plan, settings="{}", **about)


def forget_rows_order(bench: Bench, model: str, ids: Sequence[int] = (1004, 1)) -> ForgetRowsOrder:
    """An order to the clinics to forget a row of the first, by its id, and an id of none."""
    asked = Part(table=TABLE, label=LABEL, ids=tuple(map(number_id, ids)), key=bytes(range(32)))
    return ForgetRowsOrder(**bench.fields_of(dict.fromkeys(PARTIES, asked)), model=model)


@contextmanager
def recorded_rows(root: Path) -> Iterator[Recorded]:
    """Jobs over rows."""
    with clinics(root) as bench:
        for party in PARTIES:
            listed = (*bench.homes[party].policy.protocols, "evaluate", "forget")
            bench.change_policy(party, allow_two=True, own_evaluations=party == "bank", protocols=listed)
        local = LocalPlan(**ROWS)
        reported = bench.fields_of({p: Part(table=TABLE, label=LABEL, key=new_report_key()) for p in PARTIES})
        trained = play(bench, rows_order(bench, local))
        fields = bench.fields_of(dict.fromkeys(PARTIES, Part(table=TABLE, label=LABEL)))
        plays = {
            "train-rows": play(bench, rows_order(bench, CollaborativePlan(**ROWS, allow_two=True))),
            "train-rows alone": trained,
            "predict-rows": play(bench, PredictRowsOrder(**fields, **named(bench, trained.job))),
            "evaluate-rows": play(bench, EvaluateRowsOrder(**reported, **named(bench, trained.job), allow_two=True)),
            "revoke-rows": play(bench, rows_order(bench, local, ("bank",), model=trained.job, leaver="shop")),
            "forget-rows": play(bench, forget_rows_order(bench, play(bench, rows_order(bench, local)).job)),
        }
        yield Recorded(bench, plays)
