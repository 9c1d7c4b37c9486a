"""Every protocol over rows, with what must be the same about its outcome and about what was paid for it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
from hospitals import HOSPITALS, LABEL, PLAN, charges_of, extra_trees, hospitals, rows_of
from small_jobs import COORDINATOR
from sweep import DRAWN_ONCE, FaultStage, Protocol, behind_proxy

import woodlot as wl
from woodlot.connected.connected_rows import ConnectedRowFederation
from woodlot.jobs.job_messages import ModelFacts
from woodlot.jobs.orders import Order

Rows = FaultStage[ConnectedRowFederation]

EPSILON = 50.0


@contextmanager
def clinics(root: Path, **settings: Any) -> Iterator[Rows]:
    """Three hospitals behind the proxy."""
    world = hospitals(root, **settings)
    with behind_proxy(world) as (running, proxy), ThreadPoolExecutor(1) as pool, rows_of(world) as user:
        yield FaultStage(running, proxy, user, pool, collaborative_order, partial(fingerprint, root))


def fingerprint(root: Path, job: str) -> str:
    facts = (root / COORDINATOR / "state" / "models" / job / "facts.json").read_bytes()
    return msgspec.json.decode(facts, type=ModelFacts).forest


def paid(stage: Rows, job: str) -> Any:
    """What each party has paid for a job: its terms, in order."""
    return {
        party: [
            (charge.mechanism, charge.spend) for charge in charges_of(stage.running.world, party) if charge.job == job
        ]
        for party in HOSPITALS
    }


# --- what has become of a job ---


def model(stage: Rows, job: str) -> Any:
    return fingerprint(stage.running.world.root, job), paid(stage, job)


def private_model(stage: Rows, job: str) -> Any:
    """Noise is new in every job, so what is the same is what each party has paid for one: once, and not too much."""
    terms = paid(stage, job)
    for charges in terms.values():
        assert 0 < sum(spend.epsilon * spend.count for _, spend in charges) <= EPSILON * (1 + 1e-9)
    return {party: [mechanism for mechanism, _ in charges] for party, charges in terms.items()}


def randomised_model(stage: Rows, job: str) -> Any:
    """Randomised labels are paid for once and for all, by the first job that asks for them."""
    charges = {p: [c for c in charges_of(stage.running.world, p) if "randomised" in c.mechanism] for p in HOSPITALS}
    assert all(len(once) == 1 for once in charges.values())
    return fingerprint(stage.running.world.root, job), charges


def answers(stage: Rows, job: str) -> Any:
    root, facts = stage.running.world.root, stage.user.client.job(job)
    kept = {p: pq.read_table(root / p / "state" / "answers" / f"{job}.parquet").to_pydict() for p in HOSPITALS}
    return kept, facts.scores, facts.rows


def leaving(stage: Rows, job: str) -> Any:
    """The model that is left, what the receipt states of it, and that the former one is no more."""
    client, root = stage.user.client, stage.running.world.root
    statement = client.receipt(job).statement
    assert not [m for m in client.models() if m.model == statement.model]
    assert not (root / COORDINATOR / "state" / "models" / statement.model / "forest").exists()
    facts = client.job(job)
    return client.find_model(job).forest, statement.after, statement.trees, statement.parties_after, facts.n_rows


# --- orders ---


def collaborative_order(user: ConnectedRowFederation) -> Order:
    return user.train_rows_order(PLAN, LABEL, {})


def grow(stage: Rows, method: Any) -> Order:
    return stage.user.train_rows_order(method.make_plan(), LABEL, {})


def predict_order(stage: Rows) -> Order:
    return stage.user.predict_rows_order(stage.undisturbed, LABEL)


def revoke_order(stage: Rows) -> Order:
    method = wl.LocalForestsClassifier(3, max_depth=3, random_state=1)
    trained, _ = stage.run(grow(stage, method))
    facts = stage.user.client.find_model(trained)
    return stage.user.revoke_rows_order(facts, method.make_plan(), LABEL, "bern", 3)


LOSSLESS = wl.HorizontalForestClassifier(2, max_depth=2, random_state=0)

PROTOCOLS = [
    Protocol("horizontal rounds, collaborative", lambda stage: stage.train_order(), model, 3),
    Protocol("horizontal rounds, local", partial(grow, method=wl.LocalForestsClassifier(3, random_state=0)), model, 2),
    Protocol("horizontal rounds, extra-trees", partial(grow, method=extra_trees(n_estimators=2)), model, 4),
    Protocol(
        "horizontal rounds, randomised labels",
        partial(grow, method=extra_trees(wl.LocalDP(epsilon=2.0))),
        randomised_model,
        5,
    ),
    Protocol(
        "horizontal rounds, noisy sums",
        partial(grow, method=extra_trees(wl.GlobalDP(epsilon=EPSILON))),
        private_model,
        3,
        DRAWN_ONCE,
    ),
    Protocol("horizontal rounds, lossless", partial(grow, method=LOSSLESS), model, 5),
    Protocol("predict over rows", predict_order, answers, 1),
    Protocol("revoke over rows, level 3", revoke_order, leaving, 1),
]
