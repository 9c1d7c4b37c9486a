"""A coordinator and one party together, in encrypted predictions: they learn the sides of that party's own splits.

Before splits were registered, the tax office could vouch for any ciphertext at any time, and had it compared with any
column. With the coordinator it read a value of the bank's column in 64 comparisons, and a split of the bank in as many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray
from revocable_world import FOREST, HELPER, KEYS, TEST, World, plant, some_rows, splits_at, stream

from woodlot.crypto import dealer, packed
from woodlot.crypto.dtpkc import WeakKey, conceal_with
from woodlot.crypto.knowledge import prove_known
from woodlot.exceptions import CiphertextError, EpochError, PolicyError, RemoteProtocolError
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.epoch_keys import bytes_number, tag_of
from woodlot.protocols.revocable.helper import open_shares
from woodlot.protocols.revocable.revocable_keys import CoordinatorKeys, begin_epoch, revoke_key
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable
from woodlot.protocols.revocable.revocable_predict import EncryptedRequest, encrypt_request, walk_encrypted
from woodlot.protocols.revocable.rotate import encrypt_splits
from woodlot.protocols.revocable.split_list import (
    SplitList,
    hash_lines,
    known_purpose,
    own_facts,
    read_list,
    sort_hashes,
)

Begun = tuple[World, CoordinatorKeys, CoordinatorRevocable]
NOT_KNOWN = "splits of 'tax' are not registered: .*has not proved to know"


@pytest.fixture
def begun() -> Begun:
    made = World(plant(0))
    return (made, *made.begin())


def request_of(begun: Begun, rows: NDArray[np.float64], requester: str = "alice") -> EncryptedRequest:
    _, keys, forest = begun
    return encrypt_request(rows, keys.group, splits=forest.splits.registered, requester=requester)


class Gang:
    """The coordinator and the tax office, with all that both have, and a request of an honest user."""

    def __init__(self, begun: Begun, request: EncryptedRequest, steps: int) -> None:
        self._world, self._keys, forest = begun
        self._ticket, self._step = request.ticket, 0
        self._tax = self._world.providers["tax"].keys
        asked = msg.DealComparisons(ticket=self._ticket, block=0, sizes=(1,) * steps, owners=1)
        dealt = self._world.key_service.handle(asked)
        assert isinstance(dealt, msg.ComparisonsDealt)
        self._dealt = dealt
        self._world.helper.handle(
            msg.TakeRequest(
                ticket=self._ticket, values=request.values, proof=request.proof, **forest.splits.listed.fields()
            )
        )

    def is_larger(self, split: NDArray[np.uint8], column: int) -> bool:
        """Whether the first row's value of a column is larger than a split; nobody else is asked."""
        group, step, helper = self._keys.group, self._step, self._world.helper
        place: dict[str, Any] = {"ticket": self._ticket, "block": 0, "step": step}
        blinded = helper.handle(
            msg.OpenDifferences(
                **place,
                splits=split[None],
                column=np.array([column], np.uint32),
                row=np.zeros(1, np.uint32),
                split=np.array([step], np.uint32),
                size=1,
                owners=1,
                masks=self._dealt.masks[step : step + 1],
                proof=self._dealt.proofs[step].tobytes(),
            )
        )
        assert isinstance(blinded, msg.DifferencesBlinded)
        halves = group.write(self._keys.share.power(group.read(blinded.blinded)))
        finished = helper.handle(msg.FinishComparisons(**place, halves=halves))
        assert isinstance(finished, msg.ComparisonsFinished)
        assert self._tax is not None
        share = open_shares(self._tax, self._ticket, 0, step, finished.answers["tax"]).bits[0] & 1
        tops = np.unpackbits(np.frombuffer(self._dealt.tops, np.uint8), bitorder="little")
        own = dealer.Dealt(self._dealt.words[step : step + 1], tops[step : step + 1])
        self._step += 1
        return bool(dealer.decide(own, finished.words)[0] ^ share)


def own_splits(begun: Begun, party: str) -> NDArray[np.uint8]:
    """C1 of a party's splits."""
    world, keys, forest = begun
    return forest.splits.of(world.planted.splits[party].node)[:, : keys.group.element_bytes]


def test_they_learn_the_sides_of_the_partys_own_splits_on_its_own_column(begun: Begun) -> None:
    """What remains, and that the attack below fails for no other reason than the helper's."""
    world, rows = begun[0], some_rows(0, 1)
    own = world.planted.splits["tax"]
    gang = Gang(begun, request_of(begun, rows), len(own.node))
    found = [gang.is_larger(split, 2) for split in own_splits(begun, "tax")]
    assert found == (rows[0, 2] > own.threshold).tolist()


def test_the_partys_splits_are_compared_with_no_column_of_another(begun: Begun) -> None:
    gang = Gang(begun, request_of(begun, some_rows(0, 1)), 1)
    for column in (0, 1, 3, 4):
        with pytest.raises(PolicyError, match=f"column {column} of the request is not one of 'tax'"):
            gang.is_larger(own_splits(begun, "tax")[0], column)


def test_a_threshold_that_was_not_registered_is_compared_with_nothing(begun: Begun) -> None:
    """Neither one of their choice, nor a split of the bank's that was made to look new, or shifted."""
    group = begun[1].group
    gang = Gang(begun, request_of(begun, some_rows(0, 1)), 1)
    bank = group.read(own_splits(begun, "bank")[:1])[0]
    chosen = conceal_with(group, 7, group.draw(stream("chosen")))
    for element in (chosen, bank * group.g % group.N2, bank * chosen % group.N2):
        for column in (0, 2):
            with pytest.raises(PolicyError, match="no split that a party has registered before the request"):
                gang.is_larger(group.write([element])[0], column)


def tell(begun: Begun, numbers: list[int], message: msg.RegisterSplits, **changes: Any) -> msg.RegisterSplits:
    """The same registration with more splits of the tax office, which it has encrypted and vouches for."""
    world, keys, _ = begun
    tax = world.providers["tax"]
    own = tax.keys if tax.keys is not None else tax._staged_keys(message.epoch)
    key = WeakKey(keys.group, bytes_number(own.secret))
    drawn = [keys.group.draw(stream(number)) for number in numbers]
    found = [key.public.encrypt_with(number, r).c1 for number, r in zip(numbers, drawn, strict=True)]
    order = sorted(range(len(found)), key=lambda k: hash_lines(keys.group.write([found[k]])).tobytes())
    lines = keys.group.write([found[k] for k in order])
    forest = changes.get("forest", message.forest)
    feature = np.zeros(len(lines), np.int32)
    proof = prove_known(
        keys.group,
        [found[k] for k in order],
        [numbers[k] for k in order],
        [key.base_exponent(drawn[k]) for k in order],
        known_purpose("tax", keys.epoch, forest, feature),
        stream("proof"),
        keyed=True,
    )
    made = msgspec.structs.replace(
        message,
        splits=lines,
        names=("tax",),
        fresh_owner=np.zeros(len(lines), np.uint16),
        fresh_feature=feature,
        proofs={"tax": proof},
        **changes,
    )
    before, stays = read_list(made), made.stays.astype(bool)
    names = [name for name, stay in zip(before.names(), stays, strict=True) if stay] + ["tax"] * len(lines)
    listed = SplitList.of(
        names,
        np.concatenate([before.feature[stays], feature]),
        np.concatenate([before.hashes[stays], hash_lines(lines)]),
    )
    mine = listed.owner == listed.owners.index("tax")
    facts = own_facts(keys.epoch, forest, len(mine), listed.feature[mine], listed.hashes[mine])
    statement = tag_of(own.key_with(HELPER, "splits"), *facts)
    return msgspec.structs.replace(made, statements={**message.statements, "tax": statement})


def again(begun: Begun, forest: str = FOREST) -> msg.RegisterSplits:
    """What registers the same splits once more."""
    world, keys, made = begun
    first = encrypt_splits(made.forest, keys, fingerprint=FOREST)
    replies = {name: world.members[name].handle(asked) for name, asked in next(first).requests.items()}
    message = first.send(replies).requests[HELPER]
    assert isinstance(message, msg.RegisterSplits)
    listed = made.splits.listed
    nothing = {"splits": message.splits[:0], "fresh_owner": message.fresh_owner[:0], "names": (), "proofs": {}}
    return msgspec.structs.replace(
        message, forest=forest, **listed.fields(), stays=np.ones(len(listed.owner), np.uint8),
        fresh_feature=message.fresh_feature[:0], **nothing,
    )  # fmt: skip


def test_no_split_is_added_or_replaced_once_they_are_registered(begun: Begun) -> None:
    world, _, forest = begun
    registered = world.kept[HELPER][-1].registered
    rows = some_rows(0, 1)
    gang = Gang(begun, request_of(begun, rows), 1)
    assert isinstance(world.helper.handle(again(begun)), msg.SplitsRegistered)  # the same changes nothing
    listed = forest.splits.listed
    others = (listed.owner != listed.owners.index("tax")).astype(np.uint8)
    for stays, numbers in ((np.ones_like(others), [7]), (others, list(range(40, 40 + int((1 - others).sum()))))):
        with pytest.raises(PolicyError, match="none can be added or replaced"):
            world.helper.handle(tell(begun, numbers, again(begun), stays=stays))
        # as the splits of a forest that comes after this one: the others have not vouched for it
        with pytest.raises(RemoteProtocolError, match="'bank' has not vouched for these splits"):
            world.helper.handle(tell(begun, numbers, again(begun), stays=stays, forest="another"))
    for party in ("bank", "shop"):
        asked = next(encrypt_splits(forest.forest, begun[1], fingerprint=FOREST)).requests[party]
        with pytest.raises(RemoteProtocolError, match="another forest than the one in use"):
            world.members[party].handle(msgspec.structs.replace(asked, forest="another"))
        with pytest.raises(RemoteProtocolError, match="another number of splits"):
            world.members[party].handle(msgspec.structs.replace(asked, total=asked.total + 1))  # type: ignore[attr-defined]
    assert world.kept[HELPER][-1].registered == registered
    split = own_splits(begun, "tax")[0]
    assert gang.is_larger(split, 2) == (rows[0, 2] > world.planted.splits["tax"].threshold[0])  # it goes on


Change = Callable[[dict[str, Any], Any], None]


def register(change: Change) -> Any:
    """The first registration of an epoch, in which the tax office answers something else."""
    world = World(plant(0))
    keys = world.run(begin_epoch(world.parties, helper=HELPER, key_service=KEYS, **TEST))
    protocol = encrypt_splits(world.planted.coordinator, keys, fingerprint=FOREST)
    asked = next(protocol).requests
    replies: dict[str, Any] = {name: world.members[name].handle(message) for name, message in asked.items()}
    change(replies, keys)
    tax = replies["tax"]
    hashes = hash_lines(tax.splits[:, : keys.group.element_bytes])
    order = np.lexsort(hashes.T[::-1])
    facts = own_facts(1, FOREST, asked["tax"].total, tax.feature[order], hashes[order])  # type: ignore[attr-defined]
    own = world.providers["tax"].keys
    assert own is not None
    statement = tag_of(own.key_with(HELPER, "splits"), *facts)
    replies["tax"] = msgspec.structs.replace(tax, statement=statement)
    return world.helper.handle(protocol.send(replies).requests[HELPER])


def test_another_partys_split_is_not_registered_as_ones_own() -> None:
    """As it is, made to look new, or shifted: the tax office does not know what is in it."""

    def honest(replies: dict[str, Any], keys: CoordinatorKeys) -> None:
        pass

    assert isinstance(register(honest), msg.SplitsRegistered)

    def steal(factor: int, shift: int, proof: str) -> Change:
        def change(replies: dict[str, Any], keys: CoordinatorKeys) -> None:
            group, tax = keys.group, replies["tax"]
            theirs = group.read(replies["bank"].splits[:1, : group.element_bytes])[0]
            made = theirs * pow(group.g, factor, group.N2) * (1 + shift * group.N) % group.N2
            splits = tax.splits.copy()
            splits[0, : group.element_bytes] = group.write([made])[0]
            proofs = {"own": tax.proof, "theirs": replies["bank"].proof, "none": b""}
            proofs["guessed"] = prove_known(group, [made], [shift], [factor], b"", stream(), keyed=True)
            replies["tax"] = msgspec.structs.replace(tax, splits=splits, proof=proofs[proof])

        return change

    for factor, shift in ((5, 0), (5, 9)):
        for proof in ("own", "theirs", "none", "guessed"):
            with pytest.raises(CiphertextError, match=NOT_KNOWN):
                register(steal(factor, shift, proof))
    with pytest.raises(RemoteProtocolError, match="each of them once"):  # unchanged, it would be there twice
        register(steal(0, 0, "own"))

    def all_of_the_banks(replies: dict[str, Any], keys: CoordinatorKeys) -> None:
        """With its proof: that is good under its own name only."""
        count = len(replies["tax"].splits)
        replies["tax"] = msgspec.structs.replace(
            replies["bank"], splits=replies["bank"].splits[:count], feature=replies["bank"].feature[:count],
            tags=replies["bank"].tags[:count],
        )  # fmt: skip
        group = keys.group
        line = replies["tax"].splits.copy()
        for number, element in enumerate(group.read(line[:, : group.element_bytes])):
            line[number, : group.element_bytes] = group.write([element * group.g % group.N2])[0]
        replies["tax"] = msgspec.structs.replace(replies["tax"], splits=line)

    with pytest.raises(CiphertextError, match=NOT_KNOWN):
        register(all_of_the_banks)


def test_a_party_registers_no_more_splits_than_the_others_leave_it() -> None:
    """The others know the structure: a grid of thresholds on its own column does not fit in."""
    world = World(plant(0))
    keys = world.run(begin_epoch(world.parties, helper=HELPER, key_service=KEYS, **TEST))
    forest = world.planted.coordinator
    protocol = encrypt_splits(forest, keys, fingerprint=FOREST)
    replies = {name: world.members[name].handle(asked) for name, asked in next(protocol).requests.items()}
    honest = protocol.send(replies).requests[HELPER]
    assert isinstance(honest, msg.RegisterSplits)
    more = keys.group.write([conceal_with(keys.group, 3, 5)])
    whole = msgspec.structs.replace(
        honest,
        splits=np.concatenate([honest.splits, more]),
        fresh_owner=np.append(honest.fresh_owner, np.uint16(honest.names.index("tax"))),
        fresh_feature=np.append(honest.fresh_feature, np.int32(0)),
    )
    with pytest.raises(
        RemoteProtocolError, match=r"'bank' has not vouched for these splits as its own, and for \d+ in"
    ):
        world.helper.handle(whole)
    world.helper._most_splits = len(honest.splits) - 1
    with pytest.raises(PolicyError, match="the forest that was ordered has at most"):
        world.helper.handle(honest)
    world.helper._most_splits = len(honest.splits)
    world.helper.handle(honest)


def test_a_list_leaves_no_party_out() -> None:
    """Else a party could have all splits of it, as many as it likes: the others were never asked how many there are."""
    world = World(plant(0, n_features=4))
    world.planted.coordinator.owner[world.planted.coordinator.owner == 1] = 0
    bank, shop = world.planted.splits["bank"], world.planted.splits["shop"]
    both = np.argsort(np.concatenate([bank.node, shop.node]))
    merged = (np.concatenate([bank.feature, shop.feature]), np.concatenate([bank.threshold, shop.threshold]))
    world.planted.splits["bank"] = splits_at(
        np.concatenate([bank.node, shop.node])[both], merged[0][both], merged[1][both]
    )
    world.planted.splits["shop"] = splits_at(shop.node[:0], shop.feature[:0], shop.threshold[:0])
    keys = world.run(begin_epoch(world.parties, helper=HELPER, key_service=KEYS, **TEST))
    protocol = encrypt_splits(world.planted.coordinator, keys, fingerprint=FOREST)
    asked = next(protocol).requests
    assert set(asked) == {"bank", "shop", "tax"}
    replies: dict[str, Any] = {name: world.members[name].handle(message) for name, message in asked.items()}
    honest = protocol.send(replies).requests[HELPER]
    assert isinstance(honest, msg.RegisterSplits)
    # whoever has no splits vouches for that, too
    others = {name: tag for name, tag in honest.statements.items() if name != "shop"}
    with pytest.raises(RemoteProtocolError, match="'shop' has not vouched"):
        world.helper.handle(msgspec.structs.replace(honest, statements=others))
    tax, own = replies["tax"], world.providers["tax"].keys
    assert own is not None
    lines = tax.splits[:, : keys.group.element_bytes]
    hashes = hash_lines(lines)
    order, count = sort_hashes(hashes), len(lines)
    facts = own_facts(1, FOREST, count, tax.feature[order], hashes[order])
    alone = msgspec.structs.replace(
        honest, splits=lines, names=("tax",), fresh_owner=np.zeros(count, np.uint16), fresh_feature=tax.feature,
        proofs={"tax": tax.proof}, statements={"tax": tag_of(own.key_with(HELPER, "splits"), *facts)},
    )  # fmt: skip
    with pytest.raises(RemoteProtocolError, match="'bank' has not vouched"):
        world.helper.handle(alone)
    world.helper.handle(honest)


def test_a_request_is_for_the_splits_that_were_registered_when_it_was_signed(begun: Begun) -> None:
    """A party leaves, and the splits of the forest without it take their place: a request from before is refused."""
    world, keys, forest = begun
    before = request_of(begun, some_rows(0, 2))
    planted, world.fingerprint = world.planted, "successor"
    origin, owner = np.arange(forest.forest.structure.n_nodes), forest.forest.owner
    origin[owner == 1] = -1  # the shop's nodes are the bank's now, and new
    owner[owner == 1] = 0
    columns = planted.coordinator.feature_party
    columns[columns == 1] = 0
    node = np.flatnonzero(owner == 0)
    place = np.array([0, 2, -1, 1, 3], np.int32)[planted.feature[node]]
    planted.splits["bank"] = splits_at(node, place, planted.threshold[node])
    world.leavers.append("shop")
    protocol = encrypt_splits(
        planted.coordinator, keys, forest.splits, origin, fingerprint="successor", leavers=("shop",)
    )
    splits = world.run(protocol)
    world.run(revoke_key(keys, "shop"))
    successor = world.encrypted(splits)
    assert splits.registered != forest.splits.registered
    with pytest.raises(EpochError, match="signed for other splits"):
        world.helper.handle(
            msg.TakeRequest(ticket=before.ticket, values=before.values, proof=before.proof, **splits.listed.fields())
        )
    rows = some_rows(1, 3)
    asked = encrypt_request(rows, keys.group, splits=splits.registered, requester="alice")
    np.testing.assert_array_equal(world.run(walk_encrypted(successor, keys, asked)), planted.leaves(rows))


def test_a_split_that_is_longer_than_its_slot_disturbs_no_other_partys_comparison() -> None:
    """The tax office knows its split -d * 2^130, and nothing says that it is short: d reaches into the next slot.

    In one pack with a split of the bank it would shift a value of the bank's column by d, chosen by the two.
    """
    world = World(plant(0))
    bank = world.planted.splits["bank"]
    bank.threshold[0] = 1.0  # a value of 0 goes left
    keys = world.run(begin_epoch(world.parties, helper=HELPER, key_service=KEYS, **TEST))
    group = keys.group
    protocol = encrypt_splits(world.planted.coordinator, keys, fingerprint=FOREST)
    replies: dict[str, Any] = {name: world.members[name].handle(m) for name, m in next(protocol).requests.items()}
    numbers = [-(1 << 63) << packed.SLOT_BITS] * len(replies["tax"].splits)  # d: half of all numbers there are
    register = protocol.send(replies | {"tax": of_tax(world, keys, replies["tax"], numbers)}).requests[HELPER]
    world.helper.handle(register)
    with pytest.raises(StopIteration) as ended:
        protocol.send({HELPER: msg.SplitsRegistered()})
    splits = ended.value.value
    rows = np.zeros((2, 5))
    request = encrypt_request(rows, group, splits=splits.registered, requester="alice")
    place: dict[str, Any] = {"ticket": request.ticket, "block": 0, "step": 0}
    world.helper.handle(
        msg.TakeRequest(ticket=request.ticket, values=request.values, proof=request.proof, **splits.listed.fields())
    )
    asked = msg.DealComparisons(ticket=request.ticket, block=0, sizes=(2,), owners=2)
    dealt: Any = world.key_service.handle(asked)
    lines = splits.of(np.array([world.planted.splits["tax"].node[0], bank.node[0]]))[:, : group.element_bytes]
    blinded: Any = world.helper.handle(
        msg.OpenDifferences(
            **place,
            splits=lines,
            column=np.array([2, 3 * bank.feature[0]], np.uint32),
            row=np.array([1, 0], np.uint32),
            split=np.arange(2, dtype=np.uint32),
            size=2,
            owners=2,
            masks=dealt.masks,
            proof=dealt.proofs[0].tobytes(),
        )
    )
    assert len(blinded.blinded) == 2  # a pack of each
    halves = group.write(keys.share.power(group.read(blinded.blinded)))
    finished: Any = world.helper.handle(msg.FinishComparisons(**place, halves=halves))
    opened: Any = world.providers["bank"].handle(msg.OpenAnswers(**place, answer=finished.answers["bank"]))
    tops = np.unpackbits(np.frombuffer(dealt.tops, np.uint8), bitorder="little")
    _, places = packed.arrange(group, ["tax", "bank"], packed.pack_sizes(group, 2, 2))
    mine = dealer.decide(dealer.Dealt(dealt.words, tops[: len(dealt.words)]).take(places), finished.words)
    assert mine[1] ^ (opened.bits[0] & 1) == 0


def of_tax(world: World, keys: CoordinatorKeys, honest: Any, numbers: list[int]) -> Any:
    """What the tax office answers when it encrypts numbers of its own choice, all of which it knows."""
    own = world.providers["tax"].keys
    assert own is not None
    key = WeakKey(keys.group, bytes_number(own.secret))
    drawn = [keys.group.draw(stream(("drawn", number))) for number in range(len(numbers))]
    made = [key.public.encrypt_with(number, r) for number, r in zip(numbers, drawn, strict=True)]
    pairs = keys.group.write_pairs(made)
    hashes = hash_lines(pairs[:, : keys.group.element_bytes])
    order, feature = sort_hashes(hashes), np.zeros(len(numbers), np.int32)
    proof = prove_known(
        keys.group,
        [made[k].c1 for k in order],
        [numbers[k] for k in order],
        [key.base_exponent(drawn[k]) for k in order],
        known_purpose("tax", keys.epoch, FOREST, feature),
        stream("proof"),
        keyed=True,
    )
    total = int((world.planted.coordinator.structure.right >= 0).sum())
    facts = own_facts(keys.epoch, FOREST, total, feature, hashes[order])
    statement = tag_of(own.key_with(HELPER, "splits"), *facts)
    return msgspec.structs.replace(honest, splits=pairs, feature=feature, proof=proof, statement=statement)
