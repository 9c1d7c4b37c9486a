"""A client's labels, checked."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from woodlot.data.labels import check_classes, check_targets
from woodlot.protocols.messages.horizontal import Task
from woodlot.protocols.vertical.target import Target


def target_of(y: NDArray[Any], task: Task) -> Target:
    """Labels, checked; of no rows too, which have no classes."""
    if len(y) == 0:
        return Target((), np.empty(0, np.int64), np.empty(0))
    return Target.of_classes(check_classes(y)) if task == "classes" else Target.of_values(check_targets(y))
