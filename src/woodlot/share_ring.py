"""Shares of a revocable forest with every role in this process: for notebooks, tests and simulations."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Generator, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woodlot.exceptions import LocalProtocolError
from woodlot.local_ring import HELPER, KEY_SERVICE, LocalRing, check_roles, member_secrets
from woodlot.protocols.core.agreement import KEY_BYTES
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.core.message import Message, Round
from woodlot.protocols.revocable.share_holders import ShareHelper, ShareService
from woodlot.protocols.revocable.share_keeping import RequestPart
from woodlot.protocols.revocable.share_predict import (
    SharedRequest,
    SharedSplits,
    ShareEpoch,
    commit_shares,
    delete_shares,
    predict_shared,
    prepare_shares,
    share_request,
    share_splits,
)
from woodlot.protocols.revocable.share_provider import ShareProvider
from woodlot.protocols.revocable.tickets import RequestGate
from woodlot.protocols.vertical.files import forest_id_of
from woodlot.runtime.audit import Ledger
from woodlot.trees.forest import Splits, Structure
from woodlot.trees.predict import Vote


class LocalShareRing(LocalRing[ShareEpoch]):
    """A helper, a key service, and the parties of a forest under ``scheme="shares"``.

    Parameters
    ----------
    splits : mapping of str to callable
        For each party, what returns its own splits of the forest in use.
    structure : callable, optional
        Returns the structure of the forest in use: then a row has no more comparisons than paths have with a party's
        splits. Without, no more than there are splits.
    allow_same_host : bool
        Must be True: helper and key service are in one process, so whoever has the process can read everything.
    gates : mapping of str to RequestGate, optional
        Whose requests each party answers; everybody's without.
    ledger : Ledger, optional
        Where what is sent is recorded; one of its own by default.

    Attributes
    ----------
    keys : ShareEpoch
        What the coordinator has of the present epoch.
    ledger : Ledger
        What was sent, and what it cost.

    Raises
    ------
    ConfigError
        If `allow_same_host` is not set, or a party has the name of a role.

    """

    def __init__(
        self,
        splits: Mapping[str, Callable[[], Splits]],
        *,
        structure: Callable[[], Structure] | None = None,
        allow_same_host: bool = False,
        gates: Mapping[str, RequestGate] | None = None,
        ledger: Ledger | None = None,
    ) -> None:
        check_roles(
            splits,
            allow_same_host,
            "helper and key service would be on one host, and their shares together are the splits",
        )
        common = secrets.token_bytes(KEY_BYTES)
        self._columns: dict[str, NDArray[np.int32]] = {}  # of each party, in requests for the forest in use
        self.providers = {
            name: ShareProvider(
                name,
                splits=own,
                columns=_place_of(self._columns, name),
                structure=structure,
                gate=None if gates is None else gates.get(name),
                **member_secrets(common),
            )
            for name, own in splits.items()
        }
        self._leavers = leavers = list[str]()  # who is about to leave
        nothing = RequestPart(key=b"")
        self._told = told = {HELPER: nothing, KEY_SERVICE: nothing}  # by the requester of the present request
        listed: dict[str, Any] = {"replaces": True, "leavers": lambda: leavers}
        self.helper = ShareHelper(HELPER, asked=lambda: told[HELPER], **listed, **member_secrets(common))
        self.key_service = ShareService(
            KEY_SERVICE, asked=lambda: told[KEY_SERVICE], **listed, **member_secrets(common)
        )
        members = {**self.providers, HELPER: self.helper, KEY_SERVICE: self.key_service}
        super().__init__(members, ledger, commit_shares)
        self._splits: SharedSplits | None = None  # of the forest in use
        self._owners: tuple[str, ...] = ()  # of its features
        self.keys = self._run(self._begin(tuple(splits)))

    @staticmethod
    def _begin(parties: tuple[str, ...]) -> Generator[Round, dict[str, Message], ShareEpoch]:
        keys = yield from prepare_shares(parties, helper=HELPER, key_service=KEY_SERVICE)
        yield from commit_shares(keys)
        return keys

    def share(self, forest: CoordinatorForest, leavers: Collection[str] = ()) -> SharedSplits:
        """Have every party split its thresholds of a forest; parties that are about to leave are not asked."""
        self.finish()
        self._leavers[:] = leavers
        protocol = share_splits(forest, self.keys, fingerprint=forest_id_of(forest), leavers=tuple(leavers))
        return self._use(forest, self._run(protocol))

    def _use(self, forest: CoordinatorForest, splits: SharedSplits) -> SharedSplits:
        self._splits = splits
        self._owners = tuple(forest.parties[number] for number in forest.feature_party.tolist())
        self._columns.clear()
        for number, name in enumerate(forest.parties):
            self._columns[name] = np.flatnonzero(forest.feature_party == number).astype(np.int32)
        return splits

    def request(self, rows: ArrayLike, requester: str) -> SharedRequest:
        """At the requester: split rows, columns in the order of the forest's features."""
        if self._splits is None:
            raise LocalProtocolError("no forest has been shared yet")
        return share_request(
            rows,
            epoch=self.keys.epoch,
            requester=requester,
            splits=self._splits.registered,
            owners=self._owners,
        )

    def predict(
        self, forest: CoordinatorForest, splits: SharedSplits, request: SharedRequest, vote: Vote = "soft"
    ) -> NDArray[np.float64]:
        """The forest's outputs for a request; see `predict_shared`."""
        self._told.update({HELPER: request.helper, KEY_SERVICE: request.service})
        return self._run(predict_shared(forest, splits, self.keys, request.ticket, request.values, vote=vote))

    def revoke(self, party: str) -> None:
        """Have a party's shares deleted, within the epoch (levels 1 and 3)."""
        self.finish()
        self.keys = self._run(delete_shares(self.keys, party))

    def rotate(self, forest: CoordinatorForest, leaver: str | None = None) -> SharedSplits:
        """Begin the next epoch without `leaver` (level 2): new keys between all members, and new shares.

        If it is interrupted before all is ready, the present epoch goes on. If it is interrupted while the members
        change over, nothing can be used until this is called again, or `finish`.

        Raises
        ------
        PolicyError
            If the leaver has splits in this forest, or nobody would be left.

        """
        epoch = self._next_epoch(forest, leaver)
        self._leavers[:] = []
        staying = tuple(name for name in self.keys.parties if name != leaver)
        self._begun, splits = self._run(self._rotation(forest, staying, epoch))
        self.finish()
        return self._use(forest, splits)

    @staticmethod
    def _rotation(
        forest: CoordinatorForest, parties: tuple[str, ...], epoch: int
    ) -> Generator[Round, dict[str, Message], tuple[ShareEpoch, SharedSplits]]:
        keys = yield from prepare_shares(parties, helper=HELPER, key_service=KEY_SERVICE, epoch=epoch)
        splits = yield from share_splits(forest, keys, fingerprint=forest_id_of(forest))
        return keys, splits


def _place_of(columns: Mapping[str, NDArray[np.int32]], name: str) -> Callable[[], NDArray[np.int32]]:
    """A party's columns stand in requests where the features of the forest in use do."""
    return lambda: columns[name]
