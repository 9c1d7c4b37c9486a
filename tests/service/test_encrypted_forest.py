"""Keys and encrypted predictions through the services: helper and key service are processes of their own."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from processes import wait_until, write_toml
from world import PROTECTS, World, running

import woodlot as wl
from woodlot.crypto.dtpkc import Group
from woodlot.crypto.order_words import has_common_word
from woodlot.exceptions import ConfigError, DataError, PolicyError
from woodlot.jobs.key_store import KeyStore
from woodlot.jobs.member_job import MemberRole
from woodlot.jobs.revocable import key_jobs
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable import share_messages as shares
from woodlot.protocols.revocable.epoch_keys import read_group
from woodlot.protocols.revocable.revocable_predict import predict_encrypted as walk_of
from woodlot.protocols.revocable.share_predict import predict_shared, share_splits
from woodlot.service.client import Client, JobFailed
from woodlot.service.config import MemberConfig
from woodlot.service.encrypted import make_keys, predict_encrypted
from woodlot.service.member import MemberService, is_this_host

MEMBERS = {"helper": ("party", "--role", "helper"), "keys": ("identity", "keys")}
MADE_BY: dict[str, Any] = {"helper": "helper", "key_service": "keys"}
KEYS: dict[str, Any] = MADE_BY | {"bits": 512, "setting": "test", "scheme": "paper"}
POLICY = PROTECTS | {"train": ["alice"], "predict": ["alice"], "weak_keys": True, "lead": ["coordinator", "holder"]}
POLICY |= {"helpers": ["helper", "keys"], "key_services": ["keys", "helper"]}  # each knows its own role


class Federation:
    """Two companies with a forest, a helper and a key service."""

    def __init__(self, world: World, values: Any, labels: Any) -> None:
        self.world, self.values, self.labels = world, values, labels
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in MEMBERS:
            world.member("party", name)

    def start_member(self, name: str) -> None:
        """Run the installed command."""
        settings = {
            "coordinator": self.world.address,
            "n_jobs": 1,
            "allow_same_host": True,
            "policy": dict(POLICY),
        }
        config = write_toml(self.world.root / name / "member.toml", settings)
        line = [str(Path(sys.executable).with_name("woodlot")), *MEMBERS[name], str(config)]
        with (self.world.root / name / "log").open("ab") as log:
            self.processes[name] = subprocess.Popen(line, stdout=log, stderr=log)

    def wait(self, client: Client) -> None:
        wait_until(lambda: all(client.parties().get(name) for name in MEMBERS), "helper and key service to connect")

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait(300)

    def close(self) -> None:
        for name in list(self.processes):
            self.kill(name)


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(60, 4))
    label = np.where(values[:, 0] + values[:, 3] > 0, "yes", "no")
    tables = {
        "bank": {"customers": pa.table({"id": range(60), "age": values[:, 0], "income": values[:, 1], "late": label})},
        "shop": {"customers": pa.table({"id": range(60), "visits": values[:, 2], "basket": values[:, 3]})},
    }
    world = World(tmp_path_factory.mktemp("encrypted"), tables)
    for party in world.settings.values():
        party["policy"] = {**POLICY, "protocols": ["align", "train", "predict", "keys", "predict-encrypted"]}
    made = Federation(world, values, label)
    with running(world):
        try:
            for name in MEMBERS:
                made.start_member(name)
            yield made
        finally:
            made.close()


@pytest.mark.slow
def test_keys_predictions_a_killed_helper_and_the_next_epoch(federation: Federation) -> None:
    world = federation.world
    identity = world.root / "alice" / "identity"
    connected = wl.connect(world.address, identity, tables="customers", parties=["bank", "shop"], lead="coordinator")
    with connected, Client(world.address, identity) as client:
        model = wl.FederatedForestClassifier(4, max_depth=3, random_state=0).fit(connected, y="bank.late")
        name = model.forest_.model
        federation.wait(client)
        columns = {  # in an order of the user's own
            "shop.basket": federation.values[:, 3],
            "bank.age": federation.values[:, 0],
            "shop.visits": federation.values[:, 2],
            "bank.income": federation.values[:, 1],
        }

        with pytest.raises(DataError, match="has no keys"):
            predict_encrypted(client, name, columns, setting="test")
        first = make_keys(client, name, **KEYS)
        assert first.group.epoch == 1
        assert not list((world.root / "keys" / "state" / "keys").glob("*.secret"))  # the factors follow from these
        outputs = predict_encrypted(client, name, columns, setting="test")
        clear = model.predict_proba(connected)  # in an order of the coordinator's own
        np.testing.assert_array_equal(np.sort(outputs[:, 0]), np.sort(clear[:, 0]))
        said = np.array(model.classes_)[outputs.argmax(axis=1)]
        assert (said == federation.labels).mean() == model.score(connected)

        # the helper's process is killed, and another one takes its place: its keys are on its disk
        federation.kill("helper")
        federation.start_member("helper")
        federation.wait(client)
        np.testing.assert_array_equal(predict_encrypted(client, name, columns, setting="test"), outputs)

        share = KeyStore(world.root / "helper" / "state" / "keys").load(name, "")[0]
        second = make_keys(client, name, **KEYS)
        assert second.group.epoch == 2
        assert second.group.modulus != first.group.modulus
        np.testing.assert_array_equal(predict_encrypted(client, name, columns, setting="test"), outputs)
        # nothing of the first epoch is left at the helper, on disk neither
        assert share is not None
        left = b"".join(path.read_bytes() for path in (world.root / "helper" / "state" / "keys").iterdir())
        assert share.secret.hex().encode() not in left
        assert len(list((world.root / "helper" / "state" / "keys").glob("*.secret"))) == 1

        del columns["shop.visits"], columns["shop.basket"]
        with pytest.raises(JobFailed, match=r"lacks \d of the \d features"):
            predict_encrypted(client, name, columns, setting="test")
        with pytest.raises(DataError, match=r"written 'party\.column'"):
            predict_encrypted(client, name, {"visits": federation.values[:, 0]}, setting="test")
        with pytest.raises(JobFailed, match="takes part as such only"):
            make_keys(client, name, **{**KEYS, "helper": "keys", "key_service": "helper"})
        with pytest.raises(DataError, match="keys of 100 bits are not made"):
            make_keys(client, name, **{**KEYS, "bits": 100, "setting": "standard"})
    with (
        Client(world.address, world.root / "bob" / "identity") as other,
        pytest.raises(PolicyError, match="only alice may give it new keys"),
    ):
        make_keys(other, name, **KEYS)


def deviating(
    change: Callable[[Message], Message], honest: Callable[..., Any] = walk_of, heard: list[Message] | None = None
) -> Callable[..., Any]:
    """The coordinator's side of a protocol, with messages changed on their way out."""

    def protocol(*args: Any, **options: Any) -> Generator[Round, dict[str, Message], Any]:
        walk, replies = honest(*args, **options), None
        while True:
            try:
                step = next(walk) if replies is None else walk.send(replies)
            except StopIteration as end:
                return end.value
            requests = {name: change(message) for name, message in step.requests.items()}
            replies = yield Round(step.phase, requests, step.progress)
            if heard is not None:
                heard.extend(replies.values())

    return protocol


def chosen_split(message: Message) -> Message:
    """A split of the coordinator's own: 1 + 7 N is an encryption of 7."""
    if not isinstance(message, msg.OpenDifferences):
        return message
    width = message.splits.shape[1]
    modulus = GROUPS[-1].N
    own = int((1 + 7 * modulus) * GROUPS[-1].g % GROUPS[-1].N2).to_bytes(width, "little")
    return msgspec.structs.replace(message, splits=np.vstack([np.frombuffer(own, np.uint8), message.splits[1:]]))


def same_again(message: Message) -> Message:
    """More comparisons than rows and nodes have: one of them many times over."""
    if not isinstance(message, msg.OpenDifferences):
        return message
    return msgspec.structs.replace(message, row=message.row[:1].repeat(3), split=message.split[:1].repeat(3))


def shifted_half(message: Message) -> Message:
    """A constant of the coordinator's own added to what is opened."""
    if not isinstance(message, msg.FinishComparisons):
        return message
    group = GROUPS[-1]
    halves = [half * (1 + 5 * group.N) % group.N2 for half in group.read(message.halves)]
    return msgspec.structs.replace(message, halves=group.write(halves))


def other_rows(message: Message) -> Message:
    if not isinstance(message, msg.TakeRequest):
        return message
    return msgspec.structs.replace(message, values=message.values[::-1])


def swapped_columns(message: Message) -> Message:
    """The bank's age is compared with splits of its income, and the other way round."""
    if not isinstance(message, msg.OpenDifferences):
        return message
    swap = np.array([1, 0, 2, 3], np.uint32)
    return msgspec.structs.replace(message, column=swap[message.column])


def others_columns(message: Message) -> Message:
    """The bank's columns are compared with splits of the shop: a shop that works for the coordinator would not mind."""
    if not isinstance(message, msg.OpenDifferences):
        return message
    return msgspec.structs.replace(message, column=(message.column + np.uint32(2)) % np.uint32(4))


GROUPS: list[Group] = []
"""Of the keys in use."""

ATTACKS: dict[Callable[[Message], Message], tuple[str, str]] = {
    chosen_split: ("helper", "no split that a party has registered before the request was signed"),
    same_again: ("helper", "a row is compared with a split once in a request"),
    shifted_half: ("helper", "the coordinator's half of the decryption was changed"),
    other_rows: ("helper", "the values are not those that the requester's ticket is for"),
    others_columns: ("helper", r"column \d of the request is not one of '(bank|shop)'"),
    swapped_columns: ("bank", "compared with splits of another column of this party"),
}


@pytest.mark.slow
def test_a_coordinator_that_deviates_is_refused_by_the_member_it_attacks(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One honest request gave it all splits and the request before: the helper opened what it was sent."""
    world = federation.world
    identity = world.root / "alice" / "identity"
    connected = wl.connect(world.address, identity, tables="customers", parties=["bank", "shop"], lead="coordinator")
    names = ("bank.age", "bank.income", "shop.visits", "shop.basket")
    columns = {name: federation.values[:3, place] for place, name in enumerate(names)}
    with connected, Client(world.address, identity) as client:
        # rows are in a secret order: of so many splits some are the bank's and some the shop's
        forest = wl.FederatedForestClassifier(8, max_depth=2, random_state=1).fit(connected, y="bank.late")
        model = forest.forest_.model
        federation.wait(client)
        told = make_keys(client, model, **KEYS)
        GROUPS.append(read_group(told.group, "test"))
        outputs = predict_encrypted(client, model, columns, setting="test")
        for change, (name, why) in ATTACKS.items():
            with monkeypatch.context() as patched:
                patched.setattr(key_jobs, "predict_encrypted", deviating(change))
                with pytest.raises(JobFailed, match=rf"'{name}'.*{why}"):
                    predict_encrypted(client, model, columns, setting="test")
            if name == "helper":
                assert re.search(rf"is refused: .*{why}", (world.root / name / "log").read_text())
        # nothing of it has harmed anybody: honest requests go on
        np.testing.assert_array_equal(predict_encrypted(client, model, columns, setting="test"), outputs)


# --- with shares ---


def shifted_values(message: Message) -> Message:
    """A share that the coordinator has shifted: a value would be found by bisection."""
    if not isinstance(message, shares.TakeValues):
        return message
    return msgspec.structs.replace(message, values=message.values[:-20] + bytes(20))


def shifted_values_and_ticket(message: Message) -> Message:
    shifted = shifted_values(message)
    if not isinstance(shifted, shares.TakeValues):
        return message
    ticket = msgspec.structs.replace(shifted.ticket, digest=hashlib.sha256(shifted.values).digest())
    return msgspec.structs.replace(shifted, ticket=ticket)


def without_leave(message: Message) -> Message:
    if not isinstance(message, shares.TakeValues):
        return message
    return msgspec.structs.replace(message, leaves={"shop": message.leaves["shop"]})


def anothers_leave(message: Message) -> Message:
    if not isinstance(message, shares.TakeValues):
        return message
    return msgspec.structs.replace(message, leaves=dict.fromkeys(message.leaves, message.leaves["shop"]))


def too_often(message: Message) -> Message:
    """Comparisons of one row with one split over and over: each new question would be another one."""
    if not isinstance(message, shares.CompareAtHelper):
        return message
    arrays = {name: getattr(message, name)[:1].repeat(20) for name in ("owner", "place", "row", "column")}
    return msgspec.structs.replace(message, **arrays)


def columns_of_another(message: Message) -> Message:
    if not isinstance(message, shares.CompareAtHelper):
        return message
    return msgspec.structs.replace(message, column=(message.column + np.uint32(2)) % np.uint32(4))


def columns_swapped(message: Message) -> Message:
    if not isinstance(message, shares.CompareAtHelper):
        return message
    swap = np.array([1, 0, 3, 2], np.uint32)
    return msgspec.structs.replace(message, column=swap[message.column])


def taken_twice(message: Message) -> Message:
    """The same request again, in place of the comparisons that are due."""
    if isinstance(message, shares.TakeValues):
        TAKEN.append(message)
    return TAKEN[-1] if isinstance(message, shares.CompareAtHelper) else message


def other_epoch(message: Message) -> Message:
    if not isinstance(message, shares.CompareAtService):
        return message
    return msgspec.structs.replace(message, ticket=msgspec.structs.replace(message.ticket, epoch=2))


def no_split(message: Message) -> Message:
    if not isinstance(message, shares.CompareAtService):
        return message
    return msgspec.structs.replace(message, place=message.place + np.uint32(10_000))


TAKEN: list[Message] = []

SHARE_ATTACKS: dict[Callable[[Message], Message], tuple[str, str]] = {
    shifted_values: ("helper", "the values are not those that the requester's ticket is for"),
    shifted_values_and_ticket: ("helper", "the request is not the one that was ordered"),
    without_leave: ("helper", "'bank' has not allowed this request"),
    anothers_leave: ("helper", "'bank' has not allowed this request"),
    too_often: ("helper", r"comparisons of row \d with splits of '(bank|shop)' are asked for"),
    columns_of_another: ("helper", r"column \d of the request is not one of '(bank|shop)'"),
    columns_swapped: ("helper", r"column \d of the request is to be compared with splits of another column"),
    taken_twice: ("helper", "this request has been taken; it is answered once"),
    other_epoch: ("keys", "the request is not the one that was ordered"),
    no_split: ("keys", "has registered no such split"),
}


def other_rows_at_the_service(message: Message) -> Message:
    if not isinstance(message, shares.CompareAtService):
        return message
    return msgspec.structs.replace(message, row=(message.row + np.uint32(1)) % np.uint32(message.ticket.rows))


def shifted_box(message: Message) -> Message:
    """The bank's shares of its splits, changed on their way to a holder."""
    if not isinstance(message, shares.RegisterAtService):
        return message
    box = message.boxes["bank"]
    return msgspec.structs.replace(message, boxes=message.boxes | {"bank": box[:-1] + bytes([box[-1] ^ 1])})


def exchanged_boxes(message: Message) -> Message:
    if not isinstance(message, shares.RegisterAtHelper):
        return message
    return msgspec.structs.replace(message, boxes=message.boxes | {"bank": message.boxes["shop"]})


@pytest.mark.slow
def test_with_shares_every_deviation_is_refused_or_tells_nothing(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = federation.world
    identity = world.root / "alice" / "identity"
    connected = wl.connect(world.address, identity, tables="customers", parties=["bank", "shop"], lead="coordinator")
    names = ("bank.age", "bank.income", "shop.visits", "shop.basket")
    columns = {name: federation.values[:8, place] for place, name in enumerate(names)}
    with connected, Client(world.address, identity) as client:
        model = wl.FederatedForestClassifier(6, max_depth=3, random_state=1).fit(connected, y="bank.late").forest_.model
        federation.wait(client)
        # while splits are registered: whoever is attacked refuses, and there are no keys
        for change, name in ((shifted_box, "keys"), (exchanged_boxes, "helper")):
            with monkeypatch.context() as patched:
                patched.setattr(key_jobs, "share_splits", deviating(change, share_splits))
                with pytest.raises(JobFailed, match=f"'{name}'.*shares under the name of 'bank' are not those"):
                    make_keys(client, model, **MADE_BY)
        made = make_keys(client, model, **MADE_BY)
        assert isinstance(made, shares.SharesOfModel)
        outputs = predict_encrypted(client, model, columns)
        for change, (name, why) in SHARE_ATTACKS.items():
            with monkeypatch.context() as patched:
                patched.setattr(key_jobs, "predict_shared", deviating(change, predict_shared))
                with pytest.raises(JobFailed, match=rf"'{name}'.*{why}"):
                    predict_encrypted(client, model, columns)
            assert re.search(rf"is refused: .*{why}", (world.root / name / "log").read_text())
        # other lists to the two: each of them answers, and their answers have nothing in common
        heard: list[Message] = []
        with monkeypatch.context() as patched:
            patched.setattr(key_jobs, "predict_shared", deviating(other_rows_at_the_service, predict_shared, heard))
            predict_encrypted(client, model, columns)
        sides = [
            [m.words for m in heard if isinstance(m, kind)] for kind in (shares.HelperCompared, shares.ServiceCompared)
        ]
        assert len(sides[0]) == len(sides[1]) > 0
        assert not any(has_common_word(*both).any() for both in zip(*sides, strict=True))
        # nothing of it has harmed anybody: honest requests go on
        np.testing.assert_array_equal(predict_encrypted(client, model, columns), outputs)


def test_a_helper_on_the_coordinators_host_is_refused_unless_asked_for(federation: Federation) -> None:
    world = federation.world
    raw = {"coordinator": world.address, "policy": POLICY}
    config = MemberConfig.parse(raw, folder=world.root / "helper", origin="helper.toml")
    for role in get_args(MemberRole):
        with pytest.raises(ConfigError, match=f"run the {role} elsewhere, or set allow_same_host = true"):
            MemberService(config, role)
    assert is_this_host("127.0.0.1")
    assert is_this_host("[::1]") or not Path("/proc/net/if_inet6").exists()
    assert not is_this_host("192.0.2.1")  # of the addresses that are nobody's
    assert not is_this_host("no-such-host.invalid")
