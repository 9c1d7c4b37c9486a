"""Orders, jobs, models and audits as a user meets them: the real app, against a real federation on localhost."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from checked_json import checked
from click.testing import Result
from rich.console import Console
from typer.testing import CliRunner
from world import World, running

import woodlot as wl
from woodlot.cli import app
from woodlot.cli._client import COORDINATOR_ENV, IDENTITY_ENV
from woodlot.cli._show import PHASES, _Lines, _View
from woodlot.exceptions import ConfigError
from woodlot.jobs.job_messages import JobFacts
from woodlot.runtime.drivers.grpc_line import UserLine

COMMAND = Path(sys.executable).with_name("woodlot")
N = 300
BANK_ROWS, SHOP_ROWS = 280, 290
FOREST = {"n_estimators": 30, "max_depth": 4, "random_state": 0, "oob_score": True}
PATIENCE = 300.0


def tables() -> tuple[pa.Table, pa.Table]:
    rng = np.random.default_rng(0)
    ids, X = np.arange(N) + 1000, rng.normal(size=(N, 4))
    signal_ = X[:, 0] + X[:, 2]
    label = np.where(signal_ > 0, "yes", "no")
    bank, shop = rng.permutation(N)[:BANK_ROWS], rng.permutation(N)[:SHOP_ROWS]
    return (
        pa.table({"id": ids[bank], "age": X[bank, 0], "income": X[bank, 1], "default": label[bank]}),
        pa.table({"id": ids[shop], "visits": X[shop, 2], "basket": X[shop, 3]}),
    )


BANK, SHOP = tables()
COMMON = len(set(BANK["id"].to_pylist()) & set(SHOP["id"].to_pylist()))


def make_world(root: Path) -> World:
    world = World(root, {"bank": {"customers": BANK}, "shop": {"visits": SHOP}})
    for settings in world.settings.values():
        settings["policy"]["protocols"] = ["align", "train", "predict", "revoke", "score"]
    world.settings["bank"]["tables"]["customers"] |= {"labels": ["default", "income"], "features": ["age", "income"]}
    return world


def write_job(world: World, path: Path) -> Path:
    forest = "\n".join(f"{name} = {json.dumps(value)}" for name, value in FOREST.items())
    path.write_text(
        f"""coordinator = "{world.address}"
identity = "{world.root / "alice" / "identity"}"

[job]
tables = {{ bank = "customers", shop = "visits" }}
y = "bank.default"
task = "classification"
name = "credit-risk"

[forest]
{forest}
"""
    )
    return path


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with running(make_world(tmp_path_factory.mktemp("world"))) as started:
        yield started


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (COORDINATOR_ENV, IDENTITY_ENV, "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="module")
def job_file(world: World) -> Path:
    return write_job(world, world.root / "job.toml")


@pytest.fixture(scope="module")
def trained(world: World, job_file: Path) -> Result:
    """A training that was ordered with a file, as people see it."""
    return run("train", job_file)


@pytest.fixture
def alice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a user."""
    monkeypatch.setenv(COORDINATOR_ENV, world.address)
    monkeypatch.setenv(IDENTITY_ENV, str(world.root / "alice" / "identity"))


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def say(*arguments: object) -> str:
    done = run(*arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def told(*arguments: object) -> Any:
    """The one JSON document on standard output."""
    return checked(arguments, json.loads(say(*arguments, "--json")))


def refused(*arguments: object) -> str:
    """The line of a command that is refused, which is also in its JSON."""
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (1, ""), done.output
    assert done.stderr.startswith("woodlot: ")
    assert done.stderr.count("\n") == 1
    again = run(*arguments, "--json")
    assert again.exit_code == 1
    error = json.loads(again.stdout)["error"]
    assert f"woodlot: {error['message']}\n" == done.stderr == again.stderr
    assert error["kind"].endswith("Error")
    return done.stderr


# --- training ---


def test_a_training_shows_how_it_goes_and_what_came_of_it(trained: Result) -> None:
    assert trained.exit_code == 0, trained.output
    for words in ("Forest credit-risk has grown", "30, ", f"{COMMON} in common; bank has 280, shop has 290"):
        assert words in trained.stdout
    assert re.search(r"score +\d+\.\d % accuracy, out of bag", trained.stdout)
    assert re.search(r"splits +bank \d+ \(\d+ %\), shop \d+ \(\d+ %\)", trained.stdout)
    assert re.search(r"sent +bank [\d.]+ kB, shop [\d.]+ kB; \d+ rounds", trained.stdout)
    lines = trained.stderr.splitlines()
    assert [line for line in lines if line in ("queued", "aligning", "done")] == ["queued", "aligning", "done"]
    growing = [line for line in lines if line.startswith("growing")]
    assert any(re.match(r"growing \d+/30 trees, bank .*, shop ", g) for g in growing), "levels and nodes are not told"


def test_the_commands_that_it_suggests_work(trained: Result, tmp_path: Path) -> None:
    suggested = [line.strip() for line in trained.stdout.partition("Next:")[2].splitlines() if line.strip()]
    assert [line.split()[1] for line in suggested] == ["predict", "models", "models", "audit"]
    for line in suggested:
        words = shlex.split(line.replace("FOLDER", str(tmp_path / "exported")))
        say(*words[1:])
    assert wl.load(tmp_path / "exported").n_estimators == FOREST["n_estimators"]


@pytest.mark.usefixtures("alice")
def test_options_alone_and_over_a_file(world: World, job_file: Path, trained: Result) -> None:
    options = ["--tables", "bank=customers", "--tables", "shop=visits", "--y", "bank.default"]
    settings = [word for name, value in FOREST.items() for word in ("--set", f"{name}={value}")]
    alone = told("train", *options, "--task", "classification", *settings)
    assert (alone["state"], alone["kind"], alone["n_rows"]) == ("done", "train", COMMON)
    assert (alone["forest"]["n_trees"], alone["forest"]["name"]) == (30, "")
    over = told("train", job_file, "--set", "n_estimators=3", "--set", "max_features=none", "--name", "three")
    assert (over["forest"]["n_trees"], over["forest"]["name"], over["name"]) == (3, "three", "three")
    params = over["forest"]["settings"]["params"]
    assert (params["max_depth"], params["max_features"]) == (4, None)
    with wl.connect(
        world.address, world.root / "alice" / "identity", tables={"bank": "customers", "shop": "visits"}
    ) as federation:
        model = wl.FederatedForestClassifier(**FOREST).fit(federation, y="bank.default")
        facts = federation.client.find_model(model.forest_.model)
    assert facts.forest == alone["forest"]["forest"] != over["forest"]["forest"]


@pytest.mark.usefixtures("alice")
def test_regression(tmp_path: Path) -> None:
    facts = told(
        "train", "--tables", "bank=customers", "--tables", "shop=visits", "--y", "bank.income", "--task", "regression",
        "--set", "n_estimators=3", "--name", "income",
    )  # fmt: skip
    assert facts["forest"]["classes"] == []
    shown = say("predict", "--model", "income", "--tables", "bank=customers", "--tables", "shop=visits")
    assert re.search(r"answers +from -?[\d.]+ to [\d.]+, mean ", shown)


def test_a_forest_that_cannot_be_is_refused_before_anything_is_sent(job_file: Path, trained: Result) -> None:
    before = told("jobs", "--job", job_file)
    assert "forest.max_deph for classification; did you mean 'max_depth'?" in refused(
        "train", job_file, "--set", "max_deph=3"
    )
    assert "'max_depth' parameter must be None or a whole number" in refused("train", job_file, "--set", "max_depth=0")
    assert "'criterion' parameter must be one of ['squared_error']" in refused(
        "train", job_file, "--task", "regression", "--set", "criterion=gini"
    )
    assert "class_weight['yes'] must be a number" in refused("train", job_file, "--set", 'class_weight={"yes": "much"}')
    assert "--set depth: write --set NAME=VALUE" in refused("train", job_file, "--set", "depth")
    assert "[job] says who takes part" in refused("train", job_file, "--set", "parties=3")
    assert "y is at 'bnk', who is not among the parties bank, shop" in refused("train", job_file, "--y", "bnk.default")
    assert "say one name for all" in refused("train", job_file, "--tables", "bank=customers", "--tables", "visits")
    assert told("jobs", "--job", job_file) == before


def test_a_training_that_the_label_holder_leads(job_file: Path, trained: Result) -> None:
    led = told("train", job_file, "--set", "n_estimators=3", "--name", "led")
    plain = told("train", job_file, "--set", "n_estimators=3", "--lead", "coordinator", "--name", "not-led")
    assert (led["leader"], led["score"]) == ("bank", plain["score"])
    assert led["forest"]["forest"] == plain["forest"]["forest"]
    shown = " ".join(say("models", "show", "led", "--job", job_file).split())
    assert "kept at bank, who leads its jobs: structure and answers; the splits of each party at that party." in shown
    assert "bank (leader)" in shown
    predicted = told(
        "predict", "--model", "led", "--tables", "bank=customers", "--tables", "shop=visits", "--job", job_file,
        "--score", "bank.default",
    )  # fmt: skip
    assert predicted["score"] > 0.8
    tables = ("--tables", "bank=customers", "--tables", "shop=visits", "--job", job_file, "--score", "bank.default")
    assert "names no leader of model" in refused("predict", "--model", "not-led", *tables)
    misspelt = job_file.with_name("misspelt.toml")
    misspelt.write_text(job_file.read_text().replace("[job]\n", '[job]\nlead = "coordinatr"\n'))
    wrong = [misspelt if word == job_file else word for word in tables]
    assert "job.lead must be 'holder' or 'coordinator'" in refused("predict", "--model", "not-led", *wrong)
    said = told("predict", "--model", "not-led", "--lead", "coordinator", *tables)
    assert said["score"] == predicted["score"]
    assert "SealedRequest" in say("audit", led["job"], "--job", job_file)
    assert "for layout 'columns'" in refused(
        "train", job_file, "--lead", "holder", "--layout", "rows", "--y", "default"
    )


def test_a_hidden_training(job_file: Path, trained: Result) -> None:
    hidden = ("train", job_file, "--protection", "hidden", "--set", "n_estimators=3")
    assert "use oob_score=False" in refused(*hidden)
    assert "'bank' has the labels" in refused(*hidden, "--set", "oob_score=false", "--server", "bank")
    assert "connect with lead='holder'" in refused(*hidden, "--set", "oob_score=false", "--lead", "coordinator")
    grown = told(*hidden, "--set", "oob_score=false", "--server", "shop", "--name", "hidden")
    assert (grown["leader"], grown["protection"]) == ("bank", "hidden")
    shown = " ".join(say("models", "show", "hidden", "--job", job_file).split())
    assert "protection hidden: on secret shares; only counts by bin were opened" in shown
    scored = told(
        "predict", "--model", "hidden", "--tables", "bank=customers", "--tables", "shop=visits", "--job", job_file,
        "--score", "bank.default",
    )  # fmt: skip
    assert scored["score"] > 0.4  # three trees of secret draws: the score varies from run to run
    leaving = ("revoke", "hidden", "shop", "--tables", "bank=customers", "--y", "bank.default", "--job", job_file)
    assert "the label holder alone would be left" in refused(*leaving)


# --- alignment, parties ---


@pytest.mark.usefixtures("alice")
@pytest.mark.parametrize("method", ["keyed-hash", "psi"])
def test_align_tells_what_each_party_loses(method: str) -> None:
    arguments = ["align", "--tables", "bank=customers", "--tables", "shop=visits", "--align", method]
    facts = told(*arguments)
    assert facts["n_rows"] == COMMON
    assert facts["rows"] == {"bank": BANK_ROWS, "shop": SHOP_ROWS}
    shown = say(*arguments)
    assert f"{COMMON} rows in common" in shown
    assert re.search(rf"shop +{SHOP_ROWS} +{COMMON} +{SHOP_ROWS - COMMON} ", shown)


def test_align_with_the_file_of_a_training(job_file: Path) -> None:
    assert told("align", job_file, "--align", "psi")["n_rows"] == COMMON


def test_parties(job_file: Path) -> None:
    known = told("parties", "--job", job_file)["parties"]
    assert [(party["name"], party["connected"]) for party in known] == [("bank", True), ("shop", True)]
    assert abs(known[0]["since"] - time.time()) < 600
    assert re.search(r"bank +connected +20\d\d-", say("parties", "--job", job_file))


# --- prediction ---


@pytest.fixture
def predict(job_file: Path, trained: Result) -> list[str]:
    return [
        "predict", "--model", "credit-risk", "--tables", "bank=customers", "--tables", "shop=visits",
        "--job", str(job_file),
    ]  # fmt: skip


def test_answers_by_row_number_and_beside_the_ids_of_a_party(world: World, predict: list[str], tmp_path: Path) -> None:
    out = tmp_path / "answers.csv"
    facts = told(*predict, "--out", out, "--deliver", "bank", "--score", "bank.default")
    assert facts["score"] > 0.8
    assert (facts["out"], facts["delivered_to"], facts["n_rows"]) == (str(out), "bank", COMMON)
    answers = pyarrow.csv.read_csv(out).to_pydict()
    assert answers["row"] == list(range(COMMON))
    assert not any(answers["uncertain"])
    delivered = pq.read_table(world.root / "bank" / "state" / "answers" / f"{facts['job']}.parquet").to_pydict()
    assert delivered["prediction"] == answers["prediction"]
    assert delivered["probability_yes"] == pytest.approx(answers["probability_yes"])
    truth = dict(zip(BANK["id"].to_pylist(), BANK["default"].to_pylist(), strict=True))
    right = [truth[key] == said for key, said in zip(delivered["id"], delivered["prediction"], strict=True)]
    assert np.mean(right) == pytest.approx(facts["score"])


def test_forms_of_asking_give_the_same_answers(predict: list[str], tmp_path: Path) -> None:
    parquet = tmp_path / "answers.parquet"
    shown = say(*predict, "--out", parquet)
    assert "ids stay with the parties" in shown
    answers = told(*predict)["answers"]
    written = pq.read_table(parquet).to_pydict()
    assert answers == written
    assert told(*predict, "--method", "classical")["answers"] == answers
    assert told(*predict, "--wire", "leaves", "--align", "psi")["answers"]["row"] == answers["row"]
    table = say(*predict)
    assert "The first 10 rows; --out FILE writes all" in table
    assert f"{answers['probability_yes'][9]:.3f}" in table


def test_scores_of_a_few_rows_by_their_ids(world: World, predict: list[str]) -> None:
    facts = told(*predict, "--deliver", "bank")
    delivered = pq.read_table(world.root / "bank" / "state" / "answers" / f"{facts['job']}.parquet").to_pylist()
    few, stranger = delivered[:3], "999999"
    asking = ["score", *predict[1:]]
    said = told(*asking, *(str(row["id"]) for row in few), stranger)
    assert said["answers"]["uncertain"] == [False, False, False, True]
    for name in ("id", "prediction", "probability_no", "probability_yes"):
        assert said["answers"][name][:3] == [row[name] for row in few]
    assert told("jobs", "show", said["job"], *predict[-2:])["state"] == "done"
    shown = say(*asking, str(few[0]["id"]), stranger)
    assert re.search(rf"{few[0]['id']} +{few[0]['prediction']} +{few[0]['probability_no']:.3f} ", shown)
    assert f"does not have the row: {stranger}" in shown
    for wrong, words in (
        ([*asking, "--text", "1001"], "its ids are whole numbers"),
        ([*asking[:3], *asking[-2:], "1001"], "name the tables of the parties"),
    ):
        assert words in refused(*wrong)


def test_a_score_alone_brings_no_answers(predict: list[str], job_file: Path, tmp_path: Path) -> None:
    shown = say(*predict, "--score", "bank.default")
    assert re.search(r"score +\d+\.\d % accuracy", shown)
    assert "row" not in shown.replace("rows", "")
    job = re.search(r"job +([0-9a-f]{32})", shown)
    assert job is not None
    attached = run("jobs", "attach", job[1], "--out", tmp_path / "a.csv", "--job", job_file)
    assert (attached.exit_code, attached.stdout) == (1, "")
    assert "has no answers here" in attached.stderr


def test_answers_go_to_the_file_that_was_named_when_the_job_was_detached_from(
    predict: list[str], job_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "my answers.csv"
    attach = say(*predict, "--out", out, "--detach").splitlines()[-1]
    assert not out.exists()
    assert "has a line per row" in say(*shlex.split(attach)[1:])
    assert pyarrow.csv.read_csv(out)["row"].to_pylist() == list(range(COMMON))


def test_a_file_is_refused_where_a_job_has_nothing_for_it(job_file: Path, trained: Result, tmp_path: Path) -> None:
    model = told("models", "show", "credit-risk", "--job", job_file)["model"]
    for job, kind in ((told("align", job_file)["job"], "align"), (model, "train")):
        said = refused("jobs", "attach", job, "--out", tmp_path / "a.csv", "--job", job_file)
        assert f"job {job[:8]} is of the kind '{kind}': leave --out away" in said


def test_rows_without_a_party_are_uncertain(predict: list[str]) -> None:
    outer = told(*predict, "--join", "outer")["answers"]
    assert (len(outer["row"]), sum(outer["uncertain"])) == (N, 2 * N - BANK_ROWS - SHOP_ROWS)
    alone = [*predict[:3], "--tables", "bank=customers", *predict[-2:]]
    assert f"{BANK_ROWS} rows followed both branches" in say(*alone)


# --- jobs and models ---


def test_jobs_are_listed_shown_and_attached_by_the_beginning_of_their_id(job_file: Path, trained: Result) -> None:
    everything = told("jobs", "--job", job_file)["jobs"]
    train = next(facts for facts in everything if facts["name"] == "credit-risk")
    assert re.search(rf"{train['job'][:8]} +train +done ", say("jobs", "--job", job_file))
    beginning = train["job"][:10]
    assert train["score"] is None, "the coordinator lists jobs, and the leader has the score"
    shown = told("jobs", "show", beginning, "--job", job_file)
    assert shown | {"score": None} == train
    assert shown["score"] > 0.8
    assert re.search(r"state +done", say("jobs", "show", beginning, "--job", job_file))
    attached = run("jobs", "attach", beginning, "--job", job_file)
    assert "Forest credit-risk has grown" in attached.stdout
    assert attached.stderr == "done\n"
    for command in ("attach", "cancel", "resume", "show"):
        assert "there is no job 'xyz' here" in refused("jobs", command, "xyz", "--job", job_file)
    assert "has ended already" in refused("jobs", "cancel", train["job"], "--job", job_file)
    assert "only a stopped job can be resumed" in refused("jobs", "resume", train["job"], "--job", job_file)
    misplaced = run("jobs", "--json", "show", beginning)
    assert misplaced.exit_code == 2
    assert "behind the command" in misplaced.stderr


def test_models_are_listed_shown_and_exported(job_file: Path, trained: Result, tmp_path: Path) -> None:
    known = told("models", "list", "--job", job_file)["models"]
    assert known == told("models", "--job", job_file)["models"]
    model = next(facts for facts in known if facts["name"] == "credit-risk")
    assert re.search(rf"{model['model'][:8]} +credit-risk +alice ", say("models", "--job", job_file))
    shown = say("models", "show", model["model"][:12], "--job", job_file)
    assert re.search(r"settings +max_depth=4, n_estimators=30, oob_score=True, random_state=0", shown)
    assert "in parts: bank, shop keep theirs" in shown
    assert re.search(r"bank \(leader\) +numbers +[\d.]+ kB +.*HolderOffers", shown)
    assert re.search(r"bank \(leader\) +rows +[\d.]+ kB +.*(?:EncodedLabels|Partition|Decisions)", shown)
    assert (model["led_by"], model["oob_score"]) == ("bank", None)
    model = told("models", "show", "credit-risk", "--job", job_file)
    cost = model["cost"]
    assert cost["bytes_by_party"].keys() == {"bank", "shop"}
    assert cost["total_seconds"] > 0
    assert (cost["network_seconds"], cost["wire_bytes"]) == (0, 0), "lines are the coordinator's, and its record's"
    assert told("models", "export", "credit-risk", tmp_path / "m", "--job", job_file)["complete"] is False
    loaded = wl.load(tmp_path / "m")
    assert loaded.oob_score_ == model["oob_score"]
    assert loaded.forest_.model == model["model"]
    assert "not an empty folder" in refused("models", "export", "credit-risk", tmp_path / "m", "--job", job_file)
    assert "there is no model 'nix'" in refused("models", "show", "nix", "--job", job_file)


def test_another_user_may_predict_but_neither_train_nor_take_the_model(
    world: World, job_file: Path, predict: list[str], tmp_path: Path
) -> None:
    bob = ["--identity", str(world.root / "bob" / "identity")]
    assert told(*predict, *bob, "--score", "bank.default")["user"] == "bob"
    assert "only alice may take it out" in refused(
        "models", "export", "credit-risk", tmp_path / "m", "--job", job_file, *bob
    )
    done = run("train", job_file, *bob, "--json")
    assert done.exit_code == 1
    assert json.loads(done.stdout)["state"] == "failed"
    assert "does not let 'bob' train" in done.stderr.splitlines()[-1]


# --- audit ---


def copied_journal(state: Path, to: Path) -> Path:
    """A state folder with a copy of a journal that is in use: of its two files, neither alone is whole."""
    to.mkdir()
    (to / "journal.sqlite").touch(0o600)
    with (
        closing(sqlite3.connect(f"file:{state / 'journal.sqlite'}?mode=ro", uri=True)) as journal,
        closing(sqlite3.connect(to / "journal.sqlite")) as copy,
    ):
        journal.backup(copy)
    return to


def flip_a_byte(path: Path, position: int) -> None:
    """Change one byte of one record of the job with the most records."""
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        job = db.execute("SELECT job FROM records GROUP BY job ORDER BY COUNT(*) DESC").fetchone()[0]
        (digest,) = db.execute("SELECT chain FROM records WHERE job = ? AND position = ?", (job, position)).fetchone()
    db.close()
    data = bytearray(path.read_bytes())
    at = data.find(digest)
    assert at > 0
    data[at + 7] ^= 1
    path.write_bytes(data)


def test_audit_at_the_coordinator_and_in_the_journals(
    world: World, job_file: Path, trained: Result, tmp_path: Path
) -> None:
    job = told("models", "show", "credit-risk", "--job", job_file)["model"]
    asked = told("audit", job[:12], "--job", job_file)
    assert asked["verified"]
    state = {name: world.root / name / "state" for name in ("coordinator", "bank", "shop")}
    theirs = told("audit", job, "--state", state["coordinator"])
    assert theirs["messages"] == asked["messages"]
    for party in ("bank", "shop"):
        own = told("audit", job[:8], "--state", state[party])
        sent = [one for one in theirs["digests"] if party in (one["sender"], one["receiver"])]
        assert sorted(map(str, own["digests"])) == sorted(map(str, sent))
        mine = [row for row in asked["messages"] if party in (row["sender"], row["receiver"])]
        assert sorted(map(str, own["messages"])) == sorted(map(str, mine))
    shown = say("audit", job, "--job", job_file)
    assert re.search(r"shop +coordinator +SealedReply +\d+ +[\d.]+ \w+ +encrypted", shown)
    assert "which rows have equal labels" not in shown
    assert f"All {asked['records']} records are what was written" in shown

    copy = copied_journal(state["bank"], tmp_path / "state")
    assert told("audit", "--state", copy)["verified"]
    lines = say("audit", "--state", copy).splitlines()[2:]
    assert any(line.split()[2] == job[:8] for line in lines)
    assert [line[:16] for line in lines] == sorted(line[:16] for line in lines)
    flip_a_byte(copy / "journal.sqlite", 5)
    done = run("audit", "--state", copy)
    assert done.exit_code == 1
    assert re.search(r"record 5 of job [0-9a-f]{32} is not what was written", done.stderr)
    wrong = re.search(r"of job ([0-9a-f]{32})", done.stderr)
    assert wrong is not None
    one = run("audit", wrong[1][:9], "--state", copy, "--json")
    assert (one.exit_code, json.loads(one.stdout)["verified"]) == (1, False)
    assert "record 5" in json.loads(one.stdout)["problem"]


def test_what_an_audit_cannot_find(job_file: Path, tmp_path: Path) -> None:
    assert "which job?" in refused("audit")
    assert "has no journal.sqlite" in refused("audit", "--state", tmp_path)
    assert "there is no job 'xyz'" in refused("audit", "xyz", "--job", job_file)
    assert "none.json is not there; name the receipt's file" in refused("audit", "verify", tmp_path / "none.json")


# --- what can be wrong ---


def test_where_and_who(world: World, tmp_path: Path) -> None:
    assert "no coordinator given: pass --coordinator" in refused("jobs")
    other = tmp_path / "party.toml"
    other.write_text(f'coordinator = "{world.address}"\nidentity = "{world.root}/alice/identity"\nstate = "state"\n')
    assert f"run it with: woodlot party {other}" in refused("train", other)
    with pytest.raises(ConfigError, match="address: 'localhost' is not an address such as"):
        wl.connect("localhost", world.root / "alice" / "identity", tables="customers")
    assert "who are you? Say --identity" in refused("jobs", "--coordinator", world.address)
    address = ["--coordinator", world.address, "--identity"]
    assert "woodlot identity request" in refused("models", *address, tmp_path / "nobody")
    assert "ListJobs is for users, and this is the identity of the party 'bank'" in refused(
        "jobs", *address, world.root / "bank" / "identity"
    )
    assert "is not an address such as" in refused("jobs", "--coordinator", "localhost", "--identity", tmp_path)
    assert "cannot be read" in refused("train", tmp_path / "absent.toml")
    assert "name a job.toml, or add --tables" in refused("train")
    assert "name a job.toml, or add --tables" in refused("align", *address, world.root / "alice" / "identity")


def test_a_stranger_and_a_coordinator_that_is_not_there(
    world: World, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = UserLine.__init__.__kwdefaults__ or {}
    monkeypatch.setattr(UserLine.__init__, "__kwdefaults__", {**usual, "patience": 0.5})  # a test need not wait long
    assert "no connection to the coordinator at localhost:1" in refused(
        "parties", "--coordinator", "localhost:1", "--job", job_file
    )
    stranger = World(world.root / "elsewhere", {})
    assert "refuse each other" in refused("parties", "--job", job_file, "--identity", stranger.member("user", "eve"))


def test_wrong_parties_and_files_of_a_prediction(predict: list[str], job_file: Path) -> None:
    head, job = predict[:3], ["--job", job_file]
    assert "mill never joined this federation" in refused(
        *head, "--tables", "bank=customers", "--tables", "mill=visits", *job
    )
    assert "'bank' keeps this model and leads its jobs" in refused(*head, "--tables", "shop=visits", *job)
    assert "--deliver names 'mill'" in refused(*predict, "--deliver", "mill")
    assert "with a party of ['bank', 'shop']" in refused(*predict, "--score", "mill.x")
    assert "must end in .csv or .parquet" in refused(*predict, "--out", "answers.xlsx")
    assert "make it first" in refused(*predict, "--out", "no/such/folder/a.csv")
    assert "there is no model 'nix'" in refused("predict", "--model", "nix", "--tables", "x", *job)
    assert run("predict", "--tables", "x").exit_code == 2


# --- parties that are away, detaching, and a terminal ---


class Terminal:
    """The real command on a terminal of its own."""

    def __init__(self, *arguments: object) -> None:
        self._leader, follower = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        self._process = subprocess.Popen(
            [COMMAND, *map(str, arguments)], stdin=follower, stdout=follower, stderr=follower, env=environment,
            start_new_session=True,
        )  # fmt: skip
        os.close(follower)
        self._heard = b""

    @property
    def shown(self) -> str:
        """All that was written, as text: what is read at once may end within an escape sequence or a letter."""
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self._heard.decode(errors="replace"))

    def read_until(self, words: str) -> None:
        until = time.monotonic() + PATIENCE
        while words not in self.shown:
            assert time.monotonic() < until, self.shown
            assert self._read(), self.shown

    def _read(self) -> bool:
        try:
            self._heard += os.read(self._leader, 65536)
        except OSError:  # the other side is closed
            return False
        return True

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._leader)
        return self._process.wait(PATIENCE)


def test_what_a_terminal_shows_while_trees_grow() -> None:
    facts = JobFacts(
        job="7" * 32, kind="train", user="alice", state="running", version=1, created=1000.0, started=1000.0,
        phase="grow", done=20, total=200, note="level 5, 1,240 nodes", rounds=21,
        bytes_by_party={"bank": 3_200_000, "shop": 2_900_000},
    )  # fmt: skip
    view, console = _View(), Console(width=80, file=io.StringIO())

    def picture(now: float) -> str:
        with console.capture() as capture:
            console.print(view.render(facts, now, view_began + now - 1000))
        return capture.get()

    view_began = time.monotonic()
    view(facts)
    assert "left" not in picture(1001.0)  # nothing is known yet of how fast it goes
    facts = msgspec.structs.replace(facts, done=110)
    view._pace.saw(facts, view_began + 9)
    shown = picture(1012.0)
    assert re.match(r"growing +━+╸?╺?━* +110/200 trees +0:12 +about 0:0[56] left", shown)
    assert "level 5, 1,240 nodes · bank 3.2 MB · shop 2.9 MB  [Ctrl-C detaches]" in shown
    facts = msgspec.structs.replace(facts, waiting_for=("shop",))
    view(facts)
    assert "waiting for shop (0:" in picture(1013.0)
    assert "left" not in picture(1013.0)
    view(None)
    assert "no connection to the coordinator; trying again" in picture(1014.0)


def test_where_there_is_no_terminal_a_word_is_not_repeated() -> None:
    facts = JobFacts(job="7" * 32, kind="train-linear", user="alice", state="running", version=1, created=1000.0)
    out = io.StringIO()
    lines = _Lines(Console(file=out))
    for phase in ("prepare", "descend", "slopes", "unmask", "advance", "descend", "slopes", "finish"):
        lines(msgspec.structs.replace(facts, phase=phase))
    assert out.getvalue().split() == ["preparing", "fitting", "finishing"]


def test_every_phase_of_a_protocol_has_a_word() -> None:
    source = Path(wl.__file__).parent
    phases = {phase for path in source.rglob("*.py") for phase in re.findall(r'Round\(\s*"([^"]+)"', path.read_text())}
    assert len(phases) > 15
    assert phases <= PHASES.keys()


@pytest.fixture(scope="module")
def second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Path]]:
    """A federation whose members come and go."""
    with running(make_world(tmp_path_factory.mktemp("second"))) as started:
        job_file = write_job(started, started.root / "job.toml")
        wait_for_parties(job_file, "bank", "shop")
        yield started, job_file


def wait_for_parties(job_file: Path, *names: str) -> None:
    """A party knows that it is connected a little before the coordinator knows the party."""
    until = time.monotonic() + PATIENCE
    while True:
        known = told("parties", "--job", job_file)["parties"]
        if [party["name"] for party in known if party["connected"]] == sorted(names):
            return
        assert time.monotonic() < until, known
        time.sleep(0.05)


def wait_for(job: str, job_file: Path, **facts: Any) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        shown = told("jobs", "show", job, "--job", job_file)
        if all(shown[name] == value for name, value in facts.items()):
            return
        assert time.monotonic() < until, shown
        time.sleep(0.1)


def test_a_job_waits_is_detached_from_and_cancelled(second: tuple[World, Path]) -> None:
    world, job_file = second
    world.stop_party("shop")
    ordered = told("train", job_file, "--detach")
    job = ordered["job"][:9]
    assert ordered["state"] in ("queued", "running")
    wait_for(job, job_file, state="queued", waiting_for=["shop"])
    assert re.search(r"shop +away", say("parties", "--job", job_file))
    assert "waiting for shop" in say("jobs", "--job", job_file)
    terminal = Terminal("jobs", "attach", job, "--job", job_file)
    terminal.read_until("waiting for shop (")
    terminal.interrupt()
    assert terminal.end() == 130
    assert f"detached; job {job[:8]} goes on. To attach again: woodlot jobs attach {job[:8]}" in terminal.shown
    assert "Job " in say("jobs", "cancel", job, "--job", job_file)
    assert told("jobs", "show", job, "--job", job_file)["state"] == "cancelled"
    attached = run("jobs", "attach", job, "--job", job_file, "--json")
    assert (attached.exit_code, json.loads(attached.stdout)["state"]) == (1, "cancelled")
    assert attached.stderr.endswith(f"woodlot: job {job[:8]} is cancelled\n")
    detached = say("train", job_file, "--detach")
    assert re.search(r"Job [0-9a-f]{32} is \w+. To follow it:\n  woodlot jobs attach [0-9a-f]{8} --job", detached)
    say("jobs", "cancel", detached.split()[1], "--job", job_file)
    world.start_party("shop")
    wait_for_parties(job_file, "bank", "shop")


@pytest.mark.slow
def test_a_job_is_followed_through_a_restart_of_the_coordinator(second: tuple[World, Path]) -> None:
    world, job_file = second
    world.stop_party("shop")
    terminal = Terminal("train", job_file, "--name", "restarted")
    terminal.read_until("waiting for shop")
    world.stop_coordinator()
    world.start_coordinator()
    world.start_party("shop")
    assert terminal.end() == 0, terminal.shown
    assert "Ctrl-C detaches" in terminal.shown
    assert "Forest restarted has grown." in terminal.shown


def test_a_job_that_stopped_is_resumed(second: tuple[World, Path]) -> None:
    world, job_file = second
    world.stop_party("shop")
    world.stop_coordinator()
    world.coordinator_settings["wait_for_parties"] = 1
    world.start_coordinator()
    wait_for_parties(job_file, "bank")
    done = run("train", job_file)
    assert done.exit_code == 1
    assert done.stdout == ""
    job = re.search(r"woodlot: job (\w{8}) has stopped: party 'shop' was not connected", done.stderr)
    assert job is not None, done.stderr
    assert f"to resume it: woodlot jobs resume {job[1]} --job" in done.stderr
    world.start_party("shop")
    wait_for_parties(job_file, "bank", "shop")
    assert told("jobs", "resume", job[1], "--job", job_file)["forest"]["n_trees"] == 30
