"""Linear models between organisations: over TLS, by signed orders, with weights that stay at the parties."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
from party_bench import Bench, play
from processes import small_tables
from small_jobs import PARTIES, user_of
from typer.testing import CliRunner
from world import World, running

import woodlot as wl
from woodlot.cli import app
from woodlot.exceptions import DataError, PolicyError, RemoteProtocolError
from woodlot.jobs.linear.linear_orders import PredictLinearOrder, TrainLinearOrder
from woodlot.jobs.order_seal import read_order, sign_order
from woodlot.jobs.orders import TrainOrder
from woodlot.protocols.linear import linear_messages
from woodlot.protocols.linear.linear_model import LinearPlan
from woodlot.protocols.vertical import forest_messages
from woodlot.runtime.codec import decode, encode
from woodlot.service.client import JobFailed

EVERYTHING = ("align", "train", "predict", "train-linear", "predict-linear")
PLAN = LinearPlan(
    task="classes", strength=1.0, fit_intercept=True, standardize=True, balanced=False, class_weight=(), max_iter=50,
    tol=1e-6,
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("linear"), small_tables())
    for settings in made.settings.values():
        settings["policy"]["protocols"] = list(EVERYTHING)
    made.settings["bank"]["tables"]["customers"] |= {
        "labels": ["late", "income"],
        "features": ["age", "income", "late"],
    }
    with running(made):
        yield made


def test_fitted_and_used_over_the_services(world: World, tmp_path: Path) -> None:
    with user_of(world) as federation:
        federation.align()
        model = wl.FederatedLogisticRegression(tol=1e-8).fit(federation, y="bank.late")
        tables = {party: held["customers"] for party, held in small_tables().items()}
        here = wl.Federation.local(tables, id="id")
        twin = wl.FederatedLogisticRegression(tol=1e-8).fit(here, y="bank.late")
        assert list(model.classes_) == ["no", "yes"]
        assert model.n_iter_ == twin.n_iter_
        # rows come in an order of the parties' own
        np.testing.assert_allclose(
            np.sort(model.predict_proba(federation)[:, 1]), np.sort(twin.predict_proba(here)[:, 1]), atol=1e-9
        )
        np.testing.assert_allclose(np.sort(model.decision_function(federation)), np.sort(twin.decision_function(here)))
        assert model.score(federation) == twin.score(here)
        assert {row.kind for row in model.prediction_disclosure_} >= {"AskScores", "Scores"}
        assert (model.predict(federation) == "yes").sum() == (twin.predict(here) == "yes").sum()
        line = wl.FederatedLinearRegression().fit(federation, y="bank.income")
        assert line.score(federation) == pytest.approx(
            wl.FederatedLinearRegression().fit(here, y="bank.income").score(here)
        )
        model.save(tmp_path / "model")
        assert wl.load(tmp_path / "model").score(federation) == model.score(federation)
        with pytest.raises(DataError, match="without sample_weight"):
            model.score(federation, sample_weight="bank.income")
        with pytest.raises(DataError, match=r"only their party sees: y='party.column'"):
            model.score(federation, [0, 1])
        with pytest.raises(JobFailed, match="the setting labels of that table"):
            wl.FederatedLogisticRegression().fit(federation, y="bank.nothing")
        forest = wl.FederatedForestClassifier(2, random_state=0).fit(federation, y="bank.late")
        with pytest.raises(DataError, match="linear model, not a forest"):
            federation.client.submit(federation.predict_order(str(model.linear_.model)))
        with pytest.raises(DataError, match="this model is a forest"):
            federation.client.submit(federation.predict_linear_order(str(forest.forest_.model)))
    files = {p: sorted((world.root / p / "state" / "models").rglob("part.json")) for p in PARTIES}
    assert all(len(found) >= 2 for found in files.values())


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def ordered(bench: Bench, **changes: object) -> TrainLinearOrder:
    return TrainLinearOrder(**(bench.fields() | {"holder": "bank", "plan": PLAN, "settings": "{}"} | changes))


def test_a_policy_does_not_allow_it_by_default(bench: Bench) -> None:
    order = ordered(bench)
    with pytest.raises(PolicyError, match="does not train-linear"):
        bench.job("bank", order.job).handle(bench.opening(order))
    for party in PARTIES:
        bench.change_policy(party, protocols=EVERYTHING)
    assert play(bench, order)
    with pytest.raises(PolicyError, match="does not let 'bob' train-linear"):
        bench.job("bank", order.job).handle(bench.opening(order, user="bob"))


def test_a_restarted_party_repeats_itself_and_refuses_what_was_not_ordered(bench: Bench) -> None:
    for party in PARTIES:
        bench.change_policy(party, protocols=EVERYTHING)
    order = ordered(bench)
    said = play(bench, order)
    for party in PARTIES:
        again = bench.job(party, order.job)
        for asked, told in zip(said.asked[party], said.answered[party], strict=True):
            assert encode(again.handle(decode(asked))) == told
    fresh = ordered(bench)
    job = bench.job("shop", fresh.job)
    for asked in said.asked["shop"][1:]:
        with pytest.raises(RemoteProtocolError):
            job.handle(decode(asked))
    job.handle(bench.opening(fresh))
    for message in (
        linear_messages.AskScores(),
        linear_messages.FinishLinear(),
        linear_messages.Descend(step=np.empty(0), residuals=np.zeros((3, 1)), penalty=1.0, curvature=1.0),
        forest_messages.OpenTraining(max_bins=None),
        forest_messages.AskDecisions(wire="decisions", shuffled=None, seed=0),
    ):
        with pytest.raises(RemoteProtocolError, match=f"Unexpected {type(message).__name__}; "):
            job.handle(message)
    with pytest.raises(RemoteProtocolError, match="does not ask for such a model"):
        job.handle(linear_messages.OpenLinear(centred=False, standardised=True))


def test_orders_name_their_own_parties(bench: Bench) -> None:
    for wrong in (
        ordered(bench, holder="post"),
        PredictLinearOrder(**bench.fields(), model="0" * 32, score_at="post"),
        ordered(bench, join="outer"),
    ):
        data, _ = sign_order(wrong, bench.users["alice"])
        with pytest.raises(RemoteProtocolError, match=r"not among its parties|join must be 'inner'"):
            read_order(data)
    order = ordered(bench)
    assert read_order(sign_order(order, bench.users["alice"])[0]) == order
    assert not isinstance(order, TrainOrder)
    assert msgspec.json.decode(msgspec.json.encode(PLAN), type=LinearPlan) == PLAN


def test_from_the_command_line(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    who = ["--coordinator", world.address, "--identity", str(world.root / "alice" / "identity")]

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, *who])
        assert result.exit_code == 0, result.output
        return result.output

    train = ["train", "--tables", "customers", "--y", "bank.late", "--task", "classification", "--name", "line"]
    assert "Model line is fitted." in run(*train, "--set", "kind=linear", "--set", "C=0.5")
    assert "accuracy" in run("predict", "--model", "line", "--tables", "customers", "--score", "bank.late")
    ordered = run("predict", "--model", "line", "--tables", "customers", "--out", "answers.csv", "--detach")
    attach = ordered.splitlines()[-1].split()  # as it is suggested, with the file
    assert attach[1:3] == ["jobs", "attach"]
    assert "answers.csv has a line per row" in run(*attach[1:])
    run("predict", "--model", "line", "--tables", "customers", "--out", "at-once.csv")
    assert Path("answers.csv").read_text() == Path("at-once.csv").read_text()
    assert "line" in run("models", "list")
    run("models", "show", "line")
    run("models", "export", "line", "folder")
    with user_of(world) as federation:
        model = wl.load("folder")
        assert isinstance(model, wl.FederatedLogisticRegression)
        assert model.C == 0.5
        assert model.score(federation, "bank.late") > 0.7
    for words, told in (
        ([*train, "--set", "kind=tree"], "forest.kind is 'linear', 'revocable' or left out"),
        ([*train, "--set", "kind=linear", "--set", "max_depth=3"], "no setting forest.max_depth"),
        ([*train, "--set", "kind=linear", "--set", "C=-1"], "'C' parameter must be a positive number"),
        (["predict", "--model", "line", "--tables", "customers", "--method", "sealed"], "--method and --wire are for"),
    ):
        result = CliRunner().invoke(app, [*words, *who])
        assert result.exit_code == 1
        assert told in result.output
