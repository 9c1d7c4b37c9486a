"""Kill -9 and SIGSTOP of any process at the steps of every protocol over rows; sums are secure in all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from row_jobs import PROTOCOLS, Rows, clinics
from sweep import Protocol, sweep
from tally import Tally

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    with clinics(tmp_path_factory.mktemp("deaths")) as made:
        yield made


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_faults_at_the_steps_of_a_protocol_change_nothing(stage: Rows, protocol: Protocol, tally: Tally) -> None:
    sweep(stage, protocol, tally)
