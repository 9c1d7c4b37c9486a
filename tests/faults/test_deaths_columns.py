"""Kill -9 and SIGSTOP of any process at the steps of every protocol over columns."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sweep import Protocol, sweep
from tally import Tally
from vertical_jobs import PROTOCOLS, Columns, companies

pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Columns]:
    with companies(tmp_path_factory.mktemp("deaths")) as made:
        yield made


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)
def test_faults_at_the_steps_of_a_protocol_change_nothing(stage: Columns, protocol: Protocol, tally: Tally) -> None:
    sweep(stage, protocol, tally)
