"""Encrypted predictions: they agree with the forest in clear on every row, and what is wrong is refused."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from alignments import OPERATOR
from hypothesis import given, settings
from hypothesis import strategies as st
from revocable_world import HELPER, KEYS, World, plant, some_rows

from woodlot.exceptions import (
    CiphertextError,
    DataError,
    EpochError,
    LocalProtocolError,
    PolicyError,
    RemoteProtocolError,
    WoodlotError,
)
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable import revocable_predict
from woodlot.protocols.revocable.revocable_keys import CoordinatorKeys
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable
from woodlot.protocols.revocable.revocable_predict import (
    EncryptedRequest,
    encrypt_request,
    predict_encrypted,
    walk_encrypted,
)
from woodlot.protocols.revocable.tickets import RequestGate
from woodlot.trees.predict import outputs_from_leaves


@pytest.fixture(scope="module")
def world() -> tuple[World, CoordinatorKeys, CoordinatorRevocable]:
    made = World(plant(0))
    return (made, *made.begin())


def request(
    keys: CoordinatorKeys, forest: CoordinatorRevocable, rows: Any, requester: str = "alice"
) -> EncryptedRequest:
    return encrypt_request(rows, keys.group, splits=forest.splits.registered, requester=requester)


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), n_trees=st.integers(1, 6), depth=st.integers(0, 5), n_rows=st.integers(1, 8))
def test_agrees_with_the_forest_in_clear(seed: int, n_trees: int, depth: int, n_rows: int) -> None:
    planted = plant(seed, n_trees=n_trees, depth=depth)
    world, rows = World(planted), some_rows(seed, n_rows)
    keys, forest = world.begin()
    found = world.run(walk_encrypted(forest, keys, request(keys, forest, rows)))
    np.testing.assert_array_equal(found, planted.leaves(rows))


def test_outputs_and_costs(world: tuple[World, CoordinatorKeys, CoordinatorRevocable]) -> None:
    made, keys, forest = world
    rows = some_rows(1, 5)
    before = made.ledger.cost().rounds
    outputs = made.run(predict_encrypted(forest, keys, request(keys, forest, rows)))
    expected = outputs_from_leaves(made.planted.leaves(rows), forest.forest.leaves)
    np.testing.assert_array_equal(outputs, expected)
    # one exchange for randomness and three per level, however many trees there are
    assert made.ledger.cost().rounds - before <= 1 + 3 * 3


def test_rows_in_blocks(
    world: tuple[World, CoordinatorKeys, CoordinatorRevocable], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, keys, forest = world
    monkeypatch.setattr(revocable_predict, "BLOCK_COMPARISONS", 8)
    rows = some_rows(2, 5)
    found = made.run(walk_encrypted(forest, keys, request(keys, forest, rows)))
    np.testing.assert_array_equal(found, made.planted.leaves(rows))


def test_ties_go_left() -> None:
    planted = plant(3, n_trees=3)
    rows = np.repeat(np.array([-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5])[:, None], 5, axis=1)
    world = World(planted)
    keys, forest = world.begin()
    found = world.run(walk_encrypted(forest, keys, request(keys, forest, rows)))
    np.testing.assert_array_equal(found, planted.leaves(rows))


# --- wrong requests ---


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([[1.0, np.nan]], "row 0, column 1"),
        ([[1.0, 2.0], [np.inf, 1.0]], "row 1, column 0"),
        ([1.0, 2.0], "shape"),
        (np.zeros((0, 3)), "shape"),
    ],
)
def test_requests_that_are_none(
    world: tuple[World, CoordinatorKeys, CoordinatorRevocable], rows: Any, why: str
) -> None:
    with pytest.raises(DataError, match=why):
        request(world[1], world[2], rows)


def changed(request: EncryptedRequest, **fields: Any) -> EncryptedRequest:
    return dataclasses.replace(request, ticket=msgspec.structs.replace(request.ticket, **fields))


def test_requests_of_another_shape_epoch_or_content(world: tuple[World, CoordinatorKeys, CoordinatorRevocable]) -> None:
    made, keys, forest = world
    good = request(keys, forest, some_rows(0, 2))
    other = dataclasses.replace(forest, splits=dataclasses.replace(forest.splits, epoch=7))
    wrong: list[tuple[Any, CoordinatorRevocable, EncryptedRequest, str]] = [
        (DataError, forest, request(keys, forest, some_rows(0, 2, 4)), "4 features"),
        (EpochError, forest, changed(good, epoch=2), "request is of epoch 2"),
        (EpochError, other, good, "forest is of epoch 7"),
        (CiphertextError, forest, changed(good, rows=1), "ticket"),
        (CiphertextError, forest, dataclasses.replace(good, values=good.values[::-1]), "ticket"),
    ]
    rounds = made.ledger.cost().rounds
    for kind, grown, asked, why in wrong:
        with pytest.raises(kind, match=why):
            made.run(predict_encrypted(grown, keys, asked))
    assert made.ledger.cost().rounds == rounds  # nobody was asked


def test_splits_that_are_no_ciphertexts(world: tuple[World, CoordinatorKeys, CoordinatorRevocable]) -> None:
    made, keys, forest = world
    damaged = dataclasses.replace(forest, splits=dataclasses.replace(forest.splits, data=forest.splits.data * 0))
    with pytest.raises(LocalProtocolError, match=r"'helper'.*no element"):
        made.run(predict_encrypted(damaged, keys, request(keys, forest, some_rows(0, 1))))


# --- providers have the last word ---


def test_a_provider_refuses_a_requester() -> None:
    planted = plant(1)
    world = World(planted, gates={"bank": RequestGate(requesters={"alice"}, rows_per_requester=3)})
    keys, forest = world.begin()
    gate = world.providers["bank"].gate

    def ask(requester: str, n_rows: int) -> Any:
        asked = request(keys, forest, some_rows(0, n_rows), requester)
        return world.run(walk_encrypted(forest, keys, asked))

    with pytest.raises(PolicyError, match=r"'bank'.*does not answer requests of 'mallory'"):
        ask("mallory", 1)
    assert gate.log == []
    np.testing.assert_array_equal(ask("alice", 2), planted.leaves(some_rows(0, 2)))
    with pytest.raises(PolicyError, match="has asked about 2 rows"):
        ask("alice", 2)
    assert [(ticket.requester, ticket.rows) for ticket in gate.log] == [("alice", 2)]


def test_requests_are_signed_where_there_are_identities(
    world: tuple[World, CoordinatorKeys, CoordinatorRevocable],
) -> None:
    _, keys, forest = world
    alice = OPERATOR.admit("alice")
    gate = RequestGate(signer=OPERATOR.admit("bank"))
    signed = encrypt_request(
        some_rows(0, 2), keys.group, splits=forest.splits.registered, requester="alice", signer=alice
    ).ticket
    gate.check(signed)
    for wrong in (
        request(keys, forest, some_rows(0, 2)).ticket,
        msgspec.structs.replace(signed, requester="bob"),
        msgspec.structs.replace(signed, rows=1),
        msgspec.structs.replace(signed, digest=bytes(32)),
    ):
        with pytest.raises(PolicyError, match="not signed by"):
            gate.check(wrong)


class Tampering:
    """A member whose messages somebody changes on the way."""

    def __init__(self, member: Any, change: Callable[[Message], Message]) -> None:
        self._member = member
        self._change = change

    def handle(self, message: Message) -> Message:
        reply: Message = self._member.handle(self._change(message))
        return reply


def test_a_provider_opens_results_of_comparisons_only(
    world: tuple[World, CoordinatorKeys, CoordinatorRevocable],
) -> None:
    """The coordinator hands it a split of its own instead; or results of another count or step."""
    made, keys, forest = world
    bank = forest.forest.parties.index("bank")
    split = forest.splits.of(np.flatnonzero(forest.forest.owner == bank)[:1].astype(np.int32))

    def instead(**fields: Any) -> Callable[[Message], Message]:
        return lambda message: (
            msgspec.structs.replace(message, **fields) if isinstance(message, msg.OpenAnswers) else message
        )

    log = list(made.providers["bank"].gate.log)
    for wrong in (instead(answer=split.tobytes()), instead(answer=b""), instead(step=7), instead(block=7)):
        other = World(made.planted)
        other.members = {**made.members, "bank": Tampering(made.providers["bank"], wrong)}
        with pytest.raises(LocalProtocolError, match="opens nothing else"):
            other.run(predict_encrypted(forest, keys, request(keys, forest, some_rows(0, 2))))
    assert made.providers["bank"].gate.log == log


def one_step(made: World, keys: CoordinatorKeys, forest: CoordinatorRevocable) -> dict[str, list[Message]]:
    """Every message that members get in one prediction."""
    seen: dict[str, list[Message]] = {name: [] for name in made.members}

    def note(name: str) -> Callable[[Message], Message]:
        def change(message: Message) -> Message:
            seen[name].append(message)
            return message

        return change

    world = World(made.planted)
    world.members = {name: Tampering(member, note(name)) for name, member in made.members.items()}
    world.run(predict_encrypted(forest, keys, request(keys, forest, some_rows(0, 2))))
    return seen


def test_nothing_is_answered_twice(world: tuple[World, CoordinatorKeys, CoordinatorRevocable]) -> None:
    made, keys, forest = world
    for name, messages in one_step(made, keys, forest).items():
        for message in messages:
            with pytest.raises(RemoteProtocolError):
                made.members[name].handle(message)


def test_old_and_future_epochs_are_refused_by_everyone(
    world: tuple[World, CoordinatorKeys, CoordinatorRevocable],
) -> None:
    made, keys, forest = world
    for name, messages in one_step(made, keys, forest).items():
        for message in messages:
            ticket = msgspec.structs.replace(message.ticket, epoch=2)  # type: ignore[attr-defined]
            with pytest.raises(EpochError, match="epoch 2 has not begun"):
                made.members[name].handle(msgspec.structs.replace(message, ticket=ticket))


def test_malformed_steps_are_refused_and_change_nothing(
    world: tuple[World, CoordinatorKeys, CoordinatorRevocable],
) -> None:
    made, keys, forest = world
    world_of = World(made.planted)
    world_of.begin()
    helper = world_of.helper
    take, opening, finish = one_step(made, keys, forest)[HELPER][:3]
    assert isinstance(take, msg.TakeRequest)
    assert isinstance(opening, msg.OpenDifferences)
    assert isinstance(finish, msg.FinishComparisons)

    def refuses(message: Message, why: str, **fields: Any) -> None:
        with pytest.raises(RemoteProtocolError, match=why):
            helper.handle(msgspec.structs.replace(message, **fields))

    refuses(opening, "no such request")
    refuses(take, "not those that the requester's ticket is for", values=take.values[1:])
    refuses(take, "one owner, column and hash", feature=take.feature[1:])
    refuses(take, "one owner, column and hash", hashes=take.hashes[:, 1:])
    refuses(take, "one of nobody", owner=take.owner + np.uint16(7))
    refuses(take, "in the order of their hashes", hashes=take.hashes[::-1])
    refuses(take, "each owner once", owners=take.owners[::-1])
    refuses(take, "not the splits that the parties have registered", feature=take.feature + np.int32(1))
    refuses(take, "signed for other splits", ticket=msgspec.structs.replace(take.ticket, splits=bytes(32)))
    helper.handle(take)
    refuses(take, "has been taken")
    refuses(opening, "no such request", ticket=msgspec.structs.replace(take.ticket, request=b"another request!"))
    refuses(opening, "1 to", row=opening.row[:0], split=opening.split[:0])
    refuses(opening, "one row and one split", split=opening.split[1:])
    refuses(opening, "of no row", row=opening.row + np.uint32(9))
    refuses(opening, "no split that was told", split=opening.split + np.uint32(9))
    refuses(opening, "not one column for each split", column=opening.column[1:])
    refuses(opening, "has 128 bytes", splits=opening.splits[:, 1:])
    refuses(finish, "no comparisons of this step are open")
    helper.handle(opening)  # nothing has been changed
    refuses(opening, "good for one use")
    refuses(finish, "need a half of each", halves=finish.halves[1:])
    refuses(finish, "no element", halves=finish.halves * np.uint8(0))
    helper.handle(finish)
    refuses(finish, "no comparisons of this step are open")


def test_the_key_service_deals_within_limits(world: tuple[World, CoordinatorKeys, CoordinatorRevocable]) -> None:
    made, keys, forest = world
    ticket = request(keys, forest, some_rows(0, 1)).ticket
    for sizes, owners in (((), 1), ((-1,), 1), ((1 << 18,), 1), ((1,), 0), ((1,), 4)):
        with pytest.raises(RemoteProtocolError):
            made.key_service.handle(msg.DealComparisons(ticket=ticket, block=0, sizes=sizes, owners=owners))
    assert KEYS in made.members


def test_every_message_at_every_member_is_answered_or_refused(
    world: tuple[World, CoordinatorKeys, CoordinatorRevocable],
) -> None:
    """Whatever comes to whomever, before or after an epoch has begun: only Woodlot's own errors leave a handler."""
    made, keys, forest = world
    seen = [message for messages in one_step(made, keys, forest).values() for message in messages]
    seen += record_epoch(made.planted)
    fresh, started = World(made.planted), World(made.planted)
    started.begin()
    for stage in (fresh, started):
        for member in stage.members.values():
            for message in seen:
                with contextlib.suppress(WoodlotError):
                    member.handle(message)
    # none of it has brought the parties of the first one out of step
    fresh = World(made.planted)
    for message in seen:
        for member in fresh.members.values():
            if not isinstance(message, msg.OpenEpoch | msg.MeetMembers | msg.MakeGroup):
                with pytest.raises(WoodlotError):
                    member.handle(message)
    fresh.begin()


def record_epoch(planted: Any) -> list[Message]:
    """The messages by which an epoch begins."""
    world, seen = World(planted), []

    def note(message: Message) -> Message:
        seen.append(message)
        return message

    world.members = {name: Tampering(member, note) for name, member in world.members.items()}
    world.begin()
    return seen
