"""All roles of the revocable forest's keys in one process."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent / "protocols"))

from revocable_world import TEST, plant, ready_master, some_rows

from woodlot.exceptions import (
    ConfigError,
    EpochError,
    JournalError,
    LocalProtocolError,
    PolicyError,
    WoodlotError,
)
from woodlot.keyring import LocalKeyring
from woodlot.local_ring import HELPER
from woodlot.protocols.revocable.revocable_model import CoordinatorRevocable
from woodlot.trees.predict import outputs_from_leaves


def test_encrypt_predict_rotate_and_revoke() -> None:
    planted, rows = plant(4), some_rows(4, 3)
    expected = outputs_from_leaves(planted.leaves(rows), planted.coordinator.leaves)
    splits = {name: lambda name=name: planted.splits[name] for name in planted.splits}
    with LocalKeyring(splits, allow_same_host=True, make=ready_master, **TEST) as ring:
        first = CoordinatorRevocable(planted.coordinator, ring.encrypt(planted.coordinator))
        np.testing.assert_array_equal(ring.predict(first, ring.request(rows, "alice")), expected)
        second = CoordinatorRevocable(planted.coordinator, ring.rotate(planted.coordinator))
        np.testing.assert_array_equal(ring.predict(second, ring.request(rows, "alice")), expected)
        with pytest.raises(EpochError):
            ring.predict(first, ring.request(rows, "alice"))
        with pytest.raises(PolicyError, match="regrow them first"):
            ring.rotate(planted.coordinator, "shop")
        ring.revoke("shop")
        with pytest.raises(PolicyError, match="revoked"):
            ring.predict(second, ring.request(rows, "alice"))
        assert {row["receiver"] for row in ring.ledger.disclosure().to_dicts()} >= {HELPER, "coordinator"}


def test_a_change_of_epochs_that_was_interrupted_is_finished_by_trying_again() -> None:
    planted, rows = plant(4), some_rows(4, 3)
    expected = outputs_from_leaves(planted.leaves(rows), planted.coordinator.leaves)
    splits = {name: lambda name=name: planted.splits[name] for name in planted.splits}
    with LocalKeyring(splits, allow_same_host=True, make=ready_master, **TEST) as ring:
        first = CoordinatorRevocable(planted.coordinator, ring.encrypt(planted.coordinator))

        def full(keys: object) -> None:
            raise JournalError("the disk is full")

        ring.providers["shop"]._keep = full
        with pytest.raises(WoodlotError, match="JournalError"):
            ring.rotate(planted.coordinator)
        assert {provider.epoch for provider in ring.providers.values()} == {1, 2}
        with pytest.raises(LocalProtocolError, match="epoch 1 has ended"):
            ring.predict(first, ring.request(rows, "alice"))
        ring.providers["shop"]._keep = None
        again = CoordinatorRevocable(planted.coordinator, ring.rotate(planted.coordinator))
        assert ring.keys.epoch == again.epoch == 3
        np.testing.assert_array_equal(ring.predict(again, ring.request(rows, "alice")), expected)


def test_one_host_must_be_asked_for() -> None:
    with pytest.raises(ConfigError, match="allow_same_host=True"):
        LocalKeyring({"bank": lambda: plant(0).splits["bank"]})
    with pytest.raises(ConfigError, match="name of a role"):
        LocalKeyring({HELPER: lambda: plant(0).splits["bank"]}, allow_same_host=True)
    with pytest.raises(ConfigError, match="1024 has to be asked for"):
        LocalKeyring({"bank": lambda: plant(0).splits["bank"]}, allow_same_host=True, bits=1024)
