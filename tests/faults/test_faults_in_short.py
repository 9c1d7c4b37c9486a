"""The tests of faults in short form: a few deaths in one protocol. `make test-faults` runs the long form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import vertical_jobs
from sweep import named, sweep
from tally import Tally
from vertical_jobs import Columns, companies


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Columns]:
    with companies(tmp_path_factory.mktemp("short"), with_keys=False) as made:
        yield made


@pytest.mark.slow
def test_a_few_faults_at_steps_of_a_protocol_change_nothing(stage: Columns) -> None:
    sweep(stage, replace(named(vertical_jobs.PROTOCOLS, "train"), every=24), Tally(), seed=1)
