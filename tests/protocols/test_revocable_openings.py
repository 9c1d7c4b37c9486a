"""A coordinator that deviates in an encrypted prediction: nothing but true comparisons is opened, each once.

Before openings were bound, the helper opened any difference that it was sent: with one honest request of one row a
coordinator read every split and the row by bisection, and a leaver's splits after its key was struck out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from revocable_world import HELPER, KEYS, World, plant, some_rows, stream

from woodlot.crypto.dtpkc import conceal
from woodlot.exceptions import CiphertextError, LocalProtocolError, PolicyError
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.revocable_keys import CoordinatorKeys, revoke_key
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable, most_on_paths
from woodlot.protocols.revocable.revocable_predict import (
    EncryptedRequest,
    encrypt_request,
    predict_encrypted,
    walk_encrypted,
)

Change = Callable[[Any], Message]


class Deviating:
    """A member to which the coordinator sends something else than it should."""

    def __init__(self, member: Any, kind: type[Message], change: Change) -> None:
        self._member, self._kind, self._change = member, kind, change

    def handle(self, message: Message) -> Message:
        reply: Message = self._member.handle(self._change(message) if isinstance(message, self._kind) else message)
        return reply


@pytest.fixture
def world() -> tuple[World, CoordinatorKeys, CoordinatorRevocable]:
    made = World(plant(0))
    return (made, *made.begin())


def ask(made: tuple[World, CoordinatorKeys, CoordinatorRevocable], kind: type[Message], change: Change) -> Any:
    """An honest request, in whose course the coordinator changes messages of one kind."""
    world, keys, forest = made
    to = HELPER if kind is not msg.DealComparisons else KEYS
    other = World(world.planted)
    other.members = {**world.members, to: Deviating(world.members[to], kind, change)}
    request = encrypt_request(some_rows(0, 2), keys.group, splits=forest.splits.registered, requester="alice")
    return other.run(walk_encrypted(forest, keys, request))


def changed(message: Message, **fields: Any) -> Message:
    return msgspec.structs.replace(message, **fields)


def take_request(forest: CoordinatorRevocable, request: EncryptedRequest) -> msg.TakeRequest:
    """What brings the helper a request, with the splits of the forest."""
    fields = forest.splits.listed.fields()
    return msg.TakeRequest(ticket=request.ticket, values=request.values, proof=request.proof, **fields)


def bytes_of(keys: CoordinatorKeys, number: int) -> Any:
    """A split of the coordinator's own: anybody can encrypt."""
    return keys.group.write([keys.public["bank"].encrypt(number, stream(number)).c1])


def test_the_helper_compares_with_splits_that_their_owners_gave(
    world: tuple[World, CoordinatorKeys, CoordinatorRevocable],
) -> None:
    _, keys, _ = world

    def chosen(message: msg.OpenDifferences) -> Message:
        splits = message.splits.copy()
        splits[0] = bytes_of(keys, 4)[0]
        return changed(message, splits=splits)

    def shifted(message: msg.OpenDifferences) -> Message:  # the true split, with a number of the coordinator's added
        group, splits = keys.group, message.splits.copy()
        splits[0] = group.write([group.read(splits[:1])[0] * (1 + 5 * group.N) % group.N2])[0]
        return changed(message, splits=splits)

    for change in (chosen, shifted):
        with pytest.raises(PolicyError, match=r"'helper'.*no split that a party has registered"):
            ask(world, msg.OpenDifferences, change)

    def renamed(message: msg.TakeRequest) -> Message:
        return changed(message, owner=np.uint16(len(message.owners) - 1) - message.owner)

    def of_another_column(message: msg.TakeRequest) -> Message:
        return changed(message, feature=message.feature + np.int32(1))

    for swap in (renamed, of_another_column):
        with pytest.raises(LocalProtocolError, match=r"'helper'.*not the splits that the parties have registered"):
            ask(world, msg.TakeRequest, swap)


def test_the_helper_compares_values_that_the_requester_gave(
    world: tuple[World, CoordinatorKeys, CoordinatorRevocable],
) -> None:
    _, keys, _ = world

    def other_values(message: msg.TakeRequest) -> Message:
        values = message.values.copy()
        values[0] = bytes_of(keys, 7)[0]
        return changed(message, values=values)

    with pytest.raises(LocalProtocolError, match=r"'helper'.*not those that the requester's ticket is for"):
        ask(world, msg.TakeRequest, other_values)


def test_a_row_is_compared_with_a_split_once(world: tuple[World, CoordinatorKeys, CoordinatorRevocable]) -> None:
    def twice_in_a_step(message: msg.OpenDifferences) -> Message:
        return changed(message, row=message.row.repeat(2)[:4], split=message.split.repeat(2)[:4])

    def in_a_later_step(message: msg.OpenDifferences) -> Message:
        if message.step == 0:
            return message
        return changed(message, row=message.row[:1] * np.uint32(0), split=message.split[:1] * np.uint32(0))

    def in_a_later_block(message: msg.OpenDifferences) -> Message:
        return message if message.step == 0 else changed(message, block=1)

    for change in (twice_in_a_step, in_a_later_step, in_a_later_block):
        with pytest.raises(PolicyError, match=r"'helper'.*compared with a split once"):
            ask(world, msg.OpenDifferences, change)
    told = {}

    def told_again(message: msg.OpenDifferences) -> Message:
        told.setdefault("first", message)
        first = told["first"]
        if message.step == 0:
            return message
        fields = ("splits", "column")
        return changed(message, **{name: getattr(first, name) for name in fields})

    with pytest.raises(LocalProtocolError, match="told once in a request"):
        ask(world, msg.OpenDifferences, told_again)


def test_a_column_is_compared_with_its_own(world: tuple[World, CoordinatorKeys, CoordinatorRevocable]) -> None:
    def beyond(message: msg.OpenDifferences) -> Message:
        return changed(message, column=message.column + np.uint32(5))

    def all_with_one(message: msg.OpenDifferences) -> Message:
        return changed(message, column=message.column * np.uint32(0))

    def own_with_one(message: msg.OpenDifferences) -> Message:
        return changed(message, column=message.column % np.uint32(3))

    with pytest.raises(LocalProtocolError, match=r"'helper'.*compared with no column of the request"):
        ask(world, msg.OpenDifferences, beyond)
    with pytest.raises(PolicyError, match=r"'helper'.*column 0 of the request is not one of '\w+'"):
        ask(world, msg.OpenDifferences, all_with_one)
    with pytest.raises(LocalProtocolError, match=r"'helper'.*one column of the request"):
        ask(world, msg.OpenDifferences, own_with_one)
    # another order of columns is refused by the provider, which the user's order tells which one is which
    made, keys, forest = world
    made.providers["bank"]._columns = lambda: np.array([3, 0], np.int32)
    with pytest.raises(LocalProtocolError, match=r"'bank'.*compared with splits of another column"):
        made.run(
            predict_encrypted(
                forest,
                keys,
                encrypt_request(some_rows(0, 2), keys.group, splits=forest.splits.registered, requester="alice"),
            )
        )
    made.providers["bank"]._columns = lambda: np.array([0, 3], np.int32)
    asked = encrypt_request(some_rows(0, 2), keys.group, splits=forest.splits.registered, requester="alice")
    np.testing.assert_array_equal(made.run(walk_encrypted(forest, keys, asked)), made.planted.leaves(some_rows(0, 2)))


@pytest.mark.parametrize("added", [1, 1 << 64, -(1 << 70)])
def test_nothing_can_be_added_to_what_is_opened(
    world: tuple[World, CoordinatorKeys, CoordinatorRevocable], added: int
) -> None:
    group = world[1].group

    def shifted(message: msg.FinishComparisons) -> Message:
        halves = [half * (1 + added * group.N) % group.N2 for half in group.read(message.halves)]
        return changed(message, halves=group.write(halves))

    with pytest.raises(LocalProtocolError, match=r"'helper'.*half of the decryption was changed"):
        ask(world, msg.FinishComparisons, shifted)


def test_masks_are_the_key_services(world: tuple[World, CoordinatorKeys, CoordinatorRevocable]) -> None:
    _, keys, _ = world

    def own(message: msg.OpenDifferences) -> Message:
        return changed(message, masks=np.repeat(bytes_of(keys, 0), len(message.masks), axis=0))

    def of_another_step(message: msg.OpenDifferences) -> Message:
        return changed(message, step=message.step + 1)

    for change in (own, of_another_step):
        with pytest.raises(LocalProtocolError, match=r"'helper'.*not the masks that the key service has made"):
            ask(world, msg.OpenDifferences, change)


def test_a_provider_opens_no_more_than_rows_by_its_own_splits() -> None:
    """Splits that it gave before a party left, and that are in no forest any more, do not come on top."""
    world, rows = World(plant(0)), some_rows(0, 8)
    keys, forest = world.begin()
    own = world.planted.splits["bank"]
    world.planted.splits["bank"] = type(own)(
        own.node[:1], own.feature, own.threshold, own.missing_left, own.set_start, own.sets
    )
    with pytest.raises(PolicyError, match=r"'bank'.*8 rows have at most 8 with them"):
        world.run(
            predict_encrypted(
                forest, keys, encrypt_request(rows, keys.group, splits=forest.splits.registered, requester="alice")
            )
        )


@pytest.mark.parametrize("seed", range(3))
def test_a_provider_opens_no_more_than_paths_have(seed: int) -> None:
    """A coordinator that has a row compared with nodes off its path meets the bound of the longest paths."""
    planted = plant(seed, n_trees=3, depth=4)
    world, structure = World(planted), planted.coordinator.structure
    keys, forest = world.begin()

    def longest(node: int, own: set[int]) -> int:
        if structure.right[node] < 0:
            return 0
        return (node in own) + max(longest(node + 1, own), longest(int(structure.right[node]), own))

    for name, splits in planted.splits.items():
        own = set(splits.node.tolist())
        expected = sum(longest(root, own) for root in structure.offset[:-1].tolist())
        assert most_on_paths(structure, splits.node) == expected
        assert world.providers[name]._most_of_a_row() == expected < len(own)

    # all nodes in the first step, each with the row
    inner = forest.splits.node
    request = encrypt_request(some_rows(0, 1), keys.group, splits=forest.splits.registered, requester="alice")
    ticket = request.ticket
    dealt = world.key_service.handle(msg.DealComparisons(ticket=ticket, block=0, sizes=(len(inner),), owners=3))
    assert isinstance(dealt, msg.ComparisonsDealt)
    world.helper.handle(take_request(forest, request))
    everywhere = msg.OpenDifferences(
        ticket=ticket, block=0, step=0, splits=forest.splits.data[:, : keys.group.element_bytes],
        column=forest.forest.feature[inner].astype(np.uint32),
        row=np.zeros(len(inner), np.uint32), split=np.arange(len(inner), dtype=np.uint32), size=len(inner), owners=3,
        masks=dealt.masks, proof=dealt.proofs[0].tobytes(),
    )  # fmt: skip
    blinded = world.helper.handle(everywhere)
    assert isinstance(blinded, msg.DifferencesBlinded)
    halves = keys.group.write(keys.share.power(keys.group.read(blinded.blinded)))
    finished = world.helper.handle(msg.FinishComparisons(ticket=ticket, block=0, step=0, halves=halves))
    assert isinstance(finished, msg.ComparisonsFinished)
    for name, answer in finished.answers.items():
        with pytest.raises(PolicyError, match="1 rows have at most"):
            world.providers[name].handle(msg.OpenAnswers(ticket=ticket, block=0, step=0, answer=answer))


def test_a_leavers_splits_are_not_opened_after_level_1() -> None:
    """The coordinator kept them, and tries under every name, in requests of every party and user."""
    world = World(plant(0))
    keys, forest = world.begin()
    before = encrypt_request(some_rows(0, 4), keys.group, splits=forest.splits.registered, requester="alice")
    world.run(walk_encrypted(forest, keys, before))
    world.run(revoke_key(keys, "shop"))

    with pytest.raises(PolicyError, match=r"'shop' has no key in epoch 1, and columns of the request are named as its"):
        ask((world, keys, forest), msg.OpenDifferences, lambda message: message)
    columns = world.planted.coordinator.feature_party
    columns[columns == 1] = 0
    with pytest.raises(PolicyError, match=r"'helper'.*'shop' has no key in epoch 1: its splits cannot be used"):
        ask((world, keys, forest), msg.OpenDifferences, lambda message: message)
    listed = forest.splits.listed
    shop = listed.owners.index("shop")
    for name in ("bank", "tax"):
        owner = np.where(listed.owner == shop, np.uint16(listed.owners.index(name)), listed.owner)

        def under(message: msg.TakeRequest, owner: Any = owner) -> Message:
            return changed(message, owner=owner)

        with pytest.raises(LocalProtocolError, match=r"'helper'.*not the splits that the parties have registered"):
            ask((world, keys, forest), msg.TakeRequest, under)


def test_a_request_is_of_values_that_its_requester_knows(
    world: tuple[World, CoordinatorKeys, CoordinatorRevocable],
) -> None:
    """Anybody can shift a ciphertext: else 64 rows of any user would tell another's value, or a leaver's split."""
    made, keys, forest = world
    group = keys.group
    alice = encrypt_request(some_rows(0, 1), group, splits=forest.splits.registered, requester="alice")
    own = encrypt_request(some_rows(1, 1), group, splits=forest.splits.registered, requester="mallory")
    theirs = group.read(alice.values)
    again = [value * conceal(group, 0, stream(number)) % group.N2 for number, value in enumerate(theirs)]
    shifted = [value * (1 + 7 * group.N) % group.N2 for value in again]
    split = group.read(forest.splits.data[:1, : group.element_bytes])
    for values in (theirs, again, shifted, [*group.read(own.values)[:4], *split]):
        lines = group.write(values)
        ticket = msgspec.structs.replace(own.ticket, digest=hashlib.sha256(lines.tobytes()).digest())
        for proof in (alice.proof, own.proof, b""):
            with pytest.raises(CiphertextError, match="has not proved to know"):
                made.helper.handle(take_request(forest, EncryptedRequest(ticket, lines, proof)))
    renamed = msgspec.structs.replace(alice.ticket, requester="mallory")
    with pytest.raises(CiphertextError, match="has not proved to know"):  # the same bytes, under another name
        made.helper.handle(take_request(forest, EncryptedRequest(renamed, alice.values, alice.proof)))
    made.helper.handle(take_request(forest, alice))
    made.helper.handle(take_request(forest, own))


def test_an_unsigned_request_is_refused_at_the_helper_where_it_has_a_gate() -> None:
    world = World(plant(0))
    keys, forest = world.begin()
    world.helper.gate.requesters = {"alice"}
    for name in ("alice", "mallory"):
        request: EncryptedRequest = encrypt_request(
            some_rows(0, 1), keys.group, splits=forest.splits.registered, requester=name
        )
        take = take_request(forest, request)
        if name == "alice":
            world.helper.handle(take)
        else:
            with pytest.raises(PolicyError, match="does not answer requests of 'mallory'"):
                world.helper.handle(take)
