"""The kind of job in docs/how-to/add-a-kind.md, as the page has it: added from outside, and killed in the middle."""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kill_stage import Stage, kill_everywhere
from processes import Processes, small_tables
from small_jobs import EVERYBODY, PARTIES, user_of
from world import World

import woodlot as wl
from mpi_launch import launch
from woodlot.connected import ConnectedFederation
from woodlot.exceptions import ConfigError, JobFailed, PolicyError, RemoteProtocolError
from woodlot.jobs import kind as kinds
from woodlot.jobs.order_seal import read_order
from woodlot.jobs.orders import Order

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-kind.md"
COLUMNS = {"bank": "age", "shop": "visits"}

START = """
import sys
sys.path.insert(0, {folder!r})
from woodlot.jobs import kind
kind.known.cache_clear()
kind.any_order.cache_clear()
"""
"""What a service does that was forked from one in which the package was not installed."""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def forget_kinds() -> None:
    kinds.known.cache_clear()
    kinds.any_order.cache_clear()


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The page's module as a package that is installed, with its entry point."""
    folder = tmp_path_factory.mktemp("site")
    facts = folder / "count_rows-1.0.dist-info"
    facts.mkdir()
    (folder / "count_rows.py").write_text(blocks("python")[0], encoding="utf-8")
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: count-rows\nVersion: 1.0\n", encoding="utf-8")
    (entry,) = re.findall(r"^count = \"(.*)\"$", blocks("toml")[0], re.MULTILINE)
    (facts / "entry_points.txt").write_text(f"[woodlot.kinds]\ncount = {entry}\n", encoding="utf-8")
    sys.path.insert(0, str(folder))
    forget_kinds()
    yield folder
    sys.path.remove(str(folder))
    forget_kinds()


RUN = "facts = federation.run(order)\nprint(json.loads(facts.told))\n"
"""The lines of the page that run the order."""


def last_block(federation: ConnectedFederation | wl.Federation, skip: str = "", **columns: str) -> dict[str, Any]:
    """What the page's last block leaves, without some of its lines."""
    here = {"federation": federation, "columns": COLUMNS | columns}
    namespace: dict[str, Any] = vars(importlib.import_module("count_rows")) | here
    block = blocks("python")[1]
    assert skip in block
    exec(compile(block.replace(skip, ""), PAGE.name, "exec"), namespace)  # noqa: S102
    return namespace


def count_order(federation: ConnectedFederation | wl.Federation, **columns: str) -> Order:
    """The order of the page's last block."""
    order = last_block(federation, RUN, **columns)["order"]
    assert isinstance(order, Order)
    return order


def counts(tables: Mapping[str, Mapping[str, pa.Table]]) -> dict[str, int]:
    """What the kind must count."""
    return {p: sum(v > 0.5 for v in tables[p]["customers"][c].to_pylist()) for p, c in COLUMNS.items()}


def test_it_is_found_by_its_entry_point(package: Path) -> None:
    kind = kinds.known()["count"]
    assert (kind.listed, kind.right, kind.outcome) == ("count", "predict", "")


def test_without_the_package_it_is_no_order(package: Path) -> None:
    sys.path.remove(str(package))
    forget_kinds()
    try:
        with pytest.raises(RemoteProtocolError, match="this is no order"):
            read_order(b'{"kind": "count", "threshold": 0.5}')
    finally:
        sys.path.insert(0, str(package))
        forget_kinds()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("count_rows:CountWork", "which is no Kind"),
        ("woodlot.jobs.kinds:KINDS", "which is no Kind"),
        ("count_rows:BORROWED", "entry point 'count' of woodlot.kinds .* that list 'predict'; leave out listed_as"),
    ],
)
def test_an_entry_point_that_cannot_be_used(
    package: Path, monkeypatch: pytest.MonkeyPatch, value: str, words: str
) -> None:
    module = importlib.import_module("count_rows")
    monkeypatch.setattr(module, "BORROWED", replace(module.COUNT, listed_as="predict"), raising=False)
    entries = package / "count_rows-1.0.dist-info" / "entry_points.txt"
    before = entries.read_text(encoding="utf-8")
    entries.write_text(f"[woodlot.kinds]\ncount = {value}\n", encoding="utf-8")
    forget_kinds()
    try:
        with pytest.raises(ConfigError, match=words):
            kinds.known()
    finally:
        entries.write_text(before, encoding="utf-8")
        forget_kinds()


MPI_JOB = """
[job]
y = "bank.late"
task = "classification"

[mpi.bank]
path = "bank.parquet"
id = "id"
columns = "*"
labels = ["late"]

[mpi.shop]
path = "shop.parquet"
id = "id"
columns = "*"
"""


@pytest.mark.slow
def test_it_runs_over_mpi(package: Path, tmp_path: Path) -> None:
    tables = small_tables()
    for party, own in tables.items():
        pq.write_table(own["customers"], tmp_path / f"{party}.parquet")
    (tmp_path / "job.toml").write_text(MPI_JOB)
    lines = ["import os", f"os.chdir({str(tmp_path)!r})", "from count_rows import CountOrder", f"columns = {COLUMNS!r}"]
    (tmp_path / "count.py").write_text("\n".join([*lines, blocks("python")[2], "print(told)"]))
    done = launch(3, sys.executable, tmp_path / "count.py", path=package)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert told == [counts(tables)] * 3  # every rank is told


def test_it_runs_in_one_process(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = small_tables()
    federation = wl.Federation.local({party: own["customers"] for party, own in tables.items()}, id="id")
    seen: list[str] = []
    federation.observer = lambda sender, receiver, message: seen.append(f"{receiver} {type(message).__name__}")
    facts = last_block(federation)["facts"]
    assert ast.literal_eval(capsys.readouterr().out) == counts(tables)
    assert (facts.state, facts.rounds, facts.parties) == ("done", 2, PARTIES)
    assert {"bank OpenJob", "shop CountAbove", "coordinator Counted"} <= set(seen)
    stored = federation.host.store.job(facts.job)
    assert stored is not None
    assert (stored.facts.told, stored.untold) == (facts.told, ())
    with pytest.raises(JobFailed, match="does not offer as a feature"):  # a party's own refusal
        federation.run(count_order(federation, bank="unknown"))


@pytest.mark.slow
def test_it_runs_between_processes_that_die_at_every_round(package: Path, tmp_path: Path) -> None:
    tables = small_tables()
    world = World(tmp_path / "world", tables)
    for own in world.settings.values():
        own["policy"]["protocols"] = ["align", "train", "predict", "count"]
    start = tmp_path / "start.py"
    start.write_text(START.format(folder=str(package)), encoding="utf-8")
    running = Processes(world)
    running.scripts = dict.fromkeys(EVERYBODY, (str(start), {}))
    expected = counts(tables)
    with closing(running), ThreadPoolExecutor(1) as pool:
        running.start()
        running.wait_connected()
        with user_of(world) as user:
            stage = Stage(running, user, pool, count_order, lambda job: json.loads(user.client.job(job).told))
            assert stage.expected == expected
            for victim in EVERYBODY:
                for job in kill_everywhere(stage, stage.train_order, victim, stage.replies(victim, stage.undisturbed)):
                    assert stage.outcome_of(job) == expected
            audit = ["audit", stage.undisturbed, "--state", world.root / "bank" / "state", "--json"]
            audited = subprocess.run(  # a process of its own: this one knows the messages already
                [Path(sys.executable).with_name("woodlot"), *audit], capture_output=True, text=True, check=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join([str(package), os.environ.get("PYTHONPATH", "")])},
            )  # fmt: skip
            assert "how many rows of the party are above the threshold" in audited.stdout
            with pytest.raises(JobFailed, match="does not offer as a feature"):
                user.run(count_order(user, bank="late"))
            world.settings["bank"]["policy"]["protocols"] = ["align", "train", "predict"]
            running.kill("bank")
            running.restart("bank")
            with pytest.raises((JobFailed, PolicyError), match=r"protocols in the section .* does not list 'count'"):
                user.run(count_order(user))
    assert set(expected) == set(PARTIES)
