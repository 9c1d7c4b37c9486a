"""Epochs of keys: how they begin, who may have what, and that the old one is over."""

from __future__ import annotations

import struct
from typing import Any

import gmpy2
import msgspec
import numpy as np
import pytest
from revocable_world import FOREST, HELPER, KEYS, PARTIES, TEST, World, plant, some_rows, splits_at, stream
from small_keys import PRIMES, ROOT

from woodlot.crypto import packed
from woodlot.crypto.dtpkc import Group, StrongShare, WeakKey, refresh
from woodlot.crypto.encoding import encode
from woodlot.crypto.master import MasterKey
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import (
    CiphertextError,
    ConfigError,
    EpochError,
    LocalProtocolError,
    PolicyError,
    RemoteProtocolError,
)
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.epoch_keys import EpochKeys, bytes_number, number_bytes
from woodlot.protocols.revocable.helper import Helper
from woodlot.protocols.revocable.revocable_keys import begin_epoch, commit_epoch, prepare_epoch, revoke_key
from woodlot.protocols.revocable.revocable_predict import encrypt_request, predict_encrypted, walk_encrypted
from woodlot.protocols.revocable.rotate import encrypt_splits, rotate
from woodlot.runtime.codec import encode as encode_message
from woodlot_lab.comparison import Comparer, decide


def test_shares_and_keys_belong_together() -> None:
    world = World(plant(0))
    keys, forest = world.begin()
    share = StrongShare(keys.group, bytes_number(world.kept[HELPER][-1].secret))
    c1 = keys.public["bank"].encrypt(-77, stream()).c1
    assert share.open([c1], keys.share.power([c1])) == [-77]
    # every split is its provider's, and nobody else's
    node = int(np.flatnonzero(forest.forest.owner == 0)[0])
    split = keys.group.read_pairs(forest.splits.of(np.array([node], np.int32)))
    expected = [int(encode([world.planted.threshold[node]])[0])]
    for name in PARTIES:
        weak = WeakKey(keys.group, bytes_number(world.kept[name][-1].secret))
        assert weak.public.h == keys.public[name].h
        if name == "bank":
            assert weak.decrypt(split) == expected
        else:
            with pytest.raises(CiphertextError):
                weak.decrypt(split)


def test_the_same_answers_after_a_restart() -> None:
    """Members that are built again and asked the same answer the same, byte for byte."""
    first, second = World(plant(0)), World(plant(0))
    (keys, forest), (again, twin) = first.begin(), second.begin()
    assert keys.share.exponent == again.share.exponent
    np.testing.assert_array_equal(forest.splits.data, twin.splits.data)


def test_a_later_job_goes_on_with_kept_keys() -> None:
    world = World(plant(0))
    keys, forest = world.begin()
    saved = {
        name: msgspec.msgpack.decode(msgspec.msgpack.encode(kept[-1]), type=EpochKeys)
        for name, kept in world.kept.items()
    }
    later, rows = World(world.planted, saved=saved), some_rows(0, 2)
    asked = encrypt_request(rows, keys.group, splits=forest.splits.registered, requester="alice")
    found = later.run(walk_encrypted(forest, keys, asked))
    np.testing.assert_array_equal(found, world.planted.leaves(rows))


def encrypt_at(nodes: Any, total: int = 0, epoch: int = 1) -> msg.EncryptSplits:
    """All splits of a party again, at some nodes."""
    nothing = {"kept": np.zeros((0, 32), np.uint8), "kept_feature": np.zeros(0, np.int32)}
    return msg.EncryptSplits(epoch=epoch, forest=FOREST, total=total, node=nodes, **nothing)


class Wire:
    """A member, and the bytes of everything that it gets and sends: all of it goes through the coordinator."""

    def __init__(self, member: Any, seen: list[bytes]) -> None:
        self._member, self._seen = member, seen

    def handle(self, message: Message) -> Message:
        reply: Message = self._member.handle(message)
        self._seen += [encode_message(message), encode_message(reply)]
        return reply


def test_what_goes_through_the_coordinator_holds_no_secret() -> None:
    world, seen = World(plant(0)), []
    world.members = {name: Wire(member, seen) for name, member in world.members.items()}
    keys, forest = world.begin()
    rows = some_rows(0, 2) + 1234.5678
    asked = encrypt_request(rows, keys.group, splits=forest.splits.registered, requester="alice")
    world.run(predict_encrypted(forest, keys, asked))
    everything = b"".join(seen) + asked.values.tobytes()
    assert keys.public["bank"].h in (bytes_number(kept.public["bank"]) for kept in world.kept[HELPER] if kept.public)
    for name, kept in world.kept.items():
        assert kept[-1].secret not in everything, name
        assert all(secret not in everything for secret in kept[-1].peers.values()), name
    for value in {*rows.ravel().tolist(), *world.planted.threshold[~np.isnan(world.planted.threshold)].tolist()} - {
        0.0
    }:
        code = int(encode([value])[0])
        for form in (struct.pack("<d", value), code.to_bytes(8, "little", signed=True)):
            assert form not in everything
    # what is looked for is found where it is: the coordinator's own share travels to it
    assert number_bytes(keys.share.exponent) in everything


# --- members that are told lies ---


class Lying:
    """A member to whom the coordinator tells something else."""

    def __init__(self, member: Any, kind: type[Message], **fields: Any) -> None:
        self._member, self._kind, self._fields = member, kind, fields

    def handle(self, message: Message) -> Message:
        if isinstance(message, self._kind):
            fields = {name: change(getattr(message, name)) for name, change in self._fields.items()}
            message = msgspec.structs.replace(message, **fields)
        reply: Message = self._member.handle(message)
        return reply


def _other_group(group: msg.PublicGroup) -> msg.PublicGroup:
    return msgspec.structs.replace(group, modulus=group.modulus[::-1])


@pytest.mark.parametrize(
    ("name", "kind", "fields", "why"),
    [
        ("bank", msg.TakeGroup, {"group": _other_group}, "not the one that the key service has made"),
        (HELPER, msg.TakeShare, {"group": _other_group}, "not the one that the key service has made"),
        (HELPER, msg.TakeShare, {"sealed": lambda sealed: sealed[:-1] + b"x"}, "sealed message"),
        (HELPER, msg.KnowKeys, {"keys": lambda keys: {**keys, "bank": keys["shop"]}}, "not its own"),
        (HELPER, msg.KnowKeys, {"keys": lambda keys: {k: v for k, v in keys.items() if k != "bank"}}, "not the keys"),
        ("bank", msg.MeetMembers, {"introductions": lambda all_: {**all_, "bank": all_["shop"]}}, "not its own"),
        ("bank", msg.OpenEpoch, {"members": lambda all_: tuple(m for m in all_ if m != "bank")}, "not among those"),
        (KEYS, msg.MakeGroup, {"setting": lambda _: "standard"}, "makes test ones"),
        (KEYS, msg.MakeGroup, {"bits": lambda _: 513}, "keys of 513 bits are not made"),
    ],
)
def test_members_notice_lies(name: str, kind: type[Message], fields: dict[str, Any], why: str) -> None:
    world = World(plant(0))
    world.members[name] = Lying(world.members[name], kind, **fields)
    with pytest.raises((LocalProtocolError, PolicyError), match=why):
        world.begin()


def test_members_of_different_epochs_or_jobs_do_not_meet() -> None:
    world = World(plant(0))
    world.members["bank"]._job = "another job"
    with pytest.raises(RemoteProtocolError, match="told the same"):
        world.begin()
    world = World(plant(0))
    world.begin()
    with pytest.raises(LocalProtocolError, match="epoch 1 cannot begin"):
        world.run(begin_epoch(PARTIES, helper=HELPER, key_service=KEYS, **TEST))


def test_roles_are_different_members() -> None:
    world = World(plant(0))
    for helper, service in ((HELPER, HELPER), ("bank", KEYS)):
        with pytest.raises(PolicyError, match="different members"):
            world.run(begin_epoch(PARTIES, helper=helper, key_service=service, **TEST))
    with pytest.raises(ConfigError, match="neither an identity nor a shared secret"):
        Helper(HELPER, owners=tuple, job="job", entropy=lambda _: bytes(32))


def test_messages_out_of_turn_are_refused() -> None:
    world = World(plant(0))
    group = msg.PublicGroup(epoch=1, modulus=b"\1", generator=b"\1")
    early: list[tuple[str, Message]] = [
        ("bank", msg.MeetMembers(introductions={})),
        ("bank", msg.TakeGroup(group=group, tag=b"")),
        ("bank", encrypt_at(np.zeros(1, np.int32))),
        (HELPER, msg.TakeShare(group=group, tag=b"", sealed=b"")),
        (HELPER, msg.KnowKeys(epoch=1, keys={}, tags={})),
        (KEYS, msg.MakeGroup(epoch=1, bits=512, setting="test")),
        (KEYS, msg.TakeShare(group=group, tag=b"", sealed=b"")),
        ("bank", msg.ShareTaken()),
    ]
    for name, message in early:
        with pytest.raises(RemoteProtocolError):
            world.members[name].handle(message)
    world.begin()  # and nothing has been changed


def test_splits_of_others_are_not_encrypted() -> None:
    world = World(plant(0))
    _, forest = world.begin()
    foreign = np.flatnonzero(forest.forest.owner == 1)[:1].astype(np.int32)
    with pytest.raises(RemoteProtocolError, match="no split"):
        world.members["bank"].handle(encrypt_at(foreign))


# --- a coordinator that has keys of one epoch made twice ---


class Primes:
    """Stands for the key service's search for primes: what it draws, and primes that are there already."""

    def __init__(self, which: int = 0) -> None:
        self.drawn: list[bytes] = []
        self._which = which

    def __call__(self, bits: int, *, stream: SecretStream, epoch: int, **_: Any) -> MasterKey:
        self.drawn.append(stream.bytes(64))
        return MasterKey(*PRIMES[self._which], ROOT, epoch=epoch, setting="test")


def met(world: World, parties: tuple[str, ...] = PARTIES) -> None:
    """Have the members agree on epoch 1, once more if they did before."""
    opening = msg.OpenEpoch(epoch=1, members=tuple(sorted((*parties, HELPER, KEYS))), helper=HELPER, key_service=KEYS)
    told = {name: world.members[name].handle(opening).introduction for name in opening.members}
    for name in opening.members:
        world.members[name].handle(msg.MeetMembers(introductions=told))


def made(world: World, bits: int = 512, parties: tuple[str, ...] = PARTIES) -> msg.GroupMade:
    met(world, parties)
    reply = world.key_service.handle(msg.MakeGroup(epoch=1, bits=bits, setting="test"))
    assert isinstance(reply, msg.GroupMade)
    return reply


def test_a_key_service_makes_one_modulus_for_an_epoch() -> None:
    world = World(plant(0))
    first = made(world)
    for other in ({"bits": 514}, {"parties": PARTIES[:2]}):
        with pytest.raises(RemoteProtocolError, match="the modulus of epoch 1 has been made"):
            made(world, **other)  # type: ignore[arg-type]
    assert encode_message(made(world)) == encode_message(first)  # who asks for the same gets it again
    assert encode_message(made(World(plant(0)))) == encode_message(first)  # and so after a restart


def test_primes_follow_from_all_that_is_asked_for() -> None:
    """Primes of two lengths from one stream differ in a few bits: of two moduli, both could be factored."""
    drawn = []
    for bits, parties in ((512, PARTIES), (514, PARTIES), (512, PARTIES[:2])):
        world, primes = World(plant(0)), Primes()
        world.key_service._make = primes
        made(world, bits, parties)
        drawn += primes.drawn
    assert len(set(drawn)) == 3


def test_what_belongs_to_a_modulus_follows_from_it() -> None:
    """Two moduli under one agreement: neither the helper's seal nor a weak key's stream may serve both."""
    sealed, shares, streams = [], [], []
    for which in (0, 1):
        world = World(plant(0))
        world.key_service._make = Primes(which)
        reply = made(world)
        take = msg.TakeShare(group=reply.group, tag=reply.tags[HELPER], sealed=reply.sealed)
        world.helper.handle(take)
        sealed.append(reply.sealed)
        shares.append(world.helper._staged_keys(1).secret)
        with pytest.MonkeyPatch.context() as patch:
            asked: list[bytes] = []
            patch.setattr(Group, "draw", lambda _, stream, asked=asked: asked.append(stream.bytes(64)) or 5)
            world.members["bank"].handle(msg.TakeGroup(group=reply.group, tag=reply.tags["bank"]))
            streams += asked
    pads = [bytes(a ^ b for a, b in zip(sealed[i][:32], shares[i][:32], strict=True)) for i in (0, 1)]
    assert pads[0] != pads[1]  # else the difference of two shares would be there to read
    assert len(set(streams)) == 2


def test_a_party_encrypts_under_the_keys_that_it_has_now() -> None:
    world = World(plant(0))
    nodes = np.flatnonzero(world.planted.coordinator.owner == 0).astype(np.int32)
    bank = world.members["bank"]
    for which in (0, 1):
        world.key_service = World(plant(0)).key_service  # one that was given up, and has forgotten
        world.members[KEYS] = world.key_service
        world.key_service._make = Primes(which)
        reply = made(world)
        bank.handle(msg.TakeGroup(group=reply.group, tag=reply.tags["bank"]))
        splits = bank.handle(encrypt_at(nodes, int((world.planted.coordinator.structure.right >= 0).sum()))).splits
        keys = bank._staged_keys(1)
        weak = WeakKey(keys.read_group(), bytes_number(keys.secret))
        assert weak.decrypt(weak.group.read_pairs(splits)) == encode(world.planted.threshold[nodes]).tolist()


# --- leaving ---


def test_a_revoked_key_ends_at_helper_and_key_service() -> None:
    world = World(plant(0))
    keys, forest = world.begin()
    asked = encrypt_request(some_rows(0, 1), keys.group, splits=forest.splits.registered, requester="shop")
    left = world.run(revoke_key(keys, "shop"))
    assert left.parties == ("bank", "tax")
    assert "shop" not in world.kept[HELPER][-1].public
    with pytest.raises(PolicyError, match=r"splits of 'shop', whose key has been revoked"):
        world.run(predict_encrypted(forest, left, asked))
    # a coordinator that goes on as before meets the others' refusal
    with pytest.raises(PolicyError, match=r"'keys'.*'shop' has been revoked"):
        world.run(predict_encrypted(forest, keys, asked))
    other = encrypt_request(some_rows(0, 4), keys.group, splits=forest.splits.registered, requester="alice")
    with pytest.raises(PolicyError, match=r"'helper'.*'shop' has no key"):
        world.run(predict_encrypted(forest, keys, other))
    world.run(revoke_key(keys, "shop"))  # once more changes nothing
    for party in ("nobody", HELPER):
        with pytest.raises(PolicyError, match="no key that could be revoked"):
            world.run(revoke_key(keys, party))


def rotated(world: World) -> tuple[Any, Any, Any, Any]:
    """The keys and forest of epoch 1, and of epoch 2 without the shop, whose nodes have been regrown."""
    keys, forest = world.begin()
    regrown = plant(50, parties=PARTIES)
    owner = regrown.coordinator.owner
    owner[owner == 1] = 0  # the bank has all that was the shop's
    node = np.flatnonzero(owner == 0)
    party = regrown.coordinator.feature_party
    party[party == 1] = 0
    regrown.splits["bank"] = splits_at(node, regrown.feature[node], regrown.threshold[node])
    world.planted = regrown
    fresh, splits = world.run(rotate(regrown.coordinator, keys, leaver="shop", fingerprint=FOREST, **TEST))
    return keys, forest, fresh, world.encrypted(splits)


@pytest.mark.parametrize(
    ("name", "kind"),
    [("tax", msg.EncryptSplits), (HELPER, msg.TakeShare), (KEYS, msg.MakeGroup), (HELPER, msg.KnowKeys)],
)
def test_a_rotation_that_fails_leaves_the_old_epoch_in_use(name: str, kind: type[Message]) -> None:
    world, rows = World(plant(0)), some_rows(2, 2)
    keys, forest = world.begin()
    member = world.members[name]
    world.members[name] = Failing(member, kind)
    with pytest.raises(RemoteProtocolError, match="failed: MemoryError"):
        world.run(rotate(world.planted.coordinator, keys, fingerprint=FOREST, **TEST))
    asked = encrypt_request(rows, keys.group, splits=forest.splits.registered, requester="alice")
    found = world.run(walk_encrypted(forest, keys, asked))
    np.testing.assert_array_equal(found, world.planted.leaves(rows))
    assert {kept[-1].epoch for kept in world.kept.values()} == {1}
    # the next attempt succeeds, and so does one whose last message got lost on its way back
    world.members[name] = member
    world.members["tax"] = Failing(world.members["tax"], msg.CommitEpoch)
    with pytest.raises(RemoteProtocolError, match="failed: MemoryError"):
        world.run(rotate(world.planted.coordinator, keys, fingerprint=FOREST, **TEST))
    protocol = prepare_epoch(PARTIES, helper=HELPER, key_service=KEYS, epoch=3, **TEST)
    world.members["tax"] = world.members["tax"].member
    fresh = world.run(protocol)
    splits = world.run(encrypt_splits(world.planted.coordinator, fresh, fingerprint=FOREST))
    for _ in range(2):
        world.run(commit_epoch(fresh))
    asked = encrypt_request(rows, fresh.group, splits=splits.registered, requester="alice")
    found = world.run(walk_encrypted(world.encrypted(splits), fresh, asked))
    np.testing.assert_array_equal(found, world.planted.leaves(rows))


class Failing:
    """A member that breaks down over one kind of message."""

    def __init__(self, member: Any, kind: type[Message]) -> None:
        self.member, self._kind = member, kind

    def handle(self, message: Message) -> Message:
        if isinstance(message, self._kind):
            raise MemoryError
        reply: Message = self.member.handle(message)
        return reply


def test_after_rotation_the_new_epoch_works_and_the_old_one_is_over() -> None:
    world = World(plant(0))
    keys, forest, fresh, regrown = rotated(world)
    assert fresh.epoch == 2
    assert fresh.group.N != keys.group.N
    assert fresh.parties == ("bank", "tax")
    rows = some_rows(3, 3)
    asked = encrypt_request(rows, fresh.group, splits=regrown.splits.registered, requester="alice")
    found = world.run(walk_encrypted(regrown, fresh, asked))
    np.testing.assert_array_equal(found, world.planted.leaves(rows))

    old = encrypt_request(rows, keys.group, splits=forest.splits.registered, requester="alice")
    with pytest.raises(EpochError, match="epoch 1"):
        world.run(predict_encrypted(regrown, fresh, old))
    with pytest.raises(LocalProtocolError, match="epoch 1 has ended"):
        world.run(predict_encrypted(forest, keys, old))
    for name in ("bank", "tax"):
        with pytest.raises(EpochError, match="has ended"):
            world.members[name].handle(encrypt_at(np.zeros(0, np.int32)))


def test_after_rotation_nobody_is_left_who_could_evaluate_the_old_forest() -> None:
    """The coordinator and the leaver have kept everything, and put it together with all that the others now have."""
    world = World(plant(0))
    keys, forest, fresh, _ = rotated(world)
    node = np.flatnonzero(forest.forest.owner == 1).astype(np.int32)
    splits = keys.group.read_pairs(forest.splits.of(node))  # the copy of the leaver's splits
    value = keys.public["tax"].encrypt(0, stream())

    # what helper, key service and the parties have now has nothing of the old epoch
    now = {name: kept[-1] for name, kept in world.kept.items() if name != "shop"}
    assert {kept.epoch for kept in now.values()} == {2}
    old_share = world.kept[HELPER][0].secret
    assert all(old_share not in msgspec.msgpack.encode(kept) for kept in now.values())
    assert world.helper._share is None or world.helper._share.group.epoch == 2

    # to compare, somebody must open differences; the old share of the helper is the only thing that does
    masks = packed.conceal_masks(keys.group, packed.draw_masks(stream("mask"), 1), stream(), [1])
    inverted = gmpy2.invert(splits[0].c1, keys.group.N2)
    blinded = packed.blind(keys.group, [value.c1], [inverted], masks, [[0]], stream("factor"))
    halves = keys.share.power(blinded.c1)
    has = [StrongShare(keys.group, bytes_number(kept.secret)) for kept in now.values()]
    has += [keys.share, StrongShare(keys.group, fresh.share.exponent), StrongShare(keys.group, 1)]
    for share in has:
        with pytest.raises(CiphertextError):
            packed.open_blinded(share, blinded, halves)
    # with it, it would open: the attempt above is the right one
    packed.open_blinded(StrongShare(keys.group, bytes_number(old_share)), blinded, halves)

    # the leaver's key opens its own splits, which it knows, and nobody else's
    leaver = WeakKey(keys.group, bytes_number(world.kept["shop"][-1].secret))
    others = keys.group.read_pairs(forest.splits.of(np.flatnonzero(forest.forest.owner == 2).astype(np.int32)))
    for split in others:
        with pytest.raises(CiphertextError):
            leaver.decrypt([split])


def test_the_papers_refresh_can_be_evaluated() -> None:
    """Splits that helper and coordinator have both refreshed, as the paper's level 2 does, still compare correctly."""
    world = World(plant(0))
    keys, forest = world.begin()
    helper = StrongShare(keys.group, bytes_number(world.kept[HELPER][-1].secret))
    leaver = WeakKey(keys.group, bytes_number(world.kept["shop"][-1].secret))
    node = np.flatnonzero(forest.forest.owner == 1).astype(np.int32)
    splits = keys.group.read_pairs(forest.splits.of(node))
    twice = [refresh(refresh(s, keys.group.draw(stream("cc"))), keys.group.draw(stream("cs"))) for s in splits]
    comparer = Comparer(keys.share, stream())
    x = 0.25
    value = comparer.prepare_values([keys.public["tax"].encrypt(int(encode([x])[0]), stream())])[0]
    asked = [comparer.ask(value, split) for split in comparer.prepare_splits(twice)]
    told = decide(helper, [a.c1 for a in asked], [a.half for a in asked])
    # the result comes back under the keys of coordinator and leaver; the corrupted leaver takes its own off
    bits = [leaver.decrypt([leaver.public.encrypt(bit, stream(i))])[0] for i, bit in enumerate(told)]
    answers = [Comparer.answer(a, bit) for a, bit in zip(asked, bits, strict=True)]
    assert answers == (x <= world.planted.threshold[node]).tolist()
    # and any copy from before opens with the leaver's key
    assert leaver.decrypt(splits) == encode(world.planted.threshold[node]).tolist()


def test_a_forest_of_somebody_without_a_key_is_not_encrypted() -> None:
    world = World(plant(0))
    keys, _ = world.begin()
    left = world.run(revoke_key(keys, "shop"))
    with pytest.raises(PolicyError, match="'shop', who has no key"):
        world.run(encrypt_splits(world.planted.coordinator, left, fingerprint=FOREST))
