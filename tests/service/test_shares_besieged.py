"""A coordinator that goes on with old orders and open jobs when a party has left its shares; and orders of parties."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from key_bench import ROWS
from party_bench import play, rounds
from share_bench import MEMBERS, ShareBench

from woodlot.exceptions import EpochError, PolicyError
from woodlot.identity.identity import Identity
from woodlot.jobs import job_messages as msg
from woodlot.jobs.key_store import forest_of_model
from woodlot.jobs.order_seal import common_fields
from woodlot.jobs.orders import Part
from woodlot.jobs.revocable.revocable_orders import KeysOrder, PredictEncryptedOrder, RevokeRevocableOrder
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import share_messages as shares
from woodlot.protocols.revocable.key_messages import CommitEpoch, Ticket, UseForest
from woodlot.protocols.revocable.share_predict import prepare_shares, share_splits
from woodlot.protocols.vertical.files import forest_id_of
from woodlot.runtime.codec import decode, encode


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[ShareBench]:
    with closing(ShareBench(tmp_path, forgets=True)) as made:
        yield made


@pytest.fixture
def model(bench: ShareBench) -> str:
    return play(bench, bench.training()).job


def drive(jobs: Mapping[str, Any], protocol: Any) -> Any:
    """Run a part of a protocol with jobs that are open."""
    replies: Any = None
    while True:
        try:
            step = next(protocol) if replies is None else protocol.send(replies)
        except StopIteration as end:
            return end.value
        replies = {p: decode(encode(jobs[p].handle(decode(encode(m))))) for p, m in step.requests.items()}


def advance(job: Iterator[set[str]], kind: str) -> None:
    """Go on until messages of a kind have been answered."""
    while kind not in next(job):
        pass


def owners_at(bench: ShareBench, model: str) -> dict[str, set[str]]:
    """Whose shares each holder has on its disk, of any forest of the model."""
    found = {}
    for name, home in bench.members.items():
        book = home.store.shares(model)
        found[name] = {owner for path in book._files() for owner in book._read(path)}
    return found


WITHOUT = {"helper": {"bank"}, "keys": {"bank"}}


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("waits", ["ShareSplits", "RegisterAtHelper"])
@pytest.mark.slow
def test_new_keys_that_waited_do_not_bring_a_leaver_back(
    bench: ShareBench, model: str, level: int, waits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parties have sealed their shares for an epoch of a larger number before one of them leaves."""
    numbers = iter([5, 2])
    monkeypatch.setattr(bench.coordinator, "claim_epoch", lambda keyring, job: next(numbers))
    waiting = rounds(bench, bench.shares_order(model))
    advance(waiting, waits)
    play(bench, msgspec.structs.replace(bench.leaving(model), level=level))
    assert owners_at(bench, model) == WITHOUT
    with pytest.raises(EpochError, match=r"'shop' has left this model|shares of this epoch were deleted"):
        list(waiting)
    assert owners_at(bench, model) == WITHOUT


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.slow
def test_nor_do_new_keys_of_an_order_that_was_opened_before(bench: ShareBench, model: str, level: int) -> None:
    """All of the epoch is prepared when the shop has left, in a job that every member has open."""
    order = bench.shares_order(model)
    jobs = {name: bench.job(name, order.job) for name in order.parties}
    for job in jobs.values():
        job.handle(bench.opening(order))
    forest = bench.coordinator.forest(model).coordinator
    for name in ("bank", "shop"):
        jobs[name].handle(UseForest(forest=forest_id_of(forest)))
    play(bench, msgspec.structs.replace(bench.leaving(model), level=level))
    before = {name: home.store.load(model, "another job") for name, home in bench.members.items()}
    keys = drive(jobs, prepare_shares(("bank", "shop"), helper="helper", key_service="keys", epoch=9))
    named = forest_of_model(model, forest_id_of(forest))
    with pytest.raises(EpochError, match="'shop' has left this model, and does not come back"):
        drive(jobs, share_splits(forest, keys, fingerprint=named))
    for name in bench.members:  # also where nothing was registered
        with pytest.raises(EpochError, match="'shop' has left this model"):
            jobs[name].handle(CommitEpoch(epoch=9))
    assert owners_at(bench, model) == WITHOUT
    assert {name: home.store.load(model, "another job") for name, home in bench.members.items()} == before


def test_those_who_stay_get_new_keys_after_each_leaving(bench: ShareBench, model: str) -> None:
    left = play(bench, msgspec.structs.replace(bench.leaving(model), level=2)).job
    stays = KeysOrder(**bench.fields_of_all(bank=Part()), model=left, keys=model, **MEMBERS)
    play(bench, stays)
    play(bench, msgspec.structs.replace(stays, **bench.fields_of_all(bank=Part())))
    assert {home.store.load(model, "another job")[1] for home in bench.members.values()} == {4}
    assert {tuple(home.store.left(model)) for home in bench.members.values()} == {("shop",)}
    assert owners_at(bench, model) == WITHOUT


@pytest.mark.parametrize("opened", ["UseForest", "CompareAtHelper"])
@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.slow
def test_no_request_goes_on_when_a_party_has_left_or_keys_are_new(
    bench: ShareBench, model: str, opened: str, level: int
) -> None:
    job = rounds(bench, bench.request(model))
    advance(job, opened)
    leaving = msgspec.structs.replace(bench.leaving(model), level=level or 1)
    play(bench, leaving if level else bench.shares_order(model))
    with pytest.raises(EpochError, match="no longer in use here"):
        list(job)


def test_keys_of_a_leaving_that_was_cancelled_are_replaced(bench: ShareBench, model: str) -> None:
    advance(rounds(bench, bench.leaving(model)), "RegisterAtHelper")  # and no more of it
    assert {home.store.load(model, "another job")[0].registered for home in bench.members.values()} != {b""}
    assert play(bench, bench.shares_order(model)).outcome.keys.epoch == 2
    assert play(bench, bench.request(model)).outcome.shape == (1, 2)


@pytest.mark.parametrize(("level", "last"), [(1, "RevokeAtHelper"), (2, "CommitEpoch")])
@pytest.mark.slow
def test_who_was_struck_out_in_a_leaving_that_was_cancelled_leaves_again(
    bench: ShareBench, model: str, level: int, last: str
) -> None:
    advance(rounds(bench, msgspec.structs.replace(bench.leaving(model), level=level)), last)
    with pytest.raises(EpochError, match="'shop' has left this model"):
        play(bench, bench.shares_order(model))
    left = play(bench, msgspec.structs.replace(bench.leaving(model), level=2)).job
    rows = {name: ROWS[name] for name in ("bank.age", "bank.income")}
    assert play(bench, bench.request(left, rows)).outcome.shape == (1, 2)


@pytest.mark.parametrize("restored", ["helper", "keys"])
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.slow
def test_one_holder_with_an_older_state_folder_brings_no_one_back(
    bench: ShareBench, model: str, level: int, restored: str, tmp_path: Path
) -> None:
    """It has the shares again, and forgets who has left. The other one has deleted its own, and remembers."""
    other = {"helper": "keys", "keys": "helper"}[restored]
    folder, copy = tmp_path / restored / "state" / "keys", tmp_path / "copy"
    before = bench.request(model)
    shutil.copytree(folder, copy)
    left = play(bench, msgspec.structs.replace(bench.leaving(model), level=level)).job
    after = bench.request(left, {name: ROWS[name] for name in ("bank.age", "bank.income")})
    shutil.rmtree(folder)
    shutil.copytree(copy, folder)
    assert owners_at(bench, model) == {restored: {"bank", "shop"}, other: {"bank"}}
    asked = {"helper": "TakeValues", "keys": "CompareAtService"}
    for order, refuses in ((before, other), (after, restored)):
        job = bench.job(refuses, order.job)
        job.handle(bench.opening(order))
        with pytest.raises(EpochError, match=r"signed for other splits|has ended here|has not begun"):
            job.handle(question(asked[refuses], order))
    keys = bench.shares_order(model)
    jobs = {name: bench.job(name, keys.job) for name in keys.parties}
    for job in jobs.values():
        job.handle(bench.opening(keys))
    drive(jobs, prepare_shares(("bank", "shop"), helper="helper", key_service="keys", epoch=9))
    with pytest.raises(EpochError, match="'shop' has left this model"):
        jobs[other].handle(CommitEpoch(epoch=9))


def question(kind: str, order: PredictEncryptedOrder) -> Message:
    """What a holder is asked first in a job to predict."""
    ticket = Ticket(
        requester="alice", request=bytes.fromhex(order.job), epoch=order.epoch, rows=order.rows, features=order.columns,
        digest=hashlib.sha256(order.values).digest(), splits=order.splits,
    )  # fmt: skip
    if kind == "TakeValues":
        return shares.TakeValues(ticket=ticket, values=order.values, leaves={})
    one = np.zeros(1, np.uint32)
    return shares.CompareAtService(
        ticket=ticket, owners=("bank",), owner=one.astype(np.uint16), place=one, row=one, column=one
    )


# --- orders of parties ---


@pytest.mark.parametrize(
    ("leaver", "stays", "why"),
    [("mallory", ("bank", "shop"), "has no part in these keys"), ("shop", ("mallory",), r"all other parties .* stay")],
)
@pytest.mark.slow
def test_a_party_ends_no_keys_but_by_its_own_leaving(
    bench: ShareBench, model: str, leaver: str, stays: tuple[str, ...], why: str
) -> None:
    """Its order, with a coordinator that passes it on, would begin an epoch without the others: their shares go."""
    identities = {name: home.identity for name, home in {**bench.homes, **bench.members}.items()}
    identities["mallory"] = Identity.load(bench.world.member("party", "mallory"))
    bench.users[leaver] = identities[leaver]
    whole = dict.fromkeys((*stays, "helper", "keys"), Part())
    fields = common_fields(whole, {name: identities[name].certificate for name in whole}, **bench.here)
    about: dict[str, Any] = {"model": model, "alignment": model, "task": "classes", "level": 2, "keys": model}
    order = RevokeRevocableOrder(**fields, **MEMBERS, holder=stays[0], leaver=leaver, **about)
    for name in bench.members:
        with pytest.raises(PolicyError, match=why):
            bench.job(name, order.job).handle(bench.opening(order, leaver))
    own = msgspec.structs.replace(bench.leaving(model), level=2)
    bench.users["shop"] = identities["shop"]
    for name in bench.members:
        assert isinstance(bench.job(name, own.job).handle(bench.opening(own, "shop")), msg.JobOpened)
