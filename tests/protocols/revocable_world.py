"""A small revocable federation: forests of random splits, every role in this process, keys of 512 bits."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "crypto"))

from small_keys import PRIMES, ROOT

from woodlot.crypto.master import MasterKey
from woodlot.crypto.streams import SecretStream
from woodlot.protocols.core.forest_parts import CoordinatorForest, PartyForest
from woodlot.protocols.revocable.epoch_keys import EpochKeys
from woodlot.protocols.revocable.helper import Helper
from woodlot.protocols.revocable.key_service import KeyService
from woodlot.protocols.revocable.provider import Provider
from woodlot.protocols.revocable.revocable_keys import CoordinatorKeys, begin_epoch
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable, EncryptedSplits
from woodlot.protocols.revocable.rotate import encrypt_splits
from woodlot.protocols.revocable.row_test import RowTester
from woodlot.protocols.revocable.tickets import RequestGate
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.encoding import NumericCoding
from woodlot.trees.forest import Leaves, Splits, Structure

HELPER, KEYS = "helper", "keys"
PARTIES = ("bank", "shop", "tax")
SECRET = b"a secret that all members share"
FOREST = "forest"
TEST: dict[str, Any] = {"bits": 512, "setting": "test"}


def ready_master(bits: int, *, epoch: int, **_: Any) -> MasterKey:
    """Primes that are there already, others in each epoch."""
    return MasterKey(*PRIMES[(epoch - 1) % len(PRIMES)], ROOT, epoch=epoch, setting="test")


@dataclass(eq=False)
class Planted:
    """A forest of random splits: what the coordinator has, what each party has, and how it answers in clear."""

    coordinator: CoordinatorForest
    splits: dict[str, Splits]
    feature: NDArray[np.int32]
    threshold: NDArray[np.float64]

    def leaves(self, rows: NDArray[np.float64]) -> NDArray[np.int32]:
        """The leaf of each row in each tree."""
        structure = self.coordinator.structure
        found = np.empty((len(rows), structure.n_trees), np.int32)
        for number, row in enumerate(rows):
            for tree, at in enumerate(structure.offset[:-1].tolist()):
                node = at
                while structure.right[node] >= 0:
                    goes_left = row[self.feature[node]] <= self.threshold[node]
                    node = node + 1 if goes_left else int(structure.right[node])
                found[number, tree] = structure.leaf[node]
        return found


def splits_at(node: NDArray[Any], feature: NDArray[np.int32], threshold: NDArray[np.float64]) -> Splits:
    """A party's numeric splits."""
    n = len(node)
    return Splits(
        node=node.astype(np.int32),
        feature=feature,
        threshold=threshold,
        missing_left=np.zeros(n, bool),
        set_start=np.zeros(n + 1, np.int64),
        sets=np.zeros(0, np.uint8),
    )


def plant(
    seed: int, *, n_trees: int = 4, depth: int = 3, n_features: int = 5, parties: tuple[str, ...] = PARTIES
) -> Planted:
    """Trees of different shapes, whose features are dealt to the parties in turn."""
    rng = np.random.default_rng(seed)
    right: list[int] = []

    def tree(left: int) -> None:
        at = len(right)
        right.append(-1)
        if left and rng.random() < 0.85:
            tree(left - 1)
            right[at] = len(right)
            tree(left - 1)

    offset = [0]
    for _ in range(n_trees):
        tree(depth)
        offset.append(len(right))
    structure = Structure(np.array(offset, np.int64), np.array(right, np.int32))
    inner = structure.right >= 0
    n_nodes, n_leaves = structure.n_nodes, structure.n_leaves
    feature = np.where(inner, rng.integers(0, n_features, n_nodes), -1).astype(np.int32)
    owner = np.where(inner, feature % len(parties), -1).astype(np.int16)
    threshold = np.where(inner, rng.integers(-3, 4, n_nodes) * 0.5, np.nan)
    splits = {}
    for number, name in enumerate(parties):
        node = np.flatnonzero(owner == number).astype(np.int32)
        splits[name] = splits_at(node, feature[node] // len(parties), threshold[node])
    forest = CoordinatorForest(
        structure=structure,
        owner=owner,
        feature=feature,
        gain=np.zeros(n_nodes),
        leaves=Leaves(
            weight=np.ones(n_leaves),
            start=np.arange(n_leaves + 1),
            output=np.zeros(n_leaves, np.int32),
            value=rng.normal(size=n_leaves),
            n_outputs=1,
        ),
        parties=parties,
        feature_keys=np.arange(n_features, dtype=np.uint64),
        feature_party=np.arange(n_features) % len(parties),
        classes=(),
        n_rows=100,
        sampling=None,
    )
    return Planted(forest, splits, feature, threshold)


def some_rows(seed: int, n_rows: int, n_features: int = 5) -> NDArray[np.float64]:
    """Values that often are equal to a threshold."""
    return np.random.default_rng(seed).integers(-3, 4, (n_rows, n_features)) * 0.5


@dataclass(eq=False)
class World:
    """Every member, and a driver that reaches them."""

    planted: Planted
    gates: Mapping[str, RequestGate] = field(default_factory=dict)
    saved: Mapping[str, EpochKeys] = field(default_factory=dict)
    fingerprint: str = FOREST

    def __post_init__(self) -> None:
        self.parties = self.planted.coordinator.parties
        self.kept: dict[str, list[EpochKeys]] = {name: [] for name in (*self.parties, HELPER, KEYS)}
        self.providers = {
            name: Provider(
                name,
                splits=lambda name=name: self.planted.splits[name],
                gate=self.gates.get(name),
                structure=lambda: self.planted.coordinator.structure,
                fingerprint=lambda: self.fingerprint,
                **self._member(name),
            )
            for name in self.parties
        }
        self.leavers: list[str] = []
        self.helper = Helper(
            HELPER, owners=self.owners, replaces=True, leavers=lambda: self.leavers, **self._member(HELPER)
        )
        self.key_service = KeyService(KEYS, make=ready_master, **self._member(KEYS))
        self.members: dict[str, Any] = {**self.providers, HELPER: self.helper, KEYS: self.key_service}
        self.ledger = Ledger()

    def _member(self, name: str) -> dict[str, Any]:
        return {
            "job": "job",
            "entropy": lambda purpose: f"secret of {name} for {purpose}".encode(),
            "shared_secret": SECRET,
            "setting": "test",
            "keys": self.saved.get(name),
            "keep": self.kept[name].append,
        }

    def run(self, protocol: Any) -> Any:
        with InProcessDriver(self.members, ledger=self.ledger) as driver:
            return run(protocol, driver, ledger=self.ledger)

    def begin(self) -> tuple[CoordinatorKeys, CoordinatorRevocable]:
        """The first epoch, and the forest with its splits encrypted."""
        keys = self.run(begin_epoch(self.parties, helper=HELPER, key_service=KEYS, **TEST))
        return keys, self.encrypted(self.run(encrypt_splits(self.planted.coordinator, keys, fingerprint=FOREST)))

    def owners(self) -> list[str]:
        """Whose each column of a request is."""
        forest = self.planted.coordinator
        return [forest.parties[number] for number in forest.feature_party.tolist()]

    def part(self, party: str) -> PartyForest:
        """A party's part of the forest; its columns are those of the rows that it has every so many of."""
        own = range(self.parties.index(party), 5, len(self.parties))
        coding = NumericCoding(np.empty(0, np.float32), np.empty(0, np.float32))
        names = tuple(f"x{number}" for number in own)
        return PartyForest(self.planted.coordinator.structure, self.planted.splits[party], names, (coding,) * len(own))

    def testers(self, rows: NDArray[np.float64], **options: Any) -> dict[str, RowTester]:
        """Every party with its columns of some rows, to be tested."""
        return {
            party: RowTester(
                self.part(party), self.columns(party, rows), self.providers[party].keys, fingerprint=FOREST, **options
            )
            for party in self.parties
        }

    def columns(self, party: str, rows: NDArray[np.float64]) -> list[NDArray[np.float32]]:
        """A party's columns of some rows."""
        return list(rows[:, self.parties.index(party) :: len(self.parties)].astype(np.float32).T)

    def encrypted(self, splits: EncryptedSplits) -> CoordinatorRevocable:
        return CoordinatorRevocable(self.planted.coordinator, splits)


def stream(label: object = 0) -> SecretStream:
    return SecretStream.derived(b"a secret of the tests", label)
