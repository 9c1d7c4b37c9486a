"""A coordinator process that brings a forest of its own, and party processes that let it meet none of their rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import forger
import pytest
from hospitals import HOSPITALS, LABEL, RATED_POLICY, hospitals, rows_of
from processes import Processes, deviating

import woodlot as wl
from woodlot.service.client import JobFailed


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Processes]:
    with deviating(hospitals(tmp_path, policy=RATED_POLICY), forger.__file__) as services:
        yield services


@pytest.mark.slow
def test_parties_refuse_a_forest_that_a_coordinator_has_made_up(running: Processes) -> None:
    """By the forest that the user has at hand, and by its name: the signed order says which it is."""
    with rows_of(running.world) as user:
        model = wl.HorizontalForestClassifier(3, max_depth=3, random_state=0).fit(user, y=LABEL)
        with pytest.raises(JobFailed, match="brought another forest"):
            model.evaluate(user)
        for named in (model.forest_, model.forest_.model):
            with pytest.raises(JobFailed, match="brought another forest"):
                user.predict_rows(named, LABEL)
    assert any("brought another forest" in running.log(party) for party in HOSPITALS)
    for party in HOSPITALS:
        assert not list((running.world.root / party / "state").glob("answers/*"))
