"""Sealed prediction: the coordinator finds the leaves, and everything else that it sees is noise."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

import woodlot as wl
from woodlot.data.tables import read_table
from woodlot.exceptions import DataError, LocalProtocolError, PolicyError, RemoteProtocolError
from woodlot.protocols.core.message import Message
from woodlot.protocols.sums import SumClient
from woodlot.protocols.vertical import sealed
from woodlot.protocols.vertical import sealed_messages as msg
from woodlot.protocols.vertical.party import VerticalParty
from woodlot.protocols.vertical.sealed import Sealer, blocks_of, find_leaves
from woodlot.runtime.codec import decode, encode
from woodlot.trees.kernels.seal import clear_possible, find_zeros

COMMON = b"a secret of all three"
N = 150
NAMES = ("ash", "beech", "cedar")


def entropy_of(name: str, job: str) -> Callable[[str], bytes]:
    return lambda purpose: hashlib.sha256(f"{name}/{job}/{purpose}".encode()).digest()


def sealer_of(name: str, job: str = "job", digest: bytes = b"") -> Sealer:
    entropy = entropy_of(name, job)
    sums = SumClient(name, job=job, entropy=entropy, shared_secret=COMMON, allow_two=True, data_digest=digest)
    return Sealer(name, sums, entropy=entropy, data_digest=digest)


class Trained:
    """A forest of three parties, and its rows."""

    def __init__(self) -> None:
        rng = np.random.default_rng(3)
        values = rng.normal(size=(N, 6))
        self.X = pd.DataFrame(values, columns=[f"x{k}" for k in range(6)])
        dealing = {name: [f"x{2 * k}", f"x{2 * k + 1}"] for k, name in enumerate(NAMES)}
        self.columns = dealing
        model = wl.FederatedForestClassifier(6, parties=dealing, random_state=0, max_depth=5)
        self.model = model.fit(self.X, values.sum(axis=1) + rng.normal(size=N) > 0)
        self.forest = self.model.forest_.coordinator

    def parties(self, job: str = "job", **options: Any) -> dict[str, VerticalParty]:
        return {
            name: VerticalParty(
                name,
                read_table(self.X[self.columns[name]]),
                forest=self.model.forest_.parts[name],
                sealer=sealer_of(name, job),
                **options,
            )
            for name in NAMES
        }


@pytest.fixture(scope="module")
def trained() -> Trained:
    return Trained()


def play(
    trained: Trained, parties: dict[str, VerticalParty], n_rows: int = N
) -> tuple[np.ndarray, list[tuple[dict[str, bytes], dict[str, bytes]]]]:
    """Run the protocol by hand, through the codec; returns the leaves and all that was said."""
    protocol, said = find_leaves(trained.forest, NAMES, n_rows), []
    step = next(protocol)
    while True:
        asked = {name: encode(message) for name, message in step.requests.items()}
        told = {name: encode(parties[name].handle(decode(data))) for name, data in asked.items()}
        said.append((asked, told))
        try:
            step = protocol.send({name: decode(data) for name, data in told.items()})
        except StopIteration as end:
            return end.value, said


def answers_in(said: list[tuple[dict[str, bytes], dict[str, bytes]]]) -> list[dict[str, np.ndarray]]:
    """The numbers of each block, by party."""
    decoded = [{name: decode(data) for name, data in told.items()} for _, told in said]
    return [
        {name: reply.values for name, reply in told.items()}
        for told in decoded
        if all(isinstance(reply, msg.SealedLeaves) for reply in told.values())
    ]


# --- the kernels ---


@given(seed=st.integers(0, 2**32), n_rows=st.integers(1, 130), n_leaves=st.integers(1, 20))
@settings(max_examples=30, deadline=None)
def test_possible_leaves_are_cleared_and_no_others(seed: int, n_rows: int, n_leaves: int) -> None:
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**64, (-(-n_rows // 64), n_leaves), np.uint64)
    numbers = rng.integers(1, 2**64, (n_rows, n_leaves), np.uint64)
    expected = numbers.copy()
    for row in range(n_rows):
        for leaf in range(n_leaves):
            if int(words[row // 64, leaf]) >> (row % 64) & 1:
                expected[row, leaf] = 0
    clear_possible(words, numbers)
    np.testing.assert_array_equal(numbers, expected)


@given(seed=st.integers(0, 2**32), first=st.integers(0, 5), twice=st.booleans())
@settings(max_examples=30, deadline=None)
def test_zeros_are_found_once_per_tree(seed: int, first: int, twice: bool) -> None:
    rng = np.random.default_rng(seed)
    tree_of = np.repeat(np.arange(4, dtype=np.int32), rng.integers(2, 6, 4))
    n_leaves = len(tree_of)
    total = rng.integers(1, 2**64, (9, n_leaves - first), np.uint64)
    expected = np.full((9, 4), -1, np.int32)
    for row in range(9):
        for tree in range(4):
            own = np.flatnonzero(tree_of == tree)
            leaf = int(rng.choice(own))
            if leaf >= first:
                expected[row, tree] = leaf
                total[row, leaf - first] = 0
    if twice:
        own = np.flatnonzero(tree_of == 3) - first
        total[4, own] = 0
    found = np.full((9, 4), -1, np.int32)
    assert find_zeros(total, first, tree_of, found) is not twice
    if not twice:
        np.testing.assert_array_equal(found, expected)


# --- blocks ---


@given(n_rows=st.integers(1, 400), n_leaves=st.integers(1, 300), limit=st.sampled_from([64, 100, 1000, 10**6]))
@settings(max_examples=60, deadline=None)
def test_blocks_cover_every_row_and_leaf_once_within_the_limit(n_rows: int, n_leaves: int, limit: int) -> None:
    covered = np.zeros((n_rows, n_leaves), np.int64)
    for rows, leaves in blocks_of(n_rows, n_leaves, limit):
        assert len(rows) * len(leaves) <= limit
        covered[rows.start : rows.stop, leaves.start : leaves.stop] += 1
    assert (covered == 1).all()
    if n_rows * n_leaves <= limit:
        assert len(list(blocks_of(n_rows, n_leaves, limit))) == 1


def test_wide_forests_go_in_blocks_and_lead_to_the_same_leaves(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, said = play(trained, trained.parties())
    assert len(said) == 3  # two rounds to agree on masks, one for all answers
    monkeypatch.setattr(sealed, "blocks_of", lambda rows, leaves: blocks_of(rows, leaves, 700))
    found, said = play(trained, trained.parties())
    assert len(said) > 20
    np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(trained.model.combine().apply(trained.X), expected)


# --- what the coordinator sees ---


def is_uniform(numbers: np.ndarray) -> bool:
    """Bytes of every place of the numbers are as frequent as they should be: a chance of one in a billion to fail."""
    for place in range(8):
        seen = np.bincount((numbers >> np.uint64(8 * place)).astype(np.uint8), minlength=256)
        expected = len(numbers) / 256
        if ((seen - expected) ** 2 / expected).sum() > chi2.isf(1e-9 / 8, 255):
            return False
    return True


def test_apart_from_the_true_leaves_all_that_is_seen_is_uniform(trained: Trained) -> None:
    leaf, said = play(trained, trained.parties())
    (block,) = answers_in(said)
    seen = {name: values.reshape(N, -1) for name, values in block.items()}
    for first in range(len(NAMES)):  # each party's numbers, and the sums of some but not all
        names = NAMES[: first + 1] if first < 2 else ("cedar",)
        assert is_uniform(sum((seen[name] for name in names), np.uint64(0) * seen["ash"]).ravel())
    total = sum((seen[name] for name in NAMES[1:]), seen["ash"])
    zeros = np.zeros(total.shape, bool)
    zeros[np.arange(N)[:, None], leaf] = True
    np.testing.assert_array_equal(total == 0, zeros)
    assert is_uniform(total[~zeros])
    # leaves that all but one party allow look no different from those that nobody allows
    allowed = np.zeros(total.shape, int)
    for name, party in trained.parties().items():
        words = party._predictor()._predictor.answer("leaves", party._predictor()._columns, N).words  # type: ignore[union-attr]
        rows = np.arange(N)
        allowed += ((words[rows // 64] >> (rows % 64).astype(np.uint64)[:, None]) & np.uint64(1)).astype(int)
        assert name in NAMES
    for count in range(3):
        assert is_uniform(total[(allowed == count) & ~zeros])


def test_an_unmasked_answer_would_not_pass_that_test(trained: Trained) -> None:
    party = trained.parties()["ash"]
    possible = party._predictor()._predictor.answer("leaves", party._predictor()._columns, N).words  # type: ignore[union-attr]
    numbers = np.random.default_rng(0).integers(0, 2**64, (N, possible.shape[1]), np.uint64)
    assert is_uniform(numbers.ravel())
    clear_possible(possible, numbers)
    assert not is_uniform(numbers.ravel())


def test_no_number_is_used_twice(trained: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, blocks, jobs and parties: among so few numbers of 64 bits none occurs twice by chance."""
    monkeypatch.setattr(sealed, "blocks_of", lambda rows, leaves: blocks_of(rows, leaves, 4000))
    seen = [
        values
        for job in ("one", "two")
        for block in answers_in(play(trained, trained.parties(job))[1])
        for values in block.values()
    ]
    everything = np.concatenate(seen)
    assert len(np.unique(everything)) == len(everything)
    # nor is a mask under two vectors: their difference would be small, or equal to another
    by_job = [play(trained, trained.parties(job))[1] for job in ("one", "two")]
    first, second = (answers_in(said)[0] for said in by_job)
    differences = np.concatenate([first[name] - second[name] for name in NAMES])
    assert len(np.unique(differences)) == len(differences)


def test_a_restarted_party_repeats_its_answers_byte_for_byte(trained: Trained) -> None:
    _, said = play(trained, trained.parties())
    again = trained.parties()
    for asked, told in said:
        for name, data in asked.items():
            assert encode(again[name].handle(decode(data))) == told[name]


def test_one_mask_never_covers_two_vectors(trained: Trained) -> None:
    parties = trained.parties()
    _, said = play(trained, parties)
    ask = decode(said[-1][0]["ash"])
    assert isinstance(ask, msg.AskSealed)
    assert encode(parties["ash"].handle(ask)) == said[-1][1]["ash"]
    for change in ({"n_rows": 10}, {"first_leaf": 1, "n_leaves": 3}, {"shuffled": 0}, {"clients": ("ash", "beech")}):
        with pytest.raises((RemoteProtocolError, PolicyError)):
            parties["ash"].handle(msgspec.structs.replace(ask, **change))
    assert encode(parties["ash"].handle(ask)) == said[-1][1]["ash"]
    # other data under the same job have other masks from the first message on
    other, mine = sealer_of("ash", digest=b"other"), sealer_of("ash")
    opening = decode(said[0][0]["ash"])
    assert encode(other.sums.handle(opening)) != encode(mine.sums.handle(opening))


def test_answers_about_different_rows_do_not_add_up(trained: Trained) -> None:
    """What all parties allow for one row is its leaf; what they allow for a row each would tell of their splits."""
    parties, n_leaves = trained.parties(), trained.forest.structure.n_leaves
    _, said = play(trained, parties)
    ask = msg.AskSealed(
        round=1, clients=NAMES, first_row=0, n_rows=9, first_leaf=0, n_leaves=n_leaves, shuffled=None, seed=0
    )

    def zeros(**others: int) -> int:
        asked = {name: ask if name == "ash" else msgspec.structs.replace(ask, **others) for name in NAMES}
        told = [fresh[name].handle(message) for name, message in asked.items()]
        return int((np.sum([answer.values for answer in told], axis=0, dtype=np.uint64) == 0).sum())  # type: ignore[attr-defined]

    n_trees = trained.forest.structure.n_trees
    for others, found in (({}, 9 * n_trees), ({"first_row": 9}, 0)):
        fresh = trained.parties()
        for asked, _ in said[:2]:
            for name, data in asked.items():
                fresh[name].handle(decode(data))
        assert zeros(**others) == found


# --- refusals ---


def test_what_is_not_sealed_is_refused(trained: Trained) -> None:
    parties = trained.parties()
    ask = msg.AskSealed(round=0, clients=NAMES, first_row=0, n_rows=N, first_leaf=0, n_leaves=5, shuffled=None, seed=0)
    with pytest.raises(RemoteProtocolError, match="unexpected masked answer: sums are idle"):
        parties["ash"].handle(ask)
    play(trained, parties)
    alone = msgspec.structs.replace(ask, round=7, clients=("ash",))
    with pytest.raises(RemoteProtocolError, match="one party alone are not sealed"):
        parties["ash"].handle(alone)
    with pytest.raises(RemoteProtocolError, match="'ash', is not among those"):
        parties["ash"].handle(msgspec.structs.replace(ask, round=7, clients=("beech", "cedar")))
    for change in ({"first_row": N - 1}, {"first_leaf": trained.forest.structure.n_leaves - 1}):
        with pytest.raises(RemoteProtocolError, match="rows or leaves that do not exist"):
            parties["ash"].handle(msgspec.structs.replace(ask, round=8, **change))
    with pytest.raises(RemoteProtocolError, match="no such feature"):
        parties["ash"].handle(msgspec.structs.replace(ask, round=8, shuffled=2))
    for wrong in ({"n_rows": msg.MAX_ENTRIES, "n_leaves": 2}, {"n_rows": 0}, {"round": -1}, {"seed": -1}):
        with pytest.raises(LocalProtocolError, match="AskSealed"):
            msgspec.structs.replace(ask, **wrong).__post_init__()
    with pytest.raises(RemoteProtocolError, match="not a sealed one"):
        VerticalParty("ash", parties["ash"].table, forest=parties["ash"].forest).handle(ask)


@pytest.mark.parametrize("change", ["flipped", "shorter", "other round"])
def test_a_block_that_was_changed_on_its_way_is_found_out(trained: Trained, change: str) -> None:
    parties, protocol = trained.parties(), find_leaves(trained.forest, NAMES, N)
    step = next(protocol)
    for _ in range(2):
        step = protocol.send({name: parties[name].handle(message) for name, message in step.requests.items()})
    replies: dict[str, Message] = {name: parties[name].handle(message) for name, message in step.requests.items()}
    answer = replies["beech"]
    assert isinstance(answer, msg.SealedLeaves)
    values, number = answer.values.copy(), 0
    if change == "flipped":
        values += np.uint64(1)
    elif change == "shorter":
        values = values[:-1]
    else:
        number = 1
    replies["beech"] = msg.SealedLeaves(round=number, values=values)
    with pytest.raises(RemoteProtocolError, match=r"one leaf per tree|did not send the block"):
        protocol.send(replies)


def test_parties_with_different_secrets_do_not_lead_to_a_leaf(trained: Trained) -> None:
    parties = trained.parties()
    entropy = entropy_of("cedar", "job")
    sums = SumClient("cedar", job="job", entropy=entropy, shared_secret=b"x" * 16, allow_two=True)
    parties["cedar"] = VerticalParty(
        "cedar", parties["cedar"].table, forest=parties["cedar"].forest, sealer=Sealer("cedar", sums, entropy=entropy)
    )
    with pytest.raises(RemoteProtocolError, match="different secrets"):
        play(trained, parties)


def test_every_party_and_every_row_is_needed(trained: Trained) -> None:
    with pytest.raises(DataError, match=r"\['cedar'\] are absent.*sealed=False"):
        next(find_leaves(trained.forest, NAMES[:2], N))
    parties = trained.parties()
    known = np.arange(N) > 0
    parties["beech"] = VerticalParty(
        "beech",
        parties["beech"].table,
        forest=parties["beech"].forest,
        known=known,
        sealer=sealer_of("beech"),
    )
    with pytest.raises(DataError, match=r"every row at every party.*join='inner'"):
        play(trained, parties)


def test_random_numbers_follow_from_all_that_is_asked(trained: Trained) -> None:
    """Shuffled rows have numbers of their own, also at a party that has forgotten what it was asked before."""
    _, said = play(trained, trained.parties())
    ask = decode(said[-1][0]["ash"])
    assert isinstance(ask, msg.AskSealed)
    ask = msgspec.structs.replace(ask, clients=("ash",), n_rows=64)
    nothing = np.zeros((1, ask.n_leaves), np.uint64)
    asked = [ask, *(msgspec.structs.replace(ask, shuffled=0, seed=seed) for seed in (0, 1))]
    numbers = np.concatenate([sealer_of("ash").seal(one, nothing, True).values for one in asked])
    assert len(np.unique(numbers)) == len(numbers)
