"""Flower starts the parties: a SuperLink and SuperNodes as processes, with TLS and node keys.

``make test-engines`` installs what it needs in an environment of its own.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from engine_world import (
    PARTIES,
    START_SECONDS,
    Children,
    make_world,
    order,
    warm,
    write_coordinator,
    write_job_file,
    write_party,
)
from one_process import forest_id, grow_here
from ports import free_port
from processes import wait_until
from world import World

import woodlot as wl

pytest.importorskip("flwr", reason="make test-engines installs Flower")

APP = Path(__file__).resolve().parents[2] / "examples" / "flower"
BIN = Path(sys.executable).parent
OFFLINE = {"FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_TELEMETRY_ENABLED": "0"}


class Flower:
    """A SuperLink and two SuperNodes."""

    def __init__(self, root: Path, world: World) -> None:
        self.root = root
        self.world = world
        self.children = Children(root)
        self._port = free_port()
        # The SuperLink and the SuperNodes look for other programs of Flower on the path.
        self._environment = OFFLINE | {"FLWR_HOME": str(root / "home"), "PATH": f"{BIN}:{os.environ['PATH']}"}
        self._make_keys()
        (root / "home").mkdir()
        (root / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "localhost:{self._port}"\n'
            f'root-certificates = "{root}/link.pem"\n'
        )

    def _make_keys(self) -> None:
        """TLS for the SuperLink, and a key for every SuperNode."""
        key = ec.generate_private_key(ec.SECP256R1())
        (self.root / "link.key").write_bytes(_private(key, serialization.PrivateFormat.PKCS8))
        (self.root / "link.pem").write_bytes(_self_signed(key))
        for party in PARTIES:
            key = ec.generate_private_key(ec.SECP384R1())
            public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
            (self.root / f"{party}.key").write_bytes(_private(key, serialization.PrivateFormat.OpenSSH))
            (self.root / f"{party}.pub").write_bytes(public)

    def start(self) -> None:
        coordinator, port = self.root / "coordinator.toml", free_port()
        write_coordinator(self.world, coordinator, listen=f"127.0.0.1:{port}")
        tls = ("--ssl-certfile", "link.pem", "--ssl-keyfile", "link.key", "--ssl-ca-certfile", "link.pem")
        self.children.start(
            "superlink",
            BIN / "flower-superlink",
            *tls,
            *("--host", "127.0.0.1", "--port", self._port, "--enable-supernode-auth"),
            "--disable-runtime-dependency-installation",
            cwd=self.root,
            WOODLOT_COORDINATOR_FILE=str(coordinator),
            **self._environment,
        )
        wait_until(lambda: self.children.check() and self._registered(), "the SuperLink", START_SECONDS, pause=1.0)
        for party in PARTIES:
            config = self.root / f"{party}.toml"
            write_party(self.world, party, config, coordinator=f"localhost:{port}")
            self.children.start(
                f"supernode-{party}",
                BIN / "flower-supernode",
                *("--root-certificates", "link.pem", "--superlink", f"localhost:{self._port}"),
                *("--auth-supernode-private-key", f"{party}.key", "--port", free_port()),
                *("--node-config", f'party="{config}"'),
                cwd=self.root,
                **self._environment,
            )

    def _registered(self) -> bool:
        return all(self.flwr("supernode", "register", self.root / f"{p}.pub", "here") is not None for p in PARTIES)

    def flwr(self, *words: object) -> str | None:
        """What a command of Flower prints, None if it fails."""
        done = subprocess.run(
            [str(BIN / "flwr"), *map(str, words)],
            capture_output=True, text=True, cwd=self.root, env=os.environ | self._environment, check=False,
        )  # fmt: skip
        with (self.root / "flwr.log").open("a") as log:
            log.write(f"{words} {done.returncode}\n{done.stdout}{done.stderr}\n")
        return done.stdout if done.returncode == 0 else None

    def run(self, settings: Path) -> tuple[str, str]:
        """The number of a run that has ended, and its status."""
        said = self.flwr("run", APP, "here", "--run-config", settings, "--format", "json")
        assert said is not None, (self.root / "flwr.log").read_text()[-3000:]
        begun = json.loads(said[said.index("{") :])
        assert begun["success"], begun
        number = str(begun["run-id"])

        def ended() -> str | None:
            self.children.check()
            listed: Any = self.flwr("list", "here", "--run-id", number, "--format", "json")
            status = str(json.loads(listed[listed.index("{") :])["runs"][0]["status"])
            return status if status.startswith("finished") else None

        return number, str(wait_until(ended, "the run", 240, pause=1.0))


def _private(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _self_signed(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A certificate of this host that is its own authority."""
    name, now = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")]), dt.datetime.now(dt.UTC)
    names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(minutes=5))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    )
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flower]:
    warm()
    federation = Flower(tmp_path_factory.mktemp("flower"), make_world(tmp_path_factory.mktemp("world")))
    try:
        federation.start()
        yield federation
    finally:
        federation.children.kill_all()


def test_a_run_gives_the_forest_of_one_process(flower: Flower, tmp_path: Path) -> None:
    world, settings = flower.world, tmp_path / "run.toml"
    order(*write_job_file(world), "--flower", str(settings))
    number, status = flower.run(settings)
    assert status == "finished:completed", flower.children.log("superlink")[-3000:]
    model = wl.load(world.root / "coordinator" / "state" / "results" / number)
    assert forest_id(model) == grow_here(world)


def test_an_order_that_a_party_forbids_fails(flower: Flower, tmp_path: Path) -> None:
    path = flower.root / "shop.toml"
    path.write_text(path.read_text().replace('train = ["alice"]', 'train = ["bob"]'))
    settings = tmp_path / "run.toml"
    order(*write_job_file(flower.world), "--flower", str(settings))
    number, status = flower.run(settings)
    assert status == "finished:failed"
    assert "has failed: party 'shop': " in " ".join((flower.flwr("log", number, "here", "--show") or "").split())
