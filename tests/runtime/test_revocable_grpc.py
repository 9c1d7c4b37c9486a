"""The roles of the revocable forest as named peers over TLS: a prediction, somebody away, a restart in the middle."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from woodlot.exceptions import PartyAwayError
from woodlot.protocols.revocable.revocable_keys import begin_epoch
from woodlot.protocols.revocable.revocable_predict import encrypt_request, walk_encrypted
from woodlot.protocols.revocable.rotate import encrypt_splits
from woodlot.runtime.audit import Ledger
from woodlot.runtime.drivers.carried import CarriedDriver
from woodlot.runtime.journal import Journal
from woodlot.runtime.run import run
from woodlot.runtime.sessions import Sessions

from .grpc_world import World as Network
from .grpc_world import new_job

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "protocols"))

from revocable_world import FOREST, HELPER, KEYS, TEST, World, plant, some_rows, stream


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    made = Network(tmp_path)
    yield made
    made.close()


def test_a_prediction_that_is_interrupted_goes_on(network: Network, tmp_path: Path) -> None:
    planted, rows, job = plant(0), some_rows(0, 3), new_job()
    hub = network.hub()
    lines: dict[str, Any] = {}
    journals: dict[str, Journal] = {}

    def join(name: str, member: Any) -> None:
        """A member's process: a handler, its journal, and its line to the coordinator."""
        journals[name] = Journal(tmp_path / f"{name}.sqlite", durable=False)
        sessions = Sessions(name, lambda job: member, journal=journals[name])
        lines[name] = network.party(name, sessions.answer)

    first = World(planted)
    for name, member in first.members.items():
        join(name, member)

    def ask(records: Journal, seconds: float, hangs_up: str | None = None) -> Any:
        """The whole job, from the start or on its journal; a second one has the same randomness as the first."""

        def protocol() -> Any:
            keys = yield from begin_epoch(planted.coordinator.parties, helper=HELPER, key_service=KEYS, **TEST)
            splits = yield from encrypt_splits(planted.coordinator, keys, fingerprint=FOREST)
            request = encrypt_request(
                rows, keys.group, splits=splits.registered, requester="alice", stream=stream("request")
            )
            walk = walk_encrypted(first.encrypted(splits), keys, request)
            replies = None
            for number in itertools.count():
                if number == 5 and hangs_up is not None:
                    lines[hangs_up].stop()
                try:
                    replies = yield walk.send(replies)
                except StopIteration as end:
                    return end.value

        ledger = Ledger()
        carrier = hub.carrier(job, wait_seconds=seconds)
        with CarriedDriver(carrier, tuple(first.members), ledger=ledger, journal=records.job(job)) as driver:
            return run(protocol(), driver, ledger=ledger)

    with Journal(tmp_path / "coordinator.sqlite", durable=False) as records:
        # the helper's line goes down in the middle of the prediction
        with pytest.raises(PartyAwayError) as away:
            ask(records, 0.5, HELPER)
        assert away.value.parties == (HELPER,)

        # everybody starts again but one provider; handlers are rebuilt from their journals
        second = World(planted)
        for name, member in second.members.items():
            lines[name].stop()
            journals[name].close()
            if name != "bank":
                join(name, member)
        with pytest.raises(PartyAwayError) as away:
            ask(records, 0.5)
        assert away.value.parties == ("bank",)
        join("bank", second.members["bank"])
        np.testing.assert_array_equal(ask(records, 30.0), planted.leaves(rows))
    for name in lines:
        lines[name].stop()
        journals[name].close()
