"""Golden digests of jobs between organisations: every message that the coordinator has journalled, models and answers.

Each setting runs with services in this process, over TLS on localhost, or with real processes; both must give what
``golden.json`` says. Parties' own secrets and the secret of the alignment are given, so forests are always the same.
Identities and names of jobs are new in every run, so there is no digest with secrets. See `test_golden_local` for how
``golden.json`` is written.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import wire_notes
from golden_data import FIRST_ID, companies, hospitals
from goldens import Said, as_arrays, check, files_of, golden_of
from processes import Processes
from world import POLICY, World, running

import woodlot as wl
from wire_search import captured
from woodlot.federation.local_revocable import Encryption
from woodlot.jobs import every_message  # noqa: F401 - journals of other processes are read here
from woodlot.protocols.core.message import Role
from woodlot.runtime.codec import decode
from woodlot.runtime.journal import Journal

SMALL: dict[str, Any] = {"n_estimators": 3, "max_depth": 3, "random_state": 5, "n_jobs": 1}
TABLE = "customers"
Results = dict[str, Any]
Bodies = Callable[[bytes], bytes]


def world_of(root: Path, tables: Mapping[str, pa.Table], policy: Mapping[str, Any]) -> World:
    """A federation whose parties' secrets follow from their names."""
    world = World(root, {party: {TABLE: table} for party, table in tables.items()}, labels=["late"])
    shared = root / "shared-secret"
    write_private(shared, "a secret that all parties have")
    for party, settings in world.settings.items():
        settings |= {"policy": POLICY | policy, "alignment": {"secret_file": str(shared)}}
        (root / party / "state").mkdir(mode=0o700)
        write_private(root / party / "state" / "secret", f"the secret of {party}")
    return world


def write_private(path: Path, secret: str) -> None:
    path.write_text(hashlib.sha256(secret.encode()).hexdigest())
    path.chmod(0o600)


@contextmanager
def in_threads(world: World) -> Iterator[Bodies]:
    """All services in this process."""
    with captured() as seen, running(world):
        yield lambda digest: next(data for data in seen if hashlib.sha256(data).digest() == digest)


@contextmanager
def in_processes(world: World) -> Iterator[Bodies]:
    """Every service in a process of its own."""
    notes = world.root / "notes"
    notes.mkdir()
    services = Processes(world)
    script = (wire_notes.__file__, {wire_notes.SETTING: str(notes)})
    services.scripts = dict.fromkeys(("coordinator", *world.settings), script)
    try:
        services.start()
        services.wait_connected()
        yield lambda digest: (notes / digest.hex()).read_bytes()
    finally:
        services.close()


HOSTS = [pytest.param(in_threads, id="threads"), pytest.param(in_processes, id="processes", marks=pytest.mark.slow)]


def said_in(world: World, bodies: Bodies) -> list[Said]:
    """The coordinator's journal, job after job; within a job by number, for replies are recorded as they come."""
    said = []
    with closing(Journal.read(world.root / "coordinator" / "state" / "journal.sqlite")) as journal:
        for job in journal.jobs():
            records = [record for record in journal.job(job).records() if record.sender]
            records.sort(key=lambda record: (record.number, record.sender != Role.coordinator))
            said += [Said(record.sender, record.receiver, decode(bodies(record.digest))) for record in records]
    return said


def parts_of(world: World, model: Any) -> Results:
    """What every party keeps of a model, and the coordinator."""
    job = (model.forest_ if hasattr(model, "forest_") else model.linear_).model
    folders = {name: world.root / name / "state" / "models" / job for name in (*world.settings, "coordinator")}
    return {f"files of {name}": files_of(folder) for name, folder in folders.items() if folder.exists()}


def run(setting: str, host: Any, world: World, play: Callable[[Any, World], Results], **options: Any) -> None:
    """Start a federation, have a user do something with it, and compare."""
    with warnings.catch_warnings(), host(world) as bodies:
        warnings.simplefilter("ignore", UserWarning)  # small forests leave rows without out-of-bag answers
        identity = world.root / "alice" / "identity"
        options = {"tables": TABLE, "parties": tuple(world.settings)} | options
        with wl.connect(world.address, identity, **options) as user:
            results = play(user, world)
        found = golden_of(said_in(world, bodies), results, whole=False)
    check(setting, str(play.__doc__), found)


# --- parties with different columns ---


def play_columns(user: Any, world: World) -> Results:
    """Align, train, predict in one round, node by node and sealed."""
    user.align()
    model = wl.FederatedForestClassifier(**SMALL, oob_score=True).fit(user, y="bank.late")
    answers = {
        "decisions": model.predict_proba(user),
        "classical": model.predict_proba(user, method="classical"),
        "sealed": model.predict_proba(user, sealed=True),
    }
    return parts_of(world, model) | {"answers": as_arrays(**answers)}


@pytest.mark.parametrize("host", HOSTS)
def test_columns(host: Any, tmp_path: Path) -> None:
    world = world_of(tmp_path, companies("late"), {"protocols": ["align", "train", "predict"]})
    run("services/columns", host, world, play_columns, lead="coordinator")


def play_led_columns(user: Any, world: World) -> Results:
    """As users do by default, the label holder leads: train, out of bag, predict, score by ids, and a party leaves."""
    model = wl.FederatedForestClassifier(**SMALL, oob_score=True, class_weight={"yes": 2.0, "no": 1.0})
    model.fit(user, y="bank.late")
    with user.scoring(model.forest_.model) as scoring:
        scores = scoring.predict_proba([FIRST_ID, FIRST_ID + 7])
    answers = {"decisions": model.predict_proba(user), "sealed": model.predict_proba(user, sealed=True)}
    receipt = model.revoke("shop", level=3)
    return parts_of(world, model) | {"answers": as_arrays(**answers, scores=scores), "receipt": receipt.statement}


@pytest.mark.slow
@pytest.mark.parametrize("host", HOSTS)
def test_led_columns(host: Any, tmp_path: Path) -> None:
    """What the coordinator carries: who is asked when, and how long frames are; what is in them differs each time."""
    world = world_of(tmp_path, companies("late"), {"protocols": ["align", "train", "predict", "revoke", "score"]})
    run("services/led-columns", host, world, play_led_columns)


def play_other_columns(user: Any, world: World) -> Results:
    """Private set intersection, bins, a linear model, a scoring by ids, and a party that leaves."""
    user.align()
    binned = wl.FederatedForestClassifier(1, max_depth=2, max_bins=4, random_state=5).fit(user, y="bank.late")
    line = wl.FederatedLogisticRegression(max_iter=8, tol=1e-3).fit(user, y="bank.late")
    model = wl.FederatedForestClassifier(**SMALL).fit(user, y="bank.late")
    with user.scoring(model.forest_.model) as scoring:
        scores = scoring.predict_proba([FIRST_ID, FIRST_ID + 7])
    receipt = model.revoke("shop", level=3)
    answers = {"line": line.predict(user), "scores": scores}
    files = parts_of(world, binned) | {
        f"{name} after a party has left": f for name, f in parts_of(world, model).items()
    }
    return files | {"answers": as_arrays(**answers), "receipt": receipt.statement}


@pytest.mark.slow
@pytest.mark.parametrize("host", HOSTS)
def test_other_columns(host: Any, tmp_path: Path) -> None:
    protocols = ["align", "train", "predict", "train-linear", "predict-linear", "revoke", "score"]
    world = world_of(tmp_path, companies("late", numeric=True), {"protocols": protocols})
    run("services/other-columns", host, world, play_other_columns, align="psi", lead="coordinator")


def play_revocable(user: Any, world: World) -> Results:
    """A revocable forest: train, predict under encryption, leave with new keys (level 2), predict again."""
    return play_leaving(user, world, scheme="paper", encryption=Encryption(512, "test"))


def play_shares(user: Any, world: World) -> Results:
    """The same with shares, which is the default."""
    return play_leaving(user, world)


def play_leaving(user: Any, world: World, **keys: Any) -> Results:
    model = wl.RevocableForestClassifier(**SMALL, **keys).fit(user, y="bank.late")
    values = {
        "bank.age": [25.0, 61.0], "bank.income": [300.0, 1200.0], "shop.visits": [3.0, 9.0],
        "shop.basket": [20.5, 7.0], "club.years": [4.0, 11.0], "club.dues": [30.0, 12.5],
    }  # fmt: skip
    before = model.predict_encrypted(pa.table(values))
    receipt = model.revoke("shop", level=2)
    rest = pa.table({name: values[name] for name in values if not name.startswith("shop")})
    answers = as_arrays(before=before, after=model.predict_encrypted(rest))
    return parts_of(world, model) | {"answers": answers, "receipt": receipt.statement}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "playing"), [("revocable", play_revocable), ("revocable-shares", play_shares)], ids=["paper", "shares"]
)
def test_revocable(tmp_path: Path, name: str, playing: Any) -> None:
    """Helper and key service are processes in any case."""
    protocols = ["align", "predict", "train-revocable", "revoke-revocable", "keys", "predict-encrypted"]
    policy = {"protocols": protocols, "weak_keys": True, "labels_to_coordinator": True}
    world = world_of(tmp_path, companies("late", numeric=True), policy)
    parties = tuple(world.settings)
    world.key_members({"train": ["alice"], "predict": ["alice"], "weak_keys": True})
    members = {"parties": parties, "helper": "helper", "key_service": "keys"}
    run(f"services/{name}", in_processes, world, playing, **members)


# --- parties with different rows ---


def play_rows(user: Any, world: World) -> Results:
    """All methods over rows, predictions at the parties, and a party that leaves."""
    options = SMALL | {"min_samples_leaf": 2}
    declared = {"age": (0, 80), "basket": (0, 50), "years": (0, 30)}
    models = {
        "local": wl.LocalForestsClassifier(criterion="gini", **options),
        "collaborative": wl.CollaborativeForestClassifier(criterion="gini", allow_two=True, **options),
        "extra-trees": wl.FederatedExtraTreesClassifier(declared=declared, classes=["no", "yes"], **options),
        "lossless": wl.HorizontalForestClassifier(max_bins=8, **options),
    }
    results: Results = {}
    for name, model in models.items():
        model.fit(user, y="late")
        results |= {f"{name}: {what}": files for what, files in parts_of(world, model).items()}
    user.predict_rows(models["lossless"].forest_.model, "late")
    receipt = models["collaborative"].revoke("chur", level=3)
    return results | {"receipt": receipt.statement}


@pytest.mark.slow
@pytest.mark.parametrize("host", HOSTS)
def test_rows(host: Any, tmp_path: Path) -> None:
    policy = {"protocols": ["train-rows", "predict-rows"], "allow_two": True}
    world = world_of(tmp_path, hospitals("late", numeric=True), policy)
    run("services/rows", host, world, play_rows, layout="rows")
