"""Hidden trainings between processes: the forest, what the coordinator has of it, and everybody is killed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hidden_bench import HIDDEN_PLAN
from hidden_forests import LABEL, hidden_companies, open_forest, stored_forest
from kill_stage import Stage, kill_at_random, kill_everywhere, kill_through
from overheard import SETTING, read
from processes import FIRST_ID, Processes, processes
from shared import Shared
from small_jobs import COORDINATOR, user_of
from typer.testing import CliRunner
from world import POLICY, World

import woodlot as wl
from wire_search import disguised, floats, search, texts
from woodlot.cli import app
from woodlot.cli._forest import plan_for
from woodlot.connected import ConnectedFederation
from woodlot.exceptions import DataError, JobFailed, WoodlotError
from woodlot.federation import Labels
from woodlot.identity.identity import Identity
from woodlot.identity.receipts import Receipt
from woodlot.jobs.orders import RevokeOrder, TrainOrder
from woodlot.runtime.codec import decode

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "protocols"))

from hidden_cases import assert_same

HERE = Path(__file__).resolve().parent
THREE = ("bank", "shop", "club")
KILLED = replace(HIDDEN_PLAN, n_estimators=2, max_depth=2)
Hidden = Stage[ConnectedFederation]


def hidden_world(root: Path, tables: Any = None, **policy: Any) -> World:
    world = World(root, hidden_companies() if tables is None else tables)
    for own in world.settings.values():
        protocols = ["align", "train", "predict", "revoke", "score"]
        own["policy"] = POLICY | {"protocols": protocols, "min_cell": HIDDEN_PLAN.min_cell} | policy
    return world


def hidden_user(world: World, **options: Any) -> ConnectedFederation:
    return user_of(world, **({"lead": "holder", "parties": THREE} | options))


def order_of(user: ConnectedFederation, **changes: Any) -> TrainOrder:
    return user.train_order(replace(KILLED, **changes), Labels("bank", LABEL, None), {})


def right(root: Path, job: str, plan: Any = KILLED) -> bool:
    """Whether a job has grown the forest that it must; fails with what is different."""
    assert_same(stored_forest(root, job), open_forest(root, job, plan, hidden_companies()))
    return True


def left_right(root: Path, job: str, trained: str, leaver: str, plan: Any = KILLED) -> bool:
    """Whether the forest without a party is that of the training, with its draws and without the party's columns."""
    tables = {party: held for party, held in hidden_companies().items() if party != leaver}
    assert_same(stored_forest(root, job), open_forest(root, job, plan, tables, drawn_by=trained))
    return True


# --- one federation, as users see it ---


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The shop and the club take part in hidden trainings only."""
    made = hidden_world(tmp_path_factory.mktemp("hidden"))
    for party in ("shop", "club"):
        made.settings[party]["policy"] |= {"protection": "hidden"}
    with processes(made) as running:
        running.wait_connected()
        yield made


@pytest.mark.slow
def test_an_estimator_grows_hidden_and_predicts_as_ever(world: World) -> None:
    with hidden_user(world) as user:
        model = wl.FederatedForestClassifier(3, max_depth=3, max_bins=16, protection="hidden", random_state=0)
        model.fit(user, y=f"bank.{LABEL}")
        job = model.forest_.model
        assert job is not None
        right(world.root, job, plan_for(model, "here"))
        facts = user.client.find_model(job)
        assert facts.is_hidden
        assert user.client.job(job).protection == "hidden"
        plain = model.predict_proba(user)
        sealed = user.predict_order(job, f"bank.{LABEL}", how="sealed")
        # how good three small trees of secret draws are is a matter of luck; that they are the right ones is not
        assert user.client.job(user.run(sealed).job).score == pytest.approx(model.score(user, f"bank.{LABEL}"))
        np.testing.assert_allclose(user.client.predictions(sealed.job).outputs, plain, atol=1e-9)
        with user.scoring(job) as scoring:
            outputs, _ = scoring.outputs(list(range(FIRST_ID, FIRST_ID + 5)))
            assert len(outputs) == 5
        receipt = model.revoke("shop")  # the second server: the club takes its place
        assert (receipt.statement.level, receipt.statement.notified) == (3, ("bank", "club"))
        assert left_right(world.root, str(model.forest_.model), job, "shop", plan_for(model, "here"))
        assert user.client.find_model(str(model.forest_.model)).is_hidden
        with hidden_user(world, parties=("bank", "club")) as rest:
            assert len(model.predict_proba(rest)) >= facts.n_rows
        with pytest.raises(DataError, match="the label holder alone would be left"):
            model.revoke("club")


@pytest.mark.slow
def test_who_leaves_is_not_the_second_server(world: World) -> None:
    with hidden_user(world, server="club") as user:
        job = user.run(order_of(user)).job
        facts, labels = user.client.find_model(job), Labels("bank", LABEL, None)
        with pytest.raises(DataError, match=r"'club' leaves, and cannot be the second server; name another party of"):
            user.revoke_order(facts, "club", 3, labels)
        with pytest.raises(DataError, match="Use level 3"):
            user.revoke_order(facts, "shop", 1, labels)
        order = user.revoke_order(facts, "shop", None, labels)
        assert (order.level, getattr(order, "server", "")) == (3, "club")
    with hidden_user(world, server="shop") as user:
        assert getattr(user.revoke_order(facts, "club", None, labels), "server", "") == "shop"


@pytest.mark.slow
def test_a_party_leaves_on_the_command_line(world: World, tmp_path: Path) -> None:
    with hidden_user(world) as user:
        job = user.run(order_of(user)).job
        words = ["revoke", job, "club", "--y", f"bank.{LABEL}", "--tables", "customers", "--server", "shop"]
        words += ["--coordinator", world.address, "--identity", str(world.root / "alice" / "identity")]
        words += ["--out", str(tmp_path / "receipt.json"), "--json"]
        told = CliRunner().invoke(app, words)
        assert told.exit_code == 0, told.output
        left = json.loads(told.stdout)["model"]
        assert left_right(world.root, left, job, "club")
    verdict = Receipt.load(tmp_path / "receipt.json").verify(Identity.load(world.root / "alice" / "identity").authority)
    assert verdict.requester == "user 'alice'"
    assert verdict.signer == "party 'bank'"


@pytest.mark.slow
def test_a_user_names_the_second_server(world: World) -> None:
    with hidden_user(world, server="club") as user:
        order = order_of(user)
        assert order.second_server == "club"
        user.run(order)
        right(world.root, order.job)
    with hidden_user(world, server="bank") as user, pytest.raises(DataError, match="has the labels"):
        order_of(user)


def test_what_cannot_be_hidden_is_refused_before_it_is_ordered(world: World) -> None:
    with hidden_user(world) as user:
        with pytest.raises(DataError, match="oob_score=False"):
            order_of(user, out_of_bag="soft")
        with pytest.raises(DataError, match="bootstrap=False"):
            order_of(user, class_weight="balanced")
    with hidden_user(world, lead="coordinator") as user, pytest.raises(DataError, match="lead='holder'"):
        order_of(user)


def test_parties_that_take_hidden_trainings_only_refuse_others(world: World) -> None:
    with hidden_user(world) as user, pytest.raises((JobFailed, WoodlotError), match='protection = "hidden"'):
        user.run(order_of(user, protection="open"))


# --- everybody is killed ---


@contextmanager
def stage_in(root: Path) -> Iterator[Hidden]:
    made = hidden_world(root)
    with ThreadPoolExecutor(1) as pool, processes(made) as running:
        running.wait_connected()
        with hidden_user(made) as user:
            yield Stage(running, user, pool, order_of, lambda job: right(made.root, job))


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[Hidden]]:
    with Shared(lambda: stage_in(tmp_path_factory.mktemp("kill"))) as shared:
        yield shared


@pytest.fixture
def stage(stages: Shared[Hidden], request: pytest.FixtureRequest) -> Iterator[Hidden]:
    yield from stages.lend(request)


@pytest.mark.faults
@pytest.mark.parametrize("victim", [COORDINATOR, *THREE])
def test_a_death_at_any_round_changes_nothing(stage: Hidden, victim: str) -> None:
    """The coordinator deals, the bank leads, the shop is the second server; the club gives its columns."""
    for job in kill_everywhere(stage, stage.train_order, victim, stage.replies(victim, stage.undisturbed)):
        assert right(stage.running.world.root, job)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [COORDINATOR, "bank", "shop"])
def test_a_death_in_the_middle_of_the_trees_changes_nothing(stage: Hidden, victim: str) -> None:
    order = order_of(stage.user)
    middle = stage.replies(victim, stage.undisturbed) // 2
    assert kill_through(stage, order, victim, {middle, middle + 2}) == {middle, middle + 2}
    assert right(stage.running.world.root, order.job)


@pytest.mark.faults
@pytest.mark.parametrize("victim", [COORDINATOR, "bank", "club"])
def test_a_death_while_a_party_leaves_changes_nothing(stage: Hidden, victim: str) -> None:
    """The shop, the second server of the training, leaves, and the club takes its place."""
    root, user = stage.running.world.root, stage.user

    def order() -> RevokeOrder:
        trained, _ = stage.run(stage.train_order())
        leaving = user.revoke_order(user.client.find_model(trained), "shop", None, Labels("bank", LABEL, None))
        assert isinstance(leaving, RevokeOrder)
        return leaving

    undisturbed = order()
    stage.run(undisturbed)
    assert left_right(root, undisturbed.job, undisturbed.model, "shop")
    total = stage.replies(victim, undisturbed.job)
    again = order()
    # at the beginning, among the trees, and where parts are kept and dropped
    assert kill_through(stage, again, victim, {2, total // 3, total // 2, total - 2, total - 1, total})
    assert left_right(root, again.job, again.model, "shop")
    assert user.client.receipt(again.job).statement.party == "shop"


@pytest.mark.faults
def test_deaths_at_any_instant_change_nothing(stage: Hidden) -> None:
    for job in kill_at_random(stage, 3, seed=11):
        assert right(stage.running.world.root, job)


# --- the coordinator has nothing but lengths ---

CLASSES = {"yes": "never-paid-back", "no": "paid-back-early"}


def planted() -> dict[str, dict[str, pa.Table]]:
    """The companies, with classes that nothing else can contain."""
    tables = hidden_companies()
    bank = tables["bank"]["customers"]
    late = pa.array([CLASSES[label] for label in bank[LABEL].to_pylist()])
    tables["bank"]["customers"] = bank.set_column(bank.column_names.index(LABEL), LABEL, late)
    return tables


@pytest.mark.slow
def test_the_coordinator_deals_and_receives_nothing_of_rows_labels_and_splits(tmp_path: Path) -> None:
    made = hidden_world(tmp_path, planted())
    running = Processes(made)
    heard = tmp_path / "heard"
    running.scripts[COORDINATOR] = (str(HERE / "overheard.py"), {SETTING: str(heard)})
    made.commands[COORDINATOR] = [COORDINATOR, "--log-level", "debug"]
    try:
        running.start()
        running.wait_connected()
        with hidden_user(made) as user:
            job = user.run(order_of(user)).job
            user.run(user.predict_order(job, f"bank.{LABEL}", deliver_to="bank", give_answers=False))
    finally:
        running.close()
    forest, parts = stored_forest(tmp_path, job)
    values, ids = [], set()
    for held in planted().values():
        table = held["customers"]
        values += [table[name].to_numpy() for name in table.column_names if table[name].type == "double"]
        ids |= set(table["id"].to_pylist())
    shares = np.unique(forest.leaves.value)
    looked_for = {
        "values": list(floats(np.concatenate(values))),
        "ids": list(disguised([*texts(ids), *(np.array(sorted(ids), "<i8")[k : k + 1].tobytes() for k in range(400))])),
        "classes": list(disguised(texts(CLASSES.values()))),
        "names of columns": list(disguised(texts(["income", "visits", "basket", "customers", "years", "dues"]))),
        "thresholds": list(floats(np.concatenate([part.splits.threshold for part in parts.values()]))),
        "answers of leaves": list(floats(np.array([v for v in shares if len(repr(float(v))) > 12]))),
    }
    received = read(heard.read_bytes())
    kinds = {type(decode(data)).__name__ for data in received}
    assert {"LedStep", "SealedReply"} <= kinds
    state = [(str(path), path.read_bytes()) for path in (tmp_path / COORDINATOR / "state").rglob("*") if path.is_file()]
    everything = [("received", data) for data in received] + state
    everything.append(("log", running.log(COORDINATOR).encode()))
    assert all(len(needles) > 5 for needles in looked_for.values())
    assert search(looked_for, everything, short_hits=3) == {}
    own = [("led", path.read_bytes()) for path in (tmp_path / "bank" / "state" / "led").rglob("*") if path.is_file()]
    assert search(looked_for, own, short_hits=3).keys() >= {"classes"}
