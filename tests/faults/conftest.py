"""What the tests of faults share with those of the services, and the account of what was injected."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tally import Tally


@pytest.fixture
def tally() -> Iterator[Tally]:
    """Counts the faults of one test; they are written down however it ends."""
    counted = Tally()
    yield counted
    counted.write()
