"""Every protocol over columns, with what must be the same about its outcome."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.parquet as pq
from processes import three_companies
from small_jobs import COORDINATOR, PLAN, train_order, user_of
from sweep import FaultStage, Protocol, behind_proxy
from world import PROTECTS, TRUSTED, World

import woodlot as wl
from woodlot.connected import ConnectedFederation
from woodlot.federation import Labels
from woodlot.federation.local_revocable import Encryption
from woodlot.jobs.job_messages import ModelFacts
from woodlot.jobs.orders import Order
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.service.encrypted import encrypted_order, keys_order, predict_encrypted

Columns = FaultStage[ConnectedFederation]

TRIO = ("bank", "shop", "club")
LABELS = Labels("bank", "late", None)
POLICY = PROTECTS | TRUSTED | {
    "train": ["alice"],
    "predict": ["alice"],
    "weak_keys": True,
    "labels_to_coordinator": True,
    "lead": ["coordinator", "holder"],
    "protocols": [
        "align", "train", "predict", "revoke", "train-linear", "predict-linear", "train-revocable", "revoke-revocable",
        "keys", "predict-encrypted", "score",
    ],
}  # fmt: skip
LINE = LinearPlan(
    task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(), max_iter=4,
    tol=1e-3,
)  # fmt: skip
ROW = {"bank.age": [0.1], "bank.income": [0.2], "shop.visits": [0.3], "shop.basket": [0.4], "club.years": [0.5],
       "club.dues": [0.6]}  # fmt: skip
SHORT = Encryption(512, "test")
SHARES = SHORT._replace(scheme="shares")


@contextmanager
def companies(root: Path, *, with_keys: bool = True) -> Iterator[Columns]:
    """Three companies, a helper and a key service, all processes behind the proxy."""
    world = World(root, three_companies())
    for settings in world.settings.values():
        settings["policy"] = dict(POLICY)
    if with_keys:
        world.key_members({name: POLICY[name] for name in ("train", "predict", "weak_keys")})
    with behind_proxy(world) as (running, proxy), ThreadPoolExecutor(1) as pool, connected(world) as user:
        yield FaultStage(running, proxy, user, pool, train_order, partial(parts_of, world.root))


def connected(world: World, **options: Any) -> ConnectedFederation:
    """Alice, for all three companies."""
    return user_of(world, parties=TRIO, helper="helper", key_service="keys", **options)


# --- what has become of a job ---


def parts_of(root: Path, job: str) -> dict[str, str]:
    """Fingerprint of the coordinator's part of a model, and of the files of every party's."""
    facts = (root / COORDINATOR / "state" / "models" / job / "facts.json").read_bytes()
    found = {COORDINATOR: msgspec.json.decode(facts, type=ModelFacts).forest}
    for party in TRIO:
        if (folder := root / party / "state" / "models" / job).exists():
            files = sorted(folder.iterdir())
            found[party] = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()
    return found


def model(stage: Columns, job: str) -> Any:
    return parts_of(stage.running.world.root, job), stage.user.client.job(job).score


def rows_kept(stage: Columns, job: str) -> Any:
    root = stage.running.world.root
    kept = {p: (root / p / "state" / "alignments" / job / "rows.npy").read_bytes() for p in TRIO}
    return kept, stage.user.client.job(job).common


def answers(stage: Columns, job: str) -> Any:
    """What was predicted, what was delivered, and how many rows each party counts for it."""
    root, client = stage.running.world.root, stage.user.client
    delivered = root / "bank" / "state" / "answers" / f"{job}.parquet"
    told = pq.read_table(delivered).to_pydict() if delivered.exists() else None
    spent = {party: rows_spent(root / party / "state" / "predictions.sqlite", job) for party in TRIO}
    return client.predictions(job).outputs.tobytes(), client.job(job).score, told, spent


def rows_spent(path: Path, job: str) -> int:
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
        (rows,) = db.execute("SELECT coalesce(sum(rows), 0) FROM spent WHERE job = ?", (job,)).fetchone()
    return int(rows)


def encrypted_answers(stage: Columns, job: str) -> Any:
    """What a model says to an encrypted row: all members must have keys that belong together."""
    parties = stage.user.client.find_model(job).parties
    row = {name: value for name, value in ROW.items() if name.partition(".")[0] in parties}
    return predict_encrypted(stage.user.client, job, row, setting="test").tobytes()


def revocable(stage: Columns, job: str) -> Any:
    return stage.user.client.find_model(job).forest, encrypted_answers(stage, job)


def leaving(stage: Columns, job: str) -> Any:
    """The model that is left, what the receipt states of it, and that the former one is no more."""
    client, root = stage.user.client, stage.running.world.root
    statement = client.receipt(job).statement
    assert not [m for m in client.models() if m.model == statement.model]
    assert not (root / COORDINATOR / "state" / "models" / statement.model / "forest").exists()
    assert not list((root / COORDINATOR / "state" / "keys").glob(f"*{statement.model}*"))
    facts = client.job(job)
    return (
        client.find_model(job).forest, statement.after["coordinator"], statement.trees, statement.keys_before,
        statement.keys_after, statement.parties_after, statement.epoch_after, facts.n_rows, facts.name, facts.score,
    )  # fmt: skip


def leaving_revocable(stage: Columns, job: str) -> Any:
    return leaving(stage, job), encrypted_answers(stage, job)


# --- orders ---


def psi_order(stage: Columns) -> Order:
    with connected(stage.running.world, align="psi") as user:
        return user.align_order()


def predict_order(stage: Columns, **options: Any) -> Order:
    return stage.user.predict_order(stage.undisturbed, "bank.late", **options)


def linear_order(stage: Columns, plan: LinearPlan = LINE) -> Order:
    return stage.user.train_linear_order(plan, LABELS, {})


def predict_linear_order(stage: Columns) -> Order:
    return stage.user.predict_linear_order(stage.once("linear model", linear_order), "bank.late")


def revoke_order(stage: Columns, level: int) -> Order:
    trained, _ = stage.run(train_order(stage.user, PLAN))
    return stage.user.revoke_order(stage.user.client.find_model(trained), "shop", level, LABELS)


def revocable_order(stage: Columns, keys: Encryption = SHORT) -> Order:
    plan = wl.RevocableForestClassifier(n_estimators=3, max_depth=2, random_state=2).make_plan()
    return stage.user.train_revocable_order(plan, LABELS, {"params": {}}, keys)


shared_order = partial(revocable_order, keys=SHARES)


def revoke_revocable_order(stage: Columns, level: int, keys: Encryption = SHORT) -> Order:
    trained, _ = stage.run(revocable_order(stage, keys))
    return stage.user.revoke_order(stage.user.client.find_model(trained), "shop", level, LABELS)


def predict_encrypted_order(stage: Columns) -> Order:
    return encrypted_order(stage.user.client, stage.once("revocable model", revocable_order), ROW, setting="test")


def predict_shared_order(stage: Columns) -> Order:
    return encrypted_order(stage.user.client, stage.once("shared model", shared_order), ROW, scheme="shares")


def new_shares_order(stage: Columns) -> Order:
    """New keys between all members of a model, and all its splits shared again."""
    return keys_order(stage.user.client, stage.once("shared model", shared_order), helper="helper", key_service="keys")


def new_shares(stage: Columns, job: str) -> Any:
    return encrypted_answers(stage, stage.user.client.job(job).model)


PROTOCOLS = [
    Protocol("align (private intersection)", psi_order, rows_kept),
    Protocol("train", lambda stage: stage.train_order(), model),
    Protocol("predict", partial(predict_order, deliver_to="bank"), answers),
    Protocol("predict node by node", partial(predict_order, how="classical"), answers),
    Protocol("predict sealed", partial(predict_order, how="sealed"), answers),
    Protocol("train linear", linear_order, model),
    Protocol("predict linear", predict_linear_order, answers),
    Protocol("revoke, level 1", partial(revoke_order, level=1), leaving),
    Protocol("revoke, level 3", partial(revoke_order, level=3), leaving, 4),
    Protocol("train revocable", revocable_order, revocable, 6),
    Protocol("predict encrypted", predict_encrypted_order, answers),
    *(
        Protocol(f"revoke revocable, level {n}", partial(revoke_revocable_order, level=n), leaving_revocable, 6)
        for n in (1, 2, 3)
    ),
    Protocol("train with shares", shared_order, revocable, 6),
    Protocol("predict with shares", predict_shared_order, answers),
    Protocol("new shares", new_shares_order, new_shares),
    *(
        Protocol(
            f"revoke with shares, level {n}",
            partial(revoke_revocable_order, level=n, keys=SHARES),
            leaving_revocable,
            6,
        )
        for n in (1, 2)
    ),
]
