"""The examples for real machines: their files are sound, fit each other, and name commands and options that exist."""

from __future__ import annotations

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from click.testing import Result
from typer.testing import CliRunner
from world import World, running

from woodlot import FederatedForestClassifier
from woodlot.cli import app
from woodlot.cli._companies import ID, LABEL, TEST_TABLES, make_companies
from woodlot.estimators.parameters import check_parameters
from woodlot.service.config import CoordinatorConfig, JobConfig, PartyConfig

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
MACHINES = EXAMPLES / "three-machines"
THREE = EXAMPLES / "three-hospitals"
HOSPITALS = ("anna", "bern", "chur")
PAGES = sorted(EXAMPLES.glob("*/README.md"))
UNITS = sorted((EXAMPLES / "systemd").glob("*.service"))
COMPOSE = (EXAMPLES / "container" / "compose.yaml").read_text(encoding="utf-8")
PARTIES = {name: PartyConfig.load(MACHINES / f"{name}.toml") for name in ("bank", "shop")}
JOB = JobConfig.load(MACHINES / "job.toml")


# --- configuration ---


def test_everybody_dials_the_port_that_the_coordinator_listens_on() -> None:
    coordinator = CoordinatorConfig.load(MACHINES / "coordinator.toml")
    addresses = {JOB.coordinator, *(party.coordinator for party in PARTIES.values())}
    assert len(addresses) == 1
    (address,) = addresses
    assert address is not None
    assert address.port == coordinator.listen.port


def test_the_job_asks_for_what_the_parties_have_and_allow() -> None:
    assert JOB.job.parties == tuple(PARTIES)
    tables = JOB.job.tables
    assert isinstance(tables, dict)
    for name, party in PARTIES.items():
        assert tables[name] in party.tables
        party.policy.check_order("train", "alice")
        party.policy.check_order("predict", "alice")
        party.policy.check_leaf(JOB.forest["min_samples_leaf"])
    holder, _, label = JOB.job.y.partition(".")
    assert label in (PARTIES[holder].tables[tables[holder]].columns or ())
    forest = FederatedForestClassifier(**JOB.forest)
    check_parameters(forest)


def test_the_tables_are_those_of_the_demonstration() -> None:
    companies = make_companies(100, seed=0)
    tables = {name: party.tables for name, party in PARTIES.items()}
    assert set(tables["bank"]["customers"].columns or ()) == {*companies.bank_columns, LABEL}
    assert list(tables["shop"]["customers"].columns or ()) == companies.shop_columns
    assert list(tables["bank"][TEST_TABLES["bank"]].columns or ()) == companies.bank_columns
    assert {table.id for held in tables.values() for table in held.values()} == {ID}


# --- three hospitals ---


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The federation of the example on this machine, with the example's own settings and made-up patients."""
    root = tmp_path_factory.mktemp("hospitals")
    folders = [str(root / name) for name in HOSPITALS]
    subprocess.run([sys.executable, str(THREE / "make_tables.py"), *folders], check=True)
    world = World(root, {name: {} for name in HOSPITALS})
    for name in HOSPITALS:
        own = tomllib.loads((THREE / "hospital.toml").read_text(encoding="utf-8"))
        del own["coordinator"]
        world.settings[name] = own | {"n_jobs": 1}
    with running(world) as started:
        yield started


def order(world: World, name: str) -> Result:
    """What Alice's command does with a job file of the example."""
    text = (THREE / name).read_text(encoding="utf-8").replace("coordinator.example:7443", world.address)
    text = text.replace("n_estimators = 100", "n_estimators = 10")
    folder = world.root / "alice"
    (folder / name).write_text(text, encoding="utf-8")
    return CliRunner().invoke(app, ["train", str(folder / name)])


@pytest.mark.slow
def test_the_hospitals_grow_both_forests_and_stay_within_their_budgets(hospitals: World) -> None:
    for name, grown in (("job.toml", "readmissions"), ("private.toml", "readmissions-private")):
        done = order(hospitals, name)
        assert done.exit_code == 0, done.output
        assert f"Forest {grown} has grown." in done.stdout
    job = str(hospitals.root / "alice" / "job.toml")
    line = ["predict", "--model", "readmissions", "--tables", "patients", "--score", "readmitted", "--job", job]
    done = CliRunner().invoke(app, [*line, "--json"])
    assert json.loads(done.stdout)["score"] > 0.75
    config = hospitals.root / "anna" / "hospital.toml"
    shutil.copy(THREE / "hospital.toml", config)
    done = CliRunner().invoke(app, ["budget", "show", str(config), "--json"])
    (patients,) = json.loads(done.stdout)["tables"]
    labels, rows = patients["accounts"]
    assert labels["epsilon"] == pytest.approx(2.0)
    assert "at most 89% sure" in labels["meaning"]
    assert "1 training and 1 other job have used this table" in labels["uncovered"]
    assert "2 trainings and 1 other job have used this table" in rows["uncovered"]
    assert "at most 89%\nsure" in (THREE / "README.md").read_text(encoding="utf-8")


# --- what the pages say ---


def command_lines(text: str) -> Iterator[list[str]]:
    """Arguments of ``woodlot`` in shell blocks and in code of one line, also where another program runs it."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    lines += re.findall(r"(?<!`)`(woodlot [^`]+)`(?!`)", text)
    for line in lines:
        words = shlex.split(line, comments=True)
        if words[:3] == ["podman", "compose", "run"] and "--entrypoint" not in words:
            service = next(i for i, word in enumerate(words) if i > 2 and not word.startswith("-"))
            yield words[service + 1 :]
            continue
        begins = [0, *(i + 1 for i, word in enumerate(words) if word == "--")]
        for begin in begins:
            if words[begin : begin + 1] and words[begin].rpartition("/")[2] == "woodlot":
                yield words[begin + 1 :]


def refusal(arguments: list[str]) -> str:
    """Why the command line would not understand these arguments; empty: it does."""
    command: Any = typer.main.get_command(app)
    context = command.make_context("woodlot", [], resilient_parsing=True)
    while hasattr(command, "commands") and arguments and not arguments[0].startswith("-"):
        name, *arguments = arguments
        if name not in command.commands:
            return f"no command {name}"
        command = command.commands[name]
        context = type(context)(command, parent=context, info_name=name)
    try:
        values, left, _ = command.make_parser(context).parse_args(list(arguments))
    except Exception as error:  # noqa: BLE001 - whatever the parser has against it
        return str(error)
    needed = {parameter.name for parameter in command.params if parameter.required}
    missing = sorted(name for name in needed if values.get(name) in (None, ()))
    if left or missing:
        return f"left over: {left}, missing: {missing}"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_commands_on_the_page_exist(page: Path) -> None:
    lines = list(command_lines(page.read_text(encoding="utf-8")))
    assert lines
    assert {shlex.join(line): why for line in lines if (why := refusal(line))} == {}


def test_the_step_by_step_shows_every_command_that_it_needs() -> None:
    lines = list(command_lines((MACHINES / "README.md").read_text(encoding="utf-8")))
    shown = {" ".join(line[: 2 if line[0] == "identity" else 1]) for line in lines}
    wanted = {"init", "request", "sign", "install", "show", "revoke"}
    assert {f"identity {name}" for name in wanted} <= shown
    assert {"coordinator", "party", "parties", "align", "train", "jobs", "models", "predict", "audit"} <= shown


@pytest.mark.parametrize(
    "wrong",
    ["harvest", "train job.toml --sead 1", "identity request identity", "models shew x", "coordinator a.toml b.toml"],
)
def test_a_wrong_command_would_be_found(wrong: str) -> None:
    assert refusal(shlex.split(wrong))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.parent.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_python_on_the_page_names_what_there_is() -> None:
    import woodlot

    used = {
        MACHINES: {"connect", "FederatedForestClassifier"},
        THREE: {"connect", "load", "HorizontalForestClassifier"},
    }
    for folder, expected in used.items():
        page = (folder / "README.md").read_text(encoding="utf-8")
        (block,) = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
        compile(block, "README.md", "exec")
        names = re.findall(r"wl\.(\w+)", block)
        assert expected == set(names)
        assert all(hasattr(woodlot, name) for name in names)
        assert f'y="{JobConfig.load(folder / "job.toml").job.y}"' in block


# --- services and containers ---


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign, assignment]
    parser.read(path, encoding="utf-8")
    return parser


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_run_commands_that_exist_with_few_rights(path: Path) -> None:
    service = unit(path)["Service"]
    program, *arguments = shlex.split(service["ExecStart"])
    assert program.endswith("bin/woodlot")
    assert refusal(arguments) == ""
    assert service["User"] not in ("", "root")
    assert (service["NoNewPrivileges"], service["ProtectSystem"], service["CapabilityBoundingSet"]) == (
        "yes", "strict", "",
    )  # fmt: skip
    assert service["UMask"] == "0077"
    assert "MemoryDenyWriteExecute" not in service  # numba could not compile
    assert service["Environment"] == f"NUMBA_CACHE_DIR=/var/cache/{service['CacheDirectory']}"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_understands_the_units(path: Path, tmp_path: Path) -> None:
    text = re.sub(r"^ExecStart=\S+", f"ExecStart={shutil.which('true')}", path.read_text(encoding="utf-8"), flags=re.M)
    copy = tmp_path / path.name
    copy.write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.stdout + done.stderr == ""
    assert done.returncode == 0


def test_the_image_runs_as_nobody_special() -> None:
    text = (EXAMPLES / "container" / "Containerfile").read_text(encoding="utf-8")
    last_stage = text[text.rindex("\nFROM ") :]
    assert re.findall(r"^USER (\S+)", last_stage, re.MULTILINE) == ["woodlot"]
    assert 'ENTRYPOINT ["woodlot"]' in last_stage
    for source in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE):
        assert all((EXAMPLES.parent / name).exists() for name in source.split())


def test_containers_run_commands_that_exist_on_files_that_exist() -> None:
    commands = [json.loads(found) for found in re.findall(r"^ +command: (\[.*\])$", COMPOSE, re.MULTILINE)]
    assert [command[0] for command in commands] == ["coordinator", "party", "party"]
    for command in commands:
        assert refusal(command) == ""
        assert f"../three-machines/{command[1]}:/var/lib/woodlot/{command[1]}:ro" in COMPOSE
        assert (MACHINES / command[1]).is_file()
    assert len(re.findall(r"^ +ports:", COMPOSE, re.MULTILINE)) == 1  # only the coordinator is reached from outside
