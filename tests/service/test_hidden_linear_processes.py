"""Hidden linear models between processes: the weights, what the coordinator has of them, and everybody is killed."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hidden_forests import LABEL, hidden_companies
from kill_stage import Stage, kill_everywhere, kill_through
from overheard import SETTING, read
from processes import Processes, processes
from shared import Shared
from small_jobs import COORDINATOR, user_of
from world import POLICY, World

import woodlot as wl
from wire_search import disguised, floats, search, texts
from woodlot.connected import ConnectedFederation
from woodlot.exceptions import DataError
from woodlot.federation import Labels
from woodlot.jobs.linear.linear_orders import TrainLinearOrder
from woodlot.protocols.linear.linear_files import load_own_linear
from woodlot.protocols.linear.linear_model import LinearPlan

HERE = Path(__file__).resolve().parent
THREE = ("bank", "shop", "club")
PLAN = LinearPlan(
    task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(), max_iter=2,
    tol=1e-6, protection="hidden",
)  # fmt: skip
Hidden = Stage[ConnectedFederation]


def linear_world(root: Path, **policy: Any) -> World:
    world = World(root, hidden_companies())
    for own in world.settings.values():
        own["policy"] = POLICY | {"protocols": ["align", "train-linear", "predict-linear"]} | policy
    return world


def order_of(user: ConnectedFederation) -> TrainLinearOrder:
    return user.train_linear_order(PLAN, Labels("bank", LABEL, None), {})


def weights_of(world: World, user: ConnectedFederation, job: str) -> dict[str, bytes]:
    forest = user.client.find_model(job).forest
    found = {p: load_own_linear(world.root / p / "state" / "models" / job, p, forest) for p in THREE}
    return {party: part.weights.tobytes() for party, part in found.items()}


@contextmanager
def stage_in(root: Path) -> Iterator[Hidden]:
    made = linear_world(root, protection="hidden")
    with ThreadPoolExecutor(1) as pool, processes(made) as running:
        running.wait_connected()
        with user_of(made, parties=THREE, lead="holder") as user:
            yield Stage(running, user, pool, order_of, lambda job: weights_of(made, user, job))


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared[Hidden]]:
    with Shared(lambda: stage_in(tmp_path_factory.mktemp("kill"))) as shared:
        yield shared


@pytest.fixture
def stage(stages: Shared[Hidden], request: pytest.FixtureRequest) -> Iterator[Hidden]:
    yield from stages.lend(request)


@pytest.mark.slow
def test_an_estimator_fits_hidden_and_predicts_as_ever(stage: Hidden) -> None:
    """Every party takes hidden trainings only."""
    tables = {party: held["customers"] for party, held in hidden_companies().items()}
    here = wl.Federation.local(tables, id="id")
    shown = wl.FederatedLogisticRegression(tol=1e-8).fit(here, y=f"bank.{LABEL}")
    model = wl.FederatedLogisticRegression(tol=1e-8, protection="hidden").fit(stage.user, y=f"bank.{LABEL}")
    assert model.n_iter_ == shown.n_iter_
    # rows come in an order of the parties' own
    np.testing.assert_allclose(
        np.sort(model.decision_function(stage.user)), np.sort(shown.decision_function(here)), atol=1e-9
    )
    world = stage.running.world
    with user_of(world, parties=THREE, lead="coordinator") as other, pytest.raises(DataError, match="lead='holder'"):
        order_of(other)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [COORDINATOR, "bank", "shop"])
def test_a_death_in_the_middle_of_the_descent_changes_nothing(stage: Hidden, victim: str) -> None:
    order = order_of(stage.user)
    last = stage.replies(victim, stage.undisturbed)
    killed = {last - 5, last - 3}
    assert kill_through(stage, order, victim, killed) == killed
    assert weights_of(stage.running.world, stage.user, order.job) == stage.expected


@pytest.mark.faults
@pytest.mark.parametrize("victim", [COORDINATOR, *THREE])
def test_a_death_at_any_round_changes_nothing(stage: Hidden, victim: str) -> None:
    for job in kill_everywhere(stage, stage.train_order, victim, stage.replies(victim, stage.undisturbed)):
        assert weights_of(stage.running.world, stage.user, job) == stage.expected


@pytest.mark.slow
def test_the_coordinator_deals_and_receives_nothing_of_rows_and_weights(tmp_path: Path) -> None:
    made = linear_world(tmp_path)
    running = Processes(made)
    heard = tmp_path / "heard"
    running.scripts[COORDINATOR] = (str(HERE / "overheard.py"), {SETTING: str(heard)})
    made.commands[COORDINATOR] = [COORDINATOR, "--log-level", "debug"]
    try:
        running.start()
        running.wait_connected()
        with user_of(made, parties=THREE, lead="holder") as user:
            job = user.run(order_of(user)).job
            weights = [np.frombuffer(own) for own in weights_of(made, user, job).values()]
    finally:
        running.close()
    values = []
    for held in hidden_companies().values():
        table = held["customers"]
        values += [table[name].to_numpy() for name in table.column_names if table[name].type == "double"]
    looked_for = {
        "values": list(floats(np.concatenate(values))),
        "weights": list(floats(np.concatenate(weights))),
        "names of columns": list(disguised(texts(["income", "visits", "basket", "customers", "years", "dues"]))),
    }
    received = read(heard.read_bytes())
    assert len(received) > 20
    state = [(str(path), path.read_bytes()) for path in (tmp_path / COORDINATOR / "state").rglob("*") if path.is_file()]
    everything = [("received", data) for data in received] + state
    everything.append(("log", running.log(COORDINATOR).encode()))
    assert search(looked_for, everything, short_hits=3) == {}
    own = [(p, path.read_bytes()) for p in THREE for path in (tmp_path / p / "state").rglob("*") if path.is_file()]
    own += [("weights", array.tobytes()) for array in (*weights, *values)]  # in the files they are compressed
    assert search(looked_for, own, short_hits=3).keys() == looked_for.keys()
