"""Shares with every role in one process: the limits that hold between members hold here, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import woodlot as wl
from woodlot.exceptions import PolicyError, RemoteProtocolError
from woodlot.local_ring import HELPER
from woodlot.protocols.revocable import share_messages as msg
from woodlot.protocols.revocable.revocable_model import most_on_paths


@pytest.fixture(scope="module")
def fitted() -> Any:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 6))
    model = wl.RevocableForestClassifier(6, max_depth=4, random_state=0, parties=2)
    return model.fit(X, (X[:, 0] + X[:, 1] + X[:, 4] > 0).astype(int)), X


def taken(fitted: Any) -> tuple[Any, Any, Any, dict[str, Any]]:
    """A request of one row that the helper has taken, and a comparison with the first split of some party."""
    model, X = fitted
    secrets, forest = model._secrets(), model.forest_.coordinator
    ring = secrets.ring
    request = ring.request(X[:1], "alice")
    ring._told[HELPER] = request.helper
    admit = msg.AdmitRequest(ticket=request.ticket)
    leaves = {name: provider.handle(admit).leave for name, provider in ring.providers.items()}
    ring.helper.handle(msg.TakeValues(ticket=request.ticket, values=request.values, leaves=leaves))
    node = int(secrets.splits.node[0])
    fields = {
        "ticket": request.ticket,
        "owners": (forest.parties[forest.owner[node]],),
        "owner": np.zeros(1, np.uint16),
        "place": secrets.splits.place[:1],
        "row": np.zeros(1, np.uint32),
        "column": np.array([forest.feature[node]], np.uint32),
    }
    return ring, forest, node, fields


def test_the_first_comparison_cannot_take_another_column_of_its_owner(fitted: Any) -> None:
    ring, forest, node, fields = taken(fitted)
    own = np.flatnonzero(forest.feature_party == forest.owner[node])
    other = own[own != forest.feature[node]][:1].astype(np.uint32)
    with pytest.raises(RemoteProtocolError, match="compared with splits of another column of"):
        ring.helper.handle(msg.CompareAtHelper(**fields | {"column": other}))
    assert ring.helper.handle(msg.CompareAtHelper(**fields)).words.shape[0] == 1


def test_a_row_has_no_more_comparisons_than_paths_have(fitted: Any) -> None:
    ring, forest, node, fields = taken(fitted)
    own = np.flatnonzero(forest.owner == forest.owner[node])
    most = most_on_paths(forest.structure, own)
    assert most < len(own)
    for _ in range(most):
        ring.helper.handle(msg.CompareAtHelper(**fields))
    with pytest.raises(PolicyError, match=f"a row has at most {most} with them"):
        ring.helper.handle(msg.CompareAtHelper(**fields))
