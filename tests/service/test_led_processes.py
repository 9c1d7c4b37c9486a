"""Jobs that the label holder leads, between processes: secrets are planted, and everybody is killed."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from kill_stage import Stage, kill_at_random, kill_everywhere, kill_through
from overheard import SETTING, read
from processes import FIRST_ID, Processes, processes, small_tables
from shared import Shared
from small_jobs import COORDINATOR, EVERYBODY, PARTIES, train_order, user_of
from world import POLICY, World

from wire_search import disguised, floats, search, texts
from woodlot.connected import ConnectedFederation
from woodlot.connected.drifted_rows import read_drift
from woodlot.connected.row_parts import read_report
from woodlot.federation import Labels
from woodlot.jobs.job_store import JobStore
from woodlot.jobs.orders import Order
from woodlot.metrics.resampling import Resampling
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.runtime.codec import decode

HERE = Path(__file__).resolve().parent
SHORT_HITS = 3
LINEAR = LinearPlan(
    task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(), max_iter=4,
    tol=0.02,
)  # fmt: skip
Led = Stage[ConnectedFederation]


def led_world(root: Path, tables: Any = None) -> World:
    world = World(root, small_tables() if tables is None else tables)
    for own in world.settings.values():
        kinds = [
            "align",
            "train",
            "predict",
            "train-linear",
            "predict-linear",
            "revoke",
            "score",
            "evaluate",
            "explain",
        ]
        limits = {"min_evaluation_rows": 1, "evaluations_per_day": "unlimited", "round_counts": 1}
        limits |= {"explains": "values", "explanations_per_day": "unlimited"}
        own["policy"] = POLICY | limits | {"catalog": ["names", "types", "missing", "rows"]}
        own["policy"]["protocols"] = [*kinds, "evaluate", "explain", "drift"]
    return world


def model_of(root: Path, job: str) -> dict[str, Any]:
    """The leader's part of a model, and the parties' parts."""
    found: dict[str, Any] = {}
    for party in PARTIES:
        for path in sorted((root / party / "state" / "models" / job).iterdir()):
            found[f"{party} {path.name}"] = path.read_bytes()
    led = JobStore(root / PARTIES[0] / "state" / "led")
    try:
        found["leader"] = led.model_facts(job).forest
    finally:
        led.close()
    return found


# --- everybody is killed ---


@contextmanager
def stage_in(root: Path) -> Iterator[Led]:
    world = led_world(root)
    with ThreadPoolExecutor(1) as pool, processes(world) as running:
        running.wait_connected()
        with user_of(world, lead=None) as user:
            yield Stage(running, user, pool, train_order, lambda job: model_of(world.root, job))


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[Led]]:
    with Shared(lambda: stage_in(tmp_path_factory.mktemp("kill"))) as shared:
        yield shared


@pytest.fixture
def stage(stages: Shared[Led], request: pytest.FixtureRequest) -> Iterator[Led]:
    yield from stages.lend(request)


@pytest.mark.faults
@pytest.mark.parametrize("victim", EVERYBODY)
def test_a_death_at_any_round_of_a_training_changes_nothing(stage: Led, victim: str) -> None:
    total = stage.replies(victim, stage.undisturbed)
    assert total > 12
    for job in kill_everywhere(stage, stage.train_order, victim, total):
        assert stage.outcome_of(job) == stage.expected


@pytest.mark.faults
@pytest.mark.parametrize("victim", EVERYBODY)
@pytest.mark.parametrize("how", ["one-round", "sealed"])
def test_a_death_at_any_round_of_a_prediction_changes_nothing(stage: Led, victim: str, how: str) -> None:
    def order() -> Order:
        return stage.user.predict_order(stage.undisturbed, "bank.late", deliver_to="bank", how=how)

    job, facts = stage.run(order())
    answers = stage.user.client.predictions(job).outputs
    for again in kill_everywhere(stage, order, victim, stage.replies(victim, job)):
        assert (stage.user.client.predictions(again).outputs == answers).all()
        assert stage.user.client.job(again).score == facts.score


@pytest.mark.faults
@pytest.mark.parametrize("victim", EVERYBODY)
def test_a_death_at_any_round_of_an_evaluation_gives_the_same_report(stage: Led, victim: str) -> None:
    train, test = stage.user.split(0.4)
    job, _ = stage.run(train_order(train))
    keys: dict[str, bytes] = {}

    def order() -> Order:
        made, keys[made.job] = test.evaluate_order(job, "bank.late", Resampling(20))
        return made

    first = order()
    _, facts = stage.run(first)
    expected = read_report(facts, keys[first.job])
    assert 5 < expected.n_rows < 55
    assert expected.seen == 0
    for again in kill_everywhere(stage, order, victim, stage.replies(victim, first.job)):
        assert read_report(stage.user.client.job(again), keys[again]) == expected


@pytest.mark.faults
@pytest.mark.parametrize("victim", EVERYBODY)
def test_a_death_at_any_round_of_an_explanation_gives_the_same_numbers(stage: Led, victim: str) -> None:
    user = copy.copy(stage.user)
    user.align()  # rows in one order, to compare numbers
    keys: dict[str, bytes] = {}

    def order() -> Order:
        made, keys[made.job] = user.explain_order(stage.undisturbed, "soft")
        return made

    first = order()
    _, facts = stage.run(first)
    expected, _ = stage.user.read_explanation(facts, keys[first.job])
    assert expected.n_rows > 10
    assert expected.texts
    for again in kill_everywhere(stage, order, victim, stage.replies(victim, first.job)):
        assert stage.user.read_explanation(stage.user.client.job(again), keys[again])[0] == expected


@pytest.mark.faults
@pytest.mark.parametrize("victim", EVERYBODY)
def test_a_death_at_any_round_of_a_comparison_gives_the_same_indices(stage: Led, victim: str) -> None:
    user = copy.copy(stage.user)
    user.align()
    keys: dict[str, dict[str, bytes]] = {}

    def order() -> Order:
        made, keys[made.job] = user.drift_order(stage.undisturbed, "soft")
        return made

    first = order()
    _, facts = stage.run(first)
    expected = read_drift(facts, keys[first.job])
    assert len(expected.columns) == 4
    assert expected.answers is not None
    for again in kill_everywhere(stage, order, victim, stage.replies(victim, first.job)):
        assert read_drift(stage.user.client.job(again), keys[again]) == expected


@pytest.mark.slow
@pytest.mark.parametrize("victim", PARTIES)
def test_a_party_that_dies_in_an_explanation_gives_the_same_numbers(stage: Led, victim: str) -> None:
    """Before its last reply; `make test-faults` kills it before every one."""
    user = copy.copy(stage.user)
    user.align()
    first, key = user.explain_order(stage.undisturbed, "soft")
    _, facts = stage.run(first)
    expected, _ = user.read_explanation(facts, key)
    again, other = user.explain_order(stage.undisturbed, "soft")
    place = stage.replies(victim, first.job) - 1
    assert kill_through(stage, again, victim, {place}) == {place}
    assert user.read_explanation(user.client.job(again.job), other)[0] == expected


@pytest.mark.faults
@pytest.mark.parametrize("victim", EVERYBODY)
def test_a_death_at_any_round_of_a_linear_model_changes_nothing(stage: Led, victim: str) -> None:
    def order() -> Order:
        return stage.user.train_linear_order(LINEAR, Labels("bank", "late", None), {})

    job, _ = stage.run(order())
    expected = model_of(stage.running.world.root, job)
    for again in kill_everywhere(stage, order, victim, stage.replies(victim, job), 3):
        assert model_of(stage.running.world.root, again) == expected


@pytest.mark.faults
@pytest.mark.parametrize("victim", EVERYBODY[:2])
def test_a_death_at_any_round_of_a_revocation_changes_nothing(stage: Led, victim: str) -> None:
    """The last reply of the leader too, when the former model is gone and the receipt is kept."""

    def order() -> Order:
        job, _ = stage.run(stage.train_order())
        facts = stage.user.client.find_model(job)
        return stage.user.revoke_order(facts, "shop", 3, Labels("bank", "late", None))

    first = order()
    stage.run(first)
    expected = stage.user.client.find_model(first.job).forest
    for again in kill_everywhere(stage, order, victim, stage.replies(victim, first.job)):
        assert stage.user.client.find_model(again).forest == expected
        assert stage.user.client.receipt(again).statement.party == "shop"


@pytest.mark.slow
def test_deaths_at_any_instant_change_nothing(stage: Led) -> None:
    for job in kill_at_random(stage, 3, seed=7):
        assert stage.outcome_of(job) == stage.expected


# --- the coordinator has nothing ---


CLASSES = {"yes": "never-paid-back", "no": "paid-back-early"}


def planted_tables() -> dict[str, dict[str, pa.Table]]:
    """The small tables, with classes that nothing else can contain."""
    tables = small_tables()
    bank = tables["bank"]["customers"]
    late = pa.array([CLASSES[label] for label in bank["late"].to_pylist()])
    tables["bank"]["customers"] = bank.set_column(bank.column_names.index("late"), "late", late)
    return tables


def long(numbers: np.ndarray) -> np.ndarray:
    """Those that nothing else can contain: no whole numbers, halves or tenths."""
    return np.array([number for number in np.unique(numbers) if len(repr(float(number))) > 12])


def secrets(root: Path) -> dict[str, list[bytes]]:
    """What only the parties know."""
    tables = planted_tables()
    values, ids = [], set()
    for held in tables.values():
        table = held["customers"]
        values += [table[name].to_numpy() for name in table.column_names if table[name].type == "double"]
        ids |= set(table["id"].to_pylist())
    assert min(ids) >= FIRST_ID
    thresholds = []
    for party in PARTIES:
        for path in (root / party / "state" / "models").glob("*/arrays.npz"):
            with np.load(path) as arrays:
                thresholds += [a.ravel() for a in arrays.values() if a.dtype.kind == "f" and a.size]
    shares = []
    for path in (root / PARTIES[0] / "state" / "led" / "models").rglob("*.npz"):
        with np.load(path) as arrays:
            shares += [a.ravel() for a in arrays.values() if a.dtype.kind == "f" and a.size]
    return {
        "values": list(floats(np.concatenate(values))),
        "ids": list(
            disguised(
                [
                    *texts(ids),
                    *(
                        np.array(sorted(ids), order).tobytes()[k : k + 8]
                        for order in ("<i8", ">i8", "<f8")
                        for k in range(0, 8 * len(ids), 8)
                    ),
                ]
            )
        ),
        "classes": list(disguised(texts(CLASSES.values()))),
        "thresholds": list(floats(long(np.concatenate(thresholds)))),
        "names of columns": list(disguised(texts(["income", "visits", "basket", "customers"]))),
        "answers of leaves": list(floats(long(np.concatenate(shares)))),
    }


def row_keys(root: Path) -> list[bytes]:
    """The keys by which the parties select rows, as bytes and as text."""
    found = [path for party in PARTIES for path in (root / party / "state" / "alignments").glob("*/facts.json")]
    keys = {json.loads(path.read_bytes())["row_key"] for path in found}
    assert all(len(key) == 64 for key in keys)
    return [form for key in keys for form in (bytes.fromhex(key), key.encode())]


@pytest.mark.slow
def test_the_coordinator_receives_and_keeps_nothing_of_rows_labels_splits_and_answers(tmp_path: Path) -> None:
    """Values, ids, thresholds, names and answers are looked for in all that it receives, keeps and logs."""
    world = led_world(tmp_path, planted_tables())
    running = Processes(world)
    heard = tmp_path / "heard"
    running.scripts[COORDINATOR] = (str(HERE / "overheard.py"), {SETTING: str(heard)})
    world.commands[COORDINATOR] = [COORDINATOR, "--log-level", "debug"]
    try:
        running.start()
        running.wait_connected()
        with user_of(world, lead=None) as user:
            forest = user.run(train_order(user)).job
            for options in ({"wire": "leaves"}, {"wire": "ranks"}, {"how": "classical"}, {"how": "sealed"}):
                user.client.predictions(user.run(user.predict_order(forest, **options)).job)
            scored = user.run(user.predict_order(forest, "bank.late", deliver_to="shop"))
            assert scored.score is not None
            user.client.model(forest)
            with user.scoring(forest) as scoring:
                scoring.outputs(list(range(FIRST_ID, FIRST_ID + 60)))
            train, test = user.split(0.3)
            chosen = train.choose_columns({"bank": ["income"], "shop": None}, None, None)
            part = user.run(train_order(chosen)).job
            order, key = test.evaluate_order(part, "bank.late", Resampling(50))
            report = read_report(user.run(order), key)
            assert set(report.classes) == set(CLASSES.values())
            assert len(user.catalog().columns) == 4
            order, key = user.explain_order(forest, "soft")
            explained, _ = user.read_explanation(user.run(order), key)
            order, key = user.named_rows([FIRST_ID, FIRST_ID + 1]).explain_order(forest, "soft")
            user.read_explanation(user.run(order), key)
            order, keys = user.drift_order(forest, "soft")
            assert len(read_drift(user.run(order), keys).columns) == 4
            linear = user.train_linear_order(LINEAR, Labels("bank", "late", None), {})
            user.client.predictions(user.run(user.predict_linear_order(user.run(linear).job)).job)
            answers = user.client.predictions(scored.job).outputs
    finally:
        running.close()
    received = read(heard.read_bytes())
    kinds = {type(decode(data)).__name__ for data in received}
    assert {"LedStep", "SealedReply", "LeaderAnswer", "AskLeader", "SubmitJob", "LedScores"} <= kinds
    assert not kinds & {"Offers", "Partitions", "LeafTotals", "Decisions", "Predictions", "AllSides", "RowValues"}
    parts = explained.rows()
    assert set(parts.texts) == set(range(len(parts.features)))  # both parties tell names and values
    shown = [text for texts in parts.texts.values() for text in texts if len(text) > 6]
    files = [(str(path), path.read_bytes()) for path in (tmp_path / COORDINATOR / "state").rglob("*") if path.is_file()]
    everything = [("received", data) for data in received] + files
    everything.append(("log", running.log(COORDINATOR).encode()))
    told = [value for value in report.metrics.values() if value is not None]
    told += [end for ends in report.intervals.values() for end in ends]
    numbers = np.array([number for number in long(np.array(told)) if len(f"{number:.6g}") > 6])
    written = [repr(float(number)) for number in numbers]
    looked_for = secrets(tmp_path) | {
        "answers": list(floats(long(answers))),
        "report": [*floats(numbers), *disguised(texts(written))],
        "keys of rows": list(disguised(row_keys(tmp_path))),
        "explanation": list(floats(long(parts.values.ravel()))),
        "values in words": list(disguised(texts(shown))),
    }
    assert all(len(needles) > 20 for name, needles in looked_for.items() if name != "keys of rows")
    assert looked_for["keys of rows"]
    assert search(looked_for, everything, short_hits=SHORT_HITS) == {}
    led = [("led", path.read_bytes()) for path in (tmp_path / "bank" / "state" / "led").rglob("*") if path.is_file()]
    assert search(looked_for, led, short_hits=SHORT_HITS).keys() >= {"classes", "answers"}
