"""What must not travel between users, coordinator and parties does not: every message of whole jobs is searched.

The codec shows the bytes of every message before it is encrypted. Coordinator, parties and user are all in this
process, so nothing is missed.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from world import World, running

import woodlot as wl
from wire_search import captured, disguised, floats, integers, opened, search, texts
from woodlot.jobs import job_messages as msg
from woodlot.jobs.orders import PredictOrder
from woodlot.protocols.align import align_messages
from woodlot.protocols.core.message import Message
from woodlot.protocols.vertical import forest_messages
from woodlot.runtime import codec
from woodlot.service.client import JobFailed

N = 80
CLASSES = ["defaulted-badly", "paid-in-full", "still-running"]
TOWNS = ["Winterthur", "Zofingen", "Aarau-Rohr", "Bellinzona"]
COLUMNS = {"bank": ["annual income", "home town", "case weight"], "shop": ["yearly visits", "mean basket"]}
TABLES = {"bank": "credit customers", "shop": "loyalty cards"}
LABEL, ID = "final outcome", "customer number"
SHORT_HITS = 3
Task = Literal["classes", "targets"]


def tables(task: Task) -> dict[str, pa.Table]:
    """Values whose bits are all in use; ids are text in one task and numbers in the other."""
    rng = np.random.default_rng(11)
    numbers = rng.integers(10**8, 10**9, N)
    ids: Any = numbers if task == "classes" else np.array([f"customer-{n}" for n in numbers])
    income, visits, basket = rng.uniform(1e4, 1e5, N), rng.uniform(-1e3, 1e3, N), rng.uniform(1e-3, 1e-2, N)
    signal = income / 1e5 + visits / 2e3 + rng.normal(size=N) * 0.3
    label: Any = np.array(CLASSES)[np.digitize(signal, [0.3, 0.8])] if task == "classes" else signal * 12345.678
    weight, town = rng.uniform(0.5, 2.0, N), np.array(TOWNS)[rng.integers(0, len(TOWNS), N)]
    bank = pa.table([ids, income, town, weight, label], names=[ID, *COLUMNS["bank"], LABEL]).slice(0, N - 5)
    shop = pa.table([ids, visits, basket], names=[ID, *COLUMNS["shop"]]).take(rng.permutation(np.arange(4, N)))
    return {"bank": bank, "shop": shop}


def secrets_of(held: dict[str, pa.Table]) -> dict[str, list[bytes]]:
    """What no message may hold, by kind."""
    values = [
        table.column(name).to_numpy()
        for table in held.values()
        for name in table.column_names
        if name not in (ID, LABEL) and pa.types.is_floating(table.schema.field(name).type)
    ]
    ids = np.unique(np.concatenate([table.column(ID).to_numpy(zero_copy_only=False) for table in held.values()]))
    as_ids = integers(ids.tolist()) if ids.dtype.kind == "i" else texts(ids)
    return {
        "values": list(floats(np.concatenate(values))),
        "categories": list(disguised(texts(TOWNS))),
        "names of columns": list(disguised(texts([*COLUMNS["bank"], *COLUMNS["shop"], LABEL, ID]))),
        "names of tables": list(disguised(texts(TABLES.values()))),
        "ids": list(disguised(as_ids)),
    }


@dataclass
class Traffic:
    """All that was sent, and what was not to be among it."""

    messages: list[tuple[str, bytes]]
    secrets: dict[str, list[bytes]]
    targets: list[bytes]

    def kinds(self) -> set[str]:
        return {name for name, _ in self.messages}


def world_of(folder: Path, held: dict[str, pa.Table]) -> World:
    """A federation of these tables."""
    tables = {party: {TABLES[party]: table} for party, table in held.items()}
    return World(folder, tables, id=ID, labels=[LABEL], weights=["case weight"])


def run_everything(folder: Path, task: Task) -> Traffic:
    """Align in both ways, train, predict in all forms, score, deliver, fail, look at everything, have a party leave."""
    held = tables(task)
    world = world_of(folder, held)
    identity = folder / "alice" / "identity"
    kind = wl.FederatedForestClassifier if task == "classes" else wl.FederatedForestRegressor
    with captured() as messages, running(world):
        with wl.connect(world.address, identity, tables=TABLES, align="psi", lead="coordinator") as by_intersection:
            assert by_intersection.n_rows == N - 9
            kind(3, random_state=1).fit(by_intersection, y=f"bank.{LABEL}")
        with wl.connect(world.address, identity, tables=TABLES, lead="coordinator") as federation:
            forest = kind(25, random_state=3, oob_score=True, max_features=2)
            forest.fit(federation, y=f"bank.{LABEL}", sample_weight="bank.case weight")
            federation.align()
            for wire in ("decisions", "leaves", "ranks"):
                forest.predict(federation, method="one-round", wire=wire)
            forest.predict(federation, method="classical")
            forest.predict(federation, sealed=True)
            forest.score(federation)
            forest.permutation_importance(federation, n_repeats=1, random_state=0)
            client, model = federation.client, forest.forest_.model
            assert model is not None
            delivered = federation.predict_order(model, f"bank.{LABEL}", deliver_to="bank")
            client.finish(client.submit(delivered).job)
            for wrong in ("bank.annual incom", "shop.yearly visits2"):
                with pytest.raises(JobFailed):
                    kind(1).fit(federation, y=wrong)
            client.audit(model), client.jobs(), client.models(), client.find_model(model)
            client.predictions(delivered.job)
        wider = wl.connect(world.address, identity, tables=TABLES, join="outer", lead="coordinator")
        with wider, pytest.warns(wl.UncertainPredictionWarning):
            forest.predict(wider)
        parts = [part_of(path) for path in folder.glob("*/state/models/*/arrays.npz")]  # of the leaver too
        with wl.connect(world.address, identity, tables=TABLES, lead="coordinator") as federation:
            forest.revoke("shop", level=3, data=federation)
    parts += [part_of(path) for path in folder.glob("*/state/models/*/arrays.npz")]
    thresholds = np.concatenate(parts)
    assert len(thresholds) > 40
    secrets = secrets_of(held) | {"thresholds": list(floats(thresholds))}
    label = held["bank"].column(LABEL).to_numpy(zero_copy_only=False)
    return Traffic(
        [item for data in messages for item in opened(data)],
        secrets,
        list(texts(CLASSES)) if task == "classes" else list(floats(label)),
    )


def part_of(path: Path) -> np.ndarray:
    with np.load(path) as arrays:
        thresholds: np.ndarray = arrays["threshold"]
    return thresholds


@pytest.fixture(scope="module", params=["classes", pytest.param("targets", marks=pytest.mark.slow)])
def traffic(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Traffic:
    return run_everything(tmp_path_factory.mktemp("wire"), request.param)


def test_everything_was_sent(traffic: Traffic) -> None:
    """The search is of no use for what did not travel."""
    # what only consent allows, and what is sent when things go wrong, or later
    unsent = {
        *(
            "RevealSplits",
            "SplitTable",
            "CancelJob",
            "ResumeJob",
            "Unanswered",
            "Declined",
            "ForgetJob",
            "JobForgotten",
            "LeaveNotice",
            "LeaveNoted",
        ),
    }
    ours = {
        name
        for name, kind in messages_of(align_messages, msg, forest_messages).items()
        if hasattr(kind, "discloses")  # every message states what it discloses; others are only built upon
    }
    assert ours - traffic.kinds() <= unsent


def messages_of(*modules: Any) -> dict[str, type[Message]]:
    return {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if isinstance(kind, type) and issubclass(kind, Message) and kind is not Message
    }


def test_no_secret_travels(traffic: Traffic) -> None:
    assert search(traffic.secrets, traffic.messages, short_hits=SHORT_HITS) == {}


def test_labels_travel_only_as_it_is_written_down(traffic: Traffic) -> None:
    """Names of classes and the model's answers go where ``docs/who-sees-what.md`` says, and nowhere else."""
    hits = search({"labels": traffic.targets}, traffic.messages, short_hits=SHORT_HITS)
    holder_and_coordinator = {"EncodedLabels", "LeafTotals", "OutOfBagAnswers", "OutOfBagScores"}
    model_and_answers = {"ModelPart", "ModelList", "Predictions", "TakeAnswers"}
    assert hits["labels"] <= holder_and_coordinator | model_and_answers
    for name in sorted(hits["labels"]):
        words = messages_of(msg, forest_messages)[name].discloses.reveals
        assert any(word in words for word in ("classes", "answer", "mean target", "settings", "quantiles")), words


# --- the search itself ---


def facts(**changes: Any) -> msg.JobFacts:
    return msg.JobFacts(job="0" * 32, kind="train", user="alice", state="failed", version=1, created=0.0, **changes)


def model_part(array: np.ndarray) -> Message:
    file = io.BytesIO()
    np.savez_compressed(file, gain=array)
    model = msg.ModelFacts(
        model="0" * 32, name="", user="alice", created=0.0, forest="", parties=(), holder="", n_rows=1, n_trees=1,
        n_nodes=1, splits={}, classes=(), complete=False, unwilling=(), oob_score=None, settings="", disclosure="",
        cost="",
    )  # fmt: skip
    files = {"arrays.npz": np.frombuffer(file.getvalue(), np.uint8)}
    return msg.ModelPart(facts=model, files=files, residuals=np.empty(0))


def plant(held: dict[str, pa.Table]) -> dict[str, Message]:
    """One message for each kind and form."""
    income = held["bank"].column("annual income").to_numpy()
    ids = held["bank"].column(ID).to_pylist()
    order = PredictOrder(
        job="0" * 32,
        created=0.0,
        federation="",
        coordinator="",
        parties=("bank",),
        sealed={"bank": b"x" + b"yearly visits" + b"yz"},
        model="0" * 32,
    )
    digests = b"".join(hashlib.sha256(np.int64(i).tobytes()).digest() for i in ids[:2])
    return {
        "values": msg.Predictions(
            outputs=income[:1, None], uncertain=np.empty(0, np.uint8), classes=(), score=None, disclosure="", cost=""
        ),
        "values as float32": forest_messages.Partition(
            flags=np.frombuffer(b"abc" + income[:SHORT_HITS].astype(">f4").tobytes(), np.uint8)
        ),
        "values as text": msg.JobStatus(facts=facts(error=f"cannot split at {float(income[3])!r}")),
        "values compressed": model_part(income[5:6]),
        "categories": msg.Declined(kind="data", reason="no such town: Aarau-Rohr"),
        "names of columns": msg.Declined(kind="data", reason="there is no column 'mean basket'"),
        "names of columns as base64": msg.SubmitJob(order=msgspec.json.encode(order), signature=b""),
        "names of columns as hash": msg.ModelKept(digest=hashlib.md5(b"annual income").hexdigest()),  # noqa: S324
        "names of tables": msg.JobStatus(facts=facts(note=json.dumps({"table": TABLES["shop"]}))),
        "ids": forest_messages.Offers(score=np.array(ids[:1], float), feature=np.zeros(1, np.uint8)),
        "ids as numbers": align_messages.IdTokens(tokens=np.array(ids[:2], ">i8").view(np.uint8).reshape(2, 8)),
        "ids as short numbers": forest_messages.AskNodes(
            rows=np.array(ids[:SHORT_HITS], np.int32), nodes=np.zeros(SHORT_HITS, np.int32)
        ),
        "ids as text": msg.Declined(kind="data", reason=f"{ids[0]} is twice in the table"),
        "ids as hash": align_messages.IdTokens(tokens=np.frombuffer(digests, np.uint8).reshape(2, 32)),
    }


def test_the_search_finds_what_is_planted() -> None:
    held = tables("classes")
    secrets = secrets_of(held)
    for planted, message in plant(held).items():
        items = list(opened(codec.encode(message)))
        found = search(secrets, items, short_hits=SHORT_HITS)
        assert found == {planted.split(" as ")[0].split(" compressed")[0]: {type(message).__name__}}, planted


def test_the_search_finds_what_is_planted_in_real_traffic(traffic: Traffic) -> None:
    """One changed message among all those of the jobs."""
    at = next(i for i, (name, _) in enumerate(traffic.messages) if name == "Offers")
    threshold = traffic.secrets["thresholds"][0]
    spoilt = [*traffic.messages]
    spoilt[at] = ("Offers", spoilt[at][1] + threshold)
    assert search(traffic.secrets, spoilt, short_hits=SHORT_HITS) == {"thresholds": {"Offers"}}


def test_consent_shows_that_the_search_finds_names_and_thresholds(tmp_path: Path) -> None:
    held = tables("classes")
    world = world_of(tmp_path, held)
    for settings in world.settings.values():
        settings["policy"]["share_model"] = True
    with captured() as messages, running(world):
        identity = tmp_path / "alice" / "identity"
        with wl.connect(world.address, identity, tables=TABLES, lead="coordinator") as federation:
            wl.FederatedForestClassifier(10, random_state=0).fit(federation, y=f"bank.{LABEL}")
    hits = search(secrets_of(held), [item for data in messages for item in opened(data)], short_hits=SHORT_HITS)
    assert hits["names of columns"] == {"SplitTable", "ModelPart"}
    assert "ids" not in hits
