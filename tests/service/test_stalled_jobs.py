"""A coordinator that opens jobs, lets them wait, and goes on when other keys are in use: nothing old comes back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from key_bench import ROWS, KeyBench, Told, splits_order
from party_bench import play, rounds, train_order

from woodlot.exceptions import EpochError
from woodlot.jobs.key_store import KeyStore
from woodlot.jobs.order_seal import common_fields
from woodlot.jobs.orders import Order, Part
from woodlot.jobs.revocable.revocable_orders import RevokeRevocableOrder
from woodlot.jobs.revocable.stored_epochs import told_keys
from woodlot.protocols.revocable import key_messages as keys_msg
from woodlot.service.encrypted import encrypted_order

pytestmark = pytest.mark.slow

OVER = "no longer in use here"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[KeyBench]:
    with closing(KeyBench(tmp_path)) as made:
        for name, home in made.members.items():
            allowed = msgspec.structs.replace(home.policy, protocols=(*home.policy.protocols, "revoke-revocable"))
            made.members[name] = replace(home, policy=allowed)
        yield made


@pytest.fixture
def model(bench: KeyBench) -> str:
    grown = play(bench, train_order(bench)).job
    play(bench, bench.order(model=grown))
    return grown


def advance(job: Iterator[set[str]], kind: str) -> None:
    """Go on until messages of a kind have been answered."""
    while kind not in next(job):
        pass


def request(bench: KeyBench, model: str) -> Order:
    user = Told(bench, told_keys(bench.coordinator, model))
    user.model = model
    return encrypted_order(user, model, ROWS, setting="test", helper="helper", key_service="keys")


def epochs(bench: KeyBench, model: str) -> dict[str, Any]:
    loaded = {name: home.store.load(model, "another job")[0] for name, home in bench.members.items()}
    return {name: None if keys is None else (keys.epoch, keys.revoked) for name, keys in loaded.items()}


def leave(bench: KeyBench, model: str) -> RevokeRevocableOrder:
    parts = dict.fromkeys(("bank", "helper", "keys"), Part())
    certificates = {name: {**bench.homes, **bench.members}[name].identity.certificate for name in parts}
    return RevokeRevocableOrder(
        **common_fields(parts, certificates, **bench.here), holder="bank", helper="helper", key_service="keys",
        model=model, leaver="shop", task="classes", level=1, keys=model, setting="test", bits=512,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("make", "opened"),
    [(request, "UseForest"), (lambda bench, model: splits_order(bench, model, model), "TestRows")],
    ids=["encrypted", "encrypted splits"],
)
def test_no_prediction_goes_on_in_an_epoch_that_is_over(
    bench: KeyBench, model: str, make: Callable[[KeyBench, str], Order], opened: str
) -> None:
    job = rounds(bench, make(bench, model))
    advance(job, opened)
    play(bench, bench.order(model=model))
    assert epochs(bench, model) == {"helper": (2, ()), "keys": (2, ())}
    with pytest.raises(EpochError, match=OVER):
        list(job)


def test_no_prediction_goes_on_with_a_key_that_was_struck_out(bench: KeyBench, model: str) -> None:
    job, order = rounds(bench, request(bench, model)), leave(bench, model)
    advance(job, "UseForest")
    strikes = {"helper": keys_msg.RevokeAtHelper, "keys": keys_msg.RevokeAtService}
    for name, strike in strikes.items():
        member = bench.job(name, order.job)
        member.handle(bench.opening(order))
        member.handle(strike(epoch=1, party="shop"))
    assert epochs(bench, model) == dict.fromkeys(strikes, (1, ("shop",)))
    with pytest.raises(EpochError, match=OVER):
        list(job)


def test_a_revocation_that_waited_does_not_bring_keys_back(bench: KeyBench, model: str) -> None:
    """The helper has erased its share of the first epoch: with it, what was encrypted then could be opened again."""
    order = leave(bench, model)
    members = {name: bench.job(name, order.job) for name in ("helper", "keys")}
    for member in members.values():
        member.handle(bench.opening(order))
    play(bench, bench.order(model=model))
    with pytest.raises(EpochError, match=OVER):
        members["helper"].handle(keys_msg.RevokeAtHelper(epoch=1, party="shop"))
    with pytest.raises(EpochError, match=OVER):
        members["keys"].handle(keys_msg.RevokeAtService(epoch=1, party="shop"))
    assert epochs(bench, model) == {"helper": (2, ()), "keys": (2, ())}


def test_new_keys_that_waited_do_not_bring_a_leaver_back(bench: KeyBench, model: str) -> None:
    """They were ordered and prepared with the shop, whose key is struck out before they are committed."""
    waiting, order = rounds(bench, bench.order(model=model)), leave(bench, model)
    advance(waiting, "RegisterSplits")
    for name, strike in {"helper": keys_msg.RevokeAtHelper, "keys": keys_msg.RevokeAtService}.items():
        member = bench.job(name, order.job)
        member.handle(bench.opening(order))
        member.handle(strike(epoch=1, party="shop"))
    before = epochs(bench, model)
    with pytest.raises(EpochError, match="'shop' has left this model, and does not come back"):
        list(waiting)
    assert epochs(bench, model) == before == {"helper": (1, ("shop",)), "keys": (1, ("shop",))}


def test_a_rotation_that_waited_does_not_take_keys_back(bench: KeyBench, model: str) -> None:
    job = rounds(bench, bench.order(model=model))
    advance(job, "EncryptSplits")  # prepared everywhere, and not committed
    play(bench, bench.order(model=model))
    before = epochs(bench, model)
    with pytest.raises(EpochError, match="has ended here"):
        list(job)
    assert epochs(bench, model) == before


def test_two_jobs_with_one_number_of_an_epoch(bench: KeyBench, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that waited does not replace the keys of the other, which came later and was committed."""
    monkeypatch.setattr(bench.coordinator, "claim_epoch", lambda keyring, job: 2)
    waiting = rounds(bench, bench.order(model=model))
    advance(waiting, "RegisterSplits")
    play(bench, bench.order(model=model))
    stores = [home.store for home in bench.members.values()]
    stores += [KeyStore(home.store.folder / "keys") for home in bench.homes.values()]
    before = [store.load(model, "another job")[0] for store in stores]
    assert {keys.epoch for keys in before if keys is not None} == {2}
    with pytest.raises(EpochError, match="epoch 2 has begun here with other keys"):
        list(waiting)
    assert [store.load(model, "another job")[0] for store in stores] == before
    for store, keys in zip(stores, before, strict=True):
        assert keys is not None
        other = msgspec.structs.replace(keys, group=msgspec.structs.replace(keys.group, modulus=b"another"))
        with pytest.raises(EpochError, match=OVER):
            store.check_present(model, other)
        store.check_present(model, keys)
