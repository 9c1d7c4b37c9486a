"""A bank and a shop on two machines: from nothing to a forest in six commands and two transfers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port
from two_machines import Machines, check_who_has_what, set_up

import woodlot as wl


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    made = Machines(tmp_path)
    try:
        yield made
    finally:
        made.close()


@pytest.mark.slow
def test_a_bank_and_a_shop_in_six_commands_and_two_transfers(machines: Machines) -> None:
    began = time.monotonic()
    address = f"127.0.0.1:{free_port()}"
    log, other = set_up(machines, address)
    assert time.monotonic() - began < 600

    identity = machines.root / "a" / "bank" / "users" / "alice" / "identity"
    with wl.connect(address, identity, tables="customers", parties=["bank", "shop"]) as fed:
        model = wl.FederatedForestClassifier(5, min_samples_leaf=20, random_state=0)
        model.fit(fed, y="bank.late")
        assert fed.n_rows == 300
    machines.stop()
    assert "ending" in log.read_text()
    assert "ending" in other.read_text()
    check_who_has_what(machines)


@pytest.mark.slow
def test_whoever_stands_between_the_two_is_noticed(machines: Machines) -> None:
    """Other requests and other kits have other fingerprints; both sides refuse them and leave nothing behind."""
    asked = machines.run("b", "join", "--as", "shop", "--json")
    machines.run("a", "new")
    (machines.root / "evil").mkdir()
    (machines.root / "evil" / "home").mkdir()
    forged = machines.run("evil", "join", "--as", "shop", "--json")
    machines.send(forged["request"], "evil", "a")
    machines.run(
        "a", "provision", "federation.toml", "shop-request.pem", "--fingerprint", asked["fingerprint"], code=1
    )  # fmt: skip
    assert not (machines.root / "a" / "kits").exists()
    done = machines.run("a", "provision", "federation.toml", "--json")
    machines.run("evil", "new")
    machines.send(asked["request"], "b", "evil")
    machines.run("evil", "provision", "federation.toml", "shop-request.pem", "--fingerprint", asked["fingerprint"])
    machines.send("kits/shop.kit", "evil", "b")
    machines.run("b", "join", "shop.kit", "--authority", done["authority"], code=1)
    assert not list((machines.root / "b").rglob("ca.pem"))
