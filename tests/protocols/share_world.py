"""A small federation under scheme="shares": forests of random splits, every role in this process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from revocable_world import FOREST, HELPER, KEYS, SECRET, Planted

from woodlot.protocols.core.message import Message
from woodlot.protocols.revocable import share_messages as msg
from woodlot.protocols.revocable.epoch_keys import EpochKeys
from woodlot.protocols.revocable.share_holders import ShareHelper, ShareService
from woodlot.protocols.revocable.share_keeping import MemoryBook, RequestPart
from woodlot.protocols.revocable.share_predict import (
    SharedRequest,
    SharedSplits,
    ShareEpoch,
    commit_shares,
    prepare_shares,
    share_request,
    share_splits,
    walk_shared,
)
from woodlot.protocols.revocable.share_provider import ShareProvider
from woodlot.protocols.revocable.tickets import RequestGate
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run


@dataclass(eq=False)
class ShareWorld:
    """Every member, and a driver that reaches them."""

    planted: Planted
    gates: Mapping[str, RequestGate] = field(default_factory=dict)
    saved: Mapping[str, EpochKeys] = field(default_factory=dict)
    books: Mapping[str, MemoryBook] = field(default_factory=lambda: {HELPER: MemoryBook(), KEYS: MemoryBook()})
    fingerprint: str = FOREST

    def __post_init__(self) -> None:
        self.parties = self.planted.coordinator.parties
        self.kept: dict[str, list[EpochKeys]] = {name: [] for name in (*self.parties, HELPER, KEYS)}
        self.columns: dict[str, NDArray[np.int32]] = {}
        self.asked: SharedRequest | None = None
        self.leavers: list[str] = []
        self.providers = {name: self._provider(name) for name in self.parties}
        holder: dict[str, Any] = {"replaces": True, "leavers": lambda: self.leavers}
        self.helper = ShareHelper(
            HELPER, asked=lambda: self._told("helper"), book=self.books[HELPER], **holder, **self._member(HELPER)
        )
        self.key_service = ShareService(
            KEYS, asked=lambda: self._told("service"), book=self.books[KEYS], **holder, **self._member(KEYS)
        )
        self.members: dict[str, Any] = {**self.providers, HELPER: self.helper, KEYS: self.key_service}
        self.ledger = Ledger()

    def _provider(self, name: str) -> ShareProvider:
        forest = self.planted.coordinator
        own = np.flatnonzero(forest.feature_party == self.parties.index(name)).astype(np.int32)
        self.columns[name] = own  # a party's columns stand in the request where the forest's features do
        return ShareProvider(
            name,
            splits=lambda: self.planted.splits[name],
            gate=self.gates.get(name),
            columns=lambda: self.columns[name],
            structure=lambda: forest.structure,
            fingerprint=lambda: self.fingerprint,
            **self._member(name),
        )

    def _member(self, name: str) -> dict[str, Any]:
        return {
            "job": "job",
            "entropy": lambda purpose: f"secret of {name} for {purpose}".encode(),
            "shared_secret": SECRET,
            "keys": self.saved.get(name),
            "keep": self.kept[name].append,
        }

    def _told(self, role: str) -> RequestPart:
        return RequestPart(key=b"") if self.asked is None else getattr(self.asked, role)

    def run(self, protocol: Any) -> Any:
        with InProcessDriver(self.members, ledger=self.ledger) as driver:
            return run(protocol, driver, ledger=self.ledger)

    def begin(self, epoch: int = 1) -> tuple[ShareEpoch, SharedSplits]:
        """An epoch, and the forest with its splits shared."""
        keys = self.run(prepare_shares(self.parties, helper=HELPER, key_service=KEYS, epoch=epoch))
        splits = self.run(share_splits(self.planted.coordinator, keys, fingerprint=self.fingerprint))
        self.run(commit_shares(keys))
        return keys, splits

    def owners(self) -> list[str]:
        """Whose each column of a request is."""
        forest = self.planted.coordinator
        return [forest.parties[number] for number in forest.feature_party.tolist()]

    def request(self, rows: Any, splits: SharedSplits, requester: str = "alice", **options: Any) -> SharedRequest:
        """A requester's rows; its secrets reach helper and key service."""
        fields: dict[str, Any] = {"epoch": splits.epoch, "requester": requester, "owners": self.owners()}
        self.asked = share_request(rows, splits=splits.registered, **fields | options)
        return self.asked

    def leaves(self, keys: ShareEpoch, splits: SharedSplits, request: SharedRequest) -> NDArray[np.int32]:
        """The leaves that the coordinator finds."""
        forest = self.planted.coordinator
        found: NDArray[np.int32] = self.run(walk_shared(forest, splits, keys, request.ticket, request.values))
        return found

    def take(self, request: SharedRequest) -> msg.TakeValues:
        """What the coordinator brings the helper first, with the leave of all parties that have splits."""
        leaves = {}
        for name in self.parties:
            if len(self.planted.splits[name].node):
                reply = self.providers[name].handle(msg.AdmitRequest(ticket=request.ticket))
                assert isinstance(reply, msg.RequestAdmitted)
                leaves[name] = reply.leave
        return msg.TakeValues(ticket=request.ticket, values=request.values, leaves=leaves)

    def fields(self, request: SharedRequest, splits: SharedSplits, nodes: Any, rows: Any) -> dict[str, Any]:
        """Comparisons of some rows with the splits of some nodes, as messages have them."""
        forest = self.planted.coordinator
        nodes = np.asarray(nodes)
        owner = forest.owner[nodes].astype(np.int64)
        names = sorted({forest.parties[number] for number in owner.tolist()})
        return {
            "ticket": request.ticket,
            "owners": tuple(names),
            "owner": np.array([names.index(forest.parties[number]) for number in owner], np.uint16),
            "place": splits.place[np.searchsorted(splits.node, nodes)],
            "row": np.asarray(rows, np.uint32),
            "column": forest.feature[nodes].astype(np.uint32),
        }

    def both(self, fields: dict[str, Any]) -> tuple[Message, Message]:
        """The answers of helper and key service to the same question."""
        return (
            self.helper.handle(msg.CompareAtHelper(**fields)),
            self.key_service.handle(msg.CompareAtService(**fields)),
        )


def inner_nodes(planted: Planted) -> NDArray[np.int64]:
    return np.flatnonzero(planted.coordinator.structure.right >= 0)
