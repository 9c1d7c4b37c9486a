"""Encrypted predictions from shares: the answers are those in clear, and a coordinator that deviates learns nothing.

The coordinator has no share. It carries sealed boxes and chooses what is compared: each way in which it could change
what it carries, or ask for more than it may, is tried here.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from revocable_world import FOREST, HELPER, KEYS, plant, some_rows, splits_at
from share_world import ShareWorld, inner_nodes

from woodlot.crypto import split_compare
from woodlot.crypto.order_words import has_common_word
from woodlot.crypto.streams import SecretStream
from woodlot.exceptions import (
    CiphertextError,
    DataError,
    EpochError,
    LocalProtocolError,
    PolicyError,
    RemoteProtocolError,
)
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import key_messages as keys_msg
from woodlot.protocols.revocable import share_messages as msg
from woodlot.protocols.revocable.epoch_keys import TAG, EpochKeys
from woodlot.protocols.revocable.revocable_model import most_on_paths
from woodlot.protocols.revocable.share_holders import ShareHelper
from woodlot.protocols.revocable.share_keeping import RequestPart, asking_facts, key_commit, open_held, seal_held
from woodlot.protocols.revocable.share_messages import COMMIT_BYTES
from woodlot.protocols.revocable.share_predict import (
    SharedRequest,
    SharedSplits,
    ShareEpoch,
    commit_shares,
    delete_shares,
    prepare_shares,
    share_request,
    share_splits,
)
from woodlot.protocols.revocable.tickets import RequestGate
from woodlot.runtime.codec import encode

Begun = tuple[ShareWorld, ShareEpoch, SharedSplits]

WRONG = 1000
"""How many comparisons with a wrong share are tried."""


@pytest.fixture
def begun() -> Begun:
    world = ShareWorld(plant(0))
    return (world, *world.begin())


def state_of(world: ShareWorld) -> Any:
    """What helper and key service keep and have counted."""
    helper, request = world.helper, world.helper._request
    counts = None if request is None else (request.ticket, request.counts.tobytes())
    books = {name: {key: dict(held) for key, held in book.lines.items()} for name, book in world.books.items()}
    return helper.keys, world.key_service.keys, counts, set(helper._taken), books


def refused(world: ShareWorld, member: Any, message: Message, error: type[Exception], match: str) -> None:
    """The message is refused with these words, and changes nothing."""
    before = state_of(world)
    with pytest.raises(error, match=match):
        member.handle(message)
    assert state_of(world) == before


@pytest.mark.parametrize("seed", range(6))
def test_answers_are_those_in_clear(seed: int) -> None:
    world = ShareWorld(plant(seed, depth=1 + seed % 5, n_features=3 + seed % 3))
    keys, splits = world.begin()
    rows = some_rows(seed, 9, 3 + seed % 3)
    found = world.leaves(keys, splits, world.request(rows, splits))
    np.testing.assert_array_equal(found, world.planted.leaves(rows))


def test_many_rows_go_down_in_blocks(begun: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    world, keys, splits = begun
    monkeypatch.setattr("woodlot.protocols.revocable.share_predict.BLOCK_COMPARISONS", 20)
    rows = some_rows(1, 23)
    np.testing.assert_array_equal(world.leaves(keys, splits, world.request(rows, splits)), world.planted.leaves(rows))


def test_a_forest_without_splits_is_answered() -> None:
    world = ShareWorld(plant(0, depth=0))
    keys, splits = world.begin()
    assert world.leaves(keys, splits, world.request(some_rows(0, 2), splits)).shape == (2, 4)


def test_what_is_kept_and_sent_has_no_value_and_no_threshold(begun: Begun) -> None:
    world, keys, splits = begun
    sent: list[bytes] = []
    rows = np.full((3, 5), 1.2345678)
    request = world.request(rows, splits)
    for name, member in world.members.items():
        world.members[name] = Recording(member, sent)
    world.leaves(keys, splits, request)
    thresholds = world.planted.threshold[inner_nodes(world.planted)]
    codes = {*split_compare.value_codes(rows).ravel().tolist(), *split_compare.threshold_codes(thresholds).tolist()}
    kept = [one.data for book in world.books.values() for held in book.lines.values() for one in held.values()]
    for code in codes:
        assert not any(code.to_bytes(8, "little") in data for data in (*sent, *kept, request.values))


class Recording:
    """Notes all bytes that a member is sent and answers with."""

    def __init__(self, member: Any, sent: list[bytes]) -> None:
        self._member, self._sent = member, sent

    def handle(self, message: Message) -> Message:
        reply: Message = self._member.handle(message)
        self._sent += [encode(message), encode(reply)]
        return reply


# --- a wrong share is caught ---


def test_a_thousand_comparisons_with_a_wrong_share_of_a_value_are_caught(begun: Begun) -> None:
    world, _, splits = begun
    request = world.request(some_rows(0, 2), splits)
    rng = np.random.default_rng(0)
    honest = world.take(request)
    for _ in range(WRONG):
        wrong = bytearray(request.values)
        wrong[int(rng.integers(len(wrong)))] ^= int(rng.integers(1, 256))
        # also with a ticket that the coordinator has changed to match
        digest = hashlib.sha256(wrong).digest()
        for ticket in (request.ticket, msgspec.structs.replace(request.ticket, digest=digest)):
            with pytest.raises((CiphertextError, RemoteProtocolError), match="the values are not those"):
                world.helper.handle(msg.TakeValues(ticket=ticket, values=bytes(wrong), leaves=honest.leaves))
    assert world.helper._request is None
    assert world.helper._taken == set()


@pytest.mark.parametrize("role", [HELPER, KEYS])
def test_a_thousand_comparisons_with_a_wrong_share_of_a_split_are_caught(role: str) -> None:
    world = ShareWorld(plant(0))
    keys = world.run(prepare_shares(world.parties, helper=HELPER, key_service=KEYS))
    boxes = {}
    for name, provider in world.providers.items():
        total, node = len(inner_nodes(world.planted)), world.planted.splits[name].node
        shared = provider.handle(msg.ShareSplits(epoch=1, forest=FOREST, total=total, node=node))
        assert isinstance(shared, msg.SplitsShared)
        boxes[name] = shared.helper if role == HELPER else shared.service
    kind: Any = msg.RegisterAtHelper if role == HELPER else msg.RegisterAtService
    rng = np.random.default_rng(1)
    for number in range(WRONG):
        name = world.parties[number % len(world.parties)]
        wrong = bytearray(boxes[name])
        wrong[int(rng.integers(len(wrong)))] ^= int(rng.integers(1, 256))
        with pytest.raises(RemoteProtocolError, match=f"shares under the name of '{name}' are not those"):
            world.members[role].handle(kind(epoch=1, forest=FOREST, boxes=boxes | {name: bytes(wrong)}))
    assert world.books[role].lines == {}
    assert keys.epoch == 1


def test_a_thousand_comparisons_in_which_the_two_are_asked_differently_tell_nothing(begun: Begun) -> None:
    world, _, splits = begun
    roots = [at for at in world.planted.coordinator.structure.offset[:-1].tolist() if at in inner_nodes(world.planted)]
    n_rows = -(-WRONG // len(roots))
    request = world.request(some_rows(0, n_rows), splits)
    world.helper.handle(world.take(request))
    asked = np.array(list(itertools.product(roots, range(n_rows))))
    fields = world.fields(request, splits, asked[:, 0], asked[:, 1])
    true = _words(world.helper, msg.CompareAtHelper(**fields))
    assert len(true) >= WRONG
    moved = fields["row"].copy()
    moved[0] = (moved[0] + 1) % n_rows  # one comparison of a thousand is asked differently
    for changed in (
        {"row": (fields["row"] + 1) % n_rows},
        {"row": moved},
        {"place": fields["place"] ^ 1},
        {"column": (fields["column"] + 1) % 5},
    ):
        other = _words(world.key_service, msg.CompareAtService(**fields | changed))
        assert not has_common_word(true, other).any()
    both = _words(world.key_service, msg.CompareAtService(**fields))
    assert 0.2 < has_common_word(true, both).mean() < 0.8  # asked alike, the words say something


def _words(member: Any, message: Message) -> Any:
    return member.handle(message).words


# --- what a coordinator may not ask for ---


def test_repeated_questions_have_the_same_answer_and_are_counted(begun: Begun) -> None:
    world, _, splits = begun
    request = world.request(some_rows(0, 1), splits)
    world.helper.handle(world.take(request))
    forest = world.planted.coordinator
    bank = world.planted.splits["bank"].node
    most = most_on_paths(forest.structure, bank)
    fields = world.fields(request, splits, bank[:1], [0])
    first = world.both(fields)
    for _ in range(most - 1):
        again = world.both(fields)
        for one, other in zip(first, again, strict=True):
            np.testing.assert_array_equal(one.words, other.words)  # type: ignore[attr-defined]
    refused(
        world, world.helper, msg.CompareAtHelper(**fields), PolicyError,
        f"{most + 1} comparisons of row 0 with splits of 'bank' are asked for, and a row has at most {most}",
    )  # fmt: skip


def test_rows_do_not_lend_each_other_comparisons(begun: Begun) -> None:
    world, _, splits = begun
    request = world.request(some_rows(0, 50), splits)
    world.helper.handle(world.take(request))
    nodes = world.planted.splits["bank"].node
    most = most_on_paths(world.planted.coordinator.structure, nodes)
    assert len(nodes) > most
    fields = world.fields(request, splits, nodes, np.zeros(len(nodes)))
    refused(world, world.helper, msg.CompareAtHelper(**fields), PolicyError, "comparisons of row 0 with splits of")


def _change(**changes: Any) -> Callable[[ShareWorld, dict[str, Any]], dict[str, Any]]:
    return lambda world, fields: fields | changes


def _other_column(world: ShareWorld, fields: dict[str, Any]) -> dict[str, Any]:
    """Another column of the same owner."""
    owners = world.owners()
    for at, name in enumerate(owners):
        if name == fields["owners"][0] and at != int(fields["column"][0]):
            return fields | {"column": np.array([at], np.uint32)}
    raise AssertionError("the owner has one column")


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        (_other_column, RemoteProtocolError, "compared with splits of another column of 'bank'"),
        (_change(column=np.array([1], np.uint32)), PolicyError, "column 1 of the request is not one of 'bank'"),
        (_change(column=np.array([9], np.uint32)), RemoteProtocolError, "no row or column of the request"),
        (_change(row=np.array([9], np.uint32)), RemoteProtocolError, "no row or column of the request"),
        (_change(place=np.array([999], np.uint32)), RemoteProtocolError, "'bank' has registered no such split"),
        (_change(owners=("mill",)), PolicyError, "'mill' has no splits in epoch 1, or has left"),
    ],
)
def test_comparisons_that_the_requester_and_the_owner_have_not_named(
    begun: Begun, change: Callable[..., dict[str, Any]], error: type[Exception], match: str
) -> None:
    world, _, splits = begun
    request = world.request(some_rows(0, 2), splits)
    world.helper.handle(world.take(request))
    fields = world.fields(request, splits, world.planted.splits["bank"].node[:1], [0])
    refused(world, world.helper, msg.CompareAtHelper(**change(world, fields)), error, match)
    world.both(fields)


def test_a_split_is_not_passed_off_as_one_of_another_owner(begun: Begun) -> None:
    world, _, splits = begun
    request = world.request(some_rows(0, 2), splits)
    world.helper.handle(world.take(request))
    fields = world.fields(request, splits, world.planted.splits["bank"].node[:1], [0])
    refused(
        world, world.helper, msg.CompareAtHelper(**fields | {"owners": ("shop",)}), PolicyError,
        "is not one of 'shop'; a party's splits are compared only with columns",
    )  # fmt: skip


@pytest.mark.parametrize("role", ["helper", "service"])
def test_requests_that_are_not_the_signed_one(begun: Begun, role: str) -> None:
    world, _, splits = begun
    request = world.request(some_rows(0, 2), splits)
    take = world.take(request)
    nodes = world.planted.splits["bank"].node[:1]
    for changed, error, match in (
        ({"epoch": 2}, EpochError, "epoch 2 has not begun"),
        ({"splits": bytes(32)}, EpochError, "signed for other splits"),
        ({"requester": "mallory"}, (RemoteProtocolError, CiphertextError), "the values are not those|no such"),
        ({"rows": 1}, (RemoteProtocolError, CiphertextError), "the values are not those|no such"),
        ({"request": bytes(16)}, (RemoteProtocolError, CiphertextError), "the values are not those|no such"),
    ):
        ticket = msgspec.structs.replace(request.ticket, **changed)  # type: ignore[arg-type]
        if role == "helper":
            message: Message = msgspec.structs.replace(take, ticket=ticket)
            refused(world, world.helper, message, error, match)  # type: ignore[arg-type]
        elif "requester" not in changed and "rows" not in changed and "request" not in changed:
            fields = world.fields(request, splits, nodes, [0]) | {"ticket": ticket}
            refused(world, world.key_service, msg.CompareAtService(**fields), error, match)  # type: ignore[arg-type]
    world.helper.handle(take)
    refused(world, world.helper, take, RemoteProtocolError, "this request has been taken; it is answered once")


def test_values_of_another_requester_are_random_numbers_in_ones_own_request(begun: Begun) -> None:
    """A coordinator with a user's identity copies a request of another user, with all that is sealed in it."""
    world, _, splits = begun
    victim = world.request(np.full((1, 5), 0.5), splits)
    ticket = msgspec.structs.replace(victim.ticket, requester="mallory")
    with pytest.raises(RemoteProtocolError, match="the values are not those that the requester has sealed"):
        world.helper.handle(msg.TakeValues(ticket=ticket, values=victim.values, leaves={}))
    own = share_request(
        np.full((1, 5), 0.5), epoch=1, requester="mallory", splits=splits.registered, owners=world.owners()
    )
    world.asked = SharedRequest(own.ticket, own.values, own.helper, victim.service)  # the victim's key of the dealer
    world.helper.handle(world.take(own))
    fields = world.fields(own, splits, inner_nodes(world.planted)[:1], [0])
    world.both(fields)
    shares = world.key_service._values
    assert shares is not None
    assert not np.intersect1d(shares[2], split_compare.dealer_shares(_stream_of(victim), 5)).size


def test_two_keys_for_the_key_service_in_one_request_tell_nothing_more(begun: Begun) -> None:
    """A requester that works for the coordinator has the same question answered for other values."""
    world, _, splits = begun
    request = world.request(some_rows(0, 40), splits)
    world.helper.handle(world.take(request))
    root = inner_nodes(world.planted)[0]
    fields = world.fields(request, splits, np.full(40, root), range(40))
    helper = _words(world.helper, msg.CompareAtHelper(**fields))
    other = RequestPart(key=bytes(32), other=request.service.other)
    world.asked = SharedRequest(request.ticket, request.values, request.helper, other)
    world.key_service._values = None  # as after a restart
    assert not has_common_word(helper, _words(world.key_service, msg.CompareAtService(**fields))).any()


def test_a_key_that_changes_within_a_request_changes_the_values_too(begun: Begun) -> None:
    """Else one comparison at the helper would be answered at the key service for any number of other values."""
    world, _, splits = begun
    request = world.request(some_rows(0, 40), splits)
    world.helper.handle(world.take(request))
    fields = world.fields(request, splits, np.full(40, inner_nodes(world.planted)[0]), range(40))
    asked = msg.CompareAtService(**fields)
    helper, service = world.both(fields)
    # the same request under another signature: the key service does not have its values at hand
    again = msgspec.structs.replace(request.ticket, signature=b"another")
    other = RequestPart(key=bytes(32), other=request.service.other)
    world.asked = SharedRequest(request.ticket, request.values, request.helper, other)
    world.key_service.handle(msg.CompareAtService(**fields | {"ticket": again}))
    wrong = _words(world.key_service, asked)
    assert not has_common_word(_words_of(helper), wrong).any()
    world.asked = request
    np.testing.assert_array_equal(_words(world.key_service, asked), _words_of(service))


def test_the_answers_of_two_keys_for_the_helper_have_nothing_in_common(begun: Begun) -> None:
    """Sealed values could be made to open under two keys; a helper that has forgotten the request would take both."""
    world, _, splits = begun
    request = world.request(some_rows(0, 40), splits)
    world.helper.handle(world.take(request))
    fields = world.fields(request, splits, np.full(40, inner_nodes(world.planted)[0]), range(40))
    helper = _words(world.helper, msg.CompareAtHelper(**fields))
    other = RequestPart(key=request.service.key, other=key_commit(bytes(32)))
    world.asked = SharedRequest(request.ticket, request.values, request.helper, other)
    assert not has_common_word(helper, _words(world.key_service, msg.CompareAtService(**fields))).any()


def _words_of(reply: Any) -> Any:
    return reply.words


def _stream_of(request: SharedRequest) -> Any:
    return SecretStream.derived(request.service.key, TAG, "shared values", *asking_facts(request.ticket))


def test_without_a_partys_leave_its_splits_are_not_compared(begun: Begun) -> None:
    world, _, splits = begun
    request = world.request(some_rows(0, 2), splits)
    take = world.take(request)
    other = world.take(world.request(some_rows(0, 2), splits))
    world.asked = request
    for leaves in ({**take.leaves, "bank": take.leaves["shop"]}, {**take.leaves, "bank": other.leaves["bank"]}):
        message = msg.TakeValues(ticket=request.ticket, values=request.values, leaves=leaves)
        refused(world, world.helper, message, RemoteProtocolError, "'bank' has not allowed this request")
    del take.leaves["bank"]
    world.helper.handle(take)
    fields = world.fields(request, splits, world.planted.splits["bank"].node[:1], [0])
    refused(world, world.helper, msg.CompareAtHelper(**fields), PolicyError, "'bank' has not allowed this request")


def test_a_party_refuses_requesters_and_counts_rows() -> None:
    gate = RequestGate(requesters=["alice"], rows_per_requester=3)
    world = ShareWorld(plant(0), gates={"bank": gate})
    keys, splits = world.begin()
    with pytest.raises(PolicyError, match="does not answer requests of 'mallory'"):
        world.leaves(keys, splits, world.request(some_rows(0, 1), splits, "mallory"))
    request = world.request(some_rows(0, 2), splits)
    world.leaves(keys, splits, request)
    bank = world.providers["bank"]
    bank.handle(msg.AdmitRequest(ticket=request.ticket))  # once more is the same request
    assert [ticket.rows for ticket in gate.log] == [2]
    with pytest.raises(PolicyError, match="has asked about 2 rows"):
        world.leaves(keys, splits, world.request(some_rows(0, 2), splits))


def test_requests_that_the_coordinator_refuses(begun: Begun) -> None:
    world, keys, splits = begun
    request = world.request(some_rows(0, 2), splits)
    changed = SharedRequest(request.ticket, request.values + b"x", request.helper, request.service)
    with pytest.raises(CiphertextError, match="not those that the requester's ticket is for"):
        world.leaves(keys, splits, changed)
    with pytest.raises(EpochError, match="of epoch 2"):
        world.leaves(keys, splits, world.request(some_rows(0, 2), splits, epoch=2))
    with pytest.raises(DataError, match="3 features, and the forest 5"):
        world.leaves(keys, splits, world.request(some_rows(0, 2, 3), splits, owners=world.owners()[:3]))
    for bad in (np.nan, np.inf, 1e300):
        rows = some_rows(0, 2)
        rows[1, 2] = bad
        with pytest.raises(DataError, match="row 1, column 2 of the request is not a finite number"):
            world.request(rows, splits)


# --- registering ---


def registering(world: ShareWorld, forest: str, epoch: int = 1) -> msg.RegisterAtHelper:
    """The boxes of all parties for a forest."""
    boxes = {}
    world.fingerprint = forest
    for name in world.parties:
        if name not in world.leavers:
            total, node = len(inner_nodes(world.planted)), world.planted.splits[name].node
            reply = world.providers[name].handle(msg.ShareSplits(epoch=epoch, forest=forest, total=total, node=node))
            assert isinstance(reply, msg.SplitsShared)
            boxes[name] = reply.helper
    return msg.RegisterAtHelper(epoch=epoch, forest=forest, boxes=boxes)


def test_lists_that_are_not_registered(begun: Begun) -> None:
    world, _, _ = begun
    message = registering(world, "another")
    boxes = message.boxes
    for changed, error, match in (
        ({"boxes": {n: b for n, b in boxes.items() if n != "tax"}}, PolicyError, "'tax' has left or has not sent"),
        ({"boxes": boxes | {"mill": b""}}, PolicyError, "'mill' has left or has not sent"),
        ({"boxes": boxes | {"bank": boxes["shop"]}}, RemoteProtocolError, "under the name of 'bank' are not those"),
        ({"forest": "a third"}, RemoteProtocolError, "for this forest"),
        ({"epoch": 2}, EpochError, "epoch 2 has not begun"),
    ):
        refused(world, world.helper, msgspec.structs.replace(message, **changed), error, match)  # type: ignore[arg-type]
    fixed = helper_of(world)
    refused(world, fixed, message, PolicyError, "none can be added or replaced")
    small = helper_of(world, replaces=True, most_splits=3)
    refused(world, small, message, PolicyError, "the forest that was ordered has at most 3")
    named = helper_of(world, replaces=True, model="m")
    refused(world, named, message, PolicyError, "a forest of another model")


def helper_of(world: ShareWorld, **options: Any) -> ShareHelper:
    """The same helper in another job."""
    member = world._member(HELPER) | {"keys": world.helper.keys, "book": world.books[HELPER]}
    return ShareHelper(HELPER, asked=lambda: RequestPart(key=b""), **member, **options)


def test_a_party_shares_its_own_splits_of_its_own_forest(begun: Begun) -> None:
    world, _, _ = begun
    bank = world.providers["bank"]
    node, total = world.planted.splits["bank"].node, len(inner_nodes(world.planted))
    for changed, match in (
        ({"forest": "another"}, "another forest than the one in use"),
        ({"total": total + 1}, "another number of splits"),
        ({"node": node[1:]}, "all splits of this party are shared, and no others"),
    ):
        fields: dict[str, Any] = {"epoch": 1, "forest": FOREST, "total": total, "node": node} | changed  # type: ignore[operator]
        with pytest.raises(RemoteProtocolError, match=match):
            bank.handle(msg.ShareSplits(**fields))


def test_a_split_on_categories_is_not_shared(begun: Begun) -> None:
    world, _, _ = begun
    own = world.planted.splits["bank"]
    world.planted.splits["bank"] = splits_at(own.node, own.feature, np.full(len(own.node), np.nan))
    with pytest.raises(RemoteProtocolError, match="split on categories has no threshold"):
        registering(world, FOREST)


def test_new_shares_have_nothing_of_those_before(begun: Begun) -> None:
    world, _, _ = begun
    book = world.books[HELPER]
    before = {name: held.data for held in book.lines.values() for name, held in held.items()}
    world.helper.handle(registering(world, "the next forest"))
    after = {name: held.data for held in book.lines.values() for name, held in held.items()}
    for name in world.parties:
        words = [set(np.frombuffer(data, "<u8").tolist()) for data in (before[name], after[name])]
        assert words[0].isdisjoint(words[1])
    assert len(book.lines) == 1


# --- leaving ---


def test_level_1_deletes_the_shares_of_who_leaves_at_both_holders(begun: Begun) -> None:
    world, keys, splits = begun
    request = world.request(some_rows(0, 2), splits)
    world.helper.handle(world.take(request))
    fields = world.fields(request, splits, world.planted.splits["shop"].node[:1], [0])
    world.both(fields)
    left = world.run(delete_shares(keys, "shop"))
    assert left.parties == ("bank", "tax")
    for name in (HELPER, KEYS):
        held = next(iter(world.books[name].lines.values()))
        assert sorted(held) == ["bank", "tax"]
        assert "shop" not in world.kept[name][-1].peers  # nor anything to make them again from
    with pytest.raises(RemoteProtocolError, match="no such request"):
        world.helper.handle(msg.CompareAtHelper(**fields))
    with pytest.raises(PolicyError, match="'shop' has no splits in epoch 1, or has left"):
        world.key_service.handle(msg.CompareAtService(**fields))
    with pytest.raises(PolicyError, match="whose shares have been deleted"):
        world.leaves(left, splits, world.request(some_rows(0, 2), splits))
    ticket = msgspec.structs.replace(request.ticket, requester="shop")
    with pytest.raises(PolicyError, match="'shop' has left; its requests are not answered"):
        world.key_service.handle(msg.CompareAtService(**fields | {"ticket": ticket}))
    again = keys_msg.RevokeAtHelper(epoch=1, party="shop")
    assert isinstance(world.helper.handle(again), keys_msg.RevokedAtHelper)
    with pytest.raises(RemoteProtocolError, match="'mill' is no party"):
        world.helper.handle(keys_msg.RevokeAtHelper(epoch=1, party="mill"))


def test_the_forest_without_the_leaver_takes_the_place_of_the_one_before(begun: Begun) -> None:
    world, keys, old = begun
    smaller = plant(1, parties=("bank", "tax"), n_features=4)
    world.planted.splits.update(smaller.splits)
    world.leavers = ["shop"]
    world.fingerprint = "without shop"
    for name, provider in world.providers.items():
        provider._structure = lambda: smaller.coordinator.structure
        own = np.flatnonzero(smaller.coordinator.feature_party == (name == "tax"))
        world.columns[name] = own.astype(np.int32)
    splits = world.run(share_splits(smaller.coordinator, keys, fingerprint="without shop", leavers=("shop",)))
    keys = world.run(delete_shares(keys, "shop"))
    world.planted.coordinator = smaller.coordinator
    rows = some_rows(3, 5, 4)
    np.testing.assert_array_equal(world.leaves(keys, splits, world.request(rows, splits)), smaller.leaves(rows))
    for name in (HELPER, KEYS):
        assert list(world.books[name].lines) == [splits.registered]
    with pytest.raises(EpochError, match="signed for other splits"):
        world.helper.handle(world.take(world.request(rows, old)))


def test_level_2_begins_with_new_keys_and_shares(begun: Begun) -> None:
    world, _, old = begun
    request = world.request(some_rows(0, 2), old)
    take = world.take(request)
    before: list[EpochKeys] = [world.kept[name][-1] for name in (HELPER, KEYS)]
    keys, splits = world.begin(epoch=2)
    for name, had in zip((HELPER, KEYS), before, strict=True):
        now = world.kept[name][-1]
        assert set(now.peers.values()).isdisjoint(had.peers.values())
        assert list(world.books[name].lines) == [splits.registered]
    refused(world, world.helper, take, EpochError, "epoch 1 has ended here")
    rows = some_rows(4, 3)
    np.testing.assert_array_equal(world.leaves(keys, splits, world.request(rows, splits)), world.planted.leaves(rows))


def test_until_a_new_epoch_is_committed_the_old_one_goes_on(begun: Begun) -> None:
    world, keys, splits = begun
    fresh = world.run(prepare_shares(world.parties, helper=HELPER, key_service=KEYS, epoch=2))
    newer = world.run(share_splits(world.planted.coordinator, fresh, fingerprint=FOREST))
    rows = some_rows(5, 2)
    np.testing.assert_array_equal(world.leaves(keys, splits, world.request(rows, splits)), world.planted.leaves(rows))
    world.run(commit_shares(fresh))
    world.run(commit_shares(fresh))  # an interrupted commit is repeated
    np.testing.assert_array_equal(world.leaves(fresh, newer, world.request(rows, newer)), world.planted.leaves(rows))


def test_members_that_are_made_again_answer_byte_for_byte(begun: Begun) -> None:
    world, _, splits = begun
    request = world.request(some_rows(0, 3), splits)
    take = world.take(request)
    world.helper.handle(take)
    fields = world.fields(request, splits, inner_nodes(world.planted)[:4], [0, 1, 2, 0])
    first = world.both(fields)
    saved = {name: kept[-1] for name, kept in world.kept.items()}
    again = ShareWorld(world.planted, saved=saved, books=world.books)
    again.asked = request
    again.helper.handle(take)
    for one, other in zip(first, again.both(fields), strict=True):
        np.testing.assert_array_equal(one.words, other.words)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(one.tops, other.tops)  # type: ignore[attr-defined]


def deceiving(world: ShareWorld, name: str, boxes: tuple[str, ...], **changes: Any) -> None:
    """Have a party seal something else to helper or key service than it tells of."""
    provider = world.providers[name]
    answer = provider.handle

    def lying(message: Message) -> Message:
        reply = answer(message)
        if isinstance(reply, msg.SplitsShared) and provider._staged is not None:
            for box in boxes:
                holder, member = (HELPER, world.helper) if box == "helper" else (KEYS, world.key_service)
                assert member._staged is not None
                held = open_held(member._staged, holder, name, FOREST, getattr(reply, box))
                sealed = seal_held(provider._staged, holder, msgspec.structs.replace(held, **changes))
                reply = msgspec.structs.replace(reply, **{box: sealed})
        return reply

    provider.handle = lying  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("boxes", "named"),
    [(("service",), KEYS), (("helper",), HELPER), (("helper", "service"), f"{HELPER} and {KEYS}")],
    ids=["key service", "helper", "both"],
)
def test_a_party_that_seals_other_things_to_the_two_is_named_before_anything_is_used(
    begun: Begun, boxes: tuple[str, ...], named: str
) -> None:
    """Its word to the coordinator is not what it has sealed; until then the epoch before goes on."""
    world, old_keys, old = begun
    keys = world.run(prepare_shares(world.parties, helper=HELPER, key_service=KEYS, epoch=2))
    deceiving(world, "bank", boxes, commit=bytes(COMMIT_BYTES))
    with pytest.raises(RemoteProtocolError, match=f"^bank has sealed other splits to {named} than it has told of"):
        world.run(share_splits(world.planted.coordinator, keys, fingerprint=FOREST))
    rows = some_rows(0, 1)
    leaves = world.leaves(old_keys, old, world.request(rows, old))
    assert leaves.shape[0] == len(rows)


def test_a_party_that_seals_another_number_of_splits_is_in_what_is_said_of_all(begun: Begun) -> None:
    world, *_ = begun
    keys = world.run(prepare_shares(world.parties, helper=HELPER, key_service=KEYS, epoch=2))
    total = len(inner_nodes(world.planted))
    count = len(world.planted.splits["bank"].node)
    deceiving(world, "bank", ("service",), total=total + 1)
    with pytest.raises(LocalProtocolError, match=f"bank {count} of {total + 1}"):
        world.run(share_splits(world.planted.coordinator, keys, fingerprint=FOREST))


@pytest.mark.parametrize("change", ["left out", "added", "other"])
def test_a_holder_that_tells_of_other_splits_is_named(begun: Begun, change: str) -> None:
    """It cannot have another party taken for the liar without being named beside it."""
    world, *_ = begun
    keys = world.run(prepare_shares(world.parties, helper=HELPER, key_service=KEYS, epoch=2))
    answer = world.helper.handle

    def lying(message: Message) -> Message:
        reply = answer(message)
        if isinstance(reply, msg.RegisteredAtHelper):
            lines = dict(reply.lines)
            if change == "left out":
                del lines["shop"]
            else:
                lines["mill" if change == "added" else "shop"] = bytes(COMMIT_BYTES)
            reply = msg.RegisteredAtHelper(lines=lines)
        return reply

    world.helper.handle = lying  # type: ignore[method-assign]
    with pytest.raises(RemoteProtocolError, match=HELPER):
        world.run(share_splits(world.planted.coordinator, keys, fingerprint=FOREST))
