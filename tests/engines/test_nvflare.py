"""Woodlot as a job of NVFlare: a provisioned server and sites as processes, with mutual TLS.

``make test-engines`` installs what it needs in an environment of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
from engine_world import PARTIES, make_world, order, warm, write_coordinator, write_job_file, write_party
from one_process import forest_id, grow_here
from processes import records_in, wait_until
from world import World

import woodlot as wl
from woodlot.exceptions import JournalError

pytest.importorskip("nvflare", reason="make test-engines installs NVFlare")

from flare import SERVER, Flare

# NVFlare's own: its session, which runs in this process, would not connect if a warning were an error.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

THIRD = "third"
"""The contract needs a third site."""


@pytest.fixture(scope="module")
def flare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flare]:
    federation = Flare(tmp_path_factory.mktemp("nvflare"), (*PARTIES, THIRD))
    try:
        federation.start()
        yield federation
    finally:
        federation.close()


@pytest.fixture(scope="module")
def world(flare: Flare, tmp_path_factory: pytest.TempPathFactory) -> World:
    """Bank and shop have their settings at their sites, the coordinator at the server."""
    warm()
    made = make_world(tmp_path_factory.mktemp("world"))
    write_coordinator(made, flare.local(SERVER) / "coordinator.toml")
    for party in PARTIES:
        write_party(made, party, flare.local(party) / "party.toml")
    return made


def job_id(folder: Path) -> str:
    from woodlot.engines.signed_order import SignedOrder

    server = json.loads((folder / "app" / "config" / "config_fed_server.json").read_text())
    return str(SignedOrder.decode(server["workflows"][0]["args"]["order"]).content.job)


def write_contract(folder: Path, flare: Flare, report: Path) -> Path:
    """The job that runs the driver contract."""
    here, address = "engines.nvflare_contract", str(report.with_suffix(".socket"))
    sites = list(flare.sites)
    contents = {
        "meta.json": {
            "name": "contract", "resource_spec": {}, "min_clients": len(sites), "mandatory_clients": sites,
            "deploy_map": {"app": ["server", *sites]},
        },
        "app/config/config_fed_server.json": {
            "format_version": 2,
            "server": {"task_request_interval": 0.01},
            "workflows": [
                {
                    "id": "contract",
                    "path": f"{here}.ContractController",
                    "args": {"address": address, "report": str(report)},
                }
            ],
        },
        "app/config/config_fed_client.json": {
            "format_version": 2,
            "executors": [
                {
                    "tasks": ["woodlot"],
                    "executor": {"path": f"{here}.ContractExecutor", "args": {"address": address}},
                }
            ],
        },
    }  # fmt: skip
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder


def test_the_driver_contract_with_real_sites(flare: Flare, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    began = time.monotonic()
    job = flare.submit(write_contract(tmp_path / "contract", flare, report))
    status = flare.wait(job, 900)
    assert status == "FINISHED:COMPLETED", flare.logs(job)
    suite = ElementTree.parse(report).getroot()[0]  # noqa: S314 - our own
    from runtime.driver_contract import DriverContract

    assert int(suite.attrib["tests"]) >= len([name for name in vars(DriverContract) if name.startswith("test_")])
    assert (suite.attrib["failures"], suite.attrib["errors"], suite.attrib["skipped"]) == ("0", "0", "0")
    times = {case.attrib["name"]: float(case.attrib["time"]) for case in suite.iter("testcase")}
    print(f"\ncontract: {time.monotonic() - began:.0f} s; a round: {times['test_many_rounds'] / 2_000 * 1e3:.0f} ms")


def test_a_forest_is_the_one_of_one_process(flare: Flare, world: World, tmp_path: Path) -> None:
    expected = grow_here(world)
    folder = tmp_path / "forest"
    order(*write_job_file(world), "--nvflare", str(folder))
    job = flare.submit(folder)
    assert flare.wait(job) == "FINISHED:COMPLETED", flare.logs(job)
    model = wl.load(flare.download(job) / "workspace" / "model")
    assert forest_id(model) == expected


def test_a_killed_site_and_the_job_submitted_again(flare: Flare, world: World, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    order(*write_job_file(world, n_estimators=60), "--nvflare", str(folder))
    journal = world.root / "shop" / "state" / "journal.sqlite"

    def answered() -> int:
        try:
            return records_in(journal, job_id(folder))
        except JournalError:  # it is being made
            return 0

    job = flare.submit(folder)
    before = wait_until(lambda: n if (n := answered()) > 12 else 0, "some rounds")
    flare.children.kill("shop")
    flare.abort(job)
    assert flare.wait(job) != "FINISHED:COMPLETED"
    flare.start_member("shop")
    flare.wait_for_sites()
    again = flare.submit(folder)
    assert flare.wait(again) == "FINISHED:COMPLETED", flare.logs(again)
    assert answered() > before
    model = wl.load(flare.download(again) / "workspace" / "model")
    assert forest_id(model) == grow_here(world, n_estimators=60)


def test_a_site_refuses_what_its_policy_forbids(flare: Flare, world: World, tmp_path: Path) -> None:
    write_party(world, "shop", flare.local("shop") / "party.toml")
    path = flare.local("shop") / "party.toml"
    path.write_text(path.read_text().replace('train = ["alice"]', 'train = ["bob"]'))
    folder = tmp_path / "refused"
    order(*write_job_file(world), "--nvflare", str(folder))
    job = flare.submit(folder)
    assert flare.wait(job) == "FINISHED:EXECUTION_EXCEPTION", flare.logs(job)
    assert "has failed: party 'shop': " in flare.children.log(SERVER)
