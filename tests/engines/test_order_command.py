"""``woodlot order``, and what of the engines can be looked at without them."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest
from engine_world import make_world, write_job_file
from one_process import signed_order
from typer.testing import CliRunner
from world import World

from woodlot.cli import app
from woodlot.engines.flower import COORDINATOR_FILE, coordinator_config, take_part
from woodlot.engines.signed_order import SignedOrder
from woodlot.exceptions import ConfigError
from woodlot.identity.identity import Identity, Trust
from woodlot.jobs.order_seal import check_order
from woodlot.jobs.orders import TrainOrder
from woodlot.runtime.drivers.nvflare_carrier import NvflareCarrier, answer_task


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return make_world(tmp_path_factory.mktemp("world"))


def run(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["order", *map(str, words)])
    return done.exit_code, done.output


def test_an_order_for_each_engine(world: World, tmp_path: Path) -> None:
    job, certificates = write_job_file(world)
    folder, settings = tmp_path / "risk", tmp_path / "run.toml"
    assert run(job, "--certificates", certificates, "--nvflare", folder)[0] == 0
    assert run(job, "--certificates", certificates, "--flower", settings)[0] == 0
    server = json.loads((folder / "app" / "config" / "config_fed_server.json").read_text())
    meta = json.loads((folder / "meta.json").read_text())
    texts = [server["workflows"][0]["args"]["order"], tomllib.loads(settings.read_text())["order"]]
    trust = Trust(
        Identity.load(world.root / "alice" / "identity").authority, world.root / "alice" / "identity" / "revoked.pem"
    )
    for text in texts:
        signed = SignedOrder.decode(text)
        order, user = check_order(signed.order, signed.signature, signed.certificate, trust)
        assert isinstance(order, TrainOrder)
        assert (user, order.holder, order.parties) == ("alice", "bank", ("bank", "shop"))
        assert b"customers" not in signed.order  # the names of tables are sealed
        assert b"late" not in signed.order
    assert (meta["name"], meta["mandatory_clients"], meta["deploy_map"]) == (
        "risk", ["bank", "shop"], {"app": ["server", "bank", "shop"]}
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "say where the order goes"),
        (["--nvflare", "{tmp}/a", "--flower", "{tmp}/b"], "say where the order goes"),
        (["--nvflare", "{tmp}"], "is not an empty folder"),
        (["--flower", "{tmp}/none/run.toml"], "cannot be written"),
        (["--flower", "{tmp}/run.toml", "--identity", "{root}/bank/identity"], "identity of a party; a user needs"),
    ],
)
def test_what_is_refused(world: World, tmp_path: Path, options: list[str], words: str) -> None:
    job, certificates = write_job_file(world)
    (tmp_path / "something").touch()
    given = [option.format(tmp=tmp_path, root=world.root) for option in options]
    code, said = run(job, "--certificates", certificates, *given)
    assert code == 1
    assert words in " ".join(said.split())
    assert [path.name for path in tmp_path.iterdir()] == ["something"]


def test_certificates_that_are_missing_or_of_others(world: World, tmp_path: Path) -> None:
    job, certificates = write_job_file(world)
    out = ["--flower", tmp_path / "run.toml"]
    own = tmp_path / "certificates"
    assert "is not a folder" in run(job, "--certificates", own, *out)[1]
    own.mkdir()
    (own / "bank.pem").write_bytes((certificates / "bank.pem").read_bytes())
    assert "has no coordinator's certificate.pem" in run(job, "--certificates", own, *out)[1]
    (own / "coordinator.pem").write_bytes((certificates / "coordinator.pem").read_bytes())
    assert "there is no certificate of shop" in run(job, "--certificates", own, *out)[1]
    (own / "shop.pem").write_bytes((world.root / "alice" / "identity" / "certificate.pem").read_bytes())
    assert run(job, "--certificates", own, *out)[0] == 1


@pytest.mark.parametrize("text", ["", "no order", "AAAA", "\u00e4"])
def test_what_is_no_signed_order(text: str) -> None:
    with pytest.raises(ConfigError, match="this is no signed order; make one with: woodlot order"):
        SignedOrder.decode(text)


def test_a_party_that_is_not_ordered_does_nothing(world: World) -> None:
    world.port = 1  # where nobody listens
    order = signed_order(world).content
    assert not take_part(world.party_config("shop"), order.job, ["bank"])


def test_a_superlink_that_does_not_say_where_its_coordinator_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COORDINATOR_FILE, raising=False)
    with pytest.raises(ConfigError, match="start the SuperLink with WOODLOT_COORDINATOR_FILE"):
        coordinator_config()


def test_without_nvflare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "nvflare"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "woodlot.engines.nvflare", raising=False)
    monkeypatch.setitem(sys.modules, "nvflare", None)
    with pytest.raises(ConfigError, match=r"pip install 'woodlot\[nvflare\]'"):
        NvflareCarrier(None, None, None, "0" * 32)
    with pytest.raises(ConfigError, match=r"pip install 'woodlot\[nvflare\]'"):
        __import__("woodlot.engines.nvflare")


@pytest.mark.parametrize("wrong", [{}, {"job": 1}, {"number": "1"}, {"message": "text"}])
def test_a_task_that_is_none(wrong: dict[str, object]) -> None:
    task = {"job": "0" * 32, "number": 1, "message": b""} | wrong if wrong else {}

    def answer(job: str, number: int, request: bytes) -> bytes:
        raise AssertionError("it must not be asked")

    with pytest.raises(Exception, match="this is not a task of Woodlot"):
        answer_task(task, answer)
