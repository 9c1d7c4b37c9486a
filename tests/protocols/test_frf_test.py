"""FRF-Test: the answers are those in clear, and a coordinator that deviates learns the sides on one path only."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from revocable_world import FOREST, HELPER, KEYS, TEST, World, plant, some_rows, stream

from woodlot.crypto.encoding import encode
from woodlot.exceptions import CiphertextError, DataError, EpochError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import key_messages as msg
from woodlot.protocols.revocable.epoch_keys import bytes_number
from woodlot.protocols.revocable.revocable_keys import CoordinatorKeys, revoke_key
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable
from woodlot.protocols.revocable.rotate import rotate
from woodlot.protocols.revocable.row_test import RowTester, predict_own_rows
from woodlot.runtime import codec
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.forest import subtree_ends
from woodlot.trees.predict import outputs_from_leaves

Begun = tuple[World, CoordinatorKeys, CoordinatorRevocable]


def begun(seed: int = 0, **shape: int) -> Begun:
    world = World(plant(seed, **shape))
    return (world, *world.begin())


def outputs_for(begun: Begun, rows: NDArray[np.float64], said: list[tuple[str, str, bytes]] | None = None) -> Any:
    """The outputs for some rows; ``said`` gets every message."""
    world, keys, forest = begun
    testers = world.testers(rows)

    def note(sender: str, receiver: str, message: Message) -> None:
        if said is not None:
            said.append((sender, receiver, codec.encode(message)))

    ledger = Ledger(note)
    with InProcessDriver(testers, ledger=ledger) as driver:
        outputs, uncertain = run(
            predict_own_rows(forest, keys, world.parties, len(rows), "soft"), driver, ledger=ledger
        )
    assert not uncertain.any()
    return outputs


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), n_trees=st.integers(1, 5), depth=st.integers(0, 4), n_rows=st.integers(0, 9))
def test_the_answers_are_those_in_clear(seed: int, n_trees: int, depth: int, n_rows: int) -> None:
    world = begun(seed, n_trees=n_trees, depth=depth)
    rows, said = some_rows(seed, n_rows), list[tuple[str, str, bytes]]()
    planted = world[0].planted
    expected = outputs_from_leaves(planted.leaves(rows), planted.coordinator.leaves)
    np.testing.assert_array_equal(outputs_for(world, rows, said), expected)
    assert not {HELPER, KEYS} & {name for sender, receiver, _ in said for name in (sender, receiver)}
    # a split travels once, however many rows come by
    shown = [node for *_, data in said for node in getattr(codec.decode(data), "fresh", ())]
    assert len(shown) == len(set(shown))
    assert len({data for *_, data in said}) <= 2 * depth * 3  # one exchange per level, with three parties at most


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), shift=st.integers(1, 10**6))
def test_what_is_said_depends_on_values_only_by_the_sides_on_their_paths(seed: int, shift: int) -> None:
    """Other values on the same sides: every message is the same, byte for byte. So no role sees more of the values."""
    world = begun(seed, depth=3)
    rows = some_rows(seed, 6)
    planted, rng = world[0].planted, np.random.default_rng(shift)
    # thresholds are multiples of 0.5: x and any number from there down to the next smaller multiple are on one side
    moved = rows - rng.uniform(0.0, 0.49, rows.shape)
    np.testing.assert_array_equal(planted.leaves(moved), planted.leaves(rows))
    first, second = list[tuple[str, str, bytes]](), list[tuple[str, str, bytes]]()
    np.testing.assert_array_equal(outputs_for(world, rows, first), outputs_for(world, moved, second))
    assert first == second


def first_question(world: Begun, rows: NDArray[np.float64]) -> dict[str, msg.TestRows]:
    """What an honest coordinator asks first."""
    _, keys, forest = world
    step = next(predict_own_rows(forest, keys, world[0].parties, len(rows), "soft"))
    return {party: message for party, message in step.requests.items() if isinstance(message, msg.TestRows)}


@pytest.fixture(scope="module")
def world() -> Begun:
    return begun(0, n_trees=12)


@pytest.fixture
def asked(world: Begun) -> tuple[RowTester, msg.TestRows]:
    """The bank, and what an honest coordinator asks it first."""
    rows = some_rows(0, 4)
    return world[0].testers(rows)["bank"], first_question(world, rows)["bank"]


def test_what_was_not_asked_for_is_refused_and_changes_nothing(
    world: Begun, asked: tuple[RowTester, msg.TestRows]
) -> None:
    bank, good = asked
    foreign = np.flatnonzero(world[2].forest.owner == 1).astype(np.int32)
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("node of another party", {"nodes": foreign[: len(good.nodes)].copy()}),
        ("no such node", {"nodes": good.nodes + np.int32(10_000)}),
        ("no such row", {"rows": good.rows + np.int32(4)}),
        ("no such row", {"rows": good.rows - np.int32(4)}),
        ("one row for every node", {"rows": good.rows[1:]}),
        ("cannot have reached, or again", {"rows": np.zeros_like(good.rows)}),
        ("when it is first asked about", {"fresh": good.fresh[1:], "splits": good.splits[1:], "tags": good.tags[1:]}),
        ("when it is first asked about", {"fresh": good.fresh[::-1].copy()}),
        ("one split and one tag", {"splits": good.splits[1:]}),
        ("one split and one tag", {"tags": good.tags[1:]}),
        ("one split and one tag", {"splits": good.splits[:, 1:].copy()}),
        ("epoch 2 has not begun", {"epoch": 2}),
    ]
    for why, fields in wrong:
        with pytest.raises(RemoteProtocolError, match=why):
            bank.handle(msgspec.structs.replace(good, **fields))
    with pytest.raises(RemoteProtocolError, match="Unexpected RowsTested"):
        bank.handle(msg.RowsTested(bits=np.zeros(0, np.uint8)))
    assert isinstance(bank.handle(good), msg.RowsTested)


def test_the_coordinator_cannot_check_guesses_of_a_split(world: Begun, asked: tuple[RowTester, msg.TestRows]) -> None:
    """A ciphertext of the right threshold is refused like one of a wrong one: both are the coordinator's own."""
    bank, good = asked
    made, keys, _ = world
    truth = int(encode(made.planted.threshold[good.fresh[:1]])[0])
    group, refusals = keys.group, set()
    for guess in (truth, truth + 1, 0):
        own = group.write_pairs([keys.public["bank"].encrypt(guess, stream(guess))])
        with pytest.raises(RemoteProtocolError, match="not one that this party has encrypted") as refused:
            bank.handle(msgspec.structs.replace(good, splits=np.vstack([own, good.splits[1:]])))
        refusals.add(str(refused.value))
    # nor its own ciphertext made to look new, or added to
    c1 = group.read(good.splits[:1, : group.element_bytes])[0]
    for factor in (group.g, 1 + group.N):
        line = np.hstack([group.write([c1 * factor % group.N2]), good.splits[:1, group.element_bytes :]])
        with pytest.raises(RemoteProtocolError, match="not one that this party has encrypted") as refused:
            bank.handle(msgspec.structs.replace(good, splits=np.vstack([line, good.splits[1:]])))
        refusals.add(str(refused.value))
    assert len(refusals) == 1
    bank.handle(good)  # nothing was opened, and the job goes on


def test_a_split_of_another_node_ends_the_job(world: Begun, asked: tuple[RowTester, msg.TestRows]) -> None:
    """Splits that the party has made itself, but for other nodes: that one is equal is told once at most."""
    bank, good = asked
    made, _, forest = world
    own = made.planted.splits["bank"]
    at = np.searchsorted(own.node, good.fresh[0])
    other = np.flatnonzero((own.feature == own.feature[at]) & (own.threshold != own.threshold[at]))[0]
    place = np.searchsorted(forest.splits.node, own.node[other])
    swapped = msgspec.structs.replace(
        good,
        splits=np.vstack([forest.splits.data[place], good.splits[1:]]),
        tags=np.vstack([forest.splits.tag[place], good.tags[1:]]),
    )
    with pytest.raises(CiphertextError, match="is not the split that this party gave"):
        bank.handle(swapped)
    for message in (swapped, good):
        with pytest.raises(CiphertextError, match="this job is over here"):
            bank.handle(message)


def test_a_changed_second_half_ends_the_job(world: Begun, asked: tuple[RowTester, msg.TestRows]) -> None:
    """The tag is over the first half; with another second half nothing opens."""
    bank, good = asked
    width = world[1].group.element_bytes
    swapped = np.hstack([good.splits[:, :width], good.splits[::-1, width:]])
    with pytest.raises(CiphertextError, match="is not the split that this party gave"):
        bank.handle(msgspec.structs.replace(good, splits=swapped))
    with pytest.raises(CiphertextError, match="this job is over here"):
        bank.handle(good)


def question(world: Begun, node: int, rows: list[int], *, fresh: bool) -> msg.TestRows:
    """Some rows at one node, with its split where that is new."""
    splits = world[2].splits
    at = np.searchsorted(splits.node, [node] if fresh else [])
    return msg.TestRows(
        epoch=1,
        rows=np.array(rows, np.int32),
        nodes=np.full(len(rows), node, np.int32),
        fresh=splits.node[at],
        splits=splits.data[at],
        tags=splits.tag[at],
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_row_goes_down_a_tree_once(seed: int) -> None:
    """The strongest coordinator asks for every row at every node: it is told the sides on one path of each row."""
    world = begun(seed, n_trees=2, depth=4)
    made, rows = world[0], some_rows(seed, 3)
    structure = made.planted.coordinator.structure
    for party, tester in made.testers(rows).items():
        told: dict[int, list[tuple[int, int]]] = {row: [] for row in range(len(rows))}
        for node in made.planted.splits[party].node.tolist():
            fresh = True
            for row, path in told.items():
                try:
                    reply = tester.handle(question(world, node, [row], fresh=fresh))
                except RemoteProtocolError:
                    continue
                assert isinstance(reply, msg.RowsTested)
                fresh = False
                path.append((node, int(reply.bits[0])))
                with pytest.raises(RemoteProtocolError, match="or again"):
                    tester.handle(question(world, node, [row], fresh=False))
        ends = subtree_ends(structure.right)
        for path in told.values():
            for above, right in path:
                start, end = (structure.right[above], ends[above]) if right else (above + 1, structure.right[above])
                tree = structure.offset.searchsorted(above, "right")
                later = [n for n, _ in path if n > above and structure.offset.searchsorted(n, "right") == tree]
                assert all(start <= n < end for n in later)


def test_who_cannot_take_part(world: Begun) -> None:
    made, keys, forest = world
    rows = some_rows(0, 4)
    question = first_question(world, rows)["bank"]
    with pytest.raises(PolicyError, match="under seal only"):
        made.testers(rows, sealed_only=True)["bank"].handle(question)
    with pytest.raises(DataError, match="every row at every party"):
        made.testers(rows, known=np.arange(4) > 0)
    with pytest.raises(EpochError, match="no keys yet"):
        RowTester(made.part("bank"), made.columns("bank", rows), None, fingerprint=FOREST).handle(question)
    with pytest.raises(DataError, match="'shop' is absent"):
        next(predict_own_rows(forest, keys, ("bank", "tax"), 4, "soft"))


def test_splits_of_a_leaver_and_of_an_old_epoch_are_not_used() -> None:
    world = begun(1)
    made, keys, forest = world
    struck = made.run(revoke_key(keys, "shop"))
    with pytest.raises(PolicyError, match="'shop', whose key has been revoked"):
        next(predict_own_rows(forest, struck, made.parties, 2, "soft"))
    old = first_question(world, some_rows(1, 2))
    new, splits = made.run(rotate(forest.forest, keys, fingerprint=FOREST, **TEST))
    with pytest.raises(EpochError, match="epoch 1"):
        next(predict_own_rows(forest, new, made.parties, 2, "soft"))
    with pytest.raises(EpochError, match="epoch 1 has ended"):
        made.testers(some_rows(1, 2))["bank"].handle(old["bank"])
    expected = outputs_from_leaves(made.planted.leaves(some_rows(1, 2)), forest.forest.leaves)
    np.testing.assert_array_equal(outputs_for((made, new, made.encrypted(splits)), some_rows(1, 2)), expected)


class Salted(World):
    """Members draw other keys."""

    salt = 0

    def _member(self, name: str) -> dict[str, Any]:
        salt = self.salt
        return super()._member(name) | {"entropy": lambda purpose: f"{salt} secret of {name} {purpose}".encode()}


def test_the_sign_of_a_second_half_tells_nothing_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """-C2 opens to the same number or to none, as the key is even or odd: a party that refused it would tell."""
    parities = set()
    for salt in range(3):
        monkeypatch.setattr(Salted, "salt", salt)
        world = Salted(plant(0, n_trees=12))
        keys, forest = world.begin()
        group, width = keys.group, keys.group.element_bytes
        asked = next(predict_own_rows(forest, keys, world.parties, 4, "soft")).requests
        for party, tester in world.testers(some_rows(0, 4)).items():
            good = asked[party]
            assert isinstance(good, msg.TestRows)
            other = group.write([group.N2 - element for element in group.read(good.splits[:, width:])])
            changed = msgspec.structs.replace(good, splits=np.hstack([good.splits[:, :width], other]))
            assert isinstance(tester.handle(changed), msg.RowsTested)
            own = world.providers[party].keys
            assert own is not None
            parities.add(bytes_number(own.secret) % 2)
    assert parities == {0, 1}


def test_nothing_is_opened_for_a_row_that_cannot_be_at_the_node(world: Begun) -> None:
    """Otherwise the refusal of a wrong split would tell of every node, without a row that moves."""
    _, keys, forest = world
    tester = world[0].testers(some_rows(0, 2))["bank"]
    own = world[0].planted.splits["bank"]
    node, at = int(own.node[0]), np.searchsorted(forest.splits.node, own.node[:1])
    twice = msg.TestRows(
        epoch=keys.epoch, rows=np.zeros(2, np.int32), nodes=np.full(2, node, np.int32), fresh=own.node[:1],
        splits=np.zeros_like(forest.splits.data[at]), tags=forest.splits.tag[at],
    )  # fmt: skip
    with pytest.raises(RemoteProtocolError, match="cannot have reached, or again"):
        tester.handle(twice)
    many = msgspec.structs.replace(twice, rows=np.zeros(10**5, np.int32), nodes=np.full(10**5, node, np.int32))
    with pytest.raises(RemoteProtocolError, match="more rows than there are"):
        tester.handle(many)
