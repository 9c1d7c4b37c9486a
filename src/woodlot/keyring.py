"""Keys of a revocable forest with every role in this process: for notebooks, tests and simulations.

Between organisations the helper and the key service are processes of their own; see docs/protocol/revocable.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from woodlot.crypto.dtpkc import DEFAULT_BITS, Setting
from woodlot.crypto.encoding import DEFAULT_DIGITS, Encoding
from woodlot.crypto.master import MasterKey
from woodlot.local_ring import HELPER, KEY_SERVICE, LocalRing, check_roles, member_secrets
from woodlot.protocols.core.agreement import KEY_BYTES
from woodlot.protocols.core.forest_parts import CoordinatorForest
from woodlot.protocols.revocable.helper import Helper
from woodlot.protocols.revocable.key_service import KeyService
from woodlot.protocols.revocable.provider import Provider
from woodlot.protocols.revocable.revocable_keys import CoordinatorKeys, begin_epoch, commit_epoch, revoke_key
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable, EncryptedSplits
from woodlot.protocols.revocable.revocable_predict import EncryptedRequest, encrypt_request, predict_encrypted
from woodlot.protocols.revocable.rotate import encrypt_splits, prepare_rotation
from woodlot.protocols.revocable.row_test import RowTester, predict_own_rows
from woodlot.protocols.revocable.tickets import RequestGate
from woodlot.protocols.vertical.files import forest_id_of
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.inprocess import InProcessDriver
from woodlot.runtime.run import run
from woodlot.trees.forest import Splits
from woodlot.trees.predict import Vote


class LocalKeyring(LocalRing[CoordinatorKeys]):
    """A helper, a key service, and the keys of all parties.

    Parameters
    ----------
    splits : mapping of str to callable
        For each party, what returns its own splits of the forest in use.
    allow_same_host : bool
        Must be True: coordinator and helper are in one process, so whoever has the process can open everything.
    bits : int
        Length of the modulus. At 3072 bits it takes about half a minute to find one.
    setting : {"standard", "paper", "test"}
        The shortest modulus that may be asked for.
    gates : mapping of str to RequestGate, optional
        Whose requests each party answers; everybody's without.
    encoding, digits
        How numbers become integers; see `woodlot.crypto.encoding`.
    threads : int
        For the decryptions.
    make : callable
        Makes a modulus; `MasterKey.generate` unless a test has its own.
    ledger : Ledger, optional
        Where what is sent is recorded; one of its own by default.

    Attributes
    ----------
    keys : CoordinatorKeys
        What the coordinator has of the present epoch.
    ledger : Ledger
        What was sent, and what it cost.

    Raises
    ------
    ConfigError
        If `allow_same_host` is not set, or keys of this length are not made.

    """

    def __init__(
        self,
        splits: Mapping[str, Callable[[], Splits]],
        *,
        allow_same_host: bool = False,
        bits: int = DEFAULT_BITS,
        setting: Setting = "standard",
        gates: Mapping[str, RequestGate] | None = None,
        encoding: Encoding = "exact",
        digits: int = DEFAULT_DIGITS,
        threads: int = 1,
        make: Callable[..., MasterKey] = MasterKey.generate,
        ledger: Ledger | None = None,
    ) -> None:
        check_roles(
            splits,
            allow_same_host,
            "coordinator and helper would be on one host, and their shares of the strong key together open everything",
        )
        common = secrets.token_bytes(KEY_BYTES)
        self._modulus: dict[str, Any] = {"bits": bits, "setting": setting}
        self._numbers: dict[str, Any] = {"encoding": encoding, "digits": digits}
        self._threads = threads
        self.providers = {
            name: Provider(
                name,
                splits=own,
                gate=None if gates is None else gates.get(name),
                **self._numbers,
                **_member(common, setting),
            )
            for name, own in splits.items()
        }
        self._owners = owners = list[str]()  # of the columns of the present request
        self._leavers = leavers = list[str]()  # who is about to leave
        members = {
            **self.providers,
            HELPER: Helper(
                HELPER,
                owners=lambda: owners,
                replaces=True,
                leavers=lambda: leavers,
                threads=threads,
                **_member(common, setting),
            ),
            KEY_SERVICE: KeyService(KEY_SERVICE, make=make, **_member(common, setting)),
        }
        super().__init__(members, ledger, commit_epoch)
        self._registered = b""  # the hash of the splits in use
        self.keys = self._run(begin_epoch(tuple(splits), helper=HELPER, key_service=KEY_SERVICE, **self._modulus))

    def encrypt(
        self,
        forest: CoordinatorForest,
        former: EncryptedSplits | None = None,
        origin: NDArray[np.int64] | None = None,
        leavers: Collection[str] = (),
    ) -> EncryptedSplits:
        """Have every party encrypt its splits of a forest, or those that a former one of this epoch does not have.

        Parties that are about to leave are not asked.
        """
        self.finish()
        if former is not None and former.epoch != self.keys.epoch:
            former, origin = None, None
        self._leavers[:] = leavers
        protocol = encrypt_splits(
            forest, self.keys, former, origin, fingerprint=forest_id_of(forest), leavers=tuple(leavers)
        )
        splits = self._run(protocol)
        self._registered = splits.registered
        return splits

    def request(self, rows: ArrayLike, requester: str) -> EncryptedRequest:
        """At the requester: encrypt rows, columns in the order of the forest's features."""
        return encrypt_request(rows, self.keys.group, requester=requester, splits=self._registered, **self._numbers)

    def predict(
        self, forest: CoordinatorRevocable, request: EncryptedRequest, vote: Vote = "soft"
    ) -> NDArray[np.float64]:
        """The forest's outputs for an encrypted request; see `predict_encrypted`."""
        grown = forest.forest
        self._owners[:] = [grown.parties[number] for number in grown.feature_party.tolist()]
        return self._run(predict_encrypted(forest, self.keys, request, vote=vote, threads=self._threads))

    def test(
        self, forest: CoordinatorRevocable, testers: Mapping[str, RowTester], n_rows: int, vote: Vote = "soft"
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The forest's outputs for rows whose columns lie at the parties (FRF-Test); see `predict_own_rows`."""
        protocol = predict_own_rows(forest, self.keys, tuple(testers), n_rows, vote)
        with InProcessDriver(testers, ledger=self.ledger) as driver:
            return run(protocol, driver, ledger=self.ledger)

    def revoke(self, party: str) -> None:
        """Have a party's key struck out, within the epoch (levels 1 and 3)."""
        self.finish()
        self.keys = self._run(revoke_key(self.keys, party))

    def rotate(self, forest: CoordinatorForest, leaver: str | None = None) -> EncryptedSplits:
        """Begin the next epoch without `leaver` (level 2): the splits of its forest, under the new keys.

        If it is interrupted before all is ready, the present epoch goes on. If it is interrupted while the members
        change over, nothing can be used until this is called again, or `finish`.

        Raises
        ------
        PolicyError
            If the leaver has splits in this forest, or nobody would be left.

        """
        epoch = self._next_epoch(forest, leaver)
        self._begun, splits = self._run(
            prepare_rotation(
                forest,
                self.keys,
                fingerprint=forest_id_of(forest),
                leaver=leaver,
                epoch=epoch,
                **self._modulus,
            )
        )
        self.finish()
        self._registered = splits.registered
        return splits


def _member(common: bytes, setting: Setting) -> dict[str, Any]:
    return {**member_secrets(common), "setting": setting}
